/* Train an operator inside a solver: only the final model is written to disk.
 *
 *     insitu_train MODEL.safetensors
 *     tgrad predict MODEL.safetensors --input x.npy --output y.npy
 *
 * The solver advances RUNS simulations of the viscous Burgers equation on the unit torus,
 * u_t + u u_x + u u_y = NU (u_xx + u_yy), by central differences. The fields at the start and end
 * of every time interval are RUNS new samples of the operator u(t) -> u(t + interval); they replace
 * the oldest of the KEPT samples on which a Fourier neural operator is trained meanwhile, with
 * TensorGRaD: on the host, and again on the GPU if there is one. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <tgrad/tgrad.h>

enum { N = 32, POINTS = N * N, RUNS = 8, KEPT = 64, BATCH = 16, INTERVALS = 80, TIME_STEPS = 20 };
static const double NU = 0.02, DT = 0.004, LEARNING_RATE = 4e-3;

/* ---- the solver ---- */

static double u[RUNS][POINTS];                           /* current states */
static double before[KEPT][POINTS], after[KEPT][POINTS]; /* samples from the solver */

/* A few waves with random amplitudes. */
static void start(double *field) {
    const double turn = 6.283185307179586 / N;
    memset(field, 0, POINTS * sizeof *field);
    for (int wave = 0; wave < 6; wave++) {
        const int kx = rand() % 4, ky = rand() % 4 - 1;
        const double size = 0.5 * rand() / RAND_MAX, phase = 6.283185307179586 * rand() / RAND_MAX;
        for (int i = 0; i < POINTS; i++) {
            field[i] += size * sin(turn * (kx * (i % N) + ky * (i / N)) + phase);
        }
    }
}

static void advance(double *field) {
    static double next[POINTS];
    for (int i = 0; i < POINTS; i++) {
        const int row = i / N * N, column = i % N;
        const double left = field[row + (column + N - 1) % N],
                     up = field[(i + POINTS - N) % POINTS];
        const double right = field[row + (column + 1) % N], down = field[(i + N) % POINTS];
        const double slope = 0.5 * N * (right - left + down - up);
        const double curvature = (double)POINTS * (left + right + up + down - 4.0 * field[i]);
        next[i] = field[i] + DT * (NU * curvature - field[i] * slope);
    }
    memcpy(field, next, sizeof next);
}

/* Advances every simulation by one interval, which replaces the samples from `first` on. Every
 * third interval starts new waves before the flow decays. */
static void simulate(int interval, int first) {
    for (int run = 0; run < RUNS; run++) {
        if (interval % 3 == 0) {
            start(u[run]);
        }
        memcpy(before[first + run], u[run], sizeof u[run]);
        for (int step = 0; step < TIME_STEPS; step++) {
            advance(u[run]);
        }
        memcpy(after[first + run], u[run], sizeof u[run]);
    }
}

/* ---- the learner ---- */

/* Library calls can fail; the context has the error. */
static void need(tg_context *ctx, tg_status status) {
    if (status != TG_OK) {
        fprintf(stderr, "%s\n", tg_context_error(ctx));
        exit(EXIT_FAILURE);
    }
}

static tg_fno *make_network(tg_context *ctx) {
    tg_fno_config config = tg_fno_config_default();
    tg_fno *fno = NULL;
    need(ctx, tg_fno_config_set(ctx, &config, "n_modes", "[12, 12]"));
    need(ctx, tg_fno_config_set(ctx, &config, "hidden_channels", "12"));
    need(ctx, tg_fno_config_set(ctx, &config, "n_layers", "2"));
    need(ctx, tg_fno_create(ctx, &config, 1, &fno));
    return fno;
}

/* TensorGRaD for the spectral weights. Weights are updated during the backward pass, in memory that
 * the network no longer needs. */
static tg_optim *make_optimizer(tg_context *ctx, tg_fno *fno) {
    tg_optim_config config = tg_optim_config_default();
    tg_optim_param params[64];
    tg_optim *optim = NULL;
    const int count = tg_fno_param_count(fno);
    need(ctx, tg_optim_config_set(ctx, &config, "name", "tensorgrad"));
    need(ctx, tg_optim_config_set(ctx, &config, "update_proj_gap", "40"));
    config.learning_rate = LEARNING_RATE;
    for (int i = 0; i < count; i++) {
        const tg_fno_param p = tg_fno_get_param(fno, i);
        params[i] = (tg_optim_param){.name = p.name, .dtype = p.dtype, .shape = p.shape};
    }
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = params,
                                  .param_count = count,
                                  .takes_factored = true,
                                  .shares_workspace = true};
    need(ctx, tg_optim_create(ctx, &setup, &optim));
    for (int i = 0; i < count; i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        need(ctx, tg_optim_bind(optim, i, &param.weight));
    }
    return optim;
}

/* The solver's loop. The dataset is a view of the solver's arrays. */
static void learn(tg_context *ctx, tg_dataset *samples, tg_fno *fno, tg_normalizer *const norm[2]) {
    static float x_values[BATCH * POINTS], y_values[BATCH * POINTS];
    const tg_shape shape = {4, {BATCH, 1, N, N}};
    const tg_loss_config l2 = tg_loss_config_default();
    const tg_loader_config how = {
        .size = sizeof how, .batch_size = BATCH, .seed = 1, .shuffle = true};
    tg_optim *optim = make_optimizer(ctx, fno);
    const tg_grad_sink sink = tg_optim_sink(optim);
    const int64_t grid[] = {N, N};
    tg_loader *loader = NULL;
    tg_tensor x, y;
    need(ctx, tg_step_share_workspace(fno, optim));
    need(ctx, tg_fno_prepare(fno, BATCH, grid, true)); /* every buffer of a step */
    need(ctx, tg_loader_create(ctx, samples, &how, &loader));
    need(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, x_values, &x));
    need(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, y_values, &y));
    for (int interval = 0; interval < INTERVALS; interval++) {
        double sum = 0.0, loss = 0.0;
        int64_t count = 0;
        simulate(interval, interval * RUNS % KEPT);
        for (int64_t batch = 0; batch < tg_loader_batches(loader); batch++) {
            need(ctx, tg_loader_batch(loader, interval, batch, x_values, y_values, &count));
            need(ctx, tg_normalizer_apply(norm[0], &x));
            need(ctx, tg_normalizer_apply(norm[1], &y));
            need(ctx, tg_fno_loss_backward(fno, &x, &y, &l2, &sink, &loss));
            sum += loss;
        }
        if (interval % 20 == 19) {
            printf("%-5s interval %3d: loss %.4f\n", tg_backend_name(ctx), interval + 1,
                   sum / KEPT);
        }
    }
    tg_loader_destroy(&loader);
    tg_optim_destroy(&optim);
}

/* |after - before| / |after|: the error of predicting no change. */
static double change(void) {
    double sum = 0.0;
    for (int s = 0; s < KEPT; s++) {
        double moved = 0.0, size = 0.0;
        for (int i = 0; i < POINTS; i++) {
            moved += pow(after[s][i] - before[s][i], 2);
            size += pow(after[s][i], 2);
        }
        sum += sqrt(moved / size);
    }
    return sum / KEPT;
}

/* Trains on a backend and saves the model; true if it learned something. */
static bool train(tg_context *ctx, const char *path) {
    const tg_shape all = {4, {KEPT, 1, N, N}};
    tg_tensor x, y;
    tg_dataset *samples = NULL;
    tg_normalizer *norm[2] = {NULL, NULL};
    tg_model *model = NULL;
    tg_test_errors errors;
    srand(1);
    for (int first = 0; first < KEPT; first += RUNS) { /* to fit the scales */
        simulate(first / RUNS, first);
    }
    need(ctx, tg_tensor_wrap(ctx, TG_F64, &all, before, &x));
    need(ctx, tg_tensor_wrap(ctx, TG_F64, &all, after, &y));
    need(ctx, tg_dataset_wrap(ctx, &x, &y, NULL, &samples));
    need(ctx, tg_normalizer_fit(ctx, samples, TG_DATA_X, &norm[0]));
    need(ctx, tg_normalizer_fit(ctx, samples, TG_DATA_Y, &norm[1]));
    tg_fno *fno = make_network(ctx);
    learn(ctx, samples, fno, norm);
    need(ctx, tg_model_wrap(ctx, fno, norm[0], norm[1], &model));
    need(ctx, tg_model_save(model, path));
    for (int first = 0; first < KEPT; first += RUNS) { /* a test on unseen simulations */
        simulate(first / RUNS, first);
    }
    need(ctx, tg_model_evaluate(model, samples, BATCH, &errors));
    printf("%-5s error %.4f (of doing nothing %.4f), wrote %s\n", tg_backend_name(ctx), errors.l2,
           change(), path);
    const bool is_good = errors.l2 < 0.5 * change();
    tg_test_errors_destroy(&errors);
    tg_model_destroy(&model);
    tg_fno_destroy(&fno);
    tg_normalizer_destroy(&norm[0]);
    tg_normalizer_destroy(&norm[1]);
    tg_dataset_close(&samples);
    return is_good;
}

int main(int argc, char **argv) {
    static const char *const backends[] = {"cpu", "cuda"};
    bool is_good = true;
    for (int i = 0; i < 2; i++) {
        tg_context *ctx = NULL;
        need(NULL, tg_context_create(NULL, &ctx));
        const tg_status status = tg_backend_select(ctx, backends[i]);
        if (i == 0 || status == TG_OK) {
            need(ctx, status);
            is_good = train(ctx, argc > 1 ? argv[1] : "insitu.safetensors") && is_good;
        }
        tg_context_destroy(&ctx);
    }
    return is_good ? EXIT_SUCCESS : EXIT_FAILURE;
}
