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
    bool is_best, is_newest; /* names that it gets */
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
    tg_run_folder folder;
    tg_entry entry;
    bool has_entered; /* the folder is this run's */
    int64_t newest;   /* checkpoint in the folder when it was looked at; -1: none */
    int stages;
    tg_progress progress;

    /* of the current stage */
    tg_dataset *train;
    tg_loader *loader;
    tg_prefetch *prefetch;
    test_set tests[TG_MAX_TESTS];
    int test_count;
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
    char last_checkpoint[TG_PATH]; /* that was written, or resumed from */
};

/* Whether this rank writes files: the first one. */
bool tg_trainer_writes(const tg_trainer *t);
/* What every rank did for itself: a failure of one is one of all. */
TG_NODISCARD tg_status tg_trainer_agree(const tg_trainer *t, tg_status status);

/* Settings, data and buffers of progress.stage (trainer.c). */
TG_NODISCARD tg_status tg_trainer_open_stage(tg_trainer *t);

/* Takes the folder: all that was to be checked is good, and only from here on files change
 * (resume.c). */
TG_NODISCARD tg_status tg_trainer_enter(tg_trainer *t);

#define TG_BEST "checkpoints/best.safetensors"

/* A checkpoint of now, as the best one, the newest one or both. It may be written while the run
 * goes on, and fail later: then the next of these calls fails (saving.c). */
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

/* File, array and place of the first NaN or Inf in a batch of this epoch; "" if it has none that can
 * be found (nonfinite_batch.c). */
void tg_trainer_find_nonfinite(const tg_trainer *t, int64_t batch, char text[TG_NONFINITE_TEXT]);

/* A line of projections.jsonl if anything was refreshed since the last one (projection_log.c). */
TG_NODISCARD tg_status tg_trainer_log_projections(tg_trainer *t);

/* x, y and predictions of up to so many test samples at every resolution (sample_predictions.c). */
enum { TG_SAMPLES_SHOWN = 4 };
TG_NODISCARD tg_status tg_trainer_write_samples(tg_trainer *t);
/* Whether those of this step are in the folder. */
bool tg_trainer_has_samples(const tg_trainer *t);

#endif
