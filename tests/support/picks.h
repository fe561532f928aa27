/* Parts of test programs, for slow tools: with TEST_PICKS=file in the environment only the parts
 * that a line of the file names, "program:test:number", are run. TEST_PART has the name of the
 * current part, for tests/preload/kernels.c. */
#ifndef TEST_SUPPORT_PICKS_H
#define TEST_SUPPORT_PICKS_H

#include <stdbool.h>

/* Whether any part of this test is to be run: all, unless there are picks. */
bool t_runs_test(const char *test);
/* Whether this part is, which then begins. */
bool t_runs_part(const char *test, int number);

#endif
