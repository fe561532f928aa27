/* NCCL, opened at run time: building needs no nccl.h, and systems without NCCL work. The
 * declarations here have been stable since version 2.14. */
#ifndef TG_DIST_NCCL_LIBRARY_H
#define TG_DIST_NCCL_LIBRARY_H

#include <stddef.h>

#include "base/context.h"

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
    int (*group_start)(void);
    int (*group_end)(void);
    /* clang-format on */
} tg_nccl;

/* The library already in the process, that of the environment variable TGRAD_NCCL, or the system's
 * libnccl.so.2; loaded once. */
TG_NODISCARD tg_status tg_nccl_open(tg_context *ctx, const tg_nccl **out);

#endif
