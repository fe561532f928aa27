/* Linear skips and perceptrons on tensor cores: what their kernels share.
 *
 * A block of 8 warps takes tiles of TILE pixels of a sample and multiplies them in shared memory
 * (products.cuh). While it computes, its next tile is on the way from memory into registers, and
 * what a result is added to is on the way into the registers of that result. */
#ifndef TG_BACKEND_CUDA_TILE_MLP_STAGE_CUH
#define TG_BACKEND_CUDA_TILE_MLP_STAGE_CUH

#include "backend/cuda/tile/mlp_products.cuh"

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

/* Calls whose activations are all whole have kernels of their own, one for each storage, in which
 * loads do not hide behind branches and so overlap. KNOWN is a storage, or LOOSE: then only the
 * activation says how it lies. */
enum { LOOSE = -1 };

template <int KNOWN> __device__ inline void settle(activation &x) {
    if (KNOWN != LOOSE) { /* known to the compiler from here on */
        x.store = (tg_storage)KNOWN;
        x.whole = true;
    }
}

static inline bool is_whole(const activation &x) {
    return !x.data || x.whole;
}

template <int KNOWN> using known = std::integral_constant<int, KNOWN>;

template <class F> tg_status with_known(tg_storage store, bool whole, F f) {
    return !whole                   ? f(known<LOOSE>())
           : store == TG_STORE_BF16 ? f(known<TG_STORE_BF16>())
           : store == TG_STORE_F16  ? f(known<TG_STORE_F16>())
                                    : f(known<TG_STORE_FULL>());
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
    if (x.whole && x.store == TG_STORE_FULL) {
        const uint4 v = *reinterpret_cast<const uint4 *>(static_cast<const float *>(x.data) + at);
        r = {{v.x, v.y, v.z, v.w}};
    } else if (x.whole) {
        const uint2 v =
            *reinterpret_cast<const uint2 *>(static_cast<const uint16_t *>(x.data) + at);
        r = {{v.x, v.y, 0, 0}};
    } else if (x.store == TG_STORE_FULL) {
        for (int j = 0; j < 4; j++) {
            r.word[j] = j < left ? static_cast<const uint32_t *>(x.data)[at + j] : 0;
        }
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
#pragma unroll
        for (int q = 0; q < ROWS / 16; q++) {
            run[q] = {};
            if (row(q) < x.channels && left > 0) {
                const int64_t at = (place.sample * x.channels + row(q)) * tiles.pixels + pixel;
                run[q] = load_raw(x, at, left);
            }
        }
    }
    __device__ float4 numbers(tg_storage store, int q) const {
        return numbers_of(store, run[q]);
    }
    /* act of it to a tile in shared memory; its slope, if wanted, to another one. */
    __device__ void put(tg_storage store, tg_act act, float *tile, float *slopes = NULL) const {
        switch (act) {
        case TG_ACT_GELU:
            return slopes ? put_as<TG_ACT_GELU, true>(store, tile, slopes)
                          : put_as<TG_ACT_GELU, false>(store, tile, slopes);
        case TG_ACT_TANH:
            return slopes ? put_as<TG_ACT_TANH, true>(store, tile, slopes)
                          : put_as<TG_ACT_TANH, false>(store, tile, slopes);
        default:
            return slopes ? put_as<TG_ACT_NONE, true>(store, tile, slopes)
                          : put_as<TG_ACT_NONE, false>(store, tile, slopes);
        }
    }

  private:
    /* Nothing branches between the numbers, so that their chains of instructions overlap. */
    template <tg_act ACT, bool SLOPED>
    __device__ void put_as(tg_storage store, float *tile, float *slopes) const {
        float4 v[ROWS / 16];
#pragma unroll
        for (int q = 0; q < ROWS / 16; q++) {
            v[q] = numbers(store, q);
        }
#pragma unroll
        for (int q = 0; q < ROWS / 16; q++) {
            float4 value, slope;
            slope.x = act_both(ACT, v[q].x, &value.x);
            slope.y = act_both(ACT, v[q].y, &value.y);
            slope.z = act_both(ACT, v[q].z, &value.z);
            slope.w = act_both(ACT, v[q].w, &value.w);
            const int at = row(q) * TILE_LD + column();
            *reinterpret_cast<float4 *>(tile + at) = {to_tf32(value.x), to_tf32(value.y),
                                                      to_tf32(value.z), to_tf32(value.w)};
            if (SLOPED) {
                *reinterpret_cast<float4 *>(slopes + at) = slope;
            }
        }
    }
};

/* Two neighbouring pixels of a channel, the first one even; `left` of them exist. */
__device__ inline float2 load_pair(const activation &x, int64_t at, int64_t left) {
    if (x.store == TG_STORE_FULL) {
        const float *from = static_cast<const float *>(x.data) + at;
        return x.whole ? *reinterpret_cast<const float2 *>(from)
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

__device__ inline void store_pair(const activation &x, int64_t at, int64_t left, float2 v) {
    if (x.store == TG_STORE_FULL) {
        float *to = static_cast<float *>(x.data) + at;
        if (x.whole) {
            *reinterpret_cast<float2 *>(to) = v;
        } else {
            to[0] = v.x;
            if (left > 1) {
                to[1] = v.y;
            }
        }
        return;
    }
    uint16_t *to = static_cast<uint16_t *>(x.data) + at;
    const uint32_t word = halves_to_word(x.store, v);
    if (x.whole) {
        *reinterpret_cast<uint32_t *>(to) = word;
    } else {
        to[0] = (uint16_t)word;
        if (left > 1) {
            to[1] = (uint16_t)(word >> 16);
        }
    }
}

/* RUN (2 or 4) pixels in a row, the first one at a multiple of RUN. */
template <int RUN> struct pixel_run { float v[RUN]; };

template <int RUN>
__device__ inline pixel_run<RUN> load_pixels(const activation &x, int64_t at, int64_t left) {
    if constexpr (RUN == 4) {
        const float4 v = numbers_of(x.store, load_raw(x, at, left));
        return {{v.x, v.y, v.z, v.w}};
    } else {
        const float2 v = load_pair(x, at, left);
        return {{v.x, v.y}};
    }
}

template <int RUN>
__device__ inline void store_pixels(const activation &x, int64_t at, int64_t left,
                                    const pixel_run<RUN> &run) {
    if constexpr (RUN == 2) {
        store_pair(x, at, left, {run.v[0], run.v[1]});
    } else if (x.whole && x.store == TG_STORE_FULL) {
        store_four(static_cast<float *>(x.data) + at, run.v[0], run.v[1], run.v[2], run.v[3]);
    } else if (x.whole) {
        *reinterpret_cast<uint2 *>(static_cast<uint16_t *>(x.data) +
                                   at) = {halves_to_word(x.store, {run.v[0], run.v[1]}),
                                          halves_to_word(x.store, {run.v[2], run.v[3]})};
    } else {
        store_pair(x, at, left, {run.v[0], run.v[1]});
        if (left > 2) {
            store_pair(x, at + 2, left - 2, {run.v[2], run.v[3]});
        }
    }
}

/* The runs that exist of row (m, h) of a warp's part of a product (M, TILE): f(r, at, left), run r
 * being at `at` of an activation with that many channels. */
template <int M, class F>
__device__ inline void each_run(int m, int h, int channels, const pixel_tiles &tiles,
                                tile_place place, F f) {
    using S = split<M, TILE>;
    const int row = S::row(m, h);
    const int64_t pixel = place.pixel + S::pixel(0), left = tiles.pixels - pixel;
    const int64_t at = (place.sample * channels + row) * tiles.pixels + pixel;
#pragma unroll
    for (int r = 0; r < S::RUNS; r++) {
        const int step = 8 * S::WEAVE * r;
        if (row < channels && left > step) {
            f(r, at + step, left - step);
        }
    }
}

/* p = scale x; scale 1 does not wait for x, which then arrives during what follows. */
template <int M>
__device__ inline void start_from(split<M, TILE> &p, float scale, const activation &x,
                                  const pixel_tiles &tiles, tile_place place) {
    using S = split<M, TILE>;
    p.clear();
    if (scale == 0.0f) {
        return;
    }
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++) {
        const int m = i / 2, h = i % 2;
        each_run<M>(m, h, x.channels, tiles, place, [&](int r, int64_t at, int64_t left) {
            const pixel_run<S::RUN> run = load_pixels<S::RUN>(x, at, left);
            for (int e = 0; e < S::RUN; e++) {
                p.at(m, h, r, e) = run.v[e];
            }
        });
    }
    if (scale != 1.0f) {
        p.multiply(scale);
    }
}

/* dx = alpha p act'(x); act NONE: no slope. dx may be x. */
template <int M>
__device__ inline void write_input_gradient(const split<M, TILE> &p, tg_act act, float alpha,
                                            const activation &x, const activation &dx,
                                            const pixel_tiles &tiles, tile_place place) {
    using S = split<M, TILE>;
#pragma unroll
    for (int m = 0; m < S::MT; m++) {
        pixel_run<S::RUN> slope[2][S::RUNS];
#pragma unroll
        for (int h = 0; h < 2 && act != TG_ACT_NONE; h++) {
            each_run<M>(m, h, x.channels, tiles, place, [&](int r, int64_t at, int64_t left) {
                slope[h][r] = load_pixels<S::RUN>(x, at, left);
            });
        }
#pragma unroll
        for (int h = 0; h < 2; h++) {
            each_run<M>(m, h, dx.channels, tiles, place, [&](int r, int64_t at, int64_t left) {
                pixel_run<S::RUN> run;
                for (int e = 0; e < S::RUN; e++) {
                    run.v[e] = alpha * p.at(m, h, r, e);
                    if (act != TG_ACT_NONE) {
                        run.v[e] *= act_slope(act, slope[h][r].v[e]);
                    }
                }
                store_pixels(dx, at, left, run);
            });
        }
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
tg_status tensor_blocks(const tg_backend *be, const void *kernel, size_t shared, int *blocks,
                        int threads = TENSOR_THREADS);

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
