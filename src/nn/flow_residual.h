/* The residual of the vorticity equation in two dimensions. */
#ifndef TG_NN_FLOW_RESIDUAL_H
#define TG_NN_FLOW_RESIDUAL_H

#include "backend/backend.h"

/* Room for the samples of a call on the backend, in f64. Initially all zero. */
typedef struct nn_flow {
    tg_fft_plan *fft;
    int64_t samples, n, m;    /* at most `samples` on this grid */
    double *u, *v, *wx, *wy;  /* (samples, n, m): velocity and gradient of the vorticity */
    double *r;                /* (samples, n, m): the residual */
    double *spectrum, *other; /* (samples, n, m / 2 + 1, 2) */
} nn_flow;

/* Allocates what a call needs, unless it is there. */
TG_NODISCARD tg_status nn_flow_prepare(tg_backend *be, int64_t samples, int64_t n, int64_t m,
                                       nn_flow *flow);
void nn_flow_free(tg_backend *be, nn_flow *flow);
/* Bytes that it takes on the backend and, for a device, on the host. */
TG_NODISCARD tg_status nn_flow_plan(tg_backend *be, int64_t samples, int64_t n, int64_t m,
                                    size_t *bytes, size_t *host);

/* Sets flow->r for the fields of `of` and, if wanted, `field` to the gradient of |r|^2 / 2 except r
 * / dt, in the units of the data. Overwrites `field` (samples, n, m) in any case. */
TG_NODISCARD tg_status nn_flow_find(tg_backend *be, nn_flow *flow, const tg_residual *of,
                                    double length, bool wants_slope, double *field);

#endif
