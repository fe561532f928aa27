/* Small runs, see training.h. */
#include "support/training.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rng.h"
#include "support/files.h"
#include "support/sets.h"

/* ---- data ---- */

/* A sum of four waves at point t in [0, 1). */
static double field_at(const double *wave, double t) {
    double sum = 0.0;
    for (int k = 0; k < 4; k++) {
        sum += wave[2 * k] * cos(6.283185307179586 * k * t) +
               wave[2 * k + 1] * sin(6.283185307179586 * k * t);
    }
    return sum;
}

void run_write_set(tg_context *ctx, const char *set, const char *part, int64_t points,
                   int64_t samples, uint64_t seed, const int64_t *broken) {
    const tg_shape shape = SET_SHAPE(samples, points);
    const tg_rng rng = {.seed = seed, .purpose = TG_RNG_TEST};
    tg_archive *archive = NULL;
    tg_tensor sides[2] = {{0}, {0}};
    char name[128];
    for (int side = 0; side < 2; side++) {
        set_ok(ctx, tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, &sides[side]));
    }
    for (int64_t s = 0; s < samples; s++) {
        double wave[8];
        for (int k = 0; k < 8; k++) {
            wave[k] = tg_rng_normal(&rng, (uint64_t)(8 * s + k));
        }
        for (int64_t i = 0; i < points; i++) {
            const double t = (double)i / (double)points;
            ((float *)sides[0].data)[s * points + i] = (float)field_at(wave, t);
            ((float *)sides[1].data)[s * points + i] =
                (float)(2.0 + 3.0 * field_at(wave, t + 0.125));
        }
    }
    for (int i = 0; broken && broken[i] >= 0; i++) {
        ((float *)sides[1].data)[broken[i] * points] = NAN;
    }
    snprintf(name, sizeof name, "%s_%s_%lld.safetensors", set, part, (long long)points);
    set_ok(ctx, tg_archive_create(ctx, &archive));
    set_ok(ctx, tg_archive_take(archive, "x", &sides[0]));
    set_ok(ctx, tg_archive_take(archive, "y", &sides[1]));
    set_ok(ctx, tg_archive_write(ctx, test_path(name), archive));
    tg_archive_destroy(&archive);
}

/* ---- runs ---- */

tg_settings *run_settings(tg_context *ctx, const char *set, const char *const *more) {
    static const char *const common[][2] = {
        {"fno.n_modes", "[6]"},          {"fno.hidden_channels", "4"},
        {"fno.n_layers", "2"},           {"opt.name", "adam"},
        {"opt.learning_rate", "0.01"},   {"data.train_resolution", "16"},
        {"data.test_resolutions", "16"}, {"data.batch_size", "4"},
        {"distributed.seed", "5"}};
    tg_settings *settings = NULL;
    set_ok(ctx, tg_settings_create(ctx, &settings));
    for (size_t i = 0; i < sizeof common / sizeof common[0]; i++) {
        set_ok(ctx, tg_settings_set(settings, common[i][0], common[i][1], NULL));
    }
    set_ok(ctx, tg_settings_set(settings, "data.root", test_path(""), NULL));
    set_ok(ctx, tg_settings_set(settings, "data.set", set, NULL));
    for (int i = 0; more && more[i]; i += 2) {
        set_ok(ctx, tg_settings_set(settings, more[i], more[i + 1], NULL));
    }
    return settings;
}

static void keep_epoch(void *user, const tg_train_epoch *epoch) {
    run_record *record = user;
    assert_true(record->epochs < RUN_EPOCHS);
    record->epoch[record->epochs++] = *epoch;
}

static bool is_enough(void *user) {
    run_record *record = user;
    return ++record->batches == record->stop_after;
}

tg_status run_train(tg_context *ctx, const char *set, const char *name, const char *const *more,
                    bool resumes, run_record *record) {
    const tg_train_watch watch = {.user = record, .on_epoch = keep_epoch, .should_stop = is_enough};
    tg_settings *settings = run_settings(ctx, set, more);
    tg_trainer *trainer = NULL;
    bool resumed = false;
    record->batches = 0;
    tg_status status = tg_trainer_create(ctx, NULL, settings, run_file(name, ""), &trainer);
    if (status == TG_OK) {
        status = resumes ? tg_trainer_resume(trainer, NULL, &resumed) : tg_trainer_start(trainer);
    }
    if (status == TG_OK) {
        assert_int_equal(resumed, resumes);
        status = tg_trainer_run(trainer, &watch, &record->end);
    }
    tg_trainer_destroy(&trainer);
    tg_settings_destroy(&settings);
    return status;
}

const char *run_file(const char *name, const char *file) {
    char path[512];
    snprintf(path, sizeof path, "runs/%s%s%s", name, *file ? "/" : "", file);
    return test_path(path);
}

void run_folders_remove(void) {
    char command[1200];
    snprintf(command, sizeof command, "rm -rf '%s'", test_path("runs"));
    assert_int_equal(system(command), 0);
}
