/* Atomic writing: when a write fails, the old file is intact and no temporary file is left. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/memory.h"
#include "io/file.h"
#include "support/cmocka.h"
#include "support/files.h"
#include "tgrad/io.h"

static tg_context *ctx;
static tg_archive *small, *large; /* one tensor each, of 12 bytes and of 4 MB */

static tg_archive *make_archive(int64_t numel, float value) {
    const tg_shape shape = {1, {numel}};
    tg_archive *archive = NULL;
    tg_tensor tensor = {0};
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &tensor), TG_OK);
    for (int64_t i = 0; i < numel; i++) {
        ((float *)tensor.data)[i] = value;
    }
    assert_int_equal(tg_archive_take(archive, "x", &tensor), TG_OK);
    return archive;
}

static int setup(void **state) {
    (void)state;
    if (tg_context_create(NULL, &ctx) != TG_OK) {
        return -1;
    }
    small = make_archive(3, 1.0f);
    large = make_archive(1000003, 2.0f);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tg_archive_destroy(&small);
    tg_archive_destroy(&large);
    test_folder_remove();
    assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, 1);
    tg_context_destroy(&ctx);
    return 0;
}

static const char *const names[] = {"a.npy", "a.safetensors", "a.h5"};

/* The file at path holds the small archive's tensor. */
static void expect_small(const char *path) {
    tg_archive *in = NULL;
    assert_int_equal(tg_archive_read(ctx, path, &in), TG_OK);
    assert_int_equal(tg_archive_count(in), 1);
    assert_int_equal(tg_tensor_numel(tg_archive_tensor(in, 0)), 3);
    assert_true(*(const float *)tg_archive_tensor(in, 0)->data == 1.0f);
    tg_archive_destroy(&in);
}

/* A limit on the size of files is a full disk: write stores a part and then fails. */
TEST(test_disk_full) {
    const size_t blocks = tg_context_memory(ctx, TG_HOST).blocks;
    struct rlimit old;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    for (int i = 0; i < 3; i++) {
        const char *path = test_path(names[i]);
        const int files = test_folder_count();
        assert_int_equal(tg_archive_write(ctx, path, small), TG_OK);
        static const rlim_t limits[] = {0, 100, 4096, 1000000};
        for (int k = 0; k < 4; k++) {
            struct rlimit limit = {limits[k], old.rlim_max};
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
            const tg_status status = tg_archive_write(ctx, path, large);
            assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
            assert_int_equal(status, TG_E_IO);
            assert_non_null(strstr(tg_context_error(ctx), names[i]));
            expect_small(path);
            assert_int_equal(test_folder_count(), files + 1);
            assert_int_equal(tg_context_memory(ctx, TG_HOST).blocks, blocks);
        }
        assert_int_equal(tg_archive_write(ctx, path, small), TG_OK); /* and now there is room */
        expect_small(path);
    }
    signal(SIGXFSZ, SIG_DFL);
}

TEST(test_bad_folder) {
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "no-such-folder/%s", names[i]);
        assert_int_equal(tg_archive_write(ctx, test_path(path), small), TG_E_IO);
        assert_non_null(strstr(tg_context_error(ctx), path));
    }
}

/* A folder without the right to write in it. The superuser may write anyway, so it becomes nobody
 * for the write. */
TEST(test_read_only_folder) {
    const uid_t nobody = 65534, self = geteuid();
    const int files = test_folder_count();
    assert_int_equal(chmod(test_path(""), 0755), 0);
    assert_int_equal(mkdir(test_path("closed"), 0755), 0);
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "closed/%s", names[i]);
        assert_int_equal(tg_archive_write(ctx, test_path(path), small), TG_OK);
        assert_int_equal(chmod(test_path("closed"), 0555), 0);
        const bool may_test = self != 0 || seteuid(nobody) == 0;
        const tg_status status = may_test ? tg_archive_write(ctx, test_path(path), large) : TG_E_IO;
        assert_true(self != 0 || seteuid(self) == 0);
        assert_int_equal(chmod(test_path("closed"), 0755), 0);
        assert_int_equal(status, TG_E_IO);
        expect_small(test_path(path));
        assert_int_equal(remove(test_path(path)), 0);
    }
    assert_int_equal(rmdir(test_path("closed")), 0);
    assert_int_equal(test_folder_count(), files);
}

/* Devices, folders and pipes are never replaced. */
TEST(test_not_a_file) {
    const int files = test_folder_count();
    struct stat info;
    assert_int_equal(mkdir(test_path("folder"), 0777), 0);
    assert_int_equal(mkfifo(test_path("pipe"), 0666), 0);
    const tg_tensor *tensor = tg_archive_tensor(small, 0);
    assert_int_equal(tg_npy_write(ctx, "/dev/null", tensor), TG_E_IO);
    assert_int_equal(tg_npy_write(ctx, test_path("folder"), tensor), TG_E_IO);
    assert_int_equal(tg_npy_write(ctx, test_path("pipe"), tensor), TG_E_IO);
    assert_int_equal(tg_safetensors_write(ctx, test_path("folder"), small), TG_E_IO);
    assert_int_equal(tg_h5_write(ctx, test_path("folder"), small, NULL), TG_E_IO);
    assert_int_equal(tg_h5_write(ctx, "", small, NULL), TG_E_ARGUMENT);
    assert_int_equal(tg_h5_write(ctx, NULL, small, NULL), TG_E_ARGUMENT);
    assert_int_equal(stat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    tg_tensor in = {0}; /* and reading from a pipe does not wait for a writer */
    assert_int_equal(tg_npy_read(ctx, test_path("pipe"), &in), TG_E_IO);
    assert_int_equal(test_folder_count(), files + 2);
    assert_int_equal(rmdir(test_path("folder")), 0);
    assert_int_equal(remove(test_path("pipe")), 0);
}

TEST(test_permissions) {
    const mode_t old = umask(027);
    for (int i = 0; i < 3; i++) {
        const char *path = test_path(names[i]);
        struct stat info;
        remove(path);
        assert_int_equal(tg_archive_write(ctx, path, small), TG_OK);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0640); /* a new file: what the umask leaves */
        assert_int_equal(chmod(path, 0604), 0);
        assert_int_equal(tg_archive_write(ctx, path, small), TG_OK);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_mode & 0777, 0604); /* a replaced one keeps its own */
    }
    umask(old);
}

/* A reader that has the old file open goes on reading the old content. */
TEST(test_old_reader) {
    const char *path = test_path("reader.npy");
    assert_int_equal(tg_archive_write(ctx, path, small), TG_OK);
    FILE *reader = fopen(path, "rb");
    assert_non_null(reader);
    assert_int_equal(tg_archive_write(ctx, path, large), TG_OK);
    unsigned char bytes[512];
    assert_int_equal(fread(bytes, 1, sizeof bytes, reader), 128 + 12);
    fclose(reader);
}

TEST(test_abort) {
    const int files = test_folder_count();
    tg_atomic_file file = {.fd = -1};
    assert_int_equal(tg_atomic_open(ctx, test_path("abort"), &file), TG_OK);
    assert_int_equal(tg_atomic_write(&file, "part", 4), TG_OK);
    assert_int_equal(test_folder_count(), files + 1);
    tg_atomic_abort(&file);
    assert_int_equal(test_folder_count(), files);
    tg_atomic_abort(&file);

    /* the longest name a folder takes, and a path without a folder */
    char name[256];
    memset(name, 'n', 255);
    name[255] = '\0';
    assert_int_equal(tg_atomic_open(ctx, test_path(name), &file), TG_OK);
    assert_int_equal(tg_atomic_commit(&file), TG_OK);
    assert_int_equal(test_folder_count(), files + 1);
    assert_int_equal(remove(test_path(name)), 0);
    char here[1024];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(test_path("")), 0);
    assert_int_equal(tg_archive_write(ctx, "bare.npy", small), TG_OK);
    expect_small("bare.npy");
    assert_int_equal(chdir(here), 0);
}

int main(void) {
    return t_run_tests(setup, teardown);
}
