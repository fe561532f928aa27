/* Every activation that a network may have. Kernels on tiles of tensor cores know NONE, GELU and
 * tanh alone (tile/activate.cuh), so that they do not pay for the others with registers: what has
 * another one goes by passes over memory and by products of matrices. */
#ifndef TG_BACKEND_CUDA_NN_ACTIVATE_ANY_CUH
#define TG_BACKEND_CUDA_NN_ACTIVATE_ANY_CUH

#include "backend/cuda/tile/activate.cuh"

static inline bool is_on_tiles(tg_act act) {
    return act == TG_ACT_NONE || act == TG_ACT_GELU || act == TG_ACT_TANH;
}

/* The derivative at x; *value = act(x). */
template <class R> __device__ inline R act_both_any(tg_act act, R x, R *value) {
    if (act == TG_ACT_RELU) {
        *value = x < R(0) ? R(0) : x; /* NaN stays */
        return x > R(0) ? R(1) : R(0);
    }
    if (act == TG_ACT_SILU) {
        const R logistic = R(1) / (R(1) + exp(-x));
        *value = x * logistic;
        return (R(1) + x / (R(1) + exp(x))) * logistic;
    }
    return act_both(act, x, value);
}

template <class R> __device__ inline R activate_any(tg_act act, R x) {
    if (act == TG_ACT_RELU || act == TG_ACT_SILU) {
        act_both_any(act, x, &x);
        return x;
    }
    return activate(act, x);
}

#endif
