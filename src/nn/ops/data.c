/* The two ends of a network: the data, and pairs of complex data to planes and back. */
#include <string.h>

#include "base/minmax.h"
#include "nn/ops.h"

/* ---- input: x as given ---- */

static tg_status run_input(tg_fno *fno, const nn_op *op) {
    return nn_bring(fno, fno->run.call.x, nn_data(fno, op->out[0]));
}

const nn_kind_row nn_kind_input = {.name = "input", .run = run_input};

/* ---- dL/dx, for the caller ---- */

static tg_status run_input_gradient(tg_fno *fno, const nn_op *op) {
    const nn_value *dx = &fno->run.program.values[op->in[NN_X]];
    const size_t bytes = (size_t)nn_numbers(fno, op->in[NN_X]) * tg_dtype_size(dx->dtype);
    void *out = fno->run.call.dx;
    return out ? fno->be->ops->copy(fno->be, out, dx->data, bytes) : TG_OK;
}

const nn_kind_row nn_kind_input_gradient = {.name = "input gradient", .run = run_input_gradient};

void nn_add_input_gradient(nn_program *p, int dx) {
    nn_op op = nn_op_make(NN_INPUT_GRADIENT);
    op.in[NN_X] = dx;
    nn_op_add(p, op);
}

int nn_add_input(nn_program *p) {
    nn_op op = nn_op_make(NN_INPUT);
    p->input = op.out[0] = nn_value_add(p, (nn_value){.role = NN_DATA,
                                                      .planes = p->model->planes,
                                                      .channels = p->model->config.in_channels,
                                                      .points = p->domain.points,
                                                      .grid = p->domain.grid,
                                                      .before_act = -1});
    if (nn_is_split(&p->model->split)) {
        nn_value_set_grid(p, p->input, p->domain.grid);
    }
    return nn_op_add(p, op);
}

/* ---- embed: to planes, with coordinates, which are real ---- */

/* Copies pairs to the data channels of both planes, sample by sample. */
static tg_status split_input(tg_fno *fno, const nn_op *op) {
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const nn_value *y = &fno->run.program.values[op->out[0]];
    const int64_t data = x->channels * x->points, sample = y->channels * y->points;
    for (int64_t b = 0; b < fno->run.batch; b++) {
        const tg_planes split = {x->dtype,
                                 data,
                                 {nn_element(x->dtype, x->data, 2 * b * data)},
                                 {nn_element(y->dtype, nn_plane(fno, op->out[0], 0), b * sample),
                                  nn_element(y->dtype, nn_plane(fno, op->out[0], 1), b * sample)}};
        TG_CALL(fno->be->ops->planes(fno->be, &split));
    }
    return TG_OK;
}

static tg_status run_embed(tg_fno *fno, const nn_op *op) {
    const nn_model *model = &fno->model;
    const nn_domain *domain = &fno->run.program.domain;
    const nn_rows slab = nn_slab_of(model, domain, domain->grid, model->split.part);
    const bool pairs = model->planes == 2;
    TG_CALL(pairs ? split_input(fno, op) : TG_OK);
    for (int q = 0; q < model->planes && model->embedded_channels > model->config.in_channels;
         q++) {
        tg_embed embed = {.dtype = model->config.dtype,
                          .batch = fno->run.batch,
                          .channels = model->config.in_channels,
                          .ndim = model->config.n_dim,
                          .first = slab.first,
                          .whole = domain->grid.size[0],
                          .unit = q == 0 ? 1.0 : 0.0,
                          .x = pairs ? NULL : nn_data(fno, op->in[NN_X]),
                          .y = nn_plane(fno, op->out[0], q)};
        memcpy(embed.grid, domain->grid.size, sizeof embed.grid);
        embed.grid[0] = slab.count;
        TG_CALL(fno->be->ops->grid_embed(fno->be, &embed));
    }
    return TG_OK;
}

/* dx is dy without the coordinates: its data channels, as pairs if x has them. */
static tg_status run_embed_back(tg_fno *fno, const nn_op *op) {
    const nn_value *dy = &fno->run.program.values[op->in[NN_X]];
    const nn_value *dx = &fno->run.program.values[op->out[0]];
    const int64_t data = dx->channels * dx->points, sample = dy->channels * dy->points;
    const int planes = fno->model.planes;
    for (int64_t b = 0; b < fno->run.batch; b++) {
        const void *re = nn_element(dy->dtype, nn_plane(fno, op->in[NN_X], 0), b * sample);
        void *to = nn_element(dx->dtype, dx->data, planes * b * data);
        const tg_planes join = {
            dx->dtype,
            data,
            {re, nn_element(dy->dtype, nn_plane(fno, op->in[NN_X], planes - 1), b * sample)},
            {to}};
        TG_CALL(planes == 1
                    ? fno->be->ops->copy(fno->be, to, re, (size_t)data * tg_dtype_size(dx->dtype))
                    : fno->be->ops->planes(fno->be, &join));
    }
    return TG_OK;
}

const nn_kind_row nn_kind_embed = {.name = "embed",
                                   .slot = NN_SLOT(grid_embed),
                                   .run = run_embed,
                                   .back = nn_back_of_dy,
                                   .backward = NN_EMBED_BACK};
const nn_kind_row nn_kind_embed_back = {.name = "backward of an embedding", .run = run_embed_back};

int nn_add_embed(nn_program *p, int x) {
    if (p->model->planes == 1 && p->model->embedded_channels == p->model->config.in_channels) {
        return x; /* unchanged */
    }
    nn_op op = nn_op_on(p, NN_EMBED, x);
    p->values[op.out[0]].channels = p->model->embedded_channels;
    return nn_op_add(p, op);
}

/* ---- join and split: planes to pairs and back ---- */

static tg_status run_planes(tg_fno *fno, const nn_op *op) {
    const bool joins = op->kind == NN_JOIN;
    const int x = op->in[NN_X], y = op->out[0];
    const nn_value *v = &fno->run.program.values[joins ? x : y];
    const tg_planes call = {v->dtype,
                            fno->run.batch * v->channels * v->points,
                            {nn_data(fno, x), joins ? nn_plane(fno, x, 1) : NULL},
                            {nn_data(fno, y), joins ? NULL : nn_plane(fno, y, 1)}};
    return fno->be->ops->planes(fno->be, &call);
}

const nn_kind_row nn_kind_join = {.name = "join",
                                  .slot = NN_SLOT(planes),
                                  .run = run_planes,
                                  .back = nn_back_of_dy,
                                  .backward = NN_SPLIT};
const nn_kind_row nn_kind_split = {.name = "split", .slot = NN_SLOT(planes), .run = run_planes};

int nn_add_join(nn_program *p, int x) {
    if (p->model->planes == 1) {
        return x;
    }
    nn_op op = nn_op_on(p, NN_JOIN, x);
    return nn_op_add(p, op);
}

/* ---- target and loss ---- */

static tg_status run_target(tg_fno *fno, const nn_op *op) {
    return nn_bring(fno, fno->run.call.target, nn_data(fno, op->out[0]));
}

/* x of the samples in flight, copied here if the caller has it elsewhere: the network's own copy
 * may be overwritten by now. */
static tg_status find_x(tg_fno *fno, const void **out) {
    const tg_tensor *x = fno->run.call.x;
    nn_loss_work *work = &fno->run.loss_work;
    const size_t sample = tg_tensor_bytes(x) / (size_t)x->shape.dim[0];
    if (x->place == fno->be->ops->place) {
        *out = (const char *)x->data + (size_t)fno->run.first * sample;
        return TG_OK;
    }
    if (!work->x) {
        work->x = fno->be->ops->alloc(fno->be, TG_MEM_WORKSPACE, (size_t)work->samples * sample);
    }
    *out = work->x;
    return work->x ? nn_bring(fno, x, work->x) : TG_E_MEMORY;
}

/* The residual of the samples in flight. */
static tg_status add_physics(tg_fno *fno, const void *pred, const void *target, void *dpred) {
    const nn_call *call = &fno->run.call;
    nn_loss_work *work = &fno->run.loss_work;
    nn_physics physics = {.config = call->loss_config,
                          .dtype = call->x->dtype,
                          .batch = fno->run.batch,
                          .in_channels = fno->model.config.in_channels,
                          .pred = pred,
                          .target = target,
                          .value = call->loss,
                          .grad_scale = call->grad_scale,
                          .dpred = dpred};
    memcpy(physics.grid, fno->run.program.domain.grid.size, sizeof physics.grid);
    TG_CALL(find_x(fno, &physics.x));
    TG_CALL(nn_residual_prepare(fno->be, &physics, work->samples, &work->residual));
    return nn_physics_add(fno->be, &work->residual, &physics);
}

static tg_status run_loss(tg_fno *fno, const nn_op *op) {
    const nn_call *call = &fno->run.call;
    tg_shape shape = call->target->shape;
    shape.dim[0] = fno->run.batch;
    if (fno->model.config.architecture == TG_ARCHITECTURE_GINO) { /* one norm of a sample */
        shape = (tg_shape){3, {shape.dim[0], 1, shape.dim[1] * shape.dim[2]}};
    }
    if (fno->run.first == 0) {
        TG_CALL(fno->be->ops->fill(fno->be, TG_F64, 1, (tg_scalar){0}, call->loss));
    }
    const void *pred = nn_data(fno, op->in[NN_X]), *target = nn_data(fno, op->in[NN_DY]);
    void *dpred = nn_data(fno, op->out[0]);
    if (nn_is_split(&fno->model.split)) {
        fno->run.loss_work.slab = (nn_loss_slab){
            &fno->model.split, fno->run.program.domain.grid.size[0], nn_data(fno, op->scratch[0])};
    }
    TG_CALL(nn_loss(fno->be, call->loss_config, call->target->dtype, &shape, pred, target,
                    &fno->run.loss_work, call->loss, call->grad_scale, dpred));
    if (call->loss_config->physics != TG_PHYSICS_NONE) {
        TG_CALL(add_physics(fno, pred, target, dpred));
    }
    return TG_OK;
}

/* Of a split network: for any norm. */
static void loss_scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    (void)be;
    const nn_value *y = &p->values[op->in[NN_X]];
    tg_shape shape = {.ndim = 2 + p->model->config.n_dim, .dim = {p->batch, y->channels}};
    memcpy(shape.dim + 2, p->domain.grid.size, sizeof p->domain.grid.size);
    const tg_dtype dtype = y->planes == 2 ? tg_dtype_complex(y->dtype) : y->dtype;
    bytes[0] = nn_is_split(&p->model->split) ? tg_loss_squares_bytes(dtype, &shape) : 0;
}

const nn_kind_row nn_kind_target = {.name = "target", .run = run_target};
const nn_kind_row nn_kind_loss = {
    .name = "loss", .slot = NN_SLOT(loss), .run = run_loss, .scratch = loss_scratch};

void nn_add_loss(nn_program *p) {
    nn_op target = nn_op_make(NN_TARGET), loss = nn_op_make(NN_LOSS);
    nn_scope(p, 0, NULL);
    p->phase = nn_phase_named(p, "loss", false);
    p->target = target.out[0] = nn_value_like(p, p->output);
    nn_op_add(p, target);
    loss.in[NN_X] = p->output;
    loss.in[NN_DY] = p->target;
    p->dout = loss.out[0] = nn_value_like(p, p->output);
    nn_op_add(p, loss);
}
