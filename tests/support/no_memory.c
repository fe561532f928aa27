/* See no_memory.h. */
#include "support/no_memory.h"

#include "support/cmocka.h"

bool test_walk_next(test_walk *walk) {
    const size_t blocks = tg_context_memory(walk->ctx, TG_HOST).blocks;
    if (walk->n == 0) {
        walk->blocks = blocks;
    }
    assert_int_equal(blocks, walk->blocks);
    if (!walk->is_over) {
        assert_true(walk->n < 10000);
        tg_mem_test_fail_at(++walk->n);
    }
    return !walk->is_over;
}

tg_status test_walk_called(test_walk *walk, tg_status status) {
    walk->is_over = tg_mem_test_count() < walk->n;
    tg_mem_test_fail_at(0);
    assert_int_equal(status, walk->is_over ? TG_OK : TG_E_MEMORY);
    return status;
}
