/* Transport between threads of one process. In a collective, each rank publishes the address of
 * its values, waits, works on its own part of all values in the order of the ranks, and waits
 * again.
 */
#include "support/rank_threads.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "dist/comm.h"

typedef struct shown {
    const char *name; /* of the operation that the rank is in */
    int64_t n;
    void *x;
} shown;

struct tg_comm_group {
    tg_context ctx; /* a branch */
    int ranks;
    pthread_mutex_t mutex;
    pthread_cond_t all_here;
    int arrived;         /* at the meeting under way */
    int64_t meetings;    /* that came about */
    bool is_broken;      /* there will be no other */
    const char *why;     /* .. */
    int whose;           /* .. by which rank */
    shown *at;           /* of each rank */
    int64_t *meeting_of; /* of each rank: meetings that it came to */
};

tg_status tg_comm_group_create(tg_context *ctx, int ranks, tg_comm_group **out) {
    tg_status status = TG_OK;
    tg_comm_group *group = NULL;
    pthread_condattr_t clock;
    *out = NULL;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, group, 1));
    group->ctx = tg_context_branch(ctx);
    group->ranks = ranks;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, group->at, ranks));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, group->meeting_of, ranks));
    pthread_mutex_init(&group->mutex, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&group->all_here, &clock);
    pthread_condattr_destroy(&clock);
    *out = group;
    return TG_OK;
fail:
    if (group) {
        tg_mem_free(ctx, group->at);
    }
    tg_mem_free(ctx, group);
    return status;
}

void tg_comm_group_destroy(tg_comm_group **group) {
    if (!group || !*group) {
        return;
    }
    tg_context ctx = (*group)->ctx;
    pthread_cond_destroy(&(*group)->all_here);
    pthread_mutex_destroy(&(*group)->mutex);
    tg_mem_free(&ctx, (*group)->at);
    tg_mem_free(&ctx, (*group)->meeting_of);
    TG_FREE(&ctx, *group);
}

/* ---- meetings ---- */

static struct timespec deadline(double seconds) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    const int64_t ns = (int64_t)at.tv_nsec + (int64_t)(seconds * 1e9);
    at.tv_sec += (time_t)(ns / 1000000000);
    at.tv_nsec = (long)(ns % 1000000000);
    return at;
}

static void break_up(tg_comm_group *group, int whose, const char *why) {
    if (!group->is_broken) {
        group->is_broken = true;
        group->whose = whose;
        group->why = why;
    }
    pthread_cond_broadcast(&group->all_here);
}

/* The first rank that did not come to the meeting under way. */
static int missing(const tg_comm_group *group) {
    int rank = 0;
    while (rank < group->ranks - 1 && group->meeting_of[rank] > group->meetings) {
        rank++;
    }
    return rank;
}

static tg_status meet(tg_comm *comm, const char *name) {
    tg_comm_group *group = comm->state;
    const struct timespec until = deadline(comm->timeout);
    bool is_late = false;
    pthread_mutex_lock(&group->mutex);
    const int64_t meeting = group->meetings;
    group->meeting_of[comm->rank] = meeting + 1;
    if (++group->arrived == group->ranks && !group->is_broken) {
        group->arrived = 0;
        group->meetings++;
        pthread_cond_broadcast(&group->all_here);
    }
    while (group->meetings == meeting && !group->is_broken && !is_late) {
        is_late = pthread_cond_timedwait(&group->all_here, &group->mutex, &until) != 0;
    }
    if (is_late) {
        break_up(group, missing(group), "has not come");
    }
    const bool is_met = group->meetings != meeting;
    char why[64];
    snprintf(why, sizeof why, "rank %d %s", group->whose, is_met ? "" : group->why);
    pthread_mutex_unlock(&group->mutex);
    if (is_met) {
        return TG_OK;
    }
    return is_late ? tg_comm_timed_out(comm, name, why)
                   : tg_fail(comm->ctx, TG_E_BACKEND, "rank %d of %d: %s: %s", comm->rank,
                             comm->ranks, name, why);
}

/* Shows this rank's values and sees those of all. */
static tg_status show(tg_comm *comm, const char *name, int64_t n, void *x) {
    tg_comm_group *group = comm->state;
    group->at[comm->rank] = (shown){name, n, x};
    const tg_status status = meet(comm, name);
    for (int i = 0; status == TG_OK && i < comm->ranks; i++) {
        if (group->at[i].name != name || group->at[i].n != n) {
            return tg_fail(comm->ctx, TG_E_ARGUMENT,
                           "rank %d of %d: %s of %lld values, but rank %d is in %s of %lld",
                           comm->rank, comm->ranks, name, (long long)n, i, group->at[i].name,
                           (long long)group->at[i].n);
        }
    }
    return status;
}

/* ---- operations ---- */

static const char all_reduce_name[] = "all-reduce", reduce_name[] = "reduce",
                  broadcast_name[] = "broadcast", barrier_name[] = "barrier",
                  exchange_name[] = "exchange";

static double combine(double a, double b, tg_comm_op op) {
    return op == TG_COMM_SUM ? a + b : (a > b || a != a ? a : b);
}

/* Elements [begin, end) of all ranks together, to those of `first` .. `last`. */
static void reduce_part(const tg_comm_group *group, tg_comm_op op, tg_dtype dtype, tg_range part,
                        int first, int last) {
    for (int64_t i = part.begin; i < part.end; i++) {
        const double *x0 = group->at[0].x;
        const float *f0 = group->at[0].x;
        double value = dtype == TG_F64 ? x0[i] : (double)f0[i];
        for (int r = 1; r < group->ranks; r++) {
            const double *x = group->at[r].x;
            const float *f = group->at[r].x;
            value = combine(value, dtype == TG_F64 ? x[i] : (double)f[i], op);
        }
        for (int r = first; r <= last; r++) {
            double *x = group->at[r].x;
            float *f = group->at[r].x;
            if (dtype == TG_F64) {
                x[i] = value;
            } else {
                f[i] = (float)value;
            }
        }
    }
}

static tg_status reduce(tg_comm *comm, tg_comm_op op, int owner, tg_dtype dtype, int64_t n,
                        void *x) {
    const char *name = owner < 0 ? all_reduce_name : reduce_name;
    const int first = owner < 0 ? 0 : owner, last = owner < 0 ? comm->ranks - 1 : owner;
    tg_status status = TG_OK;
    TG_TRY(show(comm, name, n, x));
    reduce_part(comm->state, op, dtype, tg_partition(n, 16, comm->ranks, comm->rank), first, last);
    TG_TRY(meet(comm, name));
fail:
    return status;
}

static tg_status broadcast(tg_comm *comm, int root, int64_t bytes, void *x) {
    const tg_comm_group *group = comm->state;
    tg_status status = TG_OK;
    TG_TRY(show(comm, broadcast_name, bytes, x));
    if (comm->rank != root) {
        memcpy(x, group->at[root].x, (size_t)bytes);
    }
    TG_TRY(meet(comm, broadcast_name));
fail:
    return status;
}

static tg_status run(tg_comm *comm, const tg_comm_call *call, int64_t n, void *x) {
    return call->kind == TG_BROADCAST
               ? broadcast(comm, call->root, n, x)
               : reduce(comm, call->op, call->kind == TG_REDUCE ? call->root : -1, call->dtype, n,
                        x);
}

static tg_status begin_exchange(tg_comm *comm, const tg_comm_pair *pair) {
    tg_comm_group *group = comm->state;
    const shown *other = &group->at[pair->from];
    group->at[comm->rank] = (shown){exchange_name, pair->sent_bytes, (void *)(uintptr_t)pair->sent};
    TG_CALL(meet(comm, exchange_name));
    if (other->name != exchange_name || other->n != pair->received_bytes) {
        return tg_fail(comm->ctx, TG_E_ARGUMENT,
                       "rank %d of %d: exchange of %lld bytes, but rank %d is in %s of %lld",
                       comm->rank, comm->ranks, (long long)pair->received_bytes, pair->from,
                       other->name, (long long)other->n);
    }
    memcpy(pair->received, other->x, (size_t)other->n);
    return meet(comm, exchange_name);
}

static tg_status barrier(tg_comm *comm) {
    const tg_status status = show(comm, barrier_name, 0, NULL);
    return status == TG_OK ? meet(comm, barrier_name) : status;
}

static void leave(tg_comm *comm) {
    tg_comm_group *group = comm->state;
    pthread_mutex_lock(&group->mutex);
    break_up(group, comm->rank, "has left");
    pthread_mutex_unlock(&group->mutex);
}

static const tg_comm_ops part_ops = {
    .run = run, .begin_exchange = begin_exchange, .barrier = barrier, .end_all = leave};

/* One part of all ranks, which meet in turn with those of the whole. */
static tg_status split(tg_comm *comm, int color, int ranks, tg_comm *sub) {
    (void)color;
    if (ranks != comm->ranks) {
        return TG_E_UNSUPPORTED;
    }
    sub->ops = &part_ops;
    sub->state = comm->state;
    sub->rank = comm->rank;
    sub->ranks = comm->ranks;
    return TG_OK;
}

static const tg_comm_ops thread_ops = {.run = run,
                                       .begin_exchange = begin_exchange,
                                       .barrier = barrier,
                                       .split = split,
                                       .end_all = leave,
                                       .close = leave};

tg_status tg_comm_create_threads(tg_context *ctx, tg_comm_group *group, int rank,
                                 const tg_comm_config *config, tg_comm **out) {
    tg_comm *comm = NULL;
    *out = NULL;
    const tg_status status = tg_comm_begin(ctx, config, &comm);
    if (status != TG_OK) {
        return status;
    }
    comm->ops = &thread_ops;
    comm->state = group;
    comm->rank = rank;
    comm->ranks = group->ranks;
    snprintf(comm->transport, sizeof comm->transport, "threads");
    return tg_comm_finish(&comm, out);
}
