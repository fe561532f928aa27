/* Files of a run. Checkpoints are written under their step number, so that the previous one stays
 * intact until the new one is complete; `recent` is a link to the newest. */
#define _DEFAULT_SOURCE
#include "train/run_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/name_index.h"

const char *tg_run_folder_file(const tg_run_folder *folder, const char *name, char path[TG_PATH]) {
    snprintf(path, TG_PATH, "%.*s/%s", TG_PATH - TG_PATH_INSIDE, folder->path, name);
    return path;
}

bool tg_run_folder_has(const tg_run_folder *folder, const char *name, char path[TG_PATH]) {
    return access(tg_run_folder_file(folder, name, path), F_OK) == 0;
}

tg_status tg_run_folder_open(tg_context *ctx, const char *path, tg_run_folder *out) {
    *out = (tg_run_folder){.ctx = ctx, .lock = -1};
    if (!path || !*path) {
        return tg_fail(ctx, TG_E_ARGUMENT, "run folder: no path given");
    }
    if (snprintf(out->path, sizeof out->path, "%s", path) >= TG_PATH - TG_PATH_INSIDE) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%.100s..: the path is too long", path);
    }
    return TG_OK;
}

void tg_run_folder_close(tg_run_folder *folder) {
    if (folder->events && tg_events_close(&folder->events) != TG_OK) {
        tg_log(folder->ctx, TG_LOG_WARN, "%s", tg_context_error(folder->ctx));
    }
    if (folder->lock >= 0) {
        close(folder->lock);
        folder->lock = -1;
    }
}

tg_status tg_run_folder_make(const tg_run_folder *folder) {
    char inner[TG_PATH];
    TG_CALL(tg_folder_make_all(folder->ctx, folder->path));
    return tg_folder_make_all(folder->ctx, tg_run_folder_file(folder, "checkpoints", inner));
}

void tg_run_folder_sweep(const tg_run_folder *folder) {
    char inner[TG_PATH];
    tg_atomic_sweep(folder->path);
    tg_atomic_sweep(tg_run_folder_file(folder, "checkpoints", inner));
}

/* ---- checkpoints ---- */

enum { NAME = 48 }; /* "checkpoints/step-0000000123.safetensors" */

static const char *checkpoint_name(int64_t step, char name[NAME]) {
    snprintf(name, NAME, "checkpoints/step-%010" PRId64 ".safetensors", step);
    return name;
}

/* Without its folder. */
static const char *file_name(int64_t step, char name[NAME]) {
    return strchr(checkpoint_name(step, name), '/') + 1;
}

const char *tg_run_folder_checkpoint(const tg_run_folder *folder, int64_t step,
                                     char path[TG_PATH]) {
    char name[NAME];
    return tg_run_folder_file(folder, checkpoint_name(step, name), path);
}

static int newest_first(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

tg_status tg_run_folder_steps(const tg_run_folder *folder, int64_t **steps, int64_t *count) {
    char path[TG_PATH], text[128];
    int64_t capacity = 0;
    DIR *dir = NULL;
    *steps = NULL;
    *count = 0;
    tg_status status = TG_OK;
    dir = opendir(tg_run_folder_file(folder, "checkpoints", path));
    if (!dir) {
        return errno == ENOENT
                   ? TG_OK
                   : tg_fail(folder->ctx, TG_E_IO, "%s: %s", path, tg_system_reason(errno, text));
    }
    for (const struct dirent *entry; (entry = readdir(dir));) {
        int64_t step = 0;
        char name[NAME];
        const bool has_step = sscanf(entry->d_name, "step-%" SCNd64, &step) == 1;
        if (has_step && strcmp(entry->d_name, file_name(step, name)) == 0) {
            TG_TRY(tg_mem_grow(folder->ctx, steps, sizeof **steps, *count, 1, &capacity));
            (*steps)[(*count)++] = step;
        }
    }
    closedir(dir);
    if (*count > 0) {
        qsort(*steps, (size_t)*count, sizeof **steps, newest_first);
    }
    return TG_OK;
fail:
    if (dir) {
        closedir(dir);
    }
    TG_FREE(folder->ctx, *steps);
    return status;
}

tg_status tg_run_folder_newest(const tg_run_folder *folder, int64_t *step) {
    int64_t *steps = NULL, count = 0;
    const tg_status status = tg_run_folder_steps(folder, &steps, &count);
    *step = count > 0 ? steps[0] : -1;
    tg_mem_free(folder->ctx, steps);
    return status;
}

tg_status tg_run_folder_keep(const tg_run_folder *folder, int64_t step, int64_t keep) {
    tg_status status = TG_OK;
    char link[TG_PATH], fresh[TG_PATH], target[NAME], text[128];
    int64_t *steps = NULL, count = 0;
    tg_run_folder_file(folder, "checkpoints/recent.safetensors", link);
    unlink(tg_run_folder_file(folder, "checkpoints/.recent", fresh));
    if (symlink(file_name(step, target), fresh) != 0 ||
        rename(fresh, link) != 0) { /* only a convenience: errors are ignored */
        tg_log(folder->ctx, TG_LOG_WARN, "%s: %s", link, tg_system_reason(errno, text));
    }
    TG_TRY(tg_run_folder_steps(folder, &steps, &count));
    for (int64_t i = 0, kept = 0; i < count; i++) {
        char path[TG_PATH];
        /* Files beyond this step belong to a run that was rewound. */
        if (steps[i] > step || kept++ >= keep) {
            unlink(tg_run_folder_checkpoint(folder, steps[i], path));
        }
    }
fail:
    tg_mem_free(folder->ctx, steps);
    return status;
}

/* ---- starting over ---- */

/* A missing file counts as removed. */
static tg_status remove_file(const tg_run_folder *folder, const char *path) {
    return unlink(path) == 0 || errno == ENOENT
               ? TG_OK
               : tg_fail_system(folder->ctx, path, "remove", errno);
}

static tg_status remove_events(const tg_run_folder *folder) {
    char path[TG_PATH], file[TG_PATH + 256];
    DIR *dir = opendir(tg_run_folder_file(folder, "events", path));
    tg_status status = TG_OK;
    for (const struct dirent *entry; dir && status == TG_OK && (entry = readdir(dir));) {
        if (strncmp(entry->d_name, "events.out.tfevents.", 20) == 0) {
            snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
            status = remove_file(folder, file);
        }
    }
    if (dir) {
        closedir(dir);
    }
    return status;
}

/* Checkpoints go first, the newest of them last: if killed in between, the folder still holds the
 * old run, or one that never saved. */
tg_status tg_run_folder_clear(const tg_run_folder *folder) {
    static const char *const names[] = {"checkpoints/recent.safetensors",
                                        "samples.safetensors",
                                        "projections.jsonl",
                                        "stable_ranks.jsonl",
                                        "metrics.jsonl",
                                        "metrics.csv"};
    tg_status status = TG_OK;
    char path[TG_PATH];
    int64_t *steps = NULL, count = 0;
    TG_TRY(remove_file(folder, tg_run_folder_file(folder, "checkpoints/best.safetensors", path)));
    TG_TRY(tg_run_folder_steps(folder, &steps, &count));
    for (int64_t i = count; i-- > 0;) {
        TG_TRY(remove_file(folder, tg_run_folder_checkpoint(folder, steps[i], path)));
    }
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        TG_TRY(remove_file(folder, tg_run_folder_file(folder, names[i], path)));
    }
    TG_TRY(remove_events(folder));
fail:
    tg_mem_free(folder->ctx, steps);
    return status;
}

/* ---- the lock: one process trains in the folder at a time ----
 *
 * It is the system's lock on DIR/.lock, not the existence of the file, so it ends with the process,
 * however that dies. The file names its holder and is never removed: otherwise a third process
 * could lock a new file while a second one waits for the old. */

enum { HOST = 64 };

static void own_host(char host[HOST]) {
    host[HOST - 1] = '\0';
    if (gethostname(host, HOST - 1) != 0 || !host[0]) {
        snprintf(host, HOST, "localhost");
    }
}

/* The error for a folder that another process holds. Between locking and signing, the file still
 * names the previous holder: a process of this host that is gone is not named. */
static tg_status refuse(const tg_run_folder *folder, int fd) {
    char text[128] = "", host[HOST] = "", own[HOST], quoted[TG_QUOTE];
    long pid = 0;
    const ssize_t got = pread(fd, text, sizeof text - 1, 0);
    text[got > 0 ? got : 0] = '\0';
    own_host(own);
    const bool is_signed = sscanf(text, "%ld %63s", &pid, host) == 2 && pid > 0;
    if (is_signed && (strcmp(host, own) != 0 || tg_process_is_alive(pid))) {
        return tg_fail(folder->ctx, TG_E_IO,
                       "%s: process %ld on %s is training in this folder; wait for its end, or "
                       "choose another folder",
                       folder->path, pid, tg_quote(host, quoted));
    }
    return tg_fail(folder->ctx, TG_E_IO,
                   "%s: another process is training in this folder; wait for its end, or choose "
                   "another folder",
                   folder->path);
}

tg_status tg_run_folder_lock(tg_run_folder *folder, bool makes) {
    char path[TG_PATH], text[128];
    if (folder->lock >= 0 || folder->has_no_locks) {
        return TG_OK;
    }
    tg_run_folder_file(folder, ".lock", path);
    const int fd = open(path, O_RDWR | O_CLOEXEC | (makes ? O_CREAT : 0), 0666);
    if (fd < 0 && makes) {
        return tg_fail_system(folder->ctx, path, "open", errno);
    }
    if (fd < 0) {
        return TG_OK;
    }
    int error;
    do {
        error = flock(fd, LOCK_EX | LOCK_NB) == 0 ? 0 : errno;
    } while (error == EINTR);
    if (error == 0) {
        folder->lock = fd;
        return TG_OK;
    }
    tg_status status = TG_OK;
    if (error == EWOULDBLOCK) {
        status = refuse(folder, fd);
    } else {
        folder->has_no_locks = true;
        tg_log(folder->ctx, TG_LOG_WARN,
               "%s: cannot be locked (%s): nothing keeps a second run out of this folder", path,
               tg_system_reason(error, text));
    }
    close(fd);
    return status;
}

void tg_run_folder_sign(const tg_run_folder *folder) {
    char line[128], host[HOST];
    if (folder->lock < 0) {
        return;
    }
    own_host(host);
    const int length = snprintf(line, sizeof line, "%ld %s\n", (long)getpid(), host);
    if (ftruncate(folder->lock, 0) != 0 || pwrite(folder->lock, line, (size_t)length, 0) < 0) {
        tg_log(folder->ctx, TG_LOG_WARN, "%s/.lock: cannot be written: %s", folder->path,
               strerror(errno));
    }
}
