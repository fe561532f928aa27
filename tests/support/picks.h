/* Parts of test programs, for tools that make programs slow: with TEST_PICKS=file in the
 * environment only those parts are run that a line of the file names, "program:test:number". The
 * part that begins is told in TEST_PART, where tests/preload/kernels.c reads it. */
#ifndef TEST_SUPPORT_PICKS_H
#define TEST_SUPPORT_PICKS_H

#include <stdbool.h>

/* Whether any part of this test is to be run: all, unless there are picks. */
bool t_runs_test(const char *test);
/* Whether this part is, which then begins. */
bool t_runs_part(const char *test, int number);

#endif
