/* One sample over several ranks: every rank computes a slab of the grid along dimension 0, from x
 * to y and the loss (slab_loss.c), and a block of the modes.
 *
 *   TO_MODES    y = sum over the ranks of A x: to each rank its block of the modes of dimension 0
 *   FROM_MODES  y = A^H x for the rows of this rank, x the blocks of all ranks
 *
 * A[k, n] = exp(-2 pi i f_k n / N), 0 for modes without a frequency f_k of the grid. The other
 * dimensions are transformed before TO_MODES and after FROM_MODES (spectral.c). In 1-D, half of the
 * spectrum of real data represents both its sides, as in backend.h: where one direction is the
 * adjoint of the other, frequencies other than 0 and N / 2 count twice. */
#include <math.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "nn/ops.h"
#include "tensor/element.h"

/* ---- the matrices ---- */

static int64_t entries(const nn_transform *t) {
    return t->first_modes * t->rows.count;
}

static size_t matrix_bytes(const nn_program *p, const nn_transform *t) {
    return tg_align((size_t)((t->is_halved ? 2 : 1) * entries(t)) *
                    tg_dtype_size(tg_dtype_complex(p->model->config.dtype)));
}

size_t nn_split_bytes(const nn_program *program) {
    size_t bytes = 0;
    for (int i = 0; nn_is_split(&program->model->split) && i < program->transform_count; i++) {
        bytes += matrix_bytes(program, &program->transforms[i]);
    }
    return bytes;
}

/* Entry `at` of A or, after its last one, of the weighted matrix. */
static tg_scalar entry(const nn_transform *t, int64_t at) {
    const bool is_weighted = at >= entries(t);
    const int64_t k = at % entries(t) / t->rows.count - t->first_span.mode;
    const int64_t n = t->rows.first + at % t->rows.count, f = t->frequency + k;
    if (k < 0 || k >= t->first_span.count) {
        return (tg_scalar){0};
    }
    const double angle = -2.0 * 3.14159265358979323846 * (double)(f * n % t->n) / (double)t->n;
    const double weight = is_weighted && f != 0 && 2 * f != t->n ? 2.0 : 1.0;
    return (tg_scalar){weight * cos(angle), weight * sin(angle)};
}

/* Computes them piece by piece. */
static tg_status fill(const tg_fno *fno, const nn_transform *t) {
    enum { PIECE = 512 };
    const tg_dtype dtype = tg_dtype_complex(fno->model.config.dtype);
    double piece[2 * PIECE];
    const int64_t all = (t->is_halved ? 2 : 1) * entries(t);
    for (int64_t first = 0; first < all; first += PIECE) {
        const int64_t count = tg_min(all - first, PIECE);
        for (int64_t i = 0; i < count; i++) {
            tg_store(dtype, piece, i, entry(t, first + i));
        }
        TG_CALL(fno->be->ops->upload(fno->be, nn_element(dtype, t->matrix, first), piece,
                                     (size_t)count * tg_dtype_size(dtype)));
    }
    return TG_OK;
}

tg_status nn_split_fill(tg_fno *fno, void *memory) {
    nn_program *p = &fno->run.program;
    char *next = memory;
    for (int i = 0; i < p->transform_count; i++) {
        p->transforms[i].matrix = next;
        next += matrix_bytes(p, &p->transforms[i]);
        TG_CALL(fill(fno, &p->transforms[i]));
    }
    return TG_OK;
}

/* ---- the first dimension ---- */

/* The modes of dimension 0 that a part has. */
static nn_rows block_of(const nn_program *p, const nn_transform *t, int part) {
    return nn_rows_of(&p->model->split, part, t->first_modes);
}

/* For every array of the batch the product of the rows of one block with the slab, or the adjoint,
 * which is added to y after the first block. */
static tg_status multiply(const tg_fno *fno, const nn_op *op, nn_rows block, const void *x,
                          void *y) {
    const nn_program *p = &fno->run.program;
    const nn_transform *t = &p->transforms[op->transform];
    const bool inwards = op->kind == NN_TO_MODES;
    const nn_value *v = &p->values[op->in[NN_X]];
    const bool is_weighted = t->is_halved && op->is_adjoint == inwards;
    const int64_t points = t->mode_count, slab = t->rows.count;
    const tg_gemm gemm = {
        .dtype = v->dtype,
        .op_a = inwards ? TG_OP_N : TG_OP_H,
        .m = inwards ? block.count : slab,
        .n = points,
        .k = inwards ? slab : block.count,
        .alpha = {1.0, 0.0},
        .beta = {inwards || block.first == 0 ? 0.0 : 1.0, 0.0},
        .a = nn_element(v->dtype, t->matrix, (is_weighted ? entries(t) : 0) + block.first * slab),
        .lda = slab,
        .b = x,
        .ldb = points,
        .stride_b = (inwards ? slab : block.count) * points,
        .c = y,
        .ldc = points,
        .stride_c = (inwards ? block.count : slab) * points,
        .batch = fno->run.batch * v->channels,
        .is_full = true};
    return fno->be->ops->gemm(fno->be, &gemm);
}

static tg_tensor block_at(const tg_fno *fno, const nn_op *op, nn_rows block, void *data) {
    const nn_value *v = &fno->run.program.values[op->in[NN_X]];
    const int64_t points = fno->run.program.transforms[op->transform].mode_count;
    const tg_shape shape = {2, {fno->run.batch * v->channels, block.count * points}};
    return tg_backend_view(fno->be, v->dtype, &shape, data);
}

static tg_status run_to_modes(tg_fno *fno, const nn_op *op) {
    const nn_split *split = &fno->model.split;
    const nn_transform *t = &fno->run.program.transforms[op->transform];
    for (int part = 0; part < split->parts; part++) {
        const nn_rows block = block_of(&fno->run.program, t, part);
        void *to = part == split->part ? nn_data(fno, op->out[0]) : nn_data(fno, op->scratch[0]);
        const tg_tensor sum = block_at(fno, op, block, to);
        TG_CALL(multiply(fno, op, block, nn_data(fno, op->in[NN_X]), to));
        TG_CALL(tg_comm_reduce(split->comm, TG_COMM_SUM, part, &sum));
    }
    return TG_OK;
}

static tg_status run_from_modes(tg_fno *fno, const nn_op *op) {
    const nn_split *split = &fno->model.split;
    const nn_transform *t = &fno->run.program.transforms[op->transform];
    for (int part = 0; part < split->parts; part++) {
        const nn_rows block = block_of(&fno->run.program, t, part);
        void *from =
            part == split->part ? nn_data(fno, op->in[NN_X]) : nn_data(fno, op->scratch[0]);
        const tg_tensor values = block_at(fno, op, block, from);
        TG_CALL(tg_comm_broadcast(split->comm, part, &values));
        TG_CALL(multiply(fno, op, block, from, nn_data(fno, op->out[0])));
    }
    return TG_OK;
}

/* The largest block of another rank. */
static void block_scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    (void)be;
    const nn_transform *t = &p->transforms[op->transform];
    const nn_value *v = &p->values[op->in[NN_X]];
    int64_t most = 0;
    for (int part = 0; part < p->model->split.parts; part++) {
        most = tg_max(most, block_of(p, t, part).count);
    }
    bytes[0] = (size_t)(p->batch * v->channels * most * t->mode_count) * tg_dtype_size(v->dtype);
}

static double product_flops(const nn_program *p, const nn_op *op) {
    const nn_transform *t = &p->transforms[op->transform];
    return 8.0 * (double)p->batch * (double)p->values[op->in[NN_X]].channels * (double)entries(t) *
           (double)t->mode_count;
}

static int add_product(nn_program *p, nn_kind kind, int transform, bool is_adjoint, int x) {
    nn_op op = nn_op_on(p, kind, x);
    const nn_transform *t = &p->transforms[transform];
    nn_value *v = &p->values[op.out[0]];
    op.transform = v->transform = transform;
    op.is_adjoint = is_adjoint;
    v->points = t->mode_count *
                (kind == NN_TO_MODES ? block_of(p, t, p->model->split.part).count : t->rows.count);
    v->is_transient = kind == NN_FROM_MODES;
    return nn_op_add(p, op);
}

int nn_add_to_modes(nn_program *p, int transform, int x) {
    return add_product(p, NN_TO_MODES, transform, false, x);
}

int nn_add_from_modes(nn_program *p, int transform, int spectrum) {
    return add_product(p, NN_FROM_MODES, transform, false, spectrum);
}

static int back_product(nn_program *p, const nn_op *op, nn_request ask) {
    const nn_kind kind = op->kind == NN_TO_MODES ? NN_FROM_MODES : NN_TO_MODES;
    return ask.wanted ? add_product(p, kind, op->transform, true, ask.dy) : -1;
}

const nn_kind_row nn_kind_to_modes = {.name = "modes of the first dimension",
                                      .slot = NN_SLOT(gemm),
                                      .run = run_to_modes,
                                      .back = back_product,
                                      .scratch = block_scratch,
                                      .flops = product_flops};
const nn_kind_row nn_kind_from_modes = {.name = "rows from modes of the first dimension",
                                        .slot = NN_SLOT(gemm),
                                        .run = run_from_modes,
                                        .back = back_product,
                                        .scratch = block_scratch,
                                        .flops = product_flops};

/* ---- what is sent ---- */

size_t nn_split_sent(const nn_program *p) {
    size_t bytes = 0;
    for (int i = 0; i < p->op_count; i++) {
        const nn_op *op = &p->ops[i];
        if (op->kind == NN_TO_MODES || op->kind == NN_FROM_MODES) {
            const nn_transform *t = &p->transforms[op->transform];
            const nn_value *x = &p->values[op->in[NN_X]];
            bytes += (size_t)(p->batch * x->channels * t->first_modes * t->mode_count) *
                     tg_dtype_size(x->dtype);
        }
        const bool is_norm = op->kind == NN_NORM || op->kind == NN_NORM_BACK;
        bytes += is_norm ? nn_norm_sent(p, op) : 0;
    }
    return bytes;
}
