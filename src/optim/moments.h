/* Adam's moments of one parameter, in the form that its group asks for. */
#ifndef TG_OPTIM_MOMENTS_H
#define TG_OPTIM_MOMENTS_H

#include "backend/backend.h"
#include "tgrad/optim.h"

/* Fewer values than this keep full moments when bytes are asked for: they would save nothing. */
enum { TG_MOMENTS_LEAST = 4096 };

typedef struct tg_moments {
    tg_state_form form;
    int64_t m_reals, v_reals; /* a complex m is two reals an entry, v one (two if split) */
    tg_dtype real;            /* of full ones */
    void *m, *v;
    float *m_scale, *v_scale; /* 8BIT: one block of memory, that of m_scale */
} tg_moments;

/* Form and sizes for `count` values of a dtype; no memory is touched. */
tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, int64_t count);
size_t tg_moments_bytes(const tg_moments *moments);

/* Takes the memory of planned moments, and makes them all zero. */
TG_NODISCARD tg_status tg_moments_create(tg_backend *be, tg_moments *moments);
TG_NODISCARD tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments);
void tg_moments_release(tg_backend *be, tg_moments *moments);

/* Scales of the blocks of so many reals. */
static inline int64_t tg_moment_blocks(int64_t reals) {
    return (reals + TG_STATE_BLOCK - 1) / TG_STATE_BLOCK;
}

#endif
