/* Matrix products: C[b] = alpha op(A[b]) op(B[b]) + beta C[b], row-major.
 *
 * cuBLAS is column-major and sees every matrix transposed; it computes C^T = op(B)^T op(A)^T, so
 * the operands are swapped and keep their op. Our own kernel (gemm_tiles.cu) does what cuBLAS does
 * not support, in f32 instead of TF32: operand CONJ, sums, k = 0, and arrays that are not aligned
 * to their elements. Queued, without allocation. */
#include "backend/cuda/core/cuda.cuh"

static bool is_transposed(tg_op op) {
    return op == TG_OP_T || op == TG_OP_H;
}

static bool suits_blas(const tg_gemm *g) {
    const tg_dtype real = tg_dtype_real(g->dtype);
    const bool pairs = tg_dtype_is_complex(g->dtype);
    const uintptr_t low = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c;
    return (real == TG_F32 || real == TG_F64) && g->k > 0 && !(g->batch > 1 && g->stride_c == 0) &&
           !(pairs && (g->op_a == TG_OP_CONJ || g->op_b == TG_OP_CONJ)) &&
           low % tg_dtype_size(g->dtype) == 0;
}

/* A batch with one B and contiguous A and C is one product. */
static void merge_batch(tg_gemm *g) {
    if (g->batch > 1 && g->stride_c > 0 && g->stride_b == 0 && !is_transposed(g->op_a) &&
        g->stride_a == g->m * g->lda && g->stride_c == g->m * g->ldc) {
        g->m *= g->batch;
        g->batch = 1;
    }
}

static cublasOperation_t blas_op(tg_op op) {
    return op == TG_OP_T ? CUBLAS_OP_T : op == TG_OP_H ? CUBLAS_OP_C : CUBLAS_OP_N;
}

struct blas_types {
    cudaDataType data;
    cublasComputeType_t compute;
};

static blas_types blas_types_of(const tg_backend *be, const tg_gemm *g) {
    const cublasComputeType_t f32 =
        be->math == TG_MATH_TF32 && !g->is_full ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    switch (g->dtype) {
    case TG_F64:
        return {CUDA_R_64F, CUBLAS_COMPUTE_64F};
    case TG_C128:
        return {CUDA_C_64F, CUBLAS_COMPUTE_64F};
    case TG_C64:
        return {CUDA_C_32F, f32};
    default:
        return {CUDA_R_32F, f32};
    }
}

static tg_status gemm_blas(tg_backend *be, const tg_gemm *g) {
    const int64_t most = 65535; /* limit of a grid's third dimension, which batches may use */
    const blas_types types = blas_types_of(be, g);
    const int64_t size = (int64_t)tg_dtype_size(g->dtype);
    /* cuBLAS reads factors as its own complex types, which need alignment to their size. */
    alignas(16) const float factors_f32[2][4] = {{(float)g->alpha.re, (float)g->alpha.im},
                                                 {(float)g->beta.re, (float)g->beta.im}};
    alignas(16)
        const double factors_f64[2][2] = {{g->alpha.re, g->alpha.im}, {g->beta.re, g->beta.im}};
    const bool wide = tg_dtype_real(g->dtype) == TG_F64;
    const void *alpha = wide ? (const void *)factors_f64[0] : factors_f32[0];
    const void *beta = wide ? (const void *)factors_f64[1] : factors_f32[1];
    for (int64_t first = 0; first < g->batch; first += most) {
        const int64_t count = tg_min(g->batch - first, most);
        const char *a = static_cast<const char *>(g->a) + first * g->stride_a * size;
        const char *b = static_cast<const char *>(g->b) + first * g->stride_b * size;
        char *c = static_cast<char *>(g->c) + first * g->stride_c * size;
        TG_CALL(BLAS_CHECK(be,
                           cuda_libraries.cublasGemmStridedBatchedEx_64(
                               cuda_state_of(be)->blas, blas_op(g->op_b), blas_op(g->op_a), g->n,
                               g->m, g->k, alpha, b, types.data, g->ldb, g->stride_b, a, types.data,
                               g->lda, g->stride_a, beta, c, types.data, g->ldc, g->stride_c, count,
                               types.compute, CUBLAS_GEMM_DEFAULT),
                           "multiplying matrices"));
    }
    return TG_OK;
}

tg_status cuda_gemm(tg_backend *be, const tg_gemm *gemm) {
    tg_status status = tg_check_gemm(be->ctx, gemm);
    if (status != TG_OK || gemm->m == 0 || gemm->n == 0 || gemm->batch == 0) {
        return status;
    }
    tg_gemm g = *gemm;
    merge_batch(&g);
    return suits_blas(&g) ? gemm_blas(be, &g) : cuda_gemm_tiles(be, &g);
}
