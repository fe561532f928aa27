/* Dense algebra by OpenBLAS and LAPACKE, which only this file uses.
 *
 * Work is parallelised here and every BLAS call is serial, so that a thread count fixes the bits.
 * BLAS may print errors about arguments to stderr; ours are checked first. LAPACK is column-major:
 * it sees our row-major matrices transposed, and the comment at each call explains the resulting
 * problem. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "backend/cpu/cpu.h"

#include <cblas.h>
#include <lapacke.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include "backend/check.h"

/* ---- life ---- */

static pthread_mutex_t blas_mutex = PTHREAD_MUTEX_INITIALIZER;
static int blas_users;
static int blas_threads_before;

/* OpenBLAS retries for ever if a limit on address space (ulimit -v) denies it a buffer. So check
 * that there is space for one per thread; the first is taken at once. */
static tg_status take_room(const tg_backend *be) {
    const size_t bytes = (size_t)be->threads * (129u << 20);
    struct rlimit limit;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
        return TG_OK;
    }
    void *room = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return tg_fail(be->ctx, TG_E_MEMORY,
                       "OpenBLAS takes %zu MiB of address space for %d thread%s, and a limit on it "
                       "(ulimit -v) leaves less: raise that, or take fewer threads or backend ref",
                       bytes >> 20, be->threads, be->threads == 1 ? "" : "s");
    }
    munmap(room, bytes);
    float one = 1.0f, product = 0.0f;
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, one, &one, 1, &one, 1, 0.0f,
                &product, 1);
    return TG_OK;
}

tg_status cpu_blas_open(const tg_backend *be) {
    pthread_mutex_lock(&blas_mutex);
    const tg_status status = blas_users == 0 ? take_room(be) : TG_OK;
    if (status == TG_OK && blas_users++ == 0) {
        blas_threads_before = openblas_get_num_threads();
        openblas_set_num_threads(1);
    }
    pthread_mutex_unlock(&blas_mutex);
    return status;
}

void cpu_blas_close(void) {
    pthread_mutex_lock(&blas_mutex);
    if (--blas_users == 0) {
        openblas_set_num_threads(blas_threads_before);
    }
    pthread_mutex_unlock(&blas_mutex);
}

/* The configuration text begins with "OpenBLAS 0.3.21 "; the kernels in use have a name. */
int cpu_blas_version(char *text, size_t capacity) {
    const char *config = openblas_get_config();
    size_t name = strcspn(config, " ");
    size_t version = name + (config[name] ? 1 : 0);
    version += strcspn(config + version, " ");
    return snprintf(text, capacity, "%.*s (%s)", (int)version, config, openblas_get_corename());
}

/* ---- gemm ---- */

static CBLAS_TRANSPOSE blas_op(tg_dtype dtype, tg_op op) {
    const bool pairs = tg_dtype_is_complex(dtype);
    switch (op) {
    case TG_OP_T:
        return CblasTrans;
    case TG_OP_H:
        return pairs ? CblasConjTrans : CblasTrans;
    case TG_OP_CONJ:
        return pairs ? CblasConjNoTrans : CblasNoTrans;
    default:
        return CblasNoTrans;
    }
}

void cpu_blas_gemm(const tg_gemm *g, const cpu_tile *t) {
    const int64_t size = (int64_t)tg_dtype_size(g->dtype);
    const char *a = (const char *)g->a + size * (t->batch * g->stride_a +
                                                 t->i * (cpu_is_transposed(g->op_a) ? 1 : g->lda));
    const char *b = (const char *)g->b + size * (t->batch * g->stride_b +
                                                 t->j * (cpu_is_transposed(g->op_b) ? g->ldb : 1));
    char *c = (char *)g->c + size * (t->batch * g->stride_c + t->i * g->ldc + t->j);
    const CBLAS_TRANSPOSE op_a = blas_op(g->dtype, g->op_a), op_b = blas_op(g->dtype, g->op_b);
    const int m = (int)t->m, n = (int)t->n, k = (int)g->k;
    const int lda = (int)g->lda, ldb = (int)g->ldb, ldc = (int)g->ldc;
    const float alpha_c64[2] = {(float)g->alpha.re, (float)g->alpha.im};
    const float beta_c64[2] = {(float)g->beta.re, (float)g->beta.im};
    switch (g->dtype) {
    case TG_F32:
        cblas_sgemm(CblasRowMajor, op_a, op_b, m, n, k, alpha_c64[0],
                    (const float *)(const void *)a, lda, (const float *)(const void *)b, ldb,
                    beta_c64[0], (float *)(void *)c, ldc);
        break;
    case TG_F64:
        cblas_dgemm(CblasRowMajor, op_a, op_b, m, n, k, g->alpha.re,
                    (const double *)(const void *)a, lda, (const double *)(const void *)b, ldb,
                    g->beta.re, (double *)(void *)c, ldc);
        break;
    case TG_C64:
        cblas_cgemm(CblasRowMajor, op_a, op_b, m, n, k, alpha_c64, a, lda, b, ldb, beta_c64, c,
                    ldc);
        break;
    default:
        cblas_zgemm(CblasRowMajor, op_a, op_b, m, n, k, &g->alpha, a, lda, b, ldb, &g->beta, c,
                    ldc);
        break;
    }
}

/* ---- building blocks of Gram matrices ---- */

void cpu_herk(tg_dtype dtype, bool transposed, int64_t n, int64_t k, const void *a, int64_t lda,
              void *c, int64_t ldc) {
    if (dtype == TG_F64) {
        cblas_dsyrk(CblasRowMajor, CblasLower, transposed ? CblasTrans : CblasNoTrans, (int)n,
                    (int)k, 1.0, a, (int)lda, 1.0, c, (int)ldc);
    } else {
        cblas_zherk(CblasRowMajor, CblasLower, transposed ? CblasConjTrans : CblasNoTrans, (int)n,
                    (int)k, 1.0, a, (int)lda, 1.0, c, (int)ldc);
    }
}

void cpu_gemm_nh(tg_dtype dtype, bool transposed, int64_t m, int64_t n, int64_t k, const void *a,
                 int64_t lda, const void *b, int64_t ldb, void *c, int64_t ldc) {
    const double one[2] = {1.0, 0.0};
    const CBLAS_TRANSPOSE op_a = transposed ? CblasTrans : CblasNoTrans;
    if (dtype == TG_F64) {
        cblas_dgemm(CblasRowMajor, op_a, transposed ? CblasNoTrans : CblasTrans, (int)m, (int)n,
                    (int)k, 1.0, a, (int)lda, b, (int)ldb, 1.0, c, (int)ldc);
    } else {
        cblas_zgemm(CblasRowMajor, op_a, transposed ? CblasConjNoTrans : CblasConjTrans, (int)m,
                    (int)n, (int)k, one, a, (int)lda, b, (int)ldb, one, c, (int)ldc);
    }
}

/* ---- eigh ---- */

static bool all_finite(int64_t n, const double *x) {
    for (int64_t i = 0; i < n; i++) {
        if (!isfinite(x[i])) {
            return false;
        }
    }
    return true;
}

/* a (n, n) <- its conjugate transpose with the columns in reverse order; `parts` reals a number. */
static void flip_vectors(int parts, int64_t n, double *a) {
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            double *x = a + parts * (i * n + j), *y = a + parts * (j * n + i);
            for (int part = 0; part < parts; part++) {
                const double sign = part ? -1.0 : 1.0, kept = x[part];
                x[part] = sign * y[part];
                y[part] = sign * kept;
            }
        }
    }
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j < n / 2; j++) {
            for (int part = 0; part < parts; part++) {
                double *x = a + parts * (i * n + j) + part;
                double *y = a + parts * (i * n + n - 1 - j) + part;
                const double kept = *x;
                *x = *y;
                *y = kept;
            }
        }
    }
}

/* Largest entry of |V^H V - I|, by its lower triangle; product (n, n) is scratch. */
static double lost_orthogonality(tg_dtype dtype, int64_t n, const double *v, double *product) {
    const int parts = dtype == TG_C128 ? 2 : 1;
    memset(product, 0, (size_t)(parts * n * n) * sizeof *product);
    cpu_herk(dtype, true, n, n, v, n, product, n);
    double worst = 0.0;
    for (int64_t i = 0; i < n; i++) {
        for (int64_t j = 0; j <= i; j++) {
            const double *p = product + parts * (i * n + j);
            const double re = p[0] - (i == j ? 1.0 : 0.0), im = parts == 2 ? p[1] : 0.0;
            const double error = hypot(re, im);
            if (!(error <= worst)) { /* NaN as well */
                worst = error;
            }
        }
    }
    return worst;
}

/* Sizes of LAPACK's work arrays, by its documentation of syevd and heevd. */
typedef struct eigh_sizes {
    lapack_int work, rwork, iwork; /* in numbers of the dtype, doubles, integers */
    size_t bytes;
} eigh_sizes;

enum { LARGEST_EIGH = 16384 }; /* work sizes of LAPACK are 32-bit */

static eigh_sizes eigh_sizes_of(tg_dtype dtype, int64_t n) {
    const int64_t square = n * n, parts = dtype == TG_C128 ? 2 : 1;
    /* The formulas, meant for larger n, give slightly too little for n = 1. */
    const int64_t work = dtype == TG_C128 ? square + 2 * n + 2 : 2 * square + 6 * n + 2;
    const int64_t rwork = dtype == TG_C128 ? 2 * square + 5 * n + 2 : 0;
    const int64_t iwork = 5 * n + 4;
    const int64_t doubles = parts * work + rwork;
    return (eigh_sizes){(lapack_int)work, (lapack_int)rwork, (lapack_int)iwork,
                        (size_t)doubles * sizeof(double) + (size_t)iwork * sizeof(lapack_int)};
}

/* LAPACK sees a^T = conj(a), with the same eigenvalues in ascending order, and leaves conj(v_j) in
 * row j of our view: the conjugate transpose with columns reversed is V in descending order. The
 * work arrays are reused to check the result. */
tg_status cpu_eigh(tg_backend *be, tg_dtype dtype, int64_t n, void *a, double *eigenvalues) {
    tg_status status = TG_OK;
    double *work = NULL;
    void *taken = NULL;
    const int parts = dtype == TG_C128 ? 2 : 1;
    TG_TRY(tg_check_double(be->ctx, "eigh", dtype));
    if (n <= 0) {
        return TG_OK;
    }
    if (n > LARGEST_EIGH) {
        return be->ref->eigh(be, dtype, n, a, eigenvalues);
    }
    if (!all_finite(parts * n * n, a)) {
        TG_TRY(tg_fail(be->ctx, TG_E_NUMERIC, "eigh: the %lldx%lld matrix has NaN or Inf",
                       (long long)n, (long long)n));
    }
    const eigh_sizes sizes = eigh_sizes_of(dtype, n);
    TG_TRY(cpu_workspace(be, sizes.bytes, (void **)&work, &taken));
    double *rwork = work + (size_t)parts * (size_t)sizes.work;
    lapack_int *iwork = (lapack_int *)(rwork + sizes.rwork);
    const lapack_int order = (lapack_int)n;
    const lapack_int info =
        dtype == TG_C128 ? LAPACKE_zheevd_work(LAPACK_COL_MAJOR, 'V', 'L', order, a, order,
                                               eigenvalues, (lapack_complex_double *)work,
                                               sizes.work, rwork, sizes.rwork, iwork, sizes.iwork)
                         : LAPACKE_dsyevd_work(LAPACK_COL_MAJOR, 'V', 'L', order, a, order,
                                               eigenvalues, work, sizes.work, iwork, sizes.iwork);
    if (info != 0) {
        TG_TRY(tg_fail(be->ctx, TG_E_NUMERIC,
                       "eigh: a %lldx%lld matrix does not converge (LAPACK %d)", (long long)n,
                       (long long)n, (int)info));
    }
    flip_vectors(parts, n, a);
    for (int64_t j = 0; j < n / 2; j++) {
        const double kept = eigenvalues[j];
        eigenvalues[j] = eigenvalues[n - 1 - j];
        eigenvalues[n - 1 - j] = kept;
    }
    const double lost = lost_orthogonality(dtype, n, a, work);
    if (!(lost <= 1e-10)) {
        TG_TRY(tg_fail(be->ctx, TG_E_NUMERIC,
                       "eigh: eigenvectors of a %lldx%lld matrix are not orthonormal (off by %g)",
                       (long long)n, (long long)n, lost));
    }
fail:
    tg_mem_free(be->ctx, taken);
    return status;
}

/* ---- qr ---- */

/* Copies R from the upper triangle of a (m, n), if requested, and stores in sign[i] (n) whether its
 * (real) diagonal is already >= 0. The signs of r's rows change accordingly. */
static void take_r(int parts, int64_t n, const double *a, double *sign, double *r) {
    for (int64_t i = 0; i < n; i++) {
        sign[i] = a[parts * (i * n + i)] < 0.0 ? -1.0 : 1.0;
        for (int64_t j = 0; r && j < n; j++) {
            for (int part = 0; part < parts; part++) {
                const int64_t k = parts * (i * n + j) + part;
                r[k] = j < i || (j == i && part) ? 0.0 : sign[i] * a[k];
            }
        }
    }
}

enum { BLOCK = 32 }; /* columns per LAPACK block */

static bool takes_qr(int64_t m, int64_t n) {
    return n > 0 && m >= n && m <= INT_MAX && n <= INT_MAX / BLOCK;
}

/* tau, signs, work */
static size_t qr_bytes(tg_dtype dtype, int64_t n) {
    return (size_t)n * (2 + BLOCK) * (dtype == TG_C128 ? 2 : 1) * sizeof(double);
}

/* LAPACK sees a^T (n, m), n <= m: a^T = L Q' by gelqf, hence a = Q'^T L^T with Q'^T orthonormal
 * and L^T upper; both are already in the layout we need. */
tg_status cpu_qr(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, void *a, void *r) {
    tg_status status = TG_OK;
    double *work = NULL;
    void *taken = NULL;
    const int parts = dtype == TG_C128 ? 2 : 1;
    if (dtype != TG_F64 && dtype != TG_C128) {
        return tg_check_double(be->ctx, "qr", dtype);
    }
    if (!takes_qr(m, n)) {
        return be->ref->qr(be, dtype, m, n, a, r);
    }
    if (!all_finite(parts * m * n, a)) {
        TG_TRY(tg_fail(be->ctx, TG_E_NUMERIC, "qr: the %lldx%lld matrix has NaN or Inf",
                       (long long)m, (long long)n));
    }
    TG_TRY(cpu_workspace(be, qr_bytes(dtype, n), (void **)&work, &taken));
    double *tau = work, *sign = work + parts * n, *rest = work + 2 * parts * n;
    const lapack_int rows = (lapack_int)n, columns = (lapack_int)m, lwork = (lapack_int)n * BLOCK;
    lapack_int info = 0;
    if (dtype == TG_C128) {
        info =
            LAPACKE_zgelqf_work(LAPACK_COL_MAJOR, rows, columns, a, rows,
                                (lapack_complex_double *)tau, (lapack_complex_double *)rest, lwork);
        take_r(parts, n, a, sign, r);
        info |=
            LAPACKE_zunglq_work(LAPACK_COL_MAJOR, rows, columns, rows, a, rows,
                                (lapack_complex_double *)tau, (lapack_complex_double *)rest, lwork);
    } else {
        info = LAPACKE_dgelqf_work(LAPACK_COL_MAJOR, rows, columns, a, rows, tau, rest, lwork);
        take_r(parts, n, a, sign, r);
        info |=
            LAPACKE_dorglq_work(LAPACK_COL_MAJOR, rows, columns, rows, a, rows, tau, rest, lwork);
    }
    if (info != 0) {
        TG_TRY(tg_fail(be->ctx, TG_E_BACKEND, "qr: LAPACK refuses %lldx%lld (%d)", (long long)m,
                       (long long)n, (int)info));
    }
    double *q = a;
    for (int64_t i = 0; i < m * n * parts; i++) {
        q[i] *= sign[i / parts % n];
    }
fail:
    tg_mem_free(be->ctx, taken);
    return status;
}

/* ---- memory of the two ---- */

tg_scratch_need cpu_scratch_need(tg_backend *be, tg_scratch_call call, tg_dtype dtype, int64_t m,
                                 int64_t n) {
    const bool is_eigh = call == TG_SCRATCH_EIGH, is_qr = call == TG_SCRATCH_QR;
    if ((is_eigh && n > LARGEST_EIGH) || (is_qr && !takes_qr(m, n))) {
        return be->ref->scratch_need(be, call, dtype, m, n);
    }
    const size_t bytes = is_eigh ? eigh_sizes_of(dtype, n).bytes : is_qr ? qr_bytes(dtype, n) : 0;
    return (tg_scratch_need){.place = bytes > cpu_state_of(be)->scratch_bytes ? bytes : 0};
}
