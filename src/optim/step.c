/* One update: check, refresh when due, project, Adam on the compressed values, and back into the
 * weight in one pass, with the decay in it:  w <- (1 - lr wd) (w - lr c u),  c = sqrt(1 - b2^t) /
 * (1 - b1^t). Nothing is allocated, except the dense sum of an accumulated step that refreshes. */
#include <math.h>

#include "base/timer.h"
#include "optim/optim.h"

static tg_status find_slot(tg_optim *optim, int param, tg_slot **out) {
    if (param < 0 || param >= optim->slot_count) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: parameter %d of %d", param,
                       optim->slot_count);
    }
    *out = &optim->slots[param];
    return TG_OK;
}

static tg_status check_gradient(tg_optim *optim, const tg_slot *slot, const tg_gradient *gradient) {
    char expected[128], found[128];
    if (tg_dtype_wide(gradient->dtype) != slot->dtype ||
        !tg_shape_equal(&gradient->shape, &slot->shape)) {
        return tg_fail(
            optim->ctx, TG_E_SHAPE, "gradient of %s: expected %s %s, found %s %s", slot->name,
            tg_dtype_name(slot->dtype), tg_shape_text(&slot->shape, expected, sizeof expected),
            tg_dtype_name(gradient->dtype), tg_shape_text(&gradient->shape, found, sizeof found));
    }
    const bool is_factored = gradient->x && gradient->dy && gradient->batch >= 0;
    if (!gradient->dense && !is_factored) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT, "gradient of %s: neither dense nor factored",
                       slot->name);
    }
    if (optim->borrows && ((slot->projector && !optim->workspace.memory) ||
                           (!gradient->dense && !optim->dense && optim->loan.dense_bytes > 0))) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT,
                       "gradient of %s: the optimizer borrows its memory and was lent none: "
                       "tg_optim_lend first",
                       slot->name);
    }
    if (!gradient->dense && (!optim->dense || slot->shape.ndim < 3)) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT,
                       "gradient of %s: factored, but the optimizer was not made for factored "
                       "gradients of this parameter",
                       slot->name);
    }
    if (!gradient->dense && optim->forms_bf16 && tg_storage_of(gradient->dtype) != TG_STORE_BF16) {
        return tg_fail(optim->ctx, TG_E_DTYPE,
                       "gradient of %s: factors in %s, but the optimizer was made for bf16",
                       slot->name, tg_dtype_name(gradient->dtype));
    }
    return TG_OK;
}

/* Seconds on the clock; where work is queued, after all of it, if the parts are to be timed. A
 * device that fails here says so again at the next call. */
static double read_clock(const tg_optim *optim, bool waits) {
    if (optim->be->ops->queue && waits) {
        (void)optim->be->ops->synchronize(optim->be);
    }
    return tg_seconds();
}

/* Shape of a gradient in the backend's terms. */
static tg_multimode plain_modes(const tg_slot *slot) {
    tg_multimode modes = {.dtype = slot->dtype, .ndim = slot->shape.ndim};
    for (int d = 0; d < modes.ndim; d++) {
        modes.dim[d] = modes.rank[d] = slot->shape.dim[d];
    }
    return modes;
}

/* The gradient as a dense one, formed in the optimizer's own memory if it came factored: as wide as
 * the arithmetic, or as its factors where only that was asked for. */
static tg_status make_dense(tg_optim *optim, const tg_slot *slot, const tg_gradient *gradient,
                            tg_gradient *out) {
    *out = *gradient;
    if (gradient->dense) {
        return TG_OK;
    }
    tg_multimode modes = plain_modes(slot);
    tg_grad_source source = tg_gradient_source(gradient);
    if (optim->forms_bf16) {
        modes.dtype = gradient->dtype;
        source.store = TG_STORE_FULL;
    }
    out->dtype = modes.dtype;
    out->dense = optim->dense;
    out->x = out->dy = NULL;
    return optim->be->ops->grad_dense(optim->be, &modes, &source, 1.0, optim->dense);
}

/* Adds the NaN and Inf of what was handed over, the entries or the factors, to a guard. */
static tg_status count_nonfinite(tg_optim *optim, const tg_slot *slot, const tg_gradient *gradient,
                                 uint32_t *guard) {
    const tg_backend_ops *ops = optim->be->ops;
    if (gradient->dense) {
        return ops->count_nonfinite(optim->be, gradient->dtype, slot->numel, gradient->dense,
                                    guard);
    }
    const int64_t frequencies = slot->numel / slot->shape.dim[0] / slot->shape.dim[1];
    const void *const factors[2] = {gradient->x, gradient->dy};
    tg_status status = TG_OK;
    for (int i = 0; i < 2 && status == TG_OK; i++) {
        const int64_t n = gradient->batch * slot->shape.dim[i] * frequencies;
        status = ops->count_nonfinite(optim->be, gradient->dtype, n, factors[i], guard);
    }
    return status;
}

bool tg_slot_is_due(const tg_optim *optim, const tg_slot *slot) {
    return slot->last_refresh < 0 || (slot->ranked && slot->ranked->is_due) ||
           slot->step - slot->last_refresh >=
               tg_refresh_gap(&optim->groups[slot->group], slot->step);
}

static tg_status refresh(tg_optim *optim, tg_slot *slot, const tg_gradient *dense) {
    const double start = read_clock(optim, true);
    const bool had_moments = slot->last_refresh >= 0;
    tg_status status =
        tg_projector_refresh_stored(slot->projector, dense->dense, tg_storage_of(dense->dtype));
    if (status == TG_OK) {
        slot->last_refresh = slot->step;
        if (slot->ranked) {
            slot->ranked->is_due = false;
        }
        if (had_moments && optim->groups[slot->group].moments_on_refresh == TG_MOMENTS_RESET) {
            slot->moment_step = 0;
            status = tg_moments_clear(optim->be, &slot->moments);
        }
    }
    optim->times.refresh += read_clock(optim, true) - start;
    return status;
}

/* What the new projection loses of the gradient it was chosen from: the branches of a projection
 * take parts that are orthogonal to each other and to the rest. */
static tg_status note_error(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                            const void *small) {
    tg_norms whole, kept;
    tg_status status = TG_OK;
    TG_TRY(optim->be->ops->norms(optim->be, gradient->dtype, slot->numel, gradient->dense, &whole));
    TG_TRY(optim->be->ops->norms(optim->be, slot->dtype, slot->count, small, &kept));
    const double lost = whole.sum_squares - kept.sum_squares;
    slot->error = lost > 0.0 ? sqrt(lost / whole.sum_squares) : 0.0;
    if (slot->projector->config.scheme == TG_SCHEME_SUM) { /* what neither of them carries */
        slot->error = slot->ranked ? sqrt(slot->projector->rest) : (double)NAN;
    }
fail:
    return status;
}

/* w <- beta w + alpha u; of a projected parameter, u back from the compressed values. */
static tg_rates plain_rates(const tg_optim *optim, const tg_slot *slot) {
    const tg_optim_config *config = &optim->groups[slot->group];
    const double t = (double)(slot->moment_step + 1);
    const double correction = sqrt(1.0 - pow(config->beta2, t)) / (1.0 - pow(config->beta1, t));
    const double keep = 1.0 - config->learning_rate * config->weight_decay;
    return (tg_rates){.alpha = -keep * config->learning_rate * correction,
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

/* An update on its way. */
typedef struct update_call {
    const void *values;    /* dense gradient or compressed values */
    tg_storage grad_store; /* of a dense gradient */
    void *weight;
    uint32_t *guard;  /* NULL: it was read and is 0 */
    bool adam_counts; /* nothing has counted into the guard yet */
} update_call;

/* ---- updates that are made together ---- */

enum { BATCH = 16 };

struct tg_adam_batch {
    int count;
    tg_adam adam[BATCH];
    tg_rng rounding[BATCH];
    tg_slot *slot[BATCH];
};

static tg_status run_batch(tg_optim *optim) {
    tg_adam_batch *batch = optim->batch;
    if (!batch || batch->count == 0) {
        return TG_OK;
    }
    const double start = read_clock(optim, optim->times_parts);
    const tg_status status = optim->be->ops->adam_many(optim->be, batch->count, batch->adam);
    optim->times.adam += read_clock(optim, optim->times_parts) - start;
    for (int i = 0; i < batch->count && status == TG_OK; i++) {
        tg_pending_end(optim, batch->slot[i]);
    }
    batch->count = 0;
    return status;
}

static tg_status add_to_batch(tg_optim *optim, tg_slot *slot, const tg_adam *adam) {
    tg_adam_batch *batch = optim->batch;
    const tg_status status = batch->count == BATCH ? run_batch(optim) : TG_OK;
    if (status != TG_OK) {
        return status;
    }
    const int i = batch->count++;
    batch->rounding[i] = *adam->rounding;
    batch->adam[i] = *adam;
    batch->adam[i].rounding = &batch->rounding[i];
    batch->slot[i] = slot;
    return TG_OK;
}

/* ---- one update ---- */

/* Adam on the values, then the weight. */
static tg_status update(tg_optim *optim, tg_slot *slot, const update_call *call) {
    const tg_optim_config *config = &optim->groups[slot->group];
    const tg_rates rates = plain_rates(optim, slot);
    const tg_rates *late =
        optim->pending.is_planned ? optim->pending.rates + (slot - optim->slots) : NULL;
    tg_rng rounding = slot->rounding;
    rounding.step = rates.step;
    tg_adam adam = {.dtype = slot->dtype,
                    .n = slot->count,
                    .split = config->complex_adam == TG_ADAM_SPLIT,
                    .grad = call->values,
                    .scale = rates.scale,
                    .m = slot->moments.m,
                    .v = slot->moments.v,
                    .form = slot->moments.form,
                    .m_scale = slot->moments.m_scale,
                    .v_scale = slot->moments.v_scale,
                    .beta1 = config->beta1,
                    .beta2 = config->beta2,
                    .eps = config->eps,
                    .alpha = rates.alpha,
                    .beta = rates.beta,
                    .grad_store = call->grad_store,
                    .weight_store = slot->weight_store,
                    .rounding = &rounding,
                    .rates = late,
                    .guard = call->guard,
                    .counts = call->adam_counts};
    if (slot->projector) {
        adam.direction = optim->small;
    } else {
        adam.weight = call->weight;
    }
    if (optim->batch && call->adam_counts) { /* nobody waits for it */
        return add_to_batch(optim, slot, &adam);
    }
    tg_status status = run_batch(optim);
    if (status != TG_OK) {
        return status;
    }
    const double start = read_clock(optim, optim->times_parts);
    status = optim->be->ops->adam(optim->be, &adam);
    const double middle = read_clock(optim, optim->times_parts);
    optim->times.adam += middle - start;
    if (status == TG_OK && slot->projector) {
        const tg_back back = {.alpha = rates.alpha,
                              .beta = rates.beta,
                              .store = slot->weight_store,
                              .rounding = &rounding,
                              .rates = late,
                              .guard = call->guard};
        status = tg_projector_back_by(slot->projector, optim->small, &back, call->weight);
        optim->times.update += read_clock(optim, optim->times_parts) - middle;
    }
    if (status == TG_OK) {
        tg_pending_end(optim, slot);
    }
    return status;
}

static tg_status project(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient, double beta,
                         void *small) {
    const double start = read_clock(optim, optim->times_parts);
    tg_status status = tg_projector_project(slot->projector, gradient, 1.0, beta, small);
    optim->times.project += read_clock(optim, optim->times_parts) - start;
    return status;
}

/* A projected parameter; the gradient is dense where a refresh or a spectrum needs it. */
static tg_status project_and_update(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                                    bool refreshes, bool measures, update_call *call) {
    tg_status status = TG_OK;
    if (refreshes) {
        TG_TRY(refresh(optim, slot, gradient));
    }
    if (measures) { /* before there are values: it works in their memory, too */
        TG_TRY(tg_ranks_measure(optim, slot, gradient));
    }
    TG_TRY(project(optim, slot, gradient, 0.0, optim->small));
    if (refreshes) {
        TG_TRY(note_error(optim, slot, gradient, optim->small));
    }
    call->values = optim->small;
    TG_TRY(update(optim, slot, call));
fail:
    return status;
}

tg_status tg_optim_step_gradient(tg_optim *optim, const tg_gradient *gradient, void *weight) {
    tg_status status = TG_OK;
    tg_slot *slot = NULL;
    TG_TRY(find_slot(optim, gradient->param, &slot));
    TG_TRY(check_gradient(optim, slot, gradient));
    const double start = read_clock(optim, optim->times_parts);
    update_call call = {.weight = weight};
    TG_TRY(tg_pending_begin(optim, slot, &call.guard));
    TG_TRY(tg_ranks_choose_if_ready(optim, slot));
    const bool is_due = slot->projector && tg_slot_is_due(optim, slot);
    const bool measures = tg_ranks_wants_spectrum(optim, slot, is_due);
    const bool looks = is_due || measures || tg_pending_looks(optim, slot);
    call.adam_counts = !looks && !slot->projector && gradient->dense;
    if (!call.adam_counts) {
        TG_TRY(count_nonfinite(optim, slot, gradient, call.guard));
    }
    if (looks) {
        int64_t nonfinite = 0;
        TG_TRY(tg_pending_look(optim, slot, &nonfinite));
        if (nonfinite > 0) {
            return tg_slot_refused(optim, slot, nonfinite);
        }
        call.guard = NULL;
    }
    optim->times.check += read_clock(optim, optim->times_parts) - start;
    tg_gradient ready = *gradient;
    if (!slot->projector || is_due || measures || !tg_projector_takes_factored(slot->projector)) {
        TG_TRY(make_dense(optim, slot, gradient, &ready));
    }
    if (!slot->projector) {
        call.values = ready.dense;
        call.grad_store = tg_storage_of(ready.dtype);
        return update(optim, slot, &call);
    }
    TG_TRY(project_and_update(optim, slot, &ready, is_due, measures, &call));
fail:
    return status;
}

tg_status tg_optim_step(tg_optim *optim, int param, const void *grad, void *weight) {
    tg_slot *slot = NULL;
    tg_status status = find_slot(optim, param, &slot);
    if (status != TG_OK) {
        return status;
    }
    const tg_gradient gradient = {
        .param = param, .dtype = slot->dtype, .shape = slot->shape, .dense = grad};
    return tg_optim_step_gradient(optim, &gradient, weight);
}

/* ---- accumulation ---- */

/* sum = gradient, or sum += gradient. */
static tg_status add_dense(tg_optim *optim, const tg_slot *slot, bool is_first,
                           const tg_gradient *gradient, void *sum) {
    tg_gradient ready;
    tg_status status = make_dense(optim, slot, gradient, &ready);
    if (status != TG_OK) {
        return status;
    }
    if (ready.dtype != slot->dtype) {
        return tg_fail(optim->ctx, TG_E_DTYPE, "gradient of %s: %s is needed for sums, found %s",
                       slot->name, tg_dtype_name(slot->dtype), tg_dtype_name(ready.dtype));
    }
    if (is_first) {
        return optim->be->ops->copy(optim->be, sum, ready.dense,
                                    (size_t)slot->numel * tg_dtype_size(slot->dtype));
    }
    return optim->be->ops->axpy(optim->be, slot->dtype, slot->numel, (tg_scalar){1.0, 0.0},
                                ready.dense, sum);
}

/* The whole gradient is needed at the end of this sum. */
static bool needs_dense_sum(const tg_optim *optim, const tg_slot *slot) {
    const bool is_due = tg_slot_is_due(optim, slot);
    return is_due || tg_ranks_wants_spectrum(optim, slot, is_due);
}

tg_status tg_optim_accumulate(tg_optim *optim, const tg_gradient *gradient) {
    tg_status status = TG_OK;
    tg_slot *slot = NULL;
    TG_TRY(find_slot(optim, gradient->param, &slot));
    TG_TRY(check_gradient(optim, slot, gradient));
    if (!optim->accumulates) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT,
                       "optimizer: it was not made to accumulate gradients");
    }
    uint32_t *guard = NULL;
    TG_TRY(tg_pending_begin(optim, slot, &guard));
    TG_TRY(count_nonfinite(optim, slot, gradient, guard));
    if (!optim->be->ops->queue) {
        int64_t nonfinite = 0;
        TG_TRY(tg_pending_look(optim, slot, &nonfinite));
        slot->nonfinite += nonfinite;
    }
    const bool is_first = !slot->is_summing;
    if (is_first) {
        TG_TRY(tg_ranks_choose_if_ready(optim, slot));
    }
    if (is_first && slot->projector && needs_dense_sum(optim, slot)) {
        slot->dense_sum = optim->be->ops->alloc(optim->be, TG_MEM_GRADIENTS,
                                                (size_t)slot->numel * tg_dtype_size(slot->dtype));
        TG_TRY(slot->dense_sum ? TG_OK : TG_E_MEMORY);
    }
    if (slot->dense_sum) {
        TG_TRY(add_dense(optim, slot, is_first, gradient, slot->dense_sum));
    } else if (!slot->projector) {
        TG_TRY(add_dense(optim, slot, is_first, gradient, slot->sum));
    } else {
        tg_gradient ready = *gradient;
        if (!tg_projector_takes_factored(slot->projector)) {
            TG_TRY(make_dense(optim, slot, gradient, &ready));
        }
        TG_TRY(project(optim, slot, &ready, is_first ? 0.0 : 1.0, slot->sum));
    }
    slot->is_summing = true;
fail:
    return status;
}

static void end_sum(tg_optim *optim, tg_slot *slot) {
    optim->be->ops->release(optim->be, slot->dense_sum);
    slot->dense_sum = NULL;
    slot->is_summing = false;
    slot->nonfinite = 0;
}

/* Whether the sum may be used: what is known on the host decides, or the guard when the update is
 * made. A step that refreshes needs to know. */
static tg_status look_at_sum(tg_optim *optim, tg_slot *slot, update_call *call) {
    tg_status status = TG_OK;
    TG_TRY(tg_pending_begin(optim, slot, &call->guard));
    if (optim->be->ops->queue &&
        (slot->dense_sum || slot->nonfinite > 0 || tg_pending_looks(optim, slot))) {
        int64_t nonfinite = 0;
        TG_TRY(tg_pending_look(optim, slot, &nonfinite));
        slot->nonfinite += nonfinite;
        call->guard = NULL;
    }
    if (!optim->be->ops->queue) {
        call->guard = NULL;
    }
fail:
    return status;
}

tg_status tg_optim_apply(tg_optim *optim, int param, void *weight) {
    tg_status status = TG_OK;
    tg_slot *slot = NULL;
    update_call call = {.weight = weight};
    TG_TRY(find_slot(optim, param, &slot));
    if (!slot->is_summing) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: nothing is accumulated for %s",
                       slot->name);
    }
    TG_TRY(look_at_sum(optim, slot, &call));
    if (slot->nonfinite > 0) {
        status = tg_slot_refused(optim, slot, slot->nonfinite);
    } else if (slot->dense_sum) {
        const tg_gradient whole = {
            .param = param, .dtype = slot->dtype, .shape = slot->shape, .dense = slot->dense_sum};
        const bool is_due = tg_slot_is_due(optim, slot);
        const bool measures = tg_ranks_wants_spectrum(optim, slot, is_due);
        status = project_and_update(optim, slot, &whole, is_due, measures, &call);
    } else {
        call.values = slot->sum;
        status = update(optim, slot, &call);
    }
    end_sum(optim, slot);
fail:
    return status;
}

/* ---- sinks and clipping ---- */

tg_status tg_optim_bind(tg_optim *optim, int param, void *weight) {
    tg_slot *slot = NULL;
    tg_status status = find_slot(optim, param, &slot);
    if (status == TG_OK) {
        slot->weight = weight;
    }
    return status;
}

static tg_status receive_and_update(void *user, const tg_gradient *gradient) {
    tg_optim *optim = user;
    tg_slot *slot = NULL;
    tg_status status = find_slot(optim, gradient->param, &slot);
    if (status == TG_OK && !slot->weight) {
        status =
            tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: no weight is bound for %s", slot->name);
    }
    return status == TG_OK ? tg_optim_step_gradient(optim, gradient, slot->weight) : status;
}

static tg_status receive_and_update_all(void *user, int count, const tg_gradient *gradients) {
    tg_optim *optim = user;
    tg_adam_batch batch = {0};
    tg_status status = TG_OK;
    optim->batch = &batch;
    for (int i = 0; i < count && status == TG_OK; i++) {
        status = receive_and_update(user, &gradients[i]);
    }
    const tg_status last = run_batch(optim);
    optim->batch = NULL;
    return status == TG_OK ? last : status;
}

static tg_status receive_and_accumulate(void *user, const tg_gradient *gradient) {
    return tg_optim_accumulate(user, gradient);
}

/* Adds the squares; NaN and Inf are left out here and met again when the gradient is used. */
static tg_status receive_norm(void *user, const tg_gradient *gradient) {
    tg_optim *optim = user;
    tg_slot *slot = NULL;
    tg_gradient ready;
    tg_norms norms;
    tg_status status = TG_OK;
    TG_TRY(find_slot(optim, gradient->param, &slot));
    TG_TRY(check_gradient(optim, slot, gradient));
    TG_TRY(make_dense(optim, slot, gradient, &ready));
    TG_TRY(optim->be->ops->norms(optim->be, ready.dtype, slot->numel, ready.dense, &norms));
    optim->norm_squares += norms.sum_squares;
fail:
    return status;
}

tg_grad_sink tg_optim_sink(tg_optim *optim) {
    return (tg_grad_sink){
        .receive = receive_and_update, .user = optim, .receive_all = receive_and_update_all};
}

tg_grad_sink tg_optim_accumulate_sink(tg_optim *optim) {
    return (tg_grad_sink){.receive = receive_and_accumulate, .user = optim};
}

tg_grad_sink tg_optim_norm_sink(tg_optim *optim) {
    return (tg_grad_sink){.receive = receive_norm, .user = optim};
}

void tg_optim_clip_begin(tg_optim *optim) {
    optim->norm_squares = 0.0;
    optim->grad_scale = 1.0;
}

tg_status tg_optim_clip(tg_optim *optim, double max_norm, double *norm) {
    if (!(max_norm > 0.0)) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: the norm to clip to is %g, not > 0",
                       max_norm);
    }
    *norm = sqrt(optim->norm_squares) / optim->loss_scale.used;
    optim->grad_scale = *norm > max_norm ? max_norm / *norm : 1.0;
    return TG_OK;
}

tg_status tg_optim_clip_accumulated(tg_optim *optim, double max_norm, double *norm) {
    tg_status status = TG_OK;
    tg_optim_clip_begin(optim);
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (!slot->is_summing) {
            continue;
        }
        tg_norms norms;
        TG_TRY(optim->be->ops->norms(optim->be, slot->dtype,
                                     slot->dense_sum ? slot->numel : slot->count,
                                     slot->dense_sum ? slot->dense_sum : slot->sum, &norms));
        optim->norm_squares += norms.sum_squares;
    }
    TG_TRY(tg_optim_clip(optim, max_norm, norm));
fail:
    return status;
}
