/* Checkpoints of a run: when they are written, and how a run is taken up again from one.
 *
 * Everything a step depends on is in the model, the optimizer and tg_progress, which a checkpoint
 * holds; batches follow from (seed, epoch, batch). So a resumed run repeats the same arithmetic. */
#include <stdio.h>
#include <string.h>

#include "train/trainer.h"

tg_status tg_trainer_save(tg_trainer *t) {
    tg_status status = TG_OK;
    TG_TRY(tg_run_folder_checkpoint(&t->folder, t->progress.step, t->last_checkpoint));
    TG_TRY(tg_checkpoint_write(t->model, t->optim, &t->progress, t->last_checkpoint));
    TG_TRY(
        tg_run_folder_keep(&t->folder, t->progress.step, t->model->config.loop.keep_checkpoints));
fail:
    return status;
}

tg_status tg_trainer_save_best(tg_trainer *t, const tg_train_epoch *epoch) {
    char path[TG_PATH];
    if (epoch->test_count == 0 || !(epoch->test[0].l2 < t->progress.best)) {
        return TG_OK;
    }
    t->progress.best = epoch->test[0].l2;
    tg_status status = tg_run_folder_file(&t->folder, "checkpoints/best.safetensors", path);
    return status == TG_OK ? tg_checkpoint_write(t->model, t->optim, &t->progress, path) : status;
}

/* Keys of sections that shape model and data, where the two lists differ. */
static tg_status compare_settings(tg_trainer *t, const char *path, const tg_settings *then) {
    tg_settings *now = NULL, *before = NULL;
    tg_run_config config;
    char differing[512] = "";
    tg_status status = TG_OK;
    TG_TRY(tg_run_config_read(t->ctx, then, 1, false, &config));
    TG_TRY(tg_run_config_write(t->ctx, &config, &before));
    TG_TRY(tg_run_config_read(t->ctx, t->model->settings, 1, false, &config));
    TG_TRY(tg_run_config_write(t->ctx, &config, &now));
    for (int64_t i = 0; i < tg_settings_count(now); i++) {
        const char *key = tg_settings_key(now, i), *value = tg_settings_value(now, i);
        const char *old = tg_settings_get(before, key);
        const bool shapes = strncmp(key, "fno.", 4) == 0 || strncmp(key, "data.encode", 11) == 0 ||
                            strcmp(key, "distributed.seed") == 0;
        if (shapes && (!old || strcmp(old, value) != 0)) {
            const size_t used = strlen(differing);
            snprintf(differing + used, sizeof differing - used, "%s%s (%s there, %s here)",
                     used ? ", " : "", key, old ? old : "not set", value);
        }
    }
    if (differing[0]) {
        status = tg_fail(t->ctx, TG_E_CONFIG, "%s: made with other settings: %s", path, differing);
    }
fail:
    tg_settings_destroy(&now);
    tg_settings_destroy(&before);
    return status;
}

/* Takes up the run where a checkpoint left it. *is_damaged: the file itself is no good; nothing has
 * changed then. */
static tg_status load(tg_trainer *t, const char *path, bool *is_damaged) {
    tg_archive *archive = NULL;
    tg_settings *settings = NULL;
    tg_progress progress;
    tg_status status = TG_OK;
    *is_damaged = true;
    TG_TRY(tg_checkpoint_read(t->ctx, path, &archive));
    *is_damaged = false;
    TG_TRY(tg_checkpoint_settings(t->ctx, path, archive, &settings));
    TG_TRY(compare_settings(t, path, settings));
    TG_TRY(tg_checkpoint_load_progress(t->ctx, archive, &progress));
    if (progress.stage < 1 || progress.stage > t->stages) {
        status = tg_fail(t->ctx, TG_E_CONFIG, "%s: it is in stage %lld, the settings have %d", path,
                         (long long)progress.stage, t->stages);
        goto fail;
    }
    TG_TRY(tg_optim_load(t->optim, archive));
    TG_TRY(tg_checkpoint_load_model(t->model, archive));
    t->progress.stage = progress.stage;
    if (progress.stage > 1) {
        TG_TRY(tg_trainer_open_stage(t));
    }
    progress.schedule.config = t->model->config.schedule;
    t->progress = progress;
    tg_fno_set_step(t->model->fno, (uint64_t)progress.fno_step);
    t->refreshes = tg_optim_get_stats(t->optim).refreshes;
    TG_TRY(tg_run_folder_rewind(&t->folder, progress.epoch, progress.step));
    snprintf(t->last_checkpoint, sizeof t->last_checkpoint, "%s", path);
fail:
    tg_settings_destroy(&settings);
    tg_archive_destroy(&archive);
    return status;
}

tg_status tg_trainer_start(tg_trainer *t) {
    int64_t newest = 0;
    int count = 0;
    tg_status status = tg_run_folder_steps(&t->folder, &newest, 1, &count);
    if (status == TG_OK && count > 0) {
        return tg_fail(t->ctx, TG_E_ARGUMENT,
                       "%s: it already holds a run (checkpoint of step %lld); resume it or choose "
                       "another folder",
                       t->folder.path, (long long)newest);
    }
    return status == TG_OK ? tg_run_folder_rewind(&t->folder, 0, 0) : status;
}

tg_status tg_trainer_resume(tg_trainer *t, const char *path, bool *resumed) {
    enum { MOST = 1024 };
    *resumed = false;
    bool is_damaged = false;
    if (path) {
        tg_status status = load(t, path, &is_damaged);
        *resumed = status == TG_OK;
        return status;
    }
    int64_t *steps = NULL;
    int count = 0;
    tg_status status = TG_OK;
    TG_TRY(TG_ALLOC(t->ctx, TG_MEM_OTHER, steps, MOST));
    TG_TRY(tg_run_folder_steps(&t->folder, steps, MOST, &count));
    for (int i = 0; i < count && !*resumed; i++) {
        char file[TG_PATH];
        TG_TRY(tg_run_folder_checkpoint(&t->folder, steps[i], file));
        status = load(t, file, &is_damaged);
        if (status != TG_OK && is_damaged && status != TG_E_MEMORY && i + 1 < count) {
            tg_log(t->ctx, TG_LOG_WARN, "%s; trying the checkpoint before it",
                   tg_context_error(t->ctx));
            continue;
        }
        TG_TRY(status);
        *resumed = true;
    }
    if (!*resumed) { /* killed before the first checkpoint: what was logged will be logged again */
        TG_TRY(tg_run_folder_rewind(&t->folder, 0, 0));
    }
fail:
    tg_mem_free(t->ctx, steps);
    return status;
}
