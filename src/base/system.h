/* Of the machine: fixed partitions among threads, cores, the clock, run-time libraries, free
 * memory. */
#ifndef TG_BASE_SYSTEM_H
#define TG_BASE_SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct tg_range {
    int64_t begin, end; /* [begin, end) */
} tg_range;

/* The same thread count gives the same split of work, hence the same bits: part `index` of `parts`
 * of 0..n-1, the parts as even as possible; boundaries are multiples of `grain` (>= 1) except the
 * last. */
tg_range tg_partition(int64_t n, int64_t grain, int parts, int index);

/* The rows of a grid, of n, that part `index` of `parts` has; all of them for fewer than 2 parts.
 */
static inline tg_range tg_slab_of(int64_t n, int parts, int index) {
    const bool is_all = parts < 2;
    return is_all ? (tg_range){0, n} : (tg_range){n * index / parts, n * (index + 1) / parts};
}

/* Cores this process may run on (its CPU affinity), at least 1. */
int tg_cpu_count(void);

/* Seconds since an arbitrary start. */
static inline double tg_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* A function of a run-time library, and its pointer in a struct. */
typedef struct tg_library_row {
    const char *name;
    size_t offset; /* of the pointer in the struct */
} tg_library_row;

/* The first name that the library lacks, or NULL. */
const char *tg_library_read(void *library, const tg_library_row *rows, int count, void *out);

/* Bytes that can be used before the system refuses them or kills a process: the available memory
 * that Linux reports (with swap), or less where control groups (version 1 or 2, the process's own
 * and its ancestors) or a limit on address space allow less; file caches count as free. `root`
 * prefixes /proc and /sys: "" except in tests. False if unknown. */
bool tg_host_memory_left(const char *root, size_t *left);

#endif
