/* Models that a program makes of a network of its own: saved, loaded and used again bit for bit on
 * every backend, also when made of a checkpoint; what does not fit is refused, and a file that
 * cannot be written leaves the one before as it was. */
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/memory.h"
#include "support/fake_device.h"
#include "support/files.h"
#include "support/network.h"
#include "support/no_memory.h"
#include "support/sets.h"
#include "support/training.h"
#include "train/checkpoint.h"

enum { SAMPLES = 3 };

/* A network with data of its kind and normalizers fitted to them. */
typedef struct bench {
    tg_context *ctx;
    tg_fno *fno;
    tg_normalizer *normalizer[2];
    int64_t grid[2];
    tg_tensor x, y, pred; /* (SAMPLES, channels, grid..) */
} bench;

static const char *const networks[] = {
    "{\"n_modes\": [4, 4], \"hidden_channels\": 5, \"n_layers\": 2, \"in_channels\": 2}",
    "{\"n_modes\": [3], \"hidden_channels\": 4, \"n_layers\": 1, \"complex_data\": true, "
    "\"out_channels\": 2}",
    "{\"n_modes\": [4, 4], \"hidden_channels\": 4, \"fno_block_weights_precision\": \"bf16\", "
    "\"activation_precision\": \"bf16\", \"use_channel_mlp\": false, \"domain_padding\": 0.25}",
};

static bench bench_make(const char *backend, const char *network) {
    bench b = {.ctx = net_context(backend, 2), .grid = {6, 8}};
    const tg_fno_config config = net_config(b.ctx, network);
    tg_dataset *set = NULL;
    net_ok(b.ctx, tg_fno_create(b.ctx, &config, 3, &b.fno));
    b.x = net_random(b.ctx, &config, SAMPLES, config.in_channels, b.grid, 1);
    b.y = net_random(b.ctx, &config, SAMPLES, config.out_channels, b.grid, 2);
    b.pred = net_random(b.ctx, &config, SAMPLES, config.out_channels, b.grid, 3);
    net_ok(b.ctx, tg_dataset_wrap(b.ctx, &b.x, &b.y, NULL, &set));
    for (int side = 0; side < 2; side++) {
        net_ok(b.ctx, tg_normalizer_fit(b.ctx, set, (tg_data_side)side, &b.normalizer[side]));
    }
    tg_dataset_close(&set);
    return b;
}

static void bench_end(bench *b) {
    tg_tensor_destroy(&b->x);
    tg_tensor_destroy(&b->y);
    tg_tensor_destroy(&b->pred);
    tg_normalizer_destroy(&b->normalizer[0]);
    tg_normalizer_destroy(&b->normalizer[1]);
    tg_fno_destroy(&b->fno);
    tg_context_destroy(&b->ctx);
}

/* What the model predicts, from malloc. */
static void *predict(bench *b, tg_model *model) {
    const size_t bytes = tg_tensor_bytes(&b->pred);
    void *copy = malloc(bytes);
    assert_non_null(copy);
    memset(b->pred.data, 0xff, bytes);
    net_ok(b->ctx, tg_model_predict(model, &b->x, &b->pred));
    return memcpy(copy, b->pred.data, bytes);
}

/* The network by hand: normalize, forward, undo. */
static void expect_prediction(bench *b, const void *found) {
    tg_tensor x;
    net_ok(b->ctx, tg_tensor_create(b->ctx, TG_MEM_DATA, b->x.dtype, &b->x.shape, &x));
    memcpy(x.data, b->x.data, tg_tensor_bytes(&x));
    net_ok(b->ctx, tg_normalizer_apply(b->normalizer[0], &x));
    net_ok(b->ctx, tg_fno_prepare(b->fno, SAMPLES, b->grid, false));
    net_ok(b->ctx, tg_fno_forward(b->fno, &x, &b->pred));
    net_ok(b->ctx, tg_normalizer_invert(b->normalizer[1], &b->pred));
    assert_memory_equal(b->pred.data, found, tg_tensor_bytes(&b->pred));
    tg_tensor_destroy(&x);
}

static void round_trip(const char *backend, const char *network) {
    bench b = bench_make(backend, network);
    tg_model *model = NULL, *again = NULL;
    tg_test_errors errors[2];
    tg_dataset *set = NULL;
    net_ok(b.ctx, tg_model_wrap(b.ctx, b.fno, b.normalizer[0], b.normalizer[1], &model));
    void *first = predict(&b, model);
    expect_prediction(&b, first);
    net_ok(b.ctx, tg_model_save(model, test_path("a.safetensors")));
    net_ok(b.ctx, tg_model_load(b.ctx, test_path("a.safetensors"), &again));
    assert_non_null(tg_model_normalizer(again, TG_DATA_X));
    assert_non_null(tg_model_normalizer(again, TG_DATA_Y));
    void *second = predict(&b, again);
    assert_memory_equal(first, second, tg_tensor_bytes(&b.pred));
    net_ok(b.ctx, tg_model_save(again, test_path("b.safetensors")));
    test_same_file(test_path("a.safetensors"), test_path("b.safetensors"));
    net_ok(b.ctx, tg_dataset_wrap(b.ctx, &b.x, &b.y, NULL, &set));
    net_ok(b.ctx, tg_model_evaluate(model, set, 2, &errors[0]));
    net_ok(b.ctx, tg_model_evaluate(again, set, 2, &errors[1]));
    assert_true(errors[0].l2 > 0.0 && errors[0].l2 == errors[1].l2);
    tg_test_errors_destroy(&errors[0]);
    tg_test_errors_destroy(&errors[1]);
    tg_dataset_close(&set);
    tg_model_destroy(&again);
    tg_model_destroy(&model);
    free(first);
    free(second);
    bench_end(&b);
}

TEST(test_round_trip) {
    static const char *const backends[] = {"ref", "cpu", "fake"};
    for (int i = 0; i < 9; i++) {
        round_trip(backends[i / 3], networks[i % 3]);
    }
}

/* The model sees what the network has learned since; without normalizers data pass as they are. */
TEST(test_borrowed) {
    bench b = bench_make("cpu", networks[0]);
    tg_model *model = NULL;
    net_ok(b.ctx, tg_model_wrap(b.ctx, b.fno, NULL, NULL, &model));
    assert_null(tg_model_normalizer(model, TG_DATA_X));
    assert_string_equal(tg_settings_get(tg_model_settings(model), "data.encode_output"), "false");
    assert_string_equal(tg_settings_get(tg_model_settings(model), "fno.hidden_channels"), "5");
    void *before = predict(&b, model);
    const int last = tg_fno_param_count(b.fno) - 1;
    ((float *)tg_fno_get_param(b.fno, last).weight.data)[0] += 1.0F; /* bias of the output */
    void *after = predict(&b, model);
    assert_memory_not_equal(before, after, tg_tensor_bytes(&b.pred));
    assert_int_equal(tg_model_fit_normalizers(model), TG_E_CONFIG);
    set_expect_sentence(b.ctx, "data.set: name the data set");
    tg_model_destroy(&model);
    free(before);
    free(after);
    bench_end(&b);
}

/* Some steps with TensorGRaD; a device may still be at work on the last one. */
static void learn(bench *b) {
    tg_optim_config config = tg_optim_config_default();
    tg_optim_param params[32];
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = params,
                                  .param_count = tg_fno_param_count(b->fno),
                                  .takes_factored = true};
    const tg_loss_config loss_config = tg_loss_config_default();
    tg_optim *optim = NULL;
    double loss = 0.0;
    assert_in_range(setup.param_count, 1, 32);
    net_ok(b->ctx, tg_optim_config_set(b->ctx, &config, "name", "tensorgrad"));
    net_ok(b->ctx, tg_optim_config_set(b->ctx, &config, "min_entries", "50"));
    for (int i = 0; i < setup.param_count; i++) {
        const tg_fno_param p = tg_fno_get_param(b->fno, i);
        params[i] = (tg_optim_param){.name = p.name, .dtype = p.dtype, .shape = p.shape};
    }
    net_ok(b->ctx, tg_optim_create(b->ctx, &setup, &optim));
    for (int i = 0; i < setup.param_count; i++) {
        const tg_fno_param p = tg_fno_get_param(b->fno, i);
        net_ok(b->ctx, tg_optim_bind(optim, i, &p.weight));
    }
    const tg_grad_sink sink = tg_optim_sink(optim);
    net_ok(b->ctx, tg_fno_prepare(b->fno, SAMPLES, b->grid, true));
    for (int step = 0; step < 4; step++) {
        net_ok(b->ctx, tg_fno_loss_backward(b->fno, &b->x, &b->y, &loss_config, &sink, &loss));
    }
    tg_optim_destroy(&optim);
}

/* Trained in a loop of the program's own on a device: what was queued is in the file, which is that
 * of the host. Between two saves the training goes on. */
TEST(test_trained_on_a_device) {
    static const char *const backends[2] = {"cpu", "fake"};
    static const char *const names[2][2] = {{"c0", "c1"}, {"d0", "d1"}};
    for (int i = 0; i < 2; i++) {
        bench b = bench_make(backends[i], networks[0]);
        tg_model *model = NULL;
        net_ok(b.ctx, tg_model_wrap(b.ctx, b.fno, b.normalizer[0], b.normalizer[1], &model));
        for (int round = 0; round < 2; round++) {
            learn(&b);
            net_ok(b.ctx, tg_model_save(model, test_path(names[i][round])));
            free(predict(&b, model));
        }
        tg_model_destroy(&model);
        bench_end(&b);
    }
    test_same_file(test_path("c0"), test_path("d0"));
    test_same_file(test_path("c1"), test_path("d1"));
    size_t sizes[2];
    unsigned char *bytes[2] = {test_read_bytes(test_path("c0"), &sizes[0]),
                               test_read_bytes(test_path("c1"), &sizes[1])};
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_not_equal(bytes[0], bytes[1], sizes[0]);
    free(bytes[0]);
    free(bytes[1]);
}

/* Each side is normalized or not, whatever the other is. */
TEST(test_one_normalizer) {
    static const char *const keys[2] = {"data.encode_input", "data.encode_output"};
    bench b = bench_make("cpu", networks[0]);
    for (int side = 0; side < 2; side++) {
        tg_model *model = NULL, *again = NULL;
        net_ok(b.ctx, tg_model_wrap(b.ctx, b.fno, side == 0 ? b.normalizer[0] : NULL,
                                    side == 1 ? b.normalizer[1] : NULL, &model));
        net_ok(b.ctx, tg_model_save(model, test_path("one.safetensors")));
        net_ok(b.ctx, tg_model_load(b.ctx, test_path("one.safetensors"), &again));
        for (int i = 0; i < 2; i++) {
            assert_int_equal(tg_model_normalizer(again, (tg_data_side)i) != NULL, i == side);
            assert_string_equal(tg_settings_get(tg_model_settings(again), keys[i]),
                                i == side ? "true" : "false");
        }
        void *first = predict(&b, model), *second = predict(&b, again);
        assert_memory_equal(first, second, tg_tensor_bytes(&b.pred));
        free(first);
        free(second);
        tg_model_destroy(&again);
        tg_model_destroy(&model);
    }
    bench_end(&b);
}

/* A checkpoint without its optimizer: a model; another run begins with it and none goes on. */
TEST(test_of_a_checkpoint) {
    tg_context *ctx = net_context("cpu", 1);
    run_record record = {0};
    tg_model *models[2] = {NULL, NULL}, *best = NULL;
    char file[600], folder[sizeof record.end.checkpoint];
    snprintf(file, sizeof file, "%s", test_path("model.safetensors"));
    run_write_set(ctx, "waves", "train", 16, 8, 1, NULL);
    run_write_set(ctx, "waves", "test", 16, 4, 2, NULL);
    net_ok(ctx, run_train(ctx, "waves", "run", (const char *[]){"opt.n_epochs", "1", NULL}, false,
                          &record));
    net_ok(ctx, tg_model_load(ctx, record.end.checkpoint, &models[0]));
    net_ok(ctx, tg_model_save(models[0], file));
    net_ok(ctx, tg_model_load(ctx, file, &models[1]));
    snprintf(folder, sizeof folder, "%s", record.end.checkpoint);
    *strstr(folder, "/checkpoints/") = '\0';
    net_ok(ctx, tg_model_load(ctx, folder, &best)); /* a run: its best checkpoint, here the same */
    for (int i = 0; i < tg_fno_param_count(tg_model_fno(models[0])); i++) {
        const tg_fno_param a = tg_fno_get_param(tg_model_fno(models[0]), i);
        const tg_fno_param b = tg_fno_get_param(tg_model_fno(models[1]), i);
        const tg_fno_param c = tg_fno_get_param(tg_model_fno(best), i);
        const size_t bytes = (size_t)tg_shape_numel(&a.shape) * tg_dtype_size(a.dtype);
        assert_memory_equal(a.weight.data, b.weight.data, bytes);
        assert_memory_equal(a.weight.data, c.weight.data, bytes);
    }
    assert_string_equal(tg_settings_get(tg_model_settings(models[1]), "data.set"), "waves");
    tg_model_destroy(&best);
    assert_int_equal(tg_model_load(ctx, test_path(""), &best), TG_E_IO);
    assert_non_null(strstr(tg_context_error(ctx), "is a folder without checkpoints/best"));
    tg_model_destroy(&models[0]);
    tg_model_destroy(&models[1]);

    const char *const more[] = {"opt.init", file, "opt.n_epochs", "1", NULL};
    record = (run_record){0};
    net_ok(ctx, run_train(ctx, "waves", "tuned", more, false, &record));
    tg_settings *settings = run_settings(ctx, "waves", NULL);
    tg_trainer *trainer = NULL;
    bool resumed = false;
    net_ok(ctx, tg_trainer_create(ctx, NULL, settings, run_file("other", ""), &trainer));
    assert_int_equal(tg_trainer_resume(trainer, file, &resumed), TG_E_FORMAT);
    set_expect_sentence(ctx, "a model without the state of a training run; train --init");
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
    tg_context_destroy(&ctx);
    run_folders_remove();
}

static void refuse(const bench *b, tg_status status, const tg_normalizer *x, const tg_normalizer *y,
                   const char *sentence) {
    tg_model *model = NULL;
    assert_int_equal(tg_model_wrap(b->ctx, b->fno, x, y, &model), status);
    assert_null(model);
    set_expect_sentence(b->ctx, sentence);
}

TEST(test_refused) {
    bench real = bench_make("cpu", networks[0]), complex = bench_make("cpu", networks[1]);
    tg_fno *other = NULL;
    tg_model *model = NULL;
    refuse(&real, TG_E_SHAPE, real.normalizer[1], NULL,
           "model: the normalizer of x has 1 channels, but fno.in_channels is 2");
    refuse(&real, TG_E_SHAPE, NULL, real.normalizer[0],
           "model: the normalizer of y has 2 channels, but fno.out_channels is 1");
    refuse(&real, TG_E_DTYPE, NULL, complex.normalizer[0],
           "the normalizer of y is one of complex numbers, but fno.complex_data is false");
    net_ok(real.ctx, tg_fno_outline(real.ctx, tg_fno_get_config(real.fno), &other));
    assert_int_equal(tg_model_wrap(real.ctx, other, NULL, NULL, &model), TG_E_ARGUMENT);
    set_expect_sentence(real.ctx, "the network is an outline without weights");
    tg_fno_destroy(&other);
    tg_fno_config wide = *tg_fno_get_config(real.fno);
    wide.dtype = TG_F64;
    net_ok(real.ctx, tg_fno_create(real.ctx, &wide, 1, &other));
    net_ok(real.ctx, tg_model_wrap(real.ctx, other, NULL, NULL, &model));
    tg_tensor narrow = {.dtype = TG_F32, .shape = {4, {1, 2, 8, 8}}};
    assert_int_equal(tg_model_predict(model, &narrow, &narrow), TG_E_SHAPE);
    set_expect_sentence(real.ctx, "input: expected f64 of (samples, 2 channels");
    tg_model_destroy(&model);
    tg_fno_destroy(&other);
    bench_end(&real);
    bench_end(&complex);
}

/* Loads what `change` made of a good model file, sealed again. */
static void expect_bad_file(tg_context *ctx, const char *change, const char *sentence) {
    tg_archive *good = NULL, *bad = NULL;
    tg_model *model = NULL;
    net_ok(ctx, tg_safetensors_read(ctx, test_path("good.safetensors"), &good));
    net_ok(ctx, tg_archive_create(ctx, &bad));
    for (int64_t i = 0; i < tg_archive_count(good); i++) {
        const char *name = tg_archive_name(good, i);
        if (strncmp(name, change, strlen(change)) != 0) {
            net_ok(ctx, tg_archive_add_view(bad, name, tg_archive_tensor(good, i)));
        }
    }
    for (int64_t i = 0; i < tg_archive_meta_count(good); i++) {
        const char *key = tg_archive_meta_key(good, i), *value = tg_archive_meta_value(good, i);
        const bool is_hit = strcmp(key, change) == 0;
        if (!is_hit || strcmp(key, "tgrad.config") != 0) {
            net_ok(ctx, tg_archive_set_meta(bad, key, is_hit ? "99" : value));
        }
    }
    if (strcmp(change, "tgrad.checksum") != 0) {
        net_ok(ctx, tg_checkpoint_seal(bad));
    }
    net_ok(ctx, tg_safetensors_write(ctx, test_path("bad.safetensors"), bad));
    assert_int_equal(tg_model_load(ctx, test_path("bad.safetensors"), &model), TG_E_FORMAT);
    assert_null(model);
    set_expect_sentence(ctx, sentence);
    tg_archive_destroy(&bad);
    tg_archive_destroy(&good);
}

TEST(test_bad_files) {
    bench b = bench_make("cpu", networks[0]);
    tg_model *model = NULL;
    net_ok(b.ctx, tg_model_wrap(b.ctx, b.fno, b.normalizer[0], b.normalizer[1], &model));
    net_ok(b.ctx, tg_model_save(model, test_path("good.safetensors")));
    expect_bad_file(b.ctx, "encoder.x.", "data.encode_input is true, but encoder.x.mean");
    expect_bad_file(b.ctx, "encoder.y.", "data.encode_output is true, but encoder.y.mean");
    expect_bad_file(b.ctx, "tgrad.model", "a model of format 99; this program reads 1");
    expect_bad_file(b.ctx, "tgrad.config", "its training counters or settings are missing");
    expect_bad_file(b.ctx, "tgrad.checksum", "damaged: the checksum is 99");
    tg_model_destroy(&model);
    bench_end(&b);
}

/* No folder, a folder in the file's place, a full disk: a sentence, and nothing has changed. */
TEST(test_unwritable) {
    bench b = bench_make("cpu", networks[0]);
    tg_model *model = NULL;
    struct rlimit old, limit;
    net_ok(b.ctx, tg_model_wrap(b.ctx, b.fno, NULL, NULL, &model));
    net_ok(b.ctx, tg_model_save(model, test_path("kept.safetensors")));
    net_ok(b.ctx, tg_model_save(model, test_path("copy.safetensors")));
    const int files = test_folder_count();
    assert_int_equal(tg_model_save(model, test_path("none/model.safetensors")), TG_E_IO);
    set_expect_sentence(b.ctx, "none/model.safetensors");
    assert_int_equal(tg_model_save(model, test_path("")), TG_E_IO);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    for (rlim_t bytes = 0; bytes <= 4096; bytes += 2048) {
        limit = (struct rlimit){.rlim_cur = bytes, .rlim_max = old.rlim_max};
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
        const tg_status status = tg_model_save(model, test_path("kept.safetensors"));
        assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
        assert_int_equal(status, TG_E_IO);
        set_expect_sentence(b.ctx, "kept.safetensors");
        test_same_file(test_path("kept.safetensors"), test_path("copy.safetensors"));
        assert_int_equal(test_folder_count(), files);
    }
    tg_model_destroy(&model);
    bench_end(&b);
}

TEST(test_no_memory) {
    bench b = bench_make("cpu", networks[0]);
    test_walk walk = {.ctx = b.ctx};
    while (test_walk_next(&walk)) {
        tg_model *model = NULL;
        tg_status status = tg_model_wrap(b.ctx, b.fno, b.normalizer[0], b.normalizer[1], &model);
        status = status == TG_OK ? tg_model_save(model, test_path("m.safetensors")) : status;
        test_walk_called(&walk, status);
        tg_model_destroy(&model);
    }
    bench_end(&b);
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, test_files_end);
}
