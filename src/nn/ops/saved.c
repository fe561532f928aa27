/* Values kept for backward in less memory (fno.saved_precision): a copy in bf16, or quantized to 8
 * bits with a scale per block (backend/quantize.h). Forward uses the value itself.
 *
 *   SAVE     y = x in the format of y
 *   RESTORE  y = x in f32 again
 *
 * Inserted by the pass of saved values; neither has a backward. */

#include "nn/ops.h"

static tg_status run_save(tg_fno *fno, const nn_op *op) {
    const tg_backend_ops *ops = fno->be->ops;
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const nn_value *y = &fno->run.program.values[op->out[0]];
    const int64_t n = nn_numbers(fno, op->in[NN_X]);
    return y->dtype == TG_U8
               ? ops->quantize(fno->be, &(tg_quantization){n, false, nn_data(fno, op->in[NN_X]),
                                                           nn_data(fno, op->out[0])})
               : ops->convert(fno->be, n, x->dtype, nn_data(fno, op->in[NN_X]), y->dtype,
                              nn_data(fno, op->out[0]));
}

static tg_status run_restore(tg_fno *fno, const nn_op *op) {
    const tg_backend_ops *ops = fno->be->ops;
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const nn_value *y = &fno->run.program.values[op->out[0]];
    const int64_t n = nn_numbers(fno, op->out[0]);
    return x->dtype == TG_U8
               ? ops->quantize(fno->be, &(tg_quantization){n, true, nn_data(fno, op->in[NN_X]),
                                                           nn_data(fno, op->out[0])})
               : ops->convert(fno->be, n, x->dtype, nn_data(fno, op->in[NN_X]), y->dtype,
                              nn_data(fno, op->out[0]));
}

const nn_kind_row nn_kind_save = {.name = "save", .slot = NN_SLOT(quantize), .run = run_save};
const nn_kind_row nn_kind_restore = {
    .name = "restore", .slot = NN_SLOT(quantize), .run = run_restore};
