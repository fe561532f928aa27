/* Hermitian eigenproblem, thin QR and leading columns of every backend.
 *
 * Eigenvectors are free in their phases, and in their choice where eigenvalues coincide, so they
 * are checked by algebra: A V = V L, V^H V = I; likewise QR = A, Q^H Q = I. Eigenvalues, and Q and
 * R of full rank, are unique and also compared with ref. */
#include <math.h>
#include <string.h>

#include "support/runner.h"

static tg_scalar multiply(tg_scalar a, tg_scalar b) {
    return (tg_scalar){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

/* Largest |(X^H X - I)[i][j]|, X (m, n). */
static double distance_from_orthonormal(tg_dtype dtype, int64_t m, int64_t n, const void *x) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            tg_scalar sum = {i == j ? -1.0 : 0.0, 0.0};
            for (int64_t r = 0; r < m; r++) {
                const tg_scalar a = tg_load(dtype, x, r * n + i), b = tg_load(dtype, x, r * n + j);
                const tg_scalar p = multiply((tg_scalar){a.re, -a.im}, b);
                sum = (tg_scalar){sum.re + p.re, sum.im + p.im};
            }
            const double size = hypot(sum.re, sum.im);
            most = size <= most ? most : size; /* takes NaN */
        }
    }
    return most;
}

/* out = A B for A (m, k) and B (k, n). */
static void *product(t_side *s, int64_t m, int64_t k, int64_t n, const void *a, const void *b) {
    void *out = t_host_alloc(s, s->dtype, m * n);
    for (int64_t i = 0; i < m * n; i++) {
        tg_scalar sum = {0};
        for (int64_t p = 0; p < k; p++) {
            const tg_scalar v =
                multiply(tg_load(s->dtype, a, i / n * k + p), tg_load(s->dtype, b, p * n + i % n));
            sum = (tg_scalar){sum.re + v.re, sum.im + v.im};
        }
        tg_store(s->dtype, out, i, sum);
    }
    return out;
}

/* ---- eigh ---- */

/* a (n, n) on the host is Hermitian. Eigenvalues are recorded relative to the largest. */
static void check_eigh(t_side *s, int64_t n, const void *a) {
    const double tolerance = t_tolerance(TG_F64) * ((double)n + 1.0);
    double *found = t_output(s, TG_F64, n);
    void *x = t_inout(s, s->dtype, n * n, a);
    t_ok(s, s->ops->eigh(s->be, s->dtype, n, x, found));
    const double *values = t_download(s, found);
    const void *v = t_download(s, x);
    t_below(s, distance_from_orthonormal(s->dtype, n, n, v), tolerance);
    double largest = 0.0;
    for (int64_t j = 0; j < n; j++) {
        t_true(s, j == 0 || values[j - 1] >= values[j]);
        largest = fmax(largest, fabs(values[j]));
    }
    const void *av = product(s, n, n, n, a, v);
    for (int64_t i = 0; i < n * n; i++) {
        const tg_scalar left = tg_load(s->dtype, av, i), right = tg_load(s->dtype, v, i);
        const double lambda = values[i % n];
        t_below(s, hypot(left.re - lambda * right.re, left.im - lambda * right.im),
                tolerance * largest);
    }
    t_record_close(s, TG_F64, n, values, (double)n + 1.0);
    t_release(s);
}

/* size (B + B^H) of a random B. */
static void *hermitian(t_side *s, int64_t n, double size) {
    const void *b = t_host_random(s, s->dtype, n * n);
    void *a = t_host_alloc(s, s->dtype, n * n);
    for (int64_t i = 0; i < n * n; i++) {
        const tg_scalar x = tg_load(s->dtype, b, i), y = tg_load(s->dtype, b, i % n * n + i / n);
        tg_store(s->dtype, a, i, (tg_scalar){size * (x.re + y.re), size * (x.im - y.im)});
    }
    return a;
}

ROW(eigh, "eigh", T_DOUBLE) {
    static const int64_t sizes[] = {0, 1, 2, 3, 5, 7, 33, 65};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        t_note(s, "n %lld", (long long)sizes[i]);
        if (!t_leaves_out(s)) {
            check_eigh(s, sizes[i], hermitian(s, sizes[i], 1.0));
        }
    }
    static const double scales[] = {1e-200, 1e-30, 1e30, 1e200};
    for (int i = 0; i < T_COUNT(scales); i++) {
        t_note(s, "n 7 times %g", scales[i]);
        if (!t_leaves_out(s)) {
            check_eigh(s, 7, hermitian(s, 7, scales[i]));
        }
    }
}

/* By a library on a GPU; bench/sanitize.sh knows the name. */
ROW(eigh_large, "eigh, large", T_DOUBLE) {
    check_eigh(s, 97, hermitian(s, 97, 1.0));
}

/* Equal eigenvalues, zeros, and low rank: a = d I + u u^H, eigenvalues d + |u|^2, d, d, .. */
ROW(eigh_degenerate, "eigh, degenerate", T_DOUBLE) {
    static const int64_t sizes[] = {1, 3, 7, 33};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int shift = 0; shift < 3; shift++) {
            for (int rank = 0; rank < 2; rank++) {
                const int64_t n = sizes[i];
                t_note(s, "n %lld, %d I + rank %d", (long long)n, 1 - shift, rank);
                const void *u = t_host_random(s, s->dtype, n);
                void *a = t_host_alloc(s, s->dtype, n * n);
                for (int64_t j = 0; j < n * n; j++) {
                    const tg_scalar x = tg_load(s->dtype, u, j / n),
                                    y = tg_load(s->dtype, u, j % n);
                    const tg_scalar p = multiply(x, (tg_scalar){rank * y.re, -rank * y.im});
                    const double d = j % (n + 1) == 0 ? 1.0 - shift : 0.0;
                    tg_store(s->dtype, a, j, (tg_scalar){p.re + d, p.im});
                }
                check_eigh(s, n, a);
            }
        }
    }
}

/* [2 i; -i 2] has eigenvalues 3 and 1; its real part 2 and 2. */
ROW(eigh_by_hand, "eigh by hand", T_DOUBLE) {
    static const tg_scalar a[4] = {{2, 0}, {0, 1}, {0, -1}, {2, 0}};
    void *host = t_host_alloc(s, s->dtype, 4);
    for (int i = 0; i < 4; i++) {
        tg_store(s->dtype, host, i, a[i]);
    }
    double *found = t_output(s, TG_F64, 2);
    t_ok(s, s->ops->eigh(s->be, s->dtype, 2, t_inout(s, s->dtype, 4, host), found));
    const double *values = t_download(s, found);
    const bool pairs = tg_dtype_is_complex(s->dtype);
    t_below(s, fabs(values[0] - (pairs ? 3.0 : 2.0)), 1e-14);
    t_below(s, fabs(values[1] - (pairs ? 1.0 : 2.0)), 1e-14);
}

/* ---- qr ---- */

/* Largest relative error of a column of got (m, n). */
static double column_error(t_side *s, int64_t m, int64_t n, const void *got, const void *expected) {
    double most = 0.0;
    void *g = t_host_alloc(s, s->dtype, m), *e = t_host_alloc(s, s->dtype, m);
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = 0; i < m; i++) {
            tg_store(s->dtype, g, i, tg_load(s->dtype, got, i * n + j));
            tg_store(s->dtype, e, i, tg_load(s->dtype, expected, i * n + j));
        }
        const double error = t_relative_error(s->dtype, m, g, e);
        most = error <= most ? most : error; /* takes NaN */
    }
    return most;
}

/* a (m, n) on the host; Q and R are recorded if they are unique. */
static void check_qr(t_side *s, int64_t m, int64_t n, const void *a, bool full_rank) {
    const double tolerance = t_tolerance(TG_F64) * ((double)n + 1.0);
    void *x = t_inout(s, s->dtype, m * n, a), *y = t_inout(s, s->dtype, m * n, a);
    void *r_out = t_output(s, s->dtype, n * n);
    t_ok(s, s->ops->qr(s->be, s->dtype, m, n, x, r_out));
    t_ok(s, s->ops->qr(s->be, s->dtype, m, n, y, NULL));
    const void *q = t_download(s, x), *r = t_download(s, r_out);
    t_true(s, t_first_difference(s->dtype, m * n, q, t_download(s, y)) == -1);
    t_below(s, distance_from_orthonormal(s->dtype, m, n, q), tolerance);
    for (int64_t i = 0; i < n * n; i++) {
        const tg_scalar v = tg_load(s->dtype, r, i);
        t_true(s, i / n <= i % n || (v.re == 0.0 && v.im == 0.0));
        t_true(s, i / n != i % n || (v.re >= 0.0 && v.im == 0.0));
    }
    t_below(s, column_error(s, m, n, product(s, m, n, n, q, r), a), tolerance);
    if (full_rank) {
        t_record_close(s, s->dtype, m * n, q, 100.0 * ((double)n + 1.0));
        t_record_close(s, s->dtype, n * n, r, 10.0 * ((double)n + 1.0));
    }
    t_release(s);
}

static const int64_t qr_shapes[][2] = {{0, 0}, {3, 0},  {1, 1},   {3, 1},   {2, 2},   {5, 3},
                                       {7, 7}, {33, 5}, {65, 33}, {127, 7}, {131, 64}};

ROW(qr, "qr", T_DOUBLE) {
    for (int i = 0; i < T_COUNT(qr_shapes); i++) {
        const int64_t m = qr_shapes[i][0], n = qr_shapes[i][1];
        t_note(s, "%lldx%lld", (long long)m, (long long)n);
        check_qr(s, m, n, t_host_random(s, s->dtype, m * n), m > n || n <= 2);
    }
}

/* Columns of zeros, copies and sums of others, and everything zero. */
ROW(qr_deficient, "qr, deficient", T_DOUBLE) {
    for (int i = 0; i < T_COUNT(qr_shapes); i++) {
        for (int kind = 0; kind < 4; kind++) {
            static const char *const names[] = {"all zero", "first zero", "copies", "rank 1"};
            const int64_t m = qr_shapes[i][0], n = qr_shapes[i][1];
            t_note(s, "%lldx%lld, %s", (long long)m, (long long)n, names[kind]);
            const void *b = t_host_random(s, s->dtype, m * n);
            void *a = t_host_alloc(s, s->dtype, m * n);
            for (int64_t j = 0; j < m * n; j++) {
                const int64_t row = j / n, column = j % n;
                const int64_t from = kind == 2 ? column / 2 : 0;
                tg_scalar v = tg_load(s->dtype, b, kind < 2 ? j : row * n + from);
                const double factor = kind == 3 ? 1.0 + (double)column : 1.0;
                const bool zero = kind == 0 || (kind == 1 && column == 0);
                v = zero ? (tg_scalar){0} : (tg_scalar){factor * v.re, factor * v.im};
                tg_store(s->dtype, a, j, v);
            }
            check_qr(s, m, n, a, false);
        }
    }
}

/* Column j is column 0 plus 10^-2j of something else: one round of Gram-Schmidt would lose all
 * orthogonality here. */
ROW(qr_nearly_dependent, "qr, nearly dependent", T_DOUBLE) {
    for (int i = 0; i < T_COUNT(qr_shapes); i++) {
        const int64_t m = qr_shapes[i][0], n = qr_shapes[i][1];
        t_note(s, "%lldx%lld", (long long)m, (long long)n);
        const void *b = t_host_random(s, s->dtype, m * n);
        void *a = t_host_alloc(s, s->dtype, m * n);
        for (int64_t j = 0; j < m * n; j++) {
            const tg_scalar first = tg_load(s->dtype, b, j / n * n),
                            other = tg_load(s->dtype, b, j);
            const double small = pow(10.0, -2.0 * (double)(j % n));
            tg_store(s->dtype, a, j,
                     (tg_scalar){first.re + small * other.re, first.im + small * other.im});
        }
        check_qr(s, m, n, a, false);
    }
}

/* Columns of very different sizes keep their relative precision in Q. */
ROW(qr_scaled, "qr, scaled columns", T_DOUBLE) {
    static const double sizes[] = {1e-150, 1.0, 1e150};
    const int64_t m = 33, n = 3;
    void *a = t_host_random(s, s->dtype, m * n);
    for (int64_t j = 0; j < m * n; j++) {
        const tg_scalar v = tg_load(s->dtype, a, j);
        tg_store(s->dtype, a, j, (tg_scalar){v.re * sizes[j % n], v.im * sizes[j % n]});
    }
    check_qr(s, m, n, a, true);
}

/* A = [3 1; 4i 2]: Q's first column is (3, 4i) / 5. */
ROW(qr_by_hand, "qr by hand", T_DOUBLE) {
    const bool pairs = tg_dtype_is_complex(s->dtype);
    const tg_scalar a[4] = {{3, 0}, {1, 0}, pairs ? (tg_scalar){0, 4} : (tg_scalar){4, 0}, {2, 0}};
    /* r12 = q1^H (1, 2) = (3 - 8i) / 5 or 11 / 5; r22 = sqrt(5 - |r12|^2). */
    const tg_scalar r12 = pairs ? (tg_scalar){0.6, -1.6} : (tg_scalar){2.2, 0.0};
    void *host = t_host_alloc(s, s->dtype, 4);
    for (int i = 0; i < 4; i++) {
        tg_store(s->dtype, host, i, a[i]);
    }
    void *out = t_output(s, s->dtype, 4);
    t_ok(s, s->ops->qr(s->be, s->dtype, 2, 2, t_inout(s, s->dtype, 4, host), out));
    const void *r = t_download(s, out);
    const tg_scalar found = tg_load(s->dtype, r, 1);
    t_below(s, fabs(tg_load(s->dtype, r, 0).re - 5.0), 1e-14);
    t_below(s, hypot(found.re - r12.re, found.im - r12.im), 1e-14);
    t_below(s, fabs(tg_load(s->dtype, r, 3).re - sqrt(5.0 - r12.re * r12.re - r12.im * r12.im)),
            1e-14);
}

/* ---- leading columns ---- */

/* Against ref: without old columns, with them, into them, and with old columns of zeros. */
ROW(leading_columns, "leading columns", T_FLOATS) {
    const tg_dtype wide = tg_dtype_is_complex(s->dtype) ? TG_C128 : TG_F64;
    static const int64_t sizes[][3] = {{0, 3, 2},   {1, 1, 1},    {5, 5, 3},
                                       {67, 40, 0}, {67, 40, 33}, {33, 65, 65}};
    for (int i = 0; i < T_COUNT(sizes); i++) {
        for (int kind = 0; kind < 4; kind++) {
            static const char *const names[] = {"no old", "old", "in place", "old of zeros"};
            const int64_t rows = sizes[i][0], columns = sizes[i][1], count = sizes[i][2];
            t_note(s, "%lld of %lldx%lld, %s", (long long)count, (long long)rows,
                   (long long)columns, names[kind]);
            const void *vectors = t_random(s, wide, rows * columns);
            void *host = t_host_random(s, s->dtype, rows * count);
            for (int64_t j = 0; kind == 3 && j < rows * count; j++) {
                tg_store(s->dtype, host, j, (tg_scalar){0});
            }
            void *old = t_inout(s, s->dtype, rows * count, host);
            void *out = kind == 2 ? old : t_output(s, s->dtype, rows * count);
            t_ok(s, s->ops->leading_columns(s->be, s->dtype, rows, columns, count, vectors,
                                            kind ? old : NULL, out));
            t_keep_close(s, out, 4.0);
            t_release(s);
        }
    }
}

/* The columns (3, -4i, 4) and (1, 1, 1); real: (3, 0, 4) and (1, 1, 1). The first one's largest
 * entries are the last two, so it is turned by i, or not at all; <old, first> = -8i (real: 0). */
ROW(leading_columns_by_hand, "leading columns by hand", T_FLOATS) {
    const bool pairs = tg_dtype_is_complex(s->dtype);
    static const tg_scalar vectors[6] = {{3, 0}, {1, 0}, {0, -4}, {1, 0}, {4, 0}, {1, 0}};
    static const tg_scalar old[3] = {{0, 0}, {2, 0}, {0, 0}};
    static const tg_scalar turned[3] = {{0, 3}, {4, 0}, {0, 4}}; /* i (3, -4i, 4) */
    static const tg_scalar real[3] = {{3, 0}, {0, 0}, {4, 0}};
    const tg_dtype wide = pairs ? TG_C128 : TG_F64;
    void *vectors_host = t_host_alloc(s, wide, 6), *old_host = t_host_alloc(s, s->dtype, 3);
    for (int i = 0; i < 6; i++) {
        tg_store(wide, vectors_host, i, vectors[i]);
    }
    for (int i = 0; i < 3; i++) {
        tg_store(s->dtype, old_host, i, old[i]);
    }
    const void *x = t_input(s, wide, 6, vectors_host), *y = t_input(s, s->dtype, 3, old_host);
    for (int aligned = 0; aligned < 2; aligned++) {
        void *out = t_output(s, s->dtype, 3);
        t_ok(s, s->ops->leading_columns(s->be, s->dtype, 3, 2, 1, x, aligned ? y : NULL, out));
        const void *found = t_download(s, out);
        for (int i = 0; i < 3; i++) {
            const tg_scalar v = tg_load(s->dtype, found, i), e = pairs ? turned[i] : real[i];
            t_true(s, v.re == e.re && v.im == e.im);
        }
    }
    void *out = t_output(s, s->dtype, 9);
    t_refused(s, TG_E_ARGUMENT, s->ops->leading_columns(s->be, s->dtype, 3, 2, 3, x, NULL, out));
    t_refused(s, TG_E_ARGUMENT, s->ops->leading_columns(s->be, s->dtype, 3, 2, -1, x, NULL, out));
    t_keep_same(s, out);
}

/* ---- failures ---- */

ROW(refusals, "refusals", T_DOUBLE) {
    const double bad[] = {(double)NAN, HUGE_VAL, -HUGE_VAL};
    for (int i = 0; i < 3; i++) {
        for (int place = 0; place < 25; place += 6) {
            t_note(s, "%g at %d", bad[i], place);
            void *a = hermitian(s, 5, 1.0);
            tg_store(s->dtype, a, place, (tg_scalar){bad[i], 0.0});
            tg_store(s->dtype, a, place % 5 * 5 + place / 5, (tg_scalar){bad[i], 0.0});
            void *x = t_inout(s, s->dtype, 25, a), *y = t_inout(s, s->dtype, 25, a);
            double *values = t_output(s, TG_F64, 5);
            t_refused(s, TG_E_NUMERIC, s->ops->eigh(s->be, s->dtype, 5, x, values));
            t_refused(s, TG_E_NUMERIC, s->ops->qr(s->be, s->dtype, 5, 5, y, NULL));
            t_release(s);
        }
    }
    void *x = t_output(s, s->dtype, 25);
    double *values = t_output(s, TG_F64, 5);
    t_refused(s, TG_E_SHAPE, s->ops->qr(s->be, s->dtype, 4, 5, x, NULL));
    t_refused(s, TG_E_DTYPE, s->ops->qr(s->be, TG_F32, 5, 5, x, NULL));
    t_refused(s, TG_E_DTYPE, s->ops->eigh(s->be, TG_C64, 5, x, values));
    t_keep_same(s, x);
}

/* Whichever allocation fails, the call reports it and leaks nothing. */
ROW(out_of_memory, "out of memory", T_DOUBLE) {
    for (int slot = 0; slot < 2; slot++) {
        tg_status status = TG_E_MEMORY;
        for (long n = 1; status != TG_OK; n++) {
            t_note(s, "%s, allocation %ld fails", slot ? "qr" : "eigh", n);
            void *x = t_inout(s, s->dtype, 49, hermitian(s, 7, 1.0));
            double *values = t_output(s, TG_F64, 7);
            const size_t before = tg_context_memory(s->be->ctx, TG_HOST).blocks;
            tg_mem_test_fail_at(n);
            status = slot ? s->ops->qr(s->be, s->dtype, 7, 7, x, NULL)
                          : s->ops->eigh(s->be, s->dtype, 7, x, values);
            tg_mem_test_fail_at(0);
            t_true(s, status == TG_OK || status == TG_E_MEMORY);
            t_true(s, tg_context_memory(s->be->ctx, TG_HOST).blocks == before);
            t_true(s, n < 100);
            t_release(s);
        }
    }
}

/* A decomposition of (m, n) allocates the predicted bytes, and frees them. */
static void check_scratch(t_side *s, tg_scratch_call call, int64_t m, int64_t n) {
    const tg_scratch_need need = s->ops->scratch_need(s->be, call, s->dtype, m, n);
    const size_t expected[TG_PLACES] = {[TG_HOST] =
                                            s->ops->place == TG_HOST ? need.place : need.host,
                                        [TG_DEVICE] = s->ops->place == TG_HOST ? 0 : need.place};
    void *a = t_inout(s, s->dtype, m * n,
                      m == n ? hermitian(s, n, 1.0) : t_host_random(s, s->dtype, m * n));
    double *values = t_output(s, TG_F64, n);
    t_note(s, "%s of %lldx%lld", call == TG_SCRATCH_QR ? "qr" : "eigh", (long long)m, (long long)n);
    tg_context_memory_reset_peak(s->be->ctx);
    t_ok(s, call == TG_SCRATCH_QR ? s->ops->qr(s->be, s->dtype, m, n, a, NULL)
                                  : s->ops->eigh(s->be, s->dtype, n, a, values));
    for (int place = 0; place < TG_PLACES; place++) {
        const tg_mem_usage usage = tg_context_memory(s->be->ctx, (tg_place)place);
        const size_t held = usage.current[TG_MEM_WORKSPACE];
        t_true(s, usage.peak[TG_MEM_WORKSPACE] == held + expected[place]);
        t_true(s, usage.peak_total == usage.current_total + expected[place]);
    }
    t_release(s);
}

ROW(scratch, "scratch memory", T_DOUBLE) {
    static const int64_t sizes[] = {1, 33, 72, 73, 300, 500, 1300};
    const bool is_ref = strcmp(s->ops->name, "ref") == 0; /* slow */
    const int64_t most = is_ref ? 73 : s->ops->place == TG_HOST ? 300 : 1300;
    for (int i = 0; i < T_COUNT(sizes) && sizes[i] <= most; i++) {
        check_scratch(s, TG_SCRATCH_EIGH, sizes[i], sizes[i]);
        check_scratch(s, TG_SCRATCH_QR, sizes[i] + 7, sizes[i]);
    }
}

int main(void) {
    return t_run_rows("decompose");
}
