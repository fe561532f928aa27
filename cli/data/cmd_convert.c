/* tgrad convert IN OUT: the tensors of one file in another format, or in another dtype; of a model
 * also in another form. */
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"

/* ---- models with spectral weights in another form ---- */

typedef struct cli_form {
    const char *factorize; /* tucker or tt; NULL: not given */
    const char *rank;      /* as of fno.rank; NULL: not given */
    bool densify;
} cli_form;

static int64_t count_parameters(const tg_fno *fno) {
    int64_t count = 0;
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        count += tg_shape_numel(&param.shape) * (tg_dtype_is_complex(param.dtype) ? 2 : 1);
    }
    return count;
}

static void report_model(const cli_model *before, tg_model *after, const char *path,
                         const char *form, const double *errors, bool json) {
    const tg_fno_config *config = tg_fno_get_config(tg_model_fno(after));
    const int64_t were = count_parameters(tg_model_fno(before->model));
    const int64_t are = count_parameters(tg_model_fno(after));
    json_t *weights = cli_json_array();
    if (!json) {
        cli_model_say_checkpoint(before);
    }
    for (int l = 0; l < (int)config->n_layers; l++) {
        char name[64];
        snprintf(name, sizeof name, "fno_blocks.convs.%d.weight", l);
        if (!json) {
            cli_say("%s: relative error %.3g", name, errors[l]);
        }
        cli_json_append(weights, cli_json_new(KV("name", name), KV("relative_error", errors[l])));
    }
    if (json) {
        cli_json_print(cli_json_new(KV("input", before->path), KV("output", path),
                                    KV("factorization", form), KV("parameters_before", were),
                                    KV("parameters", are), KV("weights", json_incref(weights))));
    } else {
        cli_say("wrote %s: %s weights, %lld parameters of %lld (%.1f %%)", path, form,
                (long long)are, (long long)were, 100.0 * (double)are / (double)were);
    }
    json_decref(weights);
}

static void convert_model(const cli_call *call, const cli_form *form) {
    const char *path = call->args.item[1];
    if ((form->factorize != NULL) == form->densify ||
        (form->factorize != NULL) != (form->rank != NULL)) {
        cli_misuse("convert", "a model takes --factorize FORM and --rank RANK, or --densify alone");
    }
    tg_file_format format;
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_host_context("convert", call->common);
    CLI_OWNED(cli_model_close) cli_model model = {0};
    CLI_OWNED(tg_model_destroy) tg_model *converted = NULL;
    cli_check(tg_file_format_of_path(ctx, path, &format));
    if (format != TG_FILE_SAFETENSORS) {
        cli_die("%s: a model file is .safetensors", path);
    }
    cli_model_open(ctx, call->args.item[0], &model);
    tg_fno_config network = *cli_model_config(&model);
    const char *name = form->densify ? "dense" : form->factorize;
    CLI_FREED double *errors = cli_need(calloc((size_t)network.n_layers, sizeof *errors));
    cli_check(tg_fno_config_set(ctx, &network, "factorization", name));
    cli_check(tg_fno_config_set(ctx, &network, "rank", form->densify ? "1" : form->rank));
    cli_check(tg_model_factorize(model.model, &network, errors, &converted));
    cli_check(tg_model_save(converted, path));
    report_model(&model, converted, path, name, errors, call->common->json);
}

/* ---- tensors of a file ---- */

enum { GZIP_UNSET = -1 };

static struct {
    const char *dataset; /* NULL: all */
    const char *dtype;   /* NULL: as they are */
    int64_t gzip;
    cli_form form; /* of a model */
} opt = {.gzip = GZIP_UNSET};

/* The names of tg_dtype_name(), for help and completion. */
static const char *const dtypes[] = {"f32",   "f64",  "bf16", "f16", "c64", "c128",
                                     "cbf16", "cf16", "bool", "u8",  "i8",  "u16",
                                     "i16",   "u32",  "i32",  "u64", "i64", NULL};

static const char *const forms[] = {"tucker", "tt", NULL};

static const cli_option options[] = {
    CLI_OPTION_TEXT("dataset", 0, &opt.dataset, NULL, "NAME", "convert this tensor only", "all"),
    CLI_OPTION_TEXT("dtype", 0, &opt.dtype, dtypes, "TYPE",
                    "convert the numbers to f32, bf16, c64, i32, ..", NULL),
    CLI_OPTION_INT("gzip", 0, &opt.gzip, 0, 9, "N", "compress HDF5 output, 1 (fast) to 9 (small)",
                   "0, none"),
    CLI_OPTION_TEXT("factorize", 0, &opt.form.factorize, forms, "FORM",
                    "of a model: decompose spectral weights, tucker or tt", NULL),
    CLI_OPTION_TEXT("rank", 0, &opt.form.rank, NULL, "RANK",
                    "of --factorize: a share of the numbers, a rank, or a list", NULL),
    CLI_OPTION_FLAG("densify", 0, &opt.form.densify,
                    "of a model: multiply the factors of spectral weights"),
    {0},
};

/* Puts tensor `index` of the source into `out`, in the wanted dtype. */
static tg_status add_tensor(const cli_source *source, int64_t index, tg_archive *out) {
    const char *name = cli_source_name(source, index);
    CLI_OWNED(tg_tensor_destroy) tg_tensor tensor = {0};
    CLI_OWNED(tg_tensor_destroy) tg_tensor converted = {0};
    CLI_CALL(cli_source_read(source, index, &tensor));
    tg_dtype dtype = tensor.dtype;
    for (int d = 0; opt.dtype && d < TG_DTYPES; d++) {
        dtype = strcmp(tg_dtype_name((tg_dtype)d), opt.dtype) == 0 ? (tg_dtype)d : dtype;
    }
    if (dtype != tensor.dtype) {
        CLI_CALL(tg_tensor_create(source->ctx, TG_MEM_DATA, dtype, &tensor.shape, &converted));
        CLI_CALL(tg_tensor_convert(source->ctx, &tensor, &converted));
        return tg_archive_take(out, name, &converted);
    }
    return tensor.owner ? tg_archive_take(out, name, &tensor)
                        : tg_archive_add_view(out, name, &tensor);
}

static void report(const char *input, const char *output, tg_file_format format,
                   const tg_archive *archive, bool json) {
    const uint64_t bytes = cli_file_bytes(output);
    const int64_t count = tg_archive_count(archive);
    if (!json) {
        cli_say("wrote %s: %lld tensor%s, %s", output, (long long)count, count == 1 ? "" : "s",
                CLI_BYTES(bytes));
        return;
    }
    json_t *tensors = cli_json_array();
    for (int64_t i = 0; i < count; i++) {
        const tg_tensor *tensor = tg_archive_tensor(archive, i);
        cli_json_append(tensors, cli_json_new(KV("name", tg_archive_name(archive, i)),
                                              KV("dtype", tg_dtype_name(tensor->dtype)),
                                              KV("shape", cli_json_shape(&tensor->shape))));
    }
    cli_json_print(cli_json_new(KV("input", input), KV("output", output),
                                KV("format", tg_file_format_name(format)), KV("bytes", bytes),
                                KV("tensors", tensors)));
}

/* The range of tensors to convert: the one of --dataset, or all. */
static void choose(const cli_source *source, tg_file_format target, int64_t *first,
                   int64_t *count) {
    *first = 0;
    *count = cli_source_count(source);
    if (opt.dataset) {
        *count = 1;
        *first = cli_source_find(source, opt.dataset);
    } else if (target == TG_FILE_NPY && *count != 1) {
        char names[512];
        cli_die("an npy file holds one tensor, but %s has %lld: choose one of %s with "
                "--dataset",
                source->path, (long long)*count, cli_source_names(source, names, sizeof names));
    }
}

static void convert(tg_context *ctx, const cli_source *source, const char *path,
                    tg_file_format target, bool json) {
    int64_t first = 0, count = 0;
    CLI_OWNED(tg_archive_destroy) tg_archive *out = NULL;
    choose(source, target, &first, &count);
    cli_check(tg_archive_create(ctx, &out));
    for (int64_t i = first; i < first + count; i++) {
        if (add_tensor(source, i, out) != TG_OK) {
            cli_die("tensor '%s' of %s: %s", cli_source_name(source, i), source->path,
                    tg_context_error(ctx));
        }
    }
    for (int64_t i = 0; i < tg_archive_meta_count(source->archive); i++) {
        cli_check(tg_archive_set_meta(out, tg_archive_meta_key(source->archive, i),
                                      tg_archive_meta_value(source->archive, i)));
    }
    const tg_h5_write_config config = {.size = sizeof(tg_h5_write_config),
                                       .gzip = opt.gzip > 0 ? (int)opt.gzip : 0};
    cli_check(target == TG_FILE_HDF5 ? tg_h5_write(ctx, path, out, &config)
                                     : tg_archive_write(ctx, path, out));
    report(source->path, path, target, out, json);
}

static int run(const cli_call *call) {
    const bool has_form = opt.form.factorize || opt.form.rank || opt.form.densify;
    if (has_form && (opt.dataset || opt.dtype || opt.gzip != GZIP_UNSET)) {
        return cli_usage("convert",
                         "--dataset, --dtype and --gzip are for tensors, --factorize and "
                         "--densify for models");
    }
    const char *input = call->args.item[0], *output = call->args.item[1];
    if (opt.dataset) { /* the others would be lost */
        cli_keep_file(input, output);
    }
    if (has_form) {
        convert_model(call, &opt.form);
        return CLI_OK;
    }
    tg_file_format target;
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, false);
    CLI_OWNED(cli_source_close) cli_source source = {0};
    cli_check(tg_file_format_of_path(ctx, output, &target));
    if (opt.gzip != GZIP_UNSET && target != TG_FILE_HDF5) {
        return cli_usage("convert", "--gzip is for HDF5 output, and %.200s is %s", output,
                         tg_file_format_name(target));
    }
    cli_check(cli_source_open(ctx, input, &source));
    cli_check(target != TG_FILE_NPY ? cli_source_read_meta(&source) : TG_OK);
    convert(ctx, &source, output, target, call->common->json);
    return CLI_OK;
}

const cli_command cli_cmd_convert = {
    .name = "convert",
    .arguments = "IN OUT",
    .args = {2, 2},
    .summary = "Convert tensors among npy, safetensors and HDF5 files",
    .description =
        "The format of IN is detected from its content, that of OUT from its ending (.npy,\n"
        ".safetensors, .h5, .hdf5). An npy file holds one tensor without a name or metadata: from\n"
        "a file of several, choose one with --dataset; read back, it is called 'data'. The\n"
        "other formats keep all names and metadata. OUT appears complete or not at all.\n"
        "\n"
        "With --factorize or --densify IN is a model: a checkpoint, a run folder, a model file,\n"
        "or with --config a file of weights by neuraloperator's names. OUT is a model file that\n"
        "eval, predict and train --init take. Prints the relative error |W - W'| / |W| of each\n"
        "spectral weight. tucker: HOSVD and two sweeps of HOOI; tt: an SVD for each mode.\n",
    .examples = "  tgrad convert darcy.h5 --dataset y y.npy\n"
                "  tgrad convert model.safetensors model.h5 --gzip 6\n"
                "  tgrad convert weights.h5 weights.safetensors --dtype bf16\n"
                "  tgrad convert runs/darcy small.safetensors --factorize tucker --rank 0.1\n"
                "  tgrad convert small.safetensors dense.safetensors --densify\n",
    .options = options,
    .takes = CLI_TAKES_MODEL | CLI_TAKES_JSON,
    .run = run,
};
