/* Burgers' equation, u_t + (u^2 / 2)_x = nu u_xx, periodic on [0, 1): u(x, 0) -> u(x, T).
 *
 * Fourier-Galerkin with the 2/3 rule: only |k| <= K, 3K < grid, are kept, so that the square is
 * free of aliasing. In time ETDRK4 (Cox and Matthews): viscosity exactly, the square by a
 * fourth-order Runge-Kutta rule. u never exceeds its largest initial value, which sets the step:
 * half a grid cell at that speed. */
#include "pde/solvers.h"

#include <math.h>
#include <stddef.h>

#include "pde/fields.h"
#include "pde/pde.h"

#define PI           3.14159265358979323846
#define LONGEST_STEP 0.01
#define MAX_STEPS    1e7

struct tg_burgers {
    tg_backend *be;
    double viscosity;
    int64_t grid, modes; /* N, K */
    tg_fft_plan *plan;   /* real, of one field */
    double *values;      /* (N) */
    double *stage[3];    /* (K + 1) complex each: intermediate values a, b, c */
    double *slope[4];    /* (K + 1) complex each: slopes at u, a, b, c */
    double *tables;      /* (6, K + 1): see make_tables */
};

tg_status tg_burgers_create(tg_pool *pool, tg_backend *be, int64_t grid, double viscosity,
                            tg_burgers **out) {
    TG_CALL(TG_POOL(pool, *out, 1));
    tg_burgers *b = *out;
    *b = (tg_burgers){.be = be, .viscosity = viscosity, .grid = grid, .modes = (grid - 1) / 3};
    const int64_t reals = 2 * (b->modes + 1);
    TG_CALL(TG_POOL(pool, b->values, grid));
    for (int i = 0; i < 4; i++) {
        TG_CALL(i < 3 ? TG_POOL(pool, b->stage[i], reals) : TG_OK);
        TG_CALL(TG_POOL(pool, b->slope[i], reals));
    }
    TG_CALL(TG_POOL(pool, b->tables, 6 * (b->modes + 1)));
    const tg_fft_desc desc = {
        .dtype = TG_F64, .ndim = 1, .grid = {grid}, .kept = {b->modes + 1}, .howmany = 1};
    return tg_pool_fft(pool, be, &desc, &b->plan);
}

int64_t tg_burgers_modes(const tg_burgers *b) {
    return b->modes;
}

/* phi_1(z) = (e^z - 1) / z, phi_{j+1} = (phi_j - 1/j!) / z, for z <= 0. Near 0, where the
 * differences cancel, the series sum z^i / (i + j)!. */
static void phi_functions(double z, double phi[3]) {
    if (z < -1.0) {
        phi[0] = expm1(z) / z;
        phi[1] = (phi[0] - 1.0) / z;
        phi[2] = (phi[1] - 0.5) / z;
        return;
    }
    static const double factorial[3] = {1.0, 2.0, 6.0};
    for (int j = 0; j < 3; j++) {
        double term = 1.0 / factorial[j], sum = 0.0;
        for (int i = 1; i <= 20; i++) {
            sum += term;
            term *= z / (double)(i + j + 1);
        }
        phi[j] = sum;
    }
}

/* Rows of the tables for step h and z = -nu (2 pi k)^2 h: e^z, e^{z/2}, (h/2) phi_1(z/2), and the
 * weights of the initial, middle and final slopes. */
static void make_tables(tg_burgers *b, double h) {
    const int64_t n = b->modes + 1;
    double *t = b->tables;
    for (int64_t k = 0; k < n; k++) {
        const double wave = 2.0 * PI * (double)k, z = -b->viscosity * wave * wave * h;
        double half[3], phi[3];
        phi_functions(0.5 * z, half);
        phi_functions(z, phi);
        t[k] = exp(z);
        t[n + k] = exp(0.5 * z);
        t[2 * n + k] = 0.5 * h * half[0];
        t[3 * n + k] = h * (phi[0] - 3.0 * phi[1] + 4.0 * phi[2]);
        t[4 * n + k] = h * 2.0 * (phi[1] - 2.0 * phi[2]);
        t[5 * n + k] = h * (4.0 * phi[2] - phi[1]);
    }
}

/* out = -(u^2 / 2)_x */
static tg_status slope_of(tg_burgers *b, const double *u, double *out) {
    const tg_backend_ops *ops = b->be->ops;
    TG_CALL(ops->fft(b->be, b->plan, TG_FFT_INVERSE, 1, TG_FFT_PLAIN, 1.0, u, b->values));
    for (int64_t i = 0; i < b->grid; i++) {
        b->values[i] *= 0.5 * b->values[i];
    }
    TG_CALL(ops->fft(b->be, b->plan, TG_FFT_FORWARD, 1, TG_FFT_PLAIN, 1.0 / (double)b->grid,
                     b->values, out));
    for (int64_t k = 0; k <= b->modes; k++) {
        const double wave = 2.0 * PI * (double)k, re = out[2 * k];
        out[2 * k] = wave * out[2 * k + 1];
        out[2 * k + 1] = -wave * re;
    }
    return TG_OK;
}

/* out_k = e_k u_k + q_k (f v_k + g w_k), w may be NULL */
static void combine(int64_t n, const double *e, const double *u, const double *q, double f,
                    const double *v, double g, const double *w, double *out) {
    for (int64_t i = 0; i < 2 * n; i++) {
        const double sum = f * v[i] + (w ? g * w[i] : 0.0);
        out[i] = e[i / 2] * u[i] + q[i / 2] * sum;
    }
}

static tg_status step(tg_burgers *b, double *u) {
    const int64_t n = b->modes + 1;
    const double *whole = b->tables, *half = whole + n, *q = half + n, *first = q + n,
                 *middle = first + n, *end = middle + n;
    TG_CALL(slope_of(b, u, b->slope[0]));
    combine(n, half, u, q, 1.0, b->slope[0], 0.0, NULL, b->stage[0]);
    TG_CALL(slope_of(b, b->stage[0], b->slope[1]));
    combine(n, half, u, q, 1.0, b->slope[1], 0.0, NULL, b->stage[1]);
    TG_CALL(slope_of(b, b->stage[1], b->slope[2]));
    combine(n, half, b->stage[0], q, 2.0, b->slope[2], -1.0, b->slope[0], b->stage[2]);
    TG_CALL(slope_of(b, b->stage[2], b->slope[3]));
    for (int64_t i = 0; i < 2 * n; i++) {
        const int64_t k = i / 2;
        u[i] = whole[k] * u[i] + first[k] * b->slope[0][i] +
               middle[k] * (b->slope[1][i] + b->slope[2][i]) + end[k] * b->slope[3][i];
    }
    return TG_OK;
}

tg_status tg_burgers_integrate(tg_burgers *b, double time, int64_t steps, double *u) {
    make_tables(b, time / (double)steps);
    for (int64_t i = 0; i < steps; i++) {
        TG_CALL(step(b, u));
    }
    return TG_OK;
}

tg_status tg_burgers_steps(tg_burgers *b, double time, const double *u, int64_t *steps) {
    tg_status status =
        b->be->ops->fft(b->be, b->plan, TG_FFT_INVERSE, 1, TG_FFT_PLAIN, 1.0, u, b->values);
    double largest = 0.0;
    for (int64_t i = 0; i < b->grid; i++) {
        largest = fmax(largest, fabs(b->values[i]));
    }
    const double count = fmax(2.0 * largest * time * (double)b->grid, time / LONGEST_STEP);
    if (status == TG_OK && !(count <= MAX_STEPS)) {
        status = tg_fail(b->be->ctx, TG_E_NUMERIC,
                         "%g time steps are needed for a velocity of %g, and %g are allowed", count,
                         largest, MAX_STEPS);
    }
    *steps = status == TG_OK ? 1 + (int64_t)count : 0;
    return status;
}

/* ---- the data set ---- */

typedef struct config {
    double viscosity, time, alpha, tau, sigma;
    int64_t grid;
} config;

static const config defaults = {
    .viscosity = 0.01, .time = 1.0, .alpha = 4.0, .tau = 5.0, .sigma = 625.0};

static const tg_setting params[] = {
    TG_PDE_ROW(DOUBLE, viscosity, 1e-6, 1e6, "viscosity nu"),
    TG_PDE_ROW(DOUBLE, time, 0.0, 1e6, "end time T"),
    TG_PDE_ROW(DOUBLE, alpha, 0.0, 100.0, "u(x, 0): covariance s^2 (-Lap + tau^2)^-alpha"),
    TG_PDE_ROW(DOUBLE, tau, 0.0, 1e6, "inverse length in it"),
    TG_PDE_ROW(DOUBLE, sigma, 0.0, 1e12, "scale s of it"),
    TG_PDE_GRID("512"),
};

static tg_status prepare(tg_context *ctx, void *c, int64_t finest) {
    return tg_pde_choose_grid(ctx, "burgers", 512, 1, finest, &((config *)c)->grid);
}

typedef struct solver {
    const config *config;
    tg_burgers *burgers;
    double *u;      /* (K + 1) complex */
    int64_t frames; /* of a sample */
    tg_samplers outlets;
} solver;

static tg_status open_solver(const tg_pde_setup *setup, void *handle) {
    solver *s = handle;
    s->config = setup->config;
    s->frames = setup->frames ? setup->frames : 2;
    TG_CALL(tg_burgers_create(setup->pool, setup->be, s->config->grid, s->config->viscosity,
                              &s->burgers));
    TG_CALL(TG_POOL(setup->pool, s->u, 2 * (tg_burgers_modes(s->burgers) + 1)));
    return tg_samplers_open(setup, 1, &s->outlets);
}

/* Advances by `time`. */
static tg_status advance(solver *s, double time) {
    int64_t steps = 0;
    TG_CALL(tg_burgers_steps(s->burgers, time, s->u, &steps));
    TG_CALL(tg_burgers_integrate(s->burgers, time, steps, s->u));
    for (int64_t i = 0; i < 2 * (tg_burgers_modes(s->burgers) + 1); i++) {
        if (!isfinite(s->u[i])) {
            return tg_fail(s->burgers->be->ctx, TG_E_NUMERIC,
                           "the solution is not finite; a finer grid than %lld points may help",
                           (long long)s->config->grid);
        }
    }
    return TG_OK;
}

static tg_status sample(void *handle, const tg_field_key *key, const tg_pde_view *views) {
    solver *s = handle;
    const config *c = s->config;
    const tg_covariance covariance = {c->alpha, c->tau, c->sigma};
    const int64_t modes = tg_burgers_modes(s->burgers);
    tg_grf_periodic_1d(key, &covariance, modes, s->u);
    for (int64_t frame = 0; frame < s->frames; frame++) {
        TG_CALL(frame > 0 ? advance(s, c->time / (double)(s->frames - 1)) : TG_OK);
        for (int i = 0; i < s->outlets.count; i++) {
            float *out = tg_pde_frame(&views[i], frame, views[i].resolution);
            TG_CALL(tg_sampler_real(s->outlets.item[i], modes, s->u, out));
        }
    }
    return TG_OK;
}

const tg_pde tg_pde_burgers = {
    .name = "burgers",
    .summary = "Burgers' equation in 1-D: initial velocity -> velocity at time T",
    .id = 1,
    .dtype = TG_F32,
    .ndim = 1,
    .channels = {1, 1},
    .fields = {"u(x, 0)", "u(x, T)"},
    .frame_field = "u(x, t)",
    .usual_samples = {1000, 200},
    .resolution = 128,
    TG_PDE_SOLVER(solver),
    .sample = sample,
};
