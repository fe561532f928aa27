/* Shared by host and device losses: weights of Sobolev norms, and residuals of equations with their
 * slopes, in double. For the formulas see backend/nn.h. */
#ifndef TG_BACKEND_LOSS_MATH_H
#define TG_BACKEND_LOSS_MATH_H

#include <math.h>

#include "backend/nn.h"

/* ---- Sobolev norms: coefficient i of an image ---- */

TG_LOSS_FN bool tg_sobolev_is_half(const tg_sobolev *op, int d) {
    return !op->complex && d == op->ndim - 1;
}

TG_LOSS_FN int64_t tg_sobolev_kept(const tg_sobolev *op, int d) {
    return tg_sobolev_is_half(op, d) ? op->grid[d] / 2 + 1 : op->grid[d];
}

TG_LOSS_FN double tg_sobolev_weight(const tg_sobolev *op, int64_t i) {
    const double turn = 6.283185307179586477;
    double square = 1.0;
    for (int d = op->ndim - 1; d >= 0; d--) {
        const int64_t kept = tg_sobolev_kept(op, d), at = i % kept;
        const double k = turn * (double)(tg_sobolev_is_half(op, d) ? at : at - op->grid[d] / 2);
        square += k * k;
        i /= kept;
    }
    return pow(square, op->order);
}

/* Multiplicity: 2 for a coefficient of half a spectrum that also represents its conjugate. */
TG_LOSS_FN double tg_sobolev_count(const tg_sobolev *op, int64_t i) {
    const int last = op->ndim - 1;
    const int64_t k = i % tg_sobolev_kept(op, last);
    return op->complex || k == 0 || 2 * k == op->grid[last] ? 1.0 : 2.0;
}

/* ---- residuals: sample b at the point (i, j) ---- */

TG_LOSS_FN double tg_residual_number(tg_dtype dtype, const void *data, int64_t i) {
    return dtype == TG_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

TG_LOSS_FN double tg_residual_x(const tg_residual *op, int64_t b, int64_t i, int64_t j) {
    const int64_t row = ((b + 1) * op->in_channels - 1) * op->n + i;
    return op->x_mean + op->x_scale * tg_residual_number(op->dtype, op->x, row * op->m + j);
}

/* Of pred or target. */
TG_LOSS_FN double tg_residual_y(const tg_residual *op, const void *y, int64_t b, int64_t i,
                                int64_t j) {
    const int64_t at = (b * op->n + i) * op->m + j;
    return op->y_mean + op->y_scale * tg_residual_number(op->dtype, y, at);
}

TG_LOSS_FN bool tg_darcy_is_inner(const tg_residual *op, int64_t i, int64_t j) {
    return i > 0 && i < op->n - 1 && j > 0 && j < op->m - 1;
}

/* t_pq / h_pq^2 of p = (i, j) and its neighbour (*k, *l) in direction d = 0 .. 3. */
TG_LOSS_FN double tg_darcy_link(const tg_residual *op, int64_t b, int64_t i, int64_t j, int d,
                                int64_t *k, int64_t *l) {
    const int64_t step = d % 2 ? 1 : -1, steps = (d < 2 ? op->n : op->m) - 1;
    *k = i + (d < 2 ? step : 0);
    *l = j + (d < 2 ? 0 : step);
    if (*k < 0 || *k >= op->n || *l < 0 || *l >= op->m) {
        return 0.0;
    }
    const double p = tg_residual_x(op, b, i, j), q = tg_residual_x(op, b, *k, *l);
    return p + q == 0.0 ? 0.0 : (double)(steps * steps) * (2.0 * p * q / (p + q));
}

TG_LOSS_FN double tg_darcy_residual(const tg_residual *op, int64_t b, int64_t i, int64_t j) {
    if (!tg_darcy_is_inner(op, i, j)) {
        return 0.0;
    }
    double sum = -op->forcing;
    for (int d = 0; d < 4; d++) {
        int64_t k, l;
        const double link = tg_darcy_link(op, b, i, j, d, &k, &l);
        sum += link * (tg_residual_y(op, op->pred, b, i, j) - tg_residual_y(op, op->pred, b, k, l));
    }
    return sum;
}

/* J is symmetric. */
TG_LOSS_FN double tg_darcy_slope(const tg_residual *op, int64_t b, int64_t i, int64_t j) {
    const double here = tg_darcy_residual(op, b, i, j);
    double sum = 0.0;
    for (int d = 0; d < 4; d++) {
        int64_t k, l;
        const double link = tg_darcy_link(op, b, i, j, d, &k, &l);
        const double there = tg_darcy_residual(op, b, k, l); /* 0 outside */
        sum += here == there ? 0.0 : link * (here - there);
    }
    return sum;
}

TG_LOSS_FN double tg_burgers_operator(double n, double nu, double before, double here,
                                      double next) {
    return n / 4.0 * (next * next - before * before) - nu * n * n * (next - 2.0 * here + before);
}

TG_LOSS_FN double tg_burgers_residual(const tg_residual *op, int64_t b, int64_t i) {
    const int64_t n = op->n, near[3] = {(i + n - 1) % n, (i + n) % n, (i + 1) % n};
    double u[3], v[3];
    for (int k = 0; k < 3; k++) {
        u[k] = tg_residual_y(op, op->pred, b, near[k], 0);
        v[k] = tg_residual_x(op, b, near[k], 0);
    }
    return (u[1] - v[1]) / op->time +
           (tg_burgers_operator((double)n, op->viscosity, u[0], u[1], u[2]) +
            tg_burgers_operator((double)n, op->viscosity, v[0], v[1], v[2])) /
               2.0;
}

/* D^T = -D, L^T = L. */
TG_LOSS_FN double tg_burgers_slope(const tg_residual *op, int64_t b, int64_t i) {
    const double n = (double)op->n, here = tg_burgers_residual(op, b, i);
    const double before = tg_burgers_residual(op, b, i - 1);
    const double next = tg_burgers_residual(op, b, i + 1);
    return here / op->time - tg_residual_y(op, op->pred, b, i, 0) * n / 4.0 * (next - before) -
           op->viscosity * n * n / 2.0 * (next - 2.0 * here + before);
}

TG_LOSS_FN double tg_residual_at(const tg_residual *op, int64_t b, int64_t i, int64_t j) {
    switch (op->equation) {
    case TG_EQUATION_DARCY:
        return tg_darcy_residual(op, b, i, j);
    case TG_EQUATION_BURGERS:
        return tg_burgers_residual(op, b, i);
    default:
        break;
    }
    return op->residual[(b * op->n + i) * op->m + j];
}

/* Derivative of |r|^2 / 2 by pred. */
TG_LOSS_FN double tg_residual_slope(const tg_residual *op, int64_t b, int64_t i, int64_t j) {
    const int64_t at = (b * op->n + i) * op->m + j;
    switch (op->equation) {
    case TG_EQUATION_DARCY:
        return op->y_scale * tg_darcy_slope(op, b, i, j);
    case TG_EQUATION_BURGERS:
        return op->y_scale * tg_burgers_slope(op, b, i);
    default:
        break;
    }
    return op->y_scale * (op->residual[at] / op->time + op->rest[at]);
}

/* Contribution of the point to unit^2. */
TG_LOSS_FN double tg_residual_unit(const tg_residual *op, int64_t b, int64_t i, int64_t j) {
    if (op->equation == TG_EQUATION_DARCY) {
        const double f = op->forcing == 0.0 ? 1.0 : op->forcing;
        return tg_darcy_is_inner(op, i, j) ? f * f : 0.0;
    }
    const double change = tg_residual_y(op, op->target, b, i, j) - tg_residual_x(op, b, i, j);
    return change / op->time * (change / op->time);
}

/* ---- vorticity ---- */

/* Factor of coefficient i of an image: real for Laplace, otherwise imaginary. */
TG_LOSS_FN double tg_vorticity_factor(const tg_residual *op, int64_t i) {
    const int64_t row = op->m / 2 + 1, a = i / row - op->n / 2, b = i % row;
    const double unit = 6.283185307179586477 / op->length;
    const double kx = unit * (double)a, ky = unit * (double)b, square = kx * kx + ky * ky;
    const double odd_x = 2 * a == -op->n ? 0.0 : kx, odd_y = 2 * b == op->m ? 0.0 : ky;
    switch (op->map) {
    case TG_VORTICITY_SLOPE_X:
        return odd_x;
    case TG_VORTICITY_SLOPE_Y:
        return odd_y;
    case TG_VORTICITY_SPEED_X:
        return square == 0.0 ? 0.0 : odd_y / square;
    case TG_VORTICITY_SPEED_Y:
        return square == 0.0 ? 0.0 : -odd_x / square;
    case TG_VORTICITY_LAPLACE:
        break;
    }
    return -square;
}

/* Coefficient i of image n. */
TG_LOSS_FN void tg_vorticity_map_at(const tg_residual *op, int64_t n, int64_t i) {
    const int64_t at = 2 * (n * op->n * (op->m / 2 + 1) + i);
    const bool is_real = op->map == TG_VORTICITY_LAPLACE;
    const double factor = op->factor * tg_vorticity_factor(op, i);
    const double re = op->from[at], im = op->from[at + 1];
    op->to[at] = (is_real ? factor * re : -factor * im) + (op->adds ? op->to[at] : 0.0);
    op->to[at + 1] = (is_real ? factor * im : factor * re) + (op->adds ? op->to[at + 1] : 0.0);
}

TG_LOSS_FN double tg_vorticity_forcing(const tg_residual *of, int64_t i, int64_t j) {
    const double turn = 6.283185307179586477;
    const double s = turn * ((double)i / (double)of->n + (double)j / (double)of->m);
    return of->forcing * (sin(s) + cos(s));
}

/* Point p of sample b. */
TG_LOSS_FN void tg_vorticity_point(const tg_residual *op, int64_t b, int64_t p) {
    const int64_t i = p / op->m, j = p % op->m, at = b * op->n * op->m + p;
    switch (op->equation) {
    case TG_VORTICITY_BEGIN:
        op->field[at] = tg_residual_x(op, b, i, j);
        op->r[at] = -op->field[at] / op->time - tg_vorticity_forcing(op, i, j) / 2.0;
        break;
    case TG_VORTICITY_END:
        op->field[at] = tg_residual_y(op, op->pred, b, i, j);
        op->r[at] += op->field[at] / op->time - tg_vorticity_forcing(op, i, j) / 2.0;
        break;
    case TG_VORTICITY_MOVE:
        op->r[at] +=
            (op->u[at] * op->wx[at] + op->v[at] * op->wy[at] - op->viscosity * op->field[at]) / 2.0;
        break;
    case TG_VORTICITY_TIMES:
        op->field[at] = op->by[at] * op->r[at];
        break;
    default:
        break;
    }
}

#endif
