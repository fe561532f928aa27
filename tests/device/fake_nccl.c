/* A library with NCCL's names for the fake device: ranks are processes of one machine that
 * meet in a file mapped by all of them. Work goes into the stream of the device, as NCCL's
 * does.
 *
 * FAKE_NCCL, per process: "silent": it never comes to the meeting; "hang": it does not come to the
 * 20th operation; "error": the same one fails behind the caller's back. */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "dist/libraries.h"
#include "support/fake_device.h"

enum { MOST_RANKS = 8, SLOT_BYTES = 1 << 16, BAD_OPERATION = 20, REMOTE_ERROR = 6 };

typedef struct meeting {
    atomic_int joined, arrived, generation;
    int to[MOST_RANKS]; /* in an exchange */
    size_t bytes[MOST_RANKS];
    max_align_t slot[MOST_RANKS][SLOT_BYTES / sizeof(max_align_t)];
} meeting;

typedef struct fake_comm {
    meeting *shared;
    char path[sizeof(tg_nccl_id)];
    int rank, ranks;
    const char *fault;
    int operations;
    atomic_int is_aborted, has_failed;
} fake_comm;

int ncclGetVersion(int *version);
int ncclGetUniqueId(tg_nccl_id *id);
int ncclCommInitRankConfig(void **out, int ranks, tg_nccl_id id, int rank, tg_nccl_config *config);
int ncclCommFinalize(void *handle);
int ncclCommDestroy(void *handle);
int ncclCommAbort(void *handle);
int ncclCommGetAsyncError(void *handle, int *error);
const char *ncclGetErrorString(int error);
const char *ncclGetLastError(void *handle);
int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *comm, void *stream);
int ncclReduce(const void *from, void *to, size_t n, int type, int op, int root, void *comm,
               void *stream);
int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, void *comm,
                  void *stream);
int ncclSend(const void *from, size_t n, int type, int to, void *comm, void *stream);
int ncclRecv(void *to, size_t n, int type, int from, void *comm, void *stream);
int ncclGroupStart(void);
int ncclGroupEnd(void);

/* ---- life ---- */

int ncclGetVersion(int *version) {
    *version = 21407;
    return TG_NCCL_SUCCESS;
}

int ncclGetUniqueId(tg_nccl_id *id) {
    static int number;
    const char *folder = getenv("TMPDIR");
    snprintf(id->bytes, sizeof id->bytes, "%s/fake_nccl.%d.%d", folder ? folder : "/tmp",
             (int)getpid(), number++);
    const int file = open(id->bytes, O_RDWR | O_CREAT | O_TRUNC, 0600);
    const int failed = file < 0 || ftruncate(file, sizeof(meeting)) != 0;
    (void)close(file);
    return failed ? 2 : TG_NCCL_SUCCESS;
}

int ncclCommInitRankConfig(void **out, int ranks, tg_nccl_id id, int rank, tg_nccl_config *config) {
    fake_comm *comm = calloc(1, sizeof *comm);
    const int file = open(id.bytes, O_RDWR);
    void *shared = mmap(NULL, sizeof(meeting), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    (void)close(file);
    if (!comm || shared == MAP_FAILED || ranks > MOST_RANKS || config->magic != 0xcafebeefU ||
        config->blocking) {
        free(comm);
        return 4;
    }
    memcpy(comm->path, id.bytes, sizeof comm->path);
    comm->shared = shared;
    comm->rank = rank;
    comm->ranks = ranks;
    comm->fault = getenv("FAKE_NCCL") ? getenv("FAKE_NCCL") : "";
    if (strcmp(comm->fault, "silent") != 0) {
        atomic_fetch_add(&comm->shared->joined, 1);
    }
    *out = comm;
    return TG_NCCL_IN_PROGRESS;
}

int ncclCommGetAsyncError(void *handle, int *error) {
    fake_comm *comm = handle;
    const int is_complete = atomic_load(&comm->shared->joined) == comm->ranks;
    *error = atomic_load(&comm->has_failed) ? REMOTE_ERROR
             : is_complete                  ? TG_NCCL_SUCCESS
                                            : TG_NCCL_IN_PROGRESS;
    if (is_complete && comm->rank == 0) {
        (void)unlink(comm->path);
    }
    return TG_NCCL_SUCCESS;
}

int ncclCommFinalize(void *handle) {
    (void)handle;
    return TG_NCCL_SUCCESS;
}

int ncclCommDestroy(void *handle) {
    fake_comm *comm = handle;
    (void)munmap(comm->shared, sizeof *comm->shared);
    free(comm);
    return TG_NCCL_SUCCESS;
}

/* Queued work still points to it: nothing is freed. */
int ncclCommAbort(void *handle) {
    fake_comm *comm = handle;
    (void)unlink(comm->path);
    atomic_store(&comm->is_aborted, 1);
    return TG_NCCL_SUCCESS;
}

const char *ncclGetErrorString(int error) {
    return error == REMOTE_ERROR ? "remote process exited" : "no NCCL at all";
}

const char *ncclGetLastError(void *handle) {
    (void)handle;
    return "a fault of the test";
}

/* ---- operations ---- */

typedef struct work {
    fake_comm *comm;
    char *x;
    size_t n;
    int type, op, root;
    bool adds; /* or copies */
} work;

static void rest(void) {
    (void)nanosleep(&(struct timespec){.tv_nsec = 50000}, NULL);
}

/* Everybody comes; false: it was aborted. */
static bool meet(fake_comm *comm) {
    const int generation = atomic_load(&comm->shared->generation);
    if (atomic_fetch_add(&comm->shared->arrived, 1) == comm->ranks - 1) {
        atomic_store(&comm->shared->arrived, 0);
        atomic_fetch_add(&comm->shared->generation, 1);
    }
    while (atomic_load(&comm->shared->generation) == generation) {
        if (atomic_load(&comm->is_aborted)) {
            return false;
        }
        rest();
    }
    return true;
}

static double value_at(const fake_comm *comm, int rank, int type, size_t i) {
    return type == TG_NCCL_F64 ? ((const double *)(const void *)comm->shared->slot[rank])[i]
                               : (double)((const float *)(const void *)comm->shared->slot[rank])[i];
}

/* In the order of the ranks, rounded to the type at each. */
static void combine(const work *w, void *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        double value = value_at(w->comm, 0, w->type, i);
        for (int rank = 1; rank < w->comm->ranks; rank++) {
            const double other = value_at(w->comm, rank, w->type, i);
            value = w->op == TG_NCCL_SUM ? value + other : other > value ? other : value;
            value = w->type == TG_NCCL_F32 ? (double)(float)value : value;
        }
        if (w->type == TG_NCCL_F64) {
            ((double *)x)[i] = value;
        } else {
            ((float *)x)[i] = (float)value;
        }
    }
}

/* The fault of this process, at one of its operations. */
static void fail_if_asked(fake_comm *comm) {
    if (++comm->operations == BAD_OPERATION && comm->fault[0]) {
        atomic_store(&comm->has_failed, strcmp(comm->fault, "error") == 0);
        while (!atomic_load(&comm->is_aborted)) {
            rest();
        }
    }
}

static tg_status run(tg_backend *host, void *arguments) {
    (void)host;
    const work *w = arguments;
    fake_comm *comm = w->comm;
    const size_t size = w->type == TG_NCCL_F64 ? 8 : w->type == TG_NCCL_F32 ? 4 : 1;
    const size_t most = SLOT_BYTES / size;
    fail_if_asked(comm);
    for (size_t i = 0; i < w->n; i += most) {
        const size_t n = w->n - i < most ? w->n - i : most;
        char *x = w->x + i * size;
        memcpy(comm->shared->slot[comm->rank], x, n * size);
        if (!meet(comm)) {
            break;
        }
        if (!w->adds) {
            memcpy(x, comm->shared->slot[w->root], n * size);
        } else if (w->root < 0 || w->root == comm->rank) {
            combine(w, x, n);
        }
        if (!meet(comm)) {
            break;
        }
    }
    return TG_OK;
}

/* A device comes to its work by itself; this one only while somebody waits, which must not be the
 * host of another rank. */
static int submit(tg_status (*call)(tg_backend *host, void *arguments), const void *arguments,
                  size_t bytes, int ranks, void *stream) {
    const fake_stream *to = stream;
    tg_status status = to->submit(to->be, call, arguments, bytes);
    if (status == TG_OK && ranks > 1) {
        status = to->finish(to->be);
    }
    return status == TG_OK ? TG_NCCL_SUCCESS : 3;
}

int ncclAllReduce(const void *from, void *to, size_t n, int type, int op, void *comm,
                  void *stream) {
    return ncclReduce(from, to, n, type, op, -1, comm, stream);
}

int ncclReduce(const void *from, void *to, size_t n, int type, int op, int root, void *comm,
               void *stream) {
    const work w = {
        .comm = comm, .x = to, .n = n, .type = type, .op = op, .root = root, .adds = true};
    return from == to ? submit(run, &w, sizeof w, w.comm->ranks, stream) : 4;
}

int ncclBroadcast(const void *from, void *to, size_t n, int type, int root, void *comm,
                  void *stream) {
    const work w = {.comm = comm, .x = to, .n = n, .type = type, .root = root};
    return from == to ? submit(run, &w, sizeof w, w.comm->ranks, stream) : 4;
}

/* ---- messages: one each way in a group, of all ranks at once ---- */

typedef struct messages {
    fake_comm *comm;
    void *stream;
    const char *sent;
    char *received;
    size_t sent_bytes, received_bytes;
    int to, from; /* -1: none */
} messages;

static messages grouped;
static bool is_grouping;

static tg_status exchange(tg_backend *host, void *arguments) {
    (void)host;
    const messages *m = arguments;
    meeting *shared = m->comm->shared;
    const int rank = m->comm->rank;
    size_t most = 0;
    fail_if_asked(m->comm);
    shared->to[rank] = m->to;
    shared->bytes[rank] = m->sent_bytes;
    if (!meet(m->comm)) {
        return TG_OK;
    }
    for (int i = 0; i < m->comm->ranks; i++) {
        most = shared->bytes[i] > most ? shared->bytes[i] : most;
    }
    const bool fits =
        m->from < 0 || (shared->to[m->from] == rank && shared->bytes[m->from] == m->received_bytes);
    atomic_fetch_or(&m->comm->has_failed, !fits);
    for (size_t i = 0; i <= most; i += SLOT_BYTES) {
        const size_t out = m->sent_bytes <= i ? 0 : m->sent_bytes - i;
        const size_t in = m->received_bytes <= i ? 0 : m->received_bytes - i;
        if (out > 0) {
            memcpy(shared->slot[rank], m->sent + i, out < SLOT_BYTES ? out : SLOT_BYTES);
        }
        if (!meet(m->comm)) {
            break;
        }
        if (in > 0) {
            memcpy(m->received + i, shared->slot[m->from], in < SLOT_BYTES ? in : SLOT_BYTES);
        }
        if (!meet(m->comm)) {
            break;
        }
    }
    return TG_OK;
}

int ncclSend(const void *from, size_t n, int type, int to, void *comm, void *stream) {
    grouped.comm = comm;
    grouped.stream = stream;
    grouped.sent = from;
    grouped.sent_bytes = n;
    grouped.to = to;
    return is_grouping && type == TG_NCCL_U8 ? TG_NCCL_IN_PROGRESS : 4;
}

int ncclRecv(void *to, size_t n, int type, int from, void *comm, void *stream) {
    grouped.comm = comm;
    grouped.stream = stream;
    grouped.received = to;
    grouped.received_bytes = n;
    grouped.from = from;
    return is_grouping && type == TG_NCCL_U8 ? TG_NCCL_IN_PROGRESS : 4;
}

int ncclGroupStart(void) {
    grouped = (messages){.to = -1, .from = -1};
    is_grouping = true;
    return TG_NCCL_SUCCESS;
}

int ncclGroupEnd(void) {
    is_grouping = false;
    return grouped.comm
               ? submit(exchange, &grouped, sizeof grouped, grouped.comm->ranks, grouped.stream)
               : TG_NCCL_SUCCESS;
}
