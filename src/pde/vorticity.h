/* Two-dimensional incompressible flow on a periodic square, as its vorticity:
 * w_t + u.grad w = nu Laplace w + f. */
#ifndef TG_PDE_VORTICITY_H
#define TG_PDE_VORTICITY_H

#include "backend/backend.h"

typedef struct tg_vorticity_desc {
    int64_t grid;     /* points per dimension, N */
    double length;    /* of the square's side */
    double viscosity; /* nu >= 0 */
    double cfl;       /* a step moves nothing by more than so many cells */
    double longest;   /* and takes at most so long */
} tg_vorticity_desc;

typedef struct tg_vorticity tg_vorticity;

/* Uses be->threads threads. */
TG_NODISCARD tg_status tg_vorticity_create(tg_backend *be, const tg_vorticity_desc *desc,
                                           tg_vorticity **out);
void tg_vorticity_destroy(tg_vorticity **v);

/* Kept wave numbers: -K .. K along x and 0 .. K along y, 3 K < N. */
int64_t tg_vorticity_modes(const tg_vorticity *v);

/* Fourier coefficients of w and f, (2K + 1, K + 1) complex, row k1 + K; the caller sets them (both
 * are 0 at first) and may read w at any time. */
double *tg_vorticity_state(tg_vorticity *v);
double *tg_vorticity_forcing(tg_vorticity *v);

/* On by `time` in steps as long as the description allows; a flow that is not finite or would need
 * absurdly many steps is an error. */
TG_NODISCARD tg_status tg_vorticity_advance(tg_vorticity *v, double time);
/* The same in so many equal steps. */
TG_NODISCARD tg_status tg_vorticity_advance_steps(tg_vorticity *v, double time, int64_t steps);

/* velocity (2, N, N) at the points (i, j) length / N. */
TG_NODISCARD tg_status tg_vorticity_velocity(tg_vorticity *v, double *velocity);

#endif
