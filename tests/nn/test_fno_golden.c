/* Networks against numbers from PyTorch: outputs, losses, every gradient, and the output at another
 * resolution, for each golden file on each backend. */
#include <stdio.h>
#include <string.h>

#include "support/network.h"
#include "support/runner.h"

/* The files are float32: a float64 computation agrees with them to 2e-6, but only to 9e-5 in the
 * gradients of H1, whose sums over the grid cancel. */
#define TOLERANCE    5e-6
#define TOLERANCE_H1 1e-4

static const char *const files[] = {
    "fno_1d_silu", "fno_2d_preact",    "fno_2d_relu",   "fno_1d",      "fno_1d_complex",
    "fno_2d",      "fno_2d_fullmodes", "fno_2d_nopos",  "fno_2d_norm", "fno_2d_odd",
    "fno_2d_pad",  "fno_2d_tanh",      "fno_3d",        "uno_1d",      "uno_2d",
    "uno_2d_pad",  "uno_2d_plain",     "uno_2d_tucker", "uno_3d"};

static const tg_tensor *find(const tg_archive *golden, const char *name) {
    const tg_tensor *tensor = tg_archive_find(golden, name);
    if (!tensor) {
        fail_msg("%s is missing", name);
    }
    return tensor;
}

static void expect_close(const char *what, const tg_tensor *got, const tg_tensor *expected,
                         double tolerance) {
    const double error = net_error(got, expected);
    if (!(error <= tolerance)) {
        fail_msg("%s: relative error %.3g", what, error);
    }
}

static void expect_output(tg_context *ctx, tg_fno *fno, const tg_archive *golden, const char *in,
                          const char *out, bool training) {
    const tg_tensor *x = find(golden, in), *expected = find(golden, out);
    tg_tensor y = {0};
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, expected->dtype, &expected->shape, &y));
    net_ok(ctx, tg_fno_prepare(fno, x->shape.dim[0], x->shape.dim + 2, training));
    net_ok(ctx, tg_fno_forward(fno, x, &y));
    expect_close(out, &y, expected, TOLERANCE);
    tg_tensor_destroy(&y);
}

static void expect_gradients(tg_context *ctx, tg_fno *fno, const tg_archive *golden,
                             const char *loss_name) {
    const tg_tensor *x = find(golden, "x"), *target = find(golden, "target");
    net_gradients gradients = net_gradients_make(ctx, fno);
    const tg_grad_sink sink = net_sink(&gradients);
    tg_loss_config loss_config;
    double loss = 0.0;
    char name[160];
    net_ok(ctx, tg_loss_config_parse(ctx, "loss", loss_name, &loss_config));
    net_ok(ctx, tg_fno_prepare(fno, x->shape.dim[0], x->shape.dim + 2, true));
    net_ok(ctx, tg_fno_loss_backward(fno, x, target, &loss_config, &sink, &loss));
    snprintf(name, sizeof name, "loss.%s", loss_name);
    const double expected = tg_load(TG_F32, find(golden, name)->data, 0).re;
    if (!(loss >= expected * (1.0 - TOLERANCE) && loss <= expected * (1.0 + TOLERANCE))) {
        fail_msg("%s: %.9g, expected %.9g", name, loss, expected);
    }
    assert_int_equal(gradients.received, tg_fno_param_count(fno));
    for (int i = 0; i < gradients.count; i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        snprintf(name, sizeof name, "grad.%s.%s", loss_name, param.name);
        const tg_tensor *reference = find(golden, name);
        assert_true(tg_shape_equal(&reference->shape, &param.shape));
        expect_close(name, &gradients.gradient[i], reference,
                     strcmp(loss_name, "h1") == 0 ? TOLERANCE_H1 : TOLERANCE);
    }
    net_gradients_free(&gradients);
}

static void check_file(tg_context *ctx, const char *file) {
    char path[256], name[32];
    tg_archive *golden = NULL;
    tg_fno *fno = NULL;
    snprintf(path, sizeof path, "%s/%s.safetensors", TG_FIXTURES, file);
    net_ok(ctx, tg_safetensors_read(ctx, path, &golden));
    tg_fno_config config = net_config(ctx, tg_archive_meta(golden, "config"));
    if (config.complex_data) {
        config.complex_modes = TG_MODES_NONNEGATIVE; /* neuraloperator's 1-D convention */
    }
    net_ok(ctx, tg_fno_create(ctx, &config, 1, &fno));
    net_ok(ctx, tg_fno_load(fno, golden, "param."));
    expect_output(ctx, fno, golden, "x", "out", false);
    expect_output(ctx, fno, golden, "x", "out", true);
    if (tg_archive_find(golden, "x_eval")) {
        expect_output(ctx, fno, golden, "x_eval", "out_eval", false);
    }
    const char *const losses[] = {"l2", "h1"};
    for (int i = 0; i < 2; i++) {
        snprintf(name, sizeof name, "loss.%s", losses[i]);
        if (tg_archive_find(golden, name)) {
            expect_gradients(ctx, fno, golden, losses[i]);
        }
    }
    tg_fno_destroy(&fno);
    tg_archive_destroy(&golden);
}

static void golden_on(const char *backend, int threads) {
    for (int i = 0; i < T_COUNT(files); i++) {
        print_message("%s-%d %s\n", backend, threads, files[i]);
        tg_context *ctx = net_context(backend, threads);
        check_file(ctx, files[i]);
        assert_int_equal(tg_context_memory(ctx, TG_HOST).current[TG_MEM_WEIGHTS], 0);
        assert_int_equal(tg_context_memory(ctx, TG_HOST).current[TG_MEM_ACTIVATIONS], 0);
        tg_context_destroy(&ctx);
    }
}

TEST(golden_on_ref) {
    golden_on("ref", 1);
}

TEST(golden_on_cpu) {
    golden_on("cpu", 1);
    golden_on("cpu", 3);
}
