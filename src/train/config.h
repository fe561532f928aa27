/* All settings of a run as one struct, read from the list of settings by section. */
#ifndef TG_TRAIN_CONFIG_H
#define TG_TRAIN_CONFIG_H

#include "base/setting.h"
#include "tgrad/comm.h"
#include "tgrad/train.h"

/* Section opt, the part about the loop. */
typedef struct tg_loop_config {
    int64_t n_epochs;
    char training_loss[64];      /* text for tg_loss_config_parse */
    tg_list_double loss_weights; /* of the output channels; one: of all alike */
    tg_physics physics;          /* equation whose residual is a term of the loss .. */
    double physics_weight, physics_forcing, physics_viscosity; /* .. as in tg_loss_config */
    double physics_time, physics_length;
    double input_noise;         /* standard deviation, of normalized inputs in training; 0: none */
    int64_t accumulation_steps; /* micro-batches per update */
    int64_t rollout_steps;      /* predictions in a row that a step trains over; 1: one */
    tg_rollout_gradients rollout_gradients;
    int64_t rollout_epochs;   /* after which a rollout gets a step longer; 0: all steps at once */
    double max_grad_norm;     /* clip the global norm to this; 0: off */
    int64_t eval_interval;    /* epochs between evaluations; the last epoch is always evaluated */
    int64_t save_every;       /* epochs between checkpoints */
    int64_t keep_checkpoints; /* newest ones kept, >= 1, beside the best */
    bool track_stable_rank;   /* of gradients, at every evaluation (stable_ranks.c) */
    char best_metric[64];     /* [SET.]NORM of the best checkpoint (best_metric.c); "": as trained */
    int64_t early_stopping;   /* evaluations without a lower error that end the run; 0: off */
    int64_t nonfinite_limit;  /* non-finite losses in a row that end the run */
    char loss_scale[32];      /* text for tg_loss_scale_config_parse */
    int64_t loss_scale_interval; /* steps without overflow before it is doubled */
    char init[1024];             /* file of weights to begin with; "": from the seed */
    bool naive_galore;           /* published switch for the matrix projection */
    tg_graphs graphs;            /* steps as captured graphs, on a GPU */
    /* How modes grow from fno.incremental_n_modes on (incremental.c). */
    bool incremental_loss_gap;         /* where the loss stands still, or .. */
    bool incremental_grad;             /* .. where the highest modes hold too much */
    double incremental_loss_eps;       /* change of the loss from epoch to epoch */
    double incremental_grad_eps;       /* share of the energy */
    int64_t incremental_buffer;        /* frequencies that are the highest */
    int64_t incremental_grad_max_iter; /* epochs between two looks at them */
} tg_loop_config;

/* Section data. */
typedef struct tg_source_config {
    char root[1024];
    char set[64];          /* files are <root>/<set>_train_<grid>.h5, .. */
    char train_file[1024]; /* instead of the file by convention, and so are .. */
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
    int64_t n_validation; /* of them the last so many are not trained on but evaluated; 0: none */
    bool encode_input, encode_output;
    bool shuffle;
    double cache;    /* bytes of each set kept in memory */
    char y_time[16]; /* last, all or an index */
    tg_layout_kind layout;
    char group[128], fields[512]; /* as in tg_dataset_config */
    int order;                    /* 1: channels last */
    int64_t test_skip;            /* samples of test files that are passed over */
    int64_t history, horizon, time_stride, first_frame, n_frames;
    tg_list_int latent_grid; /* of a network on points; one number for all dimensions */
} tg_source_config;

/* Section distributed. */
typedef struct tg_distributed_config {
    int64_t seed;
    tg_comm_engine backend; /* of values on the device */
    double timeout;         /* seconds that a rank waits for the others */
    bool overlap;
    bool shard_state;
} tg_distributed_config;

typedef struct tg_run_config {
    tg_fno_config fno;
    tg_optim_config opt;
    tg_lr_schedule_config schedule;
    tg_loop_config loop;
    tg_source_config data;
    tg_distributed_config distributed;
    tg_loss_config loss;
    tg_loss_scale_config loss_scale;
    bool best_is_h1;    /* opt.best_metric: the norm, .. */
    char best_set[64];  /* .. and the set; "": the first test */
    bool accumulates;   /* in one of the stages: the optimizer is made for all of them */
    int schedule_stage; /* whose keys began the schedule; later stages continue it */
    int ranks;          /* that share every batch: no setting, but set after reading them */
} tg_run_config;

/* Nothing set by anyone: most keys have a default, the network's modes have none. */
tg_run_config tg_run_config_default(void);

/* The tables of sections opt (its part about the loop), data and distributed. */
const tg_setting *tg_loop_config_rows(int *count);
const tg_setting *tg_source_config_rows(int *count);
const tg_setting *tg_distributed_rows(int *count);

/* Sets the ranks that share a batch; fails if there are more of them than samples. */
TG_NODISCARD tg_status tg_run_share_batch(tg_context *ctx, int ranks, tg_run_config *config);
/* Whether gradients are exchanged with other ranks; with NCCL also of one, to try it. */
bool tg_run_exchanges(const tg_run_config *config);
/* Samples of a batch that are one rank's, at most. */
int64_t tg_run_local_batch(const tg_run_config *config);

/* In the place of a grid, of the samples set apart for validation. */
#define TG_VALIDATION "validation"

/* Whether the network is one on points (GINO), and how many dimensions grids of its data have: 1
 * there, where the grid is the number of points. */
bool tg_run_on_points(const tg_run_config *config);
int tg_run_data_dims(const tg_run_config *config);

/* What a network is prepared for to work on data of `grid`: that grid or, on points, the latent
 * grid, the number of points and that of queries, which are the points. */
enum { TG_RUN_GRID = TG_FNO_MAX_DIMS + 2 };
void tg_run_network_grid(const tg_run_config *config, const int64_t *grid,
                         int64_t out[TG_RUN_GRID]);

/* Samples of `most` that are computed at once without training: 1 on points, which differ. */
int64_t tg_run_at_once(const tg_run_config *config, int64_t most);

/* What data at points ask of the settings: a latent grid that fits, no encoder, no H1 loss. */
TG_NODISCARD tg_status tg_run_check_points(tg_context *ctx, const tg_run_config *config);
/* A query in the middle of a cell of the latent grid may have no neighbours. */
void tg_run_warn_of_radius(tg_context *ctx, const tg_run_config *config);

/* Sets to test on: test_files, each at its own resolution or at that of test_resolutions. */
int tg_run_tests(const tg_source_config *data);
/* All sets that are evaluated: those, and behind them the validation set if there is one. */
int tg_run_evaluated_sets(const tg_source_config *data);

/* Number of stages: 1, or N if there are keys "stageN.section.key" (N = 2 .. 9). */
int tg_run_stages(const tg_settings *settings);
/* The stage a key belongs to (1: none named), and the key behind its prefix. */
int tg_stage_of(const char *key, const char **rest);
/* Whether a stage, whichever, adds up the gradients of several batches. */
bool tg_stages_accumulate(const tg_settings *settings);
/* Refuses a stage that is left out. */
TG_NODISCARD tg_status tg_stages_check(tg_context *ctx, const tg_settings *settings);

/* The settings of a stage: all keys without a stage, then those of stages 2 .. stage. `notes`: name
 * keys of other programs in the log. */
TG_NODISCARD tg_status tg_run_config_read(tg_context *ctx, const tg_settings *settings, int stage,
                                          bool notes, tg_run_config *out);

/* The same for a network alone, whose settings need not name any data. */
TG_NODISCARD tg_status tg_run_config_read_network(tg_context *ctx, const tg_settings *settings,
                                                  int stage, tg_run_config *out);

/* What no single key can tell, into `config` or refused; `has_data`: the settings name the data. */
TG_NODISCARD tg_status tg_run_config_complete(tg_context *ctx, bool has_data,
                                              tg_run_config *config);

/* Reads opt.best_metric, when loss and data are known. */
TG_NODISCARD tg_status tg_best_metric_parse(tg_context *ctx, tg_run_config *config);
/* The metric as the key has it: "h1", "32.h1", "validation.l2"; returns text. */
enum { TG_METRIC_TEXT = 72 };
const char *tg_best_metric_text(const tg_run_config *config, char text[TG_METRIC_TEXT]);
/* The metric of a checkpoint whose `settings` were read as `config`: those without the key were
 * written when L2 was the only one. */
void tg_best_metric_then(const tg_settings *settings, tg_run_config *config);

/* Whether the data are named, and lists of test sets are of one length. */
TG_NODISCARD tg_status tg_source_config_check(tg_context *ctx, const tg_source_config *data);

/* Every key of section fno with its value, into settings that may have some of them. */
TG_NODISCARD tg_status tg_run_config_put_network(const tg_fno_config *fno, tg_settings *settings);

/* Every key of the first stage with its value, and the keys of later stages in `settings` (NULL:
 * none). */
TG_NODISCARD tg_status tg_run_config_write(tg_context *ctx, const tg_run_config *config,
                                           const tg_settings *settings, tg_settings **out);

/* Every key of a run with its value, stages included: what config.yaml and checkpoints hold. */
TG_NODISCARD tg_status tg_run_config_resolve(tg_context *ctx, const tg_settings *settings,
                                             tg_settings **out);

#endif
