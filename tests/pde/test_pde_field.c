/* Gaussian random fields against their covariance, and trigonometric polynomials on grids. */
#include <math.h>
#include <string.h>

#include "pde/fields.h"
#include "support/cmocka.h"
#include "support/context.h"

/* Of the solvers of a test. */
static tg_pool *pool(void) {
    static tg_pool only;
    only.ctx = ctx;
    return &only;
}

#define PI 3.14159265358979323846

/* The mean of `samples` squares of a normal number is its variance within 6 standard errors. */
static void expect_variance(double sum, int samples, double variance, double freedom) {
    const double error = fabs(sum / samples - variance);
    assert_true(error <= 6.0 * variance * sqrt(2.0 / (freedom * samples)));
}

enum { SAMPLES = 8000 };

/* c_k: E|c_k|^2 = sigma^2 (k^2 + tau^2)^-alpha, half of it in each part, parts independent. */
TEST(test_periodic_1d_variance) {
    enum { MODES = 9 };
    const tg_covariance c = {.alpha = 4.0, .tau = 5.0, .sigma = 625.0};
    double re[MODES + 1] = {0}, im[MODES + 1] = {0}, cross[MODES + 1] = {0};
    for (int s = 0; s < SAMPLES; s++) {
        const tg_field_key key = tg_field_key_of(7, 1, TG_SPLIT_TRAIN, (uint32_t)s);
        double spectrum[2 * (MODES + 1)];
        tg_grf_periodic_1d(&key, &c, MODES, spectrum);
        assert_true(spectrum[0] == 0.0 && spectrum[1] == 0.0);
        for (int k = 1; k <= MODES; k++) {
            re[k] += spectrum[2 * k] * spectrum[2 * k];
            im[k] += spectrum[2 * k + 1] * spectrum[2 * k + 1];
            cross[k] += spectrum[2 * k] * spectrum[2 * k + 1];
        }
    }
    for (int k = 1; k <= MODES; k++) {
        const double variance =
            625.0 * 625.0 * pow(4.0 * PI * PI * k * k + 25.0, -4.0); /* the formula itself */
        expect_variance(re[k], SAMPLES, variance / 2.0, 1.0);
        expect_variance(im[k], SAMPLES, variance / 2.0, 1.0);
        assert_true(fabs(cross[k] / SAMPLES) <= 6.0 * variance / 2.0 / sqrt(SAMPLES));
    }
}

TEST(test_periodic_2d_variance) {
    enum { MODES = 3, ROWS = 2 * MODES + 1, COLUMNS = MODES + 1 };
    const double length = 2.0 * PI;
    const tg_covariance c = {.alpha = 2.5, .tau = 7.0, .sigma = tg_covariance_sigma(2.5, 7.0)};
    double power[ROWS][COLUMNS] = {{0}};
    for (int s = 0; s < SAMPLES; s++) {
        const tg_field_key key = tg_field_key_of(8, 3, TG_SPLIT_TEST, (uint32_t)s);
        double spectrum[ROWS][COLUMNS][2];
        tg_grf_periodic_2d(&key, &c, length, MODES, &spectrum[0][0][0]);
        assert_true(spectrum[MODES][0][0] == 0.0 && spectrum[MODES][0][1] == 0.0);
        for (int i = 0; i < ROWS; i++) {
            /* Real fields: c(-k1, 0) is the conjugate of c(k1, 0). */
            assert_true(spectrum[i][0][0] == spectrum[ROWS - 1 - i][0][0]);
            assert_true(spectrum[i][0][1] == -spectrum[ROWS - 1 - i][0][1]);
            for (int k = 0; k < COLUMNS; k++) {
                power[i][k] +=
                    spectrum[i][k][0] * spectrum[i][k][0] + spectrum[i][k][1] * spectrum[i][k][1];
            }
        }
    }
    for (int i = 0; i < ROWS; i++) {
        for (int k = 0; k < COLUMNS; k++) {
            const double k2 = (double)((i - MODES) * (i - MODES) + k * k);
            if (k2 > 0.0) { /* (2 pi / L)^2 = 1 here, sigma^2 = 7^3 */
                expect_variance(power[i][k], SAMPLES, 343.0 * pow(k2 + 49.0, -2.5), 2.0);
            }
        }
    }
}

TEST(test_neumann_variance) {
    enum { MODES = 5 };
    const tg_covariance c = {.alpha = 2.0, .tau = 3.0, .sigma = tg_covariance_sigma(2.0, 3.0)};
    double power[MODES][MODES] = {{0}};
    for (int s = 0; s < SAMPLES; s++) {
        const tg_field_key key = tg_field_key_of(9, 2, TG_SPLIT_TRAIN, (uint32_t)s);
        double coefficients[MODES][MODES];
        tg_grf_neumann(&key, &c, MODES, &coefficients[0][0]);
        assert_true(coefficients[0][0] == 0.0);
        for (int i = 0; i < MODES * MODES; i++) {
            (&power[0][0])[i] += (&coefficients[0][0])[i] * (&coefficients[0][0])[i];
        }
    }
    for (int i = 0; i < MODES; i++) {
        for (int k = 0; k < MODES; k++) {
            const double norm = (i ? 2.0 : 1.0) * (k ? 2.0 : 1.0);
            const double variance = norm * 9.0 * pow(PI * PI * (i * i + k * k) + 9.0, -2.0);
            if (i + k > 0) {
                expect_variance(power[i][k], SAMPLES, variance, 1.0);
            }
        }
    }
}

/* A finer grid adds modes and changes none; every part of the key changes all. */
TEST(test_keys) {
    const tg_covariance c = {2.0, 3.0, 1.0};
    const tg_field_key keys[] = {
        tg_field_key_of(1, 1, TG_SPLIT_TRAIN, 0), tg_field_key_of(1, 1, TG_SPLIT_TRAIN, 1),
        tg_field_key_of(1, 1, TG_SPLIT_TEST, 0),  tg_field_key_of(1, 2, TG_SPLIT_TRAIN, 0),
        tg_field_key_of(2, 1, TG_SPLIT_TRAIN, 0),
    };
    double coarse[7][4][2], fine[17][9][2], first[5][4];
    for (int i = 0; i < 5; i++) {
        double spectrum[8];
        tg_grf_periodic_1d(&keys[i], &c, 3, spectrum);
        memcpy(first[i], spectrum + 2, sizeof first[i]);
        for (int j = 0; j < i; j++) {
            assert_true(first[i][0] != first[j][0] && first[i][3] != first[j][3]);
        }
        assert_true(tg_field_uniform(&keys[i], 0, 2.0, 3.0) !=
                    tg_field_uniform(&keys[(i + 1) % 5], 0, 2.0, 3.0));
    }
    tg_grf_periodic_2d(&keys[0], &c, 1.0, 3, &coarse[0][0][0]);
    tg_grf_periodic_2d(&keys[0], &c, 1.0, 8, &fine[0][0][0]);
    for (int i = 0; i < 7; i++) {
        assert_memory_equal(coarse[i], fine[i + 5], sizeof coarse[i]);
    }
    double small[3][3], large[5][5];
    tg_grf_neumann(&keys[0], &c, 3, &small[0][0]);
    tg_grf_neumann(&keys[0], &c, 5, &large[0][0]);
    for (int i = 0; i < 3; i++) {
        assert_memory_equal(small[i], large[i], sizeof small[i]);
    }
    for (unsigned i = 0; i < 100; i++) {
        const double u = tg_field_uniform(&keys[0], i, -50.0, 50.0);
        assert_true(u >= -50.0 && u < 50.0);
    }
}

/* ---- polynomials on grids ---- */

static const int64_t sizes[] = {1, 2, 3, 5, 7, 16, 33, 65};

TEST(test_sampler_1d) {
    enum { MODES = 11 };
    double spectrum[2 * (MODES + 1)];
    const tg_field_key key = tg_field_key_of(3, 1, TG_SPLIT_TRAIN, 5);
    tg_grf_periodic_1d(&key, &(tg_covariance){1.0, 1.0, 1.0}, MODES, spectrum);
    spectrum[0] = 0.25; /* a mean */
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        const int64_t points = sizes[n];
        tg_sampler *sampler = NULL;
        float values[65];
        memset(values, 0xff, sizeof values);
        assert_int_equal(tg_sampler_create(pool(), be, 1, points, &sampler), TG_OK);
        assert_int_equal(tg_sampler_real(sampler, MODES, spectrum, values), TG_OK);
        for (int64_t i = 0; i < points; i++) {
            double sum = spectrum[0];
            for (int k = 1; k <= MODES; k++) {
                const double angle = 2.0 * PI * k * (double)i / (double)points;
                sum += 2.0 * (spectrum[2 * k] * cos(angle) - spectrum[2 * k + 1] * sin(angle));
            }
            assert_true(fabs((double)values[i] - sum) <= 1e-6);
        }
        tg_pool_clear(pool());
    }
}

TEST(test_sampler_2d) {
    enum { MODES = 4, COLUMNS = MODES + 1 };
    double spectrum[2 * MODES + 1][COLUMNS][2];
    const tg_field_key key = tg_field_key_of(3, 3, TG_SPLIT_TRAIN, 6);
    tg_grf_periodic_2d(&key, &(tg_covariance){1.0, 1.0, 1.0}, 1.0, MODES, &spectrum[0][0][0]);
    static float values[33 * 33];
    for (size_t n = 0; n + 1 < sizeof sizes / sizeof sizes[0]; n++) {
        const int64_t points = sizes[n];
        tg_sampler *sampler = NULL;
        memset(values, 0xff, sizeof values);
        assert_int_equal(tg_sampler_create(pool(), be, 2, points, &sampler), TG_OK);
        assert_int_equal(tg_sampler_real(sampler, MODES, &spectrum[0][0][0], values), TG_OK);
        for (int64_t p = 0; p < points * points; p++) {
            const double x = (double)(p / points) / (double)points;
            const double y = (double)(p % points) / (double)points;
            double sum = 0.0;
            for (int k1 = -MODES; k1 <= MODES; k1++) {
                for (int k2 = 0; k2 <= MODES; k2++) {
                    const double *c = spectrum[k1 + MODES][k2], a = 2.0 * PI * (k1 * x + k2 * y);
                    sum += (k2 ? 2.0 : 1.0) * (c[0] * cos(a) - c[1] * sin(a));
                }
            }
            assert_true(fabs((double)values[p] - sum) <= 1e-6);
        }
        tg_pool_clear(pool());
    }
}

TEST(test_sampler_complex) {
    enum { COUNT = 9, FIRST = -4 };
    const double spectrum[COUNT][2] = {{1, 2}, {-1, 0.5}, {0, 3},  {2, 2},      {1, -1},
                                       {4, 1}, {0.5, 1},  {-3, 2}, {0.25, 0.75}};
    for (size_t n = 0; n < sizeof sizes / sizeof sizes[0]; n++) {
        const int64_t points = sizes[n];
        tg_sampler *sampler = NULL;
        float values[2 * 65];
        memset(values, 0xff, sizeof values);
        assert_int_equal(tg_sampler_create(pool(), be, 1, points, &sampler), TG_OK);
        assert_int_equal(tg_sampler_complex(sampler, FIRST, COUNT, &spectrum[0][0], values), TG_OK);
        for (int64_t i = 0; i < points; i++) {
            double re = 0.0, im = 0.0;
            for (int k = 0; k < COUNT; k++) {
                const double a = 2.0 * PI * (k + FIRST) * (double)i / (double)points;
                re += spectrum[k][0] * cos(a) - spectrum[k][1] * sin(a);
                im += spectrum[k][0] * sin(a) + spectrum[k][1] * cos(a);
            }
            assert_true(fabs((double)values[2 * i] - re) <= 1e-5);
            assert_true(fabs((double)values[2 * i + 1] - im) <= 1e-5);
        }
        tg_pool_clear(pool());
    }
}

int main(void) {
    return t_run_tests(test_backend_begin, test_context_end);
}
