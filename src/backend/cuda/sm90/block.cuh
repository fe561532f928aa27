/* Blocks of a Fourier neural operator in one kernel, on GPUs of compute capability 9.0. */
#ifndef TG_BACKEND_CUDA_SM90_BLOCK_CUH
#define TG_BACKEND_CUDA_SM90_BLOCK_CUH

#include "backend/cuda/core/cuda.cuh"

/* Attaches the kernel's table of cosines and sines to a transform's plan, if the kernel supports
 * the transform. */
tg_status cuda_block_prepare(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan *plan);

/* For the workspace slot. */
bool cuda_block_workspace(tg_backend *be, const tg_block *op, size_t *bytes);
bool cuda_block_back_workspace(tg_backend *be, const tg_block_back *op, size_t *bytes);

#endif
