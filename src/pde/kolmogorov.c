/* Kolmogorov flow, see vorticity.c: [0, 2 pi)^2, driven by the velocity forcing (sin n y, 0), which
 * is -n cos n y for the vorticity. Flows in time from random starts; after the spin-up, the frames
 * give the pairs w(., t) -> w(., t + lag), which trajectory.c splits into training and test. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "pde/vorticity.h"

#define TWO_PI 6.28318530717958647693

typedef enum split { SPLIT_LATER, SPLIT_SHUFFLED } split;

static const tg_choice splits[] = {{"later", SPLIT_LATER}, {"shuffled", SPLIT_SHUFFLED}, {NULL, 0}};

typedef struct config {
    int split;
    double viscosity, alpha, tau, sigma, start, frame, cfl;
    int64_t wavenumber, lag, stride, trajectories, grid;
} config;

static const config defaults = {.viscosity = 1e-4,
                                .alpha = 2.5,
                                .tau = 7.0,
                                .start = 30.0,
                                .frame = 1.0 / 256.0,
                                .cfl = 0.8,
                                .wavenumber = 4,
                                .lag = 256,
                                .stride = 4,
                                .trajectories = 1};

static const tg_setting params[] = {
    TG_PDE_ROW(DOUBLE, viscosity, 1e-9, 1e3, "viscosity nu"),
    TG_PDE_ROW(INT64, wavenumber, 1.0, 1000.0, "n of the forcing sin(n y)"),
    TG_PDE_ROW(DOUBLE, alpha, 0.0, 100.0, "start: cov. s^2 (-Lap + tau^2)^-alpha"),
    TG_PDE_ROW(DOUBLE, tau, 1e-6, 1e6, "inverse length in it"),
    TG_PDE_ROW(DOUBLE, sigma, 0.0, 1e12, "scale s of it; 0: tau^(alpha - 1)"),
    TG_PDE_ROW(DOUBLE, start, 0.0, 1e6, "time of the first frame that is used"),
    TG_PDE_ROW(DOUBLE, frame, 1e-9, 1e3, "time between frames"),
    TG_PDE_ROW(INT64, lag, 1.0, 1e6, "frames from x to y"),
    TG_PDE_ROW(INT64, stride, 1.0, 1e6, "frames from one x to the next"),
    TG_PDE_ROW(INT64, trajectories, 1.0, 1000.0, "independent starts that share the pairs"),
    TG_SETTING_CHOICE(config, split, splits, "test pairs: later, or shuffled"),
    TG_PDE_ROW(DOUBLE, cfl, 1e-3, 1.3, "maximum cells moved per time step"),
    TG_PDE_GRID("1024"),
};

static tg_status prepare(tg_context *ctx, void *handle, int64_t finest) {
    config *c = handle;
    if (c->sigma == 0.0) {
        c->sigma = tg_covariance_sigma(c->alpha, c->tau);
    }
    if (c->lag % c->stride != 0) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "kolmogorov.lag: expected a multiple of the stride %" PRId64
                       ", found %" PRId64,
                       c->stride, c->lag);
    }
    /* The forcing's wave number must be kept. */
    return tg_pde_choose_grid(ctx, "kolmogorov", 1024, 3 * c->wavenumber + 1, finest, &c->grid);
}

static tg_status open_solver(const tg_pde_setup *setup, void *handle) {
    const config *c = setup->config;
    const tg_vorticity_desc desc = {.grid = c->grid,
                                    .length = TWO_PI,
                                    .viscosity = c->viscosity,
                                    .cfl = c->cfl,
                                    .longest = c->frame * (double)c->stride};
    tg_flow_solver *s = handle;
    TG_CALL(tg_flow_solver_open(setup, &desc, s));
    const int64_t modes = tg_vorticity_modes(s->flow), n = c->wavenumber;
    tg_vorticity_forcing(s->flow)[2 * (modes * (modes + 1) + n)] = -0.5 * (double)n; /* (0, n) */
    return TG_OK;
}

/* ---- frames: every stride-th one is stored ---- */

static void pairing(const void *handle, tg_pde_pairing *out) {
    const config *c = handle;
    *out = (tg_pde_pairing){.spin_up = (int64_t)ceil(c->start / (c->frame * (double)c->stride)),
                            .lag = c->lag / c->stride,
                            .trajectories = c->trajectories,
                            .shuffled = c->split == SPLIT_SHUFFLED};
}

static void start(void *handle, const tg_field_key *key) {
    tg_flow_solver *s = handle;
    const config *c = s->config;
    const tg_covariance covariance = {c->alpha, c->tau, c->sigma};
    const int64_t modes = tg_vorticity_modes(s->flow);
    tg_grf_periodic_2d(key, &covariance, TWO_PI, modes, tg_vorticity_state(s->flow));
}

static tg_status advance(void *handle) {
    tg_flow_solver *s = handle;
    const config *c = s->config;
    return tg_vorticity_advance(s->flow, 1, c->frame * (double)c->stride, NULL);
}

static tg_status render(void *handle, int view, float *out) {
    tg_flow_solver *s = handle;
    return tg_flow_solver_render(s, view, tg_vorticity_state(s->flow), out);
}

static void *state(void *handle, size_t *bytes) {
    tg_flow_solver *s = handle;
    *bytes = (size_t)tg_vorticity_reals(s->flow) * sizeof(double);
    return tg_vorticity_state(s->flow);
}

static const tg_pde_trajectory trajectory = {
    .pairing = pairing, .start = start, .advance = advance, .render = render, .state = state};

const tg_pde tg_pde_kolmogorov = {
    .name = "kolmogorov",
    .summary = "Kolmogorov flow in 2-D: vorticity -> vorticity some time later",
    .id = 4,
    .dtype = TG_F32,
    .ndim = 2,
    .channels = {1, 1},
    .fields = {"vorticity w(., t)", "vorticity w(., t + lag)"},
    .usual_samples = {1577, 279},
    .resolution = 1024,
    TG_PDE_SOLVER(tg_flow_solver),
    .on_device = true,
    .trajectory = &trajectory,
};
