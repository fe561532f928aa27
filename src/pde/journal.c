/* Reads and checks journals. */
#include "pde/journal.h"

#include <stddef.h>
#include <string.h>

#include "base/memory.h"

#define MAGIC "tgradJ01"

static uint64_t header_checksum(const tg_journal_header *h) {
    return tg_checksum(&h->fingerprint, sizeof *h - offsetof(tg_journal_header, fingerprint));
}

/* Checksum of the bytes before x, between x and y, and after y; 0 if unreadable. */
static uint64_t structure_of(const tg_source *part, const tg_journal_header *h) {
    uint64_t sum = 1, begin = 0;
    unsigned char block[4096];
    for (int gap = 0; gap <= TG_SAMPLE_PARTS; gap++) {
        const uint64_t end = gap < TG_SAMPLE_PARTS ? h->offset[gap] : h->size;
        while (begin < end) {
            const size_t bytes = end - begin < sizeof block ? end - begin : sizeof block;
            if (tg_source_read(part, begin, block, bytes) != TG_OK) {
                return 0;
            }
            sum = 31 * sum + tg_checksum(block, bytes);
            begin += bytes;
        }
        begin = gap < TG_SAMPLE_PARTS ? end + h->row[gap] * h->samples : end;
    }
    return sum ? sum : 1;
}

/* Whether the samples are in order and inside the file. */
static bool is_laid_out(const tg_journal_header *h) {
    uint64_t begin = 0;
    for (int p = 0; p < TG_SAMPLE_PARTS; p++) {
        uint64_t bytes = 0;
        if (h->offset[p] < begin || h->offset[p] > h->size ||
            __builtin_mul_overflow(h->row[p], h->samples, &bytes) ||
            bytes > h->size - h->offset[p]) {
            return false;
        }
        begin = h->offset[p] + bytes;
    }
    return true;
}

void tg_journal_seal(const tg_source *part, tg_journal_header *header) {
    memcpy(header->magic, MAGIC, sizeof header->magic);
    header->size = part->size;
    header->structure = structure_of(part, header);
    header->checksum = header_checksum(header);
}

bool tg_journal_read(const tg_source *journal, const tg_source *part, tg_journal_header *found) {
    return tg_source_read(journal, 0, found, sizeof *found) == TG_OK &&
           memcmp(found->magic, MAGIC, sizeof found->magic) == 0 &&
           found->checksum == header_checksum(found) && found->size == part->size &&
           is_laid_out(found) && structure_of(part, found) == found->structure;
}

bool tg_journal_continues(const tg_journal_header *found, const tg_journal_header *wanted) {
    return found->fingerprint == wanted->fingerprint && found->samples == wanted->samples &&
           memcmp(found->row, wanted->row, sizeof found->row) == 0;
}

tg_status tg_journal_read_sums(const tg_source *journal, const tg_source *part,
                               const tg_journal_header *header, uint64_t *sums) {
    tg_status status = TG_OK;
    unsigned char *row = NULL;
    const uint64_t *bytes = header->row, count = header->samples * TG_SAMPLE_PARTS;
    TG_TRY(tg_source_read(journal, sizeof *header, sums, count * sizeof *sums));
    TG_TRY(TG_ALLOC(part->ctx, TG_MEM_WORKSPACE, row, bytes[0] > bytes[1] ? bytes[0] : bytes[1]));
    for (uint64_t i = 0; i < count; i++) {
        const int p = (int)(i % TG_SAMPLE_PARTS);
        const uint64_t at = header->offset[p] + i / TG_SAMPLE_PARTS * bytes[p];
        if (sums[i] != 0 && (tg_source_read(part, at, row, bytes[p]) != TG_OK ||
                             tg_checksum(row, bytes[p]) != sums[i])) {
            sums[i] = 0;
        }
    }
fail:
    tg_mem_free(part->ctx, row);
    return status;
}
