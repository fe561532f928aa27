/* The slot for flow in two dimensions, of every backend: by their definitions where these are
 * short, against ref for the rest. */
#include <math.h>

#include "support/runner.h"

#define PI 3.14159265358979323846

static const tg_flow sizes[] = {
    {0, 8, 2, 1.0}, {1, 4, 1, 1.0}, {3, 7, 2, 2.0 * PI}, {2, 40, 13, 0.5}};

static int64_t spectrum_reals(const tg_flow *f) {
    return f->flows * 2 * (2 * f->modes + 1) * (f->modes + 1);
}

static int64_t grid_reals(const tg_flow *f) {
    return f->flows * 2 * f->grid * f->grid;
}

/* velocity has no divergence, q1 u + q2 v = 0, and its curl is w: i (q1 v - q2 u) = w. */
ROW(velocity, "velocity", T_ONCE) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        const tg_flow *f = &sizes[i];
        const int64_t reals = spectrum_reals(f), rows = 2 * f->modes + 1, columns = f->modes + 1;
        t_note(s, "size %d", i);
        const double *w = t_host_random(s, TG_F64, reals);
        double *out = t_output(s, TG_F64, 2 * reals);
        const tg_flow_op op = {
            .of = *f, .part = TG_FLOW_VELOCITY, .w = t_input(s, TG_F64, reals, w), .velocity = out};
        t_ok(s, s->ops->flow(s->be, &op));
        t_keep_close(s, out, 1.0);
        const double *found = t_download(s, out);
        for (int64_t r = 0; r < f->flows * rows; r++) {
            const double q1 = 2.0 * PI / f->length * (double)(r % rows - f->modes);
            for (int64_t c = 0; c < columns; c++) {
                const double q2 = 2.0 * PI / f->length * (double)c;
                const int64_t at = 2 * (r * columns + c);
                const double *u = found + at + r / rows * 2 * rows * columns;
                const double *v = u + 2 * rows * columns;
                const bool mean = q1 == 0.0 && q2 == 0.0;
                t_below(s, fabs(q1 * u[0] + q2 * v[0]) + fabs(q1 * u[1] + q2 * v[1]), 1e-14);
                t_below(s, fabs(q2 * u[1] - q1 * v[1] - (mean ? 0.0 : w[at])), 1e-14);
                t_below(s, fabs(q1 * v[0] - q2 * u[0] - (mean ? 0.0 : w[at + 1])), 1e-14);
            }
        }
        t_release(s);
    }
}

ROW(products, "products", T_ONCE) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int lost = 0; lost < 2; lost++) {
            const tg_flow *f = &sizes[i];
            const int64_t reals = grid_reals(f), points = f->grid * f->grid;
            t_note(s, "size %d, %s", i, lost ? "with NaN" : "finite");
            double *x = t_host_random(s, TG_F64, reals);
            if (lost && f->flows > 0) {
                x[reals - 2] = -(double)NAN;
            }
            double *values = t_inout(s, TG_F64, reals, x), *speed = t_output(s, TG_F64, f->flows);
            const tg_flow_op op = {
                .of = *f, .part = TG_FLOW_PRODUCTS, .values = values, .speed = speed};
            t_ok(s, s->ops->flow(s->be, &op));
            const double *found = t_download(s, values), *speeds = t_download(s, speed);
            t_keep_same(s, speed);
            for (int64_t flow = 0; flow < f->flows; flow++) {
                double most = 0.0;
                bool none = true;
                for (int64_t p = 2 * flow * points; p < (2 * flow + 1) * points; p++) {
                    const double u = x[p], v = x[p + points];
                    if (isnan(u) || isnan(v)) {
                        none = false;
                        continue;
                    }
                    most = fmax(most, fabs(u) + fabs(v));
                    t_below(s, fabs(found[p] - u * v), 1e-15);
                    t_below(s, fabs(found[p + points] - (v * v - u * u)), 1e-15);
                }
                t_true(s, none ? speeds[flow] == most : isnan(speeds[flow]));
            }
            t_release(s);
        }
    }
}

ROW(decay, "decay", T_ONCE) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        const tg_flow *f = &sizes[i];
        const int64_t rows = 2 * f->modes + 1;
        const double *dt = t_host_random(s, TG_F64, f->flows);
        double *out = t_output(s, TG_F64, f->flows * rows);
        const tg_flow_op op = {.of = *f,
                               .part = TG_FLOW_DECAY,
                               .viscosity = 0.02,
                               .dt = t_input(s, TG_F64, f->flows, dt),
                               .decay = out};
        t_ok(s, s->ops->flow(s->be, &op));
        const double *found = t_download(s, out);
        for (int64_t r = 0; r < f->flows * rows; r++) {
            const double q = 2.0 * PI / f->length * (double)(r % rows - f->modes);
            const double expected = exp(-0.01 * dt[r / rows] * q * q);
            t_below(s, fabs(found[r] - expected), 1e-13 * expected);
        }
        t_release(s);
    }
}

/* Values that a stage does not write stay unchanged, also NaN. */
ROW(stages, "stages", T_ONCE) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        const tg_flow *f = &sizes[i];
        const int64_t reals = spectrum_reals(f), rows = 2 * f->modes + 1;
        for (int stage = 0; stage < 4; stage++) {
            t_note(s, "size %d, stage %d", i, stage);
            const tg_flow_op op = {
                .of = *f,
                .part = (tg_flow_part)(TG_FLOW_STAGE_0 + stage),
                .dt = t_random(s, TG_F64, f->flows),
                .decay = t_random(s, TG_F64, f->flows * rows),
                .products = t_random(s, TG_F64, 2 * reals),
                .forcing = t_random(s, TG_F64, reals),
                .state = stage == 3 ? t_output(s, TG_F64, reals) : t_random(s, TG_F64, reals),
                .next = t_output(s, TG_F64, reals),
                .sum = stage == 0 ? t_output(s, TG_F64, reals)
                                  : t_inout(s, TG_F64, reals, t_host_random(s, TG_F64, reals)),
            };
            t_ok(s, s->ops->flow(s->be, &op));
            t_keep_close(s, op.state, 1.0);
            t_keep_close(s, op.sum, 1.0);
            if (stage < 3) {
                t_keep_close(s, op.next, 1.0);
            } else {
                t_keep_same(s, op.next);
            }
            t_release(s);
        }
    }
}

/* A step of length 0 changes nothing, to the bit: flows that have arrived may go along. */
ROW(standstill, "standstill", T_ONCE) {
    const tg_flow *f = &sizes[2];
    const int64_t reals = spectrum_reals(f), rows = 2 * f->modes + 1;
    double zeros[3] = {0.0, 0.0, 0.0};
    const double *w = t_host_random(s, TG_F64, reals);
    double *dt = t_input(s, TG_F64, f->flows, zeros), *held = t_output(s, TG_F64, f->flows * rows);
    tg_flow_op op = {.of = *f,
                     .part = TG_FLOW_DECAY,
                     .viscosity = 0.3,
                     .dt = dt,
                     .decay = held,
                     .products = t_random(s, TG_F64, 2 * reals),
                     .forcing = t_random(s, TG_F64, reals),
                     .state = t_inout(s, TG_F64, reals, w),
                     .next = t_output(s, TG_F64, reals),
                     .sum = t_output(s, TG_F64, reals)};
    t_ok(s, s->ops->flow(s->be, &op));
    for (int stage = 0; stage < 4; stage++) {
        op.part = (tg_flow_part)(TG_FLOW_STAGE_0 + stage);
        t_ok(s, s->ops->flow(s->be, &op));
    }
    t_true(s, t_first_difference(TG_F64, reals, t_download(s, op.state), w) == -1);
}

int main(void) {
    return t_run_rows("flow");
}
