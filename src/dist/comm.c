/* Communicators of any transport: checks, staging of device memory through the host, and operations
 * composed of others. */
#include "dist/comm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

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
    if ((*comm)->device) {
        (*comm)->device->close(*comm);
    }
    if ((*comm)->ops && (*comm)->ops->close) {
        (*comm)->ops->close(*comm);
    }
    tg_mem_free((*comm)->ctx, (*comm)->stage);
    TG_FREE((*comm)->ctx, *comm);
}

/* 64-bit FNV-1a. */
static uint64_t hash(const void *data, size_t bytes) {
    const unsigned char *byte = data;
    uint64_t value = 0xcbf29ce484222325U;
    for (size_t i = 0; i < bytes; i++) {
        value = (value ^ byte[i]) * 0x100000001b3U;
    }
    return value;
}

uint64_t tg_comm_machine(void) {
    char name[256] = "";
    (void)gethostname(name, sizeof name - 1);
    return hash(name, strlen(name));
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

tg_comm_part tg_comm_get_part(const tg_comm *comm, int64_t count, int rank) {
    if (!comm || count < 1 || rank < 0 || rank >= comm->ranks) {
        return (tg_comm_part){0};
    }
    const tg_range range = tg_partition(count, 1, comm->ranks, rank);
    return (tg_comm_part){range.begin, range.end - range.begin};
}

tg_status tg_comm_timed_out(const tg_comm *comm, const char *operation, const char *why) {
    return tg_fail(comm->ctx, TG_E_BACKEND,
                   "rank %d of %d: %s was not finished within %g s (distributed.timeout): %s",
                   comm->rank, comm->ranks, operation, comm->timeout, why);
}

/* ---- one transport call ---- */

typedef enum call_kind { ALL_REDUCE, REDUCE, BROADCAST } call_kind;

typedef struct call {
    const char *name;
    call_kind kind;
    tg_comm_op op;
    int root;
    tg_dtype dtype; /* real dtype for reductions, u8 for copies */
    tg_place place;
    bool is_begun; /* asynchronous; sums only */
} call;

static bool gives(const tg_comm *comm, const call *c) {
    return c->kind != BROADCAST || comm->rank == c->root;
}

static bool gets(const tg_comm *comm, const call *c) {
    return c->kind == ALL_REDUCE || (comm->rank == c->root) == (c->kind == REDUCE);
}

static tg_status run(tg_comm *comm, const tg_comm_ops *ops, const call *c, int64_t n, void *x) {
    if (c->kind == BROADCAST) {
        return ops->broadcast(comm, c->root, n, x);
    }
    const int owner = c->kind == REDUCE ? c->root : -1;
    return c->is_begun && ops->begin_sum ? ops->begin_sum(comm, owner, c->dtype, n, x)
                                         : ops->reduce(comm, c->op, owner, c->dtype, n, x);
}

static tg_status run_staged(tg_comm *comm, const call *c, int64_t n, void *x) {
    tg_backend *be = NULL;
    const int64_t size = (int64_t)tg_dtype_size(c->dtype), most = STAGE_BYTES / size;
    const call whole = {.name = c->name,
                        .kind = c->kind,
                        .op = c->op,
                        .root = c->root,
                        .dtype = c->dtype}; /* the buffer is reused at once */
    TG_CALL(tg_backend_get(comm->ctx, &be));
    tg_comm *owner = comm->whole ? comm->whole : comm;
    if (!owner->stage) {
        owner->stage = tg_mem_alloc(comm->ctx, TG_MEM_COMMUNICATION, STAGE_BYTES, 1);
        TG_CALL(owner->stage ? TG_OK : TG_E_MEMORY);
    }
    for (int64_t i = 0; i < n; i += most) {
        const int64_t count = n - i < most ? n - i : most;
        char *piece = (char *)x + i * size;
        if (gives(comm, c)) {
            TG_CALL(be->ops->download(be, owner->stage, piece, (size_t)(count * size)));
        }
        TG_CALL(run(comm, comm->ops, &whole, count, owner->stage));
        if (gets(comm, c)) {
            TG_CALL(be->ops->upload(be, piece, owner->stage, (size_t)(count * size)));
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

static tg_status run_anywhere(tg_comm *comm, const call *c, int64_t n, void *x) {
    const bool is_direct = c->place != TG_HOST && comm->device;
    if (n == 0 || (comm->ranks == 1 && !is_direct)) {
        return TG_OK;
    }
    const tg_status status = is_direct             ? run(comm, comm->device, c, n, x)
                             : c->place == TG_HOST ? run(comm, comm->ops, c, n, x)
                                                   : run_staged(comm, c, n, x);
    break_if(comm, status);
    return status;
}

/* ---- operations ---- */

static tg_status check(tg_comm *comm, const char *name, int root, const tg_tensor *values) {
    const int64_t n = tg_shape_numel(&values->shape);
    if (comm->is_broken) {
        return tg_fail(comm->ctx, TG_E_BACKEND,
                       "rank %d of %d: %s: an operation of this communicator failed before",
                       comm->rank, comm->ranks, name);
    }
    TG_CALL(comm->device && comm->device->check ? comm->device->check(comm) : TG_OK);
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
static tg_status check_reduction(tg_comm *comm, call *c, const tg_tensor *values,
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
static void count(tg_comm *comm, double start, int64_t reduced, int64_t copied) {
    const double seconds = tg_seconds() - start;
    for (; comm; comm = comm->whole) {
        comm->stats.calls++;
        comm->stats.seconds += seconds;
        comm->stats.reduced += reduced;
        comm->stats.copied += copied;
    }
}

/* Reduces all values to one place, or each rank's part to that rank. */
static tg_status reduce_by(tg_comm *comm, call c, bool by_parts, const tg_tensor *values) {
    const double start = tg_seconds();
    int per_element = 1;
    TG_CALL(check_reduction(comm, &c, values, &per_element));
    const int64_t n = tg_shape_numel(&values->shape);
    const size_t size = tg_dtype_size(values->dtype);
    for (int rank = 0; by_parts && rank < comm->ranks; rank++) {
        const tg_comm_part part = tg_comm_get_part(comm, n, rank);
        c.root = rank;
        TG_CALL(run_anywhere(comm, &c, part.count * per_element,
                             (char *)values->data + (size_t)part.first * size));
    }
    TG_CALL(by_parts ? TG_OK : run_anywhere(comm, &c, n * per_element, values->data));
    count(comm, start, (int64_t)tg_tensor_bytes(values), 0);
    return TG_OK;
}

tg_status tg_comm_all_reduce(tg_comm *comm, tg_comm_op op, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    return reduce_by(comm, (call){.name = "all-reduce", .kind = ALL_REDUCE, .op = op}, false,
                     values);
}

tg_status tg_comm_reduce(tg_comm *comm, tg_comm_op op, int owner, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    return reduce_by(comm, (call){.name = "reduce", .kind = REDUCE, .op = op, .root = owner}, false,
                     values);
}

tg_status tg_comm_begin_sum(tg_comm *comm, int owner, const tg_tensor *values) {
    const call c = {.name = owner < 0 ? "all-reduce" : "reduce",
                    .kind = owner < 0 ? ALL_REDUCE : REDUCE,
                    .op = TG_COMM_SUM,
                    .root = owner < 0 ? 0 : owner,
                    .is_begun = true};
    return reduce_by(comm, c, false, values);
}

static tg_status end_sums(tg_comm *comm, const tg_comm_ops *ops) {
    return ops && ops->end_sums && !comm->is_broken ? ops->end_sums(comm) : TG_OK;
}

tg_status tg_comm_end_sums(tg_comm *comm) {
    const double start = tg_seconds();
    tg_status status = end_sums(comm, comm->ops);
    status = status == TG_OK ? end_sums(comm, comm->device) : status;
    break_if(comm, status);
    comm->stats.seconds += tg_seconds() - start;
    return status;
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
    return reduce_by(comm, (call){.name = "reduce-scatter", .kind = REDUCE, .op = op}, true,
                     values);
}

tg_status tg_comm_all_gather(tg_comm *comm, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    const double start = tg_seconds();
    TG_CALL(check(comm, "all-gather", 0, values));
    const int64_t size = (int64_t)tg_dtype_size(values->dtype);
    for (int rank = 0; rank < comm->ranks; rank++) {
        const tg_comm_part part = tg_comm_get_part(comm, tg_shape_numel(&values->shape), rank);
        const call c = {.name = "all-gather",
                        .kind = BROADCAST,
                        .root = rank,
                        .dtype = TG_U8,
                        .place = values->place};
        TG_CALL(
            run_anywhere(comm, &c, part.count * size, (char *)values->data + part.first * size));
    }
    count(comm, start, 0, (int64_t)tg_tensor_bytes(values));
    return TG_OK;
}

tg_status tg_comm_broadcast(tg_comm *comm, int root, const tg_tensor *values) {
    TG_NEED(NULL, comm);
    TG_NEED(comm->ctx, values);
    const double start = tg_seconds();
    const call c = {.name = "broadcast",
                    .kind = BROADCAST,
                    .root = root,
                    .dtype = TG_U8,
                    .place = values->place};
    TG_CALL(check(comm, c.name, root, values));
    TG_CALL(run_anywhere(comm, &c, (int64_t)tg_tensor_bytes(values), values->data));
    count(comm, start, 0, (int64_t)tg_tensor_bytes(values));
    return TG_OK;
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
    count(comm, start, 0, 0);
    return status;
}

/* ---- agreement ---- */

typedef struct outcome {
    int32_t status;
    char sentence[1024];
} outcome;

tg_status tg_comm_agree(tg_comm *comm, tg_status own) {
    TG_NEED(NULL, comm);
    if (comm->ranks == 1 || (own != TG_OK && comm->is_broken)) {
        return own;
    }
    tg_status status = TG_OK;
    outcome said = {.status = (int32_t)own};
    snprintf(said.sentence, sizeof said.sentence, "%s", tg_context_error(comm->ctx));
    /* the lowest rank that failed, counted from the last; whether any succeeded */
    double votes[2] = {own == TG_OK ? 0 : comm->ranks - comm->rank, own == TG_OK};
    TG_TRY(tg_comm_all_reduce(comm, TG_COMM_MAX,
                              &(tg_tensor){.dtype = TG_F64, .shape = {1, {2}}, .data = votes}));
    if (votes[0] == 0.0) {
        return TG_OK;
    }
    const int rank = comm->ranks - (int)votes[0];
    comm->has_agreed = true;
    TG_TRY(tg_comm_broadcast(
        comm, rank,
        &(tg_tensor){.dtype = TG_U8, .shape = {1, {(int64_t)sizeof said}}, .data = &said}));
    return votes[1] == 0.0
               ? tg_fail(comm->ctx, (tg_status)said.status, "%s", said.sentence)
               : tg_fail(comm->ctx, (tg_status)said.status, "rank %d: %s", rank, said.sentence);
fail:
    return own == TG_OK ? status : own;
}

tg_status tg_comm_check_same(tg_comm *comm, const char *what, const void *data, size_t bytes) {
    const uint64_t own[2] = {hash(data, bytes), bytes};
    uint64_t first[2];
    memcpy(first, own, sizeof first);
    tg_status status =
        tg_comm_broadcast(comm, 0, &(tg_tensor){.dtype = TG_U64, .shape = {1, {2}}, .data = first});
    if (status == TG_OK && memcmp(first, own, sizeof first) != 0) {
        status = tg_fail(comm->ctx, TG_E_CONFIG, "%s: not as on rank 0", what);
    }
    return tg_comm_agree(comm, status);
}

/* ---- transport by the caller's functions ---- */

static tg_status check_result(const tg_comm *comm, const char *name, int result) {
    return result == 0
               ? TG_OK
               : tg_fail(comm->ctx, TG_E_BACKEND, "rank %d of %d: the caller's %s returned %d",
                         comm->rank, comm->ranks, name, result);
}

/* All ranks get the result, whoever needs it. */
static tg_status call_reduce(tg_comm *comm, tg_comm_op op, int owner, tg_dtype dtype, int64_t n,
                             void *x) {
    (void)owner;
    const tg_comm_callbacks *own = comm->state;
    return check_result(comm, "all_reduce", own->all_reduce(own->user, op, dtype, n, x));
}

static tg_status call_broadcast(tg_comm *comm, int root, int64_t bytes, void *x) {
    const tg_comm_callbacks *own = comm->state;
    return check_result(comm, "broadcast", own->broadcast(own->user, root, bytes, x));
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

static const tg_comm_ops callback_ops = {.reduce = call_reduce,
                                         .broadcast = call_broadcast,
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
