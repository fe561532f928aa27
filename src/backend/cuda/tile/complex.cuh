/* Complex products of tiles on tensor cores, in TF32: factors in shared memory, pairs {re, im}.
 *
 * Fragments are as of mma_tf32 (instructions.cuh), parts apart. Rows that are 4 or 12 modulo 16
 * numbers apart lie in different banks whichever way a factor is read. */
#ifndef TG_BACKEND_CUDA_TILE_COMPLEX_CUH
#define TG_BACKEND_CUDA_TILE_COMPLEX_CUH

#include "backend/cuda/tile/instructions.cuh"

struct left_tile {
    float4 re, im;
};
struct right_tile {
    float2 re, im;
};
struct sum_tile {
    float re[4], im[4];
};

/* Entry (m, k) lies at x[m * row + k * column]; conjugated where `sign` is -1. */
__device__ inline left_tile load_left(const float2 *x, int row, int column, float sign, int lane) {
    const float2 *at = x + lane / 4 * row + lane % 4 * column;
    const float2 a = at[0], b = at[8 * row], c = at[4 * column], d = at[8 * row + 4 * column];
    return {make_float4(a.x, b.x, c.x, d.x),
            make_float4(sign * a.y, sign * b.y, sign * c.y, sign * d.y)};
}

/* Entry (k, n) lies at x[k * row + n * column]. */
__device__ inline right_tile load_right(const float2 *x, int row, float sign, int lane,
                                        int column = 1) {
    const float2 *at = x + lane % 4 * row + lane / 4 * column;
    const float2 a = at[0], b = at[4 * row];
    return {make_float2(a.x, b.x), make_float2(sign * a.y, sign * b.y)};
}

/* Entry (k, n) lies at x[n * row + k], and the k's of lane t are 2t and 2t + 1. */
__device__ inline right_tile load_turned(const float2 *x, int row, float sign, int lane) {
    const float4 two = *reinterpret_cast<const float4 *>(x + lane / 4 * row + 2 * (lane % 4));
    return {make_float2(two.x, two.z), make_float2(sign * two.y, sign * two.w)};
}

/* A sum as left factor with the same k's. */
__device__ inline left_tile as_left(const sum_tile &x) {
    return {make_float4(x.re[0], x.re[2], x.re[1], x.re[3]),
            make_float4(x.im[0], x.im[2], x.im[1], x.im[3])};
}

__device__ inline void multiply_add(sum_tile &sum, const left_tile &a, const right_tile &b) {
    mma_tf32(sum.re, a.re, b.re.x, b.re.y);
    mma_tf32(sum.im, a.re, b.im.x, b.im.y);
    mma_tf32(sum.re, a.im, -b.im.x, -b.im.y);
    mma_tf32(sum.im, a.im, b.re.x, b.re.y);
}

/* Calls put(row, column, number) for the numbers of a lane. */
template <class F> __device__ inline void each_number(const sum_tile &x, int lane, F put) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        put(lane / 4 + i / 2 * 8, lane % 4 * 2 + i % 2, make_float2(x.re[i], x.im[i]));
    }
}

/* Calls put(row, column, two numbers) for neighbours in a row. */
template <class F> __device__ inline void each_pair(const sum_tile &x, int lane, F put) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) {
        put(lane / 4 + i / 2 * 8, lane % 4 * 2,
            make_float4(x.re[i], x.im[i], x.re[i + 1], x.im[i + 1]));
    }
}

#endif
