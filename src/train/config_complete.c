/* Checks and completes settings across keys and sections; those that affect a run; its stages and
 * phases. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "optim/loss_scale.h"
#include "optim/optim.h"
#include "train/config.h"
#include "train/step.h"

int tg_run_tests(const tg_source_config *data) {
    const int files = data->test_files.count, grids = data->test_resolutions.count;
    return files > grids ? files : grids;
}

int tg_run_evaluated_sets(const tg_source_config *data) {
    return tg_run_tests(data) + (data->n_validation > 0);
}

tg_status tg_source_config_check(tg_context *ctx, const tg_source_config *data) {
    const int tests = tg_run_tests(data), files = data->test_files.count;
    if (!data->set[0] && !data->train_file[0]) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "data.set: name the data set (files <root>/<set>_train_<grid>.h5), or name "
                       "the file in data.train_file");
    }
    if (!data->set[0] && tests > 0 && files == 0) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "data.test_files: name the files to test on, or the data set in data.set "
                       "(files <root>/<set>_test_<grid>.h5)");
    }
    if (tg_run_evaluated_sets(data) > TG_MAX_TESTS) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "data.n_validation: %d test sets leave no room for it (%d)", tests,
                       TG_MAX_TESTS);
    }
    const struct {
        const char *key;
        int count;
    } lists[] = {{"test_files", files},
                 {"test_resolutions", data->test_resolutions.count},
                 {"test_batch_sizes", data->test_batch_sizes.count},
                 {"n_tests", data->n_tests.count}};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        if (lists[i].count > 1 && lists[i].count != tests) {
            return tg_fail(ctx, TG_E_CONFIG, "data.%s: %d entries for %d %s", lists[i].key,
                           lists[i].count, tests,
                           files == tests ? "data.test_files" : "test resolutions");
        }
    }
    return TG_OK;
}

/* opt.training_loss and opt.loss_weights, of which a single 1 is the default. */
static tg_status set_loss(tg_context *ctx, tg_run_config *config) {
    const tg_list_double *weights = &config->loop.loss_weights;
    const bool is_usual = weights->count == 1 && weights->value[0] == 1.0;
    tg_loss_config terms;
    TG_CALL(tg_loss_config_parse(ctx, "opt.training_loss", config->loop.training_loss, &terms));
    config->loss.terms = terms.terms;
    memcpy(config->loss.term, terms.term, sizeof terms.term);
    config->loss.channels = is_usual ? 0 : weights->count;
    for (int i = 0; i < config->loss.channels; i++) {
        config->loss.channel_weight[i] = weights->value[i];
    }
    return config->loss.physics == TG_PHYSICS_NONE || config->loop.input_noise == 0.0
               ? TG_OK
               : tg_fail(ctx, TG_E_CONFIG,
                         "opt.physics: noise on x is no solution of the equation; leave "
                         "opt.input_noise at 0");
}

static tg_status check_incremental(tg_context *ctx, const tg_run_config *config) {
    const bool by_loss = config->loop.incremental_loss_gap, by_grad = config->loop.incremental_grad;
    if (by_loss && by_grad) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.incremental_grad: take it or opt.incremental_loss_gap, not both");
    }
    if ((by_loss || by_grad) && config->fno.n_incremental == 0) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.incremental_%s: fno.incremental_n_modes must set the initial modes",
                       by_loss ? "loss_gap" : "grad");
    }
    if (by_grad && (config->fno.factorization != TG_FACTORIZATION_DENSE || config->fno.separable)) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.incremental_grad: it needs dense weights; for factorized ones take "
                       "opt.incremental_loss_gap");
    }
    return TG_OK;
}

tg_status tg_run_config_complete(tg_context *ctx, bool has_data, tg_run_config *config) {
    if (config->loop.naive_galore) {
        config->opt.projector.first.type = TG_BRANCH_MATRIX;
    }
    TG_CALL(set_loss(ctx, config));
    TG_CALL(tg_best_metric_parse(ctx, config));
    TG_CALL(has_data ? tg_source_config_check(ctx, &config->data) : TG_OK);
    if (has_data && config->loop.early_stopping > 0 && tg_run_evaluated_sets(&config->data) == 0) {
        return tg_fail(
            ctx, TG_E_CONFIG,
            "opt.early_stopping: there is no error to look at: set data.n_validation, or "
            "name a test set");
    }
    TG_CALL(tg_fno_config_check(ctx, &config->fno));
    TG_CALL(has_data ? check_incremental(ctx, config) : TG_OK);
    TG_CALL(has_data ? tg_run_check_points(ctx, config) : TG_OK);
    TG_CALL(tg_run_check_rollout(ctx, config));
    config->fno.input_gradient = tg_run_unrolls(config);
    return tg_loss_scale_config_parse(ctx, "opt.loss_scale", config->loop.loss_scale,
                                      tg_fno_passes_f16(&config->fno), &config->loss_scale);
}

/* ---- the settings that affect a run ---- */

/* Keys that its method and schedule do not read get their defaults, so that two runs are the same
 * exactly if their texts are. */
tg_status tg_train_effective(tg_context *ctx, const tg_settings *settings, tg_settings **out) {
    TG_NEED_OUT(ctx, out, ctx, settings);
    const tg_run_config usual = tg_run_config_default();
    tg_run_config config;
    char key[128], value[256];
    tg_status status = TG_OK;
    TG_CALL(tg_run_config_read(ctx, settings, 1, false, &config));
    config.loop.naive_galore = false; /* it has already set the type of the first branch */
    TG_CALL(tg_run_config_write(ctx, &config, settings, out));
    for (int table = TG_TABLE_OPTIM; table <= TG_TABLE_SCHEDULE; table++) {
        const tg_key_table t = tg_run_table(table);
        for (int i = 0; i < t.count; i++) {
            const bool is_read = table == TG_TABLE_OPTIM
                                     ? tg_optim_config_reads(&config.opt, t.rows[i].key)
                                     : tg_lr_schedule_config_reads(&config.schedule, t.rows[i].key);
            if (!is_read) {
                snprintf(key, sizeof key, "opt.%s", t.rows[i].key);
                tg_setting_get(&t.rows[i], (const char *)&usual + t.offset, value, sizeof value);
                TG_TRY(tg_settings_set(*out, key, value, NULL));
            }
        }
    }
    return TG_OK;
fail:
    tg_settings_destroy(out);
    return status;
}

/* Stages of a run: keys such as "stage2.opt.n_epochs", in effect from the second stage on. And the
 * order of the phases of a stage. */

int tg_stage_of(const char *key, const char **rest) {
    *rest = key;
    if (strncmp(key, "stage", 5) == 0 && key[5] >= '2' && key[5] <= '9' && key[6] == '.') {
        *rest = key + 7;
        return key[5] - '0';
    }
    return 1;
}

/* Bit n: there are keys of stage n; the first one is there in any case. */
static unsigned stages_of(const tg_settings *settings) {
    unsigned stages = 1u << 1;
    for (int64_t i = 0; i < tg_settings_count(settings); i++) {
        const char *rest;
        stages |= 1u << tg_stage_of(tg_settings_key(settings, i), &rest);
    }
    return stages;
}

int tg_run_stages(const tg_settings *settings) {
    int last = 1;
    while (stages_of(settings) >> (last + 1)) {
        last++;
    }
    return last;
}

int64_t tg_run_epochs(tg_context *ctx, const tg_settings *settings) {
    int64_t epochs = 0;
    for (int stage = 1; stage <= tg_run_stages(settings); stage++) {
        tg_run_config config;
        if (tg_run_config_read_network(ctx, settings, stage, &config) != TG_OK) {
            return 0;
        }
        epochs += config.loop.n_epochs;
    }
    return epochs;
}

bool tg_stages_accumulate(const tg_settings *settings) {
    bool does = false;
    for (int64_t i = 0; i < tg_settings_count(settings) && !does; i++) {
        const char *rest;
        tg_stage_of(tg_settings_key(settings, i), &rest);
        does = strcmp(rest, "opt.accumulation_steps") == 0 &&
               strtod(tg_settings_value(settings, i), NULL) > 1.0;
    }
    return does;
}

tg_status tg_stages_check(tg_context *ctx, const tg_settings *settings) {
    for (int stage = 2; stage < tg_run_stages(settings); stage++) {
        if (!(stages_of(settings) >> stage & 1)) {
            return tg_fail(ctx, TG_E_CONFIG, "stage%d: it has no key, but there is a later one",
                           stage);
        }
    }
    return TG_OK;
}

/* ---- phases ---- */

tg_phase tg_phase_first(const tg_run_position *at) {
    return at->epoch < at->loop->n_epochs && !at->is_stopped ? TG_PHASE_TRAIN
           : at->is_last_stage                               ? TG_PHASE_SAMPLES
                                                             : TG_PHASE_OPEN;
}

static bool is_tested(const tg_loop_config *loop, int64_t epoch) {
    return epoch % loop->eval_interval == 0 || epoch == loop->n_epochs;
}

bool tg_phase_saves(const tg_loop_config *loop, int64_t epoch) {
    return epoch % loop->save_every == 0 || epoch == loop->n_epochs;
}

tg_phase tg_phase_after(tg_phase done, const tg_run_position *at) {
    switch (done) {
    case TG_PHASE_TRAIN:
        return is_tested(at->loop, at->epoch + 1) ? TG_PHASE_EVALUATE : TG_PHASE_RECORD;
    case TG_PHASE_EVALUATE:
        return TG_PHASE_RECORD;
    case TG_PHASE_OPEN:
    case TG_PHASE_RECORD:
        return tg_phase_first(at);
    default:
        return TG_PHASE_END;
    }
}
