/* The process that reads an HDF5 file for us. */
#ifndef TG_IO_HDF5_CHILD_H
#define TG_IO_HDF5_CHILD_H

#include <sys/types.h>

#include "io/hdf5_wire.h"

typedef struct tg_h5_child {
    tg_context *ctx;
    const char *path; /* of the file; owned by the caller */
    int fd;           /* our end of the sockets; -1: the process has ended */
    pid_t pid;
} tg_h5_child;

/* Starts a reader of `path`: the program tgrad-h5 installed beside the library, or without one (a
 * static library in another program) a fork of this process. */
tg_status tg_h5_child_start(tg_context *ctx, const char *path, tg_h5_child *out);

/* Ends the process at once and forgets it; does nothing if it was never started. */
void tg_h5_child_end(tg_h5_child *child);

/* Sends a request in two parts. */
tg_status tg_h5_child_ask(tg_h5_child *child, tg_h5_kind kind, const void *head, size_t head_size,
                          const void *tail, size_t tail_size);

/* The header of the next frame of an answer; lines for the log are logged on the way. Fails if the
 * process crashed, timed out or exited. */
tg_status tg_h5_child_receive(tg_h5_child *child, tg_h5_frame *out);

/* The bytes of a frame. */
tg_status tg_h5_child_take(tg_h5_child *child, void *data, size_t size);

/* The same as a block (to be freed with tg_mem_free) followed by two zero bytes. A frame of more
 * than `limit` bytes is an error. */
tg_status tg_h5_child_take_text(tg_h5_child *child, const tg_h5_frame *frame, uint64_t limit,
                                char **out);

/* The error in a frame of kind DONE, or TG_OK. */
tg_status tg_h5_child_result(tg_h5_child *child, const tg_h5_frame *frame);

/* tg_h5_open with a reader that has been started and has sent HELLO; NULL starts one. The file
 * takes it over unless it cannot be opened. */
tg_status tg_h5_open_from(tg_context *ctx, const char *path, const tg_h5_child *reader,
                          tg_h5 **out);

/* Ends a process that violates the protocol. */
tg_status tg_h5_child_refuse(tg_h5_child *child);

#endif
