/* All settings of a run as one struct, read from the list of settings. */
#ifndef TG_TRAIN_CONFIG_H
#define TG_TRAIN_CONFIG_H

#include "base/setting.h"
#include "nn/config.h"
#include "nn/model.h"
#include "optim/optim.h"
#include "tgrad/comm.h"
#include "tgrad/optim.h"
#include "tgrad/settings.h"
#include "tgrad/train.h"

/* Section opt, the keys of the loop. */
typedef struct tg_loop_config {
    int64_t n_epochs;
    char training_loss[64];      /* text for tg_loss_config_parse */
    tg_list_double loss_weights; /* of the output channels; one: the same for all */
    double input_noise;          /* standard deviation, of normalized inputs in training; 0: none */
    int64_t accumulation_steps;  /* micro-batches per update */
    int64_t rollout_steps;       /* predictions in a row that a step trains over */
    tg_rollout_gradients rollout_gradients;
    int64_t rollout_epochs;   /* after each, rollouts grow by one step; 0: all steps at once */
    double max_grad_norm;     /* clip the global norm to this; 0: off */
    int64_t eval_interval;    /* epochs between evaluations; the last epoch is always evaluated */
    int64_t save_every;       /* epochs between checkpoints */
    int64_t keep_checkpoints; /* newest ones kept, >= 1, besides the best */
    bool track_stable_rank;   /* of gradients, at every evaluation (gradients.c) */
    char best_metric[64]; /* [SET.]NORM of the best checkpoint (choose_checkpoint.c); "": as trained
                           */
    int64_t early_stopping;  /* evaluations without a lower error that end the run; 0: off */
    int64_t nonfinite_limit; /* non-finite losses in a row that end the run */
    char loss_scale[32];     /* text for tg_loss_scale_config_parse */
    char init[1024];         /* file of initial weights; "": from the seed */
    bool naive_galore;       /* published switch for the matrix projection */
    tg_graphs graphs;        /* steps as captured graphs, on a GPU */
    /* How the modes grow from fno.incremental_n_modes (incremental.c). */
    bool incremental_loss_gap;         /* if the loss stagnates, or .. */
    bool incremental_grad;             /* .. if the highest modes hold too much energy */
    double incremental_loss_eps;       /* smallest change of the loss per epoch that counts */
    double incremental_grad_eps;       /* largest share of energy in the highest modes */
    int64_t incremental_buffer;        /* number of frequencies that count as highest */
    int64_t incremental_grad_max_iter; /* epochs between two checks of them */
} tg_loop_config;

/* Section data. */
typedef struct tg_source_config {
    char root[1024];
    char set[64];          /* files are <root>/<set>_train_<grid>.h5, .. */
    char train_file[1024]; /* replaces the conventional name, as do .. */
    tg_list_text test_files;
    char x_name[128], y_name[128]; /* of the arrays in HDF5 and safetensors files */
    /* Points per dimension, or one number for all; 0 or none: as in the file. */
    tg_list_int train_resolution;
    tg_list_int file_resolution; /* of the training file, where only every s-th point is used */
    tg_list_grid test_resolutions;
    tg_list_int test_batch_sizes;
    tg_list_int n_tests;
    int64_t batch_size;
    int64_t n_train;      /* 0: all */
    int64_t n_validation; /* the last ones of them are evaluated instead of trained on; 0: none */
    bool encode_input, encode_output;
    bool shuffle;
    double cache;    /* bytes of each set kept in memory */
    char y_time[16]; /* last, all or an index */
    tg_layout_kind layout;
    char group[128], fields[512]; /* as in tg_dataset_config */
    int order;                    /* 1: channels last */
    int64_t test_skip;            /* samples of test files to skip */
    int64_t history, horizon, time_stride, first_frame, n_frames;
    tg_list_int latent_grid; /* of a network on points; one number for all dimensions */
} tg_source_config;

/* Section distributed. */
typedef struct tg_distributed_config {
    int64_t seed;
    tg_comm_engine backend; /* transport of values on the device */
    double timeout;         /* seconds to wait for other ranks */
    bool overlap;
    bool shard_state;
    char split[16]; /* ranks that share a sample, or auto */
} tg_distributed_config;

typedef struct tg_run_config {
    tg_fno_config fno;
    tg_optim_config opt;
    tg_lr_schedule_config schedule;
    tg_loop_config loop;
    tg_source_config data;
    tg_distributed_config distributed;
    tg_loss_config loss;             /* physics* are keys, the rest follows from those of .. */
    tg_loss_scale_config loss_scale; /* .. the loop; so does this, but for the interval */
    bool best_is_h1;                 /* opt.best_metric: the norm, .. */
    char best_set[64];               /* .. and the set; "": the first test */
    bool accumulates;                /* in at least one stage: the optimizer is shared by all */
    int schedule_stage;              /* whose keys started the schedule; later stages continue it */
    int ranks;                       /* that train together: not a setting, set after reading .. */
    nn_split split;                  /* .. as is this: those of them that share a sample */
} tg_run_config;

/* Defaults of all keys; the network's modes have none. */
tg_run_config tg_run_config_default(void);

/* The tables of all keys, in the order of docs/config.md. Rows of section fno set a struct inside
 * nn, that of the method a whole method; all others a field. */
typedef struct tg_key_table {
    const char *section;
    const tg_setting *rows; /* (count) */
    int count;
    size_t offset; /* in tg_run_config, of the struct that the rows set */
} tg_key_table;
enum {
    TG_TABLE_FNO,
    TG_TABLE_METHOD,
    TG_TABLE_OPTIM,
    TG_TABLE_SCHEDULE,
    TG_TABLE_LOOP,
    TG_TABLE_DATA,
    TG_TABLE_DISTRIBUTED,
    TG_KEY_TABLES
};
tg_key_table tg_run_table(int index);

/* distributed.split as a number; 0: auto. */
TG_NODISCARD tg_status tg_run_read_split(tg_context *ctx, const tg_run_config *config, int *out);
/* Sets the ranks that train together, and those that share a sample (NULL: one each). Fails if the
 * groups of the latter are not equal, or more than the samples of a batch. */
TG_NODISCARD tg_status tg_run_share_batch(tg_context *ctx, int ranks, const nn_split *split,
                                          tg_run_config *config);
/* Groups of ranks, each of which computes its part of a batch. */
int tg_run_groups(const tg_run_config *config);
/* Whether gradients are exchanged between ranks; with NCCL even for a single one, for testing. */
bool tg_run_exchanges(const tg_run_config *config);
/* The largest number of samples of a batch in one group. */
int64_t tg_run_local_batch(const tg_run_config *config);

/* Names the validation samples where others have a grid. */
#define TG_VALIDATION "validation"

/* Whether the network works on points (GINO), and the number of dimensions of its data's grids: 1
 * for points, whose "grid" is their number. */
bool tg_run_on_points(const tg_run_config *config);
int tg_run_data_dims(const tg_run_config *config);

/* The sizes a network is prepared for, given the `grid` of its data: that grid or, for points, the
 * latent grid, the number of points and that of queries, which are the points. */
enum { TG_RUN_GRID = TG_FNO_MAX_DIMS + 2 };
void tg_run_network_grid(const tg_run_config *config, const int64_t *grid,
                         int64_t out[TG_RUN_GRID]);

/* Samples of `most` that are evaluated at once: 1 for points, which differ between samples. */
int64_t tg_run_at_once(const tg_run_config *config, int64_t most);

/* Requirements of data at points: a latent grid that fits, no encoder, no H1 loss. */
TG_NODISCARD tg_status tg_run_check_points(tg_context *ctx, const tg_run_config *config);
/* Warns if a query in the middle of a cell of the latent grid may have no neighbours. */
void tg_run_warn_of_radius(tg_context *ctx, const tg_run_config *config);

/* Sets to test on: test_files, each at its own resolution or at that of test_resolutions. */
int tg_run_tests(const tg_source_config *data);
/* All evaluated sets: these, followed by the validation set if there is one. */
int tg_run_evaluated_sets(const tg_source_config *data);

/* Epochs of all stages; 0 if the settings cannot be read. */
int64_t tg_run_epochs(tg_context *ctx, const tg_settings *settings);
/* Number of stages: 1, or N if there are keys "stageN.section.key" (N = 2 .. 9). */
int tg_run_stages(const tg_settings *settings);
/* The stage of a key (1 if none is named), and the key after its prefix. */
int tg_stage_of(const char *key, const char **rest);
/* Whether any stage accumulates the gradients of several batches. */
bool tg_stages_accumulate(const tg_settings *settings);
/* Fails if a stage is left out. */
TG_NODISCARD tg_status tg_stages_check(tg_context *ctx, const tg_settings *settings);

/* The settings of a stage: all keys without a stage, then those of stages 2 .. stage. `notes`: log
 * keys of other programs. */
TG_NODISCARD tg_status tg_run_config_read(tg_context *ctx, const tg_settings *settings, int stage,
                                          bool notes, tg_run_config *out);

/* The same for a network alone, whose settings may name no data. */
TG_NODISCARD tg_status tg_run_config_read_network(tg_context *ctx, const tg_settings *settings,
                                                  int stage, tg_run_config *out);

/* Checks and completes settings across keys. `has_data`: the settings name the data. */
TG_NODISCARD tg_status tg_run_config_complete(tg_context *ctx, bool has_data,
                                              tg_run_config *config);

/* Reads opt.best_metric, once loss and data are known. */
TG_NODISCARD tg_status tg_best_metric_parse(tg_context *ctx, tg_run_config *config);
/* The metric as text: "h1", "32.h1", "validation.l2"; returns text. */
enum { TG_METRIC_TEXT = 72 };
const char *tg_best_metric_text(const tg_run_config *config, char text[TG_METRIC_TEXT]);
/* The metric of a checkpoint whose `settings` were read as `config`: those without the key were
 * written when L2 was the only one. */
void tg_best_metric_then(const tg_settings *settings, tg_run_config *config);

/* Checks that the data are named and that lists of test sets have equal lengths. */
TG_NODISCARD tg_status tg_source_config_check(tg_context *ctx, const tg_source_config *data);

/* Writes every key of section fno with its value into settings. */
TG_NODISCARD tg_status tg_run_config_put_network(const tg_fno_config *fno, tg_settings *settings);

/* Every key of the first stage with its value, and the keys of later stages from `settings` (NULL:
 * none). */
TG_NODISCARD tg_status tg_run_config_write(tg_context *ctx, const tg_run_config *config,
                                           const tg_settings *settings, tg_settings **out);

/* Every key of a run with its value, stages included: as in config.yaml and checkpoints. */
TG_NODISCARD tg_status tg_run_config_resolve(tg_context *ctx, const tg_settings *settings,
                                             tg_settings **out);

/* ---- the phases of a run: the trainer executes them, the plan adds up their memory ---- */

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

/* ---- keys of the published programs (published_keys.c) ---- */

/* The name here of a renamed key ("fno.data_channels": "fno.in_channels"), or `key`. */
const char *tg_published_name(const char *key);

/* Whether it is such a key. TG_E_CONFIG, naming the alternative, if the value asks for something
 * unsupported; other values have no effect. */
TG_NODISCARD tg_status tg_published_check(tg_context *ctx, const char *key, const char *value,
                                          bool *is_published);

/* Whether setting number `index` is replaced by a later one, such as from the command line:
 * data.set replaces the data files, and opt.name a method that a run's config.yaml or a published
 * file describes by its parts, so that the two are not mixed. */
bool tg_setting_is_replaced(const tg_settings *settings, int64_t index);

/* A size that is set for a part that the method does not have; NULL: none. */
const char *tg_method_unused(const tg_optim_config *opt);

#endif
