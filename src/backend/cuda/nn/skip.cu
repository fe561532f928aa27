/* Skip connections. Per-channel kinds (gates, identity, a bias alone) are one pass over the
 * activations. Linear ones are matrix products on tiles of columns, or one tensor-core kernel
 * (skip_tile.cu) where products may be rounded to TF32. */
#include "backend/cuda/nn/gemm_columns.cuh"

/* ---- passes by channels ---- */

/* Blocks of a pass over (batch, channels, pixels) are (channel, part). Part i processes every
 * parts-th chunk of its channel, so that sums over a channel have a fixed order. */
enum { PASS_THREADS = 256, PASS_RUNS = 2, PASS_CHUNK = PASS_THREADS * PASS_RUNS * 4 };

struct channel_pass {
    int64_t batch, channels, pixels;
    int64_t chunks; /* per channel and sample */
    int parts;
};

/* Enough parts to keep the device busy, limited to `most` blocks. */
static inline channel_pass channel_pass_of(const tg_backend *be, int64_t batch, int64_t channels,
                                           int64_t pixels, int64_t most) {
    channel_pass pass = {batch, channels, pixels, (pixels + PASS_CHUNK - 1) / PASS_CHUNK, 1};
    const int64_t wanted = (int64_t)cuda_state_of(be)->processors * 16 / channels + 1;
    const int64_t allowed = most / channels, chunks = batch * pass.chunks;
    pass.parts = (int)tg_max(tg_min(tg_min(wanted, allowed), chunks), 1);
    return pass;
}

static inline unsigned channel_pass_blocks(const channel_pass &pass) {
    return (unsigned)(pass.channels * pass.parts);
}

/* Calls f(at, left) for each chunk of the block: `at` is where the thread's first run starts in the
 * array, `left` the number of pixels from there to the end of the row (may be <= 0). Its other runs
 * follow RUN_STEP apart. */
enum { RUN_STEP = PASS_THREADS * 4 };

template <int WIDTH, class F>
static __device__ inline void walk_channel(const channel_pass &pass, F f) {
    const int64_t c = blockIdx.x / pass.parts, units = pass.batch * pass.chunks;
    for (int64_t unit = blockIdx.x % pass.parts; unit < units; unit += pass.parts) {
        const int64_t row = (unit / pass.chunks * pass.channels + c) * pass.pixels;
        const int64_t first = unit % pass.chunks * PASS_CHUNK + WIDTH * threadIdx.x;
        f(row + first, pass.pixels - first);
    }
}

/* A thread's part of a chunk, in accesses of 16 bytes where they are aligned and complete: eight
 * consecutive 16-bit numbers, or two runs. Iterate with the width of its accesses. */
template <class R> struct span { R v[8]; };

template <class T> constexpr int span_width = sizeof(T) == 2 ? 8 : 4;

template <class T> struct alignas(16) octet { T v[8]; };

/* x: the first number, with `left` numbers from there to the end; 0 past the end. */
template <class T> static __device__ inline span<real_of<T>> load_span(const T *x, int64_t left) {
    span<real_of<T>> s;
    if constexpr (sizeof(T) != 2) {
        const run<real_of<T>> a = load_run(x, left), b = load_run(x + RUN_STEP, left - RUN_STEP);
        for (int j = 0; j < 4; j++) {
            s.v[j] = a.v[j];
            s.v[j + 4] = b.v[j];
        }
    } else if (left >= 8 && (uintptr_t)x % 16 == 0) {
        const octet<T> q = *reinterpret_cast<const octet<T> *>(x);
        for (int j = 0; j < 8; j++) {
            s.v[j] = widen(q.v[j]);
        }
    } else {
        for (int j = 0; j < 8; j++) {
            s.v[j] = j < left ? widen(x[j]) : 0.0f;
        }
    }
    return s;
}

template <class T>
static __device__ inline void store_span(T *x, int64_t left, const span<real_of<T>> &s) {
    if constexpr (sizeof(T) != 2) {
        store_run(x, left, {{s.v[0], s.v[1], s.v[2], s.v[3]}});
        store_run(x + RUN_STEP, left - RUN_STEP, {{s.v[4], s.v[5], s.v[6], s.v[7]}});
    } else if (left >= 8 && (uintptr_t)x % 16 == 0) {
        octet<T> q;
        for (int j = 0; j < 8; j++) {
            q.v[j] = narrow<T>(s.v[j]);
        }
        *reinterpret_cast<octet<T> *>(x) = q;
    } else {
        for (int j = 0; j < 8 && j < left; j++) {
            x[j] = narrow<T>(s.v[j]);
        }
    }
}

/* ---- within a channel ---- */

/* y = beta y + factor[c] act(x) + bias[c]; x NULL: no such term. */
template <class T>
static __global__ void __launch_bounds__(PASS_THREADS)
    skip_pass(channel_pass pass, tg_act act, real_of<T> alpha, real_of<T> beta,
              const real_of<T> *gate, const real_of<T> *bias, const T *x, T *y) {
    using R = real_of<T>;
    const int64_t c = blockIdx.x / pass.parts;
    const R factor = gate ? alpha * gate[c] : alpha, shift = bias ? bias[c] : R(0);
    walk_channel<span_width<T>>(pass, [&](int64_t at, int64_t left) {
        span<R> u = {}, v = {};
        if (x) {
            u = load_span(x + at, left);
        }
        if (beta != R(0)) {
            v = load_span(y + at, left);
        }
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const R term = x ? factor * activate_any(act, u.v[j]) : R(0);
            v.v[j] = beta * v.v[j] + term + shift;
        }
        store_span(y + at, left, v);
    });
}

enum { SUM_WARPS = 4 };

struct skip_sums {
    double weight, bias;
};

template <class T> struct skip_back {
    channel_pass pass;
    tg_act act;
    bool weighs;  /* sum dy act(x) */
    bool through; /* dx times act'(x) */
    real_of<T> alpha, beta;
    const real_of<T> *gate; /* NULL: ones */
    const T *x, *dy;        /* x is read if weighs or through */
    T *dx;                  /* NULL: not wanted; may be dy */
    skip_sums *sums;        /* (channels, parts); NULL: not wanted */
};

/* u = act(u); returns its slopes. No branches between numbers. */
template <tg_act ACT, class R> static __device__ inline span<R> slopes_of(span<R> &u) {
    span<R> slope;
#pragma unroll
    for (int j = 0; j < 8; j++) {
        slope.v[j] = activate_any_with_slope(ACT, u.v[j], &u.v[j]);
    }
    return slope;
}

template <class R> static __device__ inline span<R> slopes_of(tg_act act, span<R> &u) {
    switch (act) {
    case TG_ACT_GELU:
        return slopes_of<TG_ACT_GELU>(u);
    case TG_ACT_TANH:
        return slopes_of<TG_ACT_TANH>(u);
    case TG_ACT_RELU:
        return slopes_of<TG_ACT_RELU>(u);
    case TG_ACT_SILU:
        return slopes_of<TG_ACT_SILU>(u);
    default:
        return slopes_of<TG_ACT_NONE>(u);
    }
}

/* Sums in f64 from the first number; short runs of 16-bit numbers lose nothing in f32. */
template <class T> static __device__ inline double sum_of(const span<real_of<T>> &s) {
    if constexpr (sizeof(T) == 2) {
        return (double)(((s.v[0] + s.v[1]) + (s.v[2] + s.v[3])) +
                        ((s.v[4] + s.v[5]) + (s.v[6] + s.v[7])));
    } else {
        double sum = 0.0;
        for (int j = 0; j < 8; j++) {
            sum += (double)s.v[j];
        }
        return sum;
    }
}

/* dx = (beta dx + alpha gate[c] dy) act'(x), and the sums of a block's part of its channel. */
template <class T>
static __global__ void __launch_bounds__(PASS_THREADS) skip_back_pass(skip_back<T> m) {
    using R = real_of<T>;
    const R factor = m.gate ? m.alpha * m.gate[blockIdx.x / m.pass.parts] : m.alpha;
    const bool curved = m.weighs || m.through;
    skip_sums sums = {0.0, 0.0};
    walk_channel<span_width<T>>(m.pass, [&](int64_t at, int64_t left) {
        span<R> x = {}, dy = load_span(m.dy + at, left), dx = {};
        if (curved) {
            x = load_span(m.x + at, left);
        }
        if (m.dx && m.beta != R(0)) {
            dx = load_span(m.dx + at, left);
        }
        const span<R> slope = slopes_of(curved ? m.act : TG_ACT_NONE, x);
        R along[2] = {R(0), R(0)};
#pragma unroll
        for (int j = 0; j < 8; j++) {
            along[j / 4] += dy.v[j] * x.v[j];
            dx.v[j] = m.beta * dx.v[j] + factor * dy.v[j];
            dx.v[j] *= m.through ? slope.v[j] : R(1);
        }
        if (m.sums) {
            sums.weight += (double)along[0] + (double)along[1];
            sums.bias += sum_of<T>(dy);
        }
        if (m.dx) {
            store_span(m.dx + at, left, dx);
        }
    });
    if (m.sums) {
        sums.weight = block_sum(sums.weight);
        sums.bias = block_sum(sums.bias);
        if (threadIdx.x == 0) {
            m.sums[blockIdx.x] = sums;
        }
    }
}

/* dweight[c] += alpha sums.weight, dbias[c] += sums.bias; either may be NULL. A warp per channel.
 */
template <class R>
static __global__ void __launch_bounds__(32 * SUM_WARPS)
    add_skip_sums(int64_t channels, int parts, double alpha, const skip_sums *sums, R *dweight,
                  R *dbias) {
    const int64_t c = (int64_t)blockIdx.x * SUM_WARPS + threadIdx.x / 32;
    if (c >= channels) {
        return;
    }
    skip_sums sum = {0.0, 0.0};
    for (int part = threadIdx.x % 32; part < parts; part += 32) {
        sum.weight += sums[c * parts + part].weight;
        sum.bias += sums[c * parts + part].bias;
    }
    sum = {warp_sum(sum.weight), warp_sum(sum.bias)};
    if (threadIdx.x % 32 == 0 && dweight) {
        dweight[c] = R((double)dweight[c] + alpha * sum.weight);
    }
    if (threadIdx.x % 32 == 0 && dbias) {
        dbias[c] = R((double)dbias[c] + sum.bias);
    }
}

template <class T> static tg_status forward_within(tg_backend *be, const tg_skip *op) {
    using R = real_of<T>;
    const channel_pass pass = channel_pass_of(be, op->batch, op->out, op->pixels, INT32_MAX);
    return launch_alone(be, "adding a skip", skip_pass<T>, channel_pass_blocks(pass), PASS_THREADS,
                        0, pass, op->act, R(op->alpha), R(op->beta),
                        op->kind == TG_SKIP_MAP_GATE ? static_cast<const R *>(op->weight) : NULL,
                        static_cast<const R *>(op->bias),
                        op->kind == TG_SKIP_MAP_NONE ? NULL : static_cast<const T *>(op->x),
                        static_cast<T *>(op->y));
}

template <class T> static tg_status backward_within(tg_backend *be, const tg_skip *op) {
    using R = real_of<T>;
    const int64_t room = CUDA_SCRATCH_BYTES / (int64_t)sizeof(skip_sums);
    const bool gates = op->kind == TG_SKIP_MAP_GATE, carries = op->kind != TG_SKIP_MAP_NONE;
    R *dweight = gates ? static_cast<R *>(op->dweight) : NULL, *dbias = static_cast<R *>(op->dbias);
    if (op->out > room) {
        return tg_fail(be->ctx, TG_E_SHAPE, "skip_backward: %lld channels are too many",
                       (long long)op->out);
    }
    skip_back<T> m = {};
    m.pass = channel_pass_of(be, op->batch, op->out, op->pixels, room);
    m.act = op->act;
    m.weighs = dweight != NULL;
    m.through = op->through && op->act != TG_ACT_NONE && op->dx;
    m.alpha = carries ? R(op->alpha) : R(0);
    m.beta = R(op->beta);
    m.gate = gates ? static_cast<const R *>(op->weight) : NULL;
    m.x = static_cast<const T *>(op->x);
    m.dy = static_cast<const T *>(op->dy);
    m.dx = static_cast<T *>(op->dx);
    m.sums = dweight || dbias ? static_cast<skip_sums *>(cuda_state_of(be)->scratch) : NULL;
    TG_CALL(launch_alone(be, "a skip backwards", skip_back_pass<T>, channel_pass_blocks(m.pass),
                         PASS_THREADS, 0, m));
    if (m.sums) {
        const unsigned blocks = (unsigned)((op->out + SUM_WARPS - 1) / SUM_WARPS);
        TG_CALL(launch_alone(be, "a skip backwards", add_skip_sums<R>, blocks, 32 * SUM_WARPS, 0,
                             op->out, m.pass.parts, op->alpha, m.sums, dweight, dbias));
    }
    return TG_OK;
}

/* ---- linear, by matrix products ---- */

static int64_t size_of(const tg_skip *op) {
    return (int64_t)tg_dtype_size(op->dtype);
}

static column_tiles tiles_of(const tg_skip *op) {
    return column_tiles_of(op, op->in + op->out);
}

/* The matrices of a tile in the workspace: (in, width) and (out, width), followed by sums. */
template <class R> struct skip_matrices {
    R *u, *d;
    double *sums;
};

static size_t columns_workspace(const tg_skip *op) {
    const int64_t matrices = (op->in + op->out) * tiles_of(op).width * size_of(op);
    return (size_t)((matrices + 7) / 8 * 8) + (size_t)(op->out * SUM_PARTS) * sizeof(double);
}

template <class R> static skip_matrices<R> matrices_of(const tg_skip *op) {
    skip_matrices<R> m;
    m.sums = static_cast<double *>(op->workspace);
    m.u = reinterpret_cast<R *>(m.sums + op->out * SUM_PARTS);
    m.d = m.u + op->in * tiles_of(op).width;
    return m;
}

/* y = beta y + f + bias[c] of a tile. */
template <class T>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    scatter_skip(column_tile t, int64_t channels, real_of<T> beta, const real_of<T> *bias,
                 const real_of<T> *f, T *y) {
    using R = real_of<T>;
    struct entry {
        R f;
        T y;
    };
    each_entry(
        channels, t.count,
        [&](int64_t c, int j) {
            entry e = {f[c * t.count + j], T()};
            if (beta != R(0)) {
                e.y = y[column_at(t, channels, c, j)];
            }
            return e;
        },
        [&](int64_t c, int j, const entry &e) {
            const R old = beta == R(0) ? R(0) : beta * widen(e.y);
            const R shift = bias ? bias[c] : R(0);
            y[column_at(t, channels, c, j)] = narrow<T>(old + e.f + shift);
        });
}

template <class T> static tg_status forward_columns(tg_backend *be, const tg_skip *op) {
    using R = real_of<T>;
    const column_tiles tiles = tiles_of(op);
    const skip_matrices<R> m = matrices_of<R>(op);
    for (column_tile t = {}; next_tile(tiles, &t);) {
        column_matrix<const R> u = {};
        TG_CALL(input_of<T>(be, op, t, m.u, &u));
        TG_CALL(multiply_columns(be, t, TG_OP_N, op->out, op->in, op->alpha, op->weight, op->in, u,
                                 0.0, matrix_of(t, m.d)));
        TG_CALL(launch_alone(be, "adding a skip", scatter_skip<T>, column_grid(op->out, t.count),
                             COLUMN_THREADS, 0, t, op->out, R(op->beta),
                             static_cast<const R *>(op->bias), m.d, static_cast<T *>(op->y)));
    }
    return TG_OK;
}

/* dy of a tile: itself where nothing is summed and products can read it. */
template <class T>
static tg_status gradient_of(tg_backend *be, const tg_skip *op, const column_tile &t, bool first,
                             const skip_matrices<real_of<T>> &m,
                             column_matrix<const real_of<T>> *d) {
    using R = real_of<T>;
    const T *dy = static_cast<const T *>(op->dy);
    if constexpr (std::is_same_v<T, R>) {
        if (!op->dbias && is_in_place(t)) {
            *d = in_place(t, op->out, dy);
            return TG_OK;
        }
    }
    *d = matrix_of<const R>(t, m.d);
    return launch_alone(be, "reading a tile", gather_gradient<T>, sum_grid(op->out), COLUMN_THREADS,
                        0, t, op->out, R(1), dropout_of(), dy, m.d, first, m.sums);
}

template <class T> static tg_status backward_columns(tg_backend *be, const tg_skip *op) {
    using R = real_of<T>;
    const column_tiles tiles = tiles_of(op);
    const skip_matrices<R> m = matrices_of<R>(op);
    bool first = true;
    for (column_tile t = {}; next_tile(tiles, &t); first = false) {
        column_matrix<const R> u = {}, d = {};
        TG_CALL(gradient_of<T>(be, op, t, first, m, &d));
        if (op->dweight) {
            TG_CALL(input_of<T>(be, op, t, m.u, &u));
            TG_CALL(multiply_weights(be, t, op->out, op->in, op->alpha, d, u, op->dweight));
        }
        if (op->dx) {
            TG_CALL(input_gradient<T>(be, op, t, op->out, op->alpha, op->weight, d, m.u));
        }
    }
    if (op->dbias) {
        TG_CALL(add_sums<R>(be, op->out, SUM_PARTS, m.sums, op->dbias));
    }
    return TG_OK;
}

/* ---- the slots ---- */

size_t cuda_skip_workspace(tg_backend *be, const tg_skip *op) {
    if (op->kind != TG_SKIP_MAP_LINEAR) {
        return 0;
    }
    return tg_max_size(columns_workspace(op), op->backward ? skip_tile_workspace(be, op) : 0);
}

static bool is_empty(const tg_skip *op) {
    return op->batch == 0 || op->out == 0 || op->pixels == 0;
}

tg_status cuda_add_skip(tg_backend *be, const tg_skip *op) {
    const bool linear = op->kind == TG_SKIP_MAP_LINEAR, backward = op->backward;
    TG_CALL(tg_check_skip(be->ctx, op));
    if (is_empty(op) || (backward && !op->dweight && !op->dbias && !op->dx)) {
        return TG_OK;
    }
    const bool tiles = linear && has_tile_kernels(op->act) && skip_tile_supports(be, op);
    tg_path_report_skip(be, op, backward,
                        tiles    ? tg_path{"tiles", backward ? "skip_backward" : "skip_forward"}
                        : linear ? tg_path{"columns", "cuBLAS, passes over columns"}
                                 : tg_path{"channels", backward ? "skip_back_pass" : "skip_pass"});
    if (tiles) {
        return backward ? skip_tile_backward(be, op) : skip_tile_forward(be, op);
    }
    return with_stored(op->dtype, op->store, [&](auto tag) {
        using T = typename decltype(tag)::type;
        if (backward) {
            return linear ? backward_columns<T>(be, op) : backward_within<T>(be, op);
        }
        return linear ? forward_columns<T>(be, op) : forward_within<T>(be, op);
    });
}
