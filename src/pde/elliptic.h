/* -div(a grad u) = f on the unit square, u = 0 on its boundary: multigrid-preconditioned conjugate
 * gradients for the conservative five-point scheme, on any number of points. */
#ifndef TG_PDE_ELLIPTIC_H
#define TG_PDE_ELLIPTIC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/context.h"

typedef struct tg_elliptic tg_elliptic;

/* On n x n points (n >= 3), the boundary included: point (i, j) is (i h, j h), h = 1 / (n - 1). */
TG_NODISCARD tg_status tg_elliptic_create(tg_context *ctx, int64_t n, tg_elliptic **out);
void tg_elliptic_destroy(tg_elliptic **solver);

/* Sets the coefficient a (n, n), positive. */
void tg_elliptic_set(tg_elliptic *e, const double *a);

/* out = A u = -h^2 div(a grad u) at inner points, 0 on the boundary; u (n, n) is 0 there. */
void tg_elliptic_apply(const tg_elliptic *e, const double *u, double *out);

/* Solves A u = h^2 f for u (n, n) until the residual is at most `tolerance` times |h^2 f|. f (n,
 * n); its boundary is ignored. False if `limit` iterations do not suffice or values are not finite.
 * *iterations may be NULL. */
bool tg_elliptic_solve(tg_elliptic *e, const double *f, double tolerance, int limit, double *u,
                       int *iterations);

#endif
