/* Hermitian eigenproblem by cyclic Jacobi rotations and thin QR by Gram-Schmidt.
 *
 * Both are slow but hard to get wrong: Jacobi only multiplies by unitary 2 x 2 matrices and
 * measures its convergence; Gram-Schmidt done twice is orthogonal to machine precision. Real
 * problems run as complex ones with im = 0. Scratch comes from the ledger as workspace. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "backend/ref/ref.h"

/* Largest |re| or |im| of n numbers, rounded up to a power of two: dividing by it is exact and
 * prevents overflow of squares. 1 for zeros, Inf if a number is not finite. */
static double power_of_two_bound(const tg_scalar *x, int64_t n, int64_t stride) {
    double most = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar v = x[i * stride];
        if (!isfinite(v.re) || !isfinite(v.im)) {
            return HUGE_VAL;
        }
        most = fmax(most, fmax(fabs(v.re), fabs(v.im)));
    }
    int exponent = 0;
    frexp(most, &exponent);
    return most > 0.0 ? ldexp(1.0, exponent > 1023 ? 1023 : exponent) : 1.0;
}

/* ---- eigh ---- */

enum { JACOBI_SWEEPS = 60 }; /* convergence is quadratic; a dozen are enough in practice */

/* (x, y) <- (c x - conj(z) y, z x + c y), the plane rotation with c^2 + |z|^2 = 1. */
static void rotate(tg_scalar *x, tg_scalar *y, double c, tg_scalar z) {
    const tg_scalar zx = ref_mul(z, *x);
    const tg_scalar zy = ref_mul(ref_conj(z), *y);
    *x = (tg_scalar){c * x->re - zy.re, c * x->im - zy.im};
    *y = (tg_scalar){c * y->re + zx.re, c * y->im + zx.im};
}

/* Makes a[p][q] zero: a <- J^H a J, v <- v J, where J mixes columns p and q with c = cos and
 * z = sin e^{i phi}, phi the argument of a[p][q]. */
static void jacobi_step(tg_scalar *a, tg_scalar *v, int64_t n, int64_t p, int64_t q) {
    const tg_scalar apq = a[p * n + q];
    const double modulus = hypot(apq.re, apq.im);
    if (modulus == 0.0) {
        return;
    }
    const double tau = (a[q * n + q].re - a[p * n + p].re) / (2.0 * modulus);
    const double t = (tau < 0.0 ? -1.0 : 1.0) / (fabs(tau) + hypot(1.0, tau));
    const double c = 1.0 / sqrt(1.0 + t * t);
    const tg_scalar z = {t * c * apq.re / modulus, t * c * apq.im / modulus};
    for (int64_t i = 0; i < n; i++) {
        rotate(&a[i * n + p], &a[i * n + q], c, z);
        rotate(&v[i * n + p], &v[i * n + q], c, z);
    }
    for (int64_t i = 0; i < n; i++) {
        rotate(&a[p * n + i], &a[q * n + i], c, ref_conj(z));
    }
    a[p * n + q] = a[q * n + p] = (tg_scalar){0};
}

/* Sum of squares of a (n, n), and of its off-diagonal part. */
static double squares(const tg_scalar *a, int64_t n, double *off_diagonal) {
    double diagonal = 0.0;
    *off_diagonal = 0.0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n; j++) {
            *(i == j ? &diagonal : off_diagonal) += ref_abs2(a[i * n + j]);
        }
    }
    return diagonal + *off_diagonal;
}

/* Rotates until the off-diagonal part is below rounding; false if that never happens. */
static bool jacobi_sweeps(tg_scalar *a, tg_scalar *v, int64_t n) {
    for (int sweep = 0; sweep < JACOBI_SWEEPS; sweep++) {
        double off = 0.0;
        const double total = squares(a, n, &off);
        if (off <= DBL_EPSILON * DBL_EPSILON * total) {
            return true;
        }
        for (int64_t p = 0; p < n; p++) {
            for (int64_t q = p + 1; q < n; q++) {
                jacobi_step(a, v, n, p, q);
            }
        }
    }
    return false;
}

typedef struct ranked {
    double value;
    int64_t column;
} ranked;

static int descending(const void *x, const void *y) {
    const ranked *a = x, *b = y;
    if (a->value != b->value) {
        return a->value > b->value ? -1 : 1;
    }
    return a->column < b->column ? -1 : a->column > b->column;
}

/* The Hermitian part of a, divided by *scale, and v = I. */
static bool load_hermitian(tg_dtype dtype, int64_t n, const void *a, tg_scalar *work, tg_scalar *v,
                           double *scale) {
    for (int64_t i = 0; i < n * n; i++) {
        work[i] = tg_load(dtype, a, i);
        v[i] = (tg_scalar){i % (n + 1) == 0 ? 1.0 : 0.0, 0.0};
    }
    *scale = power_of_two_bound(work, n * n, 1);
    if (isinf(*scale)) {
        return false;
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            const tg_scalar x = work[i * n + j], y = work[j * n + i];
            const double half = 0.5 / *scale;
            const tg_scalar mean = {half * x.re + half * y.re, half * x.im - half * y.im};
            work[i * n + j] = mean;
            work[j * n + i] = ref_conj(mean);
        }
    }
    return true;
}

tg_status ref_eigh(tg_backend *be, tg_dtype dtype, int64_t n, void *a, double *eigenvalues) {
    tg_status status = TG_OK;
    tg_scalar *work = NULL; /* (n, n), becomes diagonal */
    tg_scalar *v = NULL;    /* (n, n), eigenvectors in columns */
    ranked *order = NULL;   /* (n) */
    double scale = 1.0;
    TG_TRY(tg_check_double(be->ctx, "eigh", dtype));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, work, n * n));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, v, n * n));
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, order, n));
    if (!load_hermitian(dtype, n, a, work, v, &scale)) {
        TG_TRY(tg_fail(be->ctx, TG_E_NUMERIC, "eigh: the %lldx%lld matrix has NaN or Inf",
                       (long long)n, (long long)n));
    }
    if (!jacobi_sweeps(work, v, n)) {
        TG_TRY(tg_fail(be->ctx, TG_E_NUMERIC, "eigh: a %lldx%lld matrix does not converge",
                       (long long)n, (long long)n));
    }
    for (int64_t j = 0; j < n; j++) {
        order[j] = (ranked){work[j * n + j].re * scale, j};
    }
    qsort(order, (size_t)n, sizeof *order, descending);
    for (int64_t j = 0; j < n; j++) {
        eigenvalues[j] = order[j].value;
        for (int64_t i = 0; i < n; i++) {
            tg_store(dtype, a, i * n + j, v[i * n + order[j].column]);
        }
    }
fail:
    TG_FREE(be->ctx, work);
    TG_FREE(be->ctx, v);
    TG_FREE(be->ctx, order);
    return status;
}

/* ---- qr ---- */

static double column_norm(const tg_scalar *q, int64_t m, int64_t n, int64_t j) {
    double sum = 0.0;
    for (int64_t i = 0; i < m; i++) {
        sum += ref_abs2(q[i * n + j]);
    }
    return sqrt(sum);
}

/* Removes the parts along columns 0 .. j-1 from column j, twice; adds them times `scale` to
 * r[0..j-1][j] if r is given. Returns the norm of the remainder. */
static double orthogonalize(tg_scalar *q, int64_t m, int64_t n, int64_t j, double scale,
                            tg_scalar *r) {
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t c = 0; c < j; c++) {
            tg_scalar along = {0};
            for (int64_t i = 0; i < m; i++) {
                along = ref_add(along, ref_mul(ref_conj(q[i * n + c]), q[i * n + j]));
            }
            for (int64_t i = 0; i < m; i++) {
                const tg_scalar part = ref_mul(along, q[i * n + c]);
                q[i * n + j].re -= part.re;
                q[i * n + j].im -= part.im;
            }
            if (r) {
                r[c * n + j].re += along.re * scale;
                r[c * n + j].im += along.im * scale;
            }
        }
    }
    return column_norm(q, m, n, j);
}

/* Column j becomes the unit vector farthest from the span of columns 0 .. j-1: row i of those has
 * norm^2 1 - distance^2, and the j <= m - 1 norms^2 of the m rows add up to j. */
static void completion(tg_scalar *q, int64_t m, int64_t n, int64_t j) {
    int64_t best = 0;
    double least = HUGE_VAL;
    for (int64_t i = 0; i < m; i++) {
        double inside = 0.0;
        for (int64_t c = 0; c < j; c++) {
            inside += ref_abs2(q[i * n + c]);
        }
        if (inside < least) {
            least = inside;
            best = i;
        }
    }
    for (int64_t i = 0; i < m; i++) {
        q[i * n + j] = (tg_scalar){i == best ? 1.0 : 0.0, 0.0};
    }
}

/* One column: false if it is not finite. q (m, n), r (n, n). */
static bool qr_column(tg_scalar *q, tg_scalar *r, int64_t m, int64_t n, int64_t j) {
    const double scale = power_of_two_bound(q + j, m, n);
    if (isinf(scale)) {
        return false;
    }
    for (int64_t i = 0; i < m; i++) {
        q[i * n + j].re /= scale;
        q[i * n + j].im /= scale;
    }
    /* Rounding leaves about eps sqrt(m) of a column in the span of those before it. */
    const double nothing = 8.0 * DBL_EPSILON * sqrt((double)m) * column_norm(q, m, n, j);
    double left = orthogonalize(q, m, n, j, scale, r);
    if (left > nothing) {
        r[j * n + j].re = left * scale;
    } else {
        completion(q, m, n, j);
        left = orthogonalize(q, m, n, j, 1.0, NULL);
    }
    for (int64_t i = 0; i < m; i++) {
        q[i * n + j].re /= left;
        q[i * n + j].im /= left;
    }
    return true;
}

tg_status ref_qr(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, void *a, void *r) {
    tg_status status = TG_OK;
    tg_scalar *q = NULL;     /* (m, n) */
    tg_scalar *upper = NULL; /* (n, n) */
    TG_TRY(tg_check_double(be->ctx, "qr", dtype));
    if (n < 0 || m < n) {
        TG_TRY(tg_fail(be->ctx, TG_E_SHAPE, "qr: %lldx%lld; at least as many rows are needed",
                       (long long)m, (long long)n));
    }
    TG_TRY(TG_ALLOC(be->ctx, TG_MEM_WORKSPACE, q, m * n));
    TG_TRY(TG_NEW(be->ctx, TG_MEM_WORKSPACE, upper, n * n));
    for (int64_t i = 0; i < m * n; i++) {
        q[i] = tg_load(dtype, a, i);
    }
    for (int64_t j = 0; j < n; j++) {
        if (!qr_column(q, upper, m, n, j)) {
            TG_TRY(tg_fail(be->ctx, TG_E_NUMERIC, "qr: column %lld of %lldx%lld has NaN or Inf",
                           (long long)j, (long long)m, (long long)n));
        }
    }
    for (int64_t i = 0; i < m * n; i++) {
        tg_store(dtype, a, i, q[i]);
    }
    for (int64_t i = 0; r && i < n * n; i++) {
        tg_store(dtype, r, i, upper[i]);
    }
fail:
    TG_FREE(be->ctx, q);
    TG_FREE(be->ctx, upper);
    return status;
}

/* The unit phase of column j, see the slot's comment. */
static tg_scalar column_phase(tg_dtype dtype, int64_t rows, int64_t columns, int64_t count,
                              int64_t j, const void *vectors, const void *old) {
    const tg_dtype wide = tg_dtype_is_complex(dtype) ? TG_C128 : TG_F64;
    tg_scalar sum = {0}; /* conj(<old, new>), or conj of the largest entry */
    for (int64_t i = 0; old && i < rows; i++) {
        const tg_scalar v = tg_load(wide, vectors, i * columns + j);
        const tg_scalar o = tg_load(dtype, old, i * count + j);
        sum = ref_add(sum, ref_mul(o, ref_conj(v)));
    }
    if (ref_abs2(sum) == 0.0) {
        for (int64_t i = 0; i < rows; i++) {
            const tg_scalar v = ref_conj(tg_load(wide, vectors, i * columns + j));
            sum = ref_abs2(v) > ref_abs2(sum) ? v : sum;
        }
    }
    const double modulus = sqrt(ref_abs2(sum));
    return modulus > 0.0 ? (tg_scalar){sum.re / modulus, sum.im / modulus} : (tg_scalar){1.0, 0.0};
}

tg_status ref_leading_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                              int64_t count, const void *vectors, const void *old, void *out) {
    const tg_dtype wide = tg_dtype_is_complex(dtype) ? TG_C128 : TG_F64;
    if (count < 0 || count > columns) {
        return tg_fail(be->ctx, TG_E_ARGUMENT, "leading_columns: %lld of %lld columns",
                       (long long)count, (long long)columns);
    }
    for (int64_t j = 0; j < count; j++) { /* column j of old is read before it is overwritten */
        const tg_scalar phase = column_phase(dtype, rows, columns, count, j, vectors, old);
        for (int64_t i = 0; i < rows; i++) {
            const tg_scalar v = tg_load(wide, vectors, i * columns + j);
            tg_store(dtype, out, i * count + j, ref_mul(v, phase));
        }
    }
    return TG_OK;
}

tg_scratch_need ref_scratch_need(tg_backend *be, tg_scratch_call call, tg_dtype dtype, int64_t m,
                                 int64_t n) {
    (void)be;
    (void)dtype;
    const size_t rows = (size_t)m, columns = (size_t)n;
    switch (call) {
    case TG_SCRATCH_EIGH:
        return (tg_scratch_need){.place = 2 * columns * columns * sizeof(tg_scalar) +
                                          columns * sizeof(ranked)};
    case TG_SCRATCH_QR:
        return (tg_scratch_need){.place = (rows + columns) * columns * sizeof(tg_scalar)};
    case TG_SCRATCH_SELECT:
        return (tg_scratch_need){.place = rows * REF_SELECT_BYTES};
    }
    return (tg_scratch_need){0};
}
