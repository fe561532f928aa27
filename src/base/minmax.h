/* Minimum, maximum and products of sizes. */
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

/* of[0] .. of[count - 1] */
static inline int64_t tg_product(int count, const int64_t *of) {
    int64_t product = 1;
    for (int i = 0; i < count; i++) {
        product *= of[i];
    }
    return product;
}

#endif
