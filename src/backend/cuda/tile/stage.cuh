/* Tiles between memory and products.
 *
 * The warps of a block process tiles of TILE pixels of a sample. While they multiply a tile in
 * shared memory, they prefetch the next one into registers (tile_share), and also the numbers that
 * the result is added to (prefetched). A kernel loads its weights, prefetches its first tile, and
 * then for each tile
 *
 *     old.fetch(p, y, ..);                numbers the result is added to
 *     x.put(act, u);  barrier;            act(x) in shared memory, in the kernel's format
 *     x.fetch(the next tile);
 *     old.start(p, ..);  add_product(p, w, u);
 *     write_tile(p, .., y, f);            or put_tile(p, h, f): the input of the next product
 *
 * (nn/skip_tile.cu is the shortest example). Sums over all tiles of a block stay in registers.
 * Blocks write partial sums, which fold_partials adds in order. */
#ifndef TG_BACKEND_CUDA_TILE_STAGE_CUH
#define TG_BACKEND_CUDA_TILE_STAGE_CUH

#include "backend/cuda/tile/activate.cuh"
#include "backend/cuda/tile/activation.cuh"
#include "backend/cuda/tile/products.cuh"

enum {
    TENSOR_THREADS = 256,
    TENSOR_BLOCKS = 2 /* per multiprocessor at most; bounds the partial sums */
};

/* ---- from memory to shared memory ---- */

/* A thread's share of a tile (ROWS, TILE): run q is at row threadIdx.x / PER_ROW + STEP q. */
template <class F, int ROWS, int THREADS> struct tile_share {
    static constexpr int RUN = F::RUN, PER_ROW = TILE / RUN, STEP = THREADS / PER_ROW;
    static constexpr int RUNS = ROWS / STEP;
    raw_run run[RUNS];

    static __device__ int row(int q) {
        return (int)threadIdx.x / PER_ROW + STEP * q;
    }
    static __device__ int column() {
        return (int)threadIdx.x % PER_ROW * RUN;
    }
    /* Starts the loads; channels and pixels that do not exist are 0. */
    __device__ void fetch(const activation &x, const pixel_tiles &tiles, tile_place place) {
        const int64_t pixel = place.pixel + column(), left = tiles.pixels - pixel;
#pragma unroll
        for (int q = 0; q < RUNS; q++) {
            run[q] = {};
            if (row(q) < x.channels && left > 0) {
                const int64_t at = (place.sample * x.channels + row(q)) * tiles.pixels + pixel;
                run[q] = load_pixels<RUN>(x, at, left);
            }
        }
    }
    /* Writes act of it to a tile in shared memory, and its derivative, if wanted, to another
     * tile. */
    __device__ void put(tg_storage store, tg_act act, typename F::number *tile,
                        typename F::number *slopes = NULL) const {
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
    /* No branches between numbers, so that their instruction chains overlap. */
    template <tg_act ACT, bool SLOPED>
    __device__ void put_as(tg_storage store, typename F::number *tile,
                           typename F::number *slopes) const {
#pragma unroll
        for (int q = 0; q < RUNS; q++) {
            const int at = row(q) * F::LD;
            if constexpr (F::HALF) {
                put_words<ACT, SLOPED>(run[q], reinterpret_cast<uint32_t *>(tile + at),
                                       reinterpret_cast<uint32_t *>(slopes + at));
            } else {
                float v[4], value[4], slope[4];
                numbers_of(store, run[q], v);
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    slope[e] = activate_with_slope(ACT, v[e], &value[e]);
                }
                put_piece<F>(tile + at + column(), value);
                if (SLOPED) { /* not a factor: not rounded */
                    *reinterpret_cast<float4 *>(slopes + at + column()) = {slope[0], slope[1],
                                                                           slope[2], slope[3]};
                }
            }
        }
    }
    template <tg_act ACT, bool SLOPED>
    static __device__ void put_words(const raw_run &from, uint32_t *tile, uint32_t *slopes) {
        const int eighth = threadIdx.x % 8;
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int at = eighth / 4 * 16 + 4 * j + eighth % 4;
            uint32_t word = from.word[j];
            if (ACT != TG_ACT_NONE) {
                const float2 v = of_word<F>(word);
                float2 value, slope;
                slope.x = activate_with_slope(ACT, v.x, &value.x);
                slope.y = activate_with_slope(ACT, v.y, &value.y);
                word = to_word<F>(value.x, value.y);
                if (SLOPED) {
                    slopes[at] = to_word<F>(slope.x, slope.y);
                }
            }
            tile[at] = word;
        }
    }
};

/* ---- initial values of results ---- */

/* Initial value of a warp's part of a product (M, TILE), prefetched from memory: 16-bit numbers in
 * their storage format, others in the registers of the product. */
template <class P> struct prefetched {
    raw_run run[P::MT][2][P::RUNS];

    /* Starts the loads; 0 where there is nothing or it is not wanted. */
    __device__ void fetch(P &p, const activation &x, const pixel_tiles &tiles, tile_place place,
                          bool wanted) {
        const int channels = wanted ? x.channels : 0;
#pragma unroll
        for (int i = 0; i < 2 * P::MT; i++) {
            const int m = i / 2, h = i % 2;
#pragma unroll
            for (int r = 0; r < P::RUNS; r++) {
                run[m][h][r] = {};
            }
            each_run<P>(m, h, channels, tiles, place, [&](int r, int64_t at, int64_t left) {
                run[m][h][r] = load_pixels<P::RUN>(x, at, left);
            });
        }
        if (!P::F::HALF) {
            widen(p, x.store);
        }
    }
    /* p = f(m, h, number) of it. */
    template <class G> __device__ void start(P &p, tg_storage store, G f) const {
        if (P::F::HALF) {
            widen(p, store);
        }
        p.each(f);
    }

  private:
    __device__ void widen(P &p, tg_storage store) const {
#pragma unroll
        for (int i = 0; i < 2 * P::MT * P::RUNS; i++) {
            const int m = i / (2 * P::RUNS), h = i / P::RUNS % 2, r = i % P::RUNS;
            float v[P::RUN];
            numbers_of(store, run[m][h][r], v);
#pragma unroll
            for (int e = 0; e < P::RUN; e++) {
                p.at(m, h, r, e) = v[e];
            }
        }
    }
};

/* ---- results to memory ---- */

/* Run r of row (m, h) of a tile in shared memory; NULL: ones. */
template <class P>
__device__ inline void read_run(const typename P::F::number *tile, int m, int h, int r,
                                float (&v)[P::RUN]) {
    const auto *row = tile + P::row(m, h) * P::F::LD;
#pragma unroll
    for (int e = 0; e < P::RUN; e += 2) {
        float2 pair = {1.0f, 1.0f};
        if constexpr (P::F::HALF) {
            if (tile) {
                const auto *word = row + P::column(P::INTERLEAVE * r + e / 2);
                pair = of_word<typename P::F>(*reinterpret_cast<const uint32_t *>(word));
            }
        } else if (tile) {
            pair = *reinterpret_cast<const float2 *>(row + P::pixel(r) + e);
        }
        v[e] = pair.x;
        v[e + 1] = pair.y;
    }
}

/* to = f(m, h, number of p, x) for every number of a product; x is the tile's number at that place,
 * 1 if the tile is NULL. */
template <class P, class G>
__device__ inline void write_tile(const P &p, const typename P::F::number *tile,
                                  const activation &to, const pixel_tiles &tiles, tile_place place,
                                  G f) {
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        const int m = i / 2, h = i % 2;
        each_run<P>(m, h, to.channels, tiles, place, [&](int r, int64_t at, int64_t left) {
            float v[P::RUN];
            read_run<P>(tile, m, h, r, v);
#pragma unroll
            for (int e = 0; e < P::RUN; e++) {
                v[e] = f(m, h, p.at(m, h, r, e), v[e]);
            }
            store_pixels(to, at, left, v);
        });
    }
}

/* dx = alpha p act'(x); act NONE: no slope. dx may be x. */
template <class P>
__device__ inline void write_input_gradient(const P &p, tg_act act, float alpha,
                                            const activation &x, const activation &dx,
                                            const pixel_tiles &tiles, tile_place place) {
    constexpr int ROWS = P::F::HALF ? 1 : 2; /* at once; limited by registers */
#pragma unroll
    for (int first = 0; first < 2 * P::MT; first += ROWS) {
        raw_run from[ROWS][P::RUNS];
#pragma unroll
        for (int i = 0; i < ROWS && act != TG_ACT_NONE; i++) {
            each_run<P>((first + i) / 2, (first + i) % 2, x.channels, tiles, place,
                        [&](int r, int64_t at, int64_t left) {
                            from[i][r] = load_pixels<P::RUN>(x, at, left);
                        });
        }
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            const int m = (first + i) / 2, h = (first + i) % 2;
            each_run<P>(m, h, dx.channels, tiles, place, [&](int r, int64_t at, int64_t left) {
                float v[P::RUN], u[P::RUN];
                if (act != TG_ACT_NONE) {
                    numbers_of(x.store, from[i][r], u);
                }
#pragma unroll
                for (int e = 0; e < P::RUN; e += 2) {
                    v[e] = alpha * p.at(m, h, r, e);
                    v[e + 1] = alpha * p.at(m, h, r, e + 1);
                    if (act != TG_ACT_NONE) {
                        v[e] *= act_slope(act, u[e]);
                        v[e + 1] *= act_slope(act, u[e + 1]);
                    }
                }
                store_pixels(dx, at, left, v);
            });
        }
    }
}

/* ---- sums over pixels ---- */

template <int N> __device__ inline float sum_in_pairs(const float (&v)[N]) {
    float sum[N / 2];
    for (int i = 0; i < N / 2; i++) {
        sum[i] = v[2 * i] + v[2 * i + 1];
    }
    if constexpr (N == 2) {
        return sum[0];
    } else {
        return sum_in_pairs(sum);
    }
}

/* Row sums of tiles; each thread sums its share. */
template <class F, int ROWS, int THREADS> struct row_sums {
    using share = tile_share<F, ROWS, THREADS>;
    double sum[share::RUNS];

    __device__ void clear() {
        for (int q = 0; q < share::RUNS; q++) {
            sum[q] = 0.0;
        }
    }
    /* The gradient of a loss at few channels may cancel by orders of magnitude: there every number
     * is added in f64, at no cost; elsewhere runs are summed in f32. */
    __device__ void add(const share &from, tg_storage store) {
#pragma unroll
        for (int q = 0; q < share::RUNS; q++) {
            float v[F::RUN];
            numbers_of(store, from.run[q], v);
            if constexpr (ROWS <= 16 && F::RUN == 4) {
                sum[q] += ((double)v[0] + (double)v[1]) + ((double)v[2] + (double)v[3]);
            } else {
                sum[q] += (double)sum_in_pairs(v);
            }
        }
    }
    /* to (ROWS) = the sums; every thread calls. */
    __device__ void store(double *to) const {
#pragma unroll
        for (int q = 0; q < share::RUNS; q++) {
            double all = sum[q];
            for (int lane = share::PER_ROW / 2; lane > 0; lane /= 2) {
                all += __shfl_xor_sync(~0u, all, lane);
            }
            if (threadIdx.x % share::PER_ROW == 0) {
                to[share::row(q)] = all;
            }
        }
    }
};

/* to (M) = the sums of the rows of a product, from those of the threads; room: ACROSS x M numbers
 * of shared memory. */
template <class P>
__device__ inline void store_row_sums(const double (&sums)[P::MT][2], double *room, double *to) {
    const int warp = threadIdx.x / 32;
    __syncthreads(); /* the previous contents are no longer needed */
#pragma unroll
    for (int i = 0; i < 2 * P::MT; i++) {
        double sum = sums[i / 2][i % 2];
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (threadIdx.x % 4 == 0) {
            room[warp % P::ACROSS * P::M + P::row(i / 2, i % 2)] = sum;
        }
    }
    __syncthreads();
    if (threadIdx.x < P::M) {
        double sum = 0.0;
        for (int w = 0; w < P::ACROSS; w++) {
            sum += room[w * P::M + threadIdx.x];
        }
        to[threadIdx.x] = sum;
    }
}

/* ---- partial sums of blocks, folded in order by fold_partials ---- */

template <class P> __device__ inline void store_partial(const P &p, float *to, int ld) {
    for (int m = 0; m < P::MT; m++) {
        for (int n = 0; n < P::NT; n++) {
            for (int h = 0; h < 2; h++) {
                float2 *at = reinterpret_cast<float2 *>(to + P::row(m, h) * ld + P::column(n));
                *at = {p.acc[m][n][2 * h], p.acc[m][n][2 * h + 1]};
            }
        }
    }
}

/* out (rows, columns) += scale * sum over the parts of partial (rows, columns), floats or doubles,
 * with row pitch `ld` and part pitch `stride`. */
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

/* Of a matrix of floats or n doubles, without padding. */
static inline fold_job fold_matrix(const float *partial, int rows, int columns, void *out) {
    const int64_t stride = (int64_t)rows * columns;
    return {partial, stride, rows, columns, columns, false, static_cast<float *>(out)};
}
static inline fold_job fold_sums(const double *partial, int n, void *out) {
    return {partial, n, 1, n, n, true, static_cast<float *>(out)};
}

tg_status fold_partials(tg_backend *be, const fold_jobs &jobs);
/* The same, but overwrites out. */
tg_status set_partials(tg_backend *be, const fold_jobs &jobs);

/* ---- launches ---- */

/* Lets the kernel have that much shared memory; *blocks: number that run concurrently on the
 * device. */
tg_status tensor_blocks(const tg_backend *be, const void *kernel, size_t shared, int threads,
                        int *blocks);

/* Whether the device has TF32 tensor cores and `shared` bytes per block. */
bool tensor_fits(const tg_backend *be, size_t shared);

/* Launches a kernel by launch_pdl with as many blocks as run concurrently, at most `most`. */
template <class... ARGS>
tg_status launch_tiles(tg_backend *be, void (*kernel)(ARGS...), size_t shared, int threads,
                       int most, const char *what, ARGS... args) {
    int blocks = 0;
    TG_CALL(tensor_blocks(be, (const void *)kernel, shared, threads, &blocks));
    return launch_pdl(be, what, kernel, (unsigned)tg_min(blocks, most), (unsigned)threads, shared,
                      args...);
}

#endif
