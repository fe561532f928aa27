/* Memory of moments. */
#include "optim/moments.h"

_Static_assert((int)TG_STATES_HALF == TG_STATE_BF16 && (int)TG_STATES_8BIT == TG_STATE_8BIT,
               "tg_state_precision has the order of state_formats.def");

tg_moments tg_moments_plan_part(const tg_optim_config *config, tg_dtype dtype, int64_t entries,
                                int64_t count) {
    const bool complex = tg_dtype_is_complex(dtype);
    const bool split = complex && config->complex_adam == TG_ADAM_SPLIT;
    tg_moments moments = {.m_reals = complex ? 2 * count : count,
                          .v_reals = split ? 2 * count : count,
                          .real = tg_dtype_real(dtype)};
    const tg_state_form asked = (tg_state_form)config->state_precision;
    moments.form = entries >= tg_state_codecs[asked]->least ? asked : TG_STATE_FULL;
    return moments;
}

tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, int64_t count) {
    return tg_moments_plan_part(config, dtype, count, count);
}

/* Bytes of n reals; whole floats, so that zeros are zeros of f32. */
static size_t reals_bytes(const tg_moments *moments, int64_t n) {
    return (tg_state_bytes(tg_moments_codec(moments), moments->real, n) + 3) / 4 * 4;
}

static size_t scale_bytes(const tg_moments *moments, int64_t n) {
    return (size_t)tg_state_scales(tg_moments_codec(moments), n) * sizeof(float);
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
    const tg_state_codec *codec = tg_moments_codec(&one);
    const double real = (double)tg_state_bytes(codec, one.real, TG_STATE_BLOCK) / TG_STATE_BLOCK;
    const double scale = codec->block > 0 ? (double)sizeof(float) / codec->block : 0.0;
    return (double)(one.m_reals + one.v_reals) * (real + scale);
}

tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments) {
    const tg_moment_sizes sizes = tg_moments_sizes(moments);
    void *const blocks[] = {moments->m, moments->v, moments->m_scale, moments->v_scale};
    const size_t bytes[] = {sizes.m, sizes.v, sizes.m_scale, sizes.v_scale};
    tg_status status = TG_OK;
    for (int i = 0; i < (sizes.m_scale > 0 ? 4 : 2) && status == TG_OK; i++) {
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
    if (sizes.m_scale > 0) {
        moments->m_scale = be->ops->alloc(be, TG_MEM_OPTIMIZER, sizes.m_scale + sizes.v_scale);
        TG_TRY(moments->m_scale ? TG_OK : TG_E_MEMORY);
        moments->v_scale = moments->m_scale + sizes.m_scale / sizeof(float);
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
