/* MPI, opened at run time: one binary runs with Open MPI, with MPICH and its relatives (Intel MPI,
 * MVAPICH, Cray), and without any. No mpi.h is needed to build.
 *
 * The standard names functions, not their binary interface. There are two: handles of Open MPI are
 * pointers to objects that the library exports, those of MPICH 32-bit constants, which its ABI
 * initiative fixed. Here a handle is an integer as wide as a pointer: both kinds are passed in the
 * same register, and an output handle is written to its low bytes (on little-endian machines;
 * others are rejected). */
#ifndef TG_DIST_MPI_LIBRARY_H
#define TG_DIST_MPI_LIBRARY_H

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
    /* clang-format on */
} tg_mpi;

/* Capacity for any text an MPI library writes: the larger of the two limits. */
enum { TG_MPI_TEXT = 8192 };

/* The library already in the process, that of TGRAD_MPI, or the system's. Loaded once and never
 * closed, since MPI cannot be started twice. `launcher` decides which is tried first. */
TG_NODISCARD tg_status tg_mpi_open(tg_context *ctx, const char *launcher, const tg_mpi **out);

#endif
