/* A block of a Fourier neural operator in one pass over its activations, TF32:
 *
 *     u  = act(x)
 *     z1 = inverse transform of the rows of s + skip u + bias
 *     z2 = w2 gelu(w1 act1(z1) + b1) + b2 + gate u,    activated = gelu(z2)
 *
 * A warpgroup takes 64 pixels of a row and keeps them in registers from the spectrum to the result
 * (warpgroup.cuh). Weights stay in shared memory for the whole kernel, the spectrum of a row while
 * that row is processed. The inverse transform is a product with cosines and sines (`waves`), read
 * from L2 in the order in which threads need them; frequency 0 is added like the bias.
 *
 * Neither the waves nor u stay in registers: both stream through a few of them, and u is read again
 * from L2 when it is added. That leaves registers for four warpgroups per multiprocessor: some wait
 * for memory and some for products while others evaluate GELU. At ns1024 a block reads x and writes
 * z1, z2 and activated, 4.4 GB with the spectrum: 1.04 ms at the card's bandwidth, 1.60 measured;
 * with two warpgroups that kept u in registers, 1.87.
 *
 * One thread reads and writes each pixel, and writes z2 and activated after the last read of x:
 * they may alias x; z1 may only without an MLP. z1 and z2 may be quantized to 8 bits (quantize.h):
 * two warpgroups share the 128 pixels of a scale. */
#ifndef TG_BACKEND_CUDA_SM90_BLOCK_KERNEL_CUH
#define TG_BACKEND_CUDA_SM90_BLOCK_KERNEL_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/instructions.cuh"
#include "backend/cuda/tile/warpgroup.cuh"
#include "backend/quantize.h"

/* A thread's part of one of two steps of `waves`, as the left factor of a product. `waves` are the
 * cosines and sines that multiply the spectrum of a row, from frequency 1 on, (width / 64,
 * STEPS / 2, 4 warps, 32 lanes), in f16, which is as precise as TF32. Two steps of a thread are
 * adjacent. */
static __device__ inline float4 wave_factor(uint4 pair, int step) {
    const auto of_halves = [](uint32_t word) {
        return __half22float2(*reinterpret_cast<const __half2 *>(&word));
    };
    const float2 a = of_halves(step % 2 ? pair.z : pair.x),
                 b = of_halves(step % 2 ? pair.w : pair.y);
    return {a.x, a.y, b.x, b.y};
}

/* The two warpgroups that share the pixels of a scale. */
enum { PAIR_GROUPS = 2, PAIR_THREADS = PAIR_GROUPS * WG_THREADS };

/* Warpgroups per thread block, and thread blocks per multiprocessor: four warpgroups of 128
 * registers. */
template <int C> struct block_crew {
    static constexpr int GROUPS = C == 64 ? 2 : 4, THREADS = GROUPS * WG_THREADS;
    static constexpr int PAIRS = GROUPS / PAIR_GROUPS, BLOCKS = 4 / GROUPS;
};

/* Values quantized to 8 bits and their scales; NULL: not wanted. */
struct block_bytes {
    uint8_t *values;
    float *scales;
};

struct block_task {
    int batch, rows, width; /* images are (rows, width), width a multiple of 64 */
    int64_t image;          /* pixels of one */
    int kept, pitch;        /* complex numbers kept of a row of s, and from row to row: even */
    float edge, inside;     /* factors of frequency 0 (and width / 2), and of the others */
    const float *s;         /* (batch, C, rows, pitch) complex */
    const uint4 *waves;     /* see wave_factor */
    const float *x;         /* (batch, C, rows, width) */
    const float *skip;      /* (C, C) */
    const float *bias;      /* (C); NULL: none */
    const float *w1, *b1, *w2, *b2; /* (H, C), (H), (C, H), (C); NULL: only z1 is computed */
    const float *gate;              /* (C); NULL: ones */
    bool adds;                      /* gate u */
    bool activates;                 /* act1 is gelu, not the identity */
    float *z1, *z2, *activated;     /* like x; NULL: not wanted */
    block_bytes z1_bytes, z2_bytes; /* replace z1 or z2 in QUANTIZED kernels */
};

/* ---- shared memory ---- */

template <int C, int H, int STEPS> struct block_layout {
    static constexpr int SKIP = 0, W1 = SKIP + C * C * 4, W2 = W1 + H * C * 4;
    static constexpr int SPECTRUM = W2 + C * H * 4;
    static constexpr int MEAN = SPECTRUM + STEPS / 4 * (C * 128), B2 = MEAN + C * 4;
    static constexpr int GATE = B2 + C * 4, B1 = GATE + C * 4, MAXIMA = B1 + H * 4;
    static constexpr int INVERSE = MAXIMA + block_crew<C>::PAIRS * C * 4; /* of scales */
    static constexpr int BYTES = INVERSE + block_crew<C>::PAIRS * C * 4;
};

/* Writes the transpose of w (N, K) to (K, N). */
template <int N, int K, int THREADS>
static __device__ inline void load_matrix(char *to, const float *w) {
#pragma unroll 8
    for (int i = 0; i < N * K / THREADS; i++) {
        const int at = i * THREADS + (int)threadIdx.x, n = at / K, k = at % K;
        *reinterpret_cast<float *>(to + wg_at<N>(n, k)) = to_tf32(w[n * K + channel_of(k)]);
    }
}

template <int N> static __device__ void load_vector(char *to, const float *from, float otherwise) {
    for (int i = threadIdx.x; i < N; i += blockDim.x) {
        reinterpret_cast<float *>(to)[i] = from ? from[i] : otherwise;
    }
}

/* The start of a row's spectrum, for channel 0; each further channel is `step` later. */
template <int C>
static __device__ inline const float *spectrum_of(const block_task &t, int row, int64_t *step) {
    *step = (int64_t)t.rows * (2 * t.pitch);
    return t.s + row / t.rows * C * *step + row % t.rows * (2 * t.pitch);
}

/* Loads a row's spectrum into shared memory; frequency 0, plus the bias, goes to `mean`. */
template <int C, int STEPS>
static __device__ inline void load_spectrum(const block_task &t, int row, char *to, char *mean) {
    constexpr int THREADS = block_crew<C>::THREADS, FREQUENCIES = 4 * STEPS;
    const int thread = fresh_thread();
    int64_t step;
    const float *from = spectrum_of<C>(t, row, &step);
#pragma unroll 8
    for (int i = 0; i < C * FREQUENCIES / THREADS; i++) {
        const int at = i * THREADS + thread, c = at / FREQUENCIES;
        const int k = at % FREQUENCIES + 1;
        const float factor = k >= t.kept ? 0.0f : 2 * k == t.width ? t.edge : t.inside;
        const float2 v =
            *reinterpret_cast<const float2 *>(from + c * step + (k < t.kept ? 2 * k : 0));
        *reinterpret_cast<float2 *>(to + wg_at<C>(c, 2 * k - 2)) = {to_tf32(factor * v.x),
                                                                    to_tf32(factor * v.y)};
    }
    for (int c = thread; c < C; c += THREADS) {
        reinterpret_cast<float *>(mean)[c] =
            fmaf(t.edge, from[c * step], t.bias ? t.bias[c] : 0.0f);
    }
}

/* Prefetches the spectrum of a row into L2. */
template <int C> static __device__ inline void prefetch_spectrum(const block_task &t, int row) {
    constexpr int LINE = 128 / (int)sizeof(float);
    int64_t step;
    const float *from = spectrum_of<C>(t, row, &step);
    const int lines = (2 * t.kept + LINE - 1) / LINE;
    for (int i = fresh_thread(); i < C * lines; i += block_crew<C>::THREADS) {
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + i / lines * step + i % lines * LINE));
    }
}

/* ---- tiles ---- */

/* f(index, offset) for two neighbouring pixels of each of the thread's channels. Keeps no
 * addresses. */
template <int C, class F> static __device__ inline void each_pair(int64_t image, F f) {
    const int64_t step = (int64_t)fresh((uint64_t)image);
    int64_t at = 0;
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        f(4 * j, at);
        f(4 * j + 1, at + step);
        at += 8 * step;
    }
}

template <int C>
static __device__ inline void store_tile(const float (&d)[C / 2], float *to, int64_t image) {
    each_pair<C>(image, [&](int i, int64_t at) { store_two(to + at, d[i], d[i + 2]); });
}

template <int C>
static __device__ inline void load_tile(float (&d)[C / 2], const float *from, int64_t image) {
    each_pair<C>(image, [&](int i, int64_t at) {
        const float2 v = *reinterpret_cast<const float2 *>(from + at);
        d[i] = v.x;
        d[i + 2] = v.y;
    });
}

/* ---- 8-bit values ---- */

static_assert(TG_QUANTIZED_BLOCK == PAIR_GROUPS * WG_PIXELS, "a scale is of a tile of each");

/* A barrier of the two warpgroups that share the pixels of a scale. */
static __device__ inline void pair_sync() {
    asm volatile("bar.sync %0, 256;" ::"r"(1 + (int)threadIdx.x / PAIR_THREADS) : "memory");
}

static __device__ inline uint32_t larger_modulus(float a, float b) {
    return max(__float_as_uint(a) & 0x7FFFFFFFu, __float_as_uint(b) & 0x7FFFFFFFu);
}

/* Index of the scale of channel 0 of a tile; row: of all images. */
static __device__ inline int64_t scale_of(const block_task &t, int row, int channels, int tile) {
    const int64_t line = (int64_t)(row / t.rows) * channels * t.rows + row % t.rows;
    return line * (t.width / TG_QUANTIZED_BLOCK) + tile / PAIR_GROUPS;
}

/* most[channel] = the largest |d| of the channel so far and of the thread's pixels: reduced over
 * the eight lanes of a channel, eight channels at a time, and then over warps. */
template <int C>
static __device__ inline void find_maxima(const float (&d)[C / 2], uint32_t *most) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < C / 8; j += 4) {
        uint32_t m[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const int at = 4 * (j + i / 2) + i % 2;
            m[i] = larger_modulus(d[at], d[at + 2]);
        }
#pragma unroll
        for (int half = 4; half > 0; half /= 2) { /* each step leaves a lane half of its channels */
            const bool upper = lane & (4 * half);
#pragma unroll
            for (int i = 0; i < half; i++) {
                const uint32_t sent = upper ? m[i] : m[i + half];
                const uint32_t kept = upper ? m[i + half] : m[i];
                m[i] = max(kept, __shfl_xor_sync(~0u, sent, 4 * half));
            }
        }
        const int i = lane / 4; /* the channel left to this lane */
        atomicMax(most + 8 * (j + i / 2) + lane % 4 * 2 + i % 2, m[0]);
    }
}

static __device__ inline void store_byte_pair(uint8_t *to, float a, float b, float inverse) {
    const uint32_t low = tg_quantize(a, inverse), high = tg_quantize(b, inverse);
    *reinterpret_cast<uint16_t *>(to) = (uint16_t)(high << 8 | low);
}

/* Quantizes both warpgroups' tiles of d to 8 bits. `first` is the index of the thread's first pixel
 * among all values, `block` that of the scale of channel 0; most is 0 before and after. */
template <int C>
static __device__ inline void store_bytes(const float (&d)[C / 2], const block_bytes &to,
                                          int64_t first, int64_t block, int64_t image,
                                          char *maxima_of, char *inverse_of) {
    const int thread = fresh_thread(), pair = thread / PAIR_THREADS, c = thread % PAIR_THREADS;
    uint32_t *most = reinterpret_cast<uint32_t *>(maxima_of) + pair * C;
    float *inverse = reinterpret_cast<float *>(inverse_of) + pair * C;
    find_maxima<C>(d, most);
    pair_sync();
    if (c < C) {
        const tg_quantizer q = tg_quantizer_of(most[c]);
        to.scales[block + c * (image / TG_QUANTIZED_BLOCK)] = q.scale;
        inverse[c] = q.inverse;
        most[c] = 0;
    }
    pair_sync();
    const float *of = inverse + c % 4 * 2;
    uint8_t *at = to.values + first;
    float2 by;
    each_pair<C>(image, [&](int i, int64_t offset) {
        by = i % 4 == 0 ? *reinterpret_cast<const float2 *>(of + 2 * i) : by;
        store_byte_pair(at + offset, d[i], d[i + 2], i % 4 == 0 ? by.x : by.y);
    });
}

/* ---- sums in registers ---- */

/* f(index, of[channel]) for all of the thread's numbers. */
template <int C, class F> static __device__ inline void with_vector(const char *vector, F f) {
    const float *of = reinterpret_cast<const float *>(vector) + fresh_thread() % 4 * 2;
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        const float2 v = *reinterpret_cast<const float2 *>(of + 8 * j);
        f(4 * j, v.x);
        f(4 * j + 1, v.y);
        f(4 * j + 2, v.x);
        f(4 * j + 3, v.y);
    }
}

/* d (+)= a B, B (K, N); a is rounded here. Two steps at a time, so that few registers hold it in
 * the order of the instruction. */
template <int N, int K>
static __device__ inline void multiply(float (&d)[N / 2], const float (&a)[K / 2], uint64_t b,
                                       bool adds) {
#pragma unroll
    for (int k = 0; k < K / 8; k += 2) {
        float4 part[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float4 v = wg_factor(a, k + i);
            part[i] = {to_tf32(v.x), to_tf32(v.y), to_tf32(v.z), to_tf32(v.w)};
            wg_hold(part[i]);
        }
        wg_begin();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            wg_product(d, part[i], wg_rows<N>(b, k + i), adds || k + i > 0);
        }
        wg_end();
        wg_wait<0>();
        wg_fence(d);
    }
}

/* d += (inverse transform of a row's spectrum + skip u) on the pixels of a tile: a few steps at a
 * time, while the factors of the next ones are loaded. */
template <int C, int STEPS, bool ACT>
static __device__ inline void add_waves_and_skip(float (&d)[C / 2], const uint4 *waves,
                                                 const float *x, int64_t image, uint64_t s,
                                                 uint64_t skip) {
    constexpr int PIECE = 2, DEPTH = 4; /* with more, products are serialized */
    constexpr int PIECES = (STEPS + C / 8) / PIECE;
    const int64_t step = (int64_t)fresh((uint64_t)image);
    float4 a[DEPTH][PIECE];
    uint4 pair[DEPTH];
    const auto load = [&](int piece) {
        if (piece * PIECE < STEPS) {
            pair[piece % DEPTH] = waves[piece * WG_THREADS];
        }
#pragma unroll
        for (int i = 0; i < PIECE && piece * PIECE >= STEPS && piece < PIECES; i++) {
            const float2 v = *reinterpret_cast<const float2 *>(x);
            const float2 w = *reinterpret_cast<const float2 *>(x + step);
            a[piece % DEPTH][i] = {v.x, v.y, w.x, w.y};
            x += 8 * step;
        }
    };
    const auto round = [](float v) { return to_tf32(ACT ? gelu(v) : v); };
#pragma unroll
    for (int piece = 0; piece < DEPTH - 1; piece++) {
        load(piece);
    }
    wg_fence(d);
#pragma unroll
    for (int piece = 0; piece < PIECES; piece++) {
        const int k = piece * PIECE;
        float4(&now)[PIECE] = a[piece % DEPTH];
        load(piece + DEPTH - 1);
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            now[i] = k < STEPS ? wave_factor(pair[piece % DEPTH], i)
                               : float4{round(now[i].x), round(now[i].y), round(now[i].z),
                                        round(now[i].w)};
        }
        wg_begin();
#pragma unroll
        for (int i = 0; i < PIECE; i++) {
            wg_product(d, now[i],
                       k < STEPS ? wg_rows<C>(s, k + i) : wg_rows<C>(skip, k + i - STEPS), true);
        }
        wg_end();
        wg_wait<0>();
        wg_fence(d);
    }
}

/* ---- the kernel ---- */

template <int C, int H, int STEPS, bool ACT, bool QUANTIZED>
static __global__ void __launch_bounds__(block_crew<C>::THREADS, block_crew<C>::BLOCKS)
    block_forward(const __grid_constant__ block_task t) {
    using L = block_layout<C, H, STEPS>;
    constexpr int GROUPS = block_crew<C>::GROUPS, THREADS = block_crew<C>::THREADS;
    extern __shared__ __align__(1024) char shared[];
    load_matrix<C, C, THREADS>(shared + L::SKIP, t.skip);
    if (QUANTIZED) {
        load_vector<block_crew<C>::PAIRS * C>(shared + L::MAXIMA, NULL, 0.0f);
    }
    if (t.w1) {
        load_matrix<H, C, THREADS>(shared + L::W1, t.w1);
        load_matrix<C, H, THREADS>(shared + L::W2, t.w2);
        load_vector<H>(shared + L::B1, t.b1, 0.0f);
        load_vector<C>(shared + L::B2, t.b2, 0.0f);
        load_vector<C>(shared + L::GATE, t.adds ? t.gate : NULL, t.adds ? 1.0f : 0.0f);
    }
    pdl_wait_and_launch_dependents();
    const int tiles = t.width / WG_PIXELS, all = t.batch * t.rows;
    const auto pixel_at = [&](int row, int tile) {
        return (int64_t)(row / t.rows) * C * t.image + row % t.rows * t.width + tile * WG_PIXELS;
    };
    for (int row = blockIdx.x; row < all; row += gridDim.x) {
        const int next_row = row + (int)gridDim.x;
        __syncthreads(); /* all have finished the previous row */
        load_spectrum<C, STEPS>(t, row, shared + L::SPECTRUM, shared + L::MEAN);
        wg_publish();
        __syncthreads();
        if (next_row < all) {
            prefetch_spectrum<C>(t, next_row);
        }
        for (int tile = threadIdx.x / WG_THREADS; tile < tiles; tile += GROUPS) {
            const int thread = fresh_thread();
            const int64_t first = pixel_at(row, tile) + thread % 4 * 2 * t.image + pixel_of(thread);
            float d[C / 2], hidden[H / 2];
            with_vector<C>(shared + L::MEAN, [&](int i, float mean) { d[i] = mean; });
            add_waves_and_skip<C, STEPS, ACT>(
                d, t.waves + tile * (STEPS / 2 * WG_THREADS) + thread % WG_THREADS, t.x + first,
                t.image, wg_matrix(shared + L::SPECTRUM), wg_matrix(shared + L::SKIP));
            if (t.z1) {
                store_tile<C>(d, t.z1 + first, t.image);
            }
            if (QUANTIZED && t.z1_bytes.values) {
                store_bytes<C>(d, t.z1_bytes, first, scale_of(t, row, C, tile), t.image,
                               shared + L::MAXIMA, shared + L::INVERSE);
            }
            if (!t.w1) {
                continue;
            }
            if (t.activates) {
#pragma unroll
                for (int i = 0; i < C / 2; i++) {
                    d[i] = gelu(d[i]);
                }
            }
            wg_fence(d);
            multiply<H, C>(hidden, d, wg_matrix(shared + L::W1), false);
            /* reloads u while GELU is evaluated */
            load_tile<C>(d, t.x + first, t.image);
            with_vector<H>(shared + L::B1,
                           [&](int i, float bias) { hidden[i] = gelu(hidden[i] + bias); });
            wg_fence(hidden);
            with_vector<C>(shared + L::GATE,
                           [&](int i, float gate) { d[i] = gate * (ACT ? gelu(d[i]) : d[i]); });
            with_vector<C>(shared + L::B2, [&](int i, float bias) { d[i] += bias; });
            multiply<C, H>(d, hidden, wg_matrix(shared + L::W2), true);
            if (t.z2) {
                store_tile<C>(d, t.z2 + first, t.image);
            }
            if (QUANTIZED && t.z2_bytes.values) {
                store_bytes<C>(d, t.z2_bytes, first, scale_of(t, row, C, tile), t.image,
                               shared + L::MAXIMA, shared + L::INVERSE);
            }
            if (t.activated) {
#pragma unroll
                for (int i = 0; i < C / 2; i++) {
                    d[i] = gelu(d[i]);
                }
                store_tile<C>(d, t.activated + first, t.image);
            }
        }
    }
}

#endif
