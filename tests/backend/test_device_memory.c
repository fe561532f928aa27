/* When the memory of a device ends, a run says what was asked for, what is held, what the run needs
 * by its plan and what would need less; nothing is lost and the device can be used again. */
#define _XOPEN_SOURCE 700
#include <ftw.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "support/fake_device.h"
#include "support/files.h"
#include "support/sets.h"
#include "tgrad/tgrad.h"

static tg_settings *settings_of(tg_context *ctx, const char *file) {
    const char *const pairs[][2] = {
        {"fno.n_modes", "[6, 6]"},      {"fno.hidden_channels", "8"}, {"fno.n_layers", "2"},
        {"opt.n_epochs", "1"},          {"data.set", "set"},          {"data.train_file", file},
        {"data.train_resolution", "8"}, {"data.batch_size", "4"},
    };
    tg_settings *settings = NULL;
    set_ok(ctx, tg_settings_create(ctx, &settings));
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
        set_ok(ctx, tg_settings_set(settings, pairs[i][0], pairs[i][1], NULL));
    }
    return settings;
}

static void expect_advice(tg_context *ctx, const char *asked) {
    set_expect_sentence(ctx, "out of device memory: no ");
    set_expect_sentence(ctx, asked);
    set_expect_sentence(ctx, "; in use are ");
    set_expect_sentence(ctx, "; the device has ");
    set_expect_sentence(ctx, "By its plan the run holds ");
    set_expect_sentence(ctx, "(weights ");
    set_expect_sentence(ctx, "Less is needed with a smaller data.batch_size, "
                             "fno.activation_checkpoint minimal, ");
    set_expect_sentence(ctx, "opt.name tensorgrad");
}

static tg_status run(tg_context *ctx, const tg_settings *settings, const char *folder) {
    tg_trainer *trainer = NULL;
    tg_train_end end;
    tg_status status = tg_trainer_create(ctx, NULL, settings, folder, &trainer);
    status = status == TG_OK ? tg_trainer_resume(trainer, NULL, &(bool){false}) : status;
    status = status == TG_OK ? tg_trainer_run(trainer, NULL, &end) : status;
    tg_trainer_destroy(&trainer);
    return status;
}

/* A context on the stand-in device, and the settings of a small run. */
static tg_context *begin(tg_settings **settings) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    set_ok(ctx, tg_backend_select(ctx, "fake"));
    const tg_shape shape = SET_SHAPE(8, 8, 8);
    *settings = settings_of(ctx, set_write(ctx, "set.h5", TG_F32, &shape, &shape));
    return ctx;
}

TEST(a_lack_of_memory_is_explained) {
    tg_settings *settings = NULL;
    tg_context *ctx = begin(&settings);
    const tg_mem_usage before = tg_context_memory(ctx, TG_DEVICE);

    fake_device_limit(20000); /* not even the weights */
    assert_int_equal(run(ctx, settings, test_path("run")), TG_E_MEMORY);
    expect_advice(ctx, " for weights");
    fake_device_limit(60000); /* the weights, but not the moments */
    assert_int_equal(run(ctx, settings, test_path("run")), TG_E_MEMORY);
    expect_advice(ctx, " for optimizer");
    fake_device_limit(130000); /* these, but not the buffers of a step */
    assert_int_equal(run(ctx, settings, test_path("run")), TG_E_MEMORY);
    expect_advice(ctx, " for activations");
    fake_device_limit(0);
    set_ok(ctx, run(ctx, settings, test_path("run")));

    assert_int_equal(tg_context_memory(ctx, TG_DEVICE).current_total, before.current_total);
    tg_settings_destroy(&settings);
    tg_context_destroy(&ctx);
}

/* What the plan needs and the device has not is refused before anything is taken. */
TEST(a_run_that_does_not_fit_is_refused) {
    tg_settings *settings = NULL;
    tg_context *ctx = begin(&settings);
    tg_train_memory plan;
    set_ok(ctx, tg_train_plan(ctx, settings, 1, &plan));
    const size_t needed = plan.peak_total[TG_DEVICE];
    fake_device_tell_left(needed - 1);
    assert_int_equal(run(ctx, settings, test_path("refused")), TG_E_MEMORY);
    set_expect_sentence(ctx, "this run needs ");
    set_expect_sentence(ctx, "(weights ");
    set_expect_sentence(ctx, " of the device's memory at its highest (");
    set_expect_sentence(ctx, "are left. Less is needed with a smaller data.batch_size, ");
    set_expect_sentence(ctx, "tgrad plan --fit");
    const tg_mem_usage usage = tg_context_memory(ctx, TG_DEVICE);
    assert_int_equal(usage.peak_total, usage.peak[TG_MEM_OTHER]); /* nothing of the run */
    assert_true(access(test_path("refused"), F_OK) != 0);
    fake_device_tell_left(needed);
    set_ok(ctx, run(ctx, settings, test_path("run2")));
    fake_device_tell_left(0);
    tg_settings_destroy(&settings);
    tg_context_destroy(&ctx);
}

static int remove_one(const char *path, const struct stat *facts, int kind, struct FTW *at) {
    (void)facts;
    (void)kind;
    (void)at;
    return remove(path);
}

static int remove_run(void **state) {
    (void)state;
    nftw(test_path("run"), remove_one, 8, FTW_DEPTH | FTW_PHYS);
    nftw(test_path("run2"), remove_one, 8, FTW_DEPTH | FTW_PHYS);
    test_folder_remove();
    return 0;
}

int main(void) {
    fake_device_add("fake");
    return t_run_tests(NULL, remove_run);
}
