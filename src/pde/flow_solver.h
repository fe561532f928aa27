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
    tg_samplers outlets;
} tg_flow_solver;

/* As many flows as the setup has samples at once. */
TG_NODISCARD tg_status tg_flow_solver_open(const tg_pde_setup *setup, const tg_vorticity_desc *desc,
                                           tg_flow_solver *solver);
/* For tg_pde: the handle is a tg_flow_solver. */
void tg_flow_solver_close(void *handle);

/* The field of a spectrum like the flow's. */
TG_NODISCARD tg_status tg_flow_solver_render(tg_flow_solver *s, int view, const double *spectrum,
                                             float *out);

#endif
