/* Networks whose arrays are kept in 16 bits: near the same network in f32, the same on ref and cpu,
 * with weights that are saved as they are. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "support/network.h"

#define T_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static const struct {
    const char *config; /* without its opening brace */
    int64_t batch, grid[3];
} cases[] = {
    {"\"n_modes\": [6, 6], \"hidden_channels\": 6, \"n_layers\": 2}", 3, {12, 10}},
    {"\"n_modes\": [4, 6], \"hidden_channels\": 5, \"n_layers\": 3, \"norm\": \"group_norm\","
     "\"stabilizer\": \"tanh\", \"domain_padding\": 0.25, \"channel_mlp_skip\": \"linear\"}",
     2,
     {9, 13}},
    {"\"n_modes\": [8], \"hidden_channels\": 5, \"n_layers\": 2, \"complex_data\": true}", 2, {33}},
    {"\"n_modes\": [16, 12], \"hidden_channels\": 4, \"n_layers\": 2, \"fno_skip\": \"identity\"}",
     2,
     {7, 8}},
    {"\"n_modes\": [4, 3, 5], \"hidden_channels\": 4, \"n_layers\": 2, \"complex_data\": true,"
     "\"norm\": \"instance_norm\", \"stabilizer\": \"tanh\"}",
     1,
     {5, 4, 6}},
};

static const struct {
    const char *keys;
    double tolerance;         /* of outputs and gradients, in the 2-norm */
    tg_dtype weight, factors; /* of spectral weights and their gradients */
} stores[] = {
    {"{\"fno_block_weights_precision\": \"bf16\"", 2e-2, TG_CBF16, TG_C64},
    {"{\"fno_block_weights_precision\": \"half\"", 3e-3, TG_CF16, TG_C64},
    {"{\"fno_block_precision\": \"mixed\"", 3e-3, TG_C64, TG_CF16},
    {"{\"activation_precision\": \"bf16\"", 4e-2, TG_C64, TG_C64},
    {"{\"fno_block_precision\": \"half\"", 6e-3, TG_C64, TG_CF16},
    {"{\"fno_block_precision\": \"mixed\", \"activation_precision\": \"bf16\","
     "\"fno_block_weights_precision\": \"half\"",
     4e-2, TG_CF16, TG_CBF16},
    {"{\"fno_block_precision\": \"half\", \"fno_block_weights_precision\": \"bf16\"", 4e-2,
     TG_CBF16, TG_CBF16},
};

typedef struct step {
    tg_tensor y;
    net_gradients gradients;
    double loss;
} step;

/* A training step from weights that 16 bits can hold, so that only what is computed differs. */
static step run(tg_context *ctx, int c, const char *keys) {
    char json[640];
    step out = {0};
    snprintf(json, sizeof json, "%s%s%s", keys, keys[1] ? ", " : "", cases[c].config);
    const tg_fno_config config = net_config(ctx, json);
    tg_fno *fno = NULL, *rough = NULL;
    tg_archive *archive = NULL;
    snprintf(json, sizeof json, "{\"fno_block_weights_precision\": \"bf16\", %s", cases[c].config);
    const tg_fno_config coarse = net_config(ctx, json);
    net_ok(ctx, tg_fno_create(ctx, &coarse, 3, &rough));
    net_ok(ctx, tg_archive_create(ctx, &archive));
    net_ok(ctx, tg_fno_save(rough, archive, ""));
    net_ok(ctx, tg_fno_create(ctx, &config, 4, &fno));
    net_ok(ctx, tg_fno_load(fno, archive, ""));
    net_ok(ctx, tg_fno_prepare(fno, cases[c].batch, cases[c].grid, true));
    tg_tensor x = net_random(ctx, &config, cases[c].batch, 1, cases[c].grid, 1);
    tg_tensor target = net_random(ctx, &config, cases[c].batch, 1, cases[c].grid, 2);
    const tg_loss_config loss = tg_loss_config_default();
    out.y = net_random(ctx, &config, cases[c].batch, 1, cases[c].grid, 0);
    out.gradients = net_gradients_make(ctx, fno);
    const tg_grad_sink sink = net_sink(&out.gradients);
    net_ok(ctx, tg_fno_forward(fno, &x, &out.y));
    net_ok(ctx, tg_fno_loss_backward(fno, &x, &target, &loss, &sink, &out.loss));
    assert_int_equal(out.gradients.received, tg_fno_param_count(fno));
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&target);
    tg_archive_destroy(&archive);
    tg_fno_destroy(&rough);
    tg_fno_destroy(&fno);
    return out;
}

static void step_free(step *s) {
    tg_tensor_destroy(&s->y);
    net_gradients_free(&s->gradients);
}

static void expect_near(const step *got, const step *expected, double tolerance, int c, int s) {
    if (!(net_error(&got->y, &expected->y) <= tolerance)) {
        fail_msg("case %d, store %d: output %g off", c, s, net_error(&got->y, &expected->y));
    }
    double most = 0.0; /* some gradients are 0: a bias before a norm */
    for (int i = 0; i < got->gradients.count; i++) {
        most = fmax(most, net_distance(&expected->gradients.gradient[i], NULL));
    }
    for (int i = 0; i < got->gradients.count; i++) {
        const tg_tensor *a = &got->gradients.gradient[i], *b = &expected->gradients.gradient[i];
        const double apart = net_distance(a, b), norm = net_distance(b, NULL);
        if (!(apart <= 3.0 * tolerance * norm + 0.1 * tolerance * most)) {
            fail_msg("case %d, store %d, gradient %d: %g off, of %g", c, s, i, apart, norm);
        }
    }
}

TEST(near_full) {
    for (int c = 0; c < T_COUNT(cases); c++) {
        tg_context *ref = net_context("ref", 1), *cpu = net_context("cpu", 2);
        step full = run(ref, c, "{");
        for (int s = 0; s < T_COUNT(stores); s++) {
            step a = run(ref, c, stores[s].keys), b = run(cpu, c, stores[s].keys);
            step again = run(cpu, c, stores[s].keys);
            expect_near(&a, &full, stores[s].tolerance, c, s);
            expect_near(&b, &a, stores[s].tolerance, c, s);
            assert_memory_equal(b.y.data, again.y.data, tg_tensor_bytes(&b.y));
            for (int i = 0; i < b.gradients.count; i++) {
                assert_memory_equal(b.gradients.gradient[i].data, again.gradients.gradient[i].data,
                                    tg_tensor_bytes(&b.gradients.gradient[i]));
            }
            step_free(&a);
            step_free(&b);
            step_free(&again);
        }
        step_free(&full);
        tg_context_destroy(&ref);
        tg_context_destroy(&cpu);
    }
}

/* Notes the dtype of the gradients that come in factors. */
static tg_status note(void *user, const tg_gradient *gradient) {
    if (!gradient->dense) {
        *(tg_dtype *)user = gradient->dtype;
    } else {
        assert_int_equal(gradient->dtype, TG_F32);
    }
    return TG_OK;
}

/* Spectral weights have the dtype that was asked for, all others f32; saved and loaded, they are
 * the same bits. */
TEST(weights_are_stored) {
    tg_context *ctx = net_context("cpu", 1);
    for (int s = 0; s < T_COUNT(stores); s++) {
        char json[512];
        snprintf(json, sizeof json, "%s, %s", stores[s].keys, cases[0].config);
        const tg_fno_config config = net_config(ctx, json);
        tg_fno *fno = NULL, *copy = NULL;
        tg_archive *archive = NULL, *again = NULL;
        net_ok(ctx, tg_fno_create(ctx, &config, 3, &fno));
        net_ok(ctx, tg_fno_create(ctx, &config, 9, &copy));
        net_ok(ctx, tg_archive_create(ctx, &archive));
        net_ok(ctx, tg_fno_save(fno, archive, "w."));
        const char *path = "stored_weights.safetensors";
        net_ok(ctx, tg_safetensors_write(ctx, path, archive));
        net_ok(ctx, tg_safetensors_read(ctx, path, &again));
        net_ok(ctx, tg_fno_load(copy, again, "w."));
        remove(path);
        for (int i = 0; i < tg_fno_param_count(fno); i++) {
            const tg_fno_param p = tg_fno_get_param(fno, i), q = tg_fno_get_param(copy, i);
            assert_int_equal(p.dtype, p.spectral ? stores[s].weight : TG_F32);
            assert_memory_equal(p.weight.data, q.weight.data,
                                (size_t)tg_shape_numel(&p.shape) * tg_dtype_size(p.dtype));
        }
        net_ok(ctx, tg_fno_prepare(fno, cases[0].batch, cases[0].grid, true));
        tg_tensor x = net_random(ctx, &config, cases[0].batch, 1, cases[0].grid, 1);
        const tg_loss_config loss = tg_loss_config_default();
        tg_dtype factors = TG_F64;
        double value;
        const tg_grad_sink sink = {.receive = note, .user = &factors};
        net_ok(ctx, tg_fno_loss_backward(fno, &x, &x, &loss, &sink, &value));
        assert_int_equal(factors, stores[s].factors);
        tg_tensor_destroy(&x);
        tg_archive_destroy(&archive);
        tg_archive_destroy(&again);
        tg_fno_destroy(&fno);
        tg_fno_destroy(&copy);
    }
    tg_context_destroy(&ctx);
}

/* Weights of a file that the 16-bit weights of a network cannot hold are refused; what they hold,
 * and what was not finite before, is taken. */
TEST(range_is_checked) {
    static const struct {
        const char *precision;
        float value;
        const char *advice; /* NULL: taken */
    } rows[] = {
        {"half", 65504.0f, NULL}, {"half", -1e5f, "bf16 or full"},
        {"half", 1e-30f, NULL},   {"half", INFINITY, NULL},
        {"bf16", -1e5f, NULL},    {"bf16", 3.4e38f, "weights_precision full"},
        {"full", 3.4e38f, NULL},
    };
    tg_context *ctx = net_context("cpu", 1);
    for (int i = 0; i < T_COUNT(rows); i++) {
        static const char wide[] = "{\"n_modes\": [6], \"hidden_channels\": 4, \"n_layers\": 1}";
        tg_fno_config config = net_config(ctx, wide);
        tg_fno *from = NULL, *to = NULL;
        tg_archive *archive = NULL;
        net_ok(ctx, tg_fno_create(ctx, &config, 1, &from));
        for (int p = 0; p < tg_fno_param_count(from); p++) {
            const tg_fno_param param = tg_fno_get_param(from, p);
            if (param.spectral) {
                ((float *)param.weight.data)[5] = rows[i].value;
            }
        }
        net_ok(ctx, tg_archive_create(ctx, &archive));
        net_ok(ctx, tg_fno_save(from, archive, ""));
        net_ok(ctx,
               tg_fno_config_set(ctx, &config, "fno_block_weights_precision", rows[i].precision));
        net_ok(ctx, tg_fno_create(ctx, &config, 1, &to));
        const tg_status status = tg_fno_load(to, archive, "");
        assert_int_equal(status, rows[i].advice ? TG_E_NUMERIC : TG_OK);
        if (rows[i].advice) {
            assert_non_null(strstr(tg_context_error(ctx), "weight.tensor: 1 of its values"));
            assert_non_null(strstr(tg_context_error(ctx), rows[i].advice));
        }
        tg_archive_destroy(&archive);
        tg_fno_destroy(&from);
        tg_fno_destroy(&to);
    }
    tg_context_destroy(&ctx);
}

/* 16-bit formats are for f32, minimal checkpoints for not too many layers, and a precision that
 * does not exist is named. */
TEST(refused) {
    tg_context *ctx = net_context("cpu", 1);
    tg_fno_config config = net_config(
        ctx, "{\"n_modes\": [4], \"dtype\": \"f64\", \"activation_precision\": \"bf16\"}");
    assert_int_equal(tg_fno_config_check(ctx, &config), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "fno.dtype"));
    assert_int_equal(tg_fno_config_set(ctx, &config, "fno_block_precision", "bf16"), TG_E_CONFIG);
    assert_int_equal(tg_fno_config_set(ctx, &config, "activation_precision", "mixed"), TG_E_CONFIG);
    assert_int_equal(tg_fno_config_set(ctx, &config, "activation_checkpoint", "some"), TG_E_CONFIG);
    tg_fno_config deep = net_config(
        ctx, "{\"n_modes\": [4], \"activation_checkpoint\": \"minimal\", \"n_layers\": 65}");
    assert_int_equal(tg_fno_config_check(ctx, &deep), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "fno.n_layers is 65: take block"));
    deep.n_layers = 64;
    net_ok(ctx, tg_fno_config_check(ctx, &deep));
    net_ok(ctx, tg_fno_config_set(ctx, &config, "checkpointing", "true"));
    assert_int_equal(config.activation_checkpoint, TG_CHECKPOINT_BLOCK);
    tg_context_destroy(&ctx);
}
