/* The state of a parameter in a file, for saving (state.c) and loading (load.c). */
#ifndef TG_OPTIM_STATE_H
#define TG_OPTIM_STATE_H

#include "optim/optim.h"

/* The largest counter accepted from a file: sums of them and further steps cannot overflow. */
#define TG_STATE_MAX_COUNT (INT64_C(1) << 48)

enum {
    TG_STATE_NAME = 512,
    TG_STATE_COUNTERS = 7,
    TG_STATE_PARTS = 2 * TG_RULE_STATES + 2 * TG_MAX_NDIM
};

/* One array of the state: its memory, and its dtype and shape in a file. */
typedef struct tg_state_part {
    char name[TG_STATE_NAME];
    void *memory;
    tg_dtype dtype;
    tg_shape shape;
} tg_state_part;

/* All arrays of a parameter, in a fixed order; which ones and how large follows from its counters
 * and ranks. */
TG_NODISCARD tg_status tg_state_list(const tg_optim *optim, const tg_slot *slot,
                                     tg_state_part *parts, int *count);

/* The arrays of its moments, which come first. */
TG_NODISCARD tg_status tg_state_list_moments(const tg_optim *optim, const tg_slot *slot,
                                             tg_state_part *parts, int *count);

/* Name of an entry of this parameter. */
TG_NODISCARD tg_status tg_state_name(tg_context *ctx, const tg_slot *slot, char *name,
                                     const char *format, ...) TG_PRINTF(4, 5);

/* The method as text; the state of another method is refused by it. */
void tg_state_method(const tg_optim *optim, const tg_slot *slot, char *text, size_t capacity);

void tg_state_get_counters(const tg_slot *slot, int64_t counters[TG_STATE_COUNTERS]);
void tg_state_set_counters(tg_slot *slot, const int64_t counters[TG_STATE_COUNTERS]);

/* Adds a few host numbers to an archive. */
TG_NODISCARD tg_status tg_state_save_numbers(tg_optim *optim, tg_archive *archive, const char *name,
                                             const tg_shape *shape, const int64_t *numbers);

/* An array of an archive, which must have this dtype and shape. */
TG_NODISCARD tg_status tg_state_find(tg_context *ctx, const tg_archive *archive, const char *name,
                                     tg_dtype dtype, const tg_shape *shape, const tg_tensor **out);

#endif
