/* The cpu backend against what it is made of, called directly: OpenBLAS, FFTW, memcpy.
 *
 *   bench_backend [--threads N] [--json]
 *
 * Every row times both sides in this run, best of several, and gives the ratio ours / direct (below
 * 1: we are faster). Shapes are those of a training step on 128x128 grids: 64 channels, 64x33 kept
 * modes, a weight of 64x64x64x33 complex numbers. */
#include "backend/backend.h" /* before cblas.h, which makes a macro of `complex` */
#include "base/timer.h"

#include <cblas.h>
#include <fftw3.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 32, REPEATS = 5 };

typedef struct bench_row {
    const char *name;
    const char *against; /* what the other side is */
    double ours, direct; /* seconds */
    double rate;         /* of ours, in `unit` */
    const char *unit;
} bench_row;

typedef struct bench {
    tg_context *ctx;
    tg_backend *be;
    int threads;
    int count;
    bench_row rows[MAX_ROWS];
} bench;

static const int64_t weight_dim[4] = {64, 64, 64, 33};
enum { WEIGHT = 64 * 64 * 64 * 33 };

static void check(bench *b, tg_status status) {
    if (status != TG_OK) {
        fprintf(stderr, "bench_backend: %s: %s\n", tg_status_name(status),
                tg_context_error(b->ctx));
        exit(1);
    }
}

/* An array of n random numbers. */
static void *make(bench *b, tg_dtype dtype, int64_t n) {
    void *x = b->be->ops->alloc(b->be, TG_MEM_DATA, (size_t)n * tg_dtype_size(dtype));
    if (!x) {
        check(b, TG_E_MEMORY);
    }
    const tg_rng rng = {.seed = 1, .purpose = TG_RNG_BENCH};
    check(b, b->be->ops->random_normal(b->be, dtype, &rng, 0, 0.0, 1.0, n, x));
    return x;
}

static void drop(bench *b, void *x) {
    b->be->ops->release(b->be, x);
}

typedef void (*timed_fn)(bench *b, void *arguments);

/* Best of some runs, after one to warm up. */
static double best_time(bench *b, timed_fn run, void *arguments) {
    double best = 1e30;
    for (int i = 0; i <= REPEATS; i++) {
        const double start = tg_seconds();
        run(b, arguments);
        const double spent = tg_seconds() - start;
        best = i > 0 && spent < best ? spent : best;
    }
    return best;
}

static void add_row(bench *b, const char *name, const char *against, double ours, double direct,
                    double amount, const char *unit) {
    if (b->count < MAX_ROWS) {
        b->rows[b->count++] = (bench_row){name, against, ours, direct, amount / ours, unit};
    }
}

/* ---- gemm ---- */

static void gemm_ours(bench *b, void *arguments) {
    check(b, b->be->ops->gemm(b->be, arguments));
}

/* OpenBLAS with threads of its own, one call after the other. c64, no transposes. */
static void gemm_direct(bench *b, void *arguments) {
    const tg_gemm *g = arguments;
    const float one[2] = {1.0f, 0.0f}, zero[2] = {0.0f, 0.0f};
    openblas_set_num_threads(b->threads);
    for (int64_t i = 0; i < g->batch; i++) {
        cblas_cgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, (int)g->m, (int)g->n, (int)g->k, one,
                    (const float *)g->a + 2 * i * g->stride_a, (int)g->lda,
                    (const float *)g->b + 2 * i * g->stride_b, (int)g->ldb, zero,
                    (float *)g->c + 2 * i * g->stride_c, (int)g->ldc);
    }
    openblas_set_num_threads(1);
}

static void bench_gemm(bench *b, const char *name, int64_t batch, int64_t m, int64_t k, int64_t n,
                       bool same_a) {
    void *x = make(b, TG_C64, (same_a ? 1 : batch) * m * k);
    void *y = make(b, TG_C64, batch * k * n);
    void *z = make(b, TG_C64, batch * m * n);
    tg_gemm g = {.dtype = TG_C64,
                 .m = m,
                 .n = n,
                 .k = k,
                 .alpha = {1.0, 0.0},
                 .a = x,
                 .lda = k,
                 .stride_a = same_a ? 0 : m * k,
                 .b = y,
                 .ldb = n,
                 .stride_b = k * n,
                 .c = z,
                 .ldc = n,
                 .stride_c = m * n,
                 .batch = batch};
    const double ours = best_time(b, gemm_ours, &g), direct = best_time(b, gemm_direct, &g);
    const double flops = 8.0 * (double)batch * (double)m * (double)k * (double)n;
    add_row(b, name, "cblas_cgemm, threaded", ours, direct, flops * 1e-9, "GF/s");
    drop(b, x);
    drop(b, y);
    drop(b, z);
}

/* ---- fft ---- */

enum { TRANSFORMS = 8 * 64, GRID = 128, HALF = GRID / 2 + 1, MODES = 64, COLUMNS = 33 };

typedef struct fft_case {
    float *x, *full, *pruned;
    tg_fft_plan *plan;
    fftwf_plan forward, inverse; /* of the share of one thread */
    int64_t share;
} fft_case;

static void fft_ours_forward(bench *b, void *arguments) {
    fft_case *c = arguments;
    check(b, b->be->ops->fft_forward(b->be, c->plan, TG_FFT_PLAIN, 1.0, c->x, c->pruned));
}

static void fft_ours_inverse(bench *b, void *arguments) {
    fft_case *c = arguments;
    check(b, b->be->ops->fft_inverse(b->be, c->plan, TG_FFT_PLAIN, 1e-5, c->pruned, c->x));
}

/* Full spectra, each thread its share of the transforms with one FFTW plan for all of them. */
static void fft_direct_forward(bench *b, void *arguments) {
    const fft_case *c = arguments;
#pragma omp parallel for num_threads(b->threads) schedule(static)
    for (int p = 0; p < b->threads; p++) {
        fftwf_execute_dft_r2c(c->forward, c->x + p * c->share * GRID * GRID,
                              (fftwf_complex *)c->full + p * c->share * GRID * HALF);
    }
}

static void fft_direct_inverse(bench *b, void *arguments) {
    const fft_case *c = arguments;
#pragma omp parallel for num_threads(b->threads) schedule(static)
    for (int p = 0; p < b->threads; p++) {
        fftwf_execute_dft_c2r(c->inverse, (fftwf_complex *)c->full + p * c->share * GRID * HALF,
                              c->x + p * c->share * GRID * GRID);
    }
}

static void fft_direct(bench *b, fft_case *c, unsigned effort, double seconds[2]) {
    const int grid[2] = {GRID, GRID};
    fftwf_complex *full = (fftwf_complex *)c->full;
    c->forward = fftwf_plan_many_dft_r2c(2, grid, (int)c->share, c->x, NULL, 1, GRID * GRID, full,
                                         NULL, 1, GRID * HALF, effort);
    c->inverse = fftwf_plan_many_dft_c2r(2, grid, (int)c->share, full, NULL, 1, GRID * HALF, c->x,
                                         NULL, 1, GRID * GRID, effort);
    memset(c->full, 0, (size_t)TRANSFORMS * GRID * HALF * sizeof(fftwf_complex));
    memset(c->x, 0, (size_t)TRANSFORMS * GRID * GRID * sizeof(float));
    seconds[0] = best_time(b, fft_direct_forward, c);
    seconds[1] = best_time(b, fft_direct_inverse, c);
    fftwf_destroy_plan(c->forward);
    fftwf_destroy_plan(c->inverse);
}

static void bench_fft(bench *b) {
    const tg_fft_desc desc = {.dtype = TG_F32,
                              .ndim = 2,
                              .grid = {GRID, GRID},
                              .kept = {MODES, COLUMNS},
                              .first = {-MODES / 2, 0},
                              .howmany = TRANSFORMS};
    fft_case c = {.share = TRANSFORMS / b->threads};
    double estimated[2], measured[2];
    c.x = make(b, TG_F32, (int64_t)TRANSFORMS * GRID * GRID);
    c.full = make(b, TG_C64, (int64_t)TRANSFORMS * GRID * HALF);
    c.pruned = make(b, TG_C64, (int64_t)TRANSFORMS * MODES * COLUMNS);
    check(b, b->be->ops->fft_create(b->be, &desc, &c.plan));
    const double forward = best_time(b, fft_ours_forward, &c);
    const double inverse = best_time(b, fft_ours_inverse, &c);
    fft_direct(b, &c, FFTW_ESTIMATE, estimated);
    fft_direct(b, &c, FFTW_MEASURE, measured);
    const double bytes = (double)TRANSFORMS * (GRID * GRID * 4.0 + MODES * COLUMNS * 8.0) * 1e-9;
    add_row(b, "rfft2 8x64x128x128 to 64x33", "FFTW full r2c", forward, estimated[0], bytes,
            "GB/s");
    add_row(b, "rfft2 8x64x128x128 to 64x33", "FFTW full r2c, measured", forward, measured[0],
            bytes, "GB/s");
    add_row(b, "irfft2 64x33 to 8x64x128x128", "FFTW full c2r", inverse, estimated[1], bytes,
            "GB/s");
    add_row(b, "irfft2 64x33 to 8x64x128x128", "FFTW full c2r, measured", inverse, measured[1],
            bytes, "GB/s");
    b->be->ops->fft_destroy(b->be, &c.plan);
    drop(b, c.x);
    drop(b, c.full);
    drop(b, c.pruned);
}

/* ---- the weight-sized operations ---- */

typedef struct weight_case {
    float *x, *y;
    double *gram; /* (64, 64) c128 */
    float *small; /* (64, 64) c64 */
    int mode;
    tg_bitmap bitmap;
} weight_case;

static void copy_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    check(b, b->be->ops->copy(b->be, c->y, c->x, (size_t)WEIGHT * 8));
}

static void copy_direct(bench *b, void *arguments) {
    weight_case *c = arguments;
    (void)b;
    memcpy(c->y, c->x, (size_t)WEIGHT * 8);
}

static void topk_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    check(b, b->be->ops->select_topk(b->be, TG_C64, c->x, WEIGHT / 20, &c->bitmap));
}

static void gather_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    check(b, b->be->ops->bitmap_gather(b->be, TG_C64, &c->bitmap, c->x, c->y));
}

static void scatter_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    const tg_scalar alpha = {1e-3, 0.0};
    check(b, b->be->ops->bitmap_scatter(b->be, TG_C64, &c->bitmap, alpha, c->y, c->x));
}

static void norms_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    tg_norms norms;
    check(b, b->be->ops->norms(b->be, TG_C64, WEIGHT, c->x, &norms));
}

static void normal_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    const tg_rng rng = {.seed = 2, .purpose = TG_RNG_BENCH};
    check(b, b->be->ops->random_normal(b->be, TG_C64, &rng, 0, 0.0, 1.0, WEIGHT, c->y));
}

static void gram_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    int64_t left = 1, right = 1;
    for (int d = 0; d < 4; d++) {
        left *= d < c->mode ? weight_dim[d] : 1;
        right *= d > c->mode ? weight_dim[d] : 1;
    }
    check(b,
          b->be->ops->gram(b->be, TG_C64, left, weight_dim[c->mode], right, c->x, NULL, c->gram));
}

/* The same numbers of operations in f32, where the mode needs no unfolding. */
static void gram_direct(bench *b, void *arguments) {
    weight_case *c = arguments;
    openblas_set_num_threads(b->threads);
    cblas_cherk(CblasRowMajor, CblasLower, CblasNoTrans, 64, WEIGHT / 64, 1.0f, c->x, WEIGHT / 64,
                0.0f, c->small, 64);
    openblas_set_num_threads(1);
}

static void bench_weight(bench *b) {
    weight_case c = {.x = make(b, TG_C64, WEIGHT),
                     .y = make(b, TG_C64, WEIGHT),
                     .gram = make(b, TG_C128, 64 * 64),
                     .small = make(b, TG_C64, 64 * 64),
                     .bitmap = {.n = WEIGHT}};
    const double bytes = WEIGHT * 8.0 * 1e-9;
    c.bitmap.words = make(b, TG_F64, tg_bitmap_words(WEIGHT));
    c.bitmap.ranks = make(b, TG_F32, tg_bitmap_ranks(WEIGHT));
    const double copy = best_time(b, copy_ours, &c);
    add_row(b, "copy 69 MB", "memcpy, one thread", copy, best_time(b, copy_direct, &c), 2 * bytes,
            "GB/s");
    const double herk = best_time(b, gram_direct, &c);
    static const char *const names[4] = {"gram 64x64x64x33, mode 1", "gram 64x64x64x33, mode 2",
                                         "gram 64x64x64x33, mode 3", "gram 64x64x64x33, mode 4"};
    for (c.mode = 0; c.mode < 4; c.mode++) {
        const double flops = 4.0 * WEIGHT * (double)weight_dim[c.mode];
        add_row(b, names[c.mode], "cblas_cherk of mode 1 in f32", best_time(b, gram_ours, &c), herk,
                flops * 1e-9, "GF/s");
    }
    add_row(b, "top 5 % of 8.65M c64", "our copy", best_time(b, topk_ours, &c), copy, bytes,
            "GB/s");
    add_row(b, "gather 5 % of 8.65M c64", "our copy", best_time(b, gather_ours, &c), copy, bytes,
            "GB/s");
    add_row(b, "scatter 5 % of 8.65M c64", "our copy", best_time(b, scatter_ours, &c), copy, bytes,
            "GB/s");
    add_row(b, "norms of 8.65M c64", "our copy", best_time(b, norms_ours, &c), copy, bytes, "GB/s");
    add_row(b, "normal 8.65M c64", "our copy", best_time(b, normal_ours, &c), copy, bytes, "GB/s");
    drop(b, c.x);
    drop(b, c.y);
    drop(b, c.gram);
    drop(b, c.small);
    drop(b, c.bitmap.words);
    drop(b, c.bitmap.ranks);
}

/* ---- report ---- */

static void print_table(const bench *b) {
    printf("cpu backend, %d threads\n%-32s %10s %10s %7s %9s       %s\n", b->threads, "", "ours ms",
           "direct ms", "ratio", "ours", "direct is");
    for (int i = 0; i < b->count; i++) {
        const bench_row *r = &b->rows[i];
        printf("%-32s %10.3f %10.3f %7.2f %9.1f %s  %s\n", r->name, r->ours * 1e3, r->direct * 1e3,
               r->ours / r->direct, r->rate, r->unit, r->against);
    }
}

static int print_json(const bench *b) {
    json_t *cases = json_array();
    for (int i = 0; i < b->count; i++) {
        const bench_row *r = &b->rows[i];
        json_array_append_new(
            cases, json_pack("{s:s, s:s, s:f, s:f, s:f, s:f, s:s}", "name", r->name, "against",
                             r->against, "ours_ms", r->ours * 1e3, "direct_ms", r->direct * 1e3,
                             "ratio", r->ours / r->direct, "rate", r->rate, "rate_unit", r->unit));
    }
    json_t *report =
        json_pack("{s:s, s:i, s:o}", "backend", "cpu", "threads", b->threads, "cases", cases);
    const int failed = !report || json_dumpf(report, stdout, JSON_INDENT(2)) != 0;
    json_decref(report);
    putchar('\n');
    return failed;
}

int main(int argc, char **argv) {
    bench b = {0};
    bool json = false;
    tg_context_config config = tg_context_config_default();
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            config.threads = atoi(argv[++i]);
        } else {
            fprintf(stderr, "usage: bench_backend [--threads N] [--json]\n");
            return 2;
        }
    }
    if (tg_context_create(&config, &b.ctx) != TG_OK) {
        fprintf(stderr, "bench_backend: no context\n");
        return 1;
    }
    check(&b, tg_backend_open(b.ctx, "cpu", &b.be));
    b.threads = tg_context_threads(b.ctx);
    bench_gemm(&b, "cgemm 1024x1024x1024", 1, 1024, 1024, 1024, false);
    bench_gemm(&b, "cgemm 262144x33 * 33x23", 1, 262144, 33, 23, false);
    bench_gemm(&b, "cgemm 64x(43x64 * 64x1472)", 64, 43, 64, 1472, true);
    bench_fft(&b);
    bench_weight(&b);
    const int failed = json ? print_json(&b) : (print_table(&b), 0);
    tg_backend_close(&b.be);
    tg_context_destroy(&b.ctx);
    return failed;
}
