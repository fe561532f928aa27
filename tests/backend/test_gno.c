/* Graph kernels and their neighbours: cell lists against all pairs and the same on every backend,
 * kernels against ref's, and gradients against central differences in f64. Golden numbers:
 * test_verify.sh. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "support/cmocka.h"
#include "support/fake_device.h"
#include "support/network.h"
#include "tgrad/tgrad.h"

#define COUNT(array) ((int)(sizeof(array) / sizeof((array)[0])))

static const char *const tuned[] = {"cpu", "fake", "cuda"};

static tg_context *open_on(const char *backend, int threads) {
    tg_context *ctx = NULL;
    const tg_context_config config = {
        .size = sizeof config, .threads = threads, .device = -1, .math = TG_MATH_FP32};
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

/* A copy where the backend computes, and one on the host that takes its place. */
static tg_tensor there(tg_context *ctx, const tg_tensor *here) {
    tg_tensor t;
    ok(ctx, tg_backend_tensor(ctx, TG_MEM_DATA, here->dtype, &here->shape, &t));
    ok(ctx, tg_backend_copy(ctx, here, &t));
    return t;
}

static void bring_back(tg_context *ctx, tg_tensor *t) {
    tg_tensor here = make(ctx, t->dtype, t->shape);
    ok(ctx, tg_backend_copy(ctx, t, &here));
    tg_tensor_destroy(t);
    *t = here;
}

/* The same lists to the last number, from places on the host and from those of the backend. */
static void check_equal(tg_context *ctx, const tg_tensor *y, const tg_tensor *x, double radius,
                        const tg_tensor *splits, const tg_tensor *index) {
    tg_tensor places[2] = {there(ctx, y), there(ctx, x)}, found[2];
    for (int i = 0; i < 2; i++) {
        ok(ctx, tg_neighbours_find(ctx, radius, i ? &places[0] : y, i ? &places[1] : x, &found[0],
                                   &found[1]));
        assert_int_equal(found[0].place, i ? tg_backend_place(ctx) : TG_HOST);
        assert_int_equal(tg_tensor_numel(&found[1]), tg_tensor_numel(index));
        bring_back(ctx, &found[0]);
        bring_back(ctx, &found[1]);
        assert_memory_equal(found[0].data, splits->data, tg_tensor_bytes(splits));
        assert_memory_equal(found[1].data, index->data, tg_tensor_bytes(index));
        tg_tensor_destroy(&found[0]);
        tg_tensor_destroy(&found[1]);
    }
    tg_tensor_destroy(&places[0]);
    tg_tensor_destroy(&places[1]);
}

/* Every point that is near is listed once, and nothing else. */
static void check_lists(tg_context *ctx, const tg_tensor *y, const tg_tensor *x, double radius,
                        tg_context *other) {
    const int64_t points = y->shape.dim[0], queries = x->shape.dim[0];
    tg_tensor splits, index;
    ok(ctx, tg_neighbours_find(ctx, radius, y, x, &splits, &index));
    if (other) {
        check_equal(other, y, x, radius, &splits, &index);
    }
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

TEST(neighbours_are_those_of_all_pairs) {
    static const double radii[] = {0.0, 1e-3, 0.07, 0.25, 5.0};
    for (int b = 0; b < COUNT(tuned); b++) {
        if (!net_is_there(tuned[b])) {
            continue;
        }
        tg_context *ctx = open_on("cpu", 1), *other = open_on(tuned[b], 3);
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
                check_lists(ctx, &y, &x, radii[r], other);
            }
            tg_tensor_destroy(&y);
            tg_tensor_destroy(&x);
        }
        tg_context_destroy(&ctx);
        tg_context_destroy(&other);
    }
}

/* Places of a regular grid whose spacing is the radius: all on surfaces of balls. */
TEST(the_ball_is_closed) {
    tg_context *ctx = open_on("cpu", 2);
    tg_tensor y = make(ctx, TG_F32, (tg_shape){2, {64, 3}}), splits, index;
    for (int i = 0; i < 64; i++) {
        const int at[3] = {i / 16, i / 4 % 4, i % 4};
        for (int d = 0; d < 3; d++) {
            set(&y, 3 * i + d, 0.25 * at[d]);
        }
    }
    check_lists(ctx, &y, &y, 0.25, NULL);
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
    tg_tensor weights = there(ctx, &b->weights), f = there(ctx, &b->f), out = there(ctx, &b->out);
    ok(ctx, tg_gno_forward(ctx, &b->config, &weights, &b->y, &b->x, &f, &out));
    ok(ctx, tg_backend_copy(ctx, &out, &b->out));
    tg_tensor_destroy(&weights);
    tg_tensor_destroy(&f);
    tg_tensor_destroy(&out);
}

static void backward(tg_context *ctx, block *b) {
    const tg_tensor *here[] = {&b->weights, &b->f, &b->dout, &b->dweights, &b->df};
    tg_tensor t[5];
    for (int i = 0; i < 5; i++) {
        t[i] = there(ctx, here[i]);
    }
    ok(ctx, tg_gno_backward(ctx, &b->config, &t[0], &b->y, &b->x, &t[1], &t[2], &t[3], &t[4]));
    ok(ctx, tg_backend_copy(ctx, &t[3], &b->dweights));
    ok(ctx, tg_backend_copy(ctx, &t[4], &b->df));
    for (int i = 0; i < 5; i++) {
        tg_tensor_destroy(&t[i]);
    }
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

/* Forward and backward of one block on two backends. */
static void compare(tg_context *one, tg_context *oracle, tg_dtype dtype,
                    const tg_gno_config *config, int64_t points, int64_t queries) {
    block a = make_block(one, dtype, config, points, queries);
    block b = make_block(oracle, dtype, config, points, queries);
    forward(one, &a);
    forward(oracle, &b);
    assert_close("out", &a.out, &b.out);
    backward(one, &a);
    backward(oracle, &b);
    assert_close("dweights", &a.dweights, &b.dweights);
    if (config->transform_type == TG_GNO_LINEAR_KERNELONLY) {
        assert_true(get(&a.df, 0) == 0.0 && get(&b.df, 0) == 0.0);
    }
    assert_close("df", &a.df, &b.df);
    free_block(&a);
    free_block(&b);
}

TEST(backends_compute_as_ref) {
    tg_context *ref = open_on("ref", 1);
    for (int k = 0; k < COUNT(tuned); k++) {
        if (!net_is_there(tuned[k]) || strcmp(tuned[k], "fake") == 0) { /* it computes as cpu */
            continue;
        }
        tg_context *ctx = open_on(tuned[k], 3);
        for (int transform = 0; transform < 4; transform++) {
            for (int weighting = 0; weighting < 6; weighting++) {
                const tg_gno_config config = config_of(transform, weighting);
                compare(ctx, ref, TG_F32, &config, 83, 61);
                if (weighting == transform) {
                    compare(ctx, ref, TG_F64, &config, 83, 61);
                }
            }
        }
        tg_context_destroy(&ctx);
    }
    tg_context_destroy(&ref);
}

/* So many edges that a GPU takes them in several chunks, which end inside of queries; ref would
 * take a minute. */
TEST(chunks_of_edges_make_one_sum) {
    if (!net_is_there("cuda")) {
        skip();
    }
    tg_context *cuda = open_on("cuda", 1), *cpu = open_on("cpu", 2);
    for (int transform = 0; transform < 4; transform++) {
        tg_gno_config config = config_of(transform, 0);
        config.coord_dim = 3;
        config.radius = 0.7;
        config.pos_embedding_type = TG_GNO_EMBED_TRANSFORMER;
        config.pos_embedding_channels = 32;
        config.n_channel_mlp_layers = 2;
        config.channel_mlp_layers[0] = 300;
        compare(cuda, cpu, TG_F32, &config, 301, 257);
    }
    tg_context_destroy(&cuda);
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

TEST(gradients_are_differences) {
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

TEST(the_same_bits_again) {
    for (int k = 0; k < COUNT(tuned); k++) {
        if (!net_is_there(tuned[k])) {
            continue;
        }
        tg_context *ctx = open_on(tuned[k], 3);
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
}

/* Coordinates that are not finite are named, on every backend the same. */
TEST(bad_places_are_named) {
    for (int k = 0; k < COUNT(tuned); k++) {
        if (!net_is_there(tuned[k])) {
            continue;
        }
        tg_context *ctx = open_on(tuned[k], 1);
        tg_tensor y = random_in(ctx, TG_F32, (tg_shape){2, {40, 3}}, 1, 0.0, 1.0);
        tg_tensor x = random_in(ctx, TG_F32, (tg_shape){2, {30, 3}}, 2, 0.0, 1.0), found[2];
        set(&x, 61, NAN);
        set(&x, 80, INFINITY);
        assert_int_equal(tg_neighbours_find(ctx, 0.25, &y, &x, &found[0], &found[1]), TG_E_NUMERIC);
        assert_non_null(
            strstr(tg_context_error(ctx), "queries: coordinate 1 of number 20 is not finite"));
        set(&y, 119, -INFINITY);
        assert_int_equal(tg_neighbours_find(ctx, 0.25, &y, &x, &found[0], &found[1]), TG_E_NUMERIC);
        assert_non_null(
            strstr(tg_context_error(ctx), "points: coordinate 2 of number 39 is not finite"));
        tg_tensor_destroy(&y);
        tg_tensor_destroy(&x);
        tg_context_destroy(&ctx);
    }
}

TEST(bad_settings_are_named) {
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
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
