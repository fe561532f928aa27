/* Linear skips and perceptrons on tensor cores: what their kernels share.
 *
 * A block of 8 warps takes tiles of TILE pixels of a sample. In shared memory lie the weights, row
 * by row, and the activations of a tile (channels, TILE), all rounded to TF32 as they are written;
 * sizes are rounded up and filled with zeros. No access to them meets a bank conflict: rows of
 * activations are TILE_LD apart, the columns of weights are swapped in groups of 8 (weight_at), and
 * products over channels take k0 = 2t, k1 = 2t + 1 (mma.cuh), those over pixels k0 = t, k1 = t + 4.
 *
 * While a block computes, its next tile is on the way from memory into registers. */
#ifndef TG_BACKEND_CUDA_NN_TENSOR_CUH
#define TG_BACKEND_CUDA_NN_TENSOR_CUH

#include "backend/cuda/mma.cuh"
#include "backend/cuda/nn.cuh"

enum {
    TILE = 64,
    TILE_LD = TILE + 4,
    TENSOR_THREADS = 256,
    TENSOR_BLOCKS = 2 /* of a multiprocessor at most: bounds the partial sums */
};

__device__ inline float *dynamic_shared() {
    extern __shared__ float4 shared_memory[];
    return reinterpret_cast<float *>(shared_memory);
}

/* ---- how warps share a product (M, N) ---- */

template <int M, int N> struct split {
    static constexpr int down = M >= N ? (M >= 64 ? 4 : M / 16) : (M >= 32 ? 2 : 1);
    static constexpr int across = 8 / down;
    static constexpr int MT = M / 16 / down, NT = N / 8 / across; /* fragments of a warp */
    static_assert(MT * down * 16 == M && NT * across * 8 == N, "whole fragments only");
    float acc[MT][NT][4];

    __device__ void clear() {
        for (int m = 0; m < MT; m++) {
            for (int n = 0; n < NT; n++) {
                for (int i = 0; i < 4; i++) {
                    acc[m][n][i] = 0.0f;
                }
            }
        }
    }
    static __device__ int first_row() {
        return (int)threadIdx.x / 32 / across * (MT * 16);
    }
    static __device__ int first_column() {
        return (int)threadIdx.x / 32 % across * (NT * 8);
    }
    /* Row of acc[m][.][2 h] and column of acc[.][n][0], [1] being the next. */
    static __device__ int row(int m, int h) {
        return first_row() + 16 * m + 8 * h + (int)threadIdx.x % 32 / 4;
    }
    static __device__ int column(int n) {
        return first_column() + 8 * n + (int)threadIdx.x % 4 * 2;
    }
};

/* ---- weights in shared memory ---- */

__device__ inline int swap_of(int row) {
    const int r = row % 8;
    return (r + r / 4) % 4;
}

__device__ inline int weight_at(int row, int column, int ld) {
    return row * ld + (column ^ (8 * swap_of(row)));
}

/* Rows are at least 32 apart: the swapping reaches that far. */
__host__ __device__ constexpr int weight_ld(int columns) {
    return columns < 32 ? 32 : columns;
}

/* w (rows, columns), its rows w_ld apart, as (ROWS, COLUMNS). */
template <int ROWS, int COLUMNS>
__device__ inline void load_weights(float *to, const float *w, int rows, int columns, int w_ld) {
    for (int e = threadIdx.x; e < ROWS * COLUMNS; e += TENSOR_THREADS) {
        const int r = e / COLUMNS, c = e % COLUMNS;
        to[weight_at(r, c, weight_ld(COLUMNS))] =
            r < rows && c < columns ? to_tf32(w[(int64_t)r * w_ld + c]) : 0.0f;
    }
}

/* ---- products ---- */

/* p += W x, W (M, K) in shared memory, x (K, TILE). */
template <int M, int K>
__device__ inline void add_product(split<M, TILE> &p, const float *w, const float *x) {
    using S = split<M, TILE>;
    constexpr int ld = weight_ld(K);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, swap = swap_of(g);
    const float *rows = w + (S::first_row() + g) * ld + 2 * t;
    const float *columns = x + 2 * t * TILE_LD + S::first_column() + g;
#pragma unroll 4
    for (int k = 0; k < K / 8; k++) {
        float b[S::NT][2];
        for (int n = 0; n < S::NT; n++) {
            b[n][0] = columns[8 * k * TILE_LD + 8 * n];
            b[n][1] = columns[(8 * k + 1) * TILE_LD + 8 * n];
        }
        for (int m = 0; m < S::MT; m++) {
            const float *at = rows + 16 * m * ld + 8 * (k ^ swap);
            const float2 upper = *reinterpret_cast<const float2 *>(at);
            const float2 lower = *reinterpret_cast<const float2 *>(at + 8 * ld);
            for (int n = 0; n < S::NT; n++) {
                mma_tf32(p.acc[m][n], {upper.x, lower.x, upper.y, lower.y}, b[n][0], b[n][1]);
            }
        }
    }
}

/* p += W^T x, W (K, M) in shared memory, x (K, TILE). */
template <int M, int K>
__device__ inline void add_adjoint_product(split<M, TILE> &p, const float *w, const float *x) {
    using S = split<M, TILE>;
    constexpr int ld = weight_ld(M);
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const int swap0 = swap_of(2 * t), swap1 = swap_of(2 * t + 1), group = S::first_row() / 8;
    const float *rows = w + 2 * t * ld + g;
    const float *columns = x + 2 * t * TILE_LD + S::first_column() + g;
#pragma unroll 4
    for (int k = 0; k < K / 8; k++) {
        float b[S::NT][2];
        for (int n = 0; n < S::NT; n++) {
            b[n][0] = columns[8 * k * TILE_LD + 8 * n];
            b[n][1] = columns[(8 * k + 1) * TILE_LD + 8 * n];
        }
        const float *row0 = rows + 8 * k * ld, *row1 = row0 + ld;
        for (int m = 0; m < S::MT; m++) {
            const int upper = group + 2 * m, lower = upper + 1;
            const float4 a = {row0[8 * (upper ^ swap0)], row0[8 * (lower ^ swap0)],
                              row1[8 * (upper ^ swap1)], row1[8 * (lower ^ swap1)]};
            for (int n = 0; n < S::NT; n++) {
                mma_tf32(p.acc[m][n], a, b[n][0], b[n][1]);
            }
        }
    }
}

/* p += x y^T, x (M, TILE), y (N, TILE): the sum over the pixels of a tile. */
template <int M, int N>
__device__ inline void add_correlation(split<M, N> &p, const float *x, const float *y) {
    using S = split<M, N>;
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const float *rows = x + (S::first_row() + g) * TILE_LD + t;
    const float *columns = y + (S::first_column() + g) * TILE_LD + t;
#pragma unroll 2
    for (int k = 0; k < TILE / 8; k++) {
        float b[S::NT][2];
        for (int n = 0; n < S::NT; n++) {
            b[n][0] = columns[8 * n * TILE_LD + 8 * k];
            b[n][1] = columns[8 * n * TILE_LD + 8 * k + 4];
        }
        for (int m = 0; m < S::MT; m++) {
            const float *at = rows + 16 * m * TILE_LD + 8 * k;
            const float4 a = {at[0], at[8 * TILE_LD], at[4], at[8 * TILE_LD + 4]};
            for (int n = 0; n < S::NT; n++) {
                mma_tf32(p.acc[m][n], a, b[n][0], b[n][1]);
            }
        }
    }
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
    /* act of it to a tile in shared memory. */
    __device__ void put(tg_storage store, tg_act act, float *tile) const {
#pragma unroll
        for (int q = 0; q < ROWS / 16; q++) {
            float4 v = numbers(store, q);
            v = {to_tf32(activate(act, v.x)), to_tf32(activate(act, v.y)),
                 to_tf32(activate(act, v.z)), to_tf32(activate(act, v.w))};
            *reinterpret_cast<float4 *>(tile + row(q) * TILE_LD + column()) = v;
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

/* Of row (m, h) of a warp's part of a product (M, TILE), the pairs acc[m][n][2 h], [2 h + 1] that
 * exist: f(n, at, left), the pair being at `at` of an activation with that many channels. */
template <int M, class F>
__device__ inline void each_pair(int m, int h, int channels, const pixel_tiles &tiles,
                                 tile_place place, F f) {
    using S = split<M, TILE>;
    const int row = S::row(m, h);
    const int64_t pixel = place.pixel + S::column(0), left = tiles.pixels - pixel;
    const int64_t at = (place.sample * channels + row) * tiles.pixels + pixel;
#pragma unroll
    for (int n = 0; n < S::NT; n++) {
        if (row < channels && left > 8 * n) {
            f(n, at + 8 * n, left - 8 * n);
        }
    }
}

/* dx = (beta dx + alpha p) act'(x); act NONE: no slope. dx may be x. */
template <int M>
__device__ inline void write_input_gradient(const split<M, TILE> &p, tg_act act, float alpha,
                                            float beta, const activation &x, const activation &dx,
                                            const pixel_tiles &tiles, tile_place place) {
    using S = split<M, TILE>;
#pragma unroll
    for (int i = 0; i < 2 * S::MT; i++) {
        const int m = i / 2, h = i % 2;
        float2 old[S::NT] = {}, at_x[S::NT] = {};
        each_pair<M>(m, h, dx.channels, tiles, place, [&](int n, int64_t at, int64_t left) {
            if (beta != 0.0f) {
                old[n] = load_pair(dx, at, left);
            }
            if (act != TG_ACT_NONE) {
                at_x[n] = load_pair(x, at, left);
            }
        });
        each_pair<M>(m, h, dx.channels, tiles, place, [&](int n, int64_t at, int64_t left) {
            float2 v = {beta * old[n].x + alpha * p.acc[m][n][2 * h],
                        beta * old[n].y + alpha * p.acc[m][n][2 * h + 1]};
            if (act != TG_ACT_NONE) {
                v = {v.x * act_slope(act, at_x[n].x), v.y * act_slope(act, at_x[n].y)};
            }
            store_pair(dx, at, left, v);
        });
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
