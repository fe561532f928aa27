/* The journal of an unfinished file of samples: a header, then a checksum per sample for x and y, 0
 * if missing. It is read from files or from memory. Neither the journal nor its HDF5 file is
 * trusted: inconsistent entries count as missing. */
#ifndef TG_PDE_JOURNAL_H
#define TG_PDE_JOURNAL_H

#include "io/file.h"
#include "pde/sample_file.h"

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
