/* Protocol between the library and the process that reads an HDF5 file: frames over a socket pair.
 *
 * HDF5 crashes and hangs on damaged files, so it runs in another process (docs/architecture.md,
 * "Hostile files"). hdf5_serve.c is that process: it opens the file, sends the list of its datasets
 * and then answers requests. hdf5_child.c starts it and receives from it; hdf5_read.c sends the
 * requests and validates the answers. Both ends are the same build on one machine, so numbers are
 * sent in memory format. */
#ifndef TG_IO_HDF5_WIRE_H
#define TG_IO_HDF5_WIRE_H

#include "base/context.h"
#include "tgrad/io.h"

enum { TG_H5_PROTOCOL = 2 }; /* changes with every change of this file */

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
    int32_t dtype;   /* the nearest of ours */
    int32_t refusal; /* TG_OK, or why it cannot be read */
    int64_t ndim;
    int64_t dim[TG_MAX_NDIM];
    uint64_t offset; /* of its elements if stored as in memory, or TG_H5_NOWHERE */
} tg_h5_entry;

/* Only HDF5 can read it: chunks, filters, other types, no allocated data. */
#define TG_H5_NOWHERE UINT64_MAX

/* Samples [first, first + count) as elements of a dtype, or that range of the second dimension of
 * one sample. */
typedef struct tg_h5_range {
    int64_t first, count;
    int64_t dtype;
    int64_t sample; /* the one sample, or TG_H5_ALL_SAMPLES */
} tg_h5_range;

#define TG_H5_ALL_SAMPLES (-1)

/* Fails only when the other end has gone, which serving detects soon. */
bool tg_h5_send(int fd, const void *data, size_t size);

/* The reader process: answers on the socket `fd` until the other end is closed. Returns its exit
 * code. */
int tg_h5_serve(int fd, const char *path);

#endif
