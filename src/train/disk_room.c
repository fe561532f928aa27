/* Disk space for checkpoints, before a run and while it goes on.
 *
 * At most there are opt.keep_checkpoints, the best one and one being written. With less space a run
 * still succeeds, since older checkpoints are removed for new ones, as long as there is room for
 * the last one, the best one and the one being written. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/trainer.h"

enum { HEADER = 1 << 16 }; /* of a file, roughly: names, shapes, settings */

/* Bytes free at `path`, which may not exist yet; false: unknown. */
static bool find_room(const char *path, uint64_t *left) {
    struct statvfs facts;
    char at[TG_PATH];
    snprintf(at, sizeof at, "%s", path);
    while (statvfs(at, &facts) != 0) {
        char *slash = strrchr(at, '/');
        if (errno != ENOENT || strcmp(at, ".") == 0 || strcmp(at, "/") == 0) {
            return false;
        }
        snprintf(slash ? slash : at, 2, "%s", slash == at ? "/" : slash ? "" : ".");
    }
    *left = (uint64_t)facts.f_bavail * facts.f_frsize;
    return facts.f_blocks > 0;
}

/* Bytes of the checkpoints present; `best` takes none if it is a link. */
static tg_status measure_present(const tg_run_folder *folder, int64_t *count, uint64_t *bytes) {
    struct stat facts;
    char path[TG_PATH];
    int64_t *steps = NULL, found = 0;
    tg_status status = TG_OK;
    *count = 0;
    *bytes = 0;
    TG_TRY(tg_run_folder_steps(folder, &steps, &found));
    for (int64_t i = 0; i <= found; i++) {
        TG_TRY(i < found ? tg_run_folder_checkpoint(folder, steps[i], path)
                         : tg_run_folder_file(folder, TG_BEST, path));
        if (stat(path, &facts) == 0 && (i < found || facts.st_nlink == 1)) {
            *bytes += (uint64_t)facts.st_size;
            (*count)++;
        }
    }
fail:
    tg_mem_free(folder->ctx, steps);
    return status;
}

tg_status tg_trainer_check_room(const tg_trainer *t, int64_t epochs_left) {
    const tg_loop_config *loop = &t->model->config.loop;
    const bool has_best = t->test_count > 0;
    const uint64_t bytes = t->checkpoint_bytes + HEADER;
    const bool replaces = t->entry == TG_ENTRY_REPLACE;
    const char *best = has_best ? ", the best one" : "";
    uint64_t left = 0, present = 0;
    int64_t there = 0;
    TG_CALL(measure_present(&t->folder, &there, &present));
    if (epochs_left < 1 || !find_room(t->folder.path, &left)) {
        return TG_OK;
    }
    const int64_t most = loop->keep_checkpoints + 1 + has_best;
    const int64_t files = epochs_left + (replaces ? 0 : there);
    const int64_t count = files < most ? files : most;
    const int64_t fewest = count < 2 + has_best ? count : 2 + has_best;
    const uint64_t all = (uint64_t)count * bytes, least = (uint64_t)fewest * bytes;
    const char *folder = t->folder.path;
    if (least > left + present) {
        return tg_fail(
            t->ctx, TG_E_IO,
            "%s: this run needs %.4g MiB of the disk for checkpoints (the last one%s and "
            "one being written, %.4g MiB each), and %.4g MiB are free; make room, or take "
            "a folder on another disk",
            folder, (double)least / 0x1p20, best, (double)bytes / 0x1p20,
            (double)(left + present) / 0x1p20);
    }
    if (all > left + present) {
        tg_log(t->ctx, TG_LOG_WARN,
               "%s: the checkpoints of this run take %.4g MiB of the disk (opt.keep_checkpoints "
               "%lld%s and one being written, %.4g MiB each), and %.4g MiB are free: fewer are "
               "kept when there is no room; lower opt.keep_checkpoints, or take a folder on "
               "another disk",
               folder, (double)all / 0x1p20, (long long)loop->keep_checkpoints, best,
               (double)bytes / 0x1p20, (double)(left + present) / 0x1p20);
    }
    return TG_OK;
}

tg_status tg_run_folder_make_room(const tg_run_folder *folder, uint64_t bytes, int *dropped) {
    char path[TG_PATH];
    int64_t *steps = NULL, count = 0;
    uint64_t left = 0;
    tg_status status = TG_OK;
    *dropped = 0;
    TG_TRY(tg_run_folder_steps(folder, &steps, &count));
    while (count > 1 && find_room(folder->path, &left) && left < bytes + HEADER) {
        TG_TRY(tg_run_folder_checkpoint(folder, steps[--count], path));
        *dropped += unlink(path) == 0;
    }
fail:
    tg_mem_free(folder->ctx, steps);
    return status;
}
