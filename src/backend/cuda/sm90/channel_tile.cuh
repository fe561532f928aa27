/* Tiles of 64 pixels in backward kernels of a block, C = 64 or 128 channels (warpgroup.cuh).
 *
 * A thread block has two warpgroups, each with 64 channels of a tile in registers: with 128
 * channels both share a tile, with 64 each has its own. The factors of a sum over pixels are in
 * shared memory, (channels, pixels); from there they also are the left factors of products with
 * weights. */
#ifndef TG_BACKEND_CUDA_SM90_CHANNEL_TILE_CUH
#define TG_BACKEND_CUDA_SM90_CHANNEL_TILE_CUH

#include "backend/cuda/tile/instructions.cuh"
#include "backend/cuda/tile/warpgroup.cuh"
#include "backend/quantize.h"

enum { TILE_THREADS = 2 * WG_THREADS };

template <int C> constexpr int TILES_PER_BLOCK = 128 / C;
template <int C> constexpr int TILE_BYTES = C *WG_PIXELS *(int)sizeof(float);

/* The index of the warpgroup's tile within the block's, and the first of its channels. */
template <int C> static __device__ inline int own_tile() {
    return C == 64 ? (int)threadIdx.x / WG_THREADS : 0;
}
template <int C> static __device__ inline int own_channels() {
    return C == 64 ? 0 : (int)threadIdx.x / WG_THREADS * 64;
}

/* A barrier of the warpgroups that share a tile. */
template <int C> static __device__ inline void tile_sync() {
    if constexpr (C == 64) {
        wg_sync();
    } else {
        __syncthreads();
    }
}

/* f(index, channel) for the thread's numbers of N columns, two pixels each: numbers index and index
 * + 2 belong to the channel. */
template <int N, class F> static __device__ inline void each_channel(int thread, F f) {
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        f(i / 2 * 4 + i % 2, i / 2 * 8 + thread % 4 * 2 + i % 2);
    }
}

/* ---- between memory and registers; `first` is the tile's first pixel of channel 0 ---- */

/* f(index, address) for the pairs of each_channel. */
template <int C, class T, class F>
static __device__ inline void each_own(T *first, int image, F f) {
    const int64_t step = fresh(image);
    const int thread = fresh_thread(), c = own_channels<C>() + thread % 4 * 2;
    T *even = first + c * step + pixel_of(thread), *odd = even + step;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        f(4 * j, even);
        f(4 * j + 1, odd);
        even += 8 * step;
        odd += 8 * step;
    }
}

template <int C>
static __device__ inline void load_own(const float *first, int image, float (&d)[32]) {
    each_own<C>(first, image, [&](int i, const float *at) {
        const float2 v = *reinterpret_cast<const float2 *>(at);
        d[i] = v.x;
        d[i + 2] = v.y;
    });
}

/* Prefetched values in 8 bits (quantize.h): with their scales they take as many registers as the
 * decoded values will. */
struct own_bytes {
    uint32_t pair[16];
    float scale[16];

    /* `first`: the index of the tile's first pixel of channel 0 among all values. A tile is half a
     * block of each channel. */
    template <int C>
    __device__ void load(const void *x, const float *scales, int64_t first, int image) {
        static_assert(TG_QUANTIZED_BLOCK == 2 * WG_PIXELS, "tiles are halves of blocks");
        const uint8_t *from = static_cast<const uint8_t *>(x) + first;
        const uint32_t step = (uint32_t)(fresh(image) / WG_PIXELS);
        const uint32_t half =
            (uint32_t)(first / WG_PIXELS) + (own_channels<C>() + fresh_thread() % 4 * 2) * step;
        each_own<C>(from, image, [&](int i, const uint8_t *at) {
            pair[i / 4 * 2 + i % 2] = *reinterpret_cast<const uint16_t *>(at);
            scale[i / 4 * 2 + i % 2] = scales[(half + (i / 4 * 8 + i % 2) * step) / 2];
        });
    }
    /* As tg_dequantize, but by bits: a byte q is the last byte of the float 2^23 + 128 + q. */
    __device__ void values(float (&d)[32]) const {
#pragma unroll
        for (int k = 0; k < 16; k++) {
            const int i = k / 2 * 4 + k % 2;
            const uint32_t both = pair[k] ^ 0x8080u, frame = 0x4B000000u;
            const float low = __uint_as_float(__byte_perm(both, frame, 0x7440));
            const float high = __uint_as_float(__byte_perm(both, frame, 0x7441));
            d[i] = __fmul_rn(scale[k], low - (0x1p23f + 128.0f));
            d[i + 2] = __fmul_rn(scale[k], high - (0x1p23f + 128.0f));
        }
    }
};

/* Address of the scales of n values in 8 bits. */
static inline const float *scales_of(const void *bytes, int64_t values) {
    return reinterpret_cast<const float *>(static_cast<const char *>(bytes) +
                                           tg_quantized_scales(values));
}

/* Values in f32, or in 8 bits, which are decoded once loaded. */
template <int C, bool BYTES>
static __device__ inline void begin_own(const void *x, const float *scales, int64_t first,
                                        int image, float (&d)[32], own_bytes &bytes) {
    if constexpr (BYTES) {
        bytes.load<C>(x, scales, first, image);
    } else {
        load_own<C>(static_cast<const float *>(x) + first, image, d);
    }
}

template <int C, class F>
static __device__ inline void store_own(float *first, int image, F value) {
    each_own<C>(first, image, [&](int i, float *at) { store_two(at, value(i), value(i + 2)); });
}

/* Prefetches a tile into L2. */
template <int C> static __device__ inline void prefetch_tile(const float *first, int image) {
    const int thread = fresh_thread() % (2 * C);
    const float *from = first + (int64_t)image * (thread / 2) + thread % 2 * (WG_PIXELS / 2);
    asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
}

/* The same for values that may be in 8 bits. */
template <int C, bool BYTES>
static __device__ inline void prefetch_own(const void *x, int64_t first, int image) {
    if constexpr (BYTES) {
        const int thread = fresh_thread() % (2 * C);
        const uint8_t *from =
            static_cast<const uint8_t *>(x) + first + (int64_t)image * (thread / 2);
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from));
    } else {
        prefetch_tile<C>(static_cast<const float *>(x) + first, image);
    }
}

/* ---- tiles in shared memory ---- */

/* Starts to copy all channels of a tile. */
template <int C> static __device__ inline void fetch_tile(const float *first, int image, char *to) {
    constexpr int THREADS = TILE_THREADS / TILES_PER_BLOCK<C>, STEP = THREADS / 16;
    const int thread = fresh_thread() % THREADS, c = thread / 16, pixel = thread % 16 * 4;
    const int64_t step = fresh(image);
    const float *from = first + c * step + pixel;
#pragma unroll
    for (int i = 0; i < C / STEP; i++) {
        copy_async<16>(to + wg_at<C>(c + i * STEP, pixel), from);
        from += STEP * step;
    }
}

/* The thread's two pixels of channels 0 and 1 of its four pairs; those of channel 8 k further are
 * 1024 k bytes further. */
template <int C, class BYTE> struct own_pairs {
    BYTE *even, *odd;
    __device__ explicit own_pairs(BYTE *tile) {
        const int thread = fresh_thread(), c = thread % 4 * 2, pixel = pixel_of(thread);
        even = tile + wg_at<C>(c, pixel);
        odd = tile + wg_at<C>(c + 1, pixel);
    }
};

/* The thread's part of N columns, from number `column` of a tile of C on. */
template <int C, int N>
static __device__ inline void put_columns(const float (&d)[N / 2], int column, char *tile) {
    const own_pairs<C, char> to(tile + column * 128);
#pragma unroll
    for (int k = 0; k < N / 8; k++) {
        *reinterpret_cast<float2 *>(to.even + 1024 * k) = {d[4 * k], d[4 * k + 2]};
        *reinterpret_cast<float2 *>(to.odd + 1024 * k) = {d[4 * k + 1], d[4 * k + 3]};
    }
}

/* The thread's part of channels 8 k .. 8 k + 7, as a left factor. */
template <int C>
static __device__ inline float4 tile_factor(const own_pairs<C, const char> &from, int k) {
    const float2 v = *reinterpret_cast<const float2 *>(from.even + 1024 * k);
    const float2 w = *reinterpret_cast<const float2 *>(from.odd + 1024 * k);
    return {v.x, v.y, w.x, w.y};
}

/* A sum of many numbers in two f32: doubles would wait for the products, which use the same
 * pipe. */
struct long_sum {
    float sum, rest;

    __device__ void add(float v) {
        const float all = sum + v, of_v = all - sum;
        rest += (sum - (all - of_v)) + (v - of_v);
        sum = all;
    }
    __device__ double value() const {
        return (double)sum + (double)rest;
    }
};

/* Sums half of the pixels of a channel, by each of the threads that share the tile. */
template <int C> static __device__ inline float sum_half_row(const char *tile) {
    const int thread = fresh_thread() % (2 * C), c = thread / 2, first = thread % 2 * 32;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int run = i ^ first / 8; /* avoids bank conflicts between the halves of a row */
        const float4 v = *reinterpret_cast<const float4 *>(tile + wg_at<C>(c, first + 4 * run));
        sum += (v.x + v.y) + (v.z + v.w);
    }
    return sum;
}

/* ---- products ---- */

/* d (+)= A B of 8 STEPS numbers, where B is the columns of d of a matrix of COLUMNS: GROUP steps at
 * a time. Meanwhile a(step) computes the thread's part of A for the next steps. */
template <int COLUMNS, int STEPS, int GROUP, int N, class F>
static __device__ inline void multiply(float (&d)[N], uint64_t b, bool adds, F a) {
    float4 part[2][GROUP];
    b = fresh(b);
#pragma unroll
    for (int i = 0; i < GROUP; i++) {
        part[0][i] = a(i);
    }
#pragma unroll
    for (int k = 0; k < STEPS; k += GROUP) {
        float4(&now)[GROUP] = part[k / GROUP % 2], (&next)[GROUP] = part[k / GROUP % 2 ^ 1];
        wg_begin();
#pragma unroll
        for (int i = 0; i < GROUP; i++) {
            wg_product(d, now[i], wg_rows<COLUMNS>(b, k + i), adds || k + i > 0);
        }
        wg_end();
        wg_wait<1>(); /* the previous ones */
        wg_fence(d);
#pragma unroll
        for (int i = 0; i < GROUP && k + GROUP < STEPS; i++) {
            if (k > 0) {
                wg_hold(next[i]);
            }
            next[i] = a(k + GROUP + i);
        }
    }
    wg_wait<0>();
    wg_fence(d);
#pragma unroll
    for (int i = 0; i < 2 * GROUP; i++) {
        wg_hold(part[i / GROUP][i % GROUP]);
    }
}

/* The same, with a tile of channels as A. */
template <int COLUMNS, int K, int GROUP, int N>
static __device__ inline void multiply_tile(float (&d)[N], uint64_t b, bool adds,
                                            const char *tile) {
    const own_pairs<K, const char> from(tile);
    multiply<COLUMNS, K / 8, GROUP>(d, b, adds, [&](int i) { return tile_factor<K>(from, i); });
}

/* Starts sums += A B over the pixels of a tile: rows of A from number `row` on. */
template <int A_ROWS, int B_ROWS, int N>
static __device__ inline void add_over_pixels(float (&sums)[N], const char *a, int row,
                                              const char *b) {
    const uint64_t from = fresh(wg_matrix(a) + (uint64_t)(row * 128 >> 4));
    const uint64_t to = fresh(wg_matrix(b));
#pragma unroll
    for (int k = 0; k < WG_PIXELS / 8; k++) {
        wg_product(sums, wg_rows<A_ROWS>(from, k), wg_rows<B_ROWS>(to, k), true);
    }
}

/* ---- partial sums of a block, in a fixed order ---- */

/* With one tile per warpgroup both have partial sums: adds them into the first one's. */
template <int C, int N> static __device__ inline void gather_sums(float (&sums)[N], float *room) {
    if constexpr (TILES_PER_BLOCK<C> == 2) {
        float *other = room + threadIdx.x % WG_THREADS;
        __syncthreads();
        if (threadIdx.x >= WG_THREADS) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                other[i * WG_THREADS] = sums[i];
            }
        }
        __syncthreads();
        if (threadIdx.x < WG_THREADS) {
#pragma unroll
            for (int i = 0; i < N; i++) {
                sums[i] += other[i * WG_THREADS];
            }
        }
    }
}
template <int C> static __device__ inline bool has_sums() {
    return TILES_PER_BLOCK<C> == 1 || threadIdx.x < WG_THREADS;
}

/* f(row, column, value) for all sums of the warpgroup, (64, N). */
template <int N, class F> static __device__ inline void each_sum(const float (&sums)[N / 2], F f) {
    const int lane = threadIdx.x % 32, row = (int)threadIdx.x / 32 % 4 * 16 + lane / 4;
#pragma unroll
    for (int i = 0; i < N / 2; i++) {
        f(row + i % 4 / 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2, sums[i]);
    }
}

/* Writes to `to` (N of all warpgroups) the threads' sums of their columns, from number `column` on;
 * room: (rows, 8) doubles. */
template <int N, int ROWS>
static __device__ inline void fold_columns(const float (&sums)[N / 4], int column, double *to,
                                           double *room) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS * 8; i += TILE_THREADS) {
        room[i] = 0.0;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < N / 4; i++) {
        float v = sums[i];
        v += __shfl_xor_sync(~0u, v, 4);
        v += __shfl_xor_sync(~0u, v, 8);
        v += __shfl_xor_sync(~0u, v, 16);
        if (lane < 4) {
            room[(column + i / 2 * 8 + 2 * lane + i % 2) * 8 + warp] = (double)v;
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < ROWS; i += TILE_THREADS) {
        double sum = 0.0;
        for (int k = 0; k < 8; k++) {
            sum += room[i * 8 + k];
        }
        to[i] = sum;
    }
}

/* Writes to `to` (C) the sums of half rows; room: TILE_THREADS doubles. */
template <int C>
static __device__ inline void fold_half_rows(double sum, double *to, double *room) {
    __syncthreads();
    room[threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.x < C) {
        double all = 0.0;
        for (int i = 0; i < TILES_PER_BLOCK<C>; i++) {
            all += room[i * 2 * C + 2 * threadIdx.x] + room[i * 2 * C + 2 * threadIdx.x + 1];
        }
        to[threadIdx.x] = all;
    }
}

#endif
