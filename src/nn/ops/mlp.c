/* MLPs with one hidden layer at every pixel: lifting, projection, channel MLPs.
 *
 *   MLP       y = f(act(x)) + gate add,  activated = gelu(y)      (the latter two by fusion)
 *   MLP_BACK  gradients of the parameters, dx = sum + f'^T dy, through act
 *
 * For complex data, f is a pair (fr, fi): out plane q gets fr of input plane q and fi of the other
 * one, out = fr(Re) - fi(Im) + i [fr(Im) + fi(Re)]. */
#include "nn/ops.h"

/* Arguments common to both directions, without pointers. y is the value at the output. */
static tg_mlp slot_op(const nn_program *p, const nn_op *op, int y) {
    const int x = op->in[NN_X];
    return (tg_mlp){.dtype = p->model->config.dtype,
                    .backward = op->kind == NN_MLP_BACK,
                    .batch = p->batch,
                    .in = op->mlp->in,
                    .hidden = op->mlp->hidden,
                    .out = op->mlp->out,
                    .pixels = p->values[x].points,
                    .hidden_act = op->mlp->act,
                    .alpha = 1.0,
                    .x_store = nn_store(p, x),
                    .y_store = nn_store(p, y),
                    .x_quantized = p->values[x].dtype == TG_U8};
}

bool nn_mlp_back_accepts_quantized(const nn_program *p, tg_backend *be, const nn_op *op) {
    tg_mlp call = slot_op(p, op, op->in[NN_DY]);
    call.act = op->act;
    call.dropout = op->dropout;
    return p->model->planes == 1 && op->in[NN_SUM] < 0 && op->out[0] >= 0 &&
           tg_has(be, (tg_query){.mlp = &call});
}

static tg_mlp part_op(const tg_fno *fno, const nn_op *op, int y, int part, int out) {
    const int *param = op->mlp->param[part];
    tg_mlp call = slot_op(&fno->run.program, op, y);
    call.batch = fno->run.batch;
    call.act = op->act;
    call.w1 = nn_weight(fno, param[0]);
    call.b1 = nn_weight(fno, param[1]);
    call.w2 = nn_weight(fno, param[2]);
    call.b2 = nn_weight(fno, param[3]);
    call.alpha = nn_part_sign(part, out);
    call.beta = part == 0 ? 0.0 : 1.0;
    call.dropout = fno->run.program.training ? op->dropout : 0.0;
    call.rng = (tg_rng){.seed = fno->seed, .purpose = TG_RNG_DROPOUT, .step = (uint32_t)fno->step};
    call.stream =
        ((uint64_t)((op->module * 2 + part) * 2 + out) << 40) +
        ((uint64_t)(fno->run.first / fno->run.program.batch + fno->model.split.part) << 52);
    call.workspace = nn_data(fno, op->scratch[0]);
    return call;
}

static tg_status run(tg_fno *fno, const nn_op *op) {
    const int planes = fno->model.planes;
    for (int q = 0; q < planes; q++) {
        for (int part = 0; part < planes; part++) {
            tg_mlp call = part_op(fno, op, op->out[0], part, q);
            call.x = nn_plane(fno, op->in[NN_X], nn_part_across(part, q));
            call.y = nn_plane(fno, op->out[0], q);
            call.add = nn_data(fno, op->in[NN_ADD]);
            call.gate = nn_weight(fno, op->gate);
            call.activated = nn_data(fno, op->out[1]);
            TG_CALL(fno->be->ops->mlp(fno->be, &call));
        }
    }
    return TG_OK;
}

static tg_status run_back(tg_fno *fno, const nn_op *op) {
    const int planes = fno->model.planes;
    for (int q = 0; q < planes; q++) {
        for (int part = 0; part < planes; part++) {
            const int *param = op->mlp->param[part];
            const int out = nn_part_across(part, q);
            tg_mlp call = part_op(fno, op, op->in[NN_DY], part, out);
            call.beta = part == 0 && op->in[NN_SUM] < 0 ? 0.0 : 1.0;
            call.through = op->through && part == planes - 1;
            call.x = nn_plane(fno, op->in[NN_X], q);
            call.dy = nn_plane(fno, op->in[NN_DY], out);
            call.dx = nn_plane(fno, op->out[0], q);
            call.dw1 = nn_gradient(fno, param[0]);
            call.db1 = nn_gradient(fno, param[1]);
            call.dw2 = nn_gradient(fno, param[2]);
            call.db2 = nn_gradient(fno, param[3]);
            TG_CALL(fno->be->ops->mlp(fno->be, &call));
        }
    }
    return TG_OK;
}

static void scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    const tg_mlp call = slot_op(p, op, op->kind == NN_MLP_BACK ? op->in[NN_DY] : op->out[0]);
    bytes[0] = tg_workspace_bytes(be, (tg_query){.mlp = &call});
}

/* Backward recomputes the hidden layer, and computes the gradients of both weights and layers. */
static double flops(const nn_program *p, const nn_op *op) {
    const nn_mlp *mlp = op->mlp;
    const bool is_back = op->kind == NN_MLP_BACK;
    const double first = is_back ? (op->out[0] >= 0 ? 3.0 : 2.0) : 1.0,
                 second = is_back ? 2.0 : 1.0;
    const double points = (double)p->batch * (double)p->values[op->in[NN_X]].points;
    return 2.0 * p->model->planes * p->model->planes * points * (double)mlp->hidden *
           (first * (double)mlp->in + second * (double)mlp->out);
}

/* For complex data, both planes of x are read after the first one of the output is written. */
static bool is_real(const nn_program *p, const nn_op *op) {
    (void)op;
    return p->model->planes == 1;
}

const nn_kind_row nn_kind_mlp = {.name = "mlp",
                                 .slot = NN_SLOT(mlp),
                                 .loads = true,
                                 .adds = true,
                                 .run = run,
                                 .back = nn_back_by_op,
                                 .backward = NN_MLP_BACK,
                                 .scratch = scratch,
                                 .flops = flops,
                                 .overwrites = NN_OVER(NN_X),
                                 .in_place = is_real};
const nn_kind_row nn_kind_mlp_back = {.name = "backward of an mlp",
                                      .slot = NN_SLOT(mlp),
                                      .loads = true,
                                      .makes_gradients = true,
                                      .run = run_back,
                                      .scratch = scratch,
                                      .flops = flops,
                                      .overwrites = NN_OVER(NN_X),
                                      .in_place = is_real};

int nn_add_mlp(nn_program *p, const nn_mlp *mlp, nn_role role, int x) {
    nn_op op = nn_op_on(p, NN_MLP, x);
    op.mlp = mlp;
    op.reads = mlp->param[0][0];
    op.read_count = 4 * p->model->planes;
    p->values[op.out[0]].role = role;
    p->values[op.out[0]].channels = mlp->out;
    return nn_op_add(p, op);
}

int nn_add_channel_mlp(nn_program *p, const nn_mlp *mlp, int module, int x) {
    const int y = nn_add_mlp(p, mlp, NN_ACTIVATION, x);
    if (p->status == TG_OK) {
        p->ops[p->op_count - 1].module = module;
        p->ops[p->op_count - 1].dropout = p->model->config.channel_mlp_dropout;
    }
    return y;
}
