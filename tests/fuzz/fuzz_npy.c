/* Any bytes as an npy file: an error, or a tensor whose every element can be read; no leak. */
#include "fuzz.h"
#include "io/formats.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    tg_context *ctx = fuzz_context();
    tg_tensor tensor = {0};
    tg_tensor_stats stats;
    if (tg_npy_parse(ctx, "fuzz", bytes, size, &tensor) == TG_OK &&
        tg_tensor_get_stats(ctx, &tensor, &stats) != TG_OK) {
        __builtin_trap();
    }
    tg_tensor_destroy(&tensor);
    fuzz_expect_no_leak();
    return 0;
}
