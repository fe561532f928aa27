/* Bases and index sets against their definitions: which random numbers a set or a sketch is made of
 * (by purpose, mode and refresh), signs that a tall matrix keeps at a refresh, stable ranks. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "linalg/tucker.h"
#include "project/branch.h"
#include "project/projector.h"
#include "support/network.h"
#include "support/raw.h"

static const char *const backends[] = {"ref", "cpu"};

static void fill(double *x, int64_t n, uint32_t stream) {
    const tg_rng rng = {.seed = 9, .purpose = TG_RNG_TEST, .step = stream};
    for (int64_t i = 0; i < n; i++) {
        x[i] = tg_rng_normal(&rng, (uint64_t)i);
    }
}

static tg_projector *make(tg_context *ctx, const tg_branch_config *branch, tg_dtype dtype,
                          const tg_shape *shape, uint64_t seed) {
    tg_projector_config config = tg_projector_config_default();
    tg_projector *p = NULL;
    config.first = *branch;
    net_ok(ctx, tg_projector_create(ctx, &config, dtype, shape, seed, &p));
    return p;
}

static bool is_kept(const tg_projector *p, int64_t i) {
    return p->sparse->bitmap.words[i / 64] >> (i % 64) & 1;
}

/* ---- sizes ---- */

/* Entries: max(1, ceil(ratio n)); slices of a mode of d: min(d, int(e d + 1)), e = ratio^(1 / modes
 * of more than one). */
TEST(test_sizes_of_sets) {
    static const struct {
        tg_shape shape;
        double ratio;
        int64_t entries, sub_tensor;
    } rows[] = {
        {{2, {10, 15}}, 0.2, 30, 5 * 7},  {{2, {10, 15}}, 0.201, 31, 5 * 7},
        {{1, {7}}, 0.01, 1, 1},           {{3, {4, 1, 6}}, 0.25, 6, 3 * 1 * 4},
        {{3, {8, 9, 10}}, 1.0, 720, 720}, {{2, {3, 100}}, 0.5, 150, 3 * 71},
    };
    tg_context *ctx = net_context("cpu", 1);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tg_branch_config branch = tg_branch_config_default();
        branch.sparse_ratio = rows[i].ratio;
        for (int structured = 0; structured < 2; structured++) {
            branch.type = structured ? TG_BRANCH_STRUCTURED : TG_BRANCH_UNSTRUCTURED;
            tg_projector *p = make(ctx, &branch, TG_F64, &rows[i].shape, 1);
            assert_int_equal(tg_projector_count(p),
                             structured ? rows[i].sub_tensor : rows[i].entries);
            tg_projector_destroy(&p);
        }
    }
    tg_context_destroy(&ctx);
}

/* ---- random sets ---- */

/* k of n entries, drawn without replacement from the stream of (seed, select, refresh). */
TEST(test_random_entries) {
    enum { N = 150, K = 30 };
    const tg_shape shape = {2, {10, 15}};
    tg_branch_config branch = tg_branch_config_default();
    branch.type = TG_BRANCH_UNSTRUCTURED;
    branch.sparse_type = TG_SPARSE_RANDK;
    branch.sparse_ratio = 0.2;
    for (int b = 0; b < 2; b++) {
        tg_context *ctx = net_context(backends[b], 1);
        tg_projector *p = make(ctx, &branch, TG_F64, &shape, 77);
        double g[N];
        fill(g, N, 0);
        for (uint32_t refresh = 0; refresh < 3; refresh++) {
            const tg_rng rng = {.seed = 77, .purpose = TG_RNG_SELECT, .step = refresh};
            bool expected[N] = {false};
            for (uint64_t i = 0; i < K; i++) {
                expected[tg_rng_permute(&rng, N, i)] = true;
            }
            net_ok(ctx, raw_projector_refresh(p, g));
            for (int64_t i = 0; i < N; i++) {
                assert_int_equal(is_kept(p, i), expected[i]);
            }
        }
        tg_projector_destroy(&p);
        tg_context_destroy(&ctx);
    }
}

/* Slices of a mode: those with the largest numbers of the mode's own stretch of the stream. */
TEST(test_random_slices) {
    enum { SIDE = 9, N = SIDE * SIDE };
    const tg_shape shape = {2, {SIDE, SIDE}};
    tg_branch_config branch = tg_branch_config_default();
    branch.type = TG_BRANCH_STRUCTURED;
    branch.sparse_type = TG_SPARSE_RANDK;
    branch.sparse_ratio = 0.25;
    tg_context *ctx = net_context("cpu", 1);
    tg_projector *p = make(ctx, &branch, TG_F64, &shape, 78);
    double g[N];
    fill(g, N, 1);
    for (uint32_t refresh = 0; refresh < 2; refresh++) {
        const tg_rng rng = {.seed = 78, .purpose = TG_RNG_SELECT, .step = refresh};
        bool kept[2][SIDE];
        for (uint64_t d = 0; d < 2; d++) {
            for (uint64_t i = 0; i < SIDE; i++) {
                int above = 0;
                const double mine = tg_rng_uniform(&rng, (d << 40) + i);
                for (uint64_t j = 0; j < SIDE; j++) {
                    above += tg_rng_uniform(&rng, (d << 40) + j) > mine;
                }
                kept[d][i] = above < 5; /* int(sqrt(0.25) * 9 + 1) */
            }
        }
        assert_true(memcmp(kept[0], kept[1], sizeof kept[0]) != 0);
        net_ok(ctx, raw_projector_refresh(p, g));
        for (int64_t i = 0; i < N; i++) {
            assert_int_equal(is_kept(p, i), kept[0][i / SIDE] && kept[1][i % SIDE]);
        }
    }
    tg_projector_destroy(&p);
    tg_context_destroy(&ctx);
}

/* ---- sketches ---- */

enum { D0 = 7, D1 = 6, D2 = 5, RANK = 2, WIDTH = 4 }; /* WIDTH: ceil(sqrt(2 RANK + 8)) */

static const int64_t dims[3] = {D0, D1, D2};

/* Entry (i, c) of the random factor of mode j. */
static double sketch(uint64_t j, int64_t i, int64_t c) {
    const tg_rng rng = {.seed = 79, .purpose = TG_RNG_RANGE};
    return tg_rng_normal(&rng, (j << 32) + (uint64_t)(i * WIDTH + c));
}

/* Y Y^T (dim, dim) of mode k, Y the k-th unfolding of g with its other two modes sketched. */
static void sketched_gram(const double *g, int k, double *gram) {
    const int a = k == 0 ? 1 : 0, b = k == 2 ? 1 : 2;
    double y[D0][WIDTH * WIDTH] = {{0.0}};
    for (int64_t at = 0; at < D0 * D1 * D2; at++) {
        const int64_t index[3] = {at / (D1 * D2), at / D2 % D1, at % D2};
        for (int64_t c = 0; c < WIDTH * WIDTH; c++) {
            y[index[k]][c] += g[at] * sketch((uint64_t)a, index[a], c / WIDTH) *
                              sketch((uint64_t)b, index[b], c % WIDTH);
        }
    }
    for (int64_t i = 0; i < dims[k] * dims[k]; i++) {
        gram[i] = 0.0;
        for (int64_t c = 0; c < WIDTH * WIDTH; c++) {
            gram[i] += y[i / dims[k]][c] * y[i % dims[k]][c];
        }
    }
}

/* Every factor spans leading eigenvectors of the sketched Gram matrix: M U = U (U^T M U). */
TEST(test_sketches) {
    const tg_shape shape = {3, {D0, D1, D2}};
    const int64_t ranks[3] = {RANK, RANK, RANK};
    double g[D0 * D1 * D2], gram[D0 * D0];
    fill(g, D0 * D1 * D2, 2);
    for (int b = 0; b < 2; b++) {
        tg_context *ctx = net_context(backends[b], 1);
        tg_tucker_result result;
        tg_tensor x;
        net_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &shape, g, &x));
        net_ok(ctx, tg_tucker(ctx, &x, ranks, 0, TG_SVD_RANDOMIZED, 79, &result));
        for (int k = 0; k < 3; k++) {
            const double *u = result.factor[k].data; /* (dim, RANK) */
            const int64_t n = dims[k];
            double mu[D0][RANK] = {{0.0}}, inner[RANK][RANK] = {{0.0}}, size = 0.0;
            sketched_gram(g, k, gram);
            for (int64_t i = 0; i < n * n; i++) {
                size = fmax(size, fabs(gram[i]));
                for (int c = 0; c < RANK; c++) {
                    mu[i / n][c] += gram[i] * u[i % n * RANK + c];
                }
            }
            for (int64_t i = 0; i < n * RANK * RANK; i++) {
                const int64_t row = i / (RANK * RANK), p = i / RANK % RANK, q = i % RANK;
                inner[p][q] += u[row * RANK + p] * mu[row][q];
            }
            for (int64_t i = 0; i < n * RANK; i++) {
                double rest = mu[i / RANK][i % RANK];
                for (int p = 0; p < RANK; p++) {
                    rest -= u[i / RANK * RANK + p] * inner[p][i % RANK];
                }
                assert_true(fabs(rest) <= 1e-9 * size);
            }
        }
        tg_tucker_result_destroy(&result);
        tg_context_destroy(&ctx);
    }
}

/* ---- signs ---- */

/* <old, new> of every column is real and >= 0 after a refresh, also where the long side of a matrix
 * is found by way of the short one. */
static void check_signs(tg_context *ctx, const tg_shape *shape, tg_matrix_side side, int mode) {
    enum { LONG = 30, SHORT = 4 };
    tg_branch_config branch = tg_branch_config_default();
    branch.type = TG_BRANCH_MATRIX;
    branch.first_dim_rollup = 1;
    branch.side = side;
    branch.rank = (tg_rank){1, {3}};
    tg_projector *p = make(ctx, &branch, TG_C128, shape, 1);
    double g[2 * LONG * SHORT], old[2 * LONG * 3];
    fill(g, 2 * LONG * SHORT, 3);
    net_ok(ctx, raw_projector_refresh(p, g));
    const int64_t dim = shape->dim[mode], rank = p->low_rank->modes.rank[mode];
    assert_int_equal(dim, LONG);
    assert_int_equal(rank, 3);
    for (uint32_t again = 0; again < 4; again++) {
        const double *now = p->low_rank->factor[mode];
        memcpy(old, now, (size_t)(2 * dim * rank) * sizeof *old);
        fill(g, 2 * LONG * SHORT, 4 + again);
        net_ok(ctx, raw_projector_refresh(p, g));
        for (int64_t j = 0; j < rank; j++) {
            double re = 0.0, im = 0.0;
            for (int64_t i = 0; i < dim; i++) {
                const double *a = old + 2 * (i * rank + j), *b = now + 2 * (i * rank + j);
                re += a[0] * b[0] + a[1] * b[1];
                im += a[0] * b[1] - a[1] * b[0];
            }
            assert_true(re >= 0.0 && fabs(im) <= 1e-12);
        }
    }
    tg_projector_destroy(&p);
}

TEST(test_signs_of_tall_matrices) {
    const tg_shape tall = {2, {30, 4}}, wide = {2, {4, 30}};
    for (int b = 0; b < 2; b++) {
        tg_context *ctx = net_context(backends[b], 1);
        check_signs(ctx, &tall, TG_SIDE_LEFT, 0);
        check_signs(ctx, &wide, TG_SIDE_RIGHT, 1);
        tg_context_destroy(&ctx);
    }
}

/* ---- products in chunks ---- */

enum { C0 = 64, C = 8, CHUNKED = 4 };

static tg_status (*compress_of_backend)(tg_backend *be, const tg_compress *op);
static int whole_products; /* of the tensor itself with its first mode's factor */

static tg_status count_products(tg_backend *be, const tg_compress *op) {
    whole_products += op->modes.factor[0] && op->modes.dim[3] == C && op->modes.dim[2] == C;
    return compress_of_backend(be, op);
}

/* However thin chunks are to be, they take the room that deeper products need anyway: a product of
 * the whole tensor is made in a few steps, not row by row, and in no more scratch. */
TEST(test_chunks_fill_their_room) {
    tg_tucker_plan plan = {.dtype = TG_F64,
                           .ndim = 4,
                           .dim = {C0, C, C, C},
                           .rank = {CHUNKED, CHUNKED, CHUNKED, CHUNKED},
                           .is_active = {true, true, true, true},
                           .sweeps = 1,
                           .chunk = 1};
    static double g[C0 * C * C * C], factor[4][C0 * CHUNKED];
    void *const factors[4] = {factor[0], factor[1], factor[2], factor[3]};
    const tg_rng rng = {.seed = 1, .purpose = TG_RNG_RANGE};
    fill(g, C0 * C * C * C, 10);
    for (int b = 0; b < 2; b++) {
        tg_context *ctx = net_context(backends[b], 1);
        tg_backend *be = NULL;
        net_ok(ctx, tg_backend_get(ctx, &be));
        const tg_backend_ops *real = be->ops;
        tg_backend_ops counting = *real;
        compress_of_backend = real->compress;
        counting.compress = count_products;
        whole_products = 0;
        be->ops = &counting;
        void *scratch = real->alloc(be, TG_MEM_WORKSPACE, tg_tucker_scratch(be, &plan));
        net_ok(ctx, tg_tucker_factors(be, &plan, g, NULL, &rng, false, factors, scratch));
        be->ops = real;
        assert_in_range(whole_products, 1, C0 / 4);
        real->release(be, scratch);
        tg_context_destroy(&ctx);
    }
}

/* ---- stable ranks ---- */

/* t[i, j, 0] = 2 for i = j < 3, all else 0: the first two unfoldings have three singular values
 * of 2, the third has one of sqrt(12). */
TEST(test_stable_ranks) {
    const tg_shape shape = {3, {4, 3, 5}};
    float t[60] = {0.0f};
    for (int i = 0; i < 3; i++) {
        t[(i * 3 + i) * 5] = 2.0f;
    }
    for (int b = 0; b < 2; b++) {
        tg_context *ctx = net_context(backends[b], 1);
        tg_tensor x;
        double ranks[3], most;
        net_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, t, &x));
        net_ok(ctx, tg_stable_rank(ctx, &x, ranks, &most));
        assert_true(fabs(ranks[0] - 3.0) <= 1e-12 && fabs(ranks[1] - 3.0) <= 1e-12);
        assert_true(fabs(ranks[2] - 1.0) <= 1e-12 && fabs(most - 3.0) <= 1e-12);
        tg_context_destroy(&ctx);
    }
}
