/* Load and store of single elements, all dtypes. */
#include "tensor/element.h"

#include <math.h>

#include "base/rng_math.h"
#include "tensor/half.h"

static double load_real(tg_dtype dtype, const void *x, int64_t i) {
    switch (dtype) {
    case TG_F32:
        return (double)((const float *)x)[i];
    case TG_F64:
        return ((const double *)x)[i];
    case TG_BF16:
        return (double)tg_bf16_to_f32(((const uint16_t *)x)[i]);
    case TG_F16:
        return (double)tg_f16_to_f32(((const uint16_t *)x)[i]);
    case TG_BOOL:
    case TG_U8:
        return ((const uint8_t *)x)[i];
    case TG_I8:
        return ((const int8_t *)x)[i];
    case TG_U16:
        return ((const uint16_t *)x)[i];
    case TG_I16:
        return ((const int16_t *)x)[i];
    case TG_U32:
        return ((const uint32_t *)x)[i];
    case TG_I32:
        return ((const int32_t *)x)[i];
    case TG_U64:
        return (double)((const uint64_t *)x)[i];
    case TG_I64:
        return (double)((const int64_t *)x)[i];
    default:
        return (double)NAN;
    }
}

static double clamp(double v, double low, double high) {
    if (isnan(v)) {
        return 0.0;
    }
    v = nearbyint(v);
    return v < low ? low : (v > high ? high : v);
}

/* As on every backend, a double is rounded to float before 16 bits. */
static void store_real(tg_dtype dtype, void *x, int64_t i, double v) {
    switch (dtype) {
    case TG_F32:
        ((float *)x)[i] = (float)v;
        break;
    case TG_F64:
        ((double *)x)[i] = v;
        break;
    case TG_BF16:
        ((uint16_t *)x)[i] = tg_f32_to_bf16((float)v);
        break;
    case TG_F16:
        ((uint16_t *)x)[i] = tg_f32_to_f16((float)v);
        break;
    case TG_BOOL:
        ((uint8_t *)x)[i] = v != 0.0;
        break;
    case TG_U8:
        ((uint8_t *)x)[i] = (uint8_t)clamp(v, 0, UINT8_MAX);
        break;
    case TG_I8:
        ((int8_t *)x)[i] = (int8_t)clamp(v, INT8_MIN, INT8_MAX);
        break;
    case TG_U16:
        ((uint16_t *)x)[i] = (uint16_t)clamp(v, 0, UINT16_MAX);
        break;
    case TG_I16:
        ((int16_t *)x)[i] = (int16_t)clamp(v, INT16_MIN, INT16_MAX);
        break;
    case TG_U32:
        ((uint32_t *)x)[i] = (uint32_t)clamp(v, 0, UINT32_MAX);
        break;
    case TG_I32:
        ((int32_t *)x)[i] = (int32_t)clamp(v, INT32_MIN, INT32_MAX);
        break;
    case TG_U64:
        ((uint64_t *)x)[i] = v >= 0x1p64 ? UINT64_MAX : (uint64_t)clamp(v, 0, 0x1p64);
        break;
    case TG_I64:
        ((int64_t *)x)[i] = v >= 0x1p63 ? INT64_MAX : (int64_t)clamp(v, -0x1p63, 0x1p63);
        break;
    default:
        break;
    }
}

tg_scalar tg_load(tg_dtype dtype, const void *x, int64_t i) {
    if (!tg_dtype_is_complex(dtype)) {
        return (tg_scalar){load_real(dtype, x, i), 0.0};
    }
    tg_dtype real = tg_dtype_real(dtype);
    return (tg_scalar){load_real(real, x, 2 * i), load_real(real, x, 2 * i + 1)};
}

void tg_store(tg_dtype dtype, void *x, int64_t i, tg_scalar value) {
    if (!tg_dtype_is_complex(dtype)) {
        store_real(dtype, x, i, value.re);
        return;
    }
    tg_dtype real = tg_dtype_real(dtype);
    store_real(real, x, 2 * i, value.re);
    store_real(real, x, 2 * i + 1, value.im);
}

void tg_load_reals(tg_dtype dtype, const void *x, int64_t first, int64_t n, double *to) {
    const tg_dtype real = tg_dtype_real(dtype);
    for (int64_t i = 0; real == TG_F32 && i < n; i++) {
        to[i] = (double)((const float *)x)[first + i];
    }
    for (int64_t i = 0; real != TG_F32 && i < n; i++) {
        to[i] = load_real(real, x, first + i);
    }
}

void tg_store_reals(tg_dtype dtype, void *x, int64_t first, int64_t n, const double *from) {
    const tg_dtype real = tg_dtype_real(dtype);
    for (int64_t i = 0; real == TG_F32 && i < n; i++) {
        ((float *)x)[first + i] = (float)from[i];
    }
    for (int64_t i = 0; real != TG_F32 && i < n; i++) {
        store_real(real, x, first + i, from[i]);
    }
}

static void round_real(tg_dtype real, uint16_t *x, int64_t i, double v, const tg_rng *rng) {
    const uint32_t bits = tg_rounding_bits(rng, (uint64_t)i);
    x[i] = real == TG_BF16 ? tg_round_to_bf16((float)v, bits) : tg_round_to_f16((float)v, bits);
}

void tg_store_rounded(tg_dtype dtype, void *x, int64_t i, tg_scalar value, const tg_rng *rng) {
    const tg_dtype real = tg_dtype_real(dtype);
    if (!rng || (real != TG_BF16 && real != TG_F16)) {
        tg_store(dtype, x, i, value);
    } else if (tg_dtype_is_complex(dtype)) {
        round_real(real, x, 2 * i, value.re, rng);
        round_real(real, x, 2 * i + 1, value.im, rng);
    } else {
        round_real(real, x, i, value.re, rng);
    }
}

/* The angle is folded to at most an eighth of the circle in integer arithmetic, so that symmetries
 * hold exactly: root(n - j) = conj(root(j)), and 1, -i, -1, i. */
tg_scalar tg_root_of_unity(int64_t j, int64_t n) {
    const double pi = 3.14159265358979323846;
    const bool lower = 2 * j > n;
    int64_t a = 4 * (lower ? n - j : j); /* quarter turns times n: 0 .. 2n */
    const bool leftward = a > n;
    a = leftward ? 2 * n - a : a; /* 0 .. n */
    const bool steep = 2 * a > n;
    a = steep ? n - a : a; /* 0 .. n/2 */
    const double angle = pi * (double)a / (2.0 * (double)n);
    const double x = steep ? sin(angle) : cos(angle);
    const double y = steep ? cos(angle) : sin(angle);
    return (tg_scalar){leftward ? -x : x, lower ? y : -y};
}
