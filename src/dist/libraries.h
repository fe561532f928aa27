/* The libraries of the transports, opened at run time: building needs neither mpi.h nor nccl.h, and
 * one binary runs with either, both or none.
 *
 * MPI: Open MPI, MPICH and its relatives (Intel MPI, MVAPICH, Cray). The standard names functions,
 * not their binary interface. There are two: handles of Open MPI are pointers to objects that the
 * library exports, those of MPICH 32-bit constants, which its ABI initiative fixed. Here a handle
 * is an integer as wide as a pointer: both kinds are passed in the same register, and an output
 * handle is written to its low bytes (on little-endian machines; others are rejected).
 *
 * NCCL: the declarations have been stable since version 2.14. */
#ifndef TG_DIST_LIBRARIES_H
#define TG_DIST_LIBRARIES_H

#include <stddef.h>
#include <stdint.h>

#include "base/context.h"

typedef uintptr_t tg_mpi_handle;

typedef struct tg_mpi {
    size_t handle_size; /* bytes of an MPI_Comm in memory */
    tg_mpi_handle world, f32, f64, byte, sum, max, errors_return;
    void *in_place, *status_ignore;
    char version[64]; /* "Open MPI v4.1.4" */

    /* clang-format off */
    int (*initialized)(int *flag);
    int (*finalized)(int *flag);
    int (*init_thread)(int *argc, char ***argv, int required, int *provided);
    int (*finalize)(void);
    int (*end_all)(tg_mpi_handle comm, int code);
    int (*comm_rank)(tg_mpi_handle comm, int *rank);
    int (*comm_size)(tg_mpi_handle comm, int *size);
    int (*comm_dup)(tg_mpi_handle comm, tg_mpi_handle *out);
    int (*comm_split)(tg_mpi_handle comm, int color, int key, tg_mpi_handle *out);
    int (*comm_free)(tg_mpi_handle *comm);
    int (*comm_set_errhandler)(tg_mpi_handle comm, tg_mpi_handle handler);
    int (*error_string)(int code, char *text, int *length);
    int (*get_library_version)(char *text, int *length);
    int (*test)(tg_mpi_handle *request, int *flag, void *status);
    int (*iallreduce)(const void *send, void *receive, int n, tg_mpi_handle type, tg_mpi_handle op,
                      tg_mpi_handle comm, tg_mpi_handle *request);
    int (*ireduce)(const void *send, void *receive, int n, tg_mpi_handle type, tg_mpi_handle op,
                   int root, tg_mpi_handle comm, tg_mpi_handle *request);
    int (*ibcast)(void *data, int n, tg_mpi_handle type, int root, tg_mpi_handle comm,
                  tg_mpi_handle *request);
    int (*ibarrier)(tg_mpi_handle comm, tg_mpi_handle *request);
    int (*isend)(const void *data, int n, tg_mpi_handle type, int to, int tag, tg_mpi_handle comm,
                 tg_mpi_handle *request);
    int (*irecv)(void *data, int n, tg_mpi_handle type, int from, int tag, tg_mpi_handle comm,
                 tg_mpi_handle *request);
    /* clang-format on */
} tg_mpi;

/* Capacity for any text an MPI library writes: the larger of the two limits. */
enum { TG_MPI_TEXT = 8192 };

/* The library already in the process, that of TGRAD_MPI, or the system's. Loaded once and never
 * closed, since MPI cannot be started twice. `launcher` decides which is tried first. */
TG_NODISCARD tg_status tg_mpi_open(tg_context *ctx, const char *launcher, const tg_mpi **out);

/* ---- NCCL ---- */

enum {
    TG_NCCL_SUCCESS = 0,
    TG_NCCL_IN_PROGRESS = 7,
    /* types and operations */
    TG_NCCL_U8 = 1,
    TG_NCCL_F32 = 7,
    TG_NCCL_F64 = 8,
    TG_NCCL_SUM = 0,
    TG_NCCL_MAX = 2
};

typedef struct tg_nccl_id {
    char bytes[128];
} tg_nccl_id;

/* The first fields of ncclConfig_t; NCCL takes defaults for the rest. */
typedef struct tg_nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking;
} tg_nccl_config;

#define TG_NCCL_CONFIG(is_blocking)                                                                \
    { sizeof(tg_nccl_config), 0xcafebeefU, 21400, is_blocking }

typedef struct tg_nccl {
    char version[16]; /* "2.28.3" */

    /* clang-format off */
    int (*get_version)(int *version);
    int (*get_unique_id)(tg_nccl_id *id);
    int (*comm_init)(void **comm, int ranks, tg_nccl_id id, int rank, tg_nccl_config *config);
    int (*comm_finalize)(void *comm);
    int (*comm_destroy)(void *comm);
    int (*comm_abort)(void *comm);
    int (*comm_error)(void *comm, int *error);
    const char *(*error_string)(int error);
    const char *(*last_error)(void *comm);
    int (*all_reduce)(const void *send, void *receive, size_t n, int type, int op, void *comm,
                      void *stream);
    int (*reduce)(const void *send, void *receive, size_t n, int type, int op, int root, void *comm,
                  void *stream);
    int (*broadcast)(const void *send, void *receive, size_t n, int type, int root, void *comm,
                     void *stream);
    int (*send)(const void *data, size_t n, int type, int to, void *comm, void *stream);
    int (*receive)(void *data, size_t n, int type, int from, void *comm, void *stream);
    int (*group_start)(void);
    int (*group_end)(void);
    /* clang-format on */
} tg_nccl;

/* The library already in the process, that of the environment variable TGRAD_NCCL, or the system's
 * libnccl.so.2; loaded once. */
TG_NODISCARD tg_status tg_nccl_open(tg_context *ctx, const tg_nccl **out);

#endif
