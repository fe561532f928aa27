/* Finding NCCL. */
#define _GNU_SOURCE
#include "dist/nccl_library.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/library.h"

static const tg_library_row functions[] = {
    {"ncclGetVersion", offsetof(tg_nccl, get_version)},
    {"ncclGetUniqueId", offsetof(tg_nccl, get_unique_id)},
    {"ncclCommInitRankConfig", offsetof(tg_nccl, comm_init)},
    {"ncclCommFinalize", offsetof(tg_nccl, comm_finalize)},
    {"ncclCommDestroy", offsetof(tg_nccl, comm_destroy)},
    {"ncclCommAbort", offsetof(tg_nccl, comm_abort)},
    {"ncclCommGetAsyncError", offsetof(tg_nccl, comm_error)},
    {"ncclGetErrorString", offsetof(tg_nccl, error_string)},
    {"ncclGetLastError", offsetof(tg_nccl, last_error)},
    {"ncclAllReduce", offsetof(tg_nccl, all_reduce)},
    {"ncclReduce", offsetof(tg_nccl, reduce)},
    {"ncclBroadcast", offsetof(tg_nccl, broadcast)},
    {"ncclGroupStart", offsetof(tg_nccl, group_start)},
    {"ncclGroupEnd", offsetof(tg_nccl, group_end)},
};

static tg_status open_library(tg_context *ctx, tg_nccl *nccl) {
    const char *wish = getenv("TGRAD_NCCL");
    const bool is_here = dlsym(RTLD_DEFAULT, functions[0].name) != NULL;
    void *library = dlopen(is_here ? NULL : wish ? wish : "libnccl.so.2", RTLD_NOW);
    if (!library) {
        const char *why = dlerror();
        return tg_fail(ctx, TG_E_UNSUPPORTED,
                       "NCCL: %s%s; install libnccl2, or set TGRAD_NCCL to the path of its "
                       "libnccl.so.2",
                       wish ? "TGRAD_NCCL: " : "", why ? why : "it cannot be opened");
    }
    const char *missing =
        tg_library_read(library, functions, sizeof functions / sizeof functions[0], nccl);
    int version = 0;
    if (missing || nccl->get_version(&version) != TG_NCCL_SUCCESS) {
        return tg_fail(ctx, TG_E_UNSUPPORTED, "NCCL: %s%s; NCCL 2.14 or later is needed",
                       missing ? "the library has no " : "it reports no version",
                       missing ? missing : "");
    }
    snprintf(nccl->version, sizeof nccl->version, "%d.%d.%d", version / 10000, version / 100 % 100,
             version % 100);
    return TG_OK;
}

tg_status tg_nccl_open(tg_context *ctx, const tg_nccl **out) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static tg_nccl nccl;
    static bool is_open;
    pthread_mutex_lock(&mutex);
    const tg_status status = is_open ? TG_OK : open_library(ctx, &nccl);
    is_open = status == TG_OK;
    pthread_mutex_unlock(&mutex);
    *out = &nccl;
    return status;
}
