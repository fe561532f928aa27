/* Update rules other than Adam: Lion against scalar code of its formula, on dense and on compressed
 * values; bytes of its state; words; a backend without it. What holds for every rule (exact resume,
 * accumulation, plan) is in test_optim.c, and its state in less in test_optim_stored.c. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "optim/optim.h"
#include "support/fake_device.h"
#include "support/raw.h"
#include "tgrad/tgrad.h"

#include <complex.h> /* behind headers that name a field so */

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

static void begin(rig *r, const char *backend, tg_dtype dtype, const char *const *settings) {
    *r = (rig){.group = tg_optim_config_default(), .param = {"w", dtype, shape, 0}};
    assert_int_equal(tg_context_create(NULL, &r->ctx), TG_OK);
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

static void dense_values_follow_the_formula(void **state) {
    (void)state;
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
static void compressed_values_follow_the_formula(void **state) {
    (void)state;
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
static void state_is_one_moment(void **state) {
    (void)state;
    static const char *const lion_only[] = {NULL}, *const adam[] = {"rule", "adam", NULL};
    assert_int_equal(optimizer_bytes(lion_only), 8 * NUMEL);
    assert_int_equal(optimizer_bytes(adam), 12 * NUMEL);
}

/* A state of Adam is none of Lion, and the reverse. */
static void other_states_are_refused(void **state) {
    (void)state;
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

static void unknown_rules_are_refused(void **state) {
    (void)state;
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

/* A device without a kernel says so when the optimizer is planned or made. */
static void backends_without_it_refuse(void **state) {
    (void)state;
    static const char *const none[] = {NULL};
    size_t bytes[TG_MEM_CATEGORIES];
    rig r;
    begin(&r, "fake", TG_C64, none);
    assert_int_equal(tg_optim_plan(r.ctx, &r.setup, bytes), TG_E_UNSUPPORTED);
    assert_int_equal(tg_optim_create(r.ctx, &r.setup, &r.optim), TG_E_UNSUPPORTED);
    assert_non_null(strstr(tg_context_error(r.ctx), "backend fake has no way to run lion"));
    assert_null(r.optim);
    end(&r);
}

int main(void) {
    fake_device_add("fake");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_values_follow_the_formula),
        cmocka_unit_test(compressed_values_follow_the_formula),
        cmocka_unit_test(state_is_one_moment),
        cmocka_unit_test(other_states_are_refused),
        cmocka_unit_test(unknown_rules_are_refused),
        cmocka_unit_test(backends_without_it_refuse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
