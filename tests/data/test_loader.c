/* Normalizers and loaders: statistics against plain sums, both directions, archives, the order of
 * batches, and no memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/dataset.h"
#include "io/formats.h"
#include "support/context.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "support/sets.h"

/* ---- normalizers ---- */

enum { N = 7, CHANNELS = 3, POINTS = 5 * 4 };

static const tg_shape values_shape = {4, {N, CHANNELS, 5, 4}};

/* Mean and deviation of a channel of y, from its definition in long double. */
static void reference(bool is_complex, int64_t c, long double mean[2], long double *std) {
    long double sum[2] = {0, 0}, squares = 0;
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t n = 0; n < N; n++) {
            for (int64_t i = 0; i < POINTS; i++) {
                const int64_t flat = (n * CHANNELS + c) * POINTS + i;
                const long double v[2] = {(long double)set_value(1, flat),
                                          is_complex ? (long double)set_imag(1, flat) : 0};
                for (int p = 0; p < 2; p++) {
                    sum[p] += pass == 0 ? v[p] : 0;
                    squares += pass == 1 ? (v[p] - mean[p]) * (v[p] - mean[p]) : 0;
                }
            }
        }
        mean[0] = sum[0] / (N * POINTS);
        mean[1] = sum[1] / (N * POINTS);
    }
    *std = sqrtl(squares / (N * POINTS - 1));
}

static tg_normalizer *fit(const char *path, tg_data_side side, size_t cache_bytes) {
    tg_dataset_config config = tg_dataset_config_default();
    config.cache_bytes = cache_bytes;
    tg_dataset *set = set_open(ctx, path, &config);
    tg_normalizer *normalizer = NULL;
    set_ok(ctx, tg_normalizer_fit(ctx, set, side, &normalizer));
    tg_dataset_close(&set);
    return normalizer;
}

TEST(test_fit) {
    for (int is_complex = 0; is_complex < 2; is_complex++) {
        const char *path =
            set_write(ctx, "fit.h5", is_complex ? TG_C64 : TG_F32, &values_shape, &values_shape);
        tg_normalizer *cached = fit(path, TG_DATA_Y, 1 << 20), *streamed = fit(path, TG_DATA_Y, 0);
        assert_int_equal(tg_normalizer_channels(cached), CHANNELS);
        assert_int_equal(tg_normalizer_is_complex(cached), is_complex);
        for (int64_t c = 0; c < CHANNELS; c++) {
            double a[3], b[3];
            long double mean[2] = {0, 0}, std = 0;
            reference(is_complex, c, mean, &std);
            tg_normalizer_get(cached, c, &a[0], &a[1], &a[2]);
            tg_normalizer_get(streamed, c, &b[0], &b[1], &b[2]);
            assert_memory_equal(a, b, sizeof a);
            assert_false(!(fabsl((long double)a[0] - mean[0]) <= 1e-13L * fabsl(mean[0])));
            assert_false(!(fabsl((long double)a[1] - mean[1]) <= 1e-13L * fabsl(mean[1])));
            assert_false(!(fabsl((long double)a[2] - std) <= 1e-13L * std));
            tg_normalizer_get(cached, c, NULL, NULL, NULL);
        }
        tg_normalizer_destroy(&cached);
        tg_normalizer_destroy(&streamed);
    }
    tg_normalizer_destroy(NULL);
    test_folder_remove();
}

TEST(test_apply) {
    for (int is_complex = 0; is_complex < 2; is_complex++) {
        const tg_dtype dtype = is_complex ? TG_C64 : TG_F32;
        const int parts = is_complex ? 2 : 1;
        const char *path = set_write(ctx, "apply.h5", dtype, &values_shape, &values_shape);
        tg_normalizer *normalizer = fit(path, TG_DATA_Y, 1 << 20);
        float *values = set_floats((size_t)(N * CHANNELS * POINTS * parts));
        tg_dataset *set = set_open(ctx, path, NULL);
        set_ok(ctx, tg_dataset_read(set, (int64_t[]){0, 1, 2, 3, 4, 5, 6}, N, NULL, values));
        tg_dataset_close(&set);
        tg_tensor tensor = {0};
        set_ok(ctx, tg_tensor_wrap(ctx, dtype, &values_shape, values, &tensor));
        set_ok(ctx, tg_normalizer_apply(normalizer, &tensor));
        for (int64_t i = 0; i < N * CHANNELS * POINTS; i++) {
            double mean[2], std;
            tg_normalizer_get(normalizer, i / POINTS % CHANNELS, &mean[0], &mean[1], &std);
            const double raw[2] = {set_value(1, i), set_imag(1, i)};
            for (int p = 0; p < parts; p++) {
                assert_true(values[parts * i + p] == (float)((raw[p] - mean[p]) / (std + 1e-7)));
            }
        }
        set_ok(ctx, tg_normalizer_invert(normalizer, &tensor));
        for (int64_t i = 0; i < N * CHANNELS * POINTS; i++) {
            const double raw[2] = {set_value(1, i), set_imag(1, i)};
            for (int p = 0; p < parts; p++) {
                const double error = fabs((double)values[parts * i + p] - raw[p]);
                assert_false(!(error <= 1e-6 * (fabs(raw[p]) + 100)));
            }
        }
        /* what does not fit */
        tg_tensor bad = tensor;
        bad.dtype = is_complex ? TG_F32 : TG_C64;
        assert_int_equal(tg_normalizer_apply(normalizer, &bad), TG_E_SHAPE);
        bad = tensor;
        bad.shape.dim[1] = CHANNELS + 1;
        assert_int_equal(tg_normalizer_invert(normalizer, &bad), TG_E_SHAPE);
        set_expect_sentence(ctx, "with 3 channels, found");
        bad = tensor;
        bad.shape.ndim = 1;
        assert_int_equal(tg_normalizer_apply(normalizer, &bad), TG_E_SHAPE);
        bad = tensor;
        bad.place = TG_DEVICE;
        assert_int_equal(tg_normalizer_apply(normalizer, &bad), TG_E_SHAPE);
        tg_normalizer_destroy(&normalizer);
        free(values);
    }
    test_folder_remove();
}

/* Every channel has its own mean and deviation. */
TEST(test_channels_apart) {
    double mean[] = {1.0, -20.0, 300.0}, std[] = {0.5, 4.0, 32.0};
    const tg_shape three = SET_SHAPE(3), shape = SET_SHAPE(2, 3, 2);
    tg_tensor means, stds, values;
    tg_archive *archive = NULL;
    tg_normalizer *normalizer = NULL;
    float v[12], raw[12];
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &three, mean, &means));
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &three, std, &stds));
    set_ok(ctx, tg_archive_create(ctx, &archive));
    set_ok(ctx, tg_archive_add_view(archive, "n.mean", &means));
    set_ok(ctx, tg_archive_add_view(archive, "n.std", &stds));
    set_ok(ctx, tg_normalizer_load(ctx, archive, "n.", &normalizer));
    for (int i = 0; i < 12; i++) {
        v[i] = raw[i] = (float)(i * i) - 7.0f;
    }
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, v, &values));
    set_ok(ctx, tg_normalizer_apply(normalizer, &values));
    for (int i = 0; i < 12; i++) {
        const int c = i / 2 % 3;
        assert_true(v[i] == (float)(((double)raw[i] - mean[c]) / (std[c] + 1e-7)));
        v[i] = 1.5f;
    }
    set_ok(ctx, tg_normalizer_invert(normalizer, &values));
    for (int i = 0; i < 12; i++) {
        const int c = i / 2 % 3;
        assert_true(v[i] == (float)(1.5 * (std[c] + 1e-7) + mean[c]));
    }
    tg_normalizer_destroy(&normalizer);
    tg_archive_destroy(&archive);
}

/* A large offset does not drown a small deviation; a constant channel has deviation 0, and a single
 * value too. */
TEST(test_hard_statistics) {
    const tg_shape shape = SET_SHAPE(4, 2, 8);
    tg_archive *archive = NULL;
    tg_tensor x = {0};
    set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &x));
    for (int i = 0; i < 64; i++) {
        ((float *)x.data)[i] = i / 8 % 2 ? 3.25f : 1048576.0f + (i % 2 ? 0.125f : -0.125f);
    }
    set_ok(ctx, tg_archive_create(ctx, &archive));
    set_ok(ctx, tg_archive_add(archive, "y", &x));
    set_ok(ctx, tg_archive_take(archive, "x", &x));
    const char *path = test_path("hard.safetensors");
    set_ok(ctx, tg_archive_write(ctx, path, archive));
    tg_archive_destroy(&archive);
    tg_dataset_config config = tg_dataset_config_default();
    config.n_dim = 1;
    tg_dataset *set = set_open(ctx, path, &config);
    tg_normalizer *normalizer = NULL;
    set_ok(ctx, tg_normalizer_fit(ctx, set, TG_DATA_X, &normalizer));
    double mean, std;
    tg_normalizer_get(normalizer, 0, &mean, NULL, &std);
    assert_true(mean == 1048576.0);
    assert_false(!(fabs(std - 0.125 * sqrt(32.0 / 31.0)) <= 1e-15));
    tg_normalizer_get(normalizer, 1, &mean, NULL, &std);
    assert_true(mean == 3.25 && std == 0.0);
    tg_normalizer_destroy(&normalizer);
    tg_dataset_close(&set);
    const tg_shape one = SET_SHAPE(1, 1, 1);
    normalizer = fit(set_write(ctx, "one.h5", TG_F32, &one, &one), TG_DATA_X, 1 << 20);
    tg_normalizer_get(normalizer, 0, &mean, NULL, &std);
    assert_true(mean == set_value(0, 0) && std == 0.0);
    tg_normalizer_destroy(&normalizer);
    test_folder_remove();
}

TEST(test_not_finite) {
    const tg_shape shape = SET_SHAPE(5, 3, 3);
    const char *path = set_write(ctx, "nan_x.npy", TG_F32, &shape, &shape);
    size_t size = 0;
    unsigned char *bytes = test_read_bytes(path, &size);
    const float inf = -INFINITY;
    memcpy(bytes + size - 4 * (9 + 1), &inf, 4); /* the last point of sample 3 */
    test_write_bytes(path, bytes, size);
    free(bytes);
    tg_dataset *set = set_open(ctx, path, NULL);
    tg_normalizer *normalizer = NULL;
    assert_int_equal(tg_normalizer_fit(ctx, set, TG_DATA_X, &normalizer), TG_E_NUMERIC);
    assert_null(normalizer);
    set_expect_sentence(ctx, "nan_x.npy: npy data: sample 3, channel 0, point (2, 2) is Inf");
    set_ok(ctx, tg_normalizer_fit(ctx, set, TG_DATA_Y, &normalizer));
    tg_normalizer_destroy(&normalizer);
    tg_dataset_close(&set);
    tg_dataset_config config = tg_dataset_config_default();
    config.grid[0] = config.grid[1] = 2; /* the corners: the place is that in the file */
    config.first_sample = 2;
    config.cache_bytes = 0;
    set = set_open(ctx, path, &config);
    assert_int_equal(tg_normalizer_fit(ctx, set, TG_DATA_X, &normalizer), TG_E_NUMERIC);
    set_expect_sentence(ctx, "sample 3, channel 0, point (2, 2) is Inf");
    tg_dataset_close(&set);
    config = tg_dataset_config_default();
    config.x_only = true;
    set = set_open(ctx, path, &config);
    assert_int_equal(tg_normalizer_fit(ctx, set, TG_DATA_Y, &normalizer), TG_E_ARGUMENT);
    tg_dataset_close(&set);
    test_folder_remove();
}

static tg_normalizer *load(const tg_archive *archive, const char *prefix, tg_status expected) {
    tg_normalizer *normalizer = NULL;
    assert_int_equal(tg_normalizer_load(ctx, archive, prefix, &normalizer), expected);
    return normalizer;
}

TEST(test_archives) {
    tg_archive *archive = NULL, *again = NULL;
    set_ok(ctx, tg_archive_create(ctx, &archive));
    tg_normalizer *fitted[2];
    for (int i = 0; i < 2; i++) {
        const tg_dtype dtype = i ? TG_C64 : TG_F32;
        fitted[i] = fit(set_write(ctx, "a.h5", dtype, &values_shape, &values_shape), TG_DATA_Y, 0);
        set_ok(ctx, tg_normalizer_save(fitted[i], archive, i ? "c." : "data.y."));
    }
    assert_int_equal(tg_normalizer_save(fitted[0], archive, "c."),
                     TG_E_ARGUMENT); /* there is one */
    set_ok(ctx, tg_archive_write(ctx, test_path("n.safetensors"), archive));
    set_ok(ctx, tg_archive_read(ctx, test_path("n.safetensors"), &again));
    for (int i = 0; i < 2; i++) {
        tg_normalizer *loaded = load(again, i ? "c." : "data.y.", TG_OK);
        assert_int_equal(tg_normalizer_is_complex(loaded), i);
        assert_int_equal(tg_normalizer_channels(loaded), CHANNELS);
        for (int64_t c = 0; c < CHANNELS; c++) {
            double a[3], b[3];
            tg_normalizer_get(fitted[i], c, &a[0], &a[1], &a[2]);
            tg_normalizer_get(loaded, c, &b[0], &b[1], &b[2]);
            assert_memory_equal(a, b, sizeof a);
        }
        tg_normalizer_destroy(&loaded);
        tg_normalizer_destroy(&fitted[i]);
    }
    assert_null(load(again, "none.", TG_E_FORMAT));
    set_expect_sentence(ctx, "none.mean");
    double *std = tg_archive_find(again, "c.std")->data;
    const double bad[] = {-1.0, (double)NAN, (double)INFINITY};
    for (int i = 0; i < 3; i++) {
        std[1] = bad[i];
        assert_null(load(again, "c.", TG_E_FORMAT));
    }
    char prefix[400];
    memset(prefix, 'p', sizeof prefix - 1);
    prefix[sizeof prefix - 1] = '\0';
    assert_null(load(again, prefix, TG_E_ARGUMENT));
    tg_archive_destroy(&archive);
    tg_archive_destroy(&again);
    test_folder_remove();
}

/* ---- loaders ---- */

static tg_dataset *numbered_set(int64_t samples) {
    const tg_shape shape = SET_SHAPE(samples, 1, 2);
    return set_open(ctx, set_write(ctx, "numbered.h5", TG_F32, &shape, &shape), NULL);
}

static tg_loader *make_loader(tg_dataset *set, int64_t batch, uint64_t seed, bool shuffle) {
    const tg_loader_config config = {
        .size = sizeof(tg_loader_config), .batch_size = batch, .seed = seed, .shuffle = shuffle};
    tg_loader *loader = NULL;
    set_ok(ctx, tg_loader_create(ctx, set, &config, &loader));
    return loader;
}

/* The samples of an epoch by their values: x[n] begins with element 2 n. */
static int64_t read_epoch(tg_loader *loader, int64_t epoch, int64_t batch_size, int64_t *order) {
    int64_t total = 0;
    float *x = set_floats((size_t)batch_size * 2), *y = set_floats((size_t)batch_size * 2);
    int64_t *indices = malloc((size_t)batch_size * sizeof *indices);
    for (int64_t b = 0; b < tg_loader_batches(loader); b++) {
        int64_t count = 0, listed = 0;
        set_ok(ctx, tg_loader_batch(loader, epoch, b, x, y, &count));
        set_ok(ctx, tg_loader_indices(loader, epoch, b, indices, &listed));
        assert_int_equal(count, listed);
        for (int64_t i = 0; i < count; i++) {
            order[total++] = indices[i];
            assert_true((double)x[2 * i] == set_value(0, 2 * indices[i]));
            assert_true((double)y[2 * i + 1] == set_value(1, 2 * indices[i] + 1));
        }
    }
    free(x);
    free(y);
    free(indices);
    return total;
}

static void check_is_permutation(const int64_t *order, int64_t count) {
    unsigned char seen[256] = {0};
    for (int64_t i = 0; i < count; i++) {
        assert_true(order[i] >= 0 && order[i] < count && !seen[order[i]]);
        seen[order[i]] = 1;
    }
}

TEST(test_epochs) {
    static const int64_t sizes[][2] = {{1, 1}, {1, 5}, {7, 3}, {33, 8}, {64, 16}, {65, 64}};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        const int64_t samples = sizes[s][0], batch = sizes[s][1];
        tg_dataset *set = numbered_set(samples);
        tg_loader *loader = make_loader(set, batch, 42, true);
        tg_loader *plain = make_loader(set, batch, 42, false);
        int64_t order[256];
        assert_int_equal(tg_loader_batches(loader), (samples + batch - 1) / batch);
        for (int64_t epoch = 0; epoch < 3; epoch++) {
            assert_int_equal(read_epoch(loader, epoch, batch, order), samples);
            check_is_permutation(order, samples);
            assert_int_equal(read_epoch(plain, epoch, batch, order), samples);
            for (int64_t i = 0; i < samples; i++) {
                assert_int_equal(order[i], i);
            }
        }
        tg_loader_destroy(&plain);
        tg_loader_destroy(&loader);
        assert_null(loader);
        tg_loader_destroy(&loader);
        tg_loader_destroy(NULL);
        tg_dataset_close(&set);
    }
    test_folder_remove();
}

/* The order depends on seed and epoch, on nothing else: not on the batch size, on what was read
 * before, or on the loader. */
TEST(test_order) {
    enum { SAMPLES = 65 };
    tg_dataset *set = numbered_set(SAMPLES);
    tg_loader *a = make_loader(set, 8, 1, true), *b = make_loader(set, 13, 1, true);
    tg_loader *c = make_loader(set, 8, 2, true);
    int64_t first[SAMPLES], second[SAMPLES], other[SAMPLES];
    read_epoch(a, 3, 8, first);
    read_epoch(b, 0, 13, second);
    read_epoch(b, 3, 13, second);
    assert_memory_equal(first, second, sizeof first);
    read_epoch(a, 4, 8, second);
    read_epoch(c, 3, 8, other);
    assert_memory_not_equal(first, second, sizeof first);
    assert_memory_not_equal(first, other, sizeof first);
    int64_t count = 0, indices[8];
    assert_int_equal(tg_loader_indices(a, 0, 9, indices, &count), TG_E_ARGUMENT);
    set_expect_sentence(ctx, "no batch 9 in epoch 0 (there are 9)");
    assert_int_equal(tg_loader_indices(a, 0, -1, indices, &count), TG_E_ARGUMENT);
    assert_int_equal(tg_loader_batch(a, -1, 0, NULL, NULL, &count), TG_E_ARGUMENT);
    assert_int_equal(tg_loader_batch(a, (int64_t)1 << 32, 0, NULL, NULL, &count), TG_E_ARGUMENT);
    tg_loader *none = NULL;
    assert_int_equal(
        tg_loader_create(ctx, set,
                         &(tg_loader_config){.size = sizeof(tg_loader_config), .batch_size = 0},
                         &none),
        TG_E_CONFIG);
    assert_null(none);
    tg_loader_destroy(&a);
    tg_loader_destroy(&b);
    tg_loader_destroy(&c);
    tg_dataset_close(&set);
    test_folder_remove();
}

static tg_status use_everything(tg_dataset *set) {
    const tg_loader_config config = {
        .size = sizeof(tg_loader_config), .batch_size = 2, .shuffle = true};
    tg_loader *loader = NULL;
    tg_normalizer *normalizer = NULL, *loaded = NULL;
    tg_archive *archive = NULL;
    float x[4], y[4];
    int64_t count = 0;
    tg_status status = tg_loader_create(ctx, set, &config, &loader);
    status = status ? status : tg_loader_batch(loader, 0, 1, x, y, &count);
    status = status ? status : tg_normalizer_fit(ctx, set, TG_DATA_Y, &normalizer);
    status = status ? status : tg_archive_create(ctx, &archive);
    status = status ? status : tg_normalizer_save(normalizer, archive, "y.");
    status = status ? status : tg_normalizer_load(ctx, archive, "y.", &loaded);
    tg_archive_destroy(&archive);
    tg_normalizer_destroy(&loaded);
    tg_normalizer_destroy(&normalizer);
    tg_loader_destroy(&loader);
    return status;
}

TEST(test_no_memory) {
    tg_dataset *set = numbered_set(5);
    test_walk walk = {.ctx = ctx};
    while (test_walk_next(&walk)) {
        test_walk_called(&walk, use_everything(set));
    }
    tg_dataset_close(&set);
    test_folder_remove();
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
