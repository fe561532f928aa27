/* Burgers' equation against exact solutions: Cole-Hopf, order in time, conservation. */
#include <math.h>
#include <string.h>

#include "pde/fields.h"
#include "pde/solvers.h"
#include "support/cmocka.h"
#include "support/context.h"

/* Of the solvers of a test. */
static tg_pool *pool(void) {
    static tg_pool only;
    only.ctx = ctx;
    return &only;
}

#define PI 3.14159265358979323846

/* Cole-Hopf: u = drift - 2 nu phi_x / phi in the moving frame, phi = 1 + sum a_k e^{-nu (2 pi k)^2
 * t} cos(2 pi k x), which solves the heat equation and is positive. */
static double exact(double x, double t, double nu, double drift) {
    static const double a[3] = {0.6, 0.2, -0.1};
    double phi = 1.0, slope = 0.0;
    for (int i = 0; i < 3; i++) {
        const double wave = 2.0 * PI * (i + 1);
        const double decayed = a[i] * exp(-nu * wave * wave * t);
        phi += decayed * cos(wave * (x - drift * t));
        slope -= decayed * wave * sin(wave * (x - drift * t));
    }
    return drift - 2.0 * nu * slope / phi;
}

/* Fourier coefficients k = 0 .. modes of the exact solution, by the trapezoidal rule. */
static void exact_spectrum(double t, double nu, double drift, int64_t modes, double *spectrum) {
    enum { POINTS = 512 };
    memset(spectrum, 0, 2 * (size_t)(modes + 1) * sizeof *spectrum);
    for (int i = 0; i < POINTS; i++) {
        const double u = exact((double)i / POINTS, t, nu, drift) / POINTS;
        for (int64_t k = 0; k <= modes; k++) {
            const double angle = 2.0 * PI * (double)(k * i % POINTS) / POINTS;
            spectrum[2 * k] += u * cos(angle);
            spectrum[2 * k + 1] -= u * sin(angle);
        }
    }
}

/* Largest error of a coefficient at t = 1 after `steps`. */
static double cole_hopf_error(int64_t grid, double nu, double drift, int64_t steps) {
    tg_burgers *solver = NULL;
    double worst = 0.0, u[2 * 200], expected[2 * 200];
    assert_int_equal(tg_burgers_create(pool(), be, grid, nu, &solver), TG_OK);
    const int64_t modes = tg_burgers_modes(solver);
    assert_true(modes == (grid - 1) / 3 && modes < 200);
    exact_spectrum(0.0, nu, drift, modes, u);
    exact_spectrum(1.0, nu, drift, modes, expected);
    assert_int_equal(tg_burgers_integrate(solver, 1.0, steps, u), TG_OK);
    for (int64_t i = 0; i < 2 * (modes + 1); i++) {
        worst = fabs(u[i] - expected[i]) <= worst ? worst : fabs(u[i] - expected[i]);
    }
    tg_pool_clear(pool());
    return worst;
}

TEST(test_cole_hopf) {
    assert_true(cole_hopf_error(256, 0.05, 0.0, 400) <= 1e-10);
    assert_true(cole_hopf_error(243, 0.02, 0.7, 800) <= 1e-10); /* odd, and with a mean */
    assert_true(cole_hopf_error(331, 0.05, -0.3, 400) <= 1e-10);
}

TEST(test_order_four) {
    double last = cole_hopf_error(128, 0.05, 0.5, 32);
    for (int64_t steps = 64; steps <= 256; steps *= 2) {
        const double error = cole_hopf_error(128, 0.05, 0.5, steps);
        const double order = log2(last / error);
        assert_true(order >= 3.8 && order <= 4.2);
        last = error;
    }
}

/* Random fields as the generator makes them: the mean stays, energy falls, the maximum does not
 * grow, and four times the resolution in space and time gives the same solution. */
TEST(test_random_fields) {
    const tg_covariance c = {4.0, 5.0, 625.0};
    for (uint32_t s = 0; s < 4; s++) {
        const tg_field_key key = tg_field_key_of(1, 1, TG_SPLIT_TRAIN, s);
        double u[2][2 * 1000];
        for (int fine = 0; fine < 2; fine++) {
            tg_burgers *solver = NULL;
            int64_t steps = 0;
            assert_int_equal(tg_burgers_create(pool(), be, fine ? 2048 : 512, 0.01, &solver),
                             TG_OK);
            const int64_t modes = tg_burgers_modes(solver);
            memset(u[fine], 0, sizeof u[fine]);
            tg_grf_periodic_1d(&key, &c, 170, u[fine]);
            u[fine][0] = 0.125;
            double before = 0.0, after = 0.0;
            for (int64_t i = 0; i < 2 * (modes + 1); i++) {
                before += u[fine][i] * u[fine][i];
            }
            assert_int_equal(tg_burgers_steps(solver, 1.0, u[fine], &steps), TG_OK);
            assert_true(steps >= 100 && steps < 20000);
            assert_int_equal(tg_burgers_integrate(solver, 1.0, steps, u[fine]), TG_OK);
            for (int64_t i = 0; i < 2 * (modes + 1); i++) {
                after += u[fine][i] * u[fine][i];
            }
            assert_true(u[fine][0] == 0.125 && u[fine][1] == 0.0);
            assert_true(after < before);
            tg_pool_clear(pool());
        }
        double apart = 0.0;
        for (int i = 0; i < 2 * 171; i++) {
            apart = fabs(u[0][i] - u[1][i]) <= apart ? apart : fabs(u[0][i] - u[1][i]);
        }
        assert_true(apart <= 1e-9);
    }
}

/* The smallest grids have only a mean, or one mode, and do not change or only decay. */
TEST(test_small_grids) {
    for (int64_t grid = 1; grid <= 5; grid++) {
        tg_burgers *solver = NULL;
        double u[4] = {0.5, 0.0, 0.25, -0.125};
        assert_int_equal(tg_burgers_create(pool(), be, grid, 0.1, &solver), TG_OK);
        assert_int_equal(tg_burgers_modes(solver), grid < 4 ? 0 : 1);
        assert_int_equal(tg_burgers_integrate(solver, 0.3, 30, u), TG_OK);
        assert_true(u[0] == 0.5 && u[1] == 0.0);
        if (grid >= 4) {
            const double size = hypot(0.25, 0.125) * exp(-0.1 * 4.0 * PI * PI * 0.3);
            assert_true(fabs(hypot(u[2], u[3]) - size) <= 1e-6);
        }
        tg_pool_clear(pool());
    }
}

int main(void) {
    return t_run_tests(test_backend_begin, test_context_end);
}
