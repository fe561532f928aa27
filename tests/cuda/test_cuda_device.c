/* The device slots of the CUDA backend: what the probe says, memory in the ledger, and data to the
 * GPU and back. The backend cannot be selected yet (its arithmetic is missing), so the table is
 * filled and opened by hand. Tests that need a GPU are skipped where there is none. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "backend/backend.h"

static tg_context *ctx;
static tg_backend_ops ops;
static tg_backend be;

static int open_backend(void **state) {
    (void)state;
    if (tg_context_create(NULL, &ctx) != TG_OK) {
        return -1;
    }
    tg_backend_fill_cuda(&ops);
    be = (tg_backend){.ops = &ops, .ctx = ctx, .threads = 1};
    return 0;
}

static int close_backend(void **state) {
    (void)state;
    if (be.state) {
        ops.close(&be);
    }
    tg_context_destroy(&ctx);
    return 0;
}

static void need_gpu(void) {
    tg_backend_info info = {0};
    ops.probe(&info);
    if (info.device[0] == '\0') {
        skip();
    }
    assert_int_equal(ops.open(&be), TG_OK);
}

/* The best backend where there is a GPU; elsewhere listed with its reason, and never chosen. */
static void test_choice(void **state) {
    (void)state;
    tg_backend_info info = {0};
    ops.probe(&info);
    assert_non_null(strstr(info.libraries, "cuBLAS"));
    assert_int_equal(info.available, info.device[0] != '\0');
    if (!info.available) {
        assert_true(strlen(info.reason) > 0);
        assert_int_equal(tg_backend_select(ctx, "cuda"), TG_E_BACKEND);
        assert_non_null(strstr(tg_context_error(ctx), info.reason));
    }
    assert_int_equal(tg_backend_select(ctx, NULL), TG_OK);
    assert_string_equal(tg_backend_name(ctx), info.available ? "cuda" : "cpu");
}

static void test_round_trip(void **state) {
    (void)state;
    need_gpu();
    enum { N = 65537 };
    static unsigned char sent[N], got[N + 2];
    for (int i = 0; i < N; i++) {
        sent[i] = (unsigned char)(i * 31 + 7);
    }
    memset(got, 0xA5, sizeof got);
    const size_t before = tg_context_memory(ctx, TG_DEVICE).current_total;
    void *d_a = ops.alloc(&be, TG_MEM_WEIGHTS, N);
    void *d_b = ops.alloc(&be, TG_MEM_DATA, N);
    assert_non_null(d_a);
    assert_non_null(d_b);
    assert_int_equal(ops.upload(&be, d_a, sent, N), TG_OK);
    assert_int_equal(ops.copy(&be, d_b, d_a, N), TG_OK);
    assert_int_equal(ops.download(&be, got + 1, d_b, N), TG_OK);
    assert_int_equal(ops.synchronize(&be), TG_OK);
    assert_memory_equal(got + 1, sent, N);
    assert_int_equal(got[0], 0xA5);
    assert_int_equal(got[N + 1], 0xA5);

    tg_mem_usage usage = tg_context_memory(ctx, TG_DEVICE);
    assert_int_equal(usage.current[TG_MEM_WEIGHTS], N);
    assert_int_equal(usage.current_total, before + 2 * N);
    ops.release(&be, d_a);
    ops.release(&be, d_b);
    ops.release(&be, NULL);
    usage = tg_context_memory(ctx, TG_DEVICE);
    assert_int_equal(usage.current_total, before);
    assert_int_equal(usage.peak_total, before + 2 * N);
}

static void test_empty_block(void **state) {
    (void)state;
    need_gpu();
    void *d_none = ops.alloc(&be, TG_MEM_OTHER, 0);
    assert_non_null(d_none);
    assert_int_equal(ops.upload(&be, d_none, NULL, 0), TG_OK);
    ops.release(&be, d_none);
}

static void test_out_of_memory(void **state) {
    (void)state;
    need_gpu();
    const size_t before = tg_context_memory(ctx, TG_DEVICE).current_total;
    assert_null(ops.alloc(&be, TG_MEM_ACTIVATIONS, (size_t)1 << 50));
    assert_non_null(strstr(tg_context_error(ctx), "activations"));
    void *d_small = ops.alloc(&be, TG_MEM_OTHER, 16); /* the failure left no trace */
    assert_non_null(d_small);
    ops.release(&be, d_small);
    assert_int_equal(tg_context_memory(ctx, TG_DEVICE).current_total, before);
}

/* A wrong pointer is an error of the call, with a sentence. */
static void test_bad_pointer(void **state) {
    (void)state;
    need_gpu();
    char host[8];
    assert_int_equal(ops.download(&be, host, (const void *)(uintptr_t)8, sizeof host),
                     TG_E_BACKEND);
    assert_non_null(strstr(tg_context_error(ctx), "copying from the GPU"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_choice, open_backend, close_backend),
        cmocka_unit_test_setup_teardown(test_round_trip, open_backend, close_backend),
        cmocka_unit_test_setup_teardown(test_empty_block, open_backend, close_backend),
        cmocka_unit_test_setup_teardown(test_out_of_memory, open_backend, close_backend),
        cmocka_unit_test_setup_teardown(test_bad_pointer, open_backend, close_backend),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
