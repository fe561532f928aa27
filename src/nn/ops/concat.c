/* Channels of two values side by side, and a part of a value's channels.
 *
 *   CONCAT  y = x, and after its channels those of SECOND
 *   SLICE   dx = the channels of dy from op.first on, as many as dx has */
#include "nn/ops.h"

/* Copies `channels` channels of each sample, from number `from` of x to number `to` of y. */
static tg_status copy_channels(const tg_fno *fno, const nn_value *x, int64_t from,
                               const nn_value *y, int64_t to, int64_t channels) {
    const tg_box box = {.dtype = x->dtype,
                        .ndim = 1,
                        .howmany = x->planes * fno->run.batch,
                        .size = {channels * x->points},
                        .src_dim = {x->channels * x->points},
                        .src_at = {from * x->points},
                        .dst_dim = {y->channels * y->points},
                        .dst_at = {to * y->points},
                        .src = x->data,
                        .dst = y->data};
    return fno->be->ops->box_copy(fno->be, &box);
}

static tg_status run_concat(tg_fno *fno, const nn_op *op) {
    const nn_value *values = fno->run.program.values, *y = &values[op->out[0]];
    const nn_value *x = &values[op->in[NN_X]], *second = &values[op->in[NN_SECOND]];
    TG_CALL(copy_channels(fno, x, 0, y, 0, x->channels));
    return copy_channels(fno, second, 0, y, x->channels, second->channels);
}

static tg_status run_slice(tg_fno *fno, const nn_op *op) {
    const nn_value *values = fno->run.program.values, *y = &values[op->out[0]];
    return copy_channels(fno, &values[op->in[NN_X]], op->first, y, 0, y->channels);
}

static int back(nn_program *p, const nn_op *op, nn_request ask) {
    nn_op slice = nn_op_make(NN_SLICE);
    slice.first = ask.input == NN_X ? 0 : p->values[op->in[NN_X]].channels;
    slice.in[NN_X] = ask.dy;
    slice.out[0] = nn_value_like(p, op->in[ask.input]);
    return nn_op_add(p, slice);
}

const nn_kind_row nn_kind_concat = {
    .name = "concatenation", .slot = NN_SLOT(box_copy), .run = run_concat, .back = back};
const nn_kind_row nn_kind_slice = {
    .name = "slice of channels", .slot = NN_SLOT(box_copy), .run = run_slice};

int nn_add_concat(nn_program *p, int x, int second) {
    nn_op op = nn_op_on(p, NN_CONCAT, x);
    op.in[NN_SECOND] = second;
    p->values[op.out[0]].channels += p->values[second].channels;
    return nn_op_add(p, op);
}
