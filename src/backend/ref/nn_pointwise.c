/* Neural operators, pointwise operations and copies: boxes (padding, spectra of other sizes), the
 * coordinate channels, planes and pairs, activations. */
#include "backend/ref/ref.h"
#include "base/minmax.h"

tg_status ref_box_copy(tg_backend *be, const tg_box *op) {
    TG_CALL(tg_check_float(be->ctx, "box_copy", op->dtype));
    const int64_t src_points = tg_product(op->ndim, op->src_dim);
    const int64_t dst_points = tg_product(op->ndim, op->dst_dim);
    for (int64_t i = 0; i < op->howmany * dst_points; i++) {
        int64_t rest = i % dst_points, from = 0, stride = 1;
        bool inside = true;
        for (int d = op->ndim - 1; d >= 0; d--) {
            const int64_t at = rest % op->dst_dim[d] - op->dst_at[d];
            rest /= op->dst_dim[d];
            inside = inside && at >= 0 && at < op->size[d];
            from += (op->src_at[d] + at) * stride;
            stride *= op->src_dim[d];
        }
        if (inside) {
            tg_store(op->dtype, op->dst, i,
                     tg_load(op->dtype, op->src, i / dst_points * src_points + from));
        } else if (op->clear) {
            tg_store(op->dtype, op->dst, i, (tg_scalar){0});
        }
    }
    return TG_OK;
}

tg_status ref_grid_embed(tg_backend *be, const tg_embed *op) {
    TG_CALL(tg_check_real(be->ctx, "grid_embed", op->dtype));
    const int64_t points = tg_product(op->ndim, op->grid);
    const int64_t channels = op->channels + op->ndim;
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t c = 0; c < channels; c++) {
            const int j = (int)(c - op->channels);
            const int64_t inner = j >= 0 ? tg_product(op->ndim - 1 - j, op->grid + j + 1) : 0;
            const int64_t first = j == 0 ? op->first : 0;
            const int64_t whole = j == 0 ? op->whole : j > 0 ? op->grid[j] : 1;
            for (int64_t p = 0; p < points; p++) {
                const int64_t at = (b * channels + c) * points + p;
                if (j >= 0) {
                    ref_put(op->dtype, op->y, at,
                            op->unit * (double)(first + p / inner % op->grid[j]) / (double)whole);
                } else if (op->x) {
                    ref_put(op->dtype, op->y, at,
                            ref_get(op->dtype, op->x, (b * op->channels + c) * points + p));
                }
            }
        }
    }
    return TG_OK;
}

tg_status ref_planes(tg_backend *be, const tg_planes *op) {
    TG_CALL(tg_check_real_float(be->ctx, "planes", op->dtype));
    for (int64_t i = 0; i < 2 * op->n; i++) {
        if (op->from[1]) {
            ref_put(op->dtype, op->to[0], i, ref_get(op->dtype, op->from[i % 2], i / 2));
        } else {
            ref_put(op->dtype, op->to[i % 2], i / 2, ref_get(op->dtype, op->from[0], i));
        }
    }
    return TG_OK;
}

double ref_act(tg_act act, double x) {
    switch (act) {
    case TG_ACT_GELU:
        return 0.5 * x * erfc(-x * REF_SQRT_HALF);
    case TG_ACT_TANH:
        return tanh(x);
    case TG_ACT_RELU:
        return x < 0.0 ? 0.0 : x; /* NaN stays */
    case TG_ACT_SILU:
        return x / (1.0 + exp(-x));
    case TG_ACT_NONE:
        break;
    }
    return x;
}

double ref_act_slope(tg_act act, double x) {
    const double root_2pi = 2.50662827463100050242;
    switch (act) {
    case TG_ACT_GELU:
        return 0.5 * erfc(-x * REF_SQRT_HALF) + x * exp(-0.5 * x * x) / root_2pi;
    case TG_ACT_TANH:
        return 1.0 - tanh(x) * tanh(x);
    case TG_ACT_RELU:
        return x > 0.0 ? 1.0 : 0.0;
    case TG_ACT_SILU:
        return (1.0 + x / (1.0 + exp(x))) / (1.0 + exp(-x));
    case TG_ACT_NONE:
        break;
    }
    return 1.0;
}

tg_status ref_activate(tg_backend *be, const tg_activation *op) {
    TG_CALL(tg_check_real_float(be->ctx, "activate", op->dtype));
    for (int64_t i = 0; i < op->n; i++) {
        const double x = ref_get(op->dtype, op->x, i);
        ref_put(op->dtype, op->y, i,
                op->dy ? ref_get(op->dtype, op->dy, i) * ref_act_slope(op->act, x)
                       : ref_act(op->act, x));
    }
    return TG_OK;
}
