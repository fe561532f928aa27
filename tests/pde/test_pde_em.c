/* Pulses: each part of the splitting alone is exact, a soliton, the coupled pair of modes, energy,
 * order two. */
#include <math.h>
#include <string.h>

#include "pde/pde.h"
#include "pde/solvers.h"
#include "support/cmocka.h"
#include "support/context.h"

/* Last: it makes `complex` a macro, which is also a name in the backend's table. */
#include <complex.h>

/* Of the solvers of a test. */
static tg_pool *pool(void) {
    static tg_pool only;
    only.ctx = ctx;
    return &only;
}
#undef I
#define I ((double complex)_Complex_I) /* _Complex_I is of type float */

enum { MAX_POINTS = 1024 };

/* The envelope after a guide: a (points) in place. */
static void propagate(int64_t points, double window, const tg_waveguide *guide, int64_t steps,
                      double complex *a) {
    tg_pulse *p = NULL;
    double spectrum[2 * MAX_POINTS];
    assert_int_equal(tg_pulse_create(pool(), be, points, window, &p), TG_OK);
    assert_int_equal(tg_pulse_first(p), -(points / 2));
    assert_int_equal(tg_pulse_analyse(p, (const double *)a, spectrum), TG_OK);
    assert_int_equal(tg_pulse_propagate(p, guide, steps, spectrum), TG_OK);
    assert_int_equal(tg_pulse_synthesise(p, spectrum, (double *)a), TG_OK);
    tg_pool_clear(pool());
}

static double time_of(int64_t i, int64_t points, double window) {
    return window * ((double)i / (double)points - 0.5);
}

static double energy(int64_t points, const double complex *a) {
    double sum = 0.0;
    for (int64_t i = 0; i < points; i++) {
        sum += creal(a[i]) * creal(a[i]) + cimag(a[i]) * cimag(a[i]);
    }
    return sum;
}

/* A pulse without symmetries. */
static void set_pulse(int64_t points, double window, double complex *a) {
    for (int64_t i = 0; i < points; i++) {
        const double t = time_of(i, points, window);
        const double s = t / 40.0, r = (t - 130.0) / 60.0;
        a[i] = 5.0 * exp(-s * s) * cexp(0.7 * I * s * s) + 2.0 * I * exp(-r * r);
    }
}

/* Dispersion alone: a chirped Gaussian spreads, A = (q / (q + i b2 z / T^2))^{1/2} ..., and every
 * frequency keeps its power. */
TEST(test_dispersion) {
    const int64_t sizes[] = {256, 255, 1024};
    for (int s = 0; s < 3; s++) {
        const int64_t points = sizes[s];
        const double window = 2000.0, width = 45.0, chirp = 0.4, b2 = s == 1 ? 17.0 : -20.0;
        const tg_waveguide guide = {.dispersion = b2, .length = 12.0};
        double complex a[MAX_POINTS];
        /* exp(-(1 + i C) t^2 / (2 T^2)) solves the equation with 1 / q = (1 + i C) / T^2 and
         * q(z) = q(0) - i b2 z. */
        const double complex q0 = width * width / (1.0 + chirp * I), q = q0 - I * b2 * 12.0;
        for (int64_t i = 0; i < points; i++) {
            const double t = time_of(i, points, window);
            a[i] = cexp(-t * t / (2.0 * q0));
        }
        propagate(points, window, &guide, s + 1, a);
        for (int64_t i = 0; i < points; i++) {
            const double t = time_of(i, points, window);
            assert_true(cabs(a[i] - csqrt(q0 / q) * cexp(-t * t / (2.0 * q))) <= 1e-10);
        }
    }
}

/* Kerr alone: a phase of each point, in any number of steps. */
TEST(test_kerr) {
    const tg_waveguide guide = {.kerr = 0.03, .length = 7.0};
    double complex a[301], start[301];
    set_pulse(301, 1500.0, start);
    for (int64_t steps = 1; steps <= 5; steps += 2) {
        memcpy(a, start, sizeof a);
        propagate(301, 1500.0, &guide, steps, a);
        for (int i = 0; i < 301; i++) {
            const double power = creal(start[i] * conj(start[i]));
            assert_true(cabs(a[i] - start[i] * cexp(0.03 * 7.0 * power * I)) <= 1e-11);
        }
    }
}

/* Coupling alone without mismatch: cosh(kappa L) A + i sinh(kappa L) A*, in any number of steps. */
TEST(test_coupling) {
    double complex a[64], start[64];
    set_pulse(64, 1000.0, start);
    for (int sign = -1; sign <= 1; sign += 2) {
        const tg_waveguide guide = {.coupling = 0.2 * sign, .length = 9.0};
        for (int64_t steps = 1; steps <= 40; steps *= 3) {
            memcpy(a, start, sizeof a);
            propagate(64, 1000.0, &guide, steps, a);
            for (int i = 0; i < 64; i++) {
                const double complex expected =
                    cosh(1.8) * start[i] + I * sinh(1.8 * sign) * conj(start[i]);
                assert_true(cabs(a[i] - expected) <= 1e-11);
            }
        }
    }
}

/* With mismatch: A = B e^{i dk z / 2}, B' = -i (dk / 2) B + i kappa B*, whose solution is
 * B(z) = C B + (S / s) (-i (dk / 2) B + i kappa B*), s^2 = kappa^2 - dk^2 / 4, C and S the (or
 * the hyperbolic) cosine and sine of s z. The step's phase makes it second order. */
static double mismatch_error(double kappa, double dk, int64_t steps) {
    const tg_waveguide guide = {.coupling = kappa, .mismatch = dk, .length = 4.0};
    double complex a[64], start[64];
    double most = 0.0;
    set_pulse(64, 1000.0, start);
    memcpy(a, start, sizeof a);
    propagate(64, 1000.0, &guide, steps, a);
    const double complex s = csqrt(kappa * kappa - 0.25 * dk * dk);
    for (int i = 0; i < 64; i++) {
        const double complex b = start[i];
        const double complex slope = -0.5 * I * dk * b + I * kappa * conj(b);
        const double complex end = ccosh(4.0 * s) * b + csinh(4.0 * s) / s * slope;
        const double apart = cabs(a[i] - end * cexp(2.0 * I * dk));
        most = apart <= most ? most : apart;
    }
    return most;
}

TEST(test_mismatch) {
    const double pairs[][2] = {{0.5, 0.3}, {0.2, 3.0}, {-0.3, -12.0}};
    for (int i = 0; i < 3; i++) {
        double last = mismatch_error(pairs[i][0], pairs[i][1], 100);
        for (int64_t steps = 200; steps <= 800; steps *= 2) {
            const double error = mismatch_error(pairs[i][0], pairs[i][1], steps);
            const double order = log2(last / error);
            assert_true(order >= 1.95 && order <= 2.05);
            last = error;
        }
        assert_true(last <= 1e-3);
    }
}

/* Dispersion against Kerr: A = sqrt(P) sech(t / T) e^{i gamma P z / 2}, P = -b2 / (gamma T^2),
 * keeps its shape. */
static double soliton_error(int64_t steps) {
    enum { POINTS = 512 };
    const double b2 = -20.0, gamma = 1e-3, width = 30.0, window = 2000.0, length = 30.0;
    const double power = -b2 / (gamma * width * width);
    const tg_waveguide guide = {.dispersion = b2, .kerr = gamma, .length = length};
    double complex a[POINTS];
    double most = 0.0;
    for (int64_t i = 0; i < POINTS; i++) {
        a[i] = sqrt(power) / cosh(time_of(i, POINTS, window) / width);
    }
    propagate(POINTS, window, &guide, steps, a);
    for (int64_t i = 0; i < POINTS; i++) {
        const double complex expected = sqrt(power) / cosh(time_of(i, POINTS, window) / width) *
                                        cexp(0.5 * I * gamma * power * length);
        const double apart = cabs(a[i] - expected) / sqrt(power);
        most = apart <= most ? most : apart;
    }
    return most;
}

TEST(test_soliton) {
    double last = soliton_error(50);
    for (int64_t steps = 100; steps <= 400; steps *= 2) {
        const double error = soliton_error(steps), order = log2(last / error);
        assert_true(order >= 1.9 && order <= 2.1);
        last = error;
    }
    assert_true(last <= 1e-5);
}

/* Without coupling energy is constant. With it, d/dz of the energy is that of the coupling. All
 * parts together are of second order. */
TEST(test_together) {
    enum { POINTS = 256 };
    const double window = 2000.0;
    tg_waveguide guide = {.dispersion = -10.0, .kerr = 0.01, .length = 5.0};
    double complex start[POINTS], a[POINTS], fine[POINTS];
    set_pulse(POINTS, window, start);
    memcpy(a, start, sizeof a);
    propagate(POINTS, window, &guide, 500, a);
    assert_true(fabs(energy(POINTS, a) / energy(POINTS, start) - 1.0) <= 1e-12);
    guide.coupling = 0.2;
    guide.mismatch = 1.5;
    memcpy(fine, start, sizeof fine);
    propagate(POINTS, window, &guide, 6400, fine);
    assert_true(fabs(energy(POINTS, fine) / energy(POINTS, start) - 1.0) > 1e-3);
    double last = 0.0;
    for (int64_t steps = 50; steps <= 400; steps *= 2) {
        double most = 0.0;
        memcpy(a, start, sizeof a);
        propagate(POINTS, window, &guide, steps, a);
        for (int i = 0; i < POINTS; i++) {
            most = cabs(a[i] - fine[i]) <= most ? most : cabs(a[i] - fine[i]);
        }
        if (steps > 50) {
            const double order = log2(last / most);
            assert_true(order >= 1.9 && order <= 2.1);
        }
        last = most;
    }
    /* Short guide: the change of energy is 2 Re(i kappa e^{i dk z} A*^2) summed. */
    const double dz = 1e-5;
    const tg_waveguide brief = {.dispersion = -10.0, .kerr = 0.01, .coupling = 0.2, .length = dz};
    double rate = 0.0;
    for (int i = 0; i < POINTS; i++) {
        rate += 2.0 * creal(0.2 * I * conj(start[i]) * conj(start[i]));
    }
    memcpy(a, start, sizeof a);
    propagate(POINTS, window, &brief, 1, a);
    const double found = (energy(POINTS, a) - energy(POINTS, start)) / dz;
    assert_true(fabs(found - rate) <= 1e-4 * fabs(rate) + 1e-4 * energy(POINTS, start));
}

/* A sample is the pulse after the guide that its constant channels describe: length in mm, mismatch
 * of the period in nm, so that dk = 2 pi (1 / (period + mismatch) - 1 / period). */
TEST(test_samples) {
    enum { N = 256 };
    const tg_pde *em = &tg_pde_em;
    double config[128]; /* room, aligned */
    assert_true(em->config_bytes <= sizeof config);
    memcpy(config, em->defaults, em->config_bytes);
    assert_int_equal(tg_pde_set(ctx, em, config, "grid", "256"), TG_OK);
    assert_int_equal(em->prepare(ctx, config, N), TG_OK);
    const int64_t resolution = N;
    tg_pool own = {.ctx = ctx};
    const tg_pde_setup made = {.pool = &own,
                               .be = be,
                               .batch = 1,
                               .config = config,
                               .views = 1,
                               .resolution = &resolution};
    void *solver = NULL;
    assert_int_equal(tg_pde_open(em, &made, &solver), TG_OK);
    for (uint32_t number = 0; number < 3; number++) {
        static float x[8 * N], y[2 * N];
        const tg_pde_view view = {N, x, y};
        const tg_field_key key = tg_field_key_of(0, em->id, TG_SPLIT_TRAIN, number);
        assert_int_equal(em->sample(solver, &key, &view), TG_OK);
        const double length = (double)x[2 * N], mismatch = (double)x[4 * N];
        const double period = 5e-3; /* mm */
        const tg_waveguide guide = {.dispersion = -10.0,
                                    .kerr = 1e-3,
                                    .coupling = 0.2,
                                    .mismatch = 2.0 * 3.14159265358979323846 *
                                                (1.0 / (period + 1e-6 * mismatch) - 1.0 / period),
                                    .length = length};
        double complex a[N];
        double apart = 0.0, size = 0.0;
        assert_true(fabs(mismatch) > 1.0);
        for (int i = 0; i < N; i++) {
            a[i] = (double)x[2 * i] + (double)x[2 * i + 1] * I;
        }
        propagate(N, 2000.0, &guide, 1 + (int64_t)(length / 0.01), a);
        for (int i = 0; i < N; i++) {
            const double complex found = (double)y[2 * i] + (double)y[2 * i + 1] * I;
            apart = fmax(apart, cabs(a[i] - found));
            size = fmax(size, cabs(found));
        }
        assert_true(apart <= 1e-3 * size);
    }
    tg_pool_clear(&own);
}

int main(void) {
    return t_run_tests(test_backend_begin, test_context_end);
}
