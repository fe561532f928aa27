/* Update rules other than Adam, each against plain code of its formula in double; bytes of their
 * states; words; a device. What holds for every rule (exact resume, accumulation,
 * plan) is in test_optim.c, and its state in less in test_optim_stored.c. */
#include <math.h>
#include <string.h>

#include "optim/optim.h"
#include "support/cmocka.h"
#include "support/fake_device.h"
#include "support/raw.h"
#include "tgrad/tgrad.h"

#include <complex.h> /* after headers with a field of that name */

enum { STEPS = 5, NUMEL = 5 * 7 * 4 * 3 };

static const double LR = 0.02, DECAY = 0.1, BETA1 = 0.9, BETA2 = 0.98;

static const tg_shape shape = {4, {5, 7, 4, 3}};

typedef struct rig {
    tg_context *ctx;
    tg_optim_config group;
    tg_optim_param param;
    tg_optim_setup setup;
    tg_optim *optim;
} rig;

static void begin_threads(rig *r, const char *backend, int threads, tg_dtype dtype,
                          const char *const *settings) {
    tg_context_config config = tg_context_config_default();
    config.threads = threads;
    *r = (rig){.group = tg_optim_config_default(), .param = {"w", dtype, shape, 0}};
    assert_int_equal(tg_context_create(&config, &r->ctx), TG_OK);
    assert_int_equal(tg_backend_select(r->ctx, backend), TG_OK);
    const char *const common[] = {"rule", "lion",  "learning_rate", "0.02",        "weight_decay",
                                  "0.1",  "beta2", "0.98",          "min_entries", "10",
                                  NULL};
    for (const char *const *s = common; *s; s += 2) {
        assert_int_equal(tg_optim_config_set(r->ctx, &r->group, s[0], s[1]), TG_OK);
    }
    for (; *settings; settings += 2) {
        assert_int_equal(tg_optim_config_set(r->ctx, &r->group, settings[0], settings[1]), TG_OK);
    }
    r->setup = (tg_optim_setup){.size = sizeof(tg_optim_setup),
                                .groups = &r->group,
                                .group_count = 1,
                                .params = &r->param,
                                .param_count = 1,
                                .seed = 3};
}

static void begin(rig *r, const char *backend, tg_dtype dtype, const char *const *settings) {
    begin_threads(r, backend, 0, dtype, settings);
}

static void create(rig *r) {
    if (tg_optim_create(r->ctx, &r->setup, &r->optim) != TG_OK) {
        fail_msg("%s", tg_context_error(r->ctx));
    }
}

static void end(rig *r) {
    tg_optim_destroy(&r->optim);
    tg_context_destroy(&r->ctx);
}

static void draw(tg_dtype dtype, uint32_t stream, void *out) {
    const tg_rng rng = {.seed = 9, .purpose = TG_RNG_TEST, .step = stream};
    for (int64_t i = 0; i < NUMEL; i++) {
        tg_store(dtype, out, i,
                 (tg_scalar){tg_rng_normal(&rng, (uint64_t)(2 * i)),
                             tg_rng_normal(&rng, (uint64_t)(2 * i + 1))});
    }
}

static double complex number(tg_dtype dtype, const void *x, int64_t i) {
    const tg_scalar value = tg_load(dtype, x, i);
    return value.re + value.im * (double complex)I;
}

static double sign(double x) {
    return x > 0.0 ? 1.0 : x < 0.0 ? -1.0 : 0.0;
}

/* One value: its direction, and m moved. */
static double complex lion(double complex g, bool split, double complex *m) {
    const double complex c = BETA1 * *m + (1.0 - BETA1) * g;
    *m = BETA2 * *m + (1.0 - BETA2) * g;
    return split           ? sign(creal(c)) + sign(cimag(c)) * (double complex)I
           : cabs(c) > 0.0 ? c / cabs(c)
                           : 0.0;
}

static void expect_near(const char *what, double complex found, double complex expected,
                        double tolerance) {
    if (!(cabs(found - expected) <= tolerance)) {
        fail_msg("%s: %g%+gi, expected %g%+gi", what, creal(found), cimag(found), creal(expected),
                 cimag(expected));
    }
}

TEST(dense_values_follow_the_formula) {
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_C64, TG_C128};
    static const char *const plain[] = {NULL};
    static const char *const split[] = {"complex_adam", "split", NULL};
    for (int test = 0; test < 16; test++) {
        const tg_dtype dtype = dtypes[test % 4];
        const bool splits = test / 4 % 2 == 1;
        const double tolerance = tg_dtype_real(dtype) == TG_F64 ? 1e-12 : 1e-5;
        double complex m[NUMEL] = {0}, w[NUMEL];
        double weight[2 * NUMEL], grad[2 * NUMEL];
        rig r;
        begin(&r, test < 8 ? "ref" : "cpu", dtype, splits ? split : plain);
        create(&r);
        draw(dtype, 50, weight);
        for (int64_t i = 0; i < NUMEL; i++) {
            w[i] = number(dtype, weight, i);
        }
        for (uint32_t step = 0; step < STEPS; step++) {
            draw(dtype, step, grad);
            tg_store(dtype, grad, 11, (tg_scalar){0}); /* the sign of 0 */
            assert_int_equal(raw_optim_step(r.optim, 0, grad, weight), TG_OK);
            for (int64_t i = 0; i < NUMEL; i++) {
                const double complex u = lion(number(dtype, grad, i), splits, &m[i]);
                w[i] = (1.0 - LR * DECAY) * (w[i] - LR * u);
                expect_near("weight", number(dtype, weight, i), w[i], tolerance);
            }
        }
        end(&r);
    }
}

/* The formula on project(g), and back: with every projector. */
TEST(compressed_values_follow_the_formula) {
    static const char *const methods[][8] = {
        {"name", "lowrank"},    {"name", "galore", "first_dim_rollup", "2"},
        {"name", "structured"}, {"name", "unstructured"},
        {"name", "tensorgrad"}, {"name", "tensorgrad", "optimizer_type", "tensorgrad_sum"},
    };
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        float weight[2 * NUMEL], expected[2 * NUMEL], grad[2 * NUMEL], small[2 * NUMEL];
        double complex m[NUMEL] = {0};
        rig r;
        begin(&r, "cpu", TG_C64, methods[i]);
        create(&r);
        tg_slot *slot = &r.optim->slots[0];
        draw(TG_C64, 50, weight);
        memcpy(expected, weight, sizeof weight);
        for (uint32_t step = 0; step < STEPS; step++) { /* refreshed by the first one alone */
            draw(TG_C64, step, grad);
            assert_int_equal(raw_optim_step(r.optim, 0, grad, weight), TG_OK);
            const tg_gradient g = {.dtype = TG_C64, .shape = shape, .dense = grad};
            assert_int_equal(raw_projector_project(slot->projector, &g, 1.0, 0.0, small), TG_OK);
            for (int64_t k = 0; k < slot->count; k++) {
                const double complex u = lion(number(TG_C64, small, k), false, &m[k]);
                tg_store(TG_C64, small, k, (tg_scalar){creal(u), cimag(u)});
            }
            const double keep = 1.0 - LR * DECAY;
            assert_int_equal(raw_projector_back(slot->projector, small, -keep * LR, keep, expected),
                             TG_OK);
            for (int64_t k = 0; k < NUMEL; k++) {
                expect_near(methods[i][1], number(TG_C64, weight, k), number(TG_C64, expected, k),
                            1e-5);
            }
        }
        end(&r);
    }
}

/* ---- APOLLO ---- */

enum { ROWS = 5, COLUMNS = NUMEL / ROWS };

static const double EPS = 1e-6;

/* The random matrix of the first updates, as the formula says: entries of variance 1 / rank. */
static void draw_projection(const rig *r, tg_dtype dtype, int rank, double complex *p) {
    const bool is_complex = tg_dtype_is_complex(dtype);
    const tg_rng rng = {.seed = r->optim->slots[0].rounding.seed, .purpose = TG_RNG_RANGE};
    const double deviation = sqrt(1.0 / (is_complex ? 2 * rank : rank));
    for (uint64_t i = 0; i < (uint64_t)(ROWS * rank); i++) {
        const double im = is_complex ? tg_rng_normal(&rng, 2 * i + 1) : 0.0;
        const double re = tg_rng_normal(&rng, is_complex ? 2 * i : i);
        p[i] = deviation * (re + im * (double complex)I);
    }
}

typedef struct apollo_state {
    double complex p[ROWS * ROWS], m[ROWS * COLUMNS];
    double v[ROWS * COLUMNS], norm;
} apollo_state;

/* g becomes the direction of update t. */
static void apollo(int rank, int t, apollo_state *s, double complex *g) {
    double old[COLUMNS] = {0}, new[COLUMNS] = {0}, olds = 0.0, news = 0.0, squares = 0.0;
    for (int k = 0; k < rank * COLUMNS; k++) {
        const int j = k % COLUMNS;
        double complex r = 0.0;
        for (int i = 0; i < ROWS; i++) {
            r += conj(s->p[i * rank + k / COLUMNS]) * g[i * COLUMNS + j];
        }
        s->m[k] = BETA1 * s->m[k] + (1.0 - BETA1) * r;
        s->v[k] = BETA2 * s->v[k] + (1.0 - BETA2) * creal(r * conj(r));
        old[j] += creal(r * conj(r));
        new[j] += pow(cabs(s->m[k]) / (sqrt(s->v[k]) + EPS), 2.0);
    }
    for (int j = 0; j < COLUMNS; j++) {
        olds += old[j];
        news += new[j];
    }
    const double factor =
        sqrt((double)ROWS / rank) * sqrt(1.0 - pow(BETA2, t)) / (1.0 - pow(BETA1, t));
    for (int k = 0; k < NUMEL; k++) {
        const int j = k % COLUMNS;
        g[k] *= factor * (rank == 1 ? sqrt(news / olds) : sqrt(new[j] / old[j]));
        squares += creal(g[k] * conj(g[k]));
    }
    const double limit = s->norm > 0.0 ? fmin(sqrt(squares), 1.01 * s->norm) : sqrt(squares);
    for (int k = 0; k < NUMEL; k++) {
        g[k] *= limit / sqrt(squares);
    }
    s->norm = limit;
}

TEST(apollo_follows_the_formula) {
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_C64, TG_C128};
    for (int test = 0; test < 16; test++) {
        const tg_dtype dtype = dtypes[test % 4];
        const int rank = test / 4 % 2 == 0 ? 3 : 1;
        const char *const settings[] = {"rule", "apollo", "rank", rank == 3 ? "0.7" : "1", NULL};
        const double tolerance = tg_dtype_real(dtype) == TG_F64 ? 1e-12 : 1e-5;
        double complex w[NUMEL], g[NUMEL];
        double weight[2 * NUMEL], grad[2 * NUMEL];
        apollo_state oracle = {0};
        rig r;
        begin(&r, test < 8 ? "ref" : "cpu", dtype, settings);
        create(&r);
        draw_projection(&r, dtype, rank, oracle.p);
        draw(dtype, 50, weight);
        for (int64_t i = 0; i < NUMEL; i++) {
            w[i] = number(dtype, weight, i);
        }
        for (uint32_t step = 0; step < STEPS; step++) {
            draw(dtype, step, grad);
            for (int64_t i = 0; i < NUMEL; i++) { /* growing: the limit is met */
                g[i] = (step + 1.0) * number(dtype, grad, i);
                tg_store(dtype, grad, i, (tg_scalar){creal(g[i]), cimag(g[i])});
                g[i] = number(dtype, grad, i);
            }
            assert_int_equal(raw_optim_step(r.optim, 0, grad, weight), TG_OK);
            apollo(rank, (int)step + 1, &oracle, g);
            for (int64_t i = 0; i < NUMEL; i++) {
                w[i] = (1.0 - LR * DECAY) * (w[i] - LR * g[i]);
                expect_near("weight", number(dtype, weight, i), w[i], tolerance);
            }
        }
        end(&r);
    }
}

/* Another projection after every gap, and the same one from the same seed. */
TEST(apollo_draws_again) {
    static const char *const gaps[][6] = {{"rule", "apollo", "rank", "2", "update_proj_gap", "1"},
                                          {"rule", "apollo", "rank", "2", "update_proj_gap", "2"},
                                          {"rule", "apollo", "rank", "2", "update_proj_gap", "2"}};
    float weight[3][2 * NUMEL], grad[2 * NUMEL];
    for (int i = 0; i < 3; i++) {
        const char *const settings[] = {gaps[i][0], gaps[i][1], gaps[i][2], gaps[i][3],
                                        gaps[i][4], gaps[i][5], NULL};
        rig r;
        begin(&r, "cpu", TG_C64, settings);
        create(&r);
        draw(TG_C64, 50, weight[i]);
        for (uint32_t step = 0; step < 2; step++) {
            draw(TG_C64, step, grad);
            assert_int_equal(raw_optim_step(r.optim, 0, grad, weight[i]), TG_OK);
        }
        end(&r);
    }
    assert_memory_equal(weight[1], weight[2], sizeof weight[1]);
    assert_memory_not_equal(weight[0], weight[1], sizeof weight[1]);
}

/* ---- Muon ---- */

enum { MODES = 12 };

/* x (rows, columns) after five Newton-Schulz steps from x / |x|, by X X^H whatever the sizes. */
static void newton_schulz(int rows, int columns, double complex *x) {
    double squares = 0.0;
    for (int i = 0; i < rows * columns; i++) {
        squares += creal(x[i] * conj(x[i]));
    }
    for (int i = 0; i < rows * columns; i++) {
        x[i] /= sqrt(squares);
    }
    for (int pass = 0; pass < 5; pass++) {
        double complex gram[7 * 7], poly[7 * 7], next[35];
        for (int i = 0; i < rows * rows; i++) {
            gram[i] = 0.0;
            for (int k = 0; k < columns; k++) {
                gram[i] += x[i / rows * columns + k] * conj(x[i % rows * columns + k]);
            }
        }
        for (int i = 0; i < rows * rows; i++) {
            poly[i] = -4.7750 * gram[i];
            for (int k = 0; k < rows; k++) {
                poly[i] += 2.0315 * gram[i / rows * rows + k] * gram[k * rows + i % rows];
            }
        }
        for (int i = 0; i < rows * columns; i++) {
            next[i] = 3.4445 * x[i];
            for (int k = 0; k < rows; k++) {
                next[i] += poly[i / columns * rows + k] * x[k * columns + i % columns];
            }
        }
        memcpy(x, next, (size_t)(rows * columns) * sizeof *x);
    }
}

TEST(muon_follows_the_formula) {
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_C64, TG_C128};
    static const char *const settings[] = {"rule", "muon", NULL};
    for (int test = 0; test < 16; test++) {
        const tg_dtype dtype = dtypes[test % 4];
        const int rows = test / 4 % 2 == 0 ? 5 : 7, columns = 12 - rows; /* wide and tall */
        const double tolerance = tg_dtype_real(dtype) == TG_F64 ? 1e-11 : 2e-5;
        double complex m[NUMEL] = {0}, w[NUMEL];
        double weight[2 * NUMEL], grad[2 * NUMEL];
        rig r;
        begin(&r, test < 8 ? "ref" : "cpu", dtype, settings);
        r.param.shape.dim[0] = rows;
        r.param.shape.dim[1] = columns;
        create(&r);
        draw(dtype, 50, weight);
        for (int64_t i = 0; i < NUMEL; i++) {
            w[i] = number(dtype, weight, i);
        }
        for (uint32_t step = 0; step < STEPS; step++) {
            draw(dtype, step, grad);
            for (int k = 0; k < MODES; k++) {
                double complex x[35];
                for (int i = 0; i < 35; i++) {
                    const double complex g = number(dtype, grad, i * MODES + k);
                    double complex *moment = &m[i * MODES + k];
                    *moment = BETA1 * *moment + (1.0 - BETA1) * g;
                    x[i] = BETA1 * *moment + (1.0 - BETA1) * g;
                }
                newton_schulz(rows, columns, x);
                for (int i = 0; i < 35; i++) {
                    double complex *at = &w[i * MODES + k];
                    *at = (1.0 - LR * DECAY) * (*at - LR * 0.2 * sqrt(7.0) * x[i]);
                }
            }
            assert_int_equal(raw_optim_step(r.optim, 0, grad, weight), TG_OK);
            for (int64_t i = 0; i < NUMEL; i++) {
                expect_near("weight", number(dtype, weight, i), w[i], tolerance);
            }
        }
        end(&r);
    }
}

/* u / (0.2 sqrt(max)) of every mode has singular values near 1: its Gram matrix is between 0.45 and
 * 1.5 times the identity along random directions. More modes than are worked on together. */
TEST(muon_is_nearly_unitary) {
    enum { SIDE = 3, MANY = 70, ALL = SIDE * SIDE * MANY };
    static const char *const settings[] = {"rule", "muon", "weight_decay", "0", NULL};
    float weight[2 * ALL] = {0}, grad[2 * ALL];
    const tg_rng rng = {.seed = 4, .purpose = TG_RNG_TEST};
    rig r;
    begin(&r, "cpu", TG_C64, settings);
    r.param.shape = (tg_shape){3, {SIDE, SIDE, MANY}};
    create(&r);
    for (uint64_t i = 0; i < 2 * (uint64_t)ALL; i++) {
        grad[i] = (float)tg_rng_normal(&rng, i);
    }
    assert_int_equal(raw_optim_step(r.optim, 0, grad, weight), TG_OK);
    for (int k = 0; k < MANY; k++) {
        double before = 0.0, after = 0.0;
        double complex d[SIDE];
        for (uint64_t i = 0; i < SIDE; i++) {
            const uint64_t at = 10000 + 2 * (uint64_t)(SIDE * k) + 2 * i;
            d[i] = tg_rng_normal(&rng, at) + tg_rng_normal(&rng, at + 1) * (double complex)I;
            before += creal(d[i] * conj(d[i]));
        }
        for (int i = 0; i < SIDE; i++) {
            double complex sum = 0.0;
            for (int j = 0; j < SIDE; j++) {
                sum += number(TG_C64, weight, (i * SIDE + j) * MANY + k) * d[j];
            }
            after += creal(sum * conj(sum));
        }
        const double stretch = after / before / pow(LR * 0.2 * sqrt((double)SIDE), 2.0);
        if (!(stretch > 0.1 && stretch < 1.5)) {
            fail_msg("mode %d stretches by %g", k, sqrt(stretch));
        }
    }
    end(&r);
}

/* ---- threads ---- */

/* Weights after some updates, to the bit; in double, so that no rounding hides an order of sums. */
TEST(threads_change_no_bit) {
    enum { LARGE = 16 * 2 * 3000 };
    static const char *const rules[][5] = {{"rule", "muon", NULL},
                                           {"rule", "apollo", "rank", "1", NULL},
                                           {"rule", "apollo", "rank", "3", NULL},
                                           {"rule", "apollo", "rank", "16", NULL},
                                           {"rule", "lion", NULL}};
    static double weight[3][2 * LARGE], grad[2 * LARGE];
    const tg_rng rng = {.seed = 5, .purpose = TG_RNG_TEST};
    for (uint64_t k = 0; k < 2 * (uint64_t)LARGE; k++) {
        grad[k] = tg_rng_normal(&rng, k);
    }
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        for (int run = 0; run < 3; run++) {
            rig r;
            begin_threads(&r, "cpu", 1 + 2 * run, TG_C128, rules[i]);
            r.param.shape = (tg_shape){3, {16, 2, 3000}};
            create(&r);
            memset(weight[run], 0, sizeof weight[run]);
            for (int step = 0; step < 2; step++) {
                assert_int_equal(raw_optim_step(r.optim, 0, grad, weight[run]), TG_OK);
            }
            end(&r);
            if (memcmp(weight[run], weight[0], sizeof weight[0]) != 0) {
                fail_msg("%s %s: %d threads give other bits than one", rules[i][1],
                         rules[i][2] ? rules[i][3] : "", 1 + 2 * run);
            }
        }
    }
}

static size_t optimizer_bytes(const char *const *settings) {
    rig r;
    size_t bytes[TG_MEM_CATEGORIES];
    begin(&r, "cpu", TG_C64, settings);
    assert_int_equal(tg_optim_plan(r.ctx, &r.setup, bytes), TG_OK);
    create(&r);
    const tg_mem_usage usage = tg_context_memory(r.ctx, TG_HOST);
    assert_int_equal(usage.current[TG_MEM_OPTIMIZER], bytes[TG_MEM_OPTIMIZER]);
    end(&r);
    return bytes[TG_MEM_OPTIMIZER];
}

/* 8 bytes of a complex value, where Adam has 12. */
TEST(state_is_one_moment) {
    static const char *const lion_only[] = {NULL}, *const adam[] = {"rule", "adam", NULL};
    assert_int_equal(optimizer_bytes(lion_only), 8 * NUMEL);
    assert_int_equal(optimizer_bytes(adam), 12 * NUMEL);
}

/* Of APOLLO: Adam's of `rank` rows and a number, of Muon one moment. */
TEST(states_of_the_others) {
    static const char *const apollo_rank[] = {"rule", "apollo", "rank", "2", NULL},
                             *const mini[] = {"rule", "apollo", "rank", "1", NULL},
                             *const muon[] = {"rule", "muon", NULL};
    assert_int_equal(optimizer_bytes(apollo_rank), 12 * 2 * COLUMNS + 4);
    assert_int_equal(optimizer_bytes(mini), 12 * COLUMNS + 4);
    assert_int_equal(optimizer_bytes(muon), 8 * NUMEL);
}

/* Settings that have no meaning together. */
TEST(combinations_are_refused) {
    static const struct {
        const char *settings[8], *words;
    } cases[] = {
        {{"rule", "muon", "name", "tensorgrad"}, "opt.rule: muon sees whole weights"},
        {{"rule", "apollo", "name", "lowrank"}, "opt.rule: apollo sees whole weights"},
        {{"rule", "apollo", "rank", "[2, 2, 2, 2]"}, "opt.rank: apollo has one"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig r;
        begin(&r, "cpu", TG_C64, cases[i].settings);
        assert_int_equal(tg_optim_create(r.ctx, &r.setup, &r.optim), TG_E_CONFIG);
        assert_non_null(strstr(tg_context_error(r.ctx), cases[i].words));
        end(&r);
    }
}

/* A state of Adam is none of Lion, and the reverse. */
TEST(other_states_are_refused) {
    static const char *const adam[] = {"rule", "adam", "name", "lowrank", NULL};
    static const char *const lion_settings[] = {"name", "lowrank", NULL};
    rig from, to;
    tg_archive *archive = NULL;
    begin(&from, "cpu", TG_C64, adam);
    begin(&to, "cpu", TG_C64, lion_settings);
    create(&from);
    create(&to);
    assert_int_equal(tg_archive_create(from.ctx, &archive), TG_OK);
    assert_int_equal(tg_optim_save(from.optim, archive), TG_OK);
    assert_int_equal(tg_optim_load(to.optim, archive), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(to.ctx), "lion"));
    tg_archive_destroy(&archive);
    end(&from);
    end(&to);
}

TEST(unknown_rules_are_refused) {
    static const char *const none[] = {NULL};
    rig r;
    begin(&r, "cpu", TG_C64, none);
    assert_int_equal(tg_optim_config_set(r.ctx, &r.group, "rule", "lyon"), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "lion"));
    r.group.rule = (tg_update_rule)77;
    assert_int_equal(tg_optim_create(r.ctx, &r.setup, &r.optim), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "opt.rule"));
    end(&r);
}

/* Where work is queued on a device, the bits are those of the host that does it. */
TEST(devices_follow_the_host) {
    static const char *const cases[][8] = {
        {NULL},
        {"complex_adam", "split"},
        {"rule", "apollo", "rank", "3"},
        {"rule", "apollo", "rank", "1"},
        {"rule", "muon"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double weight[2][2 * NUMEL];
        for (int run = 0; run < 2; run++) {
            void *on_device[2] = {NULL}; /* weight and gradient */
            double grad[2 * NUMEL];
            tg_backend *be = NULL;
            rig r;
            begin(&r, run == 0 ? "cpu" : "fake", TG_C128, cases[i]);
            create(&r);
            assert_int_equal(tg_backend_get(r.ctx, &be), TG_OK);
            draw(TG_C128, 7, weight[run]);
            for (int k = 0; k < 2; k++) {
                on_device[k] = be->ops->alloc(be, TG_MEM_OTHER, sizeof grad);
                assert_non_null(on_device[k]);
            }
            assert_int_equal(be->ops->upload(be, on_device[0], weight[run], sizeof grad), TG_OK);
            for (int step = 0; step < STEPS; step++) {
                draw(TG_C128, (uint32_t)step, grad);
                assert_int_equal(be->ops->upload(be, on_device[1], grad, sizeof grad), TG_OK);
                assert_int_equal(raw_optim_step(r.optim, 0, on_device[1], on_device[0]), TG_OK);
            }
            assert_int_equal(be->ops->download(be, weight[run], on_device[0], sizeof grad), TG_OK);
            be->ops->release(be, on_device[0]);
            be->ops->release(be, on_device[1]);
            end(&r);
        }
        assert_memory_equal(weight[1], weight[0], sizeof weight[0]);
    }
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
