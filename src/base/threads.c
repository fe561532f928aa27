/* Fixed partitions and the number of usable cores. */
#define _GNU_SOURCE
#include "base/threads.h"

#include <sched.h>
#include <unistd.h>

tg_range tg_partition(int64_t n, int64_t grain, int parts, int index) {
    int64_t units = (n + grain - 1) / grain;
    int64_t share = units / parts;
    int64_t extra = units % parts; /* the first `extra` parts get one unit more */
    int64_t begin = index * share + (index < extra ? index : extra);
    int64_t end = begin + share + (index < extra ? 1 : 0);
    tg_range range = {begin * grain, end * grain};
    range.begin = range.begin < n ? range.begin : n;
    range.end = range.end < n ? range.end : n;
    return range;
}

int tg_cpu_count(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0) {
        int count = CPU_COUNT(&set);
        return count > 0 ? count : 1;
    }
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}
