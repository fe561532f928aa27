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

#define TG_MPI_FUNCTION(name, field, ...) int (*field)(__VA_ARGS__);
#include "dist/mpi.def"
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

#define TG_NCCL_FUNCTION(result, name, field, ...) result (*field)(__VA_ARGS__);
#include "dist/nccl.def"
} tg_nccl;

/* The library already in the process, that of the environment variable TGRAD_NCCL, or the system's
 * libnccl.so.2; loaded once. */
TG_NODISCARD tg_status tg_nccl_open(tg_context *ctx, const tg_nccl **out);

#endif
