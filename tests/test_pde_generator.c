/* Generators: files and metadata, the same bytes for any thread count, after an interruption and
 * after damage, test sets on several grids, refusals, no memory. */
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/memory.h"
#include "io/hdf5_space.h"
#include "support/files.h"
#include "tgrad/tgrad.h"

static tg_context *ctx; /* two threads */

static int setup(void **state) {
    (void)state;
    const tg_context_config config = {.threads = 2};
    return tg_context_create(&config, &ctx) == TG_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    test_folder_remove();
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, 1);
    tg_context_destroy(&ctx);
    return 0;
}

/* ---- small sets ---- */

static const char *folder(void) {
    static char path[512];
    snprintf(path, sizeof path, "%s", test_path(""));
    path[strlen(path) - 1] = '\0';
    return path;
}

static const tg_pde_value burgers_values[] = {{"grid", "64"}, {"time", "0.1"}};
static const tg_pde_value darcy_values[] = {{"grid", "21"}};

static tg_generator_config small_set(const char *equation) {
    tg_generator_config config = tg_generator_config_default();
    config.equation = equation;
    config.folder = folder();
    config.n_train = 5;
    config.n_test = 3;
    config.resolution = 11;
    config.test_resolution_count = 2;
    config.test_resolution[0] = 11;
    config.test_resolution[1] = 7;
    config.seed = 1;
    config.value_count = 2;
    config.values = burgers_values;
    if (strcmp(equation, "darcy") == 0) {
        config.value_count = 1;
        config.values = darcy_values;
    }
    return config;
}

static const char *const endings[] = {"train_11.h5", "test_11.h5", "test_7.h5"};

/* The three files of a small set, and none of the unfinished kind. */
typedef struct set {
    unsigned char *bytes[3];
    size_t size[3];
} set;

static const char *file_of(const char *equation, int i, const char *more) {
    char name[64];
    snprintf(name, sizeof name, "%s_%s%s", equation, endings[i], more);
    return test_path(name);
}

static void remove_set(const char *equation) {
    for (int i = 0; i < 3; i++) {
        unlink(file_of(equation, i, ""));
        unlink(file_of(equation, i, ".part"));
        unlink(file_of(equation, i, ".journal"));
    }
}

static set read_set(const char *equation) {
    set s;
    for (int i = 0; i < 3; i++) {
        s.bytes[i] = test_read_bytes(file_of(equation, i, ""), &s.size[i]);
        assert_int_equal(access(file_of(equation, i, ".part"), F_OK), -1);
        assert_int_equal(access(file_of(equation, i, ".journal"), F_OK), -1);
    }
    return s;
}

static void free_set(set *s) {
    for (int i = 0; i < 3; i++) {
        free(s->bytes[i]);
    }
}

static void expect_same(const set *a, const set *b) {
    for (int i = 0; i < 3; i++) {
        assert_int_equal(a->size[i], b->size[i]);
        assert_memory_equal(a->bytes[i], b->bytes[i], a->size[i]);
    }
}

/* ---- running ---- */

typedef struct brake {
    int64_t after; /* samples that may be made; < 0: all */
    int64_t made, found, total;
} brake;

static bool watch(void *user, const tg_generator_progress *progress) {
    brake *b = user;
    b->made = progress->done - progress->found;
    b->found = progress->found;
    b->total = progress->total;
    return b->after < 0 || b->made < b->after;
}

static tg_status generate(tg_context *with, const tg_generator_config *config, brake *b,
                          bool *complete) {
    tg_generator *generator = NULL;
    *complete = false;
    tg_status status = tg_generator_create(with, config, &generator);
    if (status == TG_OK) {
        status = tg_generator_run(generator, b ? watch : NULL, b, complete);
    }
    tg_generator_destroy(&generator);
    return status;
}

static void generate_all(tg_context *with, const tg_generator_config *config) {
    bool complete = false;
    assert_int_equal(generate(with, config, NULL, &complete), TG_OK);
    assert_true(complete);
}

static set whole_set(const char *equation) {
    const tg_generator_config config = small_set(equation);
    remove_set(equation);
    generate_all(ctx, &config);
    return read_set(equation);
}

static void test_files(void **state) {
    (void)state;
    const tg_generator_config config = small_set("burgers");
    remove_set("burgers");
    generate_all(ctx, &config);
    tg_archive *file = NULL;
    assert_int_equal(tg_archive_read(ctx, file_of("burgers", 2, ""), &file), TG_OK);
    const tg_tensor *x = tg_archive_find(file, "x"), *y = tg_archive_find(file, "y");
    assert_true(x && y && x->dtype == TG_F32 && y->dtype == TG_F32);
    assert_true(tg_shape_equal(&x->shape, &(tg_shape){2, {3, 7}}));
    assert_true(tg_shape_equal(&y->shape, &(tg_shape){2, {3, 7}}));
    static const char *const meta[][2] = {
        {"equation", "burgers"}, {"split", "test"}, {"seed", "1"},    {"viscosity", "0.01"},
        {"time", "0.1"},         {"grid", "64"},    {"sigma", "625"}, {"x", "u(x, 0)"}};
    for (size_t i = 0; i < sizeof meta / sizeof meta[0]; i++) {
        assert_string_equal(tg_archive_meta(file, meta[i][0]), meta[i][1]);
    }
    tg_tensor_stats stats;
    assert_int_equal(tg_tensor_get_stats(ctx, y, &stats), TG_OK);
    assert_true(stats.nan_count == 0 && stats.inf_count == 0 && stats.max > stats.min);
    tg_archive_destroy(&file);
}

/* Bytes are those of one thread, of seven, of the samples alone and of more samples. */
static void test_threads_and_counts(void **state) {
    (void)state;
    static const char *const equations[] = {"burgers", "darcy"};
    for (int e = 0; e < 2; e++) {
        set two = whole_set(equations[e]);
        for (int threads = 1; threads <= 7; threads += 6) {
            const tg_context_config with = {.threads = threads};
            const tg_generator_config config = small_set(equations[e]);
            tg_context *other = NULL;
            assert_int_equal(tg_context_create(&with, &other), TG_OK);
            remove_set(equations[e]);
            generate_all(other, &config);
            set s = read_set(equations[e]);
            expect_same(&two, &s);
            free_set(&s);
            tg_context_destroy(&other);
        }
        tg_generator_config more = small_set(equations[e]);
        more.n_train = 0;
        more.n_test = 4;
        more.test_resolution_count = 1;
        remove_set(equations[e]);
        generate_all(ctx, &more);
        tg_h5 *file = NULL;
        float found[11 * 11], expected[11 * 11];
        const int64_t points = e == 0 ? 11 : 121;
        assert_int_equal(access(file_of(equations[e], 0, ""), F_OK), -1);
        assert_int_equal(tg_h5_open(ctx, file_of(equations[e], 1, ""), &file), TG_OK);
        assert_int_equal(tg_h5_read_range(file, "y", 2, 1, TG_F32, found), TG_OK);
        tg_h5_close(&file);
        test_write_bytes(test_path("whole.h5"), two.bytes[1], two.size[1]);
        assert_int_equal(tg_h5_open(ctx, test_path("whole.h5"), &file), TG_OK);
        assert_int_equal(tg_h5_read_range(file, "y", 2, 1, TG_F32, expected), TG_OK);
        assert_memory_equal(found, expected, (size_t)points * sizeof found[0]);
        tg_h5_close(&file);
        unlink(test_path("whole.h5"));
        free_set(&two);
        remove_set(equations[e]);
    }
}

/* The same test samples on two grids: where the coarse one is part of the fine one, they agree. */
static void test_grids_share_samples(void **state) {
    (void)state;
    tg_generator_config config = small_set("burgers");
    config.n_train = 0;
    config.test_resolution[0] = 32;
    config.test_resolution[1] = 8;
    generate_all(ctx, &config);
    float fine[3][32], coarse[3][8];
    for (int part = 0; part < 2; part++) {
        tg_h5 *file = NULL;
        const char *name = part ? "y" : "x";
        assert_int_equal(tg_h5_open(ctx, test_path("burgers_test_32.h5"), &file), TG_OK);
        assert_int_equal(tg_h5_read_range(file, name, 0, 3, TG_F32, fine), TG_OK);
        tg_h5_close(&file);
        assert_int_equal(tg_h5_open(ctx, test_path("burgers_test_8.h5"), &file), TG_OK);
        assert_int_equal(tg_h5_read_range(file, name, 0, 3, TG_F32, coarse), TG_OK);
        tg_h5_close(&file);
        for (int i = 0; i < 24; i++) {
            assert_true(fabsf(coarse[i / 8][i % 8] - fine[i / 8][i % 8 * 4]) <= 1e-6f);
        }
    }
    unlink(test_path("burgers_test_32.h5"));
    unlink(test_path("burgers_test_8.h5"));
}

/* Stopped after any number of samples and taken up again, a run gives the same bytes. */
static void test_resume(void **state) {
    (void)state;
    static const char *const equations[] = {"burgers", "darcy"};
    for (int e = 0; e < 2; e++) {
        set whole = whole_set(equations[e]);
        const tg_generator_config config = small_set(equations[e]);
        for (int64_t after = 0; after < 8; after++) {
            brake b = {.after = after};
            bool complete = true;
            remove_set(equations[e]);
            assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
            assert_false(complete);
            assert_true(b.made >= after && b.made <= after + 1 && b.total == 8);
            const int64_t kept = b.made;
            b.after = -1;
            assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
            assert_true(complete && b.found == kept && b.made == 8 - kept);
            set resumed = read_set(equations[e]);
            expect_same(&whole, &resumed);
            free_set(&resumed);
        }
        /* Once complete, nothing is made any more. */
        brake b = {.after = -1};
        bool complete = false;
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        assert_true(complete && b.found == 8 && b.made == 0);
        /* One file is lost: its samples are made again, the others stay. */
        unlink(file_of(equations[e], 2, ""));
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        assert_true(complete && b.found == 5 && b.made == 3);
        set again = read_set(equations[e]);
        expect_same(&whole, &again);
        free_set(&again);
        free_set(&whole);
        remove_set(equations[e]);
    }
}

/* Unfinished files with damage anywhere: what is damaged is made again. */
static void test_damage(void **state) {
    (void)state;
    set whole = whole_set("burgers");
    const tg_generator_config config = small_set("burgers");
    uint64_t seed = 11;
    int64_t taken_up = 0;
    for (int round = 0; round < 24; round++) {
        brake b = {.after = 4};
        bool complete = true;
        remove_set("burgers");
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        const char *path = file_of("burgers", 0, round % 2 ? ".journal" : ".part");
        size_t size = 0;
        unsigned char *bytes = test_read_bytes(path, &size);
        unsigned char *bad = malloc(2 * size + 64);
        memcpy(bad, bytes, size);
        size = test_corrupt(bad, size, 2 * size + 64, &seed);
        test_write_bytes(path, bad, size);
        free(bytes);
        free(bad);
        b.after = -1;
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        assert_true(complete);
        taken_up += b.found;
        set s = read_set("burgers");
        expect_same(&whole, &s);
        free_set(&s);
    }
    assert_true(taken_up > 8);
    free_set(&whole);
    remove_set("burgers");
}

/* A complete file of other arguments is refused with the difference, and replaced on demand. */
static void test_other_arguments(void **state) {
    (void)state;
    set whole = whole_set("burgers");
    tg_generator_config config = small_set("burgers");
    bool complete = true;
    config.seed = 2;
    assert_int_equal(generate(ctx, &config, NULL, &complete), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "seed is 1 there and 2 here"));
    set still = read_set("burgers");
    expect_same(&whole, &still);
    free_set(&still);
    config.seed = 1;
    config.n_train = 6;
    assert_int_equal(generate(ctx, &config, NULL, &complete), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "dataset x"));
    config.overwrite = true;
    generate_all(ctx, &config);
    tg_h5 *file = NULL;
    tg_dtype dtype;
    tg_shape shape;
    assert_int_equal(tg_h5_open(ctx, file_of("burgers", 0, ""), &file), TG_OK);
    assert_int_equal(tg_h5_describe(file, "x", &dtype, &shape), TG_OK);
    assert_int_equal(shape.dim[0], 6);
    tg_h5_close(&file);
    /* An unfinished file of other arguments too. */
    remove_set("burgers");
    config = small_set("burgers");
    brake b = {.after = 2};
    assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
    config.seed = 3;
    assert_int_equal(generate(ctx, &config, NULL, &complete), TG_E_FORMAT);
    config.overwrite = true;
    generate_all(ctx, &config);
    free_set(&whole);
    remove_set("burgers");
}

static void expect_refused(tg_generator_config config, tg_status expected, const char *sentence) {
    bool complete = true;
    assert_int_equal(generate(ctx, &config, NULL, &complete), expected);
    assert_non_null(strstr(tg_context_error(ctx), sentence));
    assert_false(complete);
}

static void test_bad_arguments(void **state) {
    (void)state;
    const tg_generator_config good = small_set("burgers");
    const int files = test_folder_count();
    tg_generator_config bad = good;
    bad.equation = "burger";
    expect_refused(bad, TG_E_CONFIG, "did you mean burgers?");
    bad.equation = "xyzzy";
    expect_refused(bad, TG_E_CONFIG, "'xyzzy' is not one of burgers, darcy");
    bad.equation = NULL;
    expect_refused(bad, TG_E_ARGUMENT, "an equation and a folder");
    bad = good;
    bad.folder = "";
    expect_refused(bad, TG_E_ARGUMENT, "an equation and a folder");
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
    bad = good;
    bad.resolution = 65;
    expect_refused(bad, TG_E_CONFIG, "fewer than the finest resolution, 65");
    bad = good;
    bad.test_resolution[1] = 11;
    expect_refused(bad, TG_E_CONFIG, "given twice");
    bad.test_resolution[1] = 1 << 20;
    expect_refused(bad, TG_E_CONFIG, "found 1048576");
    bad.test_resolution_count = 9;
    expect_refused(bad, TG_E_CONFIG, "at most 8");
    bad = small_set("darcy");
    bad.resolution = 2;
    expect_refused(bad, TG_E_CONFIG, "3 to 32768 points, found 2");
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

static void test_descriptions(void **state) {
    (void)state;
    tg_pde_info info;
    tg_pde_param_info param;
    assert_int_equal(tg_pde_describe(ctx, -1, &info), TG_E_ARGUMENT);
    assert_int_equal(tg_pde_describe(ctx, tg_pde_count(), &info), TG_E_ARGUMENT);
    assert_int_equal(tg_pde_describe_param(ctx, -1, 0, &param), TG_E_ARGUMENT);
    for (int i = 0; i < tg_pde_count(); i++) {
        assert_int_equal(tg_pde_describe(ctx, i, &info), TG_OK);
        assert_true(*info.name && *info.summary && info.params > 0 && info.resolution > 0);
        assert_int_equal(tg_pde_describe_param(ctx, i, info.params, &param), TG_E_ARGUMENT);
        for (int p = 0; p < info.params; p++) {
            assert_int_equal(tg_pde_describe_param(ctx, i, p, &param), TG_OK);
            assert_true(*param.name && *param.help && *param.value);
        }
    }
}

/* A solution that cannot be had is an error that names the sample. */
static void test_hopeless(void **state) {
    (void)state;
    static const tg_pde_value values[] = {{"grid", "64"}, {"sigma", "1e12"}};
    tg_generator_config config = small_set("burgers");
    config.value_count = 2;
    config.values = values;
    bool complete = true;
    assert_int_equal(generate(ctx, &config, NULL, &complete), TG_E_NUMERIC);
    assert_false(complete);
    assert_non_null(strstr(tg_context_error(ctx), "burgers: training sample "));
    assert_non_null(strstr(tg_context_error(ctx), "time steps are needed"));
    remove_set("burgers");
}

static void test_no_memory(void **state) {
    (void)state;
    static const char *const equations[] = {"burgers", "darcy"};
    for (int e = 0; e < 2; e++) {
        tg_generator_config config = small_set(equations[e]);
        const size_t before = tg_context_memory(ctx, TG_HOST).blocks;
        tg_status status = TG_E_MEMORY;
        config.n_train = 0;
        config.n_test = 2;
        config.test_resolution_count = 1;
        long n = 1;
        for (; status == TG_E_MEMORY; n++) {
            bool complete = true;
            remove_set(equations[e]);
            tg_mem_test_fail_at(n);
            status = generate(ctx, &config, NULL, &complete);
            tg_mem_test_fail_at(0);
            assert_true(complete == (status == TG_OK));
            assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, before);
        }
        assert_int_equal(status, TG_OK);
        assert_true(n > 50);
        remove_set(equations[e]);
    }
}

/* ---- HDF5 files whose numbers come later ---- */

static void test_spaces(void **state) {
    (void)state;
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
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_threads_and_counts),
        cmocka_unit_test(test_grids_share_samples),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_other_arguments),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_descriptions),
        cmocka_unit_test(test_hopeless),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_spaces),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
