/* A pulse in a periodically poled waveguide: dispersion, Kerr effect and parametric coupling to the
 * conjugate envelope,
 *
 *     dA/dz = -i (b2 / 2) A_tt + i gamma |A|^2 A + i kappa A* e^{i dk z},
 *
 * A(0, .) and the parameters of the guide -> A(L, .). Strang splitting: half a step of dispersion
 * (a phase per frequency), half of Kerr (a phase per point), a step of coupling, and the half steps
 * again in reverse order; each part is exact, with the phase of coupling at mid-step. Second order.
 * Neighbouring half steps of dispersion are merged. */
#include "pde/solvers.h"

#include <math.h>
#include <stddef.h>

#include "pde/fields.h"
#include "pde/pde.h"

#define PI 3.14159265358979323846

struct tg_pulse {
    tg_backend *be;
    int64_t points;
    double window;
    tg_fft_plan *plan;
    double *envelope; /* (points) complex, like the two phases */
    double *half;     /* of dispersion over half a step */
    double *whole;
};

/* ---- propagation ---- */

int64_t tg_pulse_first(const tg_pulse *p) {
    return -(p->points / 2);
}

tg_status tg_pulse_create(tg_pool *pool, tg_backend *be, int64_t points, double window,
                          tg_pulse **out) {
    TG_CALL(TG_POOL(pool, *out, 1));
    tg_pulse *p = *out;
    *p = (tg_pulse){.be = be, .points = points, .window = window};
    TG_CALL(TG_POOL(pool, p->envelope, 2 * points));
    TG_CALL(TG_POOL(pool, p->half, 2 * points));
    TG_CALL(TG_POOL(pool, p->whole, 2 * points));
    const tg_fft_desc desc = {.dtype = TG_F64,
                              .complex = true,
                              .ndim = 1,
                              .grid = {points},
                              .kept = {points},
                              .first = {tg_pulse_first(p)},
                              .howmany = 1};
    return tg_pool_fft(pool, be, &desc, &p->plan);
}

tg_status tg_pulse_analyse(tg_pulse *p, const double *envelope, double *spectrum) {
    return p->be->ops->fft(p->be, p->plan, TG_FFT_FORWARD, 1, TG_FFT_PLAIN, 1.0 / (double)p->points,
                           envelope, spectrum);
}

tg_status tg_pulse_synthesise(tg_pulse *p, const double *spectrum, double *envelope) {
    return p->be->ops->fft(p->be, p->plan, TG_FFT_INVERSE, 1, TG_FFT_PLAIN, 1.0, spectrum,
                           envelope);
}

/* z *= e, (n) complex each */
static void rotate(int64_t n, const double *e, double *z) {
    for (int64_t i = 0; i < n; i++) {
        const double re = z[2 * i], im = z[2 * i + 1];
        z[2 * i] = e[2 * i] * re - e[2 * i + 1] * im;
        z[2 * i + 1] = e[2 * i] * im + e[2 * i + 1] * re;
    }
}

/* Kerr over dz / 2, coupling over dz at z, Kerr over dz / 2, at every point. */
static void interact(tg_pulse *p, const tg_waveguide *g, double z, double dz) {
    const double grow = cosh(g->coupling * dz), mix = sinh(g->coupling * dz);
    /* i mix e^{i dk z} */
    const double c = -mix * sin(g->mismatch * z), d = mix * cos(g->mismatch * z);
    for (int64_t i = 0; i < p->points; i++) {
        double *a = p->envelope + 2 * i;
        for (int turn = 0; turn < 2; turn++) {
            const double phase = 0.5 * dz * g->kerr * (a[0] * a[0] + a[1] * a[1]);
            const double e[2] = {cos(phase), sin(phase)};
            rotate(1, e, a);
            if (turn == 0) {
                const double re = a[0], im = a[1];
                a[0] = grow * re + c * re + d * im;
                a[1] = grow * im + d * re - c * im;
            }
        }
    }
}

tg_status tg_pulse_propagate(tg_pulse *p, const tg_waveguide *g, int64_t steps, double *spectrum) {
    const double dz = g->length / (double)steps;
    for (int64_t k = 0; k < p->points; k++) {
        const double omega = 2.0 * PI * (double)(k + tg_pulse_first(p)) / p->window;
        const double phase = 0.5 * g->dispersion * omega * omega * dz;
        p->half[2 * k] = cos(0.5 * phase);
        p->half[2 * k + 1] = sin(0.5 * phase);
        p->whole[2 * k] = cos(phase);
        p->whole[2 * k + 1] = sin(phase);
    }
    rotate(p->points, p->half, spectrum);
    for (int64_t i = 0; i < steps; i++) {
        TG_CALL(tg_pulse_synthesise(p, spectrum, p->envelope));
        interact(p, g, ((double)i + 0.5) * dz, dz);
        TG_CALL(tg_pulse_analyse(p, p->envelope, spectrum));
        rotate(p->points, i + 1 < steps ? p->whole : p->half, spectrum);
    }
    return TG_OK;
}

/* ---- the data set ---- */

enum { CHANNELS = 4 }; /* A(0, .), poling length, period mismatch, energy */

typedef struct config {
    tg_list_double poling_length, energy, duration;
    double mismatch, chirp, period, dispersion, kerr, coupling, window, step;
    int64_t grid;
} config;

static const config defaults = {.poling_length = {2, {2.0, 15.0}},
                                .energy = {2, {5.0, 5000.0}},
                                .duration = {2, {30.0, 100.0}},
                                .mismatch = 50.0,
                                .chirp = 0.5,
                                .period = 5.0,
                                .dispersion = -10.0,
                                .kerr = 1e-3,
                                .coupling = 0.2,
                                .window = 2.0,
                                .step = 0.01};

static const tg_setting params[] = {
    TG_PDE_ROW(LIST_DOUBLE, poling_length, 0.0, 1e4, "range of the length of the guide, mm"),
    TG_PDE_ROW(DOUBLE, mismatch, 0.0, 1e3, "largest mismatch of the poling period, nm"),
    TG_PDE_ROW(LIST_DOUBLE, energy, 1e-9, 1e9, "range of the pulse energy, fJ"),
    TG_PDE_ROW(LIST_DOUBLE, duration, 1e-3, 1e6, "range of the width at half power, fs"),
    TG_PDE_ROW(DOUBLE, chirp, 0.0, 1e3, "largest chirp of the pulse"),
    TG_PDE_ROW(DOUBLE, period, 0.1, 1e3, "poling period that matches, um"),
    TG_PDE_ROW(DOUBLE, dispersion, -1e6, 1e6, "b2, fs^2/mm"),
    TG_PDE_ROW(DOUBLE, kerr, -1e6, 1e6, "gamma, 1/(W mm)"),
    TG_PDE_ROW(DOUBLE, coupling, -1e3, 1e3, "kappa, 1/mm"),
    TG_PDE_ROW(DOUBLE, window, 1e-3, 1e6, "length of the time window, ps"),
    TG_PDE_ROW(DOUBLE, step, 1e-6, 1e3, "longest step along the guide, mm"),
    TG_PDE_GRID("1024"),
};

static tg_status prepare(tg_context *ctx, void *handle, int64_t finest) {
    config *c = handle;
    if (1e-3 * c->mismatch >= c->period) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "em.mismatch: expected less than the period of %g um, found %g nm",
                       c->period, c->mismatch);
    }
    return tg_pde_choose_grid(ctx, "em", 1024, 2, finest, &c->grid);
}

typedef struct solver {
    const config *config;
    tg_pulse *pulse;
    double *envelope, *spectrum; /* (grid) complex */
    tg_samplers outlets;
} solver;

static tg_status open_solver(const tg_pde_setup *setup, void *handle) {
    solver *s = handle;
    s->config = setup->config;
    const int64_t grid = s->config->grid;
    TG_CALL(tg_pulse_create(setup->pool, setup->be, grid, 1e3 * s->config->window, &s->pulse));
    TG_CALL(TG_POOL(setup->pool, s->envelope, 2 * grid));
    TG_CALL(TG_POOL(setup->pool, s->spectrum, 2 * grid));
    return tg_samplers_open(setup, 1, &s->outlets);
}

/* The random parameters of a sample. */
typedef struct shot {
    double length, mismatch, energy, duration, chirp;
} shot;

static shot draw(const config *c, const tg_field_key *key) {
    const double *length = c->poling_length.value, *energy = c->energy.value;
    const double *duration = c->duration.value;
    return (shot){
        .length = tg_field_uniform(key, 0, length[0], length[1]),
        .mismatch = tg_field_uniform(key, 1, -c->mismatch, c->mismatch),
        .energy = exp(tg_field_uniform(key, 2, log(energy[0]), log(energy[1]))),
        .duration = tg_field_uniform(key, 3, duration[0], duration[1]),
        .chirp = tg_field_uniform(key, 4, -c->chirp, c->chirp),
    };
}

/* A chirped sech in the middle of the window: |A|^2 has full width `duration` at half maximum and
 * integral `energy`. */
static void set_pulse(solver *s, const shot *t) {
    const double scale = t->duration / (2.0 * acosh(sqrt(2.0)));
    const double top = sqrt(t->energy / (2.0 * scale));
    const double window = 1e3 * s->config->window;
    for (int64_t i = 0; i < s->config->grid; i++) {
        const double time = window * ((double)i / (double)s->config->grid - 0.5) / scale;
        const double size = top / cosh(fmin(fabs(time), 700.0));
        const double phase = -0.5 * t->chirp * time * time;
        s->envelope[2 * i] = size * cos(phase);
        s->envelope[2 * i + 1] = size * sin(phase);
    }
}

static void fill_constant(int64_t n, double value, float *out) {
    for (int64_t i = 0; i < n; i++) {
        out[2 * i] = (float)value;
        out[2 * i + 1] = 0.0f;
    }
}

static tg_status sample(void *handle, const tg_field_key *key, const tg_pde_view *views) {
    solver *s = handle;
    const config *c = s->config;
    const shot t = draw(c, key);
    const int64_t first = tg_pulse_first(s->pulse), n = c->grid;
    const double period = c->period + 1e-3 * t.mismatch;
    const tg_waveguide guide = {.dispersion = c->dispersion,
                                .kerr = c->kerr,
                                .coupling = c->coupling,
                                .mismatch = 2e3 * PI * (1.0 / period - 1.0 / c->period),
                                .length = t.length};
    set_pulse(s, &t);
    TG_CALL(tg_pulse_analyse(s->pulse, s->envelope, s->spectrum));
    for (int i = 0; i < s->outlets.count; i++) {
        const int64_t m = views[i].resolution;
        TG_CALL(tg_sampler_complex(s->outlets.item[i], first, n, s->spectrum, views[i].x));
        fill_constant(m, t.length, views[i].x + 2 * m);
        fill_constant(m, t.mismatch, views[i].x + 4 * m);
        fill_constant(m, t.energy, views[i].x + 6 * m);
    }
    TG_CALL(tg_pulse_propagate(s->pulse, &guide, 1 + (int64_t)(t.length / c->step), s->spectrum));
    for (int64_t i = 0; i < 2 * n; i++) {
        if (!isfinite(s->spectrum[i])) {
            return tg_fail(
                s->pulse->be->ctx, TG_E_NUMERIC,
                "the pulse is not finite after %g mm; a shorter step than %g mm may help", t.length,
                c->step);
        }
    }
    for (int i = 0; i < s->outlets.count; i++) {
        TG_CALL(tg_sampler_complex(s->outlets.item[i], first, n, s->spectrum, views[i].y));
    }
    return TG_OK;
}

const tg_pde tg_pde_em = {
    .name = "em",
    .summary = "Pulses in a nonlinear waveguide, complex, 1-D: envelope and guide -> envelope",
    .id = 5,
    .dtype = TG_C64,
    .ndim = 1,
    .channels = {CHANNELS, 1},
    .fields = {"A(0, t), poling length in mm, period mismatch in nm, energy in fJ", "A(L, t)"},
    .usual_samples = {800, 200},
    .resolution = 256,
    TG_PDE_SOLVER(solver),
    .sample = sample,
};
