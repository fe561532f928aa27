/* Files of samples, with a journal. A sample is written to the HDF5 file before its
 * checksum, so that a killed process leaves no checksum without its data; after a crash of the
 * machine the checksums detect lost data. */
#include "pde/sample_file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/formats.h"

#define MAGIC "tgradJ01"

struct tg_sample_file {
    tg_context *ctx;
    char *path, *part, *journal; /* names of the three files */
    int part_fd, journal_fd;     /* -1: not open */
    bool complete;
    int64_t samples;
    tg_journal_header head;
    uint64_t *sums; /* (samples, parts) */
};

uint64_t tg_checksum(const void *data, size_t bytes) {
    const unsigned char *at = data;
    uint64_t sum = 0x9E3779B97F4A7C15u ^ bytes;
    while (bytes > 0) {
        const size_t count = bytes < 8 ? bytes : 8;
        uint64_t word = 0;
        memcpy(&word, at, count);
        sum = (sum ^ word) * 0xD6E8FEB86659FD93u;
        sum ^= sum >> 32;
        at += count;
        bytes -= count;
    }
    return sum ? sum : 1;
}

/* ---- the journal ---- */

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

/* ---- life ---- */

void tg_sample_file_close(tg_sample_file **file) {
    if (!file || !*file) {
        return;
    }
    tg_sample_file *s = *file;
    const int fds[] = {s->part_fd, s->journal_fd};
    for (int i = 0; i < 2; i++) {
        if (fds[i] >= 0) {
            close(fds[i]);
        }
    }
    tg_mem_free(s->ctx, s->path);
    tg_mem_free(s->ctx, s->part);
    tg_mem_free(s->ctx, s->journal);
    tg_mem_free(s->ctx, s->sums);
    TG_FREE(s->ctx, *file);
}

static bool exists(const char *path) {
    struct stat info;
    return lstat(path, &info) == 0;
}

/* ---- comparing files ---- */

/* Number of samples of a dataset that otherwise matches; -1 if it does not. */
static int64_t count_samples(tg_h5 *file, const char *name, tg_dtype wanted,
                             const tg_shape *shape) {
    tg_dtype dtype;
    tg_shape found;
    if (tg_h5_describe(file, name, &dtype, &found) != TG_OK || dtype != wanted || found.ndim < 1) {
        return -1;
    }
    const int64_t samples = found.dim[0];
    found.dim[0] = shape->dim[0];
    return tg_shape_equal(&found, shape) ? samples : -1;
}

/* Describes in `difference` how the file's metadata or datasets differ from desc; *fewer is its
 * number of samples if that is the only difference and it has fewer. */
static tg_status compare(tg_context *ctx, const tg_sample_file_desc *desc, const char *path,
                         bool *same, int64_t *fewer, char difference[256]) {
    tg_status status = TG_OK;
    tg_h5 *file = NULL;
    tg_archive *found = NULL;
    *same = true;
    TG_TRY(tg_h5_open(ctx, path, &file));
    TG_TRY(tg_archive_create(ctx, &found));
    TG_TRY(tg_h5_read_meta(file, found));
    for (int64_t i = 0; *same && i < tg_archive_meta_count(desc->meta); i++) {
        const char *key = tg_archive_meta_key(desc->meta, i);
        const char *wanted = tg_archive_meta_value(desc->meta, i);
        const char *there = tg_archive_meta(found, key);
        *same = there && strcmp(there, wanted) == 0;
        snprintf(difference, 256, "%s is %.64s there and %.64s here", key, there ? there : "not",
                 wanted);
    }
    int64_t counts[TG_SAMPLE_PARTS] = {0};
    const int64_t wanted = desc->shape[TG_SAMPLE_X].dim[0];
    for (int p = 0; *same && p < TG_SAMPLE_PARTS; p++) {
        counts[p] = desc->name[p] ? count_samples(file, desc->name[p], desc->dtype, &desc->shape[p])
                                  : counts[TG_SAMPLE_X];
        *same = counts[p] >= 0;
        snprintf(difference, 256, "dataset %s is another one", desc->name[p]);
    }
    if (*same && (counts[TG_SAMPLE_X] != wanted || counts[TG_SAMPLE_Y] != wanted)) {
        *same = false;
        *fewer = counts[TG_SAMPLE_X] == counts[TG_SAMPLE_Y] && counts[TG_SAMPLE_X] < wanted
                     ? counts[TG_SAMPLE_X]
                     : 0;
        snprintf(difference, 256, "it has %" PRId64 " samples, here %" PRId64 " are wanted",
                 counts[TG_SAMPLE_X], wanted);
    }
fail:
    tg_archive_destroy(&found);
    tg_h5_close(&file);
    return status;
}

/* Whether there is a file at `path` that can be reused, or whose samples can if it has fewer. An
 * error if there is a different one. */
static tg_status check_existing(tg_sample_file *s, const tg_sample_file_desc *desc,
                                const char *path, bool *usable, int64_t *fewer) {
    char difference[256];
    *usable = false;
    *fewer = 0;
    if (!exists(path)) {
        return TG_OK;
    }
    const tg_status status = compare(s->ctx, desc, path, usable, fewer, difference);
    if (status == TG_E_MEMORY) {
        return status;
    }
    *usable = *usable && status == TG_OK;
    if (*usable || *fewer > 0 || desc->overwrite) {
        return TG_OK;
    }
    if (status != TG_OK) {
        char sentence[512];
        snprintf(sentence, sizeof sentence, "%s", tg_context_error(s->ctx));
        return tg_fail(s->ctx, status,
                       "%s; it is there already and cannot be continued: choose another folder, "
                       "remove it, or overwrite it",
                       sentence);
    }
    return tg_fail(s->ctx, TG_E_FORMAT,
                   "%s is there already and was made with other arguments (%s): choose another "
                   "folder, remove it, or overwrite it",
                   path, difference);
}

/* ---- opening ---- */

/* Locks the two files against other processes. */
static tg_status lock(tg_sample_file *s) {
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    s->journal_fd = open(s->journal, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (s->journal_fd < 0) {
        return tg_fail_system(s->ctx, s->journal, "open", errno);
    }
    if (fcntl(s->journal_fd, F_SETLK, &all) != 0 && (errno == EACCES || errno == EAGAIN)) {
        return tg_fail(s->ctx, TG_E_IO, "%s: another process is making this file", s->path);
    }
    return TG_OK;
}

static uint64_t fingerprint_of(const tg_sample_file_desc *desc) {
    uint64_t sum = (uint64_t)desc->dtype;
    for (int p = 0; p < TG_SAMPLE_PARTS; p++) {
        const tg_shape *shape = &desc->shape[p];
        sum = 31 * sum + tg_checksum(shape->dim, (size_t)shape->ndim * sizeof shape->dim[0]);
    }
    for (int64_t i = 0; i < tg_archive_meta_count(desc->meta); i++) {
        const char *pair[2] = {tg_archive_meta_key(desc->meta, i),
                               tg_archive_meta_value(desc->meta, i)};
        sum = 31 * sum + tg_checksum(pair[0], strlen(pair[0]));
        sum = 31 * sum + tg_checksum(pair[1], strlen(pair[1]));
    }
    return sum;
}

/* The file open at `fd`, for reading. */
static tg_status source_of(const tg_sample_file *s, const char *path, int fd, tg_source *out) {
    struct stat info;
    if (fd < 0 || fstat(fd, &info) != 0) {
        return tg_fail_system(s->ctx, path, "open", errno);
    }
    *out = (tg_source){.ctx = s->ctx, .label = path, .fd = fd, .size = (uint64_t)info.st_size};
    return TG_OK;
}

/* Opens the files of an interrupted run; false if they are missing or damaged. */
static bool open_unfinished(tg_sample_file *s, tg_source *journal, tg_source *part,
                            tg_journal_header *found) {
    s->part_fd = open(s->part, O_RDWR | O_CLOEXEC);
    return source_of(s, s->part, s->part_fd, part) == TG_OK &&
           source_of(s, s->journal, s->journal_fd, journal) == TG_OK &&
           tg_journal_read(journal, part, found);
}

/* Creates an HDF5 file with space for all samples, and an empty journal. */
static tg_status start(tg_sample_file *s, const tg_sample_file_desc *desc) {
    tg_h5_space spaces[TG_SAMPLE_PARTS];
    tg_source part;
    const size_t sums = (size_t)s->samples * TG_SAMPLE_PARTS * sizeof *s->sums;
    const int parts = desc->name[TG_SAMPLE_Y] ? TG_SAMPLE_PARTS : 1;
    for (int p = 0; p < parts; p++) {
        spaces[p] = (tg_h5_space){desc->name[p], desc->dtype, desc->shape[p], 0};
    }
    if (ftruncate(s->journal_fd, 0) != 0) {
        return tg_fail_system(s->ctx, s->journal, "empty", errno);
    }
    TG_CALL(tg_h5_write_spaces(s->ctx, s->part, desc->meta, spaces, parts));
    if (s->part_fd >= 0) {
        close(s->part_fd); /* of the previous file */
    }
    s->part_fd = open(s->part, O_RDWR | O_CLOEXEC);
    TG_CALL(source_of(s, s->part, s->part_fd, &part));
    for (int p = 0; p < TG_SAMPLE_PARTS; p++) { /* a missing y begins after x */
        s->head.offset[p] =
            p < parts ? spaces[p].offset : s->head.offset[0] + s->head.row[0] * s->head.samples;
    }
    tg_journal_seal(&part, &s->head);
    memset(s->sums, 0, sums);
    errno = tg_file_write_at(s->journal_fd, 0, &s->head, sizeof s->head);
    errno = errno ? errno : tg_file_write_at(s->journal_fd, sizeof s->head, s->sums, sums);
    return errno ? tg_fail_system(s->ctx, s->journal, "write", errno) : TG_OK;
}

/* Continues the two files of an unfinished run, or creates them. */
static tg_status open_files(tg_sample_file *s, const tg_sample_file_desc *desc) {
    bool same = false;
    int64_t fewer = 0;
    tg_source journal, part;
    tg_journal_header found;
    TG_CALL(TG_NEW(s->ctx, TG_MEM_OTHER, s->sums, s->samples * TG_SAMPLE_PARTS));
    TG_CALL(lock(s));
    const bool whole = open_unfinished(s, &journal, &part, &found);
    if (whole && found.fingerprint != s->head.fingerprint) {
        TG_CALL(check_existing(s, desc, s->part, &same, &fewer));
    }
    if (fewer > 0 && !desc->overwrite) {
        return tg_fail(s->ctx, TG_E_FORMAT,
                       "%s: it is being made with %" PRId64 " samples; finish that first", s->path,
                       fewer);
    }
    const tg_status status = whole && tg_journal_continues(&found, &s->head)
                                 ? tg_journal_read_sums(&journal, &part, &found, s->sums)
                                 : TG_E_FORMAT;
    if (status == TG_OK) {
        s->head = found;
    }
    return status == TG_OK || status == TG_E_MEMORY ? status : start(s, desc);
}

/* Copies the samples of a smaller file: a sample does not depend on their number. */
static tg_status copy_samples(tg_sample_file *s, const tg_sample_file_desc *desc, int64_t samples) {
    const uint64_t *bytes = s->head.row;
    unsigned char *row = NULL;
    tg_h5 *file = NULL;
    tg_status status = TG_OK;
    TG_TRY(TG_ALLOC(s->ctx, TG_MEM_WORKSPACE, row, bytes[0] > bytes[1] ? bytes[0] : bytes[1]));
    TG_TRY(tg_h5_open(s->ctx, s->path, &file));
    for (int64_t i = 0; i < samples * TG_SAMPLE_PARTS; i++) {
        const tg_sample_part part = (tg_sample_part)(i % TG_SAMPLE_PARTS);
        const int64_t sample = i / TG_SAMPLE_PARTS;
        if (!tg_sample_file_has(s, part, sample)) {
            TG_TRY(tg_h5_read_range(file, desc->name[part], sample, 1, desc->dtype, row));
            TG_TRY(tg_sample_file_put(s->ctx, s, part, sample, row));
        }
    }
fail:
    tg_h5_close(&file);
    tg_mem_free(s->ctx, row);
    return status;
}

tg_status tg_sample_file_open(tg_context *ctx, const tg_sample_file_desc *desc,
                              tg_sample_file **out) {
    tg_status status = TG_OK;
    tg_sample_file *s = NULL;
    *out = NULL;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, s, 1));
    s->ctx = ctx;
    s->part_fd = s->journal_fd = -1;
    s->samples = desc->shape[TG_SAMPLE_X].dim[0];
    s->head.fingerprint = fingerprint_of(desc);
    s->head.samples = (uint64_t)s->samples;
    for (int p = 0; p < TG_SAMPLE_PARTS && desc->name[p]; p++) {
        s->head.row[p] =
            (uint64_t)(tg_shape_numel(&desc->shape[p]) / s->samples) * tg_dtype_size(desc->dtype);
    }
    s->path = tg_mem_strdup(ctx, desc->path);
    s->part = tg_mem_printf(ctx, "%s.part", desc->path);
    s->journal = tg_mem_printf(ctx, "%s.journal", desc->path);
    TG_TRY(s->path && s->part && s->journal ? TG_OK : TG_E_MEMORY);
    int64_t fewer = 0;
    TG_TRY(check_existing(s, desc, s->path, &s->complete, &fewer));
    if (!s->complete) {
        TG_TRY(open_files(s, desc));
        TG_TRY(fewer > 0 ? copy_samples(s, desc, fewer) : TG_OK);
    } else if (!exists(s->part)) {
        unlink(s->journal); /* a crash may have left it */
    }
    *out = s;
    return TG_OK;
fail:
    tg_sample_file_close(&s);
    return status;
}

/* ---- use ---- */

bool tg_sample_file_is_complete(const tg_sample_file *s) {
    return s->complete;
}

bool tg_sample_file_has(const tg_sample_file *s, tg_sample_part part, int64_t sample) {
    return s->complete || s->head.row[part] == 0 || s->sums[TG_SAMPLE_PARTS * sample + part] != 0;
}

bool tg_sample_file_has_pair(const tg_sample_file *s, int64_t sample) {
    return tg_sample_file_has(s, TG_SAMPLE_X, sample) && tg_sample_file_has(s, TG_SAMPLE_Y, sample);
}

tg_status tg_sample_file_put(tg_context *ctx, tg_sample_file *s, tg_sample_part part,
                             int64_t sample, const void *data) {
    const size_t bytes = s->head.row[part];
    if (s->complete || bytes == 0) {
        return TG_OK;
    }
    const int64_t number = TG_SAMPLE_PARTS * sample + part;
    errno =
        tg_file_write_at(s->part_fd, s->head.offset[part] + (uint64_t)sample * bytes, data, bytes);
    if (errno != 0) {
        return tg_fail_system(ctx, s->part, "write", errno);
    }
    s->sums[number] = tg_checksum(data, bytes);
    errno = tg_file_write_at(s->journal_fd, sizeof s->head + (uint64_t)number * sizeof *s->sums,
                             &s->sums[number], sizeof *s->sums);
    return errno == 0 ? TG_OK : tg_fail_system(ctx, s->journal, "write", errno);
}

tg_status tg_sample_file_finish(tg_sample_file *s) {
    if (s->complete) {
        return TG_OK;
    }
    for (int64_t i = 0; i < s->samples; i++) {
        if (!tg_sample_file_has_pair(s, i)) {
            return tg_fail(s->ctx, TG_E_ARGUMENT, "%s: sample %" PRId64 " is missing", s->path, i);
        }
    }
    errno = tg_file_sync(s->part_fd);
    if (errno != 0) {
        return tg_fail_system(s->ctx, s->part, "sync", errno);
    }
    if (rename(s->part, s->path) != 0) {
        return tg_fail_system(s->ctx, s->part, "rename", errno);
    }
    s->complete = true;
    unlink(s->journal); /* a journal without its file is useless: the next run starts anew */
    return tg_file_sync_folder(s->ctx, s->path);
}
