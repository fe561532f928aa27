/* Communicators of any transport: checks, staging of device memory through the host, and operations
 * composed of others. */
#include "dist/comm.h"

#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/system.h"

/* Device memory is staged through one buffer in pieces of this size. */
enum { STAGE_BYTES = 4 << 20 };

void tg_comm_config_init(tg_comm_config *config, size_t size) {
    const tg_comm_config defaults = {.size = sizeof defaults, .timeout = 600.0};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

/* ---- life ---- */

tg_status tg_comm_begin(tg_context *ctx, const tg_comm_config *config, tg_comm **out) {
    tg_status status = TG_OK;
    tg_comm *comm = NULL;
    tg_comm_config full = tg_comm_config_default();
    if (config) {
        TG_TRY(TG_SIZED_READ(ctx, tg_comm_config, timeout, config, &full));
    }
    if (!(full.timeout > 0.0)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "communicator: a timeout of %g s, not > 0",
                       full.timeout);
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, comm, 1));
    comm->ctx = ctx;
    comm->ranks = comm->local_ranks = 1;
    comm->timeout = full.timeout;
fail:
    *out = comm;
    return status;
}

void tg_comm_destroy(tg_comm **comm) {
    if (!comm || !*comm) {
        return;
    }
    if ((*comm)->whole && (*comm)->whole->is_broken) {
        (*comm)->is_broken = true; /* other ranks may not come to close it */
    }
    if ((*comm)->device) {
        (*comm)->device->close(*comm);
    }
    if ((*comm)->ops && (*comm)->ops->close) {
        (*comm)->ops->close(*comm);
    }
    tg_mem_free((*comm)->ctx, (*comm)->stage);
    TG_FREE((*comm)->ctx, *comm);
}

/* Determines which ranks are on the same machine. */
static tg_status find_neighbours(tg_comm *comm) {
    tg_status status = TG_OK;
    uint64_t *machines = NULL;
    TG_TRY(TG_NEW(comm->ctx, TG_MEM_OTHER, machines, comm->ranks));
    machines[comm->rank] = tg_comm_machine();
    const tg_tensor all = {.dtype = TG_U64, .shape = {1, {comm->ranks}}, .data = machines};
    TG_TRY(tg_comm_all_gather(comm, &all));
    comm->local_rank = comm->local_ranks = 0;
    for (int i = 0; i < comm->ranks; i++) {
        const int same = machines[i] == machines[comm->rank];
        comm->local_ranks += same;
        comm->local_rank += same && i < comm->rank;
    }
fail:
    tg_mem_free(comm->ctx, machines);
    return status;
}

tg_status tg_comm_finish(tg_comm **comm, tg_comm **out) {
    const tg_status status = find_neighbours(*comm);
    if (status != TG_OK) {
        tg_comm_destroy(comm);
        return status;
    }
    (*comm)->stats = (tg_comm_stats){0};
    *out = *comm;
    return TG_OK;
}

static const tg_comm_ops self_ops = {0}; /* one rank: no transport is called */

tg_status tg_comm_create_self(tg_context *ctx, tg_comm **out) {
    TG_NEED_OUT(ctx, out, ctx);
    TG_CALL(tg_comm_begin(ctx, NULL, out));
    (*out)->ops = &self_ops;
    snprintf((*out)->transport, sizeof(*out)->transport, "self");
    return TG_OK;
}

tg_status tg_comm_split(tg_comm *comm, int color, int ranks, tg_comm **out) {
    tg_status status = TG_OK;
    tg_comm *sub = NULL;
    *out = NULL;
    if (ranks == 1) {
        return tg_comm_create_self(comm->ctx, out);
    }
    TG_TRY(tg_comm_begin(comm->ctx, NULL, &sub));
    sub->timeout = comm->timeout;
    status = comm->ops->split ? comm->ops->split(comm, color, ranks, sub) : TG_E_UNSUPPORTED;
    if (status == TG_E_UNSUPPORTED) {
        status = tg_fail(comm->ctx, status,
                         "communicator: %d ranks over %s cannot be split into parts of %d",
                         comm->ranks, comm->transport, ranks);
    }
    TG_TRY(status);
    TG_CALL(tg_comm_finish(&sub, out));
    (*out)->whole = comm;
    return TG_OK;
fail:
    tg_comm_destroy(&sub);
    return status;
}

void tg_comm_abort(tg_comm *comm) {
    if (comm) {
        comm->is_broken = true;
        if (comm->ops->end_all) {
            comm->ops->end_all(comm);
        }
    }
}

/* ---- properties ---- */

int tg_comm_rank(const tg_comm *comm) {
    return comm ? comm->rank : 0;
}

int tg_comm_ranks(const tg_comm *comm) {
    return comm ? comm->ranks : 0;
}

bool tg_comm_is_alone(const tg_comm *comm) {
    return !comm || (comm->ranks == 1 && !comm->device);
}

tg_comm_info tg_comm_get_info(const tg_comm *comm) {
    return comm ? (tg_comm_info){comm->local_rank, comm->local_ranks,
                                 comm->has_agreed && !comm->is_broken, comm->transport, comm->stats}
                : (tg_comm_info){.transport = ""};
}

tg_status tg_comm_timed_out(const tg_comm *comm, const char *operation, const char *why) {
    return tg_fail(comm->ctx, TG_E_BACKEND,
                   "rank %d of %d: %s was not finished within %g s (distributed.timeout): %s",
                   comm->rank, comm->ranks, operation, comm->timeout, why);
}

/* ---- one transport call ---- */

static bool gives(const tg_comm *comm, const tg_comm_call *c) {
    return c->kind != TG_BROADCAST || comm->rank == c->root;
}

static bool gets(const tg_comm *comm, const tg_comm_call *c) {
    return c->kind == TG_ALL_REDUCE || (comm->rank == c->root) == (c->kind == TG_REDUCE);
}

/* The staging buffer, made when it is first needed. */
static tg_status get_stage(tg_comm *comm, char **stage) {
    tg_comm *owner = comm->whole ? comm->whole : comm;
    if (!owner->stage) {
        owner->stage = tg_mem_alloc(comm->ctx, TG_MEM_COMMUNICATION, STAGE_BYTES, 1);
    }
    *stage = owner->stage;
    return owner->stage ? TG_OK : TG_E_MEMORY;
}

static tg_status run_staged(tg_comm *comm, const tg_comm_call *c, int64_t n, void *x) {
    tg_backend *be = NULL;
    char *stage = NULL;
    const int64_t size = (int64_t)tg_dtype_size(c->dtype), most = STAGE_BYTES / size;
    tg_comm_call whole = *c;
    whole.is_begun = false; /* the buffer is reused at once */
    TG_CALL(tg_backend_get(comm->ctx, &be));
    TG_CALL(get_stage(comm, &stage));
    for (int64_t i = 0; i < n; i += most) {
        const int64_t count = n - i < most ? n - i : most;
        char *piece = (char *)x + i * size;
        if (gives(comm, c)) {
            TG_CALL(be->ops->download(be, stage, piece, (size_t)(count * size)));
        }
        TG_CALL(comm->ops->run(comm, &whole, count, stage));
        if (gets(comm, c)) {
            TG_CALL(be->ops->upload(be, piece, stage, (size_t)(count * size)));
        }
    }
    return TG_OK;
}

/* Breaks it and what it is a part of. */
static void break_if(tg_comm *comm, tg_status status) {
    for (; comm && status != TG_OK; comm = comm->whole) {
        comm->is_broken = true;
    }
}

static tg_status run_anywhere(tg_comm *comm, const tg_comm_call *c, int64_t n, void *x) {
    const bool is_direct = c->place != TG_HOST && comm->device;
    if (n == 0 || (comm->ranks == 1 && !is_direct)) {
        return TG_OK;
    }
    const tg_status status = is_direct             ? comm->device->run(comm, c, n, x)
                             : c->place == TG_HOST ? comm->ops->run(comm, c, n, x)
                                                   : run_staged(comm, c, n, x);
    break_if(comm, status);
    return status;
}

/* ---- a message to one rank and one from another ---- */

static int64_t piece_bytes(int64_t all, int64_t first, int64_t most) {
    return all <= first ? 0 : all - first < most ? all - first : most;
}

static tg_status complete(tg_comm *comm, const tg_comm_ops *ops) {
    return ops && ops->complete && !comm->is_broken ? ops->complete(comm) : TG_OK;
}

/* In pieces: the sent ones in the first half of the buffer, the received ones in the second. */
static tg_status exchange_staged(tg_comm *comm, const tg_comm_pair *pair) {
    enum { HALF = STAGE_BYTES / 2 };
    tg_backend *be = NULL;
    char *stage = NULL;
    TG_CALL(tg_backend_get(comm->ctx, &be));
    TG_CALL(get_stage(comm, &stage));
    for (int64_t i = 0; i < pair->sent_bytes || i < pair->received_bytes; i += HALF) {
        const tg_comm_pair piece = {.to = pair->to,
                                    .from = pair->from,
                                    .sent = stage,
                                    .received = stage + HALF,
                                    .sent_bytes = piece_bytes(pair->sent_bytes, i, HALF),
                                    .received_bytes = piece_bytes(pair->received_bytes, i, HALF)};
        if (piece.sent_bytes > 0) {
            TG_CALL(be->ops->download(be, stage, (const char *)pair->sent + i,
                                      (size_t)piece.sent_bytes));
        }
        TG_CALL(comm->ops->begin_exchange(comm, &piece));
        TG_CALL(complete(comm, comm->ops));
        if (piece.received_bytes > 0) {
            TG_CALL(be->ops->upload(be, (char *)pair->received + i, stage + HALF,
                                    (size_t)piece.received_bytes));
        }
    }
    return TG_OK;
}

/* Over a transport that only has collectives: every message goes to all ranks. */
static tg_status exchange_by_broadcasts(tg_comm *comm, const tg_comm_pair *pair, tg_place place) {
    char *stage = NULL;
    TG_CALL(get_stage(comm, &stage));
    for (int root = 0; root < comm->ranks; root++) {
        const tg_comm_call c = {.kind = TG_BROADCAST, .root = root, .dtype = TG_U8};
        int64_t news[2] = {pair->to, pair->sent_bytes};
        TG_CALL(comm->ops->run(comm, &c, (int64_t)sizeof news, news));
        const bool is_source = comm->rank == root, is_target = comm->rank == news[0];
        char *own = is_source ? (char *)(uintptr_t)pair->sent : pair->received;
        if (is_target && (root != pair->from || news[1] != pair->received_bytes)) {
            return tg_fail(comm->ctx, TG_E_ARGUMENT,
                           "rank %d of %d: exchange: %lld bytes from rank %d, not %lld from %d",
                           comm->rank, comm->ranks, (long long)news[1], root,
                           (long long)pair->received_bytes, pair->from);
        }
        for (int64_t i = 0; i < news[1]; i += STAGE_BYTES) {
            const bool takes_part = is_source || is_target;
            const int64_t n = piece_bytes(news[1], i, STAGE_BYTES);
            TG_CALL(takes_part && place != TG_HOST
                        ? run_staged(comm, &c, n, own + i)
                        : comm->ops->run(comm, &c, n, takes_part ? own + i : stage));
        }
    }
    return TG_OK;
}

static tg_status copy_own(const tg_comm *comm, const tg_comm_pair *pair, tg_place place) {
    tg_backend *be = NULL;
    if (pair->sent_bytes != pair->received_bytes) {
        return tg_fail(comm->ctx, TG_E_ARGUMENT, "exchange: %lld bytes for itself, not %lld",
                       (long long)pair->sent_bytes, (long long)pair->received_bytes);
    }
    if (place == TG_HOST) {
        memcpy(pair->received, pair->sent, (size_t)pair->sent_bytes);
        return TG_OK;
    }
    TG_CALL(tg_backend_get(comm->ctx, &be));
    return be->ops->copy(be, pair->received, pair->sent, (size_t)pair->sent_bytes);
}

static tg_status begin_exchange(tg_comm *comm, const tg_comm_pair *pair, tg_place place) {
    const bool is_direct = place != TG_HOST && comm->device;
    return is_direct                    ? comm->device->begin_exchange(comm, pair)
           : comm->ranks == 1           ? copy_own(comm, pair, place)
           : !comm->ops->begin_exchange ? exchange_by_broadcasts(comm, pair, place)
           : place == TG_HOST           ? comm->ops->begin_exchange(comm, pair)
                                        : exchange_staged(comm, pair);
}

/* ---- operations ---- */

static tg_status check(tg_comm *comm, const char *name, int root, const tg_tensor *values) {
    const int64_t n = tg_shape_numel(&values->shape);
    if (comm->is_broken) {
        return tg_fail(comm->ctx, TG_E_BACKEND,
                       "rank %d of %d: %s: an operation of this communicator failed before",
                       comm->rank, comm->ranks, name);
    }
    const tg_status queued = comm->device ? comm->device->check(comm) : TG_OK;
    break_if(comm, queued);
    TG_CALL(queued);
    if (root < 0 || root >= comm->ranks) {
        return tg_fail(comm->ctx, TG_E_ARGUMENT, "%s: rank %d of %d", name, root, comm->ranks);
    }
    if (n < 0 || (n > 0 && !values->data) || (unsigned)values->dtype >= TG_DTYPES) {
        return tg_fail(comm->ctx, TG_E_ARGUMENT, "%s: not a tensor with values", name);
    }
    if (values->place != TG_HOST) {
        tg_backend *be = NULL;
        TG_CALL(tg_backend_get(comm->ctx, &be));
        if (values->place != be->ops->place) {
            return tg_fail(comm->ctx, TG_E_ARGUMENT,
                           "%s: values on a device, but the backend computes on the host", name);
        }
    }
    return TG_OK;
}

/* Validates a reduction's dtype and sets the number of real values per element. */
static tg_status check_reduction(tg_comm *comm, tg_comm_call *c, const tg_tensor *values,
                                 int *per_element) {
    TG_CALL(check(comm, c->name, c->root, values));
    c->dtype = tg_dtype_real(values->dtype);
    c->place = values->place;
    *per_element = c->dtype == values->dtype ? 1 : 2;
    const bool is_known = c->dtype == TG_F32 || c->dtype == TG_F64;
    if (!is_known || (c->op != TG_COMM_SUM && (c->op != TG_COMM_MAX || *per_element > 1))) {
        return tg_fail(comm->ctx, TG_E_DTYPE, "%s: %s of %s, it takes %s", c->name,
                       c->op == TG_COMM_SUM ? "the sum" : "the maximum",
                       tg_dtype_name(values->dtype),
                       c->op == TG_COMM_SUM ? "f32, f64, c64 and c128" : "f32 and f64");
    }
    return TG_OK;
}

/* In its own statistics and in those of what it is a part of. */
static void count(tg_comm *comm, double start, int calls, int64_t reduced, int64_t copied) {
    const double seconds = tg_seconds() - start;
    for (; comm; comm = comm->whole) {
        comm->stats.calls += calls;
        comm->stats.seconds += seconds;
        comm->stats.reduced += reduced;
        comm->stats.copied += copied;
    }
}

/* Reduces all values to one place, or each rank's part to that rank. */
static tg_status reduce_by(tg_comm *comm, tg_comm_call c, bool by_parts, const tg_tensor *values) {
    const double start = tg_seconds();
    int per_element = 1;
    TG_CALL(check_reduction(comm, &c, values, &per_element));
    const int64_t n = tg_shape_numel(&values->shape);
    const size_t size = tg_dtype_size(values->dtype);
    for (int rank = 0; by_parts && rank < comm->ranks; rank++) {
        const tg_range part = tg_partition(n, 1, comm->ranks, rank);
        c.root = rank;
        TG_CALL(run_anywhere(comm, &c, (part.end - part.begin) * per_element,
                             (char *)values->data + (size_t)part.begin * size));
    }
    TG_CALL(by_parts ? TG_OK : run_anywhere(comm, &c, n * per_element, values->data));
    count(comm, start, 1, (int64_t)tg_tensor_bytes(values), 0);
    return TG_OK;
}

tg_status tg_comm_all_reduce(tg_comm *comm, tg_comm_op op, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    return reduce_by(comm, (tg_comm_call){.name = "all-reduce", .kind = TG_ALL_REDUCE, .op = op},
                     false, values);
}

tg_status tg_comm_all_reduce_f64(tg_comm *comm, tg_comm_op op, int64_t count, void *numbers) {
    const tg_tensor values = {.dtype = TG_F64, .shape = {1, {count}}, .data = numbers};
    return tg_comm_all_reduce(comm, op, &values);
}

tg_status tg_comm_reduce(tg_comm *comm, tg_comm_op op, int owner, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    return reduce_by(comm,
                     (tg_comm_call){.name = "reduce", .kind = TG_REDUCE, .op = op, .root = owner},
                     false, values);
}

tg_status tg_comm_begin_sum(tg_comm *comm, int owner, const tg_tensor *values) {
    const tg_comm_call c = {.name = owner < 0 ? "all-reduce" : "reduce",
                            .kind = owner < 0 ? TG_ALL_REDUCE : TG_REDUCE,
                            .op = TG_COMM_SUM,
                            .root = owner < 0 ? 0 : owner,
                            .is_begun = true};
    return reduce_by(comm, c, false, values);
}

tg_status tg_comm_begin_exchange(tg_comm *comm, int to, const tg_tensor *sent, int from,
                                 const tg_tensor *received) {
    const double start = tg_seconds();
    const tg_comm_pair pair = {.to = to,
                               .from = from,
                               .sent = sent->data,
                               .received = received->data,
                               .sent_bytes = (int64_t)tg_tensor_bytes(sent),
                               .received_bytes = (int64_t)tg_tensor_bytes(received)};
    TG_CALL(check(comm, "exchange", to, sent));
    TG_CALL(check(comm, "exchange", from, received));
    if (sent->place != received->place ||
        (comm->ranks > 1 && (to == comm->rank || from == comm->rank))) {
        return tg_fail(comm->ctx, TG_E_ARGUMENT,
                       "exchange: with itself, or between values in two places");
    }
    const tg_status status = begin_exchange(comm, &pair, sent->place);
    break_if(comm, status);
    count(comm, start, 1, 0, pair.sent_bytes);
    return status;
}

tg_status tg_comm_complete(tg_comm *comm) {
    const double start = tg_seconds();
    tg_status status = complete(comm, comm->ops);
    status = status == TG_OK ? complete(comm, comm->device) : status;
    break_if(comm, status);
    count(comm, start, 0, 0, 0);
    return status;
}

tg_status tg_comm_exchange(tg_comm *comm, int to, const tg_tensor *sent, int from,
                           const tg_tensor *received) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, sent, received);
    TG_CALL(tg_comm_begin_exchange(comm, to, sent, from, received));
    return tg_comm_complete(comm);
}

bool tg_comm_is_on_stream(const tg_comm *comm) {
    return comm && comm->device;
}

tg_status tg_comm_begin_queue(tg_comm *comm) {
    const tg_status status = comm->device->begin_queue(comm);
    comm->is_queueing = status == TG_OK;
    return status;
}

tg_status tg_comm_end_queue(tg_comm *comm) {
    comm->is_queueing = false;
    return comm->device->end_queue(comm);
}

tg_status tg_comm_group_sums(tg_comm *comm, bool begins) {
    return comm->device->group(comm, begins);
}

tg_status tg_comm_reduce_scatter(tg_comm *comm, tg_comm_op op, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    return reduce_by(comm, (tg_comm_call){.name = "reduce-scatter", .kind = TG_REDUCE, .op = op},
                     true, values);
}

tg_status tg_comm_all_gather(tg_comm *comm, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    const double start = tg_seconds();
    TG_CALL(check(comm, "all-gather", 0, values));
    const int64_t size = (int64_t)tg_dtype_size(values->dtype);
    for (int rank = 0; rank < comm->ranks; rank++) {
        const tg_range part = tg_partition(tg_shape_numel(&values->shape), 1, comm->ranks, rank);
        const tg_comm_call c = {.name = "all-gather",
                                .kind = TG_BROADCAST,
                                .root = rank,
                                .dtype = TG_U8,
                                .place = values->place};
        TG_CALL(run_anywhere(comm, &c, (part.end - part.begin) * size,
                             (char *)values->data + part.begin * size));
    }
    count(comm, start, 1, 0, (int64_t)tg_tensor_bytes(values));
    return TG_OK;
}

tg_status tg_comm_broadcast(tg_comm *comm, int root, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    const double start = tg_seconds();
    const tg_comm_call c = {.name = "broadcast",
                            .kind = TG_BROADCAST,
                            .root = root,
                            .dtype = TG_U8,
                            .place = values->place};
    TG_CALL(check(comm, c.name, root, values));
    TG_CALL(run_anywhere(comm, &c, (int64_t)tg_tensor_bytes(values), values->data));
    count(comm, start, 1, 0, (int64_t)tg_tensor_bytes(values));
    return TG_OK;
}

tg_status tg_comm_broadcast_bytes(tg_comm *comm, int root, size_t bytes, void *data) {
    const tg_tensor values = {.dtype = TG_U8, .shape = {1, {(int64_t)bytes}}, .data = data};
    return tg_comm_broadcast(comm, root, &values);
}

tg_status tg_comm_barrier(tg_comm *comm) {
    TG_NEED(NULL, comm);
    const double start = tg_seconds();
    const tg_tensor nothing = {.shape = {1, {0}}};
    tg_status status = TG_OK;
    TG_CALL(check(comm, "barrier", 0, &nothing));
    if (comm->ranks > 1) {
        status = comm->ops->barrier(comm);
        break_if(comm, status);
    }
    count(comm, start, 1, 0, 0);
    return status;
}
