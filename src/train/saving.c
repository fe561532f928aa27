/* Writes the checkpoints of a run.
 *
 * On a stream a checkpoint is a snapshot: weights and state are copied to pinned memory, which is
 * kept for the next one, and a thread writes the files while the run goes on. One is written at a
 * time; the next one waits for it and reports its error. On the host, where a copy would take as
 * much memory as the run holds, the files are written at once from views. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "train/step.h"
#include "train/trainer.h"

/* ---- files: may run in the thread ---- */

static uint64_t bytes_of(const tg_archive *archive) {
    uint64_t bytes = 0;
    for (int64_t i = 0; i < tg_archive_count(archive); i++) {
        bytes += tg_tensor_bytes(tg_archive_tensor(archive, i));
    }
    return bytes;
}

/* Removes older checkpoints if the disk is full; warns once. */
static tg_status make_room(tg_saving *s) {
    int dropped = 0;
    TG_CALL(tg_run_folder_make_room(&s->folder, bytes_of(s->archive), &dropped));
    if (dropped > 0 && !s->is_short_of_room) {
        s->is_short_of_room = true;
        tg_log(&s->ctx, TG_LOG_WARN,
               "%s: the disk is nearly full: older checkpoints make room for new ones",
               s->folder.path);
    }
    return TG_OK;
}

/* Writes the best one; the run goes on if that fails. */
static void write_best(tg_saving *s, const char *path) {
    s->lacks_best = tg_checkpoint_write(&s->ctx, path, s->archive) != TG_OK;
    if (s->lacks_best) {
        tg_log(&s->ctx, TG_LOG_WARN, "%s; the best checkpoint stays the one before",
               tg_context_error(&s->ctx));
    }
}

/* One file for both names, if the file system has links and the second name is free. */
static tg_status make_files(tg_saving *s) {
    char best[TG_PATH], newest[TG_PATH];
    tg_run_folder_file(&s->folder, TG_BEST, best);
    tg_run_folder_checkpoint(&s->folder, s->step, newest);
    TG_CALL(tg_run_folder_sync(&s->folder));
    TG_CALL(s->is_newest ? make_room(s) : TG_OK);
    if (s->is_best) {
        write_best(s, best);
    }
    if (s->is_newest) {
        const bool is_linked = s->is_best && !s->lacks_best && link(best, newest) == 0;
        TG_CALL(is_linked ? tg_file_sync_folder(&s->ctx, newest)
                          : tg_checkpoint_write(&s->ctx, newest, s->archive));
        TG_CALL(tg_run_folder_keep(&s->folder, s->step, s->keep));
    }
    return TG_OK;
}

static void *write_aside(void *user) {
    tg_saving *s = user;
    s->status = make_files(s);
    atomic_store(&s->is_written, true);
    return NULL;
}

/* Logging belongs to the main thread. */
static void keep_warning(void *user, tg_log_level level, const char *message) {
    tg_saving *s = user;
    if (level == TG_LOG_WARN) {
        snprintf(s->warning, sizeof s->warning, "%s", message);
    }
}

/* ---- waiting ---- */

/* The result of writing the files; the error is in the branch. An error that is not on disk no
 * longer counts, unless other ranks compare with it. */
static tg_status join(tg_trainer *t) {
    tg_saving *s = &t->saving;
    if (!s->archive) {
        return TG_OK;
    }
    if (s->has_thread) {
        pthread_join(s->thread, NULL);
        s->has_thread = false;
    }
    tg_archive_destroy(&s->archive);
    if (s->lacks_best && !t->comm && t->progress.best == s->error) {
        t->progress.best = s->error_before;
    }
    if (s->warning[0]) {
        tg_log(t->ctx, TG_LOG_WARN, "%s", s->warning);
    }
    if (s->status == TG_OK && s->is_newest) {
        tg_run_folder_checkpoint(&t->folder, s->step, t->last_checkpoint);
    }
    return s->status;
}

tg_status tg_trainer_finish_save(tg_trainer *t) {
    return tg_context_adopt(t->ctx, &t->saving.ctx, join(t));
}

tg_status tg_trainer_check_saved(tg_trainer *t) {
    return atomic_load(&t->saving.is_written) ? tg_trainer_finish_save(t) : TG_OK;
}

void tg_trainer_end_saving(tg_trainer *t) {
    if (join(t) != TG_OK) {
        tg_log(t->ctx, TG_LOG_WARN, "%s", tg_context_error(&t->saving.ctx));
    }
}

void tg_trainer_close_saving(tg_trainer *t) {
    tg_staging *staging = &t->saving.staging;
    tg_trainer_end_saving(t);
    if (staging->memory) {
        tg_backend *be = t->model->be;
        (void)be->ops->synchronize(be); /* copies into memory about to be freed */
        be->ops->stream->pinned_release(be, staging->memory);
        *staging = (tg_staging){0};
    }
}

/* ---- snapshots ---- */

/* Sizes the staging buffer for the copies; without it they allocate memory themselves. */
static void take_staging(tg_trainer *t) {
    tg_staging *staging = &t->saving.staging;
    tg_backend *be = t->model->be;
    const tg_mem_usage held = tg_context_memory(t->ctx, be->ops->place);
    const size_t bytes = tg_checkpoint_copies(be, held.current);
    staging->used = 0;
    if (bytes <= staging->bytes) {
        return;
    }
    be->ops->stream->pinned_release(be, staging->memory);
    *staging = (tg_staging){.memory = be->ops->stream->pinned_alloc(be, TG_MEM_DATA, bytes)};
    staging->bytes = staging->memory ? bytes : 0;
    if (!staging->memory) {
        tg_log(t->ctx, TG_LOG_WARN,
               "%s: checkpoints are copied without pinned memory, which takes longer",
               tg_context_error(t->ctx));
    }
}

static void write_files(tg_saving *s, bool is_snapshot) {
    atomic_store(&s->is_written, false);
    s->has_thread = is_snapshot && pthread_create(&s->thread, NULL, write_aside, s) == 0;
    if (!s->has_thread) {
        write_aside(s);
    }
}

static void forget_gathered(const tg_trainer *t, tg_archive **state, tg_archive **weights) {
    t->optim->gathered = t->model->gathered = NULL;
    tg_archive_destroy(state);
    tg_archive_destroy(weights);
}

/* Whole weights of a network that is split over ranks, on rank 0. *out is NULL if it is not, or on
 * other ranks. */
static tg_status gather_weights(const tg_trainer *t, tg_archive **out) {
    tg_status status = TG_OK;
    if (!nn_is_split(&t->split) || !tg_trainer_is_in_first_group(t)) {
        return TG_OK;
    }
    TG_TRY(tg_archive_create(t->ctx, out));
    for (int i = 0; i < tg_fno_param_count(t->model->fno); i++) {
        const tg_fno_param param = tg_fno_get_param(t->model->fno, i);
        tg_tensor whole = {0};
        if (param.whole > 0) {
            TG_TRY(nn_gather(t->model->be, &t->split, &param.weight, param.whole, &whole));
            TG_TRY(tg_trainer_writes(t) ? tg_archive_take(*out, param.name, &whole) : TG_OK);
        }
    }
fail:
    if (status != TG_OK || !tg_trainer_writes(t)) {
        tg_archive_destroy(out);
    }
    return status;
}

tg_status tg_trainer_save(tg_trainer *t, bool is_best, bool is_newest) {
    tg_saving *s = &t->saving;
    const bool is_snapshot = t->model->be->ops->stream != NULL;
    tg_archive *gathered = NULL; /* the archive refers to both until it is written */
    tg_archive *weights = NULL;
    tg_status status = TG_OK;
    status = tg_trainer_finish_save(t);
    status = t->comm ? tg_exchange_gather_state(t->comm, t->optim, status, &gathered) : status;
    status = status == TG_OK ? gather_weights(t, &weights) : status;
    if (status != TG_OK || !tg_trainer_writes(t)) {
        tg_archive_destroy(&gathered);
        return status;
    }
    t->optim->gathered = gathered;
    t->model->gathered = weights;
    s->ctx = tg_context_branch(t->ctx);
    s->ctx.config.log = keep_warning;
    s->ctx.config.log_user = s;
    s->folder = t->folder;
    s->folder.ctx = &s->ctx;
    s->step = t->progress.step;
    s->keep = t->model->config.loop.keep_checkpoints;
    s->is_best = is_best;
    s->is_newest = is_newest;
    s->lacks_best = false;
    s->error = t->progress.best;
    s->error_before = t->best_before;
    s->warning[0] = '\0';
    if (is_snapshot) {
        take_staging(t);
    }
    TG_TRY(tg_archive_create(&s->ctx, &s->archive));
    TG_TRY(tg_checkpoint_collect(t->model, t->optim, &t->progress, is_snapshot ? &s->staging : NULL,
                                 s->archive));
    write_files(s, is_snapshot);
    status = is_snapshot && !gathered && !weights ? TG_OK : tg_trainer_finish_save(t);
    forget_gathered(t, &gathered, &weights);
    return status;
fail:
    forget_gathered(t, &gathered, &weights);
    tg_archive_destroy(&s->archive);
    return tg_context_adopt(t->ctx, &s->ctx, status);
}

/* ---- disk space, before a run and while it goes on ----
 *
 * At most there are opt.keep_checkpoints, the best one and one being written. With less space a run
 * still succeeds, since older checkpoints are removed for new ones, as long as there is room for
 * the last one, the best one and the one being written. */

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
    *count = 0;
    *bytes = 0;
    TG_CALL(tg_run_folder_steps(folder, &steps, &found));
    for (int64_t i = 0; i <= found; i++) {
        const char *file = i < found ? tg_run_folder_checkpoint(folder, steps[i], path)
                                     : tg_run_folder_file(folder, TG_BEST, path);
        if (stat(file, &facts) == 0 && (i < found || facts.st_nlink == 1)) {
            *bytes += (uint64_t)facts.st_size;
            (*count)++;
        }
    }
    tg_mem_free(folder->ctx, steps);
    return TG_OK;
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
    *dropped = 0;
    TG_CALL(tg_run_folder_steps(folder, &steps, &count));
    while (count > 1 && find_room(folder->path, &left) && left < bytes + HEADER) {
        *dropped += unlink(tg_run_folder_checkpoint(folder, steps[--count], path)) == 0;
    }
    tg_mem_free(folder->ctx, steps);
    return TG_OK;
}
