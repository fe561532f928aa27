/* Networks as functions of the caller's arrays: the numbers are those of tg_fno, two forwards may
 * come before their backwards, calls that cannot work are refused, and every allocation may fail.
 */
#include <stdlib.h>
#include <string.h>

#include "nn/network.h"
#include "support/network.h"
#include "support/no_memory.h"
#include "support/runner.h"

enum { BATCH = 3, MOST_PARAMS = 64, SEED = 3 };

static const int64_t grid[] = {8, 9};

/* Memory of the caller. Fences of NaN follow it. */
static void *take(size_t bytes) {
    const size_t whole = (bytes + 127) / 64 * 64;
    void *memory = aligned_alloc(64, whole);
    assert_non_null(memory);
    memset(memory, 0xFF, whole);
    return memory;
}

static void release(void *memory, size_t bytes) {
    for (size_t i = bytes; i < (bytes + 127) / 64 * 64; i++) {
        assert_int_equal(((unsigned char *)memory)[i], 0xFF);
    }
    free(memory);
}

typedef struct caller {
    tg_function_call call;
    size_t activations, workspace;
    const void *weights[MOST_PARAMS];
    void *gradients[MOST_PARAMS];
    size_t bytes[MOST_PARAMS];
    int count;
} caller;

/* The weights of a network, and arrays for all gradients. */
static void make_caller(tg_context *ctx, const tg_fno *fno, const tg_function *function,
                        caller *c) {
    *c = (caller){.count = tg_fno_param_count(fno)};
    assert_in_range(c->count, 1, MOST_PARAMS);
    net_ok(ctx, tg_function_sizes(function, &c->activations, &c->workspace));
    for (int i = 0; i < c->count; i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        c->bytes[i] = (size_t)tg_shape_numel(&param.shape) * tg_dtype_size(param.dtype);
        c->weights[i] = param.weight.data;
        c->gradients[i] = take(c->bytes[i]);
    }
    c->call = (tg_function_call){.seed = SEED,
                                 .weights = c->weights,
                                 .gradients = c->gradients,
                                 .activations = take(c->activations),
                                 .workspace = take(c->workspace)};
}

static void free_caller(caller *c) {
    for (int i = 0; i < c->count; i++) {
        release(c->gradients[i], c->bytes[i]);
    }
    release(c->call.activations, c->activations);
    release(c->call.workspace, c->workspace);
}

/* Every output and gradient of two batches, whose backwards come after both forwards, has the bits
 * that tg_fno computes. */
static void compare(tg_context *ctx, bool blocks_only, const char *json) {
    tg_fno_config config = net_config(ctx, json);
    config.blocks_only = blocks_only;
    tg_fno *fno = NULL;
    tg_function *function = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, SEED, &fno));
    net_ok(ctx, tg_fno_prepare(fno, BATCH, grid, true));
    config.input_gradient = true;
    net_ok(ctx, tg_function_create(ctx, &config, BATCH, grid, true, NULL, &function));
    caller callers[2];
    tg_tensor x[2], y[2], expected[2], dy[2], dx[2];
    for (int k = 0; k < 2; k++) {
        const int64_t batch = BATCH - k;
        make_caller(ctx, fno, function, &callers[k]);
        x[k] = net_random(ctx, &config, batch, config.in_channels, grid, 1 + (uint64_t)k);
        y[k] = net_random(ctx, &config, batch, config.out_channels, grid, 3);
        expected[k] = net_random(ctx, &config, batch, config.out_channels, grid, 4);
        dy[k] = net_random(ctx, &config, batch, config.out_channels, grid, 5 + (uint64_t)k);
        dx[k] = net_random(ctx, &config, batch, config.in_channels, grid, 7);
        net_ok(ctx, tg_function_forward(function, &callers[k].call, &x[k], &y[k]));
    }
    for (int k = 1; k >= 0; k--) {
        net_gradients kept = net_gradients_make(ctx, fno);
        const tg_grad_sink sink = net_sink(&kept);
        net_ok(ctx, tg_function_backward(function, &callers[k].call, &dy[k], k ? &dx[k] : NULL));
        net_ok(ctx, tg_fno_forward(fno, &x[k], &expected[k]));
        tg_fno_set_step(fno, 0);
        net_ok(ctx, tg_fno_backward(fno, &dy[k], &sink));
        tg_fno_set_step(fno, 0);
        assert_memory_equal(y[k].data, expected[k].data, tg_tensor_bytes(&y[k]));
        for (int i = 0; i < kept.count; i++) {
            assert_memory_equal(callers[k].gradients[i], kept.gradient[i].data,
                                callers[k].bytes[i]);
        }
        net_gradients_free(&kept);
    }
    for (int k = 0; k < 2; k++) {
        free_caller(&callers[k]);
        tg_tensor *const made[] = {&x[k], &y[k], &expected[k], &dy[k], &dx[k]};
        for (int i = 0; i < T_COUNT(made); i++) {
            tg_tensor_destroy(made[i]);
        }
    }
    tg_function_destroy(&function);
    tg_fno_destroy(&fno);
}

TEST(numbers_are_those_of_a_network) {
    tg_context *ctx = net_context("cpu", 2);
    compare(ctx, false, "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3}");
    compare(ctx, false,
            "{\"n_modes\": [4, 6], \"hidden_channels\": 5, \"n_layers\": 2, \"dtype\": \"f64\","
            "\"norm\": \"group_norm\", \"domain_padding\": 0.25, \"in_channels\": 2}");
    compare(ctx, false,
            "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 2,"
            "\"factorization\": \"tucker\", \"rank\": 0.5, \"channel_mlp_dropout\": 0.3}");
    compare(ctx, false,
            "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 2,"
            "\"complex_data\": true, \"saved_precision\": \"8bit\"}");
    compare(ctx, false,
            "{\"architecture\": \"uno\", \"hidden_channels\": 6, \"n_layers\": 3,"
            "\"uno_out_channels\": [6, 8, 6], \"uno_n_modes\": [[4, 6], [4, 4], [4, 6]],"
            "\"uno_scalings\": [[1, 1], [0.5, 0.5], [2, 2]], \"channel_mlp_skip\": \"linear\"}");
    compare(ctx, true,
            "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 2,"
            "\"in_channels\": 6, \"out_channels\": 6, \"domain_padding\": 0.25,"
            "\"positional_embedding\": null, \"saved_precision\": \"8bit\"}");
    tg_context_destroy(&ctx);
}

/* Gradients of spectral weights as factors, with room beside them that the caller may write to. */
static void compare_factors(tg_context *ctx, const char *json) {
    const tg_fno_config config = net_config(ctx, json);
    const tg_shared_workspace wanted = {.dense_bytes = 3000, .work_bytes = 70000};
    tg_gradient factors[MOST_PARAMS] = {{0}};
    tg_fno *fno = NULL;
    tg_function *function = NULL;
    caller c;
    int spectral = 0;
    net_ok(ctx, tg_fno_create(ctx, &config, SEED, &fno));
    net_ok(ctx, tg_fno_prepare(fno, BATCH, grid, true));
    net_ok(ctx, tg_function_create(ctx, &config, BATCH, grid, true, &wanted, &function));
    make_caller(ctx, fno, function, &c);
    net_gradients kept = net_gradients_make(ctx, fno);
    const tg_grad_sink sink = net_sink(&kept);
    tg_tensor x = net_random(ctx, &config, BATCH, 1, grid, 1);
    tg_tensor y = net_random(ctx, &config, BATCH, 1, grid, 2);
    tg_tensor dy = net_random(ctx, &config, BATCH, 1, grid, 3);
    net_ok(ctx, tg_fno_forward(fno, &x, &y));
    net_ok(ctx, tg_fno_backward(fno, &dy, &sink));
    void *none[MOST_PARAMS] = {NULL};
    tg_function_call call = c.call;
    call.gradients = none;
    call.factors = factors;
    net_ok(ctx, tg_function_forward(function, &call, &x, &y));
    net_ok(ctx, tg_function_backward(function, &call, &dy, NULL));
    const tg_shared_workspace shared = tg_function_shared(function);
    assert_true(shared.dense_bytes == wanted.dense_bytes && shared.work_bytes == wanted.work_bytes);
    memset(shared.dense, 0xFF, shared.dense_bytes);
    memset(shared.work, 0xFF, shared.work_bytes);
    for (int i = 0; i < c.count; i++) {
        tg_tensor *const expected = &kept.gradient[i];
        assert_true(tg_function_sends_factors(function, i) == (factors[i].x != NULL));
        if (factors[i].x) {
            tg_tensor dense;
            net_ok(ctx,
                   tg_tensor_create(ctx, TG_MEM_OTHER, expected->dtype, &expected->shape, &dense));
            net_ok(ctx, tg_gradient_read(ctx, &factors[i], &dense));
            assert_memory_equal(dense.data, expected->data, c.bytes[i]);
            tg_tensor_destroy(&dense);
            spectral++;
        }
    }
    assert_int_equal(spectral, config.n_layers);
    net_gradients_free(&kept);
    free_caller(&c);
    tg_tensor *const made[] = {&x, &y, &dy};
    for (int i = 0; i < T_COUNT(made); i++) {
        tg_tensor_destroy(made[i]);
    }
    tg_function_destroy(&function);
    tg_fno_destroy(&fno);
}

TEST(spectral_gradients_as_factors) {
    tg_context *ctx = net_context("cpu", 2);
    compare_factors(ctx, "{\"n_modes\": [4, 6], \"hidden_channels\": 6, \"n_layers\": 3}");
    compare_factors(ctx, "{\"n_modes\": [4, 6], \"hidden_channels\": 5, \"n_layers\": 2,"
                         "\"saved_precision\": \"8bit\", \"activation_checkpoint\": \"block\"}");
    tg_context_destroy(&ctx);
}

/* dL/dx against a difference of L = <dy, y> along a direction. */
static void check_input_gradient(tg_context *ctx, bool blocks_only) {
    tg_fno_config config =
        net_config(ctx, "{\"n_modes\": [4, 6], \"hidden_channels\": 1, \"n_layers\": 2,"
                        "\"channel_mlp_expansion\": 3, \"positional_embedding\": null,"
                        "\"dtype\": \"f64\"}");
    config.blocks_only = blocks_only;
    tg_fno *fno = NULL;
    tg_function *function = NULL;
    caller c;
    net_ok(ctx, tg_fno_create(ctx, &config, SEED, &fno));
    config.input_gradient = true;
    net_ok(ctx, tg_function_create(ctx, &config, BATCH, grid, true, NULL, &function));
    make_caller(ctx, fno, function, &c);
    tg_tensor x = net_random(ctx, &config, BATCH, 1, grid, 1);
    tg_tensor y = net_random(ctx, &config, BATCH, 1, grid, 2);
    tg_tensor dy = net_random(ctx, &config, BATCH, 1, grid, 3);
    tg_tensor dx = net_random(ctx, &config, BATCH, 1, grid, 4);
    tg_tensor along = net_random(ctx, &config, BATCH, 1, grid, 5);
    const int64_t n = tg_tensor_numel(&x);
    const double step = 1e-5;
    double *at = x.data, difference = 0.0, expected = 0.0;
    const double *direction = along.data;
    net_ok(ctx, tg_function_forward(function, &c.call, &x, &y));
    net_ok(ctx, tg_function_backward(function, &c.call, &dy, &dx));
    for (int side = -1; side <= 1; side += 2) {
        for (int64_t i = 0; i < n; i++) {
            at[i] += (side < 0 ? -1.0 : 2.0) * step * direction[i];
        }
        net_ok(ctx, tg_function_forward(function, &c.call, &x, &y));
        for (int64_t i = 0; i < n; i++) {
            difference += side * ((const double *)dy.data)[i] * ((const double *)y.data)[i];
        }
    }
    for (int64_t i = 0; i < n; i++) {
        expected += ((const double *)dx.data)[i] * direction[i];
    }
    difference /= 2.0 * step;
    const double error = difference > expected ? difference - expected : expected - difference;
    assert_true(expected != 0.0 && error <= 1e-7 * (expected > 0.0 ? expected : -expected));
    free_caller(&c);
    tg_tensor *const made[] = {&x, &y, &dy, &dx, &along};
    for (int i = 0; i < T_COUNT(made); i++) {
        tg_tensor_destroy(made[i]);
    }
    tg_function_destroy(&function);
    tg_fno_destroy(&fno);
}

TEST(input_gradient) {
    tg_context *ctx = net_context("cpu", 2);
    check_input_gradient(ctx, false);
    check_input_gradient(ctx, true);
    tg_context_destroy(&ctx);
}

static void expect_error(tg_context *ctx, tg_status expected, tg_status found, const char *part) {
    assert_int_equal(found, expected);
    if (!strstr(tg_context_error(ctx), part)) {
        fail_msg("'%s' is not in: %s", part, tg_context_error(ctx));
    }
}

TEST(errors) {
    tg_context *ctx = net_context("cpu", 2);
    tg_fno_config config = net_config(ctx, "{\"n_modes\": [4, 6], \"hidden_channels\": 6}");
    tg_fno *fno = NULL;
    tg_function *function = NULL, *other = NULL;
    caller c;
    net_ok(ctx, tg_fno_create(ctx, &config, SEED, &fno));
    net_ok(ctx, tg_function_create(ctx, &config, BATCH, grid, true, NULL, &function));
    make_caller(ctx, fno, function, &c);
    tg_tensor x = net_random(ctx, &config, BATCH + 1, 1, grid, 1);
    tg_tensor y = net_random(ctx, &config, BATCH + 1, 1, grid, 2);
    expect_error(ctx, TG_E_SHAPE, tg_function_forward(function, &c.call, &x, &y), "4 samples");
    expect_error(ctx, TG_E_SHAPE, tg_function_backward(function, &c.call, &y, NULL), "4 samples");
    x.shape.dim[0] = y.shape.dim[0] = BATCH;
    expect_error(ctx, TG_E_ARGUMENT, tg_function_backward(function, &c.call, &y, &x),
                 "input_gradient");
    tg_function_call call = c.call;
    call.activations = (char *)call.activations + 8;
    expect_error(ctx, TG_E_ARGUMENT, tg_function_forward(function, &call, &x, &y),
                 "activations is not a multiple of 64");
    call.activations = NULL;
    expect_error(ctx, TG_E_ARGUMENT, tg_function_forward(function, &call, &x, &y),
                 "activations is NULL");
    c.weights[2] = NULL;
    expect_error(ctx, TG_E_ARGUMENT, tg_function_forward(function, &c.call, &x, &y),
                 tg_fno_get_param(fno, 2).name);
    c.weights[2] = tg_fno_get_param(fno, 2).weight.data;
    net_ok(ctx, tg_function_create(ctx, &config, BATCH, grid, false, NULL, &other));
    expect_error(ctx, TG_E_ARGUMENT, tg_function_backward(other, &c.call, &y, NULL), "training");
    tg_function_destroy(&other);
    config.blocks_only = true;
    expect_error(ctx, TG_E_CONFIG, tg_function_create(ctx, &config, 2, grid, true, NULL, &other),
                 "blocks_only");
    config.blocks_only = false;
    config.micro_batch = 1;
    expect_error(ctx, TG_E_UNSUPPORTED,
                 tg_function_create(ctx, &config, 2, grid, true, NULL, &other), "micro_batch");
    assert_null(other);
    free_caller(&c);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_function_destroy(&function);
    tg_function_destroy(&function);
    tg_function_destroy(NULL);
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
}

static tg_status build(tg_context *ctx, const tg_fno_config *config) {
    tg_function *function = NULL;
    const tg_status status = tg_function_create(ctx, config, BATCH, grid, true, NULL, &function);
    tg_function_destroy(&function);
    return status;
}

TEST(every_allocation_may_fail) {
    tg_context *ctx = net_context("cpu", 2);
    const tg_fno_config config =
        net_config(ctx, "{\"n_modes\": [4, 6], \"hidden_channels\": 4, \"n_layers\": 2}");
    net_ok(ctx, build(ctx, &config)); /* what the backend makes once is there now */
    test_walk walk = {.ctx = ctx};
    while (test_walk_next(&walk)) {
        test_walk_called(&walk, build(ctx, &config));
    }
    assert_true(walk.n > 10);
    tg_context_destroy(&ctx);
}
