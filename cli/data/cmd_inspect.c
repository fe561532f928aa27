/* tgrad inspect FILE: the tensors of a file, with statistics that show damage (NaN, Inf,
 * constant or exploding values) at a glance, and how it would be trained on. A complex tensor's
 * statistics are of the modulus. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "propose_settings.h"

enum { SHOWN_META = 60 }; /* characters of a metadata value on the terminal */

static const char *only; /* --tensor */

static const cli_option options[] = {
    CLI_OPTION_TEXT("tensor", 0, &only, NULL, "NAME", "show this tensor only", NULL),
    {0},
};

static json_t *json_of(const char *name, tg_dtype dtype, const tg_shape *shape,
                       const tg_tensor_stats *stats) {
    const int64_t numel = tg_shape_numel(shape);
    return cli_json_new(KV("name", name), KV("dtype", tg_dtype_name(dtype)),
                        KV("shape", cli_json_shape(shape)), KV("elements", numel),
                        KV("bytes", numel * (int64_t)tg_dtype_size(dtype)), KV("min", stats->min),
                        KV("max", stats->max), KV("mean", stats->mean), KV("nan", stats->nan_count),
                        KV("inf", stats->inf_count));
}

/* ---- the file as data to train on ---- */

typedef struct view {
    const cli_source *source;
    cli_proposal proposal;
    tg_status status;  /* of the proposal */
    char reason[1024]; /* why no layout fits, or empty */
    char *command;     /* that helps then, or NULL */
    int64_t nonfinite; /* NaN and Inf in the arrays that samples come from */
} view;

static void free_view(view *v) {
    free(v->command);
    cli_proposal_free(&v->proposal);
}

/* Which arrays are listed: all that no sample is made of, or those of them that look like masks. */
typedef enum listing { LEFT_OUT, MASKS } listing;

static bool is_listed(const view *v, const char *name, listing which) {
    return !cli_proposal_uses(&v->proposal, v->source->format, name) &&
           (which == LEFT_OUT || strstr(name, "mask"));
}

static void print_names(const view *v, listing which, const char *title) {
    const char *separator = title;
    for (int64_t i = 0; i < cli_source_count(v->source); i++) {
        if (is_listed(v, cli_source_name(v->source, i), which)) {
            CLI_FREED char *name = cli_clean_text(cli_source_name(v->source, i), SHOWN_META);
            printf("%s%s", separator, name);
            separator = ", ";
        }
    }
    fputs(separator == title ? "" : "\n", stdout);
}

/* A checkpoint or a model file. */
static bool is_model(const tg_archive *archive) {
    return tg_archive_meta(archive, "tgrad.checkpoint") || tg_archive_meta(archive, "tgrad.model");
}

static void print_layout(const view *v) {
    const tg_dataset_facts *facts = &v->proposal.facts;
    char place[CLI_PLACE_TEXT];
    if (v->reason[0] && is_model(v->source->archive)) {
        printf("\na trained model, which tgrad eval and tgrad predict take\n");
        return;
    }
    if (v->reason[0]) {
        putchar('\n');
        cli_say("data layout: not recognized: %s", v->reason);
        if (v->command) {
            cli_say("%s", v->command);
        }
        return;
    }
    printf("\ndata layout: %s, %s", tg_layout_name(facts->layout),
           facts->trajectories > 0 ? "fields in time " : "pairs ");
    for (int i = 0; i < v->proposal.arrays.count; i++) {
        CLI_FREED char *name = cli_clean_text(v->proposal.arrays.item[i], SHOWN_META);
        printf("%s%s", i == 0 ? "" : facts->trajectories > 0 ? ", " : " -> ", name);
    }
    putchar('\n');
    if (facts->trajectories > 0) {
        cli_say("  %lld trajectories of %lld times", (long long)facts->trajectories,
                (long long)facts->times);
    }
    cli_say("  %lld samples %s, %lld -> %lld channels%s", (long long)facts->samples,
            cli_proposal_place(&v->proposal, place), (long long)facts->in_channels,
            (long long)facts->out_channels, facts->dtype == TG_C64 ? ", complex" : "");
    print_names(v, LEFT_OUT, "  left out: ");
    print_names(v, MASKS, "  masks are not used: ");
    putchar('\n');
    if (v->nonfinite > 0) {
        cli_say("cannot be trained on: %lld of its values are NaN or Inf; repair or remove the "
                "samples that have them",
                (long long)v->nonfinite);
        return;
    }
    cli_say("settings that train on it, as 'tgrad init %s' writes them:", v->source->path);
    CLI_FREED char *text = cli_proposal_text(&v->proposal);
    printf("\n%s", text);
}

static json_t *json_names(const view *v, listing which) {
    json_t *names = cli_json_array();
    for (int64_t i = 0; i < cli_source_count(v->source); i++) {
        if (is_listed(v, cli_source_name(v->source, i), which)) {
            cli_json_append(names, cli_json_text(cli_source_name(v->source, i)));
        }
    }
    return names;
}

static json_t *json_of_layout(const view *v) {
    const tg_dataset_facts *facts = &v->proposal.facts;
    const tg_shape grid = tg_shape_of(facts->n_dim, facts->grid);
    json_t *object = cli_json_object();
    if (v->reason[0]) {
        cli_json_put(object, KV("name", json_null()), KV("reason", v->reason));
        return object;
    }
    json_t *arrays = cli_json_array();
    for (int i = 0; i < v->proposal.arrays.count; i++) {
        cli_json_append(arrays, cli_json_text(v->proposal.arrays.item[i]));
    }
    char *text = cli_proposal_text(&v->proposal);
    cli_json_put(object, KV("name", tg_layout_name(facts->layout)), KV("arrays", arrays),
                 KV("left_out", json_names(v, LEFT_OUT)), KV("masks", json_names(v, MASKS)),
                 KV("samples", facts->samples), KV("trajectories", facts->trajectories),
                 KV("times", facts->times), KV("grid", cli_json_shape(&grid)),
                 KV("in_channels", facts->in_channels), KV("out_channels", facts->out_channels),
                 KV("dtype", tg_dtype_name(facts->dtype)), KV("nonfinite", v->nonfinite),
                 KV("config", v->nonfinite > 0 ? json_null() : cli_json_text(text)));
    free(text);
    return object;
}

/* ---- all of it ---- */

static void print_text(const cli_source *source, json_t *tensors) {
    const int64_t count = cli_source_count(source);
    cli_say("%s: %s, %lld tensor%s, %s", source->path, tg_file_format_name(source->format),
            (long long)count, count == 1 ? "" : "s", CLI_BYTES(cli_file_bytes(source->path)));
    if (json_array_size(tensors) > 0) {
        putchar('\n');
        cli_print_rows(tensors, "name:name|dtype:dtype|shape:shape_text|min>:min g6|max>:max g6|"
                                "mean>:mean g6|NaN>:nan|Inf>:inf");
    }
    const int64_t pairs = tg_archive_meta_count(source->archive);
    if (pairs > 0 && !only) {
        fputs("\nmetadata\n", stdout);
    }
    for (int64_t i = 0; i < pairs && !only; i++) {
        CLI_FREED char *key = cli_clean_text(tg_archive_meta_key(source->archive, i), SHOWN_META);
        CLI_FREED char *value =
            cli_clean_text(tg_archive_meta_value(source->archive, i), SHOWN_META);
        printf("  %s: %s\n", key, value);
    }
}

static void print_json(const view *v, json_t *tensors) {
    const cli_source *source = v->source;
    json_t *meta = cli_json_object();
    for (int64_t i = 0; i < tg_archive_meta_count(source->archive); i++) {
        cli_json_set(meta, tg_archive_meta_key(source->archive, i),
                     cli_json_text(tg_archive_meta_value(source->archive, i)));
    }
    json_t *object = cli_json_new(
        KV("file", source->path), KV("format", tg_file_format_name(source->format)),
        KV("bytes", cli_file_bytes(source->path)), KV("metadata", meta), KV("tensors", tensors));
    if (!only) {
        cli_json_set(object, "layout", json_of_layout(v));
    }
    cli_json_print(object);
}

/* Whether the file is there to be trained on, and cannot be. Weights and single arrays, which have
 * no x and y, are not. */
static bool is_unfit(const view *v) {
    const tg_file_format format = v->source->format;
    const bool is_pair =
        cli_source_count(v->source) > 1 || cli_ends_with(v->source->path, "_x.npy");
    const bool may_be_weights = format == TG_FILE_SAFETENSORS || format == TG_FILE_TORCH;
    return v->nonfinite > 0 || (is_pair && v->status != TG_OK && v->status != TG_E_IO &&
                                !(v->status == TG_E_ARGUMENT && may_be_weights));
}

/* Reads tensors [first, first + count) and prints. Nothing is printed before all could be read. */
static int inspect(view *v, int64_t first, int64_t count, bool json) {
    const cli_source *source = v->source;
    json_t *tensors = cli_json_array();
    for (int64_t i = first; i < first + count; i++) {
        const char *name = cli_source_name(source, i);
        tg_dtype dtype;
        tg_shape shape;
        tg_tensor_stats stats;
        cli_check(cli_source_describe(source, i, &dtype, &shape));
        cli_check(cli_source_stats(source, i, &stats));
        if (!only && v->status == TG_OK && cli_proposal_uses(&v->proposal, source->format, name)) {
            v->nonfinite += stats.nan_count + stats.inf_count;
        }
        json_t *tensor = json_of(name, dtype, &shape, &stats);
        if (!json) {
            char text[128];
            cli_json_put(tensor, KV("shape_text", tg_shape_text(&shape, text, sizeof text)));
        }
        cli_json_append(tensors, tensor);
    }
    if (json) {
        print_json(v, tensors);
    } else {
        print_text(source, tensors);
        json_decref(tensors);
        if (!only) {
            print_layout(v);
        }
    }
    return !only && is_unfit(v) ? cli_fail("%s: it cannot be trained on as it is", source->path)
                                : CLI_OK;
}

static int run(const cli_call *call) {
    const char *path = call->args.item[0];
    int64_t first = 0;
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, false);
    CLI_OWNED(cli_source_close) cli_source source = {0};
    CLI_OWNED(free_view) view v = {.source = &source};
    cli_check(cli_source_open(ctx, path, &source));
    if (!only || call->common->json) {
        cli_check(cli_source_read_meta(&source));
    }
    if (only) {
        first = cli_source_find(&source, only);
    } else {
        const tg_dataset_config config = tg_dataset_config_default();
        v.status = cli_propose(ctx, path, &config, false, &v.proposal);
        snprintf(v.reason, sizeof v.reason, "%s", v.status == TG_OK ? "" : tg_context_error(ctx));
        v.command = v.status == TG_E_ARGUMENT ? cli_propose_command(ctx, path) : NULL;
    }
    return inspect(&v, first, only ? 1 : cli_source_count(&source), call->common->json);
}

const cli_command cli_cmd_inspect = {
    .name = "inspect",
    .arguments = "FILE",
    .args = {1, 1},
    .summary = "Show every tensor of a file, its statistics, and settings that train on it",
    .description =
        "FILE is an npy, npz, safetensors, HDF5 or torch file; its content decides, not its\n"
        "name. Minimum, maximum and mean are over the finite elements, and of the modulus for\n"
        "complex ones. HDF5 datasets are read one by one, so a file may be larger than the\n"
        "memory. No code of a torch file is run. Long metadata is shortened on the terminal and\n"
        "whole in JSON.\n"
        "\n"
        "After that come the layout of data that the file has and the settings that train on\n"
        "it, as 'tgrad init' writes them; or why it has none, and which key to set. Data that\n"
        "cannot be trained on (no known layout, shapes that do not agree, NaN or Inf) exit 1;\n"
        "a file of weights or a single array does not.\n",
    .examples = "  tgrad inspect model.safetensors\n"
                "  tgrad inspect darcy.h5 --tensor y\n"
                "  tgrad inspect darcy.h5 --json | jq '.tensors[].shape'\n"
                "  tgrad inspect turbulence.hdf5 --json | jq .layout\n",
    .options = options,
    .takes = CLI_TAKES_JSON,
    .run = run,
};
