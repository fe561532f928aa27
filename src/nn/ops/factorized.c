/* The product with a factorized spectral weight (factors.h), and the gradients of its factors.
 *
 *   FACTORIZED    y = map back (x' W'), x' = map(x), W' made by the chain; or the adjoint of it
 *   FACTORS_BACK  at the end of backward, from x and dy: gradients of maps, core and chain
 *
 * Nothing of this is kept between two ops: what is in between is small and soon made again. */
#include "nn/ops.h"

/* ---- the scratch of an op: what it holds, told and found by the same lines ---- */

typedef struct room {
    const nn_program *p;
    char *base; /* NULL: only counted */
    size_t used;
} room;

static void *take(room *r, tg_dtype dtype, int64_t numbers) {
    char *at = r->base ? r->base + r->used : NULL;
    const size_t bytes = (size_t)numbers * tg_dtype_size(dtype);
    r->used += (bytes + TG_ALIGNMENT - 1) / TG_ALIGNMENT * TG_ALIGNMENT;
    return at;
}

/* Arrays of complex numbers in full width. */
typedef struct arrays {
    tg_dtype dtype;
    int64_t batch, channels, modes;
    void *x, *y;                 /* copies of 16-bit spectra */
    void *made[TG_FNO_MAX_DIMS]; /* by the links of the chain; the last is W' */
    void *inner_x, *inner_y;     /* (batch, inner, modes) */
    void *gradient[2];           /* along the chain, taking turns */
    void *inner_dx;              /* FACTORS_BACK: dL/dx', or y' */
} arrays;

static arrays arrays_of(room *r, const nn_op *op, int64_t batch) {
    const nn_program *p = r->p;
    const nn_factors *f = &p->model->factors;
    const int x = op->in[NN_X], y = op->kind == NN_FACTORIZED ? op->out[0] : op->in[NN_DY];
    const bool is_back = op->kind == NN_FACTORS_BACK;
    arrays a = {.dtype = tg_dtype_complex(p->model->config.dtype),
                .batch = batch,
                .channels = p->values[x].channels,
                .modes = p->model->mode_count};
    const int64_t most = f->inner_in > f->inner_out ? f->inner_in : f->inner_out;
    const int64_t samples = is_back ? p->whole : p->batch; /* at the end, of all parts */
    const int64_t spectrum = samples * a.channels * a.modes, inner = samples * most * a.modes;
    a.x = p->values[x].dtype != a.dtype ? take(r, a.dtype, spectrum) : NULL;
    a.y = p->values[y].dtype != a.dtype ? take(r, a.dtype, spectrum) : NULL;
    a.inner_x = f->in >= 0 ? take(r, a.dtype, inner) : NULL;
    a.inner_y = f->out >= 0 ? take(r, a.dtype, inner) : NULL;
    a.inner_dx = is_back ? take(r, a.dtype, inner) : NULL;
    int64_t largest = tg_shape_numel(&f->shape[f->core]);
    for (int i = 0; i < f->links; i++) {
        const int64_t numbers = nn_link_numbers(&f->link[i]);
        a.made[i] = take(r, a.dtype, numbers);
        largest = numbers > largest ? numbers : largest;
    }
    for (int i = 0; i < 2 && is_back; i++) {
        a.gradient[i] = take(r, a.dtype, largest);
    }
    return a;
}

static void scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    (void)be;
    room r = {.p = p};
    (void)arrays_of(&r, op, p->batch);
    bytes[0] = r.used;
}

static arrays arrays_at(const tg_fno *fno, const nn_op *op) {
    room r = {.p = &fno->run.program, .base = nn_data(fno, op->scratch[0])};
    return arrays_of(&r, op, fno->run.batch);
}

/* A spectrum in full width. */
static tg_status widen(const tg_fno *fno, const arrays *a, int value, void *copy,
                       const void **out) {
    *out = copy ? copy : nn_data(fno, value);
    return copy ? fno->be->ops->convert(fno->be, a->batch * a->channels * a->modes,
                                        fno->run.program.values[value].dtype, nn_data(fno, value),
                                        a->dtype, copy)
                : TG_OK;
}

/* ---- matrix products ---- */

/* One side of a product: a matrix as it lies. */
typedef struct side {
    tg_op op;
    const void *at;
    int64_t ld, stride;
} side;

/* C of the whole batch, `stride_c` apart; 0: their sum. */
static tg_status multiply(const tg_fno *fno, tg_dtype dtype, int64_t batch, int64_t m, int64_t n,
                          int64_t k, side a, side b, void *c, int64_t ldc, int64_t stride_c) {
    const tg_gemm gemm = {.dtype = dtype,
                          .op_a = a.op,
                          .op_b = b.op,
                          .m = m,
                          .n = n,
                          .k = k,
                          .alpha = {1.0, 0.0},
                          .a = a.at,
                          .lda = a.ld,
                          .stride_a = a.stride,
                          .b = b.at,
                          .ldb = b.ld,
                          .stride_b = b.stride,
                          .c = c,
                          .ldc = ldc,
                          .stride_c = stride_c,
                          .batch = batch};
    return fno->be->ops->gemm(fno->be, &gemm);
}

/* Channels of every sample through a map (rows, columns) that lies as (.., inner): to (to, modes)
 * from (from, modes). */
static tg_status map(const tg_fno *fno, const arrays *a, int param, tg_op how, int64_t inner,
                     int64_t from, int64_t to, const void *x, void *y) {
    return multiply(fno, a->dtype, a->batch, to, a->modes, from,
                    (side){how, nn_weight(fno, param), inner, 0},
                    (side){TG_OP_N, x, a->modes, from * a->modes}, y, a->modes, to * a->modes);
}

/* W', or what the first `links` links of the chain have made. */
static const void *made_by(const tg_fno *fno, const nn_op *op, const arrays *a, int links) {
    return links > 0 ? a->made[links - 1] : nn_weight(fno, op->weight + fno->model.factors.core);
}

static tg_status make_chain(const tg_fno *fno, const nn_op *op, const arrays *a) {
    const nn_factors *f = &fno->model.factors;
    tg_status status = TG_OK;
    for (int i = 0; i < f->links && status == TG_OK; i++) {
        const nn_link *l = &f->link[i];
        const side factor = {l->is_turned ? TG_OP_T : TG_OP_N,
                             nn_weight(fno, op->weight + l->param), l->ld, l->stride};
        const int64_t ld = l->is_left ? l->n : l->k, rows = l->is_left ? l->k : l->m;
        const side made = {TG_OP_N, made_by(fno, op, a, i), ld, rows * ld};
        status = multiply(fno, a->dtype, l->batch, l->m, l->n, l->k, l->is_left ? factor : made,
                          l->is_left ? made : factor, a->made[i], l->n, l->m * l->n);
    }
    return status;
}

/* y' = x' W', or x' from y' with the adjoint. */
static tg_status contract(const tg_fno *fno, const nn_op *op, const arrays *a, bool is_adjoint,
                          const void *from, void *to) {
    const nn_factors *f = &fno->model.factors;
    const tg_spectral call = {.dtype = a->dtype,
                              .adjoint = is_adjoint,
                              .batch = a->batch,
                              .in = f->is_separable ? 1 : f->inner_in,
                              .out = f->is_separable ? 1 : f->inner_out,
                              .modes = f->is_separable ? f->inner_in * a->modes : a->modes,
                              .weight = made_by(fno, op, a, f->links),
                              .src = from,
                              .dst = to};
    return fno->be->ops->spectral_contract(fno->be, &call);
}

/* ---- the product ---- */

/* x' of x, and dy' of dy. */
static tg_status map_in(const tg_fno *fno, const nn_op *op, const arrays *a, const void **x) {
    const nn_factors *f = &fno->model.factors;
    tg_status status = TG_OK;
    if (f->in >= 0) {
        status = map(fno, a, op->weight + f->in, TG_OP_T, f->inner_in, a->channels, f->inner_in, *x,
                     a->inner_x);
        *x = a->inner_x;
    }
    return status;
}

static tg_status map_out_adjoint(const tg_fno *fno, const nn_op *op, const arrays *a,
                                 const void **dy) {
    const nn_factors *f = &fno->model.factors;
    tg_status status = TG_OK;
    if (f->out >= 0) {
        status = map(fno, a, op->weight + f->out, TG_OP_H, f->inner_out, a->channels, f->inner_out,
                     *dy, a->inner_y);
        *dy = a->inner_y;
    }
    return status;
}

static tg_status run(tg_fno *fno, const nn_op *op) {
    const nn_factors *f = &fno->model.factors;
    const arrays a = arrays_at(fno, op);
    const int y = op->out[0];
    void *full = a.y ? a.y : nn_data(fno, y);
    const void *x = NULL;
    tg_status status = TG_OK;
    TG_TRY(make_chain(fno, op, &a));
    TG_TRY(widen(fno, &a, op->in[NN_X], a.x, &x));
    if (!op->is_adjoint) {
        void *to = f->out >= 0 ? a.inner_y : full;
        TG_TRY(map_in(fno, op, &a, &x));
        TG_TRY(contract(fno, op, &a, false, x, to));
        TG_TRY(f->out >= 0 ? map(fno, &a, op->weight + f->out, TG_OP_N, f->inner_out, f->inner_out,
                                 a.channels, to, full)
                           : TG_OK);
    } else {
        void *to = f->in >= 0 ? a.inner_x : full;
        TG_TRY(map_out_adjoint(fno, op, &a, &x));
        TG_TRY(contract(fno, op, &a, true, x, to));
        TG_TRY(f->in >= 0 ? map(fno, &a, op->weight + f->in, TG_OP_CONJ, f->inner_in, f->inner_in,
                                a.channels, to, full)
                          : TG_OK);
    }
    TG_TRY(a.y ? fno->be->ops->convert(fno->be, a.batch * a.channels * a.modes, a.dtype, full,
                                       fno->run.program.values[y].dtype, nn_data(fno, y))
               : TG_OK);
fail:
    return status;
}

/* ---- gradients of the factors ---- */

/* gradient (channels, inner) = the sum over samples of left (channels, modes) right (inner,
 * modes)^T, one of them conjugated. */
static tg_status correlate(const tg_fno *fno, const arrays *a, int param, int64_t inner, side left,
                           side right) {
    left.stride = a->channels * a->modes;
    right.stride = inner * a->modes;
    return multiply(fno, a->dtype, a->batch, a->channels, inner, a->modes, left, right,
                    nn_gradient(fno, param), inner, 0);
}

/* From the gradient of what a link made to that of its factor and of what it was made of. */
static tg_status link_back(const tg_fno *fno, const nn_op *op, const arrays *a, int number,
                           const void *dnext, void *dmade) {
    const nn_link *l = &fno->model.factors.link[number];
    const void *made = made_by(fno, op, a, number);
    const void *weight = nn_weight(fno, op->weight + l->param);
    void *gradient = nn_gradient(fno, op->weight + l->param);
    const side d = {TG_OP_N, dnext, l->n, l->m * l->n};
    tg_status status = TG_OK;
    if (l->is_left) {
        const side before = {TG_OP_H, made, l->n, l->k * l->n};
        TG_TRY(multiply(fno, a->dtype, l->batch, l->m, l->k, l->n, d, before, gradient, l->k, 0));
        TG_TRY(multiply(fno, a->dtype, l->batch, l->k, l->n, l->m,
                        (side){TG_OP_H, weight, l->ld, l->stride}, d, dmade, l->n, l->k * l->n));
        return TG_OK;
    }
    const side before = {l->is_turned ? TG_OP_CONJ : TG_OP_H, made, l->k, l->m * l->k};
    if (l->is_turned) { /* (n, k) */
        const side turned = {TG_OP_T, dnext, l->n, l->m * l->n};
        TG_TRY(multiply(fno, a->dtype, l->batch, l->n, l->k, l->m, turned, before, gradient, l->ld,
                        l->stride));
    } else { /* (k, n) */
        TG_TRY(multiply(fno, a->dtype, l->batch, l->k, l->n, l->m, before, d, gradient, l->ld,
                        l->stride));
    }
    TG_TRY(multiply(fno, a->dtype, l->batch, l->m, l->k, l->n, d,
                    (side){l->is_turned ? TG_OP_CONJ : TG_OP_H, weight, l->ld, l->stride}, dmade,
                    l->k, l->m * l->k));
fail:
    return status;
}

/* dL/dW' from x' and dy', and from there along the chain to the core. */
static tg_status chain_back(const tg_fno *fno, const nn_op *op, const arrays *a, const void *x,
                            const void *dy) {
    const nn_factors *f = &fno->model.factors;
    void *core = nn_gradient(fno, op->weight + f->core);
    void *dnext = f->links > 0 ? a->gradient[0] : core;
    const tg_multimode modes = {.dtype = a->dtype,
                                .ndim = 3,
                                .dim = {f->is_separable ? 1 : f->inner_in,
                                        f->is_separable ? 1 : f->inner_out,
                                        f->is_separable ? f->inner_in * a->modes : a->modes}};
    const tg_grad_source source = {.x = x, .dy = dy, .batch = a->batch};
    tg_status status = fno->be->ops->grad_dense(fno->be, &modes, &source, 1.0, dnext);
    for (int i = f->links - 1; i >= 0 && status == TG_OK; i--) {
        void *dmade = i > 0 ? a->gradient[(f->links - i) % 2] : core;
        status = link_back(fno, op, a, i, dnext, dmade);
        dnext = dmade;
    }
    return status;
}

static tg_status run_back(tg_fno *fno, const nn_op *op) {
    const nn_factors *f = &fno->model.factors;
    const arrays a = arrays_at(fno, op);
    const void *x = NULL, *dy = NULL;
    tg_status status = TG_OK;
    TG_TRY(make_chain(fno, op, &a));
    TG_TRY(widen(fno, &a, op->in[NN_X], a.x, &x));
    TG_TRY(widen(fno, &a, op->in[NN_DY], a.y, &dy));
    const void *inner_x = x, *inner_dy = dy;
    TG_TRY(map_in(fno, op, &a, &inner_x));
    TG_TRY(map_out_adjoint(fno, op, &a, &inner_dy));
    if (f->out >= 0) { /* y = U y' */
        TG_TRY(contract(fno, op, &a, false, inner_x, a.inner_dx));
        TG_TRY(correlate(fno, &a, op->weight + f->out, f->inner_out,
                         (side){TG_OP_N, dy, a.modes, 0}, (side){TG_OP_H, a.inner_dx, a.modes, 0}));
    }
    if (f->in >= 0) { /* x' = U^T x */
        TG_TRY(contract(fno, op, &a, true, inner_dy, a.inner_dx));
        TG_TRY(correlate(fno, &a, op->weight + f->in, f->inner_in,
                         (side){TG_OP_CONJ, x, a.modes, 0},
                         (side){TG_OP_T, a.inner_dx, a.modes, 0}));
    }
    TG_TRY(chain_back(fno, op, &a, inner_x, inner_dy));
fail:
    return status;
}

/* ---- builders and rules ---- */

static int params(const nn_program *p, const nn_op *op, int *first) {
    *first = op->weight;
    return p->model->factors.params;
}

/* Maps and the product; the chain is little beside them. */
static double flops(const nn_program *p, const nn_op *op) {
    const nn_factors *f = &p->model->factors;
    const nn_value *x = &p->values[op->in[NN_X]];
    const double in = (double)f->inner_in, out = (double)f->inner_out, c = (double)x->channels;
    const double maps = (f->in >= 0 ? c * in : 0.0) + (f->out >= 0 ? c * out : 0.0);
    return 8.0 * (double)p->batch * (double)x->points * (maps + (f->is_separable ? in : in * out));
}

static int add(nn_program *p, int weight, bool is_adjoint, int x) {
    nn_op op = nn_op_on(p, NN_FACTORIZED, x);
    op.weight = weight;
    op.is_adjoint = is_adjoint;
    p->values[op.out[0]].is_transient = true;
    return nn_op_add(p, op);
}

int nn_add_factorized(nn_program *p, int weight, int spectrum) {
    return add(p, weight, false, spectrum);
}

static int back(nn_program *p, const nn_op *op, nn_request ask) {
    return ask.wanted ? add(p, op->weight, true, ask.dy) : -1;
}

const nn_kind_row nn_kind_factorized = {.name = "product with a factorized weight",
                                        .slot = NN_SLOT(spectral_contract),
                                        .at_end = NN_FACTORS_BACK,
                                        .run = run,
                                        .params = params,
                                        .back = back,
                                        .scratch = scratch,
                                        .flops = flops};
const nn_kind_row nn_kind_factors_back = {.name = "gradients of factors",
                                          .slot = NN_SLOT(grad_dense),
                                          .makes_gradients = true,
                                          .run = run_back,
                                          .scratch = scratch};
