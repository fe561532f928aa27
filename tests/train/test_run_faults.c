/* The run folder when the system fails it: writes that are cut short or refused, interrupted calls,
 * file systems without locks, files that a crash or a forger left. The system's calls are put in
 * front of the C library's by this program. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "io/file.h"
#include "optim/optim.h"
#include "support/files.h"
#include "support/sets.h"
#include "tgrad/tgrad.h"
#include "train/trainer.h"

/* ---- the system, as the test wants it: seen by a shared library, too ---- */

#pragma GCC visibility push(default)

static int interruptions;         /* calls from now on that a signal interrupts */
static bool writes_bytes;         /* one byte at a time */
static int writes_left = INT_MAX; /* until the disk is full; the last one writes half */
static bool has_no_locks;
static uint64_t room = UINT64_MAX; /* bytes free on the disk; UINT64_MAX: not known */

static bool is_interrupted(void) {
    if (interruptions > 0) {
        interruptions--;
        errno = EINTR;
        return true;
    }
    return false;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (is_interrupted()) {
        return -1;
    }
    if (writes_left == 0) {
        errno = ENOSPC;
        return -1;
    }
    writes_left -= writes_left < INT_MAX;
    count = writes_bytes && count > 1 ? 1 : writes_left == 0 ? count / 2 : count;
    return (ssize_t)syscall(SYS_write, fd, bytes, count);
}

/* Nothing here waits for a disk. */
int fsync(int fd) {
    (void)fd;
    return is_interrupted() ? -1 : 0;
}

int flock(int fd, int operation) {
    if (has_no_locks) {
        errno = ENOLCK;
        return -1;
    }
    return is_interrupted() ? -1 : (int)syscall(SYS_flock, fd, operation);
}

int statvfs(const char *path, struct statvfs *facts) {
    if (access(path, F_OK) != 0) {
        return -1;
    }
    *facts = (struct statvfs){
        .f_frsize = 1, .f_blocks = room < UINT64_MAX, .f_bavail = (fsblkcnt_t)room};
    return 0;
}

#pragma GCC visibility pop

static int reset(void **state) {
    (void)state;
    interruptions = 0;
    writes_bytes = has_no_locks = false;
    writes_left = INT_MAX;
    room = UINT64_MAX;
    return 0;
}

/* ---- a small run ---- */

static char heard[4096]; /* warnings */

static void hear(void *user, tg_log_level level, const char *message) {
    (void)user;
    if (level == TG_LOG_WARN) {
        const size_t used = strlen(heard);
        snprintf(heard + used, sizeof heard - used, "%s\n", message);
    }
}

static tg_context *open_context(int threads) {
    tg_context_config config = tg_context_config_default();
    tg_context *ctx = NULL;
    config.threads = threads;
    config.log = hear;
    heard[0] = '\0';
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    set_ok(ctx, tg_backend_select(ctx, "cpu"));
    return ctx;
}

static const char *training_data(tg_context *ctx) {
    static char path[1024];
    const tg_shape shape = SET_SHAPE(8, 8, 8);
    if (!path[0]) {
        snprintf(path, sizeof path, "%s", set_write(ctx, "set.h5", TG_F32, &shape, &shape));
    }
    return path;
}

/* `more`: key, value, .., NULL; or NULL. */
static tg_trainer *make_trainer(tg_context *ctx, const char *file, const char *folder,
                                const char *const *more) {
    const char *const pairs[][2] = {
        {"fno.n_modes", "[4, 4]"},  {"fno.hidden_channels", "4"},   {"fno.n_layers", "1"},
        {"opt.name", "tensorgrad"}, {"opt.min_entries", "10"},      {"opt.update_proj_gap", "2"},
        {"opt.n_epochs", "3"},      {"opt.nonfinite_limit", "100"}, {"data.set", "set"},
        {"data.train_file", file},  {"data.train_resolution", "8"}, {"data.batch_size", "4"},
    };
    tg_settings *settings = NULL;
    tg_trainer *trainer = NULL;
    set_ok(ctx, tg_settings_create(ctx, &settings));
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        set_ok(ctx, tg_settings_set(settings, pairs[i][0], pairs[i][1], NULL));
    }
    for (int i = 0; more && more[i]; i += 2) {
        set_ok(ctx, tg_settings_set(settings, more[i], more[i + 1], NULL));
    }
    set_ok(ctx, tg_trainer_create(ctx, NULL, settings, folder, &trainer));
    tg_settings_destroy(&settings);
    return trainer;
}

/* Goes on with the run of a folder, or begins it. */
static tg_status train(const char *folder, int threads, const char *checkpoint, char *sentence) {
    tg_context *ctx = open_context(threads);
    tg_trainer *trainer = make_trainer(ctx, training_data(ctx), folder, NULL);
    tg_train_end end;
    bool resumed = false;
    tg_status status = tg_trainer_resume(trainer, checkpoint, &resumed);
    status = status == TG_OK ? tg_trainer_run(trainer, NULL, &end) : status;
    snprintf(sentence, 1024, "%s", tg_context_error(ctx));
    tg_trainer_destroy(&trainer);
    tg_context_destroy(&ctx);
    return status;
}

static const char *inside(const char *folder, const char *name) {
    static char paths[4][2048];
    static int next;
    char *path = paths[next++ % 4];
    snprintf(path, sizeof paths[0], "%s/%s", folder, name);
    return path;
}

static void expect_text(const char *path, const char *expected) {
    size_t size = 0;
    unsigned char *bytes = test_read_bytes(path, &size);
    assert_int_equal(size, strlen(expected));
    assert_memory_equal(bytes, expected, size);
    free(bytes);
}

/* ---- appending ---- */

TEST_WITH(lines_are_added_whole_or_not_at_all, NULL, reset) {
    tg_context *ctx = open_context(1);
    const char *path = test_path("lines");
    writes_left = 0;
    assert_int_equal(tg_file_append(ctx, path, "lost\n", 5), TG_E_IO);
    set_expect_sentence(ctx, "No space left");
    expect_text(path, "");
    writes_left = INT_MAX;
    interruptions = 3;
    writes_bytes = true;
    set_ok(ctx, tg_file_append(ctx, path, "first\n", 6));
    assert_int_equal(interruptions, 0);
    writes_bytes = false;
    writes_left = 1; /* half of it, then no more */
    assert_int_equal(tg_file_append(ctx, path, "second\n", 7), TG_E_IO);
    writes_left = INT_MAX;
    expect_text(path, "first\n");
    set_ok(ctx, tg_file_append(ctx, path, "third\n", 6));
    expect_text(path, "first\nthird\n");
    tg_context_destroy(&ctx);
}

TEST_WITH(an_interrupted_sync_is_made_again, NULL, reset) {
    tg_context *ctx = open_context(1);
    tg_atomic_file file;
    set_ok(ctx, tg_atomic_open(ctx, test_path("synced"), &file));
    set_ok(ctx, tg_atomic_write(&file, "whole", 5));
    interruptions = 4;
    set_ok(ctx, tg_atomic_commit(&file));
    assert_int_equal(interruptions, 0);
    expect_text(test_path("synced"), "whole");
    tg_context_destroy(&ctx);
}

static void open_folder(tg_context *ctx, const char *name, tg_run_folder *out) {
    set_ok(ctx, tg_run_folder_open(ctx, test_path(name), out));
    set_ok(ctx, tg_run_folder_make(out));
}

TEST_WITH(a_table_has_its_header_after_a_failed_write, NULL, reset) {
    tg_context *ctx = open_context(1);
    tg_run_folder folder;
    open_folder(ctx, "table", &folder);
    const tg_train_epoch first = {.epoch = 1, .epochs = 2}, second = {.epoch = 2, .epochs = 2};
    writes_left = 1; /* metrics.jsonl is written by half, and there is no room for the table */
    assert_int_equal(tg_run_folder_log(&folder, &first), TG_E_IO);
    writes_left = INT_MAX;
    test_write_bytes(inside(folder.path, "metrics.csv"), "", 0); /* as older runs left it */
    set_ok(ctx, tg_run_folder_log(&folder, &first));
    set_ok(ctx, tg_run_folder_log(&folder, &second));
    size_t size = 0;
    unsigned char *bytes = test_read_bytes(inside(folder.path, "metrics.csv"), &size);
    assert_memory_equal(bytes, "epoch,step,", 11);
    assert_non_null(memmem(bytes, size, "\n1,0,", 5));
    assert_non_null(memmem(bytes, size, "\n2,0,", 5));
    free(bytes);
    bytes = test_read_bytes(inside(folder.path, "metrics.jsonl"), &size);
    const unsigned char *end = memchr(bytes, '\n', size);
    assert_memory_equal(bytes, "{\"epoch\":1,", 11); /* and not half a line before it */
    assert_memory_equal(end + 1, "{\"epoch\":2,", 11);
    free(bytes);
    tg_run_folder_close(&folder);
    tg_context_destroy(&ctx);
}

TEST_WITH(damaged_lines_are_left_out, NULL, reset) {
    static const char lines[] =
        "{\"epoch\":1,\"a\":1}\n{\"epoch\":2,\"a\":\0\0\0}\n"
        "\0\0\0\n{\"epoch\":3,\"a\":3}\n{\"epoch\":4,\"a\":4}\n{\"epoch\":3";
    tg_context *ctx = open_context(1);
    tg_run_folder folder;
    open_folder(ctx, "damaged", &folder);
    test_write_bytes(inside(folder.path, "metrics.jsonl"), lines, sizeof lines - 1);
    set_ok(ctx, tg_run_folder_rewind(&folder, 3, 0));
    expect_text(inside(folder.path, "metrics.jsonl"),
                "{\"epoch\":1,\"a\":1}\n{\"epoch\":3,\"a\":3}\n");
    assert_non_null(strstr(heard, "metrics.jsonl: lines with NUL bytes are left out: 2"));
    tg_run_folder_close(&folder);
    tg_context_destroy(&ctx);
}

/* ---- the folder ---- */

TEST_WITH(two_runs_do_not_share_a_folder, NULL, reset) {
    tg_context *ctx = open_context(1);
    tg_run_folder first, second;
    char expected[64];
    open_folder(ctx, "locked", &first);
    open_folder(ctx, "locked", &second);
    interruptions = 1;
    set_ok(ctx, tg_run_folder_lock(&first, true));
    assert_int_equal(tg_run_folder_lock(&second, true), TG_E_IO);
    set_expect_sentence(ctx, "another process is training in this folder"); /* it has not signed */
    tg_run_folder_sign(&first);
    assert_int_equal(tg_run_folder_lock(&second, false), TG_E_IO);
    snprintf(expected, sizeof expected, "process %ld on ", (long)getpid());
    set_expect_sentence(ctx, expected);
    tg_run_folder_close(&first);
    set_ok(ctx, tg_run_folder_lock(&second, false));
    tg_run_folder_close(&second);

    has_no_locks = true; /* of the file system: one warning, no failure */
    set_ok(ctx, tg_run_folder_lock(&first, false));
    set_ok(ctx, tg_run_folder_lock(&first, true));
    const char *told = strstr(heard, "nothing keeps a second run out of this folder");
    assert_non_null(told);
    assert_null(strstr(told + 1, "nothing keeps a second run out"));
    tg_run_folder_close(&first);
    tg_context_destroy(&ctx);
}

TEST_WITH(the_newest_of_many_checkpoints_is_found, NULL, reset) {
    enum { MANY = 1100 };
    tg_context *ctx = open_context(1);
    tg_run_folder folder;
    int64_t *steps = NULL, count = 0, newest = 0;
    open_folder(ctx, "many", &folder);
    test_write_bytes(inside(folder.path, "checkpoints/step-77777.safetensors"), "",
                     0); /* no name */
    for (int64_t i = 0; i < MANY; i++) {
        char path[TG_PATH];
        test_write_bytes(tg_run_folder_checkpoint(&folder, i * 7919 % MANY, path), "", 0);
    }
    set_ok(ctx, tg_run_folder_steps(&folder, &steps, &count));
    assert_int_equal(count, MANY);
    for (int64_t i = 0; i < MANY; i++) {
        assert_int_equal(steps[i], MANY - 1 - i);
    }
    tg_mem_free(ctx, steps);
    set_ok(ctx, tg_run_folder_newest(&folder, &newest));
    assert_int_equal(newest, MANY - 1);
    set_ok(ctx, tg_run_folder_keep(&folder, MANY - 2, 3));
    set_ok(ctx, tg_run_folder_steps(&folder, &steps, &count));
    assert_int_equal(count, 3);
    assert_int_equal(steps[0], MANY - 2);
    tg_mem_free(ctx, steps);
    tg_run_folder_close(&folder);
    tg_context_destroy(&ctx);
}

/* ---- runs ---- */

TEST_WITH(a_full_disk_costs_nothing_but_time, NULL, reset) {
    const char *final = "checkpoints/step-0000000006.safetensors";
    char whole[1024], sentence[1024];
    size_t size = 0;
    snprintf(whole, sizeof whole, "%s", test_path("whole"));
    assert_int_equal(train(whole, 1, NULL, sentence), TG_OK);
    unsigned char *expected = test_read_bytes(inside(whole, final), &size);
    int failures = 0;
    for (int n = 0;; n++) { /* the n-th line of a log is the first that does not fit */
        char folder[1024], name[32];
        snprintf(name, sizeof name, "full.%d", n);
        snprintf(folder, sizeof folder, "%s", test_path(name));
        writes_left = n;
        const tg_status status = train(folder, 1, NULL, sentence);
        writes_left = INT_MAX;
        if (status == TG_OK) {
            break;
        }
        failures++;
        assert_int_equal(status, TG_E_IO);
        assert_non_null(strstr(sentence, "cannot write: No space left"));
        assert_int_equal(train(folder, 1, NULL, sentence), TG_OK);
        size_t found = 0, lines = 0;
        unsigned char *bytes = test_read_bytes(inside(folder, final), &found);
        assert_int_equal(found, size);
        assert_memory_equal(bytes, expected, size);
        free(bytes);
        bytes = test_read_bytes(inside(folder, "metrics.csv"), &found);
        for (size_t i = 0; i < found; i++) {
            lines += bytes[i] == '\n';
        }
        assert_int_equal(lines, 4); /* a header and three epochs */
        free(bytes);
    }
    assert_true(failures >= 9); /* metrics.jsonl, metrics.csv and projections.jsonl */
    free(expected);
}

TEST_WITH(another_number_of_threads_is_told, NULL, reset) {
    char sentence[1024], folder[1024], checkpoint[1100];
    snprintf(folder, sizeof folder, "%s", test_path("threads"));
    assert_int_equal(train(folder, 1, NULL, sentence), TG_OK);
    snprintf(checkpoint, sizeof checkpoint, "%s/checkpoints/step-0000000004.safetensors", folder);
    assert_int_equal(train(folder, 1, checkpoint, sentence), TG_OK);
    assert_null(strstr(heard, "thread"));
    assert_int_equal(train(folder, 2, checkpoint, sentence), TG_OK);
    assert_non_null(strstr(heard, "step-0000000004.safetensors: written by 1 thread, this run "
                                  "has 2: results may differ in their last bits"));
}

/* A checkpoint that says what no run can have counted, with a good checksum. */
static void expect_refusal(const tg_trainer *t, const tg_progress *progress, const char *what) {
    char path[1024], sentence[1024], folder[1024];
    tg_archive *archive = NULL;
    snprintf(path, sizeof path, "%s", test_path("forged.safetensors"));
    snprintf(folder, sizeof folder, "%s", test_path("forged"));
    set_ok(t->ctx, tg_archive_create(t->ctx, &archive));
    set_ok(t->ctx, tg_checkpoint_collect(t->model, t->optim, progress, NULL, archive));
    set_ok(t->ctx, tg_checkpoint_write(t->ctx, path, archive));
    tg_archive_destroy(&archive);
    assert_int_equal(train(folder, 1, path, sentence), TG_E_FORMAT);
    if (!strstr(sentence, what)) {
        fail_msg("expected '%s', found '%s'", what, sentence);
    }
    assert_true(access(folder, F_OK) != 0);
}

TEST_WITH(forged_counters_are_refused, NULL, reset) {
    tg_context *ctx = open_context(1);
    tg_trainer *t = make_trainer(ctx, training_data(ctx), test_path("honest"), NULL);
    tg_train_end end;
    set_ok(ctx, tg_trainer_start(t));
    set_ok(ctx, tg_trainer_run(t, NULL, &end));
    int64_t *const counters[] = {&t->progress.stage,
                                 &t->progress.stage_epoch,
                                 &t->progress.epoch,
                                 &t->progress.batch,
                                 &t->progress.step,
                                 &t->progress.samples,
                                 &t->progress.skipped,
                                 &t->progress.skipped_row,
                                 &t->progress.fno_step,
                                 &t->progress.schedule.epoch,
                                 &t->progress.schedule.waited,
                                 &t->progress.threads};
    const tg_progress honest = t->progress;
    for (size_t i = 0; i < sizeof counters / sizeof counters[0]; i++) {
        static const int64_t forged[] = {INT64_MAX, INT64_MIN, -1, INT64_C(1) << 52};
        for (size_t k = 0; k < sizeof forged / sizeof forged[0]; k++) {
            *counters[i] = forged[k];
            expect_refusal(t, &t->progress, ", expected ");
            t->progress = honest;
        }
    }
    double *const reals[] = {&t->progress.loss_sum, &t->progress.best, &t->progress.schedule.factor,
                             &t->progress.schedule.best};
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        *reals[i] = (double)NAN;
        expect_refusal(t, &t->progress, "nan, expected ");
        t->progress = honest;
    }
    int64_t *const steps[] = {&t->optim->slots[0].step, &t->optim->stats.steps,
                              &t->optim->stats.skipped};
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        const int64_t before = *steps[i];
        *steps[i] = INT64_MAX;
        expect_refusal(t, &honest, "holds impossible counts");
        *steps[i] = before;
    }
    tg_trainer_destroy(&t);
    tg_context_destroy(&ctx);
}

TEST_WITH(a_run_without_one_update_fails, NULL, reset) {
    tg_context *ctx = open_context(1);
    const tg_shape shape = SET_SHAPE(8, 8, 8);
    tg_archive *archive = NULL;
    tg_train_end end;
    set_ok(ctx, tg_archive_create(ctx, &archive));
    for (int side = 0; side < 2; side++) {
        tg_tensor tensor;
        set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &tensor));
        for (int64_t i = 0; i < 512; i++) {
            ((float *)tensor.data)[i] = side ? (float)i : i % 2 ? 3e38F : -3e38F;
        }
        set_ok(ctx, tg_archive_take(archive, side ? "y" : "x", &tensor));
    }
    set_ok(ctx, tg_safetensors_write(ctx, test_path("large.safetensors"), archive));
    tg_archive_destroy(&archive);
    tg_trainer *t = make_trainer(ctx, test_path("large.safetensors"), test_path("large"), NULL);
    set_ok(ctx, tg_trainer_start(t));
    assert_int_equal(tg_trainer_run(t, NULL, &end), TG_E_NUMERIC);
    set_expect_sentence(ctx, "every update was skipped: 6 losses and 0 gradients were not finite");
    assert_false(tg_trainer_is_finished(t));
    tg_trainer_destroy(&t);
    tg_context_destroy(&ctx);
}

/* ---- room on the disk ---- */

static int64_t size_of(const char *folder, int step) {
    char name[1200];
    struct stat facts;
    snprintf(name, sizeof name, "%s/checkpoints/step-%010d.safetensors", folder, step);
    return stat(name, &facts) == 0 ? (int64_t)facts.st_size : -1;
}

/* Before a run it is known what a checkpoint takes, whatever the optimizer keeps. */
TEST_WITH(a_run_without_room_is_refused, NULL, reset) {
    enum { HEADER = 1 << 16 };
    static const char *const methods[][5] = {{"opt.name", "adam"},
                                             {"opt.name", "tensorgrad"},
                                             {"opt.name", "adam", "opt.state_precision", "half"}};
    for (size_t m = 0; m < sizeof methods / sizeof methods[0]; m++) {
        tg_context *ctx = open_context(1);
        char folder[1024], sentence[64];
        snprintf(folder, sizeof folder, "%s/run", test_path("room"));
        tg_trainer *t = make_trainer(ctx, training_data(ctx), folder, methods[m]);
        const uint64_t needed = t->checkpoint_bytes + HEADER;
        tg_train_end end;
        set_ok(ctx, tg_trainer_start(t));
        room = 2 * needed - 1; /* one that is whole, and one that is written */
        assert_int_equal(tg_trainer_run(t, NULL, &end), TG_E_IO);
        snprintf(sentence, sizeof sentence, "this run needs %.4g MiB of the disk for checkpoints",
                 (double)(2 * needed) / 0x1p20);
        set_expect_sentence(ctx, sentence);
        assert_true(access(test_path("room"), F_OK) != 0);
        room = 3 * needed - 1; /* .. and one more that is kept */
        set_ok(ctx, tg_trainer_run(t, NULL, &end));
        assert_non_null(strstr(heard, "fewer are kept when there is no room"));
        assert_true(size_of(folder, 6) >= (int64_t)t->checkpoint_bytes);
        assert_true(size_of(folder, 6) <= (int64_t)needed);
        tg_trainer_destroy(&t);
        t = make_trainer(ctx, training_data(ctx), folder, methods[m]);
        room = 3 * needed;
        heard[0] = '\0';
        set_ok(ctx, tg_trainer_replace(t));
        set_ok(ctx, tg_trainer_run(t, NULL, &end));
        assert_string_equal(heard, "");
        tg_trainer_destroy(&t);
        tg_context_destroy(&ctx);
        char command[1100];
        snprintf(command, sizeof command, "rm -rf '%s'", test_path("room"));
        assert_int_equal(system(command), 0);
    }
}

static void fill_disk(void *user, const tg_train_epoch *epoch) {
    (void)user;
    room = epoch->epoch == 2 ? 0 : room;
}

TEST_WITH(older_checkpoints_make_room, NULL, reset) {
    static const char *const more[] = {"opt.keep_checkpoints", "3", NULL};
    const tg_train_watch watch = {.on_epoch = fill_disk};
    tg_context *ctx = open_context(1);
    char folder[1024];
    snprintf(folder, sizeof folder, "%s", test_path("filled"));
    tg_trainer *t = make_trainer(ctx, training_data(ctx), folder, more);
    tg_train_end end;
    room = UINT64_MAX - 1;
    set_ok(ctx, tg_trainer_start(t));
    set_ok(ctx, tg_trainer_run(t, &watch, &end));
    assert_non_null(
        strstr(heard, "the disk is nearly full: older checkpoints make room for new ones"));
    assert_int_equal(size_of(folder, 2), -1);
    assert_true(size_of(folder, 4) > 0 && size_of(folder, 6) > 0);
    tg_trainer_destroy(&t);
    tg_context_destroy(&ctx);
}

/* ---- runs that end without numbers ---- */

static tg_trainer *spoilt;
static double spoilt_value;

/* After the last step a weight has a value that it should not have. */
static void spoil(void *user, const tg_train_progress *progress) {
    (void)user;
    if (progress->step == 6) {
        const tg_tensor weight = tg_fno_get_param(spoilt->model->fno, 0).weight;
        for (int64_t i = 0; i < tg_tensor_numel(&weight); i++) {
            ((float *)weight.data)[i] = (float)spoilt_value;
        }
    }
}

TEST_WITH(a_run_that_ends_without_numbers_fails, NULL, reset) {
    static const struct {
        double value;
        const char *sentence;
    } cases[] = {{(double)NAN, "the run has diverged: its weights are not finite"},
                 {1e38, "the run has diverged: its test error is not finite any more"}};
    const tg_train_watch watch = {.on_step = spoil};
    for (int i = 0; i < 2; i++) {
        tg_context *ctx = open_context(1);
        char folder[1024], good[1200];
        snprintf(folder, sizeof folder, "%s", test_path(i ? "infinite" : "nan"));
        snprintf(good, sizeof good,
                 "the last good checkpoint is %s/checkpoints/step-0000000004.safetensors, of "
                 "epoch 2",
                 folder);
        const char *const more[] = {"data.test_files", training_data(ctx), NULL};
        spoilt_value = cases[i].value;
        for (int resumes = 0; resumes < 2; resumes++) {
            tg_train_end end;
            bool resumed = false;
            spoilt = make_trainer(ctx, training_data(ctx), folder, more);
            set_ok(ctx, tg_trainer_resume(spoilt, NULL, &resumed));
            assert_int_equal(resumed, resumes);
            assert_false(tg_trainer_is_finished(spoilt));
            assert_int_equal(tg_trainer_run(spoilt, &watch, &end), TG_E_NUMERIC);
            set_expect_sentence(ctx, cases[i].sentence);
            set_expect_sentence(ctx, good);
            assert_true(end.has_diverged && end.is_finished && end.epoch == 3);
            tg_trainer_destroy(&spoilt);
        }
        tg_context_destroy(&ctx);
    }
}

int main(void) {
    return t_run_tests(NULL, test_files_end);
}
