/* Pointwise ops. The activation between layers, fno.non_linearity. Fusion leaves few of these ops:
 * most readers apply it as they load, and the op before may store its GELU as a second output. */
#include "nn/ops.h"

static tg_status run(tg_fno *fno, const nn_op *op) {
    const int x = op->in[NN_X];
    const tg_activation call = {fno->run.program.values[x].dtype,
                                fno->model.act,
                                nn_numbers(fno, x),
                                nn_data(fno, x),
                                nn_data(fno, op->in[NN_DY]),
                                nn_data(fno, op->out[0])};
    return fno->be->ops->activate(fno->be, &call);
}

const nn_kind_row nn_kind_activate = {.name = "activation",
                                      .slot = NN_SLOT(activate),
                                      .run = run,
                                      .back = nn_back_by_op,
                                      .backward = NN_ACTIVATE_BACK,
                                      .overwrites = NN_OVER(NN_X) + NN_OVER(NN_DY)};
const nn_kind_row nn_kind_activate_back = {.name = "backward of an activation",
                                           .slot = NN_SLOT(activate),
                                           .run = run,
                                           .overwrites = NN_OVER(NN_X) + NN_OVER(NN_DY)};

int nn_add_activation(nn_program *p, int x) {
    nn_op op = nn_op_on(p, NN_ACTIVATE, x);
    p->values[op.out[0]].before_act = x;
    return nn_op_add(p, op);
}

/* Values kept for backward in less memory (fno.saved_precision): a copy in bf16, or quantized to 8
 * bits with a scale per block (backend/quantize.h). Forward uses the value itself.
 *
 *   SAVE     y = x in the format of y
 *   RESTORE  y = x in f32 again
 *
 * Inserted by the pass of saved values; neither has a backward. */

static tg_status run_saved(tg_fno *fno, const nn_op *op) {
    const tg_backend_ops *ops = fno->be->ops;
    const bool restores = op->kind == NN_RESTORE;
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const nn_value *y = &fno->run.program.values[op->out[0]];
    const int64_t n = nn_numbers(fno, restores ? op->out[0] : op->in[NN_X]);
    const void *from = nn_data(fno, op->in[NN_X]);
    void *to = nn_data(fno, op->out[0]);
    return (restores ? x : y)->dtype == TG_U8
               ? ops->quantize(fno->be, &(tg_quantization){n, restores, from, to})
               : ops->convert(fno->be, n, x->dtype, from, y->dtype, to);
}

const nn_kind_row nn_kind_save = {.name = "save", .slot = NN_SLOT(quantize), .run = run_saved};
const nn_kind_row nn_kind_restore = {
    .name = "restore", .slot = NN_SLOT(quantize), .run = run_saved};
