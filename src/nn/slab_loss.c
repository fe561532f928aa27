/* Losses of a split network, of which each rank has a slab of the prediction and of the target: the
 * slot `loss` measures the slabs, their powers are added up over the ranks, and with the sums the
 * slot computes the whole loss on every rank, and the gradient of its slab.
 *
 * Differences along the first dimension reach 2 rows beyond a slab, the gradient's included. A rank
 * sends those that it has of another one's in a message with zeros for the rest; the messages to a
 * rank add up to its edges. */
#include <string.h>

#include "backend/tensor.h"
#include "base/memory.h"
#include "nn/losses.h"

/* ---- memory: powers, the edges of pred and target, messages to and from another rank ---- */

static size_t powers_bytes(const tg_loss_op *op) {
    return tg_align((size_t)(2 * op->images) * sizeof(double));
}

static size_t edges_bytes(const tg_loss_op *op) {
    return (size_t)(op->images * tg_loss_edges(op)) * tg_dtype_size(op->dtype);
}

size_t nn_slab_loss_bytes(const tg_loss_op *op) {
    return powers_bytes(op) + 6 * edges_bytes(op);
}

/* Whether parts that are so far apart, in a ring, have rows of each other's edges: neighbours, and
 * their neighbours where a slab may have only one row. */
static bool is_near(const nn_split *split, int64_t whole, int distance) {
    const int reach = whole >= 2 * (int64_t)split->parts ? 1 : 2;
    return distance <= reach || split->parts - distance <= reach;
}

nn_traffic nn_slab_edges_sent(const tg_loss_op *op, const nn_split *split, int64_t whole) {
    nn_traffic sent = {0};
    for (int distance = 1; distance < split->parts; distance++) {
        sent.messages += is_near(split, whole, distance) ? 1 : 0;
    }
    sent.bytes = (size_t)sent.messages * 2 * edges_bytes(op);
    return sent;
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

/* Sets `to` to the rows that are here of a part's edges, of both fields, and zeros. */
static tg_status collect(tg_backend *be, const nn_loss_slab *slab, const tg_loss_op *op, int part,
                         const tg_tensor *to) {
    char *data = to->data;
    TG_CALL(be->ops->fill(be, op->dtype, tg_tensor_numel(to), (tg_scalar){0}, data));
    TG_CALL(copy_rows(be, slab, op, part, op->pred, data));
    return copy_rows(be, slab, op, part, op->target, data + edges_bytes(op));
}

tg_status nn_slab_exchange(tg_backend *be, const nn_loss_slab *slab, const tg_loss_op *op) {
    const int part = slab->split->part, parts = slab->split->parts;
    const tg_shape shape = {1, {2 * op->images * tg_loss_edges(op)}};
    char *memory = edges_at(slab, op);
    const tg_tensor edges = tg_backend_view(be, op->dtype, &shape, memory);
    const tg_tensor sent = tg_backend_view(be, op->dtype, &shape, memory + 2 * edges_bytes(op));
    const tg_tensor received = tg_backend_view(be, op->dtype, &shape, memory + 4 * edges_bytes(op));
    TG_CALL(collect(be, slab, op, part, &edges));
    for (int distance = 1; distance < parts; distance++) {
        const int to = (part + distance) % parts, from = (part + parts - distance) % parts;
        if (is_near(slab->split, slab->whole, distance)) {
            TG_CALL(collect(be, slab, op, to, &sent));
            TG_CALL(tg_comm_exchange(slab->split->comm, to, &sent, from, &received));
            TG_CALL(be->ops->axpy(be, op->dtype, shape.dim[0], (tg_scalar){1.0, 0.0}, received.data,
                                  edges.data));
        }
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
