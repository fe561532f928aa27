/* Solvers of the equations, for their generators and tests. All their memory is in a pool. */
#ifndef TG_PDE_SOLVERS_H
#define TG_PDE_SOLVERS_H

#include <stdbool.h>
#include <stdint.h>

#include "backend/backend.h"
#include "base/memory.h"

/* ---- Burgers' equation ---- */

typedef struct tg_burgers tg_burgers;

/* On `grid` points of [0, 1); 3 modes < grid. */
TG_NODISCARD tg_status tg_burgers_create(tg_pool *pool, tg_backend *be, int64_t grid,
                                         double viscosity, tg_burgers **out);

int64_t tg_burgers_modes(const tg_burgers *b);

/* Number of steps short enough for a solution that starts at u. */
TG_NODISCARD tg_status tg_burgers_steps(tg_burgers *b, double time, const double *u,
                                        int64_t *steps);

/* Advances u (modes + 1, complex), Fourier coefficients of k = 0 .. modes, by `time`. */
TG_NODISCARD tg_status tg_burgers_integrate(tg_burgers *b, double time, int64_t steps, double *u);

/* Pulses in a nonlinear waveguide, for the generator and its tests. Time in fs, length in mm, |A|^2
 * in W, hence energy in fJ. */

typedef struct tg_pulse tg_pulse;

/* Envelopes at `points` points of a periodic window of `window` fs. */
TG_NODISCARD tg_status tg_pulse_create(tg_pool *pool, tg_backend *be, int64_t points, double window,
                                       tg_pulse **out);

/* Lowest frequency of a spectrum, -(points / 2), in 2 pi / window. */
int64_t tg_pulse_first(const tg_pulse *p);

/* Transforms between envelope and Fourier coefficients, (points) complex each. */
TG_NODISCARD tg_status tg_pulse_analyse(tg_pulse *p, const double *envelope, double *spectrum);
TG_NODISCARD tg_status tg_pulse_synthesise(tg_pulse *p, const double *spectrum, double *envelope);

/* dA/dz = -i (dispersion / 2) A_tt + i kerr |A|^2 A + i coupling A* e^{i mismatch z} */
typedef struct tg_waveguide {
    double dispersion; /* fs^2 / mm */
    double kerr;       /* 1 / (W mm) */
    double coupling;   /* 1 / mm */
    double mismatch;   /* 1 / mm */
    double length;     /* mm */
} tg_waveguide;

/* Propagates the spectrum of A(0, .) to that of A(length, .) in `steps` steps. */
TG_NODISCARD tg_status tg_pulse_propagate(tg_pulse *p, const tg_waveguide *guide, int64_t steps,
                                          double *spectrum);

/* -div(a grad u) = f on the unit square, u = 0 on its boundary: multigrid-preconditioned conjugate
 * gradients for the conservative five-point scheme, on any number of points. */

typedef struct tg_elliptic tg_elliptic;

/* On n x n points (n >= 3), the boundary included: point (i, j) is (i h, j h), h = 1 / (n - 1). */
TG_NODISCARD tg_status tg_elliptic_create(tg_pool *pool, int64_t n, tg_elliptic **out);

/* Sets the coefficient a (n, n), positive. */
void tg_elliptic_set(tg_elliptic *e, const double *a);

/* out = A u = -h^2 div(a grad u) at inner points, 0 on the boundary; u (n, n) is 0 there. */
void tg_elliptic_apply(const tg_elliptic *e, const double *u, double *out);

/* Solves A u = h^2 f for u (n, n) until the residual is at most `tolerance` times |h^2 f|. f (n,
 * n); its boundary is ignored. False if `limit` iterations do not suffice or values are not finite.
 * *iterations may be NULL. */
bool tg_elliptic_solve(tg_elliptic *e, const double *f, double tolerance, int limit, double *u,
                       int *iterations);

/* Potential flow around a smooth body: spherical harmonics, a family of surfaces, and the boundary
 * integral equation on them (body.c).
 *
 * A body is the image of the unit sphere under
 *
 *     y(w) = diag(axes) (1 + sum_lm bumps_lm Y_lm(w)) w,      |w| = 1,
 *
 * an ellipsoid without bumps. Y_lm are the real spherical harmonics of unit norm in
 * L2(S^2), number l^2 + l + m; m < 0 has sin |m| phi. */

enum { TG_BODY_MAX_ORDER = 32, TG_BODY_MAX_DEGREE = 8 };

typedef struct tg_body {
    double axes[3];
    int degree; /* of the bumps */
    double bumps[(TG_BODY_MAX_DEGREE + 1) * (TG_BODY_MAX_DEGREE + 1)];
} tg_body;

typedef struct tg_harmonics tg_harmonics;

/* Tables for harmonics of degree up to `order`. */
TG_NODISCARD tg_status tg_harmonics_create(tg_pool *pool, int order, tg_harmonics **out);

/* The (degree + 1)^2 harmonics at w; `gradient` (.., 3), or NULL, of a smooth extension of each
 * into space, of which only the part along the sphere is meaningful. */
void tg_harmonics_at(const tg_harmonics *h, int degree, const double w[3], double *value,
                     double (*gradient)[3]);

/* The image of w, and the vector n dS there per unit of solid angle, n pointing out of the body. */
void tg_body_point(const tg_harmonics *h, const tg_body *body, const double w[3], double point[3],
                   double area[3]);

typedef struct tg_body_flow tg_body_flow;

/* For potentials of degree up to `order`, at least 1. */
TG_NODISCARD tg_status tg_body_flow_create(tg_pool *pool, int order, tg_body_flow **out);
const tg_harmonics *tg_body_flow_harmonics(const tg_body_flow *flow);

/* The flow past the body with velocity `far` at infinity. */
TG_NODISCARD tg_status tg_body_flow_solve(tg_body_flow *flow, const tg_body *body,
                                          const double far[3]);

/* For the last solved flow: the potential at the image of w, and the speed squared. */
void tg_body_flow_at(tg_body_flow *flow, const double w[3], double *potential, double *speed2);

#endif
