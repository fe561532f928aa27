/* What the host's memory has left for this process. */
#ifndef TG_BASE_HOST_MEMORY_H
#define TG_BASE_HOST_MEMORY_H

#include <stdbool.h>
#include <stddef.h>

/* Bytes that can still be used without the system ending a process: what Linux says is available
 * (with swap), or less where control groups (version 1 or 2, the process's own and those above)
 * allow less; caches of files count as free. `root` stands in front of /proc and /sys: "" but for
 * tests. False where it is not told. */
bool tg_host_memory_left(const char *root, size_t *left);

#endif
