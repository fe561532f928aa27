/* The error by which the best checkpoint is chosen and a run ends early: opt.best_metric, a norm,
 * optionally preceded by a set ("h1", "32.h1", "validation.l2").
 *
 * The default is the norm of the training loss, on the validation samples if there are some, else
 * on the first test set. For a loss of several terms the first one counts: h1 for h1 and for hs1
 * and above, which weigh derivatives alike, l2 for all others. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "train/trainer.h"

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
