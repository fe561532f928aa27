/* Any bytes as an npy file: an error, or a tensor whose every element can be read; no leak. */
#include "tgrad/io.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size) {
    static tg_context *ctx;
    const tg_context_config config = {.threads = 1};
    if (!ctx && tg_context_create(&config, &ctx) != TG_OK) {
        __builtin_trap();
    }
    tg_tensor tensor = {0};
    tg_tensor_stats stats;
    if (tg_npy_parse(ctx, "fuzz", bytes, size, &tensor) == TG_OK &&
        tg_tensor_get_stats(ctx, &tensor, &stats) != TG_OK) {
        __builtin_trap();
    }
    tg_tensor_destroy(&tensor);
    if (tg_context_memory(ctx, TG_HOST).blocks != 1) { /* the context itself */
        __builtin_trap();
    }
    return 0;
}
