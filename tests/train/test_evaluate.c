/* Test errors of several output channels, against a computation that shares nothing with the
 * library: of each sample with its channels together, of each channel by itself, and their means,
 * for real and complex data, on every backend and for batches that do not divide the set. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "nn/losses.h"
#include "support/fake_device.h"
#include "support/files.h"
#include "support/sets.h"
#include "tgrad/tgrad.h"

enum { SAMPLES = 7, IN = 2, CHANNELS = 3, MOST = 36 };

/* A problem: n points per dimension. */
typedef struct problem {
    const char *name;
    bool is_complex;
    int n_dim;
    int n;
    const char *modes;
} problem;

static const problem problems[] = {{"plane", false, 2, 6, "[4, 4]"}, {"wave", true, 1, 9, "[4]"}};

static int points_of(const problem *p) {
    return p->n_dim == 2 ? p->n * p->n : p->n;
}

/* Numbers whose size differs by channel; channel 1 of sample 2 is zero throughout. */
static tg_tensor make(tg_context *ctx, const problem *p, int channels, uint64_t seed) {
    static const double size[CHANNELS] = {1.0, 30.0, 0.02};
    const int parts = p->is_complex ? 2 : 1;
    tg_shape shape = {.ndim = 2 + p->n_dim, .dim = {SAMPLES, channels, p->n, p->n}};
    tg_tensor tensor;
    set_ok(ctx,
           tg_tensor_create(ctx, TG_MEM_DATA, p->is_complex ? TG_C64 : TG_F32, &shape, &tensor));
    float *out = tensor.data;
    for (int i = 0; i < SAMPLES * channels; i++) {
        const bool is_zero = channels == CHANNELS && i == 2 * CHANNELS + 1;
        for (int k = 0; k < points_of(p) * parts; k++) {
            const double number = (double)(test_random(&seed) % 1000) / 1000.0 - 0.3;
            *out++ = is_zero ? 0.0F : (float)(size[i % channels] * number);
        }
    }
    return tensor;
}

static void write_set(tg_context *ctx, const problem *p, const char *part, uint64_t seed) {
    char name[64];
    tg_archive *archive = NULL;
    tg_tensor x = make(ctx, p, IN, seed), y = make(ctx, p, CHANNELS, seed + 1);
    snprintf(name, sizeof name, "%s_%s_%d.safetensors", p->name, part, p->n);
    set_ok(ctx, tg_archive_create(ctx, &archive));
    set_ok(ctx, tg_archive_take(archive, "x", &x));
    set_ok(ctx, tg_archive_take(archive, "y", &y));
    set_ok(ctx, tg_archive_write(ctx, test_path(name), archive));
    tg_archive_destroy(&archive);
}

/* ---- the naive computation ---- */

/* One image of a tensor as pairs {re, im}. */
typedef double pair[2];

static void take_image(const problem *p, const tg_tensor *tensor, int sample, int channel,
                       pair image[MOST]) {
    const int points = points_of(p), channels = (int)tensor->shape.dim[1];
    const float *f = tensor->data;
    for (int k = 0; k < points; k++) {
        const int at = (sample * channels + channel) * points + k;
        image[k][0] = (double)f[p->is_complex ? 2 * at : at];
        image[k][1] = p->is_complex ? (double)f[2 * at + 1] : 0.0;
    }
}

/* |a - b|^2 times factor^2. */
static double apart(const pair a, const pair b, double factor) {
    return factor * factor * (pow(a[0] - b[0], 2) + pow(a[1] - b[1], 2));
}

/* |f|^2, with the squares of its central differences on the unit grid if h1. */
static double square_of(const problem *p, pair f[MOST], bool h1) {
    static const pair zero = {0};
    const int n = p->n;
    double sum = 0.0;
    for (int k = 0; k < points_of(p); k++) {
        const int row = k - k % n, right = row + (k % n + 1) % n, left = row + (k % n + n - 1) % n;
        const int up = (k + n) % (n * n), down = (k + n * n - n) % (n * n);
        sum += apart(f[k], zero, 1.0);
        sum += h1 ? apart(f[right], f[left], n / 2.0) : 0.0;
        sum += h1 && p->n_dim == 2 ? apart(f[up], f[down], n / 2.0) : 0.0;
    }
    return sum;
}

/* Errors of the samples, the channels, and the mean of the former. */
static void expected(const problem *p, const tg_tensor *pred, const tg_tensor *truth, bool h1,
                     double sample[SAMPLES], double channel[CHANNELS], double *mean) {
    *mean = 0.0;
    memset(channel, 0, CHANNELS * sizeof *channel);
    for (int b = 0; b < SAMPLES; b++) {
        double error = 0.0, whole = 0.0;
        for (int c = 0; c < CHANNELS; c++) {
            pair a[MOST], t[MOST];
            take_image(p, pred, b, c, a);
            take_image(p, truth, b, c, t);
            const double norm = square_of(p, t, h1);
            for (int k = 0; k < points_of(p); k++) {
                a[k][0] -= t[k][0];
                a[k][1] -= t[k][1];
            }
            const double difference = square_of(p, a, h1);
            channel[c] += sqrt(difference / (norm > 0.0 ? norm : 1.0)) / SAMPLES;
            error += difference;
            whole += norm;
        }
        sample[b] = sqrt(error / whole);
        *mean += sample[b] / SAMPLES;
    }
}

/* ---- against the library ---- */

static void near_at(int line, double found, double wanted) {
    if (!(fabs(found - wanted) <= 1e-6 * wanted)) {
        fail_msg("line %d: %.9g, expected %.9g", line, found, wanted);
    }
}
#define near(found, wanted) near_at(__LINE__, (found), (wanted))

static int ascending(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void compare(const problem *p, const tg_test_errors *e, const tg_tensor *pred,
                    const tg_tensor *truth) {
    for (int h1 = 0; h1 < 2; h1++) {
        double sample[SAMPLES], channel[CHANNELS], mean;
        expected(p, pred, truth, h1, sample, channel, &mean);
        near(h1 ? e->h1 : e->l2, mean);
        for (int b = 0; b < SAMPLES; b++) {
            near((h1 ? e->h1_samples : e->l2_samples)[b], sample[b]);
        }
        const double *quantile = h1 ? e->h1_quantiles : e->l2_quantiles;
        qsort(sample, SAMPLES, sizeof *sample, ascending);
        near(quantile[0], sample[0]);
        near(quantile[2], SAMPLES % 2 ? sample[SAMPLES / 2]
                                      : (sample[SAMPLES / 2 - 1] + sample[SAMPLES / 2]) / 2.0);
        near(quantile[4], sample[SAMPLES - 1]);
        assert_true(quantile[1] >= quantile[0] && quantile[1] <= quantile[2]);
        assert_true(quantile[3] >= quantile[2] && quantile[3] <= quantile[4]);
        for (int c = 0; c < CHANNELS; c++) {
            near((h1 ? e->h1_channels : e->l2_channels)[c], channel[c]);
        }
    }
    assert_int_equal(e->samples, SAMPLES);
    assert_int_equal(e->channels, CHANNELS);
}

/* What the watcher of a run receives. */
typedef struct seen {
    int epochs;
    double l2, h1_of_last_channel, l2_of_last_sample;
} seen;

static void on_epoch(void *user, const tg_train_epoch *epoch) {
    seen *s = user;
    assert_int_equal(epoch->test_count, 1);
    s->epochs++;
    s->l2 = epoch->test[0].l2;
    s->h1_of_last_channel = epoch->test[0].h1_channels[CHANNELS - 1];
    s->l2_of_last_sample = epoch->test[0].l2_samples[SAMPLES - 1];
}

/* Trains for two epochs; the checkpoint's path in *end. */
static void train(tg_context *ctx, const problem *p, const char *root, tg_train_end *end,
                  seen *told) {
    static int runs;
    const char *const list[] = {"fno.n_modes",
                                p->modes,
                                "fno.in_channels",
                                "2",
                                "fno.out_channels",
                                "3",
                                "fno.hidden_channels",
                                "4",
                                "fno.n_layers",
                                "2",
                                "fno.complex_data",
                                p->is_complex ? "true" : "false",
                                "opt.name",
                                "adam",
                                "opt.n_epochs",
                                "2",
                                "data.root",
                                root,
                                "data.set",
                                p->name,
                                "data.encode_output",
                                "true",
                                "data.batch_size",
                                "4",
                                "data.test_batch_sizes",
                                "3",
                                "data.train_resolution",
                                p->n == 6 ? "6" : "9",
                                "data.test_resolutions",
                                p->n == 6 ? "6" : "9"};
    char folder[1100];
    tg_settings *settings = NULL;
    tg_trainer *trainer = NULL;
    const tg_train_watch watch = {.user = told, .on_epoch = on_epoch};
    snprintf(folder, sizeof folder, "%s/run.%d", root, runs++);
    set_ok(ctx, tg_settings_create(ctx, &settings));
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i += 2) {
        set_ok(ctx, tg_settings_set(settings, list[i], list[i + 1], NULL));
    }
    set_ok(ctx, tg_trainer_create(ctx, NULL, settings, folder, &trainer));
    set_ok(ctx, tg_trainer_start(trainer));
    set_ok(ctx, tg_trainer_run(trainer, &watch, end));
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
}

/* Weights that are no numbers, once some are. */
static void count_nonfinite(tg_context *ctx, tg_model *model) {
    const float bad[4] = {NAN, -INFINITY, INFINITY, 1.0F}; /* as pairs: both are bad */
    tg_fno *fno = tg_model_fno(model);
    int64_t count = -1, total = 0, wanted = 0, numbers = 0;
    set_ok(ctx, tg_fno_nonfinite(fno, &count, &total));
    assert_int_equal(count, 0);
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param p = tg_fno_get_param(fno, i);
        const bool is_complex = tg_dtype_is_complex(p.dtype);
        const tg_shape few = {.ndim = 1, .dim = {is_complex ? 2 : 4}};
        tg_tensor weight, values;
        numbers += tg_shape_numel(&p.shape);
        if (tg_shape_numel(&p.shape) >= 4) {
            set_ok(ctx, tg_tensor_wrap(ctx, p.dtype, &few, (void *)(uintptr_t)bad, &values));
            set_ok(ctx, tg_tensor_wrap_at(ctx, tg_backend_place(ctx), p.dtype, &few, p.weight.data,
                                          &weight));
            set_ok(ctx, tg_backend_copy(ctx, &values, &weight));
            wanted += is_complex ? 2 : 3;
        }
    }
    set_ok(ctx, tg_fno_nonfinite(fno, &count, &total));
    assert_int_equal(count, wanted);
    assert_int_equal(total, numbers);
    assert_true(wanted > 10);
}

/* How often an evaluation leaves the device that is none without work. */
static long count_starved(tg_context *ctx, tg_model *model, tg_dataset *set, int batch) {
    const long before = fake_device_counts().starved;
    tg_test_errors errors;
    set_ok(ctx, tg_model_evaluate(model, set, batch, &errors));
    tg_test_errors_destroy(&errors);
    return fake_device_counts().starved - before;
}

static void check(tg_context *ctx, const problem *p, const char *root) {
    char path[1200];
    tg_train_end end;
    tg_model *model = NULL;
    tg_archive *data = NULL;
    tg_dataset_config config = tg_dataset_config_default();
    seen told = {0};
    config.n_dim = p->n_dim;
    config.complex_data = p->is_complex;
    train(ctx, p, root, &end, &told);
    snprintf(path, sizeof path, "%s/%s_test_%d.safetensors", root, p->name, p->n);
    set_ok(ctx, tg_archive_read(ctx, path, &data));
    const tg_tensor *x = tg_archive_find(data, "x"), *y = tg_archive_find(data, "y");
    tg_tensor pred;
    set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, y->dtype, &y->shape, &pred));
    set_ok(ctx, tg_model_load(ctx, end.checkpoint, &model));
    set_ok(ctx, tg_model_predict(model, x, &pred));
    tg_dataset *set = set_open(ctx, path, &config);
    static const int batches[] = {1, 3, SAMPLES, 50};
    for (int i = 0; i < 4; i++) {
        tg_test_errors errors;
        set_ok(ctx, tg_model_evaluate(model, set, batches[i], &errors));
        compare(p, &errors, &pred, y);
        assert_int_equal(told.epochs, 2);
        near(errors.l2, told.l2);
        near(errors.h1_channels[CHANNELS - 1], told.h1_of_last_channel);
        near(errors.l2_samples[SAMPLES - 1], told.l2_of_last_sample);
        tg_test_errors_destroy(&errors);
        tg_test_errors_destroy(&errors);
    }
    /* seven batches as one: nothing waits for a batch */
    assert_int_equal(count_starved(ctx, model, set, 1), count_starved(ctx, model, set, SAMPLES));
    count_nonfinite(ctx, model);
    tg_dataset_close(&set);
    tg_tensor_destroy(&pred);
    tg_archive_destroy(&data);
    tg_model_destroy(&model);
}

TEST(test_errors_by_hand) {
    for (int i = 0; i < tg_backend_count(); i++) {
        tg_backend_info info;
        if (tg_backend_describe(NULL, i, &info) != TG_OK || !info.available) {
            continue;
        }
        const tg_context_config config = {
            .size = sizeof(tg_context_config), .device = -1, .threads = 2};
        tg_context *ctx = NULL;
        char root[1024];
        assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
        set_ok(ctx, tg_backend_select(ctx, info.name));
        for (size_t k = 0; k < sizeof problems / sizeof problems[0]; k++) {
            write_set(ctx, &problems[k], "train", 1);
            write_set(ctx, &problems[k], "test", 11);
            snprintf(root, sizeof root, "%s", test_path(""));
            check(ctx, &problems[k], root);
        }
        tg_context_destroy(&ctx);
    }
}

/* Squares have their own shape and dtype. */
TEST(test_squares_are_checked) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    set_ok(ctx, tg_backend_select(ctx, "ref"));
    float numbers[8] = {1, 2, 3, 4, 2, 2, 2, 2};
    double found[4];
    tg_tensor pred, squares;
    const tg_shape shape = SET_SHAPE(1, 2, 4), fits = SET_SHAPE(1, 2, 2), other = SET_SHAPE(2, 2);
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, numbers, &pred));
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &other, found, &squares));
    assert_int_equal(tg_loss_squares(ctx, TG_LOSS_LP, &pred, &pred, NULL, &squares), TG_E_SHAPE);
    set_expect_sentence(ctx, "1x2x2");
    squares.shape = fits;
    set_ok(ctx, tg_loss_squares(ctx, TG_LOSS_LP, &pred, &pred, NULL, &squares));
    assert_true(found[0] == 0.0 && found[1] == 30.0 && found[2] == 0.0 && found[3] == 16.0);
    set_ok(ctx, tg_loss_squares(ctx, TG_LOSS_H1, &pred, &pred, NULL, &squares));
    /* differences 2 - 4, 3 - 1, 4 - 2, 1 - 3, each times 4 / 2 */
    assert_true(found[1] == 30.0 + 4 * 16.0 && found[3] == 16.0);
    tg_context_destroy(&ctx);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, test_files_end);
}
