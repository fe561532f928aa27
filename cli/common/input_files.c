/* One view of three tensor formats: an npy or safetensors file is an archive, an HDF5 file stays
 * open. And checkpoints and weights: finding and loading them. */
#include "input_files.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* Elements of an HDF5 dataset that are in memory at once (64 MiB of f64), unless a row has more. */
enum { CHUNK_ELEMENTS = 8 << 20 };

tg_status cli_source_open(tg_context *ctx, const char *path, cli_source *out) {
    *out = (cli_source){.ctx = ctx, .path = path};
    CLI_CALL(tg_file_detect(ctx, path, &out->format));
    if (out->format != TG_FILE_HDF5) {
        return tg_archive_read(ctx, path, &out->archive);
    }
    CLI_CALL(tg_archive_create(ctx, &out->archive));
    return tg_h5_open(ctx, path, &out->h5);
}

tg_status cli_source_read_meta(cli_source *source) {
    return source->h5 ? tg_h5_read_meta(source->h5, source->archive) : TG_OK;
}

void cli_source_close(cli_source *source) {
    tg_archive_destroy(&source->archive);
    tg_h5_close(&source->h5);
}

int64_t cli_source_count(const cli_source *source) {
    return source->h5 ? tg_h5_count(source->h5) : tg_archive_count(source->archive);
}

const char *cli_source_name(const cli_source *source, int64_t index) {
    return source->h5 ? tg_h5_name(source->h5, index) : tg_archive_name(source->archive, index);
}

tg_status cli_source_describe(const cli_source *source, int64_t index, tg_dtype *dtype,
                              tg_shape *shape) {
    if (source->h5) {
        return tg_h5_describe(source->h5, tg_h5_name(source->h5, index), dtype, shape);
    }
    const tg_tensor *tensor = tg_archive_tensor(source->archive, index);
    *dtype = tensor->dtype;
    *shape = tensor->shape;
    return TG_OK;
}

/* Adds the statistics of `part`, over `finite` elements, to those of the `*count` before. */
static void merge_stats(tg_tensor_stats *sum, int64_t *count, const tg_tensor_stats *part,
                        int64_t finite) {
    sum->nan_count += part->nan_count;
    sum->inf_count += part->inf_count;
    if (finite == 0) {
        return;
    }
    if (*count == 0) {
        sum->min = part->min;
        sum->max = part->max;
        sum->mean = part->mean;
    } else {
        sum->min = fmin(sum->min, part->min);
        sum->max = fmax(sum->max, part->max);
        sum->mean += (part->mean - sum->mean) * ((double)finite / (double)(*count + finite));
    }
    *count += finite;
}

/* Statistics of a dataset of (rows, row) elements, chunk by chunk, in double. */
static tg_status chunk_stats(const cli_source *source, const char *name, tg_dtype dtype,
                             int64_t rows, int64_t row, tg_tensor_stats *out) {
    const tg_dtype wide = tg_dtype_is_complex(dtype) ? TG_C128 : TG_F64;
    const int64_t step = row < CHUNK_ELEMENTS ? CHUNK_ELEMENTS / row : 1;
    CLI_OWNED(tg_tensor_destroy) tg_tensor chunk = {0};
    tg_shape shape = {.ndim = 2, .dim = {step < rows ? step : rows, row}};
    CLI_CALL(tg_tensor_create(source->ctx, TG_MEM_DATA, wide, &shape, &chunk));
    int64_t finite = 0;
    for (int64_t first = 0; first < rows; first += step) {
        tg_tensor part = {0};
        tg_tensor_stats stats;
        const int64_t count = rows - first < step ? rows - first : step;
        CLI_CALL(tg_h5_read_range(source->h5, name, first, count, wide, chunk.data));
        CLI_CALL(tg_tensor_slice(source->ctx, &chunk, 0, count, &part));
        CLI_CALL(tg_tensor_get_stats(source->ctx, &part, &stats));
        merge_stats(out, &finite, &stats, count * row - stats.nan_count - stats.inf_count);
    }
    return TG_OK;
}

tg_status cli_source_stats(const cli_source *source, int64_t index, tg_tensor_stats *out) {
    const double none = (double)NAN;
    *out = (tg_tensor_stats){.min = none, .max = none, .mean = none};
    if (!source->h5) {
        return tg_tensor_get_stats(source->ctx, tg_archive_tensor(source->archive, index), out);
    }
    const char *name = tg_h5_name(source->h5, index);
    tg_dtype dtype;
    tg_shape shape;
    CLI_CALL(tg_h5_describe(source->h5, name, &dtype, &shape));
    const int64_t numel = tg_shape_numel(&shape);
    if (numel == 0) {
        return TG_OK;
    }
    if (numel > CHUNK_ELEMENTS) {
        return chunk_stats(source, name, dtype, shape.dim[0], numel / shape.dim[0], out);
    }
    CLI_OWNED(tg_tensor_destroy) tg_tensor whole = {0};
    CLI_CALL(tg_h5_read(source->h5, name, &whole));
    return tg_tensor_get_stats(source->ctx, &whole, out);
}

tg_status cli_source_read(const cli_source *source, int64_t index, tg_tensor *out) {
    if (source->h5) {
        return tg_h5_read(source->h5, tg_h5_name(source->h5, index), out);
    }
    *out = *tg_archive_tensor(source->archive, index);
    out->owner = NULL;
    return TG_OK;
}

int64_t cli_source_find(const cli_source *source, const char *name) {
    cli_suggestion suggestion = cli_suggest(name);
    for (int64_t i = 0; i < cli_source_count(source); i++) {
        if (strcmp(cli_source_name(source, i), name) == 0) {
            return i;
        }
        cli_suggest_offer(&suggestion, cli_source_name(source, i));
    }
    if (suggestion.best) {
        cli_die("%s has no tensor '%s'; did you mean '%s'?", source->path, name, suggestion.best);
    }
    char names[512];
    cli_die("%s has no tensor '%s'; it has %s", source->path, name,
            cli_source_names(source, names, sizeof names));
}

const char *cli_source_names(const cli_source *source, char *text, size_t capacity) {
    const int64_t count = cli_source_count(source);
    const size_t tail = 40; /* room for " .. (N in all)" */
    size_t used = 0;
    snprintf(text, capacity, "%s", count == 0 ? "none" : "");
    for (int64_t i = 0; i < count; i++) {
        const char *name = cli_source_name(source, i);
        if (used + strlen(name) + 2 + tail > capacity) {
            snprintf(text + used, capacity - used, "%s.. (%lld in all)", i ? ", " : "",
                     (long long)count);
            break;
        }
        used += (size_t)snprintf(text + used, capacity - used, "%s%s", i ? ", " : "", name);
    }
    return text;
}

tg_status cli_dataset_open(tg_context *ctx, const char *path, const tg_dataset_config *config,
                           tg_dataset **out) {
    tg_dataset_config streamed = *config;
    streamed.cache_bytes = 0;
    const tg_status status = tg_dataset_open(ctx, path, NULL, &streamed, out);
    return status == TG_E_UNSUPPORTED ? tg_dataset_open(ctx, path, NULL, config, out) : status;
}

const char *const cli_orders[] = {"nchw", "nhwc", NULL};

json_t *cli_json_shape(const tg_shape *shape) {
    json_t *sizes = cli_json_array();
    for (int d = 0; d < shape->ndim; d++) {
        cli_json_append(sizes, cli_json_integer(shape->dim[d]));
    }
    return sizes;
}

uint64_t cli_file_bytes(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (uint64_t)info.st_size : 0;
}

/* ---- models ---- */

static const char *checkpoint;
static const char *config_path;
static bool normalizes;

const cli_option cli_model_options[] = {
    CLI_OPTION_TEXT("checkpoint", 0, &checkpoint, NULL, "best|last|STEP",
                    "which one, where MODEL is a run folder", "best"),
    CLI_OPTION_TEXT("config", 0, &config_path, NULL, "CONFIG.yaml",
                    "the network, where MODEL holds weights alone", NULL),
    CLI_OPTION_FLAG("normalize", 0, &normalizes,
                    "with --config: fit the normalizers on its training data"),
    {0},
};

static tg_status import(tg_context *ctx, const char *path, tg_model **out) {
    CLI_OWNED(tg_settings_destroy) tg_settings *settings = NULL;
    CLI_CALL(tg_settings_read_yaml(ctx, config_path, &settings));
    CLI_CALL(tg_model_import(ctx, path, settings, out));
    return normalizes ? tg_model_fit_normalizers(*out) : TG_OK;
}

void cli_model_print_normalized(const cli_model *model) {
    const bool x = tg_model_normalizer(model->model, TG_DATA_X);
    const bool y = tg_model_normalizer(model->model, TG_DATA_Y);
    if (config_path) {
        fprintf(stderr, "tgrad: normalized: %s%s\n",
                x && y ? "input and output"
                : x    ? "the input"
                : y    ? "the output"
                       : "nothing",
                x || y || normalizes ? "" : " (--normalize fits on the training data of --config)");
    }
}

void cli_model_say_checkpoint(const cli_model *model) {
    const tg_model_origin origin = tg_model_get_origin(model->model);
    if (model->is_chosen && origin.text[0]) {
        cli_say("checkpoint: %s", origin.text);
    }
}

void cli_model_open(tg_context *ctx, const char *path, cli_model *out) {
    char file[4096];
    *out = (cli_model){.is_chosen = cli_is_folder(path)};
    if (normalizes && !config_path) {
        cli_die("--normalize is for weights with --config; a checkpoint has its own");
    }
    cli_check(tg_run_checkpoint(ctx, path, checkpoint, file, sizeof file));
    out->path = cli_need(strdup(file));
    cli_check(config_path ? import(ctx, file, &out->model) : tg_model_load(ctx, file, &out->model));
}

json_t *cli_model_json(const cli_model *model) {
    const tg_model_origin origin = tg_model_get_origin(model->model);
    const bool is_known = origin.text[0] != '\0';
    return cli_json_new(KV("checkpoint", model->path),
                        KV("epoch", is_known ? cli_json_integer(origin.epoch) : json_null()),
                        KV("epochs", is_known ? cli_json_integer(origin.epochs) : json_null()),
                        KV("best_by", origin.is_best ? cli_json_text(origin.metric) : json_null()));
}

void cli_model_close(cli_model *model) {
    tg_model_destroy(&model->model);
    free(model->path);
    *model = (cli_model){0};
}

const tg_fno_config *cli_model_config(const cli_model *model) {
    return tg_fno_get_config(tg_model_fno(model->model));
}

tg_dtype cli_model_dtype(const cli_model *model) {
    const tg_fno_config *fno = cli_model_config(model);
    const bool is_double = fno->dtype == TG_F64;
    return fno->complex_data ? (is_double ? TG_C128 : TG_C64) : fno->dtype;
}

bool cli_on_points(const tg_fno_config *fno) {
    return fno->architecture == TG_ARCHITECTURE_GINO;
}

int cli_data_dims(const tg_fno_config *fno) {
    return cli_on_points(fno) ? 1 : fno->n_dim;
}
