/* Finds MPI, detecting which of its two binary interfaces it has, and NCCL. */
#define _GNU_SOURCE
#include "dist/libraries.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/system.h"

/* ---- MPI ---- */

static const tg_library_row mpi_functions[] = {
#define TG_MPI_FUNCTION(name, field, ...) {#name, offsetof(tg_mpi, field)},
#include "dist/mpi.def"
};

/* Handles of Open MPI are addresses of these objects; those of MPICH are numbers. */
static const struct {
    const char *open_mpi;
    uint32_t mpich;
    size_t offset;
} handles[] = {
    {"ompi_mpi_comm_world", 0x44000000, offsetof(tg_mpi, world)},
    {"ompi_mpi_float", 0x4c00040a, offsetof(tg_mpi, f32)},
    {"ompi_mpi_double", 0x4c00080b, offsetof(tg_mpi, f64)},
    {"ompi_mpi_byte", 0x4c00010d, offsetof(tg_mpi, byte)},
    {"ompi_mpi_op_max", 0x58000001, offsetof(tg_mpi, max)},
    {"ompi_mpi_op_sum", 0x58000003, offsetof(tg_mpi, sum)},
    {"ompi_mpi_errors_return", 0x54000001, offsetof(tg_mpi, errors_return)},
};

/* Open MPI 4 and 5, Debian's MPICH, and MPICH-compatible libraries by their ABI's name. */
static const char *const names[] = {"libmpi.so.40", "libmpich.so.12", "libmpi.so.12", "libmpi.so"};
enum { NAMES = sizeof names / sizeof names[0] };

static bool is_little_endian(void) {
    const uint16_t one = 1;
    unsigned char low = 0;
    memcpy(&low, &one, 1);
    return low == 1;
}

/* The process's library, or one opened for it: globally, because Open MPI's plug-ins resolve its
 * symbols in the whole process. */
static void *find_mpi(const char *launcher, const char **wanted) {
    void *library = dlsym(RTLD_DEFAULT, "MPI_Init_thread") ? dlopen(NULL, RTLD_NOW) : NULL;
    *wanted = getenv("TGRAD_MPI");
    if (!library && *wanted) {
        return dlopen(*wanted, RTLD_NOW | RTLD_GLOBAL);
    }
    const int first = strcmp(launcher, "mpiexec") == 0 ? 1 : 0;
    for (int i = 0; i < NAMES && !library; i++) {
        library = dlopen(names[(i + first) % NAMES], RTLD_NOW | RTLD_GLOBAL);
    }
    return library;
}

static tg_status read_mpi(tg_context *ctx, void *library, tg_mpi *mpi) {
    const bool is_open_mpi = dlsym(library, handles[0].open_mpi) != NULL;
    const char *missing =
        tg_library_read(library, mpi_functions, sizeof mpi_functions / sizeof *mpi_functions, mpi);
    if (missing) {
        return tg_fail(ctx, TG_E_UNSUPPORTED, "MPI: the library has no %s; MPI 3 is needed",
                       missing);
    }
    for (size_t i = 0; i < sizeof handles / sizeof handles[0]; i++) {
        void *at = is_open_mpi ? dlsym(library, handles[i].open_mpi) : NULL;
        if (is_open_mpi && !at) {
            return tg_fail(ctx, TG_E_UNSUPPORTED, "MPI: this Open MPI has no %s",
                           handles[i].open_mpi);
        }
        const tg_mpi_handle handle = is_open_mpi ? (tg_mpi_handle)at : handles[i].mpich;
        memcpy((char *)mpi + handles[i].offset, &handle, sizeof handle);
    }
    char text[TG_MPI_TEXT] = "";
    int length = 0;
    (void)mpi->get_library_version(text, &length);
    if (!is_open_mpi && !strstr(text, "MPICH") && !strstr(text, "Intel") &&
        !strstr(text, "MVAPICH")) {
        return tg_fail(ctx, TG_E_UNSUPPORTED, "MPI: %.40s is neither Open MPI nor of MPICH's kind",
                       text);
    }
    text[strcspn(text, ",\n")] = '\0';
    for (char *tab = strchr(text, '\t'); tab; tab = strchr(tab, '\t')) {
        *tab = ' '; /* MPICH's */
    }
    snprintf(mpi->version, sizeof mpi->version, "%.63s", text);
    mpi->handle_size = is_open_mpi ? sizeof(void *) : sizeof(int);
    mpi->in_place = is_open_mpi ? (void *)1 : (void *)-1;
    mpi->status_ignore = is_open_mpi ? NULL : (void *)1;
    return TG_OK;
}

tg_status tg_mpi_open(tg_context *ctx, const char *launcher, const tg_mpi **out) {
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    static tg_mpi mpi;
    static bool is_open;
    tg_status status = TG_OK;
    pthread_mutex_lock(&mutex);
    if (!is_open) {
        const char *wanted = NULL;
        void *library = is_little_endian() ? find_mpi(launcher, &wanted) : NULL;
        const char *why = library ? NULL : dlerror();
        status = library  ? read_mpi(ctx, library, &mpi)
                 : wanted ? tg_fail(ctx, TG_E_UNSUPPORTED, "MPI: TGRAD_MPI: %s: %s", wanted,
                                    why ? why : "cannot be opened")
                          : tg_fail(ctx, TG_E_UNSUPPORTED,
                                    "MPI: no library was found: install Open MPI or MPICH, or set "
                                    "TGRAD_MPI to the path of its libmpi.so");
        is_open = status == TG_OK;
    }
    pthread_mutex_unlock(&mutex);
    *out = &mpi;
    return status;
}

/* ---- NCCL ---- */

static const tg_library_row nccl_functions[] = {
#define TG_NCCL_FUNCTION(result, name, field, ...) {#name, offsetof(tg_nccl, field)},
#include "dist/nccl.def"
};

static tg_status open_nccl(tg_context *ctx, tg_nccl *nccl) {
    const char *wish = getenv("TGRAD_NCCL");
    const bool is_here = dlsym(RTLD_DEFAULT, nccl_functions[0].name) != NULL;
    void *library = dlopen(is_here ? NULL : wish ? wish : "libnccl.so.2", RTLD_NOW);
    if (!library) {
        const char *why = dlerror();
        return tg_fail(ctx, TG_E_UNSUPPORTED,
                       "NCCL: %s%s; install libnccl2, or set TGRAD_NCCL to the path of its "
                       "libnccl.so.2",
                       wish ? "TGRAD_NCCL: " : "", why ? why : "it cannot be opened");
    }
    const char *missing = tg_library_read(library, nccl_functions,
                                          sizeof nccl_functions / sizeof *nccl_functions, nccl);
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
    const tg_status status = is_open ? TG_OK : open_nccl(ctx, &nccl);
    is_open = status == TG_OK;
    pthread_mutex_unlock(&mutex);
    *out = &nccl;
    return status;
}
