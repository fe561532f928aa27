/* opt.memory_budget: one rank for all projected parameters, the largest whose state fits. */
#include <string.h>

#include "support/cmocka.h"
#include "tgrad/tgrad.h"

enum { PARAMS = 3 };

static tg_status plan(tg_context *ctx, const char *const *settings, const char *budget,
                      size_t *state) {
    static const tg_optim_param params[PARAMS] = {
        {"first", TG_C64, {4, {9, 8, 12, 5}}, 0},
        {"second", TG_C64, {4, {7, 13, 6, 11}}, 0},
        {"bias", TG_F32, {1, {17}}, 0},
    };
    size_t bytes[TG_MEM_CATEGORIES];
    tg_optim_config group = tg_optim_config_default();
    for (int i = 0; settings[i]; i += 2) {
        assert_int_equal(tg_optim_config_set(ctx, &group, settings[i], settings[i + 1]), TG_OK);
    }
    assert_int_equal(tg_optim_config_set(ctx, &group, "memory_budget", budget), TG_OK);
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &group,
                                  .group_count = 1,
                                  .params = params,
                                  .param_count = PARAMS};
    const tg_status status = tg_optim_plan(ctx, &setup, bytes);
    *state = bytes[TG_MEM_OPTIMIZER] + bytes[TG_MEM_FACTORS] + bytes[TG_MEM_INDICES];
    tg_optim *optim = NULL;
    assert_int_equal(tg_optim_create(ctx, &setup, &optim), status);
    if (status == TG_OK) {
        const tg_mem_usage held = tg_context_memory(ctx, TG_HOST);
        assert_int_equal(held.current[TG_MEM_OPTIMIZER] + held.current[TG_MEM_FACTORS] +
                             held.current[TG_MEM_INDICES],
                         *state);
        for (int i = 0; i < 2; i++) { /* the rest of the settings can still change */
            group.learning_rate = 0.5;
            assert_int_equal(tg_optim_set_group(optim, 0, &group), TG_OK);
        }
    }
    tg_optim_destroy(&optim);
    return status;
}

/* Within the budget, and close to it: a rank more of one mode adds at most a fifth here. */
TEST(test_the_budget_is_used) {
    static const char *const methods[][8] = {
        {"name", "lowrank", "min_entries", "100"},
        {"name", "galore", "first_dim_rollup", "2", "min_entries", "100"},
        {"name", "tensorgrad", "sparse_ratio", "0.02", "min_entries", "100"},
        {"name", "lowrank", "rule", "lion", "min_entries", "100"},
    };
    static const char *const budgets[] = {"20KB", "33000", "60 KiB"};
    static const size_t bytes[] = {20000, 33000, 61440};
    const size_t bias = 2 * 17 * sizeof(float);
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        tg_context *ctx = NULL;
        assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
        size_t share, whole, before = 0;
        for (size_t b = 0; b < sizeof bytes / sizeof bytes[0]; b++) {
            size_t found;
            assert_int_equal(plan(ctx, methods[m], budgets[b], &found), TG_OK);
            assert_true(found <= bytes[b] + bias && found > before);
            assert_true((double)found >= 0.8 * (double)bytes[b]);
            before = found;
        }
        assert_int_equal(plan(ctx, methods[m], "0.5", &share), TG_OK);
        assert_int_equal(plan(ctx, methods[m], "1GB", &whole), TG_OK);
        assert_true(share < whole && whole < 1000000);
        tg_context_destroy(&ctx);
    }
}

TEST(test_what_cannot_be_is_refused) {
    static const char *const lowrank[] = {"name", "lowrank", "min_entries", "100", NULL};
    static const char *const sparse[] = {"name", "unstructured", NULL};
    tg_context *ctx = NULL;
    tg_optim_config group = tg_optim_config_default();
    size_t bytes;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(plan(ctx, lowrank, "200", &bytes), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "opt.memory_budget: 200 bytes are too few"));
    assert_int_equal(plan(ctx, sparse, "1MB", &bytes), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "a sparse projection has none"));
    assert_int_equal(tg_optim_config_set(ctx, &group, "rank", "auto"), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "opt.rank: auto was removed"));
    assert_int_equal(tg_optim_config_set(ctx, &group, "memory_budget", "1.5 MiB"), TG_OK);
    assert_true(group.memory_budget == 1.5 * 1048576.0);
    assert_int_equal(tg_optim_config_set(ctx, &group, "memory_budget", "much"), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "a number of bytes"));
    tg_context_destroy(&ctx);
}
