/* Memory of moments. */
#include "optim/optim.h"

_Static_assert((int)TG_STATES_HALF == TG_STATE_BF16 && (int)TG_STATES_8BIT == TG_STATE_8BIT &&
                   (int)TG_STATES_F16 == TG_STATE_F16,
               "tg_state_precision has the order of state_formats.def");

tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, const tg_rule *rule,
                           int64_t whole, int64_t count) {
    const tg_state_form asked = (tg_state_form)config->state_precision;
    tg_moments moments = {.rule = rule,
                          .form = whole >= tg_state_codecs[asked]->least ? asked : TG_STATE_FULL,
                          .real = tg_dtype_real(dtype)};
    for (int i = 0; i < moments.rule->states; i++) {
        const bool shares = rule->state[i].is_square && config->complex_adam == TG_ADAM_MODULUS;
        moments.at[i].reals = rule->state[i].is_single                ? 1
                              : tg_dtype_is_complex(dtype) && !shares ? 2 * count
                                                                      : count;
    }
    return moments;
}

const tg_state_codec *tg_moment_codec(const tg_moments *moments, int i) {
    return moments->rule->state[i].is_single ? tg_state_codecs[TG_STATE_FULL]
                                             : tg_moments_codec(moments);
}

/* Whole floats, since they are cleared as f32. */
static size_t value_bytes(const tg_moments *moments, int i) {
    const tg_state_codec *codec = tg_moment_codec(moments, i);
    return (tg_state_bytes(codec, moments->real, moments->at[i].reals) + 3) / 4 * 4;
}

size_t tg_moment_scale_bytes(const tg_moments *moments, int i) {
    return (size_t)tg_state_scales(tg_moment_codec(moments, i), moments->at[i].reals) *
           sizeof(float);
}

size_t tg_moments_bytes(const tg_moments *moments) {
    size_t bytes = 0;
    for (int i = 0; moments->rule && i < moments->rule->states; i++) {
        bytes += value_bytes(moments, i) + tg_moment_scale_bytes(moments, i);
    }
    return bytes;
}

size_t tg_moments_saved_bytes(const tg_moments *moments) {
    size_t bytes = 0;
    for (int i = 0; i < moments->rule->states; i++) {
        bytes += tg_state_bytes(tg_moment_codec(moments, i), moments->real, moments->at[i].reals) +
                 tg_moment_scale_bytes(moments, i);
    }
    return bytes;
}

static tg_status clear(tg_backend *be, void *memory, size_t bytes) {
    const int64_t floats = (int64_t)(bytes / sizeof(float));
    return floats > 0 ? be->ops->fill(be, TG_F32, floats, (tg_scalar){0}, memory) : TG_OK;
}

tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments) {
    for (int i = 0; i < moments->rule->states; i++) {
        const tg_moment *moment = &moments->at[i];
        TG_CALL(clear(be, moment->memory, value_bytes(moments, i)));
        TG_CALL(clear(be, moment->scale, tg_moment_scale_bytes(moments, i)));
    }
    return TG_OK;
}

tg_status tg_moments_create(tg_backend *be, tg_moments *moments) {
    for (int i = 0; i < moments->rule->states; i++) {
        tg_moment *moment = &moments->at[i];
        const size_t scales = tg_moment_scale_bytes(moments, i);
        TG_CALL(TG_BACKEND_ALLOC(be, TG_MEM_OPTIMIZER, moment->memory, value_bytes(moments, i)));
        if (scales > 0) {
            TG_CALL(TG_BACKEND_ALLOC(be, TG_MEM_OPTIMIZER, moment->scale, scales));
        }
    }
    return tg_moments_clear(be, moments);
}

void tg_moments_release(tg_backend *be, tg_moments *moments) {
    for (int i = 0; i < TG_RULE_STATES; i++) {
        be->ops->release(be, moments->at[i].memory);
        be->ops->release(be, moments->at[i].scale);
    }
    *moments = (tg_moments){0};
}
