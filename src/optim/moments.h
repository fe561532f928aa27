/* The state tensors of one parameter: what its rule keeps per value, in the format that its group
 * asks for. */
#ifndef TG_OPTIM_MOMENTS_H
#define TG_OPTIM_MOMENTS_H

#include "backend/state_codec.h"
#include "optim/rules/rules.h"

typedef struct tg_moment {
    int64_t reals; /* per complex value two, or one in a second moment (unless split) */
    void *memory;
    float *scale; /* of a codec with blocks, or NULL */
} tg_moment;

typedef struct tg_moments {
    const tg_rule *rule;
    tg_state_form form;
    tg_dtype real;                /* dtype of uncompressed ones */
    tg_moment at[TG_RULE_STATES]; /* one for each rule->state */
} tg_moments;

/* Format and sizes for a parameter of a dtype: of a dense one, whose rule may depend on its shape,
 * or, if `shape` is NULL, of `count` compressed values. Touches no memory. */
tg_moments tg_moments_plan(const tg_optim_config *config, tg_dtype dtype, const tg_shape *shape,
                           int64_t count);
size_t tg_moments_bytes(const tg_moments *moments);
/* Bytes in a file, without rounding up. */
size_t tg_moments_saved_bytes(const tg_moments *moments);

/* Bytes of tensor i of planned moments, and of its scales (0: the codec has none). */
size_t tg_moment_bytes(const tg_moments *moments, int i);
size_t tg_moment_scale_bytes(const tg_moments *moments, int i);

/* Allocates planned moments and sets them to zero. */
TG_NODISCARD tg_status tg_moments_create(tg_backend *be, tg_moments *moments);
TG_NODISCARD tg_status tg_moments_clear(tg_backend *be, const tg_moments *moments);
void tg_moments_release(tg_backend *be, tg_moments *moments);

/* The codec of tensor i: the common one, unless it is a single real. */
const tg_state_codec *tg_moment_codec(const tg_moments *moments, int i);

static inline const tg_state_codec *tg_moments_codec(const tg_moments *moments) {
    return tg_state_codecs[moments->form];
}

#endif
