/* MLPs and linear skips as matrix products: tiles of columns.
 *
 * A column is a pixel of a sample. Activations of a tile are matrices (channels, count) of the
 * arithmetic type in the workspace: enough work per launch. A tile is part of one sample, or
 * several whole samples. */
#ifndef TG_BACKEND_CUDA_NN_GEMM_COLUMNS_CUH
#define TG_BACKEND_CUDA_NN_GEMM_COLUMNS_CUH

#include "backend/cuda/nn/nn.cuh"
#include "backend/cuda/tile/activate.cuh"

enum { COLUMN_THREADS = 256, COLUMNS_PER_THREAD = 4, SUM_PARTS = 16 };

struct column_tiles {
    int64_t batch, pixels;
    int64_t width; /* maximum columns per tile; with several samples a multiple of pixels */
};

struct column_tile {
    int64_t sample, pixel; /* of the first column */
    int64_t pixels;        /* of a sample */
    int count;
    bool crosses; /* several samples */
};

/* For matrices with `rows` rows together. Networks wider than the other kernels are made for come
 * here in TF32, too, where large tiles save more time than a cache does. */
template <class OP> static inline column_tiles column_tiles_of(const OP *op, int64_t rows) {
    const int64_t batch = op->batch, pixels = op->pixels;
    const int64_t budget = (int64_t)(op->in > 128 || op->out > 128 ? 400 : 64) << 20;
    int64_t width = budget / (rows * (int64_t)tg_dtype_size(op->dtype)) / 64 * 64;
    width = tg_max(tg_min(width, 1 << 22), 64);
    if (width >= pixels) {
        width = tg_min(pixels < 1 ? 1 : width / pixels * pixels, batch * pixels);
    }
    return {batch, pixels, width};
}

/* Advances to the next tile; start with an empty tile at sample 0. False at the end. */
static inline bool next_tile(const column_tiles &t, column_tile *tile) {
    tile->pixels = t.pixels;
    tile->crosses = t.width > t.pixels;
    tile->pixel += tile->count;
    if (tile->pixel >= t.pixels) { /* a tile of several samples ends at the end of one */
        tile->sample += tile->pixel / t.pixels;
        tile->pixel = 0;
    }
    const int64_t left =
        tile->crosses ? (t.batch - tile->sample) * t.pixels : t.pixels - tile->pixel;
    tile->count = tile->sample < t.batch ? (int)tg_min(left, t.width) : 0;
    return tile->count > 0;
}

/* Index of column j of channel c in an activation (batch, channels, pixels). */
__device__ inline int64_t column_at(const column_tile &t, int64_t channels, int64_t c, int j) {
    int64_t sample = t.sample, pixel = t.pixel + j;
    if (t.crosses) { /* then pixels < 2^22 */
        sample += (unsigned)j / (unsigned)t.pixels;
        pixel = (unsigned)j % (unsigned)t.pixels;
    }
    return (sample * channels + c) * t.pixels + pixel;
}

/* For every entry of a matrix (channels, count): v = load(c, j), then store(c, j, v). A thread
 * loads all of its entries before it stores any, so that the loads overlap. Grid of column_grid. */
template <class L, class S>
__device__ inline void each_entry(int64_t channels, int count, L load, S store) {
    const int first = blockIdx.x * (COLUMN_THREADS * COLUMNS_PER_THREAD) + threadIdx.x;
    for (int64_t c = blockIdx.y; c < channels; c += gridDim.y) {
        decltype(load(c, first)) v[COLUMNS_PER_THREAD];
#pragma unroll
        for (int i = 0; i < COLUMNS_PER_THREAD; i++) {
            const int j = first + i * COLUMN_THREADS;
            if (j < count) {
                v[i] = load(c, j);
            }
        }
#pragma unroll
        for (int i = 0; i < COLUMNS_PER_THREAD; i++) {
            const int j = first + i * COLUMN_THREADS;
            if (j < count) {
                store(c, j, v[i]);
            }
        }
    }
}

static inline dim3 column_grid(int64_t channels, int count) {
    const int block = COLUMN_THREADS * COLUMNS_PER_THREAD;
    return dim3((unsigned)((count + block - 1) / block), (unsigned)tg_min(channels, 65535));
}

/* u = act(x) of a tile, widened. */
template <class T>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    gather_columns(column_tile t, int64_t channels, tg_act act, const T *x, real_of<T> *u) {
    each_entry(
        channels, t.count, [&](int64_t c, int j) { return x[column_at(t, channels, c, j)]; },
        [&](int64_t c, int j, T v) { u[c * t.count + j] = activate_any(act, widen(v)); });
}

/* dx = (beta dx + du) act'(x) of a tile; act NONE: no slope. dx may be x. */
template <class T>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    scatter_gradient(column_tile t, int64_t channels, tg_act act, real_of<T> beta,
                     const real_of<T> *du, const T *x, T *dx) {
    using R = real_of<T>;
    struct entry {
        R du;
        T x, dx;
    };
    each_entry(
        channels, t.count,
        [&](int64_t c, int j) {
            const int64_t at = column_at(t, channels, c, j);
            entry e = {du[c * t.count + j], T(), T()};
            if (act != TG_ACT_NONE) {
                e.x = x[at];
            }
            if (beta != R(0)) {
                e.dx = dx[at];
            }
            return e;
        },
        [&](int64_t c, int j, const entry &e) {
            R u, slope = R(1);
            if (act != TG_ACT_NONE) {
                slope = activate_any_with_slope(act, (R)widen(e.x), &u);
            }
            const R old = beta == R(0) ? R(0) : beta * widen(e.dx);
            dx[column_at(t, channels, c, j)] = narrow<T>((old + e.du) * slope);
        });
}

/* ---- sums of rows over the tiles of a call: (rows, SUM_PARTS) in f64 ---- */

/* For every entry of a matrix (rows, count): adds take(c, j, load(c, j)) to the sums, which the
 * first tile overwrites; loads overlap as above. Grid of sum_grid. */
template <class L, class F>
__device__ inline void sum_entries(int64_t rows, int count, bool first, double *sums, L load,
                                   F take) {
    const int step = SUM_PARTS * COLUMN_THREADS;
    for (int64_t c = blockIdx.y; c < rows; c += gridDim.y) {
        double sum = 0.0;
        for (int j0 = blockIdx.x * COLUMN_THREADS + threadIdx.x; j0 < count;
             j0 += COLUMNS_PER_THREAD * step) {
            decltype(load(c, j0)) v[COLUMNS_PER_THREAD];
#pragma unroll
            for (int i = 0; i < COLUMNS_PER_THREAD; i++) {
                if (j0 + i * step < count) {
                    v[i] = load(c, j0 + i * step);
                }
            }
#pragma unroll
            for (int i = 0; i < COLUMNS_PER_THREAD; i++) {
                if (j0 + i * step < count) {
                    sum += (double)take(c, j0 + i * step, v[i]);
                }
            }
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            double *to = sums + c * SUM_PARTS + blockIdx.x;
            *to = first ? sum : *to + sum;
        }
    }
}

static inline dim3 sum_grid(int64_t rows) {
    return dim3(SUM_PARTS, (unsigned)tg_min(rows, 65535));
}

/* d = factor dy of a tile, widened, and its sums; T: storage of dy. */
template <class T>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    gather_gradient(column_tile t, int64_t channels, real_of<T> factor, dropout_of dropout,
                    const T *dy, real_of<T> *d, bool first, double *sums) {
    using R = real_of<T>;
    sum_entries(
        channels, t.count, first, sums,
        [&](int64_t c, int j) { return dy[column_at(t, channels, c, j)]; },
        [&](int64_t c, int j, T v) {
            const R kept = survival<R>(dropout, column_at(t, channels, c, j));
            return d[c * t.count + j] = factor * kept * widen(v);
        });
}

/* out[c] += the sums (parts) of row c; out may be NULL. */
template <class R>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    add_row_sums(int64_t rows, int parts, const double *sums, R *out) {
    const int64_t c = (int64_t)blockIdx.x * COLUMN_THREADS + threadIdx.x;
    if (c < rows && out) {
        double sum = 0.0;
        for (int part = 0; part < parts; part++) {
            sum += sums[c * parts + part];
        }
        out[c] = R((double)out[c] + sum);
    }
}

template <class R>
static tg_status add_sums(tg_backend *be, int64_t rows, int parts, const double *sums, void *out) {
    const unsigned blocks = (unsigned)((rows + COLUMN_THREADS - 1) / COLUMN_THREADS);
    return launch_alone(be, "summing gradients", add_row_sums<R>, blocks, COLUMN_THREADS, 0, rows,
                        parts, sums, static_cast<R *>(out));
}

/* ---- layers ---- */

/* h = D act(h + b) of a tile; writes its derivative to slope, if wanted. */
template <class R>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    hidden_layer(column_tile t, int64_t hidden, tg_act act, dropout_of dropout, const R *b, R *h,
                 R *slope) {
    each_entry(
        hidden, t.count, [&](int64_t c, int j) { return h[c * t.count + j]; },
        [&](int64_t c, int j, R pre) {
            R value;
            const R s = activate_any_with_slope(act, pre + b[c], &value);
            const R kept = survival<R>(dropout, column_at(t, hidden, c, j));
            h[c * t.count + j] = kept * value;
            if (slope) {
                slope[c * t.count + j] = kept * s;
            }
        });
}

/* dh = slope dh of a tile, and its sums. */
template <class R>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    times_slope(column_tile t, int64_t hidden, const R *slope, R *dh, bool first, double *sums) {
    struct entry {
        R dh, slope;
    };
    sum_entries(
        hidden, t.count, first, sums,
        [&](int64_t c, int j) {
            return entry{dh[c * t.count + j], slope[c * t.count + j]};
        },
        [&](int64_t c, int j, entry e) { return dh[c * t.count + j] = e.dh * e.slope; });
}

/* ---- products ---- */

/* gemm_of's product. */
template <class... ARGS> static inline tg_status multiply(tg_backend *be, const ARGS &...args) {
    const tg_gemm g = gemm_of(args...);
    return cuda_gemm(be, &g);
}

/* Where the columns of a tile are: a matrix (rows, count), or one (rows, pixels) for each of its
 * samples. */
template <class R> struct column_matrix {
    R *data;
    int64_t ld, stride; /* from row to row, and from sample to sample */
    bool is_apart;      /* one for each sample */
};

template <class R> static inline column_matrix<R> matrix_of(const column_tile &t, R *data) {
    return {data, t.count, t.pixels, false};
}

/* Whether products read and write an activation in place. Several small samples are better copied
 * to one matrix. */
static inline bool is_in_place(const column_tile &t) {
    return !t.crosses || t.pixels >= 4096;
}

template <class R>
static inline column_matrix<R> in_place(const column_tile &t, int64_t channels, R *x) {
    return {x + t.sample * channels * t.pixels + t.pixel, t.pixels, channels * t.pixels, t.crosses};
}

/* C (m, columns of a tile) = alpha op(w) B + beta C; w has rows of ldw numbers. */
template <class R>
static tg_status multiply_columns(tg_backend *be, const column_tile &t, tg_op op_w, int64_t m,
                                  int64_t k, double alpha, const void *w, int64_t ldw,
                                  const column_matrix<const R> &b, double beta,
                                  const column_matrix<R> &c) {
    const bool is_apart = b.is_apart || c.is_apart;
    tg_gemm g =
        gemm_of(sizeof(R) == sizeof(double) ? TG_F64 : TG_F32, m, is_apart ? t.pixels : t.count, k,
                alpha, op_w, w, ldw, TG_OP_N, b.data, b.ld, beta, c.data, c.ld);
    g.stride_b = b.stride;
    g.stride_c = c.stride;
    g.batch = is_apart ? t.count / t.pixels : 1;
    return cuda_gemm(be, &g);
}

/* dw (m, n) += alpha A B^T over the columns of a tile. */
template <class R>
static tg_status multiply_weights(tg_backend *be, const column_tile &t, int64_t m, int64_t n,
                                  double alpha, const column_matrix<const R> &a,
                                  const column_matrix<const R> &b, void *dw) {
    const bool is_apart = a.is_apart || b.is_apart;
    const int64_t samples = is_apart ? t.count / t.pixels : 1, k = is_apart ? t.pixels : t.count;
    const tg_dtype dtype = sizeof(R) == sizeof(double) ? TG_F64 : TG_F32;
    for (int64_t i = 0; i < samples; i++) {
        TG_CALL(multiply(be, dtype, m, n, k, alpha, TG_OP_N, a.data + i * a.stride, a.ld, TG_OP_T,
                         b.data + i * b.stride, b.ld, 1.0, dw, n));
    }
    return TG_OK;
}

/* ---- input of a layer (tg_skip or tg_mlp, x stored as X) and its gradient ---- */

/* u = act(x) of a tile: x itself where products can read it. `room` is for (in, count). */
template <class X, class OP>
static tg_status input_of(tg_backend *be, const OP *op, const column_tile &t, real_of<X> *room,
                          column_matrix<const real_of<X>> *u) {
    using R = real_of<X>;
    const X *x = static_cast<const X *>(op->x);
    if constexpr (std::is_same_v<X, R>) {
        if (op->act == TG_ACT_NONE && is_in_place(t)) {
            *u = in_place(t, op->in, x);
            return TG_OK;
        }
    }
    *u = matrix_of<const R>(t, room);
    return launch_alone(be, "reading a tile", gather_columns<X>, column_grid(op->in, t.count),
                        COLUMN_THREADS, 0, t, op->in, op->act, x, room);
}

/* dx from d, the gradient at the output of w (rows, in): alpha w^T d, and so on. `room` is for
 * (in, count). */
template <class X, class OP>
static tg_status input_gradient(tg_backend *be, const OP *op, const column_tile &t, int64_t rows,
                                double alpha, const void *w,
                                const column_matrix<const real_of<X>> &d, real_of<X> *room) {
    using R = real_of<X>;
    const tg_act act = op->through ? op->act : TG_ACT_NONE;
    X *dx = static_cast<X *>(op->dx);
    if constexpr (std::is_same_v<X, R>) {
        if (act == TG_ACT_NONE && is_in_place(t)) {
            return multiply_columns(be, t, TG_OP_T, op->in, rows, alpha, w, op->in, d, op->beta,
                                    in_place(t, op->in, dx));
        }
    }
    TG_CALL(multiply_columns(be, t, TG_OP_T, op->in, rows, alpha, w, op->in, d, 0.0,
                             matrix_of(t, room)));
    return launch_alone(be, "the gradient of an input", scatter_gradient<X>,
                        column_grid(op->in, t.count), COLUMN_THREADS, 0, t, op->in, act,
                        R(op->beta), room, static_cast<const X *>(op->x), dx);
}

#endif
