/* Compressed gradients: the cost of compress, expand, sample and Adam for one spectral weight.
 *
 *   bench_compress [--threads N] [--backend NAME] [--json]
 *
 * The weights are complex (C, C, M, M / 2 + 1), and that of the burgers preset, compressed to 5 %
 * single entries and a Tucker core of 20 %. Rates count only the projections, 8 flops per complex
 * multiply-add, and are compared with cblas_cgemm on 1024^3 in one thread times the number of
 * threads. Times are the best of several; with queued work, device times of the captured operation,
 * as in a training step. The largest weight is for devices only. */
#include "backend/backend.h" /* before cblas.h, which makes a macro of `complex` */
#include "base/system.h"

#include <cblas.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REPEATS = 7, LAUNCHES = 4, NDIM = 4, CUBE = 1024, MAX_ROWS = 64 };

typedef struct weight {
    int64_t dim[NDIM], rank[NDIM]; /* 1-D: the last are 0 */
    int64_t batch;
    bool is_large;
} weight;

static const weight weights[] = {
    {{32, 32, 32, 17}, {22, 22, 22, 12}, 8, false},
    {{64, 64, 32, 17}, {43, 43, 22, 12}, 8, false},
    {{64, 64, 64, 33}, {43, 43, 43, 23}, 8, false},
    {{256, 256, 46}, {153, 153, 27}, 16, false},
    {{128, 128, 128, 65}, {86, 86, 86, 44}, 2, true},
};

typedef struct bench_row {
    char weight[32];
    const char *name;
    double seconds;
    double gflops; /* per second; 0: not counted */
} bench_row;

typedef struct bench {
    tg_context *ctx;
    tg_backend *be;
    double peak; /* cblas_cgemm on all threads, GF/s */
    int count;
    bench_row rows[MAX_ROWS];
} bench;

/* The common data of the operations of one weight. */
typedef struct scene {
    tg_multimode modes;
    tg_grad_source dense, factored;
    tg_bitmap bitmap;
    void *values, *core, *m, *v, *out, *workspace;
    int64_t cells;
} scene;

static void check(bench *b, tg_status status) {
    if (status != TG_OK) {
        fprintf(stderr, "bench_compress: %s: %s\n", tg_status_name(status),
                b->ctx ? tg_context_error(b->ctx) : "");
        exit(1);
    }
}

static void *make(bench *b, size_t bytes) {
    void *x = b->be->ops->alloc(b->be, TG_MEM_DATA, bytes);
    check(b, x ? TG_OK : TG_E_MEMORY);
    return x;
}

static void *make_random(bench *b, int64_t n, double deviation) {
    static uint64_t first = 0;
    const tg_rng rng = {.seed = 1, .purpose = TG_RNG_BENCH};
    void *x = make(b, (size_t)n * tg_dtype_size(TG_C64));
    const tg_random op = {TG_RANDOM_NORMAL, TG_C64, rng, first, 0.0, deviation, n, x};
    check(b, b->be->ops->random(b->be, &op));
    first += 2 * (uint64_t)n;
    return x;
}

static void make_bitmap(bench *b, int64_t n, tg_bitmap *bitmap) {
    const tg_rng rng = {.seed = 2, .purpose = TG_RNG_BENCH};
    *bitmap = (tg_bitmap){.n = n,
                          .words = make(b, (size_t)tg_bitmap_words(n) * sizeof(uint64_t)),
                          .ranks = make(b, (size_t)tg_bitmap_ranks(n) * sizeof(uint32_t))};
    const tg_select op = {.kind = TG_SELECT_RANDOM, .bitmap = bitmap, .k = n / 20, .rng = rng};
    check(b, b->be->ops->select(b->be, &op));
}

static scene make_scene(bench *b, const weight *w) {
    const int ndim = w->dim[NDIM - 1] > 0 ? NDIM : NDIM - 1;
    scene s = {.modes = {.dtype = TG_C64, .ndim = ndim}, .cells = 1};
    int64_t numel = 1;
    for (int d = 0; d < ndim; d++) {
        s.modes.dim[d] = w->dim[d];
        s.modes.rank[d] = w->rank[d];
        s.modes.factor[d] = make_random(b, w->dim[d] * w->rank[d], 0.1);
        numel *= w->dim[d];
        s.cells *= w->rank[d];
    }
    const int64_t frequencies = numel / (w->dim[0] * w->dim[1]);
    s.dense.dense = make_random(b, numel, 1.0);
    s.factored = (tg_grad_source){.x = make_random(b, w->batch * w->dim[0] * frequencies, 1.0),
                                  .dy = make_random(b, w->batch * w->dim[1] * frequencies, 1.0),
                                  .batch = w->batch};
    make_bitmap(b, numel, &s.bitmap);
    s.values = make_random(b, s.bitmap.count, 1.0);
    s.core = make_random(b, s.cells, 1.0);
    s.m = make_random(b, s.cells, 0.0);
    s.v = make_random(b, s.cells, 0.0);
    s.out = make_random(b, numel, 1.0);
    s.workspace =
        make(b, tg_workspace_bytes(b->be, (tg_query){.compress = &s.modes, .factored = true}));
    return s;
}

static void drop_scene(bench *b, scene *s) {
    const void *blocks[] = {s->dense.dense,
                            s->factored.x,
                            s->factored.dy,
                            s->bitmap.words,
                            s->bitmap.ranks,
                            s->values,
                            s->core,
                            s->m,
                            s->v,
                            s->out,
                            s->workspace,
                            s->modes.factor[0],
                            s->modes.factor[1],
                            s->modes.factor[2],
                            s->modes.factor[3]};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        b->be->ops->release(b->be, (void *)(uintptr_t)blocks[i]);
    }
}

static void run_compress(bench *b, scene *s) {
    const tg_compress op = {.modes = s->modes,
                            .source = s->dense,
                            .bitmap = &s->bitmap,
                            .masked = true,
                            .scale = 1.0,
                            .values = s->values,
                            .core = s->core,
                            .workspace = s->workspace};
    check(b, b->be->ops->compress(b->be, &op));
}

/* Without kept entries. */
static void run_tucker_factored(bench *b, scene *s) {
    const tg_compress op = {.modes = s->modes,
                            .source = s->factored,
                            .scale = 1.0,
                            .core = s->core,
                            .workspace = s->workspace};
    check(b, b->be->ops->compress(b->be, &op));
}

static void run_compress_factored(bench *b, scene *s) {
    const tg_compress op = {.modes = s->modes,
                            .source = s->factored,
                            .bitmap = &s->bitmap,
                            .masked = true,
                            .scale = 1.0,
                            .values = s->values,
                            .core = s->core,
                            .workspace = s->workspace};
    check(b, b->be->ops->compress(b->be, &op));
}

static void run_expand(bench *b, scene *s) {
    const tg_expand op = {.modes = s->modes,
                          .bitmap = &s->bitmap,
                          .values = s->values,
                          .lambda = 1.0,
                          .core = s->core,
                          .alpha = -1e-3,
                          .beta = 0.999,
                          .out = s->out,
                          .workspace = s->workspace};
    check(b, b->be->ops->expand(b->be, &op));
}

static void run_sample(bench *b, scene *s) {
    const tg_sample op = {.modes = s->modes,
                          .bitmap = &s->bitmap,
                          .core = s->core,
                          .alpha = -1e-3,
                          .values = s->values,
                          .workspace = s->workspace};
    check(b, b->be->ops->sample(b->be, &op));
}

static void run_adam(bench *b, scene *s) {
    const tg_adam op = {.dtype = TG_C64,
                        .n = s->cells,
                        .grad = s->core,
                        .scale = 1.0,
                        .m = s->m,
                        .v = s->v,
                        .beta1 = 0.9,
                        .beta2 = 0.999,
                        .eps = 1e-6,
                        .direction = s->core};
    check(b, b->be->ops->update(b->be, 1, &op));
}

/* Multiply-adds of contracting the last mode first, then the one before it, .. */
static double projection_flops(const tg_multimode *modes) {
    double flops = 0.0;
    for (int d = modes->ndim - 1; d >= 0; d--) {
        double terms = 1.0;
        for (int e = 0; e < modes->ndim; e++) {
            terms *= (double)(e <= d ? modes->dim[e] : modes->rank[e]);
        }
        flops += 8.0 * terms * (double)modes->rank[d];
    }
    return flops;
}

/* Best of some runs, after one warm-up. */
static double time_calls(bench *b, scene *s, void (*run)(bench *b, scene *s)) {
    double best = 1e30;
    for (int i = 0; i <= REPEATS; i++) {
        const double start = tg_seconds();
        run(b, s);
        check(b, b->be->ops->synchronize(b->be));
        const double spent = tg_seconds() - start;
        best = i > 0 && spent < best ? spent : best;
    }
    return best;
}

/* The same for the captured operation, by the device's clock. */
static double time_recorded(bench *b, scene *s, void (*run)(bench *b, scene *s)) {
    const tg_stream_ops *stream = b->be->ops->stream;
    tg_graph *graph = NULL;
    double best = 1e30;
    run(b, s); /* load modules before the capture */
    check(b, b->be->ops->synchronize(b->be));
    check(b, stream->graph_begin(b->be));
    run(b, s);
    check(b, stream->graph_end(b->be, &graph));
    for (int i = 0; i <= REPEATS; i++) {
        const double begin = tg_seconds();
        for (int j = 0; j < LAUNCHES; j++) {
            check(b, stream->graph_launch(b->be, graph));
        }
        check(b, b->be->ops->synchronize(b->be));
        const double spent = (tg_seconds() - begin) / LAUNCHES;
        best = i > 0 && spent < best ? spent : best;
    }
    stream->graph_destroy(b->be, &graph);
    return best;
}

static void bench_operation(bench *b, scene *s, const char *name, void (*run)(bench *b, scene *s),
                            double flops) {
    const double best = b->be->ops->stream ? time_recorded(b, s, run) : time_calls(b, s, run);
    bench_row *row = &b->rows[b->count++];
    int at = 0;
    for (int d = 0; d < s->modes.ndim; d++) {
        at += snprintf(row->weight + at, sizeof row->weight - (size_t)at, "%s%lld", d ? "x" : "",
                       (long long)s->modes.dim[d]);
    }
    row->name = name;
    row->seconds = best;
    row->gflops = flops * 1e-9 / best;
}

/* Speed of one OpenBLAS thread on a favourable cube, times our threads. */
static double cgemm_rate(bench *b) {
    const float one[2] = {1.0f, 0.0f}, zero[2] = {0.0f, 0.0f};
    const size_t n = (size_t)CUBE * CUBE;
    float *x = calloc(2 * n, sizeof *x), *y = calloc(2 * n, sizeof *y),
          *z = calloc(2 * n, sizeof *z);
    check(b, x && y && z ? TG_OK : TG_E_MEMORY);
    for (size_t i = 0; i < 2 * n; i++) {
        x[i] = y[i] = (float)(i % 17) * 0.1f;
    }
    openblas_set_num_threads(1);
    double best = 1e30;
    for (int i = 0; i < REPEATS; i++) {
        const double start = tg_seconds();
        cblas_cgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, CUBE, CUBE, CUBE, one, x, CUBE, y,
                    CUBE, zero, z, CUBE);
        const double spent = tg_seconds() - start;
        best = spent < best ? spent : best;
    }
    free(x);
    free(y);
    free(z);
    return 8e-9 * (double)n * CUBE / best * b->be->threads;
}

static void print_table(const bench *b) {
    printf("backend %s, %d threads; cblas_cgemm 1024^3: %.0f GF/s on all threads\n",
           b->be->ops->name, b->be->threads, b->peak);
    printf("%-16s %-20s %9s %8s %9s\n", "weight", "operation", "ms", "GF/s", "of cgemm");
    for (int i = 0; i < b->count; i++) {
        const bench_row *row = &b->rows[i];
        printf("%-16s %-20s %9.3f", row->weight, row->name, row->seconds * 1e3);
        if (row->gflops > 0.0) {
            printf(" %8.1f %8.0f%%", row->gflops, 100.0 * row->gflops / b->peak);
        }
        printf("\n");
    }
}

static void print_json(const bench *b) {
    json_t *rows = json_array();
    for (int i = 0; i < b->count; i++) {
        const bench_row *row = &b->rows[i];
        json_array_append_new(rows,
                              json_pack("{s:s, s:s, s:f, s:f}", "weight", row->weight, "operation",
                                        row->name, "seconds", row->seconds, "gflops", row->gflops));
    }
    json_t *report = json_pack("{s:s, s:i, s:f, s:o}", "backend", b->be->ops->name, "threads",
                               b->be->threads, "cgemm_gflops", b->peak, "rows", rows);
    json_dumpf(report, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    printf("\n");
    json_decref(report);
}

int main(int argc, char **argv) {
    bench b = {0};
    tg_context_config config = tg_context_config_default();
    const char *backend = "cpu";
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else if (strcmp(argv[i], "--threads") == 0 && i + 1 < argc) {
            config.threads = (int)strtol(argv[++i], NULL, 10);
        } else if (strcmp(argv[i], "--backend") == 0 && i + 1 < argc) {
            backend = argv[++i];
        } else {
            fprintf(stderr, "usage: bench_compress [--threads N] [--backend NAME] [--json]\n");
            return 2;
        }
    }
    check(&b, tg_context_create(&config, &b.ctx));
    check(&b, tg_backend_open(b.ctx, backend, &b.be));
    b.peak = cgemm_rate(&b);
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++) {
        if (weights[i].is_large && b.be->ops->place != TG_DEVICE) {
            continue;
        }
        scene s = make_scene(&b, &weights[i]);
        const double flops = projection_flops(&s.modes);
        bench_operation(&b, &s, "compress", run_compress, flops);
        bench_operation(&b, &s, "compress, factored", run_compress_factored, flops);
        bench_operation(&b, &s, "Tucker, factored", run_tucker_factored, flops);
        bench_operation(&b, &s, "expand", run_expand, flops);
        bench_operation(&b, &s, "sample", run_sample, flops);
        bench_operation(&b, &s, "adam", run_adam, 0.0);
        drop_scene(&b, &s);
    }
    (json ? print_json : print_table)(&b);
    tg_backend_close(&b.be);
    tg_context_destroy(&b.ctx);
    return 0;
}
