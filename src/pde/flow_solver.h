/* What the equations of flow in two dimensions have in common: the flows, on the host or on a
 * device, and the grids they are seen on. */
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
    tg_samplers outlets; /* by view; NULL where the device has a plan */
    tg_backend *device;
    tg_fft_plan *plan[TG_SAMPLERS];       /* of views that resolve the spectrum; else NULL */
    int64_t resolution[TG_SAMPLERS];      /* theirs */
    double *d_spectrum, *d_field, *field; /* of the finest of them */
} tg_flow_solver;

/* As many flows as the setup has samples at once. */
TG_NODISCARD tg_status tg_flow_solver_open(const tg_pde_setup *setup, const tg_vorticity_desc *desc,
                                           tg_flow_solver *solver);
/* For tg_pde: the handle is a tg_flow_solver. */
void tg_flow_solver_close(void *handle);

/* The field of a spectrum like the flow's, which is on the host as is `out`. */
TG_NODISCARD tg_status tg_flow_solver_render(tg_flow_solver *s, int view, const double *spectrum,
                                             float *out);

#endif
