/* cmocka, the headers that must precede it, and tests that register themselves:
 *
 *     TEST(sums_are_exact) {
 *         assert_int_equal(..);
 *     }
 *
 * declares a test of its program. They run in the order of the file; a program without
 * a `main` runs them all (cmocka.c). */
#ifndef TEST_SUPPORT_CMOCKA_H
#define TEST_SUPPORT_CMOCKA_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#define TEST(name) TEST_WITH(name, NULL, NULL)

/* A test between functions that prepare and clean up; NULL: none. */
#define TEST_WITH(name, begin, end)                                                                \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void list_##name(void) {                                   \
        t_list_test(#name, name, begin, end);                                                      \
    }                                                                                              \
    static void name(__attribute__((unused)) void **state)

void t_list_test(const char *name, CMUnitTestFunction test, CMFixtureFunction begin,
                 CMFixtureFunction end);

/* Runs the tests of this program between functions for all of them; returns how many fail. */
int t_run_tests(CMFixtureFunction begin, CMFixtureFunction end);

#endif
