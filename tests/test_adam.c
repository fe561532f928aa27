/* Adam's moments and direction of every backend: against the formulas written out here in double,
 * over several steps, by modulus and by parts; and against numbers worked out by hand. */
#include <math.h>
#include <string.h>

#include "support/runner.h"

enum { STEPS = 3 };

/* What a call may be, bit by bit. */
enum { SPLIT = 1, DIRECTION = 2, IN_PLACE = 4, WEIGHT = 8, OVERWRITE = 16, CHOICES = 32 };

static const double beta1 = 0.9, beta2 = 0.99, eps = 1e-3, scale = 0.5, alpha = -0.25;

/* The same in double on the host, one array of {re, im} each; v has two reals per element. */
typedef struct model {
    tg_scalar *m, *v, *u, *w;
} model;

static double root(double *v, double square) {
    *v = beta2 * *v + (1.0 - beta2) * square;
    return sqrt(*v) + eps;
}

static void step_model(const model *x, int64_t n, tg_dtype dtype, const void *grad, bool split,
                       double beta) {
    for (int64_t i = 0; i < n; i++) {
        tg_scalar g = tg_load(dtype, grad, i);
        g = (tg_scalar){scale * g.re, scale * g.im};
        tg_scalar *m = &x->m[i], *v = &x->v[i], *u = &x->u[i], *w = &x->w[i];
        m->re = beta1 * m->re + (1.0 - beta1) * g.re;
        m->im = beta1 * m->im + (1.0 - beta1) * g.im;
        if (split) {
            u->re = m->re / root(&v->re, g.re * g.re);
            u->im = m->im / root(&v->im, g.im * g.im);
        } else {
            const double below = root(&v->re, g.re * g.re + g.im * g.im);
            *u = (tg_scalar){m->re / below, m->im / below};
        }
        w->re = alpha * u->re + (beta != 0.0 ? beta * w->re : 0.0);
        w->im = alpha * u->im + (beta != 0.0 ? beta * w->im : 0.0);
    }
}

/* n numbers of the model in the dtype; v by modulus: only the real parts, in the real type. */
static void *packed(t_side *s, tg_dtype dtype, int64_t n, const tg_scalar *x) {
    void *out = t_host_alloc(s, dtype, n);
    for (int64_t i = 0; i < n; i++) {
        tg_store(dtype, out, i, x[i]);
    }
    return out;
}

static void expect(t_side *s, tg_dtype dtype, int64_t n, const void *array, const tg_scalar *x) {
    const double error = t_relative_error(dtype, n, t_download(s, array), packed(s, dtype, n, x));
    t_below(s, error, 4.0 * t_tolerance(dtype));
    t_keep_close(s, array, 4.0);
}

/* Random numbers of the dtype; of moments v their squares. */
static tg_scalar *start(t_side *s, tg_dtype dtype, int64_t n, bool squared) {
    const void *draws = t_host_random(s, dtype, n);
    tg_scalar *x = t_host_alloc(s, TG_C128, n);
    for (int64_t i = 0; i < n; i++) {
        x[i] = tg_load(dtype, draws, i);
        x[i] = squared ? (tg_scalar){x[i].re * x[i].re, x[i].im * x[i].im} : x[i];
    }
    return x;
}

static void run_choice(t_side *s, int64_t n, int choice) {
    t_note(s, "n %lld, choice %d", (long long)n, choice);
    const bool split = choice & SPLIT && tg_dtype_is_complex(s->dtype);
    const tg_dtype v_dtype = split ? s->dtype : tg_dtype_real(s->dtype);
    const model x = {start(s, s->dtype, n, false), start(s, v_dtype, n, true),
                     t_host_alloc(s, TG_C128, n), start(s, s->dtype, n, false)};
    tg_adam op = {.dtype = s->dtype,
                  .n = n,
                  .split = choice & SPLIT,
                  .scale = scale,
                  .m = t_inout(s, s->dtype, n, packed(s, s->dtype, n, x.m)),
                  .v = t_inout(s, v_dtype, n, packed(s, v_dtype, n, x.v)),
                  .beta1 = beta1,
                  .beta2 = beta2,
                  .eps = eps,
                  .alpha = alpha,
                  .beta = choice & OVERWRITE ? 0.0 : 0.9};
    if (choice & WEIGHT) {
        op.weight = choice & OVERWRITE ? t_output(s, s->dtype, n)
                                       : t_inout(s, s->dtype, n, packed(s, s->dtype, n, x.w));
    }
    for (int step = 0; step < STEPS; step++) {
        const void *g = t_host_random(s, s->dtype, n);
        void *direction = choice & IN_PLACE ? t_inout(s, s->dtype, n, g) : NULL;
        op.grad = direction ? direction : t_input(s, s->dtype, n, g);
        if (choice & DIRECTION) {
            op.direction = direction ? direction : t_output(s, s->dtype, n);
        }
        step_model(&x, n, s->dtype, g, split, op.beta);
        t_ok(s, s->ops->adam(s->be, &op));
        if (op.direction) {
            expect(s, s->dtype, n, op.direction, x.u);
        }
    }
    expect(s, s->dtype, n, op.m, x.m);
    expect(s, v_dtype, n, op.v, x.v);
    if (op.weight) {
        expect(s, s->dtype, n, op.weight, x.w);
    }
    t_release(s);
}

static void formulas(t_side *s) {
    for (int i = 0; i < t_length_count; i++) {
        for (int choice = 0; choice < CHOICES; choice++) {
            if (t_lengths[i] < 1000 || choice % 11 == 0) {
                run_choice(s, t_lengths[i], choice);
            }
        }
    }
}

/* From zero moments, g = 3 + 4i: m = 0.3 + 0.4i, v = 0.25 by modulus (0.09 and 0.16 by parts), and
 * u = m / (0.5 + 0.25) (0.3 / (0.3 + 0.25) and 0.4 / (0.4 + 0.25)). */
static void by_hand(t_side *s) {
    const bool complex = tg_dtype_is_complex(s->dtype);
    for (int split = 0; split < 2; split++) {
        const tg_scalar g = {3.0, 4.0}, zero = {0};
        const tg_dtype v_dtype = split ? s->dtype : tg_dtype_real(s->dtype);
        const tg_adam op = {.dtype = s->dtype,
                            .n = 1,
                            .split = split,
                            .grad = t_input(s, s->dtype, 1, packed(s, s->dtype, 1, &g)),
                            .scale = 1.0,
                            .m = t_inout(s, s->dtype, 1, packed(s, s->dtype, 1, &zero)),
                            .v = t_inout(s, v_dtype, 1, packed(s, v_dtype, 1, &zero)),
                            .beta1 = 0.9,
                            .beta2 = 0.99,
                            .eps = 0.25,
                            .direction = t_output(s, s->dtype, 1)};
        t_ok(s, s->ops->adam(s->be, &op));
        const tg_scalar m = {0.3, 0.4};
        const tg_scalar v = !complex || split ? (tg_scalar){0.09, 0.16} : (tg_scalar){0.25, 0.0};
        const tg_scalar u =
            !complex || split ? (tg_scalar){0.3 / 0.55, 0.4 / 0.65} : (tg_scalar){0.4, 0.4 / 0.75};
        expect(s, s->dtype, 1, op.m, &m);
        expect(s, v_dtype, 1, op.v, &v);
        expect(s, s->dtype, 1, op.direction, &u);
        t_release(s);
    }
}

int main(void) {
    static const t_row rows[] = {
        {"adam, formulas", formulas, T_WIDE},
        {"adam, by hand", by_hand, T_WIDE},
    };
    return t_run_rows("adam", rows, T_COUNT(rows));
}
