/* Config structs of programs that were compiled with other headers: shorter ones get the defaults
 * of missing fields, impossible sizes are refused, and memory after a struct is never touched.
 */
#include <string.h>

#include "optim/optim.h"
#include "support/network.h"
#include "tgrad/step.h"

/* One call that takes a config. */
typedef struct reader {
    const char *type;
    size_t size, least;
    tg_status (*call)(tg_context *ctx, void *config);
} reader;

static tg_context *ctx;
static tg_optim_param param = {.name = "w", .dtype = TG_F64, .shape = {2, {4, 6}}};
static tg_optim_config group;

static tg_status read_context(tg_context *none, void *config) {
    (void)none;
    tg_context *made = NULL;
    const tg_status status = tg_context_create(config, &made);
    tg_context_destroy(&made);
    return status;
}

static tg_status read_network(tg_context *c, void *config) {
    tg_fno *made = NULL;
    const tg_status status = tg_fno_create(c, config, 1, &made);
    tg_fno_destroy(&made);
    return status;
}

static tg_status read_group(tg_context *c, void *config) {
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = config,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1};
    tg_optim *made = NULL;
    const tg_status status = tg_optim_create(c, &setup, &made);
    tg_optim_destroy(&made);
    return status;
}

static tg_status read_setup(tg_context *c, void *config) {
    tg_optim_memory memory;
    return tg_optim_plan_memory(c, config, &memory);
}

static tg_status read_projector(tg_context *c, void *config) {
    tg_projector *made = NULL;
    const tg_status status = tg_projector_create(c, config, TG_F64, &param.shape, 1, &made);
    tg_projector_destroy(&made);
    return status;
}

static tg_status read_loss(tg_context *c, void *config) {
    double values[4] = {1, 2, 3, 4}, loss = 0.0;
    tg_tensor x;
    net_ok(c, tg_tensor_wrap(c, TG_F64, &(tg_shape){3, {1, 1, 4}}, values, &x));
    return tg_loss_eval(c, config, &x, &x, &loss, NULL);
}

static const reader readers[] = {
    {"tg_context_config", sizeof(tg_context_config), sizeof(size_t), read_context},
    {"tg_fno_config", sizeof(tg_fno_config), offsetof(tg_fno_config, in_channels), read_network},
    {"tg_optim_config", sizeof(tg_optim_config), sizeof(size_t), read_group},
    {"tg_optim_setup", sizeof(tg_optim_setup), offsetof(tg_optim_setup, seed), read_setup},
    {"tg_projector_config", sizeof(tg_projector_config), sizeof(size_t), read_projector},
    {"tg_loss_config", sizeof(tg_loss_config), sizeof(size_t), read_loss},
};

enum { READERS = sizeof readers / sizeof readers[0], ROOM = 2048, SENTINEL = 0xA5 };

/* Every struct in working order. */
static void fill(const reader *r, void *config) {
    tg_fno_config network = tg_fno_config_default();
    net_ok(ctx, tg_fno_config_set(ctx, &network, "n_modes", "[4, 4]"));
    network.n_layers = 1;
    const tg_context_config context = tg_context_config_default();
    const tg_projector_config projector = tg_projector_config_default();
    const tg_loss_config loss = tg_loss_config_default();
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &group,
                                  .group_count = 1,
                                  .params = &param,
                                  .param_count = 1};
    const void *const good[READERS] = {&context, &network, &group, &setup, &projector, &loss};
    memset(config, SENTINEL, ROOM);
    memcpy(config, good[r - readers], r->size);
}

static void expect(const reader *r, void *config, size_t size, const char *words) {
    memcpy(config, &size, sizeof size);
    const tg_status status = r->call(ctx, config);
    const char *error = tg_context_error(r->call == read_context ? NULL : ctx);
    if (!words) {
        assert_int_equal(status, TG_OK);
        return;
    }
    assert_int_equal(status, TG_E_ARGUMENT);
    if (!strstr(error, r->type) || !strstr(error, words)) {
        fail_msg("%s of %zu bytes: %s", r->type, size, error);
    }
}

TEST(test_sizes) {
    union {
        max_align_t aligned;
        char bytes[ROOM];
    } config;
    for (const reader *r = readers; r < readers + READERS; r++) {
        fill(r, &config);
        expect(r, &config, r->size, NULL);
        expect(r, &config, 0, "its size is 0");
        expect(r, &config, r->size + 1, "newer headers");
        expect(r, &config, SIZE_MAX, "newer headers");
        if (r->least > sizeof(size_t)) {
            expect(r, &config, r->least - 1, "without a default");
        }
        /* an older struct: memory after it is not read */
        memset(config.bytes + r->least, SENTINEL, ROOM - r->least);
        expect(r, &config, r->least, NULL);
    }
}

/* What an older struct lacks has its default. */
TEST(test_missing_fields_have_defaults) {
    double pred[2] = {1, 2}, target[2] = {3, 5}, expected = 0.0, loss = 0.0;
    const tg_shape shape = {3, {1, 1, 2}};
    tg_loss_config config = tg_loss_config_default();
    tg_tensor x, y;
    net_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &shape, pred, &x));
    net_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &shape, target, &y));
    net_ok(ctx, tg_loss_eval(ctx, &config, &x, &y, &expected, NULL));
    config.size = offsetof(tg_loss_config, terms);
    config.terms = 99; /* not allowed, and not there */
    net_ok(ctx, tg_loss_eval(ctx, &config, &x, &y, &loss, NULL));
    assert_true(expected > 0.0 && loss == expected);
}

/* Several groups of an older program are as far apart as they are large. */
TEST(test_groups_of_another_size) {
    const size_t size = offsetof(tg_optim_config, moments_on_refresh);
    union {
        max_align_t aligned;
        char bytes[ROOM];
    } groups;
    tg_optim_config second = tg_optim_config_default();
    second.learning_rate = -1.0;
    group.size = second.size = size;
    memcpy(groups.bytes, &group, size);
    memcpy(groups.bytes + size, &second, size);
    group.size = sizeof group;
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = (const tg_optim_config *)(const void *)groups.bytes,
                                  .group_count = 2,
                                  .params = &param,
                                  .param_count = 1};
    tg_optim *optim = NULL;
    assert_int_equal(tg_optim_create(ctx, &setup, &optim), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx),
                           "opt.learning_rate: expected a finite number >= 0, found -1"));
}

/* What is written into the groups of a caller stays inside them. */
TEST(test_groups_that_are_written) {
    const int64_t grid[] = {8, 8};
    tg_fno_config network = tg_fno_config_default();
    tg_optim_config groups[2] = {tg_optim_config_default(), tg_optim_config_default()};
    tg_optim_setup setup = {.size = sizeof setup,
                            .groups = groups,
                            .group_count = 2,
                            .params = &param,
                            .param_count = 1};
    net_ok(ctx, tg_fno_config_set(ctx, &network, "n_modes", "[4, 4]"));
    net_ok(ctx, tg_step_choose_refresh_chunks(ctx, &network, 1, grid, &setup, groups));
    groups[0].size = SIZE_MAX;
    assert_int_equal(tg_step_choose_refresh_chunks(ctx, &network, 1, grid, &setup, groups),
                     TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "newer headers"));
    groups[0].size = offsetof(tg_optim_config, projector);
    setup.group_count = 1;
    assert_int_equal(tg_step_choose_refresh_chunks(ctx, &network, 1, grid, &setup, groups),
                     TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "have no projector"));
    groups[0].size = sizeof groups[0];
    assert_int_equal(tg_step_choose_refresh_chunks(ctx, &network, 1, grid, &setup, groups + 1),
                     TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "not those of the setup"));
}

/* Setting by name, into structs of the caller's size. */
TEST(test_set_by_name) {
    struct {
        tg_optim_config config;
        char after[64];
    } old;
    memset(&old, SENTINEL, sizeof old);
    tg_optim_config_init(&old.config, offsetof(tg_optim_config, nonfinite));
    const tg_optim_config untouched = old.config;
    char text[64];
    net_ok(ctx, tg_optim_config_set(ctx, &old.config, "beta1", "0.5"));
    assert_true(old.config.beta1 == 0.5);
    assert_int_equal(old.config.size, offsetof(tg_optim_config, nonfinite));
    assert_int_equal(tg_optim_config_set(ctx, &old.config, "nonfinite", "error"), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "nonfinite is not among its"));
    assert_memory_equal(&old.config.nonfinite, &untouched.nonfinite, sizeof untouched.nonfinite);
    for (size_t i = 0; i < sizeof old.after; i++) {
        assert_int_equal((unsigned char)old.after[i], SENTINEL);
    }
    for (int i = 0; i < tg_optim_config_count(); i++) { /* the default of what is not there */
        if (strcmp(tg_optim_config_key(i), "nonfinite") == 0) {
            assert_string_equal(tg_optim_config_get(&old.config, i, text, sizeof text), "skip");
        }
    }
    old.config.size = 0;
    assert_null(tg_optim_config_get(&old.config, 0, text, sizeof text));
    assert_int_equal(tg_optim_config_set(ctx, &old.config, "beta1", "0.5"), TG_E_ARGUMENT);
}

/* A newer program: the library fills what it knows, and then refuses the struct. */
TEST(test_init_of_any_size) {
    union {
        tg_fno_config config;
        char bytes[ROOM];
    } newer;
    memset(&newer, SENTINEL, sizeof newer);
    tg_fno_config_init(&newer.config, sizeof newer.config + 16);
    assert_int_equal(newer.config.size, sizeof newer.config + 16);
    assert_int_equal(newer.config.n_layers, tg_fno_config_default().n_layers);
    assert_int_equal(newer.bytes[sizeof newer.config + 15], 0);
    assert_int_equal((unsigned char)newer.bytes[sizeof newer.config + 16], SENTINEL);
    assert_int_equal(tg_fno_config_check(ctx, &newer.config), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "newer headers"));
}

int main(void) {
    ctx = net_context("cpu", 1);
    group = tg_optim_config_default();
    const int failed = t_run_tests(NULL, NULL);
    tg_context_destroy(&ctx);
    return failed;
}
