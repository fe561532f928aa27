/* Inside of a trainer, shared by the files that make it up: trainer.c (life, stages), loop.c
 * (batches, epochs), saving.c and resume.c (checkpoints). */
#ifndef TG_TRAIN_TRAINER_H
#define TG_TRAIN_TRAINER_H

#include <pthread.h>
#include <stdatomic.h>

#include "data/dataset.h"
#include "train/checkpoint.h"
#include "train/prefetch.h"
#include "train/run_folder.h"

typedef struct test_set {
    tg_dataset *dataset;
    int64_t batch;
    char name[TG_GRID_TEXT]; /* as in tg_test_errors */
} test_set;

/* A checkpoint on its way to the disk (saving.c). */
typedef struct tg_saving {
    tg_staging staging; /* pinned, from the first one on */
    tg_context ctx;     /* a branch, of who writes */
    tg_run_folder folder;
    tg_archive *archive; /* what is written; NULL: nothing is */
    int64_t step, keep;
    bool is_best, is_newest;    /* names that it gets */
    bool is_short_of_room;      /* the disk is nearly full, as was told */
    bool lacks_best;            /* .. but the first one, which could not be written */
    double error, error_before; /* lowest so far: with this one, and without */
    bool has_thread;
    pthread_t thread;
    atomic_bool is_written;
    tg_status status;
    char warning[512]; /* "": none */
} tg_saving;

/* How a run begins in its folder. */
typedef enum tg_entry { TG_ENTRY_NONE, TG_ENTRY_START, TG_ENTRY_REPLACE, TG_ENTRY_RESUME } tg_entry;

struct tg_trainer {
    tg_context *ctx;
    tg_context reader; /* a branch, of the training data */
    tg_comm *comm;     /* of ranks that train together; NULL: no others */
    tg_model *model;
    tg_optim *optim;
    size_t planned[TG_MEM_CATEGORIES]; /* bytes that it holds at its highest, by its plan */
    size_t checkpoint_bytes;           /* of a checkpoint's tensors, likewise */
    tg_run_folder folder;
    tg_entry entry;
    bool has_entered; /* the folder is this run's */
    int64_t newest;   /* checkpoint in the folder when it was looked at; -1: none */
    int stages;
    tg_archive *origin; /* metadata of the first test's file; NULL: not made by `tgrad generate` */
    tg_progress progress;

    /* of the current stage */
    tg_dataset *train;
    tg_loader *loader;
    tg_prefetch *prefetch;
    test_set tests[TG_MAX_TESTS];
    int test_count;
    int best_test;                       /* of them the one that opt.best_metric is about */
    tg_test_errors errors[TG_MAX_TESTS]; /* of the last evaluation */
    bool is_evaluated;                   /* the epoch under way */

    tg_step *step;
    int64_t under_way; /* batch whose outcome is not in the books yet */
    int64_t summed;    /* batches in the update under way */
    int64_t refreshes; /* of projections, logged so far */

    double epoch_start; /* on the clock */
    double step_seconds;
    tg_train_time time;  /* since the last line of an epoch, but for the steps */
    int64_t timed_steps; /* of this epoch in this process */
    double run_seconds;  /* of all steps timed in this process */
    int64_t run_steps;
    tg_saving saving;
    double best_before;            /* lowest error before the last evaluation */
    char last_checkpoint[TG_PATH]; /* that was written, or resumed from */
};

/* Whether this rank writes files: the first one. */
bool tg_trainer_writes(const tg_trainer *t);
/* What every rank did for itself: a failure of one is one of all. */
TG_NODISCARD tg_status tg_trainer_agree(const tg_trainer *t, tg_status status);

/* Settings, data and buffers of progress.stage (trainer.c). */
TG_NODISCARD tg_status tg_trainer_open_stage(tg_trainer *t);

/* The test set of opt.best_metric, of those of the stage; its error of an epoch, NaN if that was
 * not evaluated (best_metric.c). */
TG_NODISCARD tg_status tg_trainer_choose_metric(tg_trainer *t);
double tg_trainer_best_error(const tg_trainer *t, const tg_train_epoch *epoch);

/* Whether the training of an epoch came to numbers, for progress.diverged; before its counters
 * begin anew. `is_last`: of the run (divergence.c). */
TG_NODISCARD tg_status tg_trainer_judge_epoch(tg_trainer *t, const tg_train_epoch *epoch,
                                              bool is_last);
/* Fails with what a run that has diverged has to say, and TG_OK otherwise. */
TG_NODISCARD tg_status tg_trainer_check_divergence(tg_trainer *t);
/* "; the last good checkpoint is .., of epoch 3": the newest whose run had not diverged. */
enum { TG_GOOD_TEXT = TG_PATH + 80 };
const char *tg_trainer_last_good(tg_trainer *t, char text[TG_GOOD_TEXT]);

/* Takes the folder, to train so many epochs: all that was to be checked is good but for the room on
 * the disk, and only after that files change (resume.c). */
TG_NODISCARD tg_status tg_trainer_enter(tg_trainer *t, int64_t epochs_left);

/* Refuses a run whose checkpoints have no room on the disk, or warns of it; with so many epochs to
 * train (disk_room.c). */
TG_NODISCARD tg_status tg_trainer_check_room(const tg_trainer *t, int64_t epochs_left);

#define TG_BEST "checkpoints/best.safetensors"

/* A checkpoint of now, as the best one, the newest one or both. It may be written while the run
 * goes on, and fail later: then the next of these calls fails. A best one that cannot be written is
 * a warning: the one before stays (saving.c). */
TG_NODISCARD tg_status tg_trainer_save(tg_trainer *t, bool is_best, bool is_newest);
/* Whether the last one is good, if that is known by now. */
TG_NODISCARD tg_status tg_trainer_check_saved(tg_trainer *t);
/* Waits for the last one. */
TG_NODISCARD tg_status tg_trainer_finish_save(tg_trainer *t);
/* Waits for it in a run that has failed otherwise: its own error is a warning. */
void tg_trainer_end_saving(tg_trainer *t);
/* The same, and gives the memory back. */
void tg_trainer_close_saving(tg_trainer *t);

/* Takes more modes into use before an epoch, if the settings ask for that and the last ones call
 * for it (incremental.c). */
TG_NODISCARD tg_status tg_trainer_grow_modes(tg_trainer *t);

/* File, array and place of the first NaN or Inf in a batch of this epoch; "" if none can be found
 * (nonfinite_batch.c). */
void tg_trainer_find_nonfinite(const tg_trainer *t, int64_t batch, char text[TG_NONFINITE_TEXT]);

/* A line of projections.jsonl if anything was refreshed since the last one (projection_log.c). */
TG_NODISCARD tg_status tg_trainer_log_projections(tg_trainer *t);

/* With opt.track_stable_rank: a line of stable_ranks.jsonl, of now, after `epoch` epochs
 * (stable_ranks.c). */
TG_NODISCARD tg_status tg_trainer_log_stable_ranks(tg_trainer *t, int64_t epoch);
/* Bytes that this takes beside the network's buffers, those of the batch among them. */
TG_NODISCARD tg_status tg_stable_ranks_add_bytes(tg_backend *be, const tg_run_config *config,
                                                 const tg_dataset_facts *facts, int64_t batch,
                                                 tg_amounts *out);

/* x, y and predictions of up to so many test samples at every resolution (sample_predictions.c). */
enum { TG_SAMPLES_SHOWN = 4 };
TG_NODISCARD tg_status tg_trainer_write_samples(tg_trainer *t);
/* Reads `origin`, which goes with them. */
TG_NODISCARD tg_status tg_trainer_read_origin(tg_trainer *t);
/* Whether those of this step are in the folder. */
bool tg_trainer_has_samples(const tg_trainer *t);

#endif
