/* safetensors: files of other writers, our own files, bad headers, corruption, no memory. */
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

/* ---- files of other writers ---- */

static void expect_values(const tg_archive *archive, const char *name, tg_dtype dtype,
                          int64_t numel, double first, double last) {
    const tg_tensor *tensor = tg_archive_find(archive, name);
    assert_non_null(tensor);
    assert_int_equal(tensor->dtype, dtype);
    assert_int_equal(tg_tensor_numel(tensor), numel);
    assert_int_equal((uintptr_t)tensor->data % TG_ALIGNMENT, 0);
    assert_true(tg_load(dtype, tensor->data, 0).re == first);
    assert_true(tg_load(dtype, tensor->data, numel - 1).re == last);
}

TEST(test_all_dtypes) {
    tg_archive *archive = NULL;
    assert_int_equal(tg_safetensors_read(ctx, TG_FIXTURES "/all_dtypes.safetensors", &archive),
                     TG_OK);
    assert_int_equal(tg_archive_count(archive), 16);
    assert_string_equal(tg_archive_name(archive, 0), "bool"); /* the order of the header */
    assert_string_equal(tg_archive_name(archive, 15), "empty");
    expect_values(archive, "bool", TG_BOOL, 3, 1, 1);
    expect_values(archive, "u8", TG_U8, 2, 0, UINT8_MAX);
    expect_values(archive, "i8", TG_I8, 2, INT8_MIN, INT8_MAX);
    expect_values(archive, "u16", TG_U16, 2, 0, UINT16_MAX);
    expect_values(archive, "i16", TG_I16, 2, INT16_MIN, INT16_MAX);
    expect_values(archive, "u32", TG_U32, 2, 0, UINT32_MAX);
    expect_values(archive, "i32", TG_I32, 2, INT32_MIN, INT32_MAX);
    expect_values(archive, "u64", TG_U64, 1, 0x1p64, 0x1p64);
    expect_values(archive, "i64", TG_I64, 1, -0x1p63, -0x1p63);
    expect_values(archive, "f16", TG_F16, 6, -2, 3);
    expect_values(archive, "bf16", TG_BF16, 6, -2, 3);
    expect_values(archive, "f32", TG_F32, 6, -2, 3);
    expect_values(archive, "f64", TG_F64, 6, -2, 3);
    expect_values(archive, "c64", TG_C64, 6, -2, 3);
    expect_values(archive, "scalar", TG_F32, 1, 7, 7);
    assert_true(tg_load(TG_C64, tg_archive_find(archive, "c64")->data, 5).im == 3);
    assert_int_equal(tg_archive_find(archive, "scalar")->shape.ndim, 0);
    const tg_shape empty = {2, {0, 4}};
    assert_true(tg_shape_equal(&tg_archive_find(archive, "empty")->shape, &empty));
    assert_int_equal(tg_archive_meta_count(archive), 2);
    assert_string_equal(tg_archive_meta(archive, "made by"), "numpy");
    assert_string_equal(tg_archive_meta(archive, "unit"), "\xc2\xb5m");
    tg_archive_destroy(&archive);
}

TEST(test_golden_files) {
    tg_archive *archive = NULL;
    const char *path = TG_FIXTURES "/fno_1d_complex.safetensors";
    assert_int_equal(tg_safetensors_read(ctx, path, &archive), TG_OK);
    const tg_tensor *weight = tg_archive_find(archive, "param.fno_blocks.convs.0.weight.tensor");
    const tg_shape expected = {3, {8, 8, 16}};
    assert_non_null(weight);
    assert_int_equal(weight->dtype, TG_C64);
    assert_true(tg_shape_equal(&weight->shape, &expected));
    assert_non_null(strstr(tg_archive_meta(archive, "config"), "\"complex_data\": true"));
    tg_archive_destroy(&archive);

    assert_int_equal(tg_safetensors_read(ctx, TG_FIXTURES "/tucker_r3.safetensors", &archive),
                     TG_OK);
    assert_string_equal(tg_archive_meta(archive, "ranks"), "[7, 6, 5]");
    const tg_shape core = {3, {7, 6, 5}};
    assert_true(tg_shape_equal(&tg_archive_find(archive, "core_it10")->shape, &core));
    tg_archive_destroy(&archive);
}

/* Reading needs the tensors' memory and the header, not the file a second time. */
TEST(test_memory_of_reading) {
    tg_archive *archive = NULL;
    const char *path = TG_FIXTURES "/fno_1d_complex.safetensors";
    tg_context_memory_reset_peak(ctx);
    const tg_mem_usage before = tg_context_memory(ctx, TG_HOST);
    assert_int_equal(tg_safetensors_read(ctx, path, &archive), TG_OK);
    const tg_mem_usage after = tg_context_memory(ctx, TG_HOST);
    const size_t data = after.current[TG_MEM_DATA] - before.current[TG_MEM_DATA];
    assert_int_equal(data, 56692 - 8 - 9432); /* the file without its length and its header */
    assert_int_equal(after.peak[TG_MEM_DATA], after.current[TG_MEM_DATA]);
    tg_archive_destroy(&archive);
}

/* ---- our own files ---- */

static void add_random(tg_archive *archive, const char *name, tg_dtype dtype,
                       const tg_shape *shape) {
    tg_tensor tensor = {0};
    uint64_t seed = 11 + dtype;
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, dtype, shape, &tensor), TG_OK);
    for (size_t i = 0; i < tg_tensor_bytes(&tensor); i++) {
        const uint64_t r = test_random(&seed);
        ((unsigned char *)tensor.data)[i] = (unsigned char)(dtype == TG_BOOL ? r % 2 : r);
    }
    assert_int_equal(tg_archive_take(archive, name, &tensor), TG_OK);
    assert_null(tensor.data);
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
        assert_string_equal(tg_archive_meta_key(a, i), tg_archive_meta_key(b, i));
        assert_string_equal(tg_archive_meta_value(a, i), tg_archive_meta_value(b, i));
    }
}

/* Every dtype, the complex ones that the format lacks as well, in shapes up to 8 dimensions. */
static tg_archive *make_archive(void) {
    const tg_shape shapes[] = {
        {0, {0}}, {1, {7}}, {2, {3, 5}}, {3, {2, 0, 3}}, {8, {1, 2, 1, 3, 1, 2, 1, 2}}};
    tg_archive *archive = NULL;
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    for (int d = 0; d < TG_DTYPES; d++) {
        for (int s = 0; s < 5; s++) {
            char name[64];
            snprintf(name, sizeof name, "%s \"%d\"\\\xe2\x82\xac", tg_dtype_name((tg_dtype)d), s);
            add_random(archive, name, (tg_dtype)d, &shapes[s]);
        }
    }
    assert_int_equal(tg_archive_set_meta(archive, "line\nend", "tab\t\"quote\""), TG_OK);
    assert_int_equal(tg_archive_set_meta(archive, "empty", ""), TG_OK);
    return archive;
}

TEST(test_round_trip) {
    const char *path = test_path("round.safetensors");
    tg_archive *out = make_archive(), *in = NULL;
    assert_int_equal(tg_safetensors_write(ctx, path, out), TG_OK);
    assert_int_equal(tg_safetensors_read(ctx, path, &in), TG_OK);
    expect_equal(out, in);
    tg_archive_destroy(&in);

    size_t size = 0; /* the header ends at a multiple of 8, and begins with an object */
    unsigned char *bytes = test_read_bytes(path, &size);
    assert_int_equal((bytes[0]) % 8, 0);
    assert_int_equal(bytes[8], '{');
    assert_int_equal(raw_parse(ctx, TG_FILE_SAFETENSORS, "memory", bytes, size, &in), TG_OK);
    expect_equal(out, in);
    tg_archive_destroy(&in);
    free(bytes);
    tg_archive_destroy(&out);
    assert_int_equal(test_folder_count(), 1);
}

TEST(test_empty_archive) {
    tg_archive *archive = NULL;
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    assert_int_equal(tg_safetensors_write(ctx, test_path("empty.safetensors"), archive), TG_OK);
    tg_archive_destroy(&archive);
    assert_int_equal(tg_safetensors_read(ctx, test_path("empty.safetensors"), &archive), TG_OK);
    assert_int_equal(tg_archive_count(archive), 0);
    tg_archive_destroy(&archive);
}

TEST(test_write_refuses) {
    const tg_shape shape = {1, {3}};
    tg_archive *archive = NULL;
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    add_random(archive, "__metadata__", TG_F32, &shape);
    assert_int_equal(tg_safetensors_write(ctx, test_path("no"), archive), TG_E_ARGUMENT);
    tg_archive_destroy(&archive);
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    add_random(archive, "two\nlines", TG_CF16, &shape);
    assert_int_equal(tg_safetensors_write(ctx, test_path("no"), archive), TG_E_ARGUMENT);
    tg_archive_destroy(&archive);
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    assert_int_equal(tg_archive_set_meta(archive, "tgrad.complex", "x"), TG_OK);
    assert_int_equal(tg_safetensors_write(ctx, test_path("no"), archive), TG_E_ARGUMENT);
    tg_archive_destroy(&archive);
}

/* ---- bad files ---- */

static size_t make_file(unsigned char *bytes, const char *header, uint64_t length, size_t data) {
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(length >> (8 * i));
    }
    memcpy(bytes + 8, header, strlen(header));
    memset(bytes + 8 + strlen(header), 0, data);
    return 8 + strlen(header) + data;
}

static tg_status parse(const char *header, uint64_t length, size_t data, tg_archive **out) {
    unsigned char *bytes = malloc(8 + strlen(header) + data);
    const size_t size = make_file(bytes, header, length, data);
    tg_status status = raw_parse(ctx, TG_FILE_SAFETENSORS, "some.file", bytes, size, out);
    assert_true((status == TG_OK) == (*out != NULL));
    free(bytes);
    return status;
}

typedef struct bad_header {
    const char *header;
    size_t data;
    tg_status status;
    const char *named; /* must stand in the sentence, beside the file's name */
} bad_header;

#define X(dtype, shape, offsets)                                                                   \
    "{\"x\":{\"dtype\":" dtype ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(a, b)                                                                                  \
    "{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" a "},\"b\":{\"dtype\":\"U8\","      \
    "\"shape\":[4],\"data_offsets\":" b "}}"
#define PAIRS(names, dtype, shape, offsets)                                                        \
    "{\"__metadata__\":{\"tgrad.complex\":\"" names "\"},\"x\":{\"dtype\":\"" dtype                \
    "\",\"shape\":" shape ",\"data_offsets\":" offsets "}}"

static const bad_header bad_headers[] = {
    {"", 0, TG_E_FORMAT, "JSON"},
    {"{", 0, TG_E_FORMAT, "JSON"},
    {"[]", 0, TG_E_FORMAT, "object"},
    {"{} x", 0, TG_E_FORMAT, "JSON"},
    {"{\"\xff\":1}", 0, TG_E_FORMAT, "decode byte 0xff"},
    {"{\"a\":NaN}", 0, TG_E_FORMAT, "JSON"},
    {"{\"x\":1}", 0, TG_E_FORMAT, "'x'"},
    {"{\"x\":{}}", 0, TG_E_FORMAT, "dtype, shape and data_offsets"},
    {"{\"\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}}", 0, TG_E_FORMAT, "name"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offset\":[0,0]}}", 0, TG_E_FORMAT,
     "data_offsets"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"y\":1}}", 0, TG_E_FORMAT,
     "dtype, shape and data_offsets"},
    {"{\"x\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]},\"x\":{\"dtype\":\"U8\","
     "\"shape\":[0],\"data_offsets\":[0,0]}}",
     0, TG_E_FORMAT, "duplicate"},
    {"{\"__metadata__\":1}", 0, TG_E_FORMAT, "__metadata__"},
    {"{\"__metadata__\":{\"a\":1}}", 0, TG_E_FORMAT, "'a'"},
    {"{\"__metadata__\":{\"\":\"a\"}}", 0, TG_E_FORMAT, "__metadata__"},
    {X("7", "[1]", "[0,1]"), 1, TG_E_FORMAT, "dtype: expected a text, found 7"},
    {X("\"F8_E4M3\"", "[1]", "[0,1]"), 1, TG_E_UNSUPPORTED, "tensor 'x': dtype: 'F8_E4M3'"},
    {X("\"f32\"", "[1]", "[0,4]"), 4, TG_E_UNSUPPORTED, "'f32'"},
    {X("\"U8\"", "4", "[0,4]"), 4, TG_E_FORMAT, "shape: expected a list"},
    {X("\"U8\"", "[-4]", "[0,4]"), 4, TG_E_FORMAT, "found -4"},
    {X("\"U8\"", "[4.0]", "[0,4]"), 4, TG_E_FORMAT, "found 4.0"},
    {X("\"U8\"", "[\"4\"]", "[0,4]"), 4, TG_E_FORMAT, "shape"},
    {X("\"U8\"", "[99999999999999999999]", "[0,4]"), 4, TG_E_FORMAT, "JSON"},
    {X("\"U8\"", "[1e400]", "[0,4]"), 4, TG_E_FORMAT, "JSON"},
    {X("\"U8\"", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, TG_E_FORMAT, "8 dimensions"},
    {X("\"U8\"", "[4294967296,4294967296]", "[0,0]"), 0, TG_E_FORMAT, "expected the bytes"},
    {X("\"F64\"", "[2305843009213693952]", "[0,0]"), 0, TG_E_FORMAT, "expected the bytes"},
    {X("\"F32\"", "[4]", "[0,4]"), 4, TG_E_FORMAT, "expected the bytes of 4 of f32, found 4"},
    {X("\"U8\"", "[4]", "[0]"), 4, TG_E_FORMAT, "two integers"},
    {X("\"U8\"", "[4]", "[0,4,4]"), 4, TG_E_FORMAT, "two integers"},
    {X("\"U8\"", "[4]", "[0,4.5]"), 4, TG_E_FORMAT, "two integers"},
    {X("\"U8\"", "[4]", "[4,0]"), 4, TG_E_FORMAT, "begin <= end"},
    {X("\"U8\"", "[4]", "[-4,0]"), 4, TG_E_FORMAT, "begin <= end"},
    {X("\"U8\"", "[4]", "[0,4]"), 3, TG_E_FORMAT, "<= 3 (the bytes of data)"},
    {X("\"U8\"", "[9223372036854775807]", "[0,9223372036854775807]"), 3, TG_E_FORMAT, "<= 3"},
    {X("\"U8\"", "[4]", "[0,4]"), 5, TG_E_FORMAT, "expected 4 bytes, found 5"},
    {X("\"U8\"", "[4]", "[1,5]"), 5, TG_E_FORMAT, "hole"},
    {TWO("[0,4]", "[2,6]"), 6, TG_E_FORMAT, "overlap"},
    {TWO("[0,4]", "[0,4]"), 4, TG_E_FORMAT, "overlap"},
    {TWO("[5,9]", "[0,4]"), 9, TG_E_FORMAT, "tensor 'a': data_offsets: expected to begin at 4"},
    {PAIRS("y", "F64", "[2]", "[0,16]"), 16, TG_E_FORMAT, "found 'y'"},
    {PAIRS("x\\n", "F64", "[2]", "[0,16]"), 16, TG_E_FORMAT, "found ''"},
    {PAIRS("__metadata__", "F64", "[2]", "[0,16]"), 16, TG_E_FORMAT, "found '__metadata__'"},
    {PAIRS("x", "F64", "[3]", "[0,24]"), 24, TG_E_FORMAT, "pairs"},
    {PAIRS("x", "F64", "[]", "[0,8]"), 8, TG_E_FORMAT, "pairs"},
    {PAIRS("x", "I32", "[2]", "[0,8]"), 8, TG_E_FORMAT, "pairs"},
    {PAIRS("x", "C64", "[2]", "[0,16]"), 16, TG_E_FORMAT, "pairs"},
};

TEST(test_bad_headers) {
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        const bad_header *bad = &bad_headers[i];
        tg_archive *archive = NULL;
        const tg_status status = parse(bad->header, strlen(bad->header), bad->data, &archive);
        if (status != bad->status || !strstr(tg_context_error(ctx), bad->named) ||
            !strstr(tg_context_error(ctx), "some.file")) {
            fail_msg("%s: status %d, %s", bad->header, (int)status, tg_context_error(ctx));
        }
    }
}

TEST(test_good_headers) {
    static const bad_header good[] = {
        {"{}", 0, TG_OK, ""},
        {"{}        ", 0, TG_OK, ""},
        {X("\"U8\"", "[4]", "[0,4]"), 4, TG_OK, ""},
        {X("\"F32\"", "[]", "[0,4]"), 4, TG_OK, ""},
        {X("\"F32\"", "[0,4611686018427387904]", "[0,0]"), 0, TG_OK, ""},
        {TWO("[4,8]", "[0,4]"), 8, TG_OK, ""},
        {PAIRS("x", "F64", "[5,2]", "[0,80]"), 80, TG_OK, ""},
    };
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        tg_archive *archive = NULL;
        if (parse(good[i].header, strlen(good[i].header), good[i].data, &archive) != TG_OK) {
            fail_msg("%s: %s", good[i].header, tg_context_error(ctx));
        }
        const tg_tensor *x = tg_archive_find(archive, "x");
        assert_true(!x || good[i].data != 80 || x->dtype == TG_C128);
        assert_int_equal(tg_archive_meta_count(archive), 0); /* tgrad.complex is used up */
        tg_archive_destroy(&archive);
    }
}

TEST(test_bad_length) {
    const char *header = X("\"U8\"", "[4]", "[0,4]");
    const uint64_t lengths[] = {strlen(header) + 5, 100000001,         UINT64_MAX,
                                UINT64_MAX - 7,     UINT64_C(1) << 63, strlen(header) - 1};
    tg_archive *archive = NULL;
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        assert_int_equal(parse(header, lengths[i], 4, &archive), TG_E_FORMAT);
    }
    unsigned char bytes[256];
    const size_t size = make_file(bytes, header, strlen(header), 4);
    for (size_t cut = 0; cut < size; cut++) {
        assert_int_equal(raw_parse(ctx, TG_FILE_SAFETENSORS, "cut", bytes, cut, &archive),
                         TG_E_FORMAT);
    }
}

/* Nesting deep enough to end a recursive parser. */
TEST(test_deep_nesting) {
    enum { DEPTH = 1000000 };
    tg_archive *archive = NULL;
    char *header = malloc(DEPTH + 1);
    memset(header, '[', DEPTH);
    header[DEPTH] = '\0';
    assert_int_equal(parse(header, DEPTH, 0, &archive), TG_E_FORMAT);
    memcpy(header, "{\"x\":", 5);
    assert_int_equal(parse(header, DEPTH, 0, &archive), TG_E_FORMAT);
    free(header);
}

/* A name of a megabyte must not push the reason out of the sentence. */
TEST(test_long_name) {
    enum { LENGTH = 1 << 20 };
    tg_archive *archive = NULL;
    char *header = malloc(LENGTH + 128);
    header[0] = '{';
    header[1] = '"';
    memset(header + 2, 'n', LENGTH);
    strcpy(header + 2 + LENGTH, "\":{\"dtype\":\"F4\",\"shape\":[],\"data_offsets\":[0,1]}}");
    assert_int_equal(parse(header, strlen(header), 1, &archive), TG_E_UNSUPPORTED);
    assert_non_null(strstr(tg_context_error(ctx), "'F4' is not supported"));
    free(header);
}

TEST(test_bad_bool) {
    unsigned char bytes[256];
    const char *header = X("\"BOOL\"", "[4]", "[0,4]");
    tg_archive *archive = NULL;
    const size_t size = make_file(bytes, header, strlen(header), 4);
    bytes[size - 1] = 0xff;
    assert_int_equal(raw_parse(ctx, TG_FILE_SAFETENSORS, "bool", bytes, size, &archive),
                     TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "element 3"));
}

TEST(test_random_corruption) {
    size_t size = 0;
    uint64_t seed = 20240502;
    int refused = 0;
    unsigned char *original = test_read_bytes(TG_FIXTURES "/all_dtypes.safetensors", &size);
    unsigned char *bytes = malloc(size + 64);
    for (int n = 0; n < 1000; n++) {
        tg_archive *archive = NULL;
        memcpy(bytes, original, size);
        const size_t bad_size = test_corrupt(bytes, size, size + 64, &seed);
        refused +=
            raw_parse(ctx, TG_FILE_SAFETENSORS, "corrupt", bytes, bad_size, &archive) != TG_OK;
        tg_archive_destroy(&archive);
    }
    assert_true(refused > 300);
    free(bytes);
    free(original);
}

/* ---- no memory ---- */

TEST(test_no_memory) {
    const char *path = test_path("memory.safetensors");
    tg_archive *out = make_archive();
    test_walk writing = {.ctx = ctx}, reading = {.ctx = ctx};
    while (test_walk_next(&writing)) {
        test_walk_called(&writing, tg_safetensors_write(ctx, path, out));
    }
    assert_true(writing.n >= 4);
    while (test_walk_next(&reading)) {
        tg_archive *in = NULL;
        test_walk_called(&reading, tg_safetensors_read(ctx, path, &in));
        tg_archive_destroy(&in);
    }
    assert_true(reading.n >= 2 * tg_archive_count(out));
    tg_archive_destroy(&out);
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
