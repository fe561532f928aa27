/* What the fuzz targets share. A broken promise is a trap, which libFuzzer reports as a crash. */
#ifndef TEST_FUZZ_H
#define TEST_FUZZ_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tgrad/tgrad.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

/* Freed memory is kept from use for a few MiB, which is several inputs, not for 256: new pages cost
 * more than most inputs. */
const char *__asan_default_options(void);
__attribute__((used)) const char *__asan_default_options(void) {
    return "quarantine_size_mb=4";
}

static inline void fuzz_expect(bool holds) {
    if (!holds) {
        __builtin_trap();
    }
}

/* One context for all runs. */
static inline tg_context *fuzz_context(void) {
    static tg_context *ctx;
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 1};
    fuzz_expect(ctx || tg_context_create(&config, &ctx) == TG_OK);
    return ctx;
}

/* A folder of this process, in memory where there is such a place. It stays when the process ends:
 * scripts/fuzz sets TMPDIR to one that it removes. */
static inline const char *fuzz_folder(void) {
    static char folder[256];
    if (!folder[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(folder, sizeof folder, "%s/tgrad-fuzz-XXXXXX", base && *base ? base : "/tmp");
        fuzz_expect(mkdtemp(folder) != NULL);
    }
    return folder;
}

static inline void fuzz_write(const char *path, const void *bytes, size_t size) {
    FILE *file = fopen(path, "wb");
    fuzz_expect(file && fwrite(bytes, 1, size, file) == size && fclose(file) == 0);
}

/* The ledger holds as many blocks as it did after the first run. */
static inline void fuzz_expect_no_leak(void) {
    static size_t blocks;
    const size_t now = tg_context_memory(fuzz_context(), TG_HOST).blocks;
    blocks = blocks ? blocks : now;
    fuzz_expect(now == blocks);
}

#endif
