/* tgrad init FILE: settings with which `tgrad train` learns what is in a file: its layout, channels
 * and grid, modes that the grid has, a split into training and test, a batch that fits in memory.
 */
#define _XOPEN_SOURCE 700 /* realpath */
#include <stdlib.h>
#include <string.h>

#include "output.h"
#include "text.h"

enum { MOST_MODES = 16, LARGEST_BATCH = 16, WIDTH = 32, TEST_SHARE = 10 };

static struct {
    const char *output; /* NULL: the terminal */
    const char *x_name, *y_name, *order, *fields;
    int64_t history, horizon;
} opt = {.history = 1, .horizon = 1};

static const char *const orders[] = {"nchw", "nhwc", NULL};

static const cli_option options[] = {
    CLI_OPTION_TEXT("output", 'o', &opt.output, NULL, "YAML", "write them here", "the terminal"),
    CLI_OPTION_TEXT("x-name", 0, &opt.x_name, NULL, "NAME", "array of the inputs", "x"),
    CLI_OPTION_TEXT("y-name", 0, &opt.y_name, NULL, "NAME", "array of the outputs", "y"),
    CLI_OPTION_TEXT("fields", 0, &opt.fields, NULL, "NAMES", "fields of trajectories", "all"),
    CLI_OPTION_TEXT("order", 0, &opt.order, orders, "ORDER", "nhwc: channels behind the grid",
                    "nchw"),
    CLI_OPTION_INT("history", 0, &opt.history, 1, 1 << 20, "N", "trajectories: frames of the input",
                   "1"),
    CLI_OPTION_INT("horizon", 0, &opt.horizon, 1, 1 << 20, "N",
                   "trajectories: frames of the output", "1"),
    {0},
};

static tg_status set_number(tg_settings *settings, const char *key, int64_t value) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return tg_settings_set(settings, key, text, "init");
}

/* Those of the options that are not the default. */
static tg_status set_options(tg_settings *settings) {
    const struct {
        const char *key, *value;
    } rows[] = {{"data.x_name", opt.x_name},
                {"data.y_name", opt.y_name},
                {"data.fields", opt.fields},
                {"data.order", opt.order}};
    tg_status status = TG_OK;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && status == TG_OK; i++) {
        status =
            rows[i].value ? tg_settings_set(settings, rows[i].key, rows[i].value, "init") : TG_OK;
    }
    return status;
}

/* The settings for a file, all but the batch. `file` is its path from anywhere. */
static tg_status propose(const tg_dataset_facts *facts, const char *file, tg_settings *settings) {
    const bool is_trajectory = facts->trajectories > 0;
    const int64_t samples = is_trajectory ? facts->trajectories : facts->samples;
    const int64_t tests = samples < 2 ? 0 : (samples + TEST_SHARE - 1) / TEST_SHARE;
    char modes[96] = "";
    for (int d = 0; d < facts->n_dim; d++) {
        const int64_t half = facts->grid[d] / 2 > 1 ? facts->grid[d] / 2 : 1;
        const size_t used = strlen(modes);
        snprintf(modes + used, sizeof modes - used, "%s%lld%s", d ? ", " : "[",
                 (long long)(half < MOST_MODES ? half : MOST_MODES),
                 d == facts->n_dim - 1 ? "]" : "");
    }
    const struct {
        const char *key, *text; /* text NULL: the number */
        int64_t number;
        bool is_left_out;
    } rows[] = {
        {"data.train_file", file, 0, false},
        {"data.layout", tg_layout_name(facts->layout), 0, false},
        {"data.history", NULL, facts->history, !is_trajectory},
        {"data.horizon", NULL, facts->horizon, !is_trajectory},
        {"data.n_train", NULL, samples - tests, false},
        {"data.test_files", file, 0, tests == 0},
        {"data.test_skip", NULL, samples - tests, tests == 0},
        {"data.test_resolutions", "[]", 0, tests > 0},
        {"fno.n_modes", modes, 0, false},
        {"fno.in_channels", NULL, facts->in_channels, false},
        {"fno.out_channels", NULL, facts->out_channels, false},
        {"fno.hidden_channels", NULL, WIDTH, false},
        {"fno.complex_data", "true", 0, facts->dtype != TG_C64},
        {"data.encode_input", "true", 0, false},
        {"opt.name", "tensorgrad", 0, false},
        {"opt.n_epochs", NULL, 50, false},
    };
    tg_status status = set_options(settings);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] && status == TG_OK; i++) {
        if (!rows[i].is_left_out) {
            status = rows[i].text ? tg_settings_set(settings, rows[i].key, rows[i].text, "init")
                                  : set_number(settings, rows[i].key, rows[i].number);
        }
    }
    return status;
}

/* The largest batch, a power of two, with which the run takes at most 4/5 of the memory left. */
static tg_status choose_batch(tg_context *ctx, tg_settings *settings) {
    tg_status status = TG_OK;
    tg_train_memory *plan = cli_need(malloc(sizeof *plan));
    for (int64_t batch = LARGEST_BATCH; batch >= 1 && status == TG_OK; batch /= 2) {
        size_t left = 0;
        status = set_number(settings, "data.batch_size", batch);
        status = status == TG_OK ? tg_train_plan(ctx, settings, plan) : status;
        if (status != TG_OK || !tg_train_memory_left(ctx, plan->place, &left) ||
            plan->peak_total[plan->place] <= left / 5 * 4) {
            break;
        }
    }
    free(plan);
    return status;
}

static int finish(tg_context *ctx, const tg_dataset_facts *facts, const tg_settings *settings) {
    char grid[TG_GRID_TEXT];
    if (!opt.output) {
        const size_t size = tg_settings_text(settings, NULL, 0);
        char *text = cli_need(malloc(size + 1));
        tg_settings_text(settings, text, size + 1);
        fputs(text, stdout);
        free(text);
        return CLI_OK;
    }
    const tg_status status = tg_settings_write_yaml(ctx, opt.output, settings);
    if (status != TG_OK) {
        return cli_fail_status(ctx, status);
    }
    cli_say("%s: layout %s, %lld samples on a grid of %s, %lld -> %lld channels", opt.output,
            tg_layout_name(facts->layout), (long long)facts->samples,
            tg_grid_text(facts->n_dim, facts->grid, grid), (long long)facts->in_channels,
            (long long)facts->out_channels);
    cli_say("next: tgrad train %s", opt.output);
    return CLI_OK;
}

static int run(const cli_call *call) {
    tg_context *ctx = NULL;
    tg_dataset *dataset = NULL;
    tg_settings *settings = NULL;
    tg_dataset_config config = tg_dataset_config_default();
    if (cli_open_context(call->common, false, &ctx) != CLI_OK) {
        return CLI_FAILED;
    }
    char *file = realpath(call->args.item[0], NULL);
    const char *path = file ? file : call->args.item[0]; /* a missing one is told by its opener */
    config.n_dim = 0;
    config.cache_bytes = 0;
    config.x_name = opt.x_name ? opt.x_name : config.x_name;
    config.y_name = opt.y_name ? opt.y_name : config.y_name;
    config.fields = opt.fields;
    config.channels_last = opt.order && strcmp(opt.order, "nhwc") == 0;
    config.history = opt.history;
    config.horizon = opt.horizon;
    tg_status status = tg_dataset_open(ctx, path, NULL, &config, &dataset);
    if (status == TG_E_UNSUPPORTED) { /* must be read whole */
        config.cache_bytes = (size_t)1 << 40;
        status = tg_dataset_open(ctx, path, NULL, &config, &dataset);
    }
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    tg_dataset_close(&dataset);
    status = status == TG_OK ? tg_settings_create(ctx, &settings) : status;
    status = status == TG_OK ? propose(&facts, path, settings) : status;
    status = status == TG_OK ? choose_batch(ctx, settings) : status;
    const int code = status == TG_OK ? finish(ctx, &facts, settings) : cli_fail_status(ctx, status);
    tg_settings_destroy(&settings);
    free(file);
    tg_context_destroy(&ctx);
    return code;
}

const cli_command cli_cmd_init = {
    .name = "init",
    .arguments = "FILE",
    .min_args = 1,
    .max_args = 1,
    .summary = "Write settings that train on a file of fields",
    .description =
        "FILE holds pairs x and y, or fields in time as The Well, PDEBench, PDEArena or MATLAB "
        "7.3\n"
        "arrange them. Layout, channels and grid come from the file; the last tenth of the "
        "samples\n"
        "or trajectories is for tests; the batch is the largest up to 16 that memory holds.\n",
    .examples =
        "  tgrad init 2D_CFD.hdf5 -o config.yaml && tgrad train config.yaml --run runs/cfd\n"
        "  tgrad init heat.npz --x-name start --y-name end\n"
        "  tgrad init turbulence.hdf5 --history 4 -o config.yaml\n",
    .options = options,
    .run = run,
};
