/* Cuts pieces off one block of scratch memory. Used twice with the same calls: once with a NULL
 * block to add up the bytes, once to place the pieces. */
#ifndef TG_LINALG_SCRATCH_H
#define TG_LINALG_SCRATCH_H

#include <stddef.h>

#include "base/memory.h"

typedef struct tg_scratch {
    char *block; /* NULL: only count; the pieces are then tokens, not to be followed */
    size_t used;
} tg_scratch;

static inline void *tg_scratch_take(tg_scratch *scratch, size_t bytes) {
    void *piece = scratch->block ? scratch->block + scratch->used : (void *)scratch;
    scratch->used += (bytes + TG_ALIGNMENT - 1) / TG_ALIGNMENT * TG_ALIGNMENT;
    return piece;
}

#endif
