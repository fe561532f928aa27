/* GINOs: gradients against central differences in f64, plans against the ledger, devices against
 * the CPU, storage formats, and what is said when places are missing. Golden numbers:
 * test_verify.sh. */
#include <math.h>
#include <string.h>

#include "base/rng.h"
#include "support/fake_device.h"
#include "support/network.h"

enum { POINTS = 40, QUERIES = 23, BATCH = 2 };

#define COMMON                                                                                     \
    "\"architecture\": \"gino\", \"fno_n_modes\": [4, 3], \"fno_hidden_channels\": 4,"             \
    "\"fno_n_layers\": 2, \"in_channels\": 2, \"fno_in_channels\": 2, \"out_channels\": 3,"        \
    "\"in_gno_radius\": 0.3, \"out_gno_radius\": 0.35, \"gno_embed_channels\": 2,"                 \
    "\"in_gno_channel_mlp_hidden_layers\": [7, 5],"                                                \
    "\"out_gno_channel_mlp_hidden_layers\": [9]"

static const char *const cases[] = {
    "{" COMMON "}",
    "{" COMMON ", \"latent_feature_channels\": 2, \"activation_checkpoint\": \"block\"}",
    "{" COMMON ", \"out_gno_tanh\": \"latent_embed\", \"activation_checkpoint\": \"minimal\"}",
    "{" COMMON ", \"in_gno_transform_type\": \"nonlinear\", \"latent_feature_channels\": 1,"
    "\"micro_batch\": 1, \"gno_weighting_function\": \"quartic\"}",
    "{" COMMON ", \"in_gno_transform_type\": \"linear_kernelonly\","
    "\"out_gno_transform_type\": \"nonlinear\", \"factorization\": \"tucker\", \"rank\": 0.5}",
    "{" COMMON ", \"in_gno_transform_type\": \"nonlinear_kernelonly\", \"domain_padding\": 0.25,"
    "\"use_channel_mlp\": false, \"in_gno_pos_embed_type\": null}",
};

enum { CASES = sizeof cases / sizeof cases[0] };

static const int64_t sizes[] = {5, 6, POINTS, QUERIES};

typedef struct problem {
    tg_context *ctx;
    tg_fno *fno;
    tg_fno_config config;
    tg_tensor points, queries, features, x, target;
    tg_loss_config loss;
} problem;

static tg_tensor random_of(tg_context *ctx, tg_dtype dtype, tg_shape shape, uint32_t stream) {
    const tg_rng rng = {.seed = 3, .purpose = TG_RNG_TEST, .step = stream};
    tg_tensor t;
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, dtype, &shape, &t));
    for (int64_t i = 0; i < tg_tensor_numel(&t); i++) {
        const double value = tg_rng_uniform(&rng, (uint64_t)i);
        if (dtype == TG_F64) {
            ((double *)t.data)[i] = value;
        } else {
            ((float *)t.data)[i] = (float)value;
        }
    }
    return t;
}

static problem make(tg_context *ctx, const char *json, tg_dtype dtype) {
    problem p = {.ctx = ctx, .config = net_config(ctx, json)};
    p.config.dtype = dtype;
    net_ok(ctx, tg_fno_create(ctx, &p.config, 5, &p.fno));
    net_ok(ctx, tg_fno_prepare(p.fno, BATCH, sizes, true));
    net_ok(ctx, tg_loss_config_parse(ctx, "loss", "l2", &p.loss));
    p.points = random_of(ctx, dtype, (tg_shape){2, {POINTS, 2}}, 1);
    p.queries = random_of(ctx, dtype, (tg_shape){2, {QUERIES, 2}}, 2);
    p.x = random_of(ctx, dtype, (tg_shape){3, {BATCH, 2, POINTS}}, 3);
    p.target = random_of(ctx, dtype, (tg_shape){3, {BATCH, 3, QUERIES}}, 4);
    net_ok(ctx, tg_fno_set_points(p.fno, &p.points, &p.queries, NULL));
    if (p.config.latent_feature_channels > 0) {
        p.features = random_of(ctx, dtype,
                               (tg_shape){4, {BATCH, p.config.latent_feature_channels, 5, 6}}, 5);
        net_ok(ctx, tg_fno_set_features(p.fno, &p.features));
    }
    return p;
}

static void drop(problem *p) {
    tg_fno_destroy(&p->fno);
    tg_tensor *all[] = {&p->points, &p->queries, &p->features, &p->x, &p->target};
    for (int i = 0; i < 5; i++) {
        tg_tensor_destroy(all[i]);
    }
}

static double loss_of(problem *p, net_gradients *gradients) {
    const tg_grad_sink sink = net_sink(gradients);
    double loss = NAN;
    net_ok(p->ctx, tg_fno_loss_backward(p->fno, &p->x, &p->target, &p->loss, &sink, &loss));
    return loss;
}

/* ---- gradients ---- */

/* One entry of a parameter, as real numbers. */
static void check_entry(problem *p, int param, int64_t i, double gradient) {
    net_gradients unused = net_gradients_make(p->ctx, p->fno);
    double *w = tg_fno_get_param(p->fno, param).weight.data;
    const double kept = w[i], step = 1e-6;
    w[i] = kept + step;
    const double up = loss_of(p, &unused);
    net_gradients_free(&unused);
    unused = net_gradients_make(p->ctx, p->fno);
    w[i] = kept - step;
    const double down = loss_of(p, &unused);
    w[i] = kept;
    net_gradients_free(&unused);
    if (!(fabs((up - down) / (2.0 * step) - gradient) <= 1e-7)) {
        fail_msg("%s[%lld]: %g by differences, %g", tg_fno_get_param(p->fno, param).name,
                 (long long)i, (up - down) / (2.0 * step), gradient);
    }
}

TEST(gradients_are_differences) {
    tg_context *ctx = net_context("ref", 1);
    for (int c = 0; c < CASES; c++) {
        problem p = make(ctx, cases[c], TG_F64);
        net_gradients gradients = net_gradients_make(ctx, p.fno);
        (void)loss_of(&p, &gradients);
        assert_int_equal(gradients.received, tg_fno_param_count(p.fno));
        for (int i = 0; i < gradients.count; i++) {
            const tg_tensor *g = &gradients.gradient[i];
            check_entry(&p, i, tg_tensor_numel(g) / 2, ((double *)g->data)[tg_tensor_numel(g) / 2]);
        }
        net_gradients_free(&gradients);
        drop(&p);
    }
    tg_context_destroy(&ctx);
}

/* ---- memory ---- */

static const char *const backends[] = {"cpu", "fake", "cuda"};

enum { BACKENDS = sizeof backends / sizeof backends[0] };

static void check_plan(const char *backend, const char *json) {
    tg_context *ctx = net_context(backend, 2);
    const tg_place place = tg_backend_place(ctx);
    const tg_fno_config config = net_config(ctx, json);
    tg_fno_memory plan;
    net_ok(ctx, tg_fno_plan(ctx, &config, BATCH, sizes, true, NULL, &plan));
    const tg_mem_usage before = tg_context_memory(ctx, place);
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, 5, &fno));
    net_ok(ctx, tg_fno_prepare(fno, BATCH, sizes, true));
    const tg_mem_usage after = tg_context_memory(ctx, place);
    for (int k = 0; k < TG_MEM_CATEGORIES; k++) {
        if (plan.bytes[k] > 0) {
            const size_t host = k == TG_MEM_WORKSPACE ? plan.host : 0;
            assert_int_equal(after.current[k] - before.current[k], plan.bytes[k] - host);
        }
    }
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
}

TEST(a_plan_is_what_the_ledger_counts) {
    for (int i = 0; i < BACKENDS * CASES; i++) {
        if (net_is_there(backends[i / CASES])) {
            check_plan(backends[i / CASES], cases[i % CASES]);
        }
    }
}

/* ---- devices ---- */

static void compare_gradients(const net_gradients *got, const net_gradients *expected) {
    assert_int_equal(got->received, expected->received);
    for (int i = 0; i < got->count; i++) {
        const double apart = net_distance(&got->gradient[i], &expected->gradient[i]);
        const double size = net_distance(&expected->gradient[i], NULL);
        if (!(apart <= 1e-4 * size + 1e-7)) {
            fail_msg("gradient %d: %g off, of %g", i, apart, size);
        }
    }
}

/* The same loss and gradients, with places on the host and with those of the device. */
TEST(devices_compute_as_cpu) {
    for (int i = CASES; i < BACKENDS * CASES; i++) {
        if (!net_is_there(backends[i / CASES])) {
            continue;
        }
        tg_context *cpu = net_context("cpu", 2), *ctx = net_context(backends[i / CASES], 2);
        problem a = make(cpu, cases[i % CASES], TG_F32), b = make(ctx, cases[i % CASES], TG_F32);
        net_gradients expected = net_gradients_make(cpu, a.fno);
        const double loss = loss_of(&a, &expected);
        tg_tensor points;
        net_ok(ctx, tg_backend_tensor(ctx, TG_MEM_DATA, TG_F32, &b.points.shape, &points));
        net_ok(ctx, tg_backend_copy(ctx, &b.points, &points));
        for (int placed = 0; placed < 2; placed++) {
            net_gradients got = net_gradients_make(ctx, b.fno);
            net_ok(ctx, tg_fno_set_points(b.fno, placed ? &points : &b.points, &b.queries, NULL));
            assert_true(fabs(loss_of(&b, &got) - loss) <= 1e-5 * loss);
            compare_gradients(&got, &expected);
            net_gradients_free(&got);
        }
        tg_tensor_destroy(&points);
        net_gradients_free(&expected);
        drop(&a);
        drop(&b);
        tg_context_destroy(&cpu);
        tg_context_destroy(&ctx);
    }
}

/* ---- formats ---- */

TEST(small_formats_are_near_the_full_ones) {
    static const char *const formats[] = {
        "{" COMMON "}",
        "{" COMMON ", \"activation_precision\": \"bf16\"}",
        "{" COMMON ", \"saved_precision\": \"8bit\", \"activation_checkpoint\": \"block\"}",
        "{" COMMON ", \"fno_block_precision\": \"mixed\"}",
    };
    for (int b = 0; b < BACKENDS; b++) {
        if (!net_is_there(backends[b])) {
            continue;
        }
        tg_context *ctx = net_context(backends[b], 2);
        double full = 0.0;
        for (int i = 0; i < 4; i++) {
            problem p = make(ctx, formats[i], TG_F32);
            net_gradients gradients = net_gradients_make(ctx, p.fno);
            const double loss = loss_of(&p, &gradients);
            full = i == 0 ? loss : full;
            assert_true(fabs(loss - full) <= 2e-2 * full);
            net_gradients_free(&gradients);
            drop(&p);
        }
        tg_context_destroy(&ctx);
    }
}

/* ---- errors ---- */

TEST(what_is_missing_is_said) {
    tg_context *ctx = net_context("cpu", 1);
    problem p = make(ctx, cases[1], TG_F32);
    tg_tensor y = random_of(ctx, TG_F32, p.target.shape, 6);
    const int64_t others[] = {5, 6, POINTS, QUERIES + 1};
    assert_int_equal(tg_fno_forward(p.fno, &p.x, &y), TG_OK);
    net_ok(ctx, tg_fno_prepare(p.fno, BATCH, others, false));
    assert_int_equal(tg_fno_forward(p.fno, &p.x, &y), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "tg_fno_set_points"));
    assert_int_equal(tg_fno_set_points(p.fno, &p.points, &p.queries, NULL), TG_E_SHAPE);
    net_ok(ctx, tg_fno_prepare(p.fno, BATCH, sizes, false));
    net_ok(ctx, tg_fno_set_points(p.fno, &p.points, &p.queries, NULL));
    assert_int_equal(tg_fno_forward(p.fno, &p.x, &y), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "tg_fno_set_features"));
    tg_tensor_destroy(&y);
    drop(&p);

    tg_fno_config config = net_config(ctx, cases[0]);
    config.fno_in_channels = 3;
    assert_int_equal(tg_fno_config_check(ctx, &config), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "fno.in_gno_transform_type"));
    config = net_config(ctx, cases[0]);
    config.complex_data = true;
    assert_int_equal(tg_fno_config_check(ctx, &config), TG_E_CONFIG);
    tg_context_destroy(&ctx);
}

/* Queries that nothing is near, and a radius that reaches everything, give finite numbers. */
TEST(extreme_radii_are_fine) {
    tg_context *ctx = net_context("cpu", 2);
    for (int i = 0; i < 2; i++) {
        problem p = make(ctx,
                         i == 0 ? "{" COMMON ", \"in_gno_radius\": 0, \"out_gno_radius\": 0}"
                                : "{" COMMON ", \"in_gno_radius\": 100, \"out_gno_radius\": 100}",
                         TG_F32);
        net_gradients gradients = net_gradients_make(ctx, p.fno);
        assert_true(isfinite(loss_of(&p, &gradients)));
        net_gradients_free(&gradients);
        drop(&p);
    }
    tg_context_destroy(&ctx);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
