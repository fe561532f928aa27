/* The common part of the two-dimensional flow equations: the flows, on the host or on a device, and
 * the grids they are sampled on. */
#ifndef TG_PDE_FLOW_SOLVER_H
#define TG_PDE_FLOW_SOLVER_H

#include "pde/pde.h"
#include "pde/sampler.h"
#include "pde/vorticity.h"

typedef struct tg_flow_solver {
    int threads;        /* of the host */
    int64_t frames;     /* of a sample */
    const void *config; /* the equation's */
    tg_vorticity *flow;
    tg_samplers outlets; /* by view; NULL if the device has a plan */
    tg_backend *device;
    tg_fft_plan *plan[TG_SAMPLERS];       /* for views that resolve the spectrum; else NULL */
    int64_t resolution[TG_SAMPLERS];      /* of the plans */
    double *d_spectrum, *d_field, *field; /* of the finest plan */
} tg_flow_solver;

/* Creates as many flows as the setup has samples at once. */
TG_NODISCARD tg_status tg_flow_solver_open(const tg_pde_setup *setup, const tg_vorticity_desc *desc,
                                           tg_flow_solver *solver);
/* Callbacks for tg_pde: the handle is a tg_flow_solver. */
void tg_flow_solver_close(void *handle);

/* The field of a spectrum like the flow's; spectrum and `out` are on the host. */
TG_NODISCARD tg_status tg_flow_solver_render(tg_flow_solver *s, int view, const double *spectrum,
                                             float *out);

#endif
