/* Flows and their outlets. On the host, folding serves a grid of any size, see sampler.c. A device
 * transforms to the grids that resolve the spectrum: at 1024 x 1024 points the host would need
 * longer for a frame than the device for the flow. */
#include "pde/flow_solver.h"

#include "base/memory.h"

static size_t spectrum_bytes(const tg_flow_solver *s) {
    return (size_t)tg_vorticity_reals(s->flow) * sizeof(double);
}

void tg_flow_solver_close(void *handle) {
    tg_flow_solver *s = handle;
    for (int i = 0; i < TG_SAMPLERS && s->device; i++) {
        s->device->ops->fft_destroy(s->device, &s->plan[i]);
    }
    if (s->device) {
        s->device->ops->release(s->device, s->d_spectrum);
        s->device->ops->release(s->device, s->d_field);
        tg_mem_free(s->device->ctx, s->field);
    }
    tg_samplers_close(&s->outlets);
    tg_vorticity_destroy(&s->flow);
}

/* Plans for the device, and their shared buffers. */
static tg_status open_device_outlets(const tg_pde_setup *setup, tg_flow_solver *s) {
    const tg_backend_ops *ops = s->device->ops;
    const int64_t modes = tg_vorticity_modes(s->flow);
    int64_t finest = 0;
    for (int i = 0; i < setup->views; i++) {
        const int64_t n = setup->resolution[i];
        const tg_fft_desc desc = {.dtype = TG_F64,
                                  .ndim = 2,
                                  .grid = {n, n},
                                  .kept = {2 * modes + 1, modes + 1},
                                  .first = {-modes, 0},
                                  .howmany = 1};
        if (n > 2 * modes) {
            s->resolution[i] = n;
            TG_CALL(ops->fft_create(s->device, &desc, &s->plan[i]));
            finest = n > finest ? n : finest;
        }
    }
    if (finest == 0) {
        return TG_OK;
    }
    const size_t bytes = (size_t)(finest * finest) * sizeof *s->field;
    s->d_spectrum = ops->alloc(s->device, TG_MEM_WORKSPACE, spectrum_bytes(s));
    s->d_field = ops->alloc(s->device, TG_MEM_WORKSPACE, bytes);
    TG_CALL(s->d_spectrum && s->d_field ? TG_OK : TG_E_MEMORY);
    return TG_ALLOC(s->device->ctx, TG_MEM_WORKSPACE, s->field, finest * finest);
}

tg_status tg_flow_solver_open(const tg_pde_setup *setup, const tg_vorticity_desc *desc,
                              tg_flow_solver *s) {
    tg_vorticity_desc many = *desc;
    s->threads = setup->be->threads;
    s->frames = setup->frames ? setup->frames : 2;
    s->config = setup->config;
    s->device = setup->device;
    many.flows = setup->batch;
    TG_CALL(tg_vorticity_create(s->device ? s->device : setup->be, &many, &s->flow));
    TG_CALL(s->device ? open_device_outlets(setup, s) : TG_OK);
    for (int i = 0; i < setup->views; i++) {
        s->outlets.count = i + 1;
        TG_CALL(s->plan[i]
                    ? TG_OK
                    : tg_sampler_create(setup->be, 2, setup->resolution[i], &s->outlets.item[i]));
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
