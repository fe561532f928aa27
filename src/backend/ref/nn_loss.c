/* Losses and their gradients, image by image.
 *
 * With e = pred - target and D_j antisymmetric (central differences with wrap), the gradient of
 * |e|_H1 is (e + sum_j D_j^T D_j e) / |e|_H1, where D_j^T D_j e = N_j^2 / 4 (2 e[i] - e[i+2] -
 * e[i-2]); that of |e|_p is e |e|^(p-2) / |e|_p^(p-1).
 *
 * The terms of the H1 gradient are N^2 times larger than their sum, the gradient of a network's
 * last bias. Carrying the rounding error of a point to the next keeps that sum exact. */
#include <string.h>

#include "backend/loss_math.h"
#include "backend/ref/ref.h"

/* One image: sizes and where it starts. */
typedef struct image {
    const tg_loss_op *op;
    int64_t n;
    int64_t points; /* of the grid */
    int64_t first;  /* index (in reals) of its first number */
} image;

/* A number of pred or target; points after the image's are those of its edges. */
static double number_at(const image *im, const void *values, const void *edges, int64_t point,
                        int c) {
    const tg_loss_op *op = im->op;
    if (point < im->points) {
        return ref_get(op->dtype, values, im->first + point * op->components + c);
    }
    const int64_t at = im->n * tg_loss_edges(op) + (point - im->points) * op->components + c;
    return ref_get(op->dtype, edges, at);
}

/* Component c of pred - target (or of target alone) at a point. */
static double value_at(const image *im, bool target_only, int64_t point, int c) {
    const tg_loss_op *op = im->op;
    const double target = number_at(im, op->target, op->target_edges, point, c);
    return target_only ? target : number_at(im, op->pred, op->pred_edges, point, c) - target;
}

/* The point `steps` away from `point` along dimension d, with wrap or among the edges. */
static int64_t neighbour(const tg_loss_op *op, int64_t point, int d, int64_t steps) {
    int64_t stride = 1;
    for (int j = op->ndim - 1; j > d; j--) {
        stride *= op->grid[j];
    }
    const int64_t n = op->grid[d], at = point / stride % n;
    return point + (tg_loss_row(at + steps, n, d == 0 && op->whole > 0) - at) * stride;
}

/* Sum of |.|^p, or |.|^2 of the H1 norm or of a given one. */
static double power_sum(const image *im, bool target_only) {
    const tg_loss_op *op = im->op;
    double sum = 0.0;
    if (op->norm == TG_LOSS_NORM_GIVEN || op->is_measured) {
        return op->powers[2 * im->n + target_only];
    }
    for (int64_t i = 0; i < im->points; i++) {
        double square = 0.0;
        for (int c = 0; c < op->components; c++) {
            const double v = value_at(im, target_only, i, c);
            square += v * v;
        }
        if (op->norm == TG_LOSS_NORM_LP) {
            sum += pow(square, 0.5 * op->p);
            continue;
        }
        sum += square;
        for (int d = 0; d < op->ndim; d++) {
            for (int c = 0; c < op->components; c++) {
                const double slope = (value_at(im, target_only, neighbour(op, i, d, 1), c) -
                                      value_at(im, target_only, neighbour(op, i, d, -1), c)) *
                                     (double)tg_loss_size(op, d) / 2.0;
                sum += slope * slope;
            }
        }
    }
    return sum;
}

/* Component c of the gradient of |e| at a point, given |e|. */
static double slope_at(const image *im, double norm, int64_t point, int c) {
    const tg_loss_op *op = im->op;
    if (op->norm == TG_LOSS_NORM_GIVEN) {
        return op->slope[im->first + point * op->components + c] / norm;
    }
    const double e = value_at(im, false, point, c);
    if (op->norm == TG_LOSS_NORM_LP) {
        double square = 0.0;
        for (int k = 0; k < op->components; k++) {
            const double v = value_at(im, false, point, k);
            square += v * v;
        }
        return square == 0.0 ? 0.0 : e / norm * pow(sqrt(square) / norm, op->p - 2.0);
    }
    double sum = e;
    for (int d = 0; d < op->ndim; d++) {
        const double n = (double)tg_loss_size(op, d);
        sum += n * n / 4.0 *
               (2.0 * e - value_at(im, false, neighbour(op, point, d, 2), c) -
                value_at(im, false, neighbour(op, point, d, -2), c));
    }
    return sum / norm;
}

/* dpred = beta dpred + factor * gradient of |e|. */
static void store_gradient(const image *im, double norm, double factor) {
    const tg_loss_op *op = im->op;
    for (int c = 0; c < op->components; c++) {
        double carry = 0.0;
        for (int64_t i = 0; i < im->points; i++) {
            const int64_t at = im->first + i * op->components + c;
            const double old = op->beta == 0.0 ? 0.0 : ref_get(op->dtype, op->dpred, at);
            const double slope = norm == 0.0 ? 0.0 : slope_at(im, norm, i, c);
            const double exact = op->beta * old + factor * slope + carry;
            ref_put(op->dtype, op->dpred, at, exact);
            carry = exact - ref_get(op->dtype, op->dpred, at);
        }
    }
}

tg_status ref_loss(tg_backend *be, const tg_loss_op *op) {
    TG_CALL(tg_check_real(be->ctx, "loss", op->dtype));
    image im = {.op = op, .points = 1};
    double whole = 1.0; /* points of the whole grid */
    for (int d = 0; d < op->ndim; d++) {
        im.points *= op->grid[d];
        whole *= (double)tg_loss_size(op, d);
    }
    const double p = op->norm == TG_LOSS_NORM_LP ? op->p : 2.0;
    for (int64_t n = 0; n < op->images; n++) {
        im.n = n;
        im.first = n * im.points * op->components;
        const double power[2] = {power_sum(&im, false), op->relative ? power_sum(&im, true) : 0.0};
        const double norm = pow(power[0], 1.0 / p);
        double unit = pow(whole, 1.0 / p);
        if (op->relative) {
            unit = power[1] == 0.0 ? 1.0 : pow(power[1], 1.0 / p);
        }
        const double weight = tg_loss_weight(op, n), loss = weight * norm / unit;
        if (op->value) {
            *op->value += loss;
        }
        if (op->powers && op->norm != TG_LOSS_NORM_GIVEN && !op->is_measured) {
            memcpy(op->powers + 2 * n, power, sizeof power);
        }
        if (op->dpred) {
            const double factor = op->grad_scale * weight / unit;
            store_gradient(&im, norm, isfinite(loss) ? factor : (double)NAN);
        }
    }
    return TG_OK;
}

/* ---- squares of given norms ---- */

tg_status ref_sobolev_squares(tg_backend *be, const tg_sobolev *op) {
    (void)be;
    int64_t kept = 1, points = 1;
    for (int d = 0; d < op->ndim; d++) {
        kept *= tg_sobolev_kept(op, d);
        points *= op->grid[d];
    }
    for (int64_t n = 0; n < op->images; n++) {
        op->squares[2 * n] = 0.0;
    }
    for (int64_t i = 0; i < kept; i++) {
        const double weight = tg_sobolev_weight(op, i), count = tg_sobolev_count(op, i);
        for (int64_t n = 0; n < op->images; n++) {
            double *at = op->spectrum + 2 * (n * kept + i);
            op->squares[2 * n] += count * weight * (at[0] * at[0] + at[1] * at[1]);
            at[0] *= op->weighs ? weight : 1.0;
            at[1] *= op->weighs ? weight : 1.0;
        }
    }
    for (int64_t n = 0; n < op->images; n++) {
        op->squares[2 * n] /= (double)points;
    }
    return TG_OK;
}

static void residual(const tg_residual *op) {
    for (int64_t b = 0; b < op->batch; b++) {
        double sum = 0.0, unit = 0.0;
        for (int64_t p = 0; p < op->n * op->m; p++) {
            const int64_t i = p / op->m, j = p % op->m;
            const double r = tg_residual_at(op, b, i, j);
            sum += r * r;
            unit += tg_residual_unit(op, b, i, j);
            if (op->slope) {
                op->slope[b * op->n * op->m + p] = tg_residual_slope(op, b, i, j);
            }
        }
        op->powers[2 * b] = sum;
        op->powers[2 * b + 1] = unit;
    }
}

static void vorticity_map(const tg_residual *op) {
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t i = 0; i < op->n * (op->m / 2 + 1); i++) {
            tg_vorticity_map_at(op, b, i);
        }
    }
}

static void vorticity_points(const tg_residual *op) {
    for (int64_t b = 0; b < op->batch; b++) {
        for (int64_t p = 0; p < op->n * op->m; p++) {
            tg_vorticity_point(op, b, p);
        }
    }
}

tg_status ref_residual(tg_backend *be, const tg_residual *op) {
    TG_CALL(tg_check_real(be->ctx, "residual", op->dtype));
    (op->equation == TG_VORTICITY_MAP  ? vorticity_map
     : op->equation > TG_EQUATION_FLOW ? vorticity_points
                                       : residual)(op);
    return TG_OK;
}
