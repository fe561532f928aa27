/* Host memory available to this process. */
#ifndef TG_BASE_HOST_MEMORY_H
#define TG_BASE_HOST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that can be used before the system kills a process: the available memory that Linux reports
 * (with swap), or less where control groups (version 1 or 2, the process's own and its ancestors)
 * allow less; file caches count as free. `root` prefixes /proc and /sys: "" except in tests. False
 * if unknown. */
bool tg_host_memory_left(const char *root, size_t *left);

#endif
