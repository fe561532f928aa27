/* A run against the same training written out: batches drawn, gradients added up, clipped and used
 * by Adam in double, rates and errors by their formulas. Only the network's gradients and the order
 * of the samples are taken from the library, which other tests are about. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/files.h"
#include "support/network.h"
#include "support/training.h"
#include "train/trainer.h"

enum { POINTS = 16, SAMPLES = 20, PARAMS = 32, WEIGHTS = 4096, TESTS = 2 };

/* ---- what is trained ---- */

typedef struct plan {
    const char *name;
    const char *settings[24]; /* of the run */
    int64_t batch, epochs, samples, micro, warmup;
    double rate, decay, clip; /* clip 0: off */
    int64_t halved_every;     /* epochs, StepLR with gamma 0.5; 0: none */
    int64_t cosine;           /* T_max; 0: none */
    bool in_order, encodes_x, encodes_y;
} plan;

static const plan plans[] = {
    {.name = "steps",
     .settings = {"opt.scheduler", "StepLR", "opt.step_size", "2", "opt.gamma", "0.5",
                  "opt.warmup_steps", "7", "opt.weight_decay", "0.1"},
     .epochs = 5,
     .batch = 4,
     .samples = 20,
     .micro = 1,
     .warmup = 7,
     .rate = 0.01,
     .decay = 0.1,
     .halved_every = 2,
     .encodes_y = true},
    {.name = "accumulated",
     .settings = {"opt.accumulation_steps", "2", "data.n_train", "18", "opt.scheduler",
                  "CosineAnnealingLR", "opt.scheduler_T_max", "6", "data.encode_input", "true"},
     .epochs = 4,
     .batch = 4,
     .samples = 18,
     .micro = 2,
     .rate = 0.01,
     .cosine = 6,
     .encodes_x = true,
     .encodes_y = true},
    {.name = "clipped",
     .settings = {"opt.max_grad_norm", "0.5", "fno.channel_mlp_dropout", "0.25", "data.shuffle",
                  "false", "data.encode_output", "false"},
     .epochs = 3,
     .batch = 4,
     .samples = 20,
     .micro = 1,
     .rate = 0.01,
     .clip = 0.5,
     .in_order = true},
    {.name = "accumulated and clipped",
     .settings = {"opt.accumulation_steps", "3", "opt.max_grad_norm", "0.25", "data.batch_size",
                  "3", "fno.channel_mlp_dropout", "0.25"},
     .epochs = 3,
     .batch = 3,
     .samples = 20,
     .micro = 3,
     .rate = 0.01,
     .clip = 0.25,
     .encodes_y = true},
};

/* Two test sets, with other numbers of samples and batches each. */
static const int64_t test_points[TESTS] = {16, 32}, test_samples[TESTS] = {3, 5};
static const char *const tests_of_all[] = {"data.test_resolutions", "[16, 32]",
                                           "data.n_tests",          "[3, 5]",
                                           "data.test_batch_sizes", "[2, 4]"};

/* ---- the training written out ---- */

typedef struct numbers {
    double mean, spread; /* 0 and 1: not normalized */
} numbers;

typedef struct by_hand {
    tg_context *ctx;
    const plan *plan;
    tg_fno *fno;
    numbers x_norm, y_norm;
    const float *x, *y;                                                  /* (SAMPLES, POINTS) */
    double sum[PARAMS][WEIGHTS], m[PARAMS][WEIGHTS], v[PARAMS][WEIGHTS]; /* reals; v per entry */
    int64_t updates;
} by_hand;

static tg_archive *read_set(tg_context *ctx, const char *part, int64_t points) {
    char name[64];
    tg_archive *archive = NULL;
    snprintf(name, sizeof name, "made_%s_%lld.safetensors", part, (long long)points);
    net_ok(ctx, tg_archive_read(ctx, test_path(name), &archive));
    return archive;
}

static numbers measure(const float *values, int64_t count, bool wanted) {
    double mean = 0.0, squares = 0.0;
    for (int64_t i = 0; i < count; i++) {
        mean += (double)values[i] / (double)count;
    }
    for (int64_t i = 0; i < count; i++) {
        squares += ((double)values[i] - mean) * ((double)values[i] - mean);
    }
    return wanted ? (numbers){mean, sqrt(squares / (double)(count - 1)) + 1e-7}
                  : (numbers){0.0, 1.0};
}

static double rate_of(const plan *p, int64_t epoch, int64_t update) {
    double rate = p->rate;
    rate *= p->halved_every ? pow(0.5, floor((double)epoch / (double)p->halved_every)) : 1.0;
    rate *=
        p->cosine ? 0.5 * (1.0 + cos(3.14159265358979 * (double)epoch / (double)p->cosine)) : 1.0;
    return update < p->warmup ? rate * (double)(update + 1) / (double)p->warmup : rate;
}

/* One update of every parameter from the sums of gradients, which are cleared. */
static void update(by_hand *h, double rate) {
    const double b1 = 0.9, b2 = 0.999, eps = 1e-6;
    double norm = 0.0;
    for (int i = 0; i < tg_fno_param_count(h->fno); i++) {
        for (int k = 0; k < WEIGHTS; k++) {
            norm += h->sum[i][k] * h->sum[i][k];
        }
    }
    norm = sqrt(norm);
    const double scale = h->plan->clip > 0.0 && norm > h->plan->clip ? h->plan->clip / norm : 1.0;
    const double t = (double)++h->updates;
    const double step = rate * sqrt(1.0 - pow(b2, t)) / (1.0 - pow(b1, t));
    for (int i = 0; i < tg_fno_param_count(h->fno); i++) {
        const tg_fno_param p = tg_fno_get_param(h->fno, i);
        const int parts = tg_dtype_is_complex(p.dtype) ? 2 : 1;
        float *w = p.weight.data;
        for (int64_t k = 0; k < tg_shape_numel(&p.shape); k++) {
            double square = 0.0;
            for (int c = 0; c < parts; c++) {
                const double g = scale * h->sum[i][parts * k + c];
                square += g * g;
                h->m[i][parts * k + c] = b1 * h->m[i][parts * k + c] + (1.0 - b1) * g;
            }
            h->v[i][k] = b2 * h->v[i][k] + (1.0 - b2) * square;
            for (int c = 0; c < parts; c++) {
                const double u = h->m[i][parts * k + c] / (sqrt(h->v[i][k]) + eps);
                const double moved = (double)w[parts * k + c] - step * u;
                w[parts * k + c] = (float)(moved - rate * h->plan->decay * moved);
            }
        }
        memset(h->sum[i], 0, sizeof h->sum[i]);
    }
}

/* Loss of the batch; its gradients are added to the sums. */
static double add_batch(by_hand *h, const int64_t *indices, int64_t count) {
    tg_tensor x = {0}, y = {0};
    const tg_shape shape = tg_shape_of(3, (int64_t[]){count, 1, POINTS});
    tg_loss_config loss;
    double value = 0.0;
    net_ok(h->ctx, tg_tensor_create(h->ctx, TG_MEM_DATA, TG_F32, &shape, &x));
    net_ok(h->ctx, tg_tensor_create(h->ctx, TG_MEM_DATA, TG_F32, &shape, &y));
    for (int64_t i = 0; i < count * POINTS; i++) {
        const int64_t at = indices[i / POINTS] * POINTS + i % POINTS;
        ((float *)x.data)[i] = (float)(((double)h->x[at] - h->x_norm.mean) / h->x_norm.spread);
        ((float *)y.data)[i] = (float)(((double)h->y[at] - h->y_norm.mean) / h->y_norm.spread);
    }
    net_gradients gradients = net_gradients_make(h->ctx, h->fno);
    const tg_grad_sink sink = net_sink(&gradients);
    net_ok(h->ctx, tg_loss_config_parse(h->ctx, "loss", "h1", &loss));
    net_ok(h->ctx, tg_fno_prepare(h->fno, h->plan->batch, (int64_t[]){POINTS}, true));
    net_ok(h->ctx, tg_fno_loss_backward(h->fno, &x, &y, &loss, &sink, &value));
    for (int i = 0; i < gradients.count; i++) {
        const tg_tensor *g = &gradients.gradient[i];
        const int64_t reals = tg_tensor_numel(g) * (tg_dtype_is_complex(g->dtype) ? 2 : 1);
        assert_true(i < PARAMS && reals <= WEIGHTS);
        for (int64_t k = 0; k < reals; k++) {
            h->sum[i][k] += (double)((const float *)g->data)[k];
        }
    }
    net_gradients_free(&gradients);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    return value;
}

/* Relative errors of one field of n points against another: {L2, H1}. */
static void add_errors(const float *pred, const float *y, int64_t n, numbers norm, double out[2]) {
    double e2 = 0.0, y2 = 0.0, de2 = 0.0, dy2 = 0.0;
    for (int64_t i = 0; i < n; i++) {
        const int64_t next = (i + 1) % n, last = (i + n - 1) % n;
        const double d[3] = {(double)y[last], (double)y[i], (double)y[next]};
        const double e[3] = {(double)pred[last] * norm.spread + norm.mean - d[0],
                             (double)pred[i] * norm.spread + norm.mean - d[1],
                             (double)pred[next] * norm.spread + norm.mean - d[2]};
        e2 += e[1] * e[1];
        y2 += d[1] * d[1];
        de2 += pow((e[2] - e[0]) * (double)n / 2.0, 2.0);
        dy2 += pow((d[2] - d[0]) * (double)n / 2.0, 2.0);
    }
    out[0] += sqrt(e2 / y2);
    out[1] += sqrt((e2 + de2) / (y2 + dy2));
}

static void evaluate(by_hand *h, int test, double out[2]) {
    const int64_t n = test_points[test], samples = test_samples[test];
    tg_archive *set = read_set(h->ctx, "test", n);
    tg_tensor x = {0}, pred = {0};
    const tg_shape shape = tg_shape_of(3, (int64_t[]){samples, 1, n});
    const float *from = tg_archive_find(set, "x")->data, *y = tg_archive_find(set, "y")->data;
    net_ok(h->ctx, tg_tensor_create(h->ctx, TG_MEM_DATA, TG_F32, &shape, &x));
    net_ok(h->ctx, tg_tensor_create(h->ctx, TG_MEM_DATA, TG_F32, &shape, &pred));
    for (int64_t i = 0; i < samples * n; i++) {
        ((float *)x.data)[i] = (float)(((double)from[i] - h->x_norm.mean) / h->x_norm.spread);
    }
    net_ok(h->ctx, tg_fno_prepare(h->fno, samples, &n, false));
    net_ok(h->ctx, tg_fno_forward(h->fno, &x, &pred));
    out[0] = out[1] = 0.0;
    for (int64_t s = 0; s < samples; s++) {
        add_errors((const float *)pred.data + s * n, y + s * n, n, h->y_norm, out);
    }
    out[0] /= (double)samples;
    out[1] /= (double)samples;
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&pred);
    tg_archive_destroy(&set);
}

/* Order of an epoch as the loader has it. */
static void order_of(by_hand *h, int64_t epoch, int64_t *order) {
    const tg_rng rng = {.seed = 5, .purpose = TG_RNG_SHUFFLE, .step = (uint32_t)epoch};
    const int64_t n = h->plan->samples;
    for (int64_t i = 0; i < n; i++) {
        order[i] = h->plan->in_order ? i : (int64_t)tg_rng_permute(&rng, (uint64_t)n, (uint64_t)i);
    }
}

static void expect_near(const plan *p, int epoch, const char *what, double got, double expected,
                        double tolerance) {
    if (!(fabs(got - expected) <= tolerance * fabs(expected))) {
        fail_msg("%s, epoch %d: %s is %.9g, expected %.9g", p->name, epoch + 1, what, got,
                 expected);
    }
}

/* Trains an epoch and compares with what the run reported. */
static void train_epoch(by_hand *h, int epoch, const tg_train_epoch *told) {
    const plan *p = h->plan;
    const int64_t batches = (p->samples + p->batch - 1) / p->batch;
    int64_t order[SAMPLES];
    double loss = 0.0, rate = 0.0;
    order_of(h, epoch, order);
    for (int64_t b = 0; b < batches; b++) {
        const int64_t left = p->samples - b * p->batch;
        loss += add_batch(h, order + b * p->batch, left < p->batch ? left : p->batch);
        if ((b + 1) % p->micro == 0 || b + 1 == batches) {
            rate = rate_of(p, epoch, h->updates);
            update(h, rate);
        }
    }
    assert_int_equal(told->step, h->updates);
    expect_near(p, epoch, "rate", told->learning_rate, rate, 1e-12);
    expect_near(p, epoch, "loss", told->train_loss, loss / (double)p->samples, 1e-4);
    assert_int_equal(told->test_count, TESTS);
    for (int i = 0; i < TESTS; i++) {
        double errors[2];
        evaluate(h, i, errors);
        assert_int_equal(told->test[i].samples, test_samples[i]);
        expect_near(p, epoch, "l2", told->test[i].l2, errors[0], 1e-3);
        expect_near(p, epoch, "h1", told->test[i].h1, errors[1], 1e-3);
    }
}

/* ---- the comparison ---- */

static void compare_weights(by_hand *h, const char *checkpoint) {
    tg_archive *archive = NULL;
    net_ok(h->ctx, tg_safetensors_read(h->ctx, checkpoint, &archive));
    for (int i = 0; i < tg_fno_param_count(h->fno); i++) {
        const tg_fno_param p = tg_fno_get_param(h->fno, i);
        const tg_tensor *got = tg_archive_find(archive, p.name);
        assert_non_null(got);
        const double error = net_error(got, &p.weight);
        if (!(error <= 1e-3)) {
            fail_msg("%s: %s is off by %g", h->plan->name, p.name, error);
        }
    }
    tg_archive_destroy(&archive);
}

/* The model of the checkpoint predicts in the units of the data, more samples than go at once. */
static void compare_predictions(by_hand *h, const char *checkpoint) {
    tg_model *model = NULL;
    tg_tensor x = {0}, y = {0}, raw = {0}, z = {0};
    const tg_shape shape = tg_shape_of(3, (int64_t[]){SAMPLES, 1, POINTS});
    const int64_t grid = POINTS;
    tg_tensor *const all[] = {&x, &y, &raw, &z};
    for (int i = 0; i < 4; i++) {
        net_ok(h->ctx, tg_tensor_create(h->ctx, TG_MEM_DATA, TG_F32, &shape, all[i]));
    }
    for (int64_t i = 0; i < SAMPLES * POINTS; i++) {
        ((float *)x.data)[i] = h->x[i];
        ((float *)raw.data)[i] = (float)(((double)h->x[i] - h->x_norm.mean) / h->x_norm.spread);
    }
    net_ok(h->ctx, tg_model_load(h->ctx, checkpoint, &model));
    net_ok(h->ctx, tg_model_predict(model, &x, &y));
    net_ok(h->ctx, tg_fno_prepare(h->fno, SAMPLES, &grid, false));
    net_ok(h->ctx, tg_fno_forward(h->fno, &raw, &z));
    for (int64_t i = 0; i < SAMPLES * POINTS; i++) {
        const double expected = (double)((float *)z.data)[i] * h->y_norm.spread + h->y_norm.mean;
        assert_true(fabs((double)((float *)y.data)[i] - expected) <= 1e-2);
    }
    for (int i = 0; i < 4; i++) {
        tg_tensor_destroy(all[i]);
    }
    tg_model_destroy(&model);
}

static void check(tg_context *ctx, const plan *p) {
    const char *settings[40] = {"opt.n_epochs", p->epochs == 5 ? "5" : p->epochs == 4 ? "4" : "3"};
    int count = 2;
    for (size_t i = 0; i < sizeof tests_of_all / sizeof tests_of_all[0]; i++) {
        settings[count++] = tests_of_all[i];
    }
    for (int i = 0; p->settings[i]; i++) {
        settings[count++] = p->settings[i];
    }
    run_record told = {0};
    net_ok(ctx, run_train(ctx, "made", p->name, settings, false, &told));
    assert_int_equal(told.epochs, p->epochs);

    by_hand *h = calloc(1, sizeof *h);
    tg_archive *set = read_set(ctx, "train", POINTS);
    tg_settings *all = run_settings(ctx, "made", settings);
    tg_run_config config;
    assert_non_null(h);
    net_ok(ctx, tg_run_config_read(ctx, all, 1, false, &config));
    h->ctx = ctx;
    h->plan = p;
    h->x = tg_archive_find(set, "x")->data;
    h->y = tg_archive_find(set, "y")->data;
    h->x_norm = measure(h->x, p->samples * POINTS, p->encodes_x);
    h->y_norm = measure(h->y, p->samples * POINTS, p->encodes_y);
    net_ok(ctx, tg_fno_create(ctx, &config.fno, 5, &h->fno));
    for (int epoch = 0; epoch < p->epochs; epoch++) {
        train_epoch(h, epoch, &told.epoch[epoch]);
    }
    compare_weights(h, told.end.checkpoint);
    compare_predictions(h, told.end.checkpoint);
    tg_fno_destroy(&h->fno);
    tg_settings_destroy(&all);
    tg_archive_destroy(&set);
    free(h);
}

TEST(test_runs_are_what_is_written_out) {
    tg_context *ctx = net_context("cpu", 1);
    run_write_set(ctx, "made", "train", POINTS, SAMPLES, 1, NULL);
    run_write_set(ctx, "made", "test", 16, 6, 2, NULL);
    run_write_set(ctx, "made", "test", 32, 6, 3, NULL);
    for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
        check(ctx, &plans[i]);
    }
    tg_context_destroy(&ctx);
}

static int teardown(void **state) {
    (void)state;
    run_folders_remove();
    test_folder_remove();
    return 0;
}

int main(void) {
    return t_run_tests(NULL, teardown);
}
