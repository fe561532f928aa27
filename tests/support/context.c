/* See context.h. */
#include "support/context.h"

#include "support/cmocka.h"
#include "support/files.h"

tg_context *ctx;
tg_backend *be;

int test_context_begin(void **state) {
    (void)state;
    return tg_context_create(NULL, &ctx) == TG_OK ? 0 : -1;
}

int test_backend_begin(void **state) {
    return test_context_begin(state) == 0 && tg_backend_open(ctx, "cpu", &be) == TG_OK ? 0 : -1;
}

int test_context_end(void **state) {
    (void)test_files_end(state);
    tg_backend_close(&be);
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, 1);
    tg_context_destroy(&ctx);
    return 0;
}
