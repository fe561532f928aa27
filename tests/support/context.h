/* One context for all tests of a group: begin makes it, end removes the folder of files (files.h)
 * and fails if anything but the context itself is left in its ledger. */
#ifndef TG_TESTS_SUPPORT_CONTEXT_H
#define TG_TESTS_SUPPORT_CONTEXT_H

#include "tgrad/context.h"

extern tg_context *ctx;

int test_context_begin(void **state);
int test_context_end(void **state);

#endif
