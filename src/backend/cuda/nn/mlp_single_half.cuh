/* MLPs with one output whose input is stored as 16-bit numbers (see mlp_single.cu), on tensor
 * cores: the hidden layer never leaves the chip. It is taken in chunks of CHUNK channels. Here is
 * what both directions share. */
#ifndef TG_BACKEND_CUDA_NN_MLP_SINGLE_HALF_CUH
#define TG_BACKEND_CUDA_NN_MLP_SINGLE_HALF_CUH

#include "backend/cuda/nn/mlp_columns.cuh"
#include "backend/cuda/nn/mlp_tile.cuh"

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

/* b1 and w2 of the thread's rows of the hidden layer, channels `first` + 0 .. CHUNK - 1. */
template <class P> struct hidden_rows {
    float bias[2], weight[2];

    __device__ void load(const mlp_task &t, int first) {
        for (int h = 0; h < 2; h++) {
            const int row = first + P::row(0, h);
            bias[h] = row < t.hidden ? t.b1[row] : 0.0f;
            weight[h] = row < t.hidden ? t.w2[row] : 0.0f;
        }
    }
};

/* Whether there is a way for these sizes on this device, and what backward needs for it. */
bool mlp_single_half_fits(const tg_backend *be, const tg_mlp *op);
size_t mlp_single_half_backward_workspace(const tg_backend *be, const tg_mlp *op);

#endif
