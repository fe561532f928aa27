/* Internals of an optimizer. */
#ifndef TG_OPTIM_OPTIM_H
#define TG_OPTIM_OPTIM_H

#include "backend/state_codec.h"
#include "backend/tensor.h"
#include "base/setting.h"
#include "optim/in_flight.h"
#include "optim/loss_scale.h"
#include "optim/rules/rules.h"
#include "project/projector.h"
#include "tgrad/optim.h"

/* ---- state tensors ---- */

typedef struct tg_moment {
    int64_t reals; /* per complex value two, or one in a second moment (unless split) */
    void *memory;
    float *scale; /* of a codec with blocks, or NULL */
} tg_moment;

typedef struct tg_moments {
    const tg_rule *rule;
    tg_state_form form;
    tg_dtype real;                /* dtype of uncompressed ones */
    tg_moment at[TG_RULE_STATES]; /* one for each rule->state */
} tg_moments;

/* Format and sizes for `count` values of a dtype; `whole` of them, those of a whole tensor, decide
 * the format. Touches no memory. */
tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, const tg_rule *rule,
                           int64_t whole, int64_t count);
/* The same for a dense parameter of a shape: the whole tensor or a block of it. */
tg_moments tg_moments_plan_dense(const tg_optim_config *config, tg_dtype dtype,
                                 const tg_shape *whole, const tg_shape *shape);
size_t tg_moments_bytes(const tg_moments *moments);
/* Bytes in a file, without rounding up. */
size_t tg_moments_saved_bytes(const tg_moments *moments);

/* Bytes of the scales of tensor i of planned moments; 0: the codec has none. */
size_t tg_moment_scale_bytes(const tg_moments *moments, int i);

/* Allocates planned moments and sets them to zero. */
TG_NODISCARD tg_status tg_moments_create(tg_backend *be, tg_moments *moments);
TG_NODISCARD tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments);
void tg_moments_release(tg_backend *be, tg_moments *moments);

/* The codec of tensor i: the common one, unless it is a single real. */
const tg_state_codec *tg_moment_codec(const tg_moments *moments, int i);

static inline const tg_state_codec *tg_moments_codec(const tg_moments *moments) {
    return tg_state_codecs[moments->form];
}

enum { TG_ON_ALL = -1 }; /* owner of moments that every rank has */

/* One parameter and the state its next update depends on. */
typedef struct tg_slot {
    char *name;
    tg_dtype dtype;          /* of the arithmetic; gradients may also be 16-bit */
    tg_storage weight_store; /* of the weight */
    tg_rng rounding;         /* of values kept in bf16; its step is the update's */
    tg_shape shape;          /* of weight and gradient */
    int64_t numel;
    tg_shape whole;       /* of the tensor .. */
    tg_optim_block block; /* .. of which they are these rows; block.whole 0: all of it */
    int group;
    tg_projector *projector; /* NULL: dense */
    int64_t count;           /* values the rule sees: numel, or the compressed ones */
    double error; /* relative error of the projection at its last refresh; NaN: unknown */

    int64_t step;         /* updates so far: the refresh schedule's time */
    int64_t refused;      /* updates refused since creation */
    int64_t moment_step;  /* updates in the moments: the bias correction's time */
    int64_t last_refresh; /* step of the last refresh; -1: none yet */

    tg_moments moments; /* of the values */
    int owner;          /* of the moments, of a dense block among its replicas; or TG_ON_ALL */
    bool is_elsewhere;  /* the moments are on another rank; no memory here */

    void *sum;          /* (count) accumulated values; NULL unless the optimizer accumulates */
    bool is_bucketed;   /* the sum is part of the bucket */
    void *dense_sum;    /* (numel) the same, for a projected parameter on a step that refreshes */
    void *whole_sum;    /* of a block, that of the whole tensor on the rank that refreshes it */
    bool is_summing;    /* a sum is under way */
    bool is_handed_out; /* the caller may have written to it */
    int64_t nonfinite;  /* NaN and Inf in it, as far as the host knows */
    double squares;     /* of a sum that not every rank has */
    bool is_guarded;    /* its guard is in use in this round */
    bool is_in_flight;  /* its update is queued, its outcome unknown */
    bool is_planned;    /* .. as it was in the last planned round */
    void *weight;       /* bound for the sink, or NULL */
} tg_slot;

typedef struct tg_update_batch tg_update_batch;

struct tg_optim {
    tg_context *ctx;
    tg_backend *be;
    tg_optim_config *groups;
    int group_count;
    tg_slot *slots;
    int slot_count;
    uint64_t seed;
    bool accumulates, takes_factored;
    int shard_rank, shard_ranks; /* 0 or 1: every moment is here */
    int parts;                   /* blocks of a tensor; 1: every parameter is whole */
    tg_adder parts_adder;        /* over the ranks that have them; set by an exchange */
    const tg_archive *gathered;  /* moments of other ranks, while saving; NULL: none */

    tg_tensor bucket; /* (reals) the sums of small dense parameters, side by side, which ranks send
                         in one message; empty if there are none or it does not accumulate */

    tg_workspace workspace; /* of all projectors */
    void *small;            /* in the workspace: compressed values of the parameter being updated */
    void *rule_work;        /* scratch of rules of whole weights, or NULL */
    void *dense;            /* one dense gradient, if factored ones may have to be formed */
    bool forms_bf16;        /* only large enough for 16-bit numbers */
    const tg_shared_workspace *shared; /* of a network; NULL: none yet */
    bool shares_workspace;             /* it has no workspace besides `shared` */
    tg_shared_workspace needs;         /* bytes needed of both */

    struct {
        const tg_slot *slot; /* whose gradient is projected in `small`; NULL: none */
        const void *gradient;
        uint32_t *guard; /* counts its NaN and Inf */
    } ahead;
    tg_update_batch *batch; /* of gradients that came together; NULL: each is used at once */
    tg_in_flight in_flight;
    double grad_scale;   /* by clipping */
    double norm_squares; /* of gradients, loss scale included */
    tg_loss_scale loss_scale;
    tg_optim_stats stats;
    int64_t warnings;  /* steps reported for refused updates .. */
    int64_t warned_of; /* .. and the last of them, counted from 1 */
    tg_optim_times times;
    bool times_parts; /* on a stream: waits for each part */
};

/* Whether the next update refreshes factors and index sets. */
bool tg_slot_is_due(const tg_optim *optim, const tg_slot *slot);

/* Rates of the next update. */
tg_rates tg_slot_rates(const tg_optim *optim, const tg_slot *slot);

/* Steps between refreshes at this step, at least 1. */
int64_t tg_refresh_gap(const tg_optim_config *config, int64_t step);

/* The whole tensor of a parameter of the setup. */
tg_shape tg_whole_shape(const tg_optim_setup *setup, const tg_optim_param *param);

/* Whether a parameter is projected. */
bool tg_is_projected(const tg_optim_setup *setup, const tg_optim_param *param);
/* Whether it is a block that is not. */
bool tg_is_dense_block(const tg_optim_setup *setup, const tg_optim_param *param);
static inline bool tg_slot_is_dense_block(const tg_slot *slot) {
    return slot->block.whole > 0 && !slot->projector;
}

/* The bucket of an optimizer that accumulates: chooses its parameters, then allocates it. */
void tg_bucket_plan(tg_optim *optim);
TG_NODISCARD tg_status tg_bucket_allocate(tg_optim *optim);

/* Frees the dense sums of a step that refreshes. */
void tg_sum_release_dense(tg_optim *optim, tg_slot *slot);

/* One update from a handed-over gradient; gradient->param is the number of the parameter. */
TG_NODISCARD tg_status tg_optim_step_gradient(tg_optim *optim, const tg_gradient *gradient,
                                              const tg_tensor *weight);

/* A sink that adds to the compressed sums. */
tg_grad_sink tg_optim_accumulate_sink(tg_optim *optim);

/* Clipping by global norm in two passes: the backward pass into the norm sink, tg_optim_clip, then
 * the pass again into an updating sink, whose gradients are scaled by min(1, max_norm / norm) until
 * the next tg_optim_clip_begin. Nothing is stored in between. */
void tg_optim_clip_begin(tg_optim *optim);
tg_grad_sink tg_optim_norm_sink(tg_optim *optim);
TG_NODISCARD tg_status tg_optim_clip(tg_optim *optim, double max_norm, double *norm);
/* In one pass, when gradients are accumulated: the norm of the accumulated values, those that the
 * projections keep. Call between the last accumulate and the first apply. */
TG_NODISCARD tg_status tg_optim_clip_accumulated(tg_optim *optim, double max_norm, double *norm);

/* As tg_optim_save. A backend on the host saves views (write and destroy the archive before the
 * next step), others copies, in the staging buffer if there is one. */
TG_NODISCARD tg_status tg_optim_save_views(tg_optim *optim, tg_staging *staging,
                                           tg_archive *archive);

/* Reads the addresses of a shared workspace again, which may have changed. */
TG_NODISCARD tg_status tg_optim_use_shared(tg_optim *optim, bool forms_dense);

/* The caller's config, of whatever size, converted to this library's. */
TG_NODISCARD tg_status tg_optim_config_read(tg_context *ctx, const tg_optim_config *config,
                                            tg_optim_config *out);

/* Checks the settings of one group. */
TG_NODISCARD tg_status tg_optim_config_check(tg_context *ctx, const tg_optim_config *config);

/* ---- learning-rate schedules, advanced once per epoch (schedule.c) ---- */

typedef enum tg_lr_schedule_type {
    TG_LR_CONSTANT,
    TG_LR_STEP,    /* StepLR: times gamma every step_size epochs */
    TG_LR_COSINE,  /* CosineAnnealingLR: to 0 over T_max epochs, then back up */
    TG_LR_PLATEAU, /* ReduceLROnPlateau: times gamma after `patience` epochs without gain */
} tg_lr_schedule_type;

typedef struct tg_lr_schedule_config {
    tg_lr_schedule_type scheduler; /* scheduler: StepLR | CosineAnnealingLR | .. */
    double learning_rate;          /* at the start */
    int64_t step_size;             /* step_size: 100 */
    double gamma;                  /* gamma: 0.5 */
    int64_t scheduler_T_max;       /* scheduler_T_max: 300 */
    int64_t scheduler_patience;    /* scheduler_patience: 50 */
    int64_t warmup_steps;          /* warmup_steps: 0; linear from 0 over the first steps */
} tg_lr_schedule_config;

/* State of a schedule: plain data that is saved unchanged. */
typedef struct tg_lr_schedule {
    tg_lr_schedule_config config;
    int64_t epoch;  /* epochs finished */
    double factor;  /* plateau: product of the reductions so far */
    double best;    /* plateau: lowest metric so far */
    int64_t waited; /* plateau: epochs since then */
} tg_lr_schedule;

tg_lr_schedule_config tg_lr_schedule_config_default(void);
/* Checks the settings and begins before the first epoch. */
TG_NODISCARD tg_status tg_lr_schedule_start(tg_context *ctx, const tg_lr_schedule_config *config,
                                            tg_lr_schedule *out);
/* The rate for training step `step` (0-based, over the whole run) of the current epoch. */
double tg_lr_schedule_rate(const tg_lr_schedule *schedule, int64_t step);
/* Ends an epoch; `metric` (lower is better) matters to the plateau schedule. */
void tg_lr_schedule_epoch(tg_lr_schedule *schedule, double metric);

/* ---- the tables of settings of optimizer and schedule; and the key `name`, which sets a whole
 * method and has no field ---- */

/* The value of a key as text that tg_optim_config_set reads back. */
const char *tg_optim_config_get(const tg_optim_config *config, int index, char *text,
                                size_t capacity);
int tg_optim_config_count(void);
const tg_setting *tg_optim_config_rows(void); /* (tg_optim_config_count()) */
int tg_lr_schedule_config_count(void);
const tg_setting *tg_lr_schedule_config_rows(void); /* (tg_lr_schedule_config_count()) */
extern const tg_setting tg_optim_method_row;

/* Whether a key changes the contents or format of an optimizer's state. */
bool tg_optim_config_shapes_state(const char *key);

/* Whether the method, or the schedule, reads a key of its table. */
bool tg_optim_config_reads(const tg_optim_config *config, const char *key);
bool tg_lr_schedule_config_reads(const tg_lr_schedule_config *config, const char *key);

/* A caller's setup converted to this library's, and checked (setup.c). *out has its own groups;
 * free them even after an error. */
TG_NODISCARD tg_status tg_optim_setup_read(tg_context *ctx, const tg_optim_setup *given,
                                           tg_optim_setup *out);
void tg_optim_setup_free(tg_context *ctx, tg_optim_setup *setup);

/* Ranks set above the largest that a weight's shape allows (setup.c). */
void tg_find_clamped_rank(const tg_optim *optim, tg_clamped_rank *out);

/* ---- the state of a parameter in a file ---- */

/* The largest counter accepted from a file: sums of them and further steps cannot overflow. */
#define TG_STATE_MAX_COUNT (INT64_C(1) << 48)

enum { TG_STATE_NAME = 512, TG_STATE_PARTS = 2 * TG_RULE_STATES + 2 * TG_MAX_NDIM };

/* One array of the state: its memory, and its dtype and shape in a file. */
typedef struct tg_state_part {
    char name[TG_STATE_NAME];
    void *memory;
    tg_dtype dtype;
    tg_shape shape;
} tg_state_part;

/* The arrays of moment i with a number of reals: values, and scales, which may be empty. */
TG_NODISCARD tg_status tg_state_describe_moment(const tg_optim *optim, const tg_slot *slot, int i,
                                                int64_t reals, tg_state_part out[2]);

/* The arrays of a parameter's moments; of a dense block the whole tensor's, without memory. */
TG_NODISCARD tg_status tg_state_list_moments(const tg_optim *optim, const tg_slot *slot,
                                             tg_state_part *parts, int *count);

/* Adds `count` numbers of a dtype to an archive. */
TG_NODISCARD tg_status tg_state_save_numbers(tg_context *ctx, tg_archive *archive, const char *name,
                                             tg_dtype dtype, int64_t count, const void *numbers);

#endif
