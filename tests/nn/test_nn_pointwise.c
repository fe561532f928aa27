/* Boxes, coordinates, planes, activations and spectral contractions of every backend: against their
 * definitions and against ref. */
#include <math.h>
#include <string.h>

#include "support/runner.h"

enum {
    REALS = 1 << TG_F32 | 1 << TG_F64,
    ALL_REALS = REALS | 1 << TG_BF16 | 1 << TG_F16,
    PAIRS = 1 << TG_C64 | 1 << TG_C128,
    MANY = 200003 /* enough for several threads */
};

/* ---- boxes ---- */

static const struct {
    int ndim;
    int64_t howmany, size[3], src_dim[3], src_at[3], dst_dim[3], dst_at[3];
} boxes[] = {
    {1, 1, {1}, {1}, {0}, {1}, {0}},
    {1, 3, {4}, {4}, {0}, {7}, {2}}, /* into a larger one */
    {1, 3, {4}, {7}, {2}, {4}, {0}}, /* and out of it */
    {2, 2, {3, 5}, {3, 5}, {0, 0}, {4, 9}, {1, 0}},
    {2, 2, {3, 5}, {5, 6}, {2, 1}, {3, 5}, {0, 0}},
    {3, 2, {2, 3, 4}, {2, 3, 5}, {0, 0, 1}, {3, 5, 4}, {1, 2, 0}},
    {3, 13, {2, 3, 1031}, {3, 3, 1031}, {1, 0, 0}, {2, 4, 1033}, {0, 1, 2}},
};

static int64_t product(int n, const int64_t *dims) {
    int64_t p = 1;
    for (int d = 0; d < n; d++) {
        p *= dims[d];
    }
    return p;
}

ROW(box_copy, "box_copy", T_FLOATS) {
    for (int i = 0; i < T_COUNT(boxes); i++) {
        for (int clear = 0; clear < 2; clear++) {
            t_note(s, "box %d clear %d", i, clear);
            if (t_leaves_out(s)) {
                continue;
            }
            tg_box op = {.dtype = s->dtype,
                         .ndim = boxes[i].ndim,
                         .howmany = boxes[i].howmany,
                         .clear = clear == 1};
            memcpy(op.size, boxes[i].size, sizeof op.size);
            memcpy(op.src_dim, boxes[i].src_dim, sizeof op.src_dim);
            memcpy(op.src_at, boxes[i].src_at, sizeof op.src_at);
            memcpy(op.dst_dim, boxes[i].dst_dim, sizeof op.dst_dim);
            memcpy(op.dst_at, boxes[i].dst_at, sizeof op.dst_at);
            const int64_t to = op.howmany * product(op.ndim, op.dst_dim);
            op.src = t_random(s, s->dtype, op.howmany * product(op.ndim, op.src_dim));
            op.dst = op.clear ? t_output(s, s->dtype, to)
                              : t_inout(s, s->dtype, to, t_host_random(s, s->dtype, to));
            t_ok(s, s->ops->box_copy(s->be, &op));
            t_keep_same(s, op.dst);
            t_release(s);
        }
    }
}

/* Into a larger grid with zeros around and out again: the same; and the sum of squares is kept. */
ROW(box_round_trip, "box_round_trip", T_WIDE) {
    tg_box in = {.dtype = s->dtype,
                 .ndim = 2,
                 .howmany = 3,
                 .size = {4, 5},
                 .src_dim = {4, 5},
                 .dst_dim = {7, 9},
                 .dst_at = {2, 3},
                 .clear = true};
    const void *x = t_host_random(s, s->dtype, 60);
    in.src = t_input(s, s->dtype, 60, x);
    in.dst = t_output(s, s->dtype, 3 * 63);
    t_ok(s, s->ops->box_copy(s->be, &in));
    tg_box out = {.dtype = s->dtype,
                  .ndim = 2,
                  .howmany = 3,
                  .size = {4, 5},
                  .src_dim = {7, 9},
                  .src_at = {2, 3},
                  .dst_dim = {4, 5},
                  .src = in.dst,
                  .dst = t_output(s, s->dtype, 60)};
    t_ok(s, s->ops->box_copy(s->be, &out));
    t_true(s, t_first_difference(s->dtype, 60, t_download(s, out.dst), x) < 0);
    tg_norms small, large;
    t_ok(s, s->ops->norms(s->be, s->dtype, 60, in.src, &small));
    t_ok(s, s->ops->norms(s->be, s->dtype, 3 * 63, in.dst, &large));
    t_below(s, fabs(small.sum_squares - large.sum_squares), 1e-12 * small.sum_squares);
}

/* ---- coordinates and planes ---- */

ROW(grid_embed, "grid_embed", REALS) {
    const int64_t grids[3][3] = {{5}, {3, 4}, {2, 3, 4}};
    for (int ndim = 1; ndim <= 3; ndim++) {
        t_note(s, "%d-D", ndim);
        tg_embed op = {.dtype = s->dtype, .batch = 2, .channels = 3, .ndim = ndim, .unit = 1.0};
        memcpy(op.grid, grids[ndim - 1], sizeof op.grid);
        op.first = ndim - 1; /* rows of a larger grid, but in 1-D */
        op.whole = op.grid[0] + 3 * op.first;
        const int64_t points = product(ndim, op.grid), channels = op.channels + ndim;
        const void *x = t_host_random(s, s->dtype, 2 * 3 * points);
        op.x = t_input(s, s->dtype, 2 * 3 * points, x);
        op.y = t_output(s, s->dtype, 2 * channels * points);
        t_ok(s, s->ops->grid_embed(s->be, &op));
        op.x = NULL; /* coordinates alone: the same again, the data stays */
        t_ok(s, s->ops->grid_embed(s->be, &op));
        t_keep_same(s, op.y);
        const void *y = t_download(s, op.y);
        for (int64_t i = 0; i < 2 * channels * points; i++) {
            const int64_t b = i / (channels * points), c = i / points % channels, p = i % points;
            double expected = 0.0;
            if (c < 3) {
                expected = tg_load(s->dtype, x, (b * 3 + c) * points + p).re;
            } else {
                const int j = (int)c - 3;
                const int64_t at = p / product(ndim - 1 - j, op.grid + j + 1) % op.grid[j];
                expected = j == 0 ? (double)(op.first + at) / (double)op.whole
                                  : (double)at / (double)op.grid[j];
            }
            t_below(s, fabs(tg_load(s->dtype, y, i).re - expected), 1e-7);
        }
        t_release(s);
    }
}

ROW(planes, "planes", ALL_REALS) {
    for (int i = 0; i <= t_length_count; i++) {
        const int64_t n = i < t_length_count ? t_lengths[i] : MANY;
        t_note(s, "n %lld", (long long)n);
        if (t_leaves_out(s)) {
            continue;
        }
        const void *z = t_host_random(s, tg_dtype_complex(s->dtype), n);
        const void *pairs = t_input(s, tg_dtype_complex(s->dtype), n, z);
        void *re = t_output(s, s->dtype, n), *im = t_output(s, s->dtype, n);
        t_ok(s, s->ops->planes(s->be, &(tg_planes){s->dtype, n, {pairs}, {re, im}}));
        void *again = t_output(s, tg_dtype_complex(s->dtype), n);
        t_ok(s, s->ops->planes(s->be, &(tg_planes){s->dtype, n, {re, im}, {again}}));
        t_keep_same(s, re);
        t_keep_same(s, im);
        t_true(s, t_first_difference(tg_dtype_complex(s->dtype), n, t_download(s, again), z) < 0);
        t_release(s);
    }
}

/* ---- activations ---- */

static double act_value(tg_act act, double x) {
    return act == TG_ACT_GELU   ? 0.5 * x * erfc(-x / sqrt(2.0))
           : act == TG_ACT_TANH ? tanh(x)
           : act == TG_ACT_RELU ? fmax(x, 0.0)
           : act == TG_ACT_SILU ? x / (1.0 + exp(-x))
                                : x;
}

static tg_status activate(t_side *s, tg_dtype dtype, int act, int64_t n, const void *x,
                          const void *dy, void *y) {
    return s->ops->activate(s->be, &(tg_activation){dtype, (tg_act)act, n, x, dy, y});
}

/* Over the whole range where they bend, beyond it, and at zero: within 1e-6 of the exact ones. */
ROW(act_values, "act_values", REALS) {
    enum { N = 20011 };
    for (int a = TG_ACT_NONE; a <= TG_ACT_SILU; a++) {
        t_note(s, "activation %d", a);
        void *x = t_host_alloc(s, s->dtype, N), *ones = t_host_alloc(s, s->dtype, N);
        for (int i = 0; i < N; i++) {
            const double at = (double)(i - N / 2) / 500.0; /* -20 .. 20, 0 among them */
            tg_store(s->dtype, x, i, (tg_scalar){at, 0.0});
            tg_store(s->dtype, ones, i, (tg_scalar){1.0, 0.0});
        }
        const void *in = t_input(s, s->dtype, N, x), *dy = t_input(s, s->dtype, N, ones);
        void *y = t_output(s, s->dtype, N), *dx = t_output(s, s->dtype, N);
        t_ok(s, activate(s, s->dtype, a, N, in, NULL, y));
        t_ok(s, activate(s, s->dtype, a, N, in, dy, dx));
        const void *value = t_download(s, y), *slope = t_download(s, dx);
        double error = 0.0, slope_error = 0.0;
        for (int i = 0; i < N; i++) {
            const double v = tg_load(s->dtype, x, i).re, h = 1e-5;
            const double exact = act_value((tg_act)a, v);
            const bool is_corner = a == TG_ACT_RELU && v == 0.0; /* its slope there is 0 */
            const double numeric =
                is_corner ? 0.0
                          : (act_value((tg_act)a, v + h) - act_value((tg_act)a, v - h)) / (2.0 * h);
            const double apart = fabs(tg_load(s->dtype, value, i).re - exact);
            const double slope_apart = fabs(tg_load(s->dtype, slope, i).re - numeric);
            const double rounding = fabs(exact) * 6e-8;
            error = apart - rounding <= error ? error : apart - rounding;
            slope_error = slope_apart <= slope_error ? slope_error : slope_apart;
        }
        t_below(s, error, s->dtype == TG_F32 ? 1e-6 : 1e-14);
        t_below(s, slope_error, s->dtype == TG_F32 ? 1e-6 : 1e-9);
        t_release(s);
    }
}

ROW(act_places, "act_places", ALL_REALS) {
    for (int i = 0; i <= t_length_count; i++) {
        const int64_t n = i < t_length_count ? t_lengths[i] : MANY;
        t_note(s, "n %lld", (long long)n);
        if (t_leaves_out(s)) {
            continue;
        }
        const void *x = t_host_random(s, s->dtype, n), *dy = t_host_random(s, s->dtype, n);
        for (int a = TG_ACT_NONE; a <= TG_ACT_SILU; a++) {
            void *same = t_inout(s, s->dtype, n, x);
            t_ok(s, activate(s, s->dtype, a, n, same, NULL, same));
            t_keep_close(s, same, 20.0);
            void *over_x = t_inout(s, s->dtype, n, x), *over_dy = t_inout(s, s->dtype, n, dy);
            t_ok(s, activate(s, s->dtype, a, n, over_x, t_input(s, s->dtype, n, dy), over_x));
            t_ok(s, activate(s, s->dtype, a, n, t_input(s, s->dtype, n, x), over_dy, over_dy));
            t_keep_close(s, over_x, 20.0);
            t_keep_close(s, over_dy, 20.0);
        }
        t_release(s);
    }
}

/* ---- spectral contraction ---- */

static const struct {
    int64_t batch, in, out, modes;
} contractions[] = {{1, 1, 1, 1},   {1, 3, 2, 5},   {2, 4, 3, 7},      {3, 5, 5, 33},
                    {7, 3, 4, 4},   {8, 2, 3, 17},  {9, 4, 2, 66},     {17, 3, 1, 12},
                    {2, 33, 9, 65}, {5, 6, 7, 403}, {3, 16, 18, 1031}, {6, 67, 12, 34}};

ROW(contract, "contract", PAIRS) {
    for (int i = 0; i < T_COUNT(contractions); i++) {
        for (int adjoint = 0; adjoint < 2; adjoint++) {
            t_note(s, "case %d adjoint %d", i, adjoint);
            if (t_leaves_out(s)) {
                continue;
            }
            tg_spectral op = {.dtype = s->dtype,
                              .adjoint = adjoint == 1,
                              .batch = contractions[i].batch,
                              .in = contractions[i].in,
                              .out = contractions[i].out,
                              .modes = contractions[i].modes};
            const int64_t from = op.adjoint ? op.out : op.in, to = op.adjoint ? op.in : op.out;
            op.weight = t_random(s, s->dtype, op.in * op.out * op.modes);
            op.src = t_random(s, s->dtype, op.batch * from * op.modes);
            op.dst = t_output(s, s->dtype, op.batch * to * op.modes);
            t_ok(s, s->ops->spectral_contract(s->be, &op));
            t_keep_close(s, op.dst, sqrt((double)from) + 1.0);
            t_release(s);
        }
    }
}

/* sum conj(x) y */
static tg_scalar dot(t_side *s, int64_t n, const void *x, const void *y) {
    const void *a = t_download(s, x), *b = t_download(s, y);
    tg_scalar sum = {0.0, 0.0};
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar u = tg_load(s->dtype, a, i), v = tg_load(s->dtype, b, i);
        sum.re += u.re * v.re + u.im * v.im;
        sum.im += u.re * v.im - u.im * v.re;
    }
    return sum;
}

/* <W x, y> = <x, W^H y>, and with the gradient of the weight, Re <G, dW> = Re <dW x, y>. */
ROW(contract_adjoint, "contract_adjoint", PAIRS) {
    for (int i = 1; i < T_COUNT(contractions); i++) {
        t_note(s, "case %d", i);
        tg_spectral op = {.dtype = s->dtype,
                          .batch = contractions[i].batch,
                          .in = contractions[i].in,
                          .out = contractions[i].out,
                          .modes = contractions[i].modes};
        const int64_t nx = op.batch * op.in * op.modes, ny = op.batch * op.out * op.modes;
        const int64_t nw = op.in * op.out * op.modes;
        const void *x = t_random(s, s->dtype, nx), *y = t_random(s, s->dtype, ny);
        op.weight = t_random(s, s->dtype, nw);
        void *wx = t_output(s, s->dtype, ny), *wy = t_output(s, s->dtype, nx);
        op.src = x;
        op.dst = wx;
        t_ok(s, s->ops->spectral_contract(s->be, &op));
        op.adjoint = true;
        op.src = y;
        op.dst = wy;
        t_ok(s, s->ops->spectral_contract(s->be, &op));
        const tg_scalar left = dot(s, ny, wx, y), right = dot(s, nx, x, wy);
        const tg_multimode modes = {.dtype = s->dtype,
                                    .ndim = 3,
                                    .dim = {op.in, op.out, op.modes},
                                    .rank = {op.in, op.out, op.modes}};
        const tg_grad_source source = {.x = x, .dy = y, .batch = op.batch};
        void *g = t_output(s, s->dtype, nw);
        t_ok(s, s->ops->grad_dense(s->be, &modes, &source, 1.0, g));
        const tg_scalar weight = dot(s, nw, op.weight, g);
        const double tolerance = 10.0 * t_tolerance(s->dtype) * (double)op.in *
                                 sqrt((double)(op.batch * op.out * op.modes));
        t_below(s, hypot(left.re - right.re, left.im - right.im), tolerance);
        t_below(s, hypot(left.re - weight.re, left.im - weight.im), tolerance);
        t_release(s);
    }
}

ROW(refusals, "refusals", T_ONCE) {
    const tg_box box = {.dtype = TG_I32, .ndim = 1};
    const tg_embed embed = {.dtype = TG_C64, .ndim = 1};
    const tg_spectral spectral = {.dtype = TG_CBF16};
    float x[2] = {0}, y[2], z[4];
    t_refused(s, TG_E_DTYPE, s->ops->box_copy(s->be, &box));
    t_refused(s, TG_E_DTYPE, s->ops->grid_embed(s->be, &embed));
    t_refused(s, TG_E_DTYPE, s->ops->spectral_contract(s->be, &spectral));
    const tg_spectral wide = {.dtype = TG_C128, .store = TG_STORE_BF16};
    const tg_spectral weights = {.dtype = TG_C128, .weight_store = TG_STORE_F16};
    t_refused(s, TG_E_DTYPE, s->ops->spectral_contract(s->be, &wide));
    t_refused(s, TG_E_DTYPE, s->ops->spectral_contract(s->be, &weights));
    t_refused(s, TG_E_DTYPE, activate(s, TG_CBF16, TG_ACT_GELU, 1, x, NULL, y));
    t_refused(s, TG_E_DTYPE, activate(s, TG_C64, TG_ACT_GELU, 1, x, x, y));
    const tg_planes join = {TG_I32, 1, {x, y}, {z}}, split = {TG_C64, 1, {z}, {x, y}};
    t_refused(s, TG_E_DTYPE, s->ops->planes(s->be, &join));
    t_refused(s, TG_E_DTYPE, s->ops->planes(s->be, &split));
}

int main(void) {
    return t_run_rows("pointwise");
}
