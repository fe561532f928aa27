/* Losses of every backend: against ref, by hand, and gradients against central differences; and the
 * public call with its settings. */
#include <math.h>
#include <string.h>

#include "base/system.h"
#include "support/network.h"
#include "support/runner.h"

enum { REALS = 1 << TG_F32 | 1 << TG_F64 };

static const struct {
    int ndim;
    int64_t grid[3];
} grids[] = {{1, {1}}, {1, {2}}, {1, {3}}, {1, {33}}, {2, {1, 7}}, {2, {5, 4}}, {3, {3, 2, 5}}};

static const struct {
    tg_loss_norm norm;
    double p;
    bool relative;
} kinds[] = {{TG_LOSS_NORM_LP, 2.0, true}, {TG_LOSS_NORM_LP, 2.0, false},
             {TG_LOSS_NORM_LP, 1.5, true}, {TG_LOSS_NORM_LP, 4.0, false},
             {TG_LOSS_NORM_H1, 2.0, true}, {TG_LOSS_NORM_H1, 2.0, false}};

static tg_loss_op describe(const t_side *s, int grid, int kind, int components) {
    tg_loss_op op = {.dtype = s->dtype,
                     .components = components,
                     .images = 3,
                     .ndim = grids[grid].ndim,
                     .norm = kinds[kind].norm,
                     .p = kinds[kind].p,
                     .relative = kinds[kind].relative,
                     .weight = 0.75,
                     .beta = 0.5,
                     .channels = 2,
                     .channel_weight = {1.25, 0.5},
                     .grad_scale = 1.0};
    memcpy(op.grid, grids[grid].grid, sizeof op.grid);
    return op;
}

static int64_t numbers(const tg_loss_op *op) {
    int64_t n = op->images * op->components;
    for (int d = 0; d < op->ndim; d++) {
        n *= op->grid[d];
    }
    return n;
}

/* The value that a call adds to what stood there before. */
static double loss_of(t_side *s, const tg_loss_op *call) {
    const double before = 0.25;
    tg_loss_op op = *call;
    op.value = t_inout(s, TG_F64, 1, &before);
    t_ok(s, s->ops->loss(s->be, &op));
    return *(const double *)t_download(s, op.value) - before;
}

static void all_cases(t_side *s, void (*check)(t_side *s, tg_loss_op *op)) {
    for (int g = 0; g < T_COUNT(grids); g++) {
        for (int k = 0; k < T_COUNT(kinds); k++) {
            for (int components = 1; components <= 2; components++) {
                if (t_leaves_out(s)) {
                    continue;
                }
                t_note(s, "grid %d kind %d components %d", g, k, components);
                tg_loss_op op = describe(s, g, k, components);
                check(s, &op);
                t_release(s);
            }
        }
    }
}

static void twin_case(t_side *s, tg_loss_op *op) {
    const int64_t n = numbers(op);
    double value = (double)NAN;
    op->pred = t_random(s, s->dtype, n);
    op->target = t_random(s, s->dtype, n);
    op->dpred = t_inout(s, s->dtype, n, t_host_random(s, s->dtype, n));
    op->powers = t_output(s, TG_F64, 2 * op->images);
    value = loss_of(s, op);
    t_record_close(s, TG_F64, 1, &value, s->dtype == TG_F32 ? 1e8 : 100.0);
    t_keep_close(s, op->dpred, 20.0);
    t_keep_close(s, op->powers, 100.0);
    op->dpred = NULL;
    op->powers = NULL;
    double again = (double)NAN;
    again = loss_of(s, op);
    t_true(s, again == value);
}

ROW(twin, "twin", REALS) {
    all_cases(s, twin_case);
}

static void differences_case(t_side *s, tg_loss_op *op) {
    const int64_t n = numbers(op);
    double *pred = t_host_random(s, s->dtype, n), *target = t_host_random(s, s->dtype, n);
    op->beta = 0.0;
    op->pred = t_input(s, s->dtype, n, pred);
    op->target = t_input(s, s->dtype, n, target);
    op->dpred = t_output(s, s->dtype, n);
    (void)loss_of(s, op);
    const double *gradient = t_download(s, op->dpred);
    op->dpred = NULL;
    for (int64_t i = 0; i < n; i++) {
        const double kept = pred[i], step = 1e-6;
        double value[2];
        for (int side = 0; side < 2; side++) {
            pred[i] = kept + (side ? step : -step);
            op->pred = t_input(s, s->dtype, n, pred);
            value[side] = loss_of(s, op);
        }
        pred[i] = kept;
        t_below(s, fabs((value[1] - value[0]) / (2.0 * step) - gradient[i]),
                1e-7 * (1.0 + fabs(gradient[i])));
    }
}

/* The loss is made of the sums that a call hands out. */
static void powers_case(t_side *s, tg_loss_op *op) {
    const int64_t n = numbers(op), points = n / (op->images * op->components);
    const double root = 1.0 / (op->norm == TG_LOSS_NORM_H1 ? 2.0 : op->p);
    double sum = 0.0;
    op->pred = t_random(s, s->dtype, n);
    op->target = t_random(s, s->dtype, n);
    op->powers = t_output(s, TG_F64, 2 * op->images);
    const double value = loss_of(s, op);
    const double *power = t_download(s, op->powers);
    for (int64_t i = 0; i < op->images; i++) {
        const double unit = op->relative ? power[2 * i + 1] : (double)points;
        t_true(s, op->relative || power[2 * i + 1] == 0.0);
        sum += 0.75 * (i == 1 ? 0.5 : 1.25) * pow(power[2 * i] / unit, root);
    }
    t_below(s, fabs(sum - value), 1e-12 * value);
    op->value = NULL;
    t_ok(s, s->ops->loss(s->be, op)); /* and nothing else, if nothing else is wanted */
}

ROW(powers, "powers", REALS) {
    all_cases(s, powers_case);
}

/* A power of two comes out of the gradient as it went in; the value does not know of it. */
static void scaled_case(t_side *s, tg_loss_op *op) {
    const int64_t n = numbers(op);
    double value[2];
    const void *gradient[2];
    op->beta = 0.0;
    op->pred = t_random(s, s->dtype, n);
    op->target = t_random(s, s->dtype, n);
    for (int i = 0; i < 2; i++) {
        op->grad_scale = i ? 0x1p16 : 1.0;
        op->dpred = t_output(s, s->dtype, n);
        value[i] = loss_of(s, op);
        gradient[i] = t_download(s, op->dpred);
    }
    t_true(s, value[0] == value[1]);
    for (int64_t i = 0; i < n; i++) {
        t_true(s, tg_load(s->dtype, gradient[1], i).re ==
                      0x1p16 * tg_load(s->dtype, gradient[0], i).re);
    }
}

ROW(scaled, "scaled", REALS) {
    all_cases(s, scaled_case);
}

ROW(differences, "differences", T_ONCE) {
    if (!t_runs_once()) {
        all_cases(s, differences_case);
    }
}

/* pred = target: loss 0 and gradient 0; target 0: the norm itself. */
ROW(edges, "edges", REALS) {
    for (int k = 0; k < T_COUNT(kinds); k++) {
        t_note(s, "kind %d", k);
        tg_loss_op op = describe(s, 5, k, 1);
        const int64_t n = numbers(&op);
        const void *x = t_host_random(s, s->dtype, n);
        double value = (double)NAN;
        op.beta = 0.0;
        op.pred = t_input(s, s->dtype, n, x);
        op.target = t_input(s, s->dtype, n, x);
        op.dpred = t_output(s, s->dtype, n);
        value = loss_of(s, &op);
        t_true(s, value == 0.0);
        tg_norms norms;
        t_ok(s, s->ops->norms(s->be, s->dtype, n, op.dpred, &norms));
        t_true(s, norms.max_abs == 0.0 && norms.nonfinite == 0);
        void *zero = t_output(s, s->dtype, n);
        t_ok(s, s->ops->fill(s->be, s->dtype, n, (tg_scalar){0}, zero));
        op.target = zero;
        value = loss_of(s, &op);
        t_true(s, isfinite(value) && value > 0.0);
        t_release(s);
    }
    const tg_loss_op bad = {.dtype = TG_BF16};
    t_refused(s, TG_E_DTYPE, s->ops->loss(s->be, &bad));
}

/* ---- norms that are given ---- */

/* Squares and slopes of the L2 norm, made by hand, give what that norm gives. */
static void given_case(t_side *s, tg_loss_op *op) {
    const int64_t n = numbers(op);
    const void *pred = t_host_random(s, s->dtype, n), *target = t_host_random(s, s->dtype, n);
    const void *before = t_host_random(s, s->dtype, n);
    double *slope = t_host_alloc(s, TG_F64, n), *squares = t_host_alloc(s, TG_F64, 2 * op->images);
    memset(squares, 0, (size_t)(2 * op->images) * sizeof *squares);
    for (int64_t i = 0; i < n; i++) {
        const int64_t image = i / (n / op->images);
        const double t = tg_load(s->dtype, target, i).re;
        slope[i] = tg_load(s->dtype, pred, i).re - t;
        squares[2 * image] += slope[i] * slope[i];
        squares[2 * image + 1] += t * t;
    }
    op->pred = t_input(s, s->dtype, n, pred);
    op->target = t_input(s, s->dtype, n, target);
    op->norm = TG_LOSS_NORM_LP;
    op->p = 2.0;
    op->dpred = t_inout(s, s->dtype, n, before);
    const double expected = loss_of(s, op);
    const void *gradient = t_download(s, op->dpred);
    op->pred = op->target = NULL;
    op->norm = TG_LOSS_NORM_GIVEN;
    op->powers = t_input(s, TG_F64, 2 * op->images, squares);
    op->slope = t_input(s, TG_F64, n, slope);
    op->dpred = t_inout(s, s->dtype, n, before);
    t_below(s, fabs(loss_of(s, op) - expected), 1e-13 * expected);
    const void *found = t_download(s, op->dpred);
    for (int64_t i = 0; i < n; i++) {
        t_below(s, fabs(tg_load(s->dtype, found, i).re - tg_load(s->dtype, gradient, i).re),
                s->dtype == TG_F32 ? 1e-6 : 1e-14);
    }
}

ROW(given, "given", REALS) {
    all_cases(s, given_case);
}

/* ---- slabs ---- */

enum { SLABS = 3 };

/* On the side, rows first .. first + count - 1, with wrap, of each image of a host array. */
static void *rows_of(t_side *s, const tg_loss_op *op, const void *from, int64_t first,
                     int64_t count) {
    const int64_t row = tg_loss_edges(op) / 4, rows = op->grid[0];
    const size_t bytes = (size_t)row * tg_dtype_size(s->dtype);
    char *slab = t_host_alloc(s, s->dtype, op->images * count * row);
    for (int64_t i = 0; i < op->images * count; i++) {
        const int64_t at = ((first + i % count) % rows + rows) % rows;
        memcpy(slab + (size_t)i * bytes,
               (const char *)from + (size_t)(i / count * rows + at) * bytes, bytes);
    }
    return t_inout(s, s->dtype, op->images * count * row, slab);
}

/* The 2 rows before a slab and the 2 after it. */
static void *edges_of(t_side *s, const tg_loss_op *op, const void *from, tg_range rows) {
    const int64_t row = tg_loss_edges(op) / 4;
    const size_t bytes = (size_t)(2 * row) * tg_dtype_size(s->dtype);
    const char *before = t_download(s, rows_of(s, op, from, rows.begin - 2, 2));
    const char *after = t_download(s, rows_of(s, op, from, rows.end, 2));
    char *edges = t_host_alloc(s, s->dtype, op->images * 4 * row);
    for (int64_t n = 0; n < op->images; n++) {
        memcpy(edges + (size_t)(2 * n) * bytes, before + (size_t)n * bytes, bytes);
        memcpy(edges + (size_t)(2 * n + 1) * bytes, after + (size_t)n * bytes, bytes);
    }
    return t_input(s, s->dtype, op->images * 4 * row, edges);
}

/* The powers of slabs add up to those of the whole; with these, each has its loss, and its rows of
 * the gradient. */
static void slabs_case(t_side *s, tg_loss_op *op) {
    const int64_t n = numbers(op), row = tg_loss_edges(op) / 4, all = op->grid[0];
    const int parts = all < SLABS ? (int)all : SLABS;
    const void *pred = t_host_random(s, s->dtype, n), *target = t_host_random(s, s->dtype, n);
    const void *before = t_host_random(s, s->dtype, n);
    double *sums = t_host_alloc(s, TG_F64, 2 * op->images);
    memset(sums, 0, (size_t)(2 * op->images) * sizeof *sums);
    op->pred = t_input(s, s->dtype, n, pred);
    op->target = t_input(s, s->dtype, n, target);
    op->dpred = t_inout(s, s->dtype, n, before);
    const double expected = loss_of(s, op);
    const void *gradient = t_download(s, op->dpred);
    for (int i = 0; i < 2 * parts; i++) {
        const tg_range rows = tg_slab_of(all, parts, i % parts);
        const int64_t count = rows.end - rows.begin;
        tg_loss_op slab = *op;
        slab.whole = all;
        slab.pred = rows_of(s, op, pred, rows.begin, count);
        slab.target = rows_of(s, op, target, rows.begin, count);
        slab.pred_edges = edges_of(s, op, pred, rows);
        slab.target_edges = edges_of(s, op, target, rows);
        slab.grid[0] = count;
        if (i < parts) {
            slab.dpred = NULL;
            slab.powers = t_output(s, TG_F64, 2 * op->images);
            t_ok(s, s->ops->loss(s->be, &slab));
            const double *powers = t_download(s, slab.powers);
            for (int64_t k = 0; k < 2 * op->images; k++) {
                sums[k] += powers[k];
            }
            continue;
        }
        slab.is_measured = true;
        slab.powers = t_input(s, TG_F64, 2 * op->images, sums);
        slab.dpred = rows_of(s, op, before, rows.begin, count);
        t_below(s, fabs(loss_of(s, &slab) - expected), 1e-13 * expected);
        const void *found = t_download(s, slab.dpred);
        for (int64_t k = 0; k < op->images * count * row; k++) {
            const int64_t at = k / (count * row) * all * row + rows.begin * row + k % (count * row);
            const double wanted = tg_load(s->dtype, gradient, at).re;
            t_below(s, fabs(tg_load(s->dtype, found, k).re - wanted),
                    (s->dtype == TG_F32 ? 1e-6 : 1e-13) * (1.0 + fabs(wanted)));
        }
    }
}

ROW(slabs, "slabs", REALS) {
    all_cases(s, slabs_case);
}

ROW(sobolev, "sobolev", T_ONCE) {
    static const double orders[] = {-0.5, 0.0, 2.0};
    for (int i = 0; i < 4 * T_COUNT(grids); i++) {
        const int grid = i / 4;
        tg_sobolev op = {.complex = i % 2 == 1,
                         .ndim = grids[grid].ndim,
                         .images = 3,
                         .order = orders[i % 3],
                         .weighs = i / 2 % 2 == 1};
        int64_t size = 2 * op.images;
        if (t_leaves_out(s)) {
            continue;
        }
        t_note(s, "grid %d order %g", grid, op.order);
        memcpy(op.grid, grids[grid].grid, sizeof op.grid);
        for (int d = 0; d < op.ndim; d++) {
            const bool is_half = !op.complex && d == op.ndim - 1;
            size *= is_half ? op.grid[d] / 2 + 1 : op.grid[d];
        }
        op.spectrum = t_inout(s, TG_F64, size, t_host_random(s, TG_F64, size));
        op.squares = t_inout(s, TG_F64, 2 * op.images, t_host_random(s, TG_F64, 2 * op.images));
        t_ok(s, s->ops->sobolev_squares(s->be, &op));
        t_keep_close(s, op.spectrum, 100.0);
        t_keep_close(s, op.squares, 100.0);
        t_release(s);
    }
}

/* Random fields and some numbers of an equation. */
static tg_residual fields_of(t_side *s, tg_equation equation, int64_t batch, int64_t channels,
                             int64_t n, int64_t m) {
    return (tg_residual){.equation = equation,
                         .dtype = s->dtype,
                         .batch = batch,
                         .in_channels = channels,
                         .n = n,
                         .m = m,
                         .x_mean = 3.0,
                         .x_scale = 2.0,
                         .y_mean = -0.1,
                         .y_scale = 0.7,
                         .forcing = 1.5,
                         .viscosity = 0.01,
                         .time = 0.1,
                         .x = t_random(s, s->dtype, batch * channels * n * m),
                         .pred = t_random(s, s->dtype, batch * n * m),
                         .target = t_random(s, s->dtype, batch * n * m)};
}

ROW(residuals, "residuals", REALS) {
    static const struct {
        tg_equation equation;
        int64_t n, m, in_channels;
    } cases[] = {{TG_EQUATION_DARCY, 3, 3, 1},
                 {TG_EQUATION_DARCY, 19, 33, 1},
                 {TG_EQUATION_BURGERS, 2, 1, 1},
                 {TG_EQUATION_BURGERS, 301, 1, 3},
                 {TG_EQUATION_FLOW, 17, 12, 2}};
    for (int i = 0; i < 2 * T_COUNT(cases); i++) {
        const int64_t batch = 3, n = cases[i / 2].n, m = cases[i / 2].m;
        const int64_t channels = cases[i / 2].in_channels;
        if (t_leaves_out(s)) {
            continue;
        }
        t_note(s, "case %d", i);
        tg_residual op = fields_of(s, cases[i / 2].equation, batch, channels, n, m);
        op.residual = t_random(s, TG_F64, batch * n * m);
        op.rest = t_random(s, TG_F64, batch * n * m);
        op.powers = t_output(s, TG_F64, 2 * batch);
        op.slope = i % 2 ? t_output(s, TG_F64, batch * n * m) : NULL;
        t_ok(s, s->ops->residual(s->be, &op));
        t_keep_close(s, op.powers, 100.0);
        if (op.slope) {
            t_keep_close(s, op.slope, 100.0);
        }
        t_release(s);
    }
    const tg_residual bad = {.dtype = TG_BF16};
    t_refused(s, TG_E_DTYPE, s->ops->residual(s->be, &bad));
}

/* Grids of the vorticity equation. */
static const struct { int64_t n, m; } squares[] = {{1, 1}, {2, 3}, {5, 8}, {32, 33}};

ROW(vorticity_maps, "vorticity_maps", T_ONCE) {
    for (int i = 0; i < 10 * T_COUNT(squares); i++) {
        const int64_t images = 3, n = squares[i / 10].n, m = squares[i / 10].m;
        const int64_t size = images * n * (m / 2 + 1);
        if (t_leaves_out(s)) {
            continue;
        }
        t_note(s, "case %d", i);
        const tg_residual op = {
            .equation = TG_VORTICITY_MAP,
            .dtype = TG_F64,
            .map = (tg_vorticity_map)(i % 5),
            .batch = images,
            .n = n,
            .m = m,
            .length = 1.5,
            .factor = -0.5,
            .adds = i / 5 % 2 == 1,
            .from = t_random(s, TG_C128, size),
            .to = i / 5 % 2 == 1 ? t_inout(s, TG_C128, size, t_host_random(s, TG_C128, size))
                                 : t_output(s, TG_C128, size)};
        t_ok(s, s->ops->residual(s->be, &op));
        t_keep_close(s, op.to, 10.0);
        t_release(s);
    }
}

ROW(vorticity_points, "vorticity_points", REALS) {
    for (int i = 0; i < 4 * T_COUNT(squares); i++) {
        const int64_t batch = 3, n = squares[i / 4].n, m = squares[i / 4].m, size = batch * n * m;
        const tg_equation part = (tg_equation)(TG_VORTICITY_BEGIN + i % 4);
        if (t_leaves_out(s)) {
            continue;
        }
        t_note(s, "case %d", i);
        tg_residual op = fields_of(s, part, batch, 2, n, m);
        op.u = t_random(s, TG_F64, size);
        op.v = t_random(s, TG_F64, size);
        op.wx = t_random(s, TG_F64, size);
        op.wy = t_random(s, TG_F64, size);
        op.by = t_random(s, TG_F64, size);
        op.r = part == TG_VORTICITY_BEGIN
                   ? t_output(s, TG_F64, size)
                   : t_inout(s, TG_F64, size, t_host_random(s, TG_F64, size));
        op.field = part == TG_VORTICITY_MOVE
                       ? t_inout(s, TG_F64, size, t_host_random(s, TG_F64, size))
                       : t_output(s, TG_F64, size);
        t_ok(s, s->ops->residual(s->be, &op));
        t_keep_close(s, op.r, 10.0);
        t_keep_close(s, op.field, 10.0);
        t_release(s);
    }
    const tg_residual bad = {.equation = TG_VORTICITY_END, .dtype = TG_BF16};
    t_refused(s, TG_E_DTYPE, s->ops->residual(s->be, &bad));
}

/* f = sin(2 pi x) against 0 on N points: central differences give cos times sin(h)/h. */
ROW(known_value, "known_value", REALS) {
    enum { N = 64 };
    const double turn = 6.283185307179586477 / N;
    void *x = t_host_alloc(s, s->dtype, N), *y = t_host_alloc(s, s->dtype, N);
    for (int i = 0; i < N; i++) {
        tg_store(s->dtype, x, i, (tg_scalar){2.0 * sin(turn * i), 0.0});
        tg_store(s->dtype, y, i, (tg_scalar){sin(turn * i), 0.0});
    }
    tg_loss_op op = {.dtype = s->dtype,
                     .components = 1,
                     .images = 1,
                     .ndim = 1,
                     .grid = {N},
                     .norm = TG_LOSS_NORM_H1,
                     .p = 2.0,
                     .weight = 1.0,
                     .pred = t_input(s, s->dtype, N, x),
                     .target = t_input(s, s->dtype, N, y)};
    double value = 0.0;
    value = loss_of(s, &op);
    const double slope = sin(turn) * N; /* of the differences, 2 pi but for h^2 */
    t_below(s, fabs(value - sqrt(0.5 + 0.5 * slope * slope)), 1e-6);
    op.relative = true;
    value = loss_of(s, &op);
    t_below(s, fabs(value - 1.0), 1e-6);
}

/* ---- the public call ---- */

ROW(settings, "settings", T_ONCE) {
    tg_context *ctx = s->be->ctx;
    static const struct {
        const char *text;
        int terms;
        tg_loss_kind kind; /* of the last term */
        double p, weight;
        bool absolute;
    } good[] = {{"l2", 1, TG_LOSS_LP, 2.0, 1.0, false},
                {" h1 ", 1, TG_LOSS_H1, 2.0, 1.0, false},
                {"abs_l1.5", 1, TG_LOSS_LP, 1.5, 1.0, true},
                {"l2 + 0.1*h1", 2, TG_LOSS_H1, 2.0, 0.1, false},
                {"l2 + 2*hs-0.5", 2, TG_LOSS_HS, -0.5, 2.0, false},
                {"abs_hs1", 1, TG_LOSS_HS, 1.0, 1.0, true},
                {"2 * abs_h1+h1+l1+0.25*l4", 4, TG_LOSS_LP, 4.0, 0.25, false}};
    for (int i = 0; i < T_COUNT(good); i++) {
        tg_loss_config config;
        t_note(s, "%s", good[i].text);
        t_ok(s, tg_loss_config_parse(ctx, "train.loss", good[i].text, &config));
        const tg_loss_term *last = &config.term[config.terms - 1];
        t_true(s, config.terms == good[i].terms && last->kind == good[i].kind);
        t_true(s, last->p == good[i].p && last->weight == good[i].weight);
        t_true(s, last->absolute == good[i].absolute);
    }
    static const char *const bad[] = {
        "",     "l", "l0.5",           "l17",  "l1000",  "h2",   "l2 h1",  "l2 +", "-1*l2",
        "0*l2", "x", "l2+l2+l2+l2+l2", "abs_", "nan*l2", "2 l2", "l2+*h1", "hs",   "hs5",
        "hsx"};
    for (int i = 0; i < T_COUNT(bad); i++) {
        tg_loss_config config;
        t_note(s, "'%s'", bad[i]);
        t_refused(s, TG_E_CONFIG, tg_loss_config_parse(ctx, "train.loss", bad[i], &config));
        t_true(s, strstr(tg_context_error(ctx), "train.loss") != NULL);
    }
}

/* A sum of terms is the sum of the losses, and so are the gradients; complex data of the public
 * call are pairs. */
TEST(public_call) {
    tg_context *ctx = net_context("ref", 1);
    const int64_t dims[] = {2, 3, 4, 5};
    const tg_shape shape = tg_shape_of(4, dims);
    const tg_fno_config data = {.n_dim = 2, .complex_data = true, .dtype = TG_F64};
    tg_tensor pred = net_random(ctx, &data, 2, 3, dims + 2, 1);
    tg_tensor target = net_random(ctx, &data, 2, 3, dims + 2, 2);
    tg_tensor gradient[3] = {{0}};
    double loss[3];
    const char *const texts[] = {"l2", "h1", "l2 + 0.5*h1"};
    for (int i = 0; i < 3; i++) {
        tg_loss_config config;
        net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_C128, &shape, &gradient[i]));
        net_ok(ctx, tg_loss_config_parse(ctx, "loss", texts[i], &config));
        net_ok(ctx, tg_loss_eval(ctx, &config, &pred, &target, &loss[i], &gradient[i]));
    }
    assert_true(fabs(loss[2] - loss[0] - 0.5 * loss[1]) <= 1e-14 * loss[2]);
    const double *a = gradient[0].data, *b = gradient[1].data, *c = gradient[2].data;
    for (int64_t i = 0; i < 2 * tg_tensor_numel(&pred); i++) {
        assert_true(fabs(c[i] - a[i] - 0.5 * b[i]) <= 1e-13);
    }
    tg_loss_config config = tg_loss_config_default();
    tg_tensor wrong = pred;
    wrong.shape.dim[1] = 2;
    assert_int_equal(tg_loss_eval(ctx, &config, &wrong, &target, &loss[0], NULL), TG_E_SHAPE);
    wrong = pred;
    wrong.dtype = TG_C64;
    assert_int_equal(tg_loss_eval(ctx, &config, &wrong, &target, &loss[0], NULL), TG_E_DTYPE);
    config.terms = 0;
    assert_int_equal(tg_loss_eval(ctx, &config, &pred, &target, &loss[0], NULL), TG_E_CONFIG);
    for (int i = 0; i < 3; i++) {
        tg_tensor_destroy(&gradient[i]);
    }
    tg_tensor_destroy(&pred);
    tg_tensor_destroy(&target);
    tg_context_destroy(&ctx);
}

/* Weighted channels: the sum of the channels' losses, each times its weight, and so the gradients.
 */
TEST(weighted_channels) {
    static const char *const backends[] = {"ref", "cpu"};
    static const double weights[] = {2.0, 0.0, 0.5};
    for (int test = 0; test < 4; test++) {
        tg_context *ctx = net_context(backends[test % 2], 1);
        const int64_t grid[] = {4, 5};
        const tg_fno_config data = {.n_dim = 2, .dtype = test < 2 ? TG_F64 : TG_F32};
        tg_tensor pred = net_random(ctx, &data, 2, 3, grid, 1);
        tg_tensor target = net_random(ctx, &data, 2, 3, grid, 2);
        tg_tensor all = net_random(ctx, &data, 2, 3, grid, 3);
        tg_tensor weighted = net_random(ctx, &data, 2, 3, grid, 4);
        tg_loss_config config;
        double loss = 0.0, sum = 0.0;
        net_ok(ctx, tg_loss_config_parse(ctx, "loss", "h1 + 0.5*l1", &config));
        net_ok(ctx, tg_loss_eval(ctx, &config, &pred, &target, &loss, &all));
        for (int c = 0; c < 3; c++) { /* each alone */
            config.channels = 3;
            memset(config.channel_weight, 0, sizeof config.channel_weight);
            config.channel_weight[c] = 1.0;
            net_ok(ctx, tg_loss_eval(ctx, &config, &pred, &target, &loss, NULL));
            sum += weights[c] * loss;
        }
        memcpy(config.channel_weight, weights, sizeof weights);
        net_ok(ctx, tg_loss_eval(ctx, &config, &pred, &target, &loss, &weighted));
        assert_true(fabs(loss - sum) <= 1e-12 * loss);
        for (int64_t i = 0; i < tg_tensor_numel(&pred); i++) {
            const double a = tg_load(pred.dtype, all.data, i).re * weights[i / 20 % 3];
            const double b = tg_load(pred.dtype, weighted.data, i).re;
            assert_true(fabs(a - b) <= (test < 2 ? 1e-13 : 1e-5) * (1.0 + fabs(a)));
        }
        config.channels = 2;
        assert_int_equal(tg_loss_eval(ctx, &config, &pred, &target, &loss, NULL), TG_E_CONFIG);
        assert_non_null(strstr(tg_context_error(ctx), "opt.loss_weights: 2 weights, but the"));
        config.channels = 3;
        config.channel_weight[1] = -1.0;
        assert_int_equal(tg_loss_eval(ctx, &config, &pred, &target, &loss, NULL), TG_E_CONFIG);
        memset(config.channel_weight, 0, sizeof config.channel_weight);
        assert_int_equal(tg_loss_eval(ctx, &config, &pred, &target, &loss, NULL), TG_E_CONFIG);
        tg_tensor_destroy(&pred);
        tg_tensor_destroy(&target);
        tg_tensor_destroy(&all);
        tg_tensor_destroy(&weighted);
        tg_context_destroy(&ctx);
    }
}

int main(void) {
    const int slots = t_run_rows("losses");
    const int public = t_run_tests(NULL, NULL);
    return slots || public;
}
