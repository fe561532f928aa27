/* Learning-rate schedules per epoch and refresh-gap schedules per step. */
#include <math.h>
#include <string.h>

#include "optim/optim.h"

static const tg_choice scheduler_choices[] = {{"constant", TG_LR_CONSTANT},
                                              {"StepLR", TG_LR_STEP},
                                              {"CosineAnnealingLR", TG_LR_COSINE},
                                              {"ReduceLROnPlateau", TG_LR_PLATEAU},
                                              {NULL, 0}};

#define LR(type, field, low, high, help)                                                           \
    TG_SETTING_ROW(type, tg_lr_schedule_config, field, low, high, help)
#define LR_CHOICE(field, choices, help)                                                            \
    TG_SETTING_CHOICE(tg_lr_schedule_config, field, choices, help)

static const tg_setting table[] = {
    LR_CHOICE(scheduler, scheduler_choices, "learning-rate schedule, stepped once per epoch"),
    LR(INT64, step_size, 1, 1e15, "StepLR: epochs between two reductions"),
    LR(DOUBLE, gamma, 0, 1, "StepLR and ReduceLROnPlateau: factor of a reduction"),
    LR(INT64, scheduler_T_max, 1, 1e15, "CosineAnnealingLR: epochs down to 0"),
    LR(INT64, scheduler_patience, 0, 1e15,
       "ReduceLROnPlateau: epochs without gain before a reduction"),
    LR(INT64, warmup_steps, 0, 1e15, "steps over which the learning rate rises from 0"),
};

enum { ROWS = sizeof table / sizeof table[0] };

const tg_setting *tg_lr_schedule_config_rows(void) {
    return table;
}

int tg_lr_schedule_config_count(void) {
    return ROWS;
}

bool tg_lr_schedule_config_reads(const tg_lr_schedule_config *config, const char *key) {
    const tg_lr_schedule_type type = config->scheduler;
    return strcmp(key, "step_size") == 0            ? type == TG_LR_STEP
           : strcmp(key, "gamma") == 0              ? type == TG_LR_STEP || type == TG_LR_PLATEAU
           : strcmp(key, "scheduler_T_max") == 0    ? type == TG_LR_COSINE
           : strcmp(key, "scheduler_patience") == 0 ? type == TG_LR_PLATEAU
                                                    : true;
}

tg_lr_schedule_config tg_lr_schedule_config_default(void) {
    return (tg_lr_schedule_config){.scheduler = TG_LR_CONSTANT,
                                   .learning_rate = 1e-3,
                                   .step_size = 100,
                                   .gamma = 0.5,
                                   .scheduler_T_max = 300,
                                   .scheduler_patience = 50};
}

tg_status tg_lr_schedule_start(tg_context *ctx, const tg_lr_schedule_config *config,
                               tg_lr_schedule *out) {
    *out = (tg_lr_schedule){.config = *config, .factor = 1.0, .best = HUGE_VAL};
    if (!(config->learning_rate >= 0.0 && isfinite(config->learning_rate))) {
        return tg_fail(ctx, TG_E_CONFIG, "opt.learning_rate: %g is not a finite number >= 0",
                       config->learning_rate);
    }
    if (!(config->gamma > 0.0 && config->gamma <= 1.0)) {
        return tg_fail(ctx, TG_E_CONFIG, "opt.gamma: %g is not in (0, 1]", config->gamma);
    }
    return TG_OK;
}

double tg_lr_schedule_rate(const tg_lr_schedule *schedule, int64_t step) {
    const tg_lr_schedule_config *config = &schedule->config;
    double rate = config->learning_rate;
    switch (config->scheduler) {
    case TG_LR_STEP:
        rate *= pow(config->gamma, (double)(schedule->epoch / config->step_size));
        break;
    case TG_LR_COSINE:
        rate *= 0.5 * (1.0 + cos(3.14159265358979323846 * (double)schedule->epoch /
                                 (double)config->scheduler_T_max));
        break;
    case TG_LR_PLATEAU:
        rate *= schedule->factor;
        break;
    default:
        break;
    }
    if (step < config->warmup_steps) {
        rate *= (double)(step + 1) / (double)config->warmup_steps;
    }
    return rate;
}

void tg_lr_schedule_epoch(tg_lr_schedule *schedule, double metric) {
    schedule->epoch++;
    if (schedule->config.scheduler != TG_LR_PLATEAU) {
        return;
    }
    if (metric < schedule->best * (1.0 - 1e-4) || (isinf(schedule->best) && isfinite(metric))) {
        schedule->best = metric;
        schedule->waited = 0;
    } else if (++schedule->waited > schedule->config.scheduler_patience) {
        schedule->factor *= schedule->config.gamma;
        schedule->waited = 0;
    }
}

int64_t tg_refresh_gap(const tg_optim_config *config, int64_t step) {
    const double start = config->update_proj_gap, end = config->update_proj_gap_end;
    const double q = config->total_steps > 0 ? (double)step / (double)config->total_steps : 0.0;
    const double progress = q < 1.0 ? q : 1.0;
    double gap = start;
    switch (config->update_proj_gap_mode) {
    case TG_GAP_LINEAR:
        gap = start + (end - start) * progress;
        break;
    case TG_GAP_EXPONENTIAL:
        gap = start * pow(end / start, progress);
        break;
    case TG_GAP_EXPONENTIAL2:
        gap = start * pow(end / start, progress * progress);
        break;
    default:
        break;
    }
    return gap > 1.0 ? (int64_t)gap : 1;
}
