/* Any bytes as the words of the process that reads an HDF5 file: an error, or datasets and metadata
 * that can be read; no leak. The file after them has 4 KiB of zeros. */
#define _GNU_SOURCE
#include <stdio.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "io/hdf5_wire.h"

enum { FILE_SIZE = 4096, LARGEST_READ = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

static void read_all(tg_context *ctx, tg_h5 *file) {
    tg_archive *archive = NULL;
    if (tg_archive_create(ctx, &archive) != TG_OK) {
        __builtin_trap();
    }
    if (tg_h5_read_meta(file, archive) == TG_OK && tg_archive_meta_count(archive) < 0) {
        __builtin_trap();
    }
    tg_archive_destroy(&archive);
    for (int64_t i = 0; i < tg_h5_count(file); i++) {
        tg_tensor tensor = {0};
        tg_tensor_stats stats;
        tg_dtype dtype;
        tg_shape shape;
        if (tg_h5_describe(file, tg_h5_name(file, i), &dtype, &shape) == TG_OK &&
            tg_shape_numel(&shape) <= LARGEST_READ &&
            tg_h5_read(file, tg_h5_name(file, i), &tensor) == TG_OK &&
            tg_tensor_get_stats(ctx, &tensor, &stats) != TG_OK) {
            __builtin_trap();
        }
        tg_tensor_destroy(&tensor);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static tg_context *ctx;
    static char path[64];
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 1};
    if (!ctx) {
        const int fd = memfd_create("file.h5", 0);
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        if (ftruncate(fd, FILE_SIZE) != 0 || tg_context_create(&config, &ctx) != TG_OK) {
            __builtin_trap();
        }
    }
    int fds[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, fds) != 0 ||
        (size > 0 && write(fds[1], bytes, size) != (ssize_t)size) ||
        shutdown(fds[1], SHUT_WR) != 0) {
        __builtin_trap();
    }
    tg_h5 *file = NULL;
    const tg_h5_child reader = {.ctx = ctx, .fd = fds[0], .pid = -1};
    if (tg_h5_open_from(ctx, path, &reader, &file) == TG_OK) {
        read_all(ctx, file);
    }
    tg_h5_close(&file);
    close(fds[1]);
    if (tg_context_memory(ctx, TG_HOST).blocks != 1) { /* the context itself */
        __builtin_trap();
    }
    return 0;
}
