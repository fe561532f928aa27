/* Settings of a group that change between updates, and random numbers of a part of a list. */
#include <string.h>

#include "support/cmocka.h"
#include "tgrad/tgrad.h"

enum { ENTRIES = 20 * 20 };

static const tg_shape shape = {2, {20, 20}};

static tg_context *begin(void) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "cpu"), TG_OK);
    return ctx;
}

static tg_optim_config random_entries(tg_context *ctx) {
    tg_optim_config config = tg_optim_config_default();
    assert_int_equal(tg_optim_config_set(ctx, &config, "name", "unstructured"), TG_OK);
    assert_int_equal(tg_optim_config_set(ctx, &config, "sparse_type", "randk"), TG_OK);
    config.min_entries = 0;
    return config;
}

/* `count` parameters of a longer list, of which the first is number `numbers[0]`. */
static tg_optim *make(tg_context *ctx, const tg_optim_config *config, int count,
                      const int *numbers) {
    const tg_optim_param params[2] = {{"a", TG_F32, shape, 0}, {"b", TG_F32, shape, 0}};
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = config,
                                  .group_count = 1,
                                  .params = params,
                                  .param_count = count,
                                  .seed = 5,
                                  .numbers = numbers};
    tg_optim *optim = NULL;
    assert_int_equal(tg_optim_create(ctx, &setup, &optim), TG_OK);
    return optim;
}

/* A weight of ones after one update by a gradient of ones. */
static void step(tg_context *ctx, tg_optim *optim, int param, float weight[ENTRIES]) {
    float gradient[ENTRIES];
    tg_tensor g, w;
    for (int i = 0; i < ENTRIES; i++) {
        gradient[i] = weight[i] = 1.0f;
    }
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &shape, gradient, &g), TG_OK);
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &shape, weight, &w), TG_OK);
    assert_int_equal(tg_optim_step(optim, param, &g, &w), TG_OK);
}

TEST(test_numbers_choose_the_random_entries) {
    tg_context *ctx = begin();
    const tg_optim_config config = random_entries(ctx);
    const int second = 1;
    tg_optim *both = make(ctx, &config, 2, NULL), *part = make(ctx, &config, 1, &second);
    float first_weight[ENTRIES], second_weight[ENTRIES], part_weight[ENTRIES];
    step(ctx, both, 0, first_weight);
    step(ctx, both, 1, second_weight);
    step(ctx, part, 0, part_weight);
    assert_memory_equal(part_weight, second_weight, sizeof part_weight);
    assert_memory_not_equal(part_weight, first_weight, sizeof part_weight);
    tg_optim_destroy(&both);
    tg_optim_destroy(&part);
    tg_context_destroy(&ctx);
}

TEST(test_a_group_follows_its_settings) {
    tg_context *ctx = begin();
    const tg_optim_config config = tg_optim_config_default();
    tg_optim *optim = make(ctx, &config, 1, NULL);
    tg_optim_config changed = config;
    changed.learning_rate = 0.5;
    changed.beta1 = 0.0;
    changed.beta2 = 0.0;
    changed.weight_decay = 1.0;
    assert_int_equal(tg_optim_set_group(optim, 0, &changed), TG_OK);
    float weight[ENTRIES];
    step(ctx, optim, 0, weight); /* (1 - 0.5) (1 - 0.5) */
    assert_float_equal(weight[7], 0.25f, 1e-5f);

    changed.complex_adam = TG_ADAM_SPLIT;
    assert_int_equal(tg_optim_set_group(optim, 0, &changed), TG_E_CONFIG);
    assert_string_equal(
        tg_context_error(ctx),
        "opt.complex_adam: it cannot change from modulus to split after the state was made");
    assert_int_equal(tg_optim_set_group(optim, 1, &config), TG_E_ARGUMENT);
    changed = config;
    changed.eps = -1.0;
    assert_int_equal(tg_optim_set_group(optim, 0, &changed), TG_E_CONFIG);
    step(ctx, optim, 0, weight); /* as before: refused settings changed nothing */
    assert_float_equal(weight[7], 0.25f, 1e-5f);
    tg_optim_destroy(&optim);
    tg_context_destroy(&ctx);
}

TEST(test_a_group_that_is_not_there) {
    tg_context *ctx = begin();
    const tg_optim_config config = tg_optim_config_default();
    const tg_optim_param param = {"a", TG_F64, shape,
                                  7}; /* the allowed ranks depend on the group */
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1};
    tg_optim *optim = NULL;
    assert_int_equal(tg_optim_create(ctx, &setup, &optim), TG_E_ARGUMENT);
    assert_string_equal(tg_context_error(ctx), "optimizer: a is in group 7, there are 1");
    tg_context_destroy(&ctx);
}
