/* Sums of gradients, in compressed space except on a step that refreshes, which allocates a dense
 * sum for its duration; and norms of gradients, for clipping. */
#include <math.h>

#include "backend/tensor.h"
#include "optim/ranks.h"
#include "optim/step.h"

/* sum = gradient, or sum += gradient. */
static tg_status add_dense(tg_optim *optim, const tg_slot *slot, bool is_first,
                           const tg_gradient *gradient, void *sum) {
    tg_gradient ready;
    TG_CALL(tg_slot_form(optim, slot, gradient, &ready));
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

tg_status tg_sum_begin(tg_optim *optim, tg_slot *slot) {
    if (slot->projector && tg_slot_is_due(optim, slot)) {
        TG_CALL(TG_BACKEND_ALLOC(optim->be, TG_MEM_GRADIENTS, slot->dense_sum,
                                 (size_t)slot->numel * tg_dtype_size(slot->dtype)));
    }
    return TG_OK;
}

/* The sum of a gradient, and its guard. */
static tg_status find_sum(tg_optim *optim, const tg_gradient *gradient, tg_slot **slot,
                          uint32_t **guard) {
    TG_CALL(tg_slot_find(optim, gradient->param, slot));
    TG_CALL(tg_slot_check(optim, *slot, gradient));
    if (!optim->accumulates) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT,
                       "optimizer: it was not made to accumulate gradients");
    }
    return tg_update_begin(optim, *slot, guard);
}

static tg_status count_gradient(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient,
                                uint32_t *guard) {
    if (optim->be->ops->stream) {
        return tg_slot_count(optim, slot, gradient, guard);
    }
    int64_t nonfinite = 0;
    TG_CALL(tg_slot_judge(optim, slot, gradient, slot->projector != NULL, &nonfinite));
    slot->nonfinite += nonfinite;
    return TG_OK;
}

static tg_status add(tg_optim *optim, tg_slot *slot, const tg_gradient *gradient) {
    const bool is_first = !slot->is_summing;
    TG_CALL(is_first ? tg_sum_begin(optim, slot) : TG_OK);
    if (slot->dense_sum || !slot->projector) {
        TG_CALL(add_dense(optim, slot, is_first, gradient,
                          slot->dense_sum ? slot->dense_sum : slot->sum));
    } else {
        tg_gradient ready = *gradient;
        if (!tg_projector_takes_factored(slot->projector)) {
            TG_CALL(tg_slot_form(optim, slot, gradient, &ready));
        }
        TG_CALL(tg_slot_project(optim, slot, &ready, is_first ? 0.0 : 1.0, NULL, slot->sum));
    }
    slot->is_summing = true;
    return TG_OK;
}

tg_status tg_optim_accumulate(tg_optim *optim, const tg_gradient *gradient) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, gradient);
    tg_slot *slot = NULL;
    uint32_t *guard = NULL;
    TG_CALL(find_sum(optim, gradient, &slot, &guard));
    TG_CALL(count_gradient(optim, slot, gradient, guard));
    return add(optim, slot, gradient);
}

/* A pending copy. */
typedef struct span {
    const char *from;
    char *to;
    size_t bytes;
} span;

static tg_status copy_span(tg_optim *optim, span *s) {
    const tg_status status =
        s->bytes > 0 ? optim->be->ops->copy(optim->be, s->to, s->from, s->bytes) : TG_OK;
    *s = (span){0};
    return status;
}

tg_status tg_sum_add_all(tg_optim *optim, int count, const tg_gradient *gradients) {
    span s = {0};
    for (int i = 0; i < count; i++) {
        const tg_gradient *gradient = &gradients[i];
        tg_slot *slot = NULL;
        uint32_t *guard = NULL;
        TG_CALL(find_sum(optim, gradient, &slot, &guard));
        slot->is_handed_out = true;
        if (!slot->is_bucketed || slot->is_summing || !gradient->dense ||
            gradient->dtype != slot->dtype) {
            TG_CALL(add(optim, slot, gradient));
            continue;
        }
        if (s.from + s.bytes != (const char *)gradient->dense || s.to + s.bytes != slot->sum) {
            TG_CALL(copy_span(optim, &s));
            s = (span){gradient->dense, slot->sum, 0};
        }
        s.bytes += (size_t)slot->numel * tg_dtype_size(slot->dtype);
        slot->is_summing = true;
    }
    return copy_span(optim, &s);
}

void tg_sum_release_dense(tg_optim *optim, tg_slot *slot) {
    optim->be->ops->release(optim->be, slot->dense_sum);
    optim->be->ops->release(optim->be, slot->whole_sum);
    slot->dense_sum = slot->whole_sum = NULL;
}

void tg_sum_end(tg_optim *optim, tg_slot *slot) {
    tg_sum_release_dense(optim, slot);
    slot->is_summing = slot->is_handed_out = false;
    slot->nonfinite = 0;
}

tg_status tg_optim_discard(tg_optim *optim) {
    TG_NEED(NULL, optim);
    TG_CALL(tg_optim_synchronize(optim)); /* also resets the guards' counts of them */
    for (int i = 0; i < optim->slot_count; i++) {
        tg_sum_end(optim, &optim->slots[i]);
    }
    return TG_OK;
}

/* ---- the bucket ---- */

void tg_bucket_plan(tg_optim *optim) {
    for (int i = 0; i < optim->slot_count && optim->accumulates; i++) {
        tg_slot *slot = &optim->slots[i];
        const size_t bytes = (size_t)slot->numel * tg_dtype_size(slot->dtype);
        slot->is_bucketed = !slot->projector && !tg_slot_is_dense_block(slot) &&
                            bytes <= TG_SMALL_PARAM &&
                            tg_dtype_real(slot->dtype) == tg_dtype_real(optim->slots[0].dtype);
    }
}

tg_status tg_bucket_allocate(tg_optim *optim) {
    const tg_backend_ops *ops = optim->be->ops;
    int64_t reals = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        const int64_t parts = tg_dtype_is_complex(slot->dtype) ? 2 : 1;
        reals += slot->is_bucketed ? parts * slot->numel : 0;
    }
    if (reals == 0) {
        return TG_OK;
    }
    const tg_dtype real = tg_dtype_real(optim->slots[0].dtype);
    const tg_shape shape = {1, {reals}};
    char *at = NULL;
    TG_CALL(TG_BACKEND_ALLOC(optim->be, TG_MEM_GRADIENTS, at, (size_t)reals * tg_dtype_size(real)));
    optim->bucket = tg_backend_view(optim->be, real, &shape, at);
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (slot->is_bucketed) {
            slot->sum = at;
            at += (size_t)slot->numel * tg_dtype_size(slot->dtype);
        }
    }
    return ops->fill(optim->be, real, reals, (tg_scalar){0}, optim->bucket.data);
}

/* ---- sums as tensors ---- */

int tg_optim_sum_count(const tg_optim *optim, int param) {
    if (!optim || param < 0 || param >= optim->slot_count || !optim->slots[param].is_summing) {
        return 0;
    }
    const tg_slot *slot = &optim->slots[param];
    return slot->projector && !slot->dense_sum ? slot->projector->branches : 1;
}

tg_status tg_optim_get_sum(tg_optim *optim, int param, int index, tg_optim_sum *out) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, out);
    *out = (tg_optim_sum){0};
    tg_slot *slot = NULL;
    TG_CALL(tg_slot_find(optim, param, &slot));
    if (index < 0 || index >= tg_optim_sum_count(optim, param)) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: sum %d of %d of %s%s", index,
                       tg_optim_sum_count(optim, param), slot->name,
                       slot->is_summing ? "" : ": nothing is accumulated");
    }
    slot->is_handed_out = true;
    if (!slot->projector || slot->dense_sum) {
        *out =
            (tg_optim_sum){"dense", tg_backend_view(optim->be, slot->dtype, &slot->shape,
                                                    slot->dense_sum ? slot->dense_sum : slot->sum)};
        return TG_OK;
    }
    const tg_projector *p = slot->projector;
    const tg_branch *branch = &p->branch[index];
    const size_t before = index == 1 ? (size_t)p->branch[0].count : 0;
    const tg_shape kept = {1, {branch->count}};
    const tg_shape shape =
        branch->kind->is_sparse ? kept : tg_shape_of(branch->modes.ndim, branch->modes.rank);
    *out = (tg_optim_sum){branch->kind->is_sparse ? "values" : "core",
                          tg_backend_view(optim->be, slot->dtype, &shape,
                                          (char *)slot->sum + before * tg_dtype_size(slot->dtype))};
    return TG_OK;
}

/* The present sum as one array. */
static tg_tensor view_sum(const tg_optim *optim, const tg_slot *slot) {
    const int64_t count = slot->whole_sum   ? slot->projector->numel
                          : slot->dense_sum ? slot->numel
                                            : slot->count;
    void *const sum = slot->whole_sum   ? slot->whole_sum
                      : slot->dense_sum ? slot->dense_sum
                                        : slot->sum;
    return tg_backend_view(optim->be, slot->dtype, &(tg_shape){1, {count}}, sum);
}

tg_tensor tg_sum_get(tg_optim *optim, int param) {
    optim->slots[param].is_handed_out = true;
    return view_sum(optim, &optim->slots[param]);
}

/* Counts NaN and Inf of a sum that the caller may have written into the guard and, on the host,
 * slot->nonfinite: its present values decide, not the gradients added up. */
static tg_status count_sum(tg_optim *optim, tg_slot *slot, uint32_t *guard) {
    const tg_tensor sum = view_sum(optim, slot);
    const int64_t n = tg_tensor_numel(&sum);
    slot->nonfinite = 0;
    TG_CALL(optim->be->ops->fill(optim->be, TG_F32, 1, (tg_scalar){0}, guard));
    if (optim->be->ops->stream) {
        return optim->be->ops->count_nonfinite(optim->be, slot->dtype, n, sum.data, guard);
    }
    TG_CALL(tg_values_judge(optim, slot->dtype, true, n, sum.data, &slot->nonfinite));
    *guard = (uint32_t)(slot->nonfinite < TG_TOO_LARGE ? slot->nonfinite : TG_TOO_LARGE);
    return TG_OK;
}

tg_status tg_sum_read_count(tg_optim *optim, tg_slot *slot, int64_t *nonfinite) {
    uint32_t *guard = NULL;
    TG_CALL(tg_update_begin(optim, slot, &guard));
    TG_CALL(count_sum(optim, slot, guard));
    return tg_guard_read(optim, slot, nonfinite);
}

tg_status tg_sum_norms(tg_optim *optim, const tg_slot *slot, tg_norms *out) {
    const tg_tensor sum = view_sum(optim, slot);
    return optim->be->ops->norms(optim->be, slot->dtype, tg_tensor_numel(&sum), sum.data, out);
}

/* ---- the end of a sum ---- */

/* Counts NaN and Inf of the sum: now for a refresh, or by the guard at the update. */
static tg_status look_at_sum(tg_optim *optim, tg_slot *slot, tg_update *call) {
    TG_CALL(tg_update_begin(optim, slot, &call->guard));
    if (slot->is_handed_out) {
        TG_CALL(count_sum(optim, slot, call->guard));
    }
    if (optim->be->ops->stream &&
        (slot->dense_sum || slot->nonfinite > 0 || tg_guard_is_read_first(optim, slot))) {
        int64_t nonfinite = 0;
        TG_CALL(tg_guard_read(optim, slot, &nonfinite));
        slot->nonfinite += nonfinite;
        call->guard = NULL;
    }
    if (!optim->be->ops->stream) {
        call->guard = NULL;
    }
    return TG_OK;
}

tg_status tg_optim_apply(tg_optim *optim, int param, const tg_tensor *weight) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, weight);
    tg_status status = TG_OK;
    tg_slot *slot = NULL;
    tg_update call = {.weight = weight->data};
    TG_CALL(tg_slot_find(optim, param, &slot));
    TG_CALL(tg_slot_check_weight(optim, slot, weight));
    if (!slot->is_summing) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: nothing is accumulated for %s",
                       slot->name);
    }
    TG_CALL(tg_slot_check_alone(optim, slot));
    TG_CALL(look_at_sum(optim, slot, &call));
    if (slot->nonfinite > 0) {
        status = tg_slot_refused(optim, slot, slot->nonfinite);
    } else if (slot->dense_sum) {
        const tg_gradient whole = {.param = param,
                                   .dtype = slot->dtype,
                                   .shape = slot->shape,
                                   .dense = slot->dense_sum,
                                   .place = optim->be->ops->place};
        status = slot->block.whole == 0
                     ? tg_slot_step(optim, slot, &whole, &call)
                     : tg_fail(optim->ctx, TG_E_ARGUMENT,
                               "optimizer: the projection of %s, a block, is refreshed by a "
                               "tg_step with a communicator",
                               slot->name);
    } else {
        call.values = slot->sum;
        status = tg_slot_update(optim, slot, &call);
    }
    tg_sum_end(optim, slot);
    return status;
}

/* ---- sums over ranks that are used at once ---- */

tg_status tg_sum_update(tg_optim *optim, const tg_gradient *gradient, const tg_adder *adder) {
    tg_slot *slot = NULL;
    tg_gradient ready = *gradient;
    tg_update call = {0};
    void *values = NULL;
    TG_CALL(find_sum(optim, gradient, &slot, &call.guard));
    TG_CALL(tg_slot_get_weight(optim, slot, &call.weight));
    if (!slot->projector || !tg_projector_takes_factored(slot->projector)) {
        TG_CALL(tg_slot_form(optim, slot, gradient, &ready));
    }
    if (slot->projector) {
        values = optim->small;
        TG_CALL(tg_slot_project(optim, slot, &ready, 0.0, NULL, values));
    } else if (gradient->dense) { /* formed by the network */
        values = slot->sum;
        TG_CALL(add_dense(optim, slot, true, gradient, values));
    } else {
        values = optim->dense;
    }
    const tg_tensor sum =
        tg_backend_view(optim->be, slot->dtype, &(tg_shape){1, {slot->count}}, values);
    TG_CALL(adder->add(adder->user, &sum));
    TG_CALL(
        optim->be->ops->count_nonfinite(optim->be, slot->dtype, slot->count, values, call.guard));
    call.values = values;
    return tg_slot_update(optim, slot, &call);
}

/* ---- sinks and clipping ---- */

static tg_status receive_and_accumulate(void *user, const tg_gradient *gradient) {
    return tg_optim_accumulate(user, gradient);
}

/* Adds the squares; skips NaN and Inf, which are counted when the gradient is used. */
static tg_status receive_norm(void *user, const tg_gradient *gradient) {
    tg_optim *optim = user;
    tg_slot *slot = NULL;
    tg_gradient ready;
    tg_norms norms;
    TG_CALL(tg_slot_find(optim, gradient->param, &slot));
    TG_CALL(tg_slot_check(optim, slot, gradient));
    TG_CALL(tg_slot_form(optim, slot, gradient, &ready));
    TG_CALL(optim->be->ops->norms(optim->be, ready.dtype, slot->numel, ready.dense, &norms));
    optim->norm_squares += norms.sum_squares;
    return TG_OK;
}

tg_grad_sink tg_optim_accumulate_sink(tg_optim *optim) {
    return (tg_grad_sink){.receive = receive_and_accumulate, .user = optim};
}

tg_grad_sink tg_optim_norm_sink(tg_optim *optim) {
    return (tg_grad_sink){.receive = receive_norm, .user = optim};
}

void tg_optim_clip_begin(tg_optim *optim) {
    if (optim) {
        optim->norm_squares = 0.0;
        optim->grad_scale = 1.0;
    }
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
    tg_optim_clip_begin(optim);
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (!slot->is_summing) {
            continue;
        }
        tg_norms norms = {.sum_squares = slot->squares};
        TG_CALL(tg_slot_has_facts(slot) ? TG_OK : tg_sum_norms(optim, slot, &norms));
        optim->norm_squares += norms.sum_squares;
    }
    return tg_optim_clip(optim, max_norm, norm);
}
