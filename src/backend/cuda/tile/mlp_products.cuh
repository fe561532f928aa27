/* Products of a tile on tensor cores, by the 8 warps of a block.
 *
 * In shared memory lie the weights, row by row, and the activations of a tile (channels, TILE), all
 * rounded to TF32 as they are written; sizes are rounded up and filled with zeros. No load of them
 * meets a bank conflict: rows of activations are TILE_LD apart, the columns of weights are swapped
 * in groups of 8 (weight_at), and products over channels take k0 = 2t, k1 = 2t + 1
 * (instructions.cuh), those over pixels k0 = t, k1 = t + 4. */
#ifndef TG_BACKEND_CUDA_TILE_MLP_PRODUCTS_CUH
#define TG_BACKEND_CUDA_TILE_MLP_PRODUCTS_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/instructions.cuh"

enum {
    TILE = 64,
    TILE_LD = TILE + 4,
    TENSOR_THREADS = 256,
    TENSOR_BLOCKS = 2 /* of a multiprocessor at most: bounds the partial sums */
};

__device__ inline float *dynamic_shared() {
    extern __shared__ float4 shared_memory[];
    return reinterpret_cast<float *>(shared_memory);
}

/* ---- how warps share a product (M, N) ---- */

/* Where N are pixels, the fragments of a warp are woven, two by two: column j of fragments 2 r and
 * 2 r + 1 are pixels 16 r + 2 j and 16 r + 2 j + 1, so that a thread has RUN pixels in a row. */
template <int M, int N> struct split {
    static constexpr int down = M >= N ? (M >= 64 ? 4 : M / 16) : (M >= 32 ? 2 : 1);
    static constexpr int across = 8 / down;
    static constexpr int MT = M / 16 / down, NT = N / 8 / across; /* fragments of a warp */
    static_assert(MT * down * 16 == M && NT * across * 8 == N, "whole fragments only");
    static constexpr int WEAVE = NT > 1 ? 2 : 1, RUN = 2 * WEAVE, RUNS = NT / WEAVE;
    float acc[MT][NT][4];

    __device__ void clear() {
        for (int m = 0; m < MT; m++) {
            for (int n = 0; n < NT; n++) {
                for (int i = 0; i < 4; i++) {
                    acc[m][n][i] = 0.0f;
                }
            }
        }
    }
    __device__ void add(const split &other) {
        for (int m = 0; m < MT; m++) {
            for (int n = 0; n < NT; n++) {
                for (int i = 0; i < 4; i++) {
                    acc[m][n][i] += other.acc[m][n][i];
                }
            }
        }
    }
    __device__ void multiply(float scale) {
        for (int m = 0; m < MT; m++) {
            for (int n = 0; n < NT; n++) {
                for (int i = 0; i < 4; i++) {
                    acc[m][n][i] *= scale;
                }
            }
        }
    }
    static __device__ int first_row() {
        return (int)threadIdx.x / 32 / across * (MT * 16);
    }
    static __device__ int first_column() {
        return (int)threadIdx.x / 32 % across * (NT * 8);
    }
    /* Row of acc[m][.][2 h]; column of acc[.][n][0], [1] being the next, if N are not pixels. */
    static __device__ int row(int m, int h) {
        return first_row() + 16 * m + 8 * h + (int)threadIdx.x % 32 / 4;
    }
    static __device__ int column(int n) {
        return first_column() + 8 * n + (int)threadIdx.x % 4 * 2;
    }
    /* The first pixel of run r, and what is at pixel e of it. */
    static __device__ int pixel(int r) {
        return first_column() + 8 * WEAVE * r + (int)threadIdx.x % 4 * RUN;
    }
    __device__ float &at(int m, int h, int r, int e) {
        return acc[m][r * WEAVE + e % WEAVE][2 * h + e / WEAVE];
    }
    __device__ float at(int m, int h, int r, int e) const {
        return acc[m][r * WEAVE + e % WEAVE][2 * h + e / WEAVE];
    }
};

/* ---- weights in shared memory ---- */

__device__ inline int swap_of(int row) {
    const int r = row % 8;
    return (r + r / 4) % 4;
}

__device__ inline int weight_at(int row, int column, int ld) {
    return row * ld + (column ^ (8 * swap_of(row)));
}

/* Rows are at least 32 apart: the swapping reaches that far. */
__host__ __device__ constexpr int weight_ld(int columns) {
    return columns < 32 ? 32 : columns;
}

/* alpha w (rows, columns), its rows w_ld apart, as (ROWS, COLUMNS). */
template <int ROWS, int COLUMNS>
__device__ inline void load_weights(float *to, float alpha, const float *w, int rows, int columns,
                                    int w_ld) {
    for (int e = threadIdx.x; e < ROWS * COLUMNS; e += TENSOR_THREADS) {
        const int r = e / COLUMNS, c = e % COLUMNS;
        to[weight_at(r, c, weight_ld(COLUMNS))] =
            r < rows && c < columns ? to_tf32(alpha * w[(int64_t)r * w_ld + c]) : 0.0f;
    }
}

/* A run of pixels to a tile. */
__device__ inline void put_run(float *to, const float (&v)[4]) {
    *reinterpret_cast<float4 *>(to) = {v[0], v[1], v[2], v[3]};
}
__device__ inline void put_run(float *to, const float (&v)[2]) {
    *reinterpret_cast<float2 *>(to) = {v[0], v[1]};
}

/* ---- products ---- */

/* The factors b of a warp's fragments from two rows of a tile; `at`: the first one at the lane's
 * place. */
template <class S> __device__ inline void load_rows(float (&b)[S::NT][2], const float *at) {
#pragma unroll
    for (int r = 0; r < S::RUNS; r++) {
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if constexpr (S::WEAVE == 2) {
                const float2 v = *reinterpret_cast<const float2 *>(at + k * TILE_LD + 16 * r);
                b[2 * r][k] = v.x;
                b[2 * r + 1][k] = v.y;
            } else {
                b[r][k] = at[k * TILE_LD + 8 * r];
            }
        }
    }
}

/* p += W x, W (M, K) in shared memory, x (K, TILE). */
template <int M, int K>
__device__ inline void add_product(split<M, TILE> &p, const float *w, const float *x) {
    using S = split<M, TILE>;
    constexpr int ld = weight_ld(K);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, swap = swap_of(g);
    const float *rows = w + (S::first_row() + g) * ld + 2 * t;
    const float *columns = x + 2 * t * TILE_LD + S::first_column() + S::WEAVE * g;
#pragma unroll 4
    for (int k = 0; k < K / 8; k++) {
        float b[S::NT][2];
        load_rows<S>(b, columns + 8 * k * TILE_LD);
        for (int m = 0; m < S::MT; m++) {
            const float *at = rows + 16 * m * ld + 8 * (k ^ swap);
            const float2 upper = *reinterpret_cast<const float2 *>(at);
            const float2 lower = *reinterpret_cast<const float2 *>(at + 8 * ld);
            for (int n = 0; n < S::NT; n++) {
                mma_tf32(p.acc[m][n], {upper.x, lower.x, upper.y, lower.y}, b[n][0], b[n][1]);
            }
        }
    }
}

/* p += W^T x, W (K, M) in shared memory, x (K, TILE). */
template <int M, int K>
__device__ inline void add_adjoint_product(split<M, TILE> &p, const float *w, const float *x) {
    using S = split<M, TILE>;
    constexpr int ld = weight_ld(M);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int swap0 = swap_of(2 * t), swap1 = swap_of(2 * t + 1), group = S::first_row() / 8;
    const float *rows = w + 2 * t * ld + g;
    const float *columns = x + 2 * t * TILE_LD + S::first_column() + S::WEAVE * g;
#pragma unroll 4
    for (int k = 0; k < K / 8; k++) {
        float b[S::NT][2];
        load_rows<S>(b, columns + 8 * k * TILE_LD);
        const float *row0 = rows + 8 * k * ld, *row1 = row0 + ld;
        for (int m = 0; m < S::MT; m++) {
            const int upper = group + 2 * m, lower = upper + 1;
            const float4 a = {row0[8 * (upper ^ swap0)], row0[8 * (lower ^ swap0)],
                              row1[8 * (upper ^ swap1)], row1[8 * (lower ^ swap1)]};
            for (int n = 0; n < S::NT; n++) {
                mma_tf32(p.acc[m][n], a, b[n][0], b[n][1]);
            }
        }
    }
}

/* p += x y^T, x (M, TILE), y (N, TILE): the sum over the pixels of a tile. */
template <int M, int N>
__device__ inline void add_correlation(split<M, N> &p, const float *x, const float *y) {
    using S = split<M, N>;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float *rows = x + (S::first_row() + g) * TILE_LD + t;
    const float *columns = y + (S::first_column() + g) * TILE_LD + t;
#pragma unroll 2
    for (int k = 0; k < TILE / 8; k++) {
        float b[S::NT][2];
        for (int n = 0; n < S::NT; n++) {
            b[n][0] = columns[8 * n * TILE_LD + 8 * k];
            b[n][1] = columns[8 * n * TILE_LD + 8 * k + 4];
        }
        for (int m = 0; m < S::MT; m++) {
            const float *at = rows + 16 * m * TILE_LD + 8 * k;
            const float4 a = {at[0], at[8 * TILE_LD], at[4], at[8 * TILE_LD + 4]};
            for (int n = 0; n < S::NT; n++) {
                mma_tf32(p.acc[m][n], a, b[n][0], b[n][1]);
            }
        }
    }
}

#endif
