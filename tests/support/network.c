/* See network.h. */
#include "support/network.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/context.h"
#include "base/rng.h"
#include "tensor/element.h"

void net_status_at(tg_context *ctx, const char *file, int line, tg_status status) {
    if (status != TG_OK) {
        print_error("%s:%d: %s: %s\n", file, line, tg_status_name(status), tg_context_error(ctx));
        _fail(file, line);
    }
}

tg_context *net_context(const char *backend, int threads) {
    tg_context_config config = tg_context_config_default();
    config.threads = threads;
    config.math = TG_MATH_FP32;
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    net_ok(ctx, tg_backend_select(ctx, backend));
    return ctx;
}

bool net_is_there(const char *backend) {
    const char *only = getenv("TEST_BACKEND");
    for (int i = 0; i < tg_backend_count() && (!only || strcmp(only, backend) == 0); i++) {
        tg_backend_info info;
        if (tg_backend_describe(NULL, i, &info) == TG_OK && strcmp(info.name, backend) == 0) {
            return info.available;
        }
    }
    return false;
}

tg_fno_config net_config(tg_context *ctx, const char *json) {
    tg_fno_config config = tg_fno_config_default();
    json_t *root = json_loads(json, 0, NULL);
    assert_non_null(root);
    const char *key;
    json_t *value;
    json_object_foreach(root, key, value) {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        net_ok(ctx, tg_fno_config_set(ctx, &config, key, text));
        free(text);
    }
    json_decref(root);
    return config;
}

tg_fno *net_fno(tg_context *ctx, uint64_t seed, const char *json) {
    const tg_fno_config config = net_config(ctx, json);
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, seed, &fno));
    return fno;
}

net_gradients net_gradients_make(tg_context *ctx, const tg_fno *fno) {
    const int count = tg_fno_param_count(fno);
    net_gradients g = {.ctx = ctx, .count = count};
    g.gradient = calloc((size_t)count, sizeof *g.gradient);
    assert_non_null(g.gradient);
    return g;
}

void net_gradients_free(net_gradients *gradients) {
    for (int i = 0; i < gradients->count; i++) {
        tg_tensor_destroy(&gradients->gradient[i]);
    }
    free(gradients->gradient);
    *gradients = (net_gradients){0};
}

static tg_status keep(void *user, const tg_gradient *gradient) {
    net_gradients *g = user;
    assert_in_range(gradient->param, 0, g->count - 1);
    tg_tensor *mine = &g->gradient[gradient->param];
    assert_null(mine->data); /* each parameter once */
    g->received++;
    tg_status status = tg_tensor_create(g->ctx, TG_MEM_OTHER, tg_dtype_wide(gradient->dtype),
                                        &gradient->shape, mine);
    return status == TG_OK ? tg_gradient_read(g->ctx, gradient, mine) : status;
}

tg_grad_sink net_sink(net_gradients *gradients) {
    return (tg_grad_sink){.receive = keep, .user = gradients};
}

double net_distance(const tg_tensor *got, const tg_tensor *expected) {
    double sum = 0.0;
    assert_true(!expected || tg_tensor_numel(got) == tg_tensor_numel(expected));
    for (int64_t i = 0; i < tg_tensor_numel(got); i++) {
        const tg_scalar a = tg_load(got->dtype, got->data, i);
        const tg_scalar b =
            expected ? tg_load(expected->dtype, expected->data, i) : (tg_scalar){0.0, 0.0};
        sum += (a.re - b.re) * (a.re - b.re) + (a.im - b.im) * (a.im - b.im);
    }
    return sqrt(sum);
}

double net_error(const tg_tensor *got, const tg_tensor *expected) {
    const double distance = net_distance(got, expected);
    return distance == 0.0 ? 0.0 : distance / net_distance(expected, NULL);
}

tg_tensor net_random(tg_context *ctx, const tg_fno_config *config, int64_t batch, int64_t channels,
                     const int64_t *grid, uint64_t seed) {
    const tg_dtype dtype = config->complex_data ? tg_dtype_complex(config->dtype) : config->dtype;
    tg_shape shape = {.ndim = 2 + config->n_dim, .dim = {batch, channels}};
    memcpy(shape.dim + 2, grid, (size_t)config->n_dim * sizeof *grid);
    tg_tensor x = {0};
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, dtype, &shape, &x));
    const tg_rng rng = {.seed = seed, .purpose = TG_RNG_TEST};
    for (int64_t i = 0; i < tg_tensor_numel(&x); i++) {
        const tg_scalar v = {2.0 * tg_rng_uniform(&rng, (uint64_t)(2 * i)) - 1.0,
                             2.0 * tg_rng_uniform(&rng, (uint64_t)(2 * i + 1)) - 1.0};
        tg_store(dtype, x.data, i, v);
    }
    return x;
}
