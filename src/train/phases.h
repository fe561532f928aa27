/* The phases of a run, written down once: the trainer goes through them and trains, the plan goes
 * through them and counts what is held. What a phase takes is told by the file that takes it. */
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

/* Where a run stands. */
typedef struct tg_run_position {
    const tg_loop_config *loop; /* of the stage */
    int64_t epoch;              /* finished in it, which TG_PHASE_RECORD counts */
    bool is_last_stage;
    bool is_stopped; /* early: the epochs that are left are not trained */
} tg_run_position;

/* What follows when `done` is done; what a run that is begun or resumed here begins with. */
tg_phase tg_phase_after(tg_phase done, const tg_run_position *at);
tg_phase tg_phase_first(const tg_run_position *at);

/* Whether the record of this epoch, the `epoch`th of a stage, has a checkpoint to go on from. */
bool tg_phase_saves(const tg_loop_config *loop, int64_t epoch);

/* Bytes by place. */
typedef struct tg_amounts {
    size_t at[TG_PLACES][TG_MEM_CATEGORIES];
} tg_amounts;

#endif
