/* The residual of the vorticity equation in two dimensions. */
#ifndef TG_NN_FLOW_RESIDUAL_H
#define TG_NN_FLOW_RESIDUAL_H

#include "nn/physics_loss.h"

/* Room for one sample, in f64. All zero is none yet. */
typedef struct nn_flow {
    tg_fft_plan *fft;
    int64_t n, m;             /* grid */
    int64_t kept;             /* coefficients, (n, m / 2 + 1) */
    double *u, *v, *wx, *wy;  /* (n, m): velocity and gradient of the vorticity, */
    double *r, *field;        /* the residual, and whatever is transformed */
    double *spectrum, *other; /* (kept, 2) */
} nn_flow;

/* Takes what a grid needs, unless it is there already. */
TG_NODISCARD tg_status nn_flow_prepare(tg_backend *be, int64_t n, int64_t m, nn_flow *flow);
void nn_flow_free(tg_backend *be, nn_flow *flow);

/* As nn_physics_add. */
TG_NODISCARD tg_status nn_flow_add(tg_backend *be, nn_flow *flow, const nn_physics *call);

#endif
