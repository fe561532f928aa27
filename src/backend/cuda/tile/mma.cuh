/* Number formats of the tile layer, and how the warps of a block share a product.
 *
 * Activations of a tile (channels, TILE pixels) and weights lie in shared memory as f32 numbers,
 * whatever they are stored as, and are multiplied by tensor cores, with sums in f32, in one of two
 * formats:
 *
 *   tf32       rounded to TF32 as they are written to shared memory.
 *   split_f32  each number is the sum of two in TF32 when it is multiplied, and of the four
 * products the three largest are taken: 21 bits of a product are right.
 *
 * No access to shared memory meets a bank conflict. */
#ifndef TG_BACKEND_CUDA_TILE_MMA_CUH
#define TG_BACKEND_CUDA_TILE_MMA_CUH

#include <type_traits>

#include "backend/cuda/core/element.cuh"
#include "backend/cuda/tile/instructions.cuh"

enum { TILE = 64 }; /* pixels of a tile */

enum {
    K_STEP = 8,        /* k's of an instruction */
    TILE_LD = TILE + 4 /* numbers from row to row of a tile in shared memory */
};

struct tf32 {
    static constexpr bool SPLIT = false;
};

struct split_f32 {
    static constexpr bool SPLIT = true;
};

/* ---- two 16-bit numbers in a word, the first one low ---- */

__device__ inline float2 halves_of(tg_storage store, uint32_t word) {
    if (store == TG_STORE_BF16) {
        return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
    }
    return __half22float2(*reinterpret_cast<const __half2 *>(&word));
}

__device__ inline uint32_t halves_to_word(tg_storage store, float2 v) {
    uint32_t word;
    if (store == TG_STORE_BF16) {
        *reinterpret_cast<__nv_bfloat162 *>(&word) = __floats2bfloat162_rn(v.x, v.y);
    } else {
        *reinterpret_cast<__half2 *>(&word) = __floats2half2_rn(v.x, v.y);
    }
    return word;
}

/* ---- fragments ---- */

/* c (16 x 8) += a (16 x 8) b (8 x 8); who holds what: instructions.cuh. */
template <class F>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (F::SPLIT) { /* small terms before large ones */
        const tf32_terms a0 = terms_of(a[0]), a1 = terms_of(a[1]), a2 = terms_of(a[2]),
                         a3 = terms_of(a[3]), b0 = terms_of(b[0]), b1 = terms_of(b[1]);
        const float4 first = {a0.first, a1.first, a2.first, a3.first};
        mma_tf32(c, {a0.second, a1.second, a2.second, a3.second}, b0.first, b1.first);
        mma_tf32(c, first, b0.second, b1.second);
        mma_tf32(c, first, b0.first, b1.first);
    } else {
        mma_tf32(c,
                 {__uint_as_float(a[0]), __uint_as_float(a[1]), __uint_as_float(a[2]),
                  __uint_as_float(a[3])},
                 __uint_as_float(b[0]), __uint_as_float(b[1]));
    }
}

/* Warps of a block one below the other, each with a part of the rows of a product (M, N); the
 * others share its columns. */
template <int M, int N> constexpr int warps_down() {
    return M >= N ? (M >= 64 ? 4 : M / 16) : (M >= 32 ? 2 : 1);
}

/* What a warp sums up of a product (M, N) of a block of WARPS. Lane 4 g + t has rows g and g + 8
 * (h = 0, 1) of each fragment (16, 8) and columns 2 t and 2 t + 1.
 *
 * Where N are pixels, lanes have RUN of them in a row, from INTERLEAVE fragments next to each
 * other: column j of fragments 2 r and 2 r + 1 are pixels 16 r + 2 j and 16 r + 2 j + 1. A tile in
 * shared memory has its pixels in order. */
template <class F_, int M_, int N_, int WARPS = 8> struct warp_tile {
    using F = F_;
    static constexpr int M = M_, N = N_;
    static constexpr int DOWN = warps_down<M, N>(), ACROSS = WARPS / DOWN;
    static constexpr int MT = M / 16 / DOWN, NT = N / 8 / ACROSS; /* fragments */
    static_assert(MT * DOWN * 16 == M && NT * ACROSS * 8 == N, "whole fragments only");
    static constexpr int INTERLEAVE = NT > 1 ? 2 : 1, RUN = 2 * INTERLEAVE, RUNS = NT / INTERLEAVE;
    float acc[MT][NT][4];

    /* number = f(m, h, number) */
    template <class G> __device__ void each(G f) {
#pragma unroll
        for (int i = 0; i < MT * NT * 4; i++) {
            const int m = i / (NT * 4), n = i / 4 % NT;
            acc[m][n][i % 4] = f(m, i % 4 / 2, acc[m][n][i % 4]);
        }
    }
    __device__ void clear() {
        each([](int, int, float) { return 0.0f; });
    }
    static __device__ int first_row() {
        return (int)threadIdx.x / 32 / ACROSS * (MT * 16);
    }
    static __device__ int first_column() {
        return (int)threadIdx.x / 32 % ACROSS * (NT * 8);
    }
    /* Row of acc[m][.][2 h]; column of acc[.][n][0], [1] being the next, in shared memory or where
     * N are not pixels. */
    static __device__ int row(int m, int h) {
        return first_row() + 16 * m + 8 * h + (int)threadIdx.x % 32 / 4;
    }
    static __device__ int column(int n) {
        return first_column() + 8 * n + (int)threadIdx.x % 4 * 2;
    }
    /* The first pixel of run r, and what is at pixel e of it. */
    static __device__ int pixel(int r) {
        return first_column() + 8 * INTERLEAVE * r + (int)threadIdx.x % 4 * RUN;
    }
    __device__ float &at(int m, int h, int r, int e) {
        return acc[m][r * INTERLEAVE + e % INTERLEAVE][2 * h + e / INTERLEAVE];
    }
    __device__ float at(int m, int h, int r, int e) const {
        return const_cast<warp_tile *>(this)->at(m, h, r, e);
    }
};

/* ---- shared memory ---- */

/* Handed out piece by piece, in the same order by all threads. */
struct shared_room {
    char *next;

    template <class T> __device__ T *take(int count) {
        T *piece = reinterpret_cast<T *>(next);
        next += (size_t)count * sizeof(T);
        return piece;
    }
};

__device__ inline shared_room dynamic_shared() {
    extern __shared__ float4 shared_memory[];
    return {reinterpret_cast<char *>(shared_memory)};
}

constexpr size_t tile_bytes(int channels) {
    return (size_t)channels * TILE_LD * sizeof(float);
}

/* A number as a format has it in shared memory. */
template <class F> __device__ inline float rounded(float v) {
    return F::SPLIT ? v : to_tf32(v);
}

/* Numbers next to each other, rounded to the format. */
template <class F> __device__ inline void put_run(float *to, const float (&v)[2]) {
    *reinterpret_cast<float2 *>(to) = {rounded<F>(v[0]), rounded<F>(v[1])};
}
template <class F> __device__ inline void put_run(float *to, const float (&v)[4]) {
    *reinterpret_cast<float4 *>(to) = {rounded<F>(v[0]), rounded<F>(v[1]), rounded<F>(v[2]),
                                       rounded<F>(v[3])};
}

/* tile = f(m, h, number) of every number of a product (M, TILE); rows of h with the warp's own. */
template <class P, class G> __device__ inline void put_tile(P &p, float *tile, G f) {
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, h = i % 2;
#pragma unroll
        for (int r = 0; r < P::RUNS; r++) {
            float v[P::RUN];
#pragma unroll
            for (int e = 0; e < P::RUN; e++) {
                v[e] = f(m, h, p.at(m, h, r, e));
            }
            put_run<typename P::F>(tile + P::row(m, h) * TILE_LD + P::pixel(r), v);
        }
    }
}

#endif
