/* Any bytes as a zip file, or else as the pickle of a torch file: an error, or tensors whose every
 * element can be read; no leak. */
#include "../support/raw_files.h"
#include "../support/zips.h"
#include "fuzz.h"

static void read_all(const void *bytes, size_t size) {
    tg_archive *archive = NULL;
    (void)!raw_parse(fuzz_context(), TG_FILE_TORCH, "fuzz", bytes, size, &archive);
    tg_archive_destroy(&archive);
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
