/* Divides a block of scratch memory into pieces. Call it twice with the same sizes: with a NULL
 * block to add up the bytes, then to place the pieces. */
#ifndef TG_BASE_SCRATCH_H
#define TG_BASE_SCRATCH_H

#include <stddef.h>

#include "base/memory.h"

typedef struct tg_scratch {
    char *block; /* NULL: count only; the pieces must not be dereferenced */
    size_t used;
} tg_scratch;

/* Bytes of a piece, rounded up to where the next may begin. */
static inline size_t tg_align(size_t bytes) {
    return (bytes + TG_ALIGNMENT - 1) / TG_ALIGNMENT * TG_ALIGNMENT;
}

static inline void *tg_scratch_take(tg_scratch *scratch, size_t bytes) {
    void *piece = scratch->block ? scratch->block + scratch->used : (void *)scratch;
    scratch->used += tg_align(bytes);
    return piece;
}

#endif
