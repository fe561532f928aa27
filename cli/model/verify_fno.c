/* Golden Fourier neural operators: the network of metadata `config` with the weights `param.*` is
 * run on `x`; compared are `out`, each `loss.<loss>` against `target`, each
 * `grad.<loss>.<parameter>`, and `out_eval` for `x_eval` on another grid. All by
 * |a - b| / |b| <= 1e-4. */
#include <string.h>

#include "verify.h"

#define LIMIT 1e-4

/* Settings of a file, and whether it chose the frequencies of complex data. */
typedef struct file_config {
    tg_fno_config *fno;
    bool has_modes;
} file_config;

static tg_status set(tg_context *ctx, void *config, const char *key, const char *text) {
    file_config *file = config;
    file->has_modes = file->has_modes || strcmp(key, "complex_modes") == 0;
    return tg_fno_config_set(ctx, file->fno, key, text);
}

/* neuraloperator, which the files are made with, keeps the frequencies from 0 on of complex data in
 * one dimension: that is meant unless a file says otherwise. */
static int read_config(verify_run *run, tg_fno_config *config) {
    file_config file = {.fno = config};
    *config = tg_fno_config_default();
    const int code = verify_read_config(run, set, &file);
    if (config->complex_data && config->n_dim == 1 && !file.has_modes) {
        config->complex_modes = TG_MODES_NONNEGATIVE;
    }
    return code;
}

/* Makes the network ready for the batch and the grid of x. */
static tg_status prepare(verify_run *run, tg_fno *fno, const tg_tensor *x, bool training) {
    const int dims = tg_fno_get_config(fno)->n_dim;
    if (x->shape.ndim != 2 + dims) {
        char text[96];
        cli_fail("%s: an input is %s; (batch, channels, %d grid sizes) is needed", run->path,
                 tg_shape_text(&x->shape, text, sizeof text), dims);
        return TG_E_SHAPE;
    }
    return tg_fno_prepare(fno, x->shape.dim[0], x->shape.dim + 2, training);
}

/* Compares with the golden tensor of that name, if there is one, and gives `tensor` away. */
static tg_status check(verify_run *run, const char *name, tg_tensor *tensor) {
    const tg_tensor *golden = tg_archive_find(run->golden, name);
    if (golden) {
        verify_add(run, verify_relative_error(tensor, golden, NULL), LIMIT, "%s", name);
    }
    return tg_archive_take(run->computed, name, tensor);
}

/* The output for tensor `in`, compared with `out`. */
static tg_status check_output(verify_run *run, tg_fno *fno, const char *in, const char *out) {
    const tg_tensor *x = verify_tensor(run, in);
    tg_tensor y = {0};
    if (!x) {
        return TG_E_FORMAT;
    }
    tg_shape shape = x->shape;
    shape.dim[1] = tg_fno_get_config(fno)->out_channels;
    tg_status status = TG_OK;
    CLI_TRY(prepare(run, fno, x, false));
    CLI_TRY(tg_tensor_create(run->ctx, TG_MEM_DATA, x->dtype, &shape, &y));
    CLI_TRY(tg_fno_forward(fno, x, &y));
    CLI_TRY(check(run, out, &y));
fail:
    tg_tensor_destroy(&y);
    return status;
}

tg_status verify_receive(void *user, const tg_gradient *gradient) {
    verify_sink *c = user;
    char name[200];
    tg_tensor dense = {0};
    snprintf(name, sizeof name, "grad.%s.%s", c->loss,
             tg_fno_get_param(c->fno, gradient->param).name);
    tg_status status =
        tg_tensor_create(c->run->ctx, TG_MEM_GRADIENTS, gradient->dtype, &gradient->shape, &dense);
    status = status == TG_OK ? tg_gradient_read(c->run->ctx, gradient, &dense) : status;
    status = status == TG_OK ? check(c->run, name, &dense) : status;
    tg_tensor_destroy(&dense);
    return status;
}

tg_status verify_loss(verify_run *run, const char *name, double value) {
    const tg_shape one = {1, {1}};
    tg_tensor loss = {0};
    CLI_CALL(tg_tensor_create(run->ctx, TG_MEM_DATA, TG_F32, &one, &loss));
    *(float *)loss.data = (float)value;
    return check(run, name, &loss);
}

/* Loss `name` and its gradients. */
static tg_status check_loss(verify_run *run, tg_fno *fno, const char *name) {
    const tg_tensor *x = verify_tensor(run, "x"), *target = verify_tensor(run, "target");
    if (!x || !target) {
        return TG_E_FORMAT;
    }
    verify_sink c = {.run = run, .fno = fno, .loss = name};
    const tg_grad_sink sink = {.receive = verify_receive, .user = &c};
    char key[80];
    tg_loss_config config;
    double value = 0.0;
    snprintf(key, sizeof key, "loss.%.64s", name);
    CLI_CALL(prepare(run, fno, x, true));
    CLI_CALL(tg_loss_config_parse(run->ctx, key, name, &config));
    CLI_CALL(tg_fno_loss_backward(fno, x, target, &config, &sink, &value));
    return verify_loss(run, key, value);
}

static tg_status check_all(verify_run *run, tg_fno *fno) {
    CLI_CALL(check_output(run, fno, "x", "out"));
    for (int64_t i = 0; i < tg_archive_count(run->golden); i++) {
        const char *name = tg_archive_name(run->golden, i);
        if (strncmp(name, "loss.", 5) == 0) {
            CLI_CALL(check_loss(run, fno, name + 5));
        }
    }
    if (tg_archive_find(run->golden, "x_eval")) {
        CLI_CALL(check_output(run, fno, "x_eval", "out_eval"));
    }
    return TG_OK;
}

int verify_fno(verify_run *run) {
    tg_fno_config config;
    tg_fno *fno = NULL;
    if (read_config(run, &config) != CLI_OK) {
        return CLI_FAILED;
    }
    tg_status status = tg_fno_create(run->ctx, &config, 0, &fno);
    status = status == TG_OK ? tg_fno_load(fno, run->golden, "param.") : status;
    status = status == TG_OK ? check_all(run, fno) : status;
    tg_fno_destroy(&fno);
    return verify_code(run, status);
}
