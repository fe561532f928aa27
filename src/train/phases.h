/* The phases of a run, defined once: the trainer executes them, the plan adds up the memory of
 * each. The file that allocates memory for a phase also reports its size. */
#ifndef TG_TRAIN_PHASES_H
#define TG_TRAIN_PHASES_H

#include "train/config.h"

typedef enum tg_phase {
    TG_PHASE_OPEN,     /* the data of the next stage */
    TG_PHASE_TRAIN,    /* the steps of an epoch */
    TG_PHASE_EVALUATE, /* on every test set */
    TG_PHASE_RECORD,   /* ends the epoch: metrics and checkpoints */
    TG_PHASE_SAMPLES,  /* predictions for the report */
    TG_PHASE_END
} tg_phase;

/* The position of a run. */
typedef struct tg_run_position {
    const tg_loop_config *loop; /* of the stage */
    int64_t epoch;              /* epochs finished in it, counted by TG_PHASE_RECORD */
    bool is_last_stage;
    bool is_stopped; /* early: remaining epochs are skipped */
} tg_run_position;

/* The phase after `done`; the first phase of a run that is started or resumed at this position. */
tg_phase tg_phase_after(tg_phase done, const tg_run_position *at);
tg_phase tg_phase_first(const tg_run_position *at);

/* Whether the record of this epoch, the `epoch`th of a stage, includes a checkpoint. */
bool tg_phase_saves(const tg_loop_config *loop, int64_t epoch);

/* Bytes by place. */
typedef struct tg_amounts {
    size_t at[TG_PLACES][TG_MEM_CATEGORIES];
} tg_amounts;

#endif
