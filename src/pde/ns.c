/* Navier-Stokes on a periodic square as vorticity, see vorticity.c: w(., 0) -> w(., T) with the
 * forcing 0.1 (sin 2 pi (x + y) + cos 2 pi (x + y)); or, starting at rest, forcing -> w(., T). */
#include <stddef.h>
#include <string.h>

#include "pde/vorticity.h"

typedef enum input { INPUT_VORTICITY, INPUT_FORCING } input;

static const tg_choice inputs[] = {
    {"vorticity", INPUT_VORTICITY}, {"forcing", INPUT_FORCING}, {NULL, 0}};

typedef struct config {
    int input;
    double reynolds, time, alpha, tau, sigma, forcing, length, cfl;
    int64_t grid;
} config;

static const config defaults = {.input = INPUT_VORTICITY,
                                .reynolds = 1000.0,
                                .time = 5.0,
                                .alpha = 2.5,
                                .tau = 7.0,
                                .forcing = 0.1,
                                .length = 1.0,
                                .cfl = 1.0};

static const tg_setting params[] = {
    TG_PDE_ROW(DOUBLE, reynolds, 1e-3, 1e9, "1 / viscosity"),
    TG_PDE_ROW(DOUBLE, time, 0.0, 1e6, "end time T"),
    {"input", TG_SETTING_ENUM, offsetof(config, input), inputs, 0.0, 0.0,
     "x: vorticity at 0, or forcing"},
    TG_PDE_ROW(DOUBLE, alpha, 0.0, 100.0, "x has covariance s^2 (-Lap + tau^2)^-alpha"),
    TG_PDE_ROW(DOUBLE, tau, 1e-6, 1e6, "inverse length in it"),
    TG_PDE_ROW(DOUBLE, sigma, 0.0, 1e12, "scale s of it; 0: tau^(alpha - 1)"),
    TG_PDE_ROW(DOUBLE, forcing, -1e6, 1e6, "amplitude of the forcing, if x is vorticity"),
    TG_PDE_ROW(DOUBLE, length, 1e-3, 1e6, "side of the periodic square"),
    TG_PDE_ROW(DOUBLE, cfl, 1e-3, 1.3, "maximum cells moved per time step"),
    TG_PDE_GRID("256"),
};

static tg_status prepare(tg_context *ctx, void *handle, int64_t finest) {
    config *c = handle;
    if (c->sigma == 0.0) {
        c->sigma = tg_covariance_sigma(c->alpha, c->tau);
    }
    return tg_pde_choose_grid(ctx, "ns", 256, 4, finest, &c->grid);
}

static tg_vorticity_desc describe(const config *c) {
    return (tg_vorticity_desc){.grid = c->grid,
                               .length = c->length,
                               .viscosity = 1.0 / c->reynolds,
                               .cfl = c->cfl,
                               .longest = c->time / 50.0};
}

/* On a device: a gibibyte of flows keeps it busy. */
static int64_t batch(const void *handle) {
    const tg_vorticity_desc desc = describe(handle);
    return tg_vorticity_flows(&desc, (size_t)1 << 30);
}

static tg_status open_solver(const tg_pde_setup *setup, void *handle) {
    const tg_vorticity_desc desc = describe(setup->config);
    return tg_flow_solver_open(setup, &desc, handle);
}

/* a (sin + cos)(2 pi (x + y) / length): coefficient a (1 - i) / 2 of k = (1, 1). */
static void set_usual_forcing(const config *c, int64_t modes, double *forcing) {
    double *entry = forcing + 2 * ((modes + 1) * (modes + 1) + 1);
    entry[0] = 0.5 * c->forcing;
    entry[1] = -0.5 * c->forcing;
}

static tg_status samples(void *handle, int64_t count, const tg_field_key *keys,
                         const tg_pde_view *views, int64_t *failed) {
    tg_flow_solver *s = handle;
    const config *c = s->config;
    const tg_covariance covariance = {c->alpha, c->tau, c->sigma};
    const int64_t modes = tg_vorticity_modes(s->flow), reals = tg_vorticity_reals(s->flow);
    const int outlets = s->outlets.count, threads = s->threads;
    double *w = tg_vorticity_state(s->flow), *forcing = tg_vorticity_forcing(s->flow);
    double *x = c->input == INPUT_FORCING ? forcing : w;
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < count; i++) {
        if (c->input == INPUT_FORCING) {
            memset(w + i * reals, 0, (size_t)reals * sizeof *w);
        } else {
            set_usual_forcing(c, modes, forcing + i * reals);
        }
        tg_grf_periodic_2d(&keys[i], &covariance, c->length, modes, x + i * reals);
    }
    for (int64_t frame = 0; frame < s->frames; frame++) {
        const double *seen = frame == 0 ? x : w;
        if (frame > 0) {
            TG_CALL(
                tg_vorticity_advance(s->flow, count, c->time / (double)(s->frames - 1), failed));
        }
        for (int64_t i = 0; i < count * outlets; i++) {
            const int64_t points = views[i].resolution * views[i].resolution;
            TG_CALL(tg_flow_solver_render(s, (int)(i % outlets), seen + i / outlets * reals,
                                          tg_pde_frame(&views[i], frame, points)));
        }
    }
    return TG_OK;
}

const tg_pde tg_pde_ns = {
    .name = "ns",
    .summary = "Navier-Stokes in 2-D: initial vorticity (or forcing) -> vorticity at time T",
    .id = 3,
    .dtype = TG_F32,
    .ndim = 2,
    .channels = {1, 1},
    .fields = {"vorticity w(., 0), or forcing", "vorticity w(., T)"},
    .frame_field = "vorticity w(., t)",
    .usual_samples = {10000, 2000},
    .resolution = 128,
    TG_PDE_SOLVER(tg_flow_solver),
    .batch = batch,
    .samples = samples,
    .on_device = true,
};
