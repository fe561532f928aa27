/* A file of samples that grows in any order and can be continued after an interruption.
 *
 * Until it is complete there are two files beside the target: <path>.part is the HDF5 file with the
 * samples made so far, <path>.journal has a checksum for each x and y present. Resuming verifies
 * the checksums, and data lost in a crash is recomputed. The complete file is renamed atomically. A
 * complete file with fewer samples that matches otherwise is extended: its samples are copied. */
#ifndef TG_PDE_SAMPLE_FILE_H
#define TG_PDE_SAMPLE_FILE_H

#include "io/file.h"
#include "tgrad/io.h"

typedef enum tg_sample_part { TG_SAMPLE_X, TG_SAMPLE_Y, TG_SAMPLE_PARTS } tg_sample_part;

typedef struct tg_sample_file_desc {
    const char *path;
    const tg_archive *meta; /* its metadata; resuming requires the same */
    tg_dtype dtype;
    const char *name[TG_SAMPLE_PARTS]; /* of x and y in the file; live longer than it is open. y
                                          NULL: a sample is x alone, y counts as there */
    tg_shape shape[TG_SAMPLE_PARTS];   /* samples first */
    bool overwrite;                    /* replaces a file with other metadata */
} tg_sample_file_desc;

typedef struct tg_sample_file tg_sample_file;

TG_NODISCARD tg_status tg_sample_file_open(tg_context *ctx, const tg_sample_file_desc *desc,
                                           tg_sample_file **out);
void tg_sample_file_close(tg_sample_file **file); /* unfinished files stay on disk */

bool tg_sample_file_is_complete(const tg_sample_file *s); /* the target exists */
bool tg_sample_file_has(const tg_sample_file *s, tg_sample_part part, int64_t sample);
bool tg_sample_file_has_pair(const tg_sample_file *s, int64_t sample); /* x and y */

/* Writes x or y of a sample, one row of its shape. Any thread may call this, one at a time; errors
 * go to `ctx`, the thread's context. */
TG_NODISCARD tg_status tg_sample_file_put(tg_context *ctx, tg_sample_file *s, tg_sample_part part,
                                          int64_t sample, const void *data);

/* Renames the complete file to its target. */
TG_NODISCARD tg_status tg_sample_file_finish(tg_sample_file *s);

/* 64-bit checksum, never 0. */
uint64_t tg_checksum(const void *data, size_t bytes);

/* ---- the journal ----
 *
 * The journal of an unfinished file of samples: a header, then a checksum per sample for x and y, 0
 * if missing. It is read from files or from memory. Neither the journal nor its HDF5 file is
 * trusted: inconsistent entries count as missing. */

typedef struct tg_journal_header {
    char magic[8];
    uint64_t checksum;    /* of the rest of the header */
    uint64_t fingerprint; /* of the metadata, dtype and shapes */
    uint64_t structure;   /* checksum of the HDF5 file without the samples */
    uint64_t size;        /* of the HDF5 file */
    uint64_t samples;
    uint64_t row[TG_SAMPLE_PARTS];    /* bytes of one sample; 0: no such part */
    uint64_t offset[TG_SAMPLE_PARTS]; /* of the first sample; x before y */
} tg_journal_header;

/* Completes a header whose samples, row and offset are set, for the new HDF5 file `part`. */
void tg_journal_seal(const tg_source *part, tg_journal_header *header);

/* Whether the header and the structure of the HDF5 file `part` are intact: HDF5 cannot be trusted
 * with a damaged file. The samples are checked separately. */
bool tg_journal_read(const tg_source *journal, const tg_source *part, tg_journal_header *found);

/* Whether the header found continues another one, whose fingerprint, samples and row are set. */
bool tg_journal_continues(const tg_journal_header *found, const tg_journal_header *wanted);

/* Reads the checksums (samples, parts); those that do not match the data become 0. */
TG_NODISCARD tg_status tg_journal_read_sums(const tg_source *journal, const tg_source *part,
                                            const tg_journal_header *header, uint64_t *sums);

#endif
