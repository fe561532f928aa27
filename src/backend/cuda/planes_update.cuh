/* The two products of the way back of planes where a warp takes 16 rows, and the update of a weight
 * with what they give; see planes_resident.cu. */
#ifndef TG_BACKEND_CUDA_PLANES_UPDATE_CUH
#define TG_BACKEND_CUDA_PLANES_UPDATE_CUH

#include "backend/cuda/compress.cuh"
#include "backend/cuda/instructions.cuh"

enum {
    SHARE = 16,  /* rows of a warp */
    TOGETHER = 4 /* tiles of columns */
};

/* Reals from row to row of C, in which 4 rows by 8 columns lie in different banks. */
static constexpr __host__ __device__ int core_stride(int tiles) {
    return tiles == 3 ? 24 : 56;
}

/* ---- products ---- */

/* Both parts of 16 rows of T. */
template <int TILES> struct rows_of_t { float sum[2][TILES][4]; };

/* `core` is of the plane, `left` are fragments of the rows. */
template <int TILES>
static __device__ inline rows_of_t<TILES> multiply_core(const float *core, int steps,
                                                        const float4 *left, int lane) {
    const int g = lane / 4, t = lane % 4, part = 4 * steps * core_stride(TILES);
    rows_of_t<TILES> rows = {};
#pragma unroll 2
    for (int k = 0; k < steps; k++) {
        const float4 re = left[k * 32 + lane], im = make_float4(-re.z, -re.w, re.x, re.y);
#pragma unroll
        for (int n = 0; n < TILES; n++) {
            const float *at = core + (4 * k + t) * core_stride(TILES) + 8 * n + g;
            const float b0 = to_tf32(at[0]), b1 = to_tf32(at[part]);
            mma_tf32(rows.sum[0][n], re, b0, b1);
            mma_tf32(rows.sum[1][n], im, b0, b1);
        }
    }
#pragma unroll
    for (int e = 0; e < 8 * TILES; e++) {
        float *x = &rows.sum[e / (4 * TILES)][e / 4 % TILES][e % 4];
        *x = to_tf32(*x);
    }
    return rows;
}

/* N tiles of columns of G; `right`: their fragments of the first 8 k's, `next` behind each other.
 */
template <int N, int TILES>
static __device__ inline void multiply_rows(float (&sum)[N][4], const rows_of_t<TILES> &rows,
                                            const float2 *right, int next, int lane) {
#pragma unroll
    for (int k = 0; k < 2 * TILES; k++) {
        const float *c = rows.sum[k / TILES][k % TILES];
        const float4 a = make_float4(c[0], c[2], c[1], c[3]);
#pragma unroll
        for (int n = 0; n < N; n++) {
            const float2 b = right[k * next + n * 32 + lane];
            mma_tf32(sum[n], a, b.x, b.y);
        }
    }
}

/* ---- the update ---- */

/* Lanes apart by `lane_bit` exchange: what the lower one has in `high` for what the upper one has
 * in `low`. */
static __device__ inline void exchange(float2 *low, float2 *high, int lane_bit, int lane) {
    const bool upper = lane & lane_bit;
    const float2 gives = upper ? *low : *high;
    const float2 gets = make_float2(__shfl_xor_sync(~0u, gives.x, lane_bit),
                                    __shfl_xor_sync(~0u, gives.y, lane_bit));
    *low = upper ? gets : *low;
    *high = upper ? *high : gets;
}

/* Pair n of lane 4 g + t is column 4 n + t of row g; after this pair q of lane 16 h + c is column c
 * of row 4 h + q. */
static __device__ inline void turn(float2 *pairs, int lane) {
    exchange(&pairs[0], &pairs[1], 4, lane);
    exchange(&pairs[2], &pairs[3], 4, lane);
    exchange(&pairs[0], &pairs[2], 8, lane);
    exchange(&pairs[1], &pairs[3], 8, lane);
}

/* What a warp updates: rows of a plane. */
template <class O> struct resident_share {
    number<O, 2> *out;     /* its first row */
    int64_t entry;         /* which it begins with */
    int rows, cols;        /* that there are */
    const kept_run *found; /* of the rank blocks.. */
    int at;                /* ..among whose entries out is this one */
    const number<float, 2> *values;
    float alpha, beta, lambda;
    const tg_rng *rounding;
};

/* The entries of a lane in N tiles lie in one column: of these rows behind its first one. */
template <int N> static constexpr __device__ int row_of(int i) {
    return N == 1 ? 8 * i : i / 4 * 8 + i % 4;
}

/* The value of an entry, 0 if none is kept there; without a branch, so that several are on their
 * way at a time. */
template <bool WHOLE, class O>
static __device__ inline float2 value_of(const resident_share<O> &to, int entry, bool exists) {
    const kept_run run = to.found[(unsigned)entry / 32];
    const int wanted = exists && is_kept(run, entry % 32);
    const number<float, 2> *from = to.values + position_of(run, entry % 32);
    float2 x = make_float2(0.0f, 0.0f);
    if (WHOLE) {
        asm("{ .reg .pred p; setp.ne.s32 p, %3, 0; @p ld.global.cs.v2.f32 {%0, %1}, [%2]; }"
            : "+f"(x.x), "+f"(x.y)
            : "l"(from), "r"(wanted));
    } else if (wanted) {
        x = make_float2(from->part[0], from->part[1]);
    }
    return x;
}

/* The first entry of a lane in the columns [4 first, 4 first + 4 N) of a share, and how many of the
 * rows from there on exist. */
struct lane_place {
    int at, live;
};

template <int N, class O>
static __device__ inline lane_place place_of(const resident_share<O> &to, int first, int lane) {
    const int row = N == 1 ? lane / 4 : lane / 16 * 4;
    const int col = 4 * first + (N == 1 ? lane % 4 : lane % 16);
    return {row * to.cols + col, col < to.cols ? to.rows - row : 0};
}

/* What those entries of out are; 0 where that is not wanted. */
template <int N, bool WHOLE, class O>
static __device__ inline void load_old(const resident_share<O> &to, int first, int lane,
                                       number<O, 2> (&old)[2 * N]) {
    const lane_place place = place_of<N>(to, first, lane);
#pragma unroll
    for (int i = 0; i < 2 * N; i++) {
        old[i] = number<O, 2>();
        if (to.beta != 0.0f && row_of<N>(i) < place.live) {
            old[i] = load_once(to.out + place.at + (unsigned)(row_of<N>(i) * to.cols), WHOLE);
        }
    }
}

/* Columns [4 first, 4 first + 4 N) of a share, as far as there are. */
template <int N, bool KEPT, bool WHOLE, bool ROUNDED, class O, int TILES>
static __device__ inline void
update_tiles(const resident_share<O> &to, const rows_of_t<TILES> &rows,
             const number<O, 2> (&old)[2 * N], int first, const float2 *last, int next, int lane) {
    constexpr int ENTRIES = 2 * N;
    const lane_place place = place_of<N>(to, first, lane);
    const int at = place.at, live = place.live;
    number<O, 2> *out = to.out + at;
    float2 value[ENTRIES] = {};
#pragma unroll
    for (int i = 0; KEPT && i < ENTRIES; i++) {
        const int r = row_of<N>(i);
        value[i] = value_of<WHOLE>(to, to.at + at + r * to.cols, r < live);
    }
    float sum[N][4] = {};
    multiply_rows(sum, rows, last + first * 32, next, lane);
    float2 x[ENTRIES];
#pragma unroll
    for (int h = 0; h < 2; h++) { /* 8 rows each */
#pragma unroll
        for (int n = 0; n < N; n++) {
            x[h * N + n] = make_float2(sum[n][2 * h], sum[n][2 * h + 1]);
        }
        if (N == TOGETHER) {
            turn(x + h * N, lane);
        }
    }
#pragma unroll
    for (int i = 0; i < ENTRIES; i++) {
        const number<float, 2> before = widen(old[i]);
        number<float, 2> y;
        y.part[0] = to.beta * before.part[0] + to.alpha * (x[i].x + to.lambda * value[i].x);
        y.part[1] = to.beta * before.part[1] + to.alpha * (x[i].y + to.lambda * value[i].y);
        const int behind = row_of<N>(i) * to.cols;
        if (row_of<N>(i) < live) {
            store_once(out + (unsigned)behind,
                       rounded<ROUNDED, O, 2>(*to.rounding, to.entry + at + behind, y), WHOLE);
        }
    }
}

/* `early`: of the first four tiles, loaded before. */
template <bool KEPT, bool WHOLE, bool ROUNDED, class O, int TILES>
static __device__ inline void
update_share(const resident_share<O> &to, const rows_of_t<TILES> &rows,
             number<O, 2> (&early)[2 * TOGETHER], const float2 *last, int next, int lane) {
    const int tiles = (to.cols + 3) / 4;
    int first = 0;
    for (; first + 1 < tiles; first += TOGETHER) { /* tiles beyond the last one: made, not kept */
        if (first > 0) {
            load_old<TOGETHER, WHOLE>(to, first, lane, early);
        }
        update_tiles<TOGETHER, KEPT, WHOLE, ROUNDED>(to, rows, early, first, last, next, lane);
    }
    if (first < tiles) {
        number<O, 2> old[2];
        load_old<1, WHOLE>(to, first, lane, old);
        update_tiles<1, KEPT, WHOLE, ROUNDED>(to, rows, old, first, last, next, lane);
    }
}

#endif
