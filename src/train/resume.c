/* Resumes a run from a checkpoint.
 *
 * Everything a step depends on is in the model, the optimizer and tg_progress, which a checkpoint
 * holds; batches follow from (seed, epoch, batch). So a resumed run repeats the same arithmetic. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/minmax.h"
#include "dist/comm.h"
#include "nn/network.h"
#include "optim/optim.h"
#include "train/model.h"
#include "train/trainer.h"

/* Whether a key affects the network, its data or the random numbers; keys that only affect how a
 * step uses memory may change. */
static bool shapes_run(const char *key) {
    static const char *const free_keys[] = {"fno.micro_batch", "fno.activation_checkpoint",
                                            "fno.saved_precision"};
    for (size_t i = 0; i < sizeof free_keys / sizeof free_keys[0]; i++) {
        if (strcmp(key, free_keys[i]) == 0) {
            return false;
        }
    }
    return strncmp(key, "fno.", 4) == 0 || strncmp(key, "data.encode", 11) == 0 ||
           strcmp(key, "distributed.seed") == 0;
}

static bool shapes_state(const char *key) {
    return strncmp(key, "opt.", 4) == 0 && tg_optim_config_shapes_state(key + 4);
}

/* Fails if keys accepted by `counts` differ from those of the checkpoint. */
static tg_status compare_settings(tg_trainer *t, const char *path, const tg_settings *then,
                                  bool (*counts)(const char *key)) {
    tg_settings *now = NULL, *before = NULL;
    tg_run_config config;
    char differing[512] = "";
    tg_status status = TG_OK;
    TG_TRY(tg_run_config_read(t->ctx, then, 1, false, &config));
    TG_TRY(tg_run_config_write(t->ctx, &config, NULL, &before));
    TG_TRY(tg_run_config_read(t->ctx, t->model->settings, 1, false, &config));
    TG_TRY(tg_run_config_write(t->ctx, &config, NULL, &now));
    for (int64_t i = 0; i < tg_settings_count(now); i++) {
        const char *key = tg_settings_key(now, i), *value = tg_settings_value(now, i);
        const char *old = tg_settings_get(before, key);
        if (counts(key) && (!old || strcmp(old, value) != 0)) {
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

/* Loads the optimizer's state; a mismatch is better explained by settings than by a tensor. */
static tg_status load_optimizer(tg_trainer *t, const char *path, const tg_settings *then,
                                const tg_archive *archive) {
    char sentence[1024];
    const tg_status status = tg_optim_load(t->optim, archive);
    if (status == TG_OK) {
        return TG_OK;
    }
    snprintf(sentence, sizeof sentence, "%s", tg_context_error(t->ctx));
    const tg_status other = compare_settings(t, path, then, shapes_state);
    return other != TG_OK ? other : tg_fail(t->ctx, status, "%s", sentence);
}

/* Sums are split by threads on the host, and by ranks, so their last bits depend on their number.
 * `remedy`: an option that sets it, or NULL. */
static void warn_of_bits(const tg_trainer *t, const char *path, const char *noun, int64_t before,
                         int64_t now, const char *remedy) {
    char hint[64] = "";
    if (before == now) {
        return;
    }
    if (remedy) {
        snprintf(hint, sizeof hint, " (%s %lld)", remedy, (long long)before);
    }
    tg_log(t->ctx, TG_LOG_WARN,
           "%s: written by %lld %s%s, this run has %lld: results may differ in their last bits "
           "from those of a run that was not interrupted%s",
           path, (long long)before, noun, before == 1 ? "" : "s", (long long)now, hint);
}

/* The lowest error so far is of another metric if opt.best_metric has changed (older versions knew
 * only L2): then the next evaluation becomes the best one. */
static tg_status compare_metric(const tg_trainer *t, const char *path, const tg_settings *then,
                                tg_progress *progress) {
    char before[TG_METRIC_TEXT], now[TG_METRIC_TEXT];
    tg_run_config config;
    TG_CALL(tg_run_config_read(t->ctx, then, (int)progress->stage, false, &config));
    tg_best_metric_then(then, &config);
    tg_best_metric_text(&config, before);
    tg_best_metric_text(&t->model->config, now);
    if (strcmp(before, now) != 0) {
        tg_log(t->ctx, TG_LOG_INFO,
               "%s: the best checkpoint was chosen by %s, from now on it is by %s", path, before,
               now);
        progress->best = HUGE_VAL;
        progress->waited = 0;
    }
    return TG_OK;
}

/* Resumes the run from a checkpoint. *is_damaged: the file itself is unusable; nothing has changed.
 */
static tg_status load(tg_trainer *t, const char *path, bool *is_damaged) {
    tg_archive *archive = NULL;
    tg_settings *settings = NULL;
    tg_progress progress;
    tg_status status = TG_OK;
    *is_damaged = true;
    TG_TRY(tg_checkpoint_read(t->ctx, path, true, &archive));
    *is_damaged = false;
    TG_TRY(tg_checkpoint_settings(t->ctx, path, archive, &settings));
    TG_TRY(compare_settings(t, path, settings, shapes_run));
    TG_TRY(tg_checkpoint_load_progress(t->ctx, path, archive, &progress));
    if (progress.stage < 1 || progress.stage > t->stages) {
        status = tg_fail(t->ctx, TG_E_CONFIG, "%s: it is in stage %lld, the settings have %d", path,
                         (long long)progress.stage, t->stages);
        goto fail;
    }
    t->entry = TG_ENTRY_NONE; /* until everything is loaded */
    TG_TRY(load_optimizer(t, path, settings, archive));
    TG_TRY(tg_checkpoint_load_model(t->model, archive));
    t->progress.stage = progress.stage;
    if (progress.stage > 1) {
        TG_TRY(tg_trainer_open_stage(t));
    }
    if (progress.threads > 0 && t->model->be->ops->place == TG_HOST) {
        warn_of_bits(t, path, "thread", progress.threads, t->progress.threads, "--threads");
    }
    warn_of_bits(t, path, "rank", tg_max((int64_t)progress.ranks, 1),
                 tg_max((int64_t)t->progress.ranks, 1), NULL);
    progress.threads = t->progress.threads;
    progress.ranks = t->progress.ranks;
    progress.schedule.config = t->model->config.schedule;
    TG_TRY(compare_metric(t, path, settings, &progress));
    const int64_t batches = tg_loader_batches(t->loader); /* the data may have changed */
    progress.batch = progress.batch < batches ? progress.batch : batches;
    t->progress = progress;
    tg_fno_set_step(t->model->fno, (uint64_t)progress.fno_step);
    t->refreshes = tg_optim_get_stats(t->optim).refreshes;
    snprintf(t->last_checkpoint, sizeof t->last_checkpoint, "%s", path);
fail:
    tg_settings_destroy(&settings);
    tg_archive_destroy(&archive);
    return status;
}

/* Locks the folder, unless that needs a new file, and finds its newest checkpoint. */
static tg_status look(tg_trainer *t) {
    TG_CALL(tg_run_folder_lock(&t->folder, false));
    return tg_run_folder_newest(&t->folder, &t->newest);
}

/* Loads the initial weights of opt.init, if set. */
static tg_status load_first_weights(tg_trainer *t) {
    const char *path = t->model->config.loop.init;
    return path[0] ? tg_weights_read(t->model, path) : TG_OK;
}

/* A checkpoint of another run would truncate the logs of this folder's run. */
static tg_status check_origin(const tg_trainer *t, const char *path) {
    struct stat own, its;
    char checkpoints[TG_PATH], folder[TG_PATH];
    tg_run_folder_file(&t->folder, "checkpoints", checkpoints);
    const char *slash = strrchr(path, '/');
    snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1,
             slash ? path : ".");
    const bool is_own = stat(checkpoints, &own) == 0 && stat(folder, &its) == 0 &&
                        own.st_dev == its.st_dev && own.st_ino == its.st_ino;
    if (t->newest >= 0 && !is_own) {
        return tg_fail(t->ctx, TG_E_ARGUMENT,
                       "%s: it holds a run, and %s is no checkpoint of it; go on in another "
                       "folder",
                       t->folder.path, path);
    }
    return TG_OK;
}

/* Fails if the folder holds a run. */
static tg_status look_for_run(tg_trainer *t) {
    char best[TG_PATH];
    TG_CALL(look(t));
    if (t->newest >= 0 || tg_run_folder_has(&t->folder, TG_BEST, best)) {
        return tg_fail(t->ctx, TG_E_ARGUMENT,
                       "%s: it already holds a run; resume it, choose another folder or, to remove "
                       "that run, ask for it (--force)",
                       t->folder.path);
    }
    return TG_OK;
}

/* Begins with the weights of opt.init, if rank 0 finds the folder as it should be. */
static tg_status begin(tg_trainer *t, tg_status (*check)(tg_trainer *t), tg_entry entry) {
    TG_CALL(tg_trainer_agree(t, tg_trainer_writes(t) ? check(t) : TG_OK));
    TG_CALL(tg_trainer_agree(t, load_first_weights(t)));
    t->entry = entry;
    return TG_OK;
}

tg_status tg_trainer_start(tg_trainer *t) {
    TG_NEED(NULL, t);
    return begin(t, look_for_run, TG_ENTRY_START);
}

tg_status tg_trainer_replace(tg_trainer *t) {
    TG_NEED(NULL, t);
    return begin(t, look, TG_ENTRY_REPLACE);
}

/* From `path`, or the newest undamaged checkpoint; *resumed: found one. */
static tg_status resume(tg_trainer *t, const char *path, bool *resumed) {
    int64_t *steps = NULL, count = 0;
    bool is_damaged = false;
    tg_status status = TG_OK;
    *resumed = false;
    TG_TRY(look(t));
    if (path) {
        TG_TRY(check_origin(t, path));
        TG_TRY(load(t, path, &is_damaged));
        *resumed = true;
    } else {
        TG_TRY(tg_run_folder_steps(&t->folder, &steps, &count));
    }
    for (int64_t i = 0; i < count && !*resumed; i++) {
        char file[TG_PATH];
        status = load(t, tg_run_folder_checkpoint(&t->folder, steps[i], file), &is_damaged);
        if (status != TG_OK && is_damaged && status != TG_E_MEMORY && i + 1 < count) {
            tg_log(t->ctx, TG_LOG_WARN, "%s; trying the checkpoint before it",
                   tg_context_error(t->ctx));
            continue;
        }
        TG_TRY(status);
        *resumed = true;
    }
    if (!path && count == 0) { /* killed before opt.save_every: the best one is complete, too */
        char best[TG_PATH];
        *resumed = tg_run_folder_has(&t->folder, TG_BEST, best);
        TG_TRY(*resumed ? load(t, best, &is_damaged) : TG_OK);
    }
fail:
    tg_mem_free(t->ctx, steps);
    return status;
}

/* The other ranks resume from the checkpoint that the first one has validated; of a network that is
 * split, whose whole is too large to be there often, one after the other. */
static tg_status resume_others(tg_trainer *t, bool *resumed) {
    char path[TG_PATH] = "";
    bool is_damaged = false;
    tg_status status = TG_OK;
    snprintf(path, sizeof path, "%s", *resumed ? t->last_checkpoint : "");
    TG_CALL(tg_comm_broadcast_bytes(t->comm, 0, sizeof path, path));
    *resumed = path[0] != '\0';
    for (int rank = 1; rank < tg_comm_ranks(t->comm) && *resumed; rank++) {
        status = rank == tg_comm_rank(t->comm) ? load(t, path, &is_damaged) : status;
        TG_CALL(nn_is_split(&t->split) ? tg_comm_barrier(t->comm) : TG_OK);
    }
    return tg_trainer_agree(t, status);
}

tg_status tg_trainer_resume(tg_trainer *t, const char *path, bool *resumed) {
    TG_NEED(NULL, t);
    TG_NEED(t->ctx, resumed);
    *resumed = false;
    TG_CALL(tg_trainer_agree(t, tg_trainer_writes(t) ? resume(t, path, resumed) : TG_OK));
    TG_CALL(t->comm ? resume_others(t, resumed) : TG_OK);
    TG_CALL(tg_trainer_agree(t, *resumed ? TG_OK : load_first_weights(t)));
    t->entry = *resumed ? TG_ENTRY_RESUME : TG_ENTRY_START;
    return TG_OK;
}

static tg_status write_settings(tg_trainer *t) {
    tg_settings *resolved = NULL;
    char path[TG_PATH];
    TG_CALL(tg_trainer_settings(t, &resolved));
    tg_run_folder_file(&t->folder, "config.yaml", path);
    const tg_status status = tg_settings_write_yaml(t->ctx, path, resolved);
    tg_settings_destroy(&resolved);
    return status;
}

/* A folder without a lock file was read unlocked: another process may have started since. */
static tg_status look_again(tg_trainer *t) {
    int64_t newest = -1;
    const tg_status status = tg_run_folder_newest(&t->folder, &newest);
    return status == TG_OK && newest != t->newest
               ? tg_fail(t->ctx, TG_E_IO, "%s: another process has begun to train here; try again",
                         t->folder.path)
               : status;
}

tg_status tg_trainer_enter(tg_trainer *t, int64_t epochs_left) {
    if (t->entry == TG_ENTRY_NONE) {
        return tg_fail(t->ctx, TG_E_ARGUMENT, "a trainer is started or resumed before it runs");
    }
    if (t->has_entered || !tg_trainer_writes(t)) {
        return TG_OK;
    }
    TG_CALL(tg_trainer_check_room(t, epochs_left));
    TG_CALL(tg_run_folder_make(&t->folder));
    TG_CALL(tg_run_folder_lock(&t->folder, true));
    TG_CALL(look_again(t));
    tg_run_folder_sign(&t->folder);
    tg_run_folder_sweep(&t->folder);
    TG_CALL(t->entry == TG_ENTRY_REPLACE ? tg_run_folder_clear(&t->folder) : TG_OK);
    TG_CALL(write_settings(t));
    /* Lines after the checkpoint, or all without one, will be logged again. */
    TG_CALL(tg_run_folder_rewind(&t->folder, t->progress.epoch, t->progress.step));
    t->has_entered = true;
    return TG_OK;
}
