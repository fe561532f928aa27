/* Group norm (one group) and instance norm. Planes of complex data count as further samples. In a
 * split network each rank measures its slab, and applies what comes of all. */
#include <math.h>

#include "base/minmax.h"
#include "dist/comm.h"
#include "nn/ops.h"

static tg_norm slot_op(const tg_fno *fno, const nn_op *op, int stats) {
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    return (tg_norm){.dtype = fno->model.config.dtype,
                     .batch = x->planes * fno->run.batch,
                     .channels = x->channels,
                     .pixels = x->points,
                     .per_channel = fno->model.config.norm == TG_NORM_INSTANCE,
                     .eps = 1e-5,
                     .store = nn_store(&fno->run.program, op->in[NN_X]),
                     .weight = nn_weight(fno, op->norm->weight),
                     .bias = nn_weight(fno, op->norm->bias),
                     .x = x->data,
                     .stats = nn_data(fno, stats)};
}

/* ---- over the slabs of all ranks ---- */

enum { GROUPS_AT_ONCE = 256 };

/* Means of this slab, one or two for each group, to those of all; `share` of the points are here.
 */
static tg_status average(const tg_fno *fno, double share, double *means, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        means[i] *= share;
    }
    return tg_comm_all_reduce_f64(fno->model.split.comm, TG_COMM_SUM, count, means);
}

/* Mean and 1 / sqrt(variance + eps) of the slab to those of all. */
static tg_status merge_stats(const tg_fno *fno, const tg_norm *call, double share, double *stats,
                             int64_t groups) {
    double means[GROUPS_AT_ONCE], squares[GROUPS_AT_ONCE];
    for (int64_t g = 0; g < groups; g++) {
        means[g] = stats[2 * g];
    }
    TG_CALL(average(fno, share, means, groups));
    for (int64_t g = 0; g < groups; g++) {
        const double apart = stats[2 * g] - means[g], inverse = stats[2 * g + 1];
        squares[g] = 1.0 / (inverse * inverse) - call->eps + apart * apart;
    }
    TG_CALL(average(fno, share, squares, groups));
    for (int64_t g = 0; g < groups; g++) {
        stats[2 * g] = means[g];
        stats[2 * g + 1] = 1.0 / sqrt(squares[g] + call->eps);
    }
    return TG_OK;
}

static int64_t groups_of(const nn_model *model, const nn_value *x, int64_t batch) {
    return x->planes * batch * (model->config.norm == TG_NORM_INSTANCE ? x->channels : 1);
}

/* The call in one or, of a split network, in two with a merging of `stats` or `means` between. */
static tg_status run_parts(const tg_fno *fno, const nn_op *op, tg_norm *call) {
    const tg_backend_ops *ops = fno->be->ops;
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const int64_t groups = groups_of(&fno->model, x, fno->run.batch);
    double piece[2 * GROUPS_AT_ONCE], *all = call->backward ? call->means : call->stats;
    if (!nn_is_split(&fno->model.split)) {
        return ops->norm(fno->be, call);
    }
    const double share =
        (double)x->points / (double)tg_product(fno->model.config.n_dim, x->grid.size);
    call->part = TG_NORM_MEASURE;
    TG_CALL(ops->norm(fno->be, call));
    for (int64_t first = 0; first < groups; first += GROUPS_AT_ONCE) {
        const int64_t count = tg_min(groups - first, GROUPS_AT_ONCE);
        const size_t bytes = (size_t)(2 * count) * sizeof *piece;
        TG_CALL(ops->download(fno->be, piece, all + 2 * first, bytes));
        TG_CALL(call->backward ? average(fno, share, piece, 2 * count)
                               : merge_stats(fno, call, share, piece, count));
        TG_CALL(ops->upload(fno->be, all + 2 * first, piece, bytes));
    }
    call->part = TG_NORM_APPLY;
    return ops->norm(fno->be, call);
}

size_t nn_norm_sent(const nn_program *p, const nn_op *op) {
    return (size_t)(2 * groups_of(p->model, &p->values[op->in[NN_X]], p->batch)) * sizeof(double);
}

/* Of a split network's backward op: the means. */
static void scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    (void)be;
    bytes[0] = nn_is_split(&p->model->split) ? nn_norm_sent(p, op) : 0;
}

/* ---- the ops ---- */

static tg_status run(tg_fno *fno, const nn_op *op) {
    tg_norm call = slot_op(fno, op, op->out[1]);
    call.y = nn_data(fno, op->out[0]);
    return run_parts(fno, op, &call);
}

static tg_status run_back(tg_fno *fno, const nn_op *op) {
    tg_norm call = slot_op(fno, op, op->in[NN_STATS]);
    call.backward = true;
    call.dy = nn_data(fno, op->in[NN_DY]);
    call.dx = nn_data(fno, op->out[0]);
    call.dweight = nn_gradient(fno, op->norm->weight);
    call.dbias = nn_gradient(fno, op->norm->bias);
    call.means = nn_data(fno, op->scratch[0]);
    return run_parts(fno, op, &call);
}

static int back(nn_program *p, const nn_op *op, nn_request ask) {
    nn_op back = nn_op_make(NN_NORM_BACK);
    back.norm = op->norm;
    back.in[NN_X] = op->in[NN_X];
    back.in[NN_DY] = ask.dy;
    back.in[NN_STATS] = op->out[1];
    back.out[0] = nn_value_like(p, op->in[NN_X]);
    nn_op_makes_gradients(&back, op);
    return nn_op_add(p, back);
}

const nn_kind_row nn_kind_norm = {.name = "norm", .slot = NN_SLOT(norm), .run = run, .back = back};
const nn_kind_row nn_kind_norm_back = {.name = "backward of a norm",
                                       .slot = NN_SLOT(norm),
                                       .makes_gradients = true,
                                       .run = run_back,
                                       .scratch = scratch,
                                       .overwrites = NN_OVER(NN_X) + NN_OVER(NN_DY)};

int nn_add_norm(nn_program *p, const nn_norm *norm, int x) {
    if (p->model->config.norm == TG_NORM_NONE) {
        return x;
    }
    nn_op op = nn_op_on(p, NN_NORM, x);
    op.norm = norm;
    op.reads = norm->weight;
    op.read_count = norm->weight < 0 ? 0 : 2;
    op.out[1] = nn_value_like(p, x);
    p->values[op.out[1]].role = NN_STATISTIC;
    p->values[op.out[1]].points = 2; /* mean and deviation, at most one pair per channel */
    return nn_op_add(p, op);
}
