/* Kolmogorov flow, see vorticity.c: [0, 2 pi)^2, driven by the velocity forcing (sin n y, 0), which
 * is -n cos n y for the vorticity. One flow in time from a random start; after it has forgotten
 * that, its frames give the pairs w(., t) -> w(., t + lag), the training pairs first and the test
 * pairs after them, without a common frame. */
#include <inttypes.h>
#include <math.h>
#include <stddef.h>

#include "pde/pde.h"
#include "pde/sampler.h"
#include "pde/vorticity.h"

#define TWO_PI 6.28318530717958647693

typedef struct config {
    double viscosity, alpha, tau, sigma, start, frame, cfl;
    int64_t wavenumber, lag, stride, grid;
} config;

static const config defaults = {.viscosity = 1e-4,
                                .alpha = 2.5,
                                .tau = 7.0,
                                .start = 30.0,
                                .frame = 1.0 / 256.0,
                                .cfl = 0.8,
                                .wavenumber = 4,
                                .lag = 256,
                                .stride = 4};

static const tg_pde_param params[] = {
    {{"viscosity", TG_SETTING_DOUBLE, offsetof(config, viscosity), NULL, 1e-9, 1e3},
     "viscosity nu"},
    {{"wavenumber", TG_SETTING_INT64, offsetof(config, wavenumber), NULL, 1.0, 1000.0},
     "n of the forcing sin(n y)"},
    {{"alpha", TG_SETTING_DOUBLE, offsetof(config, alpha), NULL, 0.0, 100.0},
     "start: cov. s^2 (-Lap + tau^2)^-alpha"},
    {{"tau", TG_SETTING_DOUBLE, offsetof(config, tau), NULL, 1e-6, 1e6}, "inverse length in it"},
    {{"sigma", TG_SETTING_DOUBLE, offsetof(config, sigma), NULL, 0.0, 1e12},
     "scale s of it; 0: tau^(alpha - 1)"},
    {{"start", TG_SETTING_DOUBLE, offsetof(config, start), NULL, 0.0, 1e6},
     "time of the first frame that is used"},
    {{"frame", TG_SETTING_DOUBLE, offsetof(config, frame), NULL, 1e-9, 1e3}, "time between frames"},
    {{"lag", TG_SETTING_INT64, offsetof(config, lag), NULL, 1.0, 1e6}, "frames from x to y"},
    {{"stride", TG_SETTING_INT64, offsetof(config, stride), NULL, 1.0, 1e6},
     "frames from one x to the next"},
    {{"cfl", TG_SETTING_DOUBLE, offsetof(config, cfl), NULL, 1e-3, 1.3},
     "cells that a time step moves at most"},
    {{"grid", TG_SETTING_INT64, offsetof(config, grid), NULL, 0.0, TG_PDE_MAX_GRID},
     "points solved on; 0: 1024 or finest used"},
};

static tg_status prepare(tg_context *ctx, void *handle, int64_t finest) {
    config *c = handle;
    if (c->sigma == 0.0) {
        c->sigma = tg_covariance_sigma(c->alpha, c->tau, 2);
    }
    if (c->lag % c->stride != 0) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "kolmogorov.lag: expected a multiple of the stride %" PRId64
                       ", found %" PRId64,
                       c->stride, c->lag);
    }
    /* The forcing's wave number must be one of those kept. */
    return tg_pde_choose_grid(ctx, "kolmogorov", 1024, 3 * c->wavenumber + 1, finest, &c->grid);
}

typedef struct solver {
    tg_context *ctx;
    config config;
    tg_vorticity *flow;
    tg_samplers outlets;
} solver;

static void close_solver(void **handle) {
    solver *s = *handle;
    if (!s) {
        return;
    }
    tg_samplers_close(&s->outlets);
    tg_vorticity_destroy(&s->flow);
    tg_mem_free(s->ctx, s);
    *handle = NULL;
}

static tg_status open_solver(const tg_pde_setup *setup, void **out) {
    tg_status status = TG_OK;
    solver *s = NULL;
    *out = NULL;
    TG_TRY(TG_NEW(setup->ctx, TG_MEM_WORKSPACE, s, 1));
    *out = s;
    s->ctx = setup->ctx;
    s->config = *(const config *)setup->config;
    const config *c = &s->config;
    const tg_vorticity_desc desc = {.grid = c->grid,
                                    .length = TWO_PI,
                                    .viscosity = c->viscosity,
                                    .cfl = c->cfl,
                                    .longest = c->frame * (double)c->stride};
    TG_TRY(tg_vorticity_create(setup->be, &desc, &s->flow));
    const int64_t modes = tg_vorticity_modes(s->flow), n = c->wavenumber;
    tg_vorticity_forcing(s->flow)[2 * (modes * (modes + 1) + n)] = -0.5 * (double)n; /* (0, n) */
    TG_TRY(tg_samplers_open(setup->be, 2, setup->views, setup->resolution, &s->outlets));
    return TG_OK;
fail:
    close_solver(out);
    return status;
}

/* ---- frames: every stride-th one counts ---- */

static void pace(const void *handle, int64_t *spin_up, int64_t *lag) {
    const config *c = handle;
    *spin_up = (int64_t)ceil(c->start / (c->frame * (double)c->stride));
    *lag = c->lag / c->stride;
}

static void start(void *handle, const tg_field_key *key) {
    solver *s = handle;
    const config *c = &s->config;
    const tg_covariance covariance = {c->alpha, c->tau, c->sigma};
    const int64_t modes = tg_vorticity_modes(s->flow);
    tg_grf_periodic_2d(key, &covariance, TWO_PI, modes, tg_vorticity_state(s->flow));
}

static tg_status advance(void *handle) {
    solver *s = handle;
    return tg_vorticity_advance(s->flow, s->config.frame * (double)s->config.stride);
}

static tg_status render(void *handle, int view, float *out) {
    solver *s = handle;
    return tg_sampler_real(s->outlets.item[view], tg_vorticity_modes(s->flow),
                           tg_vorticity_state(s->flow), out);
}

static void *state(void *handle, size_t *bytes) {
    solver *s = handle;
    const size_t modes = (size_t)tg_vorticity_modes(s->flow);
    *bytes = 2 * (2 * modes + 1) * (modes + 1) * sizeof(double);
    return tg_vorticity_state(s->flow);
}

static const tg_pde_stream stream = {
    .pace = pace, .start = start, .advance = advance, .render = render, .state = state};

const tg_pde tg_pde_kolmogorov = {
    .name = "kolmogorov",
    .summary = "Kolmogorov flow in 2-D: vorticity -> vorticity some time later",
    .id = 4,
    .dtype = TG_F32,
    .ndim = 2,
    .x_channels = 1,
    .y_channels = 1,
    .x_field = "vorticity w(., t)",
    .y_field = "vorticity w(., t + lag)",
    .n_train = 1000,
    .n_test = 200,
    .resolution = 1024,
    .min_resolution = 1,
    .config_bytes = sizeof(config),
    .defaults = &defaults,
    .params = params,
    .param_count = sizeof params / sizeof params[0],
    .prepare = prepare,
    .open = open_solver,
    .close = close_solver,
    .stream = &stream,
};
