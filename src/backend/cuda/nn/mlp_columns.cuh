/* The paths of MLPs that have kernels of their own, as the slots for MLPs see them (mlp.cu):
 * whether a call goes by one, what it needs of the workspace, 0 if it never does for these sizes,
 * and the call. */
#ifndef TG_BACKEND_CUDA_NN_MLP_COLUMNS_CUH
#define TG_BACKEND_CUDA_NN_MLP_COLUMNS_CUH

#include "backend/cuda/nn/gemm_columns.cuh"

/* One output (mlp_single.cu). */
bool mlp_single_takes(const tg_backend *be, const tg_mlp *op, bool backward);
size_t mlp_single_workspace(const tg_backend *be, const tg_mlp *op, bool backward);
tg_status mlp_single_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_single_backward(tg_backend *be, const tg_mlp *op);

/* One output or few inputs on GPUs of compute capability 9.0 (sm90/narrow_mlp.cu), for f32 in
 * TF32. */
bool mlp_narrow_takes(const tg_backend *be, const tg_mlp *op, bool backward);
size_t mlp_narrow_workspace(const tg_backend *be, const tg_mlp *op, bool backward);
tg_status mlp_narrow_forward(tg_backend *be, const tg_mlp *op);
tg_status mlp_narrow_backward(tg_backend *be, const tg_mlp *op);

/* Channel MLPs of a block likewise, backward alone (sm90/channel_mlp.cu). */
bool mlp_channel_takes(const tg_backend *be, const tg_mlp *op, bool backward);
bool mlp_channel_reads_bytes(const tg_backend *be, const tg_mlp *op);
size_t mlp_channel_workspace(const tg_backend *be, const tg_mlp *op, bool backward);
tg_status mlp_channel_backward(tg_backend *be, const tg_mlp *op);

#endif
