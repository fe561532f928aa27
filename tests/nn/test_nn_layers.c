/* Channel MLPs, skips and norms of every backend: against ref, in place and out of place, and their
 * gradients against central differences in f64. */
#include <math.h>
#include <string.h>

#include "support/runner.h"

enum { REALS = 1 << TG_F32 | 1 << TG_F64 };

static double growth(int64_t n) {
    return 4.0 * sqrt((double)n + 1.0);
}

static void *copy_of(t_side *s, int64_t n, const void *host) {
    void *copy = t_host_alloc(s, s->dtype, n);
    memcpy(copy, host, (size_t)n * tg_dtype_size(s->dtype));
    return copy;
}

/* ---- central differences ---- */

/* An operation under test on host arrays: the objective sum of weights * outputs. */
typedef double (*objective_fn)(t_side *s, const void *op);

/* dL/d(array) of n f64 numbers by central differences is `gradient` (backend memory). */
static void check_gradient(t_side *s, const char *what, objective_fn objective, const void *op,
                           int64_t n, double *array, const double *gradient) {
    const double step = 1e-6;
    double most = 1e-3, error = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const double kept = array[i];
        array[i] = kept + step;
        const double up = objective(s, op);
        array[i] = kept - step;
        const double down = objective(s, op);
        array[i] = kept;
        const double numeric = (up - down) / (2.0 * step);
        most = fmax(most, fabs(numeric));
        const double apart = fabs(numeric - gradient[i]);
        error = apart <= error ? error : apart; /* keeps NaN */
    }
    if (!(error <= 1e-7 * most)) {
        t_fail(s, "gradient of %s: %g off, of %g", what, error, most);
    }
}

static double weighted_sum(int64_t n, const double *weights, const double *x) {
    double sum = 0.0;
    for (int64_t i = 0; i < n; i++) {
        sum += weights[i] * x[i];
    }
    return sum;
}

/* ---- channel MLPs ---- */

/* Sizes: single, odd, more channels than pixels, one output, many tiles, many channels. */
static const struct {
    int64_t batch, in, hidden, out, pixels;
} mlp_sizes[] = {{2, 1, 1, 3, 1},       {2, 3, 5, 4, 7},      {3, 4, 33, 4, 65},
                 {3, 5, 70, 1, 67},     {2, 17, 24, 9, 1531}, {2, 40, 96, 24, 257},
                 {1, 180, 320, 256, 21}};

enum { LARGE = 4 }; /* from here on slow on ref: one variant will do */

/* An op whose inputs are host arrays (the pointers in it); sizes set. */
static tg_mlp mlp_inputs(t_side *s, int size) {
    tg_mlp op = {.dtype = s->dtype,
                 .batch = mlp_sizes[size].batch,
                 .in = mlp_sizes[size].in,
                 .hidden = mlp_sizes[size].hidden,
                 .out = mlp_sizes[size].out,
                 .pixels = mlp_sizes[size].pixels,
                 .alpha = -0.75,
                 .beta = 0.5,
                 .rng = {.seed = 5, .purpose = TG_RNG_DROPOUT, .step = 3},
                 .stream = (uint64_t)7 << 40};
    op.w1 = t_host_random(s, s->dtype, op.hidden * op.in);
    op.b1 = t_host_random(s, s->dtype, op.hidden);
    op.w2 = t_host_random(s, s->dtype, op.out * op.hidden);
    op.b2 = t_host_random(s, s->dtype, op.out);
    op.x = t_host_random(s, s->dtype, op.batch * op.in * op.pixels);
    op.y = t_host_random(s, s->dtype, op.batch * op.out * op.pixels);
    op.add = t_host_random(s, s->dtype, op.batch * op.out * op.pixels);
    op.gate = t_host_random(s, s->dtype, op.out);
    op.dy = t_host_random(s, s->dtype, op.batch * op.out * op.pixels);
    op.dx = t_host_random(s, s->dtype, op.batch * op.in * op.pixels);
    return op;
}

/* The weights of a host op moved to the backend. */
static tg_mlp mlp_placed(t_side *s, const tg_mlp *host, bool backward) {
    tg_mlp op = *host;
    op.w1 = t_input(s, s->dtype, op.hidden * op.in, host->w1);
    op.b1 = t_input(s, s->dtype, op.hidden, host->b1);
    op.w2 = t_input(s, s->dtype, op.out * op.hidden, host->w2);
    op.b2 = t_input(s, s->dtype, op.out, host->b2);
    op.backward = backward;
    op.workspace = t_workspace(s, tg_workspace_bytes(s->be, (tg_query){.mlp = &op}));
    return op;
}

typedef enum mlp_variant {
    MLP_PLAIN,   /* y = f(x) over NaN */
    MLP_SUM,     /* y = beta y + alpha f(gelu(x)) + gate add, activated beside */
    MLP_OVER,    /* identity add, activated over add; tanh inside */
    MLP_DROPOUT, /* with dropout */
    MLP_SAME,    /* y over x, activated over y; in == out */
    MLP_RELU,    /* f(silu(x)) with ReLU inside */
    MLP_VARIANTS
} mlp_variant;

static void mlp_forward_case(t_side *s, int size, mlp_variant variant) {
    const tg_mlp host = mlp_inputs(s, size);
    const int64_t outputs = host.batch * host.out * host.pixels;
    const int64_t inputs = host.batch * host.in * host.pixels;
    tg_mlp op = mlp_placed(s, &host, false);
    const bool sums = variant == MLP_SUM || variant == MLP_DROPOUT;
    op.act = sums                  ? TG_ACT_GELU
             : variant == MLP_OVER ? TG_ACT_TANH
             : variant == MLP_RELU ? TG_ACT_SILU
                                   : TG_ACT_NONE;
    op.hidden_act = variant == MLP_RELU ? TG_ACT_RELU : TG_ACT_NONE;
    op.alpha = sums ? host.alpha : 1.0;
    op.beta = sums ? host.beta : 0.0;
    op.dropout = variant == MLP_DROPOUT ? 0.3 : 0.0;
    op.add = op.gate = NULL;
    if (variant == MLP_SAME) {
        op.y = t_inout(s, s->dtype, inputs, host.x);
        op.x = op.activated = op.y;
    } else {
        op.x = t_input(s, s->dtype, inputs, host.x);
        op.y = sums ? t_inout(s, s->dtype, outputs, host.y) : t_output(s, s->dtype, outputs);
    }
    if (sums) {
        op.add = t_input(s, s->dtype, outputs, host.add);
        op.gate = t_input(s, s->dtype, op.out, host.gate);
        op.activated = t_output(s, s->dtype, outputs);
    } else if (variant == MLP_OVER) {
        op.activated = t_inout(s, s->dtype, outputs, host.add);
        op.add = op.activated;
    }
    t_ok(s, s->ops->mlp(s->be, &op));
    const double terms = growth(host.in + host.hidden);
    t_keep_close(s, op.y, terms);
    if (op.activated && op.activated != op.y) {
        t_keep_close(s, op.activated, terms);
    }
}

ROW(mlp_forward, "mlp_forward", REALS) {
    for (int i = 0; i < T_COUNT(mlp_sizes); i++) {
        for (int v = 0; v < MLP_VARIANTS; v++) {
            if ((v == MLP_SAME && mlp_sizes[i].in != mlp_sizes[i].out) ||
                (i >= LARGE ? v != MLP_SUM : t_leaves_out(s))) {
                continue;
            }
            t_note(s, "size %d variant %d", i, v);
            mlp_forward_case(s, i, (mlp_variant)v);
            t_release(s);
        }
    }
}

typedef struct mlp_back_variant {
    tg_act act;
    bool through, in_place, wants_dx;
    double alpha, beta, dropout;
    tg_act inside;
} mlp_back_variant;

static const mlp_back_variant mlp_back_variants[] = {
    {TG_ACT_NONE, false, false, true, 1.0, 0.0, 0.0, TG_ACT_NONE},
    {TG_ACT_GELU, true, true, true, 1.0, 0.0, 0.0, TG_ACT_GELU},
    {TG_ACT_GELU, true, false, true, -0.75, 0.5, 0.0, TG_ACT_NONE},
    {TG_ACT_TANH, false, false, true, 1.0, 0.5, 0.4, TG_ACT_NONE},
    {TG_ACT_NONE, true, true, true, -1.0, 0.0, 0.4, TG_ACT_NONE},
    {TG_ACT_GELU, true, false, false, 1.0, 0.0, 0.0, TG_ACT_NONE},
    {TG_ACT_SILU, true, false, true, 1.0, 0.0, 0.0, TG_ACT_TANH},
    {TG_ACT_RELU, true, true, true, -1.0, 0.0, 0.4, TG_ACT_SILU},
    {TG_ACT_NONE, false, false, false, 1.0, 0.0, 0.0, TG_ACT_RELU},
};

/* Runs backward of a host op on the backend; its gradients are what the op then points at. */
static tg_mlp mlp_run_backward(t_side *s, const tg_mlp *host, const mlp_back_variant *v,
                               const void *start) {
    const int64_t inputs = host->batch * host->in * host->pixels;
    tg_mlp op = mlp_placed(s, host, true);
    op.act = v->act;
    op.through = v->through;
    op.alpha = v->alpha;
    op.beta = v->beta;
    op.dropout = v->dropout;
    op.hidden_act = v->inside;
    op.dy = t_input(s, s->dtype, op.batch * op.out * op.pixels, host->dy);
    op.dx = NULL;
    if (v->in_place) {
        op.dx = t_inout(s, s->dtype, inputs, host->x);
        op.x = op.dx;
    } else {
        op.x = t_input(s, s->dtype, inputs, host->x);
        if (v->wants_dx) {
            op.dx = v->beta == 0.0 ? t_output(s, s->dtype, inputs)
                                   : t_inout(s, s->dtype, inputs, host->dx);
        }
    }
    op.dw1 = t_inout(s, s->dtype, op.hidden * op.in, start);
    op.db1 = t_inout(s, s->dtype, op.hidden, start);
    op.dw2 = t_inout(s, s->dtype, op.out * op.hidden, start);
    op.db2 = t_inout(s, s->dtype, op.out, start);
    t_ok(s, s->ops->mlp(s->be, &op));
    return op;
}

ROW(mlp_backward, "mlp_backward", REALS) {
    for (int i = 0; i < T_COUNT(mlp_sizes); i++) {
        for (int v = i >= LARGE ? 2 : 0; v < (i >= LARGE ? 3 : T_COUNT(mlp_back_variants)); v++) {
            if (i < LARGE && t_leaves_out(s)) {
                continue;
            }
            t_note(s, "size %d variant %d", i, v);
            const tg_mlp host = mlp_inputs(s, i);
            const void *start = t_host_random(s, s->dtype, 1 << 17);
            const tg_mlp op = mlp_run_backward(s, &host, &mlp_back_variants[v], start);
            const double terms = growth(op.batch * op.pixels + op.hidden + op.in + op.out);
            t_keep_close(s, op.dw1, terms);
            t_keep_close(s, op.db1, terms);
            t_keep_close(s, op.dw2, terms);
            t_keep_close(s, op.db2, terms);
            if (op.dx) {
                t_keep_close(s, op.dx, terms);
            }
            t_release(s);
        }
    }
}

/* What the differences perturb: a host op and how backward is called. */
typedef struct mlp_objective {
    tg_mlp host;
    const mlp_back_variant *v;
} mlp_objective;

/* sum dy * alpha f(act(x)) */
static double mlp_value(t_side *s, const void *object) {
    const mlp_objective *o = object;
    t_side inner;
    t_side_begin(&inner, s->be, s->dtype);
    const tg_mlp *host = &o->host;
    const int64_t outputs = host->batch * host->out * host->pixels;
    tg_mlp op = mlp_placed(&inner, host, false);
    op.act = o->v->act;
    op.alpha = o->v->alpha;
    op.beta = 0.0;
    op.dropout = o->v->dropout;
    op.hidden_act = o->v->inside;
    op.add = op.gate = NULL;
    op.x = t_input(&inner, s->dtype, host->batch * host->in * host->pixels, host->x);
    op.y = t_output(&inner, s->dtype, outputs);
    t_ok(&inner, s->ops->mlp(s->be, &op));
    const double value = weighted_sum(outputs, host->dy, t_download(&inner, op.y));
    t_side_end(&inner);
    return value;
}

ROW(mlp_differences, "mlp_differences", T_ONCE) {
    if (t_runs_once()) {
        return;
    }
    for (int v = 0; v < T_COUNT(mlp_back_variants); v++) {
        const mlp_back_variant *variant = &mlp_back_variants[v];
        if (variant->beta != 0.0) {
            continue; /* the sum with beta is compared with ref above */
        }
        t_note(s, "variant %d", v);
        mlp_objective o = {.host = mlp_inputs(s, 1), .v = variant};
        double *zeros = t_host_alloc(s, s->dtype, 64);
        memset(zeros, 0, 64 * sizeof *zeros);
        const tg_mlp op = mlp_run_backward(s, &o.host, variant, zeros);
        const tg_mlp *h = &o.host;
        check_gradient(s, "w1", mlp_value, &o, h->hidden * h->in, (double *)(uintptr_t)h->w1,
                       t_download(s, op.dw1));
        check_gradient(s, "b1", mlp_value, &o, h->hidden, (double *)(uintptr_t)h->b1,
                       t_download(s, op.db1));
        check_gradient(s, "w2", mlp_value, &o, h->out * h->hidden, (double *)(uintptr_t)h->w2,
                       t_download(s, op.dw2));
        check_gradient(s, "b2", mlp_value, &o, h->out, (double *)(uintptr_t)h->b2,
                       t_download(s, op.db2));
        if (op.dx && (variant->through || variant->act == TG_ACT_NONE)) {
            check_gradient(s, "x", mlp_value, &o, h->batch * h->in * h->pixels,
                           (double *)(uintptr_t)h->x, t_download(s, op.dx));
        }
        t_release(s);
    }
}

/* ---- skips ---- */

static const struct {
    int64_t batch, in, out, pixels;
} skip_sizes[] = {{1, 1, 1, 1},      {2, 3, 5, 7},     {3, 33, 17, 65},
                  {2, 24, 17, 2053}, {2, 40, 96, 257}, {1, 320, 180, 21}};

enum { LARGE_SKIP = 3 };

/* The last variant, a linear skip, will do for the large sizes. */
static const struct {
    tg_skip_map kind;
    tg_act act;
    bool through, bias;
    double alpha, beta;
} skip_variants[] = {
    {TG_SKIP_MAP_NONE, TG_ACT_NONE, false, true, 1.0, 1.0},
    {TG_SKIP_MAP_NONE, TG_ACT_NONE, false, true, 1.0, 0.0},
    {TG_SKIP_MAP_IDENTITY, TG_ACT_NONE, false, true, -1.0, 1.0},
    {TG_SKIP_MAP_IDENTITY, TG_ACT_GELU, true, false, 0.5, 0.0},
    {TG_SKIP_MAP_GATE, TG_ACT_GELU, true, false, 1.0, 1.0},
    {TG_SKIP_MAP_GATE, TG_ACT_TANH, false, true, -0.5, 0.25},
    {TG_SKIP_MAP_IDENTITY, TG_ACT_RELU, true, true, 0.5, 0.0},
    {TG_SKIP_MAP_GATE, TG_ACT_SILU, true, false, -1.0, 0.25},
    {TG_SKIP_MAP_LINEAR, TG_ACT_RELU, true, true, -0.5, 0.25},
    {TG_SKIP_MAP_LINEAR, TG_ACT_SILU, true, false, 1.0, 0.0},
    {TG_SKIP_MAP_LINEAR, TG_ACT_NONE, false, true, 1.0, 1.0},
    {TG_SKIP_MAP_LINEAR, TG_ACT_GELU, true, false, -0.5, 0.0},
    {TG_SKIP_MAP_LINEAR, TG_ACT_TANH, true, true, 1.0, 0.25},
};

static int first_skip_variant(int size) {
    return size >= LARGE_SKIP ? T_COUNT(skip_variants) - 1 : 0;
}

/* An op on host arrays. */
static tg_skip skip_inputs(t_side *s, int size, int variant) {
    tg_skip op = {.dtype = s->dtype,
                  .kind = skip_variants[variant].kind,
                  .batch = skip_sizes[size].batch,
                  .in = skip_sizes[size].in,
                  .out = skip_sizes[size].out,
                  .pixels = skip_sizes[size].pixels,
                  .act = skip_variants[variant].act,
                  .through = skip_variants[variant].through,
                  .alpha = skip_variants[variant].alpha,
                  .beta = skip_variants[variant].beta};
    op.out = op.kind == TG_SKIP_MAP_LINEAR ? op.out : op.in;
    op.weight = t_host_random(s, s->dtype, op.out * op.in);
    op.bias = t_host_random(s, s->dtype, op.out);
    op.x = t_host_random(s, s->dtype, op.batch * op.in * op.pixels);
    op.y = t_host_random(s, s->dtype, op.batch * op.out * op.pixels);
    op.dy = t_host_random(s, s->dtype, op.batch * op.out * op.pixels);
    op.dx = t_host_random(s, s->dtype, op.batch * op.in * op.pixels);
    return op;
}

static int64_t skip_weights(const tg_skip *op) {
    return op->kind == TG_SKIP_MAP_LINEAR ? op->out * op->in
           : op->kind == TG_SKIP_MAP_GATE ? op->out
                                          : 0;
}

static tg_skip skip_placed(t_side *s, const tg_skip *host, bool backward) {
    tg_skip op = *host;
    const int64_t weights = skip_weights(host);
    op.weight = weights > 0 ? t_input(s, s->dtype, weights, host->weight) : NULL;
    op.x = op.kind == TG_SKIP_MAP_NONE
               ? NULL
               : t_input(s, s->dtype, op.batch * op.in * op.pixels, host->x);
    op.backward = backward;
    op.workspace = t_workspace(s, tg_workspace_bytes(s->be, (tg_query){.skip = &op}));
    return op;
}

ROW(skip_forward, "skip_forward", REALS) {
    for (int i = 0; i < T_COUNT(skip_sizes); i++) {
        for (int v = first_skip_variant(i); v < T_COUNT(skip_variants); v++) {
            if (t_leaves_out(s)) {
                continue;
            }
            t_note(s, "size %d variant %d", i, v);
            const tg_skip host = skip_inputs(s, i, v);
            const int64_t outputs = host.batch * host.out * host.pixels;
            tg_skip op = skip_placed(s, &host, false);
            op.bias = skip_variants[v].bias ? t_input(s, s->dtype, op.out, host.bias) : NULL;
            op.y = op.beta == 0.0 ? t_output(s, s->dtype, outputs)
                                  : t_inout(s, s->dtype, outputs, host.y);
            t_ok(s, s->ops->add_skip(s->be, &op));
            t_keep_close(s, op.y, growth(op.in));
            t_release(s);
        }
    }
}

static tg_skip skip_run_backward(t_side *s, const tg_skip *host, int v, const void *start) {
    const int64_t inputs = host->batch * host->in * host->pixels, weights = skip_weights(host);
    tg_skip op = skip_placed(s, host, true);
    op.dy = t_input(s, s->dtype, op.batch * op.out * op.pixels, host->dy);
    op.dweight = weights > 0 ? t_inout(s, s->dtype, weights, start) : NULL;
    op.dbias = skip_variants[v].bias ? t_inout(s, s->dtype, op.out, start) : NULL;
    op.dx = op.kind == TG_SKIP_MAP_NONE ? NULL
            : op.beta == 0.0            ? t_output(s, s->dtype, inputs)
                                        : t_inout(s, s->dtype, inputs, host->dx);
    t_ok(s, s->ops->add_skip(s->be, &op));
    return op;
}

ROW(skip_backward, "skip_backward", REALS) {
    for (int i = 0; i < T_COUNT(skip_sizes); i++) {
        for (int v = first_skip_variant(i); v < T_COUNT(skip_variants); v++) {
            if (t_leaves_out(s)) {
                continue;
            }
            t_note(s, "size %d variant %d", i, v);
            const tg_skip host = skip_inputs(s, i, v);
            const void *start = t_host_random(s, s->dtype, 1 << 16);
            const tg_skip op = skip_run_backward(s, &host, v, start);
            const void *arrays[] = {op.dweight, op.dbias, op.dx};
            for (int a = 0; a < 3; a++) {
                if (arrays[a]) {
                    t_keep_close(s, arrays[a], growth(op.batch * op.pixels + op.in + op.out));
                }
            }
            t_release(s);
        }
    }
}

static double skip_value(t_side *s, const void *object) {
    const tg_skip *host = object;
    t_side inner;
    t_side_begin(&inner, s->be, s->dtype);
    const int64_t outputs = host->batch * host->out * host->pixels;
    tg_skip op = skip_placed(&inner, host, false);
    op.beta = 0.0;
    op.bias = t_input(&inner, s->dtype, op.out, host->bias);
    op.y = t_output(&inner, s->dtype, outputs);
    t_ok(&inner, s->ops->add_skip(s->be, &op));
    const double value = weighted_sum(outputs, host->dy, t_download(&inner, op.y));
    t_side_end(&inner);
    return value;
}

ROW(skip_differences, "skip_differences", T_ONCE) {
    if (t_runs_once()) {
        return;
    }
    for (int v = 0; v < T_COUNT(skip_variants); v++) {
        t_note(s, "variant %d", v);
        tg_skip host = skip_inputs(s, 1, v);
        double *zeros = t_host_alloc(s, s->dtype, 64);
        memset(zeros, 0, 64 * sizeof *zeros);
        host.beta = 0.0;
        const tg_skip op = skip_run_backward(s, &host, v, zeros);
        if (op.dweight) {
            check_gradient(s, "weight", skip_value, &host, skip_weights(&host),
                           (double *)(uintptr_t)host.weight, t_download(s, op.dweight));
        }
        if (op.dbias) {
            check_gradient(s, "bias", skip_value, &host, host.out, (double *)(uintptr_t)host.bias,
                           t_download(s, op.dbias));
        }
        if (op.dx && (host.through || host.act == TG_ACT_NONE)) {
            check_gradient(s, "x", skip_value, &host, host.batch * host.in * host.pixels,
                           (double *)(uintptr_t)host.x, t_download(s, op.dx));
        }
        t_release(s);
    }
}

/* ---- norms ---- */

static const struct {
    int64_t batch, channels, pixels;
} norm_sizes[] = {{1, 1, 3}, {1, 1, 5}, {2, 3, 7}, {3, 5, 1031}};

static tg_norm norm_inputs(t_side *s, int size, bool per_channel) {
    tg_norm op = {.dtype = s->dtype,
                  .batch = norm_sizes[size].batch,
                  .channels = norm_sizes[size].channels,
                  .pixels = norm_sizes[size].pixels,
                  .per_channel = per_channel,
                  .eps = 1e-5};
    const int64_t n = op.batch * op.channels * op.pixels;
    op.x = t_host_random(s, s->dtype, n);
    op.dy = t_host_random(s, s->dtype, n);
    op.weight = t_host_random(s, s->dtype, op.channels);
    op.bias = t_host_random(s, s->dtype, op.channels);
    return op;
}

/* Forward on the backend: y, stats and the inputs in place of the host's. */
/* One call, or one that measures and one that applies. */
static void norm_run(t_side *s, tg_norm op, bool in_parts) {
    if (in_parts) {
        op.means = t_workspace(s, (size_t)(2 * op.batch * op.channels) * sizeof(double));
        op.part = TG_NORM_MEASURE;
        t_ok(s, s->ops->norm(s->be, &op));
        op.part = TG_NORM_APPLY;
    }
    t_ok(s, s->ops->norm(s->be, &op));
}

static tg_norm norm_run_forward(t_side *s, const tg_norm *host, bool affine, bool in_parts) {
    tg_norm op = *host;
    const int64_t n = op.batch * op.channels * op.pixels;
    op.x = t_input(s, s->dtype, n, host->x);
    op.weight = affine ? t_input(s, s->dtype, op.channels, host->weight) : NULL;
    op.bias = affine ? t_input(s, s->dtype, op.channels, host->bias) : NULL;
    op.stats = t_workspace(s, (size_t)(2 * op.batch * op.channels) * sizeof(double));
    op.y = t_output(s, s->dtype, n);
    norm_run(s, op, in_parts);
    return op;
}

static tg_norm norm_run_backward(t_side *s, const tg_norm *host, bool affine, bool in_parts,
                                 int place, const void *start) {
    tg_norm op = norm_run_forward(s, host, affine, in_parts);
    op.backward = true;
    const int64_t n = op.batch * op.channels * op.pixels;
    op.dy = place == 1 ? t_inout(s, s->dtype, n, host->dy) : t_input(s, s->dtype, n, host->dy);
    op.x = place == 2 ? t_inout(s, s->dtype, n, host->x) : op.x;
    op.dx = place == 0 ? t_output(s, s->dtype, n) : (void *)(uintptr_t)(place == 1 ? op.dy : op.x);
    op.dweight = affine ? t_inout(s, s->dtype, op.channels, start) : NULL;
    op.dbias = affine ? t_inout(s, s->dtype, op.channels, start) : NULL;
    norm_run(s, op, in_parts);
    return op;
}

ROW(norms, "norms", REALS) {
    for (int i = 0; i < T_COUNT(norm_sizes); i++) {
        for (int v = 0; v < 24; v++) { /* per channel, affine, dx where, in parts */
            if (t_leaves_out(s)) {
                continue;
            }
            t_note(s, "size %d variant %d", i, v);
            const tg_norm host = norm_inputs(s, i, v % 2 == 1);
            const bool affine = v / 2 % 2 == 1;
            const void *start = t_host_random(s, s->dtype, 8);
            const tg_norm op = norm_run_backward(s, &host, affine, v >= 12, v / 4 % 3, start);
            const double terms = growth(op.channels * op.pixels);
            t_keep_close(s, op.y, terms);
            if (op.channels * op.pixels > 3) { /* else dx is what cancellation leaves: rounding */
                t_keep_close(s, op.dx, terms);
            }
            if (affine) {
                t_keep_close(s, op.dweight, terms);
                t_keep_close(s, op.dbias, terms);
            }
            t_release(s);
        }
    }
}

static double norm_value(t_side *s, const void *object) {
    const tg_norm *host = object;
    t_side inner;
    t_side_begin(&inner, s->be, s->dtype);
    const tg_norm op = norm_run_forward(&inner, host, true, false);
    const double value =
        weighted_sum(op.batch * op.channels * op.pixels, host->dy, t_download(&inner, op.y));
    t_side_end(&inner);
    return value;
}

ROW(norm_differences, "norm_differences", T_ONCE) {
    if (t_runs_once()) {
        return;
    }
    for (int v = 0; v < 4; v++) {
        t_note(s, "variant %d", v);
        tg_norm host = norm_inputs(s, 2, v % 2 == 1);
        double zeros[8] = {0};
        const tg_norm op = norm_run_backward(s, &host, true, v > 1, 0, copy_of(s, 8, zeros));
        check_gradient(s, "weight", norm_value, &host, host.channels,
                       (double *)(uintptr_t)host.weight, t_download(s, op.dweight));
        check_gradient(s, "bias", norm_value, &host, host.channels, (double *)(uintptr_t)host.bias,
                       t_download(s, op.dbias));
        check_gradient(s, "x", norm_value, &host, host.batch * host.channels * host.pixels,
                       (double *)(uintptr_t)host.x, t_download(s, op.dx));
        t_release(s);
    }
}

ROW(refusals, "refusals", T_ONCE) {
    tg_mlp mlp = {.dtype = TG_BF16};
    tg_skip skip = {.dtype = TG_C64};
    tg_norm norm = {.dtype = TG_I32};
    for (int backward = 0; backward < 2; backward++) {
        mlp.backward = skip.backward = norm.backward = backward;
        t_refused(s, TG_E_DTYPE, s->ops->mlp(s->be, &mlp));
        t_refused(s, TG_E_DTYPE, s->ops->add_skip(s->be, &skip));
        t_refused(s, TG_E_DTYPE, s->ops->norm(s->be, &norm));
    }
}

int main(void) {
    return t_run_rows("layers");
}
