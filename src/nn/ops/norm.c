/* Group norm (one group) and instance norm. Planes of complex data count as further samples. */
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

static tg_status run(tg_fno *fno, const nn_op *op) {
    tg_norm call = slot_op(fno, op, op->out[1]);
    call.y = nn_data(fno, op->out[0]);
    return fno->be->ops->norm(fno->be, &call);
}

static tg_status run_back(tg_fno *fno, const nn_op *op) {
    tg_norm call = slot_op(fno, op, op->in[NN_STATS]);
    call.backward = true;
    call.dy = nn_data(fno, op->in[NN_DY]);
    call.dx = nn_data(fno, op->out[0]);
    call.dweight = nn_gradient(fno, op->norm->weight);
    call.dbias = nn_gradient(fno, op->norm->bias);
    return fno->be->ops->norm(fno->be, &call);
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
