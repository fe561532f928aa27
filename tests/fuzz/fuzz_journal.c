/* What an interrupted `tgrad generate` left, damaged: byte 0 says what is damaged and whether the
 * checksum of the journal's header is made good again, byte 1 how much of the file is left, then
 * triples of place (2 bytes) and value. What is found is refused, or the work goes on from it to
 * the file that an undisturbed run makes, byte for byte. */
#include <string.h>

#include "fuzz.h"
#include "pde/sample_file.h"

enum { SAMPLES = 3, VALUES = 4, MOST = 1 << 16, SUM_AT = 8, SUMMED_FROM = 16 };
enum { HEADER = sizeof(tg_journal_header) };
enum { DAMAGES_PART = 1, SEALS = 2, CUTS = 4 };

typedef struct image {
    unsigned char bytes[MOST];
    size_t size;
} image;

static image half_part, half_journal, whole;

static void read_image(const char *path, image *out) {
    FILE *file = fopen(path, "rb");
    fuzz_expect(file != NULL);
    out->size = fread(out->bytes, 1, MOST, file);
    fuzz_expect(out->size < MOST && fclose(file) == 0);
}

static void value(int sample, int part, float out[VALUES]) {
    const float values[VALUES] = {(float)sample, (float)part, 0.5f, -1.0f};
    memcpy(out, values, sizeof values);
}

/* Makes the samples from `first` to `end`. */
static void make(tg_sample_file *file, int first, int end) {
    float values[VALUES];
    for (int i = first; i < end; i++) {
        for (int p = 0; p < TG_SAMPLE_PARTS; p++) {
            value(i, p, values);
            fuzz_expect(tg_sample_file_put(fuzz_context(), file, (tg_sample_part)p, i, values) ==
                        TG_OK);
        }
    }
}

/* An interrupted run, and the file it makes at last. */
static void prepare(void) {
    char target[300], part[320], journal[320];
    const tg_shape shape = {.ndim = 2, .dim = {SAMPLES, VALUES}};
    tg_sample_file_desc desc = {
        .path = target, .dtype = TG_F32, .name = {"x", "y"}, .shape = {shape, shape}};
    tg_archive *meta = NULL;
    tg_sample_file *file = NULL;
    snprintf(target, sizeof target, "%s/made.h5", fuzz_folder());
    snprintf(part, sizeof part, "%s.part", target);
    snprintf(journal, sizeof journal, "%s.journal", target);
    fuzz_expect(tg_archive_create(fuzz_context(), &meta) == TG_OK);
    fuzz_expect(tg_archive_set_meta(meta, "equation", "none") == TG_OK);
    desc.meta = meta;
    fuzz_expect(tg_sample_file_open(fuzz_context(), &desc, &file) == TG_OK);
    make(file, 0, SAMPLES - 1);
    read_image(part, &half_part);
    read_image(journal, &half_journal);
    make(file, SAMPLES - 1, SAMPLES);
    fuzz_expect(tg_sample_file_finish(file) == TG_OK);
    tg_sample_file_close(&file);
    read_image(target, &whole);
    tg_archive_destroy(&meta);
}

static void seal(image *damaged) {
    if (damaged->size >= HEADER) {
        const uint64_t sum = tg_checksum(damaged->bytes + SUMMED_FROM, HEADER - SUMMED_FROM);
        memcpy(damaged->bytes + SUM_AT, &sum, sizeof sum);
    }
}

/* Goes on from what is there, as tg_sample_file_open and its user do. */
static void take_up(const image *journal, const image *part) {
    static image made;
    uint64_t sums[SAMPLES * TG_SAMPLE_PARTS];
    tg_journal_header wanted, found;
    memcpy(&wanted, half_journal.bytes, HEADER);
    const tg_source journals =
        tg_source_of_memory(fuzz_context(), "journal", journal->bytes, journal->size);
    const tg_source parts = tg_source_of_memory(fuzz_context(), "part", part->bytes, part->size);
    if (!tg_journal_read(&journals, &parts, &found) || !tg_journal_continues(&found, &wanted) ||
        tg_journal_read_sums(&journals, &parts, &found, sums) != TG_OK) {
        return;
    }
    memcpy(made.bytes, part->bytes, part->size);
    for (int i = 0; i < SAMPLES * TG_SAMPLE_PARTS; i++) {
        const int p = i % TG_SAMPLE_PARTS;
        const uint64_t at = found.offset[p] + found.row[p] * (uint64_t)(i / TG_SAMPLE_PARTS);
        float values[VALUES];
        value(i / TG_SAMPLE_PARTS, p, values);
        fuzz_expect(found.row[p] == sizeof values && at + sizeof values <= part->size);
        if (sums[i] == 0) {
            memcpy(made.bytes + at, values, sizeof values);
        }
    }
    fuzz_expect(part->size == whole.size && memcmp(made.bytes, whole.bytes, whole.size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static image damaged;
    if (whole.size == 0) {
        prepare();
    }
    if (size < 2) {
        return 0;
    }
    const int how = bytes[0];
    const image *from = how & DAMAGES_PART ? &half_part : &half_journal;
    memcpy(damaged.bytes, from->bytes, from->size);
    damaged.size = from->size;
    for (size_t i = 2; i + 3 <= size; i += 3) {
        damaged.bytes[(bytes[i] | (size_t)bytes[i + 1] << 8) % damaged.size] = bytes[i + 2];
    }
    if (how & CUTS) {
        damaged.size = damaged.size * bytes[1] / 256;
    }
    if ((how & SEALS) && !(how & DAMAGES_PART)) {
        seal(&damaged);
    }
    if (how & DAMAGES_PART) {
        take_up(&half_journal, &damaged);
    } else {
        take_up(&damaged, &half_part);
    }
    fuzz_expect_no_leak();
    return 0;
}
