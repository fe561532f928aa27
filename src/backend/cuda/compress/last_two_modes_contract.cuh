/* What the two passes over planes to the core share that keep both factors in shared memory:
 * last_two_modes_contract.cu, for planes in memory, and last_two_modes_form.cu, for those that are
 * formed on the way.
 *
 * For a plane G (d2, d3), with its rows in columns of products and everything turned,
 *   T[j3][i2]    = sum over i3 of conj(U3)[i3][j3] G[i2][i3],
 *   out[j3][j2]  = sum over i2 of T[j3][i2] conj(U2)[i2][j2].
 * What the first product leaves in the registers of a lane is what the second one wants there as
 * its left factor, if its k's 2t and 2t + 1 are those of lane t. So a warp that takes 16 rows j3
 * needs no other one: a crew of as many warps as there are such tiles walks over planes of its own,
 * of which 16 rows at a time lie in shared memory, the next ones coming while these are multiplied.
 */
#ifndef TG_BACKEND_CUDA_COMPRESS_LAST_TWO_MODES_CONTRACT_CUH
#define TG_BACKEND_CUDA_COMPRESS_LAST_TWO_MODES_CONTRACT_CUH

#include "backend/cuda/compress/factor_fragments.cuh"

enum { CONTRACT_THREADS = 384, CONTRACT_WARPS = CONTRACT_THREADS / 32, STAGE_ROWS = 16 };

/* Sizes that kernels are made for: steps of 4 entries of a row, tiles of 8 columns j2. None where
 * steps == 0. */
struct contract_shape {
    int steps, tiles;
    int crew;   /* warps */
    int chunks; /* of STAGE_ROWS, of a plane */
};

static inline contract_shape shape_of(const cuda_planes &s) {
    contract_shape c = contract_shape();
    const int tiles = s.r2 <= 48 ? 6 : s.r2 <= 88 ? 11 : 12;
    const bool has_room = tiles <= (s.r2 + 15) / 16 * 2; /* in the workspace, for all of them */
    if (s.tiles > 0 && s.d3 > 20 && s.r2 <= 96 && has_room) {
        c.steps = s.d3 <= 36 ? 9 : 17;
        c.tiles = tiles;
        c.crew = (s.r3 + 15) / 16;
        c.chunks = s.rows / STAGE_ROWS;
    }
    return c;
}

/* Fragments of both factors, as float4. */
static __host__ __device__ inline int last_fragments(const contract_shape &c) {
    return c.crew * c.steps * 32;
}
static __host__ __device__ inline int before_fragments(const contract_shape &c) {
    return c.chunks * (STAGE_ROWS / 8) * c.tiles * 32;
}

/* Where they lie. */
static inline float4 *last_of(const cuda_plan *plan, void *workspace) {
    return reinterpret_cast<float4 *>(const_cast<float2 *>(cuda_planes_last(plan, workspace)));
}
static inline float4 *before_of(const cuda_plan *plan, void *workspace) {
    return const_cast<float4 *>(cuda_planes_before(plan, workspace));
}

/* Bytes of a block; 0 if that cannot be found out. */
static inline int most_shared(const tg_backend *be) {
    int most = 0;
    const cudaError_t error = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                                     cuda_state_of(be)->device);
    return error == cudaSuccess ? most : 0;
}

/* ---- products ---- */

/* T of 16 rows j3 and 8 columns i2, parts apart. */
struct turned_tile {
    float re[4], im[4];
};

/* Of both halves of a stage, the steps [begin, end). READY: its rows are rounded. */
template <int STEPS, bool READY>
static __device__ inline void multiply_stage(turned_tile (&x)[2], const float *stage,
                                             const float4 *left, int begin, int end, int lane) {
    const float *at = stage + lane / 4 * (8 * STEPS) + 2 * (lane % 4);
    const auto pair_at = [&](int k, int h) {
        return *reinterpret_cast<const float2 *>(at + 8 * h * (8 * STEPS) + 8 * k);
    };
    float4 a = left[begin * 32 + lane]; /* always one step ahead */
    float2 b[2] = {pair_at(begin, 0), pair_at(begin, 1)};
#pragma unroll 2
    for (int k = begin; k < end; k++) {
        const int later = k + 1 < end ? k + 1 : begin;
        const float4 a_now = a;
        const float2 b_now[2] = {b[0], b[1]};
        a = left[later * 32 + lane];
        b[0] = pair_at(later, 0);
        b[1] = pair_at(later, 1);
        asm volatile("" ::: "memory"); /* the loads do not wait for the products */
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const float re = READY ? b_now[h].x : to_tf32(b_now[h].x);
            const float im = READY ? b_now[h].y : to_tf32(b_now[h].y);
            mma_tf32(x[h].re, a_now, re, im);
            mma_tf32(x[h].im, a_now, im, -re);
        }
    }
}

/* sum += T times 8 rows of U2, of the tiles [BEGIN, END). */
template <int BEGIN, int END, int TILES>
static __device__ inline void add_turned(float (&sum)[2][TILES][4], const turned_tile &x,
                                         const float4 *right, int lane) {
    float4 re = make_float4(x.re[0], x.re[2], x.re[1], x.re[3]);
    float4 im = make_float4(x.im[0], x.im[2], x.im[1], x.im[3]);
    re = make_float4(to_tf32(re.x), to_tf32(re.y), to_tf32(re.z), to_tf32(re.w));
    im = make_float4(to_tf32(im.x), to_tf32(im.y), to_tf32(im.z), to_tf32(im.w));
    const float4 minus = make_float4(-re.x, -re.y, -re.z, -re.w);
#pragma unroll
    for (int n = BEGIN; n < END; n++) {
        if (n % 3 == 0) { /* fragments are not loaded long before they are used */
            asm volatile("" ::: "memory");
        }
        const float4 u = right[n * 32 + lane];
        mma_tf32(sum[0][n], re, u.x, u.y);
        mma_tf32(sum[1][n], im, u.x, u.y);
        mma_tf32(sum[0][n], im, u.z, u.w);
        mma_tf32(sum[1][n], minus, u.z, u.w);
    }
}

/* Rows j3, j3 + 8 of a plane that has become (part, r2, right). */
template <int TILES>
static __device__ inline void store_plane(const cuda_planes &s, float *out, int j3, int t,
                                          const float (&sum)[2][TILES][4]) {
    float *row = out + 2 * t * s.right + j3;
    const int part = s.r2 * s.right;
#pragma unroll
    for (int n = 0; n < TILES; n++, row += 8 * s.right) {
#pragma unroll
        for (int e = 0; e < 2; e++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (8 * n + 2 * t + e < s.r2 && j3 + i % 2 * 8 < s.right) {
                    row[i / 2 * part + e * s.right + i % 2 * 8] = sum[i / 2][n][i % 2 * 2 + e];
                }
            }
        }
    }
}

static __device__ inline void wait_for_crew(int crew, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(crew + 1), "r"(threads) : "memory");
}

#endif
