/* Internals of a communicator, and the interface of a transport. */
#ifndef TG_DIST_COMM_H
#define TG_DIST_COMM_H

#include "backend/backend.h"
#include "tgrad/comm.h"

/* A message to one rank and one from another, which may be the same. */
typedef struct tg_comm_pair {
    int to, from;
    const void *sent;
    void *received;
    int64_t sent_bytes, received_bytes; /* 0: no message */
} tg_comm_pair;

/* What the ranks do with values: reduce them on all or on one, or copy those of one to all. */
typedef enum tg_comm_kind { TG_ALL_REDUCE, TG_REDUCE, TG_BROADCAST } tg_comm_kind;

typedef struct tg_comm_call {
    const char *name; /* as the caller knows it */
    tg_comm_kind kind;
    tg_comm_op op;
    int root;
    tg_dtype dtype; /* f32 or f64, u8 for copies */
    tg_place place;
    bool is_begun; /* a sum that may go on until `complete` */
} tg_comm_call;

static inline const char *tg_comm_kind_name(tg_comm_kind kind) {
    static const char *const names[] = {"all-reduce", "reduce", "broadcast"};
    return names[kind];
}

/* A transport for values on the host or on the device. Failures leave their message in
 * comm->ctx. */
typedef struct tg_comm_ops {
    /* For n >= 1 values of the call's dtype (pairs count twice). */
    tg_status (*run)(tg_comm *comm, const tg_comm_call *call, int64_t n, void *x);
    /* Begins an exchange; NULL: it is made of broadcasts. */
    tg_status (*begin_exchange)(tg_comm *comm, const tg_comm_pair *pair);
    tg_status (*complete)(tg_comm *comm); /* all that was begun; may be NULL */
    /* Device transports only; see tg_comm_begin_queue and tg_comm_group_sums. */
    tg_status (*begin_queue)(tg_comm *comm);
    tg_status (*end_queue)(tg_comm *comm);
    tg_status (*group)(tg_comm *comm, bool begins);
    tg_status (*barrier)(tg_comm *comm); /* host transports */
    tg_status (*check)(tg_comm *comm);   /* failures of queued operations; device transports */
    /* Opens `sub` for this rank and those of its color, `ranks` in all. NULL: it cannot. */
    tg_status (*split)(tg_comm *comm, int color, int ranks, tg_comm *sub);
    void (*end_all)(tg_comm *comm); /* may be NULL */
    void (*close)(tg_comm *comm);   /* closes comm->state; may be NULL */
} tg_comm_ops;

struct tg_comm {
    tg_context *ctx;
    tg_comm *whole; /* of a part, which its failures break, too */
    const tg_comm_ops *ops;
    void *state;               /* of the transport */
    const tg_comm_ops *device; /* for values on the device; NULL: staged through the host */
    void *device_state;
    int rank, ranks;
    int local_rank, local_ranks;
    double timeout;
    bool is_broken;  /* an operation failed: the ranks may be out of step */
    bool has_agreed; /* or all ranks know of a failure */
    bool is_queueing;
    void *stage; /* staging buffer, of parts the whole's; NULL: never used */
    tg_comm_stats stats;
    char transport[80];
};

/* A communicator without a transport; `config` may be NULL. */
TG_NODISCARD tg_status tg_comm_begin(tg_context *ctx, const tg_comm_config *config, tg_comm **out);
/* Adds a transport and finds the ranks on the same machine. On failure, *comm is destroyed. */
TG_NODISCARD tg_status tg_comm_finish(tg_comm **comm, tg_comm **out);

/* The ranks with the same `color`, in their order: `ranks` of them, the same number for every
 * color. Every rank calls it. Values of a device go through the host until tg_comm_open_device.
 * `comm` must live longer. */
TG_NODISCARD tg_status tg_comm_split(tg_comm *comm, int color, int ranks, tg_comm **out);

/* tg_comm_all_reduce of f64 numbers on the host, and tg_comm_broadcast of bytes there. */
TG_NODISCARD tg_status tg_comm_all_reduce_f64(tg_comm *comm, tg_comm_op op, int64_t count,
                                              void *numbers);
TG_NODISCARD tg_status tg_comm_broadcast_bytes(tg_comm *comm, int root, size_t bytes, void *data);

/* As tg_comm_reduce with TG_COMM_SUM (owner -1: tg_comm_all_reduce), but may return early: leave
 * the values alone until tg_comm_complete. All ranks begin sums in the same order. */
TG_NODISCARD tg_status tg_comm_begin_sum(tg_comm *comm, int owner, const tg_tensor *values);

/* As tg_comm_exchange, but may return early: leave both tensors alone until tg_comm_complete. */
TG_NODISCARD tg_status tg_comm_begin_exchange(tg_comm *comm, int to, const tg_tensor *sent,
                                              int from, const tg_tensor *received);
/* Completes the sums and exchanges that were begun. */
TG_NODISCARD tg_status tg_comm_complete(tg_comm *comm);

/* Whether values of the device are sent on its stream, so that calls with them do not block. */
bool tg_comm_is_on_stream(const tg_comm *comm);

/* Calls between begin and end, with values of the device, may be captured in a graph and replayed.
 * Only for a communicator on the stream. */
TG_NODISCARD tg_status tg_comm_begin_queue(tg_comm *comm);
TG_NODISCARD tg_status tg_comm_end_queue(tg_comm *comm);
/* Sums between begin and end, with values of the device, run as one group. */
TG_NODISCARD tg_status tg_comm_group_sums(tg_comm *comm, bool begins);

/* Fails on every rank unless all have the same `bytes` at `data`; `what` names them in the error:
 * "the settings". */
TG_NODISCARD tg_status tg_comm_check_same(tg_comm *comm, const char *what, const void *data,
                                          size_t bytes);

/* Messages one after the other in which values are added up, on a tree of the ranks and back. */
static inline int tg_sum_hops(int ranks) {
    int hops = 0;
    for (int reached = 1; reached < ranks; reached *= 2) {
        hops += 2;
    }
    return hops;
}

/* Whether nothing is ever sent; true for NULL. */
bool tg_comm_is_alone(const tg_comm *comm);

/* A hash of the machine's name. */
uint64_t tg_comm_machine(void);

/* The error for an operation that timed out. */
TG_NODISCARD tg_status tg_comm_timed_out(const tg_comm *comm, const char *operation,
                                         const char *why);

#endif
