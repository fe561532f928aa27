/* The journal beside an unfinished file of samples: a header, then a checksum per sample for x and
 * y, 0 where there is none yet. It is read from files or from memory. Neither it nor the HDF5 file
 * it is about is trusted: what does not fit is as if it were not there. */
#ifndef TG_PDE_JOURNAL_H
#define TG_PDE_JOURNAL_H

#include "io/file.h"
#include "pde/sample_file.h"

typedef struct tg_journal_header {
    char magic[8];
    uint64_t checksum;    /* of what follows */
    uint64_t fingerprint; /* of the metadata, dtype and shapes */
    uint64_t structure;   /* checksum of the HDF5 file without the samples */
    uint64_t size;        /* of the HDF5 file */
    uint64_t samples;
    uint64_t row[TG_SAMPLE_PARTS];    /* bytes of one sample; 0: it has no such part */
    uint64_t offset[TG_SAMPLE_PARTS]; /* of the first one; x before y */
} tg_journal_header;

/* Completes a header whose samples, row and offset are set, for the new HDF5 file `part`. */
void tg_journal_seal(const tg_source *part, tg_journal_header *header);

/* True if the header and the structure of the HDF5 file `part` are whole: HDF5 itself must not be
 * trusted with a damaged file. The samples are another matter. */
bool tg_journal_read(const tg_source *journal, const tg_source *part, tg_journal_header *found);

/* Whether a header that was found goes on with the work of another one, which knows its
 * fingerprint, samples and row. */
bool tg_journal_continues(const tg_journal_header *found, const tg_journal_header *wanted);

/* Reads the checksums (samples, parts). What is promised and not there is forgotten: 0. */
TG_NODISCARD tg_status tg_journal_read_sums(const tg_source *journal, const tg_source *part,
                                            const tg_journal_header *header, uint64_t *sums);

#endif
