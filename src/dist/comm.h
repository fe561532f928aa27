/* Inside of a communicator, and what a transport gives it. */
#ifndef TG_DIST_COMM_H
#define TG_DIST_COMM_H

#include "backend/backend.h"
#include "tgrad/comm.h"

/* A transport, of values on the host or on the device. They are f32 or f64 (pairs count twice);
 * 1 <= n. What fails has a sentence in comm->ctx. */
typedef struct tg_comm_ops {
    tg_status (*all_reduce)(tg_comm *comm, tg_comm_op op, tg_dtype dtype, int64_t n, void *x);
    tg_status (*reduce)(tg_comm *comm, tg_comm_op op, int owner, tg_dtype dtype, int64_t n,
                        void *x); /* NULL: all_reduce */
    tg_status (*broadcast)(tg_comm *comm, int root, int64_t bytes, void *x);
    /* A sum that is only begun: on rank `owner`, or on all (-1); end_sums ends all that were. NULL,
     * both: reduce and all_reduce do it at once. */
    tg_status (*begin_sum)(tg_comm *comm, int owner, tg_dtype dtype, int64_t n, void *x);
    tg_status (*end_sums)(tg_comm *comm);
    /* Of a device; see tg_comm_begin_queue and tg_comm_group_sums. */
    tg_status (*begin_queue)(tg_comm *comm);
    tg_status (*end_queue)(tg_comm *comm);
    tg_status (*group)(tg_comm *comm, bool begins);
    tg_status (*barrier)(tg_comm *comm); /* the host's */
    tg_status (*check)(tg_comm *comm);   /* what failed since it was queued; NULL: nothing is */
    void (*end_all)(tg_comm *comm);      /* NULL: nothing to be done */
    void (*close)(tg_comm *comm);        /* of comm->state; NULL likewise */
} tg_comm_ops;

struct tg_comm {
    tg_context *ctx;
    const tg_comm_ops *ops;
    void *state;               /* the transport's own */
    const tg_comm_ops *device; /* of values on the device; NULL: they go through the host */
    void *device_state;
    int rank, ranks;
    int local_rank, local_ranks;
    double timeout;
    bool is_broken;  /* an operation failed: the ranks may be at different places */
    bool has_agreed; /* .. or all know of a failure */
    bool is_queueing;
    bool takes_votes_only; /* the transport is none for values: those of training go over NCCL */
    void *stage; /* what is on its way between device and transport; NULL: nothing ever was */
    tg_comm_stats stats;
    char transport[80];
};

/* A communicator without a transport yet; `config` may be NULL. */
TG_NODISCARD tg_status tg_comm_begin(tg_context *ctx, const tg_comm_config *config, tg_comm **out);
/* With one: learns who is on the same machine. On failure, *comm is destroyed. */
TG_NODISCARD tg_status tg_comm_finish(tg_comm **comm, tg_comm **out);

/* As tg_comm_reduce with TG_COMM_SUM (owner -1: tg_comm_all_reduce), but it may return before the
 * values travel; they are not touched until tg_comm_end_sums. All ranks begin them in one order. */
TG_NODISCARD tg_status tg_comm_begin_sum(tg_comm *comm, int owner, const tg_tensor *values);
TG_NODISCARD tg_status tg_comm_end_sums(tg_comm *comm);

/* Whether values of the device travel on its stream, and no call with them waits. */
bool tg_comm_is_on_stream(const tg_comm *comm);

/* Calls in between, with values of the device, may be captured in a graph and run again by it. Of
 * a communicator on the stream. */
TG_NODISCARD tg_status tg_comm_begin_queue(tg_comm *comm);
TG_NODISCARD tg_status tg_comm_end_queue(tg_comm *comm);
/* Sums in between, with values of the device, are made together by its end. */
TG_NODISCARD tg_status tg_comm_group_sums(tg_comm *comm, bool begins);

/* Whether nothing is ever sent; also of NULL. */
bool tg_comm_is_alone(const tg_comm *comm);

/* A number for the machine, from its name. */
uint64_t tg_comm_machine(void);

/* The sentence of an operation that was not finished in time. */
TG_NODISCARD tg_status tg_comm_timed_out(const tg_comm *comm, const char *operation,
                                         const char *why);

#endif
