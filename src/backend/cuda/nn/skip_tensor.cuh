/* Linear skips on tensor cores: what their kernels take. */
#ifndef TG_BACKEND_CUDA_NN_SKIP_TENSOR_CUH
#define TG_BACKEND_CUDA_NN_SKIP_TENSOR_CUH

#include "backend/cuda/tile/stage.cuh"

struct mix_task {
    pixel_tiles tiles;
    int in, out;
    tg_act act;
    bool through;
    const float *weight; /* (out, in) */
    const float *bias;   /* (out); NULL: none */
    float alpha, beta;
    activation x, y, dy, dx;
    float *dweight; /* partial sums (blocks, C, C); NULL: not wanted */
    double *dbias;  /* likewise (blocks, C) */
};

mix_task mix_task_of(const tg_skip *op);

/* The partial sums of so many blocks: laid into the workspace, and added to the gradients. */
void mix_lay_out(const tg_skip *op, int blocks, int channels, mix_task *t);
tg_status mix_fold(tg_backend *be, const tg_skip *op, const mix_task &t, int blocks, int channels);

/* Calls on halves that are multiplied as they are (skip_half.cu); others on halves are widened.
 */
bool mix_halves_takes(const tg_backend *be, const tg_skip *op, bool backward);
tg_status mix_halves_forward(tg_backend *be, const tg_skip *op);
tg_status mix_halves_backward(tg_backend *be, const tg_skip *op);

#endif
