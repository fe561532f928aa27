/* Gradients as handed over: checked, made dense, examined for NaN, Inf and overflow. */
#include <float.h>
#include <math.h>

#include "backend/check.h"
#include "backend/tensor.h"
#include "optim/step.h"

tg_status tg_slot_find(tg_optim *optim, int param, tg_slot **out) {
    if (param < 0 || param >= optim->slot_count) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT, "optimizer: parameter %d of %d", param,
                       optim->slot_count);
    }
    *out = &optim->slots[param];
    return TG_OK;
}

tg_status tg_slot_check_weight(tg_optim *optim, const tg_slot *slot, const tg_tensor *weight) {
    const tg_wanted wanted = {"weight", slot->name, tg_stored(slot->dtype, slot->weight_store),
                              slot->shape, false};
    return tg_tensor_check(optim->be, weight, &wanted);
}

tg_status tg_slot_check(tg_optim *optim, const tg_slot *slot, const tg_gradient *gradient) {
    const tg_wanted wanted = {"gradient", slot->name, slot->dtype, slot->shape, false};
    TG_CALL(tg_gradient_check(optim->be, gradient, &wanted));
    if (optim->shares_workspace && (slot->projector || !gradient->dense)) {
        TG_CALL(tg_optim_use_shared(optim, !gradient->dense));
    }
    if (!gradient->dense && !optim->dense) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT,
                       "gradient of %s: factored, but the optimizer was not made for factored "
                       "gradients (takes_factored)",
                       slot->name);
    }
    if (!gradient->dense && optim->forms_bf16 && tg_storage_of(gradient->dtype) != TG_STORE_BF16) {
        return tg_fail(optim->ctx, TG_E_DTYPE,
                       "gradient of %s: factors in %s, but the optimizer was made for bf16",
                       slot->name, tg_dtype_name(gradient->dtype));
    }
    return TG_OK;
}

tg_status tg_slot_check_alone(tg_optim *optim, const tg_slot *slot) {
    return slot->owner == TG_ON_ALL && (slot->block.whole == 0 || slot->is_summing)
               ? TG_OK
               : tg_fail(optim->ctx, TG_E_ARGUMENT,
                         "optimizer: %s is spread over ranks (%s): updates are made by a tg_step "
                         "with a communicator",
                         slot->name, slot->block.whole > 0 ? "blocks" : "shard_ranks");
}

/* The gradient as a dense one, formed in the optimizer's memory, own or shared, if it came
 * factored: in the arithmetic's precision, or in the factors' if the setup asks for that. */
tg_status tg_slot_form(tg_optim *optim, const tg_slot *slot, const tg_gradient *gradient,
                       tg_gradient *out) {
    *out = *gradient;
    if (gradient->dense) {
        return TG_OK;
    }
    tg_multimode modes = tg_plain_modes(slot->dtype, &slot->shape);
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

tg_status tg_slot_count(tg_optim *optim, const tg_slot *slot, const tg_gradient *gradient,
                        uint32_t *guard) {
    const tg_multimode modes = tg_plain_modes(slot->dtype, &slot->shape);
    const tg_grad_source source = tg_gradient_source(gradient);
    return tg_source_count(optim->be, &modes, &source, guard);
}

/* The norm bounds everything computed from a gradient: factors have orthonormal columns, so no
 * entry of a core or of an intermediate product is larger, and no entry of a Gram matrix exceeds
 * its square. A rule squares the scaled gradient, a refresh the unscaled one. A margin of 2^20
 * below the largest number leaves room for sums of micro-batches and ranks. */
static int64_t judge(const tg_optim *optim, tg_dtype dtype, bool refreshes, int64_t nonfinite,
                     double sum_squares) {
    const double most = 0x1p-20 * (tg_dtype_real(dtype) == TG_F64 ? DBL_MAX : (double)FLT_MAX);
    const double scale = optim->grad_scale / optim->loss_scale.used;
    const double factor = refreshes ? fmax(scale, 1.0) : scale;
    const bool fits = sqrt(sum_squares) <= most && sum_squares * factor * factor <= most;
    return nonfinite > 0 || fits ? nonfinite : TG_TOO_LARGE;
}

tg_status tg_values_judge(tg_optim *optim, tg_dtype dtype, bool refreshes, int64_t n,
                          const void *values, int64_t *nonfinite) {
    tg_norms norms;
    TG_CALL(optim->be->ops->norms(optim->be, dtype, n, values, &norms));
    *nonfinite = judge(optim, dtype, refreshes, norms.nonfinite, norms.sum_squares);
    return TG_OK;
}

tg_status tg_slot_judge(tg_optim *optim, const tg_slot *slot, const tg_gradient *gradient,
                        bool refreshes, int64_t *nonfinite) {
    if (gradient->dense) {
        return tg_values_judge(optim, gradient->dtype, refreshes, slot->numel, gradient->dense,
                               nonfinite);
    }
    const tg_grad_source source = tg_gradient_source(gradient);
    tg_norms x, dy;
    TG_CALL(optim->be->ops->norms(optim->be, gradient->dtype,
                                  slot->numel / slot->shape.dim[1] * source.batch, source.x, &x));
    TG_CALL(optim->be->ops->norms(optim->be, gradient->dtype,
                                  slot->numel / slot->shape.dim[0] * source.batch, source.dy, &dy));
    /* |G| <= |x| |dy| */
    *nonfinite = judge(optim, slot->dtype, refreshes, x.nonfinite + dy.nonfinite,
                       x.sum_squares * dy.sum_squares);
    return TG_OK;
}
