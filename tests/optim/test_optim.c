/* The optimizer: exact state, accumulation, factored gradients, clipping, schedules, refusals,
 * memory. Trajectories against PyTorch are in test_verify.sh. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "io/formats.h"
#include "optim/optim.h"
#include "support/cmocka.h"
#include "support/compare.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "support/raw.h"
#include "tgrad/tgrad.h"

static const char *const backends[] = {"ref", "cpu"};

/* Settings in words, as a user would write them. */
static const struct {
    const char *name;
    const char *settings[12]; /* key, value, .. */
} methods[] = {
    {"adam", {NULL}},
    {"adam split", {"complex_adam", "split"}},
    {"lowrank", {"name", "lowrank"}},
    {"lowrank randomized",
     {"name", "lowrank", "svd_type", "randomized", "tucker_init", "st_hosvd"}},
    {"galore", {"name", "galore", "first_dim_rollup", "2"}},
    {"structured rand-k", {"name", "structured", "sparse_type", "randk"}},
    {"unstructured rand-k", {"name", "unstructured", "sparse_type", "randk"}},
    {"unstructured probability", {"name", "unstructured", "sparse_type", "probability"}},
    {"tensorgrad", {"name", "tensorgrad"}},
    {"tensorgrad reset", {"name", "tensorgrad", "moments_on_refresh", "reset"}},
    {"tensorgrad matched", {"name", "tensorgrad", "match_rms", "true"}},
    {"tensorgrad sum", {"name", "tensorgrad", "optimizer_type", "tensorgrad_sum"}},
    {"low-rank first",
     {"name", "tensorgrad", "proj_type", "low_rank", "second_proj_type", "unstructured_sparse",
      "second_sparse_ratio", "0.05"}},
    {"ranks by memory", {"name", "tensorgrad", "memory_budget", "0.4"}},
    {"lion", {"rule", "lion"}},
    {"lion split", {"rule", "lion", "complex_adam", "split"}},
    {"lion tensorgrad", {"rule", "lion", "name", "tensorgrad"}},
    {"lion tensorgrad reset",
     {"rule", "lion", "name", "tensorgrad", "moments_on_refresh", "reset"}},
    {"apollo", {"rule", "apollo", "rank", "2"}},
    {"apollo-mini", {"rule", "apollo", "rank", "1"}},
    {"muon", {"rule", "muon"}},
};

enum { METHODS = sizeof methods / sizeof methods[0], BATCH = 3, STEPS = 7 };

static const tg_shape weight_shape = {4, {5, 6, 4, 3}}; /* (Cin, Cout, modes..) */
static const tg_shape bias_shape = {1, {11}};

/* An optimizer of a spectral weight (parameter 0) and a bias (1), with its arrays on the host. */
typedef struct rig {
    tg_context *ctx;
    tg_optim *optim;
    tg_optim_config groups[1];
    tg_optim_param params[2];
    tg_optim_setup setup;
    float weight[2 * 360];
    float bias[11];
} rig;

static void fill(float *x, int64_t n, uint32_t stream) {
    const tg_rng rng = {.seed = 77, .purpose = TG_RNG_TEST, .step = stream};
    for (int64_t i = 0; i < n; i++) {
        x[i] = (float)tg_rng_normal(&rng, (uint64_t)i);
    }
}

static int warnings;

static void count_warning(void *user, tg_log_level level, const char *message) {
    (void)user;
    (void)message;
    warnings += level == TG_LOG_WARN;
}

static void begin(rig *r, const char *backend, int method, bool accumulates) {
    *r =
        (rig){.params = {{"fno.weight", TG_C64, weight_shape, 0}, {"bias", TG_F32, bias_shape, 0}}};
    const tg_context_config config = {.size = sizeof(tg_context_config),
                                      .device = -1,
                                      .threads = 2,
                                      .math = TG_MATH_FP32,
                                      .log = count_warning};
    assert_int_equal(tg_context_create(&config, &r->ctx), TG_OK);
    assert_int_equal(tg_backend_select(r->ctx, backend), TG_OK);
    r->groups[0] = tg_optim_config_default();
    const char *const common[] = {"learning_rate", "0.01", "weight_decay",    "0.1",
                                  "min_entries",   "100",  "update_proj_gap", "3"};
    for (int i = 0; i < 8; i += 2) {
        assert_int_equal(tg_optim_config_set(r->ctx, r->groups, common[i], common[i + 1]), TG_OK);
    }
    const char *const *s = methods[method].settings;
    for (int i = 0; i < 12 && s[i]; i += 2) {
        assert_int_equal(tg_optim_config_set(r->ctx, r->groups, s[i], s[i + 1]), TG_OK);
    }
    r->setup = (tg_optim_setup){.size = sizeof(tg_optim_setup),
                                .groups = r->groups,
                                .group_count = 1,
                                .params = r->params,
                                .param_count = 2,
                                .seed = 123,
                                .takes_factored = true,
                                .accumulates = accumulates};
    assert_int_equal(tg_optim_create(r->ctx, &r->setup, &r->optim), TG_OK);
    fill(r->weight, 720, 1);
    fill(r->bias, 11, 2);
}

static void end(rig *r) {
    tg_optim_destroy(&r->optim);
    tg_context_destroy(&r->ctx);
}

/* Both gradients of a step or micro-batch, dense, from its number. */
static void dense_step(rig *r, uint32_t number) {
    float grad[720], bias[11];
    fill(grad, 720, 100 + number);
    fill(bias, 11, 200 + number);
    assert_int_equal(raw_optim_step(r->optim, 0, grad, r->weight), TG_OK);
    assert_int_equal(raw_optim_step(r->optim, 1, bias, r->bias), TG_OK);
}

/* The two factors of a factored gradient, and the dense gradient they stand for. */
typedef struct factored {
    float x[2 * BATCH * 5 * 12], dy[2 * BATCH * 6 * 12];
    float dense[720];
} factored;

static void make_factored(factored *f, uint32_t number, int first, int count) {
    fill(f->x, 2 * BATCH * 5 * 12, 300 + number);
    fill(f->dy, 2 * BATCH * 6 * 12, 400 + number);
    memset(f->dense, 0, sizeof f->dense);
    for (int b = first; b < first + count; b++) {
        for (int i = 0; i < 360; i++) {
            const int k = i % 12, o = i / 12 % 6, c = i / 72;
            const float *x = f->x + 2 * ((b * 5 + c) * 12 + k);
            const float *y = f->dy + 2 * ((b * 6 + o) * 12 + k);
            f->dense[2 * i] += x[0] * y[0] + x[1] * y[1];
            f->dense[2 * i + 1] += x[0] * y[1] - x[1] * y[0];
        }
    }
}

static tg_gradient dense_gradient(const rig *r, int param, const void *values) {
    return (tg_gradient){.param = param,
                         .dtype = r->params[param].dtype,
                         .shape = r->params[param].shape,
                         .dense = values};
}

static void assert_close(const char *what, const float *a, const float *b, int n,
                         double tolerance) {
    const double error = t_relative_error(TG_F32, n, a, b);
    if (!(error <= tolerance)) {
        fail_msg("%s: off by %g, allowed %g", what, error, tolerance);
    }
}

/* Step, save, load into a new optimizer, step: the same bits as without interruption. */
TEST(test_resume_is_exact) {
    for (int be = 0; be < 2; be++) {
        for (int m = 0; m < METHODS; m++) {
            rig whole, parts;
            begin(&whole, backends[be], m, false);
            begin(&parts, backends[be], m, false);
            for (uint32_t step = 0; step < STEPS; step++) {
                dense_step(&whole, step);
                dense_step(&parts, step);
                const char *path = test_path("state.safetensors");
                assert_int_equal(raw_optim_save(parts.optim, path), TG_OK);
                tg_optim_destroy(&parts.optim);
                assert_int_equal(tg_optim_create(parts.ctx, &parts.setup, &parts.optim), TG_OK);
                assert_int_equal(raw_optim_load(parts.optim, path), TG_OK);
                assert_memory_equal(whole.weight, parts.weight, sizeof whole.weight);
                assert_memory_equal(whole.bias, parts.bias, sizeof whole.bias);
            }
            const tg_optim_stats a = tg_optim_get_stats(whole.optim);
            const tg_optim_stats b = tg_optim_get_stats(parts.optim);
            assert_memory_equal(&a, &b, sizeof a);
            assert_int_equal(a.steps, 2 * STEPS);
            end(&whole);
            end(&parts);
        }
    }
}

/* A micro-batches accumulated in compressed space give the weights of one large batch; over steps
 * with and without refresh, dense and factored. */
TEST(test_accumulation) {
    for (int be = 0; be < 2; be++) {
        for (int m = 0; m < METHODS; m++) {
            rig one, many;
            begin(&one, backends[be], m, false);
            begin(&many, backends[be], m, true);
            for (uint32_t step = 0; step < STEPS; step++) {
                factored f;
                float bias[11], third[11];
                make_factored(&f, step, 0, BATCH);
                fill(bias, 11, 200 + step);
                assert_int_equal(raw_optim_step(one.optim, 0, f.dense, one.weight), TG_OK);
                assert_int_equal(raw_optim_step(one.optim, 1, bias, one.bias), TG_OK);
                for (int i = 0; i < 11; i++) {
                    third[i] = bias[i] / 3.0f;
                }
                const tg_grad_sink sink = tg_optim_accumulate_sink(many.optim);
                for (int b = 0; b < BATCH; b++) {
                    make_factored(&f, step, b, 1);
                    tg_gradient g = dense_gradient(&many, 0, f.dense);
                    if (b > 0) { /* the first micro-batch dense, the others factored */
                        g.dense = NULL;
                        g.batch = 1;
                        g.x = f.x + 2 * b * 5 * 12;
                        g.dy = f.dy + 2 * b * 6 * 12;
                    }
                    const tg_gradient h = dense_gradient(&many, 1, third);
                    assert_int_equal(sink.receive(sink.user, &g), TG_OK);
                    assert_int_equal(sink.receive(sink.user, &h), TG_OK);
                }
                assert_int_equal(raw_optim_apply(many.optim, 0, many.weight), TG_OK);
                assert_int_equal(raw_optim_apply(many.optim, 1, many.bias), TG_OK);
            }
            assert_close(methods[m].name, many.weight, one.weight, 720, 2e-5);
            assert_close(methods[m].name, many.bias, one.bias, 11, 2e-5);
            assert_int_equal(raw_optim_apply(many.optim, 0, many.weight), TG_E_ARGUMENT);
            end(&one);
            end(&many);
        }
    }
}

TEST(test_factored_equals_dense) {
    for (int be = 0; be < 2; be++) {
        for (int m = 0; m < METHODS; m++) {
            rig dense, thin;
            begin(&dense, backends[be], m, false);
            begin(&thin, backends[be], m, false);
            assert_int_equal(raw_optim_bind(thin.optim, 0, thin.weight), TG_OK);
            const tg_grad_sink sink = tg_optim_sink(thin.optim);
            for (uint32_t step = 0; step < STEPS; step++) {
                factored f;
                make_factored(&f, step, 0, BATCH);
                assert_int_equal(raw_optim_step(dense.optim, 0, f.dense, dense.weight), TG_OK);
                tg_gradient g = dense_gradient(&thin, 0, NULL);
                g.x = f.x;
                g.dy = f.dy;
                g.batch = BATCH;
                assert_int_equal(sink.receive(sink.user, &g), TG_OK);
            }
            assert_close(methods[m].name, thin.weight, dense.weight, 720, 2e-5);
            const tg_gradient unbound = dense_gradient(&thin, 1, thin.bias);
            assert_int_equal(sink.receive(sink.user, &unbound), TG_E_ARGUMENT);
            end(&dense);
            end(&thin);
        }
    }
}

/* Two passes through the sink: the norm is the global one, and the step that of scaled gradients.
 */
TEST(test_clipping) {
    for (int be = 0; be < 2; be++) {
        rig clipped, scaled;
        begin(&clipped, backends[be], 8, false);
        begin(&scaled, backends[be], 8, false);
        factored f;
        float bias[11];
        make_factored(&f, 0, 0, BATCH);
        fill(bias, 11, 200);
        double squares = 0.0;
        for (int i = 0; i < 720; i++) {
            squares += (double)f.dense[i] * (double)f.dense[i];
        }
        for (int i = 0; i < 11; i++) {
            squares += (double)bias[i] * (double)bias[i];
        }
        tg_gradient g = dense_gradient(&clipped, 0, NULL);
        g.x = f.x;
        g.dy = f.dy;
        g.batch = BATCH;
        const tg_gradient h = dense_gradient(&clipped, 1, bias);
        tg_optim_clip_begin(clipped.optim);
        tg_grad_sink sink = tg_optim_norm_sink(clipped.optim);
        assert_int_equal(sink.receive(sink.user, &g), TG_OK);
        assert_int_equal(sink.receive(sink.user, &h), TG_OK);
        double norm = 0.0;
        assert_int_equal(tg_optim_clip(clipped.optim, 0.0, &norm), TG_E_ARGUMENT);
        assert_int_equal(tg_optim_clip(clipped.optim, 1.5, &norm), TG_OK);
        assert_true(fabs(norm - sqrt(squares)) <= 1e-5 * norm);
        assert_int_equal(raw_optim_step_gradient(clipped.optim, &g, clipped.weight), TG_OK);
        assert_int_equal(raw_optim_step_gradient(clipped.optim, &h, clipped.bias), TG_OK);
        for (int i = 0; i < 720; i++) {
            f.dense[i] *= (float)(1.5 / norm);
        }
        for (int i = 0; i < 11; i++) {
            bias[i] *= (float)(1.5 / norm);
        }
        assert_int_equal(raw_optim_step(scaled.optim, 0, f.dense, scaled.weight), TG_OK);
        assert_int_equal(raw_optim_step(scaled.optim, 1, bias, scaled.bias), TG_OK);
        assert_close("clipped weight", clipped.weight, scaled.weight, 720, 1e-5);
        assert_close("clipped bias", clipped.bias, scaled.bias, 11, 1e-5);
        /* However large they are, but where a projection is refreshed. */
        float large[720];
        fill(large, 720, 1);
        for (int i = 0; i < 720; i++) {
            large[i] *= 1e25f;
        }
        for (int step = 0; step < 2; step++) {
            const tg_gradient l = dense_gradient(&clipped, 0, large);
            tg_optim_clip_begin(clipped.optim);
            assert_int_equal(sink.receive(sink.user, &l), TG_OK);
            assert_int_equal(tg_optim_clip(clipped.optim, 1.5, &norm), TG_OK);
            assert_int_equal(raw_optim_step(clipped.optim, 0, large, clipped.weight), TG_OK);
            assert_int_equal(tg_optim_get_stats(clipped.optim).skipped, 0);
        }
        for (int i = 0; i < 720; i++) {
            assert_true(isfinite(clipped.weight[i]));
        }
        assert_int_equal(raw_optim_step(clipped.optim, 0, large, clipped.weight), TG_OK);
        assert_int_equal(tg_optim_get_stats(clipped.optim).skipped, 1);
        end(&clipped);
        end(&scaled);
        /* Small gradients are left alone. */
        begin(&clipped, backends[be], 0, true);
        const tg_gradient k = dense_gradient(&clipped, 1, bias);
        assert_int_equal(tg_optim_accumulate(clipped.optim, &k), TG_OK);
        assert_int_equal(tg_optim_clip_accumulated(clipped.optim, 1e6, &norm), TG_OK);
        assert_true(clipped.optim->grad_scale == 1.0 && norm > 0.0);
        assert_int_equal(tg_optim_clip_accumulated(clipped.optim, norm / 2, &norm), TG_OK);
        assert_true(fabs(clipped.optim->grad_scale - 0.5) <= 1e-12);
        end(&clipped);
    }
}

/* NaN and Inf leave weights and state as they are, are counted, or are errors on request. */
TEST(test_nonfinite) {
    for (int m = 0; m < METHODS; m++) {
        rig r, clean;
        begin(&r, "cpu", m, false);
        begin(&clean, "cpu", m, false);
        dense_step(&r, 0);
        dense_step(&clean, 0);
        float grad[720];
        fill(grad, 720, 500);
        /* the last three are finite, but squares of them or sums on the way to a core are not */
        const float bad[] = {NAN, INFINITY, -INFINITY, FLT_MAX, -1e37f, 1e20f};
        for (int i = 0; i < 6; i++) {
            const float good = grad[100 * i];
            grad[100 * i] = bad[i];
            assert_int_equal(raw_optim_step(r.optim, 0, grad, r.weight), TG_OK);
            grad[100 * i] = good;
        }
        assert_int_equal(tg_optim_get_stats(r.optim).skipped, 6);
        for (uint32_t step = 1; step < STEPS; step++) {
            dense_step(&r, step);
            dense_step(&clean, step);
        }
        assert_memory_equal(r.weight, clean.weight, sizeof r.weight);
        r.optim->groups[0].nonfinite = TG_NONFINITE_ERROR;
        grad[7] = NAN;
        assert_int_equal(raw_optim_step(r.optim, 0, grad, r.weight), TG_E_NUMERIC);
        assert_non_null(strstr(tg_context_error(r.ctx), "fno.weight: 1 entries"));
        grad[7] = 1e37f;
        assert_int_equal(raw_optim_step(r.optim, 0, grad, r.weight), TG_E_NUMERIC);
        assert_non_null(strstr(tg_context_error(r.ctx), "fno.weight: it is so large"));
        assert_memory_equal(r.weight, clean.weight, sizeof r.weight);
        end(&r);
        end(&clean);
    }
    rig r;
    begin(&r, "cpu", 8, true);
    float before[720], grad[720];
    memcpy(before, r.weight, sizeof before);
    fill(grad, 720, 1);
    tg_gradient g = dense_gradient(&r, 0, grad);
    assert_int_equal(tg_optim_accumulate(r.optim, &g), TG_OK);
    grad[3] = NAN; /* one bad micro-batch spoils the sum: the whole step is skipped */
    assert_int_equal(tg_optim_accumulate(r.optim, &g), TG_OK);
    assert_int_equal(raw_optim_apply(r.optim, 0, r.weight), TG_OK);
    assert_memory_equal(before, r.weight, sizeof before);
    assert_int_equal(tg_optim_get_stats(r.optim).skipped, 1);
    grad[3] = 0.0f;
    assert_int_equal(tg_optim_accumulate(r.optim, &g), TG_OK);
    assert_int_equal(raw_optim_apply(r.optim, 0, r.weight), TG_OK);
    assert_memory_not_equal(before, r.weight, sizeof before);
    end(&r);
}

/* A run that skips thousands of updates is not drowned in warnings. */
TEST(test_many_are_skipped) {
    rig r;
    begin(&r, "cpu", 0, false);
    const float bias[11] = {NAN};
    warnings = 0;
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(raw_optim_step(r.optim, 1, bias, r.bias), TG_OK);
    }
    assert_int_equal(tg_optim_get_stats(r.optim).skipped, 1000);
    assert_int_equal(warnings, 64 + 3); /* and the 128th, 256th and 512th */
    end(&r);
}

/* A step that refuses the updates of all parameters says so once; the next one again. */
TEST(test_one_warning_a_step) {
    for (int be = 0; be < 2; be++) {
        rig r;
        begin(&r, backends[be], 0, false);
        float grad[720];
        fill(grad, 720, 1);
        grad[5] = NAN;
        const float bias[11] = {NAN};
        for (int step = 1; step <= 3; step++) {
            warnings = 0;
            assert_int_equal(raw_optim_step(r.optim, 0, grad, r.weight), TG_OK);
            assert_int_equal(raw_optim_step(r.optim, 1, bias, r.bias), TG_OK);
            assert_int_equal(tg_optim_synchronize(r.optim), TG_OK);
            assert_int_equal(warnings, 1);
            assert_int_equal(tg_optim_get_stats(r.optim).skipped, 2 * step);
        }
        warnings = 0;
        fill(grad, 720, 2);
        assert_int_equal(raw_optim_step(r.optim, 0, grad, r.weight), TG_OK);
        assert_int_equal(raw_optim_step(r.optim, 1, bias, r.bias), TG_OK);
        assert_int_equal(tg_optim_synchronize(r.optim), TG_OK);
        assert_int_equal(warnings, 1); /* of one parameter alone */
        end(&r);
    }
}

/* A step of gradients of about this size: dense, factored, or five of them added up. */
static void large_step(rig *r, int way, float size, uint32_t number) {
    factored f;
    make_factored(&f, number, 0, BATCH);
    for (int i = 0; i < 2 * BATCH * 6 * 12; i++) {
        f.dy[i] *= size;
    }
    for (int i = 0; i < 720; i++) {
        f.dense[i] *= size;
    }
    tg_gradient g = dense_gradient(r, 0, f.dense);
    if (way == 1) {
        g.dense = NULL;
        g.x = f.x;
        g.dy = f.dy;
        g.batch = BATCH;
    }
    const tg_tensor weight = {
        .dtype = TG_C64, .shape = weight_shape, .data = r->weight, .place = TG_HOST};
    if (way < 2) {
        assert_int_equal(tg_optim_step_gradient(r->optim, &g, &weight), TG_OK);
        return;
    }
    for (int i = 0; i < 5; i++) {
        assert_int_equal(tg_optim_accumulate(r->optim, &g), TG_OK);
    }
    assert_int_equal(tg_optim_apply(r->optim, 0, &weight), TG_OK);
}

/* Whatever the size of gradients, weights and moments stay finite. */
TEST(test_large_gradients) {
    for (int be = 0; be < 2; be++) {
        for (int m = 0; m < METHODS; m++) {
            for (int way = 0; way < 3; way++) {
                rig r;
                begin(&r, backends[be], m, way == 2);
                for (int e = 10; e < 39; e++) {
                    large_step(&r, way, powf(10.0f, (float)e), (uint32_t)e);
                }
                assert_in_range(tg_optim_get_stats(r.optim).skipped, 20, 26);
                for (int i = 0; i < 720; i++) {
                    assert_true(isfinite(r.weight[i]));
                }
                for (int b = 0; b < TG_RULE_STATES; b++) {
                    const tg_moment *moment = &r.optim->slots[0].moments.at[b];
                    for (int64_t i = 0; moment->memory && i < moment->reals; i++) {
                        assert_true(isfinite(((const float *)moment->memory)[i]));
                    }
                }
                end(&r);
            }
        }
    }
}

TEST(test_zero_gradients) {
    for (int m = 0; m < METHODS; m++) {
        rig r;
        begin(&r, "cpu", m, false);
        float before[720], grad[720] = {0};
        memcpy(before, r.weight, sizeof before);
        for (int step = 0; step < STEPS; step++) {
            assert_int_equal(raw_optim_step(r.optim, 0, grad, r.weight), TG_OK);
        }
        for (int i = 0; i < 720; i++) { /* nothing but the decay moves it */
            const double expected = (double)before[i] * pow(1.0 - 0.01 * 0.1, STEPS);
            assert_true(fabs((double)r.weight[i] - expected) <= 1e-5 * fabs(expected) + 1e-12);
        }
        end(&r);
    }
}

TEST(test_gap_schedules) {
    tg_optim_config config = tg_optim_config_default();
    config.update_proj_gap = 10;
    config.update_proj_gap_end = 1000;
    config.total_steps = 100;
    assert_int_equal(tg_refresh_gap(&config, 50), 10);
    config.update_proj_gap_mode = TG_GAP_LINEAR;
    assert_int_equal(tg_refresh_gap(&config, 50), 505);
    assert_int_equal(tg_refresh_gap(&config, 100), 1000);
    assert_int_equal(tg_refresh_gap(&config, 1000), 1000); /* held beyond the end */
    config.update_proj_gap_mode = TG_GAP_EXPONENTIAL;
    assert_in_range(tg_refresh_gap(&config, 50), 99, 100);
    config.update_proj_gap_mode = TG_GAP_EXPONENTIAL2;
    assert_int_equal(tg_refresh_gap(&config, 50), 31); /* 10 * 100^(1/4) */
    config.update_proj_gap = config.update_proj_gap_end = 0.2;
    assert_int_equal(tg_refresh_gap(&config, 50), 1);

    rig r; /* a fixed gap of 3 refreshes at steps 0, 3, 6 */
    begin(&r, "cpu", 8, false);
    static const int expected[STEPS] = {1, 1, 1, 2, 2, 2, 3};
    for (uint32_t step = 0; step < STEPS; step++) {
        dense_step(&r, step);
        assert_int_equal(tg_optim_get_stats(r.optim).refreshes, expected[step]);
    }
    assert_int_equal(r.optim->slots[0].moment_step, STEPS);
    end(&r);
    begin(&r, "cpu", 9, false); /* reset: the moments' time restarts at a refresh */
    for (uint32_t step = 0; step < STEPS; step++) {
        dense_step(&r, step);
        assert_int_equal(r.optim->slots[0].moment_step, step % 3 + 1);
    }
    end(&r);
}

TEST(test_learning_rates) {
    tg_lr_schedule s;
    tg_lr_schedule_config config = tg_lr_schedule_config_default();
    config.learning_rate = 0.1;
    config.scheduler = TG_LR_STEP;
    config.step_size = 2;
    assert_int_equal(tg_lr_schedule_start(NULL, &config, &s), TG_OK);
    static const double halves[] = {0.1, 0.1, 0.05, 0.05, 0.025};
    for (int epoch = 0; epoch < 5; epoch++) {
        assert_true(fabs(tg_lr_schedule_rate(&s, 10) - halves[epoch]) <= 1e-15);
        tg_lr_schedule_epoch(&s, 0.0);
    }
    config.scheduler = TG_LR_COSINE;
    config.scheduler_T_max = 4;
    config.warmup_steps = 10;
    assert_int_equal(tg_lr_schedule_start(NULL, &config, &s), TG_OK);
    assert_true(fabs(tg_lr_schedule_rate(&s, 0) - 0.01) <= 1e-15);
    assert_true(fabs(tg_lr_schedule_rate(&s, 10) - 0.1) <= 1e-15);
    tg_lr_schedule_epoch(&s, 0.0);
    tg_lr_schedule_epoch(&s, 0.0);
    assert_true(fabs(tg_lr_schedule_rate(&s, 10) - 0.05) <= 1e-15);
    tg_lr_schedule_epoch(&s, 0.0);
    tg_lr_schedule_epoch(&s, 0.0);
    assert_true(fabs(tg_lr_schedule_rate(&s, 10)) <= 1e-15);
    config = tg_lr_schedule_config_default();
    config.learning_rate = 1.0;
    config.scheduler = TG_LR_PLATEAU;
    config.scheduler_patience = 1;
    assert_int_equal(tg_lr_schedule_start(NULL, &config, &s), TG_OK);
    static const double metric[] = {5, 4, 4, 4, 3.9999, 3, (double)NAN, (double)NAN};
    static const double rate[] = {1, 1, 1, 0.5, 0.5, 0.5, 0.5, 0.25};
    for (int epoch = 0; epoch < 8; epoch++) {
        tg_lr_schedule_epoch(&s, metric[epoch]);
        assert_true(tg_lr_schedule_rate(&s, 0) == rate[epoch]);
    }
    config.gamma = 0.0;
    assert_int_equal(tg_lr_schedule_start(NULL, &config, &s), TG_E_CONFIG);
}

/* The ledger counts the planned bytes. */
TEST(test_plan_is_exact) {
    for (int be = 0; be < 2; be++) {
        for (int m = 0; m < METHODS; m++) {
            for (int accumulates = 0; accumulates < 2; accumulates++) {
                rig r;
                begin(&r, backends[be], m, accumulates != 0);
                const tg_mem_usage with = tg_context_memory(r.ctx, TG_HOST);
                tg_optim_destroy(&r.optim);
                const tg_mem_usage without = tg_context_memory(r.ctx, TG_HOST);
                size_t planned[TG_MEM_CATEGORIES];
                assert_int_equal(tg_optim_plan(r.ctx, &r.setup, planned), TG_OK);
                for (int c = 0; c < TG_MEM_OTHER; c++) {
                    assert_int_equal(with.current[c] - without.current[c], planned[c]);
                }
                end(&r);
            }
        }
    }
}

/* No allocation in a step; a refresh may borrow for a decomposition, and gives back. */
TEST(test_steps_do_not_allocate) {
    for (int m = 0; m < METHODS; m++) {
        rig r;
        begin(&r, "cpu", m, false);
        const size_t before = tg_context_memory(r.ctx, TG_HOST).current_total;
        for (uint32_t step = 0; step < STEPS; step++) {
            tg_mem_test_fail_at(0); /* counts from here */
            dense_step(&r, step);
            if (step % 3 != 0) {
                assert_int_equal(tg_mem_test_count(), 0);
            }
        }
        assert_int_equal(tg_context_memory(r.ctx, TG_HOST).current_total, before);
        end(&r);
    }
}

TEST(test_bad_input) {
    rig r;
    begin(&r, "cpu", 8, false);
    float grad[720];
    fill(grad, 720, 1);
    assert_int_equal(raw_optim_step(r.optim, 2, grad, r.weight), TG_E_ARGUMENT);
    assert_int_equal(raw_optim_step(r.optim, -1, grad, r.weight), TG_E_ARGUMENT);
    tg_gradient g = dense_gradient(&r, 0, grad);
    g.shape.dim[3] = 4;
    assert_int_equal(raw_optim_step_gradient(r.optim, &g, r.weight), TG_E_SHAPE);
    assert_non_null(strstr(tg_context_error(r.ctx), "the shape is 5x6x4x4; 5x6x4x3 is needed"));
    g = dense_gradient(&r, 0, grad);
    g.dtype = TG_F32;
    assert_int_equal(raw_optim_step_gradient(r.optim, &g, r.weight), TG_E_DTYPE);
    g = dense_gradient(&r, 0, NULL);
    assert_int_equal(raw_optim_step_gradient(r.optim, &g, r.weight), TG_E_ARGUMENT);
    g = dense_gradient(&r, 0, grad);
    assert_int_equal(tg_optim_accumulate(r.optim, &g), TG_E_ARGUMENT);
    assert_int_equal(tg_optim_set_learning_rate(r.optim, 1, 0.1), TG_E_ARGUMENT);
    assert_int_equal(tg_optim_set_learning_rate(r.optim, 0, (double)NAN), TG_E_CONFIG);
    assert_int_equal(tg_optim_set_learning_rate(r.optim, 0, 0.1), TG_OK);

    tg_optim *other = NULL;
    tg_optim_setup setup = r.setup;
    tg_optim_param params[2] = {r.params[0], r.params[0]};
    setup.params = params;
    assert_int_equal(tg_optim_create(r.ctx, &setup, &other), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(r.ctx), "two parameters are named fno.weight"));
    params[1] = r.params[1];
    params[1].group = 1;
    assert_int_equal(tg_optim_create(r.ctx, &setup, &other), TG_E_ARGUMENT);
    params[1].group = 0;
    params[1].dtype = TG_I32;
    assert_int_equal(tg_optim_create(r.ctx, &setup, &other), TG_E_DTYPE);
    tg_optim_config config = r.groups[0];
    setup = r.setup;
    setup.groups = &config;
    config.beta2 = 1.0;
    assert_int_equal(tg_optim_create(r.ctx, &setup, &other), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "opt.beta2: expected a number in [0, 1)"));
    config = r.groups[0];
    config.update_proj_gap_mode = TG_GAP_LINEAR;
    assert_int_equal(tg_optim_create(r.ctx, &setup, &other), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "opt.total_steps"));
    assert_null(other);
    assert_int_equal(tg_optim_config_set(r.ctx, &config, "name", "tensorgrat"), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "did you mean tensorgrad"));
    assert_int_equal(tg_optim_config_set(r.ctx, &config, "sparse_ration", "1"), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "did you mean opt.sparse_ratio?"));
    end(&r);
}

static tg_status load_changed(rig *r, void (*change)(tg_archive *), const tg_archive *source) {
    tg_archive *copy = NULL;
    assert_int_equal(tg_archive_create(r->ctx, &copy), TG_OK);
    for (int64_t i = 0; i < tg_archive_meta_count(source); i++) {
        assert_int_equal(tg_archive_set_meta(copy, tg_archive_meta_key(source, i),
                                             tg_archive_meta_value(source, i)),
                         TG_OK);
    }
    for (int64_t i = 0; i < tg_archive_count(source); i++) {
        assert_int_equal(
            tg_archive_add(copy, tg_archive_name(source, i), tg_archive_tensor(source, i)), TG_OK);
    }
    change(copy);
    const tg_status status = tg_optim_load(r->optim, copy);
    tg_archive_destroy(&copy);
    return status;
}

static void change_bitmap(tg_archive *a) {
    *(uint64_t *)tg_archive_find(a, "optim.fno.weight.0.bitmap")->data ^= 1;
}

static void change_counters(tg_archive *a) {
    ((int64_t *)tg_archive_find(a, "optim.fno.weight.counters")->data)[2] = 1000000;
}

static void change_ready(tg_archive *a) {
    ((int64_t *)tg_archive_find(a, "optim.fno.weight.counters")->data)[5] = 0;
}

static void change_method(tg_archive *a) {
    assert_int_equal(tg_archive_set_meta(a, "optim.bias.method", "sgd"), TG_OK);
}

static void change_format(tg_archive *a) {
    assert_int_equal(tg_archive_set_meta(a, "optim.format", "99"), TG_OK);
}

static void change_nothing(tg_archive *a) {
    (void)a;
}

/* A state that does not fit is refused with its name, and nothing has changed. */
TEST(test_bad_state) {
    static void (*const changes[])(tg_archive *) = {change_bitmap, change_counters, change_ready,
                                                    change_method, change_format};
    rig r, twin;
    begin(&r, "cpu", 8, false);
    begin(&twin, "cpu", 8, false);
    tg_archive *saved = NULL;
    assert_int_equal(tg_archive_create(r.ctx, &saved), TG_OK);
    dense_step(&r, 0);
    assert_int_equal(tg_optim_save(r.optim, saved), TG_OK);
    dense_step(&r, 1);
    dense_step(&twin, 0);
    dense_step(&twin, 1);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        assert_int_equal(load_changed(&r, changes[i], saved), TG_E_FORMAT);
        assert_non_null(strstr(tg_context_error(r.ctx), "optimizer state: "));
    }
    dense_step(&r, 2);
    dense_step(&twin, 2);
    assert_memory_equal(r.weight, twin.weight, sizeof r.weight);
    assert_int_equal(load_changed(&r, change_nothing, saved), TG_OK);
    rig other;
    begin(&other, "cpu", 2, false); /* another method */
    assert_int_equal(tg_optim_load(other.optim, saved), TG_E_FORMAT);
    end(&other);
    tg_archive_destroy(&saved);
    end(&r);
    end(&twin);

    rig sums; /* a sum under way is not saved */
    begin(&sums, "cpu", 8, true);
    const tg_gradient g = dense_gradient(&sums, 1, sums.bias);
    assert_int_equal(tg_optim_accumulate(sums.optim, &g), TG_OK);
    assert_int_equal(raw_optim_save(sums.optim, test_path("no.safetensors")), TG_E_ARGUMENT);
    end(&sums);
}

TEST(test_no_memory) {
    for (int m = 0; m < METHODS; m++) {
        rig r;
        begin(&r, "cpu", m, true);
        dense_step(&r, 0);
        const char *path = test_path("memory.safetensors");
        assert_int_equal(raw_optim_save(r.optim, path), TG_OK);
        for (int what = 0; what < 3; what++) { /* create, save, load */
            test_walk walk = {.ctx = r.ctx};
            while (test_walk_next(&walk)) {
                tg_optim *made = NULL;
                test_walk_called(&walk, what == 0   ? tg_optim_create(r.ctx, &r.setup, &made)
                                        : what == 1 ? raw_optim_save(r.optim, path)
                                                    : raw_optim_load(r.optim, path));
                tg_optim_destroy(&made);
            }
        }
        end(&r);
    }
}

int main(void) {
    return t_run_tests(NULL, test_files_end);
}
