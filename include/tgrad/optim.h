/* Optimizers: Adam on dense or on compressed gradients.
 *
 * Parameters are listed once with name, dtype and shape; each belongs to a group with its own
 * settings. A group is dense (AdamW) or projected (Adam works on the compressed values, see
 * project.h). Weights and gradients stay with the caller, where the context's backend computes.
 *
 * Three ways to use it: tg_optim_step for one parameter at a time; the sink, which does the same
 * from inside a backward pass, so that one gradient is alive at a time; or accumulation of several
 * micro-batches in compressed space, then tg_optim_apply. */
#ifndef TGRAD_OPTIM_H
#define TGRAD_OPTIM_H

#include "tgrad/io.h"
#include "tgrad/project.h"

TG_C_BEGIN

typedef enum tg_complex_adam {
    TG_ADAM_MODULUS, /* one real second moment |g|^2 (Lion: one phase) per complex entry */
    TG_ADAM_SPLIT    /* real and imaginary part as two reals (torch.optim's rule) */
} tg_complex_adam;

/* What becomes of the values of a gradient, dense or compressed (docs/optimizers.md). */
typedef enum tg_update_rule {
    TG_RULE_ADAM,   /* two moments */
    TG_RULE_LION,   /* one moment; the sign of an interpolation of it and the gradient */
    TG_RULE_APOLLO, /* the gradient, its columns scaled by Adam on a random projection */
    TG_RULE_MUON    /* one moment, made unitary mode by mode */
} tg_update_rule;

typedef enum tg_gap_mode {
    TG_GAP_FIXED,       /* G0 */
    TG_GAP_LINEAR,      /* G0 + (G1 - G0) q, q = step / total */
    TG_GAP_EXPONENTIAL, /* G0 (G1 / G0)^q */
    TG_GAP_EXPONENTIAL2 /* G0 (G1 / G0)^(q^2) */
} tg_gap_mode;

typedef enum tg_refresh_moments { TG_MOMENTS_KEEP, TG_MOMENTS_RESET } tg_refresh_moments;

typedef enum tg_nonfinite_policy {
    TG_NONFINITE_SKIP, /* a gradient with NaN or Inf is counted; its parameter stays unchanged */
    TG_NONFINITE_ERROR /* it is TG_E_NUMERIC */
} tg_nonfinite_policy;

/* How the moments are kept; the arithmetic on them is f32. */
typedef enum tg_state_precision {
    TG_STATES_FULL,
    TG_STATES_HALF, /* bf16 */
    TG_STATES_8BIT, /* a byte each and a scale for every 256; full below 4096 values */
    TG_STATES_F16   /* below 6e-8 it is 0, which takes the second moment of most gradients */
} tg_state_precision;

typedef enum tg_state_rounding { TG_ROUND_STOCHASTIC, TG_ROUND_NEAREST } tg_state_rounding;

/* Settings of one group. Key names in text form (tg_optim_config_set) are the published ones. */
typedef struct tg_optim_config {
    size_t size;          /* of the struct, see status.h */
    double learning_rate; /* learning_rate: 1e-3 */
    double beta1, beta2;  /* beta1, beta2: 0.9, 0.999 */
    double eps;           /* eps: 1e-6, added to the uncorrected root */
    double weight_decay;  /* weight_decay: 0; decoupled, w -= lr * wd * w after the update */
    tg_complex_adam complex_adam;       /* complex_adam: modulus | split */
    tg_state_precision state_precision; /* state_precision: full | half | 8bit | f16 */

    bool is_projected;             /* tensorgrad: compress the gradients of this group */
    tg_projector_config projector; /* proj_type, rank, sparse_ratio, .., second_* */
    double memory_budget; /* memory_budget: 0; > 0: replaces the rank by the largest share for all
                             projected parameters whose moments, factors and index sets fit into
                             these bytes, or (up to 1) into this share of their dense moments */
    int64_t min_entries;  /* min_entries: 1000; smaller parameters of the group stay dense */

    double update_proj_gap;           /* update_proj_gap: 1000; steps between refreshes */
    double update_proj_gap_end;       /* update_proj_gap_end: its value at the end of a schedule */
    tg_gap_mode update_proj_gap_mode; /* update_proj_gap_mode: fixed | linear | .. */
    int64_t total_steps;              /* total_steps: of the run, for gap schedules */
    tg_refresh_moments moments_on_refresh; /* moments_on_refresh: keep | reset */
    tg_nonfinite_policy nonfinite;         /* nonfinite: skip | error */
    tg_update_rule rule;                   /* rule: adam | lion | apollo | muon */
    tg_state_rounding state_rounding;      /* state_rounding: stochastic | nearest */
    bool match_rms; /* match_rms: false; scale updates to the RMS of torch's AdamW: by sqrt(entries
                       / compressed values), complex ones by sqrt(2) unless complex_adam is split */
} tg_optim_config;

TG_API void tg_optim_config_init(tg_optim_config *config, size_t size);
static inline tg_optim_config tg_optim_config_default(void) {
    tg_optim_config config;
    tg_optim_config_init(&config, sizeof config);
    return config;
}

/* Sets one key from text ("rank", "[43, 43, 43, 23]"). `name` sets a whole method in one word (see
 * tg_optim_method); later keys override. */
TG_API TG_NODISCARD tg_status tg_optim_config_set(tg_context *ctx, tg_optim_config *config,
                                                  const char *key, const char *value);

TG_API const char *tg_optim_config_key(int index); /* in order; NULL beyond the last */

/* A method: the settings for one value of the key `name`. */
typedef struct tg_optim_method {
    const char *name;
    const char *summary;  /* the part of a gradient that it keeps, in words */
    bool is_projected;    /* false: dense, and nothing below matters */
    tg_scheme scheme;     /* two branches unless TG_SCHEME_SINGLE */
    tg_branch_type first; /* of one or two branches .. */
    double first_share;   /* .. and the share of the entries that it keeps */
    tg_branch_type second;
    double second_share;
} tg_optim_method;

TG_API const tg_optim_method *tg_optim_get_method(int index); /* NULL beyond the last */

typedef struct tg_optim_param {
    const char *name; /* unique; copied */
    tg_dtype dtype; /* of the weight: f32, f64, c64, c128; or 16-bit formats, moved in f32 (c64) */
    tg_shape shape;
    int group;
} tg_optim_param;

/* Domain-parallel training: a parameter of this rank is a block of a tensor, whose rows are spread
 * over ranks. Its weight and gradient are those of the block; factors, index sets, compressed
 * values and the rule are those of the whole tensor. */
typedef struct tg_optim_block {
    int dim;       /* of the tensor; 2, the first of the modes, for spectral weights */
    int64_t whole; /* rows of the whole tensor; 0: the parameter is whole */
    int64_t first; /* row of the whole tensor that is the block's row 0 */
} tg_optim_block;

typedef struct tg_optim_setup {
    size_t size; /* of the struct, see status.h */
    const tg_optim_config *groups;
    int group_count;
    const tg_optim_param *params;
    int param_count;
    uint64_t seed;       /* of random index sets and sketches */
    bool takes_factored; /* gradients may come factored; reserves one dense gradient */
    bool accumulates;    /* micro-batches will be accumulated; reserves their compressed sums */
    bool forms_bf16; /* factors, and gradients formed from them, are bf16; not with accumulates */
    bool shares_workspace;       /* the scratch of updates and the dense gradient of refreshes are a
                                    network's, or others': tg_step_share_workspace or
                                    tg_optim_share_workspace before the first use */
    const int *numbers;          /* of each parameter in a longer list of the caller, for its random
                                    numbers to stay the same in parts of it; NULL: its place in params,
                                    and a state_precision that none is large enough for is refused */
    int shard_rank, shard_ranks; /* of several ranks that accumulate, 2 or more: the moments of a
                                    projected or large parameter live on one of them, and this is
                                    rank shard_rank; updates are made by a tg_step with a comm */
    const tg_optim_block *blocks; /* (param_count) NULL: every parameter is whole. Blocks are of an
                                     optimizer that accumulates, updated by a tg_step with a comm */
    int parts; /* blocks of a tensor: rank r has part r % parts. 0 or 1: every parameter is whole */
} tg_optim_setup;

typedef struct tg_optim tg_optim;

/* The optimizer of these parameters, all moments zero. Clamped ranks are logged. */
TG_API TG_NODISCARD tg_status tg_optim_create(tg_context *ctx, const tg_optim_setup *setup,
                                              tg_optim **out);
TG_API void tg_optim_destroy(tg_optim **optim);

/* Bytes by category that tg_optim_create would allocate for this setup: moments, factors, indices,
 * workspace, gradients (index by tg_mem_category). */
TG_API TG_NODISCARD tg_status tg_optim_plan(tg_context *ctx, const tg_optim_setup *setup,
                                            size_t bytes[TG_MEM_CATEGORIES]);

/* A rank set above the largest that the shape of its weight allows. */
typedef struct tg_clamped_rank {
    int params;           /* parameters with one; 0: none, and nothing below matters */
    char name[128];       /* of the first, as all below */
    int64_t asked, taken; /* ranks */
    double share;         /* of its entries, kept as values */
    char note[640];       /* all of this in a sentence, with what to set */
} tg_clamped_rank;

/* The same by place, and the further memory of an update that refreshes: scratch of decompositions
 * and, with accumulation, dense sums. */
typedef struct tg_optim_memory {
    size_t bytes[TG_MEM_CATEGORIES];   /* where the backend computes */
    size_t refresh[TG_MEM_CATEGORIES]; /* there, for the time of a refresh */
    size_t host, host_refresh;         /* workspace on the host, if that is another place */
    /* Bytes of scratch and dense gradient: in `bytes`, unless they are shared. */
    tg_shared_workspace shared;
    size_t step_work; /* of shared.work_bytes, those that a step without a refresh needs */
    /* With shard_ranks: parameters whose moments live on one rank, moments that are not on this
     * one (with blocks: those of whole tensors), and bytes of an update that their owners send. */
    int sharded;
    int lone_sums; /* with `accumulates`: sums that ranks send in messages of their own, without
                      those of dense blocks */
    size_t elsewhere, updates;
    tg_clamped_rank clamped;
} tg_optim_memory;

TG_API TG_NODISCARD tg_status tg_optim_plan_memory(tg_context *ctx, const tg_optim_setup *setup,
                                                   tg_optim_memory *out);

/* ---- stepping ---- */

/* Weights and gradients are tensors of the parameter's shape where the backend computes; a weight
 * has the parameter's dtype, a dense gradient tg_dtype_wide of it. */

/* The memory, of the sizes of tg_optim_memory.shared, for an optimizer with shares_workspace that
 * no tg_step uses. `dense` may be NULL while gradients come dense. Calls read the struct again. */
TG_API TG_NODISCARD tg_status tg_optim_share_workspace(tg_optim *optim,
                                                       const tg_shared_workspace *workspace);

/* One update of one parameter from its dense gradient. */
TG_API TG_NODISCARD tg_status tg_optim_step(tg_optim *optim, int param, const tg_tensor *gradient,
                                            const tg_tensor *weight);

/* Adds a micro-batch's gradient to the parameter's compressed sum (dense on steps that refresh,
 * where the whole gradient is needed); apply then updates from the sum and clears it. */
TG_API TG_NODISCARD tg_status tg_optim_accumulate(tg_optim *optim, const tg_gradient *gradient);
TG_API TG_NODISCARD tg_status tg_optim_apply(tg_optim *optim, int param, const tg_tensor *weight);
/* Forgets the sums of all parameters, such as those of a backward pass that failed halfway. */
TG_API TG_NODISCARD tg_status tg_optim_discard(tg_optim *optim);

/* The sums of a parameter between accumulate and apply, to be read, averaged over processes and
 * written: views where the backend computes, valid until apply. A projected parameter has one for
 * each of its branches, compressed, in their order; a dense parameter, and any on a step that
 * refreshes, has the dense one. Between refreshes projection is linear: where processes have the
 * same factors and index sets, the sum (or mean) of their sums is that of the whole batch, to
 * rounding. After this call, apply uses the present values, and counts NaN and Inf in them instead
 * of in the gradients. The sums of a tg_step contain the loss scale. */
typedef struct tg_optim_sum {
    const char *name; /* "dense", "core" (low rank) or "values" (kept entries, in index order) */
    tg_tensor tensor; /* dtype of the arithmetic; shape of the parameter, (ranks..) or (kept) */
} tg_optim_sum;

/* The number of sums; 0: nothing is accumulated. */
TG_API int tg_optim_sum_count(const tg_optim *optim, int param);
TG_API TG_NODISCARD tg_status tg_optim_get_sum(tg_optim *optim, int param, int index,
                                               tg_optim_sum *out);

/* The sink for a backward pass that updates at once, after all weights were bound. */
TG_API TG_NODISCARD tg_status tg_optim_bind(tg_optim *optim, int param, const tg_tensor *weight);
TG_API tg_grad_sink tg_optim_sink(tg_optim *optim);

/* Projects a dense gradient before its update, so that a GPU works while the host prepares. That
 * update is the next one, by tg_optim_step or the updating sink, from the same unchanged memory;
 * any other one discards the projection. Does nothing before a refresh, and on the host. */
TG_API TG_NODISCARD tg_status tg_optim_project_ahead(tg_optim *optim, const tg_gradient *gradient);

/* The rate of a group from the next update on. */
TG_API TG_NODISCARD tg_status tg_optim_set_learning_rate(tg_optim *optim, int group, double rate);

/* Settings of a group from the next update on. learning_rate, beta1, beta2, eps, weight_decay,
 * update_proj_gap and its schedule, total_steps, moments_on_refresh and nonfinite may change; any
 * other change is TG_E_CONFIG. */
TG_API TG_NODISCARD tg_status tg_optim_set_group(tg_optim *optim, int group,
                                                 const tg_optim_config *config);

/* ---- loss scaling ----
 *
 * Small numbers vanish from gradients that pass through f16, so a tg_step multiplies the gradient
 * of the loss by a power of two, and the optimizer divides by it: without f16, and within the range
 * of f32, no bit changes. A dynamic scale starts at 65536, is halved (down to 2^-10) after a step
 * with a finite loss and a gradient that is not, and doubled (up to 2^24) after `interval` steps
 * without. Such overflows are expected: parameters with finite gradients are updated, the others
 * are not, and it is no TG_NONFINITE_ERROR unless the scale is at its minimum. */
typedef struct tg_loss_scale_config {
    size_t size; /* of the struct, see status.h */
    bool is_dynamic;
    double fixed;     /* otherwise: a power of two from 2^-10 to 2^24; 1: none */
    int64_t interval; /* loss_scale_interval: 500; steps without overflow until it is doubled */
} tg_loss_scale_config;

/* No scaling, and an interval of 500. */
TG_API void tg_loss_scale_config_init(tg_loss_scale_config *config, size_t size);
static inline tg_loss_scale_config tg_loss_scale_config_default(void) {
    tg_loss_scale_config config;
    tg_loss_scale_config_init(&config, sizeof config);
    return config;
}
/* To be called between steps. The state of a dynamic scale goes on. */
TG_API TG_NODISCARD tg_status tg_optim_set_loss_scale(tg_optim *optim,
                                                      const tg_loss_scale_config *config);
/* Ends the update of all parameters: call it after the last one of a step that is not a tg_step,
 * and after the last tg_optim_apply of accumulated gradients. A dynamic scale may change, which
 * waits for the update. On a GPU the next update waits for no work queued after this call. */
TG_API TG_NODISCARD tg_status tg_optim_end_update(tg_optim *optim);

/* On a GPU updates are only queued, and counted as made or skipped later. This waits for all of
 * them and counts them, as saving does, and each update for the one before of its parameter. */
TG_API TG_NODISCARD tg_status tg_optim_synchronize(tg_optim *optim);

/* ---- statistics ---- */

typedef struct tg_optim_stats {
    int64_t steps;     /* updates made, all parameters together */
    int64_t skipped;   /* updates skipped for NaN or Inf, but for those of `overflows` */
    int64_t refreshes; /* of projectors */
    int64_t failures;  /* decompositions that failed and kept the old factors */
    int64_t overflows; /* steps in which a dynamic loss scale was too large */
} tg_optim_stats;

/* Of the updates that are not in flight. */
TG_API tg_optim_stats tg_optim_get_stats(const tg_optim *optim);

/* What the projection of a parameter keeps. */
typedef struct tg_optim_projection {
    bool is_projected; /* false: dense, and nothing below is set */
    tg_shape ranks;    /* of the low-rank branch; no dimensions: there is none */
    int64_t kept;      /* entries of the sparse branch */
    int64_t values;    /* compressed values, of `entries` */
    int64_t entries;
    int64_t refreshed; /* step of the last refresh; -1: none yet */
    double error;      /* |G - P(G)| / |G| at that refresh; NaN: unknown, as with TG_SCHEME_SUM */
    size_t bytes;      /* moments, factors and index set in use */
} tg_optim_projection;

TG_API tg_optim_projection tg_optim_get_projection(const tg_optim *optim, int param);

/* Seconds since tg_optim_time_parts, by part of the step; on a GPU only of refreshes, unless every
 * part waits for its end. */
typedef struct tg_optim_times {
    double check;   /* counting NaN and Inf */
    double refresh; /* choosing factors and index sets */
    double project; /* gradient to compressed values */
    double adam;    /* moments; the whole update of dense parameters */
    double update;  /* compressed values back to the weights */
} tg_optim_times;

TG_API tg_optim_times tg_optim_get_times(const tg_optim *optim);
/* Restarts from 0; `waits`: every part waits for its end. */
TG_API void tg_optim_time_parts(tg_optim *optim, bool waits);

/* ---- saving: everything that the next step depends on, bit for bit ---- */

/* Adds the state to an archive under "optim.<parameter>.<part>", or loads it: checks names, dtypes,
 * shapes and settings that shape the state, and changes nothing on failure. */
TG_API TG_NODISCARD tg_status tg_optim_save(tg_optim *optim, tg_archive *archive);
TG_API TG_NODISCARD tg_status tg_optim_load(tg_optim *optim, const tg_archive *archive);

TG_C_END
#endif
