/* Medians and quantiles against numbers worked out by hand; means, standard errors and Welch's
 * t-test against the incomplete beta function of mpmath and a closed form: with two degrees of
 * freedom p = 1 - |t| / sqrt(2 + t^2). */
#include <math.h>

#include "common/statistics.h"
#include "support/cmocka.h"

static void near(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance)) {
        fail_msg("%.15g instead of %.15g", found, expected);
    }
}

static void close_to(double found, double expected) {
    near(found, expected, 1e-12 * fabs(expected));
}

TEST(means) {
    const double value[] = {1.0, (double)NAN, 2.0, 6.0, (double)INFINITY};
    const cli_sample s = cli_sample_of(value, 5);
    assert_int_equal(s.count, 3);
    near(s.mean, 3.0, 1e-15);
    near(s.variance, 7.0, 1e-14);
    near(cli_standard_error(&s), sqrt(7.0 / 3.0), 1e-15);
    const cli_sample one = cli_sample_of(value, 1), none = cli_sample_of(value, 0);
    assert_true(isnan(cli_standard_error(&one)) && isnan(none.mean));
    assert_true(isnan(cli_welch_p(&s, &one)));
}

TEST(equal_variances) {
    /* n = 2 and 2 with equal variances: two degrees of freedom */
    const double gaps[] = {0.0, 0.3, 1.0, 5.0, 40.0};
    for (int i = 0; i < 5; i++) {
        const double x[] = {0.0, 1.0}, y[] = {gaps[i], gaps[i] + 1.0};
        const cli_sample a = cli_sample_of(x, 2), b = cli_sample_of(y, 2);
        const double t = gaps[i] / sqrt(0.5);
        near(cli_welch_p(&a, &b), 1.0 - t / sqrt(2.0 + t * t), 1e-12);
        near(cli_welch_p(&b, &a), cli_welch_p(&a, &b), 1e-15);
    }
    const double same[] = {2.0, 2.0};
    const cli_sample constant = cli_sample_of(same, 2);
    assert_true(isnan(cli_welch_p(&constant, &constant)));
}

TEST(unequal_variances) {
    static const double x[] = {27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1,
                               21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4};
    static const double y[] = {27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0,
                               24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 24.4};
    const cli_sample a = cli_sample_of(x, 15), b = cli_sample_of(y, 15);
    near(cli_welch_p(&a, &b), 0.00807193817219492, 1e-9);
}

TEST(test_median) {
    double one[] = {7.0}, two[] = {9.0, 4.0}, three[] = {8.0, 1.0, 5.0};
    double four[] = {80.0, 10.0, 40.0, 20.0}, six[] = {3.0, 1.0, 3.0, 3.0, 2.0, 9.0};
    close_to(cli_median(one, 1), 7.0);
    close_to(cli_median(two, 2), 6.5);
    close_to(cli_median(three, 3), 5.0);
    close_to(cli_median(four, 4), 30.0);
    close_to(cli_median(six, 6), 3.0);
    assert_true(isnan(cli_median(one, 0)));
}

/* Quantile q of n values stands at q (n - 1): of 4 the quartiles lie between neighbours. */
TEST(test_quantiles) {
    float numbers[] = {-4.0F, 1.0F, -2.0F, 8.0F};
    float pairs[] = {3.0F, 4.0F, 0.0F, -1.0F, 6.0F, 8.0F}; /* moduli 5, 1, 10 */
    double room[4];
    tg_context *ctx = NULL;
    tg_tensor tensor;
    const tg_shape four = {.ndim = 1, .dim = {4}}, three = {.ndim = 1, .dim = {3}};
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &four, numbers, &tensor), TG_OK);
    cli_quantiles s = cli_quantiles_of(&tensor, room);
    close_to(s.at[CLI_MIN], 1.0);
    close_to(s.at[CLI_Q1], 1.75);
    close_to(s.at[CLI_MEDIAN], 3.0);
    close_to(s.at[CLI_Q3], 5.0);
    close_to(s.at[CLI_P99], 4.0 + 0.97 * 4.0);
    close_to(s.at[CLI_MAX], 8.0);
    close_to(s.norm, sqrt(85.0));
    assert_int_equal(tg_tensor_wrap(ctx, TG_C64, &three, pairs, &tensor), TG_OK);
    s = cli_quantiles_of(&tensor, room);
    close_to(s.at[CLI_MIN], 1.0);
    close_to(s.at[CLI_Q1], 3.0);
    close_to(s.at[CLI_MEDIAN], 5.0);
    close_to(s.at[CLI_Q3], 7.5);
    close_to(s.at[CLI_MAX], 10.0);
    close_to(s.norm, sqrt(126.0));
    tg_context_destroy(&ctx);
}
