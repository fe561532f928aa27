/* Memory of moments. */
#include "optim/moments.h"

tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, int64_t count) {
    const bool complex = tg_dtype_is_complex(dtype);
    const bool split = complex && config->complex_adam == TG_ADAM_SPLIT;
    tg_moments moments = {.m_reals = complex ? 2 * count : count,
                          .v_reals = split ? 2 * count : count,
                          .real = tg_dtype_real(dtype)};
    if (config->state_precision == TG_STATES_HALF) {
        moments.form = TG_STATE_BF16;
    } else if (config->state_precision == TG_STATES_8BIT && count >= TG_MOMENTS_LEAST) {
        moments.form = TG_STATE_8BIT;
    }
    return moments;
}

/* Bytes of n reals; whole floats, so that zeros are zeros of f32. */
static size_t reals_bytes(const tg_moments *moments, int64_t n) {
    const size_t size = moments->form == TG_STATE_8BIT   ? 1
                        : moments->form == TG_STATE_BF16 ? 2
                                                         : tg_dtype_size(moments->real);
    return ((size_t)n * size + 3) / 4 * 4;
}

static size_t scale_bytes(const tg_moments *moments) {
    const int64_t scales = tg_moment_blocks(moments->m_reals) + tg_moment_blocks(moments->v_reals);
    return moments->form == TG_STATE_8BIT ? (size_t)scales * sizeof(float) : 0;
}

size_t tg_moments_bytes(const tg_moments *moments) {
    return reals_bytes(moments, moments->m_reals) + reals_bytes(moments, moments->v_reals) +
           scale_bytes(moments);
}

tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments) {
    void *const blocks[] = {moments->m, moments->v, moments->m_scale};
    const size_t bytes[] = {reals_bytes(moments, moments->m_reals),
                            reals_bytes(moments, moments->v_reals), scale_bytes(moments)};
    tg_status status = TG_OK;
    for (int i = 0; i < 3 && status == TG_OK; i++) {
        const int64_t floats = (int64_t)(bytes[i] / sizeof(float));
        status = be->ops->fill(be, TG_F32, floats, (tg_scalar){0}, blocks[i]);
    }
    return status;
}

tg_status tg_moments_create(tg_backend *be, tg_moments *moments) {
    tg_status status = TG_OK;
    moments->m = be->ops->alloc(be, TG_MEM_OPTIMIZER, reals_bytes(moments, moments->m_reals));
    TG_TRY(moments->m ? TG_OK : TG_E_MEMORY);
    moments->v = be->ops->alloc(be, TG_MEM_OPTIMIZER, reals_bytes(moments, moments->v_reals));
    TG_TRY(moments->v ? TG_OK : TG_E_MEMORY);
    if (moments->form == TG_STATE_8BIT) {
        moments->m_scale = be->ops->alloc(be, TG_MEM_OPTIMIZER, scale_bytes(moments));
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
