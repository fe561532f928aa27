/* Potential flow past bodies against closed forms: harmonics are orthonormal and their gradients
 * right, flow past a sphere and past an ellipsoid along every axis, a closed surface with bumps,
 * errors that fall with the order. */
#include <math.h>
#include <string.h>

#include "pde/solvers.h"
#include "support/network.h"

static const double pi = 3.14159265358979323846;

static tg_context *ctx;

/* Of the solvers of a test. */
static tg_pool *pool(void) {
    static tg_pool only;
    only.ctx = ctx;
    return &only;
}

static void direction(int i, int n, double w[3]) {
    w[2] = 1.0 - (2.0 * i + 1.0) / n;
    w[0] = sqrt(1.0 - w[2] * w[2]) * cos(2.4 * i);
    w[1] = sqrt(1.0 - w[2] * w[2]) * sin(2.4 * i);
}

static const tg_body bumpy = {.axes = {0.2, 0.3, 0.25},
                              .degree = 4,
                              .bumps = {[4] = 0.1, [7] = -0.08, [11] = 0.06, [20] = 0.05}};

/* ---- harmonics ---- */

/* Integrals of products are 1 or 0 (midpoint rule), and gradients are those of differences. */
TEST(test_harmonics) {
    enum { DEGREE = 5, COUNT = 36, ROWS = 400, COLUMNS = 12 };
    static double gram[COUNT][COUNT];
    double value[COUNT], gradient[COUNT][3];
    tg_harmonics *h = NULL;
    net_ok(ctx, tg_harmonics_create(pool(), DEGREE, &h));
    for (int i = 0; i < ROWS * COLUMNS; i++) {
        const double z = -1.0 + 2.0 * (i / COLUMNS + 0.5) / ROWS, side = sqrt(1.0 - z * z);
        const double phi = 2.0 * pi * (i % COLUMNS) / COLUMNS;
        const double w[3] = {side * cos(phi), side * sin(phi), z};
        tg_harmonics_at(h, DEGREE, w, value, NULL);
        for (int k = 0; k < COUNT * COUNT; k++) {
            gram[k / COUNT][k % COUNT] +=
                value[k / COUNT] * value[k % COUNT] * 4.0 * pi / (ROWS * COLUMNS);
        }
    }
    for (int k = 0; k < COUNT * COUNT; k++) {
        if (!(fabs(gram[k / COUNT][k % COUNT] - (k % (COUNT + 1) == 0 ? 1.0 : 0.0)) <= 1e-3)) {
            fail_msg("harmonics %d, %d: %g", k / COUNT, k % COUNT, gram[k / COUNT][k % COUNT]);
        }
    }
    double w[3], there[COUNT], tangent[3];
    direction(3, 7, w);
    tg_harmonics_at(h, DEGREE, w, value, gradient);
    const double step = 1e-6;
    const double other[3] = {-w[1], w[0], 0.0}, size = sqrt(w[0] * w[0] + w[1] * w[1]);
    for (int i = 0; i < 3; i++) {
        tangent[i] = other[i] / size * cos(0.7);
    }
    tangent[0] += w[0] * w[2] / size * sin(0.7);
    tangent[1] += w[1] * w[2] / size * sin(0.7);
    tangent[2] -= size * sin(0.7);
    const double ahead[3] = {w[0] * cos(step) + tangent[0] * sin(step),
                             w[1] * cos(step) + tangent[1] * sin(step),
                             w[2] * cos(step) + tangent[2] * sin(step)};
    tg_harmonics_at(h, DEGREE, ahead, there, NULL);
    for (int k = 0; k < COUNT; k++) {
        const double slope =
            gradient[k][0] * tangent[0] + gradient[k][1] * tangent[1] + gradient[k][2] * tangent[2];
        if (!(fabs((there[k] - value[k]) / step - slope) <= 1e-4)) {
            fail_msg("harmonic %d: slope %g, %g by difference", k, slope,
                     (there[k] - value[k]) / step);
        }
    }
    tg_pool_clear(pool());
}

/* ---- flows ---- */

/* alpha_i = abc int_0^inf ds / ((a_i^2 + s) sqrt((a^2 + s)(b^2 + s)(c^2 + s))), and on the surface
 * Phi = 2 far_i y_i / (2 - alpha_i): Lamb, Hydrodynamics, 114. With s = t^2 / (1 - t)^2 the
 * integrand is smooth, and the midpoint rule enough. */
static double ellipsoid_factor(const double axes[3], int i) {
    enum { STEPS = 20000 };
    double sum = 0.0;
    for (int k = 0; k < STEPS; k++) {
        const double t = (k + 0.5) / STEPS, s = t * t / ((1.0 - t) * (1.0 - t));
        double product = axes[i] * axes[i] + s;
        double root = 1.0;
        for (int d = 0; d < 3; d++) {
            root *= axes[d] * axes[d] + s;
        }
        product *= sqrt(root);
        sum += 2.0 * t / ((1.0 - t) * (1.0 - t) * (1.0 - t)) / product / STEPS;
    }
    return 2.0 / (2.0 - axes[0] * axes[1] * axes[2] * sum);
}

/* Largest errors of potential and squared speed on an ellipsoid, flow along axis i. On the surface
 * the velocity is the part of factor * e_i along it. */
static double ellipsoid_error(const double axes[3], int i, int order) {
    const tg_body body = {.axes = {axes[0], axes[1], axes[2]}, .degree = 0};
    const double factor = ellipsoid_factor(axes, i);
    double far[3] = {0.0, 0.0, 0.0}, worst = 0.0;
    tg_body_flow *flow = NULL;
    far[i] = 1.0;
    net_ok(ctx, tg_body_flow_create(pool(), order, &flow));
    net_ok(ctx, tg_body_flow_solve(flow, &body, far));
    for (int k = 0; k < 50; k++) {
        double w[3], point[3], area[3], potential, speed2;
        direction(k, 50, w);
        tg_body_point(tg_body_flow_harmonics(flow), &body, w, point, area);
        tg_body_flow_at(flow, w, &potential, &speed2);
        const double size2 = area[0] * area[0] + area[1] * area[1] + area[2] * area[2];
        const double exact = factor * factor * (1.0 - area[i] * area[i] / size2);
        worst = fmax(worst, fabs(potential - factor * point[i]) / axes[i]);
        worst = fmax(worst, fabs(speed2 - exact));
    }
    tg_pool_clear(pool());
    return worst;
}

TEST(test_sphere) {
    static const double axes[3] = {0.3, 0.3, 0.3};
    assert_true(fabs(ellipsoid_factor(axes, 0) - 1.5) <= 1e-6);
    for (int i = 0; i < 3; i++) {
        const double error = ellipsoid_error(axes, i, 4);
        if (!(error <= 1e-7)) {
            fail_msg("sphere, axis %d: error %g", i, error);
        }
    }
}

/* Errors fall faster than any power of the order. */
TEST(test_ellipsoids) {
    static const double axes[3] = {0.15, 0.2, 0.32};
    for (int i = 0; i < 3; i++) {
        const double coarse = ellipsoid_error(axes, i, 4), fine = ellipsoid_error(axes, i, 10);
        if (!(fine <= 1e-4 && fine <= 0.02 * coarse)) {
            fail_msg("ellipsoid, axis %d: errors %g and %g", i, coarse, fine);
        }
    }
}

/* With bumps there is no closed form: two orders agree, and the area vectors of a closed surface
 * add up to nothing, while y . n dS adds up to three volumes. */
TEST(test_bumps) {
    static const double far[3] = {1.0, 0.0, 0.0};
    tg_body_flow *flow[2] = {NULL, NULL};
    double total[4] = {0.0, 0.0, 0.0, 0.0}, worst = 0.0, worst_speed = 0.0;
    for (int i = 0; i < 2; i++) {
        net_ok(ctx, tg_body_flow_create(pool(), i == 0 ? 8 : 12, &flow[i]));
        net_ok(ctx, tg_body_flow_solve(flow[i], &bumpy, far));
    }
    enum { N = 4000 };
    for (int k = 0; k < N; k++) {
        double w[3], point[3], area[3], potential[2], speed2[2];
        const double z = -1.0 + (2.0 * (k / 40) + 1.0) * 40.0 / N, side = sqrt(1.0 - z * z);
        w[0] = side * cos(2.0 * pi * (k % 40) / 40.0);
        w[1] = side * sin(2.0 * pi * (k % 40) / 40.0);
        w[2] = z;
        tg_body_point(tg_body_flow_harmonics(flow[0]), &bumpy, w, point, area);
        for (int i = 0; i < 3; i++) {
            total[i] += area[i] * 4.0 * pi / N;
            total[3] += area[i] * point[i] * 4.0 * pi / N;
        }
        for (int i = 0; i < 2 && k % 50 == 0; i++) {
            tg_body_flow_at(flow[i], w, &potential[i], &speed2[i]);
        }
        worst = fmax(worst, k % 50 == 0 ? fabs(potential[0] - potential[1]) : 0.0);
        worst_speed = fmax(worst_speed, k % 50 == 0 ? fabs(speed2[0] - speed2[1]) : 0.0);
    }
    for (int i = 0; i < 3; i++) {
        assert_true(fabs(total[i]) <= 1e-4);
    }
    const double ellipsoid = 4.0 * pi * 0.2 * 0.3 * 0.25;
    assert_true(total[3] > ellipsoid && total[3] < 1.2 * ellipsoid);
    if (!(worst <= 2e-5 && worst_speed <= 3e-3)) {
        fail_msg("orders 8 and 12 differ by %g, speeds by %g", worst, worst_speed);
    }
    tg_pool_clear(pool());
}

int main(void) {
    if (tg_context_create(NULL, &ctx) != TG_OK) {
        return 1;
    }
    const int failures = t_run_tests(NULL, NULL);
    tg_context_destroy(&ctx);
    return failures;
}
