/* Values of a device over NCCL: collectives on the backend's stream, without the host.
 *
 * A call only queues its work. If a rank dies, the others' streams, and the hosts that synchronize
 * with them, would wait for ever; so a watchdog thread polls whether the last operation is done. A
 * timeout or an error inside NCCL aborts the NCCL communicator: the stream continues with undefined
 * values, and the next call of this communicator fails with the message. Ranks agree before
 * anything is written to disk, so undefined values are never saved.
 *
 * Aborting ends the work of the device at once, but returns only when no captured graph refers to
 * the communicator: the watchdog aborts while the owner destroys the graphs during cleanup. */
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "dist/comm.h"
#include "dist/libraries.h"

typedef struct nccl_state {
    const tg_nccl *nccl;
    tg_backend *be;
    tg_stream_event *event; /* after the last operation */
    pthread_t watchdog;
    bool has_watchdog;
    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t change;
    void *comm;            /* NULL: not created, or given up */
    void *given_up;        /* to be aborted without the lock */
    const char *operation; /* the last one, or NULL */
    bool is_queued;        /* queued before the event; otherwise NCCL has not returned yet */
    double since;          /* start time in seconds */
    bool is_late;          /* it timed out */
    char error[256];       /* of NCCL; "": none */
    bool ends;
} nccl_state;

/* Stores NCCL's message for an error. */
static void describe(nccl_state *s, int code) {
    const char *more = s->comm ? s->nccl->last_error(s->comm) : NULL;
    snprintf(s->error, sizeof s->error, "%s%s%.180s", s->nccl->error_string(code),
             more && *more ? ": " : "", more ? more : "");
}

/* Call with the lock held. */
static void give_up(nccl_state *s) {
    if (s->comm) {
        s->given_up = s->comm;
        s->comm = NULL;
        pthread_cond_signal(&s->change);
    }
}

/* Call without the lock. */
static void abort_given_up(nccl_state *s) {
    if (s->given_up) {
        (void)s->nccl->comm_abort(s->given_up);
        s->given_up = NULL;
    }
}

/* Waits until NCCL has finished a nonblocking call; call without the lock. */
static int await(const tg_comm *comm, nccl_state *s, int code) {
    const double start = tg_seconds();
    while (code == TG_NCCL_IN_PROGRESS) {
        pthread_mutex_lock(&s->lock);
        if (s->comm) {
            (void)s->nccl->comm_error(s->comm, &code);
            s->is_late = code == TG_NCCL_IN_PROGRESS && tg_seconds() - start > comm->timeout;
        }
        const bool ends = !s->comm || s->is_late;
        pthread_mutex_unlock(&s->lock);
        if (ends) {
            break;
        }
        if (code == TG_NCCL_IN_PROGRESS) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        }
    }
    return code;
}

/* ---- the watchdog ---- */

/* Polls the last operation; call with the lock held. */
static void check_progress(tg_comm *comm, nccl_state *s) {
    int code = TG_NCCL_SUCCESS;
    if (s->nccl->comm_error(s->comm, &code) == TG_NCCL_SUCCESS && code != TG_NCCL_SUCCESS &&
        code != TG_NCCL_IN_PROGRESS) {
        describe(s, code);
        give_up(s);
    } else if (s->operation && tg_seconds() - s->since > comm->timeout &&
               !(s->is_queued && s->be->ops->stream->event_is_reached(s->be, s->event))) {
        s->is_late = true;
        give_up(s);
    }
}

static void *watch(void *user) {
    tg_comm *comm = user;
    nccl_state *s = comm->device_state;
    const double tick = comm->timeout < 1.0 ? 0.25 * comm->timeout : 0.25;
    pthread_mutex_lock(&s->lock);
    while (!s->ends && s->comm) {
        struct timespec until;
        clock_gettime(CLOCK_MONOTONIC, &until);
        const double end = (double)until.tv_nsec * 1e-9 + tick;
        until.tv_sec += (time_t)end;
        until.tv_nsec = (long)((end - (double)(time_t)end) * 1e9);
        if (pthread_cond_timedwait(&s->change, &s->lock, &until) == ETIMEDOUT && s->comm) {
            check_progress(comm, s);
        }
    }
    pthread_mutex_unlock(&s->lock);
    abort_given_up(s);
    return NULL;
}

static tg_status start_watchdog(tg_comm *comm, nccl_state *s) {
    const int code = pthread_create(&s->watchdog, NULL, watch, comm);
    s->has_watchdog = code == 0;
    return code == 0 ? TG_OK
                     : tg_fail(comm->ctx, TG_E_BACKEND, "NCCL: no thread: %s", strerror(code));
}

static void end_watchdog(nccl_state *s) {
    if (s->has_watchdog) {
        pthread_mutex_lock(&s->lock);
        s->ends = true;
        pthread_cond_signal(&s->change);
        pthread_mutex_unlock(&s->lock);
        pthread_join(s->watchdog, NULL);
        s->has_watchdog = false;
    }
}

/* ---- operations ---- */

/* The status of the operations so far; call with the lock held. */
static tg_status operation_status(tg_comm *comm, const nccl_state *s) {
    if (s->comm) {
        return TG_OK;
    }
    comm->is_broken = true;
    return s->is_late ? tg_comm_timed_out(comm, s->operation ? s->operation : "meeting over NCCL",
                                          "another rank is late or has died")
                      : tg_fail(comm->ctx, TG_E_BACKEND, "rank %d of %d: NCCL: %s", comm->rank,
                                comm->ranks, s->error);
}

static tg_status check(tg_comm *comm) {
    nccl_state *s = comm->device_state;
    pthread_mutex_lock(&s->lock);
    const tg_status status = operation_status(comm, s);
    pthread_mutex_unlock(&s->lock);
    return status;
}

typedef struct collective {
    const char *name;
    int (*run)(const nccl_state *s, void *comm, const struct collective *q);
    const tg_comm_call *call; /* of n values at x; or .. */
    int64_t n;
    void *x;
    const tg_comm_pair *pair; /* .. an exchange */
    bool is_begun;            /* asynchronous, on the side stream */
} collective;

static tg_status begin(tg_comm *comm, nccl_state *s, const char *name, void **nccl_comm) {
    pthread_mutex_lock(&s->lock);
    const tg_status status = operation_status(comm, s);
    *nccl_comm = s->comm;
    s->operation = name;
    s->is_queued = false;
    s->since = tg_seconds();
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* NCCL is called without the lock: the watchdog aborts a call that does not return. */
static tg_status call(tg_comm *comm, const collective *q) {
    nccl_state *s = comm->device_state;
    void *nccl_comm = NULL;
    TG_CALL(begin(comm, s, q->name, &nccl_comm));
    const int code = await(comm, s, q->run(s, nccl_comm, q));
    pthread_mutex_lock(&s->lock);
    if (code != TG_NCCL_SUCCESS && s->comm) {
        describe(s, code);
        give_up(s);
    }
    const tg_status status = operation_status(comm, s);
    pthread_mutex_unlock(&s->lock);
    return status;
}

/* From now on the watchdog polls the stream. */
static tg_status watch_stream(nccl_state *s) {
    pthread_mutex_lock(&s->lock);
    const tg_status status = s->be->ops->stream->event_record(s->be, s->event);
    s->is_queued = status == TG_OK;
    s->since = tg_seconds();
    pthread_mutex_unlock(&s->lock);
    return status;
}

static tg_status begin_queue(tg_comm *comm) {
    void *nccl_comm = NULL;
    return begin(comm, comm->device_state, "the sums of a step", &nccl_comm);
}

static tg_status end_queue(tg_comm *comm) {
    TG_CALL(check(comm));
    return watch_stream(comm->device_state);
}

/* NCCL groups belong to the thread; their operations start when the group ends. */
static int run_group_start(const nccl_state *s, void *comm, const collective *q) {
    (void)comm;
    (void)q;
    return s->nccl->group_start();
}

static int run_group_end(const nccl_state *s, void *comm, const collective *q) {
    (void)comm;
    (void)q;
    return s->nccl->group_end();
}

static tg_status group(tg_comm *comm, bool begins) {
    return call(comm, &(collective){.name = "a group of sums",
                                    .run = begins ? run_group_start : run_group_end});
}

/* While a graph is captured it may be another one. */
static void *stream_of(const nccl_state *s, const collective *q) {
    return s->be->ops->stream->handle(s->be, q->is_begun ? TG_STREAM_SIDE : TG_STREAM_MAIN);
}

static int run_values(const nccl_state *s, void *comm, const collective *q) {
    const tg_nccl *nccl = s->nccl;
    const tg_comm_call *c = q->call;
    const int type = c->dtype == TG_F64   ? TG_NCCL_F64
                     : c->dtype == TG_F32 ? TG_NCCL_F32
                                          : TG_NCCL_U8;
    const int op = c->op == TG_COMM_SUM ? TG_NCCL_SUM : TG_NCCL_MAX;
    const size_t n = (size_t)q->n;
    void *const stream = stream_of(s, q);
    return c->kind == TG_BROADCAST ? nccl->broadcast(q->x, q->x, n, type, c->root, comm, stream)
           : c->kind == TG_ALL_REDUCE
               ? nccl->all_reduce(q->x, q->x, n, type, op, comm, stream)
               : nccl->reduce(q->x, q->x, n, type, op, c->root, comm, stream);
}

/* On the side stream, which is not synchronized before complete. */
static tg_status begin_aside(tg_comm *comm, const collective *q) {
    nccl_state *s = comm->device_state;
    TG_CALL(s->be->ops->stream->follow(s->be, TG_STREAM_SIDE, TG_STREAM_MAIN));
    TG_CALL(call(comm, q));
    pthread_mutex_lock(&s->lock);
    s->since = comm->is_queueing ? s->since : HUGE_VAL;
    pthread_mutex_unlock(&s->lock);
    return TG_OK;
}

/* Captured operations are watched once all of them are queued. */
static tg_status run(tg_comm *comm, const tg_comm_call *c, int64_t n, void *x) {
    const collective q = {.name = c->is_begun ? "a sum" : tg_comm_kind_name(c->kind),
                          .run = run_values,
                          .call = c,
                          .n = n,
                          .x = x,
                          .is_begun = c->is_begun};
    if (c->is_begun) {
        return begin_aside(comm, &q);
    }
    TG_CALL(call(comm, &q));
    return comm->is_queueing ? TG_OK : watch_stream(comm->device_state);
}

/* In a group, so that no message waits for another; calls of a group may be in progress. */
static int run_exchange(const nccl_state *s, void *comm, const collective *q) {
    const tg_comm_pair *p = q->pair;
    void *const stream = stream_of(s, q);
    int code = s->nccl->group_start();
    if (code == TG_NCCL_SUCCESS && p->sent_bytes > 0) {
        code = s->nccl->send(p->sent, (size_t)p->sent_bytes, TG_NCCL_U8, p->to, comm, stream);
    }
    if ((code == TG_NCCL_SUCCESS || code == TG_NCCL_IN_PROGRESS) && p->received_bytes > 0) {
        code = s->nccl->receive(p->received, (size_t)p->received_bytes, TG_NCCL_U8, p->from, comm,
                                stream);
    }
    const int ended = s->nccl->group_end();
    return code == TG_NCCL_SUCCESS || code == TG_NCCL_IN_PROGRESS ? ended : code;
}

static tg_status begin_exchange(tg_comm *comm, const tg_comm_pair *pair) {
    return begin_aside(
        comm,
        &(collective){.name = "exchange", .run = run_exchange, .is_begun = true, .pair = pair});
}

static tg_status complete(tg_comm *comm) {
    nccl_state *s = comm->device_state;
    pthread_mutex_lock(&s->lock);
    s->since = tg_seconds();
    pthread_mutex_unlock(&s->lock);
    TG_CALL(s->be->ops->stream->follow(s->be, TG_STREAM_MAIN, TG_STREAM_SIDE));
    TG_CALL(check(comm));
    return comm->is_queueing ? TG_OK : watch_stream(s);
}

/* ---- life ---- */

/* Finalizing waits for the other ranks: skipped if one may have died. */
static void close_nccl(tg_comm *comm) {
    nccl_state *s = comm->device_state;
    end_watchdog(s);
    if (s->comm && !comm->is_broken &&
        await(comm, s, s->nccl->comm_finalize(s->comm)) == TG_NCCL_SUCCESS) {
        (void)s->nccl->comm_destroy(s->comm);
        s->comm = NULL;
    }
    give_up(s);
    abort_given_up(s);
    s->be->ops->stream->event_destroy(s->be, &s->event);
    pthread_cond_destroy(&s->change);
    pthread_mutex_destroy(&s->lock);
    TG_FREE(comm->ctx, comm->device_state);
}

static const tg_comm_ops nccl_ops = {.run = run,
                                     .begin_exchange = begin_exchange,
                                     .complete = complete,
                                     .begin_queue = begin_queue,
                                     .end_queue = end_queue,
                                     .group = group,
                                     .check = check,
                                     .close = close_nccl};

static tg_status create(tg_comm *comm, const tg_nccl *nccl, tg_backend *be, nccl_state **out) {
    nccl_state *s = NULL;
    pthread_condattr_t attributes;
    tg_status status = TG_OK;
    TG_TRY(TG_NEW(comm->ctx, TG_MEM_OTHER, s, 1));
    *s = (nccl_state){.nccl = nccl, .be = be};
    TG_TRY(be->ops->stream->event_create(be, &s->event));
    (void)pthread_mutex_init(&s->lock, NULL);
    (void)pthread_condattr_init(&attributes);
    (void)pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    (void)pthread_cond_init(&s->change, &attributes);
    (void)pthread_condattr_destroy(&attributes);
    *out = s;
    return TG_OK;
fail:
    tg_mem_free(comm->ctx, s);
    return status;
}

/* The ranks connect by an id from rank 0. */
static tg_status meet(tg_comm *comm, nccl_state *s, const tg_nccl_id *id) {
    tg_nccl_config config = TG_NCCL_CONFIG(0);
    const int code =
        await(comm, s, s->nccl->comm_init(&s->comm, comm->ranks, *id, comm->rank, &config));
    if (code != TG_NCCL_SUCCESS) {
        describe(s, code);
        give_up(s);
        const tg_status status = operation_status(comm, s);
        comm->is_broken = false; /* they can still communicate on the host */
        return status;
    }
    return start_watchdog(comm, s);
}

/* Broadcasts rank 0's id and agrees on each rank's status so far. */
static tg_status share_id(tg_comm *comm, const tg_nccl *nccl, tg_status status, tg_nccl_id *id) {
    int code = TG_NCCL_SUCCESS;
    if (status == TG_OK && comm->rank == 0 && (code = nccl->get_unique_id(id)) != TG_NCCL_SUCCESS) {
        status = tg_fail(comm->ctx, TG_E_BACKEND, "NCCL: %s", nccl->error_string(code));
    }
    TG_CALL(tg_comm_agree(comm, status));
    return tg_comm_broadcast_bytes(comm, 0, sizeof *id, id->bytes);
}

static tg_status open_nccl(tg_comm *comm) {
    const tg_nccl *nccl = NULL;
    tg_backend *be = NULL;
    nccl_state *s = NULL;
    tg_nccl_id id = {{0}};
    tg_status status = tg_backend_get(comm->ctx, &be);
    status = status == TG_OK ? tg_nccl_open(comm->ctx, &nccl) : status;
    status = status == TG_OK ? create(comm, nccl, be, &s) : status;
    comm->device_state = s;
    TG_TRY(share_id(comm, nccl, status, &id));
    TG_TRY(tg_comm_agree(comm, meet(comm, s, &id)));
    comm->device = &nccl_ops;
    const size_t used = comm->ranks > 1 ? strlen(comm->transport) : 0;
    snprintf(comm->transport + used, sizeof comm->transport - used, "%sNCCL %s",
             comm->ranks > 1 ? ", on GPUs " : "", nccl->version);
    return TG_OK;
fail:
    if (s) {
        const bool was_broken = comm->is_broken;
        comm->is_broken = true; /* no rank is waited for */
        close_nccl(comm);
        comm->is_broken = was_broken;
    }
    return status;
}

/* ---- the choice ---- */

/* The GPU of a rank. */
typedef struct rank_device {
    uint64_t machine, address; /* of the GPU on it */
    uint64_t has_device;
} rank_device;

/* Why the ranks cannot use NCCL: the same answer on every rank. */
static tg_status find_obstacle(const tg_comm *comm, const rank_device *all) {
    for (int i = 0; i < comm->ranks; i++) {
        if (!all[i].has_device) {
            return tg_fail(comm->ctx, TG_E_UNSUPPORTED,
                           "NCCL: rank %d computes on the host; it takes a GPU on every rank "
                           "(--backend cuda)",
                           i);
        }
        for (int j = 0; j < i; j++) {
            if (all[i].machine == all[j].machine && all[i].address == all[j].address) {
                return tg_fail(comm->ctx, TG_E_UNSUPPORTED,
                               "NCCL: ranks %d and %d share a GPU, it takes one for each rank; "
                               "values can go through the host (distributed.backend mpi)",
                               j, i);
            }
        }
    }
    return TG_OK;
}

static tg_status look_around(tg_comm *comm) {
    tg_backend *be = NULL;
    rank_device *all = NULL;
    tg_status status = TG_OK;
    TG_TRY(TG_NEW(comm->ctx, TG_MEM_OTHER, all, comm->ranks));
    TG_TRY(tg_backend_get(comm->ctx, &be));
    rank_device *own = &all[comm->rank];
    *own = (rank_device){.machine = tg_comm_machine(), .has_device = be->ops->stream != NULL};
    if (own->has_device) {
        tg_device_facts facts;
        TG_TRY(be->ops->device_facts(be, &facts));
        own->address = facts.address;
    }
fail:
    status = tg_comm_agree(comm, status);
    if (status == TG_OK) {
        const int64_t numbers = comm->ranks * (int64_t)(sizeof *all / sizeof(uint64_t));
        status = tg_comm_all_gather(
            comm, &(tg_tensor){.dtype = TG_U64, .shape = {1, {numbers}}, .data = all});
    }
    status = status == TG_OK ? find_obstacle(comm, all) : status;
    tg_mem_free(comm->ctx, all);
    return status;
}

tg_status tg_comm_open_device(tg_comm *comm, tg_comm_engine engine) {
    TG_NEED(NULL, comm);
    if ((unsigned)engine > TG_COMM_NCCL) {
        return tg_fail(comm->ctx, TG_E_ARGUMENT, "communicator: engine %d is none", (int)engine);
    }
    if (comm->device || engine == TG_COMM_MPI || (engine == TG_COMM_AUTO && comm->ranks == 1)) {
        return TG_OK;
    }
    tg_status status = look_around(comm);
    if (engine == TG_COMM_AUTO && status == TG_E_UNSUPPORTED) {
        return TG_OK;
    }
    status = status == TG_OK ? open_nccl(comm) : tg_comm_agree(comm, status);
    if (engine == TG_COMM_AUTO && status != TG_OK && !comm->is_broken) {
        comm->has_agreed = false; /* this failure is only a warning */
        tg_log(comm->ctx, TG_LOG_WARN, "%s; values of GPUs go through the host",
               tg_context_error(comm->ctx));
        return TG_OK;
    }
    return status;
}
