/* Communicators: ranks that work on one training, each a process (MPI), a thread or whatever the
 * caller's own functions reach.
 *
 * Every rank makes the same calls in the same order; a call returns when this rank's part of it is
 * done. Results of reductions are the same bits on every rank, and the same again in the next run
 * on the same number of ranks and the same machines: values are combined in an order that depends
 * only on the number of ranks and the size (with MPI, as far as the library follows the advice of
 * its standard, as Open MPI and MPICH do). Other numbers of ranks agree up to
 * rounding.
 *
 * A rank that does not come, because it died or is late, is an error on all others after `timeout`
 * seconds (of tg_comm_create_callbacks: as its functions say), with a sentence that names rank and
 * operation. After an error, further calls fail at once, and tg_comm_destroy does not wait. */
#ifndef TGRAD_COMM_H
#define TGRAD_COMM_H

#include "tgrad/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tg_comm tg_comm;

typedef enum tg_comm_op { TG_COMM_SUM, TG_COMM_MAX } tg_comm_op;

typedef struct tg_comm_config {
    size_t size;    /* of the struct, see status.h */
    double timeout; /* 600: seconds that a rank waits for the others in one call */
} tg_comm_config;

TG_API void tg_comm_config_init(tg_comm_config *config, size_t size);
static inline tg_comm_config tg_comm_config_default(void) {
    tg_comm_config config;
    tg_comm_config_init(&config, sizeof config);
    return config;
}

/* ---- life ---- */

/* How this process was started, by the environment that launchers leave to it; nothing is opened.
 */
typedef struct tg_comm_launch {
    const char *launcher; /* "mpirun", "mpiexec", "srun", "torchrun", or "none" */
    int rank, ranks;      /* 0 and 1 without a launcher */
    int local_rank;       /* among those of this machine; -1: not known */
    int local_ranks;      /* how many those are; -1 likewise */
} tg_comm_launch;

TG_API tg_comm_launch tg_comm_get_launch(void);

/* One rank: this one. Nothing is ever sent. */
TG_API TG_NODISCARD tg_status tg_comm_create_self(tg_context *ctx, tg_comm **out);

/* All processes that the launcher started: over MPI, which is opened at run time (the library that
 * the process has already, that of the environment variable TGRAD_MPI, or the system's Open MPI or
 * MPICH) and initialised if it is not yet; tg_comm_destroy then finalizes it. Those of torchrun,
 * which does not start MPI, are refused. Without a launcher, or with one process, the same as
 * tg_comm_create_self. `config` NULL: the default. */
TG_API TG_NODISCARD tg_status tg_comm_create_world(tg_context *ctx, const tg_comm_config *config,
                                                   tg_comm **out);

/* The ranks of the caller's MPI communicator: `mpi_comm` is the address of the MPI_Comm, which is
 * duplicated. MPI is initialised, and finalized after tg_comm_destroy. */
TG_API TG_NODISCARD tg_status tg_comm_create_mpi(tg_context *ctx, const void *mpi_comm,
                                                 const tg_comm_config *config, tg_comm **out);

/* Functions of the caller on memory of the host; everything is made of these three. They return 0,
 * or anything else for a failure. */
typedef struct tg_comm_callbacks {
    size_t size; /* of the struct, see status.h */
    int rank, ranks;
    /* values[i] = sum or maximum over the ranks; dtype is TG_F32 or TG_F64 */
    int (*all_reduce)(void *user, tg_comm_op op, tg_dtype dtype, int64_t count, void *values);
    int (*broadcast)(void *user, int root, int64_t bytes, void *data);
    int (*barrier)(void *user);
    void *user; /* handed to each of them */
} tg_comm_callbacks;

TG_API TG_NODISCARD tg_status tg_comm_create_callbacks(tg_context *ctx,
                                                       const tg_comm_callbacks *callbacks,
                                                       tg_comm **out);

/* The transport of values in GPU memory. */
typedef enum tg_comm_engine {
    TG_COMM_AUTO, /* NCCL, if it is found and no ranks share a GPU; otherwise MPI */
    TG_COMM_MPI,  /* the transport of host memory, staged through the host */
    TG_COMM_NCCL  /* NCCL 2.14 or later, or a failure; also of one rank, to try it */
} tg_comm_engine;

/* Opens it, for the device that the context computes on; until then values go through the host.
 * NCCL is opened at run time: the library that the process has already, that of the environment
 * variable TGRAD_NCCL, or the system's libnccl.so.2. Calls with values on the device then return
 * when they are queued on its stream, and what fails later is an error of the next call. Every rank
 * calls it with the same engine; all succeed or all fail, and after a failure, the communicator is
 * as it was. */
TG_API TG_NODISCARD tg_status tg_comm_open_device(tg_comm *comm, tg_comm_engine engine);

/* Every rank calls it; accepts NULL. */
TG_API void tg_comm_destroy(tg_comm **comm);

/* Ends all ranks without their consent, this process included, where the transport can (MPI_Abort
 * with exit status 1); otherwise the others learn it at their next call, or by their timeout. For
 * programs that cannot go on; the library itself never calls it. */
TG_API void tg_comm_abort(tg_comm *comm);

/* ---- queries ---- */

TG_API int tg_comm_rank(const tg_comm *comm);
TG_API int tg_comm_ranks(const tg_comm *comm);

/* Since the communicator was made. Bytes are those of the values, once: an all-reduce of n bytes
 * over P ranks sends about 2 n (P - 1) / P over a link in each direction. */
typedef struct tg_comm_stats {
    int64_t calls;
    int64_t reduced; /* bytes of all_reduce, reduce and reduce_scatter */
    int64_t copied;  /* bytes of all_gather and broadcast, and those that exchange sent */
    double seconds;  /* in calls, waiting for others included */
} tg_comm_stats;

typedef struct tg_comm_info {
    int local_rank, local_ranks; /* among the ranks on this machine, and their number */
    bool has_agreed; /* the last failure of tg_comm_agree, or of a call that ends with it, is known
                        to all ranks: one of them may report it for all, and all may end cleanly */
    const char *transport; /* "self", "callbacks", or MPI with its version: "Open MPI v4.1.4";
                              followed by NCCL if it is open: "Open MPI v4.1.4, on GPUs
                              NCCL 2.28.3". Valid as long as the communicator */
    tg_comm_stats stats;
} tg_comm_info;

/* Of NULL: all zero and "". */
TG_API tg_comm_info tg_comm_get_info(const tg_comm *comm);

/* ---- operations ----
 *
 * Tensors are on the host, or on the device that the context computes on; if the transport cannot
 * send from there, they are staged through the host. They are read and written in place, and have
 * the same dtype and size on every rank. Reductions take f32, f64, c64 and c128 (of TG_COMM_MAX,
 * the real ones), copies any dtype. */

/* On every rank, the sum or maximum over all ranks. */
TG_API TG_NODISCARD tg_status tg_comm_all_reduce(tg_comm *comm, tg_comm_op op,
                                                 const tg_tensor *values);
/* The same on rank `owner` alone; the values of the others are unchanged or undefined. */
TG_API TG_NODISCARD tg_status tg_comm_reduce(tg_comm *comm, tg_comm_op op, int owner,
                                             const tg_tensor *values);

/* Part r of n values over P ranks, for the two calls below: n / P consecutive ones, and one more
 * for r < n % P. */

/* Each rank gets the sum or maximum of its part; its other values are as they were or undefined. */
TG_API TG_NODISCARD tg_status tg_comm_reduce_scatter(tg_comm *comm, tg_comm_op op,
                                                     const tg_tensor *values);
/* Each rank gives its part, and gets those of the others. */
TG_API TG_NODISCARD tg_status tg_comm_all_gather(tg_comm *comm, const tg_tensor *values);

/* The values of rank `root`, on every rank. */
TG_API TG_NODISCARD tg_status tg_comm_broadcast(tg_comm *comm, int root, const tg_tensor *values);
/* Sends one tensor to rank `to`, while another arrives from rank `from`, whose calls match. Sizes
 * may differ between ranks, places may not. Every rank takes part in every exchange, with other
 * ranks than itself unless it is alone. */
TG_API TG_NODISCARD tg_status tg_comm_exchange(tg_comm *comm, int to, const tg_tensor *sent,
                                               int from, const tg_tensor *received);
/* Returns when every rank has called it. */
TG_API TG_NODISCARD tg_status tg_comm_barrier(tg_comm *comm);

/* The statuses of a step that each rank made for itself: TG_OK if all are; otherwise every rank
 * gets that of the lowest rank that failed, with its sentence and "rank N:" in front. */
TG_API TG_NODISCARD tg_status tg_comm_agree(tg_comm *comm, tg_status status);

#ifdef __cplusplus
}
#endif
#endif
