/* Copies of boxes: into the padded grid, with zeros around, and out of it, each the backward of the
 * other; concatenation of channels. */
#include <string.h>

#include "nn/ops.h"

static tg_status copy_box(tg_fno *fno, const nn_op *op) {
    const bool pad = op->kind == NN_PAD;
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
    const nn_model *model = &fno->model;
    const nn_domain *domain = &fno->run.program.domain;
    box.size[0] = nn_slab_of(model, domain, inner->grid, model->split.part).count;
    box.src_dim[0] = nn_slab_of(model, domain, x->grid, model->split.part).count;
    box.dst_dim[0] = nn_slab_of(model, domain, y->grid, model->split.part).count;
    if (model->split.part > 0) { /* the zeros before the data are the first part's */
        box.src_at[0] = box.dst_at[0] = 0;
    }
    return fno->be->ops->box_copy(fno->be, &box);
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
    .name = "pad", .slot = NN_SLOT(box_copy), .run = copy_box, .back = back};
const nn_kind_row nn_kind_crop = {
    .name = "crop", .slot = NN_SLOT(box_copy), .run = copy_box, .back = back};

int nn_add_pad(nn_program *p, int x) {
    const int y = add(p, NN_PAD, x, nn_padded(p->model, p->values[x].grid));
    return y == x ? x : nn_boundary(p, y); /* lifting again is cheap, unless padding follows */
}

int nn_add_crop(nn_program *p, nn_grid grid, int x) {
    return add(p, NN_CROP, x, grid);
}

/* Channels of two values side by side, and a part of a value's channels.
 *
 *   CONCAT  y = x, and after its channels those of SECOND
 *   SLICE   dx = the channels of dy from op.first on, as many as dx has */

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

int nn_back_part(nn_program *p, const nn_op *op, nn_request ask) {
    nn_op slice = nn_op_make(NN_SLICE);
    slice.first = ask.input == NN_X ? 0 : p->values[op->in[NN_X]].channels;
    slice.in[NN_X] = ask.dy;
    slice.out[0] = nn_value_like(p, op->in[ask.input]);
    return nn_op_add(p, slice);
}

const nn_kind_row nn_kind_concat = {
    .name = "concatenation", .slot = NN_SLOT(box_copy), .run = run_concat, .back = nn_back_part};
const nn_kind_row nn_kind_slice = {
    .name = "slice of channels", .slot = NN_SLOT(box_copy), .run = run_slice};

int nn_add_concat(nn_program *p, int x, int second) {
    nn_op op = nn_op_on(p, NN_CONCAT, x);
    op.in[NN_SECOND] = second;
    p->values[op.out[0]].channels += p->values[second].channels;
    return nn_op_add(p, op);
}
