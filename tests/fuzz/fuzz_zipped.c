/* Any bytes as a zip file, or else as the pickle of a torch file: an error, or tensors whose every
 * element can be read; no leak. */
#include "../support/zips.h"
#include "fuzz.h"
#include "io/zip.h"

static void read_all(const void *bytes, size_t size) {
    tg_context *ctx = fuzz_context();
    const tg_source source = tg_source_of_memory(ctx, "fuzz", bytes, size);
    tg_zipped file = {0};
    tg_archive *archive = NULL;
    if (tg_zipped_open(&source, &file) == TG_OK && tg_zipped_read_all(&file, &archive) == TG_OK) {
        for (int64_t i = 0; i < tg_archive_count(archive); i++) {
            tg_tensor_stats stats;
            fuzz_expect(tg_tensor_get_stats(ctx, tg_archive_tensor(archive, i), &stats) == TG_OK);
        }
    }
    tg_archive_destroy(&archive);
    tg_zipped_close(&file);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static unsigned char room[1 << 16], elements[64];
    if (size > 2 && memcmp(bytes, "PK", 2) == 0) {
        read_all(bytes, size);
    } else if (size < sizeof room / 2) {
        test_zip zip = {.bytes = room};
        zip_add(&zip, "a/data.pkl", bytes, size);
        zip_add(&zip, "a/data/0", elements, sizeof elements);
        zip_end(&zip);
        read_all(room, zip.size);
    }
    fuzz_expect_no_leak();
    return 0;
}
