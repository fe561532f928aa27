/* HDF5: files of h5py, our own files, ranges, hostile files, no memory, no traces in the library's
 * global state. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/hdf5_types.h"
#include "support/cmocka.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "tensor/element.h"
#include "tgrad/io.h"

static tg_context *ctx;

static int setup(void **state) {
    (void)state;
    return tg_context_create(NULL, &ctx) == TG_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    test_folder_remove();
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, 1);
    assert_int_equal(H5Fget_obj_count((hid_t)H5F_OBJ_ALL, H5F_OBJ_ALL), 0); /* no open handles */
    tg_context_destroy(&ctx);
    return 0;
}

static tg_h5 *open_file(const char *path) {
    tg_h5 *file = NULL;
    if (tg_h5_open(ctx, path, &file) != TG_OK) {
        fail_msg("%s", tg_context_error(ctx));
    }
    return file;
}

/* ---- files of h5py ---- */

TEST(test_names) {
    static const char *const expected[] = {
        "big_c16",           "big_f8",    "bool", "c8",      "f2", "f4", "group/colour",
        "group/deep/scalar", "group/zip", "i1",   "nothing", "u8"};
    tg_h5 *file = open_file(TG_FIXTURES "/h5py.h5");
    assert_int_equal(tg_h5_count(file), 12); /* no text, no links */
    for (int i = 0; i < 12; i++) {
        assert_string_equal(tg_h5_name(file, i), expected[i]);
    }
    assert_null(tg_h5_name(file, -1));
    assert_null(tg_h5_name(file, 12));
    tg_h5_close(&file);
    assert_null(file);
    tg_h5_close(&file);
    tg_h5_close(NULL);
}

/* Element i of each dataset is (a i + b, c i), see fixtures/make_fixtures.py. */
typedef struct h5py_dataset {
    const char *name;
    tg_dtype dtype;
    double a, b, c;
} h5py_dataset;

static const h5py_dataset datasets[] = {
    {"f4", TG_F32, 1, 0, 0},      {"big_f8", TG_F64, 1, 0, 0},    {"f2", TG_F16, 0.125, 0, 0},
    {"c8", TG_C64, 1, 0, -1},     {"big_c16", TG_C128, 1, 0, 2},  {"i1", TG_I8, 1, -12, 0},
    {"u8", TG_U64, 1, 0x1p63, 0}, {"group/zip", TG_F32, 1, 0, 0},
};

enum { DATASETS = sizeof datasets / sizeof datasets[0] };

TEST(test_values) {
    const tg_shape expected = {3, {2, 3, 4}};
    tg_h5 *file = open_file(TG_FIXTURES "/h5py.h5");
    for (int k = 0; k < DATASETS; k++) {
        const h5py_dataset *set = &datasets[k];
        tg_tensor tensor = {0};
        tg_dtype dtype = TG_BOOL;
        tg_shape shape = {0};
        assert_int_equal(tg_h5_describe(file, set->name, &dtype, &shape), TG_OK);
        assert_int_equal(dtype, set->dtype);
        assert_true(tg_shape_equal(&shape, &expected));
        assert_int_equal(tg_h5_read(file, set->name, &tensor), TG_OK);
        assert_int_equal(tensor.dtype, set->dtype);
        assert_true(tg_shape_equal(&tensor.shape, &expected));
        for (int64_t i = 0; i < 24; i++) {
            const tg_scalar v = tg_load(tensor.dtype, tensor.data, i);
            assert_true(v.re == set->a * (double)i + set->b);
            assert_true(v.im == set->c * (double)i);
        }
        tg_tensor_destroy(&tensor);
    }
    tg_h5_close(&file);
}

TEST(test_odd_datasets) {
    tg_h5 *file = open_file(TG_FIXTURES "/h5py.h5");
    tg_tensor tensor = {0};
    assert_int_equal(tg_h5_read(file, "bool", &tensor), TG_OK);
    assert_int_equal(tensor.dtype, TG_BOOL);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(((const uint8_t *)tensor.data)[i], i % 3 == 0);
    }
    tg_tensor_destroy(&tensor);
    assert_int_equal(tg_h5_read(file, "group/colour", &tensor), TG_OK);
    assert_int_equal(tensor.dtype, TG_I16);
    assert_int_equal(((const int16_t *)tensor.data)[0], 3);
    assert_int_equal(((const int16_t *)tensor.data)[2], 2);
    tg_tensor_destroy(&tensor);
    assert_int_equal(tg_h5_read(file, "group/deep/scalar", &tensor), TG_OK);
    assert_int_equal(tensor.shape.ndim, 0);
    assert_true(*(const float *)tensor.data == 2.5f);
    tg_tensor_destroy(&tensor);
    assert_int_equal(tg_h5_read(file, "nothing", &tensor), TG_OK);
    assert_int_equal(tg_tensor_numel(&tensor), 0);
    tg_tensor_destroy(&tensor);
    tg_h5_close(&file);
}

/* Every numeric type by ranges as f32, f64, or their pairs; guards around what is written. */
TEST(test_ranges) {
    tg_h5 *file = open_file(TG_FIXTURES "/h5py.h5");
    for (int k = 0; k < DATASETS; k++) {
        const h5py_dataset *set = &datasets[k];
        for (int wide = 0; wide < 2; wide++) {
            const tg_dtype real = wide ? TG_F64 : TG_F32;
            const tg_dtype dtype = tg_dtype_is_complex(set->dtype) ? tg_dtype_complex(real) : real;
            double out[2 * 12 + 2];
            memset(out, 0xff, sizeof out); /* NaN as f32 and as f64 */
            assert_int_equal(tg_h5_read_range(file, set->name, 1, 1, dtype, out), TG_OK);
            for (int64_t i = 0; i < 12; i++) {
                const tg_scalar v = tg_load(dtype, out, i);
                assert_true(v.re == set->a * (double)(i + 12) + set->b);
                assert_true(v.im == set->c * (double)(i + 12));
            }
            assert_true(isnan(tg_load(dtype, out, 12).re));
        }
    }
    float value = 0, bools[24];
    assert_int_equal(tg_h5_read_range(file, "group/deep/scalar", 0, 1, TG_F32, &value), TG_OK);
    assert_true(value == 2.5f);
    assert_int_equal(tg_h5_read_range(file, "bool", 0, 2, TG_F32, bools), TG_OK);
    for (int i = 0; i < 24; i++) {
        assert_true(bools[i] == (i % 3 == 0 ? 1.0f : 0.0f));
    }
    assert_int_equal(tg_h5_read_range(file, "group/colour", 1, 2, TG_F32, bools), TG_OK);
    assert_true(bools[0] == 1.0f && bools[1] == 2.0f);
    assert_int_equal(tg_h5_read_range(file, "f4", 2, 0, TG_F32, NULL), TG_OK);
    tg_h5_close(&file);
}

TEST(test_bad_ranges) {
    tg_h5 *file = open_file(TG_FIXTURES "/h5py.h5");
    double out[64];
    const int64_t bad[][2] = {{0, 3}, {2, 1},         {-1, 1},       {0, -1},
                              {3, 0}, {1, INT64_MAX}, {INT64_MAX, 1}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tg_h5_read_range(file, "f4", bad[i][0], bad[i][1], TG_F32, out),
                         TG_E_ARGUMENT);
        assert_non_null(strstr(tg_context_error(ctx), "do not fit in 2"));
    }
    assert_int_equal(tg_h5_read_range(file, "f4", 0, 1, TG_I32, out), TG_E_DTYPE);
    assert_int_equal(tg_h5_read_range(file, "f4", 0, 1, TG_C64, out), TG_E_DTYPE);
    assert_int_equal(tg_h5_read_range(file, "c8", 0, 1, TG_F32, out), TG_E_DTYPE);
    const char *const absent[] = {"absent", "group", "text", "soft", "outside", "", "/f4", "./f4"};
    for (size_t i = 0; i < sizeof absent / sizeof absent[0]; i++) {
        assert_int_equal(tg_h5_read_range(file, absent[i], 0, 1, TG_F32, out), TG_E_ARGUMENT);
    }
    assert_int_equal(tg_h5_read_range(file, NULL, 0, 1, TG_F32, out), TG_E_ARGUMENT);
    tg_h5_close(&file);
}

TEST(test_attributes) {
    tg_archive *archive = NULL;
    assert_int_equal(tg_archive_read(ctx, TG_FIXTURES "/h5py.h5", &archive), TG_OK);
    assert_int_equal(tg_archive_count(archive), 12);
    assert_int_equal(tg_archive_meta_count(archive), 4); /* the list is left out */
    assert_string_equal(tg_archive_meta(archive, "title"), "from h5py");
    assert_string_equal(tg_archive_meta(archive, "bytes"), "fixed");
    assert_string_equal(tg_archive_meta(archive, "steps"), "42");
    assert_string_equal(tg_archive_meta(archive, "rate"), "0.5");
    tg_archive_destroy(&archive);
}

/* ---- our own files ---- */

/* Every dtype, alphabetical as HDF5 will list them. */
static tg_archive *make_archive(const tg_shape *shape) {
    tg_archive *archive = NULL;
    uint64_t seed = 3;
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    for (int d = 0; d < TG_DTYPES; d++) {
        char name[64];
        tg_tensor tensor = {0};
        assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, (tg_dtype)d, shape, &tensor), TG_OK);
        for (size_t i = 0; i < tg_tensor_bytes(&tensor); i++) {
            const uint64_t r = test_random(&seed);
            ((unsigned char *)tensor.data)[i] = (unsigned char)(d == TG_BOOL ? r % 2 : r);
        }
        snprintf(name, sizeof name, "group/%c \xe2\x82\xac/%s", 'a' + d,
                 tg_dtype_name((tg_dtype)d));
        assert_int_equal(tg_archive_take(archive, name, &tensor), TG_OK);
    }
    char *longer = malloc(100001); /* beyond the 64 KiB of an object header */
    memset(longer, 'x', 100000);
    longer[100000] = '\0';
    assert_int_equal(tg_archive_set_meta(archive, "empty", ""), TG_OK);
    assert_int_equal(tg_archive_set_meta(archive, "long", longer), TG_OK);
    assert_int_equal(tg_archive_set_meta(archive, "\xe2\x82\xac", "\xc2\xb5m\n"), TG_OK);
    free(longer);
    return archive;
}

static void expect_equal(const tg_archive *a, const tg_archive *b) {
    assert_int_equal(tg_archive_count(a), tg_archive_count(b));
    for (int64_t i = 0; i < tg_archive_count(a); i++) {
        const tg_tensor *x = tg_archive_tensor(a, i), *y = tg_archive_tensor(b, i);
        assert_string_equal(tg_archive_name(a, i), tg_archive_name(b, i));
        assert_int_equal(x->dtype, y->dtype);
        assert_true(tg_shape_equal(&x->shape, &y->shape));
        assert_memory_equal(x->data, y->data, tg_tensor_bytes(x));
    }
    assert_int_equal(tg_archive_meta_count(a), tg_archive_meta_count(b));
    for (int64_t i = 0; i < tg_archive_meta_count(a); i++) {
        assert_string_equal(tg_archive_meta_value(a, i),
                            tg_archive_meta(b, tg_archive_meta_key(a, i)));
    }
}

TEST(test_round_trip) {
    const tg_shape shapes[] = {
        {0, {0}}, {1, {1}}, {2, {3, 0}}, {3, {7, 5, 3}}, {8, {1, 2, 1, 3, 1, 2, 1, 5}}};
    const int levels[] = {0, 1, 9};
    const char *path = test_path("round.h5");
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        tg_archive *out = make_archive(&shapes[s]);
        for (int k = 0; k < 3; k++) {
            const tg_h5_write_config config = {.size = sizeof(tg_h5_write_config),
                                               .gzip = levels[k]};
            tg_archive *in = NULL;
            assert_int_equal(tg_h5_write(ctx, path, out, &config), TG_OK);
            assert_int_equal(tg_archive_read(ctx, path, &in), TG_OK);
            expect_equal(out, in);
            tg_archive_destroy(&in);
        }
        tg_archive_destroy(&out);
    }
    assert_int_equal(test_folder_count(), 1);
}

/* A tensor of several chunks, none of which fits evenly: compressed, and read by ranges. */
TEST(test_gzip) {
    enum { SAMPLES = 37, WIDTH = 10007 };
    const tg_shape shape = {2, {SAMPLES, WIDTH}};
    const tg_h5_write_config config = {.size = sizeof(tg_h5_write_config), .gzip = 4};
    const char *path = test_path("gzip.h5");
    tg_archive *archive = NULL;
    tg_tensor tensor = {0};
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, TG_F64, &shape, &tensor), TG_OK);
    for (int64_t i = 0; i < SAMPLES * WIDTH; i++) {
        ((double *)tensor.data)[i] = (double)i;
    }
    assert_int_equal(tg_archive_take(archive, "x", &tensor), TG_OK);
    assert_int_equal(tg_h5_write(ctx, path, archive, &config), TG_OK);
    tg_archive_destroy(&archive);
    size_t size = 0;
    free(test_read_bytes(path, &size));
    assert_true(size < SAMPLES * WIDTH * sizeof(double) / 3);

    tg_h5 *file = open_file(path);
    float *out = malloc(3 * WIDTH * sizeof *out);
    for (int64_t first = 0; first < SAMPLES; first += 3) {
        const int64_t count = SAMPLES - first < 3 ? SAMPLES - first : 3;
        assert_int_equal(tg_h5_read_range(file, "x", first, count, TG_F32, out), TG_OK);
        for (int64_t i = 0; i < count * WIDTH; i++) {
            assert_true(out[i] == (float)(first * WIDTH + i));
        }
    }
    free(out);
    tg_h5_close(&file);
}

TEST(test_same_bytes) {
    const tg_shape shape = {2, {5, 7}};
    tg_archive *archive = make_archive(&shape);
    size_t sizes[2] = {0};
    unsigned char *bytes[2] = {NULL};
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tg_h5_write(ctx, test_path(i ? "one.h5" : "two.h5"), archive, NULL),
                         TG_OK);
        bytes[i] = test_read_bytes(test_path(i ? "one.h5" : "two.h5"), &sizes[i]);
    }
    assert_int_equal(sizes[0], sizes[1]);
    assert_memory_equal(bytes[0], bytes[1], sizes[0]);
    free(bytes[0]);
    free(bytes[1]);
    tg_archive_destroy(&archive);
}

TEST(test_write_refuses) {
    static const char *const bad[] = {"/x", "x/", "a//b", ".", "./a", "a/./b"};
    const tg_shape shape = {1, {3}};
    float values[3] = {0};
    tg_tensor tensor = {0};
    const int files = test_folder_count();
    const char *path = test_path("refused.h5");
    tg_archive *archive = NULL;
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &shape, values, &tensor), TG_OK);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
        assert_int_equal(tg_archive_add_view(archive, bad[i], &tensor), TG_OK);
        assert_int_equal(tg_h5_write(ctx, path, archive, NULL), TG_E_ARGUMENT);
        tg_archive_destroy(&archive);
    }
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK); /* a dataset is no group */
    assert_int_equal(tg_archive_add_view(archive, "a", &tensor), TG_OK);
    assert_int_equal(tg_archive_add_view(archive, "a/b", &tensor), TG_OK);
    assert_int_equal(tg_h5_write(ctx, path, archive, NULL), TG_E_IO);
    assert_non_null(strstr(tg_context_error(ctx), "a/b"));
    const tg_h5_write_config config = {.size = sizeof(tg_h5_write_config), .gzip = 10};
    assert_int_equal(tg_h5_write(ctx, path, archive, &config), TG_E_ARGUMENT);
    tg_archive_destroy(&archive);
    assert_int_equal(test_folder_count(), files);
}

/* ---- bad files ---- */

TEST(test_hostile) {
    static const struct {
        const char *name, *named;
        tg_status status;
    } bad[] = {
        {"rank9", "at most 8 dimensions, found 9", TG_E_UNSUPPORTED},
        {"external", "other files", TG_E_UNSUPPORTED},
        {"virtual", "other files", TG_E_UNSUPPORTED},
        {"huge", "1073741824x1024", TG_E_FORMAT},
        {"overflow", "overflows", TG_E_FORMAT},
        {"bad_bool", "element 1", TG_E_FORMAT},
    };
    tg_h5 *file = open_file(TG_FIXTURES "/hostile.h5");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        tg_tensor tensor = {0};
        assert_int_equal(tg_h5_read(file, bad[i].name, &tensor), bad[i].status);
        if (!strstr(tg_context_error(ctx), bad[i].named) ||
            !strstr(tg_context_error(ctx), bad[i].name) ||
            !strstr(tg_context_error(ctx), "hostile.h5")) {
            fail_msg("%s", tg_context_error(ctx));
        }
        assert_null(tensor.data);
    }
    float row[1024];
    assert_int_equal(tg_h5_read_range(file, "huge", 0, 1, TG_F32, row), TG_E_FORMAT);
    tg_h5_close(&file);
}

TEST(test_no_hdf5) {
    tg_h5 *file = NULL;
    size_t size = 0;
    assert_int_equal(tg_h5_open(ctx, test_path("absent.h5"), &file), TG_E_IO);
    assert_int_equal(tg_h5_open(ctx, TG_FIXTURES, &file), TG_E_IO);
    assert_int_equal(tg_h5_open(ctx, NULL, &file), TG_E_ARGUMENT);
    assert_int_equal(tg_h5_open(ctx, TG_FIXTURES "/v1_f4.npy", &file), TG_E_FORMAT);
    unsigned char *bytes = test_read_bytes(TG_FIXTURES "/h5py.h5", &size);
    for (size_t cut = 0; cut < size; cut += 509) {
        test_write_bytes(test_path("cut.h5"), bytes, cut);
        assert_int_equal(tg_h5_open(ctx, test_path("cut.h5"), &file), TG_E_FORMAT);
        assert_non_null(strstr(tg_context_error(ctx), "cut.h5"));
        assert_null(file);
    }
    free(bytes);
}

/* Groups in groups, deeper than the walk may recurse. */
TEST(test_deep_groups) {
    const tg_shape shape = {1, {3}};
    float values[3] = {0};
    tg_tensor tensor = {0};
    tg_archive *archive = NULL;
    tg_h5 *file = NULL;
    char name[512] = "";
    for (int i = 0; i < 200; i++) {
        strcat(name, "g/");
    }
    strcat(name, "x");
    assert_int_equal(tg_tensor_wrap(ctx, TG_F32, &shape, values, &tensor), TG_OK);
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    assert_int_equal(tg_archive_add_view(archive, name, &tensor), TG_OK);
    assert_int_equal(tg_h5_write(ctx, test_path("deep.h5"), archive, NULL), TG_OK);
    assert_int_equal(tg_h5_open(ctx, test_path("deep.h5"), &file), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "nested"));
    tg_archive_destroy(&archive);
}

/* ---- state of the library, no memory ---- */

static herr_t count_calls(hid_t stack, void *user) {
    (void)stack;
    ++*(int *)user;
    return 0;
}

/* A user's own HDF5 error printer is not called by our failures, and is there again afterwards. */
TEST(test_error_printer) {
    int calls = 0;
    H5E_auto2_t old = NULL;
    void *old_user = NULL;
    tg_h5 *file = NULL;
    H5Eget_auto2(H5E_DEFAULT, &old, &old_user);
    H5Eset_auto2(H5E_DEFAULT, count_calls, &calls);
    assert_int_equal(tg_h5_open(ctx, TG_FIXTURES "/v1_f4.npy", &file), TG_E_FORMAT);
    assert_int_equal(calls, 0);
    H5E_auto2_t now = NULL;
    void *now_user = NULL;
    H5Eget_auto2(H5E_DEFAULT, &now, &now_user);
    assert_true(now == count_calls && now_user == &calls);
    H5Eset_auto2(H5E_DEFAULT, old, old_user);
}

TEST(test_no_memory) {
    const tg_shape shape = {2, {3, 5}};
    const char *path = test_path("memory.h5");
    tg_archive *out = make_archive(&shape);
    test_walk writing = {.ctx = ctx}, reading = {.ctx = ctx}, whole = {.ctx = ctx};
    while (test_walk_next(&writing)) {
        test_walk_called(&writing, tg_h5_write(ctx, path, out, NULL));
    }
    assert_true(writing.n >= 2);
    while (test_walk_next(&reading)) {
        tg_h5 *file = NULL;
        tg_tensor tensor = {0};
        tg_status status = tg_h5_open(ctx, path, &file);
        if (status == TG_OK) {
            status = tg_h5_read(file, "group/a \xe2\x82\xac/f32", &tensor);
        }
        test_walk_called(&reading, status);
        tg_tensor_destroy(&tensor);
        tg_h5_close(&file);
    }
    assert_true(reading.n >= 20);
    while (test_walk_next(&whole)) {
        tg_archive *in = NULL;
        const char *fixed = TG_FIXTURES "/h5py.h5"; /* texts of fixed length as well */
        test_walk_called(&whole, tg_archive_read(ctx, fixed, &in));
        tg_archive_destroy(&in);
    }
    tg_archive_destroy(&out);
}

int main(void) {
    return t_run_tests(setup, teardown);
}
