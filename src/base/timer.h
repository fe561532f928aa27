/* Monotonic wall clock. */
#ifndef TG_BASE_TIMER_H
#define TG_BASE_TIMER_H

double tg_seconds(void); /* since an arbitrary start */

#endif
