/* Datasets on arrays of the caller: the same samples, bit for bit, as from a file of them, what a
 * solver writes later, normalizers and loaders on them, what is refused, no memory. */
#include <string.h>

#include "base/memory.h"
#include "support/context.h"
#include "support/no_memory.h"
#include "support/sets.h"

enum { N = 5, FLOATS = 2 * 3 * 4 * 6 };

/* x (N, 2, 4, 6) and y (N, 3, 1, 4, 6) with times of a dtype, as a file and in memory. */
static tg_archive *make(tg_dtype dtype, const char **path) {
    const tg_shape x = SET_SHAPE(N, 2, 4, 6), y = SET_SHAPE(N, 3, 1, 4, 6);
    tg_archive *archive = NULL;
    *path = set_write(ctx, "set.safetensors", dtype, &x, &y);
    set_ok(ctx, tg_archive_read(ctx, *path, &archive));
    return archive;
}

/* Whether two datasets hand out the same. */
static void expect_same(tg_dataset *file, tg_dataset *memory) {
    static const int64_t order[] = {N - 2, 0, 0, 1};
    float x[2][4 * FLOATS], y[2][4 * FLOATS];
    tg_dataset_facts facts[2] = {tg_dataset_get_facts(file), tg_dataset_get_facts(memory)};
    assert_true(facts[0].cached && !facts[1].cached);
    facts[0].cached = false;
    assert_memory_equal(&facts[0], &facts[1], sizeof facts[0]);
    assert_true(facts[0].x_bytes <= sizeof x[0] / 4 && facts[0].y_bytes <= sizeof y[0] / 4);
    memset(x, 0xff, sizeof x);
    memset(y, 0xff, sizeof y);
    set_ok(ctx, tg_dataset_read(file, order, 4, x[0], y[0]));
    set_ok(ctx, tg_dataset_read(memory, order, 4, x[1], y[1]));
    assert_memory_equal(x[0], x[1], sizeof x[0]);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
}

TEST(test_as_from_a_file) {
    static const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_C64, TG_I16};
    static const int64_t times[] = {TG_TIME_LAST, TG_TIME_ALL, 1};
    for (int i = 0; i < 12; i++) {
        const char *path;
        tg_archive *archive = make(dtypes[i % 4], &path);
        tg_dataset_config config = tg_dataset_config_default();
        config.grid[0] = i % 2 ? 2 : 0;
        config.grid[1] = i % 2 ? 3 : 0;
        config.n_samples = i % 3 ? N - 1 : 0;
        config.y_time = times[i / 4];
        config.complex_data = i == 5;
        tg_dataset *file = set_open(ctx, path, &config), *memory = NULL;
        set_ok(ctx, tg_dataset_wrap(ctx, tg_archive_find(archive, "x"),
                                    tg_archive_find(archive, "y"), &config, &memory));
        expect_same(file, memory);
        tg_dataset_close(&file);
        tg_dataset_close(&memory);
        tg_archive_destroy(&archive);
    }
}

/* Without settings: (samples, channels, grid..), of any number of dimensions; without y: x alone.
 */
TEST(test_default) {
    float numbers[24];
    for (int i = 0; i < 24; i++) {
        numbers[i] = (float)i;
    }
    for (int n_dim = 1; n_dim <= 3; n_dim++) {
        const tg_shape shape = {n_dim + 2, {2, 3, n_dim == 1 ? 4 : 2, n_dim == 2 ? 2 : 1, 2}};
        tg_tensor x;
        tg_dataset *set = NULL;
        float found[12];
        set_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, numbers, &x));
        set_ok(ctx, tg_dataset_wrap(ctx, &x, NULL, NULL, &set));
        const tg_dataset_facts facts = tg_dataset_get_facts(set);
        assert_int_equal(facts.n_dim, n_dim);
        assert_int_equal(facts.in_channels, 3);
        assert_int_equal(facts.out_channels, 0);
        set_ok(ctx, tg_dataset_read(set, (int64_t[]){1}, 1, found, NULL));
        assert_memory_equal(found, numbers + 12, sizeof found);
        assert_int_equal(tg_dataset_read(set, (int64_t[]){1}, 1, NULL, found), TG_E_ARGUMENT);
        tg_dataset_close(&set);
    }
}

/* What a solver writes into its arrays is what is read next. */
TEST(test_borrowed) {
    double field[4] = {1, 2, 3, 4};
    float found[2];
    tg_tensor x;
    tg_dataset *set = NULL;
    const tg_shape shape = SET_SHAPE(2, 1, 2);
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &shape, field, &x));
    set_ok(ctx, tg_dataset_wrap(ctx, &x, &x, NULL, &set));
    memset(&x, 0xff, sizeof x); /* the memory is borrowed, not the tensor */
    field[3] = 0.1;
    set_ok(ctx, tg_dataset_read(set, (int64_t[]){1}, 1, NULL, found));
    assert_true(found[0] == 3.0F && found[1] == 0.1F);
    tg_dataset_close(&set);
    assert_true(field[0] == 1.0);
}

TEST(test_normalizers_and_batches) {
    const char *path;
    tg_archive *archive = make(TG_F32, &path);
    tg_dataset *sets[2] = {set_open(ctx, path, NULL), NULL};
    float x[2][2 * FLOATS], y[2][2 * FLOATS];
    double stats[2][2];
    memset(x, 0xff, sizeof x);
    memset(y, 0xff, sizeof y);
    const tg_dataset_config config = tg_dataset_config_default();
    set_ok(ctx, tg_dataset_wrap(ctx, tg_archive_find(archive, "x"), tg_archive_find(archive, "y"),
                                &config, &sets[1]));
    for (int i = 0; i < 2; i++) {
        const tg_loader_config how = {
            .size = sizeof how, .batch_size = 2, .seed = 7, .shuffle = true};
        tg_loader *loader = NULL;
        tg_normalizer *normalizer = NULL;
        int64_t count = 0;
        set_ok(ctx, tg_loader_create(ctx, sets[i], &how, &loader));
        set_ok(ctx, tg_loader_batch(loader, 3, 1, x[i], y[i], &count));
        assert_int_equal(count, 2);
        set_ok(ctx, tg_normalizer_fit(ctx, sets[i], TG_DATA_Y, &normalizer));
        tg_normalizer_get(normalizer, 0, &stats[i][0], NULL, &stats[i][1]);
        tg_normalizer_destroy(&normalizer);
        tg_loader_destroy(&loader);
        tg_dataset_close(&sets[i]);
    }
    assert_memory_equal(x[0], x[1], sizeof x[0]);
    assert_memory_equal(y[0], y[1], sizeof y[0]);
    assert_memory_equal(stats[0], stats[1], sizeof stats[0]);
    tg_archive_destroy(&archive);
}

/* Numbers of the array as they are, and normalized without a loss; pairs where they are wanted. */
TEST(test_doubles) {
    enum { POINTS = 12 };
    double field[3 * POINTS], found[2 * POINTS];
    tg_tensor x;
    for (int i = 0; i < 3 * POINTS; i++) {
        field[i] = 1.0 + 1e-12 * i;
    }
    const tg_shape shape = SET_SHAPE(3, 1, 3, 4);
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &shape, field, &x));
    for (int is_complex = 0; is_complex < 2; is_complex++) {
        tg_dataset_config config = tg_dataset_config_default();
        tg_dataset *set = NULL;
        tg_normalizer *normalizer = NULL;
        config.x_only = true;
        config.dtype = TG_F64;
        config.complex_data = is_complex == 1;
        set_ok(ctx, tg_dataset_wrap(ctx, &x, NULL, &config, &set));
        const tg_dataset_facts facts = tg_dataset_get_facts(set);
        assert_int_equal(facts.dtype, is_complex ? TG_C128 : TG_F64);
        assert_int_equal(facts.x_bytes, (is_complex + 1) * POINTS * (int)sizeof(double));
        set_ok(ctx, tg_dataset_read(set, (int64_t[]){2}, 1, found, NULL));
        for (int i = 0; i < POINTS; i++) {
            assert_true(found[i * (is_complex + 1)] == field[2 * POINTS + i]);
        }
        set_ok(ctx, tg_normalizer_fit(ctx, set, TG_DATA_X, &normalizer));
        const tg_shape one = SET_SHAPE(1, 1, 3, 4);
        tg_tensor values;
        set_ok(ctx, tg_tensor_wrap(ctx, facts.dtype, &one, found, &values));
        set_ok(ctx, tg_normalizer_apply(normalizer, &values));
        assert_true(found[0] > 6e-5 && found[0] < 7e-5); /* (24 - 17.5) 1e-12 / 1e-7 */
        set_ok(ctx, tg_normalizer_invert(normalizer, &values));
        assert_true(found[0] - field[2 * POINTS] < 1e-15 && field[2 * POINTS] - found[0] < 1e-15);
        tg_normalizer_destroy(&normalizer);
        tg_dataset_close(&set);
    }
    tg_dataset_config config = tg_dataset_config_default();
    tg_dataset *set = NULL;
    config.x_only = true;
    config.dtype = TG_BF16;
    assert_int_equal(tg_dataset_wrap(ctx, &x, NULL, &config, &set), TG_E_DTYPE);
    set_expect_sentence(ctx, "data: they are handed out as f32 or f64, not as bf16");
}

TEST(test_refused) {
    float numbers[64] = {0};
    static const struct {
        tg_shape x, y;
        tg_place place;
        bool has_data;
        const char *sentence;
    } cases[] = {
        {{3, {2, 1, 4}}, {3, {2, 1, 4}}, TG_DEVICE, true, "array x: expected values on the host"},
        {{3, {2, 1, 4}}, {3, {2, 1, 4}}, TG_HOST, false, "array x: expected values on the host"},
        {{3, {0, 1, 4}}, {3, {2, 1, 4}}, TG_HOST, true, "found f32 0x1x4 without data"},
        {{0, {0}}, {3, {2, 1, 4}}, TG_HOST, true, "n_dim: expected 1 to 3, found -2"},
        {{2, {2, 4}}, {3, {2, 1, 4}}, TG_HOST, true, "n_dim: expected 1 to 3, found 0"},
        {{3, {2, 1, 4}}, {3, {3, 1, 4}}, TG_HOST, true, "array y: expected the samples"},
        {{3, {2, 1, 4}}, {3, {2, 1, 5}}, TG_HOST, true, "their grids differ"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        tg_tensor x = {.dtype = TG_F32,
                       .shape = cases[i].x,
                       .data = cases[i].has_data ? numbers : NULL,
                       .place = cases[i].place};
        tg_tensor y;
        tg_dataset *set = NULL;
        set_ok(ctx, tg_tensor_wrap(ctx, TG_F32, &cases[i].y, numbers, &y));
        assert_true(tg_dataset_wrap(ctx, &x, &y, NULL, &set) != TG_OK);
        assert_null(set);
        set_expect_sentence(ctx, cases[i].sentence);
    }
}

TEST(test_no_memory) {
    double numbers[16] = {0};
    float found[8];
    tg_tensor x;
    const tg_shape shape = SET_SHAPE(2, 1, 8);
    set_ok(ctx, tg_tensor_wrap(ctx, TG_F64, &shape, numbers, &x));
    test_walk walk = {.ctx = ctx};
    while (test_walk_next(&walk)) {
        tg_dataset *set = NULL;
        tg_status status = tg_dataset_wrap(ctx, &x, &x, NULL, &set);
        status = status == TG_OK ? tg_dataset_read(set, (int64_t[]){1}, 1, found, NULL) : status;
        test_walk_called(&walk, status);
        tg_dataset_close(&set);
    }
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
