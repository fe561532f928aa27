/* What waits for backward is stored small: forward gives the bits it gave before, gradients are
 * near those of full storage and the same on every run, and the memory is what was asked for. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "nn/network.h"
#include "support/fake_device.h"
#include "support/network.h"

#define T_COUNT(array) ((int)(sizeof(array) / sizeof(array)[0]))

static const struct {
    const char *config; /* without its braces */
    int64_t batch, grid[3];
    double sensitivity; /* of gradients: norms of few points, and relu, make them jump */
} cases[] = {
    {"\"n_modes\": [6, 6], \"hidden_channels\": 6, \"n_layers\": 3", 3, {12, 10}, 1.0},
    {"\"n_modes\": [4, 6], \"hidden_channels\": 5, \"n_layers\": 3, \"norm\": \"group_norm\","
     "\"stabilizer\": \"tanh\", \"domain_padding\": 0.25, \"channel_mlp_skip\": \"linear\"",
     2,
     {9, 13},
     1.0},
    {"\"n_modes\": [8], \"hidden_channels\": 5, \"n_layers\": 2, \"complex_data\": true,"
     "\"norm\": \"instance_norm\"",
     2,
     {33},
     40.0},
    {"\"n_modes\": [6, 6], \"hidden_channels\": 5, \"n_layers\": 2, \"use_channel_mlp\": false",
     2,
     {11, 8},
     1.0},
    {"\"n_modes\": [6, 6], \"hidden_channels\": 6, \"n_layers\": 3, \"non_linearity\": \"relu\"",
     3,
     {12, 10},
     6.0},
};

static const struct {
    const char *name;
    double tolerance; /* of gradients, of the largest one of the network */
} stores[] = {{"bf16", 5e-4}, {"8bit", 1e-3}};

static const char *const kinds[] = {"off", "block", "minimal"};

typedef struct step {
    net_gradients gradients;
    double loss;
} step;

static step run_parts(const char *backend, int threads, int c, const char *saved, const char *again,
                      int micro) {
    char json[640];
    step out = {0};
    tg_context *ctx = net_context(backend, threads);
    snprintf(json, sizeof json,
             "{%s, \"saved_precision\": \"%s\", \"activation_checkpoint\": \"%s\","
             "\"micro_batch\": %d}",
             cases[c].config, saved, again, micro);
    const tg_fno_config config = net_config(ctx, json);
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, 3, &fno));
    net_ok(ctx, tg_fno_prepare(fno, cases[c].batch, cases[c].grid, true));
    tg_tensor x = net_random(ctx, &config, cases[c].batch, 1, cases[c].grid, 1);
    tg_tensor target = net_random(ctx, &config, cases[c].batch, 1, cases[c].grid, 2);
    const tg_loss_config loss = tg_loss_config_default();
    out.gradients = net_gradients_make(ctx, fno);
    const tg_grad_sink sink = net_sink(&out.gradients);
    net_ok(ctx, tg_fno_loss_backward(fno, &x, &target, &loss, &sink, &out.loss));
    assert_int_equal(out.gradients.received, tg_fno_param_count(fno));
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&target);
    tg_fno_destroy(&fno);
    return out;
}

static step run(const char *backend, int threads, int c, const char *saved, const char *again) {
    return run_parts(backend, threads, c, saved, again, 0);
}

static void step_free(step *s) {
    tg_context *ctx = s->gradients.ctx;
    net_gradients_free(&s->gradients);
    tg_context_destroy(&ctx);
}

/* Off by how much, of the largest gradient of the network. */
static double apart(const step *a, const step *b) {
    double most = 0.0, largest = 0.0;
    for (int i = 0; i < a->gradients.count; i++) {
        const tg_tensor *x = &a->gradients.gradient[i], *y = &b->gradients.gradient[i];
        largest = fmax(largest, net_distance(y, NULL));
        most = fmax(most, net_distance(x, y));
    }
    return most / largest;
}

static void expect_same(const step *a, const step *b) {
    for (int i = 0; i < a->gradients.count; i++) {
        assert_memory_equal(a->gradients.gradient[i].data, b->gradients.gradient[i].data,
                            tg_tensor_bytes(&a->gradients.gradient[i]));
    }
}

TEST(near_full) {
    for (int i = 0; i < 3 * T_COUNT(stores) * T_COUNT(cases); i++) {
        const int c = i / (3 * T_COUNT(stores)), s = i / 3 % T_COUNT(stores);
        const char *again = kinds[i % 3];
        step full = run("cpu", 2, c, "full", again), got = run("cpu", 2, c, stores[s].name, again);
        step twice = run("cpu", 2, c, stores[s].name, again);
        step ref = run("ref", 1, c, stores[s].name, again);
        const double tolerance = cases[c].sensitivity * stores[s].tolerance;
        assert_true(got.loss == full.loss); /* to the bit: forward is what it was */
        expect_same(&got, &twice);
        if (!(apart(&got, &full) <= tolerance) || !(apart(&ref, &full) <= tolerance)) {
            fail_msg("case %d, %s, %s: cpu %g off, ref %g", c, stores[s].name, again,
                     apart(&got, &full), apart(&ref, &full));
        }
        assert_true(apart(&got, &full) > 1e-6); /* something was rounded */
        step_free(&full);
        step_free(&got);
        step_free(&twice);
        step_free(&ref);
    }
}

/* ---- micro-batches ---- */

/* Loss and gradients are sums over samples: the same but for the order of summation, however many
 * are in flight; with fewer in flight than are left, too. */
TEST(micro_batches) {
    static const char *const backends[] = {"ref", "cpu", "fake"};
    for (int i = 0; i < 3 * 3 * T_COUNT(cases); i++) {
        const int c = i / 9, micro = i % 2 + 1;
        const char *backend = backends[i / 3 % 3], *again = kinds[i % 3];
        step whole = run_parts(backend, 1, c, "full", again, 0);
        step parts = run_parts(backend, 1, c, "full", again, micro);
        step small = run_parts(backend, 1, c, "8bit", again, micro);
        const double tolerance = cases[c].sensitivity * stores[1].tolerance;
        assert_true(fabs(parts.loss - whole.loss) <= 1e-6 * whole.loss);
        assert_true(small.loss == parts.loss);
        if (!(apart(&parts, &whole) <= 2e-6 * cases[c].sensitivity) ||
            !(apart(&small, &whole) <= tolerance)) {
            fail_msg("case %d, %s, %s, %d in flight: %g off, saved small %g", c, backend, again,
                     micro, apart(&parts, &whole), apart(&small, &whole));
        }
        step_free(&whole);
        step_free(&parts);
        step_free(&small);
    }
}

/* A network in micro-batches makes its loss itself; batches that fit at once may do without. */
TEST(micro_batches_need_the_loss) {
    const int64_t grid[] = {12, 10};
    tg_context *ctx = net_context("cpu", 1);
    const tg_fno_config config = net_config(
        ctx, "{\"n_modes\": [4, 4], \"hidden_channels\": 3, \"n_layers\": 1, \"micro_batch\": 2}");
    tg_fno *fno = NULL;
    net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
    net_ok(ctx, tg_fno_prepare(fno, 3, grid, true));
    for (int64_t batch = 2; batch <= 3; batch++) {
        tg_tensor x = net_random(ctx, &config, batch, 1, grid, 1);
        tg_tensor y = net_random(ctx, &config, batch, 1, grid, 2);
        const tg_status status = tg_fno_forward(fno, &x, &y);
        assert_int_equal(status, batch == 2 ? TG_OK : TG_E_ARGUMENT);
        if (status != TG_OK) {
            assert_non_null(strstr(tg_context_error(ctx), "micro-batches of 2 samples"));
        }
        tg_tensor_destroy(&x);
        tg_tensor_destroy(&y);
    }
    net_ok(ctx, tg_fno_prepare(fno, 3, grid, false)); /* not in training */
    tg_tensor x = net_random(ctx, &config, 3, 1, grid, 1),
              y = net_random(ctx, &config, 3, 1, grid, 2);
    net_ok(ctx, tg_fno_forward(fno, &x, &y));
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
}

/* ---- the program ---- */

static int count(const nn_program *p, nn_kind kind) {
    int found = 0;
    for (int i = 0; i < p->op_count; i++) {
        found += p->ops[i].kind == kind;
    }
    return found;
}

static size_t activations(tg_context *ctx, const char *keys) {
    char json[256];
    const int64_t grid[] = {64, 64};
    tg_fno_memory memory;
    snprintf(json, sizeof json, "{\"n_modes\": [8, 8], \"hidden_channels\": 16, \"n_layers\": 8%s}",
             keys);
    const tg_fno_config config = net_config(ctx, json);
    net_ok(ctx, tg_fno_plan(ctx, &config, 2, grid, true, NULL, &memory));
    return memory.bytes[TG_MEM_ACTIVATIONS];
}

/* Two activations of each block and the first input wait (the last one is read again at once), and
 * so do the kept modes; each is saved once, and all other values end in forward. */
TEST(memory) {
    const size_t one = (size_t)4 * 2 * 16 * 64 * 64;
    for (int b = 0; b < 2; b++) {
        tg_context *ctx = net_context(b == 0 ? "cpu" : "fake", 1);
        const size_t full = activations(ctx, "");
        const size_t bf16 = activations(ctx, ", \"saved_precision\": \"bf16\"");
        const size_t byte = activations(ctx, ", \"saved_precision\": \"8bit\"");
        const size_t half = activations(ctx, ", \"saved_precision\": \"8bit\", \"micro_batch\": 1");
        const size_t mixed = activations(ctx, ", \"precision\": \"mixed\"");
        assert_true(full > 16 * one);
        assert_true(bf16 < 16 * one / 2 + 4 * one);
        assert_true(byte < 16 * one / 4 + 4 * one);
        assert_true(half < byte / 2 + one / 4); /* the kept modes are those of all samples */
        assert_int_equal(mixed, byte);
        tg_context_destroy(&ctx);
    }
    tg_context *ctx = net_context("cpu", 1);
    const int64_t grid[] = {12, 12};
    tg_fno *fno = net_fno(ctx, 1,
                          "{\"n_modes\": [6, 6], \"hidden_channels\": 4, \"n_layers\": 3,"
                          "\"saved_precision\": \"8bit\"}");
    net_ok(ctx, tg_fno_prepare(fno, 2, grid, true));
    assert_int_equal(count(&fno->run.program, NN_SAVE), 3 * 2 + 3);
    assert_int_equal(count(&fno->run.program, NN_RESTORE), 3 * 2 + 3);
    net_ok(ctx, tg_fno_prepare(fno, 2, grid, false)); /* nothing waits */
    assert_int_equal(count(&fno->run.program, NN_SAVE), 0);
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
}

/* A backend that computes a block in one call writes its sums in bytes there: no op saves them, and
 * gradients are what they are elsewhere. */
TEST(blocks_write_bytes) {
    tg_context *ctx = net_context("fake", 1);
    const int64_t grid[] = {12, 12};
    tg_fno *fno = net_fno(ctx, 1,
                          "{\"n_modes\": [6, 6], \"hidden_channels\": 4, \"n_layers\": 3,"
                          "\"saved_precision\": \"8bit\"}");
    net_ok(ctx, tg_fno_prepare(fno, 2, grid, true));
    assert_int_equal(count(&fno->run.program, NN_BLOCK), 3);
    assert_int_equal(count(&fno->run.program, NN_SAVE), 1 + 3); /* the first input, kept modes */
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
    step one = run("fake", 1, 0, "8bit", "off"), parts = run("cpu", 1, 0, "8bit", "off");
    assert_true(apart(&one, &parts) <= 1e-5);
    step_free(&one);
    step_free(&parts);
}

/* ---- settings ---- */

static void expect_refused(tg_context *ctx, const char *json, const char *words) {
    const tg_fno_config config = net_config(ctx, json);
    assert_int_equal(tg_fno_config_check(ctx, &config), TG_E_CONFIG);
    if (!strstr(tg_context_error(ctx), words)) {
        fail_msg("%s: %s", json, tg_context_error(ctx));
    }
}

TEST(refused) {
    tg_context *ctx = net_context("cpu", 1);
    tg_fno_config config = tg_fno_config_default();
    assert_int_equal(tg_fno_config_set(ctx, &config, "saved_precision", "half"), TG_E_CONFIG);
    assert_int_equal(tg_fno_config_set(ctx, &config, "saved_precision", "4bit"), TG_E_CONFIG);
    assert_int_equal(tg_fno_config_set(ctx, &config, "precision", "8bit"), TG_E_CONFIG);
    expect_refused(ctx, "{\"n_modes\": [4], \"dtype\": \"f64\", \"saved_precision\": \"8bit\"}",
                   "fno.dtype: f64 is kept as it is");
    expect_refused(ctx, "{\"n_modes\": [4], \"dtype\": \"f64\", \"precision\": \"mixed\"}",
                   "fno.dtype: f64 is kept as it is");
    expect_refused(ctx,
                   "{\"n_modes\": [4], \"saved_precision\": \"8bit\","
                   "\"activation_precision\": \"bf16\"}",
                   "fno.saved_precision: it compresses f32 activations");
    expect_refused(ctx,
                   "{\"n_modes\": [4], \"precision\": \"mixed\","
                   "\"fno_block_precision\": \"half\"}",
                   "with fno.fno_block_precision they are in 16 bits already");
    tg_context_destroy(&ctx);
}

/* Mixed is a name for settings that can be given one by one, and gives way to them. */
TEST(mixed) {
    tg_context *ctx = net_context("cpu", 1);
    static const struct {
        const char *keys;
        tg_dtype weight;
        tg_precision saved;
    } rows[] = {
        {"\"precision\": \"mixed\"", TG_CBF16, TG_PRECISION_8BIT},
        {"\"precision\": \"mixed\", \"saved_precision\": \"bf16\"", TG_CBF16, TG_PRECISION_BF16},
        {"\"precision\": \"mixed\", \"fno_block_weights_precision\": \"half\"", TG_CF16,
         TG_PRECISION_8BIT},
        {"\"saved_precision\": \"8bit\"", TG_C64, TG_PRECISION_8BIT},
        {"\"precision\": \"full\"", TG_C64, TG_PRECISION_FULL},
    };
    for (int i = 0; i < T_COUNT(rows); i++) {
        char json[256];
        snprintf(json, sizeof json, "{\"n_modes\": [4], \"hidden_channels\": 4, %s}", rows[i].keys);
        tg_fno *fno = net_fno(ctx, 1, json);
        for (int p = 0; p < tg_fno_param_count(fno); p++) {
            const tg_fno_param param = tg_fno_get_param(fno, p);
            assert_int_equal(param.dtype, param.spectral ? rows[i].weight : TG_F32);
        }
        assert_int_equal(fno->model.stores.saved, rows[i].saved);
        tg_fno_destroy(&fno);
    }
    tg_context_destroy(&ctx);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, NULL);
}
