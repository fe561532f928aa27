/* Potential flow past bodies: points of a smooth surface -> pressure on it.
 *
 *     Laplace Phi = 0 outside,  dPhi/dn = 0 on the surface,  grad Phi -> (1, 0, 0) far away,
 *     values = 1 - |grad Phi|^2, the pressure coefficient.
 *
 * Bodies have random half-axes and bumps (solvers.h) and are centred in the unit cube. The equation
 * is solved once per sample for any number of points: n points are the images of a Fibonacci
 * lattice of n directions. */
#include <math.h>
#include <stddef.h>

#include "pde/pde.h"
#include "pde/solvers.h"

#define PI 3.14159265358979323846

typedef struct config {
    tg_list_double axes;
    double bumps;
    int64_t degree, order;
} config;

static const config defaults = {.axes = {2, {0.15, 0.35}}, .bumps = 0.2, .degree = 4, .order = 10};

static const tg_setting params[] = {
    TG_PDE_ROW(LIST_DOUBLE, axes, 0.01, 0.49, "range of half-axes, box of 1"),
    TG_PDE_ROW(DOUBLE, bumps, 0.0, 0.5, "highest bump, in parts of the radius"),
    TG_PDE_ROW(INT64, degree, 2, TG_BODY_MAX_DEGREE, "degree of the harmonics of the bumps"),
    TG_PDE_ROW(INT64, order, 2, TG_BODY_MAX_ORDER, "degree of the harmonics of the potential"),
};

static tg_status prepare(tg_context *ctx, void *handle, int64_t finest) {
    const config *c = handle;
    const double reach = c->axes.value[1] * (1.0 + c->bumps);
    (void)finest; /* points are only evaluated */
    return reach < 0.5 ? TG_OK
                       : tg_fail(ctx, TG_E_CONFIG,
                                 "potential.axes: bodies reach %g from the middle of a box that is "
                                 "1 wide; expected less than 0.5 with bumps of %g",
                                 reach, c->bumps);
}

typedef struct solver {
    const config *config;
    int views;
    tg_body_flow *flow;
} solver;

static tg_status open_solver(const tg_pde_setup *setup, void *handle) {
    solver *s = handle;
    s->config = setup->config;
    s->views = setup->views;
    return tg_body_flow_create(setup->pool, (int)s->config->order, &s->flow);
}

/* Direction i of n that cover the sphere evenly and avoid the poles. */
static void direction(int64_t i, int64_t n, double w[3]) {
    const double turn = PI * (3.0 - sqrt(5.0)), phi = fmod(turn * (double)i, 2.0 * PI);
    w[2] = 1.0 - (2.0 * (double)i + 1.0) / (double)n;
    w[0] = sqrt(1.0 - w[2] * w[2]) * cos(phi);
    w[1] = sqrt(1.0 - w[2] * w[2]) * sin(phi);
}

/* Half-axes, then coefficients that decrease with the square of the degree, then the height they
 * are scaled to. Degrees 0 (a change of the axes) and 1 (a shift of the body) stay 0. */
static tg_body draw(const solver *s, const tg_field_key *key) {
    enum { AXES = 0, HEIGHT = 3, BUMPS = 16, DIRECTIONS = 400 };
    const config *c = s->config;
    const tg_harmonics *h = tg_body_flow_harmonics(s->flow);
    tg_body body = {.degree = (int)c->degree};
    double value[(TG_BODY_MAX_DEGREE + 1) * (TG_BODY_MAX_DEGREE + 1)], highest = 0.0;
    const int count = (body.degree + 1) * (body.degree + 1);
    for (unsigned i = 0; i < 3; i++) {
        body.axes[i] = tg_field_uniform(key, AXES + i, c->axes.value[0], c->axes.value[1]);
    }
    for (int l = 2, k = 4; l <= body.degree; l++) {
        for (; k < (l + 1) * (l + 1); k++) {
            body.bumps[k] = tg_field_uniform(key, BUMPS + (unsigned)k, -1.0, 1.0) / (l * l);
        }
    }
    for (int i = 0; i < DIRECTIONS; i++) {
        double w[3], sum = 0.0;
        direction(i, DIRECTIONS, w);
        tg_harmonics_at(h, body.degree, w, value, NULL);
        for (int k = 0; k < count; k++) {
            sum += body.bumps[k] * value[k];
        }
        highest = fmax(highest, fabs(sum));
    }
    const double height = tg_field_uniform(key, HEIGHT, 0.0, c->bumps);
    for (int k = 0; k < count; k++) {
        body.bumps[k] *= highest > 0.0 ? height / highest : 0.0;
    }
    return body;
}

static tg_status make_sample(void *handle, const tg_field_key *key, const tg_pde_view *views) {
    solver *s = handle;
    static const double far[3] = {1.0, 0.0, 0.0};
    const tg_body body = draw(s, key);
    TG_CALL(tg_body_flow_solve(s->flow, &body, far));
    for (int v = 0; v < s->views; v++) {
        const int64_t n = views[v].resolution;
        for (int64_t i = 0; i < n; i++) {
            double w[3], point[3], area[3], potential, speed2;
            direction(i, n, w);
            tg_body_point(tg_body_flow_harmonics(s->flow), &body, w, point, area);
            tg_body_flow_at(s->flow, w, &potential, &speed2);
            for (int d = 0; d < 3; d++) {
                views[v].x[3 * i + d] = (float)(0.5 + point[d]);
            }
            views[v].y[i] = (float)(1.0 - speed2);
        }
    }
    return TG_OK;
}

const tg_pde tg_pde_potential = {
    .name = "potential",
    .summary = "potential flow past a body: points of its surface -> pressure there",
    .id = 6,
    .dtype = TG_F32,
    .ndim = 1,
    .channels = {3, 1},
    .on_points = true,
    .fields = {"coordinates in [0, 1]^3", "pressure coefficient"},
    .usual_samples = {200, 40},
    .resolution = 1000,
    TG_PDE_SOLVER(solver),
    .sample = make_sample,
};
