/* One update, decay included:  w <- (1 - lr wd) (w - lr c u),  with c the rule's correction.
 *
 *   gradient -> begin_step -+- dense:     ----------------------> rule, writes w
 *                           +- projected: ---------> project ---> rule -> expand into w
 *                           +- refresh:   refresh -> project ---> rule -> expand into w
 *   projected ahead         +- deferred:  ----------------------> rule -> expand into w
 *
 * begin_step counts NaN and Inf: before a refresh, or where the guard is read first, at once;
 * otherwise into the guard, if possible by the kernel that reads the gradient next. A backend may
 * do all of `projected` in one call. Nothing is allocated. */
#include <math.h>

#include "base/system.h"
#include "optim/step.h"

/* Seconds, with `waits` after all queued work; a device that fails here fails again later. */
static double read_clock(const tg_optim *optim, bool waits) {
    if (optim->be->ops->stream && waits) {
        (void)optim->be->ops->synchronize(optim->be);
    }
    return tg_seconds();
}

bool tg_slot_is_due(const tg_optim *optim, const tg_slot *slot) {
    return slot->last_refresh < 0 || slot->step - slot->last_refresh >=
                                         tg_refresh_gap(&optim->groups[slot->group], slot->step);
}

tg_status tg_slot_is_refreshed(tg_optim *optim, tg_slot *slot) {
    const bool had_moments = slot->last_refresh >= 0;
    slot->last_refresh = slot->step;
    if (had_moments && optim->groups[slot->group].moments_on_refresh == TG_MOMENTS_RESET) {
        slot->moment_step = 0;
        return slot->is_elsewhere ? TG_OK : tg_moments_clear(optim->be, &slot->moments);
    }
    return TG_OK;
}

/* The error of the new projection on the gradient it was chosen from: the parts that its branches
 * take are orthogonal to each other and to the rest. */
static tg_status note_error(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                            const void *small) {
    tg_norms whole, kept;
    TG_CALL(optim->be->ops->norms(optim->be, gradient->dtype, slot->projector->numel,
                                  gradient->dense, &whole));
    TG_CALL(optim->be->ops->norms(optim->be, slot->dtype, slot->count, small, &kept));
    const double lost = whole.sum_squares - kept.sum_squares;
    slot->error = lost > 0.0 ? sqrt(lost / whole.sum_squares) : 0.0;
    if (slot->projector->config.scheme == TG_SCHEME_SUM) { /* its parts overlap */
        slot->error = (double)NAN;
    }
    return TG_OK;
}

/* match_rms: k compressed values of size 1 spread over n entries have an RMS of sqrt(k / n). Where
 * the parts of a complex value share a second moment it is the value that has size 1, while in
 * AdamW of torch each part has. Rules of whole weights choose the length of their updates. */
static double rms_factor(const tg_optim *optim, const tg_slot *slot) {
    const tg_optim_config *config = &optim->groups[slot->group];
    const bool shares = tg_dtype_is_complex(slot->dtype) && config->complex_adam == TG_ADAM_MODULUS;
    if (!config->match_rms || slot->moments.rule->step_whole) {
        return 1.0;
    }
    const tg_projector *p = slot->projector;
    return sqrt((p ? (double)p->numel / (double)slot->count : 1.0) * (shares ? 2.0 : 1.0));
}

/* w <- beta w + alpha u; u is expanded for a projected parameter. */
static tg_rates plain_rates(const tg_optim *optim, const tg_slot *slot) {
    const tg_optim_config *config = &optim->groups[slot->group];
    const double correction = tg_rule_correction(slot->moments.rule, config, slot->moment_step + 1);
    const double keep = 1.0 - config->learning_rate * config->weight_decay;
    return (tg_rates){.alpha = -keep * config->learning_rate * correction * rms_factor(optim, slot),
                      .beta = keep,
                      .scale = optim->grad_scale / optim->loss_scale.used,
                      .step = (uint32_t)slot->step};
}

tg_rates tg_slot_rates(const tg_optim *optim, const tg_slot *slot) {
    tg_rates rates = plain_rates(optim, slot);
    if (slot->projector) {
        rates.alpha = tg_projector_rate(slot->projector, rates.alpha);
    }
    return rates;
}

/* ---- batches of updates ---- */

enum { BATCH_SIZE = 64 };

struct tg_update_batch {
    const tg_rule *rule; /* common to all */
    int count;
    tg_adam adam[BATCH_SIZE];
    tg_rng rounding[BATCH_SIZE];
    tg_slot *slot[BATCH_SIZE];
};

static tg_status run_batch(tg_optim *optim) {
    tg_update_batch *batch = optim->batch;
    if (!batch || batch->count == 0) {
        return TG_OK;
    }
    const double start = read_clock(optim, optim->times_parts);
    const tg_status status = optim->be->ops->update(optim->be, batch->count, batch->adam);
    optim->times.adam += read_clock(optim, optim->times_parts) - start;
    for (int i = 0; i < batch->count && status == TG_OK; i++) {
        tg_update_end(optim, batch->slot[i]);
    }
    batch->count = 0;
    return status;
}

static tg_status add_to_batch(tg_optim *optim, tg_slot *slot, const tg_adam *adam) {
    tg_update_batch *batch = optim->batch;
    const bool is_other = batch->rule != slot->moments.rule;
    TG_CALL(batch->count == BATCH_SIZE || is_other ? run_batch(optim) : TG_OK);
    batch->rule = slot->moments.rule;
    const int i = batch->count++;
    batch->rounding[i] = *adam->rounding;
    batch->adam[i] = *adam;
    batch->adam[i].rounding = &batch->rounding[i];
    batch->slot[i] = slot;
    return TG_OK;
}

/* ---- one update ---- */

/* The rates of a planned round, on the backend. */
static const tg_rates *late_rates(const tg_optim *optim, const tg_slot *slot) {
    return optim->in_flight.is_planned ? optim->in_flight.rates + (slot - optim->slots) : NULL;
}

/* The numbers of an update that change from step to step. */
typedef struct terms {
    tg_rates rates;
    tg_rng rounding;
} terms;

static terms terms_of(const tg_optim *optim, const tg_slot *slot) {
    terms t = {.rates = plain_rates(optim, slot), .rounding = slot->rounding};
    t.rounding.step = t.rates.step;
    return t;
}

static tg_adam adam_of(const tg_optim *optim, const tg_slot *slot, const tg_update *call,
                       const terms *t) {
    const tg_optim_config *config = &optim->groups[slot->group];
    tg_adam adam = {.kernel = slot->moments.rule->kernel,
                    .dtype = slot->dtype,
                    .n = slot->count,
                    .split = config->complex_adam == TG_ADAM_SPLIT,
                    .grad = call->values,
                    .scale = t->rates.scale,
                    .m = slot->moments.at[0].memory,
                    .v = slot->moments.at[1].memory,
                    .form = slot->moments.form,
                    .m_scale = slot->moments.at[0].scale,
                    .v_scale = slot->moments.at[1].scale,
                    .state_nearest = config->state_rounding == TG_ROUND_NEAREST,
                    .beta1 = config->beta1,
                    .beta2 = config->beta2,
                    .eps = config->eps,
                    .alpha = t->rates.alpha,
                    .beta = t->rates.beta,
                    .grad_store = call->grad_store,
                    .weight_store = slot->weight_store,
                    .rounding = &t->rounding,
                    .rates = late_rates(optim, slot),
                    .guard = call->guard,
                    .counts = call->count == TG_COUNT_BY_RULE};
    if (slot->projector) {
        adam.direction = optim->small;
    } else {
        adam.weight = call->weight;
    }
    return adam;
}

static tg_back back_of(const tg_optim *optim, const tg_slot *slot, const tg_update *call,
                       const terms *t) {
    return (tg_back){.alpha = t->rates.alpha,
                     .beta = t->rates.beta,
                     .store = slot->weight_store,
                     .rounding = &t->rounding,
                     .rates = late_rates(optim, slot),
                     .guard = call->guard};
}

/* A dense update whose gradient nothing has to read before the rule. */
static bool is_batched(const tg_optim *optim, const tg_slot *slot, const tg_update *call) {
    return optim->batch && call->count == TG_COUNT_BY_RULE && !slot->moments.rule->step_whole;
}

tg_status tg_slot_run_rule(tg_optim *optim, tg_slot *slot, const tg_update *call) {
    const terms t = terms_of(optim, slot);
    const tg_adam adam = adam_of(optim, slot, call, &t);
    const tg_rule *rule = slot->moments.rule;
    if (is_batched(optim, slot, call)) {
        return add_to_batch(optim, slot, &adam);
    }
    TG_CALL(run_batch(optim));
    const tg_whole whole = {.config = &optim->groups[slot->group],
                            .dtype = slot->dtype,
                            .shape = slot->shape,
                            .step = slot->step,
                            .t = slot->moment_step + 1,
                            .single = slot->moments.at[2].memory,
                            .work = optim->rule_work,
                            .parts = slot->block.whole > 0 ? optim->parts_adder : (tg_adder){0}};
    const double start = read_clock(optim, optim->times_parts);
    const tg_status status = rule->step_whole ? rule->step_whole(optim->be, &whole, &adam)
                                              : optim->be->ops->update(optim->be, 1, &adam);
    optim->times.adam += read_clock(optim, optim->times_parts) - start;
    return status;
}

tg_status tg_slot_expand_update(tg_optim *optim, tg_slot *slot, const tg_update *call) {
    const double start = read_clock(optim, optim->times_parts);
    const terms t = terms_of(optim, slot);
    const tg_back back = back_of(optim, slot, call, &t);
    const tg_status status =
        tg_projector_back_by(slot->projector, optim->small, &back, call->weight);
    optim->times.update += read_clock(optim, optim->times_parts) - start;
    return status;
}

tg_status tg_slot_update(tg_optim *optim, tg_slot *slot, const tg_update *call) {
    TG_CALL(tg_slot_run_rule(optim, slot, call));
    if (is_batched(optim, slot, call)) { /* run_batch ends it */
        return TG_OK;
    }
    TG_CALL(slot->projector ? tg_slot_expand_update(optim, slot, call) : TG_OK);
    tg_update_end(optim, slot);
    return TG_OK;
}

tg_status tg_slot_project(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient, double beta,
                          uint32_t *guard, void *small) {
    const double start = read_clock(optim, optim->times_parts);
    const tg_status status =
        tg_projector_project_into(slot->projector, gradient, 1.0, beta, guard, small);
    optim->times.project += read_clock(optim, optim->times_parts) - start;
    return status;
}

tg_status tg_slot_refresh_and_project(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                                      void *small) {
    const double start = read_clock(optim, true);
    TG_CALL(tg_projector_refresh_stored(slot->projector, gradient->dense,
                                        tg_storage_of(gradient->dtype)));
    TG_CALL(tg_slot_is_refreshed(optim, slot));
    optim->times.refresh += read_clock(optim, true) - start;
    TG_CALL(tg_slot_project(optim, slot, gradient, 0.0, NULL, small));
    return note_error(optim, slot, gradient, small);
}

/* Projects, runs Adam and expands in one call. */
static tg_status update_at_once(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                                tg_update *call) {
    const terms t = terms_of(optim, slot);
    call->values = optim->small;
    const tg_adam adam = adam_of(optim, slot, call, &t);
    const tg_back back = back_of(optim, slot, call, &t);
    uint32_t *counter = call->count == TG_COUNT_BY_PROJECTION ? call->guard : NULL;
    TG_CALL(run_batch(optim));
    const double start = read_clock(optim, false);
    TG_CALL(tg_projector_step(slot->projector, gradient, counter, &adam, &back, optim->small,
                              call->weight));
    optim->times.update += read_clock(optim, false) - start;
    tg_update_end(optim, slot);
    return TG_OK;
}

/* ---- the cases ---- */

static tg_status step_dense(tg_optim *optim, tg_slot *slot, const tg_gradient *dense,
                            tg_update *call) {
    call->values = dense->dense;
    call->grad_store = tg_storage_of(dense->dtype);
    return tg_slot_update(optim, slot, call);
}

static tg_status step_projected(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                                tg_update *call) {
    if (!optim->times_parts && slot->moments.rule == &tg_rule_adam &&
        tg_projector_steps_at_once(slot->projector)) {
        return update_at_once(optim, slot, gradient, call);
    }
    uint32_t *counter = call->count == TG_COUNT_BY_PROJECTION ? call->guard : NULL;
    TG_CALL(tg_slot_project(optim, slot, gradient, 0.0, counter, optim->small));
    call->values = optim->small;
    return tg_slot_update(optim, slot, call);
}

static tg_status step_refresh(tg_optim *optim, tg_slot *slot, const tg_gradient *dense,
                              tg_update *call) {
    TG_CALL(tg_slot_refresh_and_project(optim, slot, dense, optim->small));
    call->values = optim->small;
    return tg_slot_update(optim, slot, call);
}

static tg_status step_deferred(tg_optim *optim, tg_slot *slot, void *weight) {
    const tg_update call = {.values = optim->small, .weight = weight, .guard = optim->ahead.guard};
    optim->ahead.slot = NULL;
    return tg_slot_update(optim, slot, &call);
}

tg_status tg_slot_step(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                       tg_update *call) {
    const bool refreshes = slot->projector && tg_slot_is_due(optim, slot);
    if (slot->projector && !refreshes && tg_projector_takes_factored(slot->projector)) {
        return step_projected(optim, slot, gradient, call);
    }
    tg_gradient dense;
    TG_CALL(tg_slot_form(optim, slot, gradient, &dense));
    if (!slot->projector) {
        return step_dense(optim, slot, &dense, call);
    }
    return refreshes ? step_refresh(optim, slot, &dense, call)
                     : step_projected(optim, slot, &dense, call);
}

/* ---- projecting ahead ---- */

/* Whether the first work of an update is to project this gradient, and so count NaN and Inf. */
static bool begins_by_projecting(const tg_optim *optim, const tg_slot *slot,
                                 const tg_gradient *gradient) {
    return slot->projector && gradient->dense && !tg_slot_is_due(optim, slot) &&
           !tg_guard_is_read_first(optim, slot) && !optim->shares_workspace;
}

tg_status tg_optim_project_ahead(tg_optim *optim, const tg_gradient *gradient) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, gradient);
    tg_slot *slot = NULL;
    uint32_t *guard = NULL;
    TG_CALL(tg_slot_find(optim, gradient->param, &slot));
    TG_CALL(tg_slot_check_alone(optim, slot));
    TG_CALL(tg_slot_check(optim, slot, gradient));
    if (!optim->be->ops->stream || slot->is_summing) {
        return TG_OK;
    }
    TG_CALL(tg_update_begin(optim, slot, &guard)); /* counts earlier updates */
    if (begins_by_projecting(optim, slot, gradient)) {
        TG_CALL(tg_slot_project(optim, slot, gradient, 0.0, guard, optim->small));
        optim->ahead.slot = slot;
        optim->ahead.gradient = gradient->dense;
        optim->ahead.guard = guard;
    }
    return TG_OK;
}

/* Begins an update and counts the NaN and Inf of its gradient; *is_refused: it must not be made. */
static tg_status begin_step(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                            tg_update *call, bool *is_refused) {
    const double start = read_clock(optim, optim->times_parts);
    TG_CALL(tg_update_begin(optim, slot, &call->guard));
    const bool refreshes = slot->projector && tg_slot_is_due(optim, slot);
    if (refreshes || tg_guard_is_read_first(optim, slot)) {
        int64_t nonfinite = 0;
        TG_CALL(tg_slot_judge(optim, slot, gradient, refreshes, &nonfinite));
        *is_refused = nonfinite > 0;
        if (*is_refused) {
            return tg_slot_refused(optim, slot, nonfinite);
        }
        call->guard = NULL;
    } else if (!slot->projector && gradient->dense) {
        call->count = TG_COUNT_BY_RULE;
    } else if (slot->projector &&
               (gradient->dense || tg_projector_takes_factored(slot->projector))) {
        call->count = TG_COUNT_BY_PROJECTION;
    } else {
        TG_CALL(tg_slot_count(optim, slot, gradient, call->guard));
    }
    optim->times.check += read_clock(optim, optim->times_parts) - start;
    return TG_OK;
}

/* The weight is checked. */
static tg_status step(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient, void *weight) {
    TG_CALL(tg_slot_check_alone(optim, slot));
    TG_CALL(tg_slot_check(optim, slot, gradient));
    if (optim->ahead.slot == slot && optim->ahead.gradient == gradient->dense &&
        begins_by_projecting(optim, slot, gradient)) {
        return step_deferred(optim, slot, weight);
    }
    tg_update call = {.weight = weight};
    bool is_refused = false;
    TG_CALL(begin_step(optim, slot, gradient, &call, &is_refused));
    return is_refused ? TG_OK : tg_slot_step(optim, slot, gradient, &call);
}

tg_status tg_optim_step_gradient(tg_optim *optim, const tg_gradient *gradient,
                                 const tg_tensor *weight) {
    tg_slot *slot = NULL;
    TG_CALL(tg_slot_find(optim, gradient->param, &slot));
    TG_CALL(tg_slot_check_weight(optim, slot, weight));
    return step(optim, slot, gradient, weight->data);
}

tg_status tg_optim_step(tg_optim *optim, int param, const tg_tensor *gradient,
                        const tg_tensor *weight) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, gradient, weight);
    const tg_gradient dense = {.param = param,
                               .dtype = gradient->dtype,
                               .shape = gradient->shape,
                               .dense = gradient->data,
                               .place = gradient->place};
    return tg_optim_step_gradient(optim, &dense, weight);
}

/* ---- sinks that update ---- */

tg_status tg_optim_bind(tg_optim *optim, int param, const tg_tensor *weight) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, weight);
    tg_slot *slot = NULL;
    TG_CALL(tg_slot_find(optim, param, &slot));
    TG_CALL(tg_slot_check_weight(optim, slot, weight));
    slot->weight = weight->data;
    return TG_OK;
}

tg_status tg_slot_get_weight(tg_optim *optim, const tg_slot *slot, void **weight) {
    *weight = slot->weight;
    return *weight ? TG_OK
                   : tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: no weight is bound for %s",
                             slot->name);
}

static tg_status receive_and_update(void *user, const tg_gradient *gradient) {
    tg_optim *optim = user;
    tg_slot *slot = NULL;
    void *weight = NULL;
    TG_CALL(tg_slot_find(optim, gradient->param, &slot));
    TG_CALL(tg_slot_get_weight(optim, slot, &weight));
    return step(optim, slot, gradient, weight);
}

static tg_status end_batch(tg_optim *optim, tg_status status) {
    const tg_status last = run_batch(optim);
    optim->batch = NULL;
    return status == TG_OK ? last : status;
}

static tg_status receive_and_update_all(void *user, int count, const tg_gradient *gradients) {
    tg_optim *optim = user;
    tg_update_batch batch = {0};
    tg_status status = TG_OK;
    optim->batch = &batch;
    for (int i = 0; i < count && status == TG_OK; i++) {
        status = receive_and_update(user, &gradients[i]);
    }
    return end_batch(optim, status);
}

tg_status tg_bucket_update(tg_optim *optim) {
    tg_update_batch batch = {0};
    tg_status status = TG_OK;
    optim->batch = &batch;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        tg_update call = {.values = slot->sum, .count = TG_COUNT_BY_RULE};
        if (slot->is_bucketed) {
            TG_TRY(tg_update_begin(optim, slot, &call.guard));
            TG_TRY(tg_slot_get_weight(optim, slot, &call.weight));
            TG_TRY(tg_slot_update(optim, slot, &call));
            tg_sum_end(optim, slot);
        }
    }
fail:
    return end_batch(optim, status);
}

tg_grad_sink tg_optim_sink(tg_optim *optim) {
    return (tg_grad_sink){
        .receive = receive_and_update, .user = optim, .receive_all = receive_and_update_all};
}
