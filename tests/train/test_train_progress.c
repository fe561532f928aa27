/* What a run saves of itself and takes up again: every number of its progress, the schedule that
 * waits, sums of an epoch under way, losses refused in a row, the best model, the masks of dropout;
 * and in which epochs it evaluates and saves. */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nn/network.h"
#include "support/files.h"
#include "support/sets.h"
#include "support/training.h"
#include "train/trainer.h"

#define MORE(...) ((const char *const[]){__VA_ARGS__, NULL})

static tg_context *ctx;

/* ---- the numbers ---- */

/* All different, none 0. */
static const tg_progress full = {
    .stage = 1,
    .stage_epoch = 3,
    .epoch = 5,
    .batch = 2,
    .step = 17,
    .samples = 11,
    .skipped = 7,
    .skipped_row = 4,
    .fno_step = 19,
    .loss_sum = 0.625,
    .best = 0.375,
    .diverged = TG_DIVERGED_WEIGHTS,
    .schedule = {.epoch = 6, .waited = 8, .factor = 0.5, .best = 0.25}};

/* A field that is added to the progress has to be added here, too. */
static void expect_progress(const tg_progress *p) {
    assert_int_equal(p->stage, full.stage);
    assert_int_equal(p->stage_epoch, full.stage_epoch);
    assert_int_equal(p->epoch, full.epoch);
    assert_int_equal(p->batch, full.batch);
    assert_int_equal(p->step, full.step);
    assert_int_equal(p->samples, full.samples);
    assert_int_equal(p->skipped, full.skipped);
    assert_int_equal(p->skipped_row, full.skipped_row);
    assert_int_equal(p->fno_step, full.fno_step);
    assert_true(p->loss_sum == full.loss_sum);
    assert_true(p->best == full.best);
    assert_int_equal(p->diverged, full.diverged);
    assert_int_equal(p->schedule.epoch, full.schedule.epoch);
    assert_int_equal(p->schedule.waited, full.schedule.waited);
    assert_true(p->schedule.factor == full.schedule.factor);
    assert_true(p->schedule.best == full.schedule.best);
}

static tg_progress read_progress(const char *path) {
    tg_archive *archive = NULL;
    tg_progress progress;
    set_ok(ctx, tg_checkpoint_read(ctx, path, true, &archive));
    set_ok(ctx, tg_checkpoint_load_progress(ctx, path, archive, &progress));
    tg_archive_destroy(&archive);
    return progress;
}

TEST(test_every_number_is_saved) {
    const char *path = test_path("full.safetensors");
    tg_settings *settings = run_settings(ctx, "good", MORE("opt.n_epochs", "8"));
    tg_archive *archive = NULL;
    tg_trainer *trainer = NULL;
    bool resumed = false;
    set_ok(ctx, tg_trainer_create(ctx, NULL, settings, run_file("full", ""), &trainer));
    set_ok(ctx, tg_archive_create(ctx, &archive));
    set_ok(ctx, tg_checkpoint_collect(trainer->model, trainer->optim, &full, NULL, archive));
    set_ok(ctx, tg_checkpoint_write(ctx, path, archive));
    tg_archive_destroy(&archive);
    const tg_progress saved = read_progress(path);
    expect_progress(&saved);
    set_ok(ctx, tg_trainer_resume(trainer, path, &resumed));
    assert_true(resumed);
    expect_progress(&trainer->progress);
    assert_int_equal(tg_fno_step(trainer->model->fno), full.fno_step);
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
}

/* ---- stopped after any batch ---- */

/* The run as it is, and stopped after every update and resumed: what it reports and
 * saves is the same to the bit. */
static void check_stops(const char *kind, const char *const *settings, run_record *whole) {
    char name[64];
    *whole = (run_record){0};
    set_ok(ctx, run_train(ctx, "good", kind, settings, false, whole));
    for (int64_t stop = 1; stop < whole->batches; stop++) {
        snprintf(name, sizeof name, "%s_%d", kind, (int)stop);
        run_record parts = {.stop_after = stop};
        set_ok(ctx, run_train(ctx, "good", name, settings, false, &parts));
        assert_false(parts.end.is_finished);
        assert_int_equal(parts.end.step, stop);
        parts.stop_after = 0;
        set_ok(ctx, run_train(ctx, "good", name, settings, true, &parts));
        assert_int_equal(parts.epochs, whole->epochs);
        for (int i = 0; i < whole->epochs; i++) {
            const tg_train_epoch *a = &parts.epoch[i], *b = &whole->epoch[i];
            if (a->train_loss != b->train_loss || a->learning_rate != b->learning_rate ||
                a->step != b->step || a->test[0].l2 != b->test[0].l2) {
                fail_msg("%s, stopped after %d, epoch %d: loss %.17g and %.17g, rate %g and %g",
                         kind, (int)stop, i + 1, a->train_loss, b->train_loss, a->learning_rate,
                         b->learning_rate);
            }
        }
        test_same_file(parts.end.checkpoint, whole->end.checkpoint);
    }
}

/* A schedule that waits, and dropout. */
TEST(test_stops_with_a_plateau) {
    run_record whole;
    check_stops("plateau",
                MORE("opt.n_epochs", "6", "opt.scheduler", "ReduceLROnPlateau",
                     "opt.scheduler_patience", "1", "opt.gamma", "0.5", "opt.learning_rate", "0.3",
                     "fno.channel_mlp_dropout", "0.2"),
                &whole);
    int reductions = 0, kept = 0;
    for (int i = 1; i < whole.epochs; i++) {
        reductions += whole.epoch[i].learning_rate < whole.epoch[i - 1].learning_rate;
        kept += whole.epoch[i].learning_rate == whole.epoch[i - 1].learning_rate;
    }
    assert_true(reductions >= 1 && kept >= 2); /* otherwise patience would not be tested */
}

static void expect_rates(const run_record *whole, const double *rates, int count) {
    assert_int_equal(whole->epochs, count);
    for (int i = 0; i < count; i++) {
        assert_true(fabs(whole->epoch[i].learning_rate - rates[i]) <= 1e-15);
    }
}

/* Stages with their own rates and batches, sums of two batches: 3 updates of 5 batches in each
 * epoch of the first stage, 1 of 2 in the second. A stage with a rate of its own begins its
 * schedule anew. */
TEST(test_stops_with_stages) {
    static const double rates[] = {0.01, 0.005, 0.02, 0.01};
    run_record whole;
    check_stops("stages",
                MORE("opt.n_epochs", "2", "opt.scheduler", "StepLR", "opt.step_size", "1",
                     "opt.gamma", "0.5", "opt.accumulation_steps", "2", "stage2.opt.n_epochs", "2",
                     "stage2.opt.learning_rate", "0.02", "stage2.data.batch_size", "10"),
                &whole);
    expect_rates(&whole, rates, 4);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(whole.epoch[i].step, i < 2 ? 3 * (i + 1) : 6 + (i - 1));
        assert_int_equal(whole.epoch[i].epochs, 4);
    }
}

/* A stage without keys of the schedule continues that of the stage before, which has counted 3
 * epochs by then; a third one that sets the rate again starts over. */
TEST(test_stages_share_a_schedule) {
    static const double rates[] = {0.04, 0.04, 0.02, 0.02, 0.01, 0.01, 0.04, 0.04, 0.02};
    run_record whole;
    check_stops("shared",
                MORE("opt.n_epochs", "3", "opt.learning_rate", "0.04", "opt.scheduler", "StepLR",
                     "opt.step_size", "2", "opt.gamma", "0.5", "data.batch_size", "10",
                     "stage2.opt.n_epochs", "3", "stage2.data.batch_size", "20",
                     "stage3.opt.learning_rate", "0.04"),
                &whole);
    expect_rates(&whole, rates, 9);
}

/* So does a plateau: its reductions and what it waits for. */
TEST(test_stages_share_a_plateau) {
    run_record one, two;
    check_stops("one_plateau",
                MORE("opt.n_epochs", "6", "opt.scheduler", "ReduceLROnPlateau",
                     "opt.scheduler_patience", "0", "opt.learning_rate", "2"),
                &one);
    check_stops("two_plateaus",
                MORE("opt.n_epochs", "3", "opt.scheduler", "ReduceLROnPlateau",
                     "opt.scheduler_patience", "0", "opt.learning_rate", "2", "stage2.opt.n_epochs",
                     "3"),
                &two);
    assert_true(one.epoch[2].learning_rate < one.epoch[0].learning_rate);
    for (int i = 0; i < 6; i++) {
        assert_true(one.epoch[i].learning_rate == two.epoch[i].learning_rate);
        assert_true(one.epoch[i].train_loss == two.epoch[i].train_loss);
    }
}

/* Compressed gradients; every line of projections.jsonl adds up. */
TEST(test_stops_with_projections) {
    run_record whole;
    check_stops("projected",
                MORE("opt.name", "tensorgrad", "opt.n_epochs", "2", "opt.min_entries", "10",
                     "opt.update_proj_gap", "4", "opt.track_stable_rank", "true"),
                &whole);
    test_same_file(run_file("projected", "projections.jsonl"),
                   run_file("projected_3", "projections.jsonl"));
    test_same_file(run_file("projected", "stable_ranks.jsonl"),
                   run_file("projected_3", "stable_ranks.jsonl"));
    FILE *file = fopen(run_file("projected", "projections.jsonl"), "r");
    char line[4096];
    int lines = 0;
    assert_non_null(file);
    for (; fgets(line, sizeof line, file); lines++) {
        json_t *root = json_loads(line, 0, NULL), *row;
        size_t i;
        double squares = 0.0;
        json_int_t bytes = 0;
        const json_t *rows = json_object_get(root, "parameters");
        json_array_foreach(rows, i, row) {
            squares += pow(json_real_value(json_object_get(row, "error")), 2.0);
            bytes += json_integer_value(json_object_get(row, "bytes"));
        }
        assert_int_equal(json_array_size(rows), 2); /* one spectral weight in each layer */
        assert_int_equal(json_integer_value(json_object_get(root, "bytes")), bytes);
        assert_int_equal(json_integer_value(json_object_get(root, "step")), 4 * lines + 1);
        assert_true(fabs(json_real_value(json_object_get(root, "error")) - sqrt(squares / 2.0)) <=
                    1e-8);
        json_decref(root);
    }
    fclose(file);
    assert_int_equal(lines, 3); /* refreshes at updates 0, 4 and 8 */
}

TEST(test_another_seed_is_refused) {
    run_record record = {0};
    set_ok(ctx, run_train(ctx, "good", "seed", MORE("opt.n_epochs", "1"), false, &record));
    assert_int_equal(run_train(ctx, "good", "seed",
                               MORE("opt.n_epochs", "2", "distributed.seed", "6"), true, &record),
                     TG_E_CONFIG);
    set_expect_sentence(ctx, "distributed.seed (5 there, 6 here)");
}

/* ---- the best model ---- */

/* The epoch (0-based) of the least error: H1 of test set `test`, or L2. */
static int least_of(const run_record *record, int test, bool is_h1) {
    int best = 0;
    for (int i = 1; i < record->epochs; i++) {
        const tg_test_errors *error = &record->epoch[i].test[test];
        const tg_test_errors *least = &record->epoch[best].test[test];
        best = (is_h1 ? error->h1 < least->h1 : error->l2 < least->l2) ? i : best;
    }
    return best;
}

/* Two good epochs, then a rate that ruins the model: the best one stays, also across a resume. It
 * is the best by the norm that is trained. */
TEST(test_the_best_model_stays) {
    const char *path = run_file("best", "checkpoints/best.safetensors");
    run_record record = {0};
    set_ok(ctx, run_train(ctx, "good", "best", MORE("opt.n_epochs", "2"), false, &record));
    set_ok(ctx, run_train(ctx, "good", "best", MORE("opt.n_epochs", "5", "opt.learning_rate", "2"),
                          true, &record));
    assert_int_equal(record.epochs, 5);
    int best = least_of(&record, 0, true);
    assert_true(best < 2); /* otherwise nothing would be tested */
    const tg_progress progress = read_progress(path);
    assert_int_equal(progress.epoch, best + 1);
    assert_true(progress.best == record.epoch[best].test[0].h1);
    const tg_progress last = read_progress(record.end.checkpoint);
    assert_int_equal(last.epoch, 5);
    assert_true(last.best == record.epoch[best].test[0].h1);
    /* each time it gets better it is replaced */
    run_record rising = {0};
    set_ok(ctx, run_train(ctx, "good", "rising",
                          MORE("opt.n_epochs", "4", "opt.training_loss", "l2"), false, &rising));
    best = least_of(&rising, 0, false);
    assert_true(best > 0);
    assert_int_equal(read_progress(run_file("rising", "checkpoints/best.safetensors")).epoch,
                     best + 1);
}

/* As a checkpoint was before opt.best_metric: without the key. */
static void forget_metric(const char *path) {
    tg_archive *archive = NULL;
    set_ok(ctx, tg_safetensors_read(ctx, path, &archive));
    char *text = strdup(tg_archive_meta(archive, "tgrad.config"));
    char *line = strstr(text, "  best_metric:");
    assert_non_null(line);
    const char *rest = strchr(line, '\n') + 1;
    memmove(line, rest, strlen(rest) + 1);
    set_ok(ctx, tg_archive_set_meta(archive, "tgrad.config", text));
    set_ok(ctx, tg_checkpoint_write(ctx, path, archive));
    tg_archive_destroy(&archive);
    free(text);
}

static tg_progress read_best(void) {
    return read_progress(run_file("metric", "checkpoints/best.safetensors"));
}

/* opt.best_metric names the error; where it changes, also because a run is older than the key, the
 * errors of before do not count. */
TEST(test_the_best_model_is_by_a_metric) {
    static const struct {
        const char *key, *value, *metric;
        int test;
        bool is_h1;
    } rows[] = {{"opt.training_loss", "h1", "", 0, true},
                {"opt.training_loss", "hs1 + l2", "", 0, true},
                {"opt.training_loss", "l2 + 0.1*h1", "", 0, false},
                {"opt.training_loss", "hs0.5", "", 0, false},
                {"opt.training_loss", "h1", "l2", 0, false},
                {"opt.training_loss", "l2", "8.h1", 1, true},
                {"data.n_validation", "3", "", 2, true},
                {"data.n_validation", "3", "16.l2", 0, false}};
    run_write_set(ctx, "good", "test", 8, 4, 6, NULL);
    for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++) {
        run_record record = {0};
        set_ok(ctx, run_train(ctx, "good", "metric",
                              MORE("opt.n_epochs", "6", "data.test_resolutions", "[16, 8]",
                                   "opt.learning_rate", "0.1", rows[r].key, rows[r].value,
                                   "opt.best_metric", rows[r].metric),
                              false, &record));
        const int least = least_of(&record, rows[r].test, rows[r].is_h1);
        const tg_test_errors *errors = &record.epoch[least].test[rows[r].test];
        const tg_progress progress = read_best();
        assert_int_equal(progress.epoch, least + 1);
        assert_true(progress.best == (rows[r].is_h1 ? errors->h1 : errors->l2));
        run_folders_remove();
    }
    run_record record = {0};
    const char *const wrong[][2] = {{"24.h1", "there is no test set 24, but 16"},
                                    {"mse", "'mse' is not l2 or h1"},
                                    {".h1", "'.h1' is not l2 or h1"}};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(
            run_train(ctx, "good", "metric", MORE("opt.best_metric", wrong[i][0]), false, &record),
            TG_E_CONFIG);
        set_expect_sentence(ctx, wrong[i][1]);
    }
    record = (run_record){0};
    set_ok(ctx, run_train(ctx, "good", "metric", MORE("opt.n_epochs", "1", "opt.best_metric", "l2"),
                          false, &record));
    forget_metric(record.end.checkpoint);
    set_ok(ctx, run_train(ctx, "good", "metric", MORE("opt.n_epochs", "2", "opt.best_metric", "l2"),
                          true, &record));
    assert_true(read_best().best == record.epoch[least_of(&record, 0, false)].test[0].l2);
    forget_metric(record.end.checkpoint);
    set_ok(ctx, run_train(ctx, "good", "metric",
                          MORE("opt.n_epochs", "3", "opt.learning_rate", "2"), true, &record));
    assert_true(record.epoch[2].test[0].h1 > record.epoch[1].test[0].l2); /* and still the best */
    assert_true(read_best().best == record.epoch[2].test[0].h1);
}

/* What is both the newest and the best is written once; a better one leaves it alone. */
TEST(test_the_best_model_is_written_once) {
    const char *path = run_file("once", "checkpoints/best.safetensors");
    char first[1100];
    struct stat best, newest;
    run_record record = {0};
    set_ok(ctx, run_train(ctx, "good", "once", MORE("opt.n_epochs", "1", "opt.training_loss", "l2"),
                          false, &record));
    assert_int_equal(stat(path, &best), 0);
    assert_int_equal(stat(record.end.checkpoint, &newest), 0);
    assert_true(best.st_ino == newest.st_ino);
    snprintf(first, sizeof first, "%s", record.end.checkpoint);
    set_ok(ctx, run_train(ctx, "good", "once",
                          MORE("opt.n_epochs", "4", "opt.training_loss", "l2",
                               "opt.keep_checkpoints", "9"),
                          true, &record));
    assert_true(read_progress(path).epoch > 1);
    assert_int_equal(read_progress(first).epoch, 1);
}

/* ---- when ---- */

static bool has_checkpoint(const char *run, int64_t step) {
    char file[64];
    snprintf(file, sizeof file, "checkpoints/step-%010d.safetensors", (int)step);
    return access(run_file(run, file), F_OK) == 0;
}

/* Epochs that are evaluated and saved: every third and the last; 5 steps each. */
TEST(test_when_it_evaluates_and_saves) {
    run_record record = {0};
    set_ok(ctx, run_train(ctx, "good", "when",
                          MORE("opt.n_epochs", "7", "opt.eval_interval", "3", "opt.save_every", "3",
                               "opt.keep_checkpoints", "9"),
                          false, &record));
    assert_int_equal(record.epochs, 7);
    for (int epoch = 1; epoch <= 7; epoch++) {
        const bool is_due = epoch == 3 || epoch == 6 || epoch == 7;
        assert_int_equal(record.epoch[epoch - 1].epoch, epoch);
        assert_int_equal(record.epoch[epoch - 1].step, 5 * epoch);
        assert_int_equal(record.epoch[epoch - 1].test_count, is_due ? 1 : 0);
        assert_int_equal(has_checkpoint("when", 5 * epoch), is_due);
    }
    run_record few = {0};
    set_ok(ctx, run_train(ctx, "good", "few",
                          MORE("opt.n_epochs", "6", "opt.keep_checkpoints", "3"), false, &few));
    for (int epoch = 1; epoch <= 6; epoch++) {
        assert_int_equal(has_checkpoint("few", 5 * epoch), epoch >= 4);
    }
}

/* ---- losses that are not finite ---- */

#define RAW "data.encode_output", "false", "data.shuffle", "false"

/* Batches 1 and 2 of 5 are refused. The mean loss is that of the other ones: of a set without
 * them, by a network that does not learn. */
TEST(test_refused_batches_do_not_count) {
    run_record with = {0}, without = {0};
    set_ok(ctx, run_train(ctx, "broken", "refused",
                          MORE("opt.n_epochs", "2", "opt.learning_rate", "0", "opt.nonfinite_limit",
                               "3", RAW),
                          false, &with));
    set_ok(ctx,
           run_train(ctx, "spared", "spared",
                     MORE("opt.n_epochs", "2", "opt.learning_rate", "0", RAW), false, &without));
    for (int i = 0; i < 2; i++) {
        assert_int_equal(with.epoch[i].skipped, 2 * (i + 1));
        assert_int_equal(with.epoch[i].step, 3 * (i + 1));
        assert_true(fabs(with.epoch[i].train_loss - without.epoch[i].train_loss) <=
                    1e-12 * without.epoch[i].train_loss);
    }
}

/* A streamed set is opened once to find the samples: they are named after its file is gone, too. */
static int named;

static void hear(void *user, tg_log_level level, const char *message) {
    (void)user;
    (void)level;
    if (strstr(message, "lost_train_16.safetensors: y: sample")) {
        unlink(test_path("lost_train_16.safetensors"));
        named++;
    }
}

TEST(test_refused_batches_are_named) {
    run_record record = {0};
    named = 0;
    set_ok(ctx,
           run_train(ctx, "lost", "lost",
                     MORE("opt.n_epochs", "2", "opt.nonfinite_limit", "3", "data.cache", "0", RAW),
                     false, &record));
    assert_int_equal(named, 4);
}

/* The row goes on after a resume, and ends with a good batch. */
TEST(test_rows_of_refused_batches) {
    static const char *const two[] = {"opt.n_epochs", "2", "opt.nonfinite_limit", "2", RAW, NULL};
    run_record record = {0};
    assert_int_equal(run_train(ctx, "broken", "row", two, false, &record), TG_E_NUMERIC);
    set_expect_sentence(ctx, "not finite 2 times in a row");
    set_expect_sentence(ctx, "epoch 1, batch 3");
    record = (run_record){.stop_after = 2};
    set_ok(ctx, run_train(ctx, "broken", "row_stopped", two, false, &record));
    assert_int_equal(read_progress(record.end.checkpoint).skipped_row, 1);
    record.stop_after = 0;
    assert_int_equal(run_train(ctx, "broken", "row_stopped", two, true, &record), TG_E_NUMERIC);
    set_expect_sentence(ctx, "epoch 1, batch 3");
    record = (run_record){0};
    set_ok(ctx, run_train(ctx, "spread", "row_ended", two, false, &record));
    assert_int_equal(record.epoch[1].skipped, 4);
}

/* ---- which time of y ---- */

/* The second of two times is NaN: only the first can be trained on. */
TEST(test_time_of_the_target) {
    tg_archive *good = NULL, *timed = NULL;
    tg_tensor x = {0}, y = {0};
    run_record record = {0};
    static const char *const parts[] = {"train", "test"};
    for (int part = 0; part < 2; part++) {
        char name[64];
        snprintf(name, sizeof name, "good_%s_16.safetensors", parts[part]);
        set_ok(ctx, tg_archive_read(ctx, test_path(name), &good));
        const tg_tensor *from = tg_archive_find(good, "y");
        const int64_t samples = from->shape.dim[0];
        const tg_shape shape = SET_SHAPE(samples, 2, 16);
        set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &from->shape, &x));
        set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &y));
        memcpy(x.data, tg_archive_find(good, "x")->data, tg_tensor_bytes(&x));
        for (int64_t i = 0; i < samples * 32; i++) {
            ((float *)y.data)[i] =
                i / 16 % 2 ? NAN : ((const float *)from->data)[i / 32 * 16 + i % 16];
        }
        set_ok(ctx, tg_archive_create(ctx, &timed));
        set_ok(ctx, tg_archive_take(timed, "x", &x));
        set_ok(ctx, tg_archive_take(timed, "y", &y));
        snprintf(name, sizeof name, "timed_%s_16.safetensors", parts[part]);
        set_ok(ctx, tg_archive_write(ctx, test_path(name), timed));
        tg_archive_destroy(&timed);
        tg_archive_destroy(&good);
    }
    run_record plain = {0};
    set_ok(ctx, run_train(ctx, "timed", "timed", MORE("opt.n_epochs", "1", "data.y_time", "0"),
                          false, &record));
    set_ok(ctx, run_train(ctx, "good", "plain", MORE("opt.n_epochs", "1"), false, &plain));
    assert_true(record.epoch[0].train_loss == plain.epoch[0].train_loss);
    assert_true(record.epoch[0].test[0].h1 == plain.epoch[0].test[0].h1);
    static const char *const bad[] = {"1", "last", "2"};
    for (int i = 0; i < 3; i++) {
        assert_int_not_equal(run_train(ctx, "timed", "bad_time",
                                       MORE("opt.n_epochs", "1", "data.y_time", bad[i]), false,
                                       &record),
                             TG_OK);
    }
}

/* ---- */

/* 20 samples in 5 batches of 4. `broken` has a NaN in batches 1 and 2, `spread` in 1 and 3;
 * `spared` is the good part of `broken`. */
static void write_spared(void) {
    tg_tensor x, y, rows;
    tg_archive *whole = NULL, *part = NULL;
    set_ok(ctx, tg_archive_read(ctx, test_path("good_train_16.safetensors"), &whole));
    set_ok(ctx, tg_archive_create(ctx, &part));
    tg_tensor *const sides[2] = {&x, &y};
    static const char *const names[2] = {"x", "y"};
    const tg_shape shape = SET_SHAPE(12, 16);
    for (int side = 0; side < 2; side++) {
        const tg_tensor *from = tg_archive_find(whole, names[side]);
        set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, sides[side]));
        set_ok(ctx, tg_tensor_slice(ctx, from, 0, 4, &rows));
        memcpy(sides[side]->data, rows.data, tg_tensor_bytes(&rows));
        set_ok(ctx, tg_tensor_slice(ctx, from, 12, 8, &rows));
        memcpy((float *)sides[side]->data + 4 * 16, rows.data, tg_tensor_bytes(&rows));
        set_ok(ctx, tg_archive_take(part, names[side], sides[side]));
    }
    set_ok(ctx, tg_archive_write(ctx, test_path("spared_train_16.safetensors"), part));
    tg_archive_destroy(&whole);
    tg_archive_destroy(&part);
}

static int setup(void **state) {
    (void)state;
    const tg_context_config config = {
        .size = sizeof(tg_context_config), .device = -1, .threads = 1, .log = hear};
    assert_int_equal(tg_context_create(&config, &ctx), TG_OK);
    set_ok(ctx, tg_backend_select(ctx, "cpu"));
    static const char *const sets[] = {"good", "broken", "spread", "spared", "lost"};
    for (int i = 0; i < 5; i++) {
        run_write_set(ctx, sets[i], "test", 16, 6, 2, NULL);
    }
    run_write_set(ctx, "good", "train", 16, 20, 1, NULL);
    run_write_set(ctx, "broken", "train", 16, 20, 1, (const int64_t[]){5, 10, -1});
    run_write_set(ctx, "spread", "train", 16, 20, 1, (const int64_t[]){5, 12, -1});
    run_write_set(ctx, "lost", "train", 16, 20, 1, (const int64_t[]){5, 10, -1});
    write_spared();
    return 0;
}

static int teardown(void **state) {
    (void)state;
    tg_context_destroy(&ctx);
    run_folders_remove();
    test_folder_remove();
    return 0;
}

int main(void) {
    return t_run_tests(setup, teardown);
}
