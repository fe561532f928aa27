/* The optimizer of a run: what its groups get to know of the run. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "tgrad/backend.h"
#include "train/run_setup.h"

/* Steps in all that the optimizer is told. */
static int64_t total_steps(tg_context *ctx, const char *more, int64_t updates_per_epoch) {
    char text[256];
    tg_settings *settings = NULL;
    tg_run_config config;
    tg_fno *fno = NULL;
    tg_run_setup setup;
    snprintf(text, sizeof text,
             "fno: {n_modes: [2, 2], hidden_channels: 2, n_layers: 1}\n"
             "data: {set: made, train_resolution: 8}\n%s",
             more);
    assert_int_equal(tg_settings_parse_yaml(ctx, "t.yaml", text, strlen(text), &settings), TG_OK);
    assert_int_equal(tg_run_config_read(ctx, settings, 1, false, &config), TG_OK);
    assert_int_equal(tg_fno_create(ctx, &config.fno, 1, &fno), TG_OK);
    assert_int_equal(tg_run_setup_make(ctx, &config, fno, updates_per_epoch, &setup), TG_OK);
    const int64_t steps = setup.groups[0].total_steps;
    assert_int_equal(setup.groups[1].total_steps, steps);
    tg_run_setup_free(ctx, &setup);
    tg_fno_destroy(&fno);
    tg_settings_destroy(&settings);
    return steps;
}

/* Epochs times updates, or what the settings say; more than can be counted is the most that the
 * setting takes, never a negative number. */
static void test_total_steps(void **state) {
    (void)state;
    const int64_t most = INT64_C(1000000000000000);
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    assert_int_equal(tg_backend_select(ctx, "ref"), TG_OK);
    assert_int_equal(total_steps(ctx, "opt: {n_epochs: 7}\n", 13), 91);
    assert_int_equal(total_steps(ctx, "opt: {n_epochs: 7, total_steps: 5}\n", 13), 5);
    assert_int_equal(total_steps(ctx, "opt: {n_epochs: 1000000000}\n", 1000000), most);
    assert_int_equal(total_steps(ctx, "opt: {n_epochs: 1000000000}\n", 1000001), most);
    assert_int_equal(total_steps(ctx, "opt: {n_epochs: 1000000000}\n", INT64_MAX / 3), most);
    tg_context_destroy(&ctx);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_total_steps)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
