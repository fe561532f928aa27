/* tgrad eval MODEL --data FILE: relative L2 and H1 errors of a trained model on sets of samples. */
#include <math.h>
#include <stdlib.h>

#include "model.h"
#include "output.h"
#include "text.h"

static struct {
    cli_list data;       /* files */
    cli_list resolution; /* as text; empty: that of each file */
    int64_t batch;
} opt = {.batch = 16};

static const cli_option options[] = {
    {.name = "data",
     .letter = 'd',
     .kind = CLI_LIST,
     .list = &opt.data,
     .value = "FILE",
     .help = "HDF5, safetensors, or NAME_x.npy beside NAME_y.npy (needed)"},
    {.name = "resolution",
     .kind = CLI_LIST,
     .list = &opt.resolution,
     .value = "N",
     .help = "points per dimension: every s-th one of the file",
     .fallback = "all"},
    {.name = "batch",
     .kind = CLI_INT,
     .integer = &opt.batch,
     .value = "N",
     .help = "samples at a time",
     .fallback = "16",
     .min = 1,
     .max = 1 << 20},
    {0},
};

typedef struct result {
    const char *file;
    tg_test_errors errors;
} result;

/* One file at one resolution (0: its own). */
static tg_status evaluate(tg_context *ctx, const cli_model *model, const char *file,
                          int64_t resolution, tg_test_errors *out) {
    const tg_fno_config *fno = cli_model_config(model);
    const char *y_time = tg_settings_get(tg_model_settings(model->model), "data.y_time");
    tg_dataset_config config = tg_dataset_config_default();
    tg_dataset *dataset = NULL;
    config.n_dim = fno->n_dim;
    config.complex_data = fno->complex_data;
    config.resolution = resolution;
    tg_status status = TG_OK;
    if (y_time) {
        status = tg_time_parse(ctx, "data.y_time", y_time, &config.y_time);
    }
    if (status == TG_OK) {
        status = tg_dataset_open(ctx, file, NULL, &config, &dataset);
    }
    if (status == TG_OK) {
        status = tg_model_evaluate(model->model, dataset, opt.batch, out);
    }
    tg_dataset_close(&dataset);
    return status;
}

/* A resolution as a number; 0 after a message. */
static int64_t parse_resolution(const char *text) {
    char *end;
    const int64_t value = strtoll(text, &end, 10);
    if (end == text || *end || value < 1 || value > 1 << 20) {
        cli_usage("eval", "--resolution needs whole numbers from 1 on, not '%.64s'", text);
        return 0;
    }
    return value;
}

/* The sample with the largest L2 error, or with one that is no number; 0-based. */
static int64_t worst_of(const tg_test_errors *e) {
    int64_t worst = 0;
    for (int64_t i = 1; i < e->samples; i++) {
        worst = e->l2_samples[i] <= e->l2_samples[worst] || isnan(e->l2_samples[worst]) ? worst : i;
    }
    return worst;
}

static void print_table(const result *results, int count) {
    static const cli_column columns[] = {{"file", false}, {"resolution", true}, {"samples", true},
                                         {"l2", true},    {"h1", true},         {"worst l2", true},
                                         {"sample", true}};
    cli_table table = {.column = columns, .columns = sizeof columns / sizeof columns[0]};
    for (int i = 0; i < count; i++) {
        const tg_test_errors *e = &results[i].errors;
        const int64_t worst = worst_of(e);
        cli_table_cell(&table, "%s", results[i].file);
        cli_table_cell(&table, "%s", e->grid);
        cli_table_cell(&table, "%lld", (long long)e->samples);
        cli_table_cell(&table, "%.6f", e->l2);
        cli_table_cell(&table, "%.6f", e->h1);
        cli_table_cell(&table, "%.6f", e->l2_samples[worst]);
        cli_table_cell(&table, "%lld", (long long)worst + 1);
    }
    cli_table_print(&table, "", stdout);
    cli_table_free(&table);
}

/* Each channel by itself; nothing if there is but one. */
static void print_channels(const result *results, int count) {
    static const cli_column columns[] = {
        {"file", false}, {"resolution", true}, {"channel", true}, {"l2", true}, {"h1", true}};
    cli_table table = {.column = columns, .columns = sizeof columns / sizeof columns[0]};
    for (int i = 0; i < count && results[0].errors.channels > 1; i++) {
        const tg_test_errors *e = &results[i].errors;
        for (int64_t c = 0; c < e->channels; c++) {
            cli_table_cell(&table, "%s", results[i].file);
            cli_table_cell(&table, "%s", e->grid);
            cli_table_cell(&table, "%lld", (long long)c + 1);
            cli_table_cell(&table, "%.6f", e->l2_channels[c]);
            cli_table_cell(&table, "%.6f", e->h1_channels[c]);
        }
    }
    if (table.cells > 0) {
        printf("\neach channel by itself:\n");
        cli_table_print(&table, "", stdout);
    }
    cli_table_free(&table);
}

/* A number of points, or the name of a grid that is not square. */
static json_t *json_of_grid(const char *grid) {
    char *end;
    const int64_t points = strtoll(grid, &end, 10);
    return *end ? cli_json_text(grid) : cli_json_integer(points);
}

static void print_json(const char *checkpoint, const result *results, int count) {
    json_t *object = cli_json_object(), *list = cli_json_array();
    for (int i = 0; i < count; i++) {
        const tg_test_errors *e = &results[i].errors;
        json_t *entry = cli_json_object(), *each = cli_json_object();
        cli_json_set(entry, "file", cli_json_text(results[i].file));
        cli_json_set(entry, "resolution", json_of_grid(e->grid));
        cli_json_set(entry, "samples", cli_json_integer(e->samples));
        cli_json_set_errors(entry, e);
        cli_json_set(each, "l2", cli_json_reals(e->l2_samples, e->samples));
        cli_json_set(each, "h1", cli_json_reals(e->h1_samples, e->samples));
        cli_json_set(entry, "per_sample", each);
        cli_json_append(list, entry);
    }
    cli_json_set(object, "checkpoint", cli_json_text(checkpoint));
    cli_json_set(object, "results", list);
    cli_json_print(object);
}

/* Every file at every resolution, `each` of them per file (NULL: their own). */
static int evaluate_all(tg_context *ctx, const cli_model *model, const int64_t *resolution,
                        int each, bool json) {
    const int count = opt.data.count * each;
    result *results = cli_need(calloc((size_t)count + 1, sizeof *results));
    tg_status status = TG_OK;
    for (int i = 0; status == TG_OK && i < count; i++) {
        results[i].file = opt.data.item[i / each];
        status = evaluate(ctx, model, results[i].file, resolution[i % each], &results[i].errors);
    }
    if (status == TG_OK && json) {
        print_json(model->path, results, count);
    } else if (status == TG_OK) {
        print_table(results, count);
        print_channels(results, count);
    }
    for (int i = 0; i < count; i++) {
        tg_test_errors_destroy(&results[i].errors);
    }
    free(results);
    return status == TG_OK ? CLI_OK : cli_fail_status(ctx, status);
}

static int run(const cli_call *call) {
    const int each = opt.resolution.count > 0 ? opt.resolution.count : 1;
    int64_t *resolution = cli_need(calloc((size_t)each, sizeof *resolution));
    tg_context *ctx = NULL;
    cli_model model = {0};
    int code = opt.data.count > 0 ? CLI_OK : cli_usage("eval", "--data FILE is needed");
    for (int i = 0; code == CLI_OK && i < opt.resolution.count; i++) {
        resolution[i] = parse_resolution(opt.resolution.item[i]);
        code = resolution[i] > 0 ? CLI_OK : CLI_USAGE;
    }
    if (code == CLI_OK) {
        code = cli_open_context(call->common, true, &ctx);
    }
    if (code == CLI_OK) {
        code = cli_model_open(ctx, call->args.item[0], &model);
    }
    if (code == CLI_OK) {
        code = evaluate_all(ctx, &model, resolution, each, call->common->json);
    }
    cli_model_close(&model);
    tg_context_destroy(&ctx);
    free(resolution);
    cli_list_free(&opt.data);
    cli_list_free(&opt.resolution);
    return code;
}

const cli_command cli_cmd_eval = {
    .name = "eval",
    .arguments = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "Measure the errors of a trained model on data",
    .description =
        "MODEL is a checkpoint file, or a run folder whose best checkpoint is meant. Prints the\n"
        "relative L2 and H1 errors for every file at every resolution: |prediction - truth| /\n"
        "|truth| of each sample, its channels together, and the mean over the samples; with "
        "several\n"
        "channels also of each by itself. --json has the errors of every sample (per_sample). The\n"
        "grid may be finer than the one the model was trained on.\n",
    .examples =
        "  tgrad eval runs/darcy --data data/darcy_test_16.h5,data/darcy_test_32.h5\n"
        "  tgrad eval model.safetensors --data darcy_421.h5 --resolution 85,211,421\n"
        "  tgrad eval runs/darcy --data data/darcy_test_32.h5 --json | jq '.results[0].l2'\n"
        "  tgrad eval runs/darcy --data own.h5 --json | jq '.results[0].per_sample.l2 | max'\n",
    .options = options,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE,
    .run = run,
};
