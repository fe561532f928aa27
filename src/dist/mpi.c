/* Transport over MPI, and how this process was started. Every operation is nonblocking, and polled
 * until the timeout: a rank that died does not hang the others. */
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/system.h"
#include "dist/comm.h"
#include "dist/libraries.h"

/* MPI counts are int: long arrays are sent in pieces. */
#define MAX_COUNT ((int64_t)1 << 28)

enum { MAX_PENDING = 64 };

typedef struct mpi_state {
    const tg_mpi *mpi;
    tg_mpi_handle comm;
    struct {
        tg_mpi_handle request;
        const char *name;
    } begun[MAX_PENDING]; /* sums and messages */
    int begun_count;
    bool finalizes; /* MPI was initialised here */
} mpi_state;

static tg_status checked(const tg_comm *comm, const tg_mpi *mpi, const char *name, int code) {
    if (code == 0) {
        return TG_OK;
    }
    char text[TG_MPI_TEXT] = "";
    int length = 0;
    (void)mpi->error_string(code, text, &length);
    return tg_fail(comm->ctx, TG_E_BACKEND, "rank %d of %d: %s: %.200s", comm->rank, comm->ranks,
                   name, text);
}

/* Ranks may share a core: yield it after a short spin. */
static void be_patient(int64_t times) {
    if (times > 10000) {
        (void)nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
    } else if (times > 50) {
        (void)sched_yield();
    }
}

static tg_status await(tg_comm *comm, const char *name, int code, tg_mpi_handle *request) {
    const mpi_state *state = comm->state;
    const double start = tg_seconds();
    int is_done = 0;
    for (int64_t times = 0; code == 0; times++) {
        code = state->mpi->test(request, &is_done, state->mpi->status_ignore);
        if (is_done || code != 0) {
            break;
        }
        if (tg_seconds() - start > comm->timeout) {
            return tg_comm_timed_out(comm, name, "another rank is late or has died");
        }
        be_patient(times);
    }
    return checked(comm, state->mpi, name, code);
}

static int piece_of(int64_t n, int64_t first) {
    return (int)(n <= first ? 0 : n - first < MAX_COUNT ? n - first : MAX_COUNT);
}

/* Starts a piece of a call, up to MAX_COUNT values. */
static int start(const tg_comm *comm, const tg_comm_call *c, int n, void *x,
                 tg_mpi_handle *request) {
    const mpi_state *s = comm->state;
    const tg_mpi *mpi = s->mpi;
    const tg_mpi_handle by = c->op == TG_COMM_SUM ? mpi->sum : mpi->max;
    const tg_mpi_handle type = c->dtype == TG_F64   ? mpi->f64
                               : c->dtype == TG_F32 ? mpi->f32
                                                    : mpi->byte;
    return c->kind == TG_BROADCAST ? mpi->ibcast(x, n, type, c->root, s->comm, request)
           : c->kind == TG_ALL_REDUCE
               ? mpi->iallreduce(mpi->in_place, x, n, type, by, s->comm, request)
               : mpi->ireduce(comm->rank == c->root ? mpi->in_place : x, x, n, type, by, c->root,
                              s->comm, request);
}

static tg_status complete(tg_comm *comm) {
    mpi_state *s = comm->state;
    tg_status status = TG_OK;
    for (int i = 0; i < s->begun_count && status == TG_OK; i++) {
        status = await(comm, s->begun[i].name, 0, &s->begun[i].request);
    }
    s->begun_count = 0;
    return status;
}

/* Remembers what was begun. */
static tg_status keep(tg_comm *comm, const char *name, int code, tg_mpi_handle request) {
    mpi_state *s = comm->state;
    if (code == 0) {
        s->begun[s->begun_count].request = request;
        s->begun[s->begun_count++].name = name;
    }
    return checked(comm, s->mpi, name, code);
}

/* MPI makes progress only inside calls: every call tests the pending ones. */
static tg_status begin_sum(tg_comm *comm, const tg_comm_call *c, int n, void *x) {
    mpi_state *s = comm->state;
    tg_mpi_handle request = 0;
    int is_done = 0, code = 0;
    TG_CALL(s->begun_count < MAX_PENDING ? TG_OK : complete(comm));
    for (int i = 0; i < s->begun_count && code == 0; i++) {
        code = s->mpi->test(&s->begun[i].request, &is_done, s->mpi->status_ignore);
    }
    code = code == 0 ? start(comm, c, n, x, &request) : code;
    return keep(comm, "a sum", code, request);
}

static tg_status run(tg_comm *comm, const tg_comm_call *c, int64_t n, void *x) {
    if (c->is_begun && n <= MAX_COUNT) {
        return begin_sum(comm, c, (int)n, x);
    }
    for (int64_t i = 0; i < n; i += MAX_COUNT) {
        tg_mpi_handle request = 0;
        char *at = (char *)x + (size_t)i * tg_dtype_size(c->dtype);
        const int code = start(comm, c, piece_of(n, i), at, &request);
        TG_CALL(await(comm, tg_comm_kind_name(c->kind), code, &request));
    }
    return TG_OK;
}

/* Every rank has begun its first k pieces before it waits, so that none waits for ever. */
static tg_status begin_exchange(tg_comm *comm, const tg_comm_pair *pair) {
    const mpi_state *s = comm->state;
    static const char name[] = "exchange";
    for (int64_t i = 0; i < pair->sent_bytes || i < pair->received_bytes; i += MAX_COUNT) {
        const int sent = piece_of(pair->sent_bytes, i);
        const int received = piece_of(pair->received_bytes, i);
        tg_mpi_handle request = 0;
        TG_CALL(s->begun_count + 2 <= MAX_PENDING ? TG_OK : complete(comm));
        if (received > 0) {
            const int code = s->mpi->irecv((char *)pair->received + i, received, s->mpi->byte,
                                           pair->from, 0, s->comm, &request);
            TG_CALL(keep(comm, name, code, request));
        }
        if (sent > 0) {
            const int code = s->mpi->isend((const char *)pair->sent + i, sent, s->mpi->byte,
                                           pair->to, 0, s->comm, &request);
            TG_CALL(keep(comm, name, code, request));
        }
    }
    return TG_OK;
}

static tg_status barrier(tg_comm *comm) {
    const mpi_state *s = comm->state;
    tg_mpi_handle request = 0;
    const int code = s->mpi->ibarrier(s->comm, &request);
    return await(comm, "barrier", code, &request);
}

static void end_all(tg_comm *comm) {
    const mpi_state *s = comm->state;
    (void)s->mpi->end_all(s->comm, 1);
}

/* Freeing and finalizing wait for the other ranks: skipped if one may have died. */
static void close_mpi(tg_comm *comm) {
    mpi_state *s = comm->state;
    int is_over = 0;
    (void)s->mpi->finalized(&is_over);
    if (!comm->is_broken && !is_over) {
        (void)s->mpi->comm_free(&s->comm);
        if (s->finalizes) {
            (void)s->mpi->finalize();
        }
    }
    TG_FREE(comm->ctx, comm->state);
}

static tg_status split_mpi(tg_comm *comm, int color, int ranks, tg_comm *sub);

static const tg_comm_ops mpi_ops = {.run = run,
                                    .begin_exchange = begin_exchange,
                                    .complete = complete,
                                    .barrier = barrier,
                                    .split = split_mpi,
                                    .end_all = end_all,
                                    .close = close_mpi};

/* ---- life ---- */

/* Takes a communicator of its own. */
static tg_status open_comm(tg_comm *comm) {
    const mpi_state *s = comm->state;
    const tg_mpi *mpi = s->mpi;
    TG_CALL(checked(comm, mpi, "MPI_Comm_set_errhandler",
                    mpi->comm_set_errhandler(s->comm, mpi->errors_return)));
    TG_CALL(checked(comm, mpi, "MPI_Comm_rank", mpi->comm_rank(s->comm, &comm->rank)));
    TG_CALL(checked(comm, mpi, "MPI_Comm_size", mpi->comm_size(s->comm, &comm->ranks)));
    comm->ops = &mpi_ops;
    snprintf(comm->transport, sizeof comm->transport, "%s", mpi->version);
    return TG_OK;
}

static tg_status split_mpi(tg_comm *comm, int color, int ranks, tg_comm *sub) {
    (void)ranks;
    const mpi_state *whole = comm->state;
    mpi_state *state = NULL;
    TG_CALL(TG_NEW(comm->ctx, TG_MEM_OTHER, state, 1));
    *state = (mpi_state){.mpi = whole->mpi};
    sub->state = state;
    const int code = state->mpi->comm_split(whole->comm, color, comm->rank, &state->comm);
    tg_status status = checked(comm, state->mpi, "MPI_Comm_split", code);
    status = status == TG_OK ? open_comm(sub) : status;
    if (status != TG_OK) {
        TG_FREE(comm->ctx, sub->state);
    }
    return status;
}

static tg_status create(tg_context *ctx, const tg_comm_config *config, const tg_mpi *mpi,
                        tg_mpi_handle from, bool finalizes, tg_comm **out) {
    tg_status status = TG_OK;
    tg_comm *comm = NULL;
    mpi_state *state = NULL;
    TG_TRY(tg_comm_begin(ctx, config, &comm));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, state, 1));
    *state = (mpi_state){.mpi = mpi, .finalizes = finalizes};
    comm->state = state;
    /* a duplicate: its messages do not mix with the caller's, whose error handler stays */
    TG_TRY(checked(comm, mpi, "MPI_Comm_dup", mpi->comm_dup(from, &state->comm)));
    TG_TRY(open_comm(comm));
    return tg_comm_finish(&comm, out);
fail:
    tg_mem_free(ctx, state);
    tg_comm_destroy(&comm);
    return status;
}

static bool is_running(const tg_mpi *mpi) {
    int is_begun = 0, is_over = 0;
    (void)mpi->initialized(&is_begun);
    (void)mpi->finalized(&is_over);
    return is_begun && !is_over;
}

tg_status tg_comm_create_mpi(tg_context *ctx, const void *mpi_comm, const tg_comm_config *config,
                             tg_comm **out) {
    TG_NEED_OUT(ctx, out, ctx, mpi_comm);
    const tg_mpi *mpi = NULL;
    tg_mpi_handle from = 0;
    TG_CALL(tg_mpi_open(ctx, "", &mpi));
    if (!is_running(mpi)) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "communicator: MPI is not initialised: call MPI_Init before");
    }
    memcpy(&from, mpi_comm, mpi->handle_size);
    return create(ctx, config, mpi, from, false, out);
}

static tg_status create_mpi_world(tg_context *ctx, const tg_comm_config *config,
                                  const tg_comm_launch *launch, tg_comm **out) {
    enum { FUNNELED = 1 }; /* the thread that initialises MPI is the one that calls it */
    const tg_mpi *mpi = NULL;
    int is_over = 0, is_given = 0;
    TG_CALL(tg_mpi_open(ctx, launch->launcher, &mpi));
    (void)mpi->finalized(&is_over);
    const bool initialises = !is_running(mpi);
    if (is_over || (initialises && mpi->init_thread(NULL, NULL, FUNNELED, &is_given) != 0)) {
        return tg_fail(ctx, TG_E_BACKEND, "MPI: %s could not be %s", mpi->version,
                       is_over ? "started a second time" : "initialised");
    }
    TG_CALL(create(ctx, config, mpi, mpi->world, initialises, out));
    const int ranks = (*out)->ranks;
    if (ranks != launch->ranks) {
        tg_comm_destroy(out);
        return tg_fail(ctx, TG_E_BACKEND,
                       "%s started %d processes, but %s sees %d: %s does not come with this MPI "
                       "library (srun: --mpi=pmix or pmi2; otherwise TGRAD_MPI names the library)",
                       launch->launcher, launch->ranks, mpi->version, ranks, launch->launcher);
    }
    return TG_OK;
}

/* ---- processes of a launcher ---- */

/* Rows in order of precedence: srun may start torchrun, mpirun and mpiexec, whose ranks inherit its
 * variables. Variables of torchrun are also set by hand, which has the lowest precedence; `mark` is
 * one that only torchrun sets. SLURM_STEP_NUM_TASKS, unlike SLURM_NTASKS, belongs to a step and is
 * not set for a batch script, which runs once. */
static const struct {
    const char *launcher, *rank, *ranks, *local_rank, *local_ranks, *mark;
} launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
     NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
};

/* A count from the environment, or -1; Slurm writes 4(x2) for two machines with 4 each. */
static int read_count(const char *name) {
    const char *text = getenv(name);
    char *end = NULL;
    const long value = text ? strtol(text, &end, 10) : -1;
    return text && end != text && (*end == '\0' || *end == '(') && value >= 0 && value < 1 << 24
               ? (int)value
               : -1;
}

tg_comm_launch tg_comm_get_launch(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const int rank = read_count(launchers[i].rank), ranks = read_count(launchers[i].ranks);
        const bool is_marked = !launchers[i].mark || getenv(launchers[i].mark);
        if (is_marked && rank >= 0 && rank < ranks) {
            return (tg_comm_launch){.launcher = launchers[i].launcher,
                                    .rank = rank,
                                    .ranks = ranks,
                                    .local_rank = read_count(launchers[i].local_rank),
                                    .local_ranks = read_count(launchers[i].local_ranks)};
        }
    }
    return (tg_comm_launch){.launcher = "none", .ranks = 1, .local_ranks = 1};
}

tg_status tg_comm_create_world(tg_context *ctx, const tg_comm_config *config, tg_comm **out) {
    TG_NEED_OUT(ctx, out, ctx);
    const tg_comm_launch launch = tg_comm_get_launch();
    if (launch.ranks == 1) {
        return tg_comm_create_self(ctx, out);
    }
    if (strcmp(launch.launcher, "torchrun") == 0) {
        return tg_fail(ctx, TG_E_UNSUPPORTED,
                       "%d processes by torchrun, which does not connect them over MPI: start them "
                       "with mpirun, mpiexec or srun --mpi=pmix",
                       launch.ranks);
    }
    return create_mpi_world(ctx, config, &launch, out);
}
