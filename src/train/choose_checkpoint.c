/* Which checkpoint: finds one of a run folder by its name or step, describes the run it belongs to,
 * and decides which error makes one the best. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/trainer.h"

/* `recent`, or the newest step if that link is missing. */
static tg_status find_last(const tg_run_folder *folder, char *path, bool *is_there) {
    int64_t step = -1;
    *is_there = tg_run_folder_has(folder, "checkpoints/recent.safetensors", path);
    TG_CALL(*is_there ? TG_OK : tg_run_folder_newest(folder, &step));
    if (step >= 0) {
        tg_run_folder_checkpoint(folder, step, path);
        *is_there = true;
    }
    return TG_OK;
}

/* Fails with a list of the steps present. */
static tg_status refuse_step(const tg_run_folder *folder, int64_t wanted) {
    char there[512] = "";
    int64_t *steps = NULL, count = 0;
    TG_CALL(tg_run_folder_steps(folder, &steps, &count));
    for (int64_t i = count; i-- > 0;) {
        const size_t used = strlen(there);
        snprintf(there + used, sizeof there - used, "%s%" PRId64, used ? ", " : "", steps[i]);
    }
    tg_mem_free(folder->ctx, steps);
    return tg_fail(folder->ctx, TG_E_IO,
                   "%s: it has no checkpoint of step %" PRId64 "; there are %s%s", folder->path,
                   wanted, there[0] ? "those of steps " : "none", there);
}

static tg_status find_step(const tg_run_folder *folder, const char *which, char *path) {
    char *end;
    const int64_t step = strtoll(which, &end, 10);
    if (*end || end == which || step < 0) {
        return tg_fail(folder->ctx, TG_E_ARGUMENT,
                       "checkpoint: expected best, last or the number of a step, found '%.64s'",
                       which);
    }
    return access(tg_run_folder_checkpoint(folder, step, path), F_OK) == 0
               ? TG_OK
               : refuse_step(folder, step);
}

static bool is_folder(const char *path) {
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

/* The checkpoint of a run folder; NULL: the best one or, without it, the last. */
static tg_status find_in(tg_context *ctx, const char *path, const char *which, char *found) {
    const bool wants_best = !which || strcmp(which, "best") == 0;
    const bool wants_last = !which || strcmp(which, "last") == 0;
    tg_run_folder folder;
    TG_CALL(tg_run_folder_open(ctx, path, &folder));
    if (!wants_best && !wants_last) {
        return find_step(&folder, which, found);
    }
    bool is_there = wants_best && tg_run_folder_has(&folder, TG_BEST, found);
    TG_CALL(wants_last && !is_there ? find_last(&folder, found, &is_there) : TG_OK);
    return is_there ? TG_OK
                    : tg_fail(ctx, TG_E_IO, "%s is a folder without %s%s%s", path,
                              wants_best ? TG_BEST : "", wants_best && wants_last ? " or " : "",
                              wants_last ? "checkpoints/recent.safetensors" : "");
}

tg_status tg_run_checkpoint(tg_context *ctx, const char *path, const char *which, char *file,
                            size_t capacity) {
    TG_NEED(NULL, ctx);
    TG_NEED(ctx, path, file);
    const bool is_run = is_folder(path);
    char found[TG_PATH];
    if (is_run) {
        TG_CALL(find_in(ctx, path, which, found));
    } else if (which) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: it is not the folder of a run, in which a checkpoint could be chosen",
                       path);
    }
    /* the reader reports a missing file */
    return (size_t)snprintf(file, capacity, "%s", is_run ? found : path) < capacity
               ? TG_OK
               : tg_fail(ctx, TG_E_ARGUMENT, "%.100s..: the path is too long", path);
}

/* ---- the origin of a checkpoint ---- */

tg_status tg_model_keep_origin(tg_model *model, const char *path, const tg_archive *archive) {
    tg_model_origin *origin = &model->origin;
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    tg_run_config config = model->config;
    tg_progress progress;
    if (tg_checkpoint_is_model(archive)) {
        return TG_OK;
    }
    TG_CALL(tg_checkpoint_load_progress(model->ctx, path, archive, &progress));
    origin->is_best = strcmp(name, "best.safetensors") == 0;
    origin->epoch = progress.epoch;
    origin->step = progress.step;
    origin->epochs = tg_run_epochs(model->ctx, model->settings);
    tg_best_metric_then(model->settings, &config);
    tg_best_metric_text(&config, origin->metric);
    char kind[48] = "", by[96] = "";
    if (origin->is_best) {
        snprintf(kind, sizeof kind, "best, ");
        snprintf(by, sizeof by, " (by %s)", origin->metric);
    } else if (strcmp(name, "recent.safetensors") == 0) {
        snprintf(kind, sizeof kind, "last, ");
    } else if (strncmp(name, "step-", 5) == 0) {
        snprintf(kind, sizeof kind, "step %" PRId64 ", ", origin->step);
    }
    snprintf(origin->text, sizeof origin->text, "%sepoch %" PRId64 " of %" PRId64 "%s", kind,
             origin->epoch, origin->epochs, by);
    return TG_OK;
}

tg_model_origin tg_model_get_origin(const tg_model *model) {
    return model ? model->origin : (tg_model_origin){0};
}

/* ---- the metric ----
 *
 * The error by which the best checkpoint is chosen and a run ends early: opt.best_metric, a norm,
 * optionally preceded by a set ("h1", "32.h1", "validation.l2").
 *
 * The default is the norm of the training loss, on the validation samples if there are some, else
 * on the first test set. For a loss of several terms the first one counts: h1 for h1 and for hs1
 * and above, which weigh derivatives alike, l2 for all others. */
static bool trains_h1(const tg_run_config *config) {
    const tg_loss_term *first = &config->loss.term[0];
    return !tg_run_on_points(config) &&
           (first->kind == TG_LOSS_H1 || (first->kind == TG_LOSS_HS && first->p >= 1.0));
}

tg_status tg_best_metric_parse(tg_context *ctx, tg_run_config *config) {
    const char *text = config->loop.best_metric, *dot = strrchr(text, '.');
    const char *norm = dot ? dot + 1 : text;
    const int length = dot ? (int)(dot - text) : 0;
    const bool is_h1 = strcmp(norm, "h1") == 0;
    if (text[0] && ((!is_h1 && strcmp(norm, "l2") != 0) || dot == text)) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.best_metric: '%s' is not l2 or h1, or one of them after a test set, as "
                       "in 32.h1",
                       text);
    }
    if (is_h1 && tg_run_on_points(config)) {
        return tg_fail(ctx, TG_E_CONFIG, "opt.best_metric: points have no h1 error; take l2");
    }
    config->best_is_h1 = text[0] ? is_h1 : trains_h1(config);
    snprintf(config->best_set, sizeof config->best_set, "%.*s", length, text);
    if (!length && config->data.n_validation > 0) {
        snprintf(config->best_set, sizeof config->best_set, TG_VALIDATION);
    }
    return TG_OK;
}

const char *tg_best_metric_text(const tg_run_config *config, char text[TG_METRIC_TEXT]) {
    snprintf(text, TG_METRIC_TEXT, "%s%s%s", config->best_set, config->best_set[0] ? "." : "",
             config->best_is_h1 ? "h1" : "l2");
    return text;
}

void tg_best_metric_then(const tg_settings *settings, tg_run_config *config) {
    config->best_is_h1 = config->best_is_h1 && tg_settings_get(settings, "opt.best_metric");
}

tg_status tg_trainer_choose_metric(tg_trainer *t) {
    const char *set = t->model->config.best_set;
    char names[512] = "";
    t->best_test = 0;
    for (int i = 0; i < t->test_count; i++) {
        const size_t used = strlen(names);
        if (strcmp(t->tests[i].name, set) == 0) {
            t->best_test = i;
            return TG_OK;
        }
        snprintf(names + used, sizeof names - used, "%s%s", used ? ", " : "", t->tests[i].name);
    }
    if (!set[0]) {
        return TG_OK;
    }
    if (t->progress.stage > 1) { /* a warning: an error would waste the earlier stages */
        tg_log(t->ctx, TG_LOG_WARN,
               "opt.best_metric: stage %lld has no test set %s; its first one counts",
               (long long)t->progress.stage, set);
        return TG_OK;
    }
    return tg_fail(t->ctx, TG_E_CONFIG, "opt.best_metric: there is no test set %s%s%s", set,
                   names[0] ? ", but " : "", names);
}

double tg_trainer_best_error(const tg_trainer *t, const tg_train_epoch *epoch) {
    const tg_test_errors *errors = &epoch->test[t->best_test];
    return epoch->test_count == 0        ? (double)NAN
           : t->model->config.best_is_h1 ? errors->h1
                                         : errors->l2;
}
