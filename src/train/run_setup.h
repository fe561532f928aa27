/* What a run is made of and needs: the optimizer's parameters, and the plan of its memory. */
#ifndef TG_TRAIN_RUN_SETUP_H
#define TG_TRAIN_RUN_SETUP_H

#include "train/config.h"

/* Two groups: spectral weights, projected if the method says so, and all others, dense. */
typedef struct tg_run_setup {
    tg_optim_config groups[2];
    tg_optim_param *params;
    tg_optim_setup setup; /* points at the two above */
} tg_run_setup;

/* Parameters are those of `fno` (an outline will do), whose names it keeps; *out stays where it is.
 * To be freed. */
TG_NODISCARD tg_status tg_run_setup_make(tg_context *ctx, const tg_run_config *config,
                                         const tg_fno *fno, int64_t updates_per_epoch,
                                         tg_run_setup *out);
void tg_run_setup_free(tg_context *ctx, tg_run_setup *setup);

/* To the sentence about a lack of memory adds what the run holds by its plan, what the device has,
 * and which settings need less. Other failures stay as they are; hands `status` on. */
TG_NODISCARD tg_status tg_run_explain(tg_context *ctx, const tg_run_config *config,
                                      const size_t *planned, tg_status status);

/* Refuses a run that by its plan needs more memory than the host or the device has left, with what
 * it needs, when, and which settings need less; warns of one that needs nearly all. `planned` gets
 * the bytes by category of its highest phase, where the backend computes, and `checkpoint` those of
 * a checkpoint, to which all ranks add what they keep. */
TG_NODISCARD tg_status tg_run_check_memory(tg_context *ctx, const tg_settings *settings,
                                           const tg_run_config *config,
                                           size_t planned[TG_MEM_CATEGORIES], size_t *checkpoint);

#endif
