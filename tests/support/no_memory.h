/* Calls that run out of memory: the first allocation fails, then the second, and so on.
 *
 *     test_walk walk = {.ctx = ctx};
 *     while (test_walk_next(&walk)) {
 *         test_walk_called(&walk, tg_thing_create(ctx, &thing));
 *         tg_thing_destroy(&thing);
 *     }
 *
 * Each time the call must say TG_E_MEMORY, and no block may be left when the next turn begins. The
 * walk ends when the call has succeeded without the allocation that was to fail. */
#ifndef TG_TESTS_SUPPORT_NO_MEMORY_H
#define TG_TESTS_SUPPORT_NO_MEMORY_H

#include "backend/backend.h"

typedef struct test_walk {
    tg_context *ctx;
    long n;        /* the allocation that fails, from 1 on */
    size_t blocks; /* of the context before the first turn */
    bool is_over;
} test_walk;

bool test_walk_next(test_walk *walk);
/* Takes and returns the status of the call of this turn; no allocation fails from here on. */
tg_status test_walk_called(test_walk *walk, tg_status status);

#endif
