/* Transport over TCP for launchers without MPI, in a star around rank 0. Values of GPUs go over
 * NCCL; this carries its id, votes and error messages. For users of torchrun and srun --mpi=none:
 * machines with PyTorch and NCCL often have no MPI.
 *
 * Rank 0 listens one port above MASTER_PORT, which a store of torchrun occupies. A rank sends a
 * hello with its number and the name of the job; other connections are rejected. Each operation is
 * then a message to rank 0 and a reply. Both begin with the operation's number and size, so that
 * ranks out of step are detected. Sums are computed in rank order. */
#define _GNU_SOURCE /* accept4 */
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/timer.h"
#include "dist/comm.h"
#include "dist/launch.h"
#include "tensor/element.h"

enum { PIECE_BYTES = 1 << 16 };

static const double hello_timeout = 2.0; /* seconds; ranks send it at once */

typedef struct hello {
    char protocol[16];
    uint32_t rank, ranks;
    char job[104];
} hello;

typedef struct header {
    uint64_t number; /* of the operation */
    uint64_t bytes;  /* that follow */
} header;

typedef struct tcp_state {
    int *peer; /* (ranks) sockets: on rank 0 one per other rank, elsewhere one to rank 0 */
    uint64_t operations;
    const char *name; /* of the current operation */
    double piece[PIECE_BYTES / sizeof(double)];
} tcp_state;

/* ---- messages ---- */

typedef enum outcome { DONE, LATE, ENDED } outcome;

/* Sets the socket's timeout in seconds. */
static void set_timeout(int socket, double seconds) {
    const double least = seconds > 1e-3 ? seconds : 1e-3; /* 0 would mean no timeout */
    const struct timeval time = {.tv_sec = (time_t)least,
                                 .tv_usec = (suseconds_t)(1e6 * (least - (double)(time_t)least))};
    (void)setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &time, sizeof time);
    (void)setsockopt(socket, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

static outcome transfer(int socket, void *data, size_t bytes, bool sends) {
    char *at = data;
    while (bytes > 0) {
        const ssize_t n =
            sends ? send(socket, at, bytes, MSG_NOSIGNAL) : recv(socket, at, bytes, 0);
        if (n > 0) {
            at += n;
            bytes -= (size_t)n;
        } else if (n == 0 || errno != EINTR) {
            return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? LATE : ENDED;
        }
    }
    return DONE;
}

static tg_status explain(const tg_comm *comm, int peer, outcome what) {
    const tcp_state *s = comm->state;
    char why[64];
    if (what == DONE) {
        return TG_OK;
    }
    snprintf(why, sizeof why, "rank %d is late or has died", peer);
    return what == LATE ? tg_comm_timed_out(comm, s->name, why)
                        : tg_fail(comm->ctx, TG_E_BACKEND, "rank %d of %d: %s: rank %d has ended",
                                  comm->rank, comm->ranks, s->name, peer);
}

static tg_status put(const tg_comm *comm, int peer, void *data, size_t bytes) {
    const tcp_state *s = comm->state;
    header h = {.number = s->operations, .bytes = bytes};
    const outcome what = transfer(s->peer[peer], &h, sizeof h, true);
    return explain(comm, peer, what == DONE ? transfer(s->peer[peer], data, bytes, true) : what);
}

static tg_status get(const tg_comm *comm, int peer, void *data, size_t bytes) {
    const tcp_state *s = comm->state;
    header h = {0};
    const outcome what = transfer(s->peer[peer], &h, sizeof h, false);
    if (what == DONE && (h.number != s->operations || h.bytes != bytes)) {
        return tg_fail(comm->ctx, TG_E_BACKEND,
                       "rank %d of %d: %s: rank %d is at another operation (number %llu of %llu "
                       "bytes, not %llu of %zu)",
                       comm->rank, comm->ranks, s->name, peer, (unsigned long long)h.number,
                       (unsigned long long)h.bytes, (unsigned long long)s->operations, bytes);
    }
    return explain(comm, peer, what == DONE ? transfer(s->peer[peer], data, bytes, false) : what);
}

/* ---- operations ---- */

static void begin(const tg_comm *comm, const char *name) {
    tcp_state *s = comm->state;
    s->operations++;
    s->name = name;
}

static tg_status reduce_piece(const tg_comm *comm, tg_comm_op op, tg_dtype dtype, int64_t n,
                              void *x) {
    tcp_state *s = comm->state;
    const size_t bytes = (size_t)n * tg_dtype_size(dtype);
    begin(comm, "a sum or vote");
    if (comm->rank > 0) {
        TG_CALL(put(comm, 0, x, bytes));
        return get(comm, 0, x, bytes);
    }
    for (int rank = 1; rank < comm->ranks; rank++) {
        TG_CALL(get(comm, rank, s->piece, bytes));
        for (int64_t i = 0; i < n; i++) { /* f64 rounds a sum of two f32 correctly */
            const double a = tg_load(dtype, x, i).re, b = tg_load(dtype, s->piece, i).re;
            const double both = op == TG_COMM_SUM ? a + b : b > a ? b : a;
            tg_store(dtype, x, i, (tg_scalar){both, 0.0});
        }
    }
    for (int rank = 1; rank < comm->ranks; rank++) {
        TG_CALL(put(comm, rank, x, bytes));
    }
    return TG_OK;
}

static tg_status all_reduce(tg_comm *comm, tg_comm_op op, tg_dtype dtype, int64_t n, void *x) {
    const int64_t size = (int64_t)tg_dtype_size(dtype), most = PIECE_BYTES / size;
    for (int64_t i = 0; i < n; i += most) {
        TG_CALL(reduce_piece(comm, op, dtype, n - i < most ? n - i : most, (char *)x + i * size));
    }
    return TG_OK;
}

static tg_status broadcast(tg_comm *comm, int root, int64_t bytes, void *x) {
    begin(comm, "broadcast");
    if (comm->rank > 0) {
        return root == comm->rank ? put(comm, 0, x, (size_t)bytes) : get(comm, 0, x, (size_t)bytes);
    }
    TG_CALL(root > 0 ? get(comm, root, x, (size_t)bytes) : TG_OK);
    for (int rank = 1; rank < comm->ranks; rank++) {
        TG_CALL(rank == root ? TG_OK : put(comm, rank, x, (size_t)bytes));
    }
    return TG_OK;
}

static tg_status barrier(tg_comm *comm) {
    double nothing = 0.0;
    return all_reduce(comm, TG_COMM_MAX, TG_F64, 1, &nothing);
}

static void close_tcp(tg_comm *comm) {
    tcp_state *s = comm->state;
    for (int rank = 0; s->peer && rank < comm->ranks; rank++) {
        if (s->peer[rank] >= 0) {
            (void)close(s->peer[rank]);
        }
    }
    tg_mem_free(comm->ctx, s->peer);
    TG_FREE(comm->ctx, comm->state);
}

static const tg_comm_ops tcp_ops = {
    .all_reduce = all_reduce, .broadcast = broadcast, .barrier = barrier, .close = close_tcp};

/* ---- connecting ---- */

static const char *setting(const char *name) {
    const char *value = getenv(name);
    return value ? value : "";
}

/* The hello of a rank of this job; those of other jobs and earlier attempts differ. */
static hello hello_of(const tg_comm *comm, int rank) {
    hello h = {.protocol = "tgrad ranks 2", .rank = (uint32_t)rank, .ranks = (uint32_t)comm->ranks};
    snprintf(h.job, sizeof h.job, "%.40s.%.10s.%.20s.%.10s", setting("TORCHELASTIC_RUN_ID"),
             setting("TORCHELASTIC_RESTART_COUNT"), setting("SLURM_JOB_ID"),
             setting("SLURM_STEP_ID"));
    return h;
}

/* Adopts the socket of an accepted rank. */
static int keep(const tg_comm *comm, int socket) {
    const int on = 1;
    set_timeout(socket, comm->timeout);
    (void)setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    (void)setsockopt(socket, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    return socket;
}

/* A status of this rank alone, which others need not share. */
static tg_status fail_to_meet(const tg_comm *comm, const char *why) {
    return tg_comm_timed_out(comm, "meeting over TCP", why) == TG_OK ? TG_OK : TG_E_IO;
}

/* A listening socket: on the loopback interface if all ranks use that, otherwise on all. */
static int listen_at(const char *address, int port) {
    const bool is_local = strcmp(address, "localhost") == 0 || strcmp(address, "127.0.0.1") == 0;
    const struct sockaddr_in ipv4 = {
        .sin_family = AF_INET,
        .sin_port = htons((uint16_t)port),
        .sin_addr = {.s_addr = htonl(is_local ? INADDR_LOOPBACK : INADDR_ANY)}};
    const struct sockaddr_in6 both = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)};
    const int on = 1, off = 0;
    int made = is_local ? -1 : socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool is_ipv6 = made >= 0;
    made = is_ipv6 ? made : socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    (void)setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    (void)(is_ipv6 ? setsockopt(made, IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off) : 0);
    const int bound = is_ipv6 ? bind(made, (const struct sockaddr *)&both, sizeof both)
                              : bind(made, (const struct sockaddr *)&ipv4, sizeof ipv4);
    if (made >= 0 && (bound != 0 || listen(made, SOMAXCONN) != 0)) {
        const int why = errno;
        (void)close(made);
        errno = why;
        return -1;
    }
    return made;
}

/* Accepts a connection if it is from a missing rank, and confirms that to it. */
static bool takes_in(const tg_comm *comm, int socket) {
    const tcp_state *s = comm->state;
    hello said = {.rank = 0};
    set_timeout(socket, hello_timeout);
    if (transfer(socket, &said, sizeof said, false) != DONE || said.rank == 0 ||
        said.rank >= (uint32_t)comm->ranks || s->peer[said.rank] >= 0) {
        return false;
    }
    hello expected = hello_of(comm, (int)said.rank);
    if (memcmp(&said, &expected, sizeof said) != 0 ||
        transfer(socket, &expected, sizeof expected, true) != DONE) {
        return false;
    }
    s->peer[said.rank] = keep(comm, socket);
    return true;
}

static tg_status welcome_all(const tg_comm *comm, const char *address, int port) {
    const tcp_state *s = comm->state;
    const double deadline = tg_seconds() + comm->timeout;
    const int door = listen_at(address, port);
    if (door < 0) {
        return tg_fail(comm->ctx, TG_E_BACKEND,
                       "rank 0 of %d: port %d, one above MASTER_PORT, where ranks meet: %s; choose "
                       "another MASTER_PORT",
                       comm->ranks, port, strerror(errno));
    }
    int missing = 1;
    while (missing < comm->ranks && tg_seconds() < deadline) {
        set_timeout(door, deadline - tg_seconds());
        const int socket = accept4(door, NULL, NULL, SOCK_CLOEXEC);
        if (socket >= 0 && !takes_in(comm, socket)) {
            (void)close(socket);
        }
        while (missing < comm->ranks && s->peer[missing] >= 0) {
            missing++;
        }
    }
    (void)close(door);
    char why[80];
    snprintf(why, sizeof why, "rank %d has not connected to port %d", missing, port);
    return missing == comm->ranks ? TG_OK : fail_to_meet(comm, why);
}

/* A connection that rank 0 has accepted, or -1. */
static int knock(const tg_comm *comm, const struct addrinfo *to, double deadline) {
    hello said = hello_of(comm, comm->rank), heard;
    const int made = socket(to->ai_family, to->ai_socktype | SOCK_CLOEXEC, 0);
    set_timeout(made, hello_timeout);
    if (connect(made, to->ai_addr, to->ai_addrlen) == 0 &&
        transfer(made, &said, sizeof said, true) == DONE) {
        set_timeout(made,
                    deadline - tg_seconds()); /* rank 0 may be waiting for a stranger's hello */
        if (transfer(made, &heard, sizeof heard, false) == DONE &&
            memcmp(&said, &heard, sizeof said) == 0) {
            return keep(comm, made);
        }
    }
    (void)close(made);
    return -1;
}

static tg_status go_to_first(const tg_comm *comm, const char *address, int port) {
    tcp_state *s = comm->state;
    const double deadline = tg_seconds() + comm->timeout;
    const struct addrinfo wanted = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM};
    char service[16], why[160];
    snprintf(service, sizeof service, "%d", port);
    int code = 0;
    do {
        struct addrinfo *found = NULL;
        code = getaddrinfo(address, service, &wanted, &found);
        for (const struct addrinfo *to = found; to && s->peer[0] < 0; to = to->ai_next) {
            s->peer[0] = knock(comm, to, deadline);
        }
        if (found) {
            freeaddrinfo(found);
        }
        if (s->peer[0] < 0) {
            (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
        }
    } while (s->peer[0] < 0 && tg_seconds() < deadline);
    snprintf(why, sizeof why, "rank 0 did not answer at %.60s:%d, one above MASTER_PORT%s%.40s",
             address, port, code ? ": " : "", code ? gai_strerror(code) : "");
    return s->peer[0] >= 0 ? TG_OK : fail_to_meet(comm, why);
}

tg_status tg_comm_create_tcp_world(tg_context *ctx, const tg_comm_config *config,
                                   const tg_comm_launch *launch, tg_comm **out) {
    const char *address = setting("MASTER_ADDR"), *text = setting("MASTER_PORT");
    char *rest = NULL;
    const long port = strtol(text, &rest, 10);
    tg_status status = TG_OK;
    tg_comm *comm = NULL;
    tcp_state *s = NULL;
    if (!*address || rest == text || *rest || port < 1 || port > 65534) {
        return tg_fail(ctx, TG_E_UNSUPPORTED,
                       "%d processes by %s: MASTER_ADDR '%.80s' and MASTER_PORT '%.20s' do not say "
                       "where rank 0 is",
                       launch->ranks, launch->launcher, address, text);
    }
    TG_TRY(tg_comm_begin(ctx, config, &comm));
    comm->rank = launch->rank;
    comm->ranks = launch->ranks;
    comm->takes_votes_only = true;
    snprintf(comm->transport, sizeof comm->transport, "TCP");
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, s, 1));
    comm->state = s;
    comm->ops = &tcp_ops;
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, s->peer, comm->ranks));
    for (int rank = 0; rank < comm->ranks; rank++) {
        s->peer[rank] = -1;
    }
    TG_TRY(comm->rank == 0 ? welcome_all(comm, address, (int)port + 1)
                           : go_to_first(comm, address, (int)port + 1));
    return tg_comm_finish(&comm, out);
fail:
    tg_comm_destroy(&comm);
    return status;
}
