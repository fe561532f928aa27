/* Fixed partitions: the same thread count gives the same split of work, hence the same bits. */
#ifndef TG_BASE_THREADS_H
#define TG_BASE_THREADS_H

#include <stdint.h>

typedef struct tg_range {
    int64_t begin, end; /* [begin, end) */
} tg_range;

/* Part `index` of `parts` of 0..n-1, the parts as even as possible; boundaries are multiples of
 * `grain` (>= 1) except the last. */
tg_range tg_partition(int64_t n, int64_t grain, int parts, int index);

/* Cores this process may run on (its CPU affinity), at least 1. */
int tg_cpu_count(void);

#endif
