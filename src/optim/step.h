/* The interface between updates (step.c), sums (accumulate.c) and gradients (gradient.c). */
#ifndef TG_OPTIM_STEP_H
#define TG_OPTIM_STEP_H

#include "optim/optim.h"

TG_NODISCARD tg_status tg_slot_find(tg_optim *optim, int param, tg_slot **out);

/* Fails unless this is the weight of the parameter. */
TG_NODISCARD tg_status tg_slot_check_weight(tg_optim *optim, const tg_slot *slot,
                                            const tg_tensor *weight);

/* Fails unless this is a gradient of the parameter that the optimizer can take. */
TG_NODISCARD tg_status tg_slot_check(tg_optim *optim, const tg_slot *slot,
                                     const tg_gradient *gradient);

/* The gradient as a dense one, formed in the optimizer's memory if it came factored. */
TG_NODISCARD tg_status tg_slot_form(tg_optim *optim, const tg_slot *slot,
                                    const tg_gradient *gradient, tg_gradient *out);

/* Fails unless this rank can update it alone, from a gradient or the present sum. */
TG_NODISCARD tg_status tg_slot_check_alone(tg_optim *optim, const tg_slot *slot);

/* Adds the NaN and Inf of the entries, or of the factors, to a guard. */
TG_NODISCARD tg_status tg_slot_count(tg_optim *optim, const tg_slot *slot,
                                     const tg_gradient *gradient, uint32_t *guard);

/* Waits for their count; the second for plain values. TG_TOO_LARGE: all are finite, but their
 * squares would overflow, in the rule after clipping or in a refresh. */
TG_NODISCARD tg_status tg_slot_judge(tg_optim *optim, const tg_slot *slot,
                                     const tg_gradient *gradient, bool refreshes,
                                     int64_t *nonfinite);
TG_NODISCARD tg_status tg_values_judge(tg_optim *optim, tg_dtype dtype, bool refreshes, int64_t n,
                                       const void *values, int64_t *nonfinite);

/* An update that has begun. */
typedef struct tg_update {
    const void *values;    /* dense gradient or compressed values */
    tg_storage grad_store; /* of a dense gradient */
    void *weight;
    uint32_t *guard; /* NULL: it was read and is 0 */
    /* The part of the update that counts NaN and Inf into the guard. */
    enum { TG_COUNT_DONE, TG_COUNT_BY_RULE, TG_COUNT_BY_PROJECTION } count;
} tg_update;

/* Runs the rule on the values: updates a dense weight, or computes a compressed direction .. */
TG_NODISCARD tg_status tg_slot_run_rule(tg_optim *optim, tg_slot *slot, const tg_update *call);
/* .. which this expands into the weight. */
TG_NODISCARD tg_status tg_slot_expand_update(tg_optim *optim, tg_slot *slot, const tg_update *call);
/* Both, and counts the update. */
TG_NODISCARD tg_status tg_slot_update(tg_optim *optim, tg_slot *slot, const tg_update *call);

/* small = project(gradient) + beta small; adds NaN and Inf to the guard, if there is one. */
TG_NODISCARD tg_status tg_slot_project(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                                       double beta, uint32_t *guard, void *small);

/* Refreshes the projection with a dense gradient; small = project(gradient). */
TG_NODISCARD tg_status tg_slot_refresh_and_project(tg_optim *optim, tg_slot *slot,
                                                   const tg_gradient *gradient, void *small);
/* Resets moments and counters after a refresh, as the group's settings say. */
TG_NODISCARD tg_status tg_slot_is_refreshed(tg_optim *optim, tg_slot *slot);

/* The update from a gradient that passed its check, or whose guard is counted by `call`. */
TG_NODISCARD tg_status tg_slot_step(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                                    tg_update *call);

/* The bound weight. */
TG_NODISCARD tg_status tg_slot_get_weight(tg_optim *optim, const tg_slot *slot, void **weight);

/* As tg_optim_accumulate of each, but NaN and Inf are counted in the sums. Copies adjacent small
 * gradients to the bucket together. */
TG_NODISCARD tg_status tg_sum_add_all(tg_optim *optim, int count, const tg_gradient *gradients);

/* A sum as one array; from now on its present values decide whether it is used. */
tg_tensor tg_sum_get(tg_optim *optim, int param);

/* Adds up a gradient over all ranks and updates, without waiting: of ordinary steps on a stream. */
TG_NODISCARD tg_status tg_sum_update(tg_optim *optim, const tg_gradient *gradient,
                                     const tg_adder *adder);
/* Updates the parameters in the bucket, which has been added up. */
TG_NODISCARD tg_status tg_bucket_update(tg_optim *optim);

/* Begins a sum, if none is under way; allocates a dense one if needed. */
TG_NODISCARD tg_status tg_sum_begin(tg_optim *optim, tg_slot *slot);
/* NaN and Inf in the present sum; waits for the stream. */
TG_NODISCARD tg_status tg_sum_read_count(tg_optim *optim, tg_slot *slot, int64_t *nonfinite);
TG_NODISCARD tg_status tg_sum_norms(tg_optim *optim, const tg_slot *slot, tg_norms *out);
/* The sum has been used or refused. */
void tg_sum_end(tg_optim *optim, tg_slot *slot);

#endif
