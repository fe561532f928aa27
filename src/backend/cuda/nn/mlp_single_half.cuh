/* Perceptrons with one output whose input is stored as halves (see mlp_single.cu): the hidden
 * layer never leaves the chip. It is taken in chunks of CHUNK channels; products as in
 * tile/half_products.cuh. Here is what both directions share. */
#ifndef TG_BACKEND_CUDA_NN_MLP_SINGLE_HALF_CUH
#define TG_BACKEND_CUDA_NN_MLP_SINGLE_HALF_CUH

#include "backend/cuda/nn/mlp_columns.cuh"
#include "backend/cuda/nn/mlp_tensor.cuh"
#include "backend/cuda/tile/half_stage.cuh"

enum {
    CHUNK = 128,    /* hidden channels, and input channels at most */
    MOST_CHUNKS = 8 /* what b1 and w2 have room for in shared memory */
};

/* The one channel of y. */
__device__ inline float load_one(const activation &x, int64_t at) {
    if (x.store == TG_STORE_FULL) {
        return static_cast<const float *>(x.data)[at];
    }
    return halves_of(x.store, static_cast<const uint16_t *>(x.data)[at]).x;
}

__device__ inline void store_one(const activation &x, int64_t at, float v) {
    if (x.store == TG_STORE_FULL) {
        static_cast<float *>(x.data)[at] = v;
    } else {
        static_cast<uint16_t *>(x.data)[at] = (uint16_t)halves_to_word(x.store, {v, 0.0f});
    }
}

static inline int chunks_of(const tg_mlp *op) {
    return (int)((op->hidden + CHUNK - 1) / CHUNK);
}

/* Whether there is a way for these sizes on this device, and what backward needs for it. */
bool mlp_single_halves_fits(const tg_backend *be, const tg_mlp *op);
size_t mlp_single_halves_back_workspace(const tg_backend *be, const tg_mlp *op);

template <class F> tg_status with_half(tg_storage store, F f) {
    return store == TG_STORE_BF16 ? f(known<TG_STORE_BF16>()) : f(known<TG_STORE_F16>());
}

#endif
