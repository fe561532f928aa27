/* Factors as the fragments of tensor cores (tile/instructions.cuh). */
#ifndef TG_BACKEND_CUDA_COMPRESS_FACTOR_FRAGMENTS_CUH
#define TG_BACKEND_CUDA_COMPRESS_FACTOR_FRAGMENTS_CUH

#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/tile/instructions.cuh"
#include "backend/cuda/tile/warpgroup.cuh"

/* U[i][j], or 0 outside. */
struct factor_reader {
    const float *u; /* (dim, rank) pairs, aligned to their parts */
    int dim, rank;
};

static inline factor_reader reader_of(const cuda_factor *factor) {
    return {static_cast<const float *>(factor->u), (int)factor->dim, (int)factor->rank};
}

__device__ inline float2 number_at(const factor_reader &f, int i, int j) {
    if (i >= f.dim || j >= f.rank) {
        return make_float2(0.0f, 0.0f);
    }
    const float *entry = f.u + 2 * (i * f.rank + j);
    return make_float2(entry[0], entry[1]);
}
/* The same as factor in TF32, and in f16. */
__device__ inline float2 factor_at(const factor_reader &f, int i, int j) {
    const float2 u = number_at(f, i, j);
    return make_float2(to_tf32(u.x), to_tf32(u.y));
}
__device__ inline uint32_t half_factor_at(const factor_reader &f, int i, int j) {
    const float2 u = number_at(f, i, j);
    return half_pair(u.x, u.y);
}

/* What a thread of a block has of U, from row and column `first` of its own on: a warp has rows,
 * its lanes have columns. Beyond the last row it is taken again instead of a branch. */
template <int ROWS, int ACROSS> struct factor_share {
    float2 u[ROWS][ACROSS];

    static __device__ int row(const factor_reader &f, int first, int q) {
        const int i = min(first + q * ((int)blockDim.x / 32), f.dim - 1);
        __builtin_assume(i >= 0); /* places are found by divisions */
        return i;
    }
    __device__ void load(const factor_reader &f, int first, int column) {
#pragma unroll
        for (int e = 0; e < ROWS * ACROSS; e++) {
            const int j = min(column + e % ACROSS * 32, f.rank - 1);
            const float *from = f.u + 2 * (row(f, first, e / ACROSS) * f.rank + j);
            u[e / ACROSS][e % ACROSS] = make_float2(__ldg(from), __ldg(from + 1));
        }
    }
    /* put(i, j, U[i][j]), where U[i][j] are the bits of an f32. */
    template <class F>
    __device__ void put(const factor_reader &f, int first, int column, F put) const {
#pragma unroll
        for (int p = 0; p < ACROSS; p++) {
            const int j = column + 32 * p;
            __builtin_assume(j >= 0);
            if (j < f.rank) {
#pragma unroll
                for (int q = 0; q < ROWS; q++) {
                    put(row(f, first, q), j, u[q][p]);
                }
            }
        }
    }
};

/* Calls put(i, j, U[i][j]) for every entry of U, by all threads of a block, AT_ONCE rows by 64
 * columns of which are on their way at a time: as many as a warp has rows or a few more. */
template <int AT_ONCE = 12, class F>
__device__ inline void for_each_number(const factor_reader &f, F put) {
    const int warps = (int)blockDim.x / 32;
    for (int column = (int)threadIdx.x % 32; column < f.rank; column += 64) {
        for (int first = (int)threadIdx.x / 32; first < f.dim; first += AT_ONCE * warps) {
            factor_share<AT_ONCE, 2> share;
            share.load(f, first, column);
            share.put(f, first, column, put);
        }
    }
}

/* The same with put(i, j, entry, 0), where an entry is a factor in TF32; SPLIT: with both terms of
 * it, which are numbers 0 and 1. */
template <bool SPLIT, int AT_ONCE = 12, class F>
__device__ inline void for_each_term(const factor_reader &f, F put) {
    for_each_number<AT_ONCE>(f, [&](int i, int j, float2 u) {
        if constexpr (SPLIT) {
            const tf32_terms re = terms_of(__float_as_uint(u.x)),
                             im = terms_of(__float_as_uint(u.y));
            put(i, j, make_float2(re.first, im.first), 0);
            put(i, j, make_float2(to_tf32(re.second), to_tf32(im.second)), 1);
        } else {
            put(i, j, make_float2(to_tf32(u.x), to_tf32(u.y)), 0);
        }
    });
}

/* U[i][j] in f16 as number k of what makes column i of a product, with N columns of both parts. */
template <int N> __device__ inline void put_half_number(char *matrix, int i, int k, float2 u) {
    const uint32_t pair = half_pair(u.x, u.y);
#pragma unroll
    for (int part = 0; part < 2; part++) {
        *reinterpret_cast<uint32_t *>(matrix + wg_at<N>(2 * i + part, k)) =
            half_pair_for(pair, part);
    }
}

/* What goes from the parts of a number to part `to` of its product with conj(u), or with u. */
__device__ inline float2 towards(float2 u, int to) {
    return to == 0 ? u : make_float2(-u.y, u.x);
}
__device__ inline float2 back_to(float2 u, int to) {
    return to == 0 ? make_float2(u.x, -u.y) : make_float2(u.y, u.x);
}

/* U as left factor of what gives real parts: per tile of 16 rows and step of 4 numbers, 8 k's,
 * {g k0, g + 8 k0, g k1, g + 8 k1} of a lane. */
__device__ inline float4 left_fragment(const factor_reader &f, int steps, int e) {
    const int lane = e % 32, g = lane / 4, t = lane % 4;
    const int k = e / 32 % steps * 4 + t, tile = e / 32 / steps;
    float2 row[2];
    for (int h = 0; h < 2; h++) {
        row[h] = back_to(factor_at(f, tile * 16 + g + 8 * h, k), 0);
    }
    return make_float4(row[0].x, row[1].x, row[0].y, row[1].y);
}

#endif
