/* Compressed sums between accumulate and apply: read, written, and averaged as several processes
 * would, against one optimizer that saw every gradient. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "support/fake_device.h"
#include "support/network.h"

enum { D0 = 6, D1 = 5, D2 = 4, NUMEL = D0 * D1 * D2, SMALL = 3, STEPS = 4 };

static const tg_shape shapes[2] = {{3, {D0, D1, D2}}, {1, {SMALL}}};

/* One process: two parameters, one of them projected. */
typedef struct process {
    tg_context *ctx;
    tg_optim *optim;
    tg_tensor weight[2], gradient[2]; /* where the backend computes */
} process;

static tg_tensor zeros(tg_context *ctx, const tg_shape *shape) {
    tg_tensor host = {0}, made = {0};
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_C128, shape, &host));
    memset(host.data, 0, tg_tensor_bytes(&host));
    net_ok(ctx, tg_backend_tensor(ctx, TG_MEM_DATA, TG_C128, shape, &made));
    net_ok(ctx, tg_backend_copy(ctx, &host, &made));
    tg_tensor_destroy(&host);
    return made;
}

static process begin(const char *backend, const char *method) {
    process p = {.ctx = net_context(backend, 1)};
    tg_optim_config group = tg_optim_config_default();
    net_ok(p.ctx, tg_optim_config_set(p.ctx, &group, "name", method));
    group.min_entries = 10;
    group.update_proj_gap = 3;
    group.learning_rate = 0.1;
    const tg_optim_param params[2] = {{"big", TG_C128, shapes[0], 0},
                                      {"bias", TG_C128, shapes[1], 0}};
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &group,
                                  .group_count = 1,
                                  .params = params,
                                  .param_count = 2,
                                  .accumulates = true};
    net_ok(p.ctx, tg_optim_create(p.ctx, &setup, &p.optim));
    for (int i = 0; i < 2; i++) {
        p.weight[i] = zeros(p.ctx, &shapes[i]);
        p.gradient[i] = zeros(p.ctx, &shapes[i]);
    }
    return p;
}

static void end(process *p) {
    for (int i = 0; i < 2; i++) {
        tg_tensor_destroy(&p->weight[i]);
        tg_tensor_destroy(&p->gradient[i]);
    }
    tg_optim_destroy(&p->optim);
    tg_context_destroy(&p->ctx);
}

/* The gradient of one half of the batch of a step. */
static void accumulate(process *p, int param, double step, int half) {
    const int64_t n = tg_shape_numel(&shapes[param]);
    double *values = malloc((size_t)n * 2 * sizeof *values);
    assert_non_null(values);
    for (int64_t i = 0; i < 2 * n; i++) {
        values[i] = sin(1.7 * (double)i + step) + 0.3 * cos((double)(i * i % 17) * (half + 1));
    }
    tg_tensor host;
    net_ok(p->ctx, tg_tensor_wrap(p->ctx, TG_C128, &shapes[param], values, &host));
    net_ok(p->ctx, tg_backend_copy(p->ctx, &host, &p->gradient[param]));
    free(values);
    const tg_gradient gradient = {.param = param,
                                  .dtype = TG_C128,
                                  .shape = shapes[param],
                                  .dense = p->gradient[param].data,
                                  .place = p->gradient[param].place};
    net_ok(p->ctx, tg_optim_accumulate(p->optim, &gradient));
}

static tg_tensor read_tensor(process *p, const tg_tensor *from) {
    tg_tensor host = {0};
    net_ok(p->ctx, tg_tensor_create(p->ctx, TG_MEM_DATA, from->dtype, &from->shape, &host));
    net_ok(p->ctx, tg_backend_copy(p->ctx, from, &host));
    return host;
}

/* As an all-reduce does: both get the sum of theirs. Returns the values that travelled. */
static int64_t add_up(process *a, process *b, int param) {
    int64_t sent = 0;
    const int count = tg_optim_sum_count(a->optim, param);
    assert_true(count > 0);
    assert_int_equal(tg_optim_sum_count(b->optim, param), count);
    for (int i = 0; i < count; i++) {
        tg_optim_sum x, y;
        net_ok(a->ctx, tg_optim_get_sum(a->optim, param, i, &x));
        net_ok(b->ctx, tg_optim_get_sum(b->optim, param, i, &y));
        assert_string_equal(x.name, y.name);
        assert_true(tg_shape_equal(&x.tensor.shape, &y.tensor.shape));
        assert_int_equal(x.tensor.dtype, TG_C128);
        assert_int_equal(x.tensor.place, tg_backend_place(a->ctx));
        tg_tensor p = read_tensor(a, &x.tensor), q = read_tensor(b, &y.tensor);
        for (int64_t k = 0; k < 2 * tg_tensor_numel(&p); k++) {
            ((double *)p.data)[k] += ((double *)q.data)[k];
        }
        net_ok(a->ctx, tg_backend_copy(a->ctx, &p, &x.tensor));
        net_ok(b->ctx, tg_backend_copy(b->ctx, &p, &y.tensor));
        sent += tg_tensor_numel(&p);
        tg_tensor_destroy(&p);
        tg_tensor_destroy(&q);
    }
    return sent;
}

static void apply(process *p) {
    for (int i = 0; i < 2; i++) {
        net_ok(p->ctx, tg_optim_apply(p->optim, i, &p->weight[i]));
        assert_int_equal(tg_optim_sum_count(p->optim, i), 0);
    }
}

static void expect_same(process *a, process *b, double tolerance) {
    for (int i = 0; i < 2; i++) {
        tg_tensor x = read_tensor(a, &a->weight[i]), y = read_tensor(b, &b->weight[i]);
        const double error = net_error(&x, &y);
        if (!(error <= tolerance)) {
            fail_msg("weight %d differs by %g", i, error);
        }
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&y);
    }
}

static void halves_add_up(const char *backend, const char *method) {
    process whole = begin(backend, method),
            half[2] = {begin(backend, method), begin(backend, method)};
    for (int step = 0; step < STEPS; step++) {
        for (int param = 0; param < 2; param++) {
            for (int h = 0; h < 2; h++) {
                accumulate(&whole, param, step, h);
                accumulate(&half[h], param, step, h);
            }
            const int64_t sent = add_up(&half[0], &half[1], param);
            const bool is_small = param == 0 && step % 3 != 0; /* no refresh: compressed */
            assert_int_equal(sent < tg_shape_numel(&shapes[param]),
                             is_small && strcmp(method, "adam") != 0);
        }
        apply(&whole);
        apply(&half[0]);
        apply(&half[1]);
        expect_same(&half[0], &half[1], 0.0); /* to the bit */
        expect_same(&half[0], &whole, 1e-12);
    }
    end(&whole);
    end(&half[0]);
    end(&half[1]);
}

TEST(test_halves_add_up) {
    static const char *const methods[] = {"adam",         "lowrank",    "galore",
                                          "unstructured", "structured", "tensorgrad"};
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        halves_add_up("cpu", methods[i]);
        halves_add_up("fake", methods[i]);
    }
}

/* The names and shapes of the sums, and when there are any. */
TEST(test_parts) {
    process p = begin("cpu", "tensorgrad");
    tg_optim_sum sum;
    assert_int_equal(tg_optim_sum_count(p.optim, 0), 0);
    assert_int_equal(tg_optim_get_sum(p.optim, 0, 0, &sum), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(p.ctx), "nothing is accumulated"));
    accumulate(&p, 0, 0, 0);
    accumulate(&p, 1, 0, 0);
    assert_int_equal(tg_optim_sum_count(p.optim, 0), 1); /* the first step refreshes */
    net_ok(p.ctx, tg_optim_get_sum(p.optim, 0, 0, &sum));
    assert_string_equal(sum.name, "dense");
    assert_true(tg_shape_equal(&sum.tensor.shape, &shapes[0]));
    apply(&p);
    accumulate(&p, 0, 1, 0);
    assert_int_equal(tg_optim_sum_count(p.optim, 0), 2);
    const tg_optim_projection kept = tg_optim_get_projection(p.optim, 0);
    net_ok(p.ctx, tg_optim_get_sum(p.optim, 0, 0, &sum));
    assert_string_equal(sum.name, "values");
    assert_int_equal(tg_tensor_numel(&sum.tensor), kept.kept);
    net_ok(p.ctx, tg_optim_get_sum(p.optim, 0, 1, &sum));
    assert_string_equal(sum.name, "core");
    assert_true(tg_shape_equal(&sum.tensor.shape, &kept.ranks));
    assert_int_equal(tg_optim_get_sum(p.optim, 0, 2, &sum), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(p.ctx), "sum 2 of 2 of big"));
    assert_int_equal(tg_optim_get_sum(p.optim, 7, 0, &sum), TG_E_ARGUMENT);
    end(&p);
}

/* NaN is looked for in what stands in the sums when they are applied, and so is overflow. */
static void nan_counts_where_it_is_written(const char *backend, double bad) {
    const double nothing[2 * SMALL] = {0.0};
    double spoilt[2 * SMALL] = {0.0};
    spoilt[3] = bad;
    process p = begin(backend, "adam");
    for (int turn = 0; turn < 2; turn++) { /* written over by NaN, or NaN written over */
        tg_tensor host;
        tg_optim_sum sum;
        net_ok(p.ctx, tg_tensor_wrap(p.ctx, TG_C128, &shapes[1],
                                     (void *)(uintptr_t)(turn ? spoilt : nothing), &host));
        net_ok(p.ctx, tg_backend_copy(p.ctx, &host, &p.gradient[1]));
        const tg_gradient gradient = {.param = 1,
                                      .dtype = TG_C128,
                                      .shape = shapes[1],
                                      .dense = p.gradient[1].data,
                                      .place = p.gradient[1].place};
        net_ok(p.ctx, tg_optim_accumulate(p.optim, &gradient));
        net_ok(p.ctx, tg_optim_get_sum(p.optim, 1, 0, &sum));
        host.data = (void *)(uintptr_t)(turn ? nothing : spoilt);
        net_ok(p.ctx, tg_backend_copy(p.ctx, &host, &sum.tensor));
        net_ok(p.ctx, tg_optim_apply(p.optim, 1, &p.weight[1]));
        net_ok(p.ctx, tg_optim_synchronize(p.optim));
        assert_int_equal(tg_optim_get_stats(p.optim).skipped, 1);
        assert_int_equal(tg_optim_get_stats(p.optim).steps, turn);
    }
    end(&p);
}

TEST(test_nan) {
    nan_counts_where_it_is_written("cpu", (double)NAN);
    nan_counts_where_it_is_written("cpu", 1e200);
    nan_counts_where_it_is_written("fake", (double)NAN);
}

/* Sums that are discarded, NaN and dense ones too, leave no trace. */
static void discarded(const char *backend) {
    process p = begin(backend, "tensorgrad"), twin = begin(backend, "tensorgrad");
    net_ok(p.ctx, tg_optim_discard(p.optim));
    for (int step = 0; step < STEPS; step++) {
        for (int param = 0; param < 2; param++) {
            accumulate(&p, param, step + 7, 1);
            if (step == 1) {
                accumulate(&p, param, INFINITY, 1);
            }
        }
        net_ok(p.ctx, tg_optim_discard(p.optim));
        for (int param = 0; param < 2; param++) {
            assert_int_equal(tg_optim_sum_count(p.optim, param), 0);
            accumulate(&p, param, step, 0);
            accumulate(&twin, param, step, 0);
        }
        apply(&p);
        apply(&twin);
        expect_same(&p, &twin, 0.0);
    }
    net_ok(p.ctx, tg_optim_synchronize(p.optim));
    assert_int_equal(tg_optim_get_stats(p.optim).steps, 2 * STEPS);
    assert_int_equal(tg_optim_get_stats(p.optim).skipped, 0);
    end(&p);
    end(&twin);
}

TEST(test_discarded) {
    discarded("cpu");
    discarded("fake");
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
