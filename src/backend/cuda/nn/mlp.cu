/* MLPs as matrix products on tiles of columns: the hidden layer exists for one tile at a time,
 * forward and backward. MLPs with one output use mlp_single.cu. Where products may be rounded to
 * TF32, shapes that fit use one tensor-core kernel (mlp_tile_forward.cu), which supports only GELU
 * as hidden activation. */
#include "backend/cuda/nn/gemm_columns.cuh"

/* ---- the workspace ---- */

/* Matrices of a tile, n = its columns. */
template <class R> struct mlp_matrices {
    double *sums1, *sums2; /* (hidden, SUM_PARTS), (out, SUM_PARTS); backward */
    R *u;                  /* (in, n): act(x), and later its gradient */
    R *h;                  /* (hidden, n): D1 hidden_act(w1 u + b1) */
    R *f;                  /* (out, n): the result, or alpha D2 dy */
    R *slope;              /* (hidden, n): derivative of hidden_act; backward */
    R *dh;                 /* (hidden, n); backward */
};

static int64_t rows_of(const tg_mlp *op) {
    return op->in + op->out + (op->backward ? 3 : 1) * op->hidden;
}

static column_tiles tiles_of(const tg_mlp *op) {
    return column_tiles_of(op, rows_of(op));
}

static size_t columns_workspace(const tg_mlp *op) {
    const int64_t sums = op->backward ? (op->hidden + op->out) * SUM_PARTS : 0;
    return (size_t)sums * sizeof(double) +
           (size_t)(rows_of(op) * tiles_of(op).width) * tg_dtype_size(op->dtype);
}

template <class R> static mlp_matrices<R> matrices_of(const tg_mlp *op) {
    const int64_t n = tiles_of(op).width;
    mlp_matrices<R> m = {};
    m.sums1 = static_cast<double *>(op->workspace);
    m.sums2 = m.sums1 + (op->backward ? op->hidden * SUM_PARTS : 0);
    m.u = reinterpret_cast<R *>(m.sums2 + (op->backward ? op->out * SUM_PARTS : 0));
    m.h = m.u + op->in * n;
    m.f = m.h + op->hidden * n;
    m.slope = m.f + op->out * n; /* from here on backward only */
    m.dh = m.slope + op->hidden * n;
    return m;
}

static tg_act hidden_act_of(const tg_mlp *op) {
    return op->hidden_act == TG_ACT_NONE ? TG_ACT_GELU : op->hidden_act;
}

static dropout_of hidden_dropout(const tg_mlp *op) {
    return {op->dropout, op->rng, op->stream};
}

static dropout_of output_dropout(const tg_mlp *op) {
    return {op->dropout, op->rng, op->stream + (uint64_t)(op->batch * op->hidden * op->pixels)};
}

/* ---- kernels ---- */

template <class T> struct mlp_output {
    int64_t channels;
    real_of<T> alpha, beta;
    dropout_of dropout;
    const real_of<T> *b2, *gate; /* gate NULL: ones */
    const T *add;                /* NULL: none */
    T *y, *activated;            /* activated NULL: none; may be y or add */
};

/* y = beta y + alpha D2 (f + b2) + gate add, activated = gelu(y), of a tile. */
template <class T>
static __global__ void __launch_bounds__(COLUMN_THREADS)
    output_layer(column_tile t, mlp_output<T> o, const real_of<T> *f) {
    using R = real_of<T>;
    struct entry {
        R f;
        T y, add;
    };
    each_entry(
        o.channels, t.count,
        [&](int64_t c, int j) {
            const int64_t at = column_at(t, o.channels, c, j);
            entry e = {f[c * t.count + j], T(), T()};
            if (o.beta != R(0)) {
                e.y = o.y[at];
            }
            if (o.add) {
                e.add = o.add[at];
            }
            return e;
        },
        [&](int64_t c, int j, const entry &e) {
            const int64_t at = column_at(t, o.channels, c, j);
            R y = o.alpha * survival<R>(o.dropout, at) * (e.f + o.b2[c]);
            y += o.beta == R(0) ? R(0) : o.beta * widen(e.y);
            y += o.add ? (o.gate ? o.gate[c] : R(1)) * widen(e.add) : R(0);
            o.y[at] = narrow<T>(y);
            if (o.activated) {
                o.activated[at] = narrow<T>(gelu(y));
            }
        });
}

/* ---- steps of a tile ---- */

/* h, and its slope if there is an array for it. */
template <class R>
static tg_status hidden_of(tg_backend *be, const tg_mlp *op, const column_tile &t,
                           const column_matrix<const R> &u, R *h, R *slope) {
    TG_CALL(multiply_columns(be, t, TG_OP_N, op->hidden, op->in, 1.0, op->w1, op->in, u, 0.0,
                             matrix_of(t, h)));
    return launch_alone(be, "a hidden layer", hidden_layer<R>, column_grid(op->hidden, t.count),
                        COLUMN_THREADS, 0, t, op->hidden, hidden_act_of(op), hidden_dropout(op),
                        static_cast<const R *>(op->b1), h, slope);
}

template <class Y>
static tg_status output_of(tg_backend *be, const tg_mlp *op, const column_tile &t,
                           const real_of<Y> *f) {
    using R = real_of<Y>;
    mlp_output<Y> o = {};
    o.channels = op->out;
    o.alpha = R(op->alpha);
    o.beta = R(op->beta);
    o.dropout = output_dropout(op);
    o.b2 = static_cast<const R *>(op->b2);
    o.gate = static_cast<const R *>(op->gate);
    o.add = static_cast<const Y *>(op->add);
    o.y = static_cast<Y *>(op->y);
    o.activated = static_cast<Y *>(op->activated);
    return launch_alone(be, "the output of an MLP", output_layer<Y>, column_grid(op->out, t.count),
                        COLUMN_THREADS, 0, t, o, f);
}

/* ---- all tiles; T: double or float, by which the storage types are chosen ---- */

template <class R> static tg_status forward_columns(tg_backend *be, const tg_mlp *op) {
    const column_tiles tiles = tiles_of(op);
    const mlp_matrices<R> m = matrices_of<R>(op);
    for (column_tile t = {}; next_tile(tiles, &t);) {
        column_matrix<const R> u = {};
        TG_CALL(with_storage_of<R>(op->x_store, [&](auto tag) {
            return input_of<typename decltype(tag)::type>(be, op, t, m.u, &u);
        }));
        TG_CALL(hidden_of<R>(be, op, t, u, m.h, NULL));
        TG_CALL(multiply_columns(be, t, TG_OP_N, op->out, op->hidden, 1.0, op->w2, op->hidden,
                                 matrix_of<const R>(t, m.h), 0.0, matrix_of(t, m.f)));
        TG_CALL(with_storage_of<R>(op->y_store, [&](auto tag) {
            return output_of<typename decltype(tag)::type>(be, op, t, m.f);
        }));
    }
    return TG_OK;
}

/* f = alpha D2 dy with its sums; dh. */
template <class R>
static tg_status output_gradient(tg_backend *be, const tg_mlp *op, const column_tile &t, bool first,
                                 const mlp_matrices<R> &m) {
    const cudaStream_t stream = cuda_stream(be);
    TG_CALL(with_storage_of<R>(op->y_store, [&](auto tag) {
        using Y = typename decltype(tag)::type;
        return launch_alone(be, "reading a tile", gather_gradient<Y>, sum_grid(op->out),
                            COLUMN_THREADS, 0, t, op->out, R(op->alpha), output_dropout(op),
                            static_cast<const Y *>(op->dy), m.f, first, m.sums2);
    }));
    TG_CALL(multiply_columns(be, t, TG_OP_T, op->hidden, op->out, 1.0, op->w2, op->hidden,
                             matrix_of<const R>(t, m.f), 0.0, matrix_of(t, m.dh)));
    return launch_alone(be, "a hidden layer backwards", times_slope<R>, sum_grid(op->hidden),
                        COLUMN_THREADS, 0, t, op->hidden, m.slope, m.dh, first, m.sums1);
}

template <class R> static tg_status backward_columns(tg_backend *be, const tg_mlp *op) {
    const column_tiles tiles = tiles_of(op);
    const mlp_matrices<R> m = matrices_of<R>(op);
    bool first = true;
    for (column_tile t = {}; next_tile(tiles, &t); first = false) {
        column_matrix<const R> u = {};
        TG_CALL(with_storage_of<R>(op->x_store, [&](auto tag) {
            return input_of<typename decltype(tag)::type>(be, op, t, m.u, &u);
        }));
        TG_CALL(hidden_of<R>(be, op, t, u, m.h, m.slope));
        TG_CALL(output_gradient<R>(be, op, t, first, m));
        TG_CALL(multiply_weights(be, t, op->out, op->hidden, 1.0, matrix_of<const R>(t, m.f),
                                 matrix_of<const R>(t, m.h), op->dw2));
        TG_CALL(multiply_weights(be, t, op->hidden, op->in, 1.0, matrix_of<const R>(t, m.dh), u,
                                 op->dw1));
        if (op->dx) {
            TG_CALL(with_storage_of<R>(op->x_store, [&](auto tag) {
                return input_gradient<typename decltype(tag)::type>(
                    be, op, t, op->hidden, 1.0, op->w1, matrix_of<const R>(t, m.dh), m.u);
            }));
        }
    }
    TG_CALL(add_sums<R>(be, op->hidden, SUM_PARTS, m.sums1, op->db1));
    return add_sums<R>(be, op->out, SUM_PARTS, m.sums2, op->db2);
}

/* ---- the slots ---- */

size_t cuda_mlp_workspace(tg_backend *be, const tg_mlp *op) {
    const size_t sizes[] = {columns_workspace(op), mlp_single_workspace(op),
                            mlp_narrow_workspace(be, op),
                            op->backward ? mlp_channel_workspace(be, op) : 0,
                            op->backward ? mlp_tile_workspace(be, op) : 0};
    size_t most = 0;
    for (size_t bytes : sizes) {
        most = tg_max_size(most, bytes);
    }
    return most;
}

/* Whether the activations allow kernels other than this file's. */
static bool may_use_special_kernel(const tg_mlp *op) {
    return has_tile_kernels(op->act) && hidden_act_of(op) == TG_ACT_GELU;
}

static tg_status forward_by_columns(tg_backend *be, const tg_mlp *op) {
    return op->dtype == TG_F64 ? forward_columns<double>(be, op) : forward_columns<float>(be, op);
}

static tg_status backward_by_columns(tg_backend *be, const tg_mlp *op) {
    return op->dtype == TG_F64 ? backward_columns<double>(be, op) : backward_columns<float>(be, op);
}

static bool is_empty(const tg_mlp *op) {
    return op->batch == 0 || op->pixels == 0 || op->out == 0;
}

enum mlp_path { NARROW, CHANNELS, ONE_OUTPUT, TILES, COLUMNS };

static const struct {
    const char *name, *kernels[2]; /* forward, backward */
    tg_status (*run[2])(tg_backend *be, const tg_mlp *op);
} paths[] = {
    {"narrow",
     {"stream_tiles", "stream_tiles, sum_weights"},
     {mlp_narrow_forward, mlp_narrow_backward}},
    {"channels", {NULL, "channel_mlp_backward"}, {NULL, mlp_channel_backward}},
    {"one output",
     {"cuBLAS, reduce_hidden", "cuBLAS, turn_hidden"},
     {mlp_single_forward, mlp_single_backward}},
    {"tiles", {"mlp_forward", "mlp_backward"}, {mlp_tile_forward, mlp_tile_backward}},
    {"columns",
     {"cuBLAS, hidden_layer, output_layer", "cuBLAS, hidden_layer, times_slope"},
     {forward_by_columns, backward_by_columns}},
};

static mlp_path path_of(const tg_backend *be, const tg_mlp *op) {
    if (!may_use_special_kernel(op)) {
        return COLUMNS;
    }
    if (op->backward && op->x_quantized) { /* rejected earlier by the workspace slot */
        return CHANNELS;
    }
    return mlp_narrow_supports(be, op)                    ? NARROW
           : op->backward && mlp_channel_supports(be, op) ? CHANNELS
           : mlp_single_supports(op)                      ? ONE_OUTPUT
           : (op->backward ? mlp_tile_backward_supports(be, op) : mlp_tile_forward_supports(be, op))
               ? TILES
               : COLUMNS;
}

tg_status cuda_mlp(tg_backend *be, const tg_mlp *op) {
    TG_CALL(tg_check_mlp(be->ctx, op));
    if (is_empty(op)) {
        return TG_OK;
    }
    const auto &path = paths[path_of(be, op)];
    tg_path_report_mlp(be, op, op->backward, {path.name, path.kernels[op->backward]});
    return path.run[op->backward](be, op);
}

bool cuda_mlp_accepts_quantized_input(tg_backend *be, const tg_mlp *op) {
    return may_use_special_kernel(op) && mlp_channel_accepts_quantized_input(be, op);
}
