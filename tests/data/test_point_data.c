/* Data at points: what is handed out of (samples, points, coordinates) and (samples, [channels,]
 * points), every s-th point, streamed as cached, and what is refused, with the sample it is about.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "support/context.h"
#include "support/files.h"
#include "support/sets.h"

enum { SAMPLES = 3, POINTS = 6, COORDINATES = 3, CHANNELS = 2 };

/* Coordinate c of a point, and channel c of the value there. */
static float point_of(int64_t sample, int64_t point, int64_t c) {
    return (float)(point + 8 * c + 32 * sample) / 128.0f;
}

static float value_of(int64_t sample, int64_t point, int64_t c) {
    return (float)(100 * sample + 10 * point + c);
}

/* The set under test, as tensors that a test may change before it is written. */
typedef struct arrays {
    tg_tensor points, values;
} arrays;

static arrays make_arrays(int64_t channels) {
    const tg_shape shape = SET_SHAPE(SAMPLES, POINTS, COORDINATES);
    const tg_shape one = SET_SHAPE(SAMPLES, POINTS), several = SET_SHAPE(SAMPLES, channels, POINTS);
    arrays a = {0};
    set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &a.points));
    set_ok(ctx,
           tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, channels > 1 ? &several : &one, &a.values));
    float *points = a.points.data, *values = a.values.data;
    for (int64_t s = 0; s < SAMPLES; s++) {
        for (int64_t i = 0; i < POINTS; i++) {
            for (int64_t c = 0; c < COORDINATES; c++) {
                points[(s * POINTS + i) * COORDINATES + c] = point_of(s, i, c);
            }
            for (int64_t c = 0; c < channels; c++) {
                values[(s * channels + c) * POINTS + i] = value_of(s, i, c);
            }
        }
    }
    return a;
}

static const char *write_arrays(arrays *a, const char *file) {
    tg_archive *archive = NULL;
    const char *path = test_path(file);
    set_ok(ctx, tg_archive_create(ctx, &archive));
    set_ok(ctx, tg_archive_take(archive, "points", &a->points));
    set_ok(ctx, tg_archive_take(archive, "values", &a->values));
    set_ok(ctx, tg_archive_write(ctx, path, archive));
    tg_archive_destroy(&archive);
    return path;
}

static tg_dataset_config point_config(void) {
    tg_dataset_config config = tg_dataset_config_default();
    config.n_dim = 1;
    config.coordinates = COORDINATES;
    return config;
}

/* ---- what is handed out ---- */

static void check_set(const char *path, int64_t channels, int64_t step, bool streamed) {
    static const int64_t order[] = {2, 0, 2, 1};
    const int64_t points = POINTS / step;
    tg_dataset_config config = point_config();
    config.cache_bytes = streamed ? 0 : 1 << 20;
    config.grid[0] = points;
    tg_dataset *set = set_open(ctx, path, &config);
    const tg_dataset_facts facts = tg_dataset_get_facts(set);
    assert_int_equal(facts.samples, SAMPLES);
    assert_int_equal(facts.in_channels, COORDINATES);
    assert_int_equal(facts.out_channels, channels);
    assert_true(facts.n_dim == 1 && facts.grid[0] == points && facts.file_grid[0] == POINTS);
    assert_int_equal(facts.cached, !streamed);
    float *x = set_floats(4 * facts.x_bytes / 4), *y = set_floats(4 * facts.y_bytes / 4);
    set_ok(ctx, tg_dataset_read(set, order, 4, x, y));
    for (int64_t s = 0; s < 4; s++) {
        for (int64_t i = 0; i < points; i++) {
            for (int64_t c = 0; c < COORDINATES; c++) {
                assert_true(x[(s * COORDINATES + c) * points + i] ==
                            point_of(order[s], i * step, c));
            }
            for (int64_t c = 0; c < channels; c++) {
                assert_true(y[(s * channels + c) * points + i] == value_of(order[s], i * step, c));
            }
        }
    }
    free(x);
    free(y);
    tg_dataset_close(&set);
}

TEST(test_points) {
    static const char *const files[] = {"points.h5", "points.safetensors"};
    for (int64_t channels = 1; channels <= CHANNELS; channels++) {
        for (int f = 0; f < 2; f++) {
            arrays a = make_arrays(channels);
            const char *path = write_arrays(&a, files[f]);
            for (int64_t step = 1; step <= 3; step++) {
                check_set(path, channels, step, false);
                check_set(path, channels, step, true);
            }
        }
    }
}

/* Points alone, of all samples or of one. */
TEST(test_points_alone) {
    for (int is_one = 0; is_one < 2; is_one++) {
        arrays a = make_arrays(1);
        const int64_t last = is_one ? 0 : SAMPLES - 1;
        tg_dataset *set = NULL;
        tg_dataset_config config = point_config();
        float x[COORDINATES * POINTS];
        if (is_one) {
            a.points.shape = SET_SHAPE(POINTS, COORDINATES);
            assert_int_equal(tg_dataset_wrap(ctx, &a.points, &a.values, &config, &set), TG_E_SHAPE);
            set_expect_sentence(ctx,
                                "expected real (samples, points, 3 coordinates), found f32 6x3");
        }
        set_ok(ctx, tg_dataset_wrap(ctx, &a.points, NULL, &config, &set));
        assert_int_equal(tg_dataset_get_facts(set).samples, last + 1);
        assert_int_equal(tg_dataset_get_facts(set).x_ndim, is_one ? 2 : 3);
        set_ok(ctx, tg_dataset_read(set, &last, 1, x, NULL));
        for (int64_t i = 0; i < COORDINATES * POINTS; i++) {
            assert_true(x[i] == point_of(last, i % POINTS, i / POINTS));
        }
        tg_dataset_close(&set);
        tg_tensor_destroy(&a.points);
        tg_tensor_destroy(&a.values);
    }
}

/* Arrays of the caller are read alike. */
TEST(test_wrapped) {
    arrays a = make_arrays(1);
    const tg_dataset_config config = point_config();
    const int64_t last = SAMPLES - 1;
    tg_dataset *set = NULL;
    float x[COORDINATES * POINTS], y[POINTS];
    set_ok(ctx, tg_dataset_wrap(ctx, &a.points, &a.values, &config, &set));
    set_ok(ctx, tg_dataset_read(set, &last, 1, x, y));
    assert_true(x[POINTS + 4] == point_of(last, 4, 1) && y[5] == value_of(last, 5, 0));
    tg_dataset_close(&set);
    tg_tensor_destroy(&a.points);
    tg_tensor_destroy(&a.values);
}

/* ---- what is refused ---- */

/* One coordinate is bad: found when the set is opened, or streamed, when that sample is read. */
TEST(test_bad_points) {
    static const float bad[] = {NAN, INFINITY, -0.001f, 1.001f};
    for (size_t b = 0; b < sizeof bad / sizeof bad[0]; b++) {
        arrays a = make_arrays(1);
        ((float *)a.points.data)[(1 * POINTS + 4) * COORDINATES + 2] = bad[b];
        const char *path = write_arrays(&a, "bad.h5");
        tg_dataset_config config = point_config();
        tg_dataset *set = NULL;
        float x[COORDINATES * POINTS];
        assert_int_equal(tg_dataset_open(ctx, path, NULL, &config, &set), TG_E_NUMERIC);
        assert_null(set);
        set_expect_sentence(ctx, "points: sample 1, point 4: coordinate 2 is");
        set_expect_sentence(ctx, "expected all points in the unit box");
        config.cache_bytes = 0;
        set = set_open(ctx, path, &config);
        set_ok(ctx, tg_dataset_read(set, &(int64_t){0}, 1, x, NULL));
        assert_int_equal(tg_dataset_read(set, &(int64_t){1}, 1, x, NULL), TG_E_NUMERIC);
        set_expect_sentence(ctx, "sample 1, point 4: coordinate 2 is");
        tg_dataset_close(&set);
    }
}

static void expect_refused(const char *path, const tg_dataset_config *config, tg_status expected,
                           const char *sentence) {
    tg_dataset *set = NULL;
    assert_int_equal(tg_dataset_open(ctx, path, NULL, config, &set), expected);
    assert_null(set);
    set_expect_sentence(ctx, sentence);
}

TEST(test_bad_shapes) {
    static const struct {
        tg_shape x, y;
        tg_dtype dtype;
        const char *sentence;
    } cases[] = {
        {{2, {3, 6}},
         {2, {3, 6}},
         TG_F32,
         "points: expected real (samples, points, 3 coordinates)"},
        {{3, {3, 6, 2}}, {2, {3, 6}}, TG_F32, "3 coordinates), found f32 3x6x2"},
        {{3, {3, 6, 3}}, {2, {3, 6}}, TG_C64, "expected real"},
        {{3, {3, 6, 3}}, {2, {3, 5}}, TG_F32, "one value for each point"},
        {{3, {3, 6, 3}}, {2, {2, 6}}, TG_F32, "their numbers differ"},
        {{3, {3, 0, 3}}, {2, {3, 0}}, TG_F32, "a grid of 0"},
    };
    tg_dataset_config config = point_config();
    arrays a = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, cases[i].dtype, &cases[i].x, &a.points));
        set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, cases[i].dtype, &cases[i].y, &a.values));
        memset(a.points.data, 0, tg_tensor_bytes(&a.points));
        memset(a.values.data, 0, tg_tensor_bytes(&a.values));
        expect_refused(write_arrays(&a, "shape.h5"), &config, TG_E_SHAPE, cases[i].sentence);
    }
    a = make_arrays(1);
    const char *path = write_arrays(&a, "good.h5");
    const tg_shape flat = SET_SHAPE(SAMPLES, POINTS);
    a = make_arrays(1);
    tg_tensor_destroy(&a.values);
    set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_C64, &flat, &a.values));
    memset(a.values.data, 0, tg_tensor_bytes(&a.values));
    expect_refused(write_arrays(&a, "complex.h5"), &config, TG_E_DTYPE, "expected real values");
    config = point_config();
    config.n_dim = 2;
    expect_refused(path, &config, TG_E_ARGUMENT, "n_dim 1, real data");
    config = point_config();
    config.layout = TG_LAYOUT_WELL;
    expect_refused(path, &config, TG_E_ARGUMENT, "layout well: expected");
    config = point_config();
    config.coordinates = 4;
    expect_refused(path, &config, TG_E_ARGUMENT, "coordinates 4");
    config.coordinates = 2;
    expect_refused(path, &config, TG_E_SHAPE, "points, 2 coordinates), found f32 3x6x3");
    config = point_config();
    config.grid[0] = 4;
    expect_refused(path, &config, TG_E_SHAPE, "cannot be sub-sampled to 4");
    config = point_config();
    config.y_name = "pressure";
    expect_refused(path, &config, TG_E_ARGUMENT, "data.y_name says which one is y");
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
