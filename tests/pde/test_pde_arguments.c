/* What a generator refuses, with the sentence for it; what it says about the equations; a sample
 * that fails; HDF5 files whose numbers come later. */
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "io/formats.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"
#include "tgrad/tgrad.h"

static tg_generator_config good_config(const char *equation) {
    static char folder[512];
    snprintf(folder, sizeof folder, "%s", test_path(""));
    tg_generator_config config = tg_generator_config_default();
    config.equation = equation;
    config.folder = folder;
    config.n_train = config.n_test = 3;
    config.resolution = 11;
    config.test_resolution_count = 2;
    config.test_resolution[0] = 11;
    config.test_resolution[1] = 7;
    return config;
}

static void expect_refused(tg_generator_config config, tg_status expected, const char *sentence) {
    tg_generator *generator = NULL;
    assert_int_equal(tg_generator_create(ctx, &config, &generator), expected);
    assert_non_null(strstr(tg_context_error(ctx), sentence));
    assert_null(generator);
}

TEST(test_bad_arguments) {
    const tg_generator_config good = good_config("burgers");
    const int files = test_folder_count();
    tg_generator_config bad = good;
    bad.equation = "burger";
    expect_refused(bad, TG_E_CONFIG, "did you mean burgers?");
    bad.equation = "xyzzy";
    expect_refused(bad, TG_E_CONFIG,
                   "'xyzzy' is not one of burgers, darcy, ns, kolmogorov, em, potential");
    bad.equation = NULL;
    expect_refused(bad, TG_E_ARGUMENT, "an equation and a folder");
    bad = good;
    bad.folder = "";
    expect_refused(bad, TG_E_ARGUMENT, "an equation and a folder");
    bad = good;
    bad.frames = 1;
    expect_refused(bad, TG_E_CONFIG, "burgers: expected 2 to 1000000 frames of a trajectory");
    bad.equation = "darcy";
    expect_refused(bad, TG_E_CONFIG, "darcy: frames are of trajectories of burgers and ns");
    bad = good;
    bad.folder = "/dev/null/x";
    expect_refused(bad, TG_E_IO, "cannot make this folder");
    bad = good;
    bad.n_train = bad.n_test = 0;
    expect_refused(bad, TG_E_CONFIG, "both 0");
    bad.n_train = -2;
    expect_refused(bad, TG_E_CONFIG, "n_train");
    bad = good;
    bad.n_test = INT64_MAX;
    expect_refused(bad, TG_E_CONFIG, "n_test");
    bad = good;
    bad.resolution = -1;
    expect_refused(bad, TG_E_CONFIG, "resolution");
    static const tg_pde_value coarse = {"grid", "64"};
    bad = good;
    bad.value_count = 1;
    bad.values = &coarse;
    bad.resolution = 65;
    expect_refused(bad, TG_E_CONFIG, "fewer than the finest resolution, 65");
    bad = good;
    bad.test_resolution[1] = 11;
    expect_refused(bad, TG_E_CONFIG, "given twice");
    bad.test_resolution[1] = 1 << 20;
    expect_refused(bad, TG_E_CONFIG, "found 1048576");
    bad.test_resolution_count = 9;
    expect_refused(bad, TG_E_CONFIG, "at most 8");
    bad = good_config("darcy");
    bad.resolution = 2;
    expect_refused(bad, TG_E_CONFIG, "3 to 32768 points, found 2");
    static const tg_pde_value more[][2] = {
        {{"lag", "3"}, {"stride", "2"}},          {{"grid", "16"}, {"wavenumber", "6"}},
        {{"energy", "[3, 2]"}, {"grid", "0"}},    {{"energy", "3"}, {"grid", "0"}},
        {{"mismatch", "500"}, {"period", "0.5"}}, {{"grid", "3"}, {"input", "forcing"}},
        {{"input", "pressure"}, {"grid", "0"}},
    };
    static const char *const reasons[][2] = {
        {"kolmogorov", "kolmogorov.lag: expected a multiple of the stride 2, found 3"},
        {"kolmogorov", "kolmogorov.grid: expected at least 19 points, found 16"},
        {"em", "em.energy: expected a range [low, high]"},
        {"em", "em.energy: expected a range [low, high]"},
        {"em", "em.mismatch"},
        {"ns", "ns.grid"},
        {"ns", "one of vorticity, forcing, found 'pressure'"},
    };
    for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
        bad = good_config(reasons[i][0]);
        bad.resolution = bad.test_resolution[0] = 3;
        bad.test_resolution_count = 1;
        bad.value_count = 2;
        bad.values = more[i];
        expect_refused(bad, TG_E_CONFIG, reasons[i][1]);
    }
    static const char *const values[][3] = {
        {"viscosity", "0", "burgers.viscosity"},
        {"viscosity", "nan", "burgers.viscosity"},
        {"viscosity", "thick", "found 'thick'"},
        {"grid", "64.5", "burgers.grid"},
        {"grid", "-1", "burgers.grid"},
        {"time", "-1", "burgers.time"},
        {"reynolds", "3", "no parameter 'reynolds'"},
        {"", "3", "it has viscosity"},
    };
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const tg_pde_value value = {values[i][0], values[i][1]};
        bad = good;
        bad.value_count = 1;
        bad.values = &value;
        expect_refused(bad, TG_E_CONFIG, values[i][2]);
    }
    assert_int_equal(test_folder_count(), files);
}

TEST(test_descriptions) {
    tg_pde_info info;
    tg_pde_param_info param;
    assert_false(tg_pde_describe(-1, &info));
    assert_false(tg_pde_describe_param(-1, 0, &param));
    int i = 0;
    for (; tg_pde_describe(i, &info); i++) {
        assert_true(*info.name && *info.summary && info.params > 0 && info.resolution > 0);
        for (int p = 0; p < info.params; p++) {
            assert_true(tg_pde_describe_param(i, p, &param));
            assert_true(*param.name && *param.help && *param.value);
        }
        assert_false(tg_pde_describe_param(i, info.params, &param));
    }
    assert_int_equal(i, 6);
}

/* A solution that cannot be had is an error that names the sample. */
TEST(test_hopeless) {
    static const tg_pde_value values[] = {{"grid", "64"}, {"sigma", "1e12"}};
    tg_generator_config config = good_config("burgers");
    config.value_count = 2;
    config.values = values;
    config.n_test = 0;
    tg_generator *generator = NULL;
    bool complete = true;
    assert_int_equal(tg_generator_create(ctx, &config, &generator), TG_OK);
    assert_int_equal(tg_generator_run(generator, NULL, NULL, &complete), TG_E_NUMERIC);
    assert_false(complete);
    tg_generator_destroy(&generator);
    assert_non_null(strstr(tg_context_error(ctx), "burgers: training sample "));
    assert_non_null(strstr(tg_context_error(ctx), "time steps are needed"));
    unlink(test_path("burgers_train_11.h5.part"));
    unlink(test_path("burgers_train_11.h5.journal"));
}

/* ---- HDF5 files whose numbers come later ---- */

TEST(test_spaces) {
    tg_archive *meta = NULL;
    const char *path = test_path("space.h5");
    tg_h5_space spaces[2] = {{"x", TG_F32, {2, {3, 5}}, 0}, {"a/y", TG_C64, {1, {7}}, 0}};
    assert_int_equal(tg_archive_create(ctx, &meta), TG_OK);
    assert_int_equal(tg_archive_set_meta(meta, "key", "value"), TG_OK);
    assert_int_equal(tg_h5_write_spaces(ctx, path, meta, spaces, 2), TG_OK);
    float x[15], y[14];
    for (int i = 0; i < 15; i++) {
        x[i] = (float)(i + 1);
        y[i % 14] = (float)-i;
    }
    const int fd = open(path, O_RDWR);
    assert_int_equal(pwrite(fd, x, sizeof x, (off_t)spaces[0].offset), sizeof x);
    assert_int_equal(pwrite(fd, y, sizeof y, (off_t)spaces[1].offset), sizeof y);
    close(fd);
    tg_archive *file = NULL;
    assert_int_equal(tg_archive_read(ctx, path, &file), TG_OK);
    assert_memory_equal(tg_archive_find(file, "x")->data, x, sizeof x);
    assert_memory_equal(tg_archive_find(file, "a/y")->data, y, sizeof y);
    assert_int_equal(tg_archive_find(file, "a/y")->dtype, TG_C64);
    assert_string_equal(tg_archive_meta(file, "key"), "value");
    tg_archive_destroy(&file);
    tg_archive_destroy(&meta);
    unlink(path);
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
