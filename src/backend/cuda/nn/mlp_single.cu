/* MLPs with one output, w2 (1, hidden), such as most projections. Only P = w1 act(x), its transpose
 * and the gradient of w1 are matrix products. The hidden layer of a tile is computed once and
 * passes through memory as little as possible:
 *   forward   y = beta y + alpha (sum_c w2[c] gelu(P[c] + b1[c]) + b2) + gate add
 *   backward  with f = alpha dy, in place of P:  dP[c] = w2[c] f gelu'(P[c] + b1[c]),
 *             and in the same pass db1[c] += sum dP[c], dw2[c] += sum f gelu(P[c] + b1[c]). */
#include "backend/cuda/nn/gemm_columns.cuh"

enum {
    SLICES = 8,         /* warps that share the hidden channels of 32 columns */
    CHANNEL_PARTS = 4,  /* blocks that share a hidden channel */
    LOADS_IN_FLIGHT = 8 /* loads that a thread issues before it uses them */
};

/* ---- the workspace ---- */

/* Of a tile, n = its columns. */
template <class R> struct single_matrices {
    double *db1, *dw2; /* sums (hidden, CHANNEL_PARTS); backward */
    double *db2;       /* sums (SUM_PARTS); backward */
    R *p;              /* (hidden, n) */
    R *u;              /* (in, n): act(x), and later its gradient */
    R *f;              /* (n): alpha dy */
};

static column_tiles tiles_of(const tg_mlp *op) {
    return column_tiles_of(op, op->in + op->hidden + 1);
}

static int64_t sums_of(const tg_mlp *op) {
    return op->backward ? 2 * op->hidden * CHANNEL_PARTS + SUM_PARTS : 0;
}

bool mlp_single_supports(const tg_mlp *op) {
    return op->out == 1 && op->hidden >= 1 && op->dropout == 0.0;
}

/* Does not depend on the dropout, which may change between calls. */
size_t mlp_single_workspace(const tg_mlp *op) {
    const int64_t numbers = (op->in + op->hidden + 1) * tiles_of(op).width;
    return op->out == 1
               ? (size_t)sums_of(op) * sizeof(double) + (size_t)numbers * tg_dtype_size(op->dtype)
               : 0;
}

template <class R> static single_matrices<R> matrices_of(const tg_mlp *op) {
    const int64_t n = tiles_of(op).width;
    single_matrices<R> m = {};
    m.db1 = static_cast<double *>(op->workspace);
    m.dw2 = m.db1 + op->hidden * CHANNEL_PARTS;
    m.db2 = m.dw2 + op->hidden * CHANNEL_PARTS;
    m.p = reinterpret_cast<R *>(m.db1 + sums_of(op));
    m.u = m.p + op->hidden * n;
    m.f = m.u + op->in * n;
    return m;
}

/* ---- kernels ---- */

template <class T> struct single_output {
    int hidden;
    real_of<T> alpha, beta;
    const real_of<T> *b1, *w2, *b2, *gate; /* gate NULL: 1 */
    const T *add;                          /* NULL: none */
    T *y, *activated;                      /* activated NULL: none; may be y or add */
};

/* A block is 32 columns by SLICES. */
template <class T>
static __global__ void __launch_bounds__(32 * SLICES)
    reduce_hidden(column_tile t, single_output<T> o, const real_of<T> *p) {
    using R = real_of<T>;
    __shared__ R of_slice[SLICES][32];
    const int j = blockIdx.x * 32 + threadIdx.x;
    R sum = R(0);
    if (j < t.count) {
        for (int c0 = threadIdx.y; c0 < o.hidden; c0 += SLICES * LOADS_IN_FLIGHT) {
            R v[LOADS_IN_FLIGHT];
#pragma unroll
            for (int i = 0; i < LOADS_IN_FLIGHT; i++) {
                const int c = c0 + i * SLICES;
                v[i] = c < o.hidden ? p[(int64_t)c * t.count + j] : R(0);
            }
#pragma unroll
            for (int i = 0; i < LOADS_IN_FLIGHT; i++) {
                const int c = c0 + i * SLICES;
                if (c < o.hidden) {
                    sum += o.w2[c] * gelu(v[i] + o.b1[c]);
                }
            }
        }
    }
    of_slice[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || j >= t.count) {
        return;
    }
    for (int slice = 1; slice < SLICES; slice++) {
        sum += of_slice[slice][threadIdx.x];
    }
    const int64_t at = column_at(t, 1, 0, j);
    R y = o.alpha * (sum + *o.b2);
    y += o.beta == R(0) ? R(0) : o.beta * widen(o.y[at]);
    y += o.add ? (o.gate ? *o.gate : R(1)) * widen(o.add[at]) : R(0);
    o.y[at] = narrow<T>(y);
    if (o.activated) {
        o.activated[at] = narrow<T>(gelu(y));
    }
}

/* P becomes its gradient. Blocks are (part, channel); the first tile sets the sums. */
template <class R>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    turn_hidden(int count, int hidden, const R *b1, const R *w2, const R *f, R *p, bool first,
                double *db1, double *dw2) {
    const int step = CHANNEL_PARTS * COLUMN_THREADS;
    for (int c = blockIdx.y; c < hidden; c += gridDim.y) {
        const R bias = b1[c], weight = w2[c];
        R *row = p + (int64_t)c * count;
        double of_bias = 0.0, of_weight = 0.0;
        for (int j0 = blockIdx.x * COLUMN_THREADS + threadIdx.x; j0 < count;
             j0 += LOADS_IN_FLIGHT * step) {
            R v[LOADS_IN_FLIGHT], d[LOADS_IN_FLIGHT], bias_sum = R(0), weight_sum = R(0);
#pragma unroll
            for (int i = 0; i < LOADS_IN_FLIGHT; i++) {
                const int j = j0 + i * step;
                v[i] = j < count ? row[j] : R(0);
                d[i] = j < count ? f[j] : R(0);
            }
#pragma unroll
            for (int i = 0; i < LOADS_IN_FLIGHT; i++) {
                const int j = j0 + i * step;
                R value;
                const R slope = gelu_slope(v[i] + bias, &value), back = weight * d[i] * slope;
                bias_sum += back;
                weight_sum += d[i] * value;
                if (j < count) {
                    row[j] = back;
                }
            }
            of_bias += (double)bias_sum;
            of_weight += (double)weight_sum;
        }
        of_bias = block_sum(of_bias);
        of_weight = block_sum(of_weight);
        if (threadIdx.x == 0) {
            const int64_t at = (int64_t)c * CHANNEL_PARTS + blockIdx.x;
            db1[at] = first ? of_bias : db1[at] + of_bias;
            dw2[at] = first ? of_weight : dw2[at] + of_weight;
        }
    }
}

/* ---- all tiles ---- */

/* u = act(x) and p = w1 u of a tile. */
template <class R>
static tg_status hidden_of(tg_backend *be, const tg_mlp *op, const column_tile &t,
                           const single_matrices<R> &m, column_matrix<const R> *u) {
    TG_CALL(with_storage_of<R>(op->x_store, [&](auto tag) {
        return input_of<typename decltype(tag)::type>(be, op, t, m.u, u);
    }));
    return multiply_columns(be, t, TG_OP_N, op->hidden, op->in, 1.0, op->w1, op->in, *u, 0.0,
                            matrix_of(t, m.p));
}

template <class Y>
static tg_status output_of(tg_backend *be, const tg_mlp *op, const column_tile &t,
                           const real_of<Y> *p) {
    using R = real_of<Y>;
    single_output<Y> o = {};
    o.hidden = (int)op->hidden;
    o.alpha = R(op->alpha);
    o.beta = R(op->beta);
    o.b1 = static_cast<const R *>(op->b1);
    o.w2 = static_cast<const R *>(op->w2);
    o.b2 = static_cast<const R *>(op->b2);
    o.gate = static_cast<const R *>(op->gate);
    o.add = static_cast<const Y *>(op->add);
    o.y = static_cast<Y *>(op->y);
    o.activated = static_cast<Y *>(op->activated);
    return launch_alone(be, "the output of an MLP", reduce_hidden<Y>,
                        (unsigned)((t.count + 31) / 32), dim3(32, SLICES), 0, t, o, p);
}

template <class R> static tg_status forward_tiles(tg_backend *be, const tg_mlp *op) {
    const column_tiles tiles = tiles_of(op);
    const single_matrices<R> m = matrices_of<R>(op);
    for (column_tile t = {}; next_tile(tiles, &t);) {
        column_matrix<const R> u = {};
        TG_CALL(hidden_of<R>(be, op, t, m, &u));
        TG_CALL(with_storage_of<R>(op->y_store, [&](auto tag) {
            return output_of<typename decltype(tag)::type>(be, op, t, m.p);
        }));
    }
    return TG_OK;
}

/* f with its sum; overwrites p with the gradient at the hidden layer. */
template <class R>
static tg_status hidden_gradient(tg_backend *be, const tg_mlp *op, const column_tile &t, bool first,
                                 const single_matrices<R> &m) {
    const cudaStream_t stream = cuda_stream(be);
    TG_CALL(with_storage_of<R>(op->y_store, [&](auto tag) {
        using Y = typename decltype(tag)::type;
        return launch_alone(be, "reading a tile", gather_gradient<Y>, sum_grid(1), COLUMN_THREADS,
                            0, t, (int64_t)1, R(op->alpha), dropout_of{},
                            static_cast<const Y *>(op->dy), m.f, first, m.db2);
    }));
    const dim3 grid(CHANNEL_PARTS, (unsigned)(op->hidden < 65535 ? op->hidden : 65535));
    return launch_alone(be, "a hidden layer backwards", turn_hidden<R>, grid, COLUMN_THREADS, 0,
                        t.count, (int)op->hidden, static_cast<const R *>(op->b1),
                        static_cast<const R *>(op->w2), m.f, m.p, first, m.db1, m.dw2);
}

/* dw1 += p u^T, then dx. */
template <class R>
static tg_status input_gradients(tg_backend *be, const tg_mlp *op, const column_tile &t,
                                 const single_matrices<R> &m, const column_matrix<const R> &u) {
    const column_matrix<const R> p = matrix_of<const R>(t, m.p);
    TG_CALL(multiply_weights(be, t, op->hidden, op->in, 1.0, p, u, op->dw1));
    return op->dx ? with_storage_of<R>(op->x_store,
                                       [&](auto tag) {
                                           return input_gradient<typename decltype(tag)::type>(
                                               be, op, t, op->hidden, 1.0, op->w1, p, m.u);
                                       })
                  : TG_OK;
}

template <class R> static tg_status backward_tiles(tg_backend *be, const tg_mlp *op) {
    const column_tiles tiles = tiles_of(op);
    const single_matrices<R> m = matrices_of<R>(op);
    bool first = true;
    for (column_tile t = {}; next_tile(tiles, &t); first = false) {
        column_matrix<const R> u = {};
        TG_CALL(hidden_of<R>(be, op, t, m, &u));
        TG_CALL(hidden_gradient<R>(be, op, t, first, m));
        TG_CALL(input_gradients<R>(be, op, t, m, u));
    }
    TG_CALL(add_sums<R>(be, op->hidden, CHANNEL_PARTS, m.db1, op->db1));
    TG_CALL(add_sums<R>(be, op->hidden, CHANNEL_PARTS, m.dw2, op->dw2));
    return add_sums<R>(be, 1, SUM_PARTS, m.db2, op->db2);
}

tg_status mlp_single_forward(tg_backend *be, const tg_mlp *op) {
    return op->dtype == TG_F64 ? forward_tiles<double>(be, op) : forward_tiles<float>(be, op);
}

tg_status mlp_single_backward(tg_backend *be, const tg_mlp *op) {
    return op->dtype == TG_F64 ? backward_tiles<double>(be, op) : backward_tiles<float>(be, op);
}
