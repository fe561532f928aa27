/* Fourier-Galerkin in space: only |k1|, |k2| <= K with 3 K < N are kept (the 2/3 rule), so that
 * products are free of aliasing. With psi = -Laplace^{-1} w the velocity is (psi_y, -psi_x), and
 * since it is free of divergence
 *
 *     u.grad w = d_xy (v^2 - u^2) + (d_xx - d_yy) (u v),
 *
 * which takes two transforms in each direction instead of the plain form's four and one. In time:
 * Runge-Kutta of order four on e^{-nu Laplace t} w (integrating factor), so that viscosity is exact
 * and not stiff. The factor of half a step is a product of one for x and one for y.
 *
 * The backend does all arithmetic (backend/backend.h); this file has the order of operations and
 * the step lengths: each flow has its own, from the speed that the backend finds. A flow that has
 * arrived takes steps of length 0, which change nothing, so that every call has the same shape and
 * the bits of a flow do not depend on the others. */
#include "pde/vorticity.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"

#define MAX_STEPS 1e7 /* in one call */

enum { MAX_FLOWS = 256 };

/* Arrays of the backend, spectra (flows, 2K + 1, K + 1) complex. */
typedef struct arrays {
    double *state, *forcing, *next, *sum; /* spectra */
    double *pair;                         /* two spectra each: velocity, then products */
    double *values;                       /* (flows, 2, N, N) */
    double *decay;                        /* (flows, 2K + 1), over half a step of length dt */
    double *dt, *speed;                   /* (flows) */
} arrays;

struct tg_vorticity {
    tg_backend *be;
    tg_vorticity_desc desc;
    tg_flow flow;
    tg_fft_plan *plan; /* real, two fields of each flow */
    arrays at;
    double *state, *forcing; /* spectra on the host; a host backend's own */
    double *remaining, *dt;  /* (flows) on the host: remaining time, and the step */
    double *speed;           /* (flows) on the host */
    bool has_decay;          /* at.decay is valid for dt */
    bool has_forcing;        /* at.forcing matches the host's */
};

static bool on_host(const tg_vorticity *v) {
    return v->be->ops->place == TG_HOST;
}

static int64_t modes_of(int64_t grid) {
    return (grid - 1) / 3;
}

static int64_t reals_of(int64_t modes) {
    return 2 * (2 * modes + 1) * (modes + 1);
}

int64_t tg_vorticity_flows(const tg_vorticity_desc *desc, size_t bytes) {
    const int64_t spectrum = reals_of(modes_of(desc->grid)), points = desc->grid * desc->grid;
    const int64_t one = (6 * spectrum + 2 * points) * (int64_t)sizeof(double);
    const int64_t fit = (int64_t)bytes / one;
    return fit < 1 ? 1 : fit < MAX_FLOWS ? fit : MAX_FLOWS;
}

typedef struct owned_block {
    tg_backend *be;
    void *block;
} owned_block;

static void release_block(void *item) {
    const owned_block *owned = item;
    owned->be->ops->release(owned->be, owned->block);
}

/* Memory of the backend, released with the pool. */
static tg_status take(tg_pool *pool, tg_backend *be, int64_t count, double **out) {
    owned_block *owned = tg_pool_alloc(pool, 1, sizeof *owned, release_block);
    if (!owned) {
        return TG_E_MEMORY;
    }
    owned->be = be;
    *out = owned->block = be->ops->alloc(be, TG_MEM_WORKSPACE, (size_t)count * sizeof **out);
    return *out ? TG_OK : TG_E_MEMORY;
}

/* A plan between spectra and grids of n x n points. */
static tg_status plan_fft(tg_pool *pool, tg_backend *be, int64_t n, int64_t modes, int64_t howmany,
                          tg_fft_plan **out) {
    const tg_fft_desc desc = {.dtype = TG_F64,
                              .ndim = 2,
                              .grid = {n, n},
                              .kept = {2 * modes + 1, modes + 1},
                              .first = {-modes, 0},
                              .howmany = howmany};
    return tg_pool_fft(pool, be, &desc, out);
}

tg_status tg_vorticity_create(tg_pool *pool, tg_backend *be, const tg_vorticity_desc *desc,
                              tg_vorticity **out) {
    const int64_t flows = desc->flows > 0 ? desc->flows : 1, modes = modes_of(desc->grid);
    const int64_t reals = flows * reals_of(modes);
    TG_CALL(TG_POOL(pool, *out, 1));
    tg_vorticity *v = *out;
    *v = (tg_vorticity){.be = be, .desc = *desc, .flow = {flows, desc->grid, modes, desc->length}};
    TG_CALL(TG_POOL(pool, v->state, reals));
    TG_CALL(TG_POOL(pool, v->forcing, reals));
    v->at.state = v->state;
    v->at.forcing = v->forcing;
    if (!on_host(v)) {
        TG_CALL(take(pool, be, reals, &v->at.state));
        TG_CALL(take(pool, be, reals, &v->at.forcing));
    }
    TG_CALL(take(pool, be, reals, &v->at.next));
    TG_CALL(take(pool, be, reals, &v->at.sum));
    TG_CALL(take(pool, be, 2 * reals, &v->at.pair));
    TG_CALL(take(pool, be, 2 * flows * desc->grid * desc->grid, &v->at.values));
    TG_CALL(take(pool, be, flows * (2 * modes + 1), &v->at.decay));
    TG_CALL(take(pool, be, flows, &v->at.dt));
    TG_CALL(take(pool, be, flows, &v->at.speed));
    TG_CALL(TG_POOL(pool, v->remaining, flows));
    TG_CALL(TG_POOL(pool, v->dt, flows));
    TG_CALL(TG_POOL(pool, v->speed, flows));
    return plan_fft(pool, be, desc->grid, modes, 2 * flows, &v->plan);
}

int64_t tg_vorticity_modes(const tg_vorticity *v) {
    return v->flow.modes;
}

int64_t tg_vorticity_reals(const tg_vorticity *v) {
    return reals_of(v->flow.modes);
}

double *tg_vorticity_state(tg_vorticity *v) {
    return v->state;
}

double *tg_vorticity_forcing(tg_vorticity *v) {
    v->has_forcing = false; /* the caller may write to it */
    return v->forcing;
}

/* ---- between the host and the backend ---- */

static size_t spectra_bytes(const tg_vorticity *v) {
    return (size_t)(v->flow.flows * reals_of(v->flow.modes)) * sizeof(double);
}

static tg_status upload_spectra(tg_vorticity *v) {
    if (!on_host(v)) {
        TG_CALL(v->be->ops->upload(v->be, v->at.state, v->state, spectra_bytes(v)));
    }
    if (!on_host(v) && !v->has_forcing) {
        TG_CALL(v->be->ops->upload(v->be, v->at.forcing, v->forcing, spectra_bytes(v)));
        v->has_forcing = true;
    }
    return TG_OK;
}

static tg_status download_state(tg_vorticity *v) {
    return on_host(v) ? TG_OK
                      : v->be->ops->download(v->be, v->state, v->at.state, spectra_bytes(v));
}

/* ---- one step ---- */

/* values = velocity of w at the points. */
static tg_status velocity_of(tg_vorticity *v, const double *w) {
    const tg_backend_ops *ops = v->be->ops;
    const tg_flow_op op = {.of = v->flow, .part = TG_FLOW_VELOCITY, .w = w, .velocity = v->at.pair};
    TG_CALL(ops->flow(v->be, &op));
    return ops->fft(v->be, v->plan, TG_FFT_INVERSE, 2 * v->flow.flows, TG_FFT_PLAIN, 1.0,
                    v->at.pair, v->at.values);
}

/* pair = spectra of the products of w; also finds the largest speed. */
static tg_status products_of(tg_vorticity *v, const double *w) {
    const tg_backend_ops *ops = v->be->ops;
    const double points = (double)(v->flow.grid * v->flow.grid);
    TG_CALL(velocity_of(v, w));
    const tg_flow_op op = {
        .of = v->flow, .part = TG_FLOW_PRODUCTS, .values = v->at.values, .speed = v->at.speed};
    TG_CALL(ops->flow(v->be, &op));
    return ops->fft(v->be, v->plan, TG_FFT_FORWARD, 2 * v->flow.flows, TG_FFT_PLAIN, 1.0 / points,
                    v->at.values, v->at.pair);
}

static tg_status run_stage(tg_vorticity *v, int stage) {
    const tg_flow_op op = {.of = v->flow,
                           .part = (tg_flow_part)(TG_FLOW_STAGE_0 + stage),
                           .dt = v->at.dt,
                           .decay = v->at.decay,
                           .products = v->at.pair,
                           .forcing = v->at.forcing,
                           .state = v->at.state,
                           .next = v->at.next,
                           .sum = v->at.sum};
    return v->be->ops->flow(v->be, &op);
}

static void set_step(tg_vorticity *v, int64_t flow, double dt) {
    v->has_decay = v->has_decay && v->dt[flow] == dt;
    v->dt[flow] = dt;
}

/* One step of each flow; the products of the state have been computed. */
static tg_status finish_step(tg_vorticity *v) {
    const tg_backend_ops *ops = v->be->ops;
    if (!v->has_decay) {
        TG_CALL(ops->upload(v->be, v->at.dt, v->dt, (size_t)v->flow.flows * sizeof *v->dt));
        const tg_flow_op op = {.of = v->flow,
                               .part = TG_FLOW_DECAY,
                               .viscosity = v->desc.viscosity,
                               .dt = v->at.dt,
                               .decay = v->at.decay};
        TG_CALL(ops->flow(v->be, &op));
        v->has_decay = true;
    }
    TG_CALL(run_stage(v, 0));
    for (int stage = 1; stage < 4; stage++) {
        TG_CALL(products_of(v, v->at.next));
        TG_CALL(run_stage(v, stage));
    }
    return TG_OK;
}

/* ---- time ---- */

/* Length of the next step of a flow; updates the remaining time. */
static tg_status choose_step(tg_vorticity *v, int64_t flow) {
    const double remaining = v->remaining[flow], speed = v->speed[flow];
    if (!(remaining > 0.0)) {
        set_step(v, flow, 0.0);
        return TG_OK;
    }
    const double cells = speed * (double)v->desc.grid / v->desc.length;
    const double steps = ceil(fmax(remaining * cells / v->desc.cfl, remaining / v->desc.longest));
    if (!isfinite(speed) || !(steps <= MAX_STEPS)) {
        return tg_fail(v->be->ctx, TG_E_NUMERIC,
                       "the flow has become too fast to follow (speed %g); a finer grid than "
                       "%lld points may help",
                       speed, (long long)v->desc.grid);
    }
    v->remaining[flow] = steps > 1.0 ? remaining - remaining / steps : 0.0;
    set_step(v, flow, remaining / steps);
    return TG_OK;
}

static tg_status choose_steps(tg_vorticity *v, int64_t *failed) {
    tg_status status = v->be->ops->download(v->be, v->speed, v->at.speed,
                                            (size_t)v->flow.flows * sizeof *v->speed);
    for (int64_t i = 0; i < v->flow.flows && status == TG_OK; i++) {
        status = choose_step(v, i);
        if (status != TG_OK && failed) {
            *failed = i;
        }
    }
    return status;
}

static bool has_arrived(const tg_vorticity *v) {
    for (int64_t i = 0; i < v->flow.flows; i++) {
        if (v->remaining[i] > 0.0) {
            return false;
        }
    }
    return true;
}

tg_status tg_vorticity_advance(tg_vorticity *v, int64_t count, double time, int64_t *failed) {
    for (int64_t i = 0; i < v->flow.flows; i++) {
        v->remaining[i] = i < count ? time : 0.0;
    }
    TG_CALL(upload_spectra(v));
    while (!has_arrived(v)) {
        TG_CALL(products_of(v, v->at.state));
        TG_CALL(choose_steps(v, failed));
        TG_CALL(finish_step(v));
    }
    return download_state(v);
}

tg_status tg_vorticity_velocity(tg_vorticity *v, double *velocity) {
    const size_t points = (size_t)(2 * v->flow.flows * v->flow.grid * v->flow.grid);
    TG_CALL(upload_spectra(v));
    TG_CALL(velocity_of(v, v->at.state));
    return v->be->ops->download(v->be, velocity, v->at.values, points * sizeof *velocity);
}

/* Flows and their outlets. On the host, folding serves a grid of any size, see fields.c. A device
 * transforms to the grids that resolve the spectrum: at 1024 x 1024 points the host would need
 * longer for a frame than the device for the flow. */

static size_t spectrum_bytes(const tg_flow_solver *s) {
    return (size_t)tg_vorticity_reals(s->flow) * sizeof(double);
}

/* Plans for the device, and their shared buffers. */
static tg_status open_device_outlets(const tg_pde_setup *setup, tg_flow_solver *s) {
    const int64_t modes = tg_vorticity_modes(s->flow);
    int64_t finest = 0;
    for (int i = 0; i < setup->views; i++) {
        const int64_t n = setup->resolution[i];
        if (n > 2 * modes) {
            TG_CALL(plan_fft(setup->pool, s->device, n, modes, 1, &s->plan[i]));
            finest = n > finest ? n : finest;
        }
    }
    if (finest == 0) {
        return TG_OK;
    }
    TG_CALL(take(setup->pool, s->device, tg_vorticity_reals(s->flow), &s->d_spectrum));
    TG_CALL(take(setup->pool, s->device, finest * finest, &s->d_field));
    return TG_POOL(setup->pool, s->field, finest * finest);
}

tg_status tg_flow_solver_open(const tg_pde_setup *setup, const tg_vorticity_desc *desc,
                              tg_flow_solver *s) {
    tg_vorticity_desc many = *desc;
    s->threads = setup->be->threads;
    s->frames = setup->frames ? setup->frames : 2;
    s->config = setup->config;
    s->device = setup->device;
    many.flows = setup->batch;
    TG_CALL(tg_vorticity_create(setup->pool, s->device ? s->device : setup->be, &many, &s->flow));
    TG_CALL(s->device ? open_device_outlets(setup, s) : TG_OK);
    s->outlets.count = setup->views;
    for (int i = 0; i < setup->views; i++) {
        s->resolution[i] = setup->resolution[i];
        TG_CALL(s->plan[i] ? TG_OK
                           : tg_sampler_create(setup->pool, setup->be, 2, setup->resolution[i],
                                               &s->outlets.item[i]));
    }
    return TG_OK;
}

static tg_status render_on_device(tg_flow_solver *s, tg_fft_plan *plan, int64_t points,
                                  const double *spectrum, float *out) {
    const tg_backend_ops *ops = s->device->ops;
    const int threads = s->threads;
    const double *field = s->field;
    TG_CALL(ops->upload(s->device, s->d_spectrum, spectrum, spectrum_bytes(s)));
    TG_CALL(
        ops->fft(s->device, plan, TG_FFT_INVERSE, 1, TG_FFT_PLAIN, 1.0, s->d_spectrum, s->d_field));
    TG_CALL(ops->download(s->device, s->field, s->d_field, (size_t)points * sizeof *s->field));
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < points; i++) {
        out[i] = (float)field[i];
    }
    return TG_OK;
}

tg_status tg_flow_solver_render(tg_flow_solver *s, int view, const double *spectrum, float *out) {
    return s->plan[view]
               ? render_on_device(s, s->plan[view], s->resolution[view] * s->resolution[view],
                                  spectrum, out)
               : tg_sampler_real(s->outlets.item[view], tg_vorticity_modes(s->flow), spectrum, out);
}
