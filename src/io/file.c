/* Reading and atomic writing of files by system calls.
 *
 * Numbers in npy and safetensors files are little-endian, nearly always when read and always as
 * written here; elements are moved between file and memory unchanged, so the host must be
 * little-endian too. */
#include "io/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tgrad needs a little-endian host");

enum {
    MAX_TRANSFER = 1 << 30, /* bytes per call; some systems reject more than 2^31 - 1 */
    NAME_ATTEMPTS = 1000,   /* for a temporary file */
};

/* strerror is not thread-safe. */
const char *tg_system_reason(int error, char text[128]) {
    if (strerror_r(error, text, 128) != 0) {
        snprintf(text, 128, "system error %d", error);
    }
    return text;
}

tg_status tg_fail_system(tg_context *ctx, const char *path, const char *verb, int error) {
    char text[128];
    return tg_fail(ctx, TG_E_IO, "%s: cannot %s: %s", path, verb, tg_system_reason(error, text));
}

tg_status tg_fail_file_at(const tg_source *source, tg_status status, const char *file, int line,
                          const char *format, ...) {
    char sentence[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(sentence, sizeof sentence, format, args);
    va_end(args);
    return tg_fail_at(source->ctx, status, file, line, "%s: %s", source->label, sentence);
}

bool tg_process_is_alive(long pid) {
    return kill((pid_t)pid, 0) == 0 || errno == EPERM;
}

/* ---- reading ---- */

tg_status tg_source_open(tg_context *ctx, const char *path, tg_source *out) {
    *out = (tg_source){.ctx = ctx, .label = path, .fd = -1};
    if (!path) {
        return tg_fail(ctx, TG_E_ARGUMENT, "file: no path given");
    }
    /* O_NONBLOCK: opening a named pipe must fail below, not wait for its other end. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return tg_fail_system(ctx, path, "open", errno);
    }
    struct stat info;
    tg_status status = TG_OK;
    if (fstat(fd, &info) != 0) {
        status = tg_fail_system(ctx, path, "get its size", errno);
    } else if (!S_ISREG(info.st_mode)) {
        status =
            tg_fail(ctx, TG_E_IO, "%s: %s", path,
                    S_ISDIR(info.st_mode) ? "it is a folder, not a file" : "not a regular file");
    }
    if (status != TG_OK) {
        close(fd);
        return status;
    }
    out->fd = fd;
    out->size = (uint64_t)info.st_size;
    return TG_OK;
}

tg_source tg_source_of_memory(tg_context *ctx, const char *label, const void *bytes, size_t size) {
    return (tg_source){.ctx = ctx,
                       .label = label ? label : "memory",
                       .bytes = bytes ? bytes : (const void *)"",
                       .fd = -1,
                       .size = bytes ? size : 0};
}

void tg_source_close(tg_source *source) {
    if (source->fd >= 0) {
        close(source->fd);
    }
    source->fd = -1;
}

tg_status tg_source_read(const tg_source *source, uint64_t offset, void *dst, size_t count) {
    if (offset > source->size || count > source->size - offset) {
        return tg_fail_file(source, TG_E_FORMAT,
                            "truncated: expected %zu bytes from byte %llu on, the file has %llu",
                            count, (unsigned long long)offset, (unsigned long long)source->size);
    }
    if (source->bytes) {
        if (count > 0) {
            memcpy(dst, source->bytes + source->base + offset, count);
        }
        return TG_OK;
    }
    size_t done = 0;
    while (done < count) {
        size_t step = count - done < MAX_TRANSFER ? count - done : MAX_TRANSFER;
        ssize_t got =
            pread(source->fd, (char *)dst + done, step, (off_t)(source->base + offset + done));
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got < 0) {
            return tg_fail_system(source->ctx, source->label, "read", errno);
        }
        if (got == 0) {
            return tg_fail_file(source, TG_E_IO, "became shorter while it was read");
        }
        done += (size_t)got;
    }
    return TG_OK;
}

tg_status tg_file_read(tg_context *ctx, const char *path, size_t limit, void **bytes,
                       size_t *size) {
    tg_status status = TG_OK;
    tg_source source = {.fd = -1};
    char *content = NULL;
    *bytes = NULL;
    *size = 0;
    TG_TRY(tg_source_open(ctx, path, &source));
    TG_TRY(source.size <= limit && source.size < SIZE_MAX
               ? TG_OK
               : tg_fail_file(&source, TG_E_FORMAT, "has %llu bytes, at most %zu are accepted",
                              (unsigned long long)source.size, limit));
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, content, source.size + 1));
    TG_TRY(tg_source_read(&source, 0, content, (size_t)source.size));
    content[source.size] = '\0';
    *bytes = content;
    *size = (size_t)source.size;
    content = NULL;
fail:
    TG_FREE(ctx, content);
    tg_source_close(&source);
    return status;
}

/* ---- writing ---- */

int tg_file_write_at(int fd, uint64_t offset, const void *bytes, size_t count) {
    for (size_t done = 0; done < count;) {
        const size_t step = count - done < MAX_TRANSFER ? count - done : MAX_TRANSFER;
        const ssize_t wrote = pwrite(fd, (const char *)bytes + done, step, (off_t)(offset + done));
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote <= 0) {
            return wrote < 0 ? errno : EIO;
        }
        done += (size_t)wrote;
    }
    return 0;
}

int tg_file_sync(int fd) {
    int error;
    do {
        error = fsync(fd) == 0 ? 0 : errno;
    } while (error == EINTR);
    return error;
}

/* Length of the folder part of a path, with its last slash; 0 if it has none. */
static int folder_length(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? (int)(slash - path) + 1 : 0;
}

/* Creates a new file in the target's folder: rename does not cross file systems. Its name is short,
 * so that a target with the longest possible name works too. */
static tg_status open_temporary(tg_atomic_file *file, mode_t mode) {
    static atomic_uint serial;
    const size_t capacity = strlen(file->path) + 64;
    file->temporary = tg_mem_alloc(file->ctx, TG_MEM_OTHER, capacity, 1);
    if (!file->temporary) {
        return TG_E_MEMORY;
    }
    int error = EEXIST;
    for (int attempt = 0; attempt < NAME_ATTEMPTS && error == EEXIST; attempt++) {
        snprintf(file->temporary, capacity, "%.*s.tgrad-%ld-%u.tmp", folder_length(file->path),
                 file->path, (long)getpid(), atomic_fetch_add(&serial, 1));
        file->fd = open(file->temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, mode);
        error = file->fd < 0 ? errno : 0;
    }
    if (file->fd < 0) {
        tg_fail_system(file->ctx, file->path, "create a file in its folder", error);
        TG_FREE(file->ctx, file->temporary);
        return TG_E_IO;
    }
    return TG_OK;
}

tg_status tg_folder_make(tg_context *ctx, const char *path) {
    struct stat info;
    const int error = mkdir(path, 0777) == 0 ? 0 : errno;
    if (error == 0 || (error == EEXIST && stat(path, &info) == 0 && S_ISDIR(info.st_mode))) {
        return TG_OK;
    }
    return tg_fail_system(ctx, path, "make this folder", error);
}

tg_status tg_folder_make_all(tg_context *ctx, const char *path) {
    char part[1024];
    if (snprintf(part, sizeof part, "%s", path) < (int)sizeof part) { /* else mkdir reports it */
        for (char *slash = strchr(part + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
            *slash = '\0';
            (void)mkdir(part, 0777); /* the last one reports any error */
            *slash = '/';
        }
    }
    return tg_folder_make(ctx, path);
}

tg_status tg_atomic_open(tg_context *ctx, const char *path, tg_atomic_file *out) {
    *out = (tg_atomic_file){.ctx = ctx, .path = path, .fd = -1};
    if (!path || !*path) {
        return tg_fail(ctx, TG_E_ARGUMENT, "file: no path given to write to");
    }
    /* Never replace a device, a pipe or a folder by a plain file. */
    struct stat old;
    const bool exists = lstat(path, &old) == 0;
    if (exists && !S_ISREG(old.st_mode) && !S_ISLNK(old.st_mode)) {
        return tg_fail(ctx, TG_E_IO, "%s: not a regular file, will not be replaced", path);
    }
    tg_status status = open_temporary(out, 0666);
    if (status == TG_OK && exists && S_ISREG(old.st_mode) &&
        fchmod(out->fd, old.st_mode & 0777) != 0) {
        status = tg_fail_system(ctx, path, "keep its permission bits", errno);
        tg_atomic_abort(out);
    }
    return status;
}

tg_status tg_atomic_write(tg_atomic_file *file, const void *bytes, size_t count) {
    return tg_atomic_write_at(file, file->size, bytes, count);
}

tg_status tg_atomic_write_at(tg_atomic_file *file, uint64_t offset, const void *bytes,
                             size_t count) {
    const int error = tg_file_write_at(file->fd, offset, bytes, count);
    if (error != 0) {
        return tg_fail_system(file->ctx, file->path, "write", error);
    }
    file->size = offset + count > file->size ? offset + count : file->size;
    return TG_OK;
}

tg_status tg_atomic_resize(tg_atomic_file *file, uint64_t size) {
    if (ftruncate(file->fd, (off_t)size) != 0) {
        return tg_fail_system(file->ctx, file->path, "set its size", errno);
    }
    file->size = size;
    return TG_OK;
}

/* Makes the rename durable. Some file systems cannot sync a folder (EINVAL), and a folder may be
 * open for writing only (EACCES): neither fails the write. */
tg_status tg_file_sync_folder(tg_context *ctx, const char *path) {
    char text[128], folder[4096];
    const int length = folder_length(path);
    snprintf(folder, sizeof folder, "%.*s", length ? length : 1, length ? path : ".");
    int fd = open(folder, O_RDONLY | O_CLOEXEC);
    int error = fd < 0 ? errno : 0;
    if (fd >= 0) {
        error = tg_file_sync(fd);
        close(fd);
    }
    if (error != 0 && error != EINVAL && error != EACCES) {
        return tg_fail(ctx, TG_E_IO, "%s: written, but its folder cannot be synced: %s", path,
                       tg_system_reason(error, text));
    }
    return TG_OK;
}

tg_status tg_atomic_commit(tg_atomic_file *file) {
    const char *step = "sync the new file";
    int error = tg_file_sync(file->fd);
    /* An interrupted close has closed; fsync has already written the data. */
    if (close(file->fd) != 0 && errno != EINTR && error == 0) {
        step = "close the new file";
        error = errno;
    }
    file->fd = -1;
    if (error == 0 && rename(file->temporary, file->path) != 0) {
        step = "rename the new file";
        error = errno;
    }
    if (error != 0) {
        tg_atomic_abort(file);
        return tg_fail_system(file->ctx, file->path, step, error);
    }
    TG_FREE(file->ctx, file->temporary);
    return tg_file_sync_folder(file->ctx, file->path);
}

void tg_atomic_abort(tg_atomic_file *file) {
    if (file->fd >= 0) {
        close(file->fd);
        file->fd = -1;
    }
    if (file->temporary) {
        unlink(file->temporary);
        TG_FREE(file->ctx, file->temporary);
    }
}

tg_status tg_atomic_write_file(tg_context *ctx, const char *path, const tg_piece *pieces,
                               int count) {
    tg_atomic_file file = {.fd = -1};
    tg_status status = tg_atomic_open(ctx, path, &file);
    for (int i = 0; i < count && status == TG_OK; i++) {
        status = tg_atomic_write(&file, pieces[i].bytes, pieces[i].size);
    }
    status = status == TG_OK ? tg_atomic_commit(&file) : status;
    tg_atomic_abort(&file);
    return status;
}

void tg_atomic_sweep(const char *folder) {
    DIR *dir = opendir(folder);
    if (!dir) {
        return;
    }
    for (const struct dirent *entry; (entry = readdir(dir));) {
        long pid = 0;
        int end = 0;
        if (sscanf(entry->d_name, ".tgrad-%ld-%*u.tmp%n", &pid, &end) == 1 && end > 0 &&
            entry->d_name[end] == '\0' && pid > 0 && !tg_process_is_alive(pid)) {
            unlinkat(dirfd(dir), entry->d_name, 0);
        }
    }
    closedir(dir);
}

/* ---- appending ---- */

tg_status tg_file_append(tg_context *ctx, const char *path, const char *text, size_t size) {
    struct stat before;
    const int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        return tg_fail_system(ctx, path, "open", errno);
    }
    int error = fstat(fd, &before) == 0 ? 0 : errno;
    for (size_t done = 0; error == 0 && done < size;) {
        const ssize_t wrote = write(fd, text + done, size - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        done += wrote > 0 ? (size_t)wrote : 0;
        error = wrote < 0 ? errno : wrote == 0 ? EIO : 0;
        if (error != 0 && done > 0 && ftruncate(fd, before.st_size) != 0) {
            error = errno;
        }
    }
    if (close(fd) != 0 && errno != EINTR && error == 0) {
        error = errno;
    }
    return error == 0 ? TG_OK : tg_fail_system(ctx, path, "write", error);
}
