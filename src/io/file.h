/* Bytes in and out of files: a source that is read at offsets, and a file that is written
 * atomically. */
#ifndef TG_IO_FILE_H
#define TG_IO_FILE_H

#include "base/context.h"

/* The system's sentence for an errno, from any thread; returns text. */
const char *tg_system_reason(int error, char text[128]);

/* Whether a process of this host with that number runs. */
bool tg_process_is_alive(long pid);

/* ---- Reading: a regular file, or memory that stands for one. ---- */

typedef struct tg_source {
    tg_context *ctx;
    const char *label;          /* the path, or what stands for it in errors; of the caller */
    const unsigned char *bytes; /* set: the content is in memory */
    int fd;                     /* otherwise */
    uint64_t base;              /* byte of the file that is byte 0 here: a member of a zip file */
    uint64_t size;              /* bytes, from there on */
} tg_source;

tg_status tg_source_open(tg_context *ctx, const char *path, tg_source *out);
tg_source tg_source_of_memory(tg_context *ctx, const char *label, const void *bytes, size_t size);
void tg_source_close(tg_source *source);

/* Fills dst with the bytes [offset, offset + count); a source that ends before is an error. */
tg_status tg_source_read(const tg_source *source, uint64_t offset, void *dst, size_t count);

/* The whole file, with a zero byte behind it that *size does not count. A file of more than `limit`
 * bytes is refused before anything is allocated. */
tg_status tg_file_read(tg_context *ctx, const char *path, size_t limit, void **bytes, size_t *size);

/* ---- Writing: into a temporary file beside the target, which takes its name at the end. ---- */

typedef struct tg_atomic_file {
    tg_context *ctx;
    const char *path; /* target; of the caller */
    char *temporary;  /* path of what is being written */
    int fd;           /* of the temporary file */
    uint64_t size;    /* bytes written so far, holes included */
} tg_atomic_file;

/* Afterwards the temporary file exists and is empty. Its permission bits are those of the file it
 * will replace, or what the umask leaves for a new one. */
tg_status tg_atomic_open(tg_context *ctx, const char *path, tg_atomic_file *out);

/* Writes at the end of what was written, or anywhere. */
tg_status tg_atomic_write(tg_atomic_file *file, const void *bytes, size_t count);
tg_status tg_atomic_write_at(tg_atomic_file *file, uint64_t offset, const void *bytes,
                             size_t count);

/* Cuts off or adds zeros. */
tg_status tg_atomic_resize(tg_atomic_file *file, uint64_t size);

/* Syncs, renames over the target and syncs the folder. Ends the file in any case: when it fails
 * before the rename, the target is what it was. */
tg_status tg_atomic_commit(tg_atomic_file *file);

/* Removes the temporary file; does nothing after a commit. */
void tg_atomic_abort(tg_atomic_file *file);

/* Removes the temporary files in a folder whose processes are gone: they were killed. */
void tg_atomic_sweep(const char *folder);

/* pwrite of all bytes, and fsync, both again when a signal interrupts them; 0 or an errno. */
int tg_file_write_at(int fd, uint64_t offset, const void *bytes, size_t count);
int tg_file_sync(int fd);

/* Makes a folder, if it is not there. */
TG_NODISCARD tg_status tg_folder_make(tg_context *ctx, const char *path);

/* Makes a file's name last that it got by a rename: syncs the folder of `path`. */
tg_status tg_file_sync_folder(tg_context *ctx, const char *path);

/* Adds whole lines to the end of a file, which is made if there is none. When not all of them can
 * be written, none is. */
tg_status tg_file_append(tg_context *ctx, const char *path, const char *text, size_t size);

#endif
