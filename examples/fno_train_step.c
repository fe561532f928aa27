/* Train a Fourier neural operator on your own arrays: the heat equation on a circle.
 *
 * u(x, 0) is a sum of sines; the network learns u(x, 0) -> u(x, T), where mode k has decayed by
 * exp(-c k^2). Trained on 64 points, it is then evaluated on 128. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <tgrad/tgrad.h>

enum { BATCH = 16, POINTS = 64, FINE = 128, MODES = 5, STEPS = 200 };

static float x[BATCH * FINE], y[BATCH * FINE]; /* (samples, 1 channel, points) */

/* BATCH random initial states u on `points` points, and their solutions. */
static void make_data(int points) {
    const double turn = 6.283185307179586 / points;
    for (int b = 0; b < BATCH; b++) {
        double a[MODES], phase[MODES];
        for (int k = 0; k < MODES; k++) {
            a[k] = 2.0 * rand() / RAND_MAX - 1.0;
            phase[k] = 6.283185307179586 * rand() / RAND_MAX;
        }
        for (int i = 0; i < points; i++) {
            double u = 0.0, v = 0.0;
            for (int k = 0; k < MODES; k++) {
                const double wave = a[k] * sin((k + 1) * turn * i + phase[k]);
                u += wave;
                v += wave * exp(-0.05 * (k + 1) * (k + 1));
            }
            x[b * points + i] = (float)u;
            y[b * points + i] = (float)v;
        }
    }
}

/* Library calls can fail; the context has the error. */
static void need(tg_context *ctx, tg_status status) {
    if (status != TG_OK) {
        fprintf(stderr, "%s\n", ctx ? tg_context_error(ctx) : tg_status_name(status));
        exit(EXIT_FAILURE);
    }
}

/* Adam for every parameter; weights are updated during the backward pass. */
static tg_optim *make_optimizer(tg_context *ctx, tg_fno *fno) {
    tg_optim_config config = tg_optim_config_default();
    tg_optim_param params[64];
    const int count = tg_fno_param_count(fno);
    for (int i = 0; i < count; i++) {
        const tg_fno_param p = tg_fno_get_param(fno, i);
        params[i] = (tg_optim_param){.name = p.name, .dtype = p.dtype, .shape = p.shape};
    }
    config.learning_rate = 5e-3;
    tg_optim_setup setup = {.size = sizeof setup,
                            .groups = &config,
                            .group_count = 1,
                            .params = params,
                            .param_count = count,
                            .takes_factored = true};
    tg_optim *optim = NULL;
    need(ctx, tg_optim_create(ctx, &setup, &optim));
    for (int i = 0; i < count; i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        need(ctx, tg_optim_bind(optim, i, &param.weight));
    }
    return optim;
}

int main(void) {
    tg_context *ctx = NULL;
    tg_fno *fno = NULL;
    tg_tensor start, later, guess;
    static float predicted[BATCH * FINE];
    double loss = 0.0;
    need(NULL, tg_context_create(NULL, &ctx));
    need(ctx, tg_backend_select(ctx, "cpu")); /* the arrays are on the host */
    tg_fno_config config = tg_fno_config_default();
    config.n_layers = 2;
    config.hidden_channels = config.n_modes[0] = 16;
    config.n_dim = 1;
    need(ctx, tg_fno_create(ctx, &config, 1, &fno));
    tg_optim *optim = make_optimizer(ctx, fno);
    const tg_grad_sink sink = tg_optim_sink(optim);
    const tg_loss_config l2 = tg_loss_config_default();
    for (int64_t points = POINTS; points <= FINE; points *= 2) {
        const tg_shape shape = {3, {BATCH, 1, points}};
        need(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, x, &start));
        need(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, y, &later));
        need(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, predicted, &guess));
        need(ctx, tg_fno_prepare(fno, BATCH, &points, points == POINTS));
        for (int step = 0; points == POINTS && step < STEPS; step++) {
            make_data((int)points);
            need(ctx, tg_fno_loss_backward(fno, &start, &later, &l2, &sink, &loss));
        }
        make_data((int)points);
        need(ctx, tg_fno_forward(fno, &start, &guess));
        need(ctx, tg_loss_eval(ctx, &l2, &guess, &later, &loss, NULL));
        printf("%3d points: mean relative L2 error %.4f\n", (int)points, loss / BATCH);
    }
    tg_optim_destroy(&optim);
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
    return loss / BATCH < 0.1 ? EXIT_SUCCESS : EXIT_FAILURE;
}
