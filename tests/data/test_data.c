/* Datasets on sets written here: layouts, sub-sampling, times, formats, streaming against the cache
 * bit for bit, what is refused, no memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "data/dataset.h"
#include "support/context.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "support/sets.h"

/* ---- datasets ---- */

TEST(test_layouts) {
    static const struct {
        int n_dim;
        tg_shape x, y;
        int64_t in, out;
    } cases[] = {
        {1, {2, {3, 7}}, {2, {3, 7}}, 1, 1},
        {1, {3, {3, 2, 7}}, {3, {3, 5, 7}}, 2, 5},
        {2, {3, {2, 3, 5}}, {3, {2, 3, 5}}, 1, 1},
        {2, {4, {2, 3, 3, 5}}, {3, {2, 3, 5}}, 3, 1},
        {2, {4, {2, 3, 3, 5}}, {4, {2, 2, 3, 5}}, 3, 2},
        {3, {4, {2, 3, 5, 2}}, {4, {2, 3, 5, 2}}, 1, 1},
        {3, {5, {1, 4, 3, 1, 2}}, {5, {1, 1, 3, 1, 2}}, 4, 1},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const char *path = set_write(ctx, "layout.h5", TG_F32, &cases[c].x, &cases[c].y);
        tg_dataset_config config = tg_dataset_config_default();
        config.n_dim = cases[c].n_dim;
        tg_dataset *set = set_open(ctx, path, &config);
        const tg_dataset_facts facts = tg_dataset_get_facts(set);
        assert_int_equal(facts.samples, cases[c].x.dim[0]);
        assert_int_equal(facts.in_channels, cases[c].in);
        assert_int_equal(facts.out_channels, cases[c].out);
        assert_int_equal(facts.n_dim, cases[c].n_dim);
        assert_int_equal(facts.dtype, TG_F32);
        assert_true(facts.cached);
        for (int d = 0; d < facts.n_dim; d++) {
            assert_int_equal(facts.grid[d], cases[c].x.dim[cases[c].x.ndim - facts.n_dim + d]);
            assert_int_equal(facts.file_grid[d], facts.grid[d]);
        }
        /* all samples backwards, the last one twice */
        const int64_t n = facts.samples;
        const size_t nx = facts.x_bytes / 4, ny = facts.y_bytes / 4;
        int64_t order[8];
        for (int64_t i = 0; i <= n; i++) {
            order[i] = i < n ? n - 1 - i : n - 1;
        }
        float *x = set_floats((size_t)(n + 1) * nx), *y = set_floats((size_t)(n + 1) * ny);
        set_ok(ctx, tg_dataset_read(set, order, n + 1, x, y));
        for (int64_t i = 0; i <= n; i++) {
            for (size_t j = 0; j < nx; j++) {
                assert_true((double)x[(size_t)i * nx + j] ==
                            set_value(0, order[i] * (int64_t)nx + (int64_t)j));
            }
            for (size_t j = 0; j < ny; j++) {
                assert_true((double)y[(size_t)i * ny + j] ==
                            set_value(1, order[i] * (int64_t)ny + (int64_t)j));
            }
        }
        free(x);
        free(y);
        tg_dataset_close(&set);
        assert_null(set);
        set_check_slabs(ctx, path, &config, 0);
        remove(path);
    }
    tg_dataset_close(NULL);
}

static void set_square(tg_dataset_config *config, int64_t points) {
    for (int d = 0; d < TG_DATA_MAX_DIMS; d++) {
        config->grid[d] = points;
    }
}

/* y[n, t, (c,) i, j] with x[n, i, j]: the chosen time, sub-sampled, against the formula. */
static void check_times(const char *path, int64_t times, int64_t channels, int64_t y_time,
                        int64_t resolution, int64_t step) {
    enum { N = 4, GRID = 6 };
    tg_dataset_config config = tg_dataset_config_default();
    config.y_time = y_time;
    set_square(&config, resolution);
    for (int streamed = 0; streamed < 2; streamed++) {
        config.cache_bytes = streamed ? 0 : 1 << 20;
        tg_dataset *set = set_open(ctx, path, &config);
        const tg_dataset_facts facts = tg_dataset_get_facts(set);
        const int64_t points = GRID / step;
        const int64_t out = y_time == TG_TIME_ALL ? times * channels : channels;
        const int64_t skip = y_time == TG_TIME_ALL    ? 0
                             : y_time == TG_TIME_LAST ? (times - 1) * channels
                                                      : y_time * channels;
        assert_int_equal(facts.cached, !streamed);
        assert_int_equal(facts.out_channels, out);
        assert_int_equal(facts.grid[0], points);
        assert_int_equal(facts.file_grid[1], GRID);
        float *y = set_floats((size_t)(N * out * points * points));
        const int64_t order[N] = {2, 0, 3, 1};
        set_ok(ctx, tg_dataset_read(set, order, N, NULL, y));
        const float *at = y;
        for (int64_t n = 0; n < N; n++) {
            for (int64_t c = 0; c < out; c++) {
                for (int64_t i = 0; i < points; i++) {
                    for (int64_t j = 0; j < points; j++, at++) {
                        const int64_t flat =
                            ((order[n] * times * channels + skip + c) * GRID + i * step) * GRID +
                            j * step;
                        assert_true((double)*at == set_value(1, flat));
                    }
                }
            }
        }
        free(y);
        tg_dataset_close(&set);
    }
    set_check_slabs(ctx, path, &config, 0);
}

TEST(test_times) {
    const tg_shape x = SET_SHAPE(4, 6, 6);
    const tg_shape ys[2] = {SET_SHAPE(4, 5, 6, 6), SET_SHAPE(4, 5, 2, 6, 6)};
    for (int64_t k = 0; k < 2; k++) {
        const char *path = set_write(ctx, "times.h5", TG_F32, &x, &ys[k]);
        check_times(path, 5, k + 1, TG_TIME_LAST, 0, 1);
        check_times(path, 5, k + 1, TG_TIME_ALL, 3, 2);
        check_times(path, 5, k + 1, 0, 2, 3);
        check_times(path, 5, k + 1, 3, 6, 1);
        tg_dataset_config config = tg_dataset_config_default();
        config.y_time = 5;
        tg_dataset *set = NULL;
        assert_int_equal(tg_dataset_open(ctx, path, NULL, &config, &set), TG_E_CONFIG);
        set_expect_sentence(ctx, "time 5 was asked for, but the array has 5");
        remove(path);
    }
    int64_t y_time = 7;
    set_ok(ctx, tg_time_parse(ctx, "data.y_time", "last", &y_time));
    assert_int_equal(y_time, TG_TIME_LAST);
    set_ok(ctx, tg_time_parse(ctx, "data.y_time", "all", &y_time));
    assert_int_equal(y_time, TG_TIME_ALL);
    set_ok(ctx, tg_time_parse(ctx, "data.y_time", "16", &y_time));
    assert_int_equal(y_time, 16);
    const char *const bad[] = {"", "-1", "1.5", "first", "99999999999", "1 "};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tg_time_parse(ctx, "data.y_time", bad[i], &y_time), TG_E_CONFIG);
        set_expect_sentence(ctx, "data.y_time: expected last, all or the number");
    }
}

/* Odd grids hold both ends: every s-th point of 1 + s (r - 1). */
TEST(test_odd_grids) {
    const tg_shape x = SET_SHAPE(2, 21, 21);
    const char *path = set_write(ctx, "odd.h5", TG_F32, &x, &x);
    static const struct {
        int64_t resolution, step;
    } cases[] = {{21, 1}, {11, 2}, {6, 4}, {5, 5}, {7, 3}, {3, 7}};
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        tg_dataset_config config = tg_dataset_config_default();
        set_square(&config, cases[c].resolution);
        tg_dataset *set = set_open(ctx, path, &config);
        const int64_t r = cases[c].resolution, one = 1;
        assert_int_equal(tg_dataset_get_facts(set).grid[1], r);
        float *values = set_floats((size_t)(r * r));
        set_ok(ctx, tg_dataset_read(set, &one, 1, values, NULL));
        for (int64_t i = 0; i < r * r; i++) {
            const int64_t at = (21 + i / r * cases[c].step) * 21 + i % r * cases[c].step;
            assert_true((double)values[i] == set_value(0, at));
        }
        free(values);
        tg_dataset_close(&set);
    }
    remove(path);
}

/* Three dimensions of different sizes, each with a step of its own. */
TEST(test_steps_of_each_dimension) {
    enum { R = 4 };
    const tg_shape shape = SET_SHAPE(3, 2, 8, 12, 20); /* two channels */
    const int64_t step[3] = {2, 3, 5};
    const char *path = set_write(ctx, "cuboid.h5", TG_F32, &shape, &shape);
    for (int streamed = 0; streamed < 2; streamed++) {
        tg_dataset_config config = tg_dataset_config_default();
        config.n_dim = 3;
        set_square(&config, R);
        config.cache_bytes = streamed ? 0 : 1 << 20;
        tg_dataset *set = set_open(ctx, path, &config);
        const int64_t order[2] = {2, 0};
        float values[2 * 2 * R * R * R];
        set_ok(ctx, tg_dataset_read(set, order, 2, NULL, values));
        for (int64_t i = 0; i < 2 * 2 * R * R * R; i++) {
            const int64_t plane = order[i / (2 * R * R * R)] * 2 + i / (R * R * R) % 2;
            const int64_t at[3] = {i / (R * R) % R, i / R % R, i % R};
            const int64_t flat =
                ((plane * 8 + at[0] * step[0]) * 12 + at[1] * step[1]) * 20 + at[2] * step[2];
            assert_true((double)values[i] == set_value(1, flat));
        }
        tg_dataset_close(&set);
        set_check_slabs(ctx, path, &config, 0);
    }
    remove(path);
}

/* The same values from every format and stored dtype, real as complex and in f64, too; streamed and
 * cached. */
TEST(test_formats) {
    static const char *const names[] = {"set.h5", "set.safetensors", "set_x.npy"};
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_C64, TG_I16};
    enum { N = 5, POINTS = 12 };
    const tg_shape x = SET_SHAPE(N, 3, 4);
    for (int f = 0; f < 3; f++) {
        for (int t = 0; t < 4; t++) {
            for (int variant = 0; variant < 8; variant++) {
                const char *path = set_write(ctx, names[f], dtypes[t], &x, &x);
                tg_dataset_config config = tg_dataset_config_default();
                config.cache_bytes = variant & 1 ? 0 : 1 << 20;
                config.complex_data = variant & 2;
                config.dtype = variant & 4 ? TG_F64 : TG_F32;
                tg_dataset *set = set_open(ctx, path, &config);
                const bool is_complex = config.complex_data || dtypes[t] == TG_C64;
                const int parts = is_complex ? 2 : 1;
                const tg_dataset_facts facts = tg_dataset_get_facts(set);
                assert_int_equal(facts.dtype,
                                 is_complex ? tg_dtype_complex(config.dtype) : config.dtype);
                assert_int_equal(facts.x_bytes, POINTS * parts * (variant & 4 ? 8 : 4));
                union {
                    float narrow[3 * POINTS * 2];
                    double wide[3 * POINTS * 2];
                } y;
                set_ok(ctx, tg_dataset_read(set, (int64_t[]){4, 1, 2}, 3, NULL, &y));
                for (int i = 3 * POINTS * parts - 1; i >= 0 && !(variant & 4); i--) {
                    y.wide[i] = (double)y.narrow[i];
                }
                for (int64_t i = 0; i < 3 * POINTS; i++) {
                    const int64_t flat = (int64_t[]){4, 1, 2}[i / POINTS] * POINTS + i % POINTS;
                    const double re =
                        dtypes[t] == TG_I16 ? (double)set_integer(flat) : set_value(1, flat);
                    const double im = dtypes[t] == TG_C64 ? set_imag(1, flat) : 0.0;
                    assert_true(y.wide[parts * i] == re);
                    assert_true(!is_complex || y.wide[parts * i + 1] == im);
                }
                tg_dataset_close(&set);
                if (variant % 2 == 0) {
                    set_check_slabs(ctx, path, &config, 0);
                }
            }
        }
    }
    test_folder_remove();
}

/* Samples of more bytes than are converted at once, in files whose numbers are wider or narrower
 * than those handed out. */
TEST(test_many_pieces) {
    enum { SIDE = 150, POINTS = SIDE * SIDE };
    static const char *const names[] = {"wide_x.npy", "wide.safetensors", "wide.h5"};
    static const tg_dtype dtypes[] = {TG_F64, TG_I16};
    const tg_shape x = SET_SHAPE(3, SIDE, SIDE);
    float *values = set_floats(2 * POINTS);
    for (int f = 0; f < 3; f++) {
        for (int t = 0; t < 2; t++) {
            const char *path = set_write(ctx, names[f], dtypes[t], &x, &x);
            tg_dataset_config config = tg_dataset_config_default();
            config.cache_bytes = 0;
            tg_dataset *set = set_open(ctx, path, &config);
            set_ok(ctx, tg_dataset_read(set, (int64_t[]){1, 2}, 2, NULL, values));
            for (int64_t i = 0; i < 2 * POINTS; i++) {
                const int64_t flat = POINTS + i;
                assert_true((double)values[i] ==
                            (dtypes[t] == TG_I16 ? (double)set_integer(flat) : set_value(1, flat)));
            }
            tg_dataset_close(&set);
        }
    }
    free(values);
    test_folder_remove();
}

/* Fortran order and big-endian numbers, as numpy writes them: values of test_formats' kind. */
TEST(test_npy_orders) {
    enum { N = 3, M = 4, CELLS = N * M };
    char x_path[512];
    snprintf(x_path, sizeof x_path, "%s", test_path("order_x.npy"));
    for (int f = 0; f < 2; f++) { /* the same numbers in both: y is in C order */
        unsigned char file[128 + 4 * CELLS] = "\x93NUMPY\x01";
        file[8] = 118;
        memset(file + 10, ' ', 118);
        const int length = snprintf((char *)file + 10, 118,
                                    "{'descr': '>f4', 'fortran_order': %s, 'shape': (3, 4)}",
                                    f ? "False" : "True");
        file[10 + length] = ' ';
        for (int i = 0; i < CELLS; i++) { /* of x: element (i % N, i / N) */
            const float value = (float)(i % N * M + i / N);
            uint32_t bits = 0;
            memcpy(&bits, &value, 4);
            for (int b = 0; b < 4; b++) {
                file[128 + 4 * i + b] = (unsigned char)(bits >> (24 - 8 * b));
            }
        }
        test_write_bytes(f ? test_path("order_y.npy") : x_path, file, sizeof file);
    }
    tg_dataset_config config = tg_dataset_config_default();
    config.n_dim = 1;
    config.cache_bytes = 64; /* of 96: streamed, and room for the Fortran one */
    tg_dataset *set = set_open(ctx, x_path, &config);
    assert_false(tg_dataset_get_facts(set).cached);
    float x[CELLS], y[CELLS];
    set_ok(ctx, tg_dataset_read(set, (int64_t[]){0, 1, 2}, 3, x, y));
    for (int i = 0; i < CELLS; i++) {
        assert_true(x[i] == (float)i);
        assert_true(y[i] == (float)(i % N * M + i / N));
    }
    tg_dataset_close(&set);
    set_check_slabs(ctx, x_path, &config, config.cache_bytes);
    config.cache_bytes = 47;
    assert_int_equal(tg_dataset_open(ctx, x_path, NULL, &config, &set), TG_E_UNSUPPORTED);
    set_expect_sentence(ctx, "Fortran order must be read whole");
    test_folder_remove();
}

TEST(test_files_apart) {
    const tg_shape shape = SET_SHAPE(2, 3), other = SET_SHAPE(2, 5);
    char first[512], second[512];
    snprintf(first, sizeof first, "%s", set_write(ctx, "a.h5", TG_F32, &shape, &other));
    snprintf(second, sizeof second, "%s", set_write(ctx, "b.safetensors", TG_F32, &other, &shape));
    tg_dataset_config config = tg_dataset_config_default();
    config.n_dim = 1;
    tg_dataset *set = NULL;
    set_ok(ctx, tg_dataset_open(ctx, first, second, &config, &set));
    float values[6];
    set_ok(ctx, tg_dataset_read(set, (int64_t[]){0, 1}, 2, NULL, values));
    assert_true((double)values[5] == set_value(1, 5));
    tg_dataset_close(&set);
    /* other names, and x alone */
    config.x_name = "y";
    config.x_only = true;
    set = set_open(ctx, first, &config);
    assert_int_equal(tg_dataset_get_facts(set).grid[0], 5);
    assert_int_equal(tg_dataset_get_facts(set).out_channels, 0);
    set_ok(ctx, tg_dataset_read(set, (int64_t[]){0}, 1, NULL, NULL));
    assert_int_equal(tg_dataset_read(set, (int64_t[]){0}, 1, values, values), TG_E_ARGUMENT);
    set_expect_sentence(ctx, "opened without y");
    tg_dataset_close(&set);
    test_folder_remove();
}

static void expect_refused(const char *path, const tg_dataset_config *config, tg_status status,
                           const char *part) {
    tg_dataset *set = NULL;
    assert_int_equal(tg_dataset_open(ctx, path, NULL, config, &set), status);
    assert_null(set);
    set_expect_sentence(ctx, part);
}

/* x alone: y may be missing, and so may the dimensions of samples and channels. */
TEST(test_x_alone) {
    static const struct {
        const char *file, *missing, *shape;
    } files[] = {
        {"alone.h5", "there is no numeric dataset 'none'", "alone.h5: x: expected (samples, grid"},
        {"alone.safetensors", "there is no tensor 'none'",
         "x: expected (samples, grid..) or (samp"},
        {"alone_x.npy", "alone_y.npy", "npy data: expected (samples, grid..) or (samples, chan"},
    };
    const tg_shape shapes[] = {SET_SHAPE(1, 1, 3, 4), SET_SHAPE(1, 3, 4), SET_SHAPE(3, 4)};
    for (int f = 0; f < 3; f++) {
        for (int s = 0; s < 3; s++) {
            const char *path = set_write(ctx, files[f].file, TG_F64, &shapes[s], &shapes[0]);
            tg_dataset_config config = tg_dataset_config_default();
            config.y_name = "none";
            remove(test_path("alone_y.npy"));
            expect_refused(path, &config, f == 2 ? TG_E_IO : TG_E_ARGUMENT, files[f].missing);
            config.x_only = true;
            for (int is_cached = 0; is_cached < 2; is_cached++) {
                float x[2 * 12];
                config.cache_bytes = is_cached ? 1 << 20 : 0;
                tg_dataset *set = set_open(ctx, path, &config);
                const tg_dataset_facts facts = tg_dataset_get_facts(set);
                assert_true(facts.samples == 1 && facts.in_channels == 1 && facts.x_ndim == 4 - s);
                set_ok(ctx, tg_dataset_read(set, (int64_t[]){0, 0}, 2, x, NULL));
                for (int64_t i = 0; i < 2 * 12; i++) {
                    assert_true((double)x[i] == set_value(0, i % 12));
                }
                tg_dataset_close(&set);
            }
        }
        const char *path = set_write(ctx, files[f].file, TG_F64, &shapes[2], &shapes[2]);
        expect_refused(path, NULL, TG_E_SHAPE, files[f].shape);
    }
    test_folder_remove();
}

TEST(test_refused_shapes) {
    static const struct {
        int n_dim;
        tg_shape x, y;
        const char *part;
    } cases[] = {
        {2, {2, {3, 7}}, {2, {3, 7}}, "x: expected (samples, grid..) or"},
        {1, {4, {3, 2, 2, 7}}, {2, {3, 7}}, "x: expected (samples, grid..) or"},
        {1, {2, {3, 7}}, {5, {3, 1, 1, 1, 7}}, "y: expected (samples, [times,]"},
        {1, {2, {3, 7}}, {1, {3}}, "y: expected (samples, [times,]"},
        {1, {2, {3, 7}}, {2, {4, 7}}, "y: expected the samples and the grid of x (their numbers"},
        {1, {2, {3, 7}}, {2, {3, 8}}, "y: expected the samples and the grid of x (their grids"},
        {1, {2, {3, 0}}, {2, {3, 0}}, "a grid of 0 has no points"},
        {1, {3, {3, 0, 7}}, {3, {3, 0, 7}}, "x: has no channels"},
        {1, {2, {3, 7}}, {3, {3, 0, 7}}, "y: has no times"},
    };
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const char *path = set_write(ctx, "bad.safetensors", TG_F32, &cases[c].x, &cases[c].y);
        tg_dataset_config config = tg_dataset_config_default();
        config.n_dim = cases[c].n_dim;
        expect_refused(path, &config, TG_E_SHAPE, cases[c].part);
    }
    test_folder_remove();
}

TEST(test_refused_settings) {
    const tg_shape x = SET_SHAPE(3, 16, 16), none = SET_SHAPE(0, 4, 4);
    char path[512];
    snprintf(path, sizeof path, "%s", set_write(ctx, "bad.h5", TG_F32, &x, &x));
    const tg_dataset_config good = tg_dataset_config_default();
    tg_dataset_config config = good;
    set_square(&config, 6);
    expect_refused(path, &config, TG_E_SHAPE,
                   "a grid of 16x16 cannot be sub-sampled to 6: 6 is no "
                   "divisor of 16");
    set_square(&config, 32);
    expect_refused(path, &config, TG_E_SHAPE, "cannot be sub-sampled to 32");
    set_square(&config, -1);
    expect_refused(path, &config, TG_E_ARGUMENT, "dataset: -1 points");
    config = good;
    config.n_samples = 4;
    expect_refused(path, &config, TG_E_CONFIG, "4 samples were asked for, there are 3");
    config = good;
    config.y_time = 0;
    expect_refused(path, &config, TG_E_CONFIG, "no dimension of time");
    config.y_time = -3;
    expect_refused(path, &config, TG_E_ARGUMENT, "y_time -3");
    config = good;
    config.n_dim = 4;
    expect_refused(path, &config, TG_E_ARGUMENT, "n_dim: expected 1 to 3, found 4");
    config = good;
    config.y_name = "pressure";
    expect_refused(path, &config, TG_E_ARGUMENT, "no numeric dataset 'pressure'");
    expect_refused(test_path("missing.h5"), &good, TG_E_IO, "missing.h5: cannot open");
    expect_refused(NULL, &good, TG_E_ARGUMENT, "path is NULL");
    expect_refused(set_write(ctx, "e.safetensors", TG_F32, &none, &none), &good, TG_E_SHAPE,
                   "x: has no samples");
    expect_refused(set_write(ctx, "ax.npy", TG_F32, &x, &x), &good, TG_E_ARGUMENT,
                   "an npy file holds one array");
    const char *pair = set_write(ctx, "pair_x.npy", TG_F32, &x, &x);
    remove(test_path("pair_y.npy"));
    expect_refused(pair, &good, TG_E_IO, "pair_y.npy: cannot open");
    tg_dataset *set = set_open(ctx, path, NULL); /* the default is 2-D */
    assert_int_equal(tg_dataset_read(set, (int64_t[]){0, 3}, 2, NULL, NULL), TG_E_ARGUMENT);
    set_expect_sentence(ctx, "sample 3 was asked for, there are 3");
    assert_int_equal(tg_dataset_read(set, (int64_t[]){-1}, 1, NULL, NULL), TG_E_ARGUMENT);
    tg_dataset_close(&set);
    test_folder_remove();
}

/* Random requests, cached and streamed: the same bits, and memory as promised. Samples of 1.6 MB,
 * so that the buffer of the stream holds 2. */
TEST(test_stream_equals_cache) {
    enum { N = 9, GRID = 632, RES = 79, MOST = 12 };
    const tg_shape x = SET_SHAPE(N, GRID, GRID);
    const size_t sample = (size_t)RES * RES;
    uint64_t random = 5;
    static const char *const names[] = {"big.h5", "big_x.npy"};
    for (int f = 0; f < 2; f++) {
        const char *path = set_write(ctx, names[f], TG_F32, &x, &x);
        tg_dataset_config config = tg_dataset_config_default();
        set_square(&config, RES);
        config.n_samples = N - 1;
        config.cache_bytes = (size_t)(N - 1) * 2 * sample * sizeof(float);
        tg_dataset *cached = set_open(ctx, path, &config);
        const size_t held = tg_context_memory(ctx, TG_HOST).current[TG_MEM_DATA];
        assert_int_equal(held, config.cache_bytes);
        config.cache_bytes--;
        tg_dataset *streamed = set_open(ctx, path, &config);
        assert_true(tg_dataset_get_facts(cached).cached);
        assert_false(tg_dataset_get_facts(streamed).cached);
        float *values[4];
        for (int i = 0; i < 4; i++) {
            values[i] = set_floats(MOST * sample);
        }
        for (int round = 0; round < 20; round++) {
            int64_t order[MOST];
            const int64_t count = (int64_t)(test_random(&random) % (MOST + 1));
            for (int64_t i = 0; i < count; i++) {
                order[i] = (int64_t)(test_random(&random) % (N - 1));
            }
            set_ok(ctx, tg_dataset_read(cached, order, count, values[0], values[1]));
            set_ok(ctx, tg_dataset_read(streamed, order, count, values[2], values[3]));
            const size_t bytes = (size_t)count * sample * sizeof(float);
            assert_memory_equal(values[0], values[2], bytes);
            assert_memory_equal(values[1], values[3], bytes);
        }
        assert_true(tg_context_memory(ctx, TG_HOST).current[TG_MEM_DATA] - held < (5 << 20));
        for (int i = 0; i < 4; i++) {
            free(values[i]);
        }
        tg_dataset_close(&cached);
        tg_dataset_close(&streamed);
    }
    test_folder_remove();
}

TEST(test_find) {
    static const char *const names[] = {"darcy_train_16.h5", "darcy_train_32.hdf5",
                                        "darcy_train_64.safetensors", "darcy_train_8_x.npy"};
    static const char *const grids[] = {"16", "32", "64", "8"};
    char root[512], path[512];
    for (int i = 0; i < 4; i++) {
        test_write_bytes(test_path(names[i]), "", 0);
    }
    snprintf(root, sizeof root, "%s", test_path(""));
    root[strlen(root) - 1] = '\0'; /* without its slash, then with it */
    for (int slash = 0; slash < 2; slash++) {
        for (int i = 0; i < 4; i++) {
            set_ok(ctx, tg_data_find(ctx, root, "darcy", "train", grids[i], path, sizeof path));
            assert_string_equal(path, test_path(names[i]));
        }
        strcat(root, slash ? "" : "/");
    }
    assert_int_equal(tg_data_find(ctx, root, "darcy", "test", "16", path, sizeof path), TG_E_IO);
    set_expect_sentence(ctx, test_path("darcy_test_16.h5"));
    assert_int_equal(tg_data_find(ctx, "", "nothing", "test", "16", path, sizeof path), TG_E_IO);
    set_expect_sentence(ctx, "./nothing_test_16.h5: there is no such file");
    assert_int_equal(tg_data_find(ctx, root, "darcy", "train", "16", path, 10), TG_E_ARGUMENT);
    set_expect_sentence(ctx, "too long");
    /* Without a grid, the only one there is. */
    assert_int_equal(tg_data_find(ctx, root, "darcy", "train", NULL, path, sizeof path),
                     TG_E_CONFIG);
    set_expect_sentence(ctx, "there are files darcy_train_.. on several grids");
    assert_int_equal(tg_data_find(ctx, root, "darcy", "test", NULL, path, sizeof path), TG_E_IO);
    set_expect_sentence(ctx, "there is no file darcy_test_<grid>.h5");
    test_write_bytes(test_path("flow_train_48x80_x.npy"), "", 0);
    test_write_bytes(test_path("flow_train_48x80_y.npy"), "", 0);
    test_write_bytes(test_path("flow_train_fine.h5"), "", 0);
    set_ok(ctx, tg_data_find(ctx, root, "flow", "train", NULL, path, sizeof path));
    assert_string_equal(path, test_path("flow_train_48x80_x.npy"));
    set_ok(ctx, tg_data_find(ctx, root, "flow", "train", "48x80", path, sizeof path));
    assert_string_equal(path, test_path("flow_train_48x80_x.npy"));
    test_folder_remove();
}

static tg_status open_and_read(const char *path, size_t cache_bytes) {
    tg_dataset_config config = tg_dataset_config_default();
    tg_dataset *set = NULL;
    float values[3 * 16];
    set_square(&config, 4);
    config.cache_bytes = cache_bytes;
    tg_status status = tg_dataset_open(ctx, path, NULL, &config, &set);
    if (status == TG_OK) {
        status = tg_dataset_read(set, (int64_t[]){2, 0, 1}, 3, values, values);
    }
    tg_dataset_close(&set);
    return status;
}

TEST(test_no_memory) {
    static const char *const names[] = {"m.h5", "m.safetensors", "m_x.npy"};
    const tg_shape x = SET_SHAPE(3, 8, 8);
    for (int f = 0; f < 6; f++) {
        const char *path = set_write(ctx, names[f / 2], TG_F64, &x, &x);
        test_walk walk = {.ctx = ctx};
        while (test_walk_next(&walk)) {
            test_walk_called(&walk, open_and_read(path, f % 2 ? 0 : 1 << 20));
        }
    }
    test_folder_remove();
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
