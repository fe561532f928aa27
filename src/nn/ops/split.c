/* One sample over several ranks: every rank computes a slab of the grid along dimension 0, from x
 * to y and the loss (slab_loss.c), and a block of the modes.
 *
 *   TO_MODES    y = sum over the ranks of A x: to each rank its block of the modes of dimension 0
 *   FROM_MODES  y = A^H x for the rows of this rank, x the blocks of all ranks
 *
 * Of D ranks each sends D - 1 blocks to one other rank at a time; meanwhile the next product is
 * computed.
 *
 * A[k, n] = exp(-2 pi i f_k n / N), 0 for modes without a frequency f_k of the grid. The other
 * dimensions are transformed before TO_MODES and after FROM_MODES (spectral.c). In 1-D, half of the
 * spectrum of real data represents both its sides, as in backend.h: where one direction is the
 * adjoint of the other, frequencies other than 0 and N / 2 count twice. */
#include <math.h>

#include "base/minmax.h"
#include "dist/comm.h"
#include "nn/ops.h"

/* ---- the matrices ---- */

static int64_t entries(const nn_transform *t) {
    return t->first_modes * t->rows.count;
}

int64_t nn_split_entries(const nn_transform *t) {
    return (t->is_halved ? 2 : 1) * entries(t);
}

/* Entry `at` of A or, after its last one, of the weighted matrix. */
tg_scalar nn_split_entry(const void *of, int64_t at) {
    const nn_transform *t = of;
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

/* ---- the first dimension ---- */

/* The modes of dimension 0 that a part has. */
static nn_rows block_of(const nn_program *p, const nn_transform *t, int part) {
    return nn_rows_of(&p->model->split, part, t->first_modes);
}

/* For every array of the batch the product of the rows of a part's block with the slab, or the
 * adjoint, which is added to y unless it is the first. */
static tg_status multiply(const tg_fno *fno, const nn_op *op, int part, bool is_first,
                          const void *x, void *y) {
    const nn_program *p = &fno->run.program;
    const nn_transform *t = &p->transforms[op->transform];
    const nn_rows block = block_of(p, t, part);
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
        .beta = {is_first ? 0.0 : 1.0, 0.0},
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

/* Elements of a part's block for every array of a batch. */
static int64_t block_size(const nn_program *p, const nn_op *op, int64_t batch, int part) {
    const nn_transform *t = &p->transforms[op->transform];
    return batch * p->values[op->in[NN_X]].channels * block_of(p, t, part).count * t->mode_count;
}

/* The largest block of another rank. */
static int64_t largest_other(const nn_program *p, const nn_op *op) {
    int64_t most = 0;
    for (int part = 0; part < p->model->split.parts; part++) {
        const bool is_own = part == p->model->split.part;
        most = is_own ? most : tg_max(most, block_size(p, op, p->batch, part));
    }
    return most;
}

static tg_tensor block_at(const tg_fno *fno, const nn_op *op, int part, void *data) {
    const nn_program *p = &fno->run.program;
    const tg_shape shape = {1, {block_size(p, op, fno->run.batch, part)}};
    return tg_backend_view(fno->be, p->values[op->in[NN_X]].dtype, &shape, data);
}

/* The block of another part that a step sends or receives: two of them take turns, one of which
 * travels while the other is used. */
static tg_tensor block_in_turn(const tg_fno *fno, const nn_op *op, int part, int step) {
    const nn_program *p = &fno->run.program;
    const tg_dtype dtype = p->values[op->in[NN_X]].dtype;
    const int64_t at = (step - 1) % 2 * largest_other(p, op);
    return block_at(fno, op, part, nn_element(dtype, nn_data(fno, op->scratch[0]), at));
}

/* Completes an exchange, whatever became of the product made meanwhile. */
static tg_status complete(const tg_fno *fno, tg_status made) {
    const tg_status status = tg_comm_complete(fno->model.split.comm);
    return made == TG_OK ? status : made;
}

/* Step s sends what this rank has of the block of part + s, and adds to its own block what part - s
 * has of it: in the same order every time. */
static tg_status run_to_modes(tg_fno *fno, const nn_op *op) {
    const nn_split *split = &fno->model.split;
    const int part = split->part, parts = split->parts;
    const void *x = nn_data(fno, op->in[NN_X]);
    void *y = nn_data(fno, op->out[0]);
    const tg_tensor received = block_at(fno, op, part, nn_data(fno, op->scratch[1]));
    tg_tensor sent = block_in_turn(fno, op, (part + 1) % parts, 1);
    TG_CALL(multiply(fno, op, (part + 1) % parts, true, x, sent.data));
    for (int step = 1; step < parts; step++) {
        const int to = (part + step) % parts, from = (part + parts - step) % parts;
        const int next = (to + 1) % parts;
        tg_status status = tg_comm_begin_exchange(split->comm, to, &sent, from, &received);
        TG_CALL(status);
        if (step == 1) {
            status = multiply(fno, op, part, true, x, y);
        }
        if (status == TG_OK && next != part) {
            sent = block_in_turn(fno, op, next, step + 1);
            status = multiply(fno, op, next, true, x, sent.data);
        }
        TG_CALL(complete(fno, status));
        TG_CALL(fno->be->ops->axpy(fno->be, received.dtype, tg_tensor_numel(&received),
                                   (tg_scalar){1.0, 0.0}, received.data, y));
    }
    return TG_OK;
}

/* Step s sends the own block to part + s, and receives that of part - s while the one before is
 * used. */
static tg_status run_from_modes(tg_fno *fno, const nn_op *op) {
    const nn_split *split = &fno->model.split;
    const int part = split->part, parts = split->parts;
    void *y = nn_data(fno, op->out[0]);
    const tg_tensor own = block_at(fno, op, part, nn_data(fno, op->in[NN_X]));
    tg_tensor here = own;
    int whose = part;
    for (int step = 1; step < parts; step++) {
        const int to = (part + step) % parts, from = (part + parts - step) % parts;
        const tg_tensor received = block_in_turn(fno, op, from, step);
        TG_CALL(tg_comm_begin_exchange(split->comm, to, &own, from, &received));
        TG_CALL(complete(fno, multiply(fno, op, whose, step == 1, here.data, y)));
        here = received;
        whose = from;
    }
    return multiply(fno, op, whose, false, here.data, y);
}

/* Up to two blocks of other ranks, and what is received of the own one. */
static void block_scratch(const nn_program *p, tg_backend *be, const nn_op *op, size_t bytes[2]) {
    (void)be;
    const nn_split *split = &p->model->split;
    const size_t size = tg_dtype_size(p->values[op->in[NN_X]].dtype);
    bytes[0] = (size_t)(tg_min(split->parts - 1, 2) * largest_other(p, op)) * size;
    bytes[1] =
        op->kind == NN_TO_MODES ? (size_t)block_size(p, op, p->batch, split->part) * size : 0;
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

nn_traffic nn_split_sent(const nn_program *p) {
    const nn_split *split = &p->model->split;
    nn_traffic sent = {0};
    for (int i = 0; i < p->op_count && nn_is_split(split); i++) {
        const nn_op *op = &p->ops[i];
        if (op->kind == NN_TO_MODES || op->kind == NN_FROM_MODES) {
            const bool inwards = op->kind == NN_TO_MODES;
            for (int part = 0; part < split->parts; part++) {
                const int64_t block = block_size(p, op, p->batch, inwards ? part : split->part);
                sent.bytes += part == split->part
                                  ? 0
                                  : (size_t)block * tg_dtype_size(p->values[op->in[NN_X]].dtype);
            }
            sent.messages += split->parts - 1;
        } else if (op->kind == NN_NORM || op->kind == NN_NORM_BACK) {
            sent.bytes += nn_norm_sent(p, op);
            sent.messages += tg_sum_hops(split->parts);
        }
    }
    return sent;
}
