/* Number formats of the tile layer, and how the warps of a block share a product.
 *
 * Activations of a tile (channels, TILE pixels) and weights are stored in shared memory in one of
 * four formats and multiplied by tensor cores, with sums in f32:
 *
 *   tf32       f32 numbers, rounded to TF32 as they are written, whatever they are stored as.
 *   split_f32  f32 numbers. Each is the sum of two in TF32 when it is multiplied, and of the four
 *              products the three largest are taken: 21 bits of a product are right.
 *   bf16, f16  16-bit numbers as they are stored; what a function makes of them is rounded as if it
 *              were stored. A weight is the sum of terms: one of f16, which keeps as many bits as
 *              TF32, two of bfloat16.
 *
 * A format defines the shared-memory layout and how fragments are loaded (products.cuh); all other
 * code is common. No shared-memory access has bank conflicts. */
#ifndef TG_BACKEND_CUDA_TILE_MMA_CUH
#define TG_BACKEND_CUDA_TILE_MMA_CUH

#include <type_traits>

#include "backend/cuda/core/element.cuh"
#include "backend/cuda/tile/instructions.cuh"

enum { TILE = 64 }; /* pixels of a tile */

struct tf32 {
    using number = float; /* in shared memory */
    static constexpr bool HALF = false, SPLIT = false;
    static constexpr int STEP = 8; /* k's of an instruction */
    static constexpr int TERMS = 1;
    static constexpr int RUN = 4;       /* pixels per access between memory and registers */
    static constexpr int LD = TILE + 4; /* row pitch of a tile, in numbers */
};

struct split_f32 : tf32 {
    static constexpr bool SPLIT = true;
};

template <int STORE_> struct half_format {
    using number = uint16_t;
    static constexpr bool HALF = true, SPLIT = false;
    static constexpr int STORE = STORE_;
    static constexpr int STEP = 16;
    static constexpr int TERMS = STORE == TG_STORE_BF16 ? 2 : 1;
    static constexpr int RUN = 8;
    static constexpr int LD = TILE + 8;
};

using bf16 = half_format<TG_STORE_BF16>;
using f16 = half_format<TG_STORE_F16>;

/* f(format) of 16-bit activations. */
template <class G> tg_status with_half_format(tg_storage store, G f) {
    return store == TG_STORE_BF16 ? f(bf16()) : f(f16());
}

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

template <class F> __device__ inline uint32_t to_word(float a, float b) {
    return halves_to_word((tg_storage)F::STORE, {a, b});
}

template <class F> __device__ inline float2 of_word(uint32_t word) {
    return halves_of((tg_storage)F::STORE, word);
}

/* ---- fragments ---- */

/* c (16 x 8) += a (16 x STEP) b (STEP x 8); fragment layout: instructions.cuh. */
template <class F>
__device__ inline void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
    if constexpr (F::SPLIT) { /* small terms before large ones */
        const tf32_terms a0 = terms_of(a[0]), a1 = terms_of(a[1]), a2 = terms_of(a[2]),
                         a3 = terms_of(a[3]), b0 = terms_of(b[0]), b1 = terms_of(b[1]);
        const float4 first = {a0.first, a1.first, a2.first, a3.first};
        mma_tf32(c, {a0.second, a1.second, a2.second, a3.second}, b0.first, b1.first);
        mma_tf32(c, first, b0.second, b1.second);
        mma_tf32(c, first, b0.first, b1.first);
    } else if constexpr (!F::HALF) {
        mma_tf32(c,
                 {__uint_as_float(a[0]), __uint_as_float(a[1]), __uint_as_float(a[2]),
                  __uint_as_float(a[3])},
                 __uint_as_float(b[0]), __uint_as_float(b[1]));
    } else if constexpr (F::STORE == TG_STORE_BF16) {
        mma_bf16(c, a, b[0], b[1]);
    } else {
        mma_f16(c, a, b[0], b[1]);
    }
}

/* Number of warps of a block that split the rows of a product (M, N); the others split its columns.
 * In 16-bit formats a warp has 16 rows, so that their weights may stay in registers, or more if
 * both sides are long, which reads fewer fragments. */
template <class F, int M, int N> constexpr int warps_down() {
    if (F::HALF) {
        return M > TILE && N > TILE ? 4 : M / 16;
    }
    return M >= N ? (M >= 64 ? 4 : M / 16) : (M >= 32 ? 2 : 1);
}

/* A warp's part of a product (M, N) of a block of WARPS. Lane 4 g + t has rows g and g + 8 (h = 0,
 * 1) of each fragment (16, 8) and columns 2 t and 2 t + 1.
 *
 * Where N counts pixels, a lane has RUN consecutive ones, from INTERLEAVE adjacent fragments. tf32:
 * column j of fragments 2 r and 2 r + 1 is pixels 16 r + 2 j and 16 r + 2 j + 1; a tile in shared
 * memory keeps pixels in order. 16-bit: a tile permutes pixels within groups of 32; word t of
 * fragment j is pair 4 t + j. */
template <class F_, int M_, int N_, int WARPS = 8> struct warp_tile {
    using F = F_;
    static constexpr int M = M_, N = N_;
    static constexpr int DOWN = warps_down<F, M, N>(), ACROSS = WARPS / DOWN;
    static constexpr int MT = M / 16 / DOWN, NT = N / 8 / ACROSS; /* fragments */
    static_assert(MT * DOWN * 16 == M && NT * ACROSS * 8 == N, "whole fragments only");
    static_assert(!F::HALF || NT % 2 == 0, "16-bit fragments are read in pairs");
    static constexpr int INTERLEAVE = F::HALF  ? 4
                                      : NT > 1 ? 2
                                               : 1,
                         RUN = 2 * INTERLEAVE, RUNS = NT / INTERLEAVE;
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
    /* Row of acc[m][.][2 h]. Column of acc[.][n][0] in shared memory, or where N does not count
     * pixels; [1] is the next column. */
    static __device__ int row(int m, int h) {
        return first_row() + 16 * m + 8 * h + (int)threadIdx.x % 32 / 4;
    }
    static __device__ int column(int n) {
        return first_column() + 8 * n + (int)threadIdx.x % 4 * 2;
    }
    /* The first pixel of run r, and the number at its pixel e. */
    static __device__ int pixel(int r) {
        return first_column() + 8 * INTERLEAVE * r + (int)threadIdx.x % 4 * RUN;
    }
    __device__ float &at(int m, int h, int r, int e) {
        return F::HALF ? acc[m][r * INTERLEAVE + e / 2][2 * h + e % 2]
                       : acc[m][r * INTERLEAVE + e % INTERLEAVE][2 * h + e / INTERLEAVE];
    }
    __device__ float at(int m, int h, int r, int e) const {
        return const_cast<warp_tile *>(this)->at(m, h, r, e);
    }
    /* Pieces: numbers of a row that are adjacent in a shared-memory tile. The column of the first,
     * and number e. */
    static constexpr int PIECE = F::HALF ? 2 : RUN, PIECES = 2 * NT / PIECE;
    static __device__ int piece_column(int q) {
        return F::HALF ? column(q) : pixel(q);
    }
    __device__ float &piece(int m, int h, int q, int e) {
        return F::HALF ? acc[m][q][2 * h + e] : at(m, h, q, e);
    }
    __device__ float piece(int m, int h, int q, int e) const {
        return const_cast<warp_tile *>(this)->piece(m, h, q, e);
    }
};

/* ---- shared memory ---- */

/* Carves arrays out of shared memory. All threads make the same calls in the same order. */
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

template <class F> constexpr size_t tile_bytes(int channels) {
    return (size_t)channels * F::LD * sizeof(typename F::number);
}

/* A number as stored in shared memory; not for 16-bit formats. */
template <class F> __device__ inline float rounded(float v) {
    return F::SPLIT ? v : to_tf32(v);
}

/* Stores adjacent numbers, rounded to the format. */
template <class F> __device__ inline void put_piece(typename F::number *to, const float (&v)[2]) {
    if constexpr (F::HALF) {
        *reinterpret_cast<uint32_t *>(to) = to_word<F>(v[0], v[1]);
    } else {
        *reinterpret_cast<float2 *>(to) = {rounded<F>(v[0]), rounded<F>(v[1])};
    }
}
template <class F> __device__ inline void put_piece(float *to, const float (&v)[4]) {
    *reinterpret_cast<float4 *>(to) = {rounded<F>(v[0]), rounded<F>(v[1]), rounded<F>(v[2]),
                                       rounded<F>(v[3])};
}

/* tile = f(m, h, number) of every number of a product (M, TILE); rows of h with the warp's own. */
template <class P, class G>
__device__ inline void put_tile(P &p, typename P::F::number *tile, G f) {
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, h = i % 2;
#pragma unroll
        for (int q = 0; q < P::PIECES; q++) {
            float v[P::PIECE];
#pragma unroll
            for (int e = 0; e < P::PIECE; e++) {
                v[e] = f(m, h, p.piece(m, h, q, e));
            }
            put_piece<typename P::F>(tile + P::row(m, h) * P::F::LD + P::piece_column(q), v);
        }
    }
}

#endif
