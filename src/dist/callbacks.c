/* Transport by the caller's functions. */
#include <stdio.h>

#include "base/sized.h"
#include "dist/comm.h"

static tg_status checked(const tg_comm *comm, const char *name, int result) {
    return result == 0
               ? TG_OK
               : tg_fail(comm->ctx, TG_E_BACKEND, "rank %d of %d: the caller's %s returned %d",
                         comm->rank, comm->ranks, name, result);
}

static tg_status all_reduce(tg_comm *comm, tg_comm_op op, tg_dtype dtype, int64_t n, void *x) {
    const tg_comm_callbacks *call = comm->state;
    return checked(comm, "all_reduce", call->all_reduce(call->user, op, dtype, n, x));
}

static tg_status broadcast(tg_comm *comm, int root, int64_t bytes, void *x) {
    const tg_comm_callbacks *call = comm->state;
    return checked(comm, "broadcast", call->broadcast(call->user, root, bytes, x));
}

static tg_status barrier(tg_comm *comm) {
    const tg_comm_callbacks *call = comm->state;
    return checked(comm, "barrier", call->barrier(call->user));
}

static void close_callbacks(tg_comm *comm) {
    TG_FREE(comm->ctx, comm->state);
}

static const tg_comm_ops callback_ops = {
    .all_reduce = all_reduce, .broadcast = broadcast, .barrier = barrier, .close = close_callbacks};

tg_status tg_comm_create_callbacks(tg_context *ctx, const tg_comm_callbacks *callbacks,
                                   tg_comm **out) {
    TG_NEED_OUT(ctx, out, ctx, callbacks);
    tg_status status = TG_OK;
    tg_comm *comm = NULL;
    tg_comm_callbacks *own = NULL;
    tg_comm_callbacks full = {.size = sizeof full};
    TG_TRY(TG_SIZED_READ(ctx, tg_comm_callbacks, user, callbacks, &full));
    if (full.ranks < 1 || full.rank < 0 || full.rank >= full.ranks) {
        return tg_fail(ctx, TG_E_ARGUMENT, "communicator: rank %d of %d", full.rank, full.ranks);
    }
    if (!full.all_reduce || !full.broadcast || !full.barrier) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "communicator: all_reduce, broadcast and barrier are needed");
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, own, 1));
    *own = full;
    TG_TRY(tg_comm_begin(ctx, NULL, &comm));
    comm->ops = &callback_ops;
    comm->state = own;
    comm->rank = full.rank;
    comm->ranks = full.ranks;
    snprintf(comm->transport, sizeof comm->transport, "callbacks");
    return tg_comm_finish(&comm, out);
fail:
    tg_mem_free(ctx, own);
    return status;
}
