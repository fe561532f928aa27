/* Ranks that were set and that no weight of the shape has: the plan and the log say so, and name
 * what to set; ranks that are taken as set, or rounded up by the rule of a fraction, are silent. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/cmocka.h"
#include "tgrad/tgrad.h"

static char logged[1024];

static void keep_warning(void *user, tg_log_level level, const char *message) {
    (void)user;
    if (level == TG_LOG_WARN) {
        snprintf(logged, sizeof logged, "%s", message);
    }
}

static tg_context *begin(void) {
    tg_context_config config = tg_context_config_default();
    tg_context *ctx = NULL;
    config.log = keep_warning;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "cpu"), TG_OK);
    logged[0] = '\0';
    return ctx;
}

static tg_optim_config config_of(tg_context *ctx, const char *const *settings) {
    tg_optim_config config = tg_optim_config_default();
    for (; *settings; settings += 2) {
        assert_int_equal(tg_optim_config_set(ctx, &config, settings[0], settings[1]), TG_OK);
    }
    return config;
}

static tg_optim_setup setup_of(const tg_optim_config *config, const tg_optim_param *params,
                               int count) {
    return (tg_optim_setup){.size = sizeof(tg_optim_setup),
                            .groups = config,
                            .group_count = 1,
                            .params = params,
                            .param_count = count,
                            .takes_factored = true};
}

static const struct {
    const char *settings[9];
    tg_shape shape;
    int64_t asked, taken; /* 0: nothing is said */
    int64_t values;
    const char *says; /* what to set, and where */
} rows[] = {
    {{"name", "galore", "first_dim_rollup", "3"},
     {4, {64, 64, 64, 33}},
     65536,
     33,
     33 * 33,
     "set opt.galore_2d_proj_type to std"},
    {{"name", "galore", "first_dim_rollup", "3", "galore_2d_proj_type", "std"},
     {4, {64, 64, 64, 33}},
     .asked = 0},
    {{"name", "galore", "first_dim_rollup", "2"}, {4, {64, 64, 64, 33}}, .asked = 0},
    {{"name", "galore", "rank", "100", "galore_2d_proj_type", "right"},
     {4, {64, 64, 64, 33}},
     100,
     64,
     64 * 64,
     "set opt.rank to less"},
    {{"name", "lowrank", "rank", "40"},
     {4, {64, 64, 64, 33}},
     40,
     33,
     INT64_C(40) * 40 * 40 * 33,
     "in mode 4"},
    {{"name", "lowrank", "rank", "[43, 70, 43, 23]"},
     {4, {64, 64, 64, 33}},
     70,
     64,
     INT64_C(43) * 64 * 43 * 23,
     "a list within 64x64x64x33"},
    {{"name", "tensorgrad", "second_rank", "40"},
     {4, {64, 64, 64, 33}},
     40,
     33,
     INT64_C(40) * 40 * 40 * 33 + 432538,
     "opt.second_rank: 40 was"},
    {{"name", "lowrank"}, {4, {64, 64, 64, 33}}, .asked = 0},
    {{"name", "lowrank", "rank", "0.99"}, {2, {33, 32}}, .asked = 0}, /* int(0.995 33) + 1 of 32 */
    {{"name", "lowrank", "rank", "1.0"}, {4, {64, 64, 64, 33}}, .asked = 0},
    {{"name", "lowrank", "rank", "0.2"}, {2, {64, 576}}, .asked = 0}, /* 64 directions at most */
    {{"name", "galore", "rank", "1.0"}, {4, {64, 64, 64, 33}}, .asked = 0},
    {{"name", "lowrank", "rank", "33"}, {4, {64, 64, 1, 33}}, .asked = 0},
    {{"name", "lowrank", "memory_budget", "0.9"}, {3, {60, 4, 3}}, .asked = 0},
    {{"name", "tensorgrad"}, {4, {64, 64, 64, 33}}, .asked = 0},
    {{"name", "structured"}, {4, {64, 64, 64, 33}}, .asked = 0},
    {{"name", "adam", "rank", "100"}, {4, {64, 64, 64, 33}}, .asked = 0},
};

TEST(plans_name_what_is_clamped) {
    tg_context *ctx = begin();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        tg_optim_config config = config_of(ctx, rows[i].settings);
        config.min_entries = 100;
        const tg_optim_param params[] = {{"small", TG_F32, {1, {9}}, 0},
                                         {"w", TG_C64, rows[i].shape, 0},
                                         {"w2", TG_C64, rows[i].shape, 0}};
        const tg_optim_setup setup = setup_of(&config, params, 3);
        tg_optim_memory memory;
        assert_int_equal(tg_optim_plan_memory(ctx, &setup, &memory), TG_OK);
        const tg_clamped_rank *clamped = &memory.clamped;
        if (rows[i].asked == 0) {
            if (clamped->params != 0) {
                fail_msg("row %zu: %s", i, clamped->note);
            }
            continue;
        }
        assert_int_equal(clamped->params, 2);
        assert_string_equal(clamped->name, "w");
        assert_int_equal(clamped->asked, rows[i].asked);
        assert_int_equal(clamped->taken, rows[i].taken);
        const double entries = (double)tg_shape_numel(&rows[i].shape);
        assert_true(fabs(clamped->share * entries - (double)rows[i].values) < 0.5);
        if (!strstr(clamped->note, rows[i].says) || !strstr(clamped->note, "(1 more likewise)")) {
            fail_msg("row %zu: '%s' lacks '%s'", i, clamped->note, rows[i].says);
        }
    }
    assert_string_equal(logged, ""); /* plans do not log */
    tg_context_destroy(&ctx);
}

TEST(making_one_warns) {
    static const char *const sides[] = {"left", "std"};
    tg_context *ctx = begin();
    for (int i = 0; i < 2; i++) {
        const char *const settings[] = {
            "name", "galore", "first_dim_rollup", "3", "galore_2d_proj_type", sides[i], NULL};
        tg_optim_config config = config_of(ctx, settings);
        config.min_entries = 0;
        const tg_optim_param param = {"w", TG_C64, {4, {4, 4, 4, 3}}, 0};
        const tg_optim_setup setup = setup_of(&config, &param, 1);
        tg_optim *optim = NULL;
        logged[0] = '\0';
        assert_int_equal(tg_optim_create(ctx, &setup, &optim), TG_OK);
        tg_optim_destroy(&optim);
        assert_int_equal(strstr(logged, "16 was asked for") != NULL, i == 0);
        assert_int_equal(logged[0] != '\0', i == 0);
    }
    tg_context_destroy(&ctx);
}
