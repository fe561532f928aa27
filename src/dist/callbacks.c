/* Transport by the caller's functions. */
#include <stdio.h>

#include "dist/comm.h"

static tg_status check_result(const tg_comm *comm, const char *name, int result) {
    return result == 0
               ? TG_OK
               : tg_fail(comm->ctx, TG_E_BACKEND, "rank %d of %d: the caller's %s returned %d",
                         comm->rank, comm->ranks, name, result);
}

/* All ranks get the result of a reduction, whoever needs it. */
static tg_status run_callback(tg_comm *comm, const tg_comm_call *c, int64_t n, void *x) {
    const tg_comm_callbacks *own = comm->state;
    return c->kind == TG_BROADCAST
               ? check_result(comm, "broadcast", own->broadcast(own->user, c->root, n, x))
               : check_result(comm, "all_reduce",
                              own->all_reduce(own->user, c->op, c->dtype, n, x));
}

static tg_status call_barrier(tg_comm *comm) {
    const tg_comm_callbacks *own = comm->state;
    return check_result(comm, "barrier", own->barrier(own->user));
}

static void close_callbacks(tg_comm *comm) {
    TG_FREE(comm->ctx, comm->state);
}

/* The functions know no parts, but can serve all ranks as one. */
static tg_status split_callbacks(tg_comm *comm, int color, int ranks, tg_comm *sub) {
    tg_comm_callbacks *own = NULL;
    (void)color;
    if (ranks != comm->ranks) {
        return TG_E_UNSUPPORTED;
    }
    TG_CALL(TG_NEW(comm->ctx, TG_MEM_OTHER, own, 1));
    *own = *(const tg_comm_callbacks *)comm->state;
    sub->ops = comm->ops;
    sub->state = own;
    sub->rank = comm->rank;
    sub->ranks = comm->ranks;
    snprintf(sub->transport, sizeof sub->transport, "%s", comm->transport);
    return TG_OK;
}

static const tg_comm_ops callback_ops = {.run = run_callback,
                                         .barrier = call_barrier,
                                         .split = split_callbacks,
                                         .close = close_callbacks};

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
