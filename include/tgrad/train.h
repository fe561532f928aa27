/* Training: from settings and data to a trained operator, with exact resume.
 *
 *     tg_trainer_create(ctx, NULL, settings, "runs/darcy", &trainer);
 *     tg_trainer_start(trainer);    or tg_trainer_replace, tg_trainer_resume
 *     tg_trainer_run(trainer, &watch, &end);
 *
 * A run folder holds config.yaml (the resolved settings), metrics.jsonl, metrics.csv, events/
 * (TensorBoard), checkpoints/ and samples.safetensors (predictions on a few test samples). Killed
 * at any moment and resumed, a run ends with the same weights, bit for bit, as one that was never
 * interrupted (same build, backend and thread count). */
#ifndef TGRAD_TRAIN_H
#define TGRAD_TRAIN_H

#include "tgrad/data.h"
#include "tgrad/fno.h"
#include "tgrad/optim.h"
#include "tgrad/settings.h"
#include "tgrad/step.h"

TG_C_BEGIN

#define TG_MAX_TESTS 8

/* ---- A trained model: network, normalizers and the settings they were made with. ---- */

typedef struct tg_model tg_model;

/* The checkpoint file of `path`: of a run folder `which` is "best", "last", the number of a step,
 * or NULL for the best one or, without tests, the last; of a file NULL: itself. */
TG_API TG_NODISCARD tg_status tg_run_checkpoint(tg_context *ctx, const char *path,
                                                const char *which, char *file, size_t capacity);

/* Reads a checkpoint (its weights, normalizers and settings; not the optimizer) or a model file; of
 * a run folder the checkpoint that tg_run_checkpoint finds. */
TG_API TG_NODISCARD tg_status tg_model_load(tg_context *ctx, const char *path, tg_model **out);
TG_API void tg_model_destroy(tg_model **model);

/* The point of the run at which a checkpoint was written. */
typedef struct tg_model_origin {
    bool is_best;
    int64_t epoch, epochs; /* finished epochs, and those of the whole run */
    int64_t step;
    char metric[72]; /* error that selects the run's best checkpoint: "h1", "32.h1" */
    char text[192];  /* "best, epoch 8 of 15 (by h1)", "last, epoch 15 of 15" */
} tg_model_origin;

/* All zero and "" of a model that was not loaded from a checkpoint. */
TG_API tg_model_origin tg_model_get_origin(const tg_model *model);

/* A model of a network that the program has trained itself, and of the normalizers of its inputs
 * and targets; NULL: raw. The network must outlive the model, which uses its current weights; the
 * normalizers are copied. Predicting prepares the network for inference: call tg_fno_prepare again
 * before training continues. */
TG_API TG_NODISCARD tg_status tg_model_wrap(tg_context *ctx, tg_fno *fno, const tg_normalizer *x,
                                            const tg_normalizer *y, tg_model **out);

/* Writes a model file atomically: weights, normalizers and settings, without the state of an
 * optimizer, as safetensors with neuraloperator's names, for tg_model_load, `tgrad predict`, `tgrad
 * eval` and `tgrad train --init`. */
TG_API TG_NODISCARD tg_status tg_model_save(const tg_model *model, const char *path);

/* A model of weights alone: a safetensors file with neuraloperator's names (also after a prefix
 * such as "module."), or a checkpoint. The network is that of `settings`, section fno; the error
 * lists every name and shape that does not fit it. Normalizers are those in the file under
 * encoder.x.* and encoder.y.*, or none. A grid with an odd size, which neuraloperator 2.0 shifts by
 * one mode, gives a warning to the log, also after further training. */
TG_API TG_NODISCARD tg_status tg_model_import(tg_context *ctx, const char *path,
                                              const tg_settings *settings, tg_model **out);
/* Fits the normalizers of data.encode_input and data.encode_output to the training data of the
 * settings, and drops the others. */
TG_API TG_NODISCARD tg_status tg_model_fit_normalizers(tg_model *model);
/* The normalizer of one side of the data, owned by the model; NULL: the data are raw. */
TG_API const tg_normalizer *tg_model_normalizer(const tg_model *model, tg_data_side side);

TG_API const tg_settings *tg_model_settings(const tg_model *model);
TG_API tg_fno *tg_model_fno(tg_model *model);
/* The config for tg_dataset_open: names, layout and windows as in the model's settings, everything
 * else as in the file. size is sizeof(tg_dataset_config); texts are the model's. */
TG_API TG_NODISCARD tg_status tg_model_dataset_config(const tg_model *model, tg_dataset_config *out,
                                                      size_t size);

/* The parts of a file that a model was trained on, and that its run held out. Trajectories are
 * counted if the file has some, else samples; the first ones are trained on. */
typedef struct tg_model_split {
    int64_t total;
    int64_t trained;           /* those set apart for validation included; 0: it is another file */
    int64_t first_test, tests; /* those of the run's test set, else all that follow; 0: none */
    bool has_trajectories;
} tg_model_split;

/* By the settings of the model: another file than those it was trained on is all zero. */
TG_API TG_NODISCARD tg_status tg_model_get_split(const tg_model *model, const char *file,
                                                 tg_model_split *out);

/* The same model with its spectral weights in another form: that of `network`, of which
 * factorization, implementation, rank and fixed_rank_modes count. Factorized weights are multiplied
 * out; dense ones are decomposed, tucker by HOSVD and two sweeps of HOOI, tt by an SVD for each
 * mode. errors: (n_layers) |W - W'| / |W| of each weight in its new form, or NULL. For backends
 * that compute on the host; the caller destroys *out. */
TG_API TG_NODISCARD tg_status tg_model_factorize(const tg_model *model,
                                                 const tg_fno_config *network, double *errors,
                                                 tg_model **out);

/* y = network(x) in the units of the data: x is normalized, the output de-normalized. Host tensors,
 * (batch, channels, grid..), f32 or c64; any batch size and grid. */
TG_API TG_NODISCARD tg_status tg_model_predict(tg_model *model, const tg_tensor *x, tg_tensor *y);

/* The same of a network on points (GINO) at other places than its points: x (batch, coordinates,
 * points) in the unit box, queries (batch, queries, coordinates), y (batch, channels, queries). */
TG_API TG_NODISCARD tg_status tg_model_predict_at(tg_model *model, const tg_tensor *x,
                                                  const tg_tensor *queries, tg_tensor *y);

/* Adds the gradients of the spectral weights, of the first batch of the settings' training data, to
 * an archive under the parameters' names. */
TG_API TG_NODISCARD tg_status tg_model_gradients(tg_model *model, tg_archive *out);

#define TG_QUANTILES 5

/* Relative errors over a test set. The error of a sample is |prediction - truth| / |truth|, both
 * norms over all its channels and the grid (a truth of norm 0 divides by 1); means are over the
 * samples. (The training loss is a sum over channels: tgrad/loss.h.) */
typedef struct tg_test_errors {
    char grid[TG_GRID_TEXT]; /* "16", "48x80"; the second test set of a run on a grid: "16_2" */
    int64_t samples, channels;
    double l2, h1;                           /* mean */
    const double *l2_channels, *h1_channels; /* (channels) mean, of each channel by itself */
    const double *l2_samples, *h1_samples;   /* (samples) */
    tg_tensor values;                        /* owns the four lists */
    double l2_quantiles[TG_QUANTILES];       /* over the samples: least, quartiles, largest */
    double h1_quantiles[TG_QUANTILES];
} tg_test_errors;

TG_API void tg_test_errors_destroy(tg_test_errors *errors); /* accepts NULL and all zero */

/* Errors over a whole set, `batch` samples at a time. The caller destroys *out. */
TG_API TG_NODISCARD tg_status tg_model_evaluate(tg_model *model, tg_dataset *dataset, int64_t batch,
                                                tg_test_errors *out);

/* ---- Rollouts: predictions from predictions ---- */

/* tg_model_predict `steps` times: the last channels of (x, prediction) are the next x. y is (batch,
 * steps * channels, grid..), in order of time. */
TG_API TG_NODISCARD tg_status tg_model_predict_steps(tg_model *model, const tg_tensor *x,
                                                     int64_t steps, tg_tensor *y);

/* Errors of rollouts: means over the trajectories. */
typedef struct tg_rollout_errors {
    char grid[TG_GRID_TEXT];
    int64_t trajectories, steps, wavenumbers;
    double correlated_steps;   /* before the correlation of a trajectory first falls below 0.8 */
    const double *l2;          /* (steps) relative error */
    const double *correlation; /* (steps) of prediction and truth */
    /* (wavenumbers) energy at wave numbers 0, 1, .. of the first and the last step. */
    const double *truth_first, *truth_last, *prediction_first, *prediction_last;
    tg_tensor values; /* owns the lists */
} tg_rollout_errors;

TG_API void tg_rollout_errors_destroy(tg_rollout_errors *errors); /* accepts NULL and all zero */

/* Rolls out from the first frames of every trajectory, `batch` of them at a time, over as many
 * steps as y of the dataset has (horizon in tg_dataset_config). The caller destroys *out. */
TG_API TG_NODISCARD tg_status tg_model_rollout(tg_model *model, tg_dataset *dataset, int64_t batch,
                                               tg_rollout_errors *out);

/* ---- Settings of a run ---- */

/* A copy of the settings, completed from the training file: data.train_resolution, fno.in_channels
 * and fno.out_channels. Without such a file they are unchanged. The caller destroys it. */
TG_API TG_NODISCARD tg_status tg_train_complete(tg_context *ctx, const tg_settings *settings,
                                                tg_settings **out);

/* Every key of the run with its effective value: keys that its method or schedule does not read
 * (opt.rank without a low-rank branch, opt.gamma with a cosine) have their defaults. Runs with
 * equal results are the same run. The caller destroys it. */
TG_API TG_NODISCARD tg_status tg_train_effective(tg_context *ctx, const tg_settings *settings,
                                                 tg_settings **out);

/* ---- Estimated memory of a run ---- */

#define TG_TRAIN_PHASES 48

/* The memory of one phase of the run. */
typedef struct tg_train_phase {
    char name[80]; /* "training step", "step with a refresh", "evaluation at 48x80", "saving", .. */
    size_t bytes[TG_PLACES][TG_MEM_CATEGORIES]; /* without category other: names, handles */
    size_t total[TG_PLACES];
} tg_train_phase;

typedef struct tg_train_memory {
    int64_t parameters; /* real numbers */
    tg_place place;     /* where the backend computes */
    int count;
    tg_train_phase phase[TG_TRAIN_PHASES]; /* in the order of the run */
    size_t peak_total[TG_PLACES];
    int peak_phase[TG_PLACES];                 /* where the total is highest */
    size_t peak[TG_PLACES][TG_MEM_CATEGORIES]; /* each category for itself */
    size_t inference; /* a forward pass alone on a training batch, weights included */
    tg_clamped_rank clamped;
    char missing[512]; /* a missing data file, whose samples are not counted; "": none */
    /* Bytes that each of several ranks reduces in an update (tg_comm_stats.reduced). */
    size_t sent;         /* compressed values, dense parameters, and a few numbers */
    size_t sent_dense;   /* the same without compression */
    size_t sent_refresh; /* of an update that refreshes every projection, besides the copied
                            factors, index sets and values */
    size_t sent_updates; /* distributed.shard_state: further directions and weights that the owners
                            of moments copy to all (tg_comm_stats.copied) */
    size_t sent_split;   /* distributed.split: further bytes that a rank sends to those of its
                            sample in a step (reduced and copied) */
    int64_t messages;    /* sums between refreshes, one after the other on a tree and back, without
                            those of a few numbers */
    int64_t messages_split; /* further messages of sent_split */
    int parts;              /* number of these ranks; 1: not split */
    int64_t samples; /* of the first training set; 0: not known from its file or data.n_train */
} tg_train_memory;

/* The memory of a run with these settings: the ledger counts the same, but for category other. Only
 * the headers of data files are read. Of several ranks: the one that needs most, which is the first
 * or, of those that share a sample, the last one. */
TG_API TG_NODISCARD tg_status tg_train_plan(tg_context *ctx, const tg_settings *settings, int ranks,
                                            tg_train_memory *out);

/* Bytes available to a run: of the host as the system reports, within the limits of control groups;
 * of a device as its driver reports. False: not known. */
TG_API bool tg_train_memory_left(tg_context *ctx, tg_place place, size_t *left);

/* ---- A run ---- */

typedef struct tg_train_progress { /* after each step */
    int64_t epoch, epochs;         /* 1-based, of all stages together */
    int64_t batch, batches;        /* done in this epoch */
    int64_t step;                  /* optimizer steps of the run */
    double loss;                   /* mean over the epoch's samples so far */
    double learning_rate;
    double step_ms;      /* mean over the epoch so far */
    double seconds_left; /* of the run; NaN until it is known */
    size_t memory;       /* bytes held now where the backend computes */
} tg_train_progress;

/* Seconds that a run spent on its parts since the line of the epoch before. */
typedef struct tg_train_time {
    double prepare;    /* memory and plans for the steps */
    double steps;      /* of them .. */
    double data;       /* .. waiting for batches to be read */
    double evaluation; /* on the test sets */
    double checkpoint; /* saving, and waiting for the previous save */
} tg_train_time;

typedef struct tg_train_epoch { /* after each epoch: the content of a line of metrics.jsonl */
    int64_t epoch, epochs, step;
    double learning_rate;
    double train_loss; /* mean over samples */
    int tests;         /* sets, named by their grids; the last one may be "validation" */
    int test_count;    /* evaluated ones: all, or 0 on epochs without evaluation */
    tg_test_errors test[TG_MAX_TESTS]; /* (tests) the lists stay until the next evaluation */
    double step_ms;
    double seconds;      /* of the epoch, evaluation included */
    tg_mem_usage memory; /* peaks since the start of the run, where the backend computes */
    int64_t skipped;     /* batches and updates skipped for non-finite values, of the run */
    double loss_scale;   /* of the next step; 1: none */
    int64_t overflows;   /* steps in which a dynamic loss scale was too large, of the run */
    tg_train_time time;  /* of the parts of the epoch */
} tg_train_epoch;

typedef struct tg_train_watch {
    void *user;
    void (*on_step)(void *user, const tg_train_progress *progress); /* may be NULL */
    /* The checkpoint of the epoch may still be on its way to the disk; may be NULL. */
    void (*on_epoch)(void *user, const tg_train_epoch *epoch);
    bool (*should_stop)(void *user); /* asked after each step: save and end; may be NULL */
} tg_train_watch;

typedef struct tg_train_end {
    bool is_finished;      /* false: stopped by should_stop */
    bool has_diverged;     /* at its end: tg_trainer_run fails with TG_E_NUMERIC and says how */
    int64_t epoch, step;   /* reached */
    char checkpoint[1024]; /* the last one written */
    int64_t skipped;       /* batches and updates skipped for non-finite values, of the run */
    int64_t refused;       /* of these the updates, each of one parameter */
    int64_t epochs;        /* of all stages; a finished run with fewer has stopped early */
} tg_train_end;

typedef struct tg_trainer tg_trainer;

/* Opens the data, makes network and optimizer; TG_E_MEMORY, before anything is taken, if host or
 * device have less left than the plan of the run needs. Unknown keys are errors; known keys of
 * other programs are named in one note to the log. The run folder is made, or changed, by
 * tg_trainer_run alone: a run that is refused leaves it as it was. One process trains in it at a
 * time; the lock ends with the trainer or its process.
 *
 * `comm` NULL: one process. Otherwise this is one of several ranks that train together, each on its
 * part of every batch. All of them make the same calls with the same settings, of which
 * distributed.timeout is the communicator's from now on; what differs between them, or fails on one
 * of them, is an error on all. The run folder is one that all of them see; rank 0 alone writes. The
 * result is that of one rank up to rounding, and repeats to the bit on the same number of ranks;
 * checkpoints can be resumed on any number. */
TG_API TG_NODISCARD tg_status tg_trainer_create(tg_context *ctx, tg_comm *comm,
                                                const tg_settings *settings, const char *run_folder,
                                                tg_trainer **out);
TG_API void tg_trainer_destroy(tg_trainer **trainer);

/* Starts a new run in a folder without checkpoints; clears metrics of a run that never saved. */
TG_API TG_NODISCARD tg_status tg_trainer_start(tg_trainer *trainer);

/* Starts a new run in place of an old one, whose files (and no others) are removed at the start. */
TG_API TG_NODISCARD tg_status tg_trainer_replace(tg_trainer *trainer);

/* Resumes from a checkpoint: `path`, or with NULL the newest good one of the run folder (damaged
 * ones are skipped with a note). *resumed: whether one was found. Settings that shape model or data
 * must be those of the checkpoint; the error names the keys that differ. A folder that holds a run
 * accepts only its own checkpoints. */
TG_API TG_NODISCARD tg_status tg_trainer_resume(tg_trainer *trainer, const char *path,
                                                bool *resumed);

/* Whether a resumed run has ended: tg_trainer_run would only repeat its end, or its error. */
TG_API bool tg_trainer_is_finished(const tg_trainer *trainer);
/* The state of the run. */
TG_API tg_train_end tg_trainer_end(const tg_trainer *trainer);

/* Every setting with its value, defaults included. The caller destroys it. */
TG_API TG_NODISCARD tg_status tg_trainer_settings(const tg_trainer *trainer, tg_settings **out);

/* Trains until the last epoch, an early stop or should_stop, and saves; after one of start, replace
 * and resume. `watch` NULL: no callbacks. A run that has diverged is saved like any other, and then
 * TG_E_NUMERIC, which names its last good checkpoint; *end is filled in. */
TG_API TG_NODISCARD tg_status tg_trainer_run(tg_trainer *trainer, const tg_train_watch *watch,
                                             tg_train_end *end);

/* Real numbers in the network, a complex one counting as two. */
TG_API int64_t tg_trainer_parameters(const tg_trainer *trainer);

TG_C_END
#endif
