/* The product with a factorized spectral weight (factors.h), and the gradients of its factors.
 *
 *   FACTORIZED    y = map back (x' W'), x' = map(x), W' from the chain; or its adjoint
 *   FACTORS_BACK  at the end of backward, from x and dy: gradients of maps, core and chain
 *
 * W' is kept for the adjoint, and the mapped channels x' and y', dx' and dy' for the gradients;
 * where memory is to be saved (checkpointing, micro-batches, small storage) each op recomputes them
 * instead. */
#include "base/minmax.h"
#include "base/scratch.h"
#include "nn/ops.h"

/* Outputs besides the product. */
enum { MAPPED = 1, INNER = 2 };

/* ---- the arrays of an op: values or scratch, planned and found by the same code ---- */

typedef struct room {
    const nn_program *p;
    const tg_fno *fno; /* NULL: only counts scratch */
    tg_backend *be;
    tg_scratch scratch;
} room;

static void *take(room *r, tg_dtype dtype, int64_t numbers) {
    return tg_scratch_take(&r->scratch, (size_t)numbers * tg_dtype_size(dtype));
}

/* A plane of a value, or scratch if there is no such value. */
static void *take_plane(room *r, int value, int plane, tg_dtype dtype, int64_t numbers) {
    return value < 0 ? take(r, dtype, numbers) : r->fno ? nn_plane(r->fno, value, plane) : NULL;
}

/* A running op, and its complex arrays in full width; inner ones are (batch, inner, modes). */
typedef struct arrays {
    const tg_fno *fno; /* NULL: only counts scratch */
    tg_backend *be;
    const nn_op *op;
    const nn_factors *f;
    tg_dtype dtype;
    int64_t batch, in, out, modes; /* in, out: channels of the weight */
    void *x, *y;                   /* copies of 16-bit spectra */
    void *made[TG_FNO_MAX_DIMS];   /* by the links of the chain; the last is W' */
    void *inner_x, *inner_y;       /* x' and y'; of an adjoint dx' and dy' */
    void *inner_dx, *inner_dy;     /* FACTORS_BACK has all four; y' and dx' share memory.. */
    bool is_mapped;                /* ..unless they were kept */
    void *gradient[2];             /* along the chain, taking turns */
} arrays;

static void take_chain(room *r, arrays *a) {
    const nn_op *op = a->op;
    const nn_factors *f = a->f;
    const bool is_back = op->kind == NN_FACTORS_BACK;
    const int inner = is_back ? -1 : op->is_adjoint ? op->in[NN_INNER] : op->out[INNER];
    int64_t largest = tg_shape_numel(&f->shape[f->core]);
    for (int i = 0; i < f->links; i++) {
        const int64_t numbers = nn_link_numbers(&f->link[i]);
        const bool is_last = i + 1 == f->links;
        const bool needed = !(is_last && a->is_mapped);
        a->made[i] = needed ? take_plane(r, is_last ? inner : -1, 0, a->dtype, numbers) : NULL;
        largest = tg_max(largest, numbers);
    }
    for (int i = 0; i < 2 && i < f->links && is_back; i++) {
        a->gradient[i] = take(r, a->dtype, largest);
    }
}

static arrays arrays_of(room *r, const nn_op *op, int64_t batch) {
    const nn_program *p = r->p;
    const nn_factors *f = &op->conv->factors;
    const int x = op->in[NN_X], y = op->kind == NN_FACTORIZED ? op->out[0] : op->in[NN_DY];
    const bool is_back = op->kind == NN_FACTORS_BACK;
    const int mapped = is_back ? op->in[NN_MAPPED] : op->out[MAPPED];
    arrays a = {.fno = r->fno,
                .be = r->be,
                .op = op,
                .f = f,
                .dtype = tg_dtype_complex(p->model->config.dtype),
                .batch = batch,
                .in = op->conv->in,
                .out = op->conv->out,
                .modes = op->conv->mode_count,
                .is_mapped = is_back && mapped >= 0};
    const int64_t most = tg_max(f->inner_in, f->inner_out);
    const int64_t samples = is_back ? p->whole : p->batch; /* at the end, of all micro-batches */
    const int64_t inner = samples * most * a.modes;
    a.x = p->values[x].dtype != a.dtype
              ? take(r, a.dtype, samples * p->values[x].channels * a.modes)
              : NULL;
    a.y = p->values[y].dtype != a.dtype
              ? take(r, a.dtype, samples * p->values[y].channels * a.modes)
              : NULL;
    a.inner_x = f->in >= 0 ? take_plane(r, mapped, 0, a.dtype, inner) : NULL;
    a.inner_y = f->out >= 0 ? take_plane(r, mapped, 1, a.dtype, inner) : NULL;
    if (is_back) {
        const int mapped_dy = op->in[NN_MAPPED_DY];
        a.inner_dx = f->in < 0     ? NULL
                     : a.is_mapped ? take_plane(r, mapped_dy, 0, a.dtype, inner)
                     : f->out >= 0 ? a.inner_y
                                   : take(r, a.dtype, inner);
        a.inner_dy = f->out >= 0 ? take_plane(r, mapped_dy, 1, a.dtype, inner) : NULL;
    }
    take_chain(r, &a);
    return a;
}

static void scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    room r = {.p = p, .be = be};
    (void)arrays_of(&r, op, p->batch);
    bytes[0] = r.scratch.used;
}

static arrays arrays_at(const tg_fno *fno, const nn_op *op) {
    room r = {.p = &fno->run.program,
              .fno = fno,
              .be = fno->be,
              .scratch = {.block = nn_data(fno, op->scratch[0])}};
    return arrays_of(&r, op, fno->run.batch);
}

/* Parameter number `factor` of the weight, and its gradient. */
static const void *weight_of(const arrays *a, int factor) {
    return nn_weight(a->fno, a->op->conv->weight + factor);
}

static void *gradient_of(const arrays *a, int factor) {
    return nn_gradient(a->fno, a->op->conv->weight + factor);
}

/* A spectrum in full width. */
static tg_status widen(const arrays *a, int value, void *copy, const void **out) {
    const void *stored = nn_data(a->fno, value);
    const nn_value *v = &a->fno->run.program.values[value];
    *out = copy ? copy : stored;
    return copy ? a->be->ops->convert(a->be, a->batch * v->channels * a->modes, v->dtype, stored,
                                      a->dtype, copy)
                : TG_OK;
}

/* ---- matrix products ---- */

/* One operand of a product. */
typedef struct side {
    tg_op op;
    const void *at;
    int64_t ld, stride;
} side;

/* C for the whole batch, `stride_c` apart; 0: their sum. */
static tg_status multiply(const arrays *w, int64_t batch, int64_t m, int64_t n, int64_t k, side a,
                          side b, void *c, int64_t ldc, int64_t stride_c) {
    const tg_gemm gemm = {.dtype = w->dtype,
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
    return w->be->ops->gemm(w->be, &gemm);
}

/* Maps the channels of every sample by a matrix (rows, columns) stored as (.., inner): to (to,
 * modes) from (from, modes). */
static tg_status map(const arrays *a, int factor, tg_op how, int64_t inner, int64_t from,
                     int64_t to, const void *x, void *y) {
    return multiply(a, a->batch, to, a->modes, from, (side){how, weight_of(a, factor), inner, 0},
                    (side){TG_OP_N, x, a->modes, from * a->modes}, y, a->modes, to * a->modes);
}

/* W', or the product of the first `links` links. */
static const void *made_by(const arrays *a, int links) {
    return links > 0 ? a->made[links - 1] : weight_of(a, a->f->core);
}

/* Computes the first `links` of the chain. */
static tg_status make_chain(const arrays *a, int links) {
    for (int i = 0; i < links; i++) {
        const nn_link *l = &a->f->link[i];
        const side factor = {l->is_transposed ? TG_OP_T : TG_OP_N, weight_of(a, l->param), l->ld,
                             l->stride};
        const int64_t ld = l->is_left ? l->n : l->k, rows = l->is_left ? l->k : l->m;
        const side made = {TG_OP_N, made_by(a, i), ld, rows * ld};
        TG_CALL(multiply(a, l->batch, l->m, l->n, l->k, l->is_left ? factor : made,
                         l->is_left ? made : factor, a->made[i], l->n, l->m * l->n));
    }
    return TG_OK;
}

/* y' = x' W', or x' from y' with the adjoint. */
static tg_status contract(const arrays *a, bool is_adjoint, const void *from, void *to) {
    const nn_factors *f = a->f;
    const tg_spectral call = {.dtype = a->dtype,
                              .adjoint = is_adjoint,
                              .batch = a->batch,
                              .in = f->is_separable ? 1 : f->inner_in,
                              .out = f->is_separable ? 1 : f->inner_out,
                              .modes = f->is_separable ? f->inner_in * a->modes : a->modes,
                              .weight = made_by(a, f->links),
                              .src = from,
                              .dst = to};
    return a->be->ops->spectral_contract(a->be, &call);
}

/* ---- the product ---- */

/* x' of x, and dy' of dy. */
static tg_status map_in(const arrays *a, const void **x) {
    const nn_factors *f = a->f;
    if (f->in >= 0) {
        TG_CALL(map(a, f->in, TG_OP_T, f->inner_in, a->in, f->inner_in, *x, a->inner_x));
        *x = a->inner_x;
    }
    return TG_OK;
}

static tg_status map_out_adjoint(const arrays *a, const void **dy) {
    const nn_factors *f = a->f;
    void *to = a->inner_dy ? a->inner_dy : a->inner_y;
    if (f->out >= 0) {
        TG_CALL(map(a, f->out, TG_OP_H, f->inner_out, a->out, f->inner_out, *dy, to));
        *dy = to;
    }
    return TG_OK;
}

static tg_status map_and_multiply(const arrays *a, const void *x, void *y) {
    const nn_factors *f = a->f;
    if (!a->op->is_adjoint) {
        void *to = f->out >= 0 ? a->inner_y : y;
        TG_CALL(map_in(a, &x));
        TG_CALL(contract(a, false, x, to));
        TG_CALL(f->out >= 0 ? map(a, f->out, TG_OP_N, f->inner_out, f->inner_out, a->out, to, y)
                            : TG_OK);
    } else {
        void *to = f->in >= 0 ? a->inner_x : y;
        TG_CALL(map_out_adjoint(a, &x));
        TG_CALL(contract(a, true, x, to));
        TG_CALL(f->in >= 0 ? map(a, f->in, TG_OP_CONJ, f->inner_in, f->inner_in, a->in, to, y)
                           : TG_OK);
    }
    return TG_OK;
}

static tg_status run(tg_fno *fno, const nn_op *op) {
    const arrays a = arrays_at(fno, op);
    const nn_value *y = &fno->run.program.values[op->out[0]];
    void *full = a.y ? a.y : nn_data(fno, op->out[0]);
    const void *x = NULL;
    TG_CALL(op->in[NN_INNER] < 0 ? make_chain(&a, a.f->links) : TG_OK);
    TG_CALL(widen(&a, op->in[NN_X], a.x, &x));
    TG_CALL(map_and_multiply(&a, x, full));
    return a.y ? a.be->ops->convert(a.be, a.batch * y->channels * a.modes, a.dtype, full, y->dtype,
                                    nn_data(fno, op->out[0]))
               : TG_OK;
}

/* ---- gradients of the factors ---- */

/* gradient (channels, inner) = the sum over samples of left (channels, modes) right (inner,
 * modes)^T, one of them conjugated. */
static tg_status correlate(const arrays *a, int factor, int64_t channels, int64_t inner, side left,
                           side right) {
    left.stride = channels * a->modes;
    right.stride = inner * a->modes;
    return multiply(a, a->batch, channels, inner, a->modes, left, right, gradient_of(a, factor),
                    inner, 0);
}

/* From the gradient of a link's product to those of its factor and of its other operand. */
static tg_status link_back(const arrays *a, int number, const void *dnext, void *dmade) {
    const nn_link *l = &a->f->link[number];
    const void *made = made_by(a, number);
    const void *weight = weight_of(a, l->param);
    void *gradient = gradient_of(a, l->param);
    const side d = {TG_OP_N, dnext, l->n, l->m * l->n};
    if (l->is_left) {
        const side before = {TG_OP_H, made, l->n, l->k * l->n};
        TG_CALL(multiply(a, l->batch, l->m, l->k, l->n, d, before, gradient, l->k, 0));
        TG_CALL(multiply(a, l->batch, l->k, l->n, l->m, (side){TG_OP_H, weight, l->ld, l->stride},
                         d, dmade, l->n, l->k * l->n));
        return TG_OK;
    }
    const side before = {l->is_transposed ? TG_OP_CONJ : TG_OP_H, made, l->k, l->m * l->k};
    if (l->is_transposed) { /* (n, k) */
        const side turned = {TG_OP_T, dnext, l->n, l->m * l->n};
        TG_CALL(
            multiply(a, l->batch, l->n, l->k, l->m, turned, before, gradient, l->ld, l->stride));
    } else { /* (k, n) */
        TG_CALL(multiply(a, l->batch, l->k, l->n, l->m, before, d, gradient, l->ld, l->stride));
    }
    return multiply(a, l->batch, l->m, l->k, l->n, d,
                    (side){l->is_transposed ? TG_OP_CONJ : TG_OP_H, weight, l->ld, l->stride},
                    dmade, l->k, l->m * l->k);
}

/* The memory of dL/dW'. */
static void *gradient_of_inner(const arrays *a) {
    return a->f->links > 0 ? a->gradient[0] : gradient_of(a, a->f->core);
}

/* Computes it from x' and dy'. */
static tg_status inner_back(const arrays *a, const void *x, const void *dy) {
    const nn_factors *f = a->f;
    const tg_multimode modes = {.dtype = a->dtype,
                                .ndim = 3,
                                .dim = {f->is_separable ? 1 : f->inner_in,
                                        f->is_separable ? 1 : f->inner_out,
                                        f->is_separable ? f->inner_in * a->modes : a->modes}};
    const tg_grad_source source = {.x = x, .dy = dy, .batch = a->batch};
    return a->be->ops->grad_dense(a->be, &modes, &source, 1.0, gradient_of_inner(a));
}

/* From there along the chain to the core. */
static tg_status chain_back(const arrays *a) {
    const nn_factors *f = a->f;
    void *core = gradient_of(a, f->core), *dnext = gradient_of_inner(a);
    for (int i = f->links - 1; i >= 0; i--) {
        void *dmade = i > 0 ? a->gradient[(f->links - i) % 2] : core;
        TG_CALL(link_back(a, i, dnext, dmade));
        dnext = dmade;
    }
    return TG_OK;
}

/* y' and dx' may share memory, so the gradient of a map follows at once. */
static tg_status maps_back(const arrays *a, const void *x, const void *dy) {
    const nn_factors *f = a->f;
    const void *inner_x = x, *inner_dy = dy;
    if (!a->is_mapped) {
        TG_CALL(map_in(a, &inner_x));
        TG_CALL(map_out_adjoint(a, &inner_dy));
    }
    if (f->out >= 0) { /* y = U y' */
        TG_CALL(a->is_mapped ? TG_OK : contract(a, false, inner_x, a->inner_y));
        TG_CALL(correlate(a, f->out, a->out, f->inner_out, (side){TG_OP_N, dy, a->modes, 0},
                          (side){TG_OP_H, a->inner_y, a->modes, 0}));
    }
    if (f->in >= 0) { /* x' = U^T x */
        TG_CALL(a->is_mapped ? TG_OK : contract(a, true, inner_dy, a->inner_dx));
        TG_CALL(correlate(a, f->in, a->in, f->inner_in, (side){TG_OP_CONJ, x, a->modes, 0},
                          (side){TG_OP_T, a->inner_dx, a->modes, 0}));
    }
    return inner_back(a, a->inner_x ? a->inner_x : x, a->inner_dy ? a->inner_dy : dy);
}

static tg_status run_back(tg_fno *fno, const nn_op *op) {
    const arrays a = arrays_at(fno, op);
    const void *x = NULL, *dy = NULL;
    TG_CALL(make_chain(&a, a.is_mapped ? a.f->links - 1 : a.f->links));
    TG_CALL(widen(&a, op->in[NN_X], a.x, &x));
    TG_CALL(widen(&a, op->in[NN_DY], a.y, &dy));
    TG_CALL(maps_back(&a, x, dy));
    return chain_back(&a);
}

/* ---- builders and rules ---- */

/* Maps and the product; the chain is small beside them. */
static double flops(const nn_program *p, const nn_op *op) {
    const nn_factors *f = &op->conv->factors;
    const nn_value *x = &p->values[op->in[NN_X]];
    const double in = (double)f->inner_in, out = (double)f->inner_out;
    const double maps = (f->in >= 0 ? (double)op->conv->in * in : 0.0) +
                        (f->out >= 0 ? (double)op->conv->out * out : 0.0);
    return 8.0 * (double)p->batch * (double)x->points * (maps + (f->is_separable ? in : in * out));
}

/* Whether an op keeps its intermediate results for others. */
static bool keeps(const nn_program *p, const nn_factors *f) {
    const nn_model *model = p->model;
    return p->training && (f->in >= 0 || f->out >= 0) && !nn_in_parts(p) &&
           model->config.activation_checkpoint == TG_CHECKPOINT_OFF &&
           model->stores.saved == TG_PRECISION_FULL;
}

/* Both planes of mapped channels. */
static int add_mapped(nn_program *p, const nn_conv *conv) {
    const nn_factors *f = &conv->factors;
    return nn_value_add(p, (nn_value){.role = NN_INNER_ARRAY,
                                      .planes = 2,
                                      .channels = tg_max(f->inner_in, f->inner_out),
                                      .points = conv->mode_count,
                                      .before_act = -1});
}

static int add_inner(nn_program *p, const nn_factors *f) {
    return nn_value_add(p, (nn_value){.role = NN_INNER_ARRAY,
                                      .planes = 1,
                                      .channels = 1,
                                      .points = nn_link_numbers(&f->link[f->links - 1]),
                                      .before_act = -1,
                                      .is_single = true});
}

static nn_op make(nn_program *p, const nn_conv *conv, bool is_adjoint, int x) {
    nn_op op = nn_op_on(p, NN_FACTORIZED, x);
    op.conv = conv;
    op.reads = conv->weight;
    op.read_count = conv->factors.params;
    op.is_adjoint = is_adjoint;
    op.out[MAPPED] = keeps(p, &conv->factors) ? add_mapped(p, conv) : -1;
    p->values[op.out[0]].is_transient = true;
    p->values[op.out[0]].channels = is_adjoint ? conv->in : conv->out;
    return op;
}

int nn_add_factorized(nn_program *p, const nn_conv *conv, int spectrum) {
    const nn_factors *f = &conv->factors;
    nn_op op = make(p, conv, false, spectrum);
    op.out[INNER] = keeps(p, f) && f->links > 0 ? add_inner(p, f) : -1;
    return nn_op_add(p, op);
}

static int back(nn_program *p, const nn_op *op, nn_request ask) {
    if (!ask.wanted) {
        return -1;
    }
    nn_op adjoint = make(p, op->conv, true, ask.dy);
    adjoint.in[NN_INNER] = op->out[INNER];
    return nn_op_add(p, adjoint);
}

/* The mapped channels of the product and its adjoint, if both have kept them. */
static void end(const nn_program *p, const nn_op *op, nn_op *at_end) {
    for (int i = p->forward_end; i < p->op_count; i++) {
        const nn_op *adjoint = &p->ops[i];
        if (adjoint->kind == NN_FACTORIZED && adjoint->conv == op->conv &&
            adjoint->out[MAPPED] >= 0) {
            at_end->in[NN_MAPPED] = op->out[MAPPED];
            at_end->in[NN_MAPPED_DY] = adjoint->out[MAPPED];
        }
    }
}

const nn_kind_row nn_kind_factorized = {.name = "product with a factorized weight",
                                        .slot = NN_SLOT(spectral_contract),
                                        .at_end = NN_FACTORS_BACK,
                                        .end = end,
                                        .run = run,
                                        .back = back,
                                        .scratch = scratch,
                                        .flops = flops};
const nn_kind_row nn_kind_factors_back = {.name = "gradients of factors",
                                          .slot = NN_SLOT(grad_dense),
                                          .makes_gradients = true,
                                          .sets_gradients = true,
                                          .run = run_back,
                                          .scratch = scratch};
