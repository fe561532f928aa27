/* Inside of an optimizer. */
#ifndef TG_OPTIM_OPTIM_H
#define TG_OPTIM_OPTIM_H

#include "optim/pending.h"
#include "project/projector.h"
#include "tgrad/optim.h"

/* One parameter and what its next update depends on. */
typedef struct tg_slot {
    char *name;
    tg_dtype dtype;
    tg_shape shape;
    int64_t numel;
    int group;
    tg_projector *projector; /* NULL: dense */
    int64_t count;           /* values that Adam sees: numel, or the compressed ones */

    int64_t step;         /* updates made: the refresh schedule's time */
    int64_t moment_step;  /* updates in the moments: the bias correction's time */
    int64_t last_refresh; /* step of the last refresh; -1: none yet */

    void *m; /* (count) */
    void *v; /* (count) reals; complex split: 2 count */

    void *sum;         /* (count) accumulated values; NULL unless the optimizer accumulates */
    void *dense_sum;   /* (numel) the same for a projected parameter on a step that refreshes */
    bool is_summing;   /* a sum is under way */
    int64_t nonfinite; /* NaN and Inf met in it, as far as they are known on the host */
    bool is_guarded;   /* its guard is in use in this round */
    bool is_pending;   /* its update is queued and not settled */
    void *weight;      /* bound for the sink, or NULL */
} tg_slot;

struct tg_optim {
    tg_context *ctx;
    tg_backend *be;
    tg_optim_config *groups;
    int group_count;
    tg_slot *slots;
    int slot_count;
    uint64_t seed;
    bool accumulates;

    tg_workspace workspace; /* of all projectors */
    void *small;            /* compressed values of the parameter being updated */
    void *dense;            /* one dense gradient, when factored ones may need to be formed */

    tg_pending pending;
    double grad_scale; /* of clipping */
    double norm_squares;
    tg_optim_stats stats;
    tg_optim_times times;
    bool times_parts; /* on a queue: waiting for each */
};

/* Whether the next update chooses factors and index sets anew. */
bool tg_slot_is_due(const tg_optim *optim, const tg_slot *slot);

/* Rates of the next update. */
tg_rates tg_slot_rates(const tg_optim *optim, const tg_slot *slot);

/* Steps between refreshes at this step, at least 1. */
int64_t tg_refresh_gap(const tg_optim_config *config, int64_t step);

/* Checks one group's settings; `index` is for the error. */
TG_NODISCARD tg_status tg_optim_config_check(tg_context *ctx, const tg_optim_config *config);

#endif
