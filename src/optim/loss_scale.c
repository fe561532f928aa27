/* The loss scale from step to step. */
#include "optim/loss_scale.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "optim/optim.h"

void tg_loss_scale_config_init(tg_loss_scale_config *config, size_t size) {
    const tg_loss_scale_config defaults = {.size = sizeof defaults, .fixed = 1.0, .interval = 500};
    tg_sized_init(config, size, &defaults, sizeof defaults);
}

static bool is_possible(double scale) {
    int exponent;
    return scale >= TG_LOSS_SCALE_LEAST && scale <= TG_LOSS_SCALE_MOST &&
           frexp(scale, &exponent) == 0.5;
}

tg_status tg_loss_scale_config_parse(tg_context *ctx, const char *key, const char *text,
                                     bool passes_f16, tg_loss_scale_config *config) {
    char *end = NULL;
    config->is_dynamic = strcmp(text, "auto") == 0 && passes_f16;
    config->fixed = 1.0;
    if (strcmp(text, "auto") == 0 || strcmp(text, "off") == 0) {
        return TG_OK;
    }
    const double scale = strtod(text, &end);
    if (end == text || *end != '\0' || !is_possible(scale)) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "%s: '%.40s' is not auto, off or a power of two from 2^-10 to 2^24, such as "
                       "65536",
                       key, text);
    }
    config->fixed = scale;
    return TG_OK;
}

/* ---- the sequence ---- */

tg_loss_scale tg_loss_scale_begin(void) {
    return (tg_loss_scale){.config = tg_loss_scale_config_default(),
                           .used = 1.0,
                           .next = TG_LOSS_SCALE_START,
                           .after = TG_LOSS_SCALE_START};
}

void tg_loss_scale_advance(tg_loss_scale *s, tg_outcome outcome) {
    const double used = s->next;
    s->next = s->after;
    if (outcome == TG_OUTCOME_OVERFLOW) {
        s->overflows++;
        s->good = 0;
        s->after = fmin(s->after, fmax(used / 2.0, TG_LOSS_SCALE_LEAST));
    } else if (outcome == TG_OUTCOME_GOOD && used == s->after) { /* an older scale proves nothing */
        s->good++;
        if (s->good >= s->config.interval) {
            s->good = 0;
            s->after = fmin(2.0 * s->after, TG_LOSS_SCALE_MOST);
        }
    }
}

void tg_loss_scale_save(const tg_loss_scale *s, int64_t numbers[TG_LOSS_SCALE_NUMBERS]) {
    numbers[0] = ilogb(s->next);
    numbers[1] = ilogb(s->after);
    numbers[2] = s->good;
    numbers[3] = s->overflows;
}

bool tg_loss_scale_load(tg_loss_scale *s, const int64_t numbers[TG_LOSS_SCALE_NUMBERS]) {
    tg_loss_scale loaded = tg_loss_scale_begin();
    loaded.config = s->config;
    for (int i = 0; numbers && i < 2; i++) {
        const int64_t n = numbers[i];
        const double scale = n >= -64 && n <= 64 ? ldexp(1.0, (int)n) : 0.0;
        if (!is_possible(scale) || numbers[2 + i] < 0 || numbers[2 + i] > TG_STATE_MAX_COUNT) {
            return false;
        }
        *(i ? &loaded.after : &loaded.next) = scale;
    }
    if (numbers) {
        loaded.good = numbers[2];
        loaded.overflows = numbers[3];
    }
    *s = loaded;
    return true;
}

bool tg_loss_scale_yields(const tg_loss_scale *s) {
    return s->config.is_dynamic && s->used > TG_LOSS_SCALE_LEAST;
}

double tg_loss_scale_of_step(const tg_loss_scale *s, bool is_ahead) {
    return !s->config.is_dynamic ? s->config.fixed : is_ahead ? s->after : s->next;
}

/* ---- of an optimizer ---- */

tg_status tg_optim_set_loss_scale(tg_optim *optim, const tg_loss_scale_config *config) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, config);
    tg_loss_scale_config full = tg_loss_scale_config_default();
    TG_CALL(TG_SIZED_READ(optim->ctx, tg_loss_scale_config, is_dynamic, config, &full));
    config = &full;
    if ((!config->is_dynamic && !is_possible(config->fixed)) || config->interval < 1) {
        return tg_fail(optim->ctx, TG_E_CONFIG,
                       "optimizer: a loss scale of %g, to be doubled after %lld steps, is not "
                       "possible: powers of two from 2^-10 to 2^24 are, and 1 step or more",
                       config->fixed, (long long)config->interval);
    }
    optim->loss_scale.config = *config;
    return TG_OK;
}

double tg_optim_loss_scale(const tg_optim *optim) {
    return optim ? tg_loss_scale_of_step(&optim->loss_scale, false) : 1.0;
}

static void report(tg_optim *optim, double before) {
    tg_loss_scale *s = &optim->loss_scale;
    if (s->after < before) {
        tg_log(optim->ctx, TG_LOG_INFO,
               "gradients of %lld of %d parameters overflowed, their updates are skipped: loss "
               "scale %g -> %g (%lld steps with overflow so far)",
               (long long)s->refused, optim->slot_count, before, s->after, (long long)s->overflows);
    } else if (s->refused > 0 && !tg_loss_scale_yields(s) && !s->has_warned) {
        s->has_warned = true;
        tg_log(optim->ctx, TG_LOG_WARN,
               "gradients overflow at the least loss scale, %g, too: something else is wrong, or "
               "the range of f16 is too small for this network; bf16 has that of f32",
               TG_LOSS_SCALE_LEAST);
    }
}

void tg_optim_step_ended(tg_optim *optim, bool is_void) {
    tg_loss_scale *s = &optim->loss_scale;
    if (s->config.is_dynamic) {
        const double before = s->after;
        tg_loss_scale_advance(s, is_void          ? TG_OUTCOME_VOID
                                 : s->refused > 0 ? TG_OUTCOME_OVERFLOW
                                                  : TG_OUTCOME_GOOD);
        report(optim, before);
    }
    s->refused = 0;
    s->used = 1.0;
}

tg_status tg_optim_end_update(tg_optim *optim) {
    TG_NEED(NULL, optim);
    TG_CALL(optim->loss_scale.config.is_dynamic ? tg_optim_synchronize(optim)
                                                : tg_optim_send_round(optim));
    tg_optim_step_ended(optim, false);
    return TG_OK;
}
