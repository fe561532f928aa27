/* The optimizer with weights, gradients and moments kept in less: near the same run in f32, saved
 * and resumed to the bit, planned to the byte, and refused where it makes no sense. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "optim/optim.h"
#include "support/cmocka.h"
#include "support/raw.h"
#include "tgrad/tgrad.h"

#define T_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

enum { BATCH = 3, STEPS = 9, IN = 32, OUT = 32, MODES = 24, NUMEL = IN * OUT * MODES };

static const tg_shape weight_shape = {4, {IN, OUT, 6, 4}};
static const tg_shape bias_shape = {1, {11}};

static const char *const methods[][8] = {
    {NULL},
    {"complex_adam", "split"},
    {"name", "lowrank"},
    {"name", "galore", "first_dim_rollup", "2", "galore_2d_proj_type", "std"},
    {"name", "structured"},
    {"name", "unstructured", "sparse_type", "probability"},
    {"name", "tensorgrad"},
    {"name", "tensorgrad", "proj_type", "low_rank", "second_proj_type", "unstructured_sparse",
     "second_sparse_ratio", "0.05"},
    {"rule", "lion", "beta2", "0.99", "name", "tensorgrad"},
    {"rule", "apollo", "rank", "6"},
};

/* What is kept in less. */
typedef struct less {
    const char *states; /* state_precision */
    tg_dtype weight;    /* of the spectral weight */
    tg_dtype factors;   /* of its gradients */
    bool forms_bf16;
    double tolerance; /* of the distance moved */
} less;

static const less kinds[] = {
    {"full", TG_CBF16, TG_C64, false, 0.2},   {"full", TG_CF16, TG_CF16, false, 0.1},
    {"full", TG_C64, TG_CBF16, true, 1e-5},   {"half", TG_C64, TG_C64, false, 0.05},
    {"8bit", TG_C64, TG_C64, false, 0.05},    {"8bit", TG_CBF16, TG_CBF16, true, 0.2},
    {"half", TG_CBF16, TG_CBF16, false, 0.2}, {"f16", TG_C64, TG_C64, false, 0.05}};

static const less full = {"full", TG_C64, TG_C64, false, 0.0};

typedef struct rig {
    tg_context *ctx;
    tg_optim *optim;
    tg_optim_config group;
    tg_optim_param params[2];
    tg_optim_setup setup;
    const less *less;
    tg_tensor weight; /* as stored */
    float bias[11];
} rig;

static void ok(tg_context *ctx, tg_status status) {
    if (status != TG_OK) {
        fail_msg("%s: %s", tg_status_name(status), tg_context_error(ctx));
    }
}

/* Quarters from -1 to 1: 16-bit formats hold them, and sums of a few of their products. */
static void draw(uint32_t stream, int64_t n, double scale, tg_dtype dtype, void *out) {
    const tg_rng rng = {.seed = 77, .purpose = TG_RNG_TEST, .step = stream};
    for (int64_t i = 0; i < n; i++) {
        const double re = nearbyint(8.0 * tg_rng_uniform(&rng, (uint64_t)(2 * i))) / 4.0 - 1.0;
        const double im = nearbyint(8.0 * tg_rng_uniform(&rng, (uint64_t)(2 * i + 1))) / 4.0 - 1.0;
        tg_store(dtype, out, i, (tg_scalar){scale * re, scale * im});
    }
}

static void begin(rig *r, const char *backend, int method, const less *less_) {
    *r = (rig){.less = less_,
               .params = {{"fno.weight", less_->weight, weight_shape, 0},
                          {"bias", TG_F32, bias_shape, 0}}};
    const tg_context_config threads = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 2, .math = TG_MATH_FP32};
    assert_int_equal(tg_context_create(&threads, &r->ctx), TG_OK);
    ok(r->ctx, tg_backend_select(r->ctx, backend));
    r->group = tg_optim_config_default();
    const char *const common[] = {"learning_rate",   "0.05", "weight_decay",    "0.1",
                                  "update_proj_gap", "4",    "state_precision", less_->states};
    for (int i = 0; i < 8; i += 2) {
        ok(r->ctx, tg_optim_config_set(r->ctx, &r->group, common[i], common[i + 1]));
    }
    for (int i = 0; i < 8 && methods[method][i]; i += 2) {
        ok(r->ctx,
           tg_optim_config_set(r->ctx, &r->group, methods[method][i], methods[method][i + 1]));
    }
    r->setup = (tg_optim_setup){.size = sizeof(tg_optim_setup),
                                .groups = &r->group,
                                .group_count = 1,
                                .params = r->params,
                                .param_count = 2,
                                .seed = 5,
                                .takes_factored = true,
                                .forms_bf16 = less_->forms_bf16};
    ok(r->ctx, tg_optim_create(r->ctx, &r->setup, &r->optim));
    ok(r->ctx, tg_tensor_create(r->ctx, TG_MEM_WEIGHTS, less_->weight, &weight_shape, &r->weight));
    draw(1, NUMEL, 1.0, less_->weight, r->weight.data);
    memset(r->bias, 0, sizeof r->bias);
}

static void end(rig *r) {
    tg_tensor_destroy(&r->weight);
    tg_optim_destroy(&r->optim);
    tg_context_destroy(&r->ctx);
}

/* Step number `step`, whose gradient depends on it alone. */
static void step(rig *r, int step_number) {
    static float x[2 * BATCH * IN * MODES], dy[2 * BATCH * OUT * MODES];
    float bias[11];
    draw(100 + (uint32_t)step_number, BATCH * IN * MODES, 0.5, r->less->factors, x);
    draw(200, BATCH * OUT * MODES, 0.25, r->less->factors, dy); /* keeps a direction */
    draw(300 + (uint32_t)step_number, 11, 1.0, TG_F32, bias);
    const tg_gradient factored = {.param = 0,
                                  .dtype = r->less->factors,
                                  .shape = weight_shape,
                                  .x = x,
                                  .dy = dy,
                                  .batch = BATCH};
    ok(r->ctx, tg_optim_step_gradient(r->optim, &factored, &r->weight));
    ok(r->ctx, raw_optim_step(r->optim, 1, bias, r->bias));
}

static void expect_same(const rig *a, const rig *b) {
    assert_memory_equal(a->weight.data, b->weight.data, tg_tensor_bytes(&a->weight));
    assert_memory_equal(a->bias, b->bias, sizeof a->bias);
}

/* |a - b| and |b - start| in the 2-norm. */
static void distances(const rig *a, const rig *b, double *apart, double *moved) {
    static float start[2 * NUMEL];
    draw(1, NUMEL, 1.0, TG_C64, start);
    *apart = *moved = 0.0;
    for (int64_t i = 0; i < NUMEL; i++) {
        const tg_scalar x = tg_load(a->weight.dtype, a->weight.data, i);
        const tg_scalar y = tg_load(b->weight.dtype, b->weight.data, i);
        const tg_scalar z = tg_load(TG_C64, start, i);
        *apart += (x.re - y.re) * (x.re - y.re) + (x.im - y.im) * (x.im - y.im);
        *moved += (y.re - z.re) * (y.re - z.re) + (y.im - z.im) * (y.im - z.im);
    }
    *apart = sqrt(*apart);
    *moved = sqrt(*moved);
}

TEST(near_full) {
    static const char *const backends[] = {"ref", "cpu"};
    for (int i = 0; i < 2 * T_COUNT(methods); i++) {
        if (i % 2 == 0 && i / 2 != 1 && i / 2 != 6) { /* ref is slow */
            continue;
        }
        rig wide;
        begin(&wide, backends[i % 2], i / 2, &full);
        for (int s = 0; s < STEPS; s++) {
            step(&wide, s);
        }
        for (int k = 0; k < T_COUNT(kinds); k++) {
            rig narrow;
            double apart, moved;
            begin(&narrow, backends[i % 2], i / 2, &kinds[k]);
            for (int s = 0; s < STEPS; s++) {
                step(&narrow, s);
            }
            distances(&narrow, &wide, &apart, &moved);
            if (!(apart <= kinds[k].tolerance * moved) || !(moved > 1.0)) {
                fail_msg("method %d, kind %d: %g apart after a way of %g", i / 2, k, apart, moved);
            }
            end(&narrow);
        }
        end(&wide);
    }
}

/* Saved in the middle and loaded into another optimizer, the run goes on to the bit. */
TEST(resumed_to_the_bit) {
    for (int i = 0; i < T_COUNT(methods) * T_COUNT(kinds); i++) {
        const int method = i / T_COUNT(kinds);
        const less *kind = &kinds[i % T_COUNT(kinds)];
        if (method == 2 || method == 4 || method == 5) {
            continue;
        }
        rig whole, resumed;
        const char *path = "optim_stored.safetensors";
        begin(&whole, "cpu", method, kind);
        begin(&resumed, "cpu", method, kind);
        for (int s = 0; s < STEPS; s++) {
            if (s == 5) {
                ok(whole.ctx, raw_optim_save(whole.optim, path));
                ok(resumed.ctx, raw_optim_load(resumed.optim, path));
                memcpy(resumed.weight.data, whole.weight.data, tg_tensor_bytes(&whole.weight));
                memcpy(resumed.bias, whole.bias, sizeof whole.bias);
            }
            step(&whole, s);
            if (s >= 5) {
                step(&resumed, s);
            }
        }
        expect_same(&whole, &resumed);
        remove(path);
        end(&whole);
        end(&resumed);
    }
}

/* Rounded to nearest, the moments are the same whatever the seed of the random bits. */
TEST(nearest_draws_nothing) {
    static const char *const backends[] = {"ref", "cpu"}, *const rules[] = {"adam", "lion"};
    const less *const kinds_in_less[] = {&kinds[3], &kinds[4], &kinds[7]};
    for (int i = 0; i < 12; i++) {
        rig runs[3]; /* stochastic, to nearest, and to nearest from another seed */
        for (int k = 0; k < 3; k++) {
            rig *r = &runs[k];
            begin(r, backends[i % 2], 0, kinds_in_less[i / 2 % 3]);
            tg_optim_destroy(&r->optim);
            ok(r->ctx, tg_optim_config_set(r->ctx, &r->group, "rule", rules[i / 6]));
            ok(r->ctx, tg_optim_config_set(r->ctx, &r->group, "state_rounding",
                                           k > 0 ? "nearest" : "stochastic"));
            r->setup.seed += k > 1;
            ok(r->ctx, tg_optim_create(r->ctx, &r->setup, &r->optim));
            step(r, 0);
            step(r, 1); /* the first one to see moments that were rounded */
        }
        expect_same(&runs[1], &runs[2]);
        assert_true(memcmp(runs[0].weight.data, runs[1].weight.data,
                           tg_tensor_bytes(&runs[0].weight)) != 0);
        for (int k = 0; k < 3; k++) {
            end(&runs[k]);
        }
    }
}

/* A state of other precision is refused, and nothing changes. */
TEST(other_states_are_refused) {
    rig bytes, wide;
    tg_archive *archive = NULL;
    begin(&bytes, "cpu", 0, &kinds[4]);
    begin(&wide, "cpu", 0, &full);
    step(&bytes, 0);
    ok(bytes.ctx, tg_archive_create(bytes.ctx, &archive));
    ok(bytes.ctx, tg_optim_save(bytes.optim, archive));
    assert_int_equal(tg_optim_load(wide.optim, archive), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(wide.ctx), "8bit"));
    tg_archive_destroy(&archive);
    end(&bytes);
    end(&wide);
}

/* The ledger counts the planned bytes, and compact formats need fewer. */
TEST(planned_to_the_byte) {
    for (int i = 0; i < T_COUNT(methods) * (T_COUNT(kinds) + 1); i++) {
        const int method = i / (T_COUNT(kinds) + 1), k = i % (T_COUNT(kinds) + 1);
        const less *kind = k < T_COUNT(kinds) ? &kinds[k] : &full;
        rig r;
        size_t planned[TG_MEM_CATEGORIES];
        begin(&r, "cpu", method, kind);
        tg_optim_destroy(&r.optim);
        const tg_mem_usage before = tg_context_memory(r.ctx, TG_HOST);
        ok(r.ctx, tg_optim_plan(r.ctx, &r.setup, planned));
        ok(r.ctx, tg_optim_create(r.ctx, &r.setup, &r.optim));
        const tg_mem_usage now = tg_context_memory(r.ctx, TG_HOST);
        for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
            if (c != TG_MEM_OTHER) {
                assert_int_equal(now.current[c] - before.current[c], planned[c]);
            }
        }
        if (method == 0) { /* dense: 12 bytes an entry in full, 6 in 16 bits, 3 as bytes */
            const bool is_bytes = strcmp(kind->states, "8bit") == 0;
            const bool is_half =
                strcmp(kind->states, "half") == 0 || strcmp(kind->states, "f16") == 0;
            const size_t each = is_bytes ? 3 : is_half ? 6 : 12;
            const size_t scales = is_bytes ? 4 * 3 * NUMEL / 256 : 0;
            const size_t bias = is_half ? 48 : 88;
            assert_int_equal(planned[TG_MEM_OPTIMIZER], each * NUMEL + scales + bias);
            assert_int_equal(planned[TG_MEM_GRADIENTS], (kind->forms_bf16 ? 4 : 8) * NUMEL);
        }
        end(&r);
    }
}

/* Sums of gradients whose factors are 16-bit. */
TEST(accumulated) {
    const less kind = {"full", TG_CBF16, TG_CBF16, false, 0.0};
    for (int method = 0; method < T_COUNT(methods); method++) {
        rig once, twice;
        begin(&once, "cpu", method, &kind);
        begin(&twice, "cpu", method, &kind);
        tg_optim_destroy(&twice.optim);
        twice.setup.accumulates = true;
        ok(twice.ctx, tg_optim_create(twice.ctx, &twice.setup, &twice.optim));
        static float x[2 * BATCH * IN * MODES], dy[2 * BATCH * OUT * MODES];
        draw(1, BATCH * IN * MODES, 0.5, TG_CBF16, x);
        draw(2, BATCH * OUT * MODES, 0.5, TG_CBF16, dy);
        const tg_gradient g = {0, TG_CBF16, weight_shape, NULL, x, dy, BATCH, TG_HOST};
        for (int s = 0; s < 2; s++) {
            ok(once.ctx, tg_optim_step_gradient(once.optim, &g, &once.weight));
            ok(twice.ctx, tg_optim_accumulate(twice.optim, &g));
            ok(twice.ctx, tg_optim_apply(twice.optim, 0, &twice.weight));
        }
        double apart, moved;
        distances(&twice, &once, &apart, &moved);
        assert_true(apart <= 1e-2 * moved);
        end(&once);
        end(&twice);
    }
}

TEST(refused) {
    rig r;
    tg_optim *optim = NULL;
    begin(&r, "cpu", 0, &kinds[4]);
    r.params[0].dtype = TG_C128;
    assert_int_equal(tg_optim_create(r.ctx, &r.setup, &optim), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "opt.state_precision"));
    r.params[0] = r.params[1];
    r.params[0].name = "small";
    assert_int_equal(tg_optim_create(r.ctx, &r.setup, &optim), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(r.ctx), "4096"));
    r.group.state_precision = TG_STATES_FULL;
    r.setup.forms_bf16 = r.setup.accumulates = true;
    assert_int_equal(tg_optim_create(r.ctx, &r.setup, &optim), TG_E_ARGUMENT);
    assert_null(optim);
    end(&r);
    begin(&r, "cpu", 0, &kinds[2]); /* formed in bf16, but the factors are wider */
    static float x[2 * BATCH * IN * MODES];
    const tg_gradient wide = {0, TG_C64, weight_shape, NULL, x, x, BATCH, TG_HOST};
    assert_int_equal(tg_optim_step_gradient(r.optim, &wide, &r.weight), TG_E_DTYPE);
    end(&r);
}
