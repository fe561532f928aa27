/* Arrays kept in 16 bits, in every slot that takes them and on every backend: against ref, and
 * against the same call on f32 arrays that hold the same numbers, from which it may differ by the
 * rounding of its results. A row's dtype is the storage: bf16 or f16. */
#include <math.h>
#include <string.h>

#include "support/runner.h"

enum { HALF = 1 << TG_BF16 | 1 << TG_F16 };

static tg_storage storage(const t_side *s) {
    return s->dtype == TG_BF16 ? TG_STORE_BF16 : TG_STORE_F16;
}

static double growth(int64_t n) {
    return 4.0 * sqrt((double)n + 1.0);
}

/* An array of random numbers that 16 bits can hold, on the host in both forms. */
typedef struct numbers {
    int64_t n; /* reals */
    void *half;
    float *full;
} numbers;

static numbers draw(t_side *s, int64_t n) {
    numbers x = {n, t_host_random(s, s->dtype, n), t_host_alloc(s, TG_F32, n)};
    for (int64_t i = 0; i < n; i++) {
        x.full[i] = (float)tg_load(s->dtype, x.half, i).re;
    }
    return x;
}

static const void *host_of(const numbers *x, bool is_half) {
    return is_half ? x->half : (const void *)x->full;
}

static tg_dtype dtype_of(const t_side *s, bool is_half) {
    return is_half ? s->dtype : TG_F32;
}

static const void *input(t_side *s, const numbers *x, bool is_half) {
    return t_input(s, dtype_of(s, is_half), x->n, host_of(x, is_half));
}

static void *inout(t_side *s, const numbers *x, bool is_half) {
    return t_inout(s, dtype_of(s, is_half), x->n, host_of(x, is_half));
}

static tg_storage store_if(const t_side *s, bool is_half) {
    return is_half ? storage(s) : TG_STORE_FULL;
}

/* What a call on 16-bit formats gave (n reals, themselves in 16 bits or not) is near what f32 gave.
 */
static void near_full(t_side *s, int64_t n, const void *half, bool is_half, const void *full,
                      double terms) {
    const void *got = t_download(s, half), *expected = t_download(s, full);
    double most = 1e-3, apart = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double e = tg_load(TG_F32, expected, i).re;
        const double d = fabs(tg_load(dtype_of(s, is_half), got, i).re - e);
        apart = d <= apart ? apart : d; /* keeps NaN */
        most = fmax(most, fabs(e));
    }
    t_below(s, apart, most * (is_half ? t_tolerance(s->dtype) : terms * t_tolerance(TG_F32)));
}

/* ---- transforms ---- */

static const struct {
    int ndim;
    int64_t size[3];
} grids[] = {{1, {1}},      {1, {13}},    {1, {16}},     {2, {5, 7}},
             {2, {12, 10}}, {2, {7, 37}}, {3, {4, 3, 5}}};

static tg_fft_desc describe(const t_side *s, int g, bool complex, int stores) {
    tg_fft_desc desc = {.dtype = TG_F32,
                        .complex = complex,
                        .ndim = grids[g].ndim,
                        .howmany = 5,
                        .grid_store = store_if(s, stores & 1),
                        .kept_store = store_if(s, stores & 2)};
    for (int d = 0; d < desc.ndim; d++) {
        const bool halved = !complex && d == desc.ndim - 1;
        desc.grid[d] = grids[g].size[d];
        desc.kept[d] = ((halved ? desc.grid[d] / 2 + 1 : desc.grid[d]) + 1) / 2;
        desc.first[d] = halved ? 0 : -(desc.kept[d] / 2);
    }
    return desc;
}

static void fft_case(t_side *s, int g, bool complex, int stores, tg_fft_weight weight) {
    tg_fft_desc desc = describe(s, g, complex, stores), wide = describe(s, g, complex, 0);
    int64_t points = complex ? 2 * desc.howmany : desc.howmany, modes = 2 * desc.howmany;
    for (int d = 0; d < desc.ndim; d++) {
        points *= desc.grid[d];
        modes *= desc.kept[d];
    }
    const numbers x = draw(s, points), spectrum = draw(s, modes);
    const bool grid_halves = stores & 1, kept_halves = stores & 2;
    tg_fft_plan *plan = NULL, *full = NULL;
    t_ok(s, s->ops->fft_create(s->be, &desc, &plan));
    t_ok(s, s->ops->fft_create(s->be, &wide, &full));
    void *kept = t_output(s, dtype_of(s, kept_halves), modes);
    void *kept_full = t_output(s, TG_F32, modes);
    t_ok(s, s->ops->fft(s->be, plan, TG_FFT_FORWARD, 5, weight, 0.25, input(s, &x, grid_halves),
                        kept));
    t_ok(s,
         s->ops->fft(s->be, full, TG_FFT_FORWARD, 5, weight, 0.25, input(s, &x, false), kept_full));
    t_keep_close(s, kept, growth(points));
    near_full(s, modes, kept, kept_halves, kept_full, growth(points));
    void *grid = t_output(s, dtype_of(s, grid_halves), points);
    void *grid_full = t_output(s, TG_F32, points);
    t_ok(s, s->ops->fft(s->be, plan, TG_FFT_INVERSE, 5, weight, 0.5,
                        input(s, &spectrum, kept_halves), grid));
    t_ok(s, s->ops->fft(s->be, full, TG_FFT_INVERSE, 5, weight, 0.5, input(s, &spectrum, false),
                        grid_full));
    t_keep_close(s, grid, growth(modes));
    near_full(s, points, grid, grid_halves, grid_full, growth(modes));
    t_release(s);
    s->ops->fft_destroy(s->be, &plan);
    s->ops->fft_destroy(s->be, &full);
}

ROW(fft, "fft", HALF) {
    for (int g = 0; g < T_COUNT(grids); g++) {
        for (int i = 0; i < 12; i++) {
            if (t_leaves_out(s)) {
                continue;
            }
            const int stores = 1 + i % 3;
            t_note(s, "grid %d case %d", g, i);
            fft_case(s, g, i / 3 % 2, stores, i / 6 ? TG_FFT_ADJOINT : TG_FFT_PLAIN);
        }
    }
}

/* ---- skips ---- */

/* Sizes of the layers; the last one has several tiles and threads. */
static const struct {
    int64_t batch, in, hidden, out, pixels;
} sizes[] = {{1, 1, 1, 1, 1}, {2, 3, 5, 4, 7}, {2, 17, 9, 17, 65}, {2, 24, 16, 17, 523}};

static const struct {
    tg_skip_map kind;
    tg_act act;
    bool through, over_dy;
    double alpha, beta;
} skips[] = {
    {TG_SKIP_MAP_NONE, TG_ACT_NONE, false, false, 1.0, 1.0},
    {TG_SKIP_MAP_IDENTITY, TG_ACT_GELU, true, false, -1.0, 1.0},
    {TG_SKIP_MAP_IDENTITY, TG_ACT_NONE, false, true, 0.5, 0.0},
    {TG_SKIP_MAP_GATE, TG_ACT_GELU, true, true, 1.0, 0.0},
    {TG_SKIP_MAP_GATE, TG_ACT_TANH, false, false, -0.5, 0.25},
    {TG_SKIP_MAP_LINEAR, TG_ACT_GELU, true, false, 1.0, 1.0},
    {TG_SKIP_MAP_LINEAR, TG_ACT_NONE, false, false, -0.5, 0.0},
};

typedef struct skip_numbers {
    numbers x, y, dy, dx, weight, bias;
} skip_numbers;

static tg_skip skip_op(const t_side *s, int size, int v, bool is_half) {
    tg_skip op = {.dtype = TG_F32,
                  .kind = skips[v].kind,
                  .batch = sizes[size].batch,
                  .in = sizes[size].in,
                  .out = sizes[size].out,
                  .pixels = sizes[size].pixels,
                  .act = skips[v].act,
                  .through = skips[v].through,
                  .alpha = skips[v].alpha,
                  .beta = skips[v].beta,
                  .store = store_if(s, is_half)};
    op.out = op.kind == TG_SKIP_MAP_LINEAR ? op.out : op.in;
    return op;
}

static tg_skip skip_run(t_side *s, int size, int v, bool backward, bool is_half,
                        const skip_numbers *m) {
    tg_skip op = skip_op(s, size, v, is_half);
    const bool weighs = op.kind == TG_SKIP_MAP_GATE || op.kind == TG_SKIP_MAP_LINEAR;
    op.weight = weighs ? input(s, &m->weight, false) : NULL;
    op.x = op.kind == TG_SKIP_MAP_NONE ? NULL : input(s, &m->x, is_half);
    op.backward = backward;
    op.workspace = t_workspace(s, tg_workspace_bytes(s->be, (tg_query){.skip = &op}));
    if (!backward) {
        op.bias = input(s, &m->bias, false);
        op.y =
            op.beta == 0.0 ? t_output(s, dtype_of(s, is_half), m->y.n) : inout(s, &m->y, is_half);
        t_ok(s, s->ops->add_skip(s->be, &op));
        return op;
    }
    op.dweight = weighs ? inout(s, &m->weight, false) : NULL;
    op.dbias = inout(s, &m->bias, false);
    if (skips[v].over_dy) {
        op.dx = inout(s, &m->dy, is_half);
        op.dy = op.dx;
    } else {
        op.dy = input(s, &m->dy, is_half);
        op.dx = op.kind == TG_SKIP_MAP_NONE ? NULL
                : op.beta == 0.0            ? t_output(s, dtype_of(s, is_half), m->dx.n)
                                            : inout(s, &m->dx, is_half);
    }
    t_ok(s, s->ops->add_skip(s->be, &op));
    return op;
}

static void skip_case(t_side *s, int size, int v) {
    const tg_skip shape = skip_op(s, size, v, true);
    const int64_t in = shape.batch * shape.in * shape.pixels;
    const int64_t out = shape.batch * shape.out * shape.pixels;
    const int64_t weights = shape.kind == TG_SKIP_MAP_LINEAR ? shape.in * shape.out : shape.out;
    const skip_numbers m = {draw(s, in), draw(s, out),     draw(s, out),
                            draw(s, in), draw(s, weights), draw(s, shape.out)};
    tg_skip op = skip_run(s, size, v, false, true, &m);
    const tg_skip full = skip_run(s, size, v, false, false, &m);
    t_keep_close(s, op.y, 2.0);
    near_full(s, out, op.y, true, full.y, 1.0);
    const double terms = growth(shape.batch * shape.pixels + shape.in);
    op = skip_run(s, size, v, true, true, &m);
    const tg_skip back = skip_run(s, size, v, true, false, &m);
    t_keep_close(s, op.dbias, terms);
    near_full(s, shape.out, op.dbias, false, back.dbias, terms);
    if (op.dweight) {
        t_keep_close(s, op.dweight, terms);
        near_full(s, weights, op.dweight, false, back.dweight, terms);
    }
    if (op.dx) {
        t_keep_close(s, op.dx, 2.0);
        near_full(s, in, op.dx, true, back.dx, 1.0);
    }
    t_release(s);
}

ROW(skip_connections, "skip", HALF) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int v = 0; v < T_COUNT(skips); v++) {
            if (t_leaves_out(s)) {
                continue;
            }
            t_note(s, "size %d variant %d", i, v);
            skip_case(s, i, v);
        }
    }
}

/* ---- channel MLPs ---- */

typedef struct mlp_numbers {
    numbers w1, b1, w2, b2, x, y, add, gate, dy, dx;
} mlp_numbers;

static mlp_numbers mlp_draw(t_side *s, int i) {
    const int64_t in = sizes[i].in, hidden = sizes[i].hidden, out = sizes[i].out;
    const int64_t pixels = sizes[i].batch * sizes[i].pixels;
    return (mlp_numbers){draw(s, hidden * in),  draw(s, hidden),      draw(s, out * hidden),
                         draw(s, out),          draw(s, pixels * in), draw(s, pixels * out),
                         draw(s, pixels * out), draw(s, out),         draw(s, pixels * out),
                         draw(s, pixels * in)};
}

/* Bits of `stores`: x, y. */
static tg_mlp mlp_op(t_side *s, int i, const mlp_numbers *m, bool backward, int stores) {
    tg_mlp op = {.dtype = TG_F32,
                 .batch = sizes[i].batch,
                 .in = sizes[i].in,
                 .hidden = sizes[i].hidden,
                 .out = sizes[i].out,
                 .pixels = sizes[i].pixels,
                 .alpha = 1.0,
                 .w1 = input(s, &m->w1, false),
                 .b1 = input(s, &m->b1, false),
                 .w2 = input(s, &m->w2, false),
                 .b2 = input(s, &m->b2, false),
                 .rng = {.seed = 5, .purpose = TG_RNG_DROPOUT, .step = 3},
                 .stream = (uint64_t)7 << 40,
                 .x_store = store_if(s, stores & 1),
                 .y_store = store_if(s, stores & 2)};
    op.backward = backward;
    op.workspace = t_workspace(s, tg_workspace_bytes(s->be, (tg_query){.mlp = &op}));
    return op;
}

enum { PLAIN, SUM, DROPOUT, SAME, FORWARDS };

static tg_mlp mlp_run_forward(t_side *s, int i, int v, const mlp_numbers *m, int stores) {
    tg_mlp op = mlp_op(s, i, m, false, stores);
    const bool y_halves = stores & 2, sums = v == SUM || v == DROPOUT;
    op.act = sums ? TG_ACT_GELU : TG_ACT_NONE;
    op.alpha = sums ? -0.75 : 1.0;
    op.beta = sums ? 0.5 : 0.0;
    op.dropout = v == DROPOUT ? 0.3 : 0.0;
    if (v == SAME) { /* y over x, and activated over what is added */
        op.y = inout(s, &m->x, y_halves);
        op.x = op.y;
        op.activated = inout(s, &m->add, y_halves);
        op.add = op.activated;
    } else {
        op.x = input(s, &m->x, stores & 1);
        op.y = sums ? inout(s, &m->y, y_halves) : t_output(s, dtype_of(s, y_halves), m->y.n);
    }
    if (sums) {
        op.add = input(s, &m->add, y_halves);
        op.gate = input(s, &m->gate, false);
        op.activated = t_output(s, dtype_of(s, y_halves), m->y.n);
    }
    t_ok(s, s->ops->mlp(s->be, &op));
    return op;
}

ROW(mlp_forward, "mlp_forward", HALF) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int v = 0; v < FORWARDS; v++) {
            for (int stores = v == SAME ? 3 : 1; stores < 4; stores++) {
                if ((v == SAME && sizes[i].in != sizes[i].out) ||
                    (i == 3 ? v != SUM : t_leaves_out(s))) {
                    continue;
                }
                t_note(s, "size %d variant %d stores %d", i, v, stores);
                const bool is_half = stores & 2;
                const mlp_numbers m = mlp_draw(s, i);
                const tg_mlp op = mlp_run_forward(s, i, v, &m, stores);
                const tg_mlp full = mlp_run_forward(s, i, v, &m, 0);
                const double terms = growth(op.in + op.hidden);
                t_keep_close(s, op.y, is_half ? 2.0 : terms);
                near_full(s, m.y.n, op.y, is_half, full.y, terms);
                if (op.activated) {
                    t_keep_close(s, op.activated, is_half ? 2.0 : terms);
                    near_full(s, m.y.n, op.activated, is_half, full.activated, terms);
                }
                t_release(s);
            }
        }
    }
}

static const struct {
    tg_act act;
    bool through, over_x;
    double alpha, beta, dropout;
} mlp_backs[] = {
    {TG_ACT_NONE, false, false, 1.0, 0.0, 0.0},  {TG_ACT_GELU, true, true, 1.0, 0.0, 0.0},
    {TG_ACT_GELU, true, false, -0.75, 0.5, 0.0}, {TG_ACT_TANH, false, false, 1.0, 0.5, 0.4},
    {TG_ACT_NONE, false, true, -1.0, 0.0, 0.4},
};

static tg_mlp mlp_run_backward(t_side *s, int i, int v, const mlp_numbers *m, int stores) {
    tg_mlp op = mlp_op(s, i, m, true, stores);
    const bool x_halves = stores & 1;
    op.act = mlp_backs[v].act;
    op.through = mlp_backs[v].through;
    op.alpha = mlp_backs[v].alpha;
    op.beta = mlp_backs[v].beta;
    op.dropout = mlp_backs[v].dropout;
    op.dy = input(s, &m->dy, stores & 2);
    if (mlp_backs[v].over_x) {
        op.dx = inout(s, &m->x, x_halves);
        op.x = op.dx;
    } else {
        op.x = input(s, &m->x, x_halves);
        op.dx = op.beta == 0.0 ? t_output(s, dtype_of(s, x_halves), m->x.n)
                               : inout(s, &m->dx, x_halves);
    }
    op.dw1 = inout(s, &m->w1, false);
    op.db1 = inout(s, &m->b1, false);
    op.dw2 = inout(s, &m->w2, false);
    op.db2 = inout(s, &m->b2, false);
    t_ok(s, s->ops->mlp(s->be, &op));
    return op;
}

ROW(mlp_backward, "mlp_backward", HALF) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int v = i == 3 ? 2 : 0; v < (i == 3 ? 3 : T_COUNT(mlp_backs)); v++) {
            for (int stores = 1; stores < 4; stores++) {
                if (i != 3 && t_leaves_out(s)) {
                    continue;
                }
                t_note(s, "size %d variant %d stores %d", i, v, stores);
                const mlp_numbers m = mlp_draw(s, i);
                const tg_mlp op = mlp_run_backward(s, i, v, &m, stores);
                const tg_mlp full = mlp_run_backward(s, i, v, &m, 0);
                const double terms = growth(op.batch * op.pixels + op.hidden + op.in + op.out);
                const void *const got[] = {op.dw1, op.db1, op.dw2, op.db2};
                const void *const expected[] = {full.dw1, full.db1, full.dw2, full.db2};
                const int64_t n[] = {m.w1.n, m.b1.n, m.w2.n, m.b2.n};
                for (int j = 0; j < 4; j++) {
                    t_keep_close(s, got[j], terms);
                    near_full(s, n[j], got[j], false, expected[j], terms);
                }
                t_keep_close(s, op.dx, stores & 1 ? 2.0 : terms);
                near_full(s, m.x.n, op.dx, stores & 1, full.dx, terms);
                t_release(s);
            }
        }
    }
}

/* ---- norms ---- */

static void norm_case(t_side *s, int64_t channels, int64_t pixels, bool per_channel, bool is_half,
                      const numbers m[4], tg_norm *out) {
    const int64_t groups = per_channel ? 3 * channels : 3;
    tg_norm op = {.dtype = TG_F32,
                  .batch = 3,
                  .channels = channels,
                  .pixels = pixels,
                  .per_channel = per_channel,
                  .eps = 1e-5,
                  .store = store_if(s, is_half)};
    op.weight = per_channel ? NULL : input(s, &m[2], false);
    op.bias = per_channel ? NULL : input(s, &m[3], false);
    op.x = input(s, &m[0], is_half);
    op.stats = t_output(s, TG_F64, 2 * groups);
    op.y = t_output(s, dtype_of(s, is_half), m[0].n);
    t_ok(s, s->ops->norm(s->be, &op));
    op.backward = true;
    op.dx = inout(s, &m[1], is_half);
    op.dy = op.dx;
    op.dweight = inout(s, &m[2], false);
    op.dbias = inout(s, &m[3], false);
    t_ok(s, s->ops->norm(s->be, &op));
    *out = op;
}

ROW(norm, "norm", HALF) {
    static const int64_t cases[][2] = {{1, 9}, {3, 7}, {5, 1031}};
    for (int i = 0; i < 2 * T_COUNT(cases); i++) {
        const int64_t channels = cases[i / 2][0], pixels = cases[i / 2][1];
        const int64_t n = 3 * channels * pixels;
        t_note(s, "case %d", i);
        if (t_leaves_out(s)) {
            continue;
        }
        const numbers m[4] = {draw(s, n), draw(s, n), draw(s, channels), draw(s, channels)};
        tg_norm op, full;
        norm_case(s, channels, pixels, i % 2, true, m, &op);
        norm_case(s, channels, pixels, i % 2, false, m, &full);
        t_keep_close(s, op.y, 2.0);
        t_keep_close(s, op.dx, 2.0);
        t_keep_close(s, op.dweight, growth(3 * pixels));
        t_keep_close(s, op.dbias, growth(3 * pixels));
        near_full(s, n, op.y, true, full.y, 1.0);
        near_full(s, n, op.dx, true, full.dx, 1.0);
        near_full(s, channels, op.dweight, false, full.dweight, growth(3 * pixels));
        t_release(s);
    }
}

/* ---- spectra ---- */

static const struct {
    int64_t batch, in, out, modes;
} contractions[] = {{1, 1, 1, 1}, {2, 4, 3, 7}, {9, 4, 2, 66}, {2, 33, 9, 65}, {3, 16, 18, 1031}};

static void contract_case(t_side *s, int i, bool adjoint, int stores) {
    tg_spectral op = {.dtype = TG_C64,
                      .adjoint = adjoint,
                      .batch = contractions[i].batch,
                      .in = contractions[i].in,
                      .out = contractions[i].out,
                      .modes = contractions[i].modes,
                      .store = store_if(s, stores & 1),
                      .weight_store = store_if(s, stores & 2)};
    const int64_t from = adjoint ? op.out : op.in, to = adjoint ? op.in : op.out;
    const numbers w = draw(s, 2 * op.in * op.out * op.modes);
    const numbers src = draw(s, 2 * op.batch * from * op.modes);
    const int64_t n = 2 * op.batch * to * op.modes;
    const double terms = growth(from);
    op.weight = input(s, &w, stores & 2);
    op.src = input(s, &src, stores & 1);
    op.dst = t_output(s, dtype_of(s, stores & 1), n);
    t_ok(s, s->ops->spectral_contract(s->be, &op));
    tg_spectral full = op;
    full.store = full.weight_store = TG_STORE_FULL;
    full.weight = input(s, &w, false);
    full.src = input(s, &src, false);
    full.dst = t_output(s, TG_F32, n);
    t_ok(s, s->ops->spectral_contract(s->be, &full));
    t_keep_close(s, op.dst, stores & 1 ? 2.0 : terms);
    near_full(s, n, op.dst, stores & 1, full.dst, terms);
    t_release(s);
}

ROW(contract, "contract", HALF) {
    for (int i = 0; i < T_COUNT(contractions); i++) {
        for (int v = 0; v < 6; v++) {
            if (t_leaves_out(s)) {
                continue;
            }
            t_note(s, "case %d variant %d", i, v);
            contract_case(s, i, v % 2, 1 + v / 2);
        }
    }
}

/* ---- sources of gradients ---- */

typedef struct source_case {
    int ndim;
    int64_t dim[4], rank[4]; /* rank 0: no factor */
} source_case;

static const source_case source_cases[] = {
    {3, {3, 5, 7}, {2, 0, 3}}, {4, {5, 3, 4, 7}, {2, 3, 2, 3}}, {3, {17, 9, 1031}, {0, 0, 0}}};

/* dtype: f32 or c64; the source dense or factored, with an index set in front. */
static void source_run(t_side *s, const source_case *c, tg_dtype dtype, bool dense, bool masked) {
    const int64_t width = dtype == TG_C64 ? 2 : 1, batch = 3;
    tg_multimode modes = {.dtype = dtype, .ndim = c->ndim};
    int64_t numel = 1, count = 1, inner = 1;
    for (int d = 0; d < c->ndim; d++) {
        modes.dim[d] = c->dim[d];
        modes.rank[d] = c->rank[d] ? c->rank[d] : c->dim[d];
        modes.factor[d] = c->rank[d] ? t_random(s, dtype, modes.dim[d] * modes.rank[d]) : NULL;
        numel *= modes.dim[d];
        count *= modes.rank[d];
        inner *= d > 1 ? modes.dim[d] : 1;
    }
    uint64_t *words = t_host_alloc(s, TG_U64, tg_bitmap_words(numel));
    memset(words, 0, (size_t)tg_bitmap_words(numel) * sizeof *words);
    int64_t kept = 0;
    for (int64_t i = 0; i < numel; i += 3, kept++) {
        words[i / 64] |= UINT64_C(1) << i % 64;
    }
    const tg_bitmap bitmap = t_bitmap_input(s, numel, words);
    const numbers g = draw(s, dense ? width * numel : 1);
    const numbers x = draw(s, dense ? 1 : width * batch * modes.dim[0] * inner);
    const numbers dy = draw(s, dense ? 1 : width * batch * modes.dim[1] * inner);
    const double terms = growth(numel);
    void *values[2], *core[2];
    for (int is_half = 0; is_half < 2; is_half++) {
        values[is_half] = t_output(s, dtype, kept);
        core[is_half] = t_output(s, dtype, count);
        const tg_compress op = {
            .modes = modes,
            .source = {.dense = dense ? input(s, &g, is_half) : NULL,
                       .x = dense ? NULL : input(s, &x, is_half),
                       .dy = dense ? NULL : input(s, &dy, is_half),
                       .batch = batch,
                       .store = store_if(s, is_half)},
            .bitmap = &bitmap,
            .masked = masked,
            .scale = 0.5,
            .values = values[is_half],
            .core = core[is_half],
            .workspace = t_workspace(
                s, tg_workspace_bytes(s->be, (tg_query){.compress = &modes, .factored = !dense}))};
        t_ok(s, s->ops->compress(s->be, &op));
    }
    t_keep_close(s, values[1], terms);
    t_keep_close(s, core[1], terms);
    near_full(s, width * kept, values[1], false, values[0], terms);
    near_full(s, width * count, core[1], false, core[0], terms);
    if (!dense) { /* formed whole: in f32 from 16 bits, and in 16 bits */
        void *formed[3];
        for (int i = 0; i < 3; i++) {
            tg_multimode plain = modes;
            plain.dtype = i == 2 ? (width == 2 ? tg_dtype_complex(s->dtype) : s->dtype) : dtype;
            const tg_grad_source source = {.x = input(s, &x, i > 0),
                                           .dy = input(s, &dy, i > 0),
                                           .batch = batch,
                                           .store = store_if(s, i == 1)};
            formed[i] = t_output(s, plain.dtype, numel);
            t_ok(s, s->ops->grad_dense(s->be, &plain, &source, 0.5, formed[i]));
        }
        t_keep_close(s, formed[1], terms);
        t_keep_close(s, formed[2], 2.0);
        near_full(s, width * numel, formed[1], false, formed[0], terms);
        near_full(s, width * numel, formed[2], true, formed[0], terms);
    }
    t_release(s);
}

ROW(sources, "sources", HALF) {
    for (int i = 0; i < T_COUNT(source_cases); i++) {
        for (int v = 0; v < 8; v++) {
            if (t_leaves_out(s)) {
                continue;
            }
            t_note(s, "case %d variant %d", i, v);
            source_run(s, &source_cases[i], v % 2 ? TG_C64 : TG_F32, v / 2 % 2, v / 4);
        }
    }
}

/* ---- what makes no sense ---- */

ROW(refusals, "refusals", HALF) {
    const tg_storage store = storage(s);
    tg_fft_plan *plan = NULL;
    tg_fft_desc desc = {.dtype = TG_F64, .ndim = 1, .grid = {4}, .kept = {3}, .howmany = 1};
    desc.grid_store = store;
    t_refused(s, TG_E_DTYPE, s->ops->fft_create(s->be, &desc, &plan));
    desc.grid_store = TG_STORE_FULL;
    desc.kept_store = store;
    t_refused(s, TG_E_DTYPE, s->ops->fft_create(s->be, &desc, &plan));
    tg_skip mixed = {.dtype = TG_F64, .store = store};
    t_refused(s, TG_E_DTYPE, s->ops->add_skip(s->be, &mixed));
    mixed.backward = true;
    t_refused(s, TG_E_DTYPE, s->ops->add_skip(s->be, &mixed));
    const tg_mlp x = {.dtype = TG_F64, .x_store = store};
    const tg_mlp y = {.dtype = TG_F64, .backward = true, .y_store = store};
    t_refused(s, TG_E_DTYPE, s->ops->mlp(s->be, &x));
    t_refused(s, TG_E_DTYPE, s->ops->mlp(s->be, &y));
    tg_norm normed = {.dtype = TG_F64, .store = store};
    t_refused(s, TG_E_DTYPE, s->ops->norm(s->be, &normed));
    normed.backward = true;
    t_refused(s, TG_E_DTYPE, s->ops->norm(s->be, &normed));
    const tg_spectral weight = {.dtype = TG_C128, .weight_store = store};
    t_refused(s, TG_E_DTYPE, s->ops->spectral_contract(s->be, &weight));
    const tg_compress wide = {.modes = {.dtype = TG_C128, .ndim = 3}, .source = {.store = store}};
    t_refused(s, TG_E_DTYPE, s->ops->compress(s->be, &wide));
    t_refused(s, TG_E_DTYPE, s->ops->grad_dense(s->be, &wide.modes, &wide.source, 1.0, NULL));
}

int main(void) {
    return t_run_rows("stored");
}
