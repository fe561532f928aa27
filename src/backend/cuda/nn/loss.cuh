/* Shared by losses (loss.cu) and the squares of norms that they are given (loss_squares.cu). */
#ifndef TG_BACKEND_CUDA_NN_LOSS_CUH
#define TG_BACKEND_CUDA_NN_LOSS_CUH

#include "backend/cuda/nn/nn.cuh"

enum { LOSS_THREADS = 256, LOSS_MOST_PARTS = 256 };

/* Blocks that sum an image of so many points; each leaves a double2. */
static inline int loss_parts(int64_t points) {
    const int64_t blocks = (points + LOSS_THREADS - 1) / LOSS_THREADS;
    return blocks < LOSS_MOST_PARTS ? (int)blocks : (int)LOSS_MOST_PARTS;
}

void cuda_fill_loss_squares(tg_backend_ops *ops);

#endif
