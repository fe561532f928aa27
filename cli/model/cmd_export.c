/* tgrad export MODEL --c -o DIR: a folder with the model and all that predicts with it, for a
 * machine with a C compiler and nothing else. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/model_file.h"
#include "common/output.h"
#include "common/random_gradient.h"
#include "common/run_settings.h"
#include "common/text.h"
#include "export_c.h"

static struct {
    bool c;
    const char *output, *grid;
} opt;

static const cli_option options[] = {
    CLI_OPTION_FLAG("c", 0, &opt.c, "as C sources and a file of weights (needed)"),
    CLI_OPTION_TEXT("output", 'o', &opt.output, NULL, "DIR", "folder to write (needed)", NULL),
    CLI_OPTION_TEXT("grid", 0, &opt.grid, NULL, "N1xN2..", "grid of the sample written beside it",
                    "as trained, or 32"),
    {0},
};

/* The grid of the sample: --grid, the one of the training if it is known, or 32 points each. */
static int choose_grid(const cli_model *model, int64_t grid[TG_DATA_MAX_DIMS]) {
    const int n_dim = cli_model_config(model)->n_dim;
    const char *trained =
        cli_setting_or(tg_model_settings(model->model), "data.train_resolution", "32");
    const char *text = opt.grid ? opt.grid : trained;
    const int found = tg_grid_parse(text, grid);
    if (found != 1 && found != n_dim) {
        return cli_fail("--grid %s: expected one size or %d, e.g. %s", text, n_dim,
                        n_dim == 1   ? "128"
                        : n_dim == 2 ? "64x96"
                                     : "32x32x48");
    }
    for (int d = found; d < n_dim; d++) {
        grid[d] = grid[0];
    }
    return CLI_OK;
}

static int write_in(const char *name, const void *bytes, size_t size) {
    char *path = cli_format("%s/%s", opt.output, name);
    const int code = cli_write_file(path, bytes, size);
    free(path);
    return code;
}

static tg_status make_field(tg_context *ctx, int64_t channels, int n_dim, const int64_t *grid,
                            tg_tensor *out) {
    tg_shape shape = {.ndim = n_dim + 2, .dim = {1, channels}};
    memcpy(shape.dim + 2, grid, (size_t)n_dim * sizeof grid[0]);
    return tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, out);
}

/* The output of the model for x, computed as in the C sources: activations and spectra in f32,
 * whatever it was trained with. */
static tg_status predict_in_f32(tg_context *ctx, const cli_model *model, const tg_tensor *x,
                                tg_tensor *y) {
    tg_fno_config config = *cli_model_config(model);
    tg_archive *weights = NULL;
    tg_fno *fno = NULL;
    tg_model *plain = NULL;
    tg_status status = TG_OK;
    config.activation_precision = config.fno_block_precision = TG_PRECISION_FULL;
    CLI_TRY(tg_archive_create(ctx, &weights));
    CLI_TRY(tg_fno_save(tg_model_fno(model->model), weights, ""));
    CLI_TRY(tg_fno_create(ctx, &config, 0, &fno));
    CLI_TRY(tg_fno_load(fno, weights, ""));
    CLI_TRY(tg_model_wrap(ctx, fno, tg_model_normalizer(model->model, TG_DATA_X),
                          tg_model_normalizer(model->model, TG_DATA_Y), &plain));
    CLI_TRY(tg_model_predict(plain, x, y));
fail:
    tg_model_destroy(&plain);
    tg_fno_destroy(&fno);
    tg_archive_destroy(&weights);
    return status;
}

/* A random input and its output: sample.f32, with the sizes in sample.h. */
static int write_sample(tg_context *ctx, const cli_model *model) {
    const tg_fno_config *fno = cli_model_config(model);
    int64_t grid[TG_DATA_MAX_DIMS];
    tg_tensor x = {0}, y = {0};
    cli_bytes bytes = {0};
    char sizes[256];
    if (choose_grid(model, grid) != CLI_OK) {
        return CLI_FAILED;
    }
    tg_status status = make_field(ctx, fno->in_channels, fno->n_dim, grid, &x);
    status = status == TG_OK ? make_field(ctx, fno->out_channels, fno->n_dim, grid, &y) : status;
    if (status == TG_OK) {
        cli_random_gradient(&x, 1, 1);
        status = predict_in_f32(ctx, model, &x, &y);
    }
    int code = cli_code(ctx, status);
    if (code == CLI_OK) {
        cli_bytes_add(&bytes, x.data, tg_tensor_bytes(&x));
        cli_bytes_add(&bytes, y.data, tg_tensor_bytes(&y));
        code = write_in("sample.f32", bytes.data, bytes.size);
    }
    if (code == CLI_OK) {
        int used = snprintf(sizes, sizeof sizes,
                            "/* The grid of sample.f32. */\n"
                            "static const long sample_grid[] = {");
        for (int d = 0; d < fno->n_dim; d++) {
            used += snprintf(sizes + used, sizeof sizes - (size_t)used, "%s%lld", d ? ", " : "",
                             (long long)grid[d]);
        }
        used += snprintf(sizes + used, sizeof sizes - (size_t)used, "};\n");
        code = write_in("sample.h", sizes, (size_t)used);
    }
    free(bytes.data);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    return code;
}

static int export_model(tg_context *ctx, const cli_model *model, bool json) {
    cli_bytes file = {0};
    char size[CLI_UNIT_TEXT];
    int code = cli_export_c(ctx, model->model, model->path, &file);
    if (code == CLI_OK && mkdir(opt.output, 0777) != 0 && errno != EEXIST) {
        code = cli_fail("cannot make the folder %s: %s", opt.output, strerror(errno));
    }
    code = code == CLI_OK ? write_in("model.tgp", file.data, file.size) : code;
    for (const cli_source_text *s = cli_predict_sources; code == CLI_OK && s->name; s++) {
        code = write_in(s->name, s->text, s->size);
    }
    code = code == CLI_OK ? write_sample(ctx, model) : code;
    if (code == CLI_OK && json) {
        json_t *object = cli_json_object();
        cli_model_set_json(object, model);
        cli_json_put(object, KV("output", opt.output), KV("bytes", file.size));
        cli_json_print(object);
    } else if (code == CLI_OK) {
        cli_model_say_checkpoint(model);
        cli_say("wrote %s: a model of %s, C sources, a sample and README.md", opt.output,
                cli_bytes_text(file.size, size));
    }
    free(file.data);
    return code;
}

static int run(const cli_call *call) {
    if (!opt.c || !opt.output) {
        return cli_usage("export", "--c and -o DIR are needed");
    }
    tg_context *ctx = NULL;
    cli_model model = {0};
    int code = cli_open_host_context("export", call->common, &ctx);
    if (code != CLI_OK) {
        return code;
    }
    code = cli_model_open(ctx, call->args.item[0], &model);
    if (code == CLI_OK) {
        cli_model_tell(&model);
        code = export_model(ctx, &model, call->common->json);
    }
    cli_model_close(&model);
    tg_context_destroy(&ctx);
    return code;
}

const cli_command cli_cmd_export = {
    .name = "export",
    .arguments = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "Write a model as C sources that build anywhere",
    .description =
        "The folder has the weights (model.tgp), tgrad_predict.h and its sources, which need\n"
        "only the C library, an example program that predicts a sample and compares the result\n"
        "with this program's, and a README.md with the line that compiles it. MODEL is what\n"
        "`tgrad predict` takes. Networks on points, of complex data, in f64, with factorized or\n"
        "separable weights, modes that are not all in use, pre-activation, another activation\n"
        "than gelu or padding that differs between dimensions are refused.\n",
    .examples = "  tgrad export runs/darcy --c -o darcy-c\n"
                "  cd darcy-c && cc -O3 -fopenmp *.c -lm -o example && ./example\n",
    .options = options,
    .takes = CLI_TAKES_MODEL | CLI_TAKES_JSON | CLI_TAKES_DEVICE,
    .run = run,
};
