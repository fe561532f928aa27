/* Zip files of numpy.savez and torch.save: their tensors, as data sets, pickles that are refused,
 * corruption, no memory. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"
#include "support/no_memory.h"
#include "support/sets.h"
#include "support/zips.h"
#include "tensor/element.h"

static double element(const tg_archive *archive, const char *name, int64_t index) {
    const tg_tensor *tensor = tg_archive_find(archive, name);
    assert_non_null(tensor);
    return tg_load(tensor->dtype, tensor->data, index).re;
}

TEST(test_npz_of_numpy) {
    static const char *const paths[] = {TG_FIXTURES "/stored.npz", TG_FIXTURES "/deflated.npz"};
    for (int f = 0; f < 2; f++) {
        tg_archive *archive = NULL;
        set_ok(ctx, tg_archive_read(ctx, paths[f], &archive));
        assert_int_equal(tg_archive_count(archive), 2);
        assert_int_equal(tg_archive_find(archive, "x")->dtype, TG_F32);
        assert_int_equal(tg_archive_find(archive, "y")->dtype, TG_F64);
        for (int64_t i = 0; i < 24; i++) {
            assert_true(element(archive, "x", i) == (double)i);
            assert_true(element(archive, "y", i) == -(double)i);
        }
        tg_archive_destroy(&archive);
    }
}

TEST(test_tensors_of_torch) {
    tg_archive *archive = NULL;
    set_ok(ctx, tg_archive_read(ctx, TG_FIXTURES "/pairs.pt", &archive));
    assert_int_equal(tg_archive_count(archive), 3);
    assert_int_equal(tg_archive_find(archive, "x")->dtype, TG_BOOL);
    for (int64_t i = 0; i < 24; i++) {
        assert_true(element(archive, "x", i) == (double)(i % 3 == 0));
    }
    for (int64_t i = 0; i < 16; i++) { /* y[a, b, c] = storage[1 + 12 a + b + 4 c] */
        assert_true(element(archive, "y", i) ==
                    (double)(1 + 12 * (i / 8) + i / 2 % 4 + 4 * (i % 2)));
        assert_true(i > 2 || element(archive, "more/0", i) == (double)i);
    }
    assert_string_equal(tg_archive_meta(archive, "more/1/rate"), "0.5");
    assert_string_equal(tg_archive_meta(archive, "more/1/steps"), "-70000");
    assert_string_equal(tg_archive_meta(archive, "more/1/kind"), "darcy");
    tg_archive_destroy(&archive);
}

/* Stored in place, unpacked, in Fortran order: the same samples, cached or streamed. */
TEST(test_as_data) {
    static const char *const names[] = {"stored.npz", "deflated.npz", "pairs.pt"};
    for (int f = 0; f < 3; f++) {
        for (int streamed = 0; streamed < 2; streamed++) {
            char path[512];
            tg_dataset_config config = tg_dataset_config_default();
            tg_dataset *set = NULL;
            float x[12], y[12];
            const int64_t second = 1;
            config.n_dim = 1;
            config.cache_bytes = streamed ? 192 : config.cache_bytes; /* whole, but y alone */
            config.y_name = f == 2 ? "x" : "y";
            snprintf(path, sizeof path, "%s/%s", TG_FIXTURES, names[f]);
            set_ok(ctx, tg_dataset_open(ctx, path, NULL, &config, &set));
            assert_int_equal(tg_dataset_get_facts(set).samples, 2);
            assert_int_equal(tg_dataset_get_facts(set).in_channels, 3);
            set_ok(ctx, tg_dataset_read(set, &second, 1, x, y));
            for (int i = 0; i < 12; i++) {
                assert_true(x[i] == (f == 2 ? (float)(i % 3 == 0) : (float)(12 + i)));
                assert_true(y[i] == (f == 2 ? x[i] : -x[i]));
            }
            tg_dataset_close(&set);
        }
    }
    tg_dataset *set = NULL;
    tg_dataset_config config = tg_dataset_config_default();
    config.x_name = "z";
    assert_int_equal(tg_dataset_open(ctx, TG_FIXTURES "/pairs.pt", NULL, &config, &set),
                     TG_E_ARGUMENT);
    set_expect_sentence(ctx, "there is no tensor 'z'; there are x, y, more/0; data.x_name");
}

/* ---- what is refused ---- */

static void expect_refused(const char *pickle, size_t size, tg_status status,
                           const char *sentence) {
    static unsigned char room[4096];
    test_zip zip = {.bytes = room};
    tg_archive *archive = NULL;
    zip_add(&zip, "a/data.pkl", pickle, size);
    zip_add(&zip, "a/data/0", "\1\2\3\4\5\6\7\10", 8);
    zip_end(&zip);
    const char *path = test_path("made.pt");
    test_write_bytes(path, room, zip.size);
    assert_int_equal(tg_archive_read(ctx, path, &archive), status);
    assert_null(archive);
    set_expect_sentence(ctx, sentence);
}

#define REFUSED(pickle, status, sentence)                                                          \
    expect_refused("\x80\2" pickle, sizeof("\x80\2" pickle) - 1, status, sentence)
#define STORAGE                                                                                    \
    "(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0"                                             \
    "0X\3\0\0\0cpuK\2tQ"
#define TENSOR "ctorch._utils\n_rebuild_tensor_v2\n(" STORAGE

TEST(test_refused_pickles) {
    tg_archive *archive = NULL;
    assert_int_equal(tg_archive_read(ctx, TG_FIXTURES "/code.pt", &archive), TG_E_UNSUPPORTED);
    set_expect_sentence(ctx, "it refers to posix.system; only tensors");
    REFUSED("cbuiltins\neval\n.", TG_E_UNSUPPORTED, "builtins.eval");
    REFUSED("cnumpy.core.multiarray\n_reconstruct\n.", TG_E_UNSUPPORTED, "no code is run");
    REFUSED("}\x81.", TG_E_UNSUPPORTED, "opcode 0x81");
    REFUSED("", TG_E_FORMAT, "it ends early");
    REFUSED("t.", TG_E_FORMAT, "tuple");
    REFUSED("(.", TG_E_FORMAT, "not end with exactly one value");
    REFUSED("K\1K\2.", TG_E_FORMAT, "not end with exactly one value");
    REFUSED("h\7.", TG_E_FORMAT, "never remembered");
    REFUSED("(K\1K\2K\3u.", TG_E_FORMAT, "items without a dict");
    REFUSED("]q\0h\0a.", TG_E_FORMAT, "nested deeper");
    REFUSED("]q\0(h\0h\0h\0h\0e.", TG_E_FORMAT, "nested deeper");
    REFUSED(TENSOR "K\0(K\3t(K\1ttR.", TG_E_FORMAT, "does not fit in its storage");
    REFUSED(TENSOR "K\1(K\2t(K\1ttR.", TG_E_FORMAT, "does not fit in its storage");
    REFUSED(TENSOR "K\0(J\0\0\0\x40K\2t(K\0K\1ttR.", TG_E_FORMAT, "a tensor is expanded");
    REFUSED(TENSOR "K\0(K\2t(ttR.", TG_E_FORMAT, "without sizes or strides");
    REFUSED(
        TENSOR "K\0(K\2t(K\1t\x89}}X\4\0\0\0conj\x88stR.", TG_E_FORMAT,
        "a conjugate or negative view, which is not stored as it reads: save its resolve_conj()");
    REFUSED("ctorch._utils\n_rebuild_tensor_v2\n(K\1K\1)))tR.", TG_E_FORMAT, "without storage");
}

TEST(test_refused_zips) {
    static unsigned char room[4096];
    test_zip zip = {.bytes = room};
    tg_archive *archive = NULL;
    const char *path = test_path("other.zip");
    zip_add(&zip, "readme.txt", "hello", 5);
    zip_end(&zip);
    test_write_bytes(path, room, zip.size);
    assert_int_equal(tg_archive_read(ctx, path, &archive), TG_E_FORMAT);
    set_expect_sentence(ctx, "numpy.savez (members NAME.npy) or torch.save (PREFIX/data.pkl), "
                             "found one with readme.txt");
    test_write_bytes(path, room, zip.size - 30);
    assert_int_equal(tg_archive_read(ctx, path, &archive), TG_E_FORMAT);
    set_expect_sentence(ctx, "was it copied whole?");
    zip = (test_zip){.bytes = room};
    zip_add(&zip, "a/data.pkl", "\x80\2}.", 4);
    zip_end(&zip);
    room[30 + 10] ^= 1; /* first byte of the content */
    test_write_bytes(path, room, zip.size);
    assert_int_equal(tg_archive_read(ctx, path, &archive), TG_E_FORMAT);
    set_expect_sentence(ctx, "checksum of member 'a/data.pkl'");
    assert_null(archive);
}

/* Damaged files are errors or archives, never more. */
TEST(test_corruption) {
    static const char *const names[] = {"stored.npz", "deflated.npz", "pairs.pt"};
    uint64_t random = 1;
    for (int f = 0; f < 3; f++) {
        char path[512];
        size_t size;
        snprintf(path, sizeof path, "%s/%s", TG_FIXTURES, names[f]);
        unsigned char *whole = test_read_bytes(path, &size);
        unsigned char *bytes = malloc(size + 64);
        const char *damaged = test_path("damaged");
        for (int i = 0; i < 100; i++) {
            tg_archive *archive = NULL;
            memcpy(bytes, whole, size);
            test_write_bytes(damaged, bytes, test_corrupt(bytes, size, size + 64, &random));
            const tg_status status = tg_archive_read(ctx, damaged, &archive);
            assert_int_equal(status == TG_OK, archive != NULL);
            tg_archive_destroy(&archive);
        }
        free(bytes);
        free(whole);
    }
}

TEST(test_no_memory) {
    static const char *const paths[] = {TG_FIXTURES "/deflated.npz", TG_FIXTURES "/pairs.pt"};
    for (int f = 0; f < 2; f++) {
        test_walk walk = {.ctx = ctx};
        while (test_walk_next(&walk)) {
            tg_archive *archive = NULL;
            test_walk_called(&walk, tg_archive_read(ctx, paths[f], &archive));
            tg_archive_destroy(&archive);
        }
    }
}

int main(void) {
    return t_run_tests(test_context_begin, test_context_end);
}
