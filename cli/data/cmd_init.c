/* tgrad init FILE: writes settings that train on a file. */
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "propose_settings.h"

static struct {
    const char *output; /* NULL or "-": the terminal */
    const char *x_name, *y_name, *order, *fields, *group;
    int64_t history, horizon;
    bool points;
} opt = {.history = 1, .horizon = 1};

enum { MAX_SCANNED = 1 << 30 }; /* bytes of a file that is searched for NaN; inspect takes any */

static const cli_option options[] = {
    CLI_OPTION_TEXT("output", 'o', &opt.output, NULL, "YAML", "write them here", "the terminal"),
    CLI_OPTION_TEXT("x-name", 0, &opt.x_name, NULL, "NAME", "array of the inputs", "x"),
    CLI_OPTION_TEXT("y-name", 0, &opt.y_name, NULL, "NAME", "array of the outputs", "y"),
    CLI_OPTION_TEXT("fields", 0, &opt.fields, NULL, "NAMES", "fields of trajectories", "all"),
    CLI_OPTION_TEXT("group", 0, &opt.group, NULL, "NAME", "group of the arrays in an HDF5 file",
                    NULL),
    CLI_OPTION_TEXT("order", 0, &opt.order, cli_orders, "ORDER", "nhwc: channels after the grid",
                    "nchw"),
    CLI_OPTION_FLAG("points", 0, &opt.points,
                    "x: (samples, points, 1 to 3 coordinates), y: values there"),
    CLI_OPTION_INT("history", 0, &opt.history, 1, 1 << 20, "N", "trajectories: frames of the input",
                   "1"),
    CLI_OPTION_INT("horizon", 0, &opt.horizon, 1, 1 << 20, "N",
                   "trajectories: frames of the output", "1"),
    {0},
};

/* Says why there are no settings, and a command that helps, if one is known. */
static int explain(tg_context *ctx, const char *path, tg_status status) {
    const int code =
        cli_fail_data(ctx, status, "--x-name, --y-name, --fields, --group and --order");
    const bool is_named = opt.x_name || opt.y_name || opt.fields;
    CLI_FREED char *command =
        status == TG_E_ARGUMENT && !is_named ? cli_propose_command(ctx, path) : NULL;
    return command ? cli_fail("%s", command) : code;
}

static void finish(tg_context *ctx, const char *path, const cli_proposal *proposal) {
    const tg_dataset_facts *facts = &proposal->facts;
    char place[CLI_PLACE_TEXT];
    int64_t nonfinite = 0;
    if (cli_file_bytes(path) <= MAX_SCANNED &&
        cli_proposal_nonfinite(ctx, path, proposal, &nonfinite) == TG_OK && nonfinite > 0) {
        cli_warn(
            "%s: %lld values are NaN or Inf: train refuses them or skips their batches; repair "
            "or remove the samples that have them",
            path, (long long)nonfinite);
    }
    CLI_FREED char *text = cli_proposal_text(proposal);
    if (!opt.output || strcmp(opt.output, "-") == 0) {
        fputs(text, stdout);
        return;
    }
    cli_require(cli_write_file(opt.output, text, strlen(text)));
    cli_say("%s: layout %s, %lld samples %s, %lld -> %lld channels", opt.output,
            tg_layout_name(facts->layout), (long long)facts->samples,
            cli_proposal_place(proposal, place), (long long)facts->in_channels,
            (long long)facts->out_channels);
    cli_say("next: tgrad train %s --run DIR", opt.output);
}

static int run(const cli_call *call) {
    tg_dataset_config config = tg_dataset_config_default();
    const char *path = call->args.item[0];
    if (opt.output) {
        cli_keep_file(path, opt.output);
    }
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, false);
    CLI_OWNED(cli_proposal_free) cli_proposal proposal = {0};
    config.x_name = opt.x_name ? opt.x_name : config.x_name;
    config.y_name = opt.y_name ? opt.y_name : config.y_name;
    config.fields = opt.fields;
    config.group = opt.group;
    config.channels_last = opt.order && strcmp(opt.order, "nhwc") == 0;
    config.cache_bytes = (size_t)1 << 40; /* enough for any array that must be read whole */
    config.history = opt.history;
    config.horizon = opt.horizon;
    const tg_status status = cli_propose(ctx, path, &config, opt.points, &proposal);
    if (status != TG_OK) {
        return explain(ctx, path, status);
    }
    finish(ctx, path, &proposal);
    return CLI_OK;
}

const cli_command cli_cmd_init = {
    .name = "init",
    .arguments = "FILE",
    .args = {1, 1},
    .summary = "Write settings that train on a file of fields or points",
    .description =
        "FILE holds pairs x and y, or fields in time as The Well, PDEBench, PDEArena or MATLAB\n"
        "7.3 arrange them. Layout, channels and grid come from the file; the last tenth of the\n"
        "samples or trajectories is for tests; the batch is the largest up to 16 that memory\n"
        "holds. The loss is l2 + h1: h1 alone lets means and large scales drift. The optimizer is\n"
        "Adam where its state is at most 5 % of the memory left; else Adam with 8-bit moments, or\n"
        "tensorgrad with them; a comment has the bytes.\n"
        "\n"
        "For points (samples, points, coordinates) and values at them it proposes a GINO, with\n"
        "radii from the distances of neighbours and a latent grid as fine as the points. Arrays "
        "called\n"
        "points and values are found; for others give --x-name, --y-name and --points.\n",
    .examples =
        "  tgrad init 2D_CFD.hdf5 -o config.yaml && tgrad train config.yaml --run runs/cfd\n"
        "  tgrad init heat.npz --x-name start --y-name end\n"
        "  tgrad init turbulence.hdf5 --history 4 -o config.yaml\n"
        "  tgrad init cars.h5 --points --x-name vertices --y-name pressure -o config.yaml\n",
    .options = options,
    .run = run,
};
