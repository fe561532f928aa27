/* The state of a parameter in a file. */
#ifndef TG_OPTIM_STATE_H
#define TG_OPTIM_STATE_H

#include "optim/optim.h"

/* The largest counter accepted from a file: sums of them and further steps cannot overflow. */
#define TG_STATE_MAX_COUNT (INT64_C(1) << 48)

enum { TG_STATE_NAME = 512, TG_STATE_PARTS = 2 * TG_RULE_STATES + 2 * TG_MAX_NDIM };

/* One array of the state: its memory, and its dtype and shape in a file. */
typedef struct tg_state_part {
    char name[TG_STATE_NAME];
    void *memory;
    tg_dtype dtype;
    tg_shape shape;
} tg_state_part;

/* The arrays of a parameter's moments. */
TG_NODISCARD tg_status tg_state_list_moments(const tg_optim *optim, const tg_slot *slot,
                                             tg_state_part *parts, int *count);

/* Adds `count` numbers of a dtype to an archive. */
TG_NODISCARD tg_status tg_state_save_numbers(tg_context *ctx, tg_archive *archive, const char *name,
                                             tg_dtype dtype, int64_t count, const void *numbers);

#endif
