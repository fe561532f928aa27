/* Samples set apart for validation, and runs that end early by their error: which samples they are,
 * that training does not see them, when a run stops, and that it stops there after a resume, too.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/context.h"
#include "support/files.h"
#include "support/sets.h"
#include "support/training.h"

enum { POINTS = 16, SAMPLES = 21, HELD = 5, PATIENCE = 3 };

static int prepare(void **state) {
    (void)state;
    test_context_begin(state);
    run_write_set(ctx, "whole", "train", POINTS, SAMPLES, 1, NULL);
    run_write_set(ctx, "whole", "test", POINTS, 3, 2, NULL);
    return 0;
}

static int finish(void **state) {
    tg_context_destroy(&ctx); /* with the backend that training chose */
    return test_files_end(state);
}

/* Sample `index` of a set opened with `config`, as x. */
static void read_sample(tg_dataset *set, int64_t index, float *x) {
    assert_int_equal(tg_dataset_read(set, &index, 1, x, NULL), TG_OK);
}

TEST(test_samples) {
    for (int cached = 0; cached < 2; cached++) {
        tg_dataset *all = NULL, *train = NULL, *held = NULL;
        tg_dataset_config config = tg_dataset_config_default();
        config.n_dim = 1;
        config.cache_bytes = cached ? 1 << 20 : 0;
        const char *path = test_path("whole_train_16.safetensors");
        set_ok(ctx, tg_dataset_open(ctx, path, NULL, &config, &all));
        config.n_validation = HELD;
        set_ok(ctx, tg_dataset_open(ctx, path, NULL, &config, &train));
        config.is_validation = true;
        set_ok(ctx, tg_dataset_open(ctx, path, NULL, &config, &held));
        assert_int_equal(tg_dataset_get_facts(train).samples, SAMPLES - HELD);
        assert_int_equal(tg_dataset_get_facts(held).samples, HELD);
        for (int64_t i = 0; i < SAMPLES; i++) {
            float expected[POINTS], found[POINTS];
            const bool is_held = i >= SAMPLES - HELD;
            read_sample(all, i, expected);
            read_sample(is_held ? held : train, is_held ? i - (SAMPLES - HELD) : i, found);
            assert_memory_equal(expected, found, sizeof found);
        }
        tg_dataset_close(&all);
        tg_dataset_close(&train);
        tg_dataset_close(&held);
        config.n_validation = SAMPLES;
        assert_int_equal(tg_dataset_open(ctx, path, NULL, &config, &held), TG_E_CONFIG);
        assert_non_null(strstr(tg_context_error(ctx), "leave none of 21"));
    }
}

static void run(const char *name, const char *const *more, bool resumes, run_record *record) {
    set_ok(ctx, run_train(ctx, "whole", name, more, resumes, record));
}

/* Training on what is left is training on a file without them. */
TEST(test_training) {
    static run_record apart, fewer;
    const char *const first[] = {"opt.n_epochs", "3", "data.n_validation", "5", NULL};
    const char *const second[] = {"opt.n_epochs", "3", "data.n_train", "16", NULL};
    apart = fewer = (run_record){0};
    run("apart", first, false, &apart);
    run("fewer", second, false, &fewer);
    assert_int_equal(apart.epochs, 3);
    for (int e = 0; e < 3; e++) {
        assert_true(apart.epoch[e].train_loss == fewer.epoch[e].train_loss);
        assert_int_equal(apart.epoch[e].test_count, 2);
        assert_true(apart.epoch[e].test[0].l2 == fewer.epoch[e].test[0].l2);
        assert_string_equal(apart.epoch[e].test[1].grid, "validation");
        assert_int_equal(apart.epoch[e].test[1].samples, HELD);
        assert_true(apart.epoch[e].test[1].l2 > 0.0);
    }
    run_folders_remove();
}

/* The epoch at which a run of these errors stops; 0: never. */
static int stop_by_hand(const run_record *record) {
    double best = HUGE_VAL;
    int waited = 0;
    for (int e = 0; e < record->epochs; e++) {
        const tg_train_epoch *epoch = &record->epoch[e];
        if (epoch->test_count > 0) {
            const double error = epoch->test[epoch->test_count - 1].h1; /* that is trained */
            waited = error < best ? 0 : waited + 1;
            best = fmin(best, error);
            if (waited == PATIENCE) {
                return e + 1;
            }
        }
    }
    return 0;
}

TEST(test_stopping) {
    static run_record whole, broken, endless;
    const char *const stopping[] = {"opt.n_epochs",
                                    "30",
                                    "data.n_validation",
                                    "5",
                                    "opt.early_stopping",
                                    "3",
                                    "opt.learning_rate",
                                    "0.3",
                                    "opt.eval_interval",
                                    "2",
                                    "opt.save_every",
                                    "7",
                                    NULL};
    whole = broken = endless = (run_record){0};
    run("whole", stopping, false, &whole);
    assert_true(whole.end.is_finished);
    assert_true(whole.epochs < 30);
    assert_int_equal(whole.epochs, stop_by_hand(&whole));
    /* stopped between two evaluations while it waits, and resumed */
    broken.stop_after = 4 * (whole.epochs - 3) + 2;
    run("broken", stopping, false, &broken);
    assert_false(broken.end.is_finished);
    broken.stop_after = 0;
    run("broken", stopping, true, &broken);
    assert_int_equal(broken.end.epoch, whole.end.epoch);
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step-%010lld.safetensors", (long long)whole.end.step);
    char command[2400], first[1024];
    snprintf(first, sizeof first, "%s", run_file("whole", name));
    snprintf(command, sizeof command, "cmp '%s' '%s'", first, run_file("broken", name));
    assert_int_equal(system(command), 0);
    /* resumed at its end it has nothing to do */
    const int told = broken.epochs;
    run("broken", stopping, true, &broken);
    assert_true(broken.end.is_finished);
    assert_int_equal(broken.epochs, told);
    run_folders_remove();
}

TEST(test_nothing_to_look_at) {
    run_record record = {0};
    const char *const blind[] = {"opt.early_stopping", "3", "data.test_resolutions", "[]", NULL};
    assert_int_equal(run_train(ctx, "whole", "blind", blind, false, &record), TG_E_CONFIG);
    assert_non_null(strstr(tg_context_error(ctx), "opt.early_stopping"));
}

int main(void) {
    return t_run_tests(prepare, finish);
}
