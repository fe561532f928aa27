/* Checks and completes settings across keys and sections; and those that affect a run. */
#include <stdio.h>
#include <string.h>

#include "optim/optim.h"
#include "train/config.h"

#include "optim/loss_scale.h"
#include "train/rollout.h"

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

/* A single 1 is the default. */
static void set_channel_weights(tg_run_config *config) {
    const tg_list_double *weights = &config->loop.loss_weights;
    if (weights->count == 1 && weights->value[0] == 1.0) {
        return;
    }
    config->loss.channels = weights->count;
    for (int i = 0; i < weights->count; i++) {
        config->loss.channel_weight[i] = weights->value[i];
    }
}

/* The residual needs x in the units of the data. */
static tg_status set_physics(tg_context *ctx, tg_run_config *config) {
    const tg_loop_config *loop = &config->loop;
    config->loss.physics = loop->physics;
    config->loss.physics_weight = loop->physics_weight;
    config->loss.physics_forcing = loop->physics_forcing;
    config->loss.physics_viscosity = loop->physics_viscosity;
    config->loss.physics_time = loop->physics_time;
    config->loss.physics_length = loop->physics_length;
    return loop->physics == TG_PHYSICS_NONE || loop->input_noise == 0.0
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
    TG_CALL(
        tg_loss_config_parse(ctx, "opt.training_loss", config->loop.training_loss, &config->loss));
    set_channel_weights(config);
    TG_CALL(set_physics(ctx, config));
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
    TG_CALL(tg_loss_scale_config_parse(ctx, "opt.loss_scale", config->loop.loss_scale,
                                       tg_fno_passes_f16(&config->fno), &config->loss_scale));
    config->loss_scale.interval = config->loop.loss_scale_interval;
    return TG_OK;
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
