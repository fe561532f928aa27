/* The cpu backend against the libraries it uses, called directly: OpenBLAS, FFTW, memcpy.
 *
 *   bench_backend [--threads N] [--json]
 *
 * Every row times both sides in turn, best of several, and gives the ratio ours / direct (below
 * 1: we are faster). Shapes are those of a training step on 128x128 grids: 64 channels, 64x33 kept
 * modes, a weight of 64x64x64x33 complex numbers. */
#include "backend/backend.h" /* before cblas.h, which makes a macro of `complex` */
#include "base/system.h"

#include <cblas.h>
#include <fftw3.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ROWS = 32, MIN_RUNS = 4, MAX_RUNS = 50 }; /* runs of a row, the first to warm up */
static const double SECONDS = 1.0;                   /* for further runs */

typedef struct bench_row {
    const char *name;
    const char *against; /* the other side */
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
    const tg_random op = {.law = TG_RANDOM_NORMAL,
                          .dtype = dtype,
                          .rng = {.seed = 1, .purpose = TG_RNG_BENCH},
                          .b = 1.0,
                          .n = n,
                          .x = x};
    check(b, b->be->ops->random(b->be, &op));
    return x;
}

static void drop(bench *b, void *x) {
    b->be->ops->release(b->be, x);
}

typedef void (*timed_fn)(bench *b, void *arguments);

static double time_once(bench *b, timed_fn run, void *arguments) {
    const double start = tg_seconds();
    run(b, arguments);
    return tg_seconds() - start;
}

/* Times both sides in turn, so that other load on the machine affects both alike, and adds a row
 * with the best of each. `amount` is the work of one run of ours, in units of 1e9. */
static void compare(bench *b, const char *name, timed_fn ours, const char *against, timed_fn direct,
                    void *arguments, double amount, const char *unit) {
    bench_row row = {name, against, 1e30, 1e30, 0.0, unit};
    const double end = tg_seconds() + SECONDS;
    for (int i = 0; i < MIN_RUNS || (i < MAX_RUNS && tg_seconds() < end); i++) {
        const double x = time_once(b, ours, arguments), y = time_once(b, direct, arguments);
        row.ours = i > 0 && x < row.ours ? x : row.ours;
        row.direct = i > 0 && y < row.direct ? y : row.direct;
    }
    row.rate = amount / row.ours;
    if (b->count < MAX_ROWS) {
        b->rows[b->count++] = row;
    }
}

/* ---- gemm ---- */

static void gemm_ours(bench *b, void *arguments) {
    check(b, b->be->ops->gemm(b->be, arguments));
}

/* OpenBLAS with its own threads, one call at a time. c64, no transposes. */
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
    const double flops = 8.0 * (double)batch * (double)m * (double)k * (double)n;
    compare(b, name, gemm_ours, "cblas_cgemm, threaded", gemm_direct, &g, flops * 1e-9, "GF/s");
    drop(b, x);
    drop(b, y);
    drop(b, z);
}

/* ---- fft ---- */

enum { MODES = 64, COLUMNS = 33 };

typedef struct fft_case {
    int64_t grid;  /* points of a side */
    int64_t half;  /* grid / 2 + 1 */
    int64_t many;  /* transforms */
    int64_t share; /* per thread */
    float *x, *full, *pruned;
    tg_fft_plan *plan;
    fftwf_plan forward, inverse; /* FFTW's, for one share */
} fft_case;

static void fft_ours_forward(bench *b, void *arguments) {
    fft_case *c = arguments;
    check(b, b->be->ops->fft(b->be, c->plan, TG_FFT_FORWARD, c->many, TG_FFT_PLAIN, 1.0, c->x,
                             c->pruned));
}

static void fft_ours_inverse(bench *b, void *arguments) {
    fft_case *c = arguments;
    check(b, b->be->ops->fft(b->be, c->plan, TG_FFT_INVERSE, c->many, TG_FFT_PLAIN, 1e-5, c->pruned,
                             c->x));
}

/* Full spectra: each thread does its share of the transforms with one common FFTW plan. */
static void fft_direct_forward(bench *b, void *arguments) {
    const fft_case *c = arguments;
#pragma omp parallel for num_threads(b->threads) schedule(static)
    for (int p = 0; p < b->threads; p++) {
        fftwf_execute_dft_r2c(c->forward, c->x + p * c->share * c->grid * c->grid,
                              (fftwf_complex *)c->full + p * c->share * c->grid * c->half);
    }
}

static void fft_direct_inverse(bench *b, void *arguments) {
    const fft_case *c = arguments;
#pragma omp parallel for num_threads(b->threads) schedule(static)
    for (int p = 0; p < b->threads; p++) {
        fftwf_execute_dft_c2r(c->inverse,
                              (fftwf_complex *)c->full + p * c->share * c->grid * c->half,
                              c->x + p * c->share * c->grid * c->grid);
    }
}

/* Both directions against FFTW's plans of a given effort. */
static void compare_fft(bench *b, const char *const names[2], fft_case *c, const char *const to[2],
                        unsigned effort) {
    const int grid[2] = {(int)c->grid, (int)c->grid};
    const int points = grid[0] * grid[1], modes = grid[0] * (int)c->half;
    const double bytes = (double)c->many * (points * 4.0 + MODES * COLUMNS * 8.0) * 1e-9;
    fftwf_complex *full = (fftwf_complex *)c->full;
    c->forward = fftwf_plan_many_dft_r2c(2, grid, (int)c->share, c->x, NULL, 1, points, full, NULL,
                                         1, modes, effort);
    c->inverse = fftwf_plan_many_dft_c2r(2, grid, (int)c->share, full, NULL, 1, modes, c->x, NULL,
                                         1, points, effort);
    /* Planning by trial leaves arbitrary values; overflows would be slow. */
    memset(c->full, 0, (size_t)(c->many * modes) * sizeof *full);
    memset(c->x, 0, (size_t)(c->many * points) * sizeof *c->x);
    compare(b, names[0], fft_ours_forward, to[0], fft_direct_forward, c, bytes, "GB/s");
    compare(b, names[1], fft_ours_inverse, to[1], fft_direct_inverse, c, bytes, "GB/s");
    fftwf_destroy_plan(c->forward);
    fftwf_destroy_plan(c->inverse);
}

/* Real 2-D transforms pruned to 64x33 modes; `measured`: also against FFTW's trial-based plans. */
static void bench_fft(bench *b, const char *const names[2], int64_t many, int64_t grid,
                      bool measured) {
    static const char *const estimated_name[2] = {"FFTW full r2c", "FFTW full c2r"};
    static const char *const measured_name[2] = {"FFTW full r2c, measured",
                                                 "FFTW full c2r, measured"};
    fft_case c = {.grid = grid, .half = grid / 2 + 1, .many = many, .share = many / b->threads};
    const tg_fft_desc desc = {.dtype = TG_F32,
                              .ndim = 2,
                              .grid = {grid, grid},
                              .kept = {MODES, COLUMNS},
                              .first = {-MODES / 2, 0},
                              .howmany = many};
    c.x = make(b, TG_F32, many * grid * grid);
    c.full = make(b, TG_C64, many * grid * c.half);
    c.pruned = make(b, TG_C64, many * MODES * COLUMNS);
    check(b, b->be->ops->fft_create(b->be, &desc, &c.plan));
    compare_fft(b, names, &c, estimated_name, FFTW_ESTIMATE);
    if (measured) {
        compare_fft(b, names, &c, measured_name, FFTW_MEASURE);
    }
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
    const tg_select op = {TG_SELECT_TOPK, &c->bitmap, WEIGHT / 20, TG_C64, c->x, {0}};
    check(b, b->be->ops->select(b->be, &op));
}

static void norms_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    tg_norms norms;
    check(b, b->be->ops->norms(b->be, TG_C64, WEIGHT, c->x, &norms));
}

static void normal_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    const tg_random op = {.law = TG_RANDOM_NORMAL,
                          .dtype = TG_C64,
                          .rng = {.seed = 2, .purpose = TG_RNG_BENCH},
                          .b = 1.0,
                          .n = WEIGHT,
                          .x = c->y};
    check(b, b->be->ops->random(b->be, &op));
}

static void weighted_ours(bench *b, void *arguments) {
    weight_case *c = arguments;
    const tg_rng rng = {.seed = 3, .purpose = TG_RNG_BENCH};
    const tg_select op = {TG_SELECT_WEIGHTED, &c->bitmap, WEIGHT / 20, TG_C64, c->x, rng};
    check(b, b->be->ops->select(b->be, &op));
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

/* The same numbers of operations in f32, for a mode that needs no unfolding. */
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
    compare(b, "copy 69 MB", copy_ours, "memcpy, one thread", copy_direct, &c, 2 * bytes, "GB/s");
    static const char *const names[4] = {"gram 64x64x64x33, mode 1", "gram 64x64x64x33, mode 2",
                                         "gram 64x64x64x33, mode 3", "gram 64x64x64x33, mode 4"};
    for (c.mode = 0; c.mode < 4; c.mode++) {
        const double flops = 4.0 * WEIGHT * (double)weight_dim[c.mode];
        compare(b, names[c.mode], gram_ours, "cblas_cherk of mode 1 in f32", gram_direct, &c,
                flops * 1e-9, "GF/s");
    }
    static const struct {
        const char *name;
        timed_fn run;
    } others[] = {{"top 5 % of 8.65M c64", topk_ours},
                  {"weighted 5 % of 8.65M c64", weighted_ours},
                  {"norms of 8.65M c64", norms_ours},
                  {"normal 8.65M c64", normal_ours}};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        compare(b, others[i].name, others[i].run, "our copy of it", copy_ours, &c, bytes, "GB/s");
    }
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
    static const char *const names_128[2] = {"rfft2 8x64x128x128 to 64x33",
                                             "irfft2 64x33 to 8x64x128x128"};
    static const char *const names_421[2] = {"rfft2 32x421x421 to 64x33",
                                             "irfft2 64x33 to 32x421x421"};
    bench_fft(&b, names_128, 8 * 64, 128, true);
    bench_fft(&b, names_421, 32, 421, false);
    bench_weight(&b);
    const int failed = json ? print_json(&b) : (print_table(&b), 0);
    tg_backend_close(&b.be);
    tg_context_destroy(&b.ctx);
    return failed;
}
