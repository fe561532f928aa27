/* File input and output: a source read at offsets, and a file written atomically. */
#ifndef TG_IO_FILE_H
#define TG_IO_FILE_H

#include "base/context.h"

/* The system's message for an errno, from any thread; returns text. */
const char *tg_system_reason(int error, char text[128]);
/* Fails with "PATH: cannot open: REASON". */
tg_status tg_fail_system(tg_context *ctx, const char *path, const char *verb, int error);

/* Whether process `pid` runs on this host. */
bool tg_process_is_alive(long pid);

/* Little-endian numbers of 1 to 8 bytes. */
static inline uint64_t tg_get_number(const unsigned char *bytes, int count) {
    uint64_t value = 0;
    for (int i = count - 1; i >= 0; i--) {
        value = value << 8 | bytes[i];
    }
    return value;
}

static inline void tg_put_number(unsigned char *bytes, uint64_t value, int count) {
    for (int i = 0; i < count; i++) {
        bytes[i] = (unsigned char)(value >> (8 * i));
    }
}

/* ---- Reading: a regular file, or memory in place of one. ---- */

typedef struct tg_source {
    tg_context *ctx;
    const char *label;          /* the path, or a name for errors; owned by the caller */
    const unsigned char *bytes; /* set: the content is in memory */
    int fd;                     /* otherwise */
    uint64_t base;              /* file offset of byte 0: a member of a zip file */
    uint64_t size;              /* bytes from there on */
} tg_source;

/* tg_fail with the label, a colon and a blank before the sentence. */
#define tg_fail_file(source, status, ...)                                                          \
    tg_fail_file_at((source), (status), __FILE__, __LINE__, __VA_ARGS__)
tg_status tg_fail_file_at(const tg_source *source, tg_status status, const char *file, int line,
                          const char *format, ...) TG_PRINTF(5, 6);

tg_status tg_source_open(tg_context *ctx, const char *path, tg_source *out);
tg_source tg_source_of_memory(tg_context *ctx, const char *label, const void *bytes, size_t size);
void tg_source_close(tg_source *source);

/* Fills dst with the bytes [offset, offset + count); a shorter source is an error. */
tg_status tg_source_read(const tg_source *source, uint64_t offset, void *dst, size_t count);

/* The whole file, zero-terminated (not counted in *size). A file of more than `limit` bytes is
 * rejected before anything is allocated. */
tg_status tg_file_read(tg_context *ctx, const char *path, size_t limit, void **bytes, size_t *size);

/* ---- Writing: into a temporary file, renamed to the target at the end. ---- */

typedef struct tg_atomic_file {
    tg_context *ctx;
    const char *path; /* target; of the caller */
    char *temporary;  /* path of the file being written */
    int fd;           /* of the temporary file */
    uint64_t size;    /* bytes written so far, holes included */
} tg_atomic_file;

/* Creates an empty temporary file. Its permission bits are those of the file it will replace, or
 * those that the umask leaves for a new one. */
tg_status tg_atomic_open(tg_context *ctx, const char *path, tg_atomic_file *out);

/* Writes at the end, or at an offset. */
tg_status tg_atomic_write(tg_atomic_file *file, const void *bytes, size_t count);
tg_status tg_atomic_write_at(tg_atomic_file *file, uint64_t offset, const void *bytes,
                             size_t count);

/* Truncates or extends with zeros. */
tg_status tg_atomic_resize(tg_atomic_file *file, uint64_t size);

/* Syncs, renames over the target and syncs the folder. Ends the file in any case: a failure before
 * the rename leaves the target unchanged. */
tg_status tg_atomic_commit(tg_atomic_file *file);

/* Removes the temporary file; does nothing after a commit. */
void tg_atomic_abort(tg_atomic_file *file);

/* A whole file of `count` pieces. */
typedef struct tg_piece {
    const void *bytes;
    size_t size;
} tg_piece;

TG_NODISCARD tg_status tg_atomic_write_file(tg_context *ctx, const char *path,
                                            const tg_piece *pieces, int count);

/* Removes the temporary files in a folder whose processes were killed. */
void tg_atomic_sweep(const char *folder);

/* pwrite of all bytes, and fsync, both retried when interrupted by a signal; 0 or an errno. */
int tg_file_write_at(int fd, uint64_t offset, const void *bytes, size_t count);
int tg_file_sync(int fd);

/* Makes a folder unless it exists. */
TG_NODISCARD tg_status tg_folder_make(tg_context *ctx, const char *path);
/* And its missing parents. */
TG_NODISCARD tg_status tg_folder_make_all(tg_context *ctx, const char *path);

/* Makes the rename of a file durable: syncs the folder of `path`. */
tg_status tg_file_sync_folder(tg_context *ctx, const char *path);

/* Appends whole lines to a file, created if missing. On failure none of them is written. */
tg_status tg_file_append(tg_context *ctx, const char *path, const char *text, size_t size);

#endif
