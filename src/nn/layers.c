/* Perceptrons, skips and norms of a network on all planes of a batch.
 *
 * Of complex data, out plane q gets fr of input plane q and fi of the other plane, with a minus
 * sign where imaginary parts make real ones: out = fr(Re) - fi(Im) + i [fr(Im) + fi(Re)]. */
#include "nn/layers.h"

/* The other end of part `part` from plane q, and the sign on the way to plane `out`. */
static int across(int part, int q) {
    return part == 0 ? q : 1 - q;
}

static double sign(int part, int out) {
    return part == 1 && out == 0 ? -1.0 : 1.0;
}

/* Plane q of an activation; NULL stays NULL. */
static void *plane(const tg_fno *fno, tg_storage store, const void *x, int64_t channels,
                   int64_t pixels, int q) {
    const int64_t numbers = q * fno->run.batch * channels * pixels;
    return x ? nn_element(tg_stored(nn_dtype(fno), store), x, numbers) : NULL;
}

/* ---- perceptrons ---- */

static tg_mlp mlp_op(const nn_model *model, const nn_mlp *mlp, int64_t batch, int64_t pixels) {
    return (tg_mlp){.dtype = model->config.dtype,
                    .batch = batch,
                    .in = mlp->in,
                    .hidden = mlp->hidden,
                    .out = mlp->out,
                    .pixels = pixels,
                    .alpha = 1.0,
                    .x_store = mlp->x_store,
                    .y_store = mlp->y_store};
}

static tg_mlp part_op(const tg_fno *fno, const nn_mlp_call *call, int part, int out) {
    const int *param = call->mlp->param[part];
    tg_mlp op = mlp_op(&fno->model, call->mlp, fno->run.batch, call->pixels);
    op.act = call->act;
    op.w1 = nn_weight(fno, param[0]);
    op.b1 = nn_weight(fno, param[1]);
    op.w2 = nn_weight(fno, param[2]);
    op.b2 = nn_weight(fno, param[3]);
    op.alpha = sign(part, out);
    op.beta = part == 0 ? 0.0 : 1.0;
    op.dropout = fno->run.training ? call->dropout : 0.0;
    op.rng = (tg_rng){.seed = fno->seed, .purpose = TG_RNG_DROPOUT, .step = (uint32_t)fno->step};
    op.stream = (uint64_t)((call->module * 2 + part) * 2 + out) << 40;
    op.workspace = fno->run.scratch;
    return op;
}

tg_status nn_mlp_forward(tg_fno *fno, const nn_mlp_call *call) {
    tg_status status = TG_OK;
    const nn_mlp *mlp = call->mlp;
    const int planes = fno->model.planes;
    for (int q = 0; q < planes; q++) {
        for (int part = 0; part < planes; part++) {
            tg_mlp op = part_op(fno, call, part, q);
            op.x = plane(fno, mlp->x_store, call->x, mlp->in, call->pixels, across(part, q));
            op.y = plane(fno, mlp->y_store, call->y, mlp->out, call->pixels, q);
            op.add = call->add;
            op.gate = call->gate;
            op.activated = call->activated;
            TG_TRY(fno->be->ops->mlp_forward(fno->be, &op));
        }
    }
fail:
    return status;
}

tg_status nn_mlp_backward(tg_fno *fno, const nn_mlp_call *call) {
    tg_status status = TG_OK;
    const nn_mlp *mlp = call->mlp;
    const int planes = fno->model.planes;
    for (int q = 0; q < planes; q++) {
        for (int part = 0; part < planes; part++) {
            const int *param = mlp->param[part];
            const int out = across(part, q);
            tg_mlp op = part_op(fno, call, part, out);
            op.through = part == planes - 1;
            op.x = plane(fno, mlp->x_store, call->x, mlp->in, call->pixels, q);
            op.dy = plane(fno, mlp->y_store, call->dy, mlp->out, call->pixels, out);
            op.dx = plane(fno, mlp->x_store, call->dx, mlp->in, call->pixels, q);
            op.dw1 = nn_gradient(fno, param[0]);
            op.db1 = nn_gradient(fno, param[1]);
            op.dw2 = nn_gradient(fno, param[2]);
            op.db2 = nn_gradient(fno, param[3]);
            TG_TRY(fno->be->ops->mlp_backward(fno->be, &op));
        }
    }
fail:
    return status;
}

/* ---- skips ---- */

static tg_mix mix_op(const nn_model *model, tg_mix_kind kind, int64_t batch, int64_t pixels) {
    return (tg_mix){.dtype = model->config.dtype,
                    .kind = kind,
                    .batch = batch,
                    .in = model->config.hidden_channels,
                    .out = model->config.hidden_channels,
                    .pixels = pixels,
                    .alpha = 1.0,
                    .beta = 1.0,
                    .store = model->stores.activation};
}

static tg_mix block_op(const tg_fno *fno, tg_mix_kind kind) {
    tg_mix op = mix_op(&fno->model, kind, fno->run.batch, fno->run.geometry.padded_pixels);
    op.workspace = fno->run.scratch;
    return op;
}

/* Plane q of an activation inside the blocks. */
static void *block_plane(const tg_fno *fno, const void *x, int q) {
    return plane(fno, fno->model.stores.activation, x, fno->model.config.hidden_channels,
                 fno->run.geometry.padded_pixels, q);
}

tg_status nn_skip_forward(tg_fno *fno, const nn_skip_call *call) {
    tg_status status = TG_OK;
    const int planes = fno->model.planes;
    for (int q = 0; q < planes; q++) {
        for (int part = 0; part < planes; part++) {
            tg_mix op = block_op(fno, call->skip->kind);
            op.act = call->act;
            op.weight = nn_weight(fno, call->skip->param[part]);
            op.bias = q == 0 && part == 0 ? nn_weight(fno, call->bias) : NULL;
            op.alpha = sign(part, q);
            op.x = block_plane(fno, call->x, across(part, q));
            op.y = block_plane(fno, call->y, q);
            TG_TRY(fno->be->ops->mix_forward(fno->be, &op));
        }
    }
fail:
    return status;
}

tg_status nn_skip_backward(tg_fno *fno, const nn_skip_call *call) {
    tg_status status = TG_OK;
    const int planes = fno->model.planes;
    for (int q = 0; q < planes; q++) {
        for (int part = 0; part < planes; part++) {
            const int out = across(part, q);
            tg_mix op = block_op(fno, call->skip->kind);
            op.act = call->act;
            op.through = call->through && part == planes - 1;
            op.weight = nn_weight(fno, call->skip->param[part]);
            op.alpha = sign(part, out);
            op.beta = part == 0 ? call->beta : 1.0;
            op.x = block_plane(fno, call->x, q);
            op.dy = block_plane(fno, call->dy, out);
            op.dx = block_plane(fno, call->dx, q);
            op.dweight = nn_gradient(fno, call->skip->param[part]);
            op.dbias = q == 0 && part == 0 ? nn_gradient(fno, call->bias) : NULL;
            TG_TRY(fno->be->ops->mix_backward(fno->be, &op));
        }
    }
fail:
    return status;
}

tg_status nn_bias_forward(tg_fno *fno, int bias, void *y) {
    tg_mix op = block_op(fno, TG_MIX_NONE);
    op.bias = nn_weight(fno, bias);
    op.y = y;
    return fno->be->ops->mix_forward(fno->be, &op);
}

tg_status nn_bias_backward(tg_fno *fno, int bias, const void *dy) {
    tg_mix op = block_op(fno, TG_MIX_NONE);
    op.dbias = nn_gradient(fno, bias);
    op.dy = dy;
    return fno->be->ops->mix_backward(fno->be, &op);
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

size_t nn_scratch_bytes(tg_backend *be, const nn_model *model, const nn_geometry *g, int64_t batch,
                        bool training) {
    size_t bytes = 0;
    for (int backward = 0; backward <= (training ? 1 : 0); backward++) {
        const nn_block *block = &model->blocks[0];
        const tg_mlp mlps[] = {mlp_op(model, &model->lifting, batch, g->pixels),
                               mlp_op(model, &block->mlp, batch, g->padded_pixels),
                               mlp_op(model, &model->projection, batch, g->pixels)};
        for (int i = 0; i < 3; i++) {
            bytes = larger(bytes, be->ops->mlp_workspace(be, &mlps[i], backward == 1));
        }
        const tg_mix_kind kinds[] = {block->fno_skip.kind, block->mlp_skip.kind, TG_MIX_NONE};
        for (int i = 0; i < 3; i++) {
            const tg_mix op = mix_op(model, kinds[i], batch, g->padded_pixels);
            bytes = larger(bytes, be->ops->mix_workspace(be, &op, backward == 1));
        }
    }
    return bytes;
}

/* ---- norms: planes are further samples ---- */

static tg_norm norm_op(const tg_fno *fno, const nn_norm *norm) {
    return (tg_norm){.dtype = nn_dtype(fno),
                     .batch = fno->model.planes * fno->run.batch,
                     .channels = fno->model.config.hidden_channels,
                     .pixels = fno->run.geometry.padded_pixels,
                     .per_channel = fno->model.config.norm == TG_NORM_INSTANCE,
                     .eps = 1e-5,
                     .store = fno->model.stores.activation,
                     .weight = nn_weight(fno, norm->weight),
                     .bias = nn_weight(fno, norm->bias)};
}

tg_status nn_norm_forward(tg_fno *fno, const nn_norm *norm, const void *x, double *stats, void *y) {
    tg_norm op = norm_op(fno, norm);
    op.x = x;
    op.stats = stats;
    op.y = y;
    return fno->be->ops->norm_forward(fno->be, &op);
}

tg_status nn_norm_backward(tg_fno *fno, const nn_norm *norm, const void *x, double *stats,
                           const void *dy, void *dx) {
    tg_norm op = norm_op(fno, norm);
    op.x = x;
    op.stats = stats;
    op.dy = dy;
    op.dx = dx;
    op.dweight = nn_gradient(fno, norm->weight);
    op.dbias = nn_gradient(fno, norm->bias);
    return fno->be->ops->norm_backward(fno->be, &op);
}
