/* An emulated device: the effects of a GPU on the host, so that everything above the backends can
 * be tested without a GPU.
 *
 * Its memory cannot be touched by the host: its pages are protected except while its own work runs.
 * Its work is really queued: a call copies its arguments and returns; nothing runs before
 * the host waits (synchronize, download, event_wait, a result on the host). Pinned memory is read
 * and written when the stream comes to it. An upload on the copy stream spoils its target as early
 * as a real one could begin and fills it as late as a real one could end. Graphs run again what was
 * captured, and capture refuses what waits or allocates. Fresh memory holds NaN.
 *
 * The arithmetic is the cpu backend's, so that results can be compared bit by bit. */
#ifndef TEST_SUPPORT_FAKE_DEVICE_H
#define TEST_SUPPORT_FAKE_DEVICE_H

#include "backend/backend.h"

/* Adds it to the process under that name, as the best backend. */
void fake_device_add(const char *name);

/* Whether it has calls of its own for factorized weights, which give other bits; at first it has
 * none. */
void fake_device_factorized(bool has);

/* Counts of the calls to all devices of the process since the start. */
typedef struct fake_counts {
    long waits;    /* of the host for the stream: downloads, event_wait, synchronize, results */
    long starved;  /* of them, those that left the stream empty */
    long recorded; /* graphs */
    long launched; /* likewise */
} fake_counts;

fake_counts fake_device_counts(void);

/* Bytes that can be allocated from now on before memory ends; 0: no limit. */
void fake_device_limit(size_t bytes);

/* The free memory that it reports from now on; 0: the true one, as if it had no limit. */
void fake_device_tell_left(size_t bytes);

/* Lets the n-th graph from now on (1-based) fail when it is ended; 0: none. */
void fake_device_fail_graph(long n);

/* Whether it says from now on that the owner of the stream captures a graph. */
void fake_device_set_capturing(bool captures);

/* There are two, and streams of each: they all wait for one another, as one queue. */
enum { FAKE_DEVICES = 4 };
void *fake_device_stream(int device);

/* ---- shared by the files of the device ---- */

typedef tg_status (*fake_run)(tg_backend *host, void *arguments);

/* The stream as a library of the device knows it. */
typedef struct fake_stream {
    tg_backend *be;
    tg_status (*submit)(tg_backend *be, fake_run run, const void *arguments, size_t bytes);
    tg_status (*finish)(tg_backend *be); /* runs what is in it */
} fake_stream;

/* Puts a call with a copy of its arguments into the stream, or into the graph being captured. */
tg_status fake_submit(tg_backend *be, fake_run run, const void *arguments, size_t bytes);

/* For calls that answer the host: empties the stream and opens the memory; NULL (and an error)
 * while a graph is captured. fake_leave closes it again and hands the status on. */
tg_backend *fake_enter(tg_backend *be, tg_status *status);
tg_status fake_leave(tg_backend *be, tg_status status);

/* The backend that does the arithmetic, for calls that touch no memory. */
tg_backend *fake_host(const tg_backend *be);

/* All slots of arithmetic; fake_slots.c calls the other two. */
void fake_fill_slots(tg_backend_ops *ops);
void fake_fill_layers(tg_backend_ops *ops);
void fake_fill_compress(tg_backend_ops *ops);

#endif
