/* Memory of moments, and their bytes on the host. */
#include "optim/moments.h"

#include <math.h>

#include "backend/state8.h"

tg_moments tg_moments_plan_part(const tg_optim_config *config, tg_dtype dtype, int64_t entries,
                                int64_t count) {
    const bool complex = tg_dtype_is_complex(dtype);
    const bool split = complex && config->complex_adam == TG_ADAM_SPLIT;
    tg_moments moments = {.m_reals = complex ? 2 * count : count,
                          .v_reals = split ? 2 * count : count,
                          .real = tg_dtype_real(dtype)};
    if (config->state_precision == TG_STATES_HALF) {
        moments.form = TG_STATE_BF16;
    } else if (config->state_precision == TG_STATES_8BIT && entries >= TG_MOMENTS_LEAST) {
        moments.form = TG_STATE_8BIT;
    }
    return moments;
}

tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, int64_t count) {
    return tg_moments_plan_part(config, dtype, count, count);
}

static size_t real_size(const tg_moments *moments) {
    return moments->form == TG_STATE_8BIT   ? 1
           : moments->form == TG_STATE_BF16 ? 2
                                            : tg_dtype_size(moments->real);
}

/* Bytes of n reals; whole floats, so that zeros are zeros of f32. */
static size_t reals_bytes(const tg_moments *moments, int64_t n) {
    return ((size_t)n * real_size(moments) + 3) / 4 * 4;
}

static size_t scale_bytes(const tg_moments *moments, int64_t reals) {
    return moments->form == TG_STATE_8BIT ? (size_t)tg_moment_blocks(reals) * sizeof(float) : 0;
}

tg_moment_sizes tg_moments_sizes(const tg_moments *moments) {
    return (tg_moment_sizes){.m = reals_bytes(moments, moments->m_reals),
                             .v = reals_bytes(moments, moments->v_reals),
                             .m_scale = scale_bytes(moments, moments->m_reals),
                             .v_scale = scale_bytes(moments, moments->v_reals)};
}

size_t tg_moments_bytes(const tg_moments *moments) {
    const tg_moment_sizes sizes = tg_moments_sizes(moments);
    return sizes.m + sizes.v + sizes.m_scale + sizes.v_scale;
}

double tg_moments_per_value(const tg_optim_config *config, tg_dtype dtype, int64_t entries) {
    const tg_moments one = tg_moments_plan_part(config, dtype, entries, 1);
    const double scale = one.form == TG_STATE_8BIT ? (double)sizeof(float) / TG_STATE_BLOCK : 0.0;
    return (double)(one.m_reals + one.v_reals) * ((double)real_size(&one) + scale);
}

tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments) {
    const tg_moment_sizes sizes = tg_moments_sizes(moments);
    void *const blocks[] = {moments->m, moments->v, moments->m_scale, moments->v_scale};
    const size_t bytes[] = {sizes.m, sizes.v, sizes.m_scale, sizes.v_scale};
    tg_status status = TG_OK;
    for (int i = 0; i < (moments->form == TG_STATE_8BIT ? 4 : 2) && status == TG_OK; i++) {
        const int64_t floats = (int64_t)(bytes[i] / sizeof(float));
        status = be->ops->fill(be, TG_F32, floats, (tg_scalar){0}, blocks[i]);
    }
    return status;
}

tg_status tg_moments_create(tg_backend *be, tg_moments *moments) {
    tg_status status = TG_OK;
    const tg_moment_sizes sizes = tg_moments_sizes(moments);
    moments->m = be->ops->alloc(be, TG_MEM_OPTIMIZER, sizes.m);
    TG_TRY(moments->m ? TG_OK : TG_E_MEMORY);
    moments->v = be->ops->alloc(be, TG_MEM_OPTIMIZER, sizes.v);
    TG_TRY(moments->v ? TG_OK : TG_E_MEMORY);
    if (moments->form == TG_STATE_8BIT) {
        moments->m_scale = be->ops->alloc(be, TG_MEM_OPTIMIZER, sizes.m_scale + sizes.v_scale);
        TG_TRY(moments->m_scale ? TG_OK : TG_E_MEMORY);
        moments->v_scale = moments->m_scale + tg_moment_blocks(moments->m_reals);
    }
    TG_TRY(tg_moments_clear(be, moments));
fail:
    return status;
}

void tg_moments_release(tg_backend *be, tg_moments *moments) {
    be->ops->release(be, moments->m);
    be->ops->release(be, moments->v);
    be->ops->release(be, moments->m_scale);
    *moments = (tg_moments){0};
}

/* ---- bytes ---- */

void tg_moments_decode(bool second, int64_t reals, const uint8_t *bytes, const float *scale,
                       float *out) {
    for (int64_t i = 0; i < reals; i++) {
        const float s = scale[i / TG_STATE_BLOCK];
        out[i] = second ? tg_state_v_decode(bytes[i], s) : tg_state_m_decode(bytes[i], s);
    }
}

void tg_moments_encode(bool second, int64_t reals, const float *values, uint8_t *bytes,
                       float *scale) {
    for (int64_t begin = 0; begin < reals; begin += TG_STATE_BLOCK) {
        const int64_t left = reals - begin,
                      end = begin + (left < TG_STATE_BLOCK ? left : TG_STATE_BLOCK);
        float most = 0.0f;
        for (int64_t i = begin; i < end; i++) {
            most = fmaxf(most, second ? sqrtf(values[i]) : fabsf(values[i]));
        }
        const float inverse = most > 0.0f ? 1.0f / most : 0.0f;
        scale[begin / TG_STATE_BLOCK] = most;
        for (int64_t i = begin; i < end; i++) {
            bytes[i] = second ? tg_state_v_encode(sqrtf(values[i]), inverse, 0.5f)
                              : tg_state_m_encode(values[i], inverse, 0.5f);
        }
    }
}
