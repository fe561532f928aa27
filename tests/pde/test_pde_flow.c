/* Flow in two dimensions: exact solutions, the nonlinear term by its definition, conserved
 * quantities, order in time. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "pde/fields.h"
#include "pde/vorticity.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/fake_device.h"

/* Of the solvers of a test. */
static tg_pool *pool(void) {
    static tg_pool only;
    only.ctx = ctx;
    return &only;
}

#define PI 3.14159265358979323846

static int setup(void **state) {
    (void)state;
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 2};
    if (tg_context_create(&config, &ctx) != TG_OK || tg_backend_open(ctx, "cpu", &be) != TG_OK) {
        return -1;
    }
    be->threads = 1; /* more only where a test says so: the flows are small */
    return 0;
}

/* With steps chosen by the solver, or as long as the caller advances at once. */
static tg_vorticity *open_with(int64_t grid, double length, double viscosity, bool chooses) {
    const tg_vorticity_desc desc = {
        grid, length, viscosity, chooses ? 0.5 : 1e9, chooses ? 0.1 : 1e9, 1};
    tg_vorticity *v = NULL;
    assert_int_equal(tg_vorticity_create(pool(), be, &desc, &v), TG_OK);
    assert_int_equal(tg_vorticity_modes(v), (grid - 1) / 3);
    return v;
}

static tg_vorticity *open_flow(int64_t grid, double length, double viscosity) {
    return open_with(grid, length, viscosity, true);
}

/* Advances in equal steps. */
static tg_status advance_steps(tg_vorticity *v, double time, int64_t steps) {
    for (int64_t i = 0; i < steps; i++) {
        TG_CALL(tg_vorticity_advance(v, 1, time / (double)steps, NULL));
    }
    return TG_OK;
}

static int64_t reals(const tg_vorticity *v) {
    const int64_t k = tg_vorticity_modes(v);
    return 2 * (2 * k + 1) * (k + 1);
}

/* Coefficient of (k1, k2), k2 >= 0. */
static double *entry(const tg_vorticity *v, double *spectrum, int64_t k1, int64_t k2) {
    const int64_t k = tg_vorticity_modes(v);
    return spectrum + 2 * ((k1 + k) * (k + 1) + k2);
}

/* A smooth random flow of speed about one. */
static void set_random(tg_vorticity *v) {
    const tg_field_key key = tg_field_key_of(4, 3, TG_SPLIT_TRAIN, 1);
    const tg_covariance c = {4.0, 3.0, 2000.0};
    tg_grf_periodic_2d(&key, &c, 1.0, tg_vorticity_modes(v), tg_vorticity_state(v));
}

static double largest_difference(int64_t n, const double *a, const double *b) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double apart = fabs(a[i] - b[i]);
        most = apart <= most ? most : apart; /* NaN wins */
    }
    return most;
}

/* ---- exact solutions ---- */

/* Taylor-Green vortices, w = 2 k cos(k x) cos(k y): the nonlinear term is a gradient and w decays
 * as e^{-2 nu k^2 t}, whatever the step. */
TEST(test_taylor_green) {
    const int64_t grids[] = {16, 27, 33, 64};
    for (int g = 0; g < 4; g++) {
        const double length = g % 2 ? 1.0 : 2.0 * PI, nu = 0.02;
        for (int k = 1; k <= 3; k += 2) {
            tg_vorticity *v = open_with(grids[g], length, nu, g % 2);
            double *w = tg_vorticity_state(v);
            entry(v, w, k, k)[0] = entry(v, w, -k, k)[0] = 0.5 * k;
            assert_int_equal(
                g % 2 ? tg_vorticity_advance(v, 1, 0.7, NULL) : advance_steps(v, 0.7, 7), TG_OK);
            const double wave = 2.0 * PI * k / length;
            const double expected = 0.5 * k * exp(-2.0 * nu * wave * wave * 0.7);
            for (int64_t i = 0; i < reals(v); i++) {
                const bool one = w + i == entry(v, w, k, k) || w + i == entry(v, w, -k, k);
                assert_true(fabs(w[i] - (one ? expected : 0.0)) <= 1e-12);
            }
            tg_pool_clear(pool());
        }
    }
}

/* A shear flow feels no advection; its forcing and viscosity balance at w = f / (nu k^2), reached
 * as 1 - e^{-nu k^2 t}. This is the laminar Kolmogorov flow. */
TEST(test_forced_shear) {
    const double nu = 0.05;
    tg_vorticity *v = open_with(24, 2.0 * PI, nu, false);
    double *w = tg_vorticity_state(v);
    entry(v, tg_vorticity_forcing(v), 0, 4)[0] = -2.0; /* -4 cos 4 y */
    assert_int_equal(advance_steps(v, 1.0, 50), TG_OK);
    const double expected = -2.0 / (nu * 16.0) * (1.0 - exp(-nu * 16.0));
    assert_true(fabs(entry(v, w, 0, 4)[0] - expected) <= 1e-9);
    entry(v, w, 0, 4)[0] -= expected;
    for (int64_t i = 0; i < reals(v); i++) {
        assert_true(fabs(w[i]) <= 1e-9);
    }
    tg_pool_clear(pool());
}

/* ---- the nonlinear term ---- */

/* -u.grad w at m by the sum of (k2 l1 - k1 l2) / |k|^2 w_k w_l over k + l = m: psi_k = w_k / |k|^2,
 * u = (i k2 psi, -i k1 psi), grad w = i l w_l; factors 2 pi / length cancel. */
static void convolve(const tg_vorticity *v, double *w, int64_t m1, int64_t m2, double out[2]) {
    const int64_t modes = tg_vorticity_modes(v);
    out[0] = out[1] = 0.0;
    for (int64_t k1 = -modes; k1 <= modes; k1++) {
        for (int64_t k2 = -modes; k2 <= modes; k2++) {
            const int64_t l1 = m1 - k1, l2 = m2 - k2;
            if ((k1 == 0 && k2 == 0) || llabs(l1) > modes || llabs(l2) > modes) {
                continue;
            }
            const double *a = k2 >= 0 ? entry(v, w, k1, k2) : entry(v, w, -k1, -k2);
            const double *b = l2 >= 0 ? entry(v, w, l1, l2) : entry(v, w, -l1, -l2);
            const double ai = k2 >= 0 ? a[1] : -a[1], bi = l2 >= 0 ? b[1] : -b[1];
            const double factor = (double)(k2 * l1 - k1 * l2) / (double)(k1 * k1 + k2 * k2);
            out[0] += factor * (a[0] * b[0] - ai * bi);
            out[1] += factor * (a[0] * bi + ai * b[0]);
        }
    }
}

TEST(test_advection) {
    const int64_t grids[] = {16, 19, 25};
    for (int g = 0; g < 3; g++) {
        tg_vorticity *v = open_with(grids[g], 1.0, 0.0, false);
        const int64_t modes = tg_vorticity_modes(v);
        double *w = tg_vorticity_state(v), before[2 * 17 * 9];
        set_random(v);
        memcpy(before, w, (size_t)reals(v) * sizeof *w);
        const double dt = 1e-5;
        assert_int_equal(advance_steps(v, dt, 1), TG_OK);
        double most = 0.0, scale = 0.0;
        for (int64_t m1 = -modes; m1 <= modes; m1++) {
            for (int64_t m2 = 0; m2 <= modes; m2++) {
                double slope[2];
                convolve(v, before, m1, m2, slope);
                for (int part = 0; part < 2; part++) {
                    const double found =
                        (entry(v, w, m1, m2)[part] - entry(v, before, m1, m2)[part]) / dt;
                    most = fabs(found - slope[part]) <= most ? most : fabs(found - slope[part]);
                    scale = fmax(scale, fabs(slope[part]));
                }
            }
        }
        assert_true(most <= 1e-3 * scale); /* the step itself is of order dt */
        tg_pool_clear(pool());
    }
}

/* ---- conservation ---- */

/* Energy sum |w|^2 / |k|^2 and enstrophy sum |w|^2, both halves of the spectrum; palinstrophy sum
 * |k|^2 |w|^2; work sum f* w / |k|^2. */
typedef struct balance {
    double energy, enstrophy, palinstrophy, work;
} balance;

static balance balance_of(tg_vorticity *v, double length) {
    const int64_t modes = tg_vorticity_modes(v);
    double *w = tg_vorticity_state(v), *f = tg_vorticity_forcing(v);
    balance b = {0};
    for (int64_t k1 = -modes; k1 <= modes; k1++) {
        for (int64_t k2 = 0; k2 <= modes; k2++) {
            const double *a = entry(v, w, k1, k2), *force = entry(v, f, k1, k2);
            const double square = a[0] * a[0] + a[1] * a[1], weight = k2 ? 2.0 : 1.0;
            const double wave2 = 4.0 * PI * PI / (length * length) * (double)(k1 * k1 + k2 * k2);
            b.energy += wave2 > 0.0 ? weight * square / wave2 : 0.0;
            b.enstrophy += weight * square;
            b.palinstrophy += weight * square * wave2;
            b.work += wave2 > 0.0 ? weight * (a[0] * force[0] + a[1] * force[1]) / wave2 : 0.0;
        }
    }
    return b;
}

/* Without viscosity and forcing both stay; the flow itself does not. */
TEST(test_inviscid) {
    tg_vorticity *v = open_with(48, 1.0, 0.0, false);
    double *w = tg_vorticity_state(v);
    set_random(v);
    double before[2 * 31 * 16];
    memcpy(before, w, (size_t)reals(v) * sizeof *w);
    const balance start = balance_of(v, 1.0);
    assert_int_equal(advance_steps(v, 0.5, 1000), TG_OK);
    const balance end = balance_of(v, 1.0);
    assert_true(fabs(end.energy - start.energy) <= 1e-9 * start.energy);
    assert_true(fabs(end.enstrophy - start.enstrophy) <= 1e-8 * start.enstrophy);
    assert_true(largest_difference(reals(v), before, w) > 0.01 * sqrt(start.enstrophy));
    assert_true(entry(v, w, 0, 0)[0] == 0.0 && entry(v, w, 0, 0)[1] == 0.0);
    tg_pool_clear(pool());
}

/* d/dt energy = 2 work - 2 nu enstrophy, d/dt enstrophy = .. - 2 nu palinstrophy: by the
 * trapezoidal rule over many short steps. */
TEST(test_balance) {
    const double nu = 0.002, dt = 1e-3;
    tg_vorticity *v = open_with(48, 1.0, nu, false);
    set_random(v);
    double *force = entry(v, tg_vorticity_forcing(v), 1, 1);
    force[0] = 5.0;
    force[1] = -5.0;
    const balance start = balance_of(v, 1.0);
    balance last = start, sum = {0};
    for (int i = 0; i < 300; i++) {
        assert_int_equal(advance_steps(v, dt, 1), TG_OK);
        const balance b = balance_of(v, 1.0);
        sum.work += 0.5 * dt * (b.work + last.work);
        sum.enstrophy += 0.5 * dt * (b.enstrophy + last.enstrophy);
        last = b;
    }
    const double gained = last.energy - start.energy;
    const double expected = 2.0 * sum.work - 2.0 * nu * sum.enstrophy;
    assert_true(fabs(expected) > 0.01 * start.energy);
    assert_true(fabs(gained - expected) <= 1e-4 * fabs(expected));
    tg_pool_clear(pool());
}

/* Enstrophy alone falls by viscosity; the velocity has no divergence and its curl is w. */
TEST(test_velocity) {
    enum { GRID = 32, MODES = 10 };
    tg_vorticity *v = open_flow(GRID, 1.0, 0.01);
    set_random(v);
    static double velocity[2][GRID][GRID];
    assert_int_equal(tg_vorticity_velocity(v, &velocity[0][0][0]), TG_OK);
    for (int k1 = -MODES; k1 <= MODES; k1++) {
        for (int k2 = 0; k2 <= MODES; k2++) {
            double hat[2][2] = {{0}};
            for (int i = 0; i < GRID * GRID; i++) {
                const double a = 2.0 * PI * (k1 * (i / GRID) + k2 * (i % GRID)) / GRID;
                for (int d = 0; d < 2; d++) {
                    const double value = velocity[d][i / GRID][i % GRID] / (GRID * GRID);
                    hat[d][0] += value * cos(a);
                    hat[d][1] -= value * sin(a);
                }
            }
            const double *w = entry(v, tg_vorticity_state(v), k1, k2);
            for (int part = 0; part < 2; part++) {
                const double divergence = k1 * hat[0][part] + k2 * hat[1][part];
                /* i (k1 v - k2 u) 2 pi: the real part comes from the imaginary ones. */
                const double curl = 2.0 * PI * (part ? 1.0 : -1.0) *
                                    (k1 * hat[1][1 - part] - k2 * hat[0][1 - part]);
                assert_true(fabs(divergence) <= 1e-12);
                assert_true(fabs(curl - w[part]) <= 1e-11);
            }
        }
    }
    balance last = balance_of(v, 1.0);
    for (int i = 0; i < 10; i++) {
        assert_int_equal(tg_vorticity_advance(v, 1, 0.05, NULL), TG_OK);
        const balance b = balance_of(v, 1.0);
        assert_true(b.enstrophy < last.enstrophy && b.energy < last.energy);
        last = b;
    }
    tg_pool_clear(pool());
}

/* ---- time ---- */

/* The state of a forced flow at t = 0.5 after `steps` steps (0: the longest that are stable). */
static double *flow_after(int64_t steps) {
    tg_vorticity *v = open_with(32, 1.0, 0.003, steps == 0);
    set_random(v);
    entry(v, tg_vorticity_forcing(v), 1, 1)[0] = 10.0;
    assert_int_equal(steps ? advance_steps(v, 0.5, steps) : tg_vorticity_advance(v, 1, 0.5, NULL),
                     TG_OK);
    double *copy = malloc((size_t)reals(v) * sizeof *copy);
    memcpy(copy, tg_vorticity_state(v), (size_t)reals(v) * sizeof *copy);
    tg_pool_clear(pool());
    return copy;
}

TEST(test_order_four) {
    enum { REALS = 2 * 21 * 11 };
    double *exact = flow_after(3200), *adaptive = flow_after(0);
    double last = 0.0, scale = 0.0;
    for (int i = 0; i < REALS; i++) {
        scale = fmax(scale, fabs(exact[i]));
    }
    for (int64_t steps = 50; steps <= 400; steps *= 2) {
        double *w = flow_after(steps);
        const double error = largest_difference(REALS, w, exact);
        if (steps > 50) {
            const double order = log2(last / error);
            assert_true(order >= 3.7 && order <= 4.3);
        }
        last = error;
        free(w);
    }
    assert_true(largest_difference(REALS, adaptive, exact) <= 1e-5 * scale);
    free(exact);
    free(adaptive);
}

/* The same bits with any number of threads. */
TEST(test_threads) {
    double *one = flow_after(20);
    be->threads = 2;
    double *two = flow_after(20);
    be->threads = 1;
    assert_memory_equal(one, two, 2 * 21 * 11 * sizeof *one);
    free(one);
    free(two);
}

/* ---- several flows ---- */

/* Flow i: another start and forcing, the faster the larger i. */
static void set_flow(tg_vorticity *v, int64_t at, uint32_t i) {
    const tg_field_key key = tg_field_key_of(4, 3, TG_SPLIT_TRAIN, i);
    const tg_covariance c = {4.0, 3.0, 1000.0 * (1.0 + i)};
    const int64_t modes = tg_vorticity_modes(v), offset = at * tg_vorticity_reals(v);
    tg_grf_periodic_2d(&key, &c, 1.0, modes, tg_vorticity_state(v) + offset);
    entry(v, tg_vorticity_forcing(v) + offset, 1, 1)[0] = 10.0 * i;
}

/* Each flow has the bits that it has alone, on the host and on a device; those that are not to move
 * do not. */
TEST(test_many) {
    enum { FLOWS = 4, MOVING = 3, GRID = 24, REALS = 2 * 15 * 8 };
    tg_backend *device = NULL;
    assert_int_equal(tg_backend_open(ctx, "fake", &device), TG_OK);
    for (int on_device = 0; on_device < 2; on_device++) {
        tg_vorticity_desc desc = {GRID, 1.0, 0.003, 0.5, 0.1, FLOWS};
        tg_vorticity *many = NULL, *one = NULL;
        assert_int_equal(tg_vorticity_create(pool(), on_device ? device : be, &desc, &many), TG_OK);
        desc.flows = 1;
        assert_int_equal(tg_vorticity_create(pool(), be, &desc, &one), TG_OK);
        assert_int_equal(tg_vorticity_reals(many), REALS);
        for (uint32_t i = 0; i < FLOWS; i++) {
            set_flow(many, i, i);
        }
        assert_int_equal(tg_vorticity_advance(many, MOVING, 0.3, NULL), TG_OK);
        assert_int_equal(tg_vorticity_advance(many, MOVING, 0.2, NULL), TG_OK);
        for (uint32_t i = 0; i < FLOWS; i++) {
            set_flow(one, 0, i);
            if (i < MOVING) {
                assert_int_equal(tg_vorticity_advance(one, 1, 0.3, NULL), TG_OK);
                assert_int_equal(tg_vorticity_advance(one, 1, 0.2, NULL), TG_OK);
            }
            assert_memory_equal(tg_vorticity_state(one), tg_vorticity_state(many) + i * REALS,
                                REALS * sizeof(double));
        }
        entry(many, tg_vorticity_state(many) + 2 * REALS, 1, 2)[0] = 1e12;
        int64_t failed = -1;
        assert_int_equal(tg_vorticity_advance(many, MOVING, 1.0, &failed), TG_E_NUMERIC);
        assert_int_equal(failed, 2);
        tg_pool_clear(pool());
    }
    tg_backend_close(&device);
}

/* The number of flows that fit. */
TEST(test_flows) {
    const tg_vorticity_desc small = {.grid = 16}, large = {.grid = 4096};
    assert_int_equal(tg_vorticity_flows(&small, (size_t)1 << 30), 256);
    assert_int_equal(tg_vorticity_flows(&large, 1000), 1);
    const int64_t some = tg_vorticity_flows(&large, (size_t)8 << 30);
    assert_true(some > 2 && some < 32);
}

TEST(test_too_fast) {
    tg_vorticity *v = open_flow(16, 1.0, 0.0);
    entry(v, tg_vorticity_state(v), 1, 2)[0] = 1e12;
    assert_int_equal(tg_vorticity_advance(v, 1, 1.0, NULL), TG_E_NUMERIC);
    assert_non_null(strstr(tg_context_error(ctx), "too fast to follow"));
    entry(v, tg_vorticity_state(v), 1, 2)[0] = (double)NAN;
    assert_int_equal(tg_vorticity_advance(v, 1, 1.0, NULL), TG_E_NUMERIC);
    assert_int_equal(tg_vorticity_advance(v, 1, 0.0, NULL), TG_OK);
    tg_pool_clear(pool());
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(setup, test_context_end);
}
