/* Losses of a split network, of which each rank has a slab of the prediction and of the target: the
 * slot `loss` measures the slabs, their powers are added up over the ranks, and with the sums the
 * slot computes the whole loss on every rank, and the gradient of its slab.
 *
 * Differences along the first dimension reach 2 rows beyond a slab, the gradient's included. Ranks
 * that have some of the rows around a part's slab put them into a message of zeros, and the
 * messages are added up on that part. */
#include <string.h>

#include "backend/tensor.h"
#include "base/memory.h"
#include "nn/losses.h"

/* ---- memory: powers, the edges of pred and target, a message to another rank ---- */

static size_t powers_bytes(const tg_loss_op *op) {
    return tg_align((size_t)(2 * op->images) * sizeof(double));
}

static size_t edges_bytes(const tg_loss_op *op) {
    return (size_t)(op->images * tg_loss_edges(op)) * tg_dtype_size(op->dtype);
}

size_t nn_slab_loss_bytes(const tg_loss_op *op) {
    return powers_bytes(op) + 4 * edges_bytes(op);
}

size_t nn_slab_edges_sent(const tg_loss_op *op, int parts) {
    return (size_t)parts * 2 * edges_bytes(op);
}

static char *edges_at(const nn_loss_slab *slab, const tg_loss_op *op) {
    return (char *)slab->memory + powers_bytes(op);
}

/* ---- rows around a slab ---- */

/* Copies those around the slab of `part` that are here, of a field. */
static tg_status copy_rows(tg_backend *be, const nn_loss_slab *slab, const tg_loss_op *op, int part,
                           const void *from, void *to) {
    const nn_rows own = nn_rows_of(slab->split, slab->split->part, slab->whole);
    const nn_rows there = nn_rows_of(slab->split, part, slab->whole);
    const int64_t row = tg_loss_edges(op) / 4;
    for (int k = 0; k < 4; k++) {
        const int64_t at = there.first + (k < 2 ? k - 2 : there.count + k - 2);
        const int64_t here = tg_loss_row(at, slab->whole, false) - own.first;
        const tg_box box = {.dtype = op->dtype,
                            .ndim = 1,
                            .howmany = op->images,
                            .size = {row},
                            .src_dim = {own.count * row},
                            .src_at = {here * row},
                            .dst_dim = {4 * row},
                            .dst_at = {k * row},
                            .src = from,
                            .dst = to};
        if (here >= 0 && here < own.count) {
            TG_CALL(be->ops->box_copy(be, &box));
        }
    }
    return TG_OK;
}

tg_status nn_slab_exchange(tg_backend *be, const nn_loss_slab *slab, const tg_loss_op *op) {
    const int64_t numbers = 2 * op->images * tg_loss_edges(op);
    const tg_shape shape = {1, {numbers}};
    char *edges = edges_at(slab, op), *message = edges + 2 * edges_bytes(op);
    for (int part = 0; part < slab->split->parts; part++) {
        char *to = part == slab->split->part ? edges : message;
        const tg_tensor values = tg_backend_view(be, op->dtype, &shape, to);
        TG_CALL(be->ops->fill(be, op->dtype, numbers, (tg_scalar){0}, to));
        TG_CALL(copy_rows(be, slab, op, part, op->pred, to));
        TG_CALL(copy_rows(be, slab, op, part, op->target, to + edges_bytes(op)));
        TG_CALL(tg_comm_reduce(slab->split->comm, TG_COMM_SUM, part, &values));
    }
    return TG_OK;
}

/* ---- the loss ---- */

void nn_slab_set(const nn_loss_slab *slab, tg_loss_op *op) {
    op->whole = slab->whole;
    op->pred_edges = edges_at(slab, op);
    op->target_edges = edges_at(slab, op) + edges_bytes(op);
}

tg_status nn_slab_loss(tg_backend *be, const nn_loss_slab *slab, const tg_loss_op *op) {
    const tg_shape shape = {1, {2 * op->images}};
    const tg_tensor powers = tg_backend_view(be, TG_F64, &shape, slab->memory);
    tg_loss_op part = *op;
    nn_slab_set(slab, &part);
    part.powers = slab->memory;
    part.value = NULL;
    part.dpred = NULL;
    TG_CALL(be->ops->loss(be, &part));
    TG_CALL(tg_comm_all_reduce(slab->split->comm, TG_COMM_SUM, &powers));
    part.is_measured = true;
    part.value = op->value;
    part.dpred = op->dpred;
    return be->ops->loss(be, &part);
}
