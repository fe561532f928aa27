/* The exchange between ranks in an update: the sums of their gradients.
 *
 * Between refreshes they send the core and the kept values of a projected parameter, which are sums
 * over the whole batch as exactly as dense ones would be. Small dense parameters are sent together,
 * in one bucket. On a step that refreshes, the dense sum of a layer goes to one rank, its owner,
 * which decomposes it and sends factors, index set and projected sum to all: layers are spread over
 * the ranks, which decompose them in parallel.
 *
 * With state spread over ranks (optim/ranks.h), sums go to the owners of the moments, which send
 * updates back: the same number of bytes. */
#ifndef TG_TRAIN_EXCHANGE_H
#define TG_TRAIN_EXCHANGE_H

#include "dist/comm.h"
#include "optim/optim.h"

typedef struct tg_exchange tg_exchange;

/* Both must outlive it. The optimizer must accumulate. */
TG_NODISCARD tg_status tg_exchange_create(tg_context *ctx, tg_comm *comm, tg_optim *optim,
                                          bool overlaps, tg_exchange **out);
void tg_exchange_destroy(tg_exchange **exchange);

/* The sink of one pass: adds up gradients. If the exchange overlaps, there is one backward pass per
 * update, and a sum is sent as soon as its gradient has arrived, while the pass goes on;
 * tg_exchange_sums completes it. */
tg_grad_sink tg_exchange_sink(tg_exchange *x);

/* Every parameter has a sum under way; turns them into those of all ranks. `clips`: their norm will
 * be needed. */
TG_NODISCARD tg_status tg_exchange_sums(tg_exchange *exchange, bool clips);
/* Afterwards, the update of a parameter. */
TG_NODISCARD tg_status tg_exchange_apply(tg_exchange *exchange, int param, const tg_tensor *weight);

/* ---- on the stream of a device, without waiting on the host ---- */

/* Whether ordinary updates can be done on the stream. */
bool tg_exchange_can_stream(const tg_exchange *x);

/* Around a backward pass with tg_exchange_sink that includes the whole update; tg_exchange_stream
 * ends it, and also adds up the loss. The pass may be captured; a replayed graph does not call it.
 * All ranks do the same. `status` is the result of the pass. */
TG_NODISCARD tg_status tg_exchange_begin_stream(tg_exchange *x);
TG_NODISCARD tg_status tg_exchange_stream(tg_exchange *x, const tg_tensor *loss);
TG_NODISCARD tg_status tg_exchange_end_stream(tg_exchange *x, tg_status status);

/* Moments on other ranks, by their names in a checkpoint: copies on the host of rank 0, nothing on
 * other ranks, which must call it too. `status` is that of this rank's earlier work. *out is NULL
 * if every rank has all moments; to be destroyed otherwise. */
TG_NODISCARD tg_status tg_exchange_gather_state(tg_comm *comm, tg_optim *optim, tg_status status,
                                                tg_archive **out);

#endif
