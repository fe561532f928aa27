/* The smaller and the larger of two. */
#ifndef TG_BASE_MINMAX_H
#define TG_BASE_MINMAX_H

#include <stddef.h>
#include <stdint.h>

static inline int64_t tg_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t tg_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline size_t tg_max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

#endif
