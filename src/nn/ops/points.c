/* Between points and the latent grid.
 *
 *   GNO            y at the queries from x at the points, by a graph kernel (backend/gno.h)
 *   GNO_BACK       gradients of the kernel, and dx
 *   FEATURES       y = x, and after its channels those the caller has on the grid */
#include <math.h>

#include "nn/ops.h"

/* ---- graph kernels ---- */

/* Arguments common to both directions, without pointers. */
static tg_gno slot_op(const nn_program *p, const nn_op *op) {
    const int64_t *counts[] = {&p->domain.points, &p->domain.pixels, &p->domain.queries};
    return (tg_gno){.dtype = p->model->config.dtype,
                    .backward = op->kind == NN_GNO_BACK,
                    .config = &op->gno->config,
                    .batch = p->batch,
                    .points = *counts[op->gno->side],
                    .queries = *counts[op->gno->side + 1],
                    .f_store = nn_store(p, op->in[NN_X]),
                    .act = op->is_stabilized ? TG_ACT_TANH : TG_ACT_NONE,
                    .has_values = true};
}

static tg_gno call_of(const tg_fno *fno, const nn_op *op) {
    tg_gno call = slot_op(&fno->run.program, op);
    call.batch = fno->run.batch;
    call.neighbours = &fno->run.near[op->gno->side];
    for (int l = 0; l < op->gno->layers; l++) {
        call.weight[l] = nn_weight(fno, op->gno->param + 2 * l);
        call.bias[l] = nn_weight(fno, op->gno->param + 2 * l + 1);
    }
    call.f = nn_data(fno, op->in[NN_X]);
    call.workspace = nn_data(fno, op->scratch[0]);
    return call;
}

static tg_status run_gno(tg_fno *fno, const nn_op *op) {
    tg_gno call = call_of(fno, op);
    call.y = nn_data(fno, op->out[0]);
    return fno->be->ops->gno(fno->be, &call);
}

static tg_status run_gno_back(tg_fno *fno, const nn_op *op) {
    tg_gno call = call_of(fno, op);
    call.dy = nn_data(fno, op->in[NN_DY]);
    call.df = nn_data(fno, op->out[0]);
    for (int l = 0; l < op->gno->layers; l++) {
        call.dweight[l] = nn_gradient(fno, op->gno->param + 2 * l);
        call.dbias[l] = nn_gradient(fno, op->gno->param + 2 * l + 1);
    }
    return fno->be->ops->gno(fno->be, &call);
}

static void scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    const tg_gno call = slot_op(p, op);
    bytes[0] = tg_workspace_bytes(be, (tg_query){.gno = &call});
}

/* The points are unknown here, but one side is a grid: counts edges as if both filled the box. The
 * backward pass recomputes hidden layers, and computes gradients of weights and inputs. */
static double flops(const nn_program *p, const nn_op *op) {
    static const double balls[] = {2.0, 3.141592653589793, 4.18879020478639}; /* of radius 1 */
    const tg_gno call = slot_op(p, op);
    const int dim = call.config->coord_dim;
    const double within = balls[dim - 1] * pow(call.config->radius, dim);
    const double edges = (double)call.points * (double)call.queries * fmin(1.0, within);
    const tg_gno_sizes sizes = tg_gno_sizes_of(call.config, call.has_values);
    return (op->kind == NN_GNO_BACK ? 6.0 : 2.0) * (double)call.batch * edges *
           (double)tg_gno_weight_count(&sizes);
}

const nn_kind_row nn_kind_gno = {.name = "graph kernel",
                                 .slot = NN_SLOT(gno),
                                 .run = run_gno,
                                 .back = nn_back_by_op,
                                 .backward = NN_GNO_BACK,
                                 .scratch = scratch,
                                 .flops = flops};
const nn_kind_row nn_kind_gno_back = {.name = "backward of a graph kernel",
                                      .slot = NN_SLOT(gno),
                                      .makes_gradients = true,
                                      .run = run_gno_back,
                                      .scratch = scratch,
                                      .flops = flops};

int nn_add_gno(nn_program *p, const nn_gno *gno, bool with_tanh, int x) {
    nn_op op = nn_op_on(p, NN_GNO, x);
    nn_value *y = &p->values[op.out[0]];
    op.gno = gno;
    op.reads = gno->param;
    op.read_count = 2 * gno->layers;
    op.is_stabilized = with_tanh;
    y->role = NN_DATA;
    y->channels = gno->config.out_channels;
    y->points = gno->side == NN_TO_GRID ? p->domain.pixels : p->domain.queries;
    return nn_op_add(p, op);
}

/* ---- features of the latent grid ---- */

static tg_status run_features(tg_fno *fno, const nn_op *op) {
    const tg_backend_ops *ops = fno->be->ops;
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const nn_value *y = &fno->run.program.values[op->out[0]];
    const int64_t own = x->channels * x->points, more = y->channels * y->points - own;
    const size_t size = tg_dtype_size(y->dtype);
    tg_status (*const bring)(tg_backend *, void *, const void *, size_t) =
        fno->run.features.place == TG_HOST ? ops->upload : ops->copy;
    for (int64_t b = 0; b < fno->run.batch; b++) {
        TG_CALL(ops->copy(fno->be, nn_element(y->dtype, y->data, b * (own + more)),
                          nn_element(x->dtype, x->data, b * own), (size_t)own * size));
        TG_CALL(bring(fno->be, nn_element(y->dtype, y->data, b * (own + more) + own),
                      nn_element(y->dtype, fno->run.features.data, (fno->run.first + b) * more),
                      (size_t)more * size));
    }
    return TG_OK;
}

const nn_kind_row nn_kind_features = {
    .name = "features", .run = run_features, .back = nn_back_part};

int nn_add_features(nn_program *p, int x) {
    const int64_t channels = p->model->config.latent_feature_channels;
    if (channels == 0) {
        return x;
    }
    nn_op op = nn_op_on(p, NN_FEATURES, x);
    p->values[op.out[0]].channels += channels;
    return nn_op_add(p, op);
}
