/* What updates (step.c), sums (accumulate.c) and gradients (gradient.c) need of each other. */
#ifndef TG_OPTIM_STEP_H
#define TG_OPTIM_STEP_H

#include "optim/optim.h"

TG_NODISCARD tg_status tg_slot_find(tg_optim *optim, int param, tg_slot **out);

/* Whether this is the weight of the parameter. */
TG_NODISCARD tg_status tg_slot_check_weight(tg_optim *optim, const tg_slot *slot,
                                            const tg_tensor *weight);

/* Whether this is a gradient of the parameter that the optimizer was made for. */
TG_NODISCARD tg_status tg_slot_check(tg_optim *optim, const tg_slot *slot,
                                     const tg_gradient *gradient);

/* The gradient as a dense one, formed in the optimizer's own memory if it came factored: as wide as
 * the arithmetic, or as its factors where only that was asked for. */
TG_NODISCARD tg_status tg_slot_form(tg_optim *optim, const tg_slot *slot,
                                    const tg_gradient *gradient, tg_gradient *out);

/* Whether its moments are on every rank, so that this one can update it alone. */
TG_NODISCARD tg_status tg_slot_check_whole(tg_optim *optim, const tg_slot *slot);

/* Adds the NaN and Inf of what was handed over, the entries or the factors, to a guard. */
TG_NODISCARD tg_status tg_slot_count(tg_optim *optim, const tg_slot *slot,
                                     const tg_gradient *gradient, uint32_t *guard);

/* The same, waited for; and values as they stand. TG_TOO_LARGE if all are finite but squares of
 * them would overflow: as the rule takes them, clipped, or as a refresh does. */
TG_NODISCARD tg_status tg_slot_judge(tg_optim *optim, const tg_slot *slot,
                                     const tg_gradient *gradient, bool refreshes,
                                     int64_t *nonfinite);
TG_NODISCARD tg_status tg_values_judge(tg_optim *optim, tg_dtype dtype, bool refreshes, int64_t n,
                                       const void *values, int64_t *nonfinite);

/* An update on its way. */
typedef struct tg_update {
    const void *values;    /* dense gradient or compressed values */
    tg_storage grad_store; /* of a dense gradient */
    void *weight;
    uint32_t *guard; /* NULL: it was read and is 0 */
    /* Nothing has counted into the guard yet: what does it. */
    bool rule_counts, projection_counts;
} tg_update;

/* The rule on the values: to the weight of a dense parameter, or to a direction .. */
TG_NODISCARD tg_status tg_slot_run_rule(tg_optim *optim, tg_slot *slot, const tg_update *call);
/* .. which goes from compressed space back into the weight. */
TG_NODISCARD tg_status tg_slot_expand_update(tg_optim *optim, tg_slot *slot, const tg_update *call);
/* Both, and the update is counted. */
TG_NODISCARD tg_status tg_slot_update(tg_optim *optim, tg_slot *slot, const tg_update *call);

/* small = project(gradient) + beta small; what is not finite in it is counted into the guard, if
 * there is one. */
TG_NODISCARD tg_status tg_slot_project(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                                       double beta, uint32_t *guard, void *small);

/* small = project(gradient), with new factors and index sets if it refreshes; the gradient is dense
 * where a refresh needs it. */
TG_NODISCARD tg_status tg_slot_refresh_and_project(tg_optim *optim, tg_slot *slot,
                                                   const tg_gradient *gradient, bool refreshes,
                                                   void *small);
/* What changes beside the projection when it has been refreshed. */
TG_NODISCARD tg_status tg_slot_is_refreshed(tg_optim *optim, tg_slot *slot);

/* The same and the update of a projected parameter. */
TG_NODISCARD tg_status tg_slot_project_and_update(tg_optim *optim, tg_slot *slot,
                                                  const tg_gradient *gradient, bool refreshes,
                                                  tg_update *call);

/* The weight that was bound. */
TG_NODISCARD tg_status tg_slot_get_weight(tg_optim *optim, const tg_slot *slot, void **weight);

/* As tg_optim_accumulate of each, but what is not finite is counted in the sums alone. Small
 * gradients that stand side by side are copied to the bucket together. */
TG_NODISCARD tg_status tg_sum_add_all(tg_optim *optim, int count, const tg_gradient *gradients);

/* A sum as one array; from now on, what stands in it decides whether it is used. */
tg_tensor tg_sum_get(tg_optim *optim, int param);

/* Adds up values over ranks, in place. */
typedef struct tg_adder {
    tg_status (*add)(void *user, const tg_tensor *values);
    void *user;
} tg_adder;

/* One gradient over all ranks, and the update; of an ordinary step (tg_optim_is_ordinary) on a
 * stream. Nothing is waited for. */
TG_NODISCARD tg_status tg_sum_update(tg_optim *optim, const tg_gradient *gradient,
                                     const tg_adder *adder);
/* The same of all that is in the bucket, and has been added up. */
TG_NODISCARD tg_status tg_bucket_update(tg_optim *optim);

/* Begins a sum, if none is under way: memory for a dense one where that is needed. */
TG_NODISCARD tg_status tg_sum_begin(tg_optim *optim, tg_slot *slot);
/* NaN and Inf in the sum as it stands; waits for the stream. */
TG_NODISCARD tg_status tg_sum_read_count(tg_optim *optim, tg_slot *slot, int64_t *nonfinite);
TG_NODISCARD tg_status tg_sum_norms(tg_optim *optim, const tg_slot *slot, tg_norms *out);
/* The sum has been used or refused. */
void tg_sum_end(tg_optim *optim, tg_slot *slot);

#endif
