/* npy: files of numpy, our own files, bad headers, corruption, no memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "support/raw_files.h"
#include "tensor/element.h"
#include "tgrad/io.h"

/* ---- files of numpy ---- */

/* Element i of each file is (a i + b, c i), see fixtures/make_fixtures.py. */
typedef struct numpy_file {
    const char *path;
    tg_dtype dtype;
    double a, b, c;
} numpy_file;

TEST(test_numpy_files) {
    static const numpy_file files[] = {
        {TG_FIXTURES "/v1_f4.npy", TG_F32, 1, 0, 0},
        {TG_FIXTURES "/v2_f8.npy", TG_F64, 1, 0, 0},
        {TG_FIXTURES "/v3_c8.npy", TG_C64, 1, 0, -1},
        {TG_FIXTURES "/fortran_i4.npy", TG_I32, 1, 0, 0},
        {TG_FIXTURES "/fortran_big_c16.npy", TG_C128, 1, 0, 2},
        {TG_FIXTURES "/big_i2.npy", TG_I16, 1, -12, 0},
        {TG_FIXTURES "/f2.npy", TG_F16, 0.125, 0, 0},
        {TG_FIXTURES "/u8.npy", TG_U64, 1, 0x1p63, 0},
    };
    const tg_shape expected = {3, {2, 3, 4}};
    for (size_t f = 0; f < sizeof files / sizeof files[0]; f++) {
        tg_tensor tensor = {0};
        assert_int_equal(tg_npy_read(ctx, files[f].path, &tensor), TG_OK);
        assert_int_equal(tensor.dtype, files[f].dtype);
        assert_true(tg_shape_equal(&tensor.shape, &expected));
        assert_int_equal((uintptr_t)tensor.data % TG_ALIGNMENT, 0);
        for (int64_t i = 0; i < 24; i++) {
            tg_scalar v = tg_load(tensor.dtype, tensor.data, i);
            assert_true(v.re == files[f].a * (double)i + files[f].b);
            assert_true(v.im == files[f].c * (double)i);
        }
        if (files[f].dtype == TG_U64) { /* beyond the exact range of double */
            assert_int_equal(((const uint64_t *)tensor.data)[23], (UINT64_C(1) << 63) + 23);
        }
        tg_tensor_destroy(&tensor);
    }
}

TEST(test_numpy_small_files) {
    tg_tensor tensor = {0};
    assert_int_equal(tg_npy_read(ctx, TG_FIXTURES "/bool.npy", &tensor), TG_OK);
    assert_int_equal(tensor.dtype, TG_BOOL);
    for (int i = 0; i < 24; i++) {
        assert_int_equal(((const uint8_t *)tensor.data)[i], i % 3 == 0);
    }
    tg_tensor_destroy(&tensor);
    assert_int_equal(tg_npy_read(ctx, TG_FIXTURES "/scalar.npy", &tensor), TG_OK);
    assert_int_equal(tensor.shape.ndim, 0);
    assert_true(*(const double *)tensor.data == 2.5);
    tg_tensor_destroy(&tensor);
    assert_int_equal(tg_npy_read(ctx, TG_FIXTURES "/empty.npy", &tensor), TG_OK);
    const tg_shape expected = {2, {0, 5}};
    assert_true(tg_shape_equal(&tensor.shape, &expected));
    tg_tensor_destroy(&tensor);
}

/* Loaded memory is counted as data and nothing else stays. */
TEST(test_memory_category) {
    const tg_mem_usage before = tg_context_memory(ctx, TG_HOST);
    tg_tensor tensor = {0};
    assert_int_equal(tg_npy_read(ctx, TG_FIXTURES "/fortran_i4.npy", &tensor), TG_OK);
    const tg_mem_usage after = tg_context_memory(ctx, TG_HOST);
    assert_int_equal(after.current[TG_MEM_DATA] - before.current[TG_MEM_DATA], 96);
    assert_int_equal(after.blocks - before.blocks, 1);
    tg_tensor_destroy(&tensor);
}

/* ---- our own files ---- */

static void round_trip(tg_dtype dtype, const tg_shape *shape) {
    const char *path = test_path("round.npy");
    tg_tensor out = {0}, in = {0};
    uint64_t seed = 7 + dtype;
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, dtype, shape, &out), TG_OK);
    for (size_t i = 0; i < tg_tensor_bytes(&out); i++) {
        const uint64_t r = test_random(&seed);
        ((unsigned char *)out.data)[i] = (unsigned char)(dtype == TG_BOOL ? r % 2 : r);
    }
    assert_int_equal(tg_npy_write(ctx, path, &out), TG_OK);
    assert_int_equal(tg_npy_read(ctx, path, &in), TG_OK);
    assert_int_equal(in.dtype, dtype);
    assert_true(tg_shape_equal(&in.shape, shape));
    assert_memory_equal(in.data, out.data, tg_tensor_bytes(&out));
    size_t size = 0;
    unsigned char *bytes = test_read_bytes(path, &size);
    assert_int_equal((size - tg_tensor_bytes(&out)) % 64, 0); /* data is aligned in the file */
    free(bytes);
    tg_tensor_destroy(&out);
    tg_tensor_destroy(&in);
}

TEST(test_round_trip) {
    const tg_shape shapes[] = {{0, {0}},
                               {1, {1}},
                               {1, {65}},
                               {2, {3, 5}},
                               {3, {7, 0, 33}},
                               {4, {2, 3, 5, 7}},
                               {8, {1, 2, 1, 3, 1, 2, 1, 5}}};
    const tg_dtype dtypes[] = {TG_F32, TG_F64, TG_F16, TG_C64, TG_C128, TG_BOOL, TG_U8,
                               TG_I8,  TG_U16, TG_I16, TG_U32, TG_I32,  TG_U64,  TG_I64};
    for (size_t d = 0; d < sizeof dtypes / sizeof dtypes[0]; d++) {
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
            round_trip(dtypes[d], &shapes[s]);
        }
    }
    assert_int_equal(test_folder_count(), 1);
}

/* The bytes of numpy itself for the same array. */
TEST(test_same_bytes_as_numpy) {
    static const char *const names[] = {"v1_f4", "f2", "u8", "bool", "scalar", "empty"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        char path[256];
        tg_tensor tensor = {0};
        size_t size = 0, expected_size = 0;
        snprintf(path, sizeof path, "%s/%s.npy", TG_FIXTURES, names[i]);
        assert_int_equal(tg_npy_read(ctx, path, &tensor), TG_OK);
        assert_int_equal(tg_npy_write(ctx, test_path("same.npy"), &tensor), TG_OK);
        unsigned char *expected = test_read_bytes(path, &expected_size);
        unsigned char *bytes = test_read_bytes(test_path("same.npy"), &size);
        assert_int_equal(size, expected_size);
        assert_memory_equal(bytes, expected, size);
        free(bytes);
        free(expected);
        tg_tensor_destroy(&tensor);
    }
}

TEST(test_write_refuses) {
    const tg_dtype dtypes[] = {TG_BF16, TG_CBF16, TG_CF16};
    const tg_shape shape = {1, {3}};
    for (int i = 0; i < 3; i++) {
        tg_tensor tensor = {0};
        assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, dtypes[i], &shape, &tensor), TG_OK);
        assert_int_equal(tg_npy_write(ctx, test_path("bf16.npy"), &tensor), TG_E_DTYPE);
        assert_non_null(strstr(tg_context_error(ctx), tg_dtype_name(dtypes[i])));
        assert_int_equal(tg_npy_write(ctx, NULL, &tensor), TG_E_ARGUMENT);
        tg_tensor_destroy(&tensor);
    }
}

/* ---- bad files ---- */

/* An npy file of the given header text, its length as it is or as claimed, and zero data. */
static size_t make_file(unsigned char *bytes, int version, const char *header, long claimed,
                        size_t data) {
    const size_t length = strlen(header);
    const size_t prefix = version == 1 ? 10 : 12;
    const unsigned long field = claimed >= 0 ? (unsigned long)claimed : length;
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (unsigned char)version;
    bytes[7] = 0;
    for (size_t i = 8; i < prefix; i++) {
        bytes[i] = (unsigned char)(field >> (8 * (i - 8)));
    }
    memcpy(bytes + prefix, header, length);
    memset(bytes + prefix + length, 0, data);
    return prefix + length + data;
}

static tg_status parse_bytes(const char *label, const void *bytes, size_t size) {
    tg_archive *archive = NULL;
    const tg_status status = raw_parse(ctx, TG_FILE_NPY, label, bytes, size, &archive);
    assert_true((status == TG_OK) == (archive != NULL));
    tg_archive_destroy(&archive);
    return status;
}

static tg_status parse(int version, const char *header, long claimed, size_t data) {
    unsigned char bytes[1024];
    return parse_bytes("some.npy", bytes, make_file(bytes, version, header, claimed, data));
}

typedef struct bad_header {
    const char *header;
    size_t data;
    tg_status status;
    const char *named; /* must stand in the sentence, beside the file's name */
} bad_header;

#define F4 "{'descr': '<f4', 'fortran_order': False, 'shape': "

TEST(test_bad_headers) {
    static const bad_header bad[] = {
        {"", 0, TG_E_FORMAT, "'{'"},
        {"[]", 0, TG_E_FORMAT, "'{'"},
        {"{}", 0, TG_E_FORMAT, "descr is missing"},
        {"{'descr': '<f4', 'shape': (1,)}", 4, TG_E_FORMAT, "fortran_order is missing"},
        {"{'descr': '<f4', 'fortran_order': False}", 4, TG_E_FORMAT, "shape is missing"},
        {"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", 4, TG_E_FORMAT, "True or False"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", 4, TG_E_FORMAT,
         "twice"},
        {"{'descr': '<f4', 'extra': 1, 'fortran_order': False, 'shape': (1,)}", 4, TG_E_FORMAT,
         "extra"},
        {"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", 8, TG_E_UNSUPPORTED, "objects"},
        {"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", 4, TG_E_UNSUPPORTED,
         "structured"},
        {"{'descr': '<U4', 'fortran_order': False, 'shape': (1,)}", 16, TG_E_UNSUPPORTED, "<U4"},
        {"{'descr': '<f3', 'fortran_order': False, 'shape': (1,)}", 3, TG_E_UNSUPPORTED, "<f3"},
        {"{'descr': '<f16', 'fortran_order': False, 'shape': (1,)}", 16, TG_E_UNSUPPORTED, "<f16"},
        {"{'descr': '|f4', 'fortran_order': False, 'shape': (1,)}", 4, TG_E_FORMAT, "byte order"},
        {"{'descr': '', 'fortran_order': False, 'shape': (1,)}", 4, TG_E_UNSUPPORTED, "descr"},
        {"{'descr': 4, 'fortran_order': False, 'shape': (1,)}", 4, TG_E_FORMAT, "a string"},
        {"{'descr': '<f4, 'fortran_order': False, 'shape': (1,)}", 4, TG_E_UNSUPPORTED, "descr"},
        {"{'descr': '<f4", 0, TG_E_FORMAT, "descr"},
        {F4 "3, }", 12, TG_E_FORMAT, "a tuple"},
        {F4 "[3], }", 12, TG_E_FORMAT, "a tuple"},
        {F4 "(3), }", 12, TG_E_FORMAT, "a tuple"},
        {F4 "(-3,), }", 12, TG_E_FORMAT, "0 or more"},
        {F4 "(3.0,), }", 12, TG_E_FORMAT, "',' or ')'"},
        {F4 "(nan,), }", 12, TG_E_FORMAT, "0 or more"},
        {F4 "(,), }", 4, TG_E_FORMAT, "0 or more"},
        {F4 "(1 2), }", 8, TG_E_FORMAT, "',' or ')'"},
        {F4 "(3,,), }", 12, TG_E_FORMAT, "0 or more"},
        {F4 "(3, 4", 48, TG_E_FORMAT, "shape"},
        {F4 "(99999999999999999999,), }", 0, TG_E_FORMAT, "2^63"},
        {F4 "(9223372036854775807,), }", 0, TG_E_FORMAT, "overflows"},
        {F4 "(4294967296, 4294967296), }", 0, TG_E_FORMAT, "overflows"},
        {F4 "(1,1,1,1,1,1,1,1,1), }", 4, TG_E_UNSUPPORTED, "8 dimensions"},
        {F4 "(3,)} x", 12, TG_E_FORMAT, "after"},
        {F4 "(3,) 'x'", 12, TG_E_FORMAT, "',' or '}'"},
        {F4 "(3,), }", 11, TG_E_FORMAT, "expected 12 bytes"},
        {F4 "(3,), }", 13, TG_E_FORMAT, "found 13"},
        {F4 "(1000000000000,), }", 4, TG_E_FORMAT, "expected 4000000000000 bytes"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        for (int version = 1; version <= 3; version++) {
            const tg_status status = parse(version, bad[i].header, -1, bad[i].data);
            if (status != bad[i].status || !strstr(tg_context_error(ctx), bad[i].named) ||
                !strstr(tg_context_error(ctx), "some.npy")) {
                fail_msg("%s: status %d, %s", bad[i].header, (int)status, tg_context_error(ctx));
            }
        }
    }
}

TEST(test_good_headers) {
    assert_int_equal(parse(1, F4 "(3,), }", -1, 12), TG_OK);
    assert_int_equal(parse(1, F4 "(3L,)}", -1, 12), TG_OK);
    assert_int_equal(parse(2, F4 "()}   \n", -1, 4), TG_OK);
    assert_int_equal(parse(3, F4 "(2,3)}   \n", -1, 24), TG_OK);
    assert_int_equal(parse(1, F4 "(0, 4611686018427387904), }", -1, 0), TG_OK);
    assert_int_equal(parse(1, "{\"shape\":(1,),\"fortran_order\":True,\"descr\":\"=i8\"}", -1, 8),
                     TG_OK);
    assert_int_equal(parse(1, "{'descr': 'f8', 'fortran_order': True, 'shape': (1,)}", -1, 8),
                     TG_OK);
}

TEST(test_bad_prefix) {
    unsigned char bytes[256];
    const size_t size = make_file(bytes, 1, F4 "(3,), }", -1, 12);
    for (size_t cut = 0; cut < size; cut++) {
        assert_int_not_equal(parse_bytes("cut", bytes, cut), TG_OK);
    }
    bytes[0] = 'x';
    assert_int_equal(parse_bytes("magic", bytes, size), TG_E_FORMAT);
    bytes[0] = 0x93;
    bytes[6] = 4;
    assert_int_equal(parse_bytes("version", bytes, size), TG_E_UNSUPPORTED);
    assert_non_null(strstr(tg_context_error(ctx), "found 4.0"));
    bytes[6] = 1;
    bytes[7] = 1;
    assert_int_equal(parse_bytes("version", bytes, size), TG_E_UNSUPPORTED);
    assert_int_equal(parse(1, F4 "(3,), }", 65535, 12), TG_E_FORMAT);
    assert_int_equal(parse(2, F4 "(3,), }", 0xffffffffL, 12), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "found 4294967295"));
}

TEST(test_bad_bool) {
    unsigned char bytes[256];
    const size_t size =
        make_file(bytes, 1, "{'descr': '|b1', 'fortran_order': False, 'shape': (3,)}", -1, 3);
    bytes[size - 2] = 2;
    assert_int_equal(parse_bytes("bool", bytes, size), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "element 1"));
}

TEST(test_no_file) {
    tg_tensor tensor = {0};
    assert_int_equal(tg_npy_read(ctx, test_path("absent.npy"), &tensor), TG_E_IO);
    assert_non_null(strstr(tg_context_error(ctx), "absent.npy"));
    assert_int_equal(tg_npy_read(ctx, TG_FIXTURES, &tensor), TG_E_IO);
    assert_int_equal(tg_npy_read(ctx, "/dev/null", &tensor), TG_E_IO);
    assert_int_equal(tg_npy_read(ctx, NULL, &tensor), TG_E_ARGUMENT);
}

TEST(test_random_corruption) {
    static const char *const names[] = {"v1_f4", "v2_f8", "fortran_big_c16", "bool"};
    uint64_t seed = 20240501;
    int refused = 0;
    for (int n = 0; n < 1000; n++) {
        char path[256];
        size_t size = 0;
        snprintf(path, sizeof path, "%s/%s.npy", TG_FIXTURES, names[n % 4]);
        unsigned char *original = test_read_bytes(path, &size);
        unsigned char *bytes = malloc(size + 64);
        memcpy(bytes, original, size);
        const size_t bad_size = test_corrupt(bytes, size, size + 64, &seed);
        refused += parse_bytes("corrupt", bytes, bad_size) != TG_OK;
        free(bytes);
        free(original);
    }
    assert_true(refused > 300);
}

TEST(test_no_memory) {
    tg_tensor kept = {0};
    assert_int_equal(tg_npy_read(ctx, TG_FIXTURES "/fortran_i4.npy", &kept), TG_OK);
    test_walk reading = {.ctx = ctx}, writing = {.ctx = ctx};
    while (test_walk_next(&reading)) {
        tg_tensor tensor = {0};
        test_walk_called(&reading, tg_npy_read(ctx, TG_FIXTURES "/fortran_i4.npy", &tensor));
        assert_true(reading.is_over == (tensor.data != NULL));
        tg_tensor_destroy(&tensor);
    }
    assert_true(reading.n >= 3);
    while (test_walk_next(&writing)) {
        test_walk_called(&writing, tg_npy_write(ctx, test_path("memory.npy"), &kept));
    }
    assert_true(writing.n >= 2);
    tg_tensor_destroy(&kept);
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
