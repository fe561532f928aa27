#define _GNU_SOURCE
#include "support/cmocka.h"

#include <errno.h>
#include <stdlib.h>

enum { MAX_TESTS = 64 };
static struct CMUnitTest tests[MAX_TESTS];
static size_t count;

void t_list_test(const char *name, CMUnitTestFunction test, CMFixtureFunction begin,
                 CMFixtureFunction end) {
    if (count == MAX_TESTS) {
        abort();
    }
    tests[count++] = (struct CMUnitTest){name, test, begin, end, NULL};
}

int t_run_tests(CMFixtureFunction begin, CMFixtureFunction end) {
    return _cmocka_run_group_tests(program_invocation_short_name, tests, count, begin, end);
}

/* For programs without a `main`. */
__attribute__((weak)) int main(void) {
    return t_run_tests(NULL, NULL);
}
