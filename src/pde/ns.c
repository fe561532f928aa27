/* Navier-Stokes on a periodic square as vorticity, see vorticity.c: w(., 0) -> w(., T) with the
 * forcing 0.1 (sin 2 pi (x + y) + cos 2 pi (x + y)); or, starting at rest, forcing -> w(., T). */
#include <math.h>
#include <stddef.h>

#include "pde/pde.h"
#include "pde/sampler.h"
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

static const tg_pde_param params[] = {
    {{"reynolds", TG_SETTING_DOUBLE, offsetof(config, reynolds), NULL, 1e-3, 1e9}, "1 / viscosity"},
    {{"time", TG_SETTING_DOUBLE, offsetof(config, time), NULL, 0.0, 1e6}, "end time T"},
    {{"input", TG_SETTING_ENUM, offsetof(config, input), inputs, 0.0, 0.0},
     "what x is: vorticity at 0, or forcing"},
    {{"alpha", TG_SETTING_DOUBLE, offsetof(config, alpha), NULL, 0.0, 100.0},
     "x has covariance s^2 (-Lap + tau^2)^-alpha"},
    {{"tau", TG_SETTING_DOUBLE, offsetof(config, tau), NULL, 1e-6, 1e6}, "inverse length in it"},
    {{"sigma", TG_SETTING_DOUBLE, offsetof(config, sigma), NULL, 0.0, 1e12},
     "scale s of it; 0: tau^(alpha - 1)"},
    {{"forcing", TG_SETTING_DOUBLE, offsetof(config, forcing), NULL, -1e6, 1e6},
     "amplitude of the forcing, if x is vorticity"},
    {{"length", TG_SETTING_DOUBLE, offsetof(config, length), NULL, 1e-3, 1e6},
     "side of the periodic square"},
    {{"cfl", TG_SETTING_DOUBLE, offsetof(config, cfl), NULL, 1e-3, 1.3},
     "cells that a time step moves at most"},
    {{"grid", TG_SETTING_INT64, offsetof(config, grid), NULL, 0.0, TG_PDE_MAX_GRID},
     "points solved on; 0: 256 or finest used"},
};

static tg_status prepare(tg_context *ctx, void *handle, int64_t finest) {
    config *c = handle;
    if (c->sigma == 0.0) {
        c->sigma = tg_covariance_sigma(c->alpha, c->tau, 2);
    }
    return tg_pde_choose_grid(ctx, "ns", 256, 4, finest, &c->grid);
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
                                    .length = c->length,
                                    .viscosity = 1.0 / c->reynolds,
                                    .cfl = c->cfl,
                                    .longest = c->time / 50.0};
    TG_TRY(tg_vorticity_create(setup->be, &desc, &s->flow));
    TG_TRY(tg_samplers_open(setup->be, 2, setup->views, setup->resolution, &s->outlets));
    return TG_OK;
fail:
    close_solver(out);
    return status;
}

/* a (sin + cos)(2 pi (x + y) / length): coefficient a (1 - i) / 2 of k = (1, 1). */
static void set_usual_forcing(solver *s) {
    const int64_t modes = tg_vorticity_modes(s->flow);
    double *entry = tg_vorticity_forcing(s->flow) + 2 * ((modes + 1) * (modes + 1) + 1);
    entry[0] = 0.5 * s->config.forcing;
    entry[1] = -0.5 * s->config.forcing;
}

static tg_status sample(void *handle, const tg_field_key *key, const tg_pde_view *views) {
    tg_status status = TG_OK;
    solver *s = handle;
    const config *c = &s->config;
    const tg_covariance covariance = {c->alpha, c->tau, c->sigma};
    const int64_t modes = tg_vorticity_modes(s->flow);
    double *w = tg_vorticity_state(s->flow), *x = w;
    if (c->input == INPUT_FORCING) {
        x = tg_vorticity_forcing(s->flow);
        for (int64_t i = 0; i < 2 * (2 * modes + 1) * (modes + 1); i++) {
            w[i] = 0.0;
        }
    } else {
        set_usual_forcing(s);
    }
    tg_grf_periodic_2d(key, &covariance, c->length, modes, x);
    for (int i = 0; i < s->outlets.count; i++) {
        TG_TRY(tg_sampler_real(s->outlets.item[i], modes, x, views[i].x));
    }
    TG_TRY(tg_vorticity_advance(s->flow, c->time));
    for (int i = 0; i < s->outlets.count; i++) {
        TG_TRY(tg_sampler_real(s->outlets.item[i], modes, w, views[i].y));
    }
    return TG_OK;
fail:
    return status;
}

const tg_pde tg_pde_ns = {
    .name = "ns",
    .summary = "Navier-Stokes in 2-D: initial vorticity (or forcing) -> vorticity at time T",
    .id = 3,
    .dtype = TG_F32,
    .ndim = 2,
    .x_channels = 1,
    .y_channels = 1,
    .x_field = "vorticity w(., 0), or forcing",
    .y_field = "vorticity w(., T)",
    .n_train = 10000,
    .n_test = 2000,
    .resolution = 128,
    .min_resolution = 1,
    .config_bytes = sizeof(config),
    .defaults = &defaults,
    .params = params,
    .param_count = sizeof params / sizeof params[0],
    .prepare = prepare,
    .open = open_solver,
    .close = close_solver,
    .sample = sample,
};
