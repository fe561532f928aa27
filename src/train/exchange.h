/* What ranks send each other in an update: the sums of their gradients.
 *
 * Between refreshes that is the core and the kept values of a projected parameter, which are sums
 * over the whole batch as exactly as dense ones would be. Small dense parameters travel together,
 * in one bucket. On a step that refreshes, the dense sum of a layer goes to one rank, its owner,
 * which decomposes it and sends factors, index set and projected sum to all: the layers are spread
 * over the ranks, so that as many are decomposed at once.
 *
 * With state spread over ranks (optim/shard.h) sums go to the owners of the moments, which send
 * updates back: as many bytes. */
#ifndef TG_TRAIN_EXCHANGE_H
#define TG_TRAIN_EXCHANGE_H

#include "dist/comm.h"
#include "optim/optim.h"

typedef struct tg_exchange tg_exchange;

/* Both outlive it. The optimizer accumulates. */
TG_NODISCARD tg_status tg_exchange_create(tg_context *ctx, tg_comm *comm, tg_optim *optim,
                                          bool overlaps, tg_exchange **out);
void tg_exchange_destroy(tg_exchange **exchange);

/* Of one pass: adds up gradients; if the exchange overlaps, of one backward pass per update, and
 * begins to send a sum when its gradient has come. What travels while the rest of the pass computes
 * is ended by tg_exchange_sums. */
tg_grad_sink tg_exchange_sink(tg_exchange *x);

/* Every parameter has a sum under way; they become those of all ranks. `clips`: their norm will be
 * asked for. */
TG_NODISCARD tg_status tg_exchange_sums(tg_exchange *exchange, bool clips);
/* Then the update of a parameter. */
TG_NODISCARD tg_status tg_exchange_apply(tg_exchange *exchange, int param, const tg_tensor *weight);

/* ---- on the stream of a device, without a wait of the host ---- */

/* Whether ordinary updates can be made so. */
bool tg_exchange_can_stream(const tg_exchange *x);

/* Around a backward pass with tg_exchange_sink that makes the whole update; tg_exchange_stream is
 * its end, which also adds up the loss. The pass may be captured, and is not called where a graph
 * runs it again; on all ranks alike. `status` is what became of it. */
TG_NODISCARD tg_status tg_exchange_begin_stream(tg_exchange *x);
TG_NODISCARD tg_status tg_exchange_stream(tg_exchange *x, const tg_tensor *loss);
TG_NODISCARD tg_status tg_exchange_end_stream(tg_exchange *x, tg_status status);

/* Moments that live on other ranks, by their names in a checkpoint: on rank 0 copies on the host;
 * on the others, which call it too, nothing. `status` is that of what this rank did before. *out is
 * NULL where every rank has all, and to be destroyed. */
TG_NODISCARD tg_status tg_exchange_gather_state(tg_comm *comm, tg_optim *optim, tg_status status,
                                                tg_archive **out);

#endif
