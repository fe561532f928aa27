/* Flows and their outlets, see flow_solver.h. */
#include "pde/flow_solver.h"

void tg_flow_solver_close(void *handle) {
    tg_flow_solver *s = handle;
    tg_samplers_close(&s->outlets);
    tg_vorticity_destroy(&s->flow);
}

tg_status tg_flow_solver_open(const tg_pde_setup *setup, const tg_vorticity_desc *desc,
                              tg_flow_solver *s) {
    tg_vorticity_desc many = *desc;
    s->threads = setup->be->threads;
    s->frames = setup->frames ? setup->frames : 2;
    s->config = setup->config;
    many.flows = setup->batch;
    TG_CALL(tg_vorticity_create(setup->device ? setup->device : setup->be, &many, &s->flow));
    return tg_samplers_open(setup->be, 2, setup->views, setup->resolution, &s->outlets);
}

tg_status tg_flow_solver_render(tg_flow_solver *s, int view, const double *spectrum, float *out) {
    return tg_sampler_real(s->outlets.item[view], tg_vorticity_modes(s->flow), spectrum, out);
}
