/* Matrix products for every file of this folder: slots that are callable by name. */
#ifndef TG_BACKEND_CUDA_LINALG_BLAS_CUH
#define TG_BACKEND_CUDA_LINALG_BLAS_CUH

#include "backend/cuda/core/cuda.cuh"

/* Queued, without allocation; f32 and c64 as be->math says. Operand CONJ, sums, k = 0 and arrays
 * that are not aligned to their elements run on our own kernel, in f32 instead of TF32. */
tg_status cuda_gemm(tg_backend *be, const tg_gemm *gemm);

/* The same by our own kernel, whatever it is; m, n and batch are not 0. */
tg_status cuda_gemm_tiles(tg_backend *be, const tg_gemm *gemm);

/* The gram slot; without allocation. */
tg_status cuda_gram(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                    const void *x, const tg_bitmap *mask, void *out);

#endif
