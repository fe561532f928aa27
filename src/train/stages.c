/* Stages of a run: keys such as "stage2.opt.n_epochs", in effect from the second stage on. And the
 * order of the phases of a stage. */
#include <stdlib.h>
#include <string.h>

#include "train/config.h"

int tg_stage_of(const char *key, const char **rest) {
    *rest = key;
    if (strncmp(key, "stage", 5) == 0 && key[5] >= '2' && key[5] <= '9' && key[6] == '.') {
        *rest = key + 7;
        return key[5] - '0';
    }
    return 1;
}

int tg_run_stages(const tg_settings *settings) {
    int stages = 1;
    for (int64_t i = 0; i < tg_settings_count(settings); i++) {
        const char *rest;
        const int stage = tg_stage_of(tg_settings_key(settings, i), &rest);
        stages = stage > stages ? stage : stages;
    }
    return stages;
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

static bool has_stage(const tg_settings *settings, int stage) {
    bool has = false;
    for (int64_t i = 0; i < tg_settings_count(settings) && !has; i++) {
        const char *rest;
        has = tg_stage_of(tg_settings_key(settings, i), &rest) == stage;
    }
    return has;
}

tg_status tg_stages_check(tg_context *ctx, const tg_settings *settings) {
    for (int stage = 2; stage < tg_run_stages(settings); stage++) {
        if (!has_stage(settings, stage)) {
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
