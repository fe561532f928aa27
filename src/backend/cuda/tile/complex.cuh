/* Complex products of tiles on tensor cores, in TF32: factors in shared memory, pairs {re, im}.
 *
 * The eight k's of mma_tf32 hold both parts of four numbers, its 16 rows those of eight results:
 *   | re |    | a.re  -a.im |   | b.re |
 *   | im | += | a.im   a.re | * | b.im |
 * The right factor is used as loaded, the left factor together with a copy whose parts are swapped.
 * `right` is the sign of the right factor's imaginary part: -1 to conjugate it. For a conjugated
 * left factor, conjugate the result instead.
 *
 * With a row pitch of 4 or 12 modulo 16 numbers, rows are in different banks whichever way a factor
 * is read number by number. */
#ifndef TG_BACKEND_CUDA_TILE_COMPLEX_CUH
#define TG_BACKEND_CUDA_TILE_COMPLEX_CUH

#include "backend/cuda/tile/instructions.cuh"

/* (8, 4): lane 4 g + t has row g, k = t. */
struct left_tile {
    float4 a; /* {re, im, -im, re} */
};
/* (4, 8): k = t, column g. */
struct right_tile {
    float2 b;
};
/* (8, 8): row g, columns 2t and 2t + 1. */
struct sum_tile {
    float c[4]; /* both numbers' re, both numbers' im */
};

__device__ inline left_tile left_number(float re, float im, float right) {
    return {make_float4(re, im, -right * im, right * re)};
}

/* Entry (m, k) is x[m * row + k * column]. */
__device__ inline left_tile load_left(const float2 *x, int row, int column, float right, int lane) {
    const float2 a = x[lane / 4 * row + lane % 4 * column];
    return left_number(a.x, a.y, right);
}

/* Entry (k, n) is x[k * row + n * column]. */
__device__ inline right_tile load_right(const float2 *x, int row, int column, int lane) {
    return {x[lane % 4 * row + lane / 4 * column]};
}

/* Two tiles of eight k's, the even ones first, stored transposed: k's 2t and 2t + 1 of column g. */
struct transposed_tiles {
    float4 both;
    __device__ right_tile tile(int i) const {
        return {i == 0 ? make_float2(both.x, both.y) : make_float2(both.z, both.w)};
    }
};

/* A sum as left factor, with the same k order as a transposed one: i is 0 or 1. */
__device__ inline left_tile as_left(const sum_tile &x, int i, float right) {
    return left_number(x.c[i], x.c[2 + i], right);
}

__device__ inline void multiply_add(sum_tile &sum, const left_tile &a, const right_tile &b) {
    mma_tf32(sum.c, a.a, b.b.x, b.b.y);
}

/* Calls put(row, column, number) for each number of a lane. */
template <class F> __device__ inline void each_number(const sum_tile &x, int lane, F put) {
    put(lane / 4, lane % 4 * 2, make_float2(x.c[0], x.c[2]));
    put(lane / 4, lane % 4 * 2 + 1, make_float2(x.c[1], x.c[3]));
}

/* Calls put(row, column, two numbers) for each pair of neighbours in a row. */
template <class F> __device__ inline void each_pair(const sum_tile &x, int lane, F put) {
    put(lane / 4, lane % 4 * 2, make_float4(x.c[0], x.c[2], x.c[1], x.c[3]));
}

#endif
