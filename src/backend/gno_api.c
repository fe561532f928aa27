/* Public calls for graph kernels and neighbours. */
#include "backend/backend.h"
#include "backend/tensor.h"

/* ---- arguments ---- */

static tg_status check(const tg_backend *be, const char *what, tg_dtype dtype, tg_shape shape,
                       const tg_tensor *t) {
    return tg_tensor_check(be, t, &(tg_wanted){what, NULL, dtype, shape, false});
}

/* A list of places (count, dim), f32 or f64, which may be on the host. */
static tg_status check_places(const tg_backend *be, const char *what, const tg_tensor *t,
                              tg_dtype dtype, int dim) {
    const int64_t count = t->shape.ndim == 2 ? t->shape.dim[0] : -1;
    const tg_shape shape = {2, {count < 0 ? 1 : count, dim}};
    if (count > TG_NEIGHBOURS_MAX) {
        return tg_fail(be->ctx, TG_E_SHAPE, "%s: %lld places; at most %d are possible", what,
                       (long long)count, TG_NEIGHBOURS_MAX);
    }
    return tg_tensor_check(be, t, &(tg_wanted){what, NULL, dtype, shape, true});
}

/* The dtype of the places and their number of coordinates. */
static tg_status check_kind(const tg_backend *be, const tg_tensor *y) {
    return y->dtype == TG_F32 || y->dtype == TG_F64
               ? TG_OK
               : tg_fail(be->ctx, TG_E_DTYPE, "y: points are f32 or f64, not %s",
                         tg_dtype_name(y->dtype));
}

static tg_status search(tg_backend *be, const tg_tensor *y, const tg_tensor *x, double radius,
                        void **memory, tg_neighbours *out) {
    const int64_t points = y->shape.dim[0], queries = x->shape.dim[0];
    const size_t bytes = tg_workspace_bytes(
        be, (tg_query){.neighbours = &(tg_neighbours){.points = points, .queries = queries}});
    TG_CALL(TG_BACKEND_ALLOC(be, TG_MEM_WORKSPACE, *memory, bytes));
    tg_neighbours_place((int)y->shape.dim[1], points, queries, *memory, out);
    return be->ops->neighbours_build(be, out, radius, y, x);
}

/* ---- neighbours ---- */

/* The neighbours found, on the backend or on the host. */
static tg_status hand_out(tg_backend *be, const tg_neighbours *near, tg_place place,
                          tg_tensor *splits, tg_tensor *index) {
    tg_status status = TG_OK;
    tg_context *ctx = be->ctx;
    tg_tensor found = {0};
    const tg_shape rows = {1, {near->queries + 1}}, all = {1, {near->count}};
    const tg_tensor first = tg_backend_view(be, TG_I64, &rows, near->first);
    TG_TRY(tg_backend_tensor(ctx, TG_MEM_DATA, TG_I64, &all, &found));
    TG_TRY(be->ops->neighbours_list(be, near, found.data));
    if (place == be->ops->place) {
        TG_TRY(tg_backend_tensor(ctx, TG_MEM_DATA, TG_I64, &rows, splits));
        *index = found;
        found = (tg_tensor){0};
    } else {
        TG_TRY(tg_tensor_create(ctx, TG_MEM_DATA, TG_I64, &rows, splits));
        TG_TRY(tg_tensor_create(ctx, TG_MEM_DATA, TG_I64, &all, index));
        TG_TRY(tg_backend_copy(ctx, &found, index));
    }
    TG_TRY(tg_backend_copy(ctx, &first, splits));
fail:
    tg_tensor_destroy(&found);
    return status;
}

tg_status tg_neighbours_find(tg_context *ctx, double radius, const tg_tensor *y, const tg_tensor *x,
                             tg_tensor *row_splits, tg_tensor *index) {
    TG_NEED(ctx, ctx, y, x, row_splits, index);
    tg_status status = TG_OK;
    tg_backend *be = NULL;
    tg_neighbours near;
    void *memory = NULL;
    tg_tensor splits = {0}, found = {0};
    if (!(radius >= 0.0 && radius <= 1e30)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "radius: %g is not a number from 0 on", radius);
    }
    TG_TRY(tg_backend_get(ctx, &be));
    TG_TRY(check_kind(be, y));
    const int64_t dim = y->shape.ndim == 2 ? y->shape.dim[1] : 0;
    if (dim < 1 || dim > 3) {
        char text[96];
        TG_TRY(tg_fail(ctx, TG_E_SHAPE, "y: points are (n, 1 .. 3), not %s",
                       tg_shape_text(&y->shape, text, sizeof text)));
    }
    TG_TRY(check_places(be, "y", y, y->dtype, (int)dim));
    TG_TRY(check_places(be, "x", x, y->dtype, (int)dim));
    TG_TRY(search(be, y, x, radius, &memory, &near));
    TG_TRY(hand_out(be, &near, y->place, &splits, &found));
    *row_splits = splits;
    *index = found;
    splits = found = (tg_tensor){0};
fail:
    tg_tensor_destroy(&splits);
    tg_tensor_destroy(&found);
    if (memory) {
        be->ops->release(be, memory);
    }
    return status;
}

/* ---- graph kernels ---- */

/* A call without its outputs: the parameters of the kernel are contiguous. */
static tg_status begin(tg_context *ctx, const tg_gno_config *given, const tg_tensor *weights,
                       const tg_tensor *y, const tg_tensor *x, const tg_tensor *f,
                       tg_backend **backend, tg_gno_config *config, tg_gno *op) {
    TG_CALL(tg_gno_config_read(ctx, given, config));
    TG_CALL(tg_gno_config_check(ctx, config));
    TG_CALL(tg_backend_get(ctx, backend));
    tg_backend *be = *backend;
    const tg_gno_sizes sizes = tg_gno_sizes_of(config, f);
    TG_CALL(check_kind(be, y));
    TG_CALL(check_places(be, "y", y, y->dtype, config->coord_dim));
    TG_CALL(check_places(be, "x", x, y->dtype, config->coord_dim));
    *op = (tg_gno){.dtype = y->dtype,
                   .config = config,
                   .batch = f && f->shape.ndim > 0 ? f->shape.dim[0] : 1,
                   .points = y->shape.dim[0],
                   .queries = x->shape.dim[0],
                   .has_values = f,
                   .f = f ? f->data : NULL};
    const tg_shape all = {1, {tg_gno_weight_count(&sizes)}};
    TG_CALL(check(be, "weights", op->dtype, all, weights));
    if (f) {
        const tg_shape values = {3, {op->batch, config->in_channels, op->points}};
        TG_CALL(check(be, "f", op->dtype, values, f));
    }
    const char *next = weights->data;
    for (int l = 0; l < sizes.layers; l++) {
        op->weight[l] = next;
        op->bias[l] =
            next + (size_t)(sizes.width[l] * sizes.width[l + 1]) * tg_dtype_size(y->dtype);
        next += (size_t)((sizes.width[l] + 1) * sizes.width[l + 1]) * tg_dtype_size(y->dtype);
    }
    return TG_OK;
}

static tg_status check_like(const tg_backend *be, const char *what, const tg_gno *op,
                            int64_t channels, int64_t places, const tg_tensor *t) {
    return check(be, what, op->dtype, (tg_shape){3, {op->batch, channels, places}}, t);
}

/* Finds the neighbours and computes `op`, whose outputs are set. */
static tg_status compute(tg_backend *be, const tg_tensor *y, const tg_tensor *x, tg_gno *op) {
    tg_status status = TG_OK;
    tg_neighbours near;
    void *memory = NULL;
    TG_TRY(search(be, y, x, op->config->radius, &memory, &near));
    op->neighbours = &near;
    TG_TRY(TG_BACKEND_ALLOC(be, TG_MEM_WORKSPACE, op->workspace,
                            tg_workspace_bytes(be, (tg_query){.gno = op})));
    TG_TRY(be->ops->gno(be, op));
fail:
    be->ops->release(be, op->workspace);
    be->ops->release(be, memory);
    return status;
}

tg_status tg_gno_forward(tg_context *ctx, const tg_gno_config *config, const tg_tensor *weights,
                         const tg_tensor *y, const tg_tensor *x, const tg_tensor *f,
                         tg_tensor *out) {
    TG_NEED(ctx, ctx, config, weights, y, x, out);
    tg_backend *be = NULL;
    tg_gno_config full;
    tg_gno op = {0};
    TG_CALL(begin(ctx, config, weights, y, x, f, &be, &full, &op));
    TG_CALL(check_like(be, "out", &op, full.out_channels, op.queries, out));
    op.y = out->data;
    return compute(be, y, x, &op);
}

tg_status tg_gno_backward(tg_context *ctx, const tg_gno_config *config, const tg_tensor *weights,
                          const tg_tensor *y, const tg_tensor *x, const tg_tensor *f,
                          const tg_tensor *dout, tg_tensor *dweights, tg_tensor *df) {
    TG_NEED(ctx, ctx, config, weights, y, x, dout, dweights);
    tg_backend *be = NULL;
    tg_gno_config full;
    tg_gno op = {0};
    TG_CALL(begin(ctx, config, weights, y, x, f, &be, &full, &op));
    TG_CALL(check_like(be, "dout", &op, full.out_channels, op.queries, dout));
    TG_CALL(check(be, "dweights", op.dtype, weights->shape, dweights));
    if (df) {
        TG_CALL(f ? check_like(be, "df", &op, full.in_channels, op.points, df)
                  : tg_fail(ctx, TG_E_ARGUMENT, "df: there is no f"));
    }
    op.backward = true;
    op.dy = dout->data;
    op.df = df ? df->data : NULL;
    const char *from = weights->data;
    char *to = dweights->data;
    for (int l = 0; l <= full.n_channel_mlp_layers; l++) {
        op.dweight[l] = to + ((const char *)op.weight[l] - from);
        op.dbias[l] = to + ((const char *)op.bias[l] - from);
    }
    TG_CALL(be->ops->fill(be, op.dtype, tg_tensor_numel(dweights), (tg_scalar){0}, dweights->data));
    return compute(be, y, x, &op);
}

int64_t tg_gno_parameters(const tg_gno_config *config, bool has_values) {
    tg_gno_config full;
    if (!config || tg_gno_config_read(NULL, config, &full) != TG_OK ||
        full.n_channel_mlp_layers < 1 || full.n_channel_mlp_layers > TG_GNO_MAX_HIDDEN) {
        return -1;
    }
    const tg_gno_sizes sizes = tg_gno_sizes_of(&full, has_values);
    return tg_gno_weight_count(&sizes);
}
