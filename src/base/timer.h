/* Monotonic wall clock. */
#ifndef TG_BASE_TIMER_H
#define TG_BASE_TIMER_H

#include <time.h>

/* Seconds since an arbitrary start. */
static inline double tg_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

#endif
