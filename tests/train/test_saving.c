/* Checkpoints that are written while a run goes on, as it is on a device: steps do not wait for
 * them, each holds the state of its own step, and when one cannot be written the run says so, in
 * the words of the one who waits. The system's calls are put in front of the C library's by this
 * program. */
#define _GNU_SOURCE
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "support/fake_device.h"
#include "support/files.h"
#include "support/sets.h"
#include "support/training.h"
#include "train/trainer.h"

/* ---- the system, as the test wants it: seen by a shared library, too ---- */

#pragma GCC visibility push(default)

static pthread_t owner;
static atomic_int steps;       /* reported to the watcher */
static atomic_int held_until;  /* writing waits until `steps` has this value; 0: no wait */
static atomic_int held;        /* pieces of another thread that were held so, .. */
static atomic_int late;        /* .. and those that waited in vain */
static atomic_int pieces_left; /* until the disk is full; negative: it never is */

static void wait_for_steps(int wanted) {
    const struct timespec moment = {.tv_nsec = 1000000};
    int patience = 20000;
    atomic_fetch_add(&held, wanted > 0);
    while (atomic_load(&steps) < wanted && patience-- > 0) {
        nanosleep(&moment, NULL);
    }
    atomic_fetch_add(&late, patience < 0);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t offset) {
    if (!pthread_equal(pthread_self(), owner)) {
        wait_for_steps(atomic_load(&held_until));
        if (atomic_load(&pieces_left) >= 0 && atomic_fetch_sub(&pieces_left, 1) <= 0) {
            atomic_store(&pieces_left, 0);
            errno = ENOSPC;
            return -1;
        }
    }
    return (ssize_t)syscall(SYS_pwrite64, fd, bytes, count, offset);
}

/* Nothing here waits for a disk. */
int fsync(int fd) {
    (void)fd;
    return 0;
}

#pragma GCC visibility pop

/* ---- runs ---- */

static tg_context *ctx;
static tg_trainer *trainer; /* that trains now */
static char heard[2048];    /* the last warning */

static void hear(void *user, tg_log_level level, const char *message) {
    (void)user;
    if (level == TG_LOG_WARN) {
        snprintf(heard, sizeof heard, "%s", message);
    }
}

static int begin(void **state) {
    (void)state;
    tg_context_config config = tg_context_config_default();
    config.threads = 1;
    config.log = hear;
    heard[0] = '\0';
    owner = pthread_self();
    steps = held_until = held = late = 0;
    pieces_left = -1;
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    set_ok(ctx, tg_backend_select(ctx, "fake"));
    run_write_set(ctx, "good", "train", 16, 12, 3, NULL);
    run_write_set(ctx, "good", "test", 16, 4, 4, NULL);
    return 0;
}

static int end(void **state) {
    (void)state;
    run_folders_remove();
    tg_context_destroy(&ctx);
    return 0;
}

enum { EPOCHS = 4, BATCHES = 3 };

static void count_step(void *user, const tg_train_progress *progress) {
    (void)user;
    (void)progress;
    atomic_fetch_add(&steps, 1);
}

static tg_status train(const char *name, const tg_train_watch *watch, tg_train_end *out) {
    static const char *const more[] = {"opt.n_epochs",
                                       "4",
                                       "data.batch_size",
                                       "4",
                                       "opt.name",
                                       "tensorgrad",
                                       "opt.min_entries",
                                       "10",
                                       "opt.update_proj_gap",
                                       "2",
                                       "opt.keep_checkpoints",
                                       "4",
                                       "opt.nonfinite_limit",
                                       "2",
                                       NULL};
    tg_settings *settings = run_settings(ctx, "good", more);
    bool resumed = false;
    set_ok(ctx, tg_trainer_create(ctx, NULL, settings, run_file(name, ""), &trainer));
    tg_status status = tg_trainer_resume(trainer, NULL, &resumed);
    status = status == TG_OK ? tg_trainer_run(trainer, watch, out) : status;
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
    return status;
}

static const tg_train_watch counting = {.on_step = count_step};

static const char *checkpoint(const char *run, int epoch) {
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step-%010d.safetensors", epoch * BATCHES);
    return run_file(run, name);
}

/* No checkpoint is written before the second epoch is at its end; each holds the weights of its own
 * step all the same. */
TEST_WITH(steps_do_not_wait_for_files, begin, end) {
    tg_train_end fast, slow;
    set_ok(ctx, train("fast", &counting, &fast));
    steps = 0;
    held_until = 2 * BATCHES;
    set_ok(ctx, train("slow", &counting, &slow));
    assert_true(atomic_load(&held) > 0);
    assert_int_equal(atomic_load(&late), 0);
    assert_true(slow.is_finished);
    for (int epoch = 1; epoch <= EPOCHS; epoch++) {
        test_same_file(checkpoint("slow", epoch), checkpoint("fast", epoch));
    }
    test_same_file(slow.checkpoint, checkpoint("fast", EPOCHS));
    assert_string_equal(heard, "");
}

/* The run ends with the sentence of the one who wrote, and goes on from the checkpoint before. */
TEST_WITH(a_full_disk_is_the_error_of_the_run, begin, end) {
    enum { STRIDE = 37 };
    tg_train_end whole, part;
    int failures = 0;
    tg_status status = TG_OK;
    set_ok(ctx, train("whole", &counting, &whole));
    for (int pieces = 0; pieces == 0 || status != TG_OK; pieces += STRIDE, failures++) {
        char name[32];
        snprintf(name, sizeof name, "part.%d", pieces);
        pieces_left = pieces;
        status = train(name, &counting, &part);
        pieces_left = -1;
        if (status != TG_OK) {
            assert_int_equal(status, TG_E_IO);
            set_expect_sentence(ctx, "cannot write: No space left");
            set_ok(ctx, train(name, &counting, &part));
        }
        assert_true(part.is_finished);
        test_same_file(part.checkpoint, whole.checkpoint);
    }
    assert_true(failures >= EPOCHS);
}

static void fill_weight(double value) {
    const tg_tensor weight = tg_fno_get_param(trainer->model->fno, 0).weight;
    set_ok(ctx,
           trainer->model->be->ops->fill(trainer->model->be, weight.dtype, tg_tensor_numel(&weight),
                                         (tg_scalar){.re = value}, weight.data));
}

/* The model gets worse after the first epoch; the disk has room again after the third one. */
static void empty_disk(void *user, const tg_train_epoch *epoch) {
    double *errors = user;
    errors[epoch->epoch - 1] = epoch->test[0].h1;
    if (epoch->epoch == 1) {
        fill_weight(8.0);
    }
    if (epoch->epoch == 3) {
        atomic_store(&pieces_left, -1);
    }
}

/* A best one that cannot be written is a warning, and its error is not the one to beat: a later one
 * is the best, although it is worse. */
TEST_WITH(a_run_goes_on_without_its_best, begin, end) {
    static const char *const more[] = {
        "opt.n_epochs", "4", "data.batch_size", "4", "opt.save_every", "9", "opt.learning_rate",
        "1e-6",         NULL};
    double errors[EPOCHS] = {0};
    const tg_train_watch watch = {.user = errors, .on_epoch = empty_disk};
    tg_settings *settings = run_settings(ctx, "good", more);
    tg_train_end out;
    set_ok(ctx, tg_trainer_create(ctx, NULL, settings, run_file("lost", ""), &trainer));
    set_ok(ctx, tg_trainer_start(trainer));
    pieces_left = 0;
    set_ok(ctx, tg_trainer_run(trainer, &watch, &out));
    assert_true(out.is_finished);
    assert_non_null(strstr(heard, "the best checkpoint stays the one before"));
    assert_true(errors[0] < errors[2] && errors[0] < errors[3]); /* otherwise nothing is tested */
    assert_int_equal(access(run_file("lost", "checkpoints/best.safetensors"), F_OK), 0);
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
}

static void spoil_weights(void *user, const tg_train_epoch *epoch) {
    (void)user;
    (void)epoch;
    fill_weight((double)NAN);
}

/* What ends a run is not forgotten over a checkpoint that fails beside it. */
TEST_WITH(the_first_error_stays, begin, end) {
    const tg_train_watch spoiling = {.on_epoch = spoil_weights};
    tg_train_end out;
    pieces_left = 0;
    assert_int_equal(train("spoilt", &spoiling, &out), TG_E_NUMERIC);
    set_expect_sentence(ctx, "the loss was not finite 2 times in a row");
    assert_non_null(strstr(heard, "cannot write: No space left"));
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, test_files_end);
}
