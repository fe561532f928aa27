/* One context for all tests of a group, and if asked for a backend: begin makes them, end removes
 * the folder of files (files.h) and fails if anything but the context itself is left in its ledger.
 */
#ifndef TG_TESTS_SUPPORT_CONTEXT_H
#define TG_TESTS_SUPPORT_CONTEXT_H

#include "backend/backend.h"

extern tg_context *ctx;
extern tg_backend *be;

int test_context_begin(void **state);
int test_backend_begin(void **state); /* with be, the backend cpu */
int test_context_end(void **state);

#endif
