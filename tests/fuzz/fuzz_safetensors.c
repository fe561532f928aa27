/* Any bytes as a safetensors file: an error, or tensors whose every element can be read; no leak.
 */
#include "../support/raw_files.h"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    tg_archive *archive = NULL;
    (void)!raw_parse(fuzz_context(), TG_FILE_SAFETENSORS, "fuzz", bytes, size, &archive);
    tg_archive_destroy(&archive);
    fuzz_expect_no_leak();
    return 0;
}
