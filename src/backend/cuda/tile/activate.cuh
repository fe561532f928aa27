/* Activation functions and their derivatives. The first part is in f32 without branches. */
#ifndef TG_BACKEND_CUDA_TILE_ACTIVATE_CUH
#define TG_BACKEND_CUDA_TILE_ACTIVATE_CUH

#include "backend/cuda/core/cuda.cuh"
#include "backend/cuda/tile/instructions.cuh"

/* Phi(-|x|) and exp(-x^2 / 2): with t = 1 / (1 + p |x| / sqrt 2), Phi(-|x|) = P(t) exp(-x^2 / 2)
 * within 8e-8 (Abramowitz and Stegun 7.1.26, halved). The derivative uses the same exponential. */
__device__ inline float normal_tail(float x, float *bell) {
    const float t = reciprocal_fast(fmaf(0.23164190f, fabsf(x), 1.0f));
    *bell = exp2_fast(-0.72134752f * x * x);
    float p = 0.5307027145f;
    p = fmaf(p, t, -0.7265760135f);
    p = fmaf(p, t, 0.7107068705f);
    p = fmaf(p, t, -0.142248368f);
    p = fmaf(p, t, 0.1274147960f);
    return p * t * *bell;
}

/* max(x, 0) - |x| Phi(-|x|), where a polynomial in |x| approximates log2 Phi, within 1e-8 before
 * rounding. Outside the fitted range it keeps falling towards 0. */
__device__ inline float gelu(float x) {
    const float a = fabsf(x);
    float p = -1.96604500e-6f;
    p = fmaf(p, a, 2.89208589e-5f);
    p = fmaf(p, a, -1.36163947e-4f);
    p = fmaf(p, a, -2.58917921e-4f);
    p = fmaf(p, a, 7.22509284e-3f);
    p = fmaf(p, a, -5.26106952e-2f);
    p = fmaf(p, a, -0.45916879f);
    p = fmaf(p, a, -1.15111035f);
    p = fmaf(p, a, -0.999999888f);
    return fmaf(-a, exp2_fast(p), fmaxf(x, 0.0f));
}
__device__ inline double gelu(double x) {
    return 0.5 * x * erfc(-x * 0.70710678118654752440);
}

/* Returns the derivative at x; *value = gelu(x). */
__device__ inline float gelu_slope(float x, float *value) {
    float bell;
    const float tail = normal_tail(x, &bell), cdf = x >= 0.0f ? 1.0f - tail : tail;
    *value = x * cdf;
    return fmaf(0.39894228f * x, bell, cdf);
}
__device__ inline double gelu_slope(double x, double *value) {
    const double cdf = 0.5 * erfc(-x * 0.70710678118654752440);
    *value = x * cdf;
    return cdf + 0.39894228040143267794 * x * exp(-0.5 * x * x);
}

template <class R> __device__ inline R activate(tg_act act, R x) {
    switch (act) {
    case TG_ACT_GELU:
        return gelu(x);
    case TG_ACT_TANH:
        return tanh(x);
    default:
        return x;
    }
}

/* Returns the derivative at x; *value = act(x). */
template <class R> __device__ inline R activate_with_slope(tg_act act, R x, R *value) {
    switch (act) {
    case TG_ACT_GELU:
        return gelu_slope(x, value);
    case TG_ACT_TANH:
        *value = tanh(x);
        return R(1) - *value * *value;
    default:
        *value = x;
        return R(1);
    }
}

template <class R> __device__ inline R act_slope(tg_act act, R x) {
    R value;
    return activate_with_slope(act, x, &value);
}

/* ---- every activation a network may have ---- */

/* Tensor-core kernels support only NONE, GELU and tanh, so that they spend no registers on the
 * others. Layers with another activation use elementwise passes and matrix products. */
static inline bool has_tile_kernels(tg_act act) {
    return act == TG_ACT_NONE || act == TG_ACT_GELU || act == TG_ACT_TANH;
}

/* The derivative at x; *value = act(x). */
template <class R> __device__ inline R activate_any_with_slope(tg_act act, R x, R *value) {
    if (act == TG_ACT_RELU) {
        *value = x < R(0) ? R(0) : x; /* NaN stays */
        return x > R(0) ? R(1) : R(0);
    }
    if (act == TG_ACT_SILU) {
        const R logistic = R(1) / (R(1) + exp(-x));
        *value = x * logistic;
        return (R(1) + x / (R(1) + exp(x))) * logistic;
    }
    return activate_with_slope(act, x, value);
}

template <class R> __device__ inline R activate_any(tg_act act, R x) {
    if (act == TG_ACT_RELU || act == TG_ACT_SILU) {
        activate_any_with_slope(act, x, &x);
        return x;
    }
    return activate(act, x);
}

#endif
