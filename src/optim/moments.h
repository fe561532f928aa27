/* The state tensors of one parameter: what its rule keeps of every value, in the form that its
 * group asks for. */
#ifndef TG_OPTIM_MOMENTS_H
#define TG_OPTIM_MOMENTS_H

#include "backend/state_codec.h"
#include "optim/rules/rules.h"

typedef struct tg_moment {
    int64_t reals; /* of a complex value two, one of a second moment (unless split) */
    void *memory;
    float *scale; /* of a codec with blocks, or NULL */
} tg_moment;

typedef struct tg_moments {
    const tg_rule *rule;
    tg_state_form form;
    tg_dtype real;                /* of full ones */
    tg_moment at[TG_RULE_STATES]; /* those of rule->state */
} tg_moments;

/* Form and sizes for `count` values of a dtype; no memory is touched. */
tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, int64_t count);
size_t tg_moments_bytes(const tg_moments *moments);
/* In a file, where nothing is rounded up. */
size_t tg_moments_saved_bytes(const tg_moments *moments);

/* The same of a dense parameter, whose rule may depend on its shape. */
tg_moments tg_moments_plan_dense(const tg_optim_config *config, tg_dtype dtype,
                                 const tg_shape *shape);

/* Bytes of tensor i of planned moments, and of its scales (0: the codec has none). */
size_t tg_moment_bytes(const tg_moments *moments, int i);
size_t tg_moment_scale_bytes(const tg_moments *moments, int i);

/* Takes the memory of planned moments, and makes them all zero. */
TG_NODISCARD tg_status tg_moments_create(tg_backend *be, tg_moments *moments);
TG_NODISCARD tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments);
void tg_moments_release(tg_backend *be, tg_moments *moments);

/* Of tensor i: that of all, unless it is one real alone. */
const tg_state_codec *tg_moment_codec(const tg_moments *moments, int i);

static inline const tg_state_codec *tg_moments_codec(const tg_moments *moments) {
    return tg_state_codecs[moments->form];
}

#endif
