/* Products that expand the last two modes with factors in shared memory
 * (last_two_modes_resident.cu), in two number formats: f32 rounded to TF32, with separate parts;
 * and complex f16, the format of Adam's directions (sm90/half_columns.cu). The first product leaves
 * a lane's results in the registers where the second one reads its left factor, if lane t has k's
 * 2t and 2t + 1. */
#ifndef TG_BACKEND_CUDA_COMPRESS_RESIDENT_PRODUCTS_CUH
#define TG_BACKEND_CUDA_COMPRESS_RESIDENT_PRODUCTS_CUH

#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/compress/factor_fragments.cuh"

/* Words from row to row of C, so that 4 rows by 8 columns are in different banks. */
static constexpr __host__ __device__ int core_stride(int tiles) {
    return tiles == 3 ? 24 : 56;
}

static __host__ __device__ inline int column_tiles(const plane_pass &s) {
    return (s.d3 + 7) / 8;
}

/* The column of number 2t of a tile; 2t + 1 is the next one. Lane t has columns 16n + 4t on of
 * tiles 2n and 2n + 1: rows have an odd number of entries, so half a warp then writes to different
 * banks. */
static __device__ inline int column_of(int tile, int tiles, int t) {
    return tile == tiles - 1 && tile % 2 == 0 ? 8 * tile + 2 * t
                                              : tile / 2 * 16 + tile % 2 * 2 + 4 * t;
}

/* ---- numbers: C, and fragments of U3 as right factor and of U2 as left one ---- */

struct in_tf32 {
    using core = float;
    using last = float4;   /* per 8 k's and tile of 8 columns: real parts of a lane's k's, then.. */
    using before = float4; /* ..imaginary ones; per 16 rows and step */
    enum { PARTS = 2, STEP = 4 }; /* of C, and rows of it */

    static __device__ last last_fragment(const factor_reader &f, int tiles, int e) {
        const int lane = e % 32, g = lane / 4, t = lane % 4;
        const int i = column_of(e / 32 % tiles, tiles, g / 2) + g % 2;
        const int j = e / 32 / tiles * 8 + 2 * t;
        const float2 u0 = factor_at(f, i, j), u1 = factor_at(f, i, j + 1);
        return make_float4(u0.x, u1.x, u0.y, u1.y);
    }
    static __device__ before before_fragment(const factor_reader &f, int steps, int e) {
        return left_fragment<false>(f, steps, e);
    }
};

struct in_f16 {
    using core = uint32_t;
    using last = uint2;   /* numbers 2t and 2t + 1 */
    using before = uint4; /* numbers t and t + 4 of rows g and g + 8 */
    enum { PARTS = 1, STEP = 8 };

    static __device__ last last_fragment(const factor_reader &f, int tiles, int e) {
        const int lane = e % 32, g = lane / 4, t = lane % 4;
        const int i = column_of(e / 32 % tiles, tiles, g / 2) + g % 2;
        const int j = e / 32 / tiles * 8 + 2 * t;
        return make_uint2(half_factor_at(f, i, j), half_factor_at(f, i, j + 1));
    }
    static __device__ before before_fragment(const factor_reader &f, int steps, int e) {
        const int lane = e % 32, g = lane / 4, t = lane % 4;
        const int k = e / 32 % steps * 8 + t, m = e / 32 / steps * 16 + g;
        return make_uint4(half_factor_at(f, m, k), half_factor_at(f, m + 8, k),
                          half_factor_at(f, m, k + 4), half_factor_at(f, m + 8, k + 4));
    }
};

/* ---- the first product: 16 rows of T, as left factor of the second one ---- */

template <int TILES> struct rows_in_tf32 { float sum[2][TILES][4]; }; /* times the gain */
template <int TILES> struct rows_in_f16 { uint32_t factor[TILES][4]; };

/* `core` is the plane's, rounded by the products; `left` are the rows' fragments. */
template <int TILES>
static __device__ inline rows_in_tf32<TILES>
multiply_core(const float *core, int steps, const float4 *left, int lane, float gain) {
    const int g = lane / 4, t = lane % 4, part = 4 * steps * core_stride(TILES);
    rows_in_tf32<TILES> rows = {};
#pragma unroll 2
    for (int k = 0; k < steps; k++) {
        const float4 re = left[k * 32 + lane], im = make_float4(-re.z, -re.w, re.x, re.y);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const float *at = core + (4 * k + t) * core_stride(TILES) + 8 * n + g;
            mma_tf32(rows.sum[0][n], re, at[0], at[part]);
            mma_tf32(rows.sum[1][n], im, at[0], at[part]);
        }
    }
    const float by = to_tf32(TF32_CUT * gain);
#pragma unroll
    for (int e = 0; e < 8 * TILES; e++) {
        float *x = &rows.sum[e / (4 * TILES)][e / 4 % TILES][e % 4];
        *x *= by;
    }
    return rows;
}

template <int TILES>
static __device__ inline rows_in_f16<TILES> multiply_core(const uint32_t *core, int steps,
                                                          const uint4 *left, int lane, float) {
    const int g = lane / 4, t = lane % 4;
    float sum[2][TILES][4] = {};
#pragma unroll 2
    for (int k = 0; k < steps; k++) {
        const uint4 v = left[k * 32 + lane];
        const uint32_t re[4] = {half_pair_for(v.x, 0), half_pair_for(v.y, 0), half_pair_for(v.z, 0),
                                half_pair_for(v.w, 0)};
        const uint32_t im[4] = {half_pair_for(v.x, 1), half_pair_for(v.y, 1), half_pair_for(v.z, 1),
                                half_pair_for(v.w, 1)};
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const uint32_t *at = core + (8 * k + t) * core_stride(TILES) + 8 * n + g;
            const uint32_t first = at[0], second = at[4 * core_stride(TILES)];
            mma_f16(sum[0][n], re, first, second);
            mma_f16(sum[1][n], im, first, second);
        }
    }
    rows_in_f16<TILES> rows;
#pragma unroll
    for (int n = 0; n < TILES; n++) {
        const float *x = sum[0][n], *y = sum[1][n];
        rows.factor[n][0] = half_pair(x[0], y[0]);
        rows.factor[n][1] = half_pair(x[2], y[2]);
        rows.factor[n][2] = half_pair(x[1], y[1]);
        rows.factor[n][3] = half_pair(x[3], y[3]);
    }
    return rows;
}

/* ---- the second product: both parts of N tiles of columns ---- */

template <int N> struct tiles_of_out { float sum[N][2][4]; };

/* `right`: fragments of the first 8 k's, each further 8 `next` later. Times the gain. */
template <int N, int TILES>
static __device__ inline void multiply_tiles(const rows_in_tf32<TILES> &rows, float,
                                             const float4 *right, int next, tiles_of_out<N> *out) {
#pragma unroll
    for (int k = 0; k < TILES; k++) {
        const float *x = rows.sum[0][k], *y = rows.sum[1][k];
        const float4 re = make_float4(x[0], x[2], x[1], x[3]);
        const float4 im = make_float4(y[0], y[2], y[1], y[3]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float4 u = right[k * next + n * 32];
            mma_tf32(out->sum[n][0], re, u.x, u.y);
            mma_tf32(out->sum[n][1], re, u.z, u.w);
            mma_tf32(out->sum[n][0], im, -u.z, -u.w);
            mma_tf32(out->sum[n][1], im, u.x, u.y);
        }
    }
}

template <int N, int TILES>
static __device__ inline void multiply_tiles(const rows_in_f16<TILES> &rows, float gain,
                                             const uint2 *right, int next, tiles_of_out<N> *out) {
#pragma unroll
    for (int k = 0; k < TILES; k++) {
#pragma unroll
        for (int n = 0; n < N; n++) {
            const uint2 u = right[k * next + n * 32];
            mma_f16(out->sum[n][0], rows.factor[k], half_pair_for(u.x, 0), half_pair_for(u.y, 0));
            mma_f16(out->sum[n][1], rows.factor[k], half_pair_for(u.x, 1), half_pair_for(u.y, 1));
        }
    }
#pragma unroll
    for (int e = 0; e < 8 * N; e++) {
        out->sum[e / 8][e / 4 % 2][e % 4] *= gain;
    }
}

/* Stores N tiles from `tile` on to `made`, (16, cols), from the lane's first row on. */
template <int N, class ROWS, class LAST>
static __device__ inline void make_tiles(const ROWS &rows, float gain, const LAST *right, int tile,
                                         int tiles, float2 *made, int cols, int lane) {
    tiles_of_out<N> out = {};
    const int col = column_of(tile, tiles, lane % 4);
    multiply_tiles(rows, gain, right + tile * 32 + lane, tiles * 32, &out);
#pragma unroll
    for (int c = 0; c < 2 * N; c++) {
        const float *re = out.sum[c / 2][0] + c % 2, *im = out.sum[c / 2][1] + c % 2;
        if (c < cols - col) {
            made[col + c] = make_float2(re[0], im[0]);
            made[8 * cols + col + c] = make_float2(re[2], im[2]);
        }
    }
}

template <bool COMMON, class ROWS, class LAST>
static __device__ inline void multiply_rows(const ROWS &rows, float gain, const LAST *right,
                                            int tiles, float2 *made, int cols, int lane) {
    float2 *row = made + lane / 4 * cols;
    int n = 0;
#pragma unroll(COMMON ? 2 : 1)
    for (; n + 1 < tiles; n += 2) {
        make_tiles<2>(rows, gain, right, n, tiles, row, cols, lane);
    }
    if (n < tiles) {
        make_tiles<1>(rows, gain, right, n, tiles, row, cols, lane);
    }
}

#endif
