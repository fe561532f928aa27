/* The process that reads HDF5 files: what the caller sees when it dies, what signals do to it, and
 * that nothing of it is left. */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/memory.h"
#include "support/cmocka.h"
#include "support/context.h"
#include "support/files.h"
#include "tgrad/io.h"

static tg_h5 *open_file(const char *path) {
    tg_h5 *file = NULL;
    if (tg_h5_open(ctx, path, &file) != TG_OK) {
        fail_msg("%s", tg_context_error(ctx));
    }
    return file;
}

/* The child of process `parent`, 0 if it has none. */
static pid_t child_of(pid_t parent) {
    DIR *dir = opendir("/proc");
    pid_t found = 0;
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry && !found; entry = readdir(dir)) {
        char path[300], line[512] = "";
        int above = 0;
        snprintf(path, sizeof path, "/proc/%s/stat", entry->d_name);
        FILE *file = entry->d_name[0] >= '1' && entry->d_name[0] <= '9' ? fopen(path, "r") : NULL;
        if (!file) {
            continue;
        }
        const char *tail = fgets(line, sizeof line, file) ? strrchr(line, ')') : NULL;
        if (tail && sscanf(tail, ") %*c %d", &above) == 1 && above == (int)parent) {
            found = (pid_t)atoi(entry->d_name);
        }
        fclose(file);
    }
    closedir(dir);
    return found;
}

static void expect_no_child(void) {
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static void short_sleep(void) {
    nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
}

/* However it ends, the caller gets a sentence with the reason, then and later; what needs no HDF5
 * is still read. */
TEST(test_dies) {
    static const struct {
        int signal;
        const char *reason;
    } ends[] = {{SIGSEGV, "crashed (signal 11)"},
                {SIGABRT, "crashed (signal 6)"},
                {SIGPROF, "took too long"},
                {SIGKILL, "was killed"}};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++) {
        tg_h5 *file = open_file(TG_FIXTURES "/h5py.h5");
        tg_archive *archive = NULL;
        tg_tensor tensor = {0};
        const pid_t reader = child_of(getpid());
        assert_true(reader > 0);
        assert_int_equal(tg_h5_read(file, "group/zip", &tensor), TG_OK); /* it is past its start */
        tg_tensor_destroy(&tensor);
        assert_int_equal(kill(reader, ends[i].signal), 0);
        assert_int_equal(tg_h5_read(file, "group/zip", &tensor), TG_E_FORMAT);
        if (!strstr(tg_context_error(ctx), ends[i].reason) ||
            !strstr(tg_context_error(ctx), "h5py.h5")) {
            fail_msg("%s", tg_context_error(ctx));
        }
        assert_int_equal(tg_h5_read(file, "group/zip", &tensor), TG_E_FORMAT);
        assert_non_null(strstr(tg_context_error(ctx), "has ended"));
        assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
        assert_int_equal(tg_h5_read_meta(file, archive), TG_E_FORMAT);
        tg_archive_destroy(&archive);
        assert_int_equal(tg_h5_read(file, "f4", &tensor), TG_OK);
        assert_true(((const float *)tensor.data)[5] == 5.0f);
        tg_tensor_destroy(&tensor);
        tg_h5_close(&file);
        expect_no_child();
    }
}

/* Attributes that HDF5 1.10 crashes on, and others that send it into an endless loop. A better one
 * may call them errors or even read them; this process is here afterwards. */
TEST(test_damaged) {
    static const struct {
        const char *path, *reason;
    } files[] = {{TG_FIXTURES "/crash.h5", "crashed (signal 11): the file is damaged"},
                 {TG_FIXTURES "/endless.h5", "took too long: the file is damaged"}};
    char version[256];
    const bool is_old = strstr(tg_io_libraries(version, sizeof version), "HDF5 1.10.") != NULL;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        tg_h5 *file = NULL;
        tg_archive *archive = NULL;
        assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
        tg_status status = tg_h5_open(ctx, files[i].path, &file);
        if (status == TG_OK) {
            status = tg_h5_read_meta(file, archive);
        }
        assert_true(status == TG_E_FORMAT || (status == TG_OK && !is_old));
        if (is_old && !strstr(tg_context_error(ctx), files[i].reason)) {
            fail_msg("%s", tg_context_error(ctx));
        }
        tg_archive_destroy(&archive);
        tg_h5_close(&file);
        expect_no_child();
    }
}

/* A terminal or a batch system sends its signals to the whole group: they are for the caller. */
TEST(test_signals) {
    static const int signals[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    tg_h5 *file = open_file(TG_FIXTURES "/h5py.h5");
    const pid_t reader = child_of(getpid());
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++) {
        assert_int_equal(kill(reader, signals[i]), 0);
    }
    short_sleep();
    tg_tensor tensor = {0};
    assert_int_equal(tg_h5_read(file, "group/zip", &tensor), TG_OK);
    assert_true(((const float *)tensor.data)[7] == 7.0f);
    tg_tensor_destroy(&tensor);
    tg_h5_close(&file);
    expect_no_child();
}

/* A caller that waits for any child may take the end of ours. */
TEST(test_taken_by_another_wait) {
    tg_h5 *file = open_file(TG_FIXTURES "/h5py.h5");
    tg_tensor tensor = {0};
    kill(child_of(getpid()), SIGSEGV);
    assert_true(waitpid(-1, NULL, 0) > 0);
    assert_int_equal(tg_h5_read(file, "group/zip", &tensor), TG_E_FORMAT);
    assert_non_null(strstr(tg_context_error(ctx), "ended early"));
    tg_h5_close(&file);
}

/* Neither gone nor a zombie that waits for init. */
static bool is_running(pid_t pid) {
    char path[64], state = 'Z';
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(path, "r");
    if (file) {
        const int found = fscanf(file, "%*d %*s %c", &state);
        state = found == 1 ? state : 'Z';
        fclose(file);
    }
    return state != 'Z';
}

/* This program as `test_h5_child --hold`: opens a file, says so and waits for its end. */
static int hold(void) {
    tg_h5 *file = NULL;
    const bool opened = tg_context_create(NULL, &ctx) == TG_OK &&
                        tg_h5_open(ctx, TG_FIXTURES "/h5py.h5", &file) == TG_OK;
    if (write(STDOUT_FILENO, opened ? "y" : "n", 1) == 1) {
        pause();
    }
    return 1;
}

/* `program` opens a file and is killed: its reader ends too. */
static void expect_no_orphan(const char *program) {
    int line[2];
    char byte = 0;
    assert_int_equal(pipe(line), 0);
    const pid_t caller = fork();
    assert_true(caller >= 0);
    if (caller == 0) {
        dup2(line[1], STDOUT_FILENO);
        execl(program, program, "--hold", (char *)NULL);
        _exit(1);
    }
    assert_int_equal(read(line[0], &byte, 1), 1);
    assert_int_equal(byte, 'y');
    const pid_t reader = child_of(caller);
    assert_true(reader > 0);
    kill(caller, SIGKILL);
    assert_int_equal(waitpid(caller, NULL, 0), caller);
    for (int i = 0; i < 500 && is_running(reader); i++) {
        short_sleep();
    }
    assert_false(is_running(reader));
    close(line[0]);
    close(line[1]);
}

TEST(test_no_orphan) {
    size_t size = 0;
    expect_no_orphan("/proc/self/exe");
    /* A copy of this program has no tgrad-h5 near: its reader is a fork. */
    unsigned char *bytes = test_read_bytes("/proc/self/exe", &size);
    test_write_bytes(test_path("copy"), bytes, size);
    free(bytes);
    assert_int_equal(chmod(test_path("copy"), 0700), 0);
    expect_no_orphan(test_path("copy"));
}

/* Files that are open at the same time, each with a reader. */
TEST(test_several) {
    tg_h5 *files[5];
    for (int i = 0; i < 5; i++) {
        files[i] = open_file(TG_FIXTURES "/h5py.h5");
    }
    for (int i = 0; i < 5; i++) {
        float row[12];
        assert_int_equal(tg_h5_read_range(files[i], "group/zip", 1, 1, TG_F32, row), TG_OK);
        assert_true(row[0] == 12.0f);
    }
    for (int i = 0; i < 5; i++) {
        tg_h5_close(&files[(2 * i) % 5]);
    }
    expect_no_child();
}

/* Data of more than a piece, cut along its second and third dimension. */
TEST(test_pieces) {
    const tg_shape shape = {3, {2, 3, 700001}};
    const tg_h5_write_config config = {.size = sizeof(tg_h5_write_config), .gzip = 1};
    tg_archive *archive = NULL;
    tg_tensor tensor = {0};
    const int64_t numel = tg_shape_numel(&shape);
    assert_int_equal(tg_archive_create(ctx, &archive), TG_OK);
    assert_int_equal(tg_tensor_create(ctx, TG_MEM_DATA, TG_F64, &shape, &tensor), TG_OK);
    for (int64_t i = 0; i < numel; i++) {
        ((double *)tensor.data)[i] = (double)i;
    }
    assert_int_equal(tg_archive_take(archive, "x", &tensor), TG_OK);
    assert_int_equal(tg_h5_write(ctx, test_path("pieces.h5"), archive, &config), TG_OK);
    tg_archive_destroy(&archive);

    tg_h5 *file = open_file(test_path("pieces.h5"));
    assert_int_equal(tg_h5_read(file, "x", &tensor), TG_OK);
    for (int64_t i = 0; i < numel; i++) {
        assert_true(((const double *)tensor.data)[i] == (double)i);
    }
    tg_tensor_destroy(&tensor);
    float *row = malloc((size_t)(numel / 2) * sizeof *row);
    assert_int_equal(tg_h5_read_range(file, "x", 1, 1, TG_F32, row), TG_OK);
    for (int64_t i = 0; i < numel / 2; i++) {
        assert_true(row[i] == (float)(numel / 2 + i));
    }
    free(row);
    tg_h5_close(&file);
}

/* A filter that HDF5 lacks is not looked for in its plug-ins. */
TEST(test_plugin) {
    tg_h5 *file = open_file(TG_FIXTURES "/plugin.h5");
    tg_tensor tensor = {0};
    assert_int_equal(tg_h5_read(file, "x", &tensor), TG_E_UNSUPPORTED);
    assert_non_null(strstr(tg_context_error(ctx), "filter 32001"));
    assert_non_null(strstr(tg_context_error(ctx), "plug-ins are not loaded"));
    assert_int_equal(tg_h5_read(file, "y", &tensor), TG_OK);
    tg_tensor_destroy(&tensor);
    tg_h5_close(&file);
}

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "--hold") == 0) {
        return hold();
    }
    return t_run_tests(test_context_begin, test_context_end);
}
