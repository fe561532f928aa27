/* The process that reads an HDF5 file for us: its start, what it says, its end. */
#ifndef TG_IO_HDF5_CHILD_H
#define TG_IO_HDF5_CHILD_H

#include <sys/types.h>

#include "io/hdf5_wire.h"

typedef struct tg_h5_child {
    tg_context *ctx;
    const char *path; /* of the file; of the caller */
    int fd;           /* our end of the sockets; -1: the process has ended */
    pid_t pid;
} tg_h5_child;

/* Starts a reader of `path`: the program tgrad-h5 that is installed beside the library, or where
 * there is none (a static library in a program of its own) a fork of this process. */
tg_status tg_h5_child_start(tg_context *ctx, const char *path, tg_h5_child *out);

/* Ends the process at once and forgets it; also one that was never started. */
void tg_h5_child_end(tg_h5_child *child);

/* Sends a request: two parts that follow each other. */
tg_status tg_h5_child_ask(tg_h5_child *child, tg_h5_kind kind, const void *head, size_t head_size,
                          const void *tail, size_t tail_size);

/* The next frame of an answer, without its bytes; lines for the log are handed on on the way. A
 * process that crashed, took too long or ended is an error that says so. */
tg_status tg_h5_child_receive(tg_h5_child *child, tg_h5_frame *out);

/* The bytes of a frame. */
tg_status tg_h5_child_take(tg_h5_child *child, void *data, size_t size);

/* The same as a block (to be freed with tg_mem_free) with two zero bytes behind it. A frame of more
 * than `limit` bytes is an error. */
tg_status tg_h5_child_take_text(tg_h5_child *child, const tg_h5_frame *frame, uint64_t limit,
                                char **out);

/* The failure that a frame of kind DONE tells, TG_OK if none. */
tg_status tg_h5_child_result(tg_h5_child *child, const tg_h5_frame *frame);

/* tg_h5_open with a reader that has been started and has said hello; NULL starts one. The file
 * takes it over, unless it cannot be opened at all. */
tg_status tg_h5_open_from(tg_context *ctx, const char *path, const tg_h5_child *reader,
                          tg_h5 **out);

/* Ends the process, which does not keep to the protocol. */
tg_status tg_h5_child_refuse(tg_h5_child *child);

#endif
