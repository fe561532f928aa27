/* Potential flow around a smooth body: spherical harmonics, a family of surfaces, and the boundary
 * integral equation on them (body.c).
 *
 * A body is the image of the unit sphere under
 *
 *     y(w) = diag(axes) (1 + sum_lm bumps_lm Y_lm(w)) w,      |w| = 1,
 *
 * an ellipsoid without bumps. Y_lm are the real spherical harmonics of unit norm in
 * L2(S^2), number l^2 + l + m; m < 0 has sin |m| phi. */
#ifndef TG_PDE_BODY_H
#define TG_PDE_BODY_H

#include "base/context.h"

enum { TG_BODY_MAX_ORDER = 32, TG_BODY_MAX_DEGREE = 8 };

typedef struct tg_body {
    double axes[3];
    int degree; /* of the bumps */
    double bumps[(TG_BODY_MAX_DEGREE + 1) * (TG_BODY_MAX_DEGREE + 1)];
} tg_body;

typedef struct tg_harmonics tg_harmonics;

/* Tables for harmonics of degree up to `order`. */
TG_NODISCARD tg_status tg_harmonics_create(tg_context *ctx, int order, tg_harmonics **out);
void tg_harmonics_destroy(tg_harmonics **harmonics);

/* The (degree + 1)^2 harmonics at w; `gradient` (.., 3), or NULL, of a smooth extension of each
 * into space, of which only the part along the sphere is meaningful. */
void tg_harmonics_at(const tg_harmonics *h, int degree, const double w[3], double *value,
                     double (*gradient)[3]);

/* The image of w, and the vector n dS there per unit of solid angle, n pointing out of the body. */
void tg_body_point(const tg_harmonics *h, const tg_body *body, const double w[3], double point[3],
                   double area[3]);

typedef struct tg_body_flow tg_body_flow;

/* For potentials of degree up to `order`, at least 1. */
TG_NODISCARD tg_status tg_body_flow_create(tg_context *ctx, int order, tg_body_flow **out);
void tg_body_flow_destroy(tg_body_flow **flow);
const tg_harmonics *tg_body_flow_harmonics(const tg_body_flow *flow);

/* The flow past the body with velocity `far` at infinity. */
TG_NODISCARD tg_status tg_body_flow_solve(tg_body_flow *flow, const tg_body *body,
                                          const double far[3]);

/* For the last solved flow: the potential at the image of w, and the speed squared. */
void tg_body_flow_at(tg_body_flow *flow, const double w[3], double *potential, double *speed2);

#endif
