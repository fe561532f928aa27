/* Into the padded grid, with zeros around, and out of it: each is the backward of the other. */
#include <string.h>

#include "nn/ops.h"

static tg_status copy_box(tg_fno *fno, const nn_op *op, bool pad) {
    const bool both = fno->model.config.domain_padding_mode == TG_PADDING_SYMMETRIC;
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const nn_value *y = &fno->run.program.values[op->out[0]];
    const nn_value *inner = pad ? x : y, *outer = pad ? y : x;
    tg_box box = {.dtype = x->dtype,
                  .ndim = fno->model.config.n_dim,
                  .howmany = x->planes * fno->run.batch * x->channels,
                  .clear = pad,
                  .src = x->data,
                  .dst = nn_data(fno, op->out[0])};
    for (int d = 0; d < box.ndim; d++) {
        const int64_t before = both ? (outer->grid.size[d] - inner->grid.size[d]) / 2 : 0;
        box.size[d] = inner->grid.size[d];
        box.src_dim[d] = x->grid.size[d];
        box.src_at[d] = pad ? 0 : before;
        box.dst_dim[d] = y->grid.size[d];
        box.dst_at[d] = pad ? before : 0;
    }
    return fno->be->ops->box_copy(fno->be, &box);
}

static tg_status run_pad(tg_fno *fno, const nn_op *op) {
    return copy_box(fno, op, true);
}

static tg_status run_crop(tg_fno *fno, const nn_op *op) {
    return copy_box(fno, op, false);
}

/* x itself if it is on that grid. */
static int add(nn_program *p, nn_kind kind, int x, nn_grid grid) {
    if (memcmp(p->values[x].grid.size, grid.size, sizeof grid.size) == 0) {
        return x;
    }
    nn_op op = nn_op_on(p, kind, x);
    nn_value_set_grid(p, op.out[0], grid);
    return nn_op_add(p, op);
}

static int back(nn_program *p, const nn_op *op, nn_request ask) {
    return add(p, op->kind == NN_PAD ? NN_CROP : NN_PAD, ask.dy, p->values[op->in[NN_X]].grid);
}

const nn_kind_row nn_kind_pad = {
    .name = "pad", .slot = NN_SLOT(box_copy), .run = run_pad, .back = back};
const nn_kind_row nn_kind_crop = {
    .name = "crop", .slot = NN_SLOT(box_copy), .run = run_crop, .back = back};

int nn_add_pad(nn_program *p, int x) {
    const int y = add(p, NN_PAD, x, nn_padded(p->model, p->values[x].grid));
    return y == x ? x : nn_boundary(p, y); /* lifting again is cheap, unless padding follows */
}

int nn_add_crop(nn_program *p, nn_grid grid, int x) {
    return add(p, NN_CROP, x, grid);
}
