/* Writes the checkpoints of a run.
 *
 * On a stream a checkpoint is a snapshot: weights and state are copied to pinned memory, which is
 * kept for the next one, and a thread writes the files while the run goes on. One is written at a
 * time; the next one waits for it and reports its error. On the host, where a copy would take as
 * much memory as the run holds, the files are written at once from views. */
#include <stdio.h>
#include <unistd.h>

#include "io/file.h"
#include "train/exchange.h"
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
    TG_CALL(tg_run_folder_file(&s->folder, TG_BEST, best));
    TG_CALL(tg_run_folder_checkpoint(&s->folder, s->step, newest));
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
    return s->status == TG_OK && s->is_newest
               ? tg_run_folder_checkpoint(&t->folder, s->step, t->last_checkpoint)
               : s->status;
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

tg_status tg_trainer_save(tg_trainer *t, bool is_best, bool is_newest) {
    tg_saving *s = &t->saving;
    const bool is_snapshot = t->model->be->ops->stream != NULL;
    tg_archive *gathered = NULL; /* the archive refers to it until it is written */
    tg_status status = TG_OK;
    status = tg_trainer_finish_save(t);
    status = t->comm ? tg_exchange_gather_state(t->comm, t->optim, status, &gathered) : status;
    if (status != TG_OK || !tg_trainer_writes(t)) {
        tg_archive_destroy(&gathered);
        return status;
    }
    t->optim->gathered = gathered;
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
    status = is_snapshot && !gathered ? TG_OK : tg_trainer_finish_save(t);
    t->optim->gathered = NULL;
    tg_archive_destroy(&gathered);
    return status;
fail:
    t->optim->gathered = NULL;
    tg_archive_destroy(&gathered);
    tg_archive_destroy(&s->archive);
    return tg_context_adopt(t->ctx, &s->ctx, status);
}
