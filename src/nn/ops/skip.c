/* Sums: skip connections, biases, and gradients.
 *
 *   SKIP        y = sum + S(act(x)) + bias       (bias to the real parts; added by fusion)
 *   SKIP_BACK   gradients of S and bias, dx = sum + S^T dy, through act
 *   BIAS        y = sum + bias;  BIAS_BACK its gradient
 *   ACCUMULATE  y = sum + dy, through act
 *
 * All of them call the backend's skip and write in place of the sum. */
#include "nn/ops.h"

/* The value that sets the sizes: dy, or y. */
static int main_value(const nn_op *op) {
    return op->in[NN_DY] >= 0 ? op->in[NN_DY] : op->out[0];
}

static tg_skip slot_op(const nn_program *p, const nn_op *op) {
    const nn_value *v = &p->values[main_value(op)];
    const nn_value *x = op->in[NN_X] < 0 ? v : &p->values[op->in[NN_X]];
    return (tg_skip){.dtype = p->model->config.dtype,
                     .backward = op->in[NN_DY] >= 0,
                     .kind = op->kind == NN_ACCUMULATE ? TG_SKIP_MAP_IDENTITY
                             : op->skip                ? op->skip->kind
                                                       : TG_SKIP_MAP_NONE,
                     .batch = p->batch,
                     .in = x->channels,
                     .out = v->channels,
                     .pixels = v->points,
                     .act = op->act,
                     .alpha = 1.0,
                     .beta = 1.0,
                     .store = nn_store(p, main_value(op))};
}

static tg_skip call_op(const tg_fno *fno, const nn_op *op) {
    tg_skip call = slot_op(&fno->run.program, op);
    call.batch = fno->run.batch;
    call.workspace = nn_data(fno, op->scratch[0]);
    return call;
}

static void scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    const tg_skip call = slot_op(p, op);
    bytes[0] = tg_workspace_bytes(be, (tg_query){.skip = &call});
}

/* ---- skips ---- */

static tg_status run_skip(tg_fno *fno, const nn_op *op) {
    const int planes = fno->model.planes;
    for (int q = 0; q < planes; q++) {
        for (int part = 0; part < planes; part++) {
            tg_skip call = call_op(fno, op);
            call.weight = nn_weight(fno, op->skip->param[part]);
            call.bias = q == 0 && part == 0 ? nn_weight(fno, op->bias) : NULL;
            call.alpha = nn_part_sign(part, q);
            call.beta = part == 0 && op->in[NN_SUM] < 0 ? 0.0 : 1.0;
            call.x = nn_plane(fno, op->in[NN_X], nn_part_across(part, q));
            call.y = nn_plane(fno, op->out[0], q);
            TG_CALL(fno->be->ops->add_skip(fno->be, &call));
        }
    }
    return TG_OK;
}

static tg_status run_skip_back(tg_fno *fno, const nn_op *op) {
    const int planes = fno->model.planes;
    for (int q = 0; q < planes; q++) {
        for (int part = 0; part < planes; part++) {
            const int out = nn_part_across(part, q);
            tg_skip call = call_op(fno, op);
            call.through = op->through && part == planes - 1;
            call.weight = nn_weight(fno, op->skip->param[part]);
            call.alpha = nn_part_sign(part, out);
            call.beta = part == 0 && op->in[NN_SUM] < 0 ? 0.0 : 1.0;
            call.x = nn_plane(fno, op->in[NN_X], q);
            call.dy = nn_plane(fno, op->in[NN_DY], out);
            call.dx = nn_plane(fno, op->out[0], q);
            call.dweight = nn_gradient(fno, op->skip->param[part]);
            call.dbias = q == 0 && part == 0 ? nn_gradient(fno, op->bias) : NULL;
            TG_CALL(fno->be->ops->add_skip(fno->be, &call));
        }
    }
    return TG_OK;
}

/* S^T pixel by pixel and channel by channel. */
static bool is_diagonal(const nn_program *p, const nn_op *op) {
    return p->model->planes == 1 && op->skip->kind != TG_SKIP_MAP_LINEAR;
}

static double flops(const nn_program *p, const nn_op *op) {
    const nn_value *v = &p->values[main_value(op)];
    const double maps = (double)v->channels * (double)p->values[op->in[NN_X]].channels;
    const double points = (double)p->batch * (double)v->points;
    const double both = op->kind == NN_SKIP_BACK ? 2.0 : 1.0; /* of weight and input */
    return op->skip->kind != TG_SKIP_MAP_LINEAR
               ? 0.0
               : both * 2.0 * p->model->planes * p->model->planes * points * maps;
}

const nn_kind_row nn_kind_skip = {.name = "skip",
                                  .slot = NN_SLOT(add_skip),
                                  .loads = true,
                                  .adds = true,
                                  .run = run_skip,
                                  .back = nn_back_by_op,
                                  .backward = NN_SKIP_BACK,
                                  .back_in_place = is_diagonal,
                                  .scratch = scratch,
                                  .flops = flops};
const nn_kind_row nn_kind_skip_back = {.name = "backward of a skip",
                                       .slot = NN_SLOT(add_skip),
                                       .loads = true,
                                       .makes_gradients = true,
                                       .run = run_skip_back,
                                       .scratch = scratch,
                                       .flops = flops,
                                       .overwrites = NN_OVER(NN_DY),
                                       .in_place = is_diagonal};

static nn_op skip_op(const nn_program *p, const nn_skip *skip, int x) {
    nn_op op = nn_op_make(NN_SKIP);
    op.skip = skip;
    op.reads = skip->param[0];
    op.read_count = skip->kind == TG_SKIP_MAP_IDENTITY ? 0 : p->model->planes;
    op.in[NN_X] = x;
    return op;
}

int nn_add_skip(nn_program *p, const nn_skip *skip, int x, int sum) {
    nn_op op = skip_op(p, skip, x);
    op.in[NN_SUM] = sum;
    op.out[0] = nn_value_like(p, sum);
    return nn_op_add(p, op);
}

int nn_add_map(nn_program *p, const nn_skip *skip, int x) {
    if (skip->kind == TG_SKIP_MAP_IDENTITY) {
        return x;
    }
    nn_op op = skip_op(p, skip, x);
    op.out[0] = nn_value_like(p, x);
    return nn_op_add(p, op);
}

/* ---- biases ---- */

static tg_status run_bias(tg_fno *fno, const nn_op *op) {
    tg_skip call = call_op(fno, op);
    call.bias = nn_weight(fno, op->bias);
    call.y = nn_data(fno, op->out[0]);
    return fno->be->ops->add_skip(fno->be, &call);
}

static tg_status run_bias_back(tg_fno *fno, const nn_op *op) {
    tg_skip call = call_op(fno, op);
    call.dbias = nn_gradient(fno, op->bias);
    call.dy = nn_data(fno, op->in[NN_DY]);
    return fno->be->ops->add_skip(fno->be, &call);
}

static int back_bias(nn_program *p, const nn_op *op, nn_request ask) {
    nn_op back = nn_op_make(NN_BIAS_BACK);
    back.bias = op->bias;
    back.in[NN_DY] = ask.dy;
    nn_op_makes_gradients(&back, op);
    nn_op_add(p, back);
    return ask.wanted ? ask.dy : -1;
}

const nn_kind_row nn_kind_bias = {.name = "bias",
                                  .slot = NN_SLOT(add_skip),
                                  .run = run_bias,
                                  .back = back_bias,
                                  .scratch = scratch};
const nn_kind_row nn_kind_bias_back = {.name = "backward of a bias",
                                       .slot = NN_SLOT(add_skip),
                                       .makes_gradients = true,
                                       .run = run_bias_back,
                                       .scratch = scratch};

int nn_add_bias(nn_program *p, int bias, int x) {
    nn_op op = nn_op_make(NN_BIAS);
    op.bias = op.reads = bias;
    op.read_count = 1;
    op.in[NN_SUM] = x;
    op.out[0] = nn_value_like(p, x);
    return nn_op_add(p, op);
}

/* ---- sums of gradients ---- */

static tg_status run_accumulate(tg_fno *fno, const nn_op *op) {
    for (int q = 0; q < fno->model.planes; q++) {
        tg_skip call = call_op(fno, op);
        call.through = op->through;
        call.x = nn_plane(fno, op->in[NN_X], q);
        call.dy = nn_plane(fno, op->in[NN_DY], q);
        call.dx = nn_plane(fno, op->out[0], q);
        TG_CALL(fno->be->ops->add_skip(fno->be, &call));
    }
    return TG_OK;
}

const nn_kind_row nn_kind_accumulate = {.name = "sum of gradients",
                                        .slot = NN_SLOT(add_skip),
                                        .loads = true,
                                        .run = run_accumulate,
                                        .scratch = scratch};

int nn_add_accumulate(nn_program *p, int dy, int sum) {
    nn_op op = nn_op_make(NN_ACCUMULATE);
    op.in[NN_DY] = dy;
    op.in[NN_SUM] = sum;
    op.out[0] = nn_value_like(p, sum);
    return nn_op_add(p, op);
}
