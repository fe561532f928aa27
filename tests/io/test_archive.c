/* Archive: order, look-up, ownership, metadata, any format by content and ending, no memory. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/name_index.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "tgrad/io.h"

/* (3) of f32 with the value in every element */
static tg_tensor make_tensor(float value) {
    const tg_shape shape = {1, {3}};
    tg_tensor tensor = {0};
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &tensor), TG_OK);
    for (int i = 0; i < 3; i++) {
        ((float *)tensor.data)[i] = value;
    }
    return tensor;
}

static tg_archive *make_archive(int count) {
    tg_archive *archive = NULL;
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    for (int i = 0; i < count; i++) {
        char name[32];
        tg_tensor tensor = make_tensor((float)i);
        snprintf(name, sizeof name, "layer.%d.weight", i);
        assert_int_equal(tg_archive_take(archive, name, &tensor), TG_OK);
    }
    return archive;
}

TEST(test_many_tensors) {
    enum { COUNT = 5000 };
    tg_archive *archive = make_archive(COUNT);
    assert_int_equal(tg_archive_count(archive), COUNT);
    for (int i = 0; i < COUNT; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%d.weight", i);
        assert_string_equal(tg_archive_name(archive, i), name);
        const tg_tensor *tensor = tg_archive_find(archive, name);
        assert_ptr_equal(tensor, tg_archive_tensor(archive, i));
        assert_true(*(const float *)tensor->data == (float)i);
    }
    assert_null(tg_archive_find(archive, "layer.5000.weight"));
    assert_null(tg_archive_find(archive, ""));
    assert_null(tg_archive_name(archive, -1));
    assert_null(tg_archive_name(archive, COUNT));
    assert_null(tg_archive_tensor(archive, COUNT));
    tg_archive_destroy(&archive);
    assert_null(archive);
    tg_archive_destroy(&archive);
    tg_archive_destroy(NULL);
}

TEST(test_ownership) {
    tg_archive *archive = make_archive(1);
    tg_tensor tensor = make_tensor(7);
    assert_int_equal(tg_archive_add(archive, "copy", &tensor), TG_OK);
    assert_int_equal(tg_archive_add_view(archive, "view", &tensor), TG_OK);
    *(float *)tensor.data = 8;
    assert_true(*(const float *)tg_archive_find(archive, "copy")->data == 7);
    assert_true(*(const float *)tg_archive_find(archive, "view")->data == 8);

    /* a name twice is refused: a copy or view leaves the tensor alone, a move destroys it */
    assert_int_equal(tg_archive_add(archive, "copy", &tensor), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "copy"));
    assert_int_equal(tg_archive_add_view(archive, "view", &tensor), TG_E_ARGUMENT);
    assert_non_null(tensor.data);
    tg_tensor moved = make_tensor(9);
    assert_int_equal(tg_archive_take(archive, "copy", &moved), TG_E_ARGUMENT);
    assert_null(moved.data);
    assert_int_equal(tg_archive_count(archive), 3);
    tg_archive_destroy(&archive);
    assert_true(*(const float *)tensor.data == 8);
    tg_tensor_destroy(&tensor);
}

TEST(test_refused_tensors) {
    tg_archive *archive = make_archive(0);
    tg_tensor tensor = make_tensor(1);
    assert_int_equal(tg_archive_add(archive, "", &tensor), TG_E_ARGUMENT);
    assert_int_equal(tg_archive_add(archive, "\xc0\x80", &tensor), TG_E_ARGUMENT);
    tg_tensor bad = tensor;
    bad.owner = NULL;
    bad.place = TG_DEVICE;
    assert_int_equal(tg_archive_add(archive, "device", &bad), TG_E_ARGUMENT);
    assert_int_equal(tg_archive_add_view(archive, "device", &bad), TG_E_ARGUMENT);
    bad.place = TG_HOST;
    bad.data = NULL;
    assert_int_equal(tg_archive_add(archive, "nothing", &bad), TG_E_ARGUMENT);
    bad.dtype = (tg_dtype)77;
    assert_int_equal(tg_archive_add(archive, "dtype", &bad), TG_E_DTYPE);
    bad.dtype = TG_F32;
    bad.shape.dim[0] = -3;
    assert_int_equal(tg_archive_take(archive, "shape", &bad), TG_E_SHAPE);
    assert_int_equal(tg_archive_count(archive), 0);
    tg_tensor_destroy(&tensor);
    tg_archive_destroy(&archive);
}

TEST(test_metadata) {
    tg_archive *archive = make_archive(0);
    for (int i = 0; i < 100; i++) {
        char key[16], value[16];
        snprintf(key, sizeof key, "key%d", i);
        snprintf(value, sizeof value, "%d", i * i);
        assert_int_equal(tg_archive_set_meta(archive, key, value), TG_OK);
    }
    assert_int_equal(tg_archive_set_meta(archive, "key7", "again"), TG_OK);
    assert_int_equal(tg_archive_meta_count(archive), 100);
    assert_string_equal(tg_archive_meta(archive, "key7"), "again");
    assert_string_equal(tg_archive_meta(archive, "key99"), "9801");
    assert_string_equal(tg_archive_meta_key(archive, 42), "key42");
    assert_string_equal(tg_archive_meta_value(archive, 42), "1764");
    assert_null(tg_archive_meta(archive, "key100"));
    assert_null(tg_archive_meta_key(archive, 100));
    assert_int_equal(tg_archive_set_meta(archive, "", "x"), TG_E_ARGUMENT);
    assert_int_equal(tg_archive_set_meta(archive, NULL, "x"), TG_E_ARGUMENT);
    assert_int_equal(tg_archive_set_meta(archive, "x", NULL), TG_E_ARGUMENT);
    assert_int_equal(tg_archive_set_meta(archive, "x", "\xed\xa0\x80"), TG_E_ARGUMENT);
    assert_int_equal(tg_archive_meta_count(archive), 100);
    tg_archive_destroy(&archive);
}

TEST(test_utf8) {
    static const char *const good[] = {"",
                                       "a",
                                       "\xc2\x80",
                                       "\xe2\x82\xac",
                                       "\xed\x9f\xbf",
                                       "\xf0\x90\x80\x80",
                                       "\xf4\x8f\xbf\xbf"};
    static const char *const bad[] = {"\x80",
                                      "\xc0\x80",
                                      "\xc1\xbf",
                                      "\xc2",
                                      "\xe0\x80\x80",
                                      "\xe2\x82",
                                      "\xed\xa0\x80",
                                      "\xf0\x80\x80\x80",
                                      "\xf4\x90\x80\x80",
                                      "\xf5\x80\x80\x80",
                                      "\xff",
                                      "a\xc2z"};
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        assert_true(tg_utf8_is_valid(good[i]));
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        assert_false(tg_utf8_is_valid(bad[i]));
    }
    char quoted[TG_QUOTE], longer[1000];
    assert_string_equal(tg_quote("a\n\x1b[31m\xff\xe2\x82\xac", quoted), "a??[31m?\xe2\x82\xac");
    assert_string_equal(tg_quote("\xe2\x80\xae\xe2\x81\xa6\xd8\x9c\xc2\x9b\xe2\x80\xa6", quoted),
                        "????\xe2\x80\xa6");     /* direction of writing; an ellipsis is none */
    for (size_t shift = 0; shift < 3; shift++) { /* the cut never splits a character */
        memset(longer, 'x', shift);
        for (size_t i = shift; i + 3 < sizeof longer; i += 3) {
            memcpy(longer + i, "\xe2\x82\xac", 4);
        }
        tg_quote(longer, quoted);
        assert_true(strlen(quoted) < TG_QUOTE && strlen(quoted) > TG_QUOTE - 8);
        assert_true(tg_utf8_is_valid(quoted));
    }
}

/* ---- any format ---- */

TEST(test_any_format) {
    static const char *const names[] = {"a.npy", "a.safetensors", "a.h5", "a.hdf5", "A.NPY"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        tg_archive *out = make_archive(1), *in = NULL;
        const char *path = test_path(names[i]);
        assert_int_equal(tg_archive_write(ctx, path, out), TG_OK);
        /* the content decides, not the name */
        assert_int_equal(rename(path, test_path("renamed")), 0);
        assert_int_equal(tg_archive_read(ctx, test_path("renamed"), &in), TG_OK);
        assert_int_equal(tg_archive_count(in), 1);
        const bool is_npy = strstr(names[i], "npy") || strstr(names[i], "NPY");
        assert_string_equal(tg_archive_name(in, 0), is_npy ? "data" : "layer.0.weight");
        assert_true(*(const float *)tg_archive_tensor(in, 0)->data == 0.0f);
        tg_archive_destroy(&in);
        tg_archive_destroy(&out);
    }
}

TEST(test_any_refuses) {
    tg_archive *two = make_archive(2), *in = NULL;
    assert_int_equal(tg_archive_write(ctx, test_path("two.npy"), two), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), "there are 2"));
    assert_int_equal(tg_archive_write(ctx, test_path("two.txt"), two), TG_E_ARGUMENT);
    assert_non_null(strstr(tg_context_error(ctx), ".safetensors"));
    assert_int_equal(tg_archive_write(ctx, ".npy", two), TG_E_ARGUMENT);
    assert_int_equal(tg_archive_write(ctx, NULL, two), TG_E_ARGUMENT);
    tg_archive_destroy(&two);

    test_write_bytes(test_path("text"), "just some text\n", 15);
    assert_int_equal(tg_archive_read(ctx, test_path("text"), &in), TG_E_FORMAT);
    test_write_bytes(test_path("text"), "", 0);
    assert_int_equal(tg_archive_read(ctx, test_path("text"), &in), TG_E_FORMAT);
    test_write_bytes(test_path("text"), "\x93NUMPY", 6);
    assert_int_equal(tg_archive_read(ctx, test_path("text"), &in), TG_E_FORMAT);
    test_write_bytes(test_path("text"), "\x89HDF\r\n\x1a\n", 8);
    assert_int_equal(tg_archive_read(ctx, test_path("text"), &in), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "HDF5"));
    test_write_bytes(test_path("text"), "\xff\xff\0\0\0\0\0\0{}", 10);
    assert_int_equal(tg_archive_read(ctx, test_path("text"), &in), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "header length"));
    assert_int_equal(tg_archive_read(ctx, test_path("absent"), &in), TG_E_IO);
    assert_null(in);
}

TEST(test_whole_file) {
    void *bytes = NULL;
    size_t size = 0;
    test_write_bytes(test_path("whole"), "12345", 5);
    assert_int_equal(tg_file_read(ctx, test_path("whole"), 5, &bytes, &size), TG_OK);
    assert_int_equal(size, 5);
    assert_string_equal(bytes, "12345");
    tg_mem_free(ctx, bytes);
    assert_int_equal(tg_file_read(ctx, test_path("whole"), 4, &bytes, &size), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "5 bytes, at most 4"));
    assert_null(bytes);
    tg_mem_test_fail_at(1);
    assert_int_equal(tg_file_read(ctx, test_path("whole"), 5, &bytes, &size), TG_E_MEMORY);
    tg_mem_test_fail_at(0);
    assert_null(bytes);
}

/* ---- no memory ---- */

/* Builds an archive step by step; whichever call fails, no memory may leak. */
static tg_status build(const tg_tensor *tensor) {
    tg_status status = TG_OK;
    tg_archive *archive = NULL;
    TG_TRY(tg_archive_create(ctx, &archive));
    for (int i = 0; i < 20; i++) {
        char name[16];
        snprintf(name, sizeof name, "%d", i);
        TG_TRY(i % 2 ? tg_archive_add(archive, name, tensor)
                     : tg_archive_add_view(archive, name, tensor));
        TG_TRY(tg_archive_set_meta(archive, name, "value"));
        TG_TRY(tg_archive_set_meta(archive, name, "another"));
    }
fail:
    tg_archive_destroy(&archive);
    return status;
}

TEST(test_no_memory) {
    tg_tensor tensor = make_tensor(1);
    test_walk walk = {.ctx = ctx};
    while (test_walk_next(&walk)) {
        test_walk_called(&walk, build(&tensor));
    }
    assert_true(walk.n >= 60);
    tg_tensor_destroy(&tensor);
}

TEST(test_no_memory_any) {
    static const char *const names[] = {"m.npy", "m.safetensors", "m.h5"};
    tg_archive *archive = make_archive(1);
    for (int i = 0; i < 3; i++) {
        const char *path = test_path(names[i]);
        test_walk writing = {.ctx = ctx}, reading = {.ctx = ctx};
        while (test_walk_next(&writing)) {
            test_walk_called(&writing, tg_archive_write(ctx, path, archive));
        }
        while (test_walk_next(&reading)) {
            tg_archive *in = NULL;
            test_walk_called(&reading, tg_archive_read(ctx, path, &in));
            assert_true(reading.is_over == (in != NULL));
            tg_archive_destroy(&in);
        }
    }
    tg_archive_destroy(&archive);
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
