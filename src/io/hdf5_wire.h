/* What the two ends of an HDF5 file say to each other: frames over a pair of sockets.
 *
 * HDF5 crashes and hangs on damaged files, so it reads them in a process of its own
 * (docs/architecture.md, "Hostile files"). hdf5_serve.c is that process: it opens the file, lists
 * its datasets unasked and then answers requests. hdf5_child.c starts it and receives from it;
 * hdf5_read.c asks, and trusts nothing that it receives. Both are the same build on one machine:
 * numbers travel as they lie in memory. */
#ifndef TG_IO_HDF5_WIRE_H
#define TG_IO_HDF5_WIRE_H

#include "base/context.h"
#include "tgrad/io.h"

enum { TG_H5_PROTOCOL = 2 }; /* changes with every change of this file */

typedef enum tg_h5_kind {
    TG_H5_HELLO,   /* first of all; status = TG_H5_PROTOCOL */
    TG_H5_LOG,     /* a line for the log; status = its level */
    TG_H5_DATASET, /* tg_h5_entry, name, sentence of its refusal: both with their zero byte */
    TG_H5_PAIR,    /* key and value of an attribute, both with their zero byte */
    TG_H5_DATA,    /* the next elements of a tg_h5_range */
    TG_H5_DONE,    /* end of an answer; status, and the sentence of a failure */
    TG_H5_ASK_META,
    TG_H5_ASK_DATA, /* tg_h5_range, name with its zero byte */
} tg_h5_kind;

typedef struct tg_h5_frame {
    uint32_t kind; /* tg_h5_kind */
    int32_t status;
    uint64_t size; /* bytes that follow */
} tg_h5_frame;

/* A dataset as the list has it. */
typedef struct tg_h5_entry {
    int32_t dtype;   /* the nearest of ours */
    int32_t refusal; /* TG_OK, or why it cannot be read */
    int64_t ndim;
    int64_t dim[TG_MAX_NDIM];
    uint64_t offset; /* of its elements, which lie there in our own format; or TG_H5_NOWHERE */
} tg_h5_entry;

/* Only HDF5 can read it: chunks, filters, other types, no data at all. */
#define TG_H5_NOWHERE UINT64_MAX

/* Samples [first, first + count) as elements of a dtype; or of one sample so many of its second
 * dimension. */
typedef struct tg_h5_range {
    int64_t first, count;
    int64_t dtype;
    int64_t sample; /* the one sample, or TG_H5_ALL_SAMPLES */
} tg_h5_range;

#define TG_H5_ALL_SAMPLES (-1)

/* Fails only when the other end has gone; whoever serves on finds out soon. */
bool tg_h5_send(int fd, const void *data, size_t size);

/* The process that reads: answers on the socket `fd` until the other end is closed. Returns its
 * exit code. */
int tg_h5_serve(int fd, const char *path);

#endif
