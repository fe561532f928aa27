/* tgrad inspect FILE: what a file of tensors holds, with statistics that show damage (NaN, Inf,
 * constant or exploding values) at a glance. A complex tensor's statistics are of the modulus. */
#include <math.h>
#include <stdlib.h>

#include "output.h"
#include "tensor_file.h"
#include "text.h"

enum { SHOWN_META = 60 }; /* characters of a metadata value on the terminal */

static const char *only; /* --tensor */

static const cli_option options[] = {
    CLI_OPTION_TEXT("tensor", 0, &only, NULL, "NAME", "show this tensor only", NULL),
    {0},
};

/* A tensor as the two printers need it. */
typedef struct row {
    const char *name;
    tg_dtype dtype;
    tg_shape shape;
    tg_tensor_stats stats;
} row;

static const cli_column columns[] = {{"name", false}, {"dtype", false}, {"shape", false},
                                     {"min", true},   {"max", true},    {"mean", true},
                                     {"NaN", true},   {"Inf", true}};

static void add_cells(cli_table *table, const row *r) {
    char shape[128];
    cli_table_cell(table, "%s", r->name);
    cli_table_cell(table, "%s", tg_dtype_name(r->dtype));
    cli_table_cell(table, "%s", tg_shape_text(&r->shape, shape, sizeof shape));
    const double values[] = {r->stats.min, r->stats.max, r->stats.mean};
    for (int i = 0; i < 3; i++) {
        char number[32] = "-"; /* no element is finite */
        if (isfinite(values[i])) {
            snprintf(number, sizeof number, "%.6g", values[i]);
        }
        cli_table_cell(table, "%s", number);
    }
    cli_table_cell(table, "%lld", (long long)r->stats.nan_count);
    cli_table_cell(table, "%lld", (long long)r->stats.inf_count);
}

static json_t *json_of(const row *r) {
    json_t *object = cli_json_object();
    const int64_t numel = tg_shape_numel(&r->shape);
    cli_json_set(object, "name", cli_json_text(r->name));
    cli_json_set(object, "dtype", cli_json_text(tg_dtype_name(r->dtype)));
    cli_json_set(object, "shape", cli_json_shape(&r->shape));
    cli_json_set(object, "elements", cli_json_integer(numel));
    cli_json_set(object, "bytes", cli_json_integer(numel * (int64_t)tg_dtype_size(r->dtype)));
    cli_json_set(object, "min", cli_json_real(r->stats.min));
    cli_json_set(object, "max", cli_json_real(r->stats.max));
    cli_json_set(object, "mean", cli_json_real(r->stats.mean));
    cli_json_set(object, "nan", cli_json_integer(r->stats.nan_count));
    cli_json_set(object, "inf", cli_json_integer(r->stats.inf_count));
    return object;
}

static void print_text(const cli_source *source, const cli_table *table) {
    char size[CLI_UNIT_TEXT];
    const int64_t count = cli_source_count(source);
    cli_say("%s: %s, %lld tensor%s, %s", source->path, tg_file_format_name(source->format),
            (long long)count, count == 1 ? "" : "s",
            cli_bytes_text(cli_file_bytes(source->path), size));
    if (table->cells > 0) {
        putchar('\n');
        cli_table_print(table, "", stdout);
    }
    const int64_t pairs = tg_archive_meta_count(source->archive);
    if (pairs > 0 && !only) {
        fputs("\nmetadata\n", stdout);
    }
    for (int64_t i = 0; i < pairs && !only; i++) {
        char *key = cli_clean_text(tg_archive_meta_key(source->archive, i), SHOWN_META);
        char *value = cli_clean_text(tg_archive_meta_value(source->archive, i), SHOWN_META);
        printf("  %s: %s\n", key, value);
        free(key);
        free(value);
    }
}

static void print_json(const cli_source *source, json_t *tensors) {
    json_t *object = cli_json_object();
    json_t *meta = cli_json_object();
    for (int64_t i = 0; i < tg_archive_meta_count(source->archive); i++) {
        cli_json_set(meta, tg_archive_meta_key(source->archive, i),
                     cli_json_text(tg_archive_meta_value(source->archive, i)));
    }
    cli_json_set(object, "file", cli_json_text(source->path));
    cli_json_set(object, "format", cli_json_text(tg_file_format_name(source->format)));
    cli_json_set(object, "bytes", cli_json_integer((int64_t)cli_file_bytes(source->path)));
    cli_json_set(object, "metadata", meta);
    cli_json_set(object, "tensors", json_incref(tensors));
    cli_json_print(object);
}

/* Reads tensors [first, first + count) and prints. Nothing is printed before all could be read. */
static int inspect(const cli_source *source, int64_t first, int64_t count, bool json) {
    cli_table table = {.column = columns, .columns = sizeof columns / sizeof columns[0]};
    json_t *tensors = cli_json_array();
    int code = CLI_OK;
    for (int64_t i = first; i < first + count && code == CLI_OK; i++) {
        row r = {.name = cli_source_name(source, i)};
        tg_status status = cli_source_describe(source, i, &r.dtype, &r.shape);
        if (status == TG_OK) {
            status = cli_source_stats(source, i, &r.stats);
        }
        if (status != TG_OK) {
            code = cli_fail_status(source->ctx, status);
        } else if (json) {
            cli_json_append(tensors, json_of(&r));
        } else {
            add_cells(&table, &r);
        }
    }
    if (code == CLI_OK && json) {
        print_json(source, tensors);
    } else if (code == CLI_OK) {
        print_text(source, &table);
    }
    json_decref(tensors);
    cli_table_free(&table);
    return code;
}

static int run(const cli_call *call) {
    tg_context *ctx = NULL;
    if (cli_open_context(call->common, false, &ctx) != CLI_OK) {
        return CLI_FAILED;
    }
    cli_source source = {0};
    int64_t first = 0;
    int code = CLI_OK;
    tg_status status = cli_source_open(ctx, call->args.item[0], &source);
    if (status == TG_OK && (!only || call->common->json)) {
        status = cli_source_read_meta(&source);
    }
    if (status != TG_OK) {
        code = cli_fail_status(ctx, status);
    } else if (only) {
        code = cli_source_find(&source, only, &first);
    }
    if (code == CLI_OK) {
        code = inspect(&source, first, only ? 1 : cli_source_count(&source), call->common->json);
    }
    cli_source_close(&source);
    tg_context_destroy(&ctx);
    return code;
}

const cli_command cli_cmd_inspect = {
    .name = "inspect",
    .arguments = "FILE",
    .min_args = 1,
    .max_args = 1,
    .summary = "Show every tensor of a file, its statistics and the file's metadata",
    .description =
        "FILE is an npy, npz, safetensors, HDF5 or torch file; its content decides, not its name.\n"
        "Minimum, maximum and mean are over the finite elements, and of the modulus for complex\n"
        "ones. HDF5 datasets are read one by one, so a file may be larger than the memory. No "
        "code\n"
        "of a torch file is run. Long metadata is shortened on the terminal and whole in JSON.\n",
    .examples = "  tgrad inspect model.safetensors\n"
                "  tgrad inspect darcy.h5 --tensor y\n"
                "  tgrad inspect darcy.h5 --json | jq '.tensors[].shape'\n",
    .options = options,
    .takes = CLI_TAKES_JSON,
    .run = run,
};
