/* Scalars over steps in event files that TensorBoard reads.
 *
 * Each tg_events_open makes a new file in the folder, never touching older ones: TensorBoard shows
 * all files of a folder as one run, so a resumed run continues where the last one stopped, and a
 * crash costs at most the records that were not flushed. */
#ifndef TG_IO_EVENTS_H
#define TG_IO_EVENTS_H

#include "base/context.h"

typedef struct tg_events tg_events;

/* Makes the folder if it is not there (its parent must be), and a file in it. */
TG_NODISCARD tg_status tg_events_open(tg_context *ctx, const char *folder, tg_events **out);

/* One value; tags such as "test/l2_16" are grouped by what stands before the slash. Any value is
 * written, NaN and Inf too, as the nearest f32. */
TG_NODISCARD tg_status tg_events_scalar(tg_events *events, const char *tag, int64_t step,
                                        double value);

/* Flushes the records written so far to the system, whole records only. */
TG_NODISCARD tg_status tg_events_flush(tg_events *events);

/* Flushes and ends. With errors of the last flush in the status; *events is NULL in any case. */
tg_status tg_events_close(tg_events **events);

const char *tg_events_path(const tg_events *events); /* of the file */

#endif
