/* The registry: every slot of every backend is filled, ref is always there, and the backend of a
 * context is chosen once. */
#include <string.h>

#include "backend/backend.h"
#include "support/cmocka.h"

static int open_context(void **state) {
    tg_context *ctx = NULL;
    tg_status status = tg_context_create(NULL, &ctx);
    *state = ctx;
    return status == TG_OK ? 0 : -1;
}

static int close_context(void **state) {
    tg_context *ctx = *state;
    tg_context_destroy(&ctx);
    return 0;
}

/* Slots that a backend may be without: callers look, and go another way. */
static bool is_optional(size_t offset) {
    return offset == offsetof(tg_backend_ops, block_forward) ||
           offset == offsetof(tg_backend_ops, block_backward);
}

/* From `probe` on the table holds only pointers: a slot that nobody filled is a NULL among them. */
static void every_slot_is_filled(void **state) {
    for (int b = 0; b < tg_backend_count(); b++) {
        tg_backend_info info;
        assert_int_equal(tg_backend_describe(*state, b, &info), TG_OK);
        if (!info.available) {
            print_message("skipped: backend %s is not available here: %s\n", info.name,
                          info.reason);
            continue;
        }
        tg_backend *be = NULL;
        assert_int_equal(tg_backend_open(*state, info.name, &be), TG_OK);
        enum {
            FIRST = offsetof(tg_backend_ops, probe),
            SLOTS = (sizeof(tg_backend_ops) - FIRST) / sizeof(void *)
        };
        void *slots[SLOTS];
        _Static_assert(sizeof slots == sizeof(tg_backend_ops) - FIRST, "pointers only");
        memcpy(slots, (const char *)be->ops + FIRST, sizeof slots);
        for (int i = 0; i < SLOTS; i++) {
            assert_true(slots[i] || is_optional(FIRST + (size_t)i * sizeof(void *)));
        }
        tg_backend_close(&be);
        assert_null(be);
    }
}

static void ref_is_always_available(void **state) {
    tg_backend_info info;
    assert_int_equal(tg_backend_describe(*state, 0, &info), TG_OK);
    assert_string_equal(info.name, "ref");
    assert_true(info.available);
    assert_int_equal(tg_backend_describe(*state, tg_backend_count(), &info), TG_E_ARGUMENT);
    assert_int_equal(tg_backend_describe(*state, -1, &info), TG_E_ARGUMENT);
}

static void a_context_keeps_its_backend(void **state) {
    tg_context *ctx = *state;
    assert_string_equal(tg_backend_name(ctx), "");
    assert_int_equal(tg_backend_select(ctx, "abacus"), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "abacus"));
    assert_int_equal(tg_backend_select(ctx, "ref"), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "ref"), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "cpu"), TG_E_ARGUMENT);
    assert_string_equal(tg_backend_name(ctx), "ref");
    tg_backend *be = NULL;
    assert_int_equal(tg_backend_get(ctx, &be), TG_OK);
    assert_ptr_equal(be, ctx->backend);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_slot_is_filled, open_context, close_context),
        cmocka_unit_test_setup_teardown(ref_is_always_available, open_context, close_context),
        cmocka_unit_test_setup_teardown(a_context_keeps_its_backend, open_context, close_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
