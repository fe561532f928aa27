/* Two-dimensional incompressible flow on a periodic square, as its vorticity:
 * w_t + u.grad w = nu Laplace w + f. Several independent flows advance together, each with its own
 * steps. */
#ifndef TG_PDE_VORTICITY_H
#define TG_PDE_VORTICITY_H

#include "pde/pde.h"

typedef struct tg_vorticity_desc {
    int64_t grid;     /* points per dimension, N */
    double length;    /* of the square's side */
    double viscosity; /* nu >= 0 */
    double cfl;       /* maximum cells moved per step */
    double longest;   /* longest step */
    int64_t flows;    /* 0: one */
} tg_vorticity_desc;

typedef struct tg_vorticity tg_vorticity;

/* Computes on the backend: the host with be->threads threads, or a device. */
TG_NODISCARD tg_status tg_vorticity_create(tg_pool *pool, tg_backend *be,
                                           const tg_vorticity_desc *desc, tg_vorticity **out);

/* Number of flows of a description that fit in `bytes`, from 1 to 256. */
int64_t tg_vorticity_flows(const tg_vorticity_desc *desc, size_t bytes);

/* Kept wave numbers: -K .. K along x and 0 .. K along y, 3 K < N. */
int64_t tg_vorticity_modes(const tg_vorticity *v);
/* Numbers per spectrum below: 2 (2K + 1) (K + 1). */
int64_t tg_vorticity_reals(const tg_vorticity *v);

/* Fourier coefficients of w and f, (flows, 2K + 1, K + 1) complex, row k1 + K, on the host; the
 * caller sets them (both are 0 at first) and may read w at any time. Write the forcing after each
 * call that returns it, before the flow advances. */
double *tg_vorticity_state(tg_vorticity *v);
double *tg_vorticity_forcing(tg_vorticity *v);

/* Advances the first `count` flows by `time` in steps as long as the description allows. A flow
 * that is not finite or would need absurdly many steps is an error, and *failed (may be NULL) its
 * number. */
TG_NODISCARD tg_status tg_vorticity_advance(tg_vorticity *v, int64_t count, double time,
                                            int64_t *failed);
/* velocity (flows, 2, N, N) at the points (i, j) length / N, on the host. */
TG_NODISCARD tg_status tg_vorticity_velocity(tg_vorticity *v, double *velocity);

/* The common part of the two-dimensional flow equations: the flows, on the host or on a device, and
 * the grids they are sampled on. */

typedef struct tg_flow_solver {
    int threads;        /* of the host */
    int64_t frames;     /* of a sample */
    const void *config; /* the equation's */
    tg_vorticity *flow;
    tg_samplers outlets; /* by view; NULL if the device has a plan */
    tg_backend *device;
    tg_fft_plan *plan[TG_SAMPLERS]; /* for views that resolve the spectrum; else NULL */
    int64_t resolution[TG_SAMPLERS];
    double *d_spectrum, *d_field, *field; /* of the finest plan */
} tg_flow_solver;

/* Creates as many flows as the setup has samples at once. */
TG_NODISCARD tg_status tg_flow_solver_open(const tg_pde_setup *setup, const tg_vorticity_desc *desc,
                                           tg_flow_solver *solver);
/* The field of a spectrum like the flow's; spectrum and `out` are on the host. */
TG_NODISCARD tg_status tg_flow_solver_render(tg_flow_solver *s, int view, const double *spectrum,
                                             float *out);

#endif
