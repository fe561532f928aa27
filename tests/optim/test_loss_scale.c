/* Loss scaling: the sequence of scales; that a scale changes nothing in f32, bit for bit, on any
 * backend and with any optimizer; and that networks in f16 train with gradients that f16 could not
 * hold: too small, too large, complex, accumulated, clipped, on a device, saved and taken up again.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nn/config.h"
#include "optim/loss_scale.h"
#include "optim/optim.h"
#include "support/fake_device.h"
#include "support/network.h"
#include "train/step.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

/* ---- the sequence ---- */

static void advance(tg_loss_scale *s, tg_outcome outcome, int times) {
    for (int i = 0; i < times; i++) {
        tg_loss_scale_advance(s, outcome);
    }
}

TEST(scale_grows_after_good_steps) {
    tg_loss_scale s = tg_loss_scale_begin();
    s.config = (tg_loss_scale_config){
        .size = sizeof(tg_loss_scale_config), .is_dynamic = true, .interval = 4};
    assert_true(s.next == 0x1p16);
    advance(&s, TG_OUTCOME_GOOD, 3);
    assert_true(s.next == 0x1p16 && s.after == 0x1p16);
    tg_loss_scale_advance(&s, TG_OUTCOME_GOOD);
    assert_true(s.next == 0x1p16 && s.after == 0x1p17); /* the step in between has its scale */
    tg_loss_scale_advance(&s, TG_OUTCOME_GOOD);
    assert_true(s.next == 0x1p17 && s.good == 0); /* which is no proof for the new one */
    advance(&s, TG_OUTCOME_VOID, 9);
    assert_true(s.next == 0x1p17 && s.after == 0x1p17 && s.good == 0 && s.overflows == 0);
    advance(&s, TG_OUTCOME_GOOD, 1000);
    assert_true(s.next == 0x1p24 && s.after == 0x1p24); /* the most */
}

TEST(scale_yields_to_overflows) {
    tg_loss_scale s = tg_loss_scale_begin();
    s.config = (tg_loss_scale_config){
        .size = sizeof(tg_loss_scale_config), .is_dynamic = true, .interval = 4};
    advance(&s, TG_OUTCOME_GOOD, 2);
    tg_loss_scale_advance(&s, TG_OUTCOME_OVERFLOW);
    assert_true(s.next == 0x1p16 && s.after == 0x1p15 && s.good == 0);
    tg_loss_scale_advance(&s, TG_OUTCOME_OVERFLOW); /* at the old scale: halved once */
    assert_true(s.next == 0x1p15 && s.after == 0x1p15 && s.overflows == 2);
    tg_loss_scale_advance(&s, TG_OUTCOME_OVERFLOW);
    tg_loss_scale_advance(&s, TG_OUTCOME_GOOD); /* by chance, at the scale that overflowed */
    assert_true(s.next == 0x1p14 && s.good == 0);
    advance(&s, TG_OUTCOME_GOOD, 4);
    assert_true(s.after == 0x1p15);
    tg_loss_scale_advance(&s, TG_OUTCOME_OVERFLOW); /* 2^14 was too much already */
    tg_loss_scale_advance(&s, TG_OUTCOME_OVERFLOW); /* 2^15, which was under way */
    assert_true(s.next == 0x1p13 && s.after == 0x1p13);
    s.used = s.next;
    assert_true(tg_loss_scale_yields(&s));
    advance(&s, TG_OUTCOME_OVERFLOW, 100);
    s.used = s.next;
    assert_true(s.next == 0x1p-10 && s.after == 0x1p-10 && !tg_loss_scale_yields(&s));
}

TEST(state_of_a_scale_comes_back) {
    tg_loss_scale s = tg_loss_scale_begin(), t = tg_loss_scale_begin();
    s.config = t.config = (tg_loss_scale_config){
        .size = sizeof(tg_loss_scale_config), .is_dynamic = true, .interval = 3};
    int64_t numbers[TG_LOSS_SCALE_NUMBERS];
    for (int i = 0; i < 40; i++) {
        const tg_outcome outcome = i % 11 == 7 ? TG_OUTCOME_OVERFLOW : TG_OUTCOME_GOOD;
        tg_loss_scale_save(&s, numbers);
        assert_true(tg_loss_scale_load(&t, numbers));
        assert_true(t.next == s.next && t.after == s.after && t.good == s.good);
        assert_int_equal(t.overflows, s.overflows);
        assert_int_equal(t.config.interval, 3);
        tg_loss_scale_advance(&s, outcome);
    }
    static const int64_t bad[][TG_LOSS_SCALE_NUMBERS] = {
        {25, 16, 0, 0}, {16, -11, 0, 0}, {16, 16, -1, 0}, {16, 16, 0, -1}, {INT64_MIN, 16, 0, 0}};
    for (int i = 0; i < COUNT(bad); i++) {
        assert_false(tg_loss_scale_load(&t, bad[i]));
    }
    assert_true(tg_loss_scale_load(&t, NULL) && t.next == 0x1p16 && t.overflows == 0);
}

TEST(settings_are_read_or_refused) {
    tg_context *ctx = net_context("ref", 1);
    tg_loss_scale_config config = tg_loss_scale_config_default();
    net_ok(ctx, tg_loss_scale_config_parse(ctx, "opt.loss_scale", "auto", false, &config));
    assert_true(!config.is_dynamic && config.fixed == 1.0);
    net_ok(ctx, tg_loss_scale_config_parse(ctx, "opt.loss_scale", "auto", true, &config));
    assert_true(config.is_dynamic);
    net_ok(ctx, tg_loss_scale_config_parse(ctx, "opt.loss_scale", "off", true, &config));
    assert_true(!config.is_dynamic && config.fixed == 1.0);
    net_ok(ctx, tg_loss_scale_config_parse(ctx, "opt.loss_scale", "1024", true, &config));
    assert_true(!config.is_dynamic && config.fixed == 1024.0);
    static const char *const bad[] = {"0",    "-1024", "1000", "3",  "33554432", "1e-4",
                                      "1e99", "nan",   "inf",  "on", "",         "1024x"};
    for (int i = 0; i < COUNT(bad); i++) {
        assert_int_equal(tg_loss_scale_config_parse(ctx, "opt.loss_scale", bad[i], true, &config),
                         TG_E_CONFIG);
        assert_non_null(strstr(tg_context_error(ctx), "opt.loss_scale"));
        assert_non_null(strstr(tg_context_error(ctx), "a power of two"));
    }
    static const struct {
        const char *settings;
        bool passes;
    } networks[] = {
        {"{\"n_modes\": [4]}", false},
        {"{\"n_modes\": [4], \"activation_precision\": \"bf16\"}", false},
        {"{\"n_modes\": [4], \"activation_precision\": \"half\"}", true},
        {"{\"n_modes\": [4], \"fno_block_precision\": \"mixed\"}", true},
        {"{\"n_modes\": [4], \"fno_block_precision\": \"half\"}", true},
        {"{\"n_modes\": [4], \"fno_block_precision\": \"half\","
         " \"fno_block_weights_precision\": \"bf16\"}",
         false},
        /* the gradients of such weights are kept as they are */
        {"{\"n_modes\": [4], \"fno_block_weights_precision\": \"half\"}", false},
    };
    for (int i = 0; i < COUNT(networks); i++) {
        const tg_fno_config fno = net_config(ctx, networks[i].settings);
        assert_int_equal(tg_fno_passes_f16(&fno), networks[i].passes);
    }
    tg_context_destroy(&ctx);
}

/* ---- training ---- */

static const int64_t grid[2] = {9, 8};

#define WHOLE "{\"n_modes\": [6, 5], \"hidden_channels\": 6, \"n_layers\": 2}"
#define COMPLEX                                                                                    \
    "{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 2, \"complex_data\": true}"
#define HALF                                                                                       \
    "{\"n_modes\": [6, 5], \"hidden_channels\": 6, \"n_layers\": 2,"                               \
    " \"activation_precision\": \"half\", \"fno_block_precision\": \"half\","                      \
    " \"fno_block_weights_precision\": \"half\"}"
#define COMPLEX_HALF                                                                               \
    "{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"n_layers\": 2, \"complex_data\": true,"       \
    " \"activation_precision\": \"half\", \"fno_block_precision\": \"mixed\"}"

/* What is to be trained, and how. */
typedef struct recipe {
    const char *network, *loss;
    const char *settings[12]; /* of the optimizer, key and value */
    tg_loss_scale_config scale;
    bool accumulates;
    double max_grad_norm;
    tg_nonfinite_policy nonfinite;
} recipe;

typedef struct rig {
    recipe how;
    tg_context *ctx;
    tg_fno *fno;
    tg_optim *optim;
    tg_step *step;
    tg_tensor x, y;
    int warnings, notes;
} rig;

static void note(void *user, tg_log_level level, const char *message) {
    rig *r = user;
    r->warnings += level == TG_LOG_WARN;
    r->notes += strstr(message, "loss scale") != NULL;
}

static void make_optimizer(rig *r) {
    const recipe *how = &r->how;
    const int count = tg_fno_param_count(r->fno);
    tg_optim_param *params = calloc((size_t)count, sizeof *params);
    tg_optim_config groups[2] = {tg_optim_config_default()};
    assert_non_null(params);
    groups[0].learning_rate = 0.01;
    groups[0].eps = 1e-14;
    groups[0].min_entries = 100;
    groups[0].update_proj_gap = 3;
    groups[0].nonfinite = how->nonfinite;
    for (int i = 0; i < COUNT(how->settings) && how->settings[i]; i += 2) {
        net_ok(r->ctx, tg_optim_config_set(r->ctx, groups, how->settings[i], how->settings[i + 1]));
    }
    groups[1] = groups[0];
    groups[1].is_projected = false;
    for (int i = 0; i < count; i++) {
        const tg_fno_param p = tg_fno_get_param(r->fno, i);
        params[i] = (tg_optim_param){p.name, p.dtype, p.shape, p.spectral ? 0 : 1};
    }
    const tg_optim_setup setup = {.size = sizeof(tg_optim_setup),
                                  .groups = groups,
                                  .group_count = 2,
                                  .params = params,
                                  .param_count = count,
                                  .seed = 9,
                                  .takes_factored = true,
                                  .accumulates = how->accumulates};
    net_ok(r->ctx, tg_optim_create(r->ctx, &setup, &r->optim));
    for (int i = 0; i < count; i++) {
        const tg_fno_param param = tg_fno_get_param(r->fno, i);
        net_ok(r->ctx, tg_optim_bind(r->optim, i, &param.weight));
    }
    net_ok(r->ctx, tg_optim_set_loss_scale(r->optim, &how->scale));
    free(params);
}

static void put_batch(rig *r, uint64_t seed, tg_tensor *out) {
    const tg_fno_config *config = tg_fno_get_config(r->fno);
    tg_tensor host = net_random(r->ctx, config, 2, 1, grid, seed);
    net_ok(r->ctx, tg_backend_tensor(r->ctx, TG_MEM_DATA, host.dtype, &host.shape, out));
    net_ok(r->ctx, tg_backend_copy(r->ctx, &host, out));
    tg_tensor_destroy(&host);
}

static rig *begin(const char *backend, const recipe *how) {
    rig *r = calloc(1, sizeof *r);
    assert_non_null(r);
    r->how = *how;
    tg_context_config context = tg_context_config_default();
    context.threads = 2;
    context.log = note;
    context.log_user = r;
    assert_int_equal(tg_context_create(&context, &r->ctx), TG_OK);
    net_ok(r->ctx, tg_backend_select(r->ctx, backend));
    const tg_fno_config config = net_config(r->ctx, how->network);
    net_ok(r->ctx, tg_fno_create(r->ctx, &config, 3, &r->fno));
    net_ok(r->ctx, tg_fno_prepare(r->fno, 2, grid, true));
    make_optimizer(r);
    put_batch(r, 1, &r->x);
    put_batch(r, 2, &r->y);
    tg_step_config step = {.size = sizeof(tg_step_config),
                           .fno = r->fno,
                           .optim = r->optim,
                           .accumulates = how->accumulates,
                           .max_grad_norm = how->accumulates ? 0.0 : how->max_grad_norm};
    net_ok(r->ctx, tg_loss_config_parse(r->ctx, "loss", how->loss, &step.loss));
    net_ok(r->ctx, tg_step_create(r->ctx, &step, &r->step));
    return r;
}

static void end(rig **rigs) {
    rig *r = *rigs;
    tg_step_destroy(&r->step);
    tg_optim_destroy(&r->optim);
    tg_fno_destroy(&r->fno);
    tg_tensor_destroy(&r->x);
    tg_tensor_destroy(&r->y);
    tg_context_destroy(&r->ctx);
    free(r);
    *rigs = NULL;
}

static void apply_sums(rig *r) {
    double norm;
    if (r->how.max_grad_norm > 0.0) {
        net_ok(r->ctx, tg_optim_clip_accumulated(r->optim, r->how.max_grad_norm, &norm));
    }
    for (int i = 0; i < tg_fno_param_count(r->fno); i++) {
        const tg_fno_param param = tg_fno_get_param(r->fno, i);
        net_ok(r->ctx, tg_optim_apply(r->optim, i, &param.weight));
    }
    net_ok(r->ctx, tg_optim_end_update(r->optim));
}

/* So many updates; the loss of the last one. */
static double train(rig *r, int updates) {
    const int micro = r->how.accumulates ? 2 : 1;
    tg_step_result result = {0};
    double loss = (double)NAN;
    for (int i = 0; i < updates * micro; i++) {
        net_ok(r->ctx, tg_step_forward(r->step, &r->x, &r->y));
        net_ok(r->ctx, tg_step_synchronize(r->step, &result));
        net_ok(r->ctx, tg_step_backward(r->step));
        if (!tg_step_is_late(r->step)) {
            net_ok(r->ctx, tg_step_synchronize(r->step, &result));
            loss = result.loss;
        }
        if (micro > 1 && i % micro == micro - 1) {
            apply_sums(r);
        }
    }
    net_ok(r->ctx, tg_step_synchronize(r->step, &result));
    return result.samples > 0 ? result.loss : loss;
}

/* Weights and the state of the optimizer. */
static tg_archive *save(rig *r) {
    tg_archive *archive = NULL;
    net_ok(r->ctx, tg_archive_create(r->ctx, &archive));
    net_ok(r->ctx, tg_fno_save(r->fno, archive, ""));
    net_ok(r->ctx, tg_optim_save(r->optim, archive));
    return archive;
}

static void assert_same(rig *a, rig *b, bool with_scale) {
    tg_archive *x = save(a), *y = save(b);
    for (int64_t i = 0; i < tg_archive_count(x); i++) {
        const char *name = tg_archive_name(x, i);
        const tg_tensor *left = tg_archive_tensor(x, i), *right = tg_archive_find(y, name);
        if (!with_scale && strcmp(name, "optim.loss_scale") == 0) {
            continue;
        }
        assert_non_null(right);
        assert_true(tg_shape_equal(&left->shape, &right->shape));
        if (memcmp(left->data, right->data, tg_tensor_bytes(left)) != 0) {
            fail_msg("%s differs", name);
        }
    }
    if (with_scale) {
        assert_int_equal(tg_archive_count(x), tg_archive_count(y));
        assert_true(tg_optim_loss_scale(a->optim) == tg_optim_loss_scale(b->optim));
    }
    tg_archive_destroy(&x);
    tg_archive_destroy(&y);
}

static const tg_loss_scale_config none = {
    .size = sizeof(tg_loss_scale_config), .fixed = 1.0, .interval = 1};
static const tg_loss_scale_config quick = {
    .size = sizeof(tg_loss_scale_config), .is_dynamic = true, .fixed = 1.0, .interval = 3};
static const tg_loss_scale_config slow = {
    .size = sizeof(tg_loss_scale_config), .is_dynamic = true, .fixed = 1.0, .interval = 1000};

/* Nothing that follows a gradient of f32 knows of the scale, whether it stays or grows on the way:
 * refreshes, index sets, spectra and the ranks chosen from them, norms that are clipped, sums. */
TEST(f32_is_the_same_bit_for_bit) {
    static const char *const backends[] = {"ref", "cpu", "fake"};
    static const recipe recipes[] = {
        {.network = WHOLE, .settings = {"name", "adam"}},
        {.network = WHOLE, .settings = {"name", "galore"}},
        {.network = WHOLE, .settings = {"name", "structured"}},
        {.network = WHOLE, .settings = {"name", "tensorgrad"}},
        {.network = COMPLEX, .settings = {"name", "tensorgrad", "complex_adam", "split"}},
        {.network = COMPLEX,
         .settings = {"name", "unstructured", "sparse_type", "probability", "state_precision",
                      "half"}},
        {.network = WHOLE, .settings = {"name", "tensorgrad"}, .max_grad_norm = 0.05},
        {.network = WHOLE, .settings = {"name", "lowrank"}, .accumulates = true},
        {.network = COMPLEX,
         .settings = {"name", "tensorgrad"},
         .accumulates = true,
         .max_grad_norm = 0.05},
    };
    const tg_loss_scale_config scales[] = {
        {.size = sizeof(tg_loss_scale_config), .fixed = 0x1p20, .interval = 1}, quick};
    for (int i = 0; i < COUNT(recipes); i++) {
        for (int b = 0; b < COUNT(backends); b++) {
            recipe plain = recipes[i];
            plain.loss = "0.5*h1 + l2";
            plain.scale = none;
            rig *left = begin(backends[b], &plain);
            const double loss = train(left, 9);
            recipe scaled = plain;
            scaled.scale = scales[(i + b) % 2];
            rig *right = begin(backends[b], &scaled);
            assert_true(train(right, 9) == loss && isfinite(loss));
            assert_same(left, right, false);
            assert_true(tg_optim_loss_scale(right->optim) > 0x1p16);
            assert_int_equal(tg_optim_get_stats(right->optim).overflows, 0);
            end(&left);
            end(&right);
        }
    }
}

/* Gradients of 1e-9 are nothing in f16; with a scale that finds its size they train as in f32. */
TEST(small_gradients_train) {
    static const char *const backends[] = {"ref", "cpu", "fake"};
    static const char *const networks[][2] = {{WHOLE, HALF}, {COMPLEX, COMPLEX_HALF}};
    for (int i = 0; i < COUNT(networks); i++) {
        for (int b = i; b < COUNT(backends); b++) {
            recipe how = {.network = networks[i][0],
                          .loss = "1e-7*l2",
                          .settings = {"name", i ? "tensorgrad" : "adam"},
                          .scale = none};
            double reached[3];
            for (int side = 0; side < 3; side++) { /* f32, f16 without and with a scale */
                how.network = networks[i][side > 0];
                how.scale = side == 2 ? quick : none;
                rig *r = begin(backends[b], &how);
                reached[side] = 1e7 * train(r, 50);
                assert_int_equal(r->warnings, 0);
                end(&r);
            }
            assert_true(reached[0] < 0.98 * reached[1]);
            assert_true(fabs(reached[2] - reached[0]) < 0.02 * reached[0]);
        }
    }
}

/* Gradients of 1e3 overflow at the first scale: it yields, and training goes on. */
TEST(large_gradients_train) {
    static const char *const backends[] = {"ref", "cpu", "fake"};
    for (int b = 0; b < COUNT(backends); b++) {
        const recipe how = {.network = b ? HALF : COMPLEX_HALF,
                            .loss = "1e4*l2",
                            .settings = {"name", "tensorgrad"},
                            .scale = slow,
                            .accumulates = b == 1,
                            .nonfinite = TG_NONFINITE_ERROR};
        rig *r = begin(backends[b], &how);
        const double first = train(r, 1), reached = train(r, 60);
        const tg_optim_stats stats = tg_optim_get_stats(r->optim);
        assert_true(reached < 0.9 * first);
        assert_true(tg_optim_loss_scale(r->optim) < 0x1p10);
        assert_true(stats.overflows >= 2 && stats.overflows <= 40);
        assert_int_equal(stats.skipped, 0);
        assert_int_equal(r->warnings, 0);
        /* a line for every time that it was halved */
        assert_int_equal(r->notes, 16 - ilogb(tg_optim_loss_scale(r->optim)));
        end(&r);
    }
}

/* Overflows at every scale: it ends at the smallest one with one message, and the policy decides.
 */
TEST(the_least_scale_is_told) {
    recipe how = {.network = HALF, .loss = "1e12*l2", .settings = {"name", "adam"}, .scale = slow};
    rig *r = begin("cpu", &how);
    (void)train(r, 55);
    assert_true(tg_optim_loss_scale(r->optim) == 0x1p-10);
    assert_int_equal(r->notes, 26 + 1);
    const tg_optim_stats stats = tg_optim_get_stats(r->optim);
    assert_true(stats.skipped > 0 && stats.overflows > 52);
    assert_int_equal(r->warnings, stats.overflows - 52 + 1); /* one for each step */
    end(&r);
    how.nonfinite = TG_NONFINITE_ERROR;
    r = begin("cpu", &how);
    (void)train(r, 52);
    assert_true(tg_optim_loss_scale(r->optim) == 0x1p-10);
    net_ok(r->ctx, tg_step_forward(r->step, &r->x, &r->y));
    assert_int_equal(tg_step_backward(r->step), TG_E_NUMERIC);
    end(&r);
}

/* On a device the outcome of a step is known late; everything goes as on the host, also from
 * captured graphs, which hold the scale. */
TEST(a_device_does_the_same) {
    static const char *const methods[] = {"adam", "tensorgrad"};
    for (int m = 0; m < COUNT(methods); m++) {
        for (int way = 0; way < 3; way++) { /* plain, accumulated, clipped */
            const recipe how = {.network = HALF,
                                .loss = "100*l2",
                                .settings = {"name", methods[m], "update_proj_gap", "7"},
                                .scale = quick,
                                .accumulates = way == 1,
                                .max_grad_norm = way == 2 ? 1.0 : 0.0};
            rig *a = begin("cpu", &how), *b = begin("fake", &how);
            const fake_counts before = fake_device_counts();
            assert_true(train(a, 40) == train(b, 40));
            assert_same(a, b, true);
            assert_true(tg_optim_get_stats(a->optim).overflows > 2);
            const fake_counts after = fake_device_counts();
            /* the backward half is recorded once, the forward half for every scale */
            assert_true(way > 0 || after.recorded - before.recorded > 4);
            assert_true(way > 0 || m > 0 || after.launched - before.launched > 40);
            end(&a);
            end(&b);
        }
    }
}

/* Stopped after any step: the one whose outcome was not known when the next began. */
TEST(a_run_is_taken_up_again) {
    static const char *const backends[] = {"cpu", "fake"};
    const recipe how = {
        .network = HALF, .loss = "100*l2", .settings = {"name", "tensorgrad"}, .scale = quick};
    for (int b = 0; b < 2; b++) {
        for (int stop = 1; stop < 24; stop += 4) {
            rig *whole = begin(backends[b], &how);
            rig *half = begin(backends[b], &how), *rest = begin(backends[b], &how);
            (void)train(whole, 24);
            (void)train(half, stop);
            tg_archive *archive = save(half);
            net_ok(rest->ctx, tg_fno_load(rest->fno, archive, ""));
            net_ok(rest->ctx, tg_optim_load(rest->optim, archive));
            tg_archive_destroy(&archive);
            (void)train(rest, 24 - stop);
            assert_same(whole, rest, true);
            assert_int_equal(tg_optim_get_stats(whole->optim).overflows,
                             tg_optim_get_stats(rest->optim).overflows);
            end(&whole);
            end(&half);
            end(&rest);
        }
    }
}

/* A state of before there was a scale begins one; a damaged one is refused. */
TEST(other_states_are_met) {
    recipe how = {.network = HALF, .loss = "l2", .settings = {"name", "adam"}, .scale = none};
    rig *old = begin("cpu", &how);
    (void)train(old, 3);
    tg_archive *archive = save(old);
    how.scale = quick;
    rig *r = begin("cpu", &how);
    (void)train(r, 8);
    net_ok(r->ctx, tg_optim_load(r->optim, archive));
    assert_true(tg_optim_loss_scale(r->optim) == 0x1p16);
    tg_archive_destroy(&archive);
    archive = save(r);
    ((int64_t *)tg_archive_find(archive, "optim.loss_scale")->data)[1] = 60;
    assert_int_equal(tg_optim_load(r->optim, archive), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(r->ctx), "optim.loss_scale"));
    tg_archive_destroy(&archive);
    tg_loss_scale_config bad = {.size = sizeof(tg_loss_scale_config), .fixed = 3.0, .interval = 1};
    assert_int_equal(tg_optim_set_loss_scale(r->optim, &bad), TG_E_CONFIG);
    bad = (tg_loss_scale_config){
        .size = sizeof(tg_loss_scale_config), .is_dynamic = true, .interval = 0};
    assert_int_equal(tg_optim_set_loss_scale(r->optim, &bad), TG_E_CONFIG);
    end(&old);
    end(&r);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
