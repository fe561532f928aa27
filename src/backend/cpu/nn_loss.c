/* Losses: one thread per image, in f64 line by line along the last dimension; the formulas and the
 * carried rounding are those of ref (backend/ref/nn_loss.c). */
#include <math.h>
#include <string.h>

#include "backend/cpu/nn.h"
#include "base/minmax.h"

/* One image: (points, components) floats. */
typedef struct image {
    const tg_loss_op *op;
    int64_t points;
    double whole; /* points of the whole grid */
    double weight;
    const float *pred, *target;
    const float *pred_edges, *target_edges; /* of a slab */
    const double *slope;                    /* of a given norm */
    float *dpred;                           /* may be NULL */
    double *powers;                         /* (2), may be NULL */
} image;

/* Numbers along the last dimension. */
typedef struct line {
    const float *pred, *target;
} line;

/* The line `steps` away along an outer dimension, with wrap or among the edges. */
static line line_at(const image *im, int64_t number, int d, int64_t steps) {
    const tg_loss_op *op = im->op;
    int64_t stride = 1;
    for (int j = op->ndim - 2; j > d; j--) {
        stride *= op->grid[j];
    }
    const int64_t n = op->grid[d], at = number / stride % n, last = op->grid[op->ndim - 1];
    const int64_t row = tg_loss_row(at + steps, n, d == 0 && op->whole > 0);
    const int64_t first = (number + (row - at) * stride) * last, rest = first - im->points;
    return rest < 0 ? (line){im->pred + first * op->components, im->target + first * op->components}
                    : (line){im->pred_edges + rest * op->components,
                             im->target_edges + rest * op->components};
}

static double error_at(const line *l, bool target_only, int64_t i) {
    const double target = (double)l->target[i];
    return target_only ? target : (double)l->pred[i] - target;
}

static double lp_sum(const image *im, bool target_only) {
    const int components = im->op->components;
    const line all = {im->pred, im->target};
    double sum = 0.0;
    for (int64_t i = 0; i < im->points; i++) {
        double square = 0.0;
        for (int c = 0; c < components; c++) {
            const double e = error_at(&all, target_only, i * components + c);
            square += e * e;
        }
        sum += im->op->p == 2.0 ? square : pow(square, 0.5 * im->op->p);
    }
    return sum;
}

/* sum |e|^2 + sum_j |D_j e|^2 */
static double h1_sum(const image *im, bool target_only) {
    const tg_loss_op *op = im->op;
    const int last = op->ndim - 1;
    const int64_t n = op->grid[last], lines = im->points / n, width = n * op->components;
    double sum = 0.0;
    for (int64_t number = 0; number < lines; number++) {
        const line here = {im->pred + number * width, im->target + number * width};
        double squares = 0.0, slopes = 0.0;
        for (int64_t i = 0; i < width; i++) {
            const int64_t next =
                i + op->components < width ? i + op->components : i + op->components - width;
            const int64_t before =
                i >= op->components ? i - op->components : i - op->components + width;
            const double e = error_at(&here, target_only, i);
            const double d =
                error_at(&here, target_only, next) - error_at(&here, target_only, before);
            squares += e * e;
            slopes += d * d;
        }
        sum += squares + slopes * (double)(n * n) / 4.0;
        for (int d = 0; d < last; d++) {
            const line up = line_at(im, number, d, 1), down = line_at(im, number, d, -1);
            const int64_t size = tg_loss_size(op, d);
            double across = 0.0;
            for (int64_t i = 0; i < width; i++) {
                const double s = error_at(&up, target_only, i) - error_at(&down, target_only, i);
                across += s * s;
            }
            sum += across * (double)(size * size) / 4.0;
        }
    }
    return sum;
}

static double power_sum(const image *im, bool target_only) {
    const bool is_given = im->op->norm == TG_LOSS_NORM_GIVEN || im->op->is_measured;
    return is_given                          ? im->powers[target_only]
           : im->op->norm == TG_LOSS_NORM_LP ? lp_sum(im, target_only)
                                             : h1_sum(im, target_only);
}

/* ---- gradients: dpred = beta dpred + factor * that of |e| ---- */

/* Stores `value` (plus beta times the old one) and carries the rounding error. */
static void store(const image *im, int64_t i, double value, double *carry) {
    const double beta = im->op->beta;
    const double exact = (beta == 0.0 ? 0.0 : beta * (double)im->dpred[i]) + value + *carry;
    im->dpred[i] = (float)exact;
    *carry = exact - (double)im->dpred[i];
}

static void lp_gradient(const image *im, double norm, double factor) {
    const int components = im->op->components;
    const double p = im->op->p;
    const line all = {im->pred, im->target};
    double carry[2] = {0};
    for (int64_t i = 0; i < im->points; i++) {
        double square = 0.0;
        for (int c = 0; c < components; c++) {
            const double e = error_at(&all, false, i * components + c);
            square += e * e;
        }
        const double weight = square == 0.0 ? 0.0
                              : p == 2.0    ? 1.0 / norm
                                            : pow(sqrt(square) / norm, p - 2.0) / norm;
        for (int c = 0; c < components; c++) {
            const int64_t at = i * components + c;
            store(im, at, factor * weight * error_at(&all, false, at), &carry[c]);
        }
    }
}

/* (e + sum_j N_j^2 / 4 (2 e - e[+2] - e[-2])) / |e| */
static void h1_gradient(const image *im, double norm, double factor) {
    const tg_loss_op *op = im->op;
    const int last = op->ndim - 1;
    const int components = op->components;
    const int64_t n = op->grid[last], lines = im->points / n, width = n * components;
    const double unit = factor / norm;
    double carry[2] = {0};
    for (int64_t number = 0; number < lines; number++) {
        const line here = {im->pred + number * width, im->target + number * width};
        line up[2] = {0}, down[2] = {0};
        for (int d = 0; d < last; d++) {
            up[d] = line_at(im, number, d, 2);
            down[d] = line_at(im, number, d, -2);
        }
        for (int64_t i = 0; i < width; i++) {
            const int64_t next = (i + 2 * components) % width;
            const int64_t before = (i + 2 * (n - 1) * components) % width;
            const double e = error_at(&here, false, i);
            double sum =
                e + (double)(n * n) / 4.0 *
                        (2.0 * e - error_at(&here, false, next) - error_at(&here, false, before));
            for (int d = 0; d < last; d++) {
                const int64_t size = tg_loss_size(op, d);
                sum += (double)(size * size) / 4.0 *
                       (2.0 * e - error_at(&up[d], false, i) - error_at(&down[d], false, i));
            }
            store(im, number * width + i, unit * sum, &carry[i % components]);
        }
    }
}

static void given_gradient(const image *im, double norm, double factor) {
    const int components = im->op->components;
    double carry[2] = {0};
    for (int64_t i = 0; i < im->points * components; i++) {
        store(im, i, factor / norm * im->slope[i], &carry[i % components]);
    }
}

/* A constant gradient. */
static void flat_gradient(const image *im, double value) {
    double carry = 0.0;
    for (int64_t i = 0; i < im->points * im->op->components; i++) {
        store(im, i, value, &carry);
    }
}

/* Loss of one image, and its gradient if wanted. */
static double image_loss(const image *im) {
    const tg_loss_op *op = im->op;
    const bool lp = op->norm == TG_LOSS_NORM_LP;
    const double root = 1.0 / (lp ? op->p : 2.0);
    const double power[2] = {power_sum(im, false), op->relative ? power_sum(im, true) : 0.0};
    const double norm = pow(power[0], root);
    double unit = pow(im->whole, root);
    if (op->relative) {
        unit = power[1] == 0.0 ? 1.0 : pow(power[1], root);
    }
    if (im->powers && op->norm != TG_LOSS_NORM_GIVEN && !op->is_measured) {
        memcpy(im->powers, power, sizeof power);
    }
    const double loss = im->weight * norm / unit;
    const double factor = op->grad_scale * im->weight / unit;
    if (im->dpred && (norm == 0.0 || !isfinite(loss))) {
        flat_gradient(im, norm == 0.0 ? 0.0 : (double)NAN);
    } else if (im->dpred && lp) {
        lp_gradient(im, norm, factor);
    } else if (im->dpred && op->norm == TG_LOSS_NORM_GIVEN) {
        given_gradient(im, norm, factor);
    } else if (im->dpred) {
        h1_gradient(im, norm, factor);
    }
    return loss;
}

static const float *number_at(const void *numbers, int64_t i) {
    return numbers ? (const float *)numbers + i : NULL;
}

tg_status cpu_loss(tg_backend *be, const tg_loss_op *op) {
    if (op->dtype != TG_F32 || (op->whole > 0 && op->ndim == 1)) {
        return be->ref->loss(be, op);
    }
    const int64_t points = tg_product(op->ndim, op->grid);
    const int64_t size = points * op->components, edges = tg_loss_edges(op);
    const int64_t rest = tg_product(op->ndim - 1, op->grid + 1);
    const int parts = cpu_parts(be, op->images, 1);
    cpu_partial *partials = cpu_state_of(be)->partials;
#pragma omp parallel for num_threads(cpu_team(be, parts)) schedule(static)
    for (int p = 0; p < parts; p++) {
        const tg_range r = tg_partition(op->images, 1, parts, p);
        partials[p].re = 0.0;
        for (int64_t n = r.begin; n < r.end; n++) {
            const image im = {.op = op,
                              .points = points,
                              .whole = (double)(tg_loss_size(op, 0) * rest),
                              .weight = tg_loss_weight(op, n),
                              .pred = number_at(op->pred, n * size),
                              .target = number_at(op->target, n * size),
                              .pred_edges = number_at(op->pred_edges, n * edges),
                              .target_edges = number_at(op->target_edges, n * edges),
                              .slope = op->slope ? op->slope + n * size : NULL,
                              .dpred = op->dpred ? (float *)op->dpred + n * size : NULL,
                              .powers = op->powers ? op->powers + 2 * n : NULL};
            partials[p].re += image_loss(&im);
        }
    }
    for (int p = 0; op->value && p < parts; p++) {
        *op->value += partials[p].re;
    }
    return TG_OK;
}
