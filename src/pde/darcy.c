/* Darcy flow, -div(a grad u) = f on (0,1)^2 with u = 0 on the boundary: permeability a -> pressure
 * u.
 *
 * a has two values, by the sign of a Gaussian field with zero normal derivative on the boundary,
 * which two matrix products sum from its cosines. Points include the boundary, (i / (N - 1),
 * j / (N - 1)), so a grid whose N - 1 divides that of the fine grid is part of it and copies its
 * values. On other grids a is evaluated again and u, solved on the fine grid, is interpolated
 * bilinearly (second order, like the scheme). */
#include <math.h>
#include <stddef.h>

#include "backend/backend.h"
#include "pde/pde.h"
#include "pde/solvers.h"

#define PI 3.14159265358979323846

enum { MAX_ITERATIONS = 500 };

typedef struct config {
    double alpha, tau, low, high, forcing, tolerance;
    int64_t grid;
} config;

static const config defaults = {
    .alpha = 2.0, .tau = 3.0, .low = 3.0, .high = 12.0, .forcing = 1.0, .tolerance = 1e-10};

static const tg_setting params[] = {
    TG_PDE_ROW(DOUBLE, alpha, 0.0, 100.0, "field that sets a, cov. (-Lap + tau^2)^-alpha"),
    TG_PDE_ROW(DOUBLE, tau, 1e-6, 1e6, "inverse length in it"),
    TG_PDE_ROW(DOUBLE, low, 1e-6, 1e6, "a where the field is negative"),
    TG_PDE_ROW(DOUBLE, high, 1e-6, 1e6, "a elsewhere"),
    TG_PDE_ROW(DOUBLE, forcing, -1e6, 1e6, "right-hand side f"),
    TG_PDE_ROW(DOUBLE, tolerance, 1e-14, 0.1, "relative residual at which the solver stops"),
    TG_PDE_GRID("421"),
};

static tg_status prepare(tg_context *ctx, void *handle, int64_t finest) {
    return tg_pde_choose_grid(ctx, "darcy", 421, 3, finest, &((config *)handle)->grid);
}

/* One resolution: a subset of the fine grid, or a separate grid. */
typedef struct outlet {
    int64_t n;
    int64_t stride;  /* on the fine grid; 0: not part of it */
    double *cosines; /* (n, modes) for stride 0 */
} outlet;

typedef struct solver {
    tg_backend *be;
    const config *config;
    int64_t n; /* points per dimension, and modes of the field */
    tg_elliptic *problem;
    double *cosines;      /* (n, n): cos(pi k i / (n - 1)), row i */
    double *coefficients; /* (n, n) */
    double *product;      /* (n, n): half a transform */
    double *a, *f, *u;    /* (n, n) */
    int views;
    outlet outlets[TG_PDE_MAX_FILES];
} solver;

/* cos(pi k i / (points - 1)), (points, modes); the angle is reduced in integer arithmetic. */
static tg_status make_cosines(tg_pool *pool, int64_t points, int64_t modes, double **out) {
    const int64_t half = points - 1;
    TG_CALL(TG_POOL(pool, *out, points * modes));
    for (int64_t i = 0; i < points; i++) {
        for (int64_t k = 0; k < modes; k++) {
            (*out)[i * modes + k] = cos(PI * (double)(i * k % (2 * half)) / (double)half);
        }
    }
    return TG_OK;
}

static tg_status open_solver(const tg_pde_setup *setup, void *handle) {
    solver *s = handle;
    s->be = setup->be;
    s->config = setup->config;
    s->n = s->config->grid;
    s->views = setup->views;
    double **const arrays[] = {&s->coefficients, &s->product, &s->a, &s->f, &s->u};
    for (int i = 0; i < 5; i++) {
        TG_CALL(TG_POOL(setup->pool, *arrays[i], s->n * s->n));
    }
    for (int64_t p = 0; p < s->n * s->n; p++) {
        s->f[p] = s->config->forcing;
    }
    TG_CALL(make_cosines(setup->pool, s->n, s->n, &s->cosines));
    TG_CALL(tg_elliptic_create(setup->pool, s->n, &s->problem));
    for (int i = 0; i < s->views; i++) {
        outlet *o = &s->outlets[i];
        o->n = setup->resolution[i];
        o->stride = (s->n - 1) % (o->n - 1) == 0 ? (s->n - 1) / (o->n - 1) : 0;
        TG_CALL(o->stride ? TG_OK : make_cosines(setup->pool, o->n, s->n, &o->cosines));
    }
    return TG_OK;
}

/* a (n, n) from the coefficients and the cosines (n, modes) at its points. */
static tg_status permeability(solver *s, int64_t n, const double *cosines, double *a) {
    const tg_gemm half = tg_whole_product(TG_F64, TG_OP_N, TG_OP_N, n, s->n, s->n, cosines,
                                          s->coefficients, s->product);
    const tg_gemm whole =
        tg_whole_product(TG_F64, TG_OP_N, TG_OP_T, n, n, s->n, s->product, cosines, a);
    TG_CALL(s->be->ops->gemm(s->be, &half));
    TG_CALL(s->be->ops->gemm(s->be, &whole));
    for (int64_t p = 0; p < n * n; p++) {
        a[p] = a[p] >= 0.0 ? s->config->high : s->config->low;
    }
    return TG_OK;
}

/* Every stride-th point of (n, n), m x m in all. */
static void take_points(const double *from, int64_t n, int64_t stride, int64_t m, float *to) {
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < m; j++) {
            to[i * m + j] = (float)from[i * stride * n + j * stride];
        }
    }
}

/* Cell and fraction of point i of m on a grid of n points over the same interval. */
static int64_t locate(int64_t i, int64_t m, int64_t n, double *share) {
    int64_t cell = i * (n - 1) / (m - 1);
    cell = cell < n - 1 ? cell : n - 2;
    *share = (double)(i * (n - 1) - cell * (m - 1)) / (double)(m - 1);
    return cell;
}

static void interpolate(const double *from, int64_t n, int64_t m, float *to) {
    for (int64_t i = 0; i < m; i++) {
        double down = 0.0, right = 0.0;
        const double *row = from + locate(i, m, n, &down) * n;
        for (int64_t j = 0; j < m; j++) {
            const double *p = row + locate(j, m, n, &right);
            const double upper = p[0] + right * (p[1] - p[0]);
            const double lower = p[n] + right * (p[n + 1] - p[n]);
            to[i * m + j] = (float)(upper + down * (lower - upper));
        }
    }
}

static tg_status sample(void *handle, const tg_field_key *key, const tg_pde_view *views) {
    solver *s = handle;
    const config *c = s->config;
    const tg_covariance covariance = {c->alpha, c->tau, tg_covariance_sigma(c->alpha, c->tau)};
    tg_grf_neumann(key, &covariance, s->n, s->coefficients);
    TG_CALL(permeability(s, s->n, s->cosines, s->a));
    tg_elliptic_set(s->problem, s->a);
    if (!tg_elliptic_solve(s->problem, s->f, c->tolerance, MAX_ITERATIONS, s->u, NULL)) {
        return tg_fail(s->be->ctx, TG_E_NUMERIC, "no relative residual of %g in %d iterations",
                       c->tolerance, MAX_ITERATIONS);
    }
    for (int i = 0; i < s->views; i++) {
        const outlet *o = &s->outlets[i];
        if (o->stride > 0) {
            take_points(s->a, s->n, o->stride, o->n, views[i].x);
            take_points(s->u, s->n, o->stride, o->n, views[i].y);
        }
    }
    for (int i = 0; i < s->views; i++) { /* these use the memory of a */
        const outlet *o = &s->outlets[i];
        if (o->stride == 0) {
            TG_CALL(permeability(s, o->n, o->cosines, s->a));
            take_points(s->a, o->n, 1, o->n, views[i].x);
            interpolate(s->u, s->n, o->n, views[i].y);
        }
    }
    return TG_OK;
}

const tg_pde tg_pde_darcy = {
    .name = "darcy",
    .summary = "Darcy flow in 2-D: permeability of two phases -> pressure",
    .id = 2,
    .dtype = TG_F32,
    .ndim = 2,
    .channels = {1, 1},
    .fields = {"permeability a", "pressure u"},
    .usual_samples = {4000, 1000},
    .resolution = 421,
    .min_resolution = 3,
    TG_PDE_SOLVER(solver),
    .sample = sample,
};
