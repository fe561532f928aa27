/* Elementwise operations, reductions, random numbers, update rules and quantization. */
#include <math.h>
#include <string.h>

#include "backend/quantize.h"
#include "backend/ref/ref.h"

tg_status ref_fill(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar value, void *x) {
    TG_CALL(tg_check_float(be->ctx, "fill", dtype));
    for (int64_t i = 0; i < n; i++) {
        tg_store(dtype, x, i, value);
    }
    return TG_OK;
}

tg_status ref_convert(tg_backend *be, int64_t n, tg_dtype src_dtype, const void *src,
                      tg_dtype dst_dtype, void *dst) {
    TG_CALL(tg_check_float(be->ctx, "convert", src_dtype));
    TG_CALL(tg_check_float(be->ctx, "convert", dst_dtype));
    for (int64_t i = 0; i < n; i++) {
        tg_store(dst_dtype, dst, i, tg_load(src_dtype, src, i));
    }
    return TG_OK;
}

tg_status ref_axpy(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha, const void *x,
                   void *y) {
    TG_CALL(tg_check_float(be->ctx, "axpy", dtype));
    const tg_scalar factor = ref_factor(dtype, alpha);
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar old = tg_load(dtype, y, i);
        tg_store(dtype, y, i,
                 x ? ref_add(old, ref_mul(factor, tg_load(dtype, x, i))) : ref_mul(factor, old));
    }
    return TG_OK;
}

tg_status ref_norms(tg_backend *be, tg_dtype dtype, int64_t n, const void *x, tg_norms *out) {
    TG_CALL(tg_check_float(be->ctx, "norms", dtype));
    *out = (tg_norms){0};
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar v = tg_load(dtype, x, i);
        if (!isfinite(v.re) || !isfinite(v.im)) {
            out->nonfinite++;
            continue;
        }
        out->sum_squares += ref_abs2(v);
        out->max_abs = fmax(out->max_abs, hypot(v.re, v.im));
    }
    return TG_OK;
}

tg_status ref_count_nonfinite(tg_backend *be, tg_dtype dtype, int64_t n, const void *x,
                              uint32_t *count) {
    const uint32_t most = 1u << 31;
    tg_norms norms = {0};
    tg_status status = be->ops->norms(be, dtype, n, x, &norms);
    const int64_t total = (int64_t)*count + norms.nonfinite;
    *count = total < (int64_t)most ? (uint32_t)total : most;
    return status;
}

/* offset + factor * number, in double; element i has number i, or a pair 2i and 2i + 1. */
typedef double (*number_fn)(const tg_rng *rng, uint64_t index);

tg_status ref_random(tg_backend *be, const tg_random *op) {
    const bool is_normal = op->law == TG_RANDOM_NORMAL;
    const number_fn number = is_normal ? tg_rng_normal : tg_rng_uniform;
    const double offset = op->a, factor = is_normal ? op->b : op->b - op->a;
    TG_CALL(tg_check_float(be->ctx, "random", op->dtype));
    for (int64_t i = 0; i < op->n; i++) {
        const uint64_t index = op->first + (uint64_t)i;
        tg_scalar v = {0};
        if (tg_dtype_is_complex(op->dtype)) {
            v.re = offset + factor * number(&op->rng, 2 * index);
            v.im = offset + factor * number(&op->rng, 2 * index + 1);
        } else {
            v.re = offset + factor * number(&op->rng, index);
        }
        tg_store(op->dtype, op->x, i, v);
    }
    return TG_OK;
}

/* Adam and other update rules, block by block in double. */

static tg_status update(tg_backend *be, const tg_adam *call) {
    tg_adam op;
    tg_rng rounding;
    bool goes = false;
    const tg_status status = tg_adam_resolve(be, call, &op, &rounding, &goes);
    for (int64_t i = 0; goes && i < op.n; i += TG_STATE_BLOCK) {
        tg_rule_block(&op, i, op.n - i < TG_STATE_BLOCK ? op.n - i : TG_STATE_BLOCK);
    }
    return status;
}

tg_status ref_update(tg_backend *be, int count, const tg_adam *calls) {
    for (int i = 0; i < count; i++) {
        TG_CALL(update(be, &calls[i]));
    }
    return TG_OK;
}

/* 8-bit quantization (quantize.h), block by block. */

static uint32_t modulus_bits(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x7FFFFFFFu;
}

static void quantize(int64_t n, const float *x, uint8_t *byte) {
    float *scale = (float *)(void *)(byte + tg_quantized_scales(n));
    for (int64_t block = 0; block < tg_quantized_blocks(n); block++) {
        const int64_t first = block * TG_QUANTIZED_BLOCK, end = first + TG_QUANTIZED_BLOCK;
        uint32_t most = 0;
        for (int64_t i = first; i < end && i < n; i++) {
            most = modulus_bits(x[i]) > most ? modulus_bits(x[i]) : most;
        }
        const tg_quantizer q = tg_quantizer_of(most);
        for (int64_t i = first; i < end; i++) {
            byte[i] = i < n ? tg_quantize(x[i], q.inverse) : 0;
        }
        scale[block] = q.scale;
    }
}

static void dequantize(int64_t n, const uint8_t *byte, float *x) {
    const float *scale = (const float *)(const void *)(byte + tg_quantized_scales(n));
    for (int64_t i = 0; i < n; i++) {
        x[i] = tg_dequantize(byte[i], scale[i / TG_QUANTIZED_BLOCK]);
    }
}

tg_status ref_quantize(tg_backend *be, const tg_quantization *op) {
    (void)be;
    if (op->restores) {
        dequantize(op->n, op->from, op->to);
    } else {
        quantize(op->n, op->from, op->to);
    }
    return TG_OK;
}
