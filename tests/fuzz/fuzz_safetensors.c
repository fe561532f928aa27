/* Any bytes as a safetensors file: an error, or an archive whose every name is found and whose
 * every element can be read; no leak. */
#include "fuzz.h"
#include "io/formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    tg_context *ctx = fuzz_context();
    tg_archive *archive = NULL;
    if (tg_safetensors_parse(ctx, "fuzz", bytes, size, &archive) == TG_OK) {
        for (int64_t i = 0; i < tg_archive_count(archive); i++) {
            const tg_tensor *tensor = tg_archive_find(archive, tg_archive_name(archive, i));
            tg_tensor_stats stats;
            if (tensor != tg_archive_tensor(archive, i) ||
                tg_tensor_get_stats(ctx, tensor, &stats) != TG_OK) {
                __builtin_trap();
            }
        }
    }
    tg_archive_destroy(&archive);
    fuzz_expect_no_leak();
    return 0;
}
