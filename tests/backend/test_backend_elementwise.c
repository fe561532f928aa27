/* Memory, elementwise operations and reductions of every backend. */
#include <math.h>
#include <string.h>

#include "support/runner.h"

static double growth(int64_t n) {
    return sqrt((double)n + 1.0);
}

/* ---- memory ---- */

/* Bytes held as factors, wherever the backend keeps them. */
static size_t factor_bytes(const t_side *s) {
    return tg_context_memory(s->be->ctx, TG_HOST).current[TG_MEM_FACTORS] +
           tg_context_memory(s->be->ctx, TG_DEVICE).current[TG_MEM_FACTORS];
}

ROW(memory, "memory", T_ONCE) {
    s->ops->release(s->be, NULL);
    for (int i = 0; i <= t_length_count; i++) {
        const int64_t n = i < t_length_count ? t_lengths[i] : 500009; /* bytes are cheap */
        t_note(s, "n %lld", (long long)n);
        const char *x = t_host_random(s, TG_U8, n);
        const char *from = t_input(s, TG_U8, n, x);
        char *to = t_output(s, TG_U8, n);
        t_ok(s, s->ops->copy(s->be, to, from, (size_t)n));
        t_keep_same(s, to);
        t_true(s, n == 0 || memcmp(t_download(s, to), x, (size_t)n) == 0);
        t_release(s);

        const size_t held = factor_bytes(s);
        void *block = s->ops->alloc(s->be, TG_MEM_FACTORS, (size_t)n);
        t_true(s, block != NULL && (uintptr_t)block % TG_ALIGNMENT == 0);
        t_true(s, factor_bytes(s) == held + (size_t)n);
        s->ops->release(s->be, block);
        t_true(s, factor_bytes(s) == held);
    }
}

/* ---- elementwise ---- */

static const tg_scalar alpha = {-0.625, 1.375};

/* Every length, one element off the alignment and on it. */
static void for_all_lengths(t_side *s, void (*check)(t_side *s, int64_t n)) {
    for (int i = 0; i < 2 * t_length_count; i++) {
        s->aligned = i % 2;
        t_note(s, "n %lld%s", (long long)t_lengths[i / 2], s->aligned ? ", aligned" : "");
        check(s, t_lengths[i / 2]);
        t_release(s);
    }
    s->aligned = false;
}

static void check_fill(t_side *s, int64_t n) {
    void *x = t_output(s, s->dtype, n);
    t_ok(s, s->ops->fill(s->be, s->dtype, n, (tg_scalar){1.0 / 3.0, -1e-3}, x));
    t_keep_same(s, x);
}

ROW(fill, "fill", T_FLOATS) {
    for_all_lengths(s, check_fill);
}

static void check_axpy(t_side *s, int64_t n) {
    void *x = t_random(s, s->dtype, n);
    void *y = t_inout(s, s->dtype, n, t_host_random(s, s->dtype, n));
    t_ok(s, s->ops->axpy(s->be, s->dtype, n, alpha, x, y));
    t_keep_close(s, y, 1.0);
}

ROW(axpy, "axpy", T_FLOATS) {
    for_all_lengths(s, check_axpy);
}

static void check_scale(t_side *s, int64_t n) {
    void *x = t_inout(s, s->dtype, n, t_host_random(s, s->dtype, n));
    t_ok(s, s->ops->axpy(s->be, s->dtype, n, alpha, NULL, x));
    t_keep_close(s, x, 1.0);
}

ROW(scale, "scale", T_FLOATS) {
    for_all_lengths(s, check_scale);
}

/* Values at the borders of the dtypes: 16-bit formats round to even at 1 + 2^-11 (f16) and 1 + 2^-8
 * (bf16), f16 ends at 65504 and turns to Inf at 65520, its subnormals end at 2^-24. */
static const double specials[] = {
    0.0,       -0.0,    1.0,       -2.5,  1.0 + 0x1p-11, 1.0 + 0x3p-11, 1 + 0x1p-8, 1 + 0x3p-8,
    65504.0,   65519.0, 65520.0,   -1e5,  0x1p-14,       0x1p-24,       0x1p-25,    0x3p-25,
    1e-8,      3.3e38,  3.4e38,    1e-40, 1e300,         -1e300,        1e-320,     HUGE_VAL,
    -HUGE_VAL, 0.1,     1.0 / 3.0, -1e-5, 1234567.89,    0x1.fffffep127};

ROW(convert, "convert", T_FLOATS) {
    static const tg_dtype targets[] = {TG_F32, TG_F64,  TG_BF16,  TG_F16,
                                       TG_C64, TG_C128, TG_CBF16, TG_CF16};
    for (int t = 0; t < T_COUNT(targets); t++) {
        for (int i = 0; i < t_length_count; i++) {
            const int64_t n = t_lengths[i];
            s->aligned = i % 2 == t % 2;
            t_note(s, "to %s, n %lld", tg_dtype_name(targets[t]), (long long)n);
            if (t_leaves_out(s)) {
                continue;
            }
            void *host = t_host_random(s, s->dtype, n);
            for (int64_t j = 0; n > 100 && j < T_COUNT(specials); j++) {
                tg_store(s->dtype, host, j,
                         (tg_scalar){specials[j], specials[T_COUNT(specials) - 1 - j]});
            }
            if (n > 100) {
                tg_store(s->dtype, host, n - 1, (tg_scalar){(double)NAN, (double)NAN});
            }
            void *x = t_input(s, s->dtype, n, host);
            void *y = t_output(s, targets[t], n);
            t_ok(s, s->ops->convert(s->be, n, s->dtype, x, targets[t], y));
            t_keep_same(s, y);
            t_release(s);
        }
    }
}

/* Small whole numbers, exact in every dtype. */
ROW(elementwise_by_hand, "by hand", T_FLOATS) {
    const bool pairs = tg_dtype_is_complex(s->dtype);
    const tg_scalar a[3] = {{1, 2}, {-3, 0}, {0, -1}}, b[3] = {{4, -1}, {2, 2}, {-5, 3}};
    void *x_host = t_host_alloc(s, s->dtype, 3), *y_host = t_host_alloc(s, s->dtype, 3);
    for (int i = 0; i < 3; i++) {
        tg_store(s->dtype, x_host, i, a[i]);
        tg_store(s->dtype, y_host, i, b[i]);
    }
    void *x = t_input(s, s->dtype, 3, x_host), *y = t_inout(s, s->dtype, 3, y_host);
    tg_norms norms = {(double)NAN, (double)NAN, -1};
    t_ok(s, s->ops->norms(s->be, s->dtype, 3, y, &norms));
    t_ok(s, s->ops->axpy(s->be, s->dtype, 3, (tg_scalar){2, 1}, x, y));
    t_ok(s, s->ops->axpy(s->be, s->dtype, 3, (tg_scalar){-1, 3}, NULL, y));
    /* 2 + i times x is 5i, -6 - 3i, 1 - 2i. */
    t_true(s, norms.sum_squares == (pairs ? 17 + 8 + 34 : 16 + 4 + 25) && norms.nonfinite == 0);
    t_below(s, fabs(norms.max_abs - (pairs ? sqrt(34.0) : 5.0)), 5e-7);
    static const tg_scalar expected[2][3] = {{{-6, 0}, {4, 0}, {5, 0}},
                                             {{-16, 8}, {7, -11}, {1, -13}}};
    const void *out = t_download(s, y);
    for (int i = 0; i < 3; i++) {
        const tg_scalar v = tg_load(s->dtype, out, i), e = expected[pairs][i];
        t_true(s, v.re == e.re && v.im == e.im);
    }
}

/* ---- reductions: f64 sums for every dtype, so the tolerance is that of f64 ---- */

ROW(norms, "norms", T_FLOATS) {
    for (int i = 0; i < t_length_count; i++) {
        for (int poisoned = 0; poisoned < 2; poisoned++) {
            const int64_t n = t_lengths[i];
            s->aligned = i % 2;
            t_note(s, "n %lld%s", (long long)n, poisoned ? " with NaN and Inf" : "");
            void *host = t_host_random(s, s->dtype, n);
            int64_t bad = 0;
            for (int64_t j = 0; poisoned && j < n; j += 17, bad++) {
                const double part = j % 2 ? (double)NAN : -HUGE_VAL;
                tg_store(s->dtype, host, j,
                         tg_dtype_is_complex(s->dtype) ? (tg_scalar){0.5, part}
                                                       : (tg_scalar){part, 0.0});
            }
            tg_norms out = {(double)NAN, (double)NAN, -1};
            t_ok(s, s->ops->norms(s->be, s->dtype, n, t_input(s, s->dtype, n, host), &out));
            t_true(s, out.nonfinite == bad);
            t_record_close(s, TG_F64, 1, &out.sum_squares, growth(n));
            t_record_close(s, TG_F64, 1, &out.max_abs, 1.0);
            t_release(s);
        }
    }
}

/* The count grows by the elements that are not finite, and stops at 2^31. */
ROW(count_nonfinite, "count_nonfinite", T_FLOATS) {
    static const uint32_t starts[] = {0, 7, (1u << 31) - 3, 1u << 31};
    for (int i = 0; i < t_length_count; i++) {
        for (int c = 0; c < T_COUNT(starts); c++) {
            const int64_t n = t_lengths[i];
            s->aligned = c % 2;
            t_note(s, "n %lld, from %u", (long long)n, starts[c]);
            void *host = t_host_random(s, s->dtype, n);
            int64_t bad = 0;
            for (int64_t j = c; c > 0 && j < n; j += 17, bad++) {
                const double part = j % 2 ? (double)NAN : HUGE_VAL;
                tg_store(s->dtype, host, j,
                         j % 3 && tg_dtype_is_complex(s->dtype) ? (tg_scalar){0.5, part}
                                                                : (tg_scalar){part, part});
            }
            uint32_t *count = t_inout(s, TG_U32, 1, &starts[c]);
            const void *x = t_input(s, s->dtype, n, host);
            t_ok(s, s->ops->count_nonfinite(s->be, s->dtype, n, x, count));
            const int64_t total = (int64_t)starts[c] + bad, most = (int64_t)1 << 31;
            t_true(s, *(uint32_t *)t_download(s, count) == (total < most ? total : most));
            t_release(s);
        }
    }
}

ROW(wrong_dtypes_are_refused, "wrong dtypes", T_ONCE) {
    void *x = t_output(s, TG_I32, 3), *y = t_output(s, TG_I32, 3);
    tg_norms out;
    const uint32_t five = 5;
    uint32_t *count = t_input(s, TG_U32, 1, &five);
    t_refused(s, TG_E_DTYPE, s->ops->fill(s->be, TG_I32, 3, alpha, x));
    t_refused(s, TG_E_DTYPE, s->ops->convert(s->be, 3, TG_I32, x, TG_F32, y));
    t_refused(s, TG_E_DTYPE, s->ops->convert(s->be, 3, TG_F32, x, TG_I32, y));
    t_refused(s, TG_E_DTYPE, s->ops->axpy(s->be, TG_I32, 3, alpha, x, y));
    t_refused(s, TG_E_DTYPE, s->ops->axpy(s->be, TG_I32, 3, alpha, NULL, x));
    t_refused(s, TG_E_DTYPE, s->ops->norms(s->be, TG_I32, 3, x, &out));
    t_refused(s, TG_E_DTYPE, s->ops->count_nonfinite(s->be, TG_I32, 3, x, count));
    t_keep_same(s, x);
    t_keep_same(s, y);
}

int main(void) {
    return t_run_rows("elementwise");
}
