/* tgrad export MODEL --c -o DIR: a folder with the model and all that predicts with it, for a
 * machine with a C compiler and nothing else. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/input_files.h"
#include "common/run_settings.h"
#include "common/workbench.h"
#include "predict_sources.inc" /* the folder predict, as the build found it */

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

/* ---- the model as tgrad_predict reads it ---- */

enum { HEADER = 4096 };

typedef struct exporter {
    tg_context *ctx;
    const tg_fno_config *fno;
    tg_archive *weights;
    cli_bytes *out;
} exporter;

/* The parameter of a name as f32, or c64 if it is complex; to be destroyed. */
static tg_tensor TG_PRINTF(2, 3) get(exporter *e, const char *format, ...) {
    char name[96];
    tg_tensor out = {0};
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    const tg_tensor *found = tg_archive_find(e->weights, name);
    const tg_dtype dtype = found && tg_dtype_is_complex(found->dtype) ? TG_C64 : TG_F32;
    cli_check(found ? tg_tensor_create(e->ctx, TG_MEM_WORKSPACE, dtype, &found->shape, &out)
                    : TG_E_ARGUMENT);
    cli_check(tg_tensor_convert(e->ctx, found, &out));
    return out;
}

static void add(exporter *e, tg_tensor tensor) {
    cli_bytes_add(e->out, tensor.data, tg_tensor_bytes(&tensor));
    tg_tensor_destroy(&tensor);
}

/* (in, out, modes..) complex -> (out, in, real and imaginary part, modes..) */
static void add_spectral(exporter *e, int layer) {
    CLI_OWNED(tg_tensor_destroy) tg_tensor w = get(e, "fno_blocks.convs.%d.weight.tensor", layer);
    const int64_t in = w.shape.dim[0], out = w.shape.dim[1];
    const int64_t modes = tg_tensor_numel(&w) / (in * out);
    const float *from = w.data;
    CLI_FREED float *to = cli_need(malloc(2 * (size_t)modes * sizeof(float)));
    for (int64_t item = 0; item < in * out; item++) {
        const int64_t o = item / in, i = item % in;
        const float *row = from + 2 * (i * out + o) * modes;
        for (int64_t k = 0; k < modes; k++) {
            to[k] = row[2 * k];
            to[modes + k] = row[2 * k + 1];
        }
        cli_bytes_add(e->out, to, 2 * (size_t)modes * sizeof(float));
    }
}

static void add_mlp(exporter *e, const char *module) {
    for (int layer = 0; layer < 2; layer++) {
        add(e, get(e, "%s.fcs.%d.weight", module, layer));
        add(e, get(e, "%s.fcs.%d.bias", module, layer));
    }
}

static void add_skip(exporter *e, const char *module, int layer, tg_fno_skip kind) {
    if (kind != TG_SKIP_IDENTITY) {
        add(e, get(e, "fno_blocks.%s.%d.%sweight", module, layer,
                   kind == TG_SKIP_LINEAR ? "conv." : ""));
    }
}

static void add_norm(exporter *e, int index) {
    if (e->fno->norm == TG_NORM_GROUP) {
        add(e, get(e, "fno_blocks.norm.%d.weight", index));
        add(e, get(e, "fno_blocks.norm.%d.bias", index));
    }
}

/* A factor and then a summand for each channel: v -> z of the input, z -> v of the output. */
static void add_normalizer(exporter *e, const tg_normalizer *normalizer, tg_data_side side,
                           int64_t channels) {
    for (int part = 0; part < 2; part++) {
        for (int64_t c = 0; c < channels; c++) {
            double mean = 0, std = 1;
            if (normalizer) {
                tg_normalizer_get(normalizer, c, &mean, NULL, &std);
                std += 1e-7;
            }
            const double input[2] = {1 / std, -mean / std}, output[2] = {std, mean};
            const float value = (float)(side == TG_DATA_X ? input : output)[part];
            cli_bytes_add(e->out, &value, sizeof value);
        }
    }
}

static void add_block(exporter *e, int layer) {
    const tg_fno_config *fno = e->fno;
    char module[48];
    add_spectral(e, layer);
    add(e, get(e, "fno_blocks.convs.%d.bias", layer));
    add_skip(e, "fno_skips", layer, fno->fno_skip);
    add_norm(e, fno->use_channel_mlp ? 2 * layer : layer);
    if (fno->use_channel_mlp) {
        snprintf(module, sizeof module, "fno_blocks.channel_mlp.%d", layer);
        add_mlp(e, module);
        add_skip(e, "channel_mlp_skips", layer, fno->channel_mlp_skip);
        add_norm(e, 2 * layer + 1);
    }
}

/* ---- header ---- */

/* The width of the hidden layer of an MLP. */
static long long hidden_of(const exporter *e, const char *module) {
    char name[96];
    snprintf(name, sizeof name, "%s.fcs.0.bias", module);
    const tg_tensor *bias = tg_archive_find(e->weights, name);
    return bias ? (long long)tg_tensor_numel(bias) : 0;
}

static void add_header(exporter *e) {
    const tg_fno_config *fno = e->fno;
    char header[HEADER] = {0};
    long long modes[TG_FNO_MAX_DIMS] = {1, 1, 1};
    for (int d = 0; d < fno->n_dim; d++) {
        modes[d] = d == fno->n_dim - 1 ? fno->n_modes[d] / 2 + 1 : fno->n_modes[d];
    }
    snprintf(header, sizeof header,
             "tgrad-predict 1\ndims %d\nchannels %lld %lld %lld\nmodes %lld %lld %lld\n"
             "layers %lld\nhidden %lld %lld %lld\nskips %d %d\nnorm %d\nembedding %d\ntanh %d\n"
             "padding %.17g %d\nend\n",
             fno->n_dim, (long long)fno->in_channels, (long long)fno->out_channels,
             (long long)fno->hidden_channels, modes[0], modes[1], modes[2],
             (long long)fno->n_layers, hidden_of(e, "lifting"),
             hidden_of(e, "fno_blocks.channel_mlp.0"), hidden_of(e, "projection"),
             (int)fno->fno_skip, (int)fno->channel_mlp_skip, (int)fno->norm,
             fno->positional_embedding == TG_EMBEDDING_GRID, fno->stabilizer == TG_STABILIZER_TANH,
             fno->domain_padding, fno->domain_padding_mode == TG_PADDING_SYMMETRIC);
    cli_bytes_add(e->out, header, sizeof header);
}

/* The feature that tgrad_predict does not support; NULL: none. */
static const char *unknown_in(const tg_fno_config *fno) {
    if (fno->architecture != TG_ARCHITECTURE_FNO) {
        return fno->architecture == TG_ARCHITECTURE_GINO
                   ? "points (fno.architecture: gino)"
                   : "layers on different grids (fno.architecture: uno)";
    }
    if (fno->complex_data) {
        return "complex data (fno.complex_data)";
    }
    if (fno->dtype != TG_F32) {
        return "numbers in f64 (fno.dtype)";
    }
    if (fno->factorization != TG_FACTORIZATION_DENSE) {
        return "factorized weights (make them dense first: tgrad convert --densify)";
    }
    return fno->separable                             ? "separable weights (fno.separable)"
           : fno->non_linearity != TG_ACTIVATION_GELU ? "another activation (fno.non_linearity)"
           : fno->preactivation                       ? "other blocks (fno.preactivation)"
           : fno->n_incremental > 0 ? "a part of its modes in use (fno.incremental_n_modes)"
           : fno->n_padding_of > 0  ? "padding of each dimension (fno.domain_padding)"
                                    : NULL;
}

/* Appends the model file: header and weights in f32. Refuses a network that tgrad_predict does not
 * know. */
static void add_model(tg_context *ctx, tg_model *model, const char *path, cli_bytes *out) {
    exporter e = {.ctx = ctx, .fno = tg_fno_get_config(tg_model_fno(model)), .out = out};
    const char *unknown = unknown_in(e.fno);
    if (unknown) {
        cli_die("%s has %s, which the C sources do not read", path, unknown);
    }
    cli_check(tg_archive_create(ctx, &e.weights));
    cli_check(tg_fno_save(tg_model_fno(model), e.weights, ""));
    add_header(&e);
    add_normalizer(&e, tg_model_normalizer(model, TG_DATA_X), TG_DATA_X, e.fno->in_channels);
    add_mlp(&e, "lifting");
    for (int l = 0; l < (int)e.fno->n_layers; l++) {
        add_block(&e, l);
    }
    add_mlp(&e, "projection");
    add_normalizer(&e, tg_model_normalizer(model, TG_DATA_Y), TG_DATA_Y, e.fno->out_channels);
    tg_archive_destroy(&e.weights);
}

/* ---- the folder ---- */

/* The grid of the sample: --grid, the one of the training if it is known, or 32 points each. */
static void choose_grid(const cli_model *model, int64_t grid[TG_DATA_MAX_DIMS]) {
    const int n_dim = cli_model_config(model)->n_dim;
    const char *trained =
        cli_setting_or(tg_model_settings(model->model), "data.train_resolution", "32");
    const char *text = opt.grid ? opt.grid : trained;
    const int found = tg_grid_parse(text, grid);
    if (found != 1 && found != n_dim) {
        cli_die("--grid %s: expected one size or %d, e.g. %s", text, n_dim,
                n_dim == 1   ? "128"
                : n_dim == 2 ? "64x96"
                             : "32x32x48");
    }
    for (int d = found; d < n_dim; d++) {
        grid[d] = grid[0];
    }
}

static void write_in(const char *name, const void *bytes, size_t size) {
    CLI_FREED char *path = cli_format("%s/%s", opt.output, name);
    cli_require(cli_write_file(path, bytes, size));
}

static void make_field(tg_context *ctx, int64_t channels, int n_dim, const int64_t *grid,
                       tg_tensor *out) {
    tg_shape shape = {.ndim = n_dim + 2, .dim = {1, channels}};
    memcpy(shape.dim + 2, grid, (size_t)n_dim * sizeof grid[0]);
    cli_check(tg_tensor_create(ctx, TG_MEM_DATA, TG_F32, &shape, out));
}

/* The output of the model for x, computed as in the C sources: activations and spectra in f32,
 * whatever it was trained with. */
static void predict_in_f32(tg_context *ctx, const cli_model *model, const tg_tensor *x,
                           tg_tensor *y) {
    tg_fno_config config = *cli_model_config(model);
    CLI_OWNED(tg_archive_destroy) tg_archive *weights = NULL;
    CLI_OWNED(tg_fno_destroy) tg_fno *fno = NULL;
    CLI_OWNED(tg_model_destroy) tg_model *plain = NULL;
    config.activation_precision = config.fno_block_precision = TG_PRECISION_FULL;
    cli_check(tg_archive_create(ctx, &weights));
    cli_check(tg_fno_save(tg_model_fno(model->model), weights, ""));
    cli_check(tg_fno_create(ctx, &config, 0, &fno));
    cli_check(tg_fno_load(fno, weights, ""));
    cli_check(tg_model_wrap(ctx, fno, tg_model_normalizer(model->model, TG_DATA_X),
                            tg_model_normalizer(model->model, TG_DATA_Y), &plain));
    cli_check(tg_model_predict(plain, x, y));
}

/* A random input and its output: sample.f32, with the sizes in sample.h. */
static void write_sample(tg_context *ctx, const cli_model *model) {
    const tg_fno_config *fno = cli_model_config(model);
    int64_t grid[TG_DATA_MAX_DIMS];
    CLI_OWNED(tg_tensor_destroy) tg_tensor x = {0};
    CLI_OWNED(tg_tensor_destroy) tg_tensor y = {0};
    CLI_OWNED(cli_bytes_free) cli_bytes bytes = {0};
    char sizes[256];
    choose_grid(model, grid);
    make_field(ctx, fno->in_channels, fno->n_dim, grid, &x);
    make_field(ctx, fno->out_channels, fno->n_dim, grid, &y);
    cli_random_gradient(&x, 1, 1);
    predict_in_f32(ctx, model, &x, &y);
    cli_bytes_add(&bytes, x.data, tg_tensor_bytes(&x));
    cli_bytes_add(&bytes, y.data, tg_tensor_bytes(&y));
    write_in("sample.f32", bytes.data, bytes.size);
    int used = snprintf(sizes, sizeof sizes,
                        "/* The grid of sample.f32. */\n"
                        "static const long sample_grid[] = {");
    for (int d = 0; d < fno->n_dim; d++) {
        used += snprintf(sizes + used, sizeof sizes - (size_t)used, "%s%lld", d ? ", " : "",
                         (long long)grid[d]);
    }
    used += snprintf(sizes + used, sizeof sizes - (size_t)used, "};\n");
    write_in("sample.h", sizes, (size_t)used);
}

static int run(const cli_call *call) {
    if (!opt.c || !opt.output) {
        return cli_usage("export", "--c and -o DIR are needed");
    }
    CLI_OWNED(cli_bytes_free) cli_bytes file = {0};
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_host_context("export", call->common);
    CLI_OWNED(cli_model_close) cli_model model = {0};
    cli_model_open(ctx, call->args.item[0], &model);
    cli_model_print_normalized(&model);
    add_model(ctx, model.model, model.path, &file);
    if (mkdir(opt.output, 0777) != 0 && errno != EEXIST) {
        cli_die("cannot create the folder %s: %s", opt.output, strerror(errno));
    }
    write_in("model.tgp", file.data, file.size);
    for (size_t i = 0; i < sizeof predict_sources / sizeof predict_sources[0]; i++) {
        write_in(predict_sources[i].name, predict_sources[i].text, predict_sources[i].size);
    }
    write_sample(ctx, &model);
    if (call->common->json) {
        json_t *object = cli_model_json(&model);
        cli_json_put(object, KV("output", opt.output), KV("bytes", file.size));
        cli_json_print(object);
    } else {
        cli_model_say_checkpoint(&model);
        cli_say("wrote %s: a model of %s, C sources, a sample and README.md", opt.output,
                CLI_BYTES(file.size));
    }
    return CLI_OK;
}

const cli_command cli_cmd_export = {
    .name = "export",
    .arguments = "MODEL",
    .args = {1, 1},
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
