/* Between activations and spectra (batch, C, modes) of the kept modes, and the product with a
 * spectral weight there.
 *
 *   TRANSFORM        spectrum = scale F(x), x through the stabilizer first if it is on
 *   INVERSE          y = scale F^-1(spectrum)
 *   STABILIZER_BACK  dx *= stabilizer'(act(x))
 *   CONTRACT         product[b,o,k] = sum_i spectrum[b,i,k] weight[i,o,k], or the adjoint
 *
 * They also join and split pairs, and move the modes that a grid keeps to their places in the
 * spectrum. The host works image by image, which stays in the caches; a device takes all
 * images of the batch at once. */
#include <math.h>
#include <string.h>

#include "base/minmax.h"
#include "nn/ops.h"

/* The two parts of the scratch. */
enum { IMAGE, KEPT };

/* Image b of a value's plane q. */
static void *image_at(const tg_fno *fno, int value, int q, int64_t b) {
    const nn_value *v = &fno->run.program.values[value];
    return nn_element(v->dtype, nn_plane(fno, value, q), b * v->channels * v->points);
}

/* Images from number b on that one call takes. */
static int64_t images_from(const tg_fno *fno, int64_t b) {
    const int64_t left = fno->run.batch - b;
    return left < fno->run.program.images ? left : fno->run.program.images;
}

/* Copies between the modes that the grid keeps and the spectrum's, span by span. */
static tg_status window(const tg_fno *fno, const nn_transform *t, const nn_value *spectrum,
                        bool inwards, int64_t images, const void *src, void *dst) {
    tg_box box = {.dtype = spectrum->dtype,
                  .ndim = t->desc.ndim,
                  .howmany = images * spectrum->channels * t->slabs,
                  .clear = true,
                  .src = src,
                  .dst = dst};
    for (int corner = 0; corner < 1 << box.ndim; corner++) {
        bool is_empty = false;
        for (int d = 0; d < box.ndim; d++) {
            const nn_span *span = &t->span[d][corner >> d & 1];
            box.size[d] = span->count;
            box.src_dim[d] = inwards ? t->desc.kept[d] : t->modes[d];
            box.src_at[d] = inwards ? span->kept : span->mode;
            box.dst_dim[d] = inwards ? t->modes[d] : t->desc.kept[d];
            box.dst_at[d] = inwards ? span->mode : span->kept;
            is_empty = is_empty || span->count == 0;
        }
        TG_CALL(is_empty ? TG_OK : fno->be->ops->box_copy(fno->be, &box));
        box.clear = box.clear && is_empty; /* by the first box only */
    }
    return TG_OK;
}

static tg_fft_weight weighting(const nn_op *op) {
    return op->is_adjoint ? TG_FFT_ADJOINT : TG_FFT_PLAIN;
}

static tg_status run_transform(tg_fno *fno, const nn_op *op) {
    const tg_backend_ops *ops = fno->be->ops;
    const int x = op->in[NN_X], spectrum = op->out[0];
    const nn_value *v = &fno->run.program.values[x];
    const nn_transform *t = &fno->run.program.transforms[op->transform];
    const bool pairs = v->planes == 2;
    void *work = nn_data(fno, op->scratch[IMAGE]);
    for (int64_t b = 0, images; b < fno->run.batch; b += images) {
        images = images_from(fno, b);
        const int64_t size = images * v->channels * v->points;
        const void *image = image_at(fno, x, 0, b);
        if (pairs) {
            const tg_planes join = {v->dtype, size, {image, image_at(fno, x, 1, b)}, {work}};
            TG_CALL(ops->planes(fno->be, &join));
            image = work;
        }
        if (op->is_stabilized) {
            const tg_activation tanh = {v->dtype, TG_ACT_TANH, pairs ? 2 * size : size,
                                        image,    NULL,        work};
            TG_CALL(ops->activate(fno->be, &tanh));
            image = work;
        }
        void *whole = image_at(fno, spectrum, 0, b);
        void *kept = t->is_windowed ? nn_data(fno, op->scratch[KEPT]) : whole;
        TG_CALL(ops->fft(fno->be, fno->run.fft[op->transform], TG_FFT_FORWARD,
                         images * v->channels * t->slabs, weighting(op), op->scale, image, kept));
        TG_CALL(t->is_windowed
                    ? window(fno, t, &fno->run.program.values[spectrum], true, images, kept, whole)
                    : TG_OK);
    }
    return TG_OK;
}

static tg_status run_inverse(tg_fno *fno, const nn_op *op) {
    const tg_backend_ops *ops = fno->be->ops;
    const int spectrum = op->in[NN_X], y = op->out[0];
    const nn_value *v = &fno->run.program.values[y];
    const nn_transform *t = &fno->run.program.transforms[op->transform];
    const bool pairs = v->planes == 2;
    for (int64_t b = 0, images; b < fno->run.batch; b += images) {
        images = images_from(fno, b);
        const void *kept = image_at(fno, spectrum, 0, b);
        if (t->is_windowed) {
            void *narrow = nn_data(fno, op->scratch[KEPT]);
            TG_CALL(
                window(fno, t, &fno->run.program.values[spectrum], false, images, kept, narrow));
            kept = narrow;
        }
        void *image = pairs ? nn_data(fno, op->scratch[IMAGE]) : image_at(fno, y, 0, b);
        TG_CALL(ops->fft(fno->be, fno->run.fft[op->transform], TG_FFT_INVERSE,
                         images * v->channels * t->slabs, weighting(op), op->scale, kept, image));
        if (pairs) {
            const tg_planes split = {v->dtype,
                                     images * v->channels * v->points,
                                     {image},
                                     {image_at(fno, y, 0, b), image_at(fno, y, 1, b)}};
            TG_CALL(ops->planes(fno->be, &split));
        }
    }
    return TG_OK;
}

static tg_status run_stabilizer_back(tg_fno *fno, const nn_op *op) {
    const tg_backend_ops *ops = fno->be->ops;
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    void *activated = nn_data(fno, op->scratch[IMAGE]);
    for (int q = 0; q < x->planes; q++) {
        for (int64_t b = 0, images; b < fno->run.batch; b += images) {
            images = images_from(fno, b);
            const int64_t size = images * x->channels * x->points;
            void *gradient = image_at(fno, op->out[0], q, b);
            const void *input = image_at(fno, op->in[NN_X], q, b);
            const tg_activation act = {x->dtype, op->act, size, input, NULL, activated};
            const tg_activation back = {x->dtype, TG_ACT_TANH, size, activated, gradient, gradient};
            TG_CALL(ops->activate(fno->be, &act));
            TG_CALL(ops->activate(fno->be, &back));
        }
    }
    return TG_OK;
}

/* The value on the grid sets the size of the first part. */
static void scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    (void)be;
    const bool outwards = op->kind == NN_INVERSE;
    const nn_transform *t = &p->transforms[op->transform];
    const nn_value *v = &p->values[outwards ? op->out[0] : op->in[NN_X]];
    if (v->planes == 2 || op->is_stabilized || op->kind == NN_STABILIZER_BACK) {
        bytes[IMAGE] =
            (size_t)(p->images * v->planes * v->channels * v->points) * tg_dtype_size(v->dtype);
    }
    if (op->kind != NN_STABILIZER_BACK && t->is_windowed) {
        const nn_value *spectrum = &p->values[outwards ? op->in[NN_X] : op->out[0]];
        bytes[KEPT] = (size_t)(p->images * spectrum->channels * t->slabs * t->kept_count) *
                      tg_dtype_size(spectrum->dtype);
    }
}

/* 5 N log2 N for N complex points, half of that for real ones. */
double nn_transform_flops(const nn_value *image) {
    const double points = (double)image->points;
    return 2.5 * image->planes * (double)image->channels * points * log2(points);
}

static double transform_flops(const nn_program *p, const nn_op *op) {
    const nn_value *v = &p->values[op->kind == NN_INVERSE ? op->out[0] : op->in[NN_X]];
    return (double)p->batch * nn_transform_flops(v);
}

/* ---- builders and rules ---- */

static int add_transform(nn_program *p, int transform, int x, double scale, bool is_adjoint,
                         bool is_stabilized) {
    nn_op op = nn_op_on(p, NN_TRANSFORM, x);
    op.transform = transform;
    op.scale = scale;
    op.is_adjoint = is_adjoint;
    op.is_stabilized = is_stabilized;
    nn_value *v = &p->values[op.out[0]];
    v->role = NN_SPECTRUM;
    v->planes = 1;
    v->points = p->transforms[transform].slabs * p->transforms[transform].mode_count;
    v->transform = transform;
    v->is_transient = nn_is_split(&p->model->split); /* until the first dimension is transformed */
    return nn_op_add(p, op);
}

static int add_inverse(nn_program *p, int transform, nn_grid grid, int spectrum, double scale,
                       bool is_adjoint) {
    nn_op op = nn_op_on(p, NN_INVERSE, spectrum);
    op.transform = transform;
    op.scale = scale;
    op.is_adjoint = is_adjoint;
    nn_value *v = &p->values[op.out[0]];
    v->role = NN_ACTIVATION;
    v->planes = p->model->planes;
    nn_value_set_grid(p, op.out[0], grid);
    return nn_op_add(p, op);
}

int nn_add_transform(nn_program *p, const int64_t *modes, int x) {
    const nn_value *v = &p->values[x];
    const double points = (double)tg_product(p->model->config.n_dim, v->grid.size);
    const int transform = nn_transform_on(p, v->grid, modes, v->channels);
    const int y = add_transform(p, transform, x, 1.0 / points, false,
                                p->model->config.stabilizer == TG_STABILIZER_TANH);
    return nn_is_split(&p->model->split) ? nn_add_to_modes(p, transform, y) : y;
}

int nn_add_inverse_on(nn_program *p, nn_grid grid, int spectrum) {
    const nn_value *v = &p->values[spectrum];
    const nn_transform from = p->transforms[v->transform];
    nn_grid there = {{0}};
    if (nn_is_split(&p->model->split)) { /* the grid is the same */
        const int rows = nn_add_from_modes(p, v->transform, spectrum);
        return add_inverse(p, p->values[rows].transform, grid, rows, 1.0, false);
    }
    memcpy(there.size, from.desc.grid, sizeof there.size);
    return add_inverse(p, nn_transform_between(p, there, grid, from.modes, v->channels), grid,
                       spectrum, 1.0, false);
}

int nn_add_filtered(nn_program *p, const int64_t *modes, nn_grid grid, int x) {
    const nn_value v = p->values[x];
    const int forward = nn_transform_on(p, v.grid, modes, v.channels);
    const int inverse = nn_transform_on(p, grid, modes, v.channels);
    const int spectrum = add_transform(p, forward, x, 1.0 / (double)v.points, false, false);
    return add_inverse(p, inverse, grid, spectrum, 1.0, false);
}

static int back_transform(nn_program *p, const nn_op *op, nn_request ask) {
    if (!ask.wanted) {
        return -1;
    }
    const nn_grid grid = p->values[op->in[NN_X]].grid;
    const int dx = add_inverse(p, op->transform, grid, ask.dy, op->scale, true);
    if (!op->is_stabilized) {
        return dx;
    }
    nn_op slope = nn_op_make(NN_STABILIZER_BACK);
    slope.in[NN_X] = op->in[NN_X];
    slope.in[NN_SUM] = dx;
    slope.out[0] = nn_value_like(p, dx);
    return nn_op_add(p, slope);
}

static int back_inverse(nn_program *p, const nn_op *op, nn_request ask) {
    return ask.wanted ? add_transform(p, op->transform, ask.dy, op->scale, true, false) : -1;
}

const nn_kind_row nn_kind_transform = {.name = "transform",
                                       .slot = NN_SLOT(fft),
                                       .run = run_transform,
                                       .back = back_transform,
                                       .scratch = scratch,
                                       .flops = transform_flops};
const nn_kind_row nn_kind_inverse = {.name = "inverse transform",
                                     .slot = NN_SLOT(fft),
                                     .run = run_inverse,
                                     .back = back_inverse,
                                     .scratch = scratch,
                                     .flops = transform_flops};
const nn_kind_row nn_kind_stabilizer_back = {.name = "backward of a stabilizer",
                                             .slot = NN_SLOT(activate),
                                             .loads = true,
                                             .run = run_stabilizer_back,
                                             .scratch = scratch};

/* ---- the product with the weight ---- */

static tg_status run_contract(tg_fno *fno, const nn_op *op) {
    const nn_value *x = &fno->run.program.values[op->in[NN_X]];
    const tg_spectral call = {.dtype = tg_dtype_complex(fno->model.config.dtype),
                              .adjoint = op->is_adjoint,
                              .batch = fno->run.batch,
                              .in = op->conv->in,
                              .out = op->conv->out,
                              .modes = x->points,
                              .weight = nn_weight(fno, op->conv->weight),
                              .src = nn_data(fno, op->in[NN_X]),
                              .dst = nn_data(fno, op->out[0]),
                              .weight_store = fno->model.stores.weight,
                              .store = nn_store(&fno->run.program, op->in[NN_X])};
    return fno->be->ops->spectral_contract(fno->be, &call);
}

static double contract_flops(const nn_program *p, const nn_op *op) {
    const nn_value *x = &p->values[op->in[NN_X]], *y = &p->values[op->out[0]];
    return 8.0 * (double)p->batch * (double)x->channels * (double)y->channels * (double)x->points;
}

static int add_contract(nn_program *p, const nn_conv *conv, bool is_adjoint, int x) {
    nn_op op = nn_op_on(p, NN_CONTRACT, x);
    op.conv = conv;
    op.reads = conv->weight;
    op.read_count = 1;
    op.is_adjoint = is_adjoint;
    p->values[op.out[0]].is_transient = true;
    p->values[op.out[0]].channels = is_adjoint ? conv->in : conv->out;
    return nn_op_add(p, op);
}

int nn_add_contract(nn_program *p, const nn_conv *conv, int spectrum) {
    return add_contract(p, conv, false, spectrum);
}

static int back_contract(nn_program *p, const nn_op *op, nn_request ask) {
    return ask.wanted ? add_contract(p, op->conv, true, ask.dy) : -1;
}

const nn_kind_row nn_kind_contract = {.name = "contraction",
                                      .slot = NN_SLOT(spectral_contract),
                                      .at_end = NN_HAND_OVER_FACTORS,
                                      .run = run_contract,
                                      .back = back_contract,
                                      .flops = contract_flops};
