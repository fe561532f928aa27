/* Protocol between the library and the process that reads an HDF5 file: frames over a socket pair.
 *
 * HDF5 crashes and hangs on damaged files, so it runs in another process (docs/architecture.md,
 * "Hostile files"). hdf5_serve.c is that process: it opens the file, sends the list of its datasets
 * and then answers requests. hdf5_child.c starts it and receives from it; hdf5_read.c sends the
 * requests and validates the answers. Both ends are the same build on one machine, so numbers are
 * sent in memory format. */
#ifndef TG_IO_HDF5_WIRE_H
#define TG_IO_HDF5_WIRE_H

#include <sys/types.h>

#include "io/formats.h"

enum { TG_H5_PROTOCOL = 3 }; /* changes with every change of this file */

typedef enum tg_h5_kind {
    TG_H5_HELLO,   /* first of all; status = TG_H5_PROTOCOL */
    TG_H5_LOG,     /* a line for the log; status = its level */
    TG_H5_DATASET, /* tg_h5_entry, name, why it is rejected: both zero-terminated */
    TG_H5_PAIR,    /* key and value of an attribute, both zero-terminated */
    TG_H5_DATA,    /* the next elements of a tg_h5_range */
    TG_H5_DONE,    /* end of an answer; status, and the error message */
    TG_H5_ASK_META,
    TG_H5_ASK_DATA, /* tg_h5_range, name, zero-terminated */
} tg_h5_kind;

typedef struct tg_h5_frame {
    uint32_t kind; /* tg_h5_kind */
    int32_t status;
    uint64_t size; /* bytes that follow */
} tg_h5_frame;

/* An entry of the list of datasets. */
typedef struct tg_h5_entry {
    int32_t dtype;   /* the nearest tg_dtype */
    int32_t refusal; /* TG_OK, or why it cannot be read */
    int64_t ndim;
    int64_t dim[TG_MAX_NDIM];
    uint64_t offset; /* of its elements if stored as in memory, or TG_H5_NOWHERE */
} tg_h5_entry;

/* Only HDF5 can read it: chunks, filters, other types, no allocated data. */
#define TG_H5_NOWHERE UINT64_MAX

/* A box of a dataset, converted to a dtype. */
typedef struct tg_h5_range {
    int64_t dtype;
    tg_array_box box;
} tg_h5_range;

/* Fails only when the other end is closed. */
bool tg_h5_send(int fd, const void *data, size_t size);

/* The reader process: answers on the socket `fd` until the other end is closed. Returns its exit
 * code. */
int tg_h5_serve(int fd, const char *path);

/* ---- the process, as its parent sees it (hdf5_child.c) ---- */

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
