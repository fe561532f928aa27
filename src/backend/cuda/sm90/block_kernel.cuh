/* A block of a Fourier neural operator in one pass over its activations, TF32:
 *
 *     u  = act(x)
 *     z1 = inverse transform of the rows of s + skip u + bias
 *     z2 = w2 gelu(w1 act1(z1) + b1) + b2 + gate u,    activated = gelu(z2)
 *
 * A warpgroup takes 64 pixels of a row; what it makes of them stays in its registers from the
 * spectrum to the result (warpgroup.cuh). Weights lie in shared memory for the whole kernel, the
 * spectrum of a row for as long as the row lasts. The inverse transform is a product with cosines
 * and sines, the waves, which come from the second-level cache in the order in which threads need
 * them. At ns1024 a block reads x and writes z1 and z2, 3.4 GB with the spectrum: .8 ms at the
 * card's bandwidth, 1.66 measured; as three kernels about 3.9.
 *
 * Other forms of it (shorter groups of products, guarded accesses, prefetches of the next tile and
 * stores of 8 bytes by hand, alone and together) took 1.7 to 2.4 ms there.
 *
 * Each pixel is read and written by one thread: z1, z2 and activated may lie where x does. z1 and
 * z2 may be wanted in bytes (quantize.h): the two warpgroups have the 128 pixels of a scale. */
#ifndef TG_BACKEND_CUDA_SM90_BLOCK_KERNEL_CUH
#define TG_BACKEND_CUDA_SM90_BLOCK_KERNEL_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/instructions.cuh"
#include "backend/cuda/tile/warpgroup.cuh"
#include "backend/quantize.h"

enum { BLOCK_GROUPS = 2, BLOCK_THREADS = BLOCK_GROUPS * WG_THREADS };

/* Values in bytes and their scales; NULL: not wanted. */
struct block_bytes {
    uint8_t *values;
    float *scales;
};

struct block_task {
    int batch, rows, width;         /* images are (rows, width), width a multiple of 64 */
    int kept, pitch;                /* complex numbers of a row of s, and from row to row: even */
    float edge, inside;             /* factors of frequency 0 (and width / 2), and of the others */
    const float *s;                 /* (batch, C, rows, pitch) complex */
    const float4 *waves;            /* (width / 64, STEPS, 4 warps, 32 lanes), see block_waves */
    const float *x;                 /* (batch, C, rows, width) */
    const float *skip;              /* (C, C) */
    const float *bias;              /* (C); NULL: none */
    const float *w1, *b1, *w2, *b2; /* (H, C), (H), (C, H), (C); NULL: only z1 is made */
    const float *gate;              /* (C); NULL: ones */
    bool adds;                      /* gate u */
    bool activates;                 /* act1 is gelu, not the identity */
    float *z1, *z2, *activated;     /* like x; NULL: not wanted */
    block_bytes z1_bytes, z2_bytes; /* of QUANTIZED kernels, instead of z1 or z2 */
};

/* ---- shared memory ---- */

template <int C, int H, int STEPS> struct block_layout {
    static constexpr int SKIP = 0, W1 = SKIP + C * C * 4, W2 = W1 + H * C * 4;
    static constexpr int SPECTRUM = W2 + C * H * 4;
    static constexpr int BIAS = SPECTRUM + (STEPS + 3) / 4 * (C * 128), B2 = BIAS + C * 4;
    static constexpr int GATE = B2 + C * 4, B1 = GATE + C * 4, MOST = B1 + H * 4;
    static constexpr int INVERSE = MOST + C * 4, BYTES = INVERSE + C * 4; /* of a scale */
};

/* to (K, N) = the transpose of w (N, K). */
template <int N, int K> static __device__ void load_matrix(char *to, const float *w) {
    for (int i = threadIdx.x; i < N * K; i += BLOCK_THREADS) {
        const int n = i / K, k = i % K;
        *reinterpret_cast<float *>(to + wg_at<N>(n, k)) = to_tf32(w[n * K + channel_of(k)]);
    }
}

template <int N> static __device__ void load_vector(char *to, const float *from, float otherwise) {
    for (int i = threadIdx.x; i < N; i += BLOCK_THREADS) {
        reinterpret_cast<float *>(to)[i] = from ? from[i] : otherwise;
    }
}

template <int C, int STEPS>
static __device__ void load_spectrum(const block_task &t, int b, int row, char *to) {
    for (int i = threadIdx.x; i < C * (STEPS * 2); i += BLOCK_THREADS) {
        const int c = i / (STEPS * 2), k = 4 * (i % (STEPS * 2));
        float4 v = {};
        if (k < 2 * t.kept) { /* the pitch is even: four numbers are there */
            const int64_t at = (((int64_t)b * C + c) * t.rows + row) * (2 * t.pitch) + k;
            v = *reinterpret_cast<const float4 *>(t.s + at);
            const float first = k == 0 || k == t.width ? t.edge : t.inside;
            const float second = k + 2 == t.width ? t.edge : t.inside;
            const bool has_second = k + 2 < 2 * t.kept;
            v = {to_tf32(first * v.x), to_tf32(first * v.y),
                 has_second ? to_tf32(second * v.z) : 0.0f,
                 has_second ? to_tf32(second * v.w) : 0.0f};
        }
        *reinterpret_cast<float4 *>(to + wg_at<C>(c, k)) = v;
    }
}

/* ---- tiles ---- */

/* Two neighbouring pixels of every channel that a thread has; `first` is that of channel 2 t. */
template <int C, class F> static __device__ inline void each_pair(int64_t image, F f) {
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        f(4 * j, (int64_t)(8 * j) * image);
        f(4 * j + 1, (int64_t)(8 * j + 1) * image);
    }
}

template <int C>
static __device__ inline void store_tile(const float (&d)[C / 2], float *to, int64_t image) {
    each_pair<C>(image, [&](int i, int64_t at) {
        *reinterpret_cast<float2 *>(to + at) = {d[i], d[i + 2]};
    });
}

/* ---- values in bytes ---- */

static_assert(TG_QUANTIZED_BLOCK == BLOCK_GROUPS * WG_PIXELS, "a scale is of a tile of each");

static __device__ inline uint32_t larger_modulus(float a, float b) {
    return max(__float_as_uint(a) & 0x7FFFFFFFu, __float_as_uint(b) & 0x7FFFFFFFu);
}

/* Number of the scale of channel 0 of a tile. */
static __device__ inline int64_t scale_of(const block_task &t, int b, int channels, int row,
                                          int tile) {
    const int64_t line = (int64_t)b * channels * t.rows + row;
    return line * (t.width / TG_QUANTIZED_BLOCK) + tile / BLOCK_GROUPS;
}

/* most[channel] = the largest |d| of the channel there and of the thread's pixels: over the eight
 * lanes that have a channel, eight channels at a time, and then over warps. */
template <int C> static __device__ inline void find_most(const float (&d)[C / 2], uint32_t *most) {
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
        for (int half = 4; half > 0; half /= 2) { /* a lane keeps half of what it has */
            const bool upper = lane & (4 * half);
#pragma unroll
            for (int i = 0; i < half; i++) {
                const uint32_t sent = upper ? m[i] : m[i + half];
                const uint32_t kept = upper ? m[i + half] : m[i];
                m[i] = max(kept, __shfl_xor_sync(~0u, sent, 4 * half));
            }
        }
        const int i = lane / 4; /* is left */
        atomicMax(most + 8 * (j + i / 2) + lane % 4 * 2 + i % 2, m[0]);
    }
}

static __device__ inline void store_byte_pair(uint8_t *to, float a, float b, float inverse) {
    const uint32_t low = tg_quantize(a, inverse), high = tg_quantize(b, inverse);
    *reinterpret_cast<uint16_t *>(to) = (uint16_t)(high << 8 | low);
}

/* Both warpgroups' tiles of d in bytes. `first` is the number of the thread's first pixel, of all
 * values, `block` that of the scale of channel 0; most is 0 before and after. */
template <int C>
static __device__ inline void store_bytes(const float (&d)[C / 2], const block_bytes &to,
                                          int64_t first, int64_t block, int64_t image,
                                          char *most_of, char *inverse_of) {
    uint32_t *most = reinterpret_cast<uint32_t *>(most_of);
    float *inverse = reinterpret_cast<float *>(inverse_of);
    find_most<C>(d, most);
    __syncthreads();
    if (threadIdx.x < C) {
        const tg_quantizer q = tg_quantizer_of(most[threadIdx.x]);
        to.scales[block + threadIdx.x * (image / TG_QUANTIZED_BLOCK)] = q.scale;
        inverse[threadIdx.x] = q.inverse;
        most[threadIdx.x] = 0;
    }
    __syncthreads();
    const int64_t step = (int64_t)fresh((uint64_t)image); /* no addresses are kept */
    uint8_t *at = to.values + first;
    const float *of = inverse + fresh_thread() % 4 * 2;
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        const float2 by = *reinterpret_cast<const float2 *>(of + 8 * j);
        store_byte_pair(at, d[4 * j], d[4 * j + 2], by.x);
        store_byte_pair(at + step, d[4 * j + 1], d[4 * j + 3], by.y);
        at += 8 * step;
    }
}

/* d[channel] = f(d[channel], of[channel], index) */
template <int C, class F>
static __device__ inline void with_vector(float (&d)[C / 2], const char *vector, F f) {
    const float *of = reinterpret_cast<const float *>(vector) + threadIdx.x % 4 * 2;
#pragma unroll
    for (int j = 0; j < C / 8; j++) {
        const float2 v = *reinterpret_cast<const float2 *>(of + 8 * j);
        d[4 * j] = f(d[4 * j], v.x, 4 * j);
        d[4 * j + 1] = f(d[4 * j + 1], v.y, 4 * j + 1);
        d[4 * j + 2] = f(d[4 * j + 2], v.x, 4 * j + 2);
        d[4 * j + 3] = f(d[4 * j + 3], v.y, 4 * j + 3);
    }
}

/* d (+)= a B, B (K, N); a is rounded already. */
template <int N, int K>
static __device__ inline void multiply(float (&d)[N / 2], const float (&a)[K / 2], uint64_t b,
                                       bool adds) {
    wg_begin();
#pragma unroll
    for (int k = 0; k < K / 8; k++) {
        wg_product(d, wg_factor(a, k), wg_rows<N>(b, k), adds || k > 0);
    }
    wg_end();
    wg_wait<0>();
    wg_fence(d);
}

/* d = the pixels of a tile, from a row's spectrum: four steps at a time, while the waves of the
 * next four are on their way. */
template <int C, int STEPS>
static __device__ inline void inverse_row(float (&d)[C / 2], const float4 *waves, uint64_t s) {
    float4 a[2][4];
#pragma unroll
    for (int i = 0; i < 4 && i < STEPS; i++) {
        a[0][i] = waves[i * WG_THREADS];
    }
#pragma unroll
    for (int k = 0; k < STEPS; k += 4) {
#pragma unroll
        for (int i = k + 4; i < k + 8 && i < STEPS; i++) {
            a[i / 4 % 2][i % 4] = waves[i * WG_THREADS];
        }
        wg_begin();
#pragma unroll
        for (int i = k; i < k + 4 && i < STEPS; i++) {
            wg_product(d, a[i / 4 % 2][i % 4], wg_rows<C>(s, i), i > 0);
        }
        wg_end();
        wg_wait<0>();
        wg_fence(d);
    }
}

/* ---- the kernel ---- */

template <int C, int H, int STEPS, bool ACT, bool QUANTIZED>
static __global__ void __launch_bounds__(BLOCK_THREADS, 1)
    block_forward(const __grid_constant__ block_task t) {
    using L = block_layout<C, H, STEPS>;
    extern __shared__ __align__(1024) char shared[];
    load_matrix<C, C>(shared + L::SKIP, t.skip);
    load_vector<C>(shared + L::BIAS, t.bias, 0.0f);
    if (QUANTIZED) {
        load_vector<C>(shared + L::MOST, NULL, 0.0f);
    }
    if (t.w1) {
        load_matrix<H, C>(shared + L::W1, t.w1);
        load_matrix<C, H>(shared + L::W2, t.w2);
        load_vector<H>(shared + L::B1, t.b1, 0.0f);
        load_vector<C>(shared + L::B2, t.b2, 0.0f);
        load_vector<C>(shared + L::GATE, t.adds ? t.gate : NULL, t.adds ? 1.0f : 0.0f);
    }
    const int tiles = t.width / WG_PIXELS;
    const int64_t image = (int64_t)t.rows * t.width;
    for (int row = blockIdx.x; row < t.batch * t.rows; row += gridDim.x) {
        const int b = row / t.rows, r = row % t.rows;
        __syncthreads(); /* all are done with the row before */
        load_spectrum<C, STEPS>(t, b, r, shared + L::SPECTRUM);
        wg_publish();
        __syncthreads();
        for (int tile = threadIdx.x / WG_THREADS; tile < tiles; tile += BLOCK_GROUPS) {
            const int64_t first = ((int64_t)b * C + threadIdx.x % 4 * 2) * image +
                                  (int64_t)r * t.width + tile * WG_PIXELS + pixel_of();
            float x[C / 2], d[C / 2];
            each_pair<C>(image, [&](int i, int64_t at) {
                const float2 v = *reinterpret_cast<const float2 *>(t.x + first + at);
                x[i] = v.x;
                x[i + 2] = v.y;
            });
            inverse_row<C, STEPS>(d,
                                  t.waves + tile * (STEPS * WG_THREADS) + threadIdx.x % WG_THREADS,
                                  wg_matrix(shared + L::SPECTRUM));
            float u[C / 2];
#pragma unroll
            for (int i = 0; i < C / 2; i++) {
                x[i] = ACT ? gelu(x[i]) : x[i];
                u[i] = to_tf32(x[i]);
            }
            multiply<C, C>(d, u, wg_matrix(shared + L::SKIP), true);
            with_vector<C>(d, shared + L::BIAS, [](float v, float of, int) { return v + of; });
            if (t.z1) {
                store_tile<C>(d, t.z1 + first, image);
            }
            if (QUANTIZED && t.z1_bytes.values) {
                store_bytes<C>(d, t.z1_bytes, first, scale_of(t, b, C, r, tile), image,
                               shared + L::MOST, shared + L::INVERSE);
            }
            if (!t.w1) {
                continue;
            }
#pragma unroll
            for (int i = 0; i < C / 2; i++) {
                d[i] = to_tf32(t.activates ? gelu(d[i]) : d[i]);
            }
            float hidden[H / 2];
            multiply<H, C>(hidden, d, wg_matrix(shared + L::W1), false);
            with_vector<H>(hidden, shared + L::B1,
                           [](float v, float of, int) { return to_tf32(gelu(v + of)); });
            multiply<C, H>(d, hidden, wg_matrix(shared + L::W2), false);
            with_vector<C>(d, shared + L::B2, [](float v, float of, int) { return v + of; });
            with_vector<C>(d, shared + L::GATE,
                           [&](float v, float of, int i) { return fmaf(of, x[i], v); });
            if (t.z2) {
                store_tile<C>(d, t.z2 + first, image);
            }
            if (QUANTIZED && t.z2_bytes.values) {
                store_bytes<C>(d, t.z2_bytes, first, scale_of(t, b, C, r, tile), image,
                               shared + L::MOST, shared + L::INVERSE);
            }
            if (t.activated) {
#pragma unroll
                for (int i = 0; i < C / 2; i++) {
                    d[i] = gelu(d[i]);
                }
                store_tile<C>(d, t.activated + first, image);
            }
        }
    }
}

#endif
