/* The setup of a run: the optimizer's parameters, and the plan of its memory. */
#ifndef TG_TRAIN_RUN_SETUP_H
#define TG_TRAIN_RUN_SETUP_H

#include "train/config.h"

/* Two groups: spectral weights, projected if the method does, and all others, dense. */
typedef struct tg_run_setup {
    tg_optim_config groups[2];
    tg_optim_param *params;
    tg_optim_setup setup; /* points to the two above */
} tg_run_setup;

/* Takes the parameters of `fno` (an outline will do) and keeps pointers to their names; *out must
 * not move. To be freed. */
TG_NODISCARD tg_status tg_run_setup_make(tg_context *ctx, const tg_run_config *config,
                                         const tg_fno *fno, int64_t updates_per_epoch,
                                         tg_run_setup *out);
void tg_run_setup_free(tg_context *ctx, tg_run_setup *setup);

/* Adds to an error about lack of memory how much the run plans to hold, how much the device has,
 * and which settings need less. Leaves other errors alone; returns `status`. */
TG_NODISCARD tg_status tg_run_explain(tg_context *ctx, const tg_run_config *config,
                                      const size_t *planned, tg_status status);

/* Refuses a run whose plan exceeds the memory left on the host or the device, with the amount, the
 * phase, and settings that need less; warns if it needs nearly all. `planned` gets the bytes by
 * category of the backend's highest phase, `checkpoint` those of a checkpoint, with the parts of
 * all ranks. */
TG_NODISCARD tg_status tg_run_check_memory(tg_context *ctx, const tg_settings *settings,
                                           const tg_run_config *config,
                                           size_t planned[TG_MEM_CATEGORIES], size_t *checkpoint);

#endif
