/* A gradient that is projected before its update: on a device that is none, and on the host where
 * it does nothing, weights and books end as without, bit for bit, whatever comes in between. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/fake_device.h"
#include "support/network.h"

enum { STEPS = 8, GAP = 4 };

static const tg_shape shapes[2] = {{3, {6, 5, 4}}, {2, {5, 3}}};

/* What happens between the projection and the update, in the step of that number. */
enum { NOTHING, OTHER_FIRST, OTHER_GRADIENT, WAITED, REFRESHED, TWICE, NOT_FINITE, IS_ERROR };

typedef struct rig {
    tg_context *ctx;
    tg_optim *optim;
    tg_optim_config group;
    tg_tensor weight[2], gradient[2], other; /* where the backend computes */
} rig;

static tg_tensor make(rig *r, const tg_shape *shape) {
    tg_tensor made = {0};
    net_ok(r->ctx, tg_backend_tensor(r->ctx, TG_MEM_DATA, TG_C128, shape, &made));
    return made;
}

/* Numbers of a step; one of them is not finite if `bad`. */
static void fill(rig *r, tg_tensor *to, double step, bool bad) {
    tg_tensor host = {0};
    net_ok(r->ctx, tg_tensor_create(r->ctx, TG_MEM_DATA, TG_C128, &to->shape, &host));
    double *values = host.data;
    for (int64_t i = 0; i < 2 * tg_tensor_numel(&host); i++) {
        values[i] = sin(1.7 * (double)i + step) + 0.3 * cos((double)(i * i % 17));
    }
    values[1] = bad ? (double)INFINITY : values[1];
    net_ok(r->ctx, tg_backend_copy(r->ctx, &host, to));
    tg_tensor_destroy(&host);
}

static rig begin(const char *backend, const char *method) {
    rig r = {.ctx = net_context(backend, 1), .group = tg_optim_config_default()};
    net_ok(r.ctx, tg_optim_config_set(r.ctx, &r.group, "name", method));
    r.group.min_entries = 10;
    r.group.update_proj_gap = GAP;
    r.group.learning_rate = 0.1;
    const tg_optim_param params[2] = {{"big", TG_C128, shapes[0], 0},
                                      {"other", TG_C128, shapes[1], 0}};
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &r.group,
                                  .group_count = 1,
                                  .params = params,
                                  .param_count = 2};
    net_ok(r.ctx, tg_optim_create(r.ctx, &setup, &r.optim));
    for (int i = 0; i < 2; i++) {
        r.weight[i] = make(&r, &shapes[i]);
        r.gradient[i] = make(&r, &shapes[i]);
        fill(&r, &r.weight[i], 3.0, false);
    }
    r.other = make(&r, &shapes[0]);
    fill(&r, &r.other, 99.0, true);
    return r;
}

static void end(rig *r) {
    for (int i = 0; i < 2; i++) {
        tg_tensor_destroy(&r->weight[i]);
        tg_tensor_destroy(&r->gradient[i]);
    }
    tg_tensor_destroy(&r->other);
    tg_optim_destroy(&r->optim);
    tg_context_destroy(&r->ctx);
}

static void project_ahead(rig *r, const tg_tensor *gradient) {
    const tg_gradient ahead = {
        .dtype = TG_C128, .shape = shapes[0], .dense = gradient->data, .place = gradient->place};
    net_ok(r->ctx, tg_optim_project_ahead(r->optim, &ahead));
}

static tg_status update(rig *r, int param) {
    return tg_optim_step(r->optim, param, &r->gradient[param], &r->weight[param]);
}

static void expect_same(rig *a, rig *b) {
    for (int i = 0; i < 2; i++) {
        tg_tensor x = {0}, y = {0};
        net_ok(a->ctx, tg_tensor_create(a->ctx, TG_MEM_DATA, TG_C128, &shapes[i], &x));
        net_ok(b->ctx, tg_tensor_create(b->ctx, TG_MEM_DATA, TG_C128, &shapes[i], &y));
        net_ok(a->ctx, tg_backend_copy(a->ctx, &a->weight[i], &x));
        net_ok(b->ctx, tg_backend_copy(b->ctx, &b->weight[i], &y));
        assert_memory_equal(x.data, y.data, tg_tensor_bytes(&x));
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&y);
    }
    net_ok(a->ctx, tg_optim_synchronize(a->optim));
    net_ok(b->ctx, tg_optim_synchronize(b->optim));
    const tg_optim_stats x = tg_optim_get_stats(a->optim), y = tg_optim_get_stats(b->optim);
    assert_memory_equal(&x, &y, sizeof x);
}

/* The gradient of `early` is projected ahead, that of `plain` is not. */
static void compare(const char *backend, const char *method) {
    rig early = begin(backend, method), plain = begin(backend, method);
    rig *const both[2] = {&early, &plain};
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < 2; i++) {
            fill(both[i], &both[i]->gradient[0], step, step == WAITED || step >= NOT_FINITE);
            fill(both[i], &both[i]->gradient[1], step, false);
        }
        project_ahead(&early, step == OTHER_GRADIENT ? &early.other : &early.gradient[0]);
        if (step == TWICE) {
            project_ahead(&early, &early.gradient[0]);
        }
        if (step == WAITED) {
            net_ok(early.ctx, tg_optim_synchronize(early.optim));
        }
        for (int i = 0; i < 2; i++) {
            if (step == IS_ERROR) { /* since then */
                both[i]->group.nonfinite = TG_NONFINITE_ERROR;
                net_ok(both[i]->ctx, tg_optim_set_group(both[i]->optim, 0, &both[i]->group));
                assert_int_equal(update(both[i], 0), TG_E_NUMERIC);
                assert_non_null(strstr(tg_context_error(both[i]->ctx), "big: 1 entries are NaN"));
                continue;
            }
            const int first = step == OTHER_FIRST;
            net_ok(both[i]->ctx, update(both[i], first));
            net_ok(both[i]->ctx, update(both[i], 1 - first));
            net_ok(both[i]->ctx, tg_optim_end_update(both[i]->optim));
        }
        expect_same(&early, &plain);
    }
    assert_int_equal(tg_optim_get_stats(early.optim).skipped, 2);
    end(&early);
    end(&plain);
}

TEST(test_ends_as_without) {
    static const char *const methods[] = {"adam",         "lowrank",    "galore",
                                          "unstructured", "structured", "tensorgrad"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        compare("cpu", methods[i]);
        compare("fake", methods[i]);
    }
}

/* Writes to its memory after the projection come too late. */
TEST(test_is_ahead) {
    rig early = begin("fake", "tensorgrad"), plain = begin("fake", "tensorgrad");
    rig *const both[2] = {&early, &plain};
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) {
            fill(both[i], &both[i]->gradient[0], step, false);
        }
        if (step > 0) {
            project_ahead(&early, &early.gradient[0]);
            fill(&early, &early.gradient[0], 55.0, false);
        }
        for (int i = 0; i < 2; i++) {
            net_ok(both[i]->ctx, update(both[i], 0));
        }
        expect_same(&early, &plain);
    }
    end(&early);
    end(&plain);
}

TEST(test_refused) {
    rig r = begin("fake", "tensorgrad");
    tg_gradient gradient = {.param = 2,
                            .dtype = TG_C128,
                            .shape = shapes[0],
                            .dense = r.gradient[0].data,
                            .place = r.gradient[0].place};
    assert_int_equal(tg_optim_project_ahead(r.optim, &gradient), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(r.ctx), "parameter 2 of 2"));
    gradient.param = 1;
    assert_int_equal(tg_optim_project_ahead(r.optim, &gradient), TG_E_SHAPE);
    assert_non_null(strstr(tg_context_error(r.ctx), "other"));
    end(&r);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
