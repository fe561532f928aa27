/* What update rules other than Adam's need of a backend: values moved by their kernels, whatever
 * they are kept in, and columns of matrices. The formulas themselves are in test_rules.c. */
#include <math.h>
#include <string.h>

#include "support/runner.h"

static const tg_rng rounding = {.seed = 5, .purpose = TG_RNG_ROUNDING, .step = 3};

/* ---- kernels ---- */

/* Numbers kept in less, as an array of the backend. */
static void *stored_random(t_side *s, tg_storage store, int64_t n) {
    const tg_dtype stored = tg_stored(s->dtype, store);
    return t_inout(s, stored, n, t_host_random(s, stored, n));
}

/* A first moment of any form, with its scales. */
static void *random_moment(t_side *s, tg_state_form form, int64_t n, float **scale) {
    const int64_t reals = tg_dtype_is_complex(s->dtype) ? 2 * n : n;
    const int64_t blocks = (reals + TG_STATE_BLOCK - 1) / TG_STATE_BLOCK;
    if (form != TG_STATE_8BIT) {
        return stored_random(s, form == TG_STATE_BF16 ? TG_STORE_BF16 : TG_STORE_FULL, n);
    }
    uint8_t *bytes = t_host_alloc(s, TG_U8, reals);
    float *scales = t_host_alloc(s, TG_F32, blocks);
    for (int64_t i = 0; i < reals; i++) {
        bytes[i] = (uint8_t)(i * 37 % 256);
    }
    for (int64_t i = 0; i < blocks; i++) {
        scales[i] = i % 3 == 1 ? 0.0f : 0.25f * (float)(i + 1);
    }
    *scale = t_inout(s, TG_F32, blocks, scales);
    return t_inout(s, TG_U8, reals, bytes);
}

static void run_kernel(t_side *s, tg_rule_kernel kernel, int64_t n, int choice) {
    static const tg_state_form forms[] = {TG_STATE_FULL, TG_STATE_BF16, TG_STATE_8BIT};
    static const tg_storage stores[] = {TG_STORE_FULL, TG_STORE_BF16, TG_STORE_F16};
    const bool is_single = s->dtype == TG_F32 || s->dtype == TG_C64;
    const tg_state_form form = is_single ? forms[choice % 3] : TG_STATE_FULL;
    const tg_storage store = is_single ? stores[choice / 3 % 3] : TG_STORE_FULL;
    const uint32_t guard = choice == 5;
    float *scale = NULL;
    t_note(s, "kernel %d, n %lld, choice %d", (int)kernel, (long long)n, choice);
    const tg_adam op = {.kernel = kernel,
                        .dtype = s->dtype,
                        .n = n,
                        .split = choice & 1,
                        .grad = stored_random(s, store, n),
                        .grad_store = store,
                        .scale = 0.5,
                        .m = random_moment(s, form, n, &scale),
                        .form = form,
                        .m_scale = scale,
                        .beta1 = 0.9,
                        .beta2 = 0.98,
                        .direction = t_output(s, s->dtype, n),
                        .weight = stored_random(s, store, n),
                        .weight_store = store,
                        .alpha = -0.1,
                        .beta = choice & 2 ? 0.0 : 0.75,
                        .rounding = choice & 4 ? &rounding : NULL,
                        .guard = t_inout(s, TG_U32, 1, &guard)};
    t_ok(s, s->ops->update(s->be, 1, &op));
    t_keep_same(s, op.direction); /* in double, rounded once */
    t_keep_same(s, op.m);
    t_keep_same(s, op.weight);
    if (scale) {
        t_keep_same(s, scale);
    }
    t_release(s);
}

ROW(kernels, "rule_step", T_WIDE) {
    static const int64_t lengths[] = {1, 2, 129, 1501};
    for (int kernel = TG_KERNEL_GRADIENT; kernel <= TG_KERNEL_NESTEROV; kernel++) {
        for (int i = 0; i < T_COUNT(lengths); i++) {
            for (int choice = 0; choice < 9; choice++) {
                if (!t_leaves_out(s)) {
                    run_kernel(s, (tg_rule_kernel)kernel, lengths[i], choice);
                }
            }
        }
    }
}

/* ---- columns ---- */

static const int64_t sizes[][2] = {{1, 1}, {0, 3}, {3, 40}, {64, 257}, {2000, 33}, {33, 1000}};

ROW(columns, "columns", T_FLOATS) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        const int64_t rows = sizes[i][0], n = sizes[i][1];
        t_note(s, "%lld x %lld", (long long)rows, (long long)n);
        double *host = t_host_random(s, TG_F64, n);
        for (int64_t j = 0; j < n; j++) {
            host[j] = j % 5 == 2 ? 0.0 : fabs(host[j]) + 0.1;
        }
        const double *other = t_input(s, TG_F64, n, host);
        double *squares = t_output(s, TG_F64, n);
        void *x = stored_random(s, TG_STORE_FULL, rows * n);
        t_ok(s, s->ops->column_squares(s->be, s->dtype, rows, n, x, squares));
        t_keep_close(s, squares, sqrt((double)rows + 1.0));
        t_ok(s, s->ops->scale_columns(s->be, s->dtype, rows, n, 0.5, NULL, other, x));
        t_ok(s, s->ops->scale_columns(s->be, s->dtype, rows, n, 2.0, other, squares, x));
        t_keep_close(s, x, 4.0);
        t_release(s);
    }
}

/* There and back, rows further apart than they are long. */
ROW(transposing, "transpose", T_FLOATS) {
    for (int i = 0; i < T_COUNT(sizes); i++) {
        const int64_t rows = sizes[i][0], n = sizes[i][1], ld = n + 3;
        t_note(s, "%lld x %lld", (long long)rows, (long long)n);
        const void *host = t_host_random(s, s->dtype, rows * ld);
        void *turned =
            t_inout(s, s->dtype, n * (rows + 1), t_host_random(s, s->dtype, n * (rows + 1)));
        void *back = t_inout(s, s->dtype, rows * ld, host);
        t_ok(s, s->ops->transpose(s->be, s->dtype, rows, n, t_input(s, s->dtype, rows * ld, host),
                                  ld, turned, rows + 1));
        t_keep_same(s, turned);
        t_ok(s, s->ops->transpose(s->be, s->dtype, n, rows, turned, rows + 1, back, ld));
        t_true(s, memcmp(t_download(s, back), host,
                         (size_t)(rows * ld) * tg_dtype_size(s->dtype)) == 0);
        t_release(s);
    }
}

/* [3 4i; 0 0], whose second row says nothing: squares 9 and 16, and unit columns. */
ROW(by_hand, "columns by hand", T_FLOATS) {
    const bool is_complex = tg_dtype_is_complex(s->dtype);
    const tg_scalar four = {is_complex ? 0.0 : 4.0, is_complex ? 4.0 : 0.0};
    void *host = t_host_alloc(s, s->dtype, 4);
    memset(host, 0, 4 * tg_dtype_size(s->dtype));
    tg_store(s->dtype, host, 0, (tg_scalar){3.0, 0.0});
    tg_store(s->dtype, host, 1, four);
    void *x = t_inout(s, s->dtype, 4, host);
    double *squares = t_output(s, TG_F64, 2);
    t_ok(s, s->ops->column_squares(s->be, s->dtype, 2, 2, x, squares));
    const double *found = t_download(s, squares);
    t_true(s, found[0] == 9.0 && found[1] == 16.0);
    t_ok(s, s->ops->scale_columns(s->be, s->dtype, 2, 2, 1.0, NULL, squares, x));
    const tg_scalar unit = tg_load(s->dtype, t_download(s, x), 1);
    t_below(s, fabs(unit.re + unit.im - 1.0), t_tolerance(s->dtype));
}

int main(void) {
    return t_run_rows("rules");
}
