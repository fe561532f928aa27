/* Two-dimensional incompressible flow on a periodic square, as its vorticity:
 * w_t + u.grad w = nu Laplace w + f. Several independent flows go along at once, each with steps of
 * its own. */
#ifndef TG_PDE_VORTICITY_H
#define TG_PDE_VORTICITY_H

#include "backend/backend.h"

typedef struct tg_vorticity_desc {
    int64_t grid;     /* points per dimension, N */
    double length;    /* of the square's side */
    double viscosity; /* nu >= 0 */
    double cfl;       /* a step moves nothing by more than so many cells */
    double longest;   /* and takes at most so long */
    int64_t flows;    /* 0: one */
} tg_vorticity_desc;

typedef struct tg_vorticity tg_vorticity;

/* Computes where the backend computes: on the host with be->threads threads, or on a device. */
TG_NODISCARD tg_status tg_vorticity_create(tg_backend *be, const tg_vorticity_desc *desc,
                                           tg_vorticity **out);
void tg_vorticity_destroy(tg_vorticity **v);

/* How many flows of a description take about so many bytes, at least one and at most 256. */
int64_t tg_vorticity_flows(const tg_vorticity_desc *desc, size_t bytes);

/* Kept wave numbers: -K .. K along x and 0 .. K along y, 3 K < N. */
int64_t tg_vorticity_modes(const tg_vorticity *v);
/* Numbers of one spectrum below: 2 (2K + 1) (K + 1). */
int64_t tg_vorticity_reals(const tg_vorticity *v);

/* Fourier coefficients of w and f, (flows, 2K + 1, K + 1) complex, row k1 + K, on the host; the
 * caller sets them (both are 0 at first) and may read w at any time. A forcing is written after
 * each call that returns it and before the flow moves on. */
double *tg_vorticity_state(tg_vorticity *v);
double *tg_vorticity_forcing(tg_vorticity *v);

/* The first `count` flows on by `time` in steps as long as the description allows, the others stay;
 * a flow that is not finite or would need absurdly many steps is an error, and *failed (NULL: not
 * wanted) its number. */
TG_NODISCARD tg_status tg_vorticity_advance(tg_vorticity *v, int64_t count, double time,
                                            int64_t *failed);
/* All of them in so many equal steps. */
TG_NODISCARD tg_status tg_vorticity_advance_steps(tg_vorticity *v, double time, int64_t steps);

/* velocity (flows, 2, N, N) at the points (i, j) length / N, on the host. */
TG_NODISCARD tg_status tg_vorticity_velocity(tg_vorticity *v, double *velocity);

#endif
