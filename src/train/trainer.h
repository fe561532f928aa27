/* Internals of a trainer: trainer.c (creation, stages), loop.c (batches, epochs), saving.c and
 * resume.c (checkpoints). */
#ifndef TG_TRAIN_TRAINER_H
#define TG_TRAIN_TRAINER_H

#include <pthread.h>
#include <stdatomic.h>

#include "data/dataset.h"
#include "train/checkpoint.h"
#include "train/config.h"
#include "train/model.h"
#include "train/run_folder.h"

/* Delivers the batches of an epoch, in order, on the backend.
 *
 * On the host a batch is read on request. On a stream, a thread reads and normalizes ahead, into
 * two pinned buffers in turn, and a copy stream uploads the next batch while the previous step
 * computes. Order and contents of the batches are the loader's in both cases. */
typedef struct tg_prefetch tg_prefetch;

/* `reader` is the context of loader and dataset, which only the prefetcher uses from now on; it
 * passes their errors on to the model's context. */
TG_NODISCARD tg_status tg_prefetch_create(tg_model *model, tg_context *reader, tg_loader *loader,
                                          const tg_dataset_facts *facts, int64_t batch_size,
                                          tg_prefetch **out);
void tg_prefetch_destroy(tg_prefetch **prefetch);
/* Its memory. */
tg_amounts tg_prefetch_bytes(const tg_backend *be, const tg_dataset_facts *facts,
                             int64_t batch_size);

/* Starts at that batch of an epoch; reading ahead ends with the epoch. */
TG_NODISCARD tg_status tg_prefetch_start(tg_prefetch *prefetch, int64_t epoch, int64_t batch);
/* Stops reading; nothing is prefetched until the next start. */
TG_NODISCARD tg_status tg_prefetch_stop(tg_prefetch *prefetch);

/* The next batch, for work queued until tg_prefetch_ahead. */
TG_NODISCARD tg_status tg_prefetch_next(tg_prefetch *prefetch, tg_tensor *x, tg_tensor *y);
/* All work on this batch is queued: the next one may be copied after it. */
TG_NODISCARD tg_status tg_prefetch_ahead(tg_prefetch *prefetch);
/* The step is queued: its pinned buffer may be refilled. */
TG_NODISCARD tg_status tg_prefetch_recycle(tg_prefetch *prefetch);

/* Seconds spent waiting for batches to be read since the start. */
double tg_prefetch_waited(const tg_prefetch *prefetch);

typedef struct test_set {
    tg_dataset *dataset;
    int64_t batch;
    char name[TG_GRID_TEXT]; /* as in tg_test_errors */
} test_set;

/* A checkpoint being written (saving.c). */
typedef struct tg_saving {
    tg_staging staging; /* pinned, allocated by the first checkpoint */
    tg_context ctx;     /* a branch, for the thread */
    tg_run_folder folder;
    tg_archive *archive; /* being written; NULL: none */
    int64_t step, keep;
    bool is_best, is_newest;    /* its names */
    bool is_short_of_room;      /* the disk is nearly full, and a warning was logged */
    bool lacks_best;            /* .. but the first one, which could not be written */
    double error, error_before; /* lowest so far: including this one, and before it */
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
    tg_context reader;   /* a branch, for the training data */
    tg_context searcher; /* a branch, for `searched` */
    tg_comm *comm;       /* of ranks that train together; NULL: none */
    nn_split split;      /* of those that share a sample, with their communicator .. */
    tg_comm *replicas;   /* .. and those with the same part of other samples; NULL: `comm` */
    tg_model *model;
    tg_optim *optim;
    size_t planned[TG_MEM_CATEGORIES]; /* bytes of its highest phase, by its plan */
    size_t checkpoint_bytes;           /* of a checkpoint's tensors, by its plan */
    tg_run_folder folder;
    tg_entry entry;
    bool has_entered; /* the folder belongs to this run */
    int64_t newest;   /* checkpoint found in the folder; -1: none */
    int stages;
    tg_archive *origin; /* metadata of the first test's file; NULL: not made by `tgrad generate` */
    tg_progress progress;

    /* of the current stage */
    tg_dataset *train;
    tg_dataset *searched; /* a streamed set, opened again to find a NaN; NULL: not needed yet */
    tg_loader *loader;
    tg_prefetch *prefetch;
    test_set tests[TG_MAX_TESTS];
    int test_count;
    int best_test;                       /* the test set of opt.best_metric */
    tg_test_errors errors[TG_MAX_TESTS]; /* of the last evaluation */
    bool is_evaluated;                   /* the current epoch */

    tg_step *step;
    int64_t summed;    /* batches in the current update */
    int64_t refreshes; /* of projections, logged so far */

    double epoch_start;         /* on the clock */
    tg_optim_stats stats_start; /* before the epoch, or before the part of it in this process */
    double step_seconds;
    tg_train_time time;  /* since the last epoch's line, without the steps */
    int64_t timed_steps; /* of this epoch, in this process */
    double run_seconds;  /* of all steps timed in this process */
    int64_t run_steps;
    tg_saving saving;
    double best_before;            /* lowest error before the last evaluation */
    char last_checkpoint[TG_PATH]; /* written, or resumed from */
};

/* Whether this rank writes files: the first one. */
bool tg_trainer_writes(const tg_trainer *t);
/* Whether it computes the same samples as that rank. */
bool tg_trainer_is_in_first_group(const tg_trainer *t);
/* The ranks that have other samples, of which one is this; NULL: none. */
tg_comm *tg_trainer_replicas(const tg_trainer *t);
/* A failure of one rank becomes a failure of all. */
TG_NODISCARD tg_status tg_trainer_agree(const tg_trainer *t, tg_status status);

/* Settings, data and buffers of progress.stage (trainer.c). */
TG_NODISCARD tg_status tg_trainer_open_stage(tg_trainer *t);

/* Finds the test set of opt.best_metric among those of the stage; and its error in an epoch, NaN if
 * not evaluated (choose_checkpoint.c). */
TG_NODISCARD tg_status tg_trainer_choose_metric(tg_trainer *t);
double tg_trainer_best_error(const tg_trainer *t, const tg_train_epoch *epoch);

/* Checks the training of an epoch for divergence, sets progress.diverged; to be called before the
 * counters are reset. `is_last`: of the run (divergence.c). */
TG_NODISCARD tg_status tg_trainer_judge_epoch(tg_trainer *t, const tg_train_epoch *epoch,
                                              bool is_last);
/* Fails if the run has diverged, and says how. */
TG_NODISCARD tg_status tg_trainer_check_divergence(tg_trainer *t);
/* "; the last good checkpoint is .., of epoch 3": the newest whose run had not diverged. */
enum { TG_GOOD_TEXT = TG_PATH + 80 };
const char *tg_trainer_last_good(tg_trainer *t, char text[TG_GOOD_TEXT]);

/* Takes the folder, to train `epochs_left` epochs. Files change only after all checks, except for
 * the disk space, have passed (resume.c). */
TG_NODISCARD tg_status tg_trainer_enter(tg_trainer *t, int64_t epochs_left);

/* Fails if the disk has too little room for the run's checkpoints, or warns if it is tight
 * (saving.c). */
TG_NODISCARD tg_status tg_trainer_check_room(const tg_trainer *t, int64_t epochs_left);

#define TG_BEST "checkpoints/best.safetensors"

/* Saves a checkpoint as the best one, the newest one or both. It may be written while the run goes
 * on, and fail later: then the next of these calls fails. If the best one cannot be written, a
 * warning says so and the previous one stays (saving.c). */
TG_NODISCARD tg_status tg_trainer_save(tg_trainer *t, bool is_best, bool is_newest);
/* Whether the last one succeeded, if that is known by now. */
TG_NODISCARD tg_status tg_trainer_check_saved(tg_trainer *t);
/* Waits for the last one. */
TG_NODISCARD tg_status tg_trainer_finish_save(tg_trainer *t);
/* Waits for it in a run that has already failed: its error becomes a warning. */
void tg_trainer_end_saving(tg_trainer *t);
/* The same, and frees the memory. */
void tg_trainer_close_saving(tg_trainer *t);

/* Adds modes before an epoch, if the settings ask for that and the last epochs call for it
 * (incremental.c). */
TG_NODISCARD tg_status tg_trainer_grow_modes(tg_trainer *t);

/* File, array and position of the first NaN or Inf in a batch of this epoch; "" if none is found
 * (divergence.c). */
void tg_trainer_find_nonfinite(tg_trainer *t, int64_t batch, char text[TG_NONFINITE_TEXT]);

/* Logs refreshes since the last call in projections.jsonl (metrics.c). */
TG_NODISCARD tg_status tg_trainer_log_projections(tg_trainer *t);

/* With opt.track_stable_rank: writes a line of stable_ranks.jsonl after `epoch` epochs
 * (gradients.c); the line itself (metrics.c). */
TG_NODISCARD tg_status tg_trainer_log_stable_ranks(tg_trainer *t, int64_t epoch);
TG_NODISCARD tg_status tg_trainer_write_ranks(const tg_trainer *t, int64_t epoch,
                                              const double (*rank)[TG_MAX_NDIM]);
/* Bytes for this, without the network's buffers but with those of the batch. */
TG_NODISCARD tg_status tg_stable_ranks_add_bytes(tg_backend *be, const tg_run_config *config,
                                                 const tg_dataset_facts *facts, int64_t batch,
                                                 tg_amounts *out);

/* x, y and predictions of the first test samples at every resolution (sample_predictions.c). */
enum { TG_SAMPLES_SHOWN = 4 };
TG_NODISCARD tg_status tg_trainer_write_samples(tg_trainer *t);
/* Reads `origin`, the metadata saved with them. */
TG_NODISCARD tg_status tg_trainer_read_origin(tg_trainer *t);
/* Whether those of this step are in the folder. */
bool tg_trainer_has_samples(const tg_trainer *t);

/* ---- the optimizer's parameters, and the memory of a run (run_setup.c) ---- */

/* Two groups: spectral weights, projected if the method does, and all others, dense. */
typedef struct tg_run_setup {
    tg_optim_config groups[2];
    tg_optim_param *params;
    tg_optim_block *blocks;
    tg_optim_setup setup; /* points to those above */
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

/* The smallest distributed.split with which the plan of each of `ranks` fits in the memory left to
 * it, where `local_ranks` share the host's; the largest possible one if none does. */
TG_NODISCARD tg_status tg_run_choose_split(tg_context *ctx, const tg_settings *settings, int ranks,
                                           int local_ranks, int *out);

/* tg_train_plan of one rank, `parts` of which share a sample, by complete settings. */
TG_NODISCARD tg_status tg_train_plan_rank(tg_context *ctx, const tg_settings *settings, int ranks,
                                          int parts, int rank, tg_train_memory *out);

/* Refuses a run whose plan exceeds the memory left on the host or the device, with the amount, the
 * phase, and settings that need less; warns if it needs nearly all. `planned` gets the bytes by
 * category of the backend's highest phase, `checkpoint` those of a checkpoint, with the parts of
 * all ranks. */
TG_NODISCARD tg_status tg_run_check_memory(tg_context *ctx, const tg_settings *settings,
                                           const tg_run_config *config, int rank,
                                           size_t planned[TG_MEM_CATEGORIES], size_t *checkpoint);

#endif
