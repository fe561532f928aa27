/* What an interrupted `tgrad generate` left, damaged: byte 0 says what is damaged and whether the
 * checksum of the journal's header is made good again, byte 1 how much of the file is left, then
 * triples of place (2 bytes) and value. Whatever is found, the work goes on to the file that an
 * undisturbed run makes, byte for byte. */
#include <string.h>
#include <sys/stat.h>

#include "fuzz.h"
#include "pde/sample_file.h"

enum { SAMPLES = 3, VALUES = 4, MOST = 1 << 16, SUM_AT = 8, SUMMED_FROM = 16, HEADER = 80 };
enum { DAMAGES_PART = 1, SEALS = 2, CUTS = 4 };

typedef struct image {
    unsigned char bytes[MOST];
    size_t size;
} image;

static char target[300], part[320], journal[320];
static image half_part, half_journal, whole;
static tg_archive *meta;

static void read_image(const char *path, image *out) {
    FILE *file = fopen(path, "rb");
    fuzz_expect(file != NULL);
    out->size = fread(out->bytes, 1, MOST, file);
    fuzz_expect(out->size < MOST && fclose(file) == 0);
}

static tg_sample_file *open_file(void) {
    const tg_shape shape = {.ndim = 2, .dim = {SAMPLES, VALUES}};
    const tg_sample_file_desc desc = {
        .path = target, .meta = meta, .dtype = TG_F32, .shape = {shape, shape}, .overwrite = true};
    tg_sample_file *file = NULL;
    fuzz_expect(tg_sample_file_open(fuzz_context(), &desc, &file) == TG_OK);
    return file;
}

/* Makes what is missing of the first `count` samples. */
static void make(tg_sample_file *file, int count) {
    for (int i = 0; i < count; i++) {
        for (int p = 0; p < TG_SAMPLE_PARTS; p++) {
            const float values[VALUES] = {(float)i, (float)p, 0.5f, -1.0f};
            if (!tg_sample_file_has(file, (tg_sample_part)p, i)) {
                fuzz_expect(tg_sample_file_put(fuzz_context(), file, (tg_sample_part)p, i,
                                               values) == TG_OK);
            }
        }
    }
}

static void finish(tg_sample_file *file) {
    make(file, SAMPLES);
    fuzz_expect(tg_sample_file_finish(file) == TG_OK);
    tg_sample_file_close(&file);
}

static void prepare(void) {
    snprintf(target, sizeof target, "%s/made.h5", fuzz_folder());
    snprintf(part, sizeof part, "%s.part", target);
    snprintf(journal, sizeof journal, "%s.journal", target);
    fuzz_expect(tg_archive_create(fuzz_context(), &meta) == TG_OK);
    fuzz_expect(tg_archive_set_meta(meta, "equation", "none") == TG_OK);
    tg_sample_file *file = open_file();
    make(file, 2);
    tg_sample_file_close(&file);
    read_image(part, &half_part);
    read_image(journal, &half_journal);
    finish(open_file());
    read_image(target, &whole);
}

static void seal(image *damaged) {
    if (damaged->size >= HEADER) {
        const uint64_t sum = tg_checksum(damaged->bytes + SUMMED_FROM, HEADER - SUMMED_FROM);
        memcpy(damaged->bytes + SUM_AT, &sum, sizeof sum);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static image damaged, result;
    if (!meta) {
        prepare();
    }
    if (size < 2) {
        return 0;
    }
    const int how = bytes[0];
    damaged = how & DAMAGES_PART ? half_part : half_journal;
    for (size_t i = 2; i + 3 <= size; i += 3) {
        damaged.bytes[(bytes[i] | (size_t)bytes[i + 1] << 8) % damaged.size] = bytes[i + 2];
    }
    if (how & CUTS) {
        damaged.size = damaged.size * bytes[1] / 256;
    }
    if ((how & SEALS) && !(how & DAMAGES_PART)) {
        seal(&damaged);
    }
    const image *parts = how & DAMAGES_PART ? &damaged : &half_part;
    const image *journals = how & DAMAGES_PART ? &half_journal : &damaged;
    unlink(target);
    fuzz_write(part, parts->bytes, parts->size);
    fuzz_write(journal, journals->bytes, journals->size);
    finish(open_file());
    read_image(target, &result);
    fuzz_expect(result.size == whole.size && memcmp(result.bytes, whole.bytes, whole.size) == 0);
    fuzz_expect_no_leak();
    return 0;
}
