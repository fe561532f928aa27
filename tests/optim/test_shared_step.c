/* Training steps of several ranks, which share every batch: the losses and weights of one rank that
 * has all of it, in f64 and up to the order of summation; and the same bits on every rank. */
#include <math.h>
#include <pthread.h>
#include <string.h>

#include "base/system.h"
#include "support/cmocka.h"
#include "support/files.h"
#include "support/rank_threads.h"
#include "tgrad/tgrad.h"

enum { MOST_RANKS = 4, STEPS = 9, POINTS = 8, BATCH = 6, MOST_WEIGHTS = 24000 };

/* How a training is done; ranks and what came of it. */
typedef struct training {
    const char *method;
    int64_t gap; /* steps between refreshes */
    const char *moments;
    double clip;
    int micro;    /* batches per update */
    int64_t last; /* samples of the last batch */
    int bad_step; /* in which the first sample is NaN; -1: none */
    bool shards;  /* moments live on one rank each */
    bool darcy;   /* Darcy flow on 16 x 16 points, 3 epochs; otherwise what sines give on 8 x 8 */
    int ranks;
    tg_comm_group *group;
    double loss[STEPS];
    double weights[MOST_RANKS][MOST_WEIGHTS]; /* of each rank */
    int64_t weight_count, refreshes, skipped;
    int64_t reduced, copied; /* bytes */
    size_t state;            /* bytes of moments on rank 0 */
} training;

typedef struct member {
    training *t;
    int rank;
    int errors;
} member;

/* ---- one rank ---- */

typedef struct rank_state {
    tg_context *ctx;
    tg_comm *comm; /* NULL: alone */
    tg_fno *fno;
    tg_optim *optim;
    tg_optim_memory planned;
    tg_step *step;
    tg_tensor x, y;
} rank_state;

static int make_optimizer(const training *t, int rank, rank_state *r) {
    tg_optim_config groups[2] = {tg_optim_config_default(), tg_optim_config_default()};
    tg_optim_param params[64];
    int errors = tg_optim_config_set(r->ctx, &groups[0], "name", t->method) != TG_OK;
    errors += tg_optim_config_set(r->ctx, &groups[0], "moments_on_refresh", t->moments) != TG_OK;
    groups[0].update_proj_gap = t->gap;
    groups[0].min_entries = 10;
    for (int i = 0; i < 2; i++) {
        groups[i].learning_rate = 0.01;
    }
    for (int i = 0; i < tg_fno_param_count(r->fno); i++) {
        const tg_fno_param p = tg_fno_get_param(r->fno, i);
        params[i] = (tg_optim_param){p.name, p.dtype, p.shape, p.spectral ? 0 : 1};
    }
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = groups,
                                  .group_count = 2,
                                  .params = params,
                                  .param_count = tg_fno_param_count(r->fno),
                                  .seed = 5,
                                  .takes_factored = true,
                                  .accumulates = r->comm || t->micro > 1,
                                  .shard_rank = rank,
                                  .shard_ranks = t->shards ? t->ranks : 0};
    errors += tg_optim_plan_memory(r->ctx, &setup, &r->planned) != TG_OK;
    errors += tg_optim_create(r->ctx, &setup, &r->optim) != TG_OK;
    for (int i = 0; errors == 0 && i < setup.param_count; i++) {
        const tg_fno_param p = tg_fno_get_param(r->fno, i);
        errors += tg_optim_bind(r->optim, i, &p.weight) != TG_OK;
    }
    return errors;
}

static int64_t points_of(const training *t) {
    return t->darcy ? 2 * POINTS : POINTS;
}

static int make_rank(const training *t, int rank, rank_state *r) {
    const tg_context_config one = {.size = sizeof one, .threads = 1, .device = -1};
    const int64_t points = points_of(t), grid[2] = {points, points};
    const tg_shape shape = {4, {BATCH, 1, points, points}};
    tg_fno_config network = tg_fno_config_default();
    int errors = tg_context_create(&one, &r->ctx) != TG_OK;
    errors += tg_backend_select(r->ctx, "cpu") != TG_OK;
    if (t->group) {
        errors += tg_comm_create_threads(r->ctx, t->group, rank, NULL, &r->comm) != TG_OK;
    }
    const char *const keys[][2] = {{"n_modes", t->darcy ? "[8, 8]" : "[4, 4]"},
                                   {"hidden_channels", t->darcy ? "8" : "4"},
                                   {"n_layers", "2"},
                                   {"dtype", "f64"}};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        errors += tg_fno_config_set(r->ctx, &network, keys[i][0], keys[i][1]) != TG_OK;
    }
    errors += tg_fno_create(r->ctx, &network, 3, &r->fno) != TG_OK;
    errors += tg_fno_prepare(r->fno, BATCH, grid, true) != TG_OK;
    errors += make_optimizer(t, rank, r);
    const tg_step_config config = {.size = sizeof config,
                                   .fno = r->fno,
                                   .optim = r->optim,
                                   .loss = tg_loss_config_default(),
                                   .accumulates = t->micro > 1,
                                   .max_grad_norm = t->clip,
                                   .comm = r->comm};
    errors += tg_step_create(r->ctx, &config, &r->step) != TG_OK;
    errors += tg_tensor_create(r->ctx, TG_MEM_DATA, TG_F64, &shape, &r->x) != TG_OK;
    errors += tg_tensor_create(r->ctx, TG_MEM_DATA, TG_F64, &shape, &r->y) != TG_OK;
    return errors;
}

static void end_rank(rank_state *r) {
    tg_tensor_destroy(&r->x);
    tg_tensor_destroy(&r->y);
    tg_step_destroy(&r->step);
    tg_optim_destroy(&r->optim);
    tg_fno_destroy(&r->fno);
    tg_comm_destroy(&r->comm);
    tg_context_destroy(&r->ctx);
}

/* ---- data ---- */

enum { DARCY = BATCH * STEPS / 3, DARCY_POINTS = 4 * POINTS * POINTS };

static float darcy[2][DARCY * DARCY_POINTS]; /* x and y */

static int make_darcy(void **state) {
    (void)state;
    const tg_pde_value grid = {"grid", "32"};
    const tg_generator_config config = {.size = sizeof config,
                                        .equation = "darcy",
                                        .folder = test_path("darcy"),
                                        .n_train = DARCY,
                                        .resolution = 2 * POINTS,
                                        .value_count = 1,
                                        .values = &grid,
                                        .seed = 1};
    tg_context *ctx = NULL;
    tg_generator *generator = NULL;
    tg_dataset *set = NULL;
    tg_generator_file file;
    int64_t all[DARCY];
    bool is_complete = false;
    for (int64_t i = 0; i < DARCY; i++) {
        all[i] = i;
    }
    int errors = tg_context_create(NULL, &ctx) != TG_OK;
    errors += tg_generator_create(ctx, &config, &generator) != TG_OK;
    errors += tg_generator_run(generator, NULL, NULL, &is_complete) != TG_OK;
    errors += !tg_generator_get_file(generator, 0, &file);
    errors += tg_dataset_open(ctx, file.path, NULL, NULL, &set) != TG_OK;
    errors += tg_dataset_read(set, all, DARCY, darcy[0], darcy[1]) != TG_OK;
    tg_dataset_close(&set);
    tg_generator_destroy(&generator);
    tg_context_destroy(&ctx);
    return errors;
}

/* Value i of sample s of a batch, of x or y; of others without structure, so that gradients have
 * full rank and no zeros. */
static double value_of(const training *t, int step, int64_t s, int64_t i, int side) {
    if (t->darcy) {
        return (double)darcy[side][((step * BATCH + s) % DARCY) * DARCY_POINTS + i];
    }
    const double number = (double)((step * BATCH + s) * POINTS * POINTS + i + 1);
    return side == 0 ? sin(12.9898 * number * number) : cos(78.233 * number * number);
}

/* The samples of a step that are this rank's. */
static int64_t fill_batch(const training *t, int step, int rank, rank_state *r) {
    const int64_t samples = step == STEPS - 1 ? t->last : BATCH;
    const tg_range part = tg_partition(samples, 1, t->ranks, rank);
    double *x = r->x.data, *y = r->y.data;
    for (int64_t s = part.begin; s < part.end; s++) {
        for (int64_t i = 0; i < points_of(t) * points_of(t); i++) {
            const bool is_bad = step == t->bad_step && s == 0 && i == 3;
            *x++ = is_bad ? (double)NAN : value_of(t, step, s, i, 0);
            *y++ = value_of(t, step, s, i, 1);
        }
    }
    return part.end - part.begin;
}

static int train(training *t, int rank, rank_state *r) {
    int errors = 0;
    for (int step = 0; step < STEPS && errors == 0; step++) {
        tg_step_result result = {0};
        r->x.shape.dim[0] = r->y.shape.dim[0] = fill_batch(t, step, rank, r);
        errors += tg_step_forward(r->step, &r->x, &r->y) != TG_OK;
        errors += tg_step_backward(r->step) != TG_OK;
        errors += tg_step_synchronize(r->step, &result) != TG_OK;
        errors += result.samples != (step == STEPS - 1 ? t->last : BATCH);
        if (t->micro > 1 && (step + 1) % t->micro == 0) {
            errors += tg_step_apply(r->step) != TG_OK;
        }
        if (rank == 0) {
            t->loss[step] = result.loss;
        }
    }
    double *at = t->weights[rank];
    int64_t count = 0;
    for (int i = 0; i < tg_fno_param_count(r->fno); i++) {
        const tg_fno_param p = tg_fno_get_param(r->fno, i);
        memcpy(at + count, p.weight.data, tg_tensor_bytes(&p.weight));
        count += (int64_t)(tg_tensor_bytes(&p.weight) / sizeof(double));
    }
    if (rank == 0) {
        const tg_optim_stats stats = tg_optim_get_stats(r->optim);
        t->weight_count = count;
        t->refreshes = stats.refreshes;
        t->skipped = stats.skipped;
        t->reduced = tg_comm_get_info(r->comm).stats.reduced;
        t->copied = tg_comm_get_info(r->comm).stats.copied;
        t->state = tg_context_memory(r->ctx, TG_HOST).current[TG_MEM_OPTIMIZER];
        errors += t->state != r->planned.bytes[TG_MEM_OPTIMIZER];
    }
    return errors + (count > MOST_WEIGHTS);
}

static void *be_rank(void *user) {
    member *m = user;
    rank_state r = {0};
    m->errors = make_rank(m->t, m->rank, &r);
    m->errors += m->errors == 0 ? train(m->t, m->rank, &r) : 0;
    if (m->errors) {
        print_message("rank %d: %s\n", m->rank, tg_context_error(r.ctx));
    }
    end_rank(&r);
    return NULL;
}

/* ---- all of them ---- */

static void run(training *t) {
    tg_context *ctx = NULL;
    member members[MOST_RANKS];
    pthread_t threads[MOST_RANKS];
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    if (t->ranks > 1) {
        assert_int_equal(tg_comm_group_create(ctx, t->ranks, &t->group), TG_OK);
    }
    for (int i = 0; i < t->ranks; i++) {
        members[i] = (member){.t = t, .rank = i};
        assert_int_equal(pthread_create(&threads[i], NULL, be_rank, &members[i]), 0);
    }
    for (int i = 0; i < t->ranks; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
    }
    for (int i = 0; i < t->ranks; i++) {
        assert_int_equal(members[i].errors, 0);
        assert_memory_equal(t->weights[i], t->weights[0], (size_t)t->weight_count * sizeof(double));
    }
    tg_comm_group_destroy(&t->group);
    tg_context_destroy(&ctx);
}

static void expect_near(double found, double expected, double tolerance) {
    if (!(fabs(found - expected) <= tolerance * (1.0 + fabs(expected)))) {
        fail_msg("%.17g, expected %.17g", found, expected);
    }
}

/* On 2, 3 and 4 ranks the same as on one. */
static void compare_ranks(training how, double tolerance) {
    static training alone, together;
    how.moments = how.moments ? how.moments : "keep";
    how.micro = how.micro ? how.micro : 1;
    how.last = how.last ? how.last : BATCH;
    alone = how;
    alone.ranks = 1;
    run(&alone);
    for (int ranks = 2; ranks <= MOST_RANKS; ranks++) {
        together = how;
        together.ranks = ranks;
        run(&together);
        for (int i = 0; i < STEPS; i++) {
            if (isfinite(alone.loss[i])) {
                expect_near(together.loss[i], alone.loss[i], tolerance);
            } else {
                assert_false(isfinite(together.loss[i]));
            }
        }
        for (int64_t i = 0; i < alone.weight_count; i++) {
            expect_near(together.weights[0][i], alone.weights[0][i], 1e3 * tolerance);
        }
        assert_int_equal(together.refreshes, alone.refreshes);
        assert_int_equal(together.skipped, alone.skipped);
    }
}

/* Of a network this small, a Tucker core alone has directions that only rounding chooses. */
static const char *const methods[] = {"adam", "tensorgrad", "galore", "structured", "unstructured"};
enum { METHODS = sizeof methods / sizeof methods[0] };

TEST(losses_with_fixed_factors_agree) {
    for (int i = 0; i < METHODS; i++) {
        compare_ranks((training){.method = methods[i], .gap = 1000, .bad_step = -1}, 1e-10);
    }
}

TEST(losses_with_refreshes_agree) {
    for (int i = 0; i < METHODS; i++) {
        compare_ranks((training){.method = methods[i], .gap = 3, .bad_step = -1}, 1e-8);
    }
    compare_ranks((training){.method = "tensorgrad", .gap = 3, .moments = "reset", .bad_step = -1},
                  1e-8);
}

/* Three epochs: per step with fixed factors, and over the run with those that are refreshed. */
TEST(losses_of_darcy_flow_agree) {
    for (int i = 0; i < 2; i++) {
        compare_ranks((training){.method = methods[i], .gap = 1000, .bad_step = -1, .darcy = true},
                      1e-10);
    }
    compare_ranks((training){.method = "tensorgrad", .gap = 3, .bad_step = -1, .darcy = true},
                  1e-6);
}

TEST(a_rank_may_have_no_samples) {
    for (int64_t last = 1; last <= 3; last++) {
        compare_ranks(
            (training){.method = "tensorgrad", .gap = STEPS - 1, .last = last, .bad_step = -1},
            1e-8);
    }
}

TEST(batches_of_an_update_are_shared) {
    compare_ranks((training){.method = "tensorgrad", .gap = 2, .micro = 3, .bad_step = -1}, 1e-8);
    compare_ranks(
        (training){.method = "tensorgrad", .gap = 2, .micro = 3, .clip = 1e-3, .bad_step = -1},
        1e-8);
}

/* Of dense parameters the norm is the same in one pass and in two. */
TEST(the_norm_to_clip_to_is_that_of_all) {
    compare_ranks((training){.method = "adam", .gap = 1000, .clip = 1e-3, .bad_step = -1}, 1e-10);
}

TEST(a_nan_of_one_rank_skips_the_step_of_all) {
    for (int bad = 0; bad <= 4; bad += 2) {
        compare_ranks((training){.method = "tensorgrad", .gap = 4, .bad_step = bad}, 1e-8);
    }
}

TEST(compressed_sums_are_what_is_sent) {
    static training dense, small;
    dense = small = (training){
        .gap = 1000, .moments = "keep", .micro = 1, .last = BATCH, .bad_step = -1, .ranks = 2};
    dense.method = "adam";
    small.method = "tensorgrad";
    run(&dense);
    run(&small);
    assert_true(small.reduced < dense.reduced);
    /* sums of all weights; samples, who has a whole part, and the loss */
    assert_int_equal(dense.reduced, STEPS * (dense.weight_count + 3) * (int64_t)sizeof(double));
}

/* The same bits, whoever has the moments; of each rank less memory, and the bytes that are planned.
 */
static void compare_shards(training how) {
    static training whole, sharded;
    how.moments = how.moments ? how.moments : "keep";
    how.micro = how.micro ? how.micro : 1;
    how.last = BATCH;
    for (how.ranks = 2; how.ranks <= 3; how.ranks++) {
        whole = sharded = how;
        sharded.shards = true;
        run(&whole);
        run(&sharded);
        assert_memory_equal(sharded.loss, whole.loss, sizeof whole.loss);
        assert_int_equal(sharded.weight_count, whole.weight_count);
        assert_memory_equal(sharded.weights[0], whole.weights[0],
                            (size_t)whole.weight_count * sizeof(double));
        assert_int_equal(sharded.refreshes, whole.refreshes);
        assert_int_equal(sharded.skipped, whole.skipped);
        assert_true(sharded.state < whole.state);
    }
}

TEST(moments_may_live_on_one_rank_each) {
    for (int i = 1; i < METHODS; i++) {
        compare_shards((training){.method = methods[i], .gap = 3, .bad_step = -1});
    }
    compare_shards((training){.method = "tensorgrad",
                              .gap = 3,
                              .moments = "reset",
                              .micro = 3,
                              .clip = 1e-3,
                              .bad_step = -1});
    for (int bad = 0; bad <= 4; bad += 2) {
        compare_shards((training){.method = "tensorgrad", .gap = 4, .bad_step = bad});
    }
}

int main(void) {
    return t_run_tests(make_darcy, test_files_end);
}
