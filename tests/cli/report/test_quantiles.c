/* Medians and quantiles that people read, against numbers worked out by hand: even and odd counts,
 * few values, equal ones, complex ones. */
#include <math.h>

#include "common/statistics.h"
#include "support/cmocka.h"

#define near(a, b) assert_true(fabs((a) - (b)) <= 1e-12 * fabs(b))

static void test_median(void **state) {
    (void)state;
    double one[] = {7.0}, two[] = {9.0, 4.0}, three[] = {8.0, 1.0, 5.0};
    double four[] = {80.0, 10.0, 40.0, 20.0}, six[] = {3.0, 1.0, 3.0, 3.0, 2.0, 9.0};
    near(cli_median(one, 1), 7.0);
    near(cli_median(two, 2), 6.5);
    near(cli_median(three, 3), 5.0);
    near(cli_median(four, 4), 30.0);
    near(cli_median(six, 6), 3.0);
    assert_true(isnan(cli_median(one, 0)));
}

/* Quantile q of n values stands at q (n - 1): of 4 the quartiles lie between neighbours. */
static void test_quantiles(void **state) {
    (void)state;
    float numbers[] = {-4.0F, 1.0F, -2.0F, 8.0F};
    float pairs[] = {3.0F, 4.0F, 0.0F, -1.0F, 6.0F, 8.0F}; /* moduli 5, 1, 10 */
    double room[4];
    tg_context *ctx = NULL;
    tg_tensor tensor;
    const tg_shape four = {.ndim = 1, .dim = {4}}, three = {.ndim = 1, .dim = {3}};
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &four, numbers, &tensor), TG_OK);
    cli_quantiles s = cli_quantiles_of(&tensor, room);
    near(s.min, 1.0);
    near(s.q1, 1.75);
    near(s.median, 3.0);
    near(s.q3, 5.0);
    near(s.p99, 4.0 + 0.97 * 4.0);
    near(s.max, 8.0);
    near(s.norm, sqrt(85.0));
    assert_int_equal(tg_tensor_wrap(ctx, TG_C64, &three, pairs, &tensor), TG_OK);
    s = cli_quantiles_of(&tensor, room);
    near(s.min, 1.0);
    near(s.q1, 3.0);
    near(s.median, 5.0);
    near(s.q3, 7.5);
    near(s.max, 10.0);
    near(s.norm, sqrt(126.0));
    tg_context_destroy(&ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_median),
                                       cmocka_unit_test(test_quantiles)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
