/* Rollouts in training: gradients through several steps against central differences in f64, with
 * histories, horizons, normalizers, complex data and dropout; the last step alone against the same
 * step by hand; one step against the ordinary one, bit for bit; what is refused. Rollouts of a
 * model: errors, correlations and spectra against those made by hand. */
#include <math.h>
#include <string.h>

#include "data/dataset.h"
#include "nn/network.h"
#include "support/files.h"
#include "support/network.h"
#include "support/sets.h"
#include "train/step.h"

enum { BATCH = 2, STEPS = 3, GRID = 7 };

typedef struct problem {
    tg_context *ctx;
    tg_fno *fno;
    tg_tensor x, target;
    tg_loss_config loss;
    tg_normalizer *normalizer[2];
    tg_rollout *rollout;
    double losses[STEPS];
    net_gradients sums;
} problem;

static const struct {
    const char *config; /* JSON */
    const char *loss;
    bool is_normalized;
} cases[] = {
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 2}", "l2", false},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 2}", "h1", true},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 1, \"in_channels\": 3}", "l2", true},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 1, \"in_channels\": 3,"
     "\"out_channels\": 2, \"activation_checkpoint\": \"minimal\"}",
     "l2", true},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 1, \"out_channels\": 2}", "l2",
     false},
    {"{\"n_modes\": [5], \"hidden_channels\": 2, \"n_layers\": 1, \"in_channels\": 2,"
     "\"complex_data\": true}",
     "l2", true},
    {"{\"n_modes\": [5], \"hidden_channels\": 3, \"n_layers\": 1, \"channel_mlp_dropout\": 0.3}",
     "l2", false},
};

enum { CASES = sizeof cases / sizeof cases[0] };

/* Means and deviations far from 0 and 1, other ones for every channel. */
static tg_normalizer *make_normalizer(tg_context *ctx, int side, int64_t channels,
                                      bool is_complex) {
    tg_archive *archive = NULL;
    tg_normalizer *normalizer = NULL;
    tg_tensor mean, std;
    const tg_shape shape = {1, {channels}};
    net_ok(ctx, tg_archive_create(ctx, &archive));
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_OTHER, is_complex ? TG_C128 : TG_F64, &shape, &mean));
    net_ok(ctx, tg_tensor_create(ctx, TG_MEM_OTHER, TG_F64, &shape, &std));
    for (int64_t c = 0; c < channels; c++) {
        for (int part = 0; part < (is_complex ? 2 : 1); part++) {
            ((double *)mean.data)[(is_complex ? 2 : 1) * c + part] =
                0.3 * (double)(c + 1) - 0.2 * side + 0.1 * part;
        }
        ((double *)std.data)[c] = 0.5 + 0.25 * (double)c + 0.3 * side;
    }
    net_ok(ctx, tg_archive_take(archive, "mean", &mean));
    net_ok(ctx, tg_archive_take(archive, "std", &std));
    net_ok(ctx, tg_normalizer_load(ctx, archive, "", &normalizer));
    tg_archive_destroy(&archive);
    return normalizer;
}

/* Adds up what it receives. */
static tg_status add(void *user, const tg_gradient *gradient) {
    problem *p = user;
    tg_tensor *sum = &p->sums.gradient[gradient->param], now = {0};
    net_ok(p->ctx, tg_tensor_create(p->ctx, TG_MEM_OTHER, gradient->dtype, &gradient->shape, &now));
    net_ok(p->ctx, tg_gradient_read(p->ctx, gradient, &now));
    if (!sum->data) {
        *sum = now;
        return TG_OK;
    }
    for (size_t i = 0; i < tg_tensor_bytes(&now) / sizeof(double); i++) {
        ((double *)sum->data)[i] += ((const double *)now.data)[i];
    }
    tg_tensor_destroy(&now);
    return TG_OK;
}

static problem make_problem(const char *backend, int number, tg_rollout_gradients gradients) {
    tg_context *ctx = net_context(backend, 1);
    problem p = {.ctx = ctx};
    tg_fno_config config = net_config(ctx, cases[number].config);
    config.dtype = TG_F64;
    config.input_gradient = true;
    net_ok(ctx, tg_fno_create(ctx, &config, 3, &p.fno));
    net_ok(ctx, tg_fno_prepare(p.fno, BATCH, (int64_t[]){GRID}, true));
    net_ok(ctx, tg_loss_config_parse(ctx, "loss", cases[number].loss, &p.loss));
    p.x = net_random(ctx, &config, BATCH, config.in_channels, (int64_t[]){GRID}, 1);
    p.target = net_random(ctx, &config, BATCH, STEPS * config.out_channels, (int64_t[]){GRID}, 2);
    const int64_t channels[] = {config.in_channels, config.out_channels};
    for (int side = 0; side < 2 && cases[number].is_normalized; side++) {
        p.normalizer[side] = make_normalizer(ctx, side, channels[side], config.complex_data);
    }
    const tg_step_config step = {.size = sizeof step,
                                 .fno = p.fno,
                                 .loss = p.loss,
                                 .rollout_steps = STEPS,
                                 .rollout_gradients = gradients,
                                 .x_normalizer = p.normalizer[0],
                                 .y_normalizer = p.normalizer[1]};
    net_ok(ctx, tg_rollout_create(ctx, &step, &p.rollout));
    p.sums = net_gradients_make(ctx, p.fno);
    return p;
}

static void free_problem(problem *p) {
    net_gradients_free(&p->sums);
    tg_rollout_destroy(&p->rollout);
    tg_normalizer_destroy(&p->normalizer[0]);
    tg_normalizer_destroy(&p->normalizer[1]);
    tg_fno_destroy(&p->fno);
    tg_tensor_destroy(&p->x);
    tg_tensor_destroy(&p->target);
    tg_context_destroy(&p->ctx);
}

static double forward(problem *p) {
    const int64_t count = tg_rollout_losses(p->rollout);
    double sum = 0.0;
    tg_fno_set_step(p->fno, 5); /* the same dropout each time */
    net_ok(p->ctx, tg_rollout_forward(p->rollout, &p->x, &p->target, 1.0, p->losses));
    for (int64_t i = 0; i < count; i++) {
        sum += p->losses[i] / (double)count;
    }
    return sum;
}

static void backward(problem *p) {
    const tg_grad_sink sink = {.receive = add, .user = p};
    net_ok(p->ctx, tg_rollout_backward(p->rollout, &sink));
    assert_int_equal(tg_fno_step(p->fno), 6); /* one training step, however many in it */
}

static double difference(problem *p, double *weight) {
    const double kept = *weight, step = 1e-5;
    *weight = kept + step;
    const double up = forward(p);
    *weight = kept - step;
    const double down = forward(p);
    *weight = kept;
    return (up - down) / (2.0 * step);
}

TEST(test_central_differences) {
    for (int number = 0; number < CASES; number++) {
        problem p = make_problem("ref", number, TG_ROLLOUT_ALL);
        forward(&p);
        backward(&p);
        for (int n = 0; n < p.sums.count; n++) {
            const tg_tensor *gradient = &p.sums.gradient[n];
            const tg_fno_param param = tg_fno_get_param(p.fno, n);
            const int64_t reals = (int64_t)(tg_tensor_bytes(gradient) / sizeof(double));
            for (int64_t i = n % 3; i < reals; i += 1 + reals / 5) {
                const double exact = ((const double *)gradient->data)[i];
                const double numeric = difference(&p, (double *)param.weight.data + i);
                if (!(fabs(numeric - exact) <= 1e-7 * (1.0 + fabs(exact)))) {
                    fail_msg("case %d, %s [%lld]: gradient %.12g, difference %.12g", number,
                             param.name, (long long)i, exact, numeric);
                }
            }
        }
        free_problem(&p);
    }
}

/* The same numbers from the cpu backend. */
TEST(test_backends) {
    for (int number = 0; number < CASES; number++) {
        problem ref = make_problem("ref", number, TG_ROLLOUT_ALL);
        problem cpu = make_problem("cpu", number, TG_ROLLOUT_ALL);
        assert_true(fabs(forward(&ref) - forward(&cpu)) <= 1e-12);
        backward(&ref);
        backward(&cpu);
        for (int n = 0; n < ref.sums.count; n++) {
            assert_true(net_error(&cpu.sums.gradient[n], &ref.sums.gradient[n]) <= 1e-10);
        }
        free_problem(&ref);
        free_problem(&cpu);
    }
}

static void expect_same_gradients(const net_gradients *a, const net_gradients *b) {
    for (int n = 0; n < a->count; n++) {
        assert_memory_equal(a->gradient[n].data, b->gradient[n].data,
                            tg_tensor_bytes(&a->gradient[n]));
    }
}

/* Target frame j of every sample. */
static tg_tensor target_of(const problem *p, int64_t j) {
    const tg_fno_config *config = tg_fno_get_config(p->fno);
    tg_tensor y = net_random(p->ctx, config, BATCH, config->out_channels, (int64_t[]){GRID}, 9);
    const size_t bytes = tg_tensor_bytes(&y) / BATCH;
    for (int64_t b = 0; b < BATCH; b++) {
        memcpy((char *)y.data + (size_t)b * bytes,
               (const char *)p->target.data + (size_t)(b * STEPS + j) * bytes, bytes);
    }
    return y;
}

/* Gradients of one ordinary step from x to frame j. */
static net_gradients ordinary(problem *p, const tg_tensor *x, int64_t j, double *loss) {
    net_gradients gradients = net_gradients_make(p->ctx, p->fno);
    const tg_grad_sink sink = net_sink(&gradients);
    tg_tensor y = target_of(p, j);
    tg_fno_set_step(p->fno, 5);
    net_ok(p->ctx, tg_fno_loss_backward(p->fno, x, &y, &p->loss, &sink, loss));
    tg_tensor_destroy(&y);
    return gradients;
}

/* A rollout of one step is the ordinary step, whatever its gradients go through. */
TEST(test_one_step) {
    for (int number = 0; number < 2 * CASES; number++) {
        problem p = make_problem("cpu", number / 2, number % 2 ? TG_ROLLOUT_ALL : TG_ROLLOUT_LAST);
        double loss = (double)NAN;
        net_ok(p.ctx, tg_rollout_set_steps(p.rollout, 1));
        const double found = forward(&p);
        backward(&p);
        net_gradients expected = ordinary(&p, &p.x, 0, &loss);
        assert_true(found == loss);
        expect_same_gradients(&p.sums, &expected);
        net_gradients_free(&expected);
        free_problem(&p);
    }
}

/* Pushforward: the ordinary step from where the network's own predictions lead. */
TEST(test_last_step) {
    problem p = make_problem("cpu", 0, TG_ROLLOUT_LAST);
    const double found = forward(&p);
    backward(&p);
    tg_tensor x = net_random(p.ctx, tg_fno_get_config(p.fno), BATCH, 1, (int64_t[]){GRID}, 1);
    for (int j = 0; j < STEPS - 1; j++) { /* history 1, nothing normalized: y is the next x */
        tg_tensor y = target_of(&p, 0);
        net_ok(p.ctx, tg_fno_forward(p.fno, &x, &y));
        tg_tensor_destroy(&x);
        x = y;
    }
    double loss = (double)NAN;
    net_gradients expected = ordinary(&p, &x, STEPS - 1, &loss);
    assert_true(found == loss);
    expect_same_gradients(&p.sums, &expected);
    net_gradients_free(&expected);
    tg_tensor_destroy(&x);
    free_problem(&p);
}

/* The public function takes as many steps as requested, and reports what it cannot do. */
TEST(test_public_step) {
    problem p = make_problem("cpu", 0, TG_ROLLOUT_ALL);
    tg_step_config config = {.size = sizeof config,
                             .fno = p.fno,
                             .loss = p.loss,
                             .rollout_steps = STEPS,
                             .rollout_gradients = TG_ROLLOUT_ALL};
    tg_step *step = NULL;
    tg_step_result result;
    net_ok(p.ctx, tg_step_create(p.ctx, &config, &step));
    for (int64_t steps = STEPS; steps >= 1; steps -= 2) {
        net_ok(p.ctx, tg_rollout_set_steps(p.rollout, steps));
        net_ok(p.ctx, tg_step_set_rollout_steps(step, steps));
        const double expected = forward(&p);
        net_ok(p.ctx, tg_step_forward(step, &p.x, &p.target));
        net_ok(p.ctx, tg_step_backward(step));
        net_ok(p.ctx, tg_step_synchronize(step, &result));
        assert_true(result.samples == BATCH && result.loss == expected);
    }
    assert_int_equal(tg_step_set_rollout_steps(step, STEPS + 1), TG_E_ARGUMENT);
    assert_int_equal(tg_step_forward(step, &p.x, &p.x), TG_E_SHAPE); /* one step's target */
    tg_step_destroy(&step);
    config.rollout_steps = 1;
    net_ok(p.ctx, tg_step_create(p.ctx, &config, &step));
    net_ok(p.ctx, tg_step_set_rollout_steps(step, 1));
    assert_int_equal(tg_step_set_rollout_steps(step, 2), TG_E_ARGUMENT);
    tg_step_destroy(&step);
    free_problem(&p);
}

/* ---- errors of a model's rollouts ---- */

enum { TRAJECTORIES = 3, TIMES = 7, HISTORY = 2, HEIGHT = 6, WIDTH = 5, POINTS = HEIGHT * WIDTH };

/* Energy of the wave vectors nearest to |q| = k, by the definition. */
static double energy_at(const float *field, int64_t k) {
    const double turn = 6.283185307179586477;
    double energy = 0.0;
    for (int i = 0; i < POINTS; i++) {
        const int a = i / WIDTH - HEIGHT / 2, b = i % WIDTH - WIDTH / 2;
        double re = 0.0, im = 0.0;
        for (int p = 0; p < POINTS; p++) {
            const double angle =
                turn * ((double)(a * (p / WIDTH)) / HEIGHT + (double)(b * (p % WIDTH)) / WIDTH);
            re += (double)field[p] * cos(angle) / POINTS;
            im -= (double)field[p] * sin(angle) / POINTS;
        }
        energy += lround(sqrt((double)(a * a + b * b))) == k ? re * re + im * im : 0.0;
    }
    return energy;
}

static double correlation_of(const float *a, const float *b) {
    double mean[2] = {0.0, 0.0}, ab = 0.0, aa = 0.0, bb = 0.0;
    for (int i = 0; i < POINTS; i++) {
        mean[0] += (double)a[i] / POINTS;
        mean[1] += (double)b[i] / POINTS;
    }
    for (int i = 0; i < POINTS; i++) {
        const double u = (double)a[i] - mean[0], v = (double)b[i] - mean[1];
        ab += u * v;
        aa += u * u;
        bb += v * v;
    }
    return ab / sqrt(aa * bb);
}

TEST(test_model_rollout) {
    enum { LAST = TIMES - HISTORY }; /* steps */
    tg_context *ctx = net_context("cpu", 1);
    tg_fno_config config = net_config(
        ctx, "{\"n_modes\": [4, 4], \"hidden_channels\": 3, \"n_layers\": 1, \"in_channels\": 2}");
    const tg_shape shape = SET_SHAPE(TRAJECTORIES, TIMES, HEIGHT, WIDTH);
    tg_dataset_config how = tg_dataset_config_default();
    tg_fno *fno = NULL;
    tg_model *model = NULL;
    tg_rollout_errors errors;
    float x[HISTORY * POINTS], y[LAST * POINTS], made[POINTS];
    double l2[LAST] = {0.0}, correlation[LAST] = {0.0}, energy[4][4] = {{0.0}}, correlated = 0.0;
    how.n_dim = 2;
    how.layout = TG_LAYOUT_TRAJECTORY;
    how.fields = "x";
    how.history = HISTORY;
    how.horizon = LAST;
    tg_dataset *set = set_open(ctx, set_write(ctx, "flow.h5", TG_F32, &shape, &shape), &how);
    net_ok(ctx, tg_fno_create(ctx, &config, 3, &fno));
    tg_normalizer *by = make_normalizer(ctx, 1, 1, false);
    net_ok(ctx, tg_model_wrap(ctx, fno, NULL, by, &model));
    net_ok(ctx, tg_model_rollout(model, set, 2, &errors));
    for (int64_t t = 0; t < TRAJECTORIES; t++) {
        int64_t steps = LAST;
        net_ok(ctx, tg_dataset_read(set, &t, 1, x, y));
        for (int j = 0; j < LAST; j++) {
            const tg_tensor in = {.dtype = TG_F32, .shape = {4, {1, 2, HEIGHT, WIDTH}}, .data = x};
            tg_tensor out = {.dtype = TG_F32, .shape = {4, {1, 1, HEIGHT, WIDTH}}, .data = made};
            double error = 0.0, truth = 0.0;
            net_ok(ctx, tg_model_predict(model, &in, &out));
            for (int p = 0; p < POINTS; p++) {
                const double v = (double)y[j * POINTS + p], d = (double)made[p] - v;
                error += d * d;
                truth += v * v;
            }
            const double now = correlation_of(made, y + (ptrdiff_t)j * POINTS);
            l2[j] += sqrt(error / truth) / TRAJECTORIES;
            correlation[j] += now / TRAJECTORIES;
            steps = steps == LAST && now < 0.8 ? j : steps;
            for (int64_t k = 0; k < 3 && (j == 0 || j == LAST - 1); k++) {
                energy[j > 0][k] += energy_at(y + (ptrdiff_t)j * POINTS, k) / TRAJECTORIES;
                energy[2 + (j > 0)][k] += energy_at(made, k) / TRAJECTORIES;
            }
            memcpy(x, x + POINTS, sizeof made);
            memcpy(x + POINTS, made, sizeof made);
        }
        correlated += (double)steps / TRAJECTORIES;
    }
    assert_true(errors.trajectories == TRAJECTORIES && errors.steps == LAST);
    assert_int_equal(errors.wavenumbers, 3); /* 0, 1, 2: half of the shorter side */
    assert_true(fabs(errors.correlated_steps - correlated) <= 1e-12);
    for (int j = 0; j < LAST; j++) {
        assert_true(fabs(errors.l2[j] - l2[j]) <= 1e-6 * l2[j]);
        assert_true(fabs(errors.correlation[j] - correlation[j]) <= 1e-5);
    }
    const double *const found[4] = {errors.truth_first, errors.truth_last, errors.prediction_first,
                                    errors.prediction_last};
    for (int i = 0; i < 4; i++) {
        for (int k = 0; k < 3; k++) {
            assert_true(fabs(found[i][k] - energy[i][k]) <= 1e-6 * (1.0 + energy[i][k]));
        }
    }
    tg_rollout_errors_destroy(&errors);
    tg_dataset_close(&set);
    tg_model_destroy(&model);
    tg_normalizer_destroy(&by);
    tg_fno_destroy(&fno);
    tg_context_destroy(&ctx);
    test_folder_remove();
}
