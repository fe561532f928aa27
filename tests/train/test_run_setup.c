/* The optimizer of a run: what its groups get to know of the run. */
#include <stdio.h>
#include <string.h>

#include "io/settings.h"
#include "support/cmocka.h"
#include "tgrad/backend.h"
#include "train/config.h"
#include "train/trainer.h"

/* Total steps that the optimizer is given. */
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
TEST(test_total_steps) {
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

/* ---- opt.name over a method that a file describes by its parts ---- */

static const char written[] =
    "fno.n_modes: 2\ndata: {set: made, train_resolution: 8}\n"
    "opt: {tensorgrad: true, optimizer_type: tensorgrad, proj_type: unstructured_sparse,"
    " sparse_ratio: 0.05, second_proj_type: low_rank, second_rank: 0.2, rank: 0.1}\n";

static tg_optim_config read_over(tg_context *ctx, const char *file, const char *(*over)[2],
                                 int count) {
    tg_settings *settings = NULL, *copy = NULL;
    tg_run_config config;
    assert_int_equal(tg_settings_parse_yaml(ctx, "t.yaml", file, strlen(file), &settings), TG_OK);
    for (int i = 0; i < count; i++) {
        assert_int_equal(tg_settings_set(settings, over[i][0], over[i][1], "command line"), TG_OK);
    }
    assert_int_equal(tg_settings_copy(ctx, settings, &copy), TG_OK);
    assert_int_equal(tg_run_config_read(ctx, copy, 1, false, &config), TG_OK);
    tg_settings_destroy(&settings);
    tg_settings_destroy(&copy);
    return config.opt;
}

TEST(test_name_replaces_parts) {
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    const char *adam[][2] = {{"opt.name", "adam"}};
    tg_optim_config opt = read_over(ctx, written, adam, 0);
    assert_true(opt.is_projected && opt.projector.scheme != TG_SCHEME_SINGLE);
    const tg_optim_config tensorgrad = opt;
    assert_false(read_over(ctx, written, adam, 1).is_projected);
    const char *sparse[][2] = {{"opt.second_rank", "0.3"}, {"opt.name", "unstructured"}};
    opt = read_over(ctx, written, sparse, 2);
    assert_true(opt.is_projected && opt.projector.scheme == TG_SCHEME_SINGLE);
    assert_int_equal(opt.projector.first.type, TG_BRANCH_UNSTRUCTURED);
    assert_true(opt.projector.first.sparse_ratio == 0.25); /* its own, not the file's 0.05 */
    assert_true(opt.projector.second.rank.value[0] == 0.3);
    /* beside a name, sizes are the user's, and parts of the same file or later ones count */
    const char *low[][2] = {{"opt.name", "lowrank"}};
    opt = read_over(ctx, "fno.n_modes: 2\ndata.set: made\nopt: {name: adam, rank: 0.1}\n", low, 1);
    assert_true(opt.projector.first.rank.value[0] == 0.1);
    opt = read_over(
        ctx, "fno.n_modes: 2\ndata.set: made\nopt: {proj_type: matrix, name: lowrank}\n", low, 0);
    assert_int_equal(opt.projector.first.type, TG_BRANCH_MATRIX);
    const char *part[][2] = {{"opt.proj_type", "matrix"}};
    opt = read_over(ctx, "fno.n_modes: 2\ndata.set: made\nopt: {name: lowrank}\n", part, 1);
    assert_int_equal(opt.projector.first.type, TG_BRANCH_MATRIX);
    /* a size that the method has no part for is named */
    assert_string_equal(tg_method_unused(&tensorgrad), "opt.rank (it is opt.second_rank here)");
    assert_null(tg_method_unused(&opt));
    tg_context_destroy(&ctx);
}

/* data.set over files that another source names. */
TEST(test_set_replaces_files) {
    static const char file[] =
        "fno.n_modes: 2\ndata: {set: null, train_file: a.h5, test_files: b.h5}\n";
    tg_context *ctx = NULL;
    assert_int_equal(tg_context_create(NULL, &ctx), TG_OK);
    for (int i = 0; i < 2; i++) {
        tg_settings *settings = NULL;
        tg_run_config config;
        assert_int_equal(tg_settings_parse_yaml(ctx, "t.yaml", file, strlen(file), &settings),
                         TG_OK);
        assert_int_equal(
            tg_settings_set(settings, "data.set", i == 0 ? "null" : "waves", "command line"),
            TG_OK);
        assert_int_equal(tg_run_config_read(ctx, settings, 1, false, &config), TG_OK);
        assert_string_equal(config.data.train_file, i == 0 ? "a.h5" : "");
        assert_int_equal(config.data.test_files.count, i == 0 ? 1 : 0);
        tg_settings_destroy(&settings);
    }
    tg_context_destroy(&ctx);
}
