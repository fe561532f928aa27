/* A block of a Fourier neural operator in one call, where the backend has one (tg_block): the ops
 * INVERSE, SKIP and, if there is one, MLP; and, for backward after its MLP (tg_block_back), INVERSE
 * and the backward ops of both skips. A late pass creates these ops, once everything else is
 * decided.
 *
 *   BLOCK       z1 = F^-1(modes) + skip(act(x)) + bias,  z2 = mlp(z1) + gate x,
 *               activated = gelu(z2)
 *   BLOCK_BACK  gradients of skip, bias and gate,  dx = F^-1(modes) + skip^T dz1 + gate dz2,
 * through act; dz1 is DY, dz2 SUM */
#include "nn/ops.h"

static bool is_quantized(const nn_program *p, int value) {
    return value >= 0 && p->values[value].dtype == TG_U8;
}

tg_block nn_block_call(const nn_program *p, const nn_op *op) {
    return (tg_block){.dtype = p->model->config.dtype,
                      .batch = p->batch,
                      .channels = p->values[op->in[NN_X]].channels,
                      .hidden = op->mlp ? op->mlp->hidden : 0,
                      .desc = &p->transforms[op->transform].desc,
                      .scale = op->scale,
                      .act = op->act,
                      .act1 = op->inner_act,
                      .adds = op->adds_input,
                      .store = nn_store(p, op->in[NN_X]),
                      .z1_quantized = is_quantized(p, op->out[0]),
                      .z2_quantized = is_quantized(p, op->out[1])};
}

static tg_status run(tg_fno *fno, const nn_op *op) {
    const nn_program *p = &fno->run.program;
    tg_block call = nn_block_call(p, op);
    call.batch = fno->run.batch;
    call.fft = fno->run.fft[op->transform];
    call.spectrum = nn_data(fno, op->in[NN_MODES]);
    call.x = nn_data(fno, op->in[NN_X]);
    call.skip = nn_weight(fno, op->skip->param[0]);
    call.bias = nn_weight(fno, op->bias);
    if (op->mlp) {
        const int *param = op->mlp->param[0];
        call.w1 = nn_weight(fno, param[0]);
        call.b1 = nn_weight(fno, param[1]);
        call.w2 = nn_weight(fno, param[2]);
        call.b2 = nn_weight(fno, param[3]);
        call.gate = nn_weight(fno, op->gate);
    }
    call.z1 = nn_data(fno, op->out[0]);
    call.z2 = nn_data(fno, op->out[1]);
    call.activated = nn_data(fno, op->out[2]);
    call.workspace = nn_data(fno, op->scratch[0]);
    return fno->be->ops->block_forward(fno->be, &call);
}

static void scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    const tg_block call = nn_block_call(p, op);
    bytes[0] = tg_workspace_bytes(be, (tg_query){.block = &call});
}

static double flops(const nn_program *p, const nn_op *op) {
    const nn_value *x = &p->values[op->in[NN_X]];
    const double channels = (double)x->channels, points = (double)x->points;
    const double hidden = op->mlp ? (double)op->mlp->hidden : 0.0;
    return (double)p->batch * (nn_transform_flops(x) + 2.0 * points * channels * channels +
                               4.0 * points * channels * hidden);
}

const nn_kind_row nn_kind_block = {.name = "block",
                                   .slot = NN_SLOT(block_forward),
                                   .run = run,
                                   .scratch = scratch,
                                   .flops = flops,
                                   .overwrites = NN_OVER(NN_X),
                                   .ends_over = true};

/* ---- backward ---- */

tg_block_back nn_block_back_call(const nn_program *p, const nn_op *op) {
    return (tg_block_back){.dtype = p->model->config.dtype,
                           .batch = p->batch,
                           .channels = p->values[op->in[NN_X]].channels,
                           .desc = &p->transforms[op->transform].desc,
                           .scale = op->scale,
                           .act = op->act,
                           .through = op->through,
                           .store = nn_store(p, op->in[NN_X]),
                           .x_quantized = is_quantized(p, op->in[NN_X])};
}

static tg_status run_back(tg_fno *fno, const nn_op *op) {
    const nn_program *p = &fno->run.program;
    tg_block_back call = nn_block_back_call(p, op);
    call.batch = fno->run.batch;
    call.fft = fno->run.fft[op->transform];
    call.spectrum = nn_data(fno, op->in[NN_MODES]);
    call.x = nn_data(fno, op->in[NN_X]);
    call.skip = nn_weight(fno, op->skip->param[0]);
    call.gate = nn_weight(fno, op->gate);
    call.dz1 = nn_data(fno, op->in[NN_DY]);
    call.dz2 = nn_data(fno, op->in[NN_SUM]);
    call.dskip = nn_gradient(fno, op->skip->param[0]);
    call.dbias = nn_gradient(fno, op->bias);
    call.dgate = nn_gradient(fno, op->gate);
    call.dx = nn_data(fno, op->out[0]);
    call.workspace = nn_data(fno, op->scratch[0]);
    return fno->be->ops->block_backward(fno->be, &call);
}

static void back_scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    const tg_block_back call = nn_block_back_call(p, op);
    bytes[0] = tg_workspace_bytes(be, (tg_query){.block_back = &call});
}

static double back_flops(const nn_program *p, const nn_op *op) {
    const nn_value *x = &p->values[op->in[NN_X]];
    const double channels = (double)x->channels, points = (double)x->points;
    return (double)p->batch * (nn_transform_flops(x) + 4.0 * points * channels * channels);
}

const nn_kind_row nn_kind_block_back = {.name = "backward of a block",
                                        .slot = NN_SLOT(block_backward),
                                        .makes_gradients = true,
                                        .run = run_back,
                                        .scratch = back_scratch,
                                        .flops = back_flops};
