/* Adam's moments of one parameter, in the form that its group asks for. */
#ifndef TG_OPTIM_MOMENTS_H
#define TG_OPTIM_MOMENTS_H

#include "backend/state_codec.h"
#include "tgrad/optim.h"

typedef struct tg_moments {
    tg_state_form form;
    int64_t m_reals, v_reals; /* a complex m is two reals an entry, v one (two if split) */
    tg_dtype real;            /* of full ones */
    void *m, *v;
    float *m_scale, *v_scale; /* of a codec with blocks: in one piece of memory, that of m_scale */
} tg_moments;

/* Form and sizes for `count` values of a dtype; no memory is touched. */
tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, int64_t count);
size_t tg_moments_bytes(const tg_moments *moments);

/* The same where the number of values changes with automatic ranks: the form is that of all
 * `entries` of the parameter and stays, and a value more is always some bytes more. */
tg_moments tg_moments_plan_part(const tg_optim_config *config, tg_dtype dtype, int64_t entries,
                                int64_t count);

/* Bytes of each array of planned moments; 0 of scales that the codec has not. */
typedef struct tg_moment_sizes {
    size_t m, v, m_scale, v_scale;
} tg_moment_sizes;

tg_moment_sizes tg_moments_sizes(const tg_moments *moments);

/* Bytes that a value more takes of a parameter of so many entries; scales are counted in part. */
double tg_moments_per_value(const tg_optim_config *config, tg_dtype dtype, int64_t entries);

/* Takes the memory of planned moments, and makes them all zero. */
TG_NODISCARD tg_status tg_moments_create(tg_backend *be, tg_moments *moments);
TG_NODISCARD tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments);
void tg_moments_release(tg_backend *be, tg_moments *moments);

static inline const tg_state_codec *tg_moments_codec(const tg_moments *moments) {
    return tg_state_codecs[moments->form];
}

#endif
