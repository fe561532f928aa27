/* Graph kernels and their neighbours: cell lists against all pairs, cpu against ref, and gradients
 * against central differences in f64. Golden numbers: test_verify.sh. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "tgrad/tgrad.h"

static tg_context *open_on(const char *backend, int threads) {
    tg_context *ctx = NULL;
    const tg_context_config config = {.size = sizeof config, .threads = threads, .device = -1};
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, backend), TG_OK);
    return ctx;
}

static void ok(tg_context *ctx, tg_status status) {
    if (status != TG_OK) {
        fail_msg("%s", tg_context_error(ctx));
    }
}

static tg_tensor make(tg_context *ctx, tg_dtype dtype, tg_shape shape) {
    tg_tensor t;
    ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, dtype, &shape, &t));
    return t;
}

static double get(const tg_tensor *t, int64_t i) {
    return t->dtype == TG_F64 ? ((double *)t->data)[i] : (double)((float *)t->data)[i];
}

static void set(const tg_tensor *t, int64_t i, double value) {
    if (t->dtype == TG_F64) {
        ((double *)t->data)[i] = value;
    } else {
        ((float *)t->data)[i] = (float)value;
    }
}

static tg_tensor random_in(tg_context *ctx, tg_dtype dtype, tg_shape shape, uint32_t stream,
                           double low, double high) {
    const tg_rng rng = {.seed = 11, .purpose = TG_RNG_INIT, .step = stream};
    tg_tensor t = make(ctx, dtype, shape);
    for (int64_t i = 0; i < tg_tensor_numel(&t); i++) {
        set(&t, i, low + (high - low) * tg_rng_uniform(&rng, (uint64_t)i));
    }
    return t;
}

/* ---- neighbours ---- */

static bool is_near(const tg_tensor *y, const tg_tensor *x, int64_t i, int64_t j, double radius) {
    const int64_t dim = y->shape.dim[1];
    double sum = 0.0;
    for (int64_t d = 0; d < dim; d++) {
        const double apart = get(x, i * dim + d) - get(y, j * dim + d);
        sum += apart * apart;
    }
    return sum <= radius * radius;
}

/* Every point that is near is listed once, and nothing else. */
static void check_lists(tg_context *ctx, const tg_tensor *y, const tg_tensor *x, double radius) {
    const int64_t points = y->shape.dim[0], queries = x->shape.dim[0];
    tg_tensor splits, index;
    ok(ctx, tg_neighbours_find(ctx, radius, y, x, &splits, &index));
    const int64_t *first = splits.data, *found = index.data;
    char *seen = calloc((size_t)points, 1);
    assert_int_equal(first[0], 0);
    assert_int_equal(first[queries], tg_tensor_numel(&index));
    for (int64_t i = 0; i < queries; i++) {
        memset(seen, 0, (size_t)points);
        for (int64_t k = first[i]; k < first[i + 1]; k++) {
            assert_in_range(found[k], 0, points - 1);
            assert_false(seen[found[k]]);
            seen[found[k]] = 1;
        }
        for (int64_t j = 0; j < points; j++) {
            assert_int_equal(seen[j], is_near(y, x, i, j, radius));
        }
    }
    free(seen);
    tg_tensor_destroy(&splits);
    tg_tensor_destroy(&index);
}

static void neighbours_are_those_of_all_pairs(void **state) {
    (void)state;
    static const double radii[] = {0.0, 1e-3, 0.07, 0.25, 5.0};
    for (int threads = 1; threads <= 3; threads += 2) {
        tg_context *ctx = open_on("cpu", threads);
        for (int dim = 1; dim <= 3; dim++) {
            tg_tensor y = random_in(ctx, dim == 2 ? TG_F64 : TG_F32, (tg_shape){2, {157, dim}},
                                    (uint32_t)dim, 0.0, 1.0);
            tg_tensor x =
                random_in(ctx, y.dtype, (tg_shape){2, {211, dim}}, (uint32_t)dim + 9, -0.3, 1.3);
            /* duplicates, queries on points, and one far away */
            const size_t row = (size_t)dim * tg_dtype_size(y.dtype);
            memcpy((char *)y.data + 3 * row, y.data, 2 * row);
            memcpy(x.data, (char *)y.data + row, 7 * row);
            set(&x, 10 * dim, 1e20);
            for (size_t r = 0; r < sizeof radii / sizeof radii[0]; r++) {
                check_lists(ctx, &y, &x, radii[r]);
            }
            tg_tensor_destroy(&y);
            tg_tensor_destroy(&x);
        }
        tg_context_destroy(&ctx);
    }
}

/* Places of a regular grid whose spacing is the radius: all on surfaces of balls. */
static void the_ball_is_closed(void **state) {
    (void)state;
    tg_context *ctx = open_on("cpu", 2);
    tg_tensor y = make(ctx, TG_F32, (tg_shape){2, {64, 3}}), splits, index;
    for (int i = 0; i < 64; i++) {
        const int at[3] = {i / 16, i / 4 % 4, i % 4};
        for (int d = 0; d < 3; d++) {
            set(&y, 3 * i + d, 0.25 * at[d]);
        }
    }
    check_lists(ctx, &y, &y, 0.25);
    ok(ctx, tg_neighbours_find(ctx, 0.25, &y, &y, &splits, &index));
    assert_int_equal(tg_tensor_numel(&index), 64 + 2 * 3 * 48); /* itself, and along each axis */
    tg_tensor_destroy(&splits);
    tg_tensor_destroy(&index);
    set(&y, 7, NAN);
    assert_int_equal(tg_neighbours_find(ctx, 0.25, &y, &y, &splits, &index), TG_E_NUMERIC);
    assert_non_null(strstr(tg_context_error(ctx), "number 2"));
    assert_int_equal(tg_neighbours_find(ctx, -1.0, &y, &y, &splits, &index), TG_E_ARGUMENT);
    tg_tensor_destroy(&y);
    tg_context_destroy(&ctx);
}

/* ---- kernels ---- */

typedef struct block {
    tg_gno_config config;
    tg_tensor y, x, f, weights, out, dout, dweights, df;
} block;

static block make_block(tg_context *ctx, tg_dtype dtype, const tg_gno_config *config,
                        int64_t points, int64_t queries) {
    const int64_t batch = 2, in = config->in_channels, out = config->out_channels;
    const tg_shape weights = {1, {tg_gno_parameters(config, true)}};
    block b = {.config = *config};
    b.y = random_in(ctx, dtype, (tg_shape){2, {points, config->coord_dim}}, 1, 0.0, 1.0);
    b.x = random_in(ctx, dtype, (tg_shape){2, {queries, config->coord_dim}}, 2, -0.1, 1.1);
    b.f = random_in(ctx, dtype, (tg_shape){3, {batch, in, points}}, 3, -1.0, 1.0);
    b.weights = random_in(ctx, dtype, weights, 4, -0.7, 0.7);
    b.dout = random_in(ctx, dtype, (tg_shape){3, {batch, out, queries}}, 5, -1.0, 1.0);
    b.out = make(ctx, dtype, b.dout.shape);
    b.dweights = make(ctx, dtype, weights);
    b.df = make(ctx, dtype, b.f.shape);
    tg_tensor *poisoned[] = {&b.out, &b.dweights, &b.df};
    for (int k = 0; k < 3; k++) {
        for (int64_t i = 0; i < tg_tensor_numel(poisoned[k]); i++) {
            set(poisoned[k], i, NAN);
        }
    }
    return b;
}

static void free_block(block *b) {
    tg_tensor *all[] = {&b->y, &b->x, &b->f, &b->weights, &b->out, &b->dout, &b->dweights, &b->df};
    for (int i = 0; i < 8; i++) {
        tg_tensor_destroy(all[i]);
    }
}

static void forward(tg_context *ctx, block *b) {
    ok(ctx, tg_gno_forward(ctx, &b->config, &b->weights, &b->y, &b->x, &b->f, &b->out));
}

static void backward(tg_context *ctx, block *b) {
    ok(ctx, tg_gno_backward(ctx, &b->config, &b->weights, &b->y, &b->x, &b->f, &b->dout,
                            &b->dweights, &b->df));
}

static tg_gno_config config_of(int transform, int weighting) {
    tg_gno_config config = tg_gno_config_default();
    config.coord_dim = 1 + weighting % 3;
    config.in_channels = 3;
    config.out_channels = transform % 2 == 0 ? 3 : 5; /* not multiplied: any number */
    config.radius = 0.35;
    config.transform_type = transform;
    config.weighting_function = weighting;
    config.weight_function_scale = 1.5;
    config.reduction = weighting % 2;
    config.pos_embedding_type = (transform + weighting) % 3;
    config.pos_embedding_channels = 3;
    config.n_channel_mlp_layers = 1 + transform % 2;
    config.channel_mlp_layers[0] = 19;
    config.channel_mlp_layers[1] = 6;
    return config;
}

static void assert_close(const char *what, const tg_tensor *a, const tg_tensor *b) {
    double apart = 0.0, size = 0.0;
    for (int64_t i = 0; i < tg_tensor_numel(a); i++) {
        apart += (get(a, i) - get(b, i)) * (get(a, i) - get(b, i));
        size += get(b, i) * get(b, i);
    }
    if (!(sqrt(apart) <= 2e-5 * sqrt(size))) {
        fail_msg("%s: %g off, of %g", what, sqrt(apart), sqrt(size));
    }
}

static void cpu_computes_as_ref(void **state) {
    (void)state;
    tg_context *ref = open_on("ref", 1), *cpu = open_on("cpu", 3);
    for (int transform = 0; transform < 4; transform++) {
        for (int weighting = 0; weighting < 6; weighting++) {
            const tg_gno_config config = config_of(transform, weighting);
            block a = make_block(cpu, TG_F32, &config, 83, 61);
            block b = make_block(ref, TG_F32, &config, 83, 61);
            forward(cpu, &a);
            forward(ref, &b);
            assert_close("out", &a.out, &b.out);
            backward(cpu, &a);
            backward(ref, &b);
            assert_close("dweights", &a.dweights, &b.dweights);
            if (config.transform_type == TG_GNO_LINEAR_KERNELONLY) {
                assert_true(get(&a.df, 0) == 0.0 && get(&b.df, 0) == 0.0);
            }
            assert_close("df", &a.df, &b.df);
            free_block(&a);
            free_block(&b);
        }
    }
    tg_context_destroy(&ref);
    tg_context_destroy(&cpu);
}

static double objective(tg_context *ctx, block *b) {
    double sum = 0.0;
    forward(ctx, b);
    for (int64_t i = 0; i < tg_tensor_numel(&b->out); i++) {
        sum += get(&b->out, i) * get(&b->dout, i);
    }
    return sum;
}

/* A few entries of an array by central differences. */
static void check_gradient(tg_context *ctx, block *b, const tg_tensor *array,
                           const tg_tensor *gradient) {
    const double step = 1e-6;
    const int64_t count = tg_tensor_numel(array), stride = count / 23 + 1;
    for (int64_t i = 0; i < count; i += stride) {
        const double kept = get(array, i);
        set(array, i, kept + step);
        const double up = objective(ctx, b);
        set(array, i, kept - step);
        const double down = objective(ctx, b);
        set(array, i, kept);
        if (!(fabs((up - down) / (2.0 * step) - get(gradient, i)) <= 1e-6)) {
            fail_msg("entry %lld: %g by differences, %g", (long long)i, (up - down) / (2.0 * step),
                     get(gradient, i));
        }
    }
}

static void gradients_are_differences(void **state) {
    (void)state;
    tg_context *ctx = open_on("ref", 1);
    for (int transform = 0; transform < 4; transform++) {
        const tg_gno_config config = config_of(transform, transform + 1);
        block b = make_block(ctx, TG_F64, &config, 17, 11);
        backward(ctx, &b);
        check_gradient(ctx, &b, &b.weights, &b.dweights);
        check_gradient(ctx, &b, &b.f, &b.df);
        free_block(&b);
    }
    tg_context_destroy(&ctx);
}

static void the_same_bits_again(void **state) {
    (void)state;
    tg_context *ctx = open_on("cpu", 3);
    const tg_gno_config config = config_of(TG_GNO_NONLINEAR, 1);
    block a = make_block(ctx, TG_F32, &config, 83, 61),
          b = make_block(ctx, TG_F32, &config, 83, 61);
    backward(ctx, &a);
    backward(ctx, &b);
    assert_memory_equal(a.dweights.data, b.dweights.data, tg_tensor_bytes(&a.dweights));
    assert_memory_equal(a.df.data, b.df.data, tg_tensor_bytes(&a.df));
    free_block(&a);
    free_block(&b);
    tg_context_destroy(&ctx);
}

static void bad_settings_are_named(void **state) {
    (void)state;
    tg_context *ctx = open_on("cpu", 1);
    tg_gno_config config = tg_gno_config_default();
    config.in_channels = 2;
    assert_int_equal(tg_gno_config_check(ctx, &config), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "linear_kernelonly"));
    assert_int_equal(tg_gno_config_set(ctx, &config, "radius", "-1"), TG_E_CONFIG);
    assert_int_equal(tg_gno_config_set(ctx, &config, "channel_mlp_layers", "[1,2,3,4,5,6,7,8]"),
                     TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "1 to 7"));
    config.n_channel_mlp_layers = 0;
    assert_int_equal(tg_gno_parameters(&config, true), -1);
    assert_int_equal(tg_gno_config_check(ctx, &config), TG_E_CONFIG);
    tg_context_destroy(&ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_are_those_of_all_pairs),
        cmocka_unit_test(the_ball_is_closed),
        cmocka_unit_test(cpu_computes_as_ref),
        cmocka_unit_test(gradients_are_differences),
        cmocka_unit_test(the_same_bits_again),
        cmocka_unit_test(bad_settings_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
