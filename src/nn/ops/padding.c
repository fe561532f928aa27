/* Into the padded grid, with zeros around, and out of it: each is the backward of the other. */
#include "nn/ops.h"

static tg_status copy_box(tg_fno *fno, const nn_op *op, bool pad) {
    const nn_geometry *g = &fno->run.program.geometry;
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    tg_box box = {.dtype = x->dtype,
                  .ndim = fno->model.config.n_dim,
                  .howmany = x->planes * fno->run.batch * x->channels,
                  .clear = pad,
                  .src = x->data,
                  .dst = nn_data(fno, op->out[0])};
    for (int d = 0; d < box.ndim; d++) {
        box.size[d] = g->grid[d];
        box.src_dim[d] = pad ? g->grid[d] : g->padded[d];
        box.src_at[d] = pad ? 0 : g->pad_before[d];
        box.dst_dim[d] = pad ? g->padded[d] : g->grid[d];
        box.dst_at[d] = pad ? g->pad_before[d] : 0;
    }
    return fno->be->ops->box_copy(fno->be, &box);
}

static tg_status run_pad(tg_fno *fno, const nn_op *op) {
    return copy_box(fno, op, true);
}

static tg_status run_crop(tg_fno *fno, const nn_op *op) {
    return copy_box(fno, op, false);
}

static int add(nn_program *p, nn_kind kind, int x, int64_t points) {
    nn_op op = nn_op_on(p, kind, x);
    p->values[op.out[0]].points = points;
    return nn_op_add(p, op);
}

static int back(nn_program *p, const nn_op *op, nn_request ask) {
    return add(p, op->kind == NN_PAD ? NN_CROP : NN_PAD, ask.dy, p->values[op->in[NN_X]].points);
}

const nn_kind_row nn_kind_pad = {
    .name = "pad", .slot = NN_SLOT(box_copy), .run = run_pad, .back = back};
const nn_kind_row nn_kind_crop = {
    .name = "crop", .slot = NN_SLOT(box_copy), .run = run_crop, .back = back};

int nn_add_pad(nn_program *p, int x) {
    return p->geometry.pads ? add(p, NN_PAD, x, p->geometry.padded_pixels) : x;
}

int nn_add_crop(nn_program *p, int x) {
    return p->geometry.pads ? add(p, NN_CROP, x, p->geometry.pixels) : x;
}
