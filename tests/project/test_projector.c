/* Projectors by their algebra, on every host backend, dtype, kind and odd shapes: orthonormal
 * factors, project(back(c)) = c, adjointness, idempotence, linearity, residuals that vanish where
 * they must, invariance to the phases of columns, failures that keep the old factors. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "project/projector.h"
#include "support/cmocka.h"
#include "support/compare.h"
#include "support/no_memory.h"
#include "support/raw.h"
#include "tgrad/tgrad.h"

static const char *const backends[] = {"ref", "cpu"};
static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_C64, TG_C128};

static const tg_shape shapes[] = {
    {4, {6, 5, 7, 3}}, {3, {9, 1, 5}},       {2, {13, 4}},      {2, {3, 17}},
    {1, {23}},         {5, {2, 3, 1, 5, 3}}, {4, {1, 1, 4, 7}},
};

/* One row per method and order. */
static const struct {
    const char *name;
    tg_scheme scheme;
    tg_branch_type first, second;
    tg_sparse_type sparse;
    bool is_orthogonal; /* back(project(.)) is an orthogonal projection */
} methods[] = {
    {"tucker", TG_SCHEME_SINGLE, TG_BRANCH_LOW_RANK, 0, TG_SPARSE_TOPK, true},
    {"matrix", TG_SCHEME_SINGLE, TG_BRANCH_MATRIX, 0, TG_SPARSE_TOPK, true},
    {"top-k", TG_SCHEME_SINGLE, TG_BRANCH_UNSTRUCTURED, 0, TG_SPARSE_TOPK, true},
    {"rand-k", TG_SCHEME_SINGLE, TG_BRANCH_UNSTRUCTURED, 0, TG_SPARSE_RANDK, true},
    {"probability", TG_SCHEME_SINGLE, TG_BRANCH_UNSTRUCTURED, 0, TG_SPARSE_PROBABILITY, true},
    {"slices top-k", TG_SCHEME_SINGLE, TG_BRANCH_STRUCTURED, 0, TG_SPARSE_TOPK, true},
    {"slices rand-k", TG_SCHEME_SINGLE, TG_BRANCH_STRUCTURED, 0, TG_SPARSE_RANDK, true},
    {"slices probability", TG_SCHEME_SINGLE, TG_BRANCH_STRUCTURED, 0, TG_SPARSE_PROBABILITY, true},
    {"US->LR", TG_SCHEME_COMPOSITE, TG_BRANCH_UNSTRUCTURED, TG_BRANCH_LOW_RANK, 0, false},
    {"LR->US", TG_SCHEME_COMPOSITE, TG_BRANCH_LOW_RANK, TG_BRANCH_UNSTRUCTURED, 0, false},
    {"SS->LR", TG_SCHEME_COMPOSITE, TG_BRANCH_STRUCTURED, TG_BRANCH_LOW_RANK, 0, false},
    {"LR->SS", TG_SCHEME_COMPOSITE, TG_BRANCH_LOW_RANK, TG_BRANCH_STRUCTURED, 0, false},
    {"US->matrix", TG_SCHEME_COMPOSITE, TG_BRANCH_UNSTRUCTURED, TG_BRANCH_MATRIX, 0, false},
    {"US+LR", TG_SCHEME_SUM, TG_BRANCH_UNSTRUCTURED, TG_BRANCH_LOW_RANK, 0, false},
};

enum { METHODS = sizeof methods / sizeof methods[0], SHAPES = sizeof shapes / sizeof shapes[0] };

static tg_projector_config config_of(int method) {
    tg_projector_config config = tg_projector_config_default();
    config.scheme = methods[method].scheme;
    config.first.type = methods[method].first;
    config.second.type = methods[method].second;
    config.first.sparse_type = config.second.sparse_type = methods[method].sparse;
    config.first.rank = config.second.rank = (tg_rank){1, {0.3}};
    config.first.sparse_ratio = config.second.sparse_ratio = 0.2;
    return config;
}

/* One projector with everything a check needs; all arrays are host memory. */
typedef struct bench {
    tg_context *ctx;
    tg_projector *p;
    tg_dtype dtype;
    tg_shape shape;
    int64_t numel, count;
    uint32_t draws;
    char what[128];
} bench;

static void *random_array(bench *b, int64_t n) {
    void *x = calloc((size_t)n + 1, tg_dtype_size(b->dtype));
    const tg_rng rng = {.seed = 5, .purpose = TG_RNG_TEST, .step = b->draws++};
    for (int64_t i = 0; i < n; i++) {
        tg_store(b->dtype, x, i,
                 (tg_scalar){tg_rng_normal(&rng, 2 * (uint64_t)i),
                             tg_rng_normal(&rng, 2 * (uint64_t)i + 1)});
    }
    return x;
}

static tg_scalar inner(tg_dtype dtype, int64_t n, const void *x, const void *y) {
    tg_scalar sum = {0};
    for (int64_t i = 0; i < n; i++) {
        const tg_scalar a = tg_load(dtype, x, i), c = tg_load(dtype, y, i);
        sum.re += a.re * c.re + a.im * c.im;
        sum.im += a.re * c.im - a.im * c.re;
    }
    return sum;
}

static void begin_in(bench *b, const char *backend, int method, tg_dtype dtype,
                     const tg_shape *shape, size_t chunk) {
    const tg_context_config threads = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 2, .math = TG_MATH_FP32};
    tg_projector_config config = config_of(method);
    char text[64];
    config.first.chunk_bytes = config.second.chunk_bytes = chunk;
    *b = (bench){.dtype = dtype, .shape = *shape, .numel = tg_shape_numel(shape)};
    snprintf(b->what, sizeof b->what, "%s, %s, %s, %s", methods[method].name, backend,
             tg_dtype_name(dtype), tg_shape_text(shape, text, sizeof text));
    assert_int_equal(tg_context_create(&threads, &b->ctx), TG_OK);
    assert_int_equal(tg_backend_select(b->ctx, backend), TG_OK);
    assert_int_equal(tg_projector_create(b->ctx, &config, dtype, shape, 7, &b->p), TG_OK);
    b->count = tg_projector_count(b->p);
    void *g = random_array(b, b->numel);
    assert_int_equal(raw_projector_refresh(b->p, g), TG_OK);
    assert_int_equal(b->p->failures, 0);
    free(g);
}

static void begin(bench *b, const char *backend, int method, tg_dtype dtype,
                  const tg_shape *shape) {
    begin_in(b, backend, method, dtype, shape, 0);
}

static void end(bench *b) {
    tg_projector_destroy(&b->p);
    tg_context_destroy(&b->ctx);
}

static void check(const bench *b, const char *law, double error, double tolerance) {
    if (!(error <= tolerance)) {
        fail_msg("%s: %s is off by %g, allowed %g", b->what, law, error, tolerance);
    }
}

static void project(bench *b, const void *g, void *small) {
    const tg_gradient gradient = {.dtype = b->dtype, .shape = b->shape, .dense = g};
    assert_int_equal(raw_projector_project(b->p, &gradient, 1.0, 0.0, small), TG_OK);
}

static double tolerance_of(const bench *b) {
    return 40 * t_tolerance(b->dtype);
}

/* U^H U = I for every factor. */
static void check_factors(bench *b) {
    const tg_branch *low = b->p->low_rank;
    for (int d = 0; low && d < low->modes.ndim; d++) {
        const int64_t rank = low->modes.rank[d];
        for (int64_t i = 0; low->factor[d] && i < rank * rank; i++) {
            tg_scalar sum = {0};
            for (int64_t k = 0; k < low->modes.dim[d]; k++) {
                const tg_scalar x = tg_load(b->dtype, low->factor[d], k * rank + i / rank);
                const tg_scalar y = tg_load(b->dtype, low->factor[d], k * rank + i % rank);
                sum.re += x.re * y.re + x.im * y.im;
                sum.im += x.re * y.im - x.im * y.re;
            }
            const double expected = i / rank == i % rank ? 1.0 : 0.0;
            check(b, "U^H U = I", hypot(sum.re - expected, sum.im), tolerance_of(b));
        }
    }
}

/* For orthogonal projections: P back(c) = c, <P G, c> = <G, back c>, P(G - back P G) = 0. */
static void check_orthogonal(bench *b) {
    const size_t size = tg_dtype_size(b->dtype);
    void *c = random_array(b, b->count), *g = random_array(b, b->numel);
    void *full = calloc((size_t)b->numel, size), *small = calloc((size_t)b->count, size);
    assert_int_equal(raw_projector_back(b->p, c, 1.0, 0.0, full), TG_OK);
    project(b, full, small);
    check(b, "project(back(c)) = c", t_relative_error(b->dtype, b->count, small, c),
          tolerance_of(b));
    project(b, g, small);
    const tg_scalar left = inner(b->dtype, b->count, small, c);
    const tg_scalar right = inner(b->dtype, b->numel, g, full);
    check(b, "adjointness", hypot(left.re - right.re, left.im - right.im),
          tolerance_of(b) * (double)b->numel);
    assert_int_equal(raw_projector_residual(b->p, g, small, full), TG_OK);
    const double before = inner(b->dtype, b->count, small, small).re;
    project(b, full, small);
    check(b, "project(residual) = 0",
          sqrt(inner(b->dtype, b->count, small, small).re / (before + 1e-300)), tolerance_of(b));
    free(c);
    free(g);
    free(full);
    free(small);
}

/* P(2 G - 3 H) = 2 P G - 3 P H, also when it is accumulated; back likewise into a live array. */
static void check_linear(bench *b) {
    const size_t size = tg_dtype_size(b->dtype);
    void *g = random_array(b, b->numel), *h = random_array(b, b->numel);
    void *both = calloc((size_t)b->numel, size);
    void *small = calloc((size_t)b->count, size), *sum = calloc((size_t)b->count, size);
    for (int64_t i = 0; i < b->numel; i++) {
        const tg_scalar x = tg_load(b->dtype, g, i), y = tg_load(b->dtype, h, i);
        tg_store(b->dtype, both, i, (tg_scalar){2 * x.re - 3 * y.re, 2 * x.im - 3 * y.im});
    }
    project(b, both, small);
    tg_gradient part = {.dtype = b->dtype, .shape = b->shape, .dense = g};
    assert_int_equal(raw_projector_project(b->p, &part, 2.0, 0.0, sum), TG_OK);
    part.dense = h;
    assert_int_equal(raw_projector_project(b->p, &part, -3.0, 1.0, sum), TG_OK);
    check(b, "linearity", t_relative_error(b->dtype, b->count, sum, small), tolerance_of(b));
    void *once = calloc((size_t)b->numel, size);
    assert_int_equal(raw_projector_back(b->p, small, 1.0, 0.0, once), TG_OK);
    memcpy(both, g, (size_t)b->numel * size);
    assert_int_equal(raw_projector_back(b->p, small, -0.5, 2.0, both), TG_OK);
    for (int64_t i = 0; i < b->numel; i++) {
        const tg_scalar x = tg_load(b->dtype, g, i), y = tg_load(b->dtype, once, i);
        tg_store(b->dtype, once, i, (tg_scalar){2 * x.re - 0.5 * y.re, 2 * x.im - 0.5 * y.im});
    }
    check(b, "beta out + alpha back", t_relative_error(b->dtype, b->numel, both, once),
          tolerance_of(b));
    void *const all[] = {g, h, both, small, sum, once};
    for (int i = 0; i < 6; i++) {
        free(all[i]);
    }
}

/* Sparse first: the sparse values are those of G. Sparse second: nothing is left at the kept set.
 */
static void check_residual(bench *b) {
    const tg_branch *sparse = b->p->sparse;
    if (!sparse) {
        return;
    }
    const size_t size = tg_dtype_size(b->dtype);
    void *g = random_array(b, b->numel), *rest = calloc((size_t)b->numel, size);
    void *small = calloc((size_t)b->count, size);
    assert_int_equal(raw_projector_residual(b->p, g, small, rest), TG_OK);
    int64_t position = sparse == &b->p->branch[1] ? b->p->branch[0].count : 0, seen = 0;
    const bool is_second = b->p->config.scheme == TG_SCHEME_COMPOSITE && position > 0;
    for (int64_t i = 0; i < b->numel; i++) {
        if (!(sparse->bitmap.words[i / 64] >> (i % 64) & 1)) {
            continue;
        }
        const tg_scalar x = tg_load(b->dtype, g, i), r = tg_load(b->dtype, rest, i);
        const tg_scalar kept = tg_load(b->dtype, small, position++);
        seen++;
        if (is_second) {
            check(b, "residual on the index set", hypot(r.re, r.im), tolerance_of(b));
        } else {
            check(b, "kept values", hypot(x.re - kept.re, x.im - kept.im), tolerance_of(b));
        }
    }
    assert_int_equal(seen, sparse->count);
    free(g);
    free(rest);
    free(small);
}

TEST(test_algebra) {
    for (size_t be = 0; be < 2; be++) {
        for (int m = 0; m < METHODS; m++) {
            for (int s = 0; s < SHAPES; s++) {
                const bool has_matrix =
                    methods[m].first == TG_BRANCH_MATRIX || methods[m].second == TG_BRANCH_MATRIX;
                if (has_matrix && shapes[s].ndim < 2) {
                    continue;
                }
                for (int d = 0; d < 4; d++) {
                    bench b;
                    begin(&b, backends[be], m, dtypes[d], &shapes[s]);
                    check_factors(&b);
                    if (methods[m].is_orthogonal) {
                        check_orthogonal(&b);
                    }
                    check_linear(&b);
                    check_residual(&b);
                    end(&b);
                }
            }
        }
    }
}

/* Columns times unit phases: Adam's first direction c / (|c| + eps), mapped back, stays the same.
 */
TEST(test_phases_do_not_matter) {
    for (int m = 0; m < 2; m++) {
        bench b;
        begin(&b, "cpu", m, TG_C64, &shapes[0]);
        const size_t size = tg_dtype_size(b.dtype);
        void *g = random_array(&b, b.numel), *small = calloc((size_t)b.count, size);
        void *full[2] = {calloc((size_t)b.numel, size), calloc((size_t)b.numel, size)};
        for (int pass = 0; pass < 2; pass++) {
            project(&b, g, small);
            for (int64_t i = 0; i < b.count; i++) {
                const tg_scalar c = tg_load(b.dtype, small, i);
                const double scale = 1.0 / (hypot(c.re, c.im) + 1e-6);
                tg_store(b.dtype, small, i, (tg_scalar){c.re * scale, c.im * scale});
            }
            assert_int_equal(raw_projector_back(b.p, small, 1.0, 0.0, full[pass]), TG_OK);
            for (int d = 0; pass == 0 && d < b.p->modes.ndim; d++) {
                float *u = b.p->low_rank->factor[d];
                const int64_t rank = b.p->modes.rank[d];
                for (int64_t i = 0; u && i < b.p->modes.dim[d] * rank; i++) {
                    const double angle = 1.0 + 0.7 * (double)(i % rank) + d;
                    const double re = (double)u[2 * i], im = (double)u[2 * i + 1];
                    u[2 * i] = (float)(re * cos(angle) - im * sin(angle));
                    u[2 * i + 1] = (float)(re * sin(angle) + im * cos(angle));
                }
            }
        }
        check(&b, "invariance to phases", t_relative_error(b.dtype, b.numel, full[1], full[0]),
              tolerance_of(&b));
        free(g);
        free(small);
        free(full[0]);
        free(full[1]);
        end(&b);
    }
}

/* A warm refresh keeps column phases: <old, new> is real and >= 0; a cold one makes the largest
 * entry of each column real and positive. */
TEST(test_column_phases) {
    bench b;
    begin(&b, "cpu", 0, TG_C128, &shapes[0]);
    const tg_branch *low = b.p->low_rank;
    const int64_t dim = low->modes.dim[0], rank = low->modes.rank[0];
    double *old = calloc((size_t)(2 * dim * rank), sizeof *old);
    memcpy(old, low->factor[0], (size_t)(2 * dim * rank) * sizeof *old);
    for (int64_t j = 0; j < rank; j++) {
        tg_scalar largest = {0};
        for (int64_t i = 0; i < dim; i++) {
            const tg_scalar v = tg_load(TG_C128, old, i * rank + j);
            largest = hypot(v.re, v.im) > hypot(largest.re, largest.im) ? v : largest;
        }
        check(&b, "cold phase", fabs(largest.im), 1e-12);
        assert_true(largest.re > 0);
    }
    void *g = random_array(&b, b.numel);
    assert_int_equal(raw_projector_refresh(b.p, g), TG_OK);
    for (int64_t j = 0; j < rank; j++) {
        tg_scalar sum = {0};
        for (int64_t i = 0; i < dim; i++) {
            const tg_scalar x = tg_load(TG_C128, old, i * rank + j);
            const tg_scalar y = tg_load(TG_C128, low->factor[0], i * rank + j);
            sum.re += x.re * y.re + x.im * y.im;
            sum.im += x.re * y.im - x.im * y.re;
        }
        check(&b, "warm phase", fabs(sum.im), 1e-12);
        assert_true(sum.re >= 0);
    }
    free(g);
    free(old);
    end(&b);
}

TEST(test_failed_refresh_keeps_factors) {
    for (size_t be = 0; be < 2; be++) {
        bench b;
        begin(&b, backends[be], 0, TG_C64, &shapes[0]);
        const tg_branch *low = b.p->low_rank;
        const size_t bytes = (size_t)(low->modes.dim[1] * low->modes.rank[1]) * 8;
        void *before = malloc(bytes), *g = random_array(&b, b.numel);
        memcpy(before, low->factor[1], bytes);
        ((float *)g)[11] = NAN;
        assert_int_equal(raw_projector_refresh(b.p, g), TG_OK);
        assert_int_equal(b.p->failures, 1);
        assert_memory_equal(before, low->factor[1], bytes);
        free(before);
        free(g);
        end(&b);
        /* Without old factors it falls back to unit vectors, which are a projection too. */
        const tg_projector_config config = config_of(0);
        assert_int_equal(tg_context_create(NULL, &b.ctx), TG_OK);
        assert_int_equal(tg_backend_select(b.ctx, backends[be]), TG_OK);
        assert_int_equal(tg_projector_create(b.ctx, &config, b.dtype, &b.shape, 0, &b.p), TG_OK);
        g = random_array(&b, b.numel);
        const tg_gradient early = {.dtype = b.dtype, .shape = b.shape, .dense = g};
        assert_int_equal(raw_projector_project(b.p, &early, 1, 0, g), TG_E_ARGUMENT);
        ((float *)g)[0] = INFINITY;
        assert_int_equal(raw_projector_refresh(b.p, g), TG_OK);
        assert_int_equal(b.p->failures, 1);
        check_factors(&b);
        check_orthogonal(&b);
        free(g);
        end(&b);
    }
}

/* A zero gradient is a gradient: everything stays defined and comes back as zero. */
TEST(test_zero_gradient) {
    for (int m = 0; m < METHODS; m++) {
        bench b;
        begin(&b, "cpu", m, TG_C64, &shapes[0]);
        float *zero = calloc((size_t)b.numel, 8), *full = calloc((size_t)b.numel, 8);
        void *small = calloc((size_t)b.count, 8);
        assert_int_equal(raw_projector_refresh(b.p, zero), TG_OK);
        assert_int_equal(raw_projector_residual(b.p, zero, small, full), TG_OK);
        check_factors(&b);
        for (int64_t i = 0; i < 2 * b.numel; i++) {
            assert_true(full[i] == 0.0f);
        }
        free(zero);
        free(full);
        free(small);
        end(&b);
    }
}

/* The rank rules with the figures of the paper's shapes. */
TEST(test_rank_rules) {
    static const struct {
        tg_shape shape;
        tg_rank rank;
        int64_t expected[TG_MAX_NDIM];
    } rows[] = {
        {{4, {64, 64, 64, 33}}, {1, {0.20}}, {43, 43, 43, 23}},
        {{4, {64, 64, 64, 33}}, {1, {0.25}}, {46, 46, 46, 24}},
        {{4, {128, 128, 128, 65}}, {1, {0.20}}, {86, 86, 86, 44}},
        {{4, {128, 128, 128, 65}}, {1, {0.25}}, {91, 91, 91, 46}},
        {{3, {8, 1, 8}}, {1, {0.25}}, {5, 1, 5}}, /* the dim of size 1 does not share */
        {{3, {8, 3, 9}}, {1, {5}}, {5, 3, 5}},
        {{3, {8, 3, 9}}, {3, {0.5, 0.1, 4}}, {4, 1, 4}},
        {{1, {10}}, {1, {0.25}}, {1}}, /* no mode has more directions than the others together */
        {{3, {3, 500, 4}}, {1, {0.5}}, {3, 12, 4}},
        {{3, {500, 3, 4}}, {3, {0.5, 2, 3}}, {12, 2, 3}},
    };
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t ranks[TG_MAX_NDIM], asked[TG_MAX_NDIM];
        assert_int_equal(tg_rank_resolve(ctx, "opt.", &rows[i].rank, &rows[i].shape, ranks, asked),
                         TG_OK);
        for (int d = 0; d < rows[i].shape.ndim; d++) {
            assert_int_equal(ranks[d], rows[i].expected[d]);
        }
    }
    static const tg_rank bad[] = {{1, {1.5}},      {1, {0.0}}, {1, {-1}},
                                  {2, {0.5, 0.5}}, {0, {0}},   {4, {0.5, 0.5, (double)NAN, 0.5}}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        int64_t ranks[TG_MAX_NDIM], asked[TG_MAX_NDIM];
        assert_int_equal(tg_rank_resolve(ctx, "opt.second_", &bad[i], &rows[0].shape, ranks, asked),
                         TG_E_CONFIG);
        assert_non_null(strstr(tg_context_error(ctx), "opt.second_rank: "));
        assert_non_null(strstr(tg_context_error(ctx), "a list of 4 (weight is 64x64x64x33)"));
    }
    tg_context_destroy(&ctx);
}

TEST(test_bad_configs) {
    tg_context *ctx = NULL;
    tg_projector *p = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "cpu"), TG_OK);
    const size_t blocks = tg_context_memory(ctx, TG_HOST).blocks;
    struct {
        tg_projector_config config;
        const char *message;
    } rows[8];
    for (int i = 0; i < 8; i++) {
        rows[i].config = config_of(8);
    }
    rows[0].config.first.sparse_ratio = 0.0;
    rows[0].message = "opt.sparse_ratio: 0 is not in (0, 1]";
    rows[1].config.first.sparse_ratio = (double)NAN;
    rows[1].message = "opt.sparse_ratio: nan";
    rows[2].config.second.type = TG_BRANCH_STRUCTURED;
    rows[2].message = "unstructured_sparse and structured_sparse cannot be combined";
    rows[3].config.second.rank = (tg_rank){1, {2.5}};
    rows[3].message = "opt.second_rank: 2.5";
    rows[4].config.second.n_iter_max_tucker = -1;
    rows[4].message = "opt.n_iter_max_tucker: -1";
    rows[5].config.second.type = TG_BRANCH_MATRIX;
    rows[5].config.second.first_dim_rollup = 4;
    rows[5].message = "opt.first_dim_rollup: 4 is not in 1 .. 3";
    rows[6].config.second.type = TG_BRANCH_MATRIX;
    rows[6].config.second.side = TG_SIDE_FULL;
    rows[6].message = "an integer for galore_2d_proj_type full";
    rows[7].config.first.scale = (double)INFINITY;
    rows[7].message = "opt.scale: inf is not finite";
    for (int i = 0; i < 8; i++) {
        assert_int_equal(tg_projector_create(ctx, &rows[i].config, TG_C64, &shapes[0], 0, &p),
                         TG_E_CONFIG);
        assert_null(p);
        if (!strstr(tg_context_error(ctx), rows[i].message)) {
            fail_msg("expected '%s', found '%s'", rows[i].message, tg_context_error(ctx));
        }
    }
    const tg_projector_config good = config_of(0);
    const tg_shape empty = {2, {3, 0}}, scalar = {0};
    assert_int_equal(tg_projector_create(ctx, &good, TG_C64, &empty, 0, &p), TG_E_SHAPE);
    assert_int_equal(tg_projector_create(ctx, &good, TG_C64, &scalar, 0, &p), TG_E_SHAPE);
    assert_int_equal(tg_projector_create(ctx, &good, TG_BF16, &shapes[0], 0, &p), TG_E_DTYPE);
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, blocks);
    tg_context_destroy(&ctx);
}

/* Sides of the matrix form: which basis there is, and that the best rank-r error is reached. */
TEST(test_matrix_sides) {
    static const struct {
        tg_matrix_side side;
        double rank;
        int64_t rows,
            columns; /* of the core, for a 6 x 8 x 10 x 7 weight rolled up after 2: 48 x 70 */
    } rows[] = {
        {TG_SIDE_LEFT, 0.25, 12, 70}, {TG_SIDE_RIGHT, 0.25, 48, 17},
        {TG_SIDE_STD, 0.25, 12, 70},  {TG_SIDE_REVERSE_STD, 0.25, 48, 17},
        {TG_SIDE_FULL, 9, 9, 9},      {TG_SIDE_LEFT, 1000, 48, 70},
    };
    const tg_shape shape = {4, {6, 8, 10, 7}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tg_context *ctx = NULL;
        tg_projector *p = NULL;
        tg_projector_config config = config_of(1);
        config.first.side = rows[i].side;
        config.first.rank = (tg_rank){1, {rows[i].rank}};
        config.first.first_dim_rollup = 2;
        assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
        assert_int_equal(tg_projector_create(ctx, &config, TG_C64, &shape, 0, &p), TG_OK);
        const tg_shape ranks = tg_projector_ranks(p, 0);
        assert_int_equal(ranks.ndim, 2);
        assert_int_equal(ranks.dim[0], rows[i].rows);
        assert_int_equal(ranks.dim[1], rows[i].columns);
        tg_projector_destroy(&p);
        tg_context_destroy(&ctx);
    }
}

TEST(test_no_memory) {
    for (int m = 0; m < METHODS; m++) {
        tg_context *ctx = NULL;
        assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
        assert_int_equal(tg_backend_select(ctx, "cpu"), TG_OK);
        const tg_projector_config config = config_of(m);
        test_walk walk = {.ctx = ctx};
        while (test_walk_next(&walk)) {
            tg_projector *p = NULL;
            test_walk_called(&walk, tg_projector_create(ctx, &config, TG_C64, &shapes[0], 0, &p));
            assert_true(walk.is_over == (p != NULL));
            tg_projector_destroy(&p);
        }
        tg_context_destroy(&ctx);
    }
}

/* Decompositions that make their products in chunks of the first mode give the same. */
TEST(test_chunks_change_nothing) {
    static const tg_shape aligned[] = {{4, {8, 4, 16, 8}}, {3, {16, 8, 8}}, {3, {27, 16, 16}}};
    static const char *const rows[] = {"tucker", "matrix", "US->LR", "LR->US"};
    for (int i = 0; i < 4 * METHODS * 3; i++) {
        const int method = i / 12;
        bool chosen = false;
        for (int r = 0; r < 4; r++) {
            chosen = chosen || strcmp(rows[r], methods[method].name) == 0;
        }
        if (!chosen) {
            continue;
        }
        bench b[2];
        void *kept[2]; /* of a gradient, whatever the signs of columns are */
        for (int chunks = 0; chunks < 2; chunks++) {
            begin_in(&b[chunks], backends[i % 2], method, i / 2 % 2 ? TG_C64 : TG_F32,
                     &aligned[i / 4 % 3], chunks ? 1 : SIZE_MAX);
            void *g = random_array(&b[chunks], b[chunks].numel);
            void *small = calloc((size_t)b[chunks].count, 2 * sizeof(double));
            kept[chunks] = calloc((size_t)b[chunks].numel, 2 * sizeof(double));
            const tg_gradient gradient = {
                .dtype = b[chunks].dtype, .shape = b[chunks].shape, .dense = g};
            assert_int_equal(raw_projector_project(b[chunks].p, &gradient, 1.0, 0.0, small), TG_OK);
            assert_int_equal(raw_projector_back(b[chunks].p, small, 1.0, 0.0, kept[chunks]), TG_OK);
            free(small);
            free(g);
        }
        const double error = t_relative_error(b[0].dtype, b[0].numel, kept[1], kept[0]);
        if (!(error <= 1e-4)) {
            fail_msg("%s: %g off", b[0].what, error);
        }
        for (int chunks = 0; chunks < 2; chunks++) {
            free(kept[chunks]);
            tg_projector_destroy(&b[chunks].p);
            tg_context_destroy(&b[chunks].ctx);
        }
    }
}
