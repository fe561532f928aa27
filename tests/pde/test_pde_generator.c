/* Generators: files and metadata, the same bytes for any thread count, after an interruption and
 * after damage, test sets on several grids, no memory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "pde/sample_file.h"
#include "support/cmocka.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "tgrad/tgrad.h"

static tg_context *ctx; /* two threads */

static int setup(void **state) {
    (void)state;
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 2};
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

/* Every equation, made small; frames is what a flow in time counts, samples what the others do. */
static const struct equation {
    const char *name;
    int64_t total;
    int count;
    tg_pde_value values[6];
} equations[] = {
    {"burgers", 8, 2, {{"grid", "64"}, {"time", "0.1"}}},
    {"darcy", 8, 1, {{"grid", "21"}}},
    {"ns", 8, 2, {{"grid", "20"}, {"time", "0.5"}}},
    {"kolmogorov",
     5 + (5 + 2) + (3 + 2),
     6,
     {{"grid", "16"},
      {"start", "0.1"},
      {"frame", "0.01"},
      {"lag", "4"},
      {"stride", "2"},
      {"viscosity", "0.01"}}},
    {"em", 8, 2, {{"grid", "32"}, {"step", "0.5"}}},
    {"potential", 8, 1, {{"order", "3"}}},
};

enum { EQUATIONS = sizeof equations / sizeof equations[0] };

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
    for (int i = 0; i < EQUATIONS; i++) {
        if (strcmp(equations[i].name, equation) == 0) {
            config.value_count = equations[i].count;
            config.values = equations[i].values;
        }
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
    unlink(test_path("kolmogorov.state"));
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

TEST(test_files) {
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

/* Bytes are those of one thread, and of seven. */
TEST(test_threads) {
    for (int e = 0; e < EQUATIONS; e++) {
        const char *name = equations[e].name;
        set two = whole_set(name);
        for (int threads = 1; threads <= 7; threads += 6) {
            const tg_context_config with = {
                .size = sizeof(tg_context_config), .device = -1, .threads = threads};
            const tg_generator_config config = small_set(name);
            tg_context *other = NULL;
            assert_int_equal(tg_context_create(&with, &other), TG_OK);
            remove_set(name);
            generate_all(other, &config);
            set s = read_set(name);
            expect_same(&two, &s);
            free_set(&s);
            tg_context_destroy(&other);
        }
        free_set(&two);
        remove_set(name);
    }
}

/* y of test sample 2, at most 121 floats, and their number. */
static int64_t read_sample(const char *path, float *y) {
    tg_h5 *file = NULL;
    tg_dtype dtype;
    tg_shape shape;
    assert_int_equal(tg_h5_open(ctx, path, &file), TG_OK);
    const char *name = tg_h5_describe(file, "y", &dtype, &shape) == TG_OK ? "y" : "values";
    assert_int_equal(tg_h5_describe(file, name, &dtype, &shape), TG_OK);
    assert_int_equal(tg_h5_read_range(file, name, 2, 1, dtype, y), TG_OK);
    tg_h5_close(&file);
    return tg_shape_numel(&shape) / shape.dim[0] * (dtype == TG_C64 ? 2 : 1);
}

/* A sample does not depend on how many there are, or on the training set. */
TEST(test_counts) {
    for (int e = 0; e < EQUATIONS; e++) {
        const char *name = equations[e].name;
        if (strcmp(name, "kolmogorov") == 0) {
            continue; /* its test frames come after the training frames */
        }
        float found[121], expected[121];
        set s = whole_set(name);
        free_set(&s);
        const int64_t floats = read_sample(file_of(name, 1, ""), expected);
        remove_set(name);
        tg_generator_config more = small_set(name);
        more.n_train = 0;
        more.n_test = 4;
        more.test_resolution_count = 1;
        generate_all(ctx, &more);
        assert_int_equal(access(file_of(name, 0, ""), F_OK), -1);
        assert_int_equal(read_sample(file_of(name, 1, ""), found), floats);
        assert_memory_equal(found, expected, (size_t)floats * sizeof found[0]);
        remove_set(name);
    }
}

/* The same test samples on two grids: where the coarse one is part of the fine one, they agree. */
TEST(test_grids_share_samples) {
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

/* Stopped after some samples and taken up again, a run gives the same bytes. */
TEST(test_resume) {
    for (int e = 0; e < EQUATIONS; e++) {
        const char *name = equations[e].name;
        const int64_t total = equations[e].total;
        set whole = whole_set(name);
        const tg_generator_config config = small_set(name);
        for (int64_t after = e % 2; after < total; after += e < 2 ? 2 : 4) {
            brake b = {.after = after};
            bool complete = true;
            remove_set(name);
            assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
            assert_false(complete);
            assert_true(b.made >= after && b.made <= after + 1 && b.total == total);
            const int64_t kept = b.made;
            b.after = -1;
            assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
            assert_true(complete && b.found == kept && b.made == total - kept);
            set resumed = read_set(name);
            expect_same(&whole, &resumed);
            free_set(&resumed);
        }
        /* Once complete, nothing is made any more. */
        brake b = {.after = -1};
        bool complete = false;
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        assert_true(complete && b.found == total && b.made == 0);
        /* One file is lost: it is made again, the others stay. */
        unlink(file_of(name, 2, ""));
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        assert_true(complete && b.found == (total == 8 ? 5 : 0) && b.made == total - b.found);
        set again = read_set(name);
        expect_same(&whole, &again);
        free_set(&again);
        free_set(&whole);
        remove_set(name);
    }
}

/* Frames of a flow: y is x some frames later, and the test frames are none of the training's. */
TEST(test_frames) {
    enum { LAG = 2, POINTS = 121 };
    set whole = whole_set("kolmogorov");
    float x[8][POINTS], y[8][POINTS];
    for (int i = 0; i < 2; i++) {
        tg_h5 *file = NULL;
        assert_int_equal(tg_h5_open(ctx, file_of("kolmogorov", i, ""), &file), TG_OK);
        assert_int_equal(tg_h5_read_range(file, "x", 0, i ? 3 : 5, TG_F32, x[5 * i]), TG_OK);
        assert_int_equal(tg_h5_read_range(file, "y", 0, i ? 3 : 5, TG_F32, y[5 * i]), TG_OK);
        tg_h5_close(&file);
    }
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 8; k++) {
            const bool same_frame = k == i + LAG && (i < 5) == (k < 5);
            assert_true(same_frame == (memcmp(y[i], x[k], sizeof y[i]) == 0));
            assert_true((i == k) == (memcmp(x[i], x[k], sizeof x[i]) == 0));
        }
    }
    /* A damaged state, or samples lost that come before it: the flow starts again. */
    const tg_generator_config config = small_set("kolmogorov");
    for (int lost = 0; lost < 2; lost++) {
        brake b = {.after = 12};
        bool complete = true;
        size_t size = 0;
        remove_set("kolmogorov");
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        const char *path =
            lost ? file_of("kolmogorov", 0, ".journal") : test_path("kolmogorov.state");
        unsigned char *bytes = test_read_bytes(path, &size);
        bytes[size - 20] ^= 1;
        test_write_bytes(path, bytes, size);
        free(bytes);
        b.after = -1;
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        assert_true(complete && b.found == 0);
        set s = read_set("kolmogorov");
        expect_same(&whole, &s);
        free_set(&s);
    }
    assert_int_equal(access(test_path("kolmogorov.state"), F_OK), -1);
    free_set(&whole);
    remove_set("kolmogorov");
}

/* x of the training pairs of a small set of Kolmogorov flow, then of its test pairs, and the file
 * of test pairs says how they were split. */
static void read_inputs(const tg_generator_config *config, float (*x)[121]) {
    tg_archive *test = NULL;
    const tg_pde_value *values = config->values + config->value_count - 2;
    for (int i = 0; i < 2; i++) {
        const int64_t count = i ? config->n_test : config->n_train;
        tg_h5 *file = NULL;
        if (count > 0) {
            assert_int_equal(tg_h5_open(ctx, file_of("kolmogorov", i, ""), &file), TG_OK);
            assert_int_equal(tg_h5_read_range(file, "x", 0, count, TG_F32, x), TG_OK);
            tg_h5_close(&file);
            x += count;
        }
    }
    if (config->n_test > 0) {
        assert_int_equal(tg_archive_read(ctx, file_of("kolmogorov", 2, ""), &test), TG_OK);
        assert_string_equal(tg_archive_meta(test, "split"), "test");
        assert_string_equal(tg_archive_meta(test, "kolmogorov.split"), values[0].value);
        assert_string_equal(tg_archive_meta(test, "trajectories"), values[1].value);
        tg_archive_destroy(&test);
    }
}

/* Generates a small set of Kolmogorov flow and reads x of its pairs, the training pairs first. */
static tg_generator_config flow_set(const char *split, const char *trajectories, int64_t n_train,
                                    int64_t n_test, float (*x)[121]) {
    static tg_pde_value values[8];
    tg_generator_config config = small_set("kolmogorov");
    memcpy(values, config.values, sizeof config.values[0] * (size_t)config.value_count);
    values[config.value_count++] = (tg_pde_value){"split", split};
    values[config.value_count++] = (tg_pde_value){"trajectories", trajectories};
    config.values = values;
    config.n_train = n_train;
    config.n_test = n_test;
    remove_set("kolmogorov");
    generate_all(ctx, &config);
    read_inputs(&config, x);
    return config;
}

static bool has_input(float (*x)[121], int count, const float *wanted) {
    for (int i = 0; i < count; i++) {
        if (memcmp(x[i], wanted, sizeof x[i]) == 0) {
            return true;
        }
    }
    return false;
}

/* Which pairs of which flow are training and which are test pairs. */
TEST(test_splits) {
    enum { TRAIN = 5, TEST = 3, ALL = TRAIN + TEST };
    const size_t bytes = sizeof(float[121]);
    float in_time[ALL][121], x[ALL][121], own[TEST][121];
    (void)flow_set("later", "1", ALL, 0, in_time);
    /* shuffled: all pairs of the flow, each once; the seed decides which are test pairs */
    (void)flow_set("shuffled", "1", TRAIN, TEST, x);
    bool is_in_order = true;
    for (int i = 0; i < ALL; i++) {
        assert_true(has_input(x, ALL, in_time[i]));
        is_in_order = is_in_order && memcmp(x[i], in_time[i], bytes) == 0;
    }
    assert_false(is_in_order);
    assert_true(has_input(x, TRAIN, in_time[ALL - 1]) || has_input(x, TRAIN, in_time[ALL - 2]) ||
                has_input(x, TRAIN, in_time[ALL - 3]));
    /* three flows, each with pairs of its own */
    (void)flow_set("shuffled", "3", TRAIN, TEST, x);
    int same = 0;
    for (int i = 0; i < ALL; i++) {
        assert_false(has_input(x, i, x[i]));
        same += has_input(in_time, ALL, x[i]);
    }
    assert_int_equal(same, 2); /* shares of 8: 2, 3, 3 */
    /* later: two flows share the training pairs, a third one has the test pairs */
    (void)flow_set("later", "2", TRAIN, TEST, x);
    assert_memory_equal(x, in_time, 2 * bytes);
    for (int i = 2; i < ALL; i++) {
        assert_false(has_input(x, i, x[i]) || has_input(in_time, ALL, x[i]));
    }
    (void)flow_set("later", "1", 0, TEST, own);
    assert_memory_equal(x + TRAIN, own, TEST * bytes);
    remove_set("kolmogorov");
}

/* Several flows and shuffled pairs, stopped after any frame: the same bytes; and each argument
 * makes another set. */
TEST(test_resumed_splits) {
    static const struct {
        const char *split, *trajectories;
        int64_t total; /* of spin-ups, pairs and lags */
    } rows[] = {{"shuffled", "1", 5 + 8 + 2},
                {"shuffled", "3", 3 * 5 + 8 + 3 * 2},
                {"later", "2", 3 * 5 + (5 + 2 * 2) + (3 + 2)}};
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        float x[8][121];
        const tg_generator_config config = flow_set(rows[r].split, rows[r].trajectories, 5, 3, x);
        set whole = read_set("kolmogorov");
        for (int64_t after = 0; after < rows[r].total; after += 3) {
            brake b = {.after = after};
            bool complete = true;
            remove_set("kolmogorov");
            assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
            assert_true(!complete && b.total == rows[r].total);
            const int64_t kept = b.made;
            b.after = -1;
            assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
            assert_true(complete && b.found == kept && b.made == rows[r].total - kept);
            set resumed = read_set("kolmogorov");
            expect_same(&whole, &resumed);
            free_set(&resumed);
        }
        free_set(&whole);
    }
    bool complete = true;
    tg_pde_value values[] = {{"trajectories", "2"}, {"split", "shuffled"}};
    tg_generator_config other = small_set("kolmogorov");
    other.values = values;
    other.value_count = 2;
    assert_int_equal(generate(ctx, &other, NULL, &complete), TG_E_FORMAT);
    values[0].value = "9";
    assert_int_equal(generate(ctx, &other, NULL, &complete), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx),
                           "kolmogorov.trajectories: expected at most one for each of the 8 "
                           "pairs, found 9"));
    remove_set("kolmogorov");
}

/* Unfinished files with damage anywhere: what is damaged is made again. */
TEST(test_damage) {
    set whole = whole_set("burgers");
    const tg_generator_config config = small_set("burgers");
    uint64_t seed = 11;
    int64_t taken_up = 0;
    for (int round = 0; round < 16; round++) {
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
    assert_true(taken_up > 0);
    free_set(&whole);
    remove_set("burgers");
}

/* A journal of other samples than are wanted, with good checksums: they are made again. */
TEST(test_forged_journal) {
    set whole = whole_set("burgers");
    const tg_generator_config config = small_set("burgers");
    brake b = {.after = 4};
    bool complete = true;
    size_t size = 0;
    tg_journal_header header;
    remove_set("burgers");
    assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
    unsigned char *journal = test_read_bytes(file_of("burgers", 0, ".journal"), &size);
    memcpy(&header, journal, sizeof header);
    for (int p = 0; p < TG_SAMPLE_PARTS; p++) {
        header.row[p] *= header.samples; /* one large sample in the place of the small ones */
    }
    header.samples = 1;
    header.checksum =
        tg_checksum(&header.fingerprint, sizeof header - offsetof(tg_journal_header, fingerprint));
    memcpy(journal, &header, sizeof header);
    test_write_bytes(file_of("burgers", 0, ".journal"), journal, size);
    free(journal);
    b.after = -1;
    assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
    assert_true(complete && b.found == 0);
    set s = read_set("burgers");
    expect_same(&whole, &s);
    free_set(&s);
    free_set(&whole);
    remove_set("burgers");
}

/* A finished file that cannot be read any more is refused with the reader's reason. */
TEST(test_damaged_file) {
    set whole = whole_set("burgers");
    tg_generator_config config = small_set("burgers");
    bool complete = true;
    test_write_bytes(file_of("burgers", 0, ""), "no file of samples", 18);
    config.n_train++; /* to be extended */
    assert_int_equal(generate(ctx, &config, NULL, &complete), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), file_of("burgers", 0, "")));
    assert_non_null(
        strstr(tg_context_error(ctx), "not a valid HDF5 file: file signature not found"));
    assert_non_null(strstr(tg_context_error(ctx), "cannot be continued"));
    assert_null(strstr(tg_context_error(ctx), "other arguments"));
    config.n_train--;
    config.overwrite = true;
    generate_all(ctx, &config);
    set s = read_set("burgers");
    expect_same(&whole, &s);
    free_set(&s);
    free_set(&whole);
    remove_set("burgers");
}

/* A complete file of other arguments is refused with the difference, and replaced on demand. */
TEST(test_other_arguments) {
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
    config.n_train = 4; /* more would extend the set */
    assert_int_equal(generate(ctx, &config, NULL, &complete), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "it has 5 samples, here 4 are wanted"));
    config.overwrite = true;
    generate_all(ctx, &config);
    tg_h5 *file = NULL;
    tg_dtype dtype;
    tg_shape shape;
    assert_int_equal(tg_h5_open(ctx, file_of("burgers", 0, ""), &file), TG_OK);
    assert_int_equal(tg_h5_describe(file, "x", &dtype, &shape), TG_OK);
    assert_int_equal(shape.dim[0], 4);
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

/* A trajectory begins with x of the pair of the same number and ends with its y, has the bytes of
 * any thread count, is taken up after a stop and extended. */
TEST(test_trajectories) {
    enum { FRAMES = 4, SAMPLES = 5, POINTS = 121 };
    static const char *const names[] = {"burgers", "ns"};
    for (int e = 0; e < 2; e++) {
        const int64_t points = e == 0 ? 11 : POINTS;
        tg_generator_config config = small_set(names[e]);
        static float x[SAMPLES * POINTS], y[SAMPLES * POINTS], frames[SAMPLES * FRAMES * POINTS];
        tg_h5 *file = NULL;
        tg_dtype dtype;
        tg_shape shape;
        remove_set(names[e]);
        generate_all(ctx, &config);
        assert_int_equal(tg_h5_open(ctx, file_of(names[e], 0, ""), &file), TG_OK);
        assert_int_equal(tg_h5_read_range(file, "x", 0, SAMPLES, TG_F32, x), TG_OK);
        assert_int_equal(tg_h5_read_range(file, "y", 0, SAMPLES, TG_F32, y), TG_OK);
        tg_h5_close(&file);

        config.frames = FRAMES;
        remove_set(names[e]);
        generate_all(ctx, &config);
        assert_int_equal(tg_h5_open(ctx, file_of(names[e], 0, ""), &file), TG_OK);
        assert_int_equal(tg_h5_describe(file, "tensor", &dtype, &shape), TG_OK);
        assert_int_equal(tg_h5_count(file), 1);
        assert_int_equal(shape.ndim, e == 0 ? 3 : 4);
        assert_true(shape.dim[0] == SAMPLES && shape.dim[1] == FRAMES && shape.dim[2] == 11);
        assert_int_equal(tg_h5_read_range(file, "tensor", 0, SAMPLES, TG_F32, frames), TG_OK);
        tg_h5_close(&file);
        for (int64_t i = 0; i < SAMPLES * points; i++) {
            const float *first = frames + i / points * FRAMES * points + i % points;
            const float last = first[(FRAMES - 1) * points];
            assert_true(*first == x[i]);
            assert_true(fabsf(last - y[i]) <= 1e-4f && last != x[i]);
        }

        set whole = read_set(names[e]);
        remove_set(names[e]);
        config.n_train = 2;
        generate_all(ctx, &config);
        config.n_train = SAMPLES;
        brake b = {.after = 2};
        bool complete = true;
        assert_int_equal(generate(ctx, &config, &b, &complete), TG_OK);
        assert_true(!complete && b.total == 8);
        const tg_context_config one = {.size = sizeof one, .device = -1, .threads = 1};
        tg_context *other = NULL;
        assert_int_equal(tg_context_create(&one, &other), TG_OK);
        generate_all(other, &config);
        tg_context_destroy(&other);
        set s = read_set(names[e]);
        expect_same(&whole, &s);
        free_set(&s);
        free_set(&whole);
        remove_set(names[e]);
    }
}

TEST(test_no_memory) {
    for (int e = 0; e < EQUATIONS; e++) {
        const char *name = equations[e].name;
        tg_generator_config config = small_set(name);
        config.n_train = 0;
        config.n_test = 1;
        config.test_resolution_count = 1;
        test_walk walk = {.ctx = ctx};
        while (test_walk_next(&walk)) {
            bool complete = true;
            remove_set(name);
            test_walk_called(&walk, generate(ctx, &config, NULL, &complete));
            assert_true(complete == walk.is_over);
        }
        assert_true(walk.n >= 50);
        remove_set(name);
    }
}

int main(void) {
    return t_run_tests(setup, teardown);
}
