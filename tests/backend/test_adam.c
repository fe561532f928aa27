/* Adam's moments and direction of every backend: against the formulas written out here in double,
 * over several steps, by modulus and by parts; against numbers worked out by hand; and with all
 * that queued work needs: rates read late, a guard, 16-bit formats and their rounding. */
#include <math.h>
#include <string.h>

#include "base/rng_math.h"
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
    s->aligned = choice % 3 == 1;
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
        t_ok(s, s->ops->update(s->be, 1, &op));
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

ROW(formulas, "adam, formulas", T_WIDE) {
    for (int i = 0; i < t_length_count; i++) {
        for (int choice = 0; choice < CHOICES; choice++) {
            if ((t_lengths[i] < 1000 || choice % 11 == 0) && !t_leaves_out(s)) {
                run_choice(s, t_lengths[i], choice);
            }
        }
    }
}

/* From zero moments, g = 3 + 4i: m = 0.3 + 0.4i, v = 0.25 by modulus (0.09 and 0.16 by parts), and
 * u = m / (0.5 + 0.25) (0.3 / (0.3 + 0.25) and 0.4 / (0.4 + 0.25)). */
ROW(by_hand, "adam, by hand", T_WIDE) {
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
        t_ok(s, s->ops->update(s->be, 1, &op));
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

/* ---- guards, rates and 16-bit formats ---- */

static const tg_rng rounding = {.seed = 77, .purpose = TG_RNG_ROUNDING, .step = 5};

/* What the guard holds before a call, or that there is none; BAD: entries of the gradient that are
 * not finite are counted. */
typedef enum guarded { UNGUARDED, OPEN, CLOSED, COUNTED, BAD, GUARDS } guarded;

static tg_storage storage(const t_side *s, int number) {
    static const tg_storage stores[] = {TG_STORE_FULL, TG_STORE_BF16, TG_STORE_F16};
    const bool has_halves = s->dtype == TG_F32 || s->dtype == TG_C64;
    return has_halves ? stores[number % 3] : TG_STORE_FULL;
}

/* One call with everything around it; `choice` picks stores, rates, rounding and form. */
static void run_guarded(t_side *s, int64_t n, guarded guard, int choice) {
    const tg_dtype dtype = s->dtype;
    const bool split = choice & 1 && tg_dtype_is_complex(dtype), late = choice & 2;
    const tg_dtype v_dtype = split ? dtype : tg_dtype_real(dtype);
    const tg_dtype grad_dtype = tg_stored(dtype, storage(s, choice / 4));
    const tg_dtype weight_dtype = tg_stored(dtype, storage(s, choice / 12));
    s->aligned = choice % 5 < 3;
    t_note(s, "n %lld, guard %d, choice %d", (long long)n, (int)guard, choice);
    const model x = {start(s, dtype, n, false), start(s, v_dtype, n, true),
                     t_host_alloc(s, TG_C128, n), start(s, weight_dtype, n, false)};
    void *g = t_host_random(s, grad_dtype, n);
    int64_t bad = 0;
    for (int64_t i = n / 2; guard == BAD && i < n; i += 1009, bad++) {
        tg_store(grad_dtype, g, i, (tg_scalar){(double)NAN, 0.0});
    }
    const uint32_t before = guard == CLOSED ? 9 : 0;
    uint32_t *counter = guard == UNGUARDED ? NULL : t_inout(s, TG_U32, 1, &before);
    const tg_rates rates = {.alpha = alpha, .beta = 0.9, .scale = scale, .step = rounding.step};
    const tg_rng other = {rounding.seed, rounding.purpose, rounding.step + (late ? 1u : 0u)};
    void *const m = t_inout(s, dtype, n, packed(s, dtype, n, x.m));
    void *const v = t_inout(s, v_dtype, n, packed(s, v_dtype, n, x.v));
    void *const weight = t_inout(s, weight_dtype, n, packed(s, weight_dtype, n, x.w));
    const tg_adam op = {.dtype = dtype,
                        .n = n,
                        .split = split,
                        .grad = t_input(s, grad_dtype, n, g),
                        .scale = late ? 1e3 : scale,
                        .m = m,
                        .v = v,
                        .beta1 = beta1,
                        .beta2 = beta2,
                        .eps = eps,
                        .direction = t_output(s, dtype, n),
                        .weight = weight,
                        .alpha = late ? -7.0 : alpha,
                        .beta = late ? 3.0 : 0.9,
                        .grad_store = storage(s, choice / 4),
                        .weight_store = storage(s, choice / 12),
                        .rounding = choice / 36 ? &other : NULL,
                        .rates = late ? t_input(s, TG_F64, sizeof rates / 8, &rates) : NULL,
                        .guard = counter,
                        .counts = guard == COUNTED || guard == BAD};
    void *const old[] = {t_download(s, m), t_download(s, v), t_download(s, op.direction),
                         t_download(s, weight)};
    t_ok(s, s->ops->update(s->be, 1, &op));
    const uint32_t after = counter ? *(uint32_t *)t_download(s, counter) : 0;
    t_true(s, after == before + (uint32_t)bad);
    if (after > 0) {
        t_true(s, t_first_difference(dtype, n, t_download(s, m), old[0]) == -1);
        t_true(s, t_first_difference(v_dtype, n, t_download(s, v), old[1]) == -1);
        t_true(s, t_first_difference(dtype, n, t_download(s, op.direction), old[2]) == -1);
        t_true(s, t_first_difference(weight_dtype, n, t_download(s, weight), old[3]) == -1);
    } else {
        step_model(&x, n, grad_dtype, g, split, 0.9);
        expect(s, dtype, n, m, x.m);
        expect(s, v_dtype, n, v, x.v);
        expect(s, dtype, n, op.direction, x.u);
        expect(s, weight_dtype, n, weight, x.w);
    }
    t_release(s);
}

ROW(guarded_calls, "adam, guards, rates and 16-bit formats", T_WIDE) {
    static const int64_t lengths[] = {0, 1, 3, 7, 65, 4099, 16384, 16385, 40009};
    for (int i = 0; i < T_COUNT(lengths); i++) {
        for (int choice = i; choice < 72; choice += lengths[i] < 1000 ? 7 : 31) {
            for (int guard = 0; guard < GUARDS; guard++) {
                if ((guard == choice % GUARDS || choice == i) && !t_leaves_out(s)) {
                    run_guarded(s, lengths[i], (guarded)guard, choice);
                }
            }
        }
    }
}

/* With beta1 = beta2 = eps = 0 a gradient of 1 has direction 1, and w + 2^-12 is exact in f32: so
 * the bits of a 16-bit weight are those of the definition, and on average it gains 2^-12. */
ROW(rounding_to_the_bit, "adam, rounding to the bit", 1 << TG_F32 | 1 << TG_C64) {
    const int64_t n = 4099;
    const bool complex = tg_dtype_is_complex(s->dtype);
    const tg_dtype real = tg_dtype_real(s->dtype);
    const int64_t reals = complex ? 2 * n : n;
    for (int choice = 0; choice < 8; choice++) {
        const tg_storage store = choice & 4 ? TG_STORE_F16 : TG_STORE_BF16;
        const tg_dtype half = tg_stored(s->dtype, store), part = tg_dtype_real(half);
        const bool split = choice & 1;
        s->aligned = choice & 2;
        t_note(s, "choice %d", choice);
        const tg_dtype v_dtype = split ? s->dtype : real;
        void *one = t_host_alloc(s, s->dtype, n), *zero = t_host_alloc(s, s->dtype, n);
        for (int64_t i = 0; i < n; i++) {
            tg_store(s->dtype, one, i, (tg_scalar){1.0, split ? 1.0 : 0.0});
            tg_store(s->dtype, zero, i, (tg_scalar){0});
        }
        const tg_rates rates = {0x1p-12, 1.0, 1.0, rounding.step};
        const tg_rng other = {rounding.seed, rounding.purpose, rounding.step + 1};
        void *const w = t_host_random(s, half, n);
        tg_store(half, w, 1, (tg_scalar){(double)NAN, -HUGE_VAL});
        const tg_adam op = {.dtype = s->dtype,
                            .n = n,
                            .split = split,
                            .grad = t_input(s, s->dtype, n, one),
                            .scale = 1.0,
                            .m = t_inout(s, s->dtype, n, zero),
                            .v = t_inout(s, v_dtype, n, zero),
                            .weight = t_inout(s, half, n, w),
                            .alpha = 0x1p-12,
                            .beta = 1.0,
                            .weight_store = store,
                            .state_nearest = split, /* it is for the moments alone */
                            .rounding = split ? &other : &rounding,
                            .rates = split ? t_input(s, TG_F64, sizeof rates / 8, &rates) : NULL};
        t_ok(s, s->ops->update(s->be, 1, &op));
        t_keep_same(s, op.weight);
        const uint16_t *found = t_download(s, op.weight);
        double gain = 0.0;
        int64_t moved = 0;
        for (int64_t j = 0; j < reals; j++) {
            const double before = tg_load(part, w, j).re;
            const double added = complex && !split && j % 2 ? 0.0 : 0x1p-12;
            const uint32_t random = tg_rounding_bits(&rounding, (uint64_t)j);
            if (isnan(before)) { /* which of the NaNs is the backend's choice */
                t_true(s, isnan(tg_load(part, found, j).re));
                continue;
            }
            const float sum = (float)(before + added);
            t_true(s, found[j] == (choice & 4 ? tg_round_to_f16(sum, random)
                                              : tg_round_to_bf16(sum, random)));
            if (isfinite(before) && added > 0.0) {
                gain += tg_load(part, found, j).re - before;
                moved++;
            }
        }
        /* One rounding moves by less than 2^-8, the largest step below 1. */
        t_below(s, fabs(gain / (double)moved - 0x1p-12), 5.0 * 0x1p-8 / sqrt((double)moved));
        t_release(s);
    }
}

/* ---- many at once ---- */

/* Arrays of a call, twice from the same numbers. */
static tg_adam twin(t_side *s, int64_t n, int choice, void *const *start_of, const uint32_t *guard,
                    const tg_rates *rates) {
    const tg_dtype real = tg_dtype_real(s->dtype);
    const bool is_half = choice % 5 == 4 && (s->dtype == TG_F32 || s->dtype == TG_C64);
    s->aligned = choice % 4 != 1;
    return (tg_adam){.dtype = s->dtype,
                     .n = n,
                     .grad = t_input(s, s->dtype, n, start_of[0]),
                     .scale = scale,
                     .m = t_inout(s, s->dtype, n, start_of[1]),
                     .v = t_inout(s, real, n, start_of[2]),
                     .beta1 = beta1,
                     .beta2 = beta2,
                     .eps = eps,
                     .weight =
                         t_inout(s, tg_stored(s->dtype, is_half ? TG_STORE_BF16 : TG_STORE_FULL), n,
                                 start_of[is_half ? 4 : 3]),
                     .weight_store = is_half ? TG_STORE_BF16 : TG_STORE_FULL,
                     .direction = choice % 3 == 2 ? t_output(s, s->dtype, n) : NULL,
                     .alpha = alpha,
                     .beta = choice % 7 == 6 ? 0.0 : 0.9,
                     .rounding = choice % 2 ? &rounding : NULL,
                     .rates = choice % 4 == 3 ? t_input(s, TG_F64, sizeof *rates / 8, rates) : NULL,
                     .guard = choice % 6 == 5 ? NULL : t_inout(s, TG_U32, 1, guard),
                     .counts = choice % 6 < 4};
}

/* As many calls as one, to the bit: lengths around what a launch takes, guards open, closed and
 * closed by what is counted, and some that a backend makes on its own. */
ROW(many_at_once, "adam, many at once", T_WIDE) {
    static const int64_t lengths[] = {1,    0,   7,  64, 8192, 8193, 65536, 65537, 33, 4099, 3,
                                      1024, 255, 12, 5,  2048, 513,  96,    31,    77, 16384};
    enum { CALLS = 5 * T_COUNT(lengths) };
    static tg_adam many[CALLS], single[CALLS];
    const int calls = t_runs_once() ? T_COUNT(lengths) : CALLS;
    const tg_rates rates = {.alpha = 0.125, .beta = 0.75, .scale = 2.0, .step = rounding.step};
    for (int c = 0; c < calls; c++) {
        const int64_t length = lengths[c % T_COUNT(lengths)];
        const int64_t n = c < T_COUNT(lengths) ? length : length % 9000; /* long ones once */
        void *const numbers[] = {
            t_host_random(s, s->dtype, n),
            t_host_random(s, s->dtype, n),
            packed(s, tg_dtype_real(s->dtype), n, start(s, tg_dtype_real(s->dtype), n, true)),
            t_host_random(s, s->dtype, n),
            t_host_random(s,
                          tg_stored(s->dtype, s->dtype == TG_F32 || s->dtype == TG_C64
                                                  ? TG_STORE_BF16
                                                  : TG_STORE_FULL),
                          n),
        };
        if (c % 11 == 3 && n > 0) {
            tg_store(s->dtype, numbers[0], n - 1, (tg_scalar){HUGE_VAL, 0.0});
        }
        const uint32_t guard = c % 13 == 7 ? 3 : 0;
        many[c] = twin(s, n, c, numbers, &guard, &rates);
        single[c] = twin(s, n, c, numbers, &guard, &rates);
    }
    t_ok(s, s->ops->update(s->be, 0, many));
    t_ok(s, s->ops->update(s->be, calls, many));
    for (int c = 0; c < calls; c++) {
        t_note(s, "call %d, n %lld", c, (long long)single[c].n);
        t_ok(s, s->ops->update(s->be, 1, &single[c]));
        const tg_adam *a = &many[c], *b = &single[c];
        const struct {
            tg_dtype dtype;
            const void *many, *single;
        } pairs[] = {{s->dtype, a->m, b->m},
                     {tg_dtype_real(s->dtype), a->v, b->v},
                     {tg_stored(s->dtype, a->weight_store), a->weight, b->weight},
                     {s->dtype, a->direction, b->direction}};
        for (int i = 0; i < T_COUNT(pairs); i++) {
            t_true(s, !pairs[i].many ||
                          t_first_difference(pairs[i].dtype, a->n, t_download(s, pairs[i].many),
                                             t_download(s, pairs[i].single)) == -1);
        }
        t_true(s, !a->guard ||
                      *(uint32_t *)t_download(s, a->guard) == *(uint32_t *)t_download(s, b->guard));
    }
    t_release(s);
}

ROW(refusals, "adam, refusals", T_ONCE) {
    void *x = t_output(s, TG_F64, 3);
    tg_adam op = {.dtype = TG_I32, .n = 3, .grad = x, .m = x, .v = x, .weight = x};
    t_refused(s, TG_E_DTYPE, s->ops->update(s->be, 1, &op));
    op.dtype = TG_F64;
    op.grad_store = TG_STORE_BF16;
    t_refused(s, TG_E_DTYPE, s->ops->update(s->be, 1, &op));
    op.grad_store = TG_STORE_FULL;
    op.weight_store = TG_STORE_F16;
    t_refused(s, TG_E_DTYPE, s->ops->update(s->be, 1, &op));
    t_keep_same(s, x);
}

int main(void) {
    return t_run_rows("adam");
}
