/* Matrix products: C[b] = alpha op(A[b]) op(B[b]) + beta C[b], row-major.
 *
 * cuBLAS is column-major and sees every matrix transposed; it computes C^T = op(B)^T op(A)^T, so
 * the operands change places and keep their op. What it does not have (conjugation without
 * transposition, arrays aligned to less than an element) or we do not ask of it (16-bit formats)
 * goes by a plain tiled kernel. */
#include "backend/cuda/core/element.cuh"
#include "backend/cuda/linalg/blas.cuh"

static bool is_transposed(tg_op op) {
    return op == TG_OP_T || op == TG_OP_H;
}

static bool is_conjugated(tg_op op) {
    return op == TG_OP_H || op == TG_OP_CONJ;
}

/* ---- the plain kernel: tiles of 32 x 32, four entries per thread ---- */

enum { TILE = 32, DEPTH = 16, TILE_THREADS = 256 };

/* Where element (i, j) of a matrix lies, op included. */
struct operand {
    int64_t row, column; /* distance of rows and of columns */
    int64_t stride;      /* of the batch */
    bool conjugated;
};

struct plain_sizes {
    int64_t m, n, k, batch;
    operand a, b, c;
    bool reads_c;
};

static __device__ inline float turn(float x, bool) {
    return x;
}
static __device__ inline double turn(double x, bool) {
    return x;
}
template <class R> static __device__ inline pair<R> turn(pair<R> x, bool conjugated) {
    return conjugated ? conj(x) : x;
}

template <class T> static __device__ inline void store(T *out, real_of<T> x) {
    *out = narrow<T>(x);
}
template <class T> static __device__ inline void store(pair<T> *out, pair<real_of<T>> x) {
    *out = narrow_pair<T>(x);
}

/* Element (i, j) of x, or 0 outside (rows, columns). */
template <class W, class E>
static __device__ inline W load_or_zero(const E *x, const operand &o, int64_t i, int64_t j,
                                        int64_t rows, int64_t columns) {
    return i < rows && j < columns ? turn(widen(x[i * o.row + j * o.column]), o.conjugated) : W();
}

/* E: elements in memory, W: of the arithmetic. Thread (tx, ty) owns rows ty, ty + 16 and columns
 * tx, tx + 16 of a tile; consecutive threads load along the direction that lies in memory. */
template <class E, class W>
static __global__ void __launch_bounds__(TILE_THREADS)
    plain_gemm(plain_sizes s, W alpha, W beta, const E *a, const E *b, E *c) {
    __shared__ W tile_a[DEPTH][TILE + 1], tile_b[DEPTH][TILE + 1];
    const int tx = threadIdx.x % 16, ty = threadIdx.x / 16;
    const int64_t across = (s.n + TILE - 1) / TILE, down = (s.m + TILE - 1) / TILE;
    for (int64_t tile = blockIdx.x; tile < s.batch * down * across; tile += gridDim.x) {
        const int64_t j0 = tile % across * TILE, i0 = tile / across % down * TILE;
        const int64_t matrix = tile / across / down;
        const E *a_now = a + matrix * s.a.stride, *b_now = b + matrix * s.b.stride;
        W sum[2][2] = {};
        for (int64_t k0 = 0; k0 < s.k; k0 += DEPTH) {
            for (int e = threadIdx.x; e < TILE * DEPTH; e += TILE_THREADS) {
                const int ap = s.a.column == 1 ? e % DEPTH : e / TILE;
                const int ai = s.a.column == 1 ? e / DEPTH : e % TILE;
                const int bp = s.b.column == 1 ? e / TILE : e % DEPTH;
                const int bj = s.b.column == 1 ? e % TILE : e / DEPTH;
                tile_a[ap][ai] = load_or_zero<W>(a_now, s.a, i0 + ai, k0 + ap, s.m, s.k);
                tile_b[bp][bj] = load_or_zero<W>(b_now, s.b, k0 + bp, j0 + bj, s.k, s.n);
            }
            __syncthreads();
            for (int p = 0; p < DEPTH; p++) {
                for (int u = 0; u < 2; u++) {
                    for (int v = 0; v < 2; v++) {
                        sum[u][v] = sum[u][v] + tile_a[p][ty + 16 * u] * tile_b[p][tx + 16 * v];
                    }
                }
            }
            __syncthreads();
        }
        for (int u = 0; u < 2; u++) {
            for (int v = 0; v < 2; v++) {
                const int64_t i = i0 + ty + 16 * u, j = j0 + tx + 16 * v;
                if (i < s.m && j < s.n) {
                    E *out = c + matrix * s.c.stride + i * s.c.row + j;
                    const W value = alpha * sum[u][v];
                    store(out, s.reads_c ? value + beta * widen(*out) : value);
                }
            }
        }
    }
}

static operand operand_of(tg_op op, int64_t ld, int64_t stride) {
    const bool turned = is_transposed(op);
    return {turned ? 1 : ld, turned ? ld : 1, stride, is_conjugated(op)};
}

static tg_status gemm_plain(tg_backend *be, const tg_gemm *g) {
    const bool pairs = tg_dtype_is_complex(g->dtype);
    const plain_sizes s = {g->m,
                           g->n,
                           g->k,
                           g->batch,
                           operand_of(g->op_a, g->lda, g->stride_a),
                           operand_of(g->op_b, g->ldb, g->stride_b),
                           operand_of(TG_OP_N, g->ldc, g->stride_c),
                           g->beta.re != 0.0 || (pairs && g->beta.im != 0.0)};
    const int64_t tiles = g->batch * ((g->m + TILE - 1) / TILE) * ((g->n + TILE - 1) / TILE);
    const int64_t most = (int64_t)cuda_state_of(be)->processors * 32;
    const unsigned blocks = (unsigned)(tiles < most ? tiles : most);
    return with_real(g->dtype, [&](auto tag) {
        using T = typename decltype(tag)::type;
        using R = real_of<T>;
        if (pairs) {
            const pair<R> alpha = {(R)g->alpha.re, (R)g->alpha.im};
            const pair<R> beta = {(R)g->beta.re, (R)g->beta.im};
            plain_gemm<pair<T>, pair<R>><<<blocks, TILE_THREADS, 0, cuda_stream(be)>>>(
                s, alpha, beta, static_cast<const pair<T> *>(g->a),
                static_cast<const pair<T> *>(g->b), static_cast<pair<T> *>(g->c));
        } else {
            plain_gemm<T, R><<<blocks, TILE_THREADS, 0, cuda_stream(be)>>>(
                s, (R)g->alpha.re, (R)g->beta.re, static_cast<const T *>(g->a),
                static_cast<const T *>(g->b), static_cast<T *>(g->c));
        }
        return CUDA_LAUNCHED(be, "multiplying matrices");
    });
}

/* ---- cuBLAS ---- */

static bool suits_blas(const tg_gemm *g) {
    const tg_dtype real = tg_dtype_real(g->dtype);
    const bool pairs = tg_dtype_is_complex(g->dtype);
    const uintptr_t low = (uintptr_t)g->a | (uintptr_t)g->b | (uintptr_t)g->c;
    return (real == TG_F32 || real == TG_F64) && g->k > 0 &&
           !(pairs && (g->op_a == TG_OP_CONJ || g->op_b == TG_OP_CONJ)) &&
           low % tg_dtype_size(g->dtype) == 0;
}

/* Many products with one B whose A and C follow each other without a gap are one product. */
static void merge_batch(tg_gemm *g) {
    if (g->batch > 1 && g->stride_b == 0 && !is_transposed(g->op_a) &&
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

static blas_types blas_types_of(const tg_backend *be, tg_dtype dtype, cuda_precision precision) {
    const bool rounds = precision == CUDA_PRECISION_CHOSEN && be->math == TG_MATH_TF32;
    const cublasComputeType_t f32 = rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    switch (dtype) {
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

static tg_status gemm_blas(tg_backend *be, const tg_gemm *g, cuda_precision precision) {
    const int64_t most = 65535; /* of a grid's third dimension, on which batches may be laid */
    const blas_types types = blas_types_of(be, g->dtype, precision);
    const int64_t size = (int64_t)tg_dtype_size(g->dtype);
    /* cuBLAS reads factors as its own complex types, which are aligned to their size. */
    alignas(16) const float factors_f32[2][4] = {{(float)g->alpha.re, (float)g->alpha.im},
                                                 {(float)g->beta.re, (float)g->beta.im}};
    alignas(16)
        const double factors_f64[2][2] = {{g->alpha.re, g->alpha.im}, {g->beta.re, g->beta.im}};
    const bool wide = tg_dtype_real(g->dtype) == TG_F64;
    const void *alpha = wide ? (const void *)factors_f64[0] : factors_f32[0];
    const void *beta = wide ? (const void *)factors_f64[1] : factors_f32[1];
    tg_status status = TG_OK;
    for (int64_t first = 0; first < g->batch && status == TG_OK; first += most) {
        const int64_t count = g->batch - first < most ? g->batch - first : most;
        const char *a = static_cast<const char *>(g->a) + first * g->stride_a * size;
        const char *b = static_cast<const char *>(g->b) + first * g->stride_b * size;
        char *c = static_cast<char *>(g->c) + first * g->stride_c * size;
        status = BLAS_CHECK(be,
                            cublasGemmStridedBatchedEx_64(
                                cuda_state_of(be)->blas, blas_op(g->op_b), blas_op(g->op_a), g->n,
                                g->m, g->k, alpha, b, types.data, g->ldb, g->stride_b, a,
                                types.data, g->lda, g->stride_a, beta, c, types.data, g->ldc,
                                g->stride_c, count, types.compute, CUBLAS_GEMM_DEFAULT),
                            "multiplying matrices");
    }
    return status;
}

tg_status cuda_gemm_at(tg_backend *be, const tg_gemm *gemm, cuda_precision precision) {
    tg_status status = tg_check_gemm(be->ctx, gemm);
    if (status != TG_OK || gemm->m == 0 || gemm->n == 0 || gemm->batch == 0) {
        return status;
    }
    tg_gemm g = *gemm;
    merge_batch(&g);
    return suits_blas(&g) ? gemm_blas(be, &g, precision) : gemm_plain(be, &g);
}

tg_status cuda_gemm(tg_backend *be, const tg_gemm *gemm) {
    return cuda_gemm_at(be, gemm, CUDA_PRECISION_CHOSEN);
}
