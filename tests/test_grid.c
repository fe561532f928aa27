/* Names of grids: as text and back. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tgrad/data.h"

static void test_text(void **state) {
    (void)state;
    static const struct {
        int n_dim;
        int64_t points[TG_DATA_MAX_DIMS];
        const char *text;
    } cases[] = {
        {1, {64}, "64"},
        {2, {16, 16}, "16"},
        {2, {48, 80}, "48x80"},
        {3, {7, 7, 7}, "7"},
        {3, {12, 16, 20}, "12x16x20"},
        {3, {16, 16, 20}, "16x16x20"},
        {3, {INT64_MAX, INT64_MAX, 1}, "9223372036854775807x9223372036854775807x1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[TG_GRID_TEXT];
        assert_string_equal(tg_grid_text(cases[i].n_dim, cases[i].points, text), cases[i].text);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
