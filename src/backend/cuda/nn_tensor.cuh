/* Linear skips and perceptrons on tensor cores: what their kernels share beside the products.
 *
 * A block takes tiles of TILE pixels of a sample. While it computes, its next tile is on the way
 * from memory into registers. Results go from the fragments of products straight to memory; sums
 * over pixels stay in registers over all tiles of a block and are folded in order afterwards. */
#ifndef TG_BACKEND_CUDA_NN_TENSOR_CUH
#define TG_BACKEND_CUDA_NN_TENSOR_CUH

#include "backend/cuda/nn.cuh"
#include "backend/cuda/nn_products.cuh"

enum { TENSOR_BLOCKS = 2 }; /* of a multiprocessor at most: bounds the partial sums */

__device__ inline float *dynamic_shared() {
    extern __shared__ float4 shared_memory[];
    return reinterpret_cast<float *>(shared_memory);
}

/* ---- activations in memory ---- */

/* (batch, channels, pixels) */
struct activation {
    void *data; /* NULL: none */
    tg_storage store;
    int channels;
    bool whole; /* runs of four that start at a multiple of four are complete and aligned */
};

static inline activation activation_of(const void *data, tg_storage store, int64_t channels,
                                       int64_t pixels) {
    const uintptr_t bytes = store == TG_STORE_FULL ? 16 : 8;
    return {const_cast<void *>(data), store, (int)channels,
            pixels % 4 == 0 && (uintptr_t)data % bytes == 0};
}

struct pixel_tiles {
    int64_t pixels;
    int per_sample, count;
};

/* Where a tile begins. */
struct tile_place {
    int64_t sample, pixel;
};

__device__ inline tile_place place_of(const pixel_tiles &tiles, int tile) {
    const int sample = tile / tiles.per_sample;
    return {sample, (int64_t)(tile - sample * tiles.per_sample) * TILE};
}

/* Four numbers as they lie in memory: halves fill two of the words. */
struct raw_run {
    uint32_t word[4];
};

__device__ inline raw_run load_raw(const activation &x, int64_t at, int64_t left) {
    raw_run r = {};
    if (x.store == TG_STORE_FULL) {
        for (int j = 0; j < 4; j++) {
            r.word[j] = j < left ? static_cast<const uint32_t *>(x.data)[at + j] : 0;
        }
    } else if (x.whole) {
        const uint16_t *from = static_cast<const uint16_t *>(x.data) + at;
        const uint2 v = *reinterpret_cast<const uint2 *>(from);
        r = {{v.x, v.y, 0, 0}};
    } else {
        for (int j = 0; j < 4; j++) {
            const uint32_t v = j < left ? static_cast<const uint16_t *>(x.data)[at + j] : 0;
            r.word[j / 2] |= v << (16 * (j % 2));
        }
    }
    return r;
}

/* Two halves in a word, the first one low. */
__device__ inline float2 halves_of(tg_storage store, uint32_t word) {
    if (store == TG_STORE_BF16) {
        return {__uint_as_float(word << 16), __uint_as_float(word & 0xFFFF0000u)};
    }
    return __half22float2(*reinterpret_cast<const __half2 *>(&word));
}

__device__ inline float4 numbers_of(tg_storage store, const raw_run &r) {
    if (store == TG_STORE_FULL) {
        return {__uint_as_float(r.word[0]), __uint_as_float(r.word[1]), __uint_as_float(r.word[2]),
                __uint_as_float(r.word[3])};
    }
    const float2 low = halves_of(store, r.word[0]), high = halves_of(store, r.word[1]);
    return {low.x, low.y, high.x, high.y};
}

/* A thread's share of a tile (ROWS, TILE): run q is row threadIdx.x / 16 + 16 q. */
template <int ROWS> struct tile_share {
    raw_run run[ROWS / 16];

    static __device__ int row(int q) {
        return (int)threadIdx.x / 16 + 16 * q;
    }
    static __device__ int column() {
        return (int)threadIdx.x % 16 * 4;
    }
    /* Only asks for the numbers; channels and pixels that do not exist are 0. */
    __device__ void fetch(const activation &x, const pixel_tiles &tiles, tile_place place) {
        const int64_t pixel = place.pixel + column(), left = tiles.pixels - pixel;
        const int64_t first = (place.sample * x.channels + row(0)) * tiles.pixels + pixel;
        if (x.whole && x.store == TG_STORE_FULL) { /* without branches between the loads */
            const float *from = static_cast<const float *>(x.data) + first;
#pragma unroll
            for (int q = 0; q < ROWS / 16; q++) {
                uint4 v = {0, 0, 0, 0};
                if (row(q) < x.channels && left > 0) {
                    v = *reinterpret_cast<const uint4 *>(from + 16 * q * tiles.pixels);
                }
                run[q] = {{v.x, v.y, v.z, v.w}};
            }
            return;
        }
#pragma unroll
        for (int q = 0; q < ROWS / 16; q++) {
            run[q] = {};
            if (row(q) < x.channels && left > 0) {
                run[q] = load_raw(x, first + 16 * q * tiles.pixels, left);
            }
        }
    }
    __device__ float4 numbers(tg_storage store, int q) const {
        return numbers_of(store, run[q]);
    }
    /* act of it to a tile in shared memory. */
    __device__ void put(tg_storage store, tg_act act, float *tile) const {
        switch (act) { /* not for every number */
        case TG_ACT_GELU:
            put_as(store, tile, [](float v) { return gelu(v); });
            break;
        case TG_ACT_TANH:
            put_as(store, tile, [](float v) { return tanhf(v); });
            break;
        default:
            put_as(store, tile, [](float v) { return v; });
        }
    }
    template <class F> __device__ void put_as(tg_storage store, float *tile, F f) const {
#pragma unroll
        for (int q = 0; q < ROWS / 16; q++) {
            const float4 v = numbers(store, q);
            *reinterpret_cast<float4 *>(tile + row(q) * TILE_LD + column()) = {
                to_tf32(f(v.x)), to_tf32(f(v.y)), to_tf32(f(v.z)), to_tf32(f(v.w))};
        }
    }
};

/* Two neighbouring pixels of a channel, the first one even; `left` of them exist. PLAIN: both do,
 * as f32 and aligned. */
template <bool PLAIN>
__device__ inline float2 load_pair(const activation &x, int64_t at, int64_t left) {
    if (PLAIN || x.store == TG_STORE_FULL) {
        const float *from = static_cast<const float *>(x.data) + at;
        return PLAIN || x.whole ? *reinterpret_cast<const float2 *>(from)
                                : float2{from[0], left > 1 ? from[1] : 0.0f};
    }
    const uint16_t *from = static_cast<const uint16_t *>(x.data) + at;
    const uint32_t word = x.whole ? *reinterpret_cast<const uint32_t *>(from)
                                  : from[0] | (left > 1 ? (uint32_t)from[1] << 16 : 0u);
    return halves_of(x.store, word);
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

/* Number `at` and, if it exists, the next one; a word of halves, or two numbers. */
template <class T> __device__ inline void store_two(T *to, int64_t left, T first, T second) {
    to[0] = first;
    if (left > 1) {
        to[1] = second;
    }
}

template <bool PLAIN>
__device__ inline void store_pair(const activation &x, int64_t at, int64_t left, float2 v) {
    float *full = static_cast<float *>(x.data) + at;
    uint16_t *halves = static_cast<uint16_t *>(x.data) + at;
    if (PLAIN || (x.whole && x.store == TG_STORE_FULL)) {
        *reinterpret_cast<float2 *>(full) = v;
    } else if (x.store == TG_STORE_FULL) {
        store_two(full, left, v.x, v.y);
    } else {
        const uint32_t word = halves_to_word(x.store, v);
        if (x.whole) {
            *reinterpret_cast<uint32_t *>(halves) = word;
        } else {
            store_two(halves, left, (uint16_t)word, (uint16_t)(word >> 16));
        }
    }
}

/* Of row (m, h) of a warp's part of a product (M, TILE), the pairs acc[m][n][2 h], [2 h + 1] that
 * exist (PLAIN: all): f(n, at, left), the pair being at `at` of an activation with that many
 * channels. */
template <int M, bool PLAIN, class F>
__device__ inline void each_pair(int m, int h, int channels, const pixel_tiles &tiles,
                                 tile_place place, F f) {
    using S = split<M, TILE>;
    const int row = S::row(m, h);
    const int64_t pixel = place.pixel + S::column(0), left = tiles.pixels - pixel;
    const int64_t at = (place.sample * channels + row) * tiles.pixels + pixel;
#pragma unroll
    for (int n = 0; n < S::NT; n++) {
        if (PLAIN || (row < channels && left > 8 * n)) {
            f(n, at + 8 * n, left - 8 * n);
        }
    }
}

/* Whether all of a tile of M channels exists. */
template <int M>
__device__ inline bool is_complete(int channels, const pixel_tiles &tiles, tile_place place) {
    return channels == M && place.pixel + TILE <= tiles.pixels;
}

__device__ inline bool is_plain(const activation &x) {
    return !x.data || (x.whole && x.store == TG_STORE_FULL);
}

/* What becomes the gradient of an input: dx = (beta dx + alpha p) act'(x); act NONE: no slope. dx
 * may be x. */
struct input_gradient {
    tg_act act;
    float alpha, beta;
    activation x, dx;
};

template <bool PLAIN, int M, class F>
__device__ inline void write_gradient(const split<M, TILE> &p, const input_gradient &g,
                                      const pixel_tiles &tiles, tile_place place, F slope) {
    using S = split<M, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++) {
        const int m = i / 2, h = i % 2;
        float2 old[S::NT] = {}, x[S::NT] = {};
        each_pair<M, PLAIN>(m, h, g.dx.channels, tiles, place,
                            [&](int n, int64_t at, int64_t left) {
                                if (g.beta != 0.0f) {
                                    old[n] = load_pair<PLAIN>(g.dx, at, left);
                                }
                                if (g.act != TG_ACT_NONE) {
                                    x[n] = load_pair<PLAIN>(g.x, at, left);
                                }
                            });
        each_pair<M, PLAIN>(
            m, h, g.dx.channels, tiles, place, [&](int n, int64_t at, int64_t left) {
                const float2 v = {g.beta * old[n].x + g.alpha * p.acc[m][n][2 * h],
                                  g.beta * old[n].y + g.alpha * p.acc[m][n][2 * h + 1]};
                store_pair<PLAIN>(g.dx, at, left, {v.x * slope(x[n].x), v.y * slope(x[n].y)});
            });
    }
}

template <int M>
__device__ inline void write_gradient(const split<M, TILE> &p, const input_gradient &g,
                                      const pixel_tiles &tiles, tile_place place) {
    const bool plain = is_plain(g.dx) && (g.act == TG_ACT_NONE || is_plain(g.x)) &&
                       is_complete<M>(g.dx.channels, tiles, place);
    if (plain && g.act == TG_ACT_GELU) {
        write_gradient<true>(p, g, tiles, place, [](float x) { return act_slope(TG_ACT_GELU, x); });
    } else if (plain && g.act == TG_ACT_NONE) {
        write_gradient<true>(p, g, tiles, place, [](float) { return 1.0f; });
    } else {
        write_gradient<false>(p, g, tiles, place, [&](float x) { return act_slope(g.act, x); });
    }
}

/* ---- sums over pixels ---- */

/* Sums of the rows of tiles, each thread those of its share. */
template <int ROWS> struct row_sums {
    double sum[ROWS / 16];

    __device__ void clear() {
        for (int q = 0; q < ROWS / 16; q++) {
            sum[q] = 0.0;
        }
    }
    /* The gradient of a loss at few channels may cancel by orders of magnitude: every number in
     * f64 there, where it costs nothing; elsewhere runs of four in f32. */
    __device__ void add(const tile_share<ROWS> &share, tg_storage store) {
#pragma unroll
        for (int q = 0; q < ROWS / 16; q++) {
            const float4 v = share.numbers(store, q);
            sum[q] += ROWS <= 16 ? ((double)v.x + (double)v.y) + ((double)v.z + (double)v.w)
                                 : (double)((v.x + v.y) + (v.z + v.w));
        }
    }
    /* to (ROWS) = the sums; every thread calls. */
    __device__ void store(double *to) const {
#pragma unroll
        for (int q = 0; q < ROWS / 16; q++) {
            double all = sum[q];
            for (int lane = 8; lane > 0; lane /= 2) {
                all += __shfl_xor_sync(~0u, all, lane);
            }
            if (threadIdx.x % 16 == 0) {
                to[tile_share<ROWS>::row(q)] = all;
            }
        }
    }
};

/* ---- partial sums of blocks, folded in order by fold_partials ---- */

template <int M, int N>
__device__ inline void store_partial(const split<M, N> &p, float *to, int ld) {
    using S = split<M, N>;
    for (int m = 0; m < S::MT; m++) {
        for (int n = 0; n < S::NT; n++) {
            for (int h = 0; h < 2; h++) {
                float2 *at = reinterpret_cast<float2 *>(to + S::row(m, h) * ld + S::column(n));
                *at = {p.acc[m][n][2 * h], p.acc[m][n][2 * h + 1]};
            }
        }
    }
}

/* out (rows, columns) += scale * the sum over the parts of partial (rows, columns), whose rows are
 * `ld` and whose parts `stride` numbers apart, floats or doubles. */
struct fold_job {
    const void *partial;
    int64_t stride;
    int rows, columns, ld;
    bool wide;
    float *out; /* NULL: nothing to do */
};

struct fold_jobs {
    fold_job job[4];
    int jobs, parts;
    double scale[4];
};

tg_status fold_partials(tg_backend *be, const fold_jobs &jobs);

/* ---- launches ---- */

/* Sets the kernel's shared memory; *blocks: how many run at once on the device. */
tg_status tensor_blocks(const tg_backend *be, const void *kernel, size_t shared, int *blocks);

/* Whether the device has tensor cores for TF32 and `shared` bytes for a block. */
bool tensor_fits(const tg_backend *be, size_t shared);

static inline pixel_tiles pixel_tiles_of(int64_t batch, int64_t pixels) {
    const int64_t per_sample = (pixels + TILE - 1) / TILE;
    return {pixels, (int)per_sample, (int)(batch * per_sample)};
}

static inline bool tiles_countable(int64_t batch, int64_t pixels) {
    return batch * ((pixels + TILE - 1) / TILE) <= INT32_MAX / 2;
}

#endif
