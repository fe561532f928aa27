/* tgrad predict MODEL --input X --output Y: applies a trained model to fields in a file.
 *
 * The model works on (samples, channels, grid..). An input (samples, grid..) or (grid..) has the
 * missing dimensions of size 1 put in, and those are taken off the output again. */
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "common/run_settings.h"

static struct {
    const char *input, *output;
    const char *dataset; /* NULL: the name the model was trained with, or the only one */
    const char *y_name;  /* of the output; NULL: as trained */
    const char *order;   /* of the input and the output; NULL: as trained */
    const char *queries; /* file of the places to predict at; NULL: the points */
    int64_t steps;       /* in time */
} opt;

static const cli_option options[] = {
    CLI_OPTION_TEXT("input", 'i', &opt.input, NULL, "FILE",
                    "fields to start from: npy, npz, safetensors, HDF5 or pt (needed)", NULL),
    CLI_OPTION_TEXT("output", 'o', &opt.output, NULL, "FILE",
                    "file to write: its ending selects the format (needed)", NULL),
    CLI_OPTION_TEXT("dataset", 0, &opt.dataset, NULL, "NAME", "tensor of the file to take",
                    "as trained, or the only one"),
    CLI_OPTION_TEXT("x-name", 0, &opt.dataset, NULL, "NAME", "the same, as eval calls it", NULL),
    CLI_OPTION_TEXT("y-name", 0, &opt.y_name, NULL, "NAME", "name of the output in the file",
                    "as trained"),
    CLI_OPTION_TEXT("order", 0, &opt.order, cli_orders, "ORDER", "nhwc: channels after the grid",
                    "as trained"),
    CLI_OPTION_TEXT("queries", 0, &opt.queries, NULL, "FILE",
                    "points to predict at, per sample or shared", "the points"),
    CLI_OPTION_INT("steps", 0, &opt.steps, 1, 1000000, "N",
                   "steps in time, each from the previous one", "1"),
    {0},
};

static int64_t steps(void) {
    return opt.steps > 0 ? opt.steps : 1;
}

/* The inputs of a prediction, or the points to predict at. */
typedef struct input {
    tg_tensor x;        /* (samples, channels, grid..), or coordinates at points */
    int added;          /* dimensions that the file does not have */
    bool channels_last; /* there */
} input;

static bool fits(const cli_model *model, const tg_dataset *set) {
    const tg_fno_config *fno = cli_model_config(model);
    return cli_on_points(fno) || tg_dataset_get_facts(set).in_channels == fno->in_channels;
}

/* An array of the file as x of pairs, called so in the group of the training or in the file. */
static tg_status open_named(tg_context *ctx, const char *path, const char *name,
                            tg_dataset_config *config, tg_dataset **out) {
    config->x_name = name;
    config->fields = NULL;
    config->layout = TG_LAYOUT_PAIRS;
    const tg_status status = cli_dataset_open(ctx, path, config, out);
    if (status != TG_E_ARGUMENT || !config->group || !*config->group) {
        return status;
    }
    config->group = NULL;
    return cli_dataset_open(ctx, path, config, out);
}

/* The array `name` of a file, or the file as in training, or its only array. An npy file has one
 * without a name, which is a batch of inputs if it can be one. */
static tg_status open_input(tg_context *ctx, const cli_model *model, const char *path,
                            const char *name, tg_dataset_config *config, tg_dataset **out) {
    CLI_OWNED(cli_source_close) cli_source source = {0};
    tg_file_format format;
    CLI_CALL(tg_file_detect(ctx, path, &format));
    CLI_CALL(tg_model_dataset_config(model->model, config, sizeof *config));
    config->x_only = true;
    config->channels_last = opt.order ? strcmp(opt.order, "nhwc") == 0 : config->channels_last;
    config->n_frames = 0;           /* as many as there are */
    config->cache_bytes = SIZE_MAX; /* no limit for arrays that must be read whole */
    if (name) {
        return open_named(ctx, path, name, config, out);
    }
    if (format == TG_FILE_NPY) {
        const tg_dataset_config trained = *config;
        if (open_named(ctx, path, config->x_name, config, out) == TG_OK && fits(model, *out)) {
            return TG_OK;
        }
        tg_dataset_close(out);
        *config = trained;
    }
    tg_status status = cli_dataset_open(ctx, path, config, out);
    const bool has_it = (status == TG_OK && fits(model, *out)) || format == TG_FILE_NPY;
    if (!has_it && cli_source_open(ctx, path, &source) == TG_OK && cli_source_count(&source) == 1) {
        tg_dataset_close(out);
        status = open_named(ctx, path, cli_source_name(&source, 0), config, out);
    }
    return status;
}

/* All samples, or the first frames of every trajectory; one sample as often as is wanted. */
static void read_input(tg_context *ctx, const cli_model *model, const char *path, tg_dataset *set,
                       int64_t wanted, tg_tensor *x) {
    const tg_fno_config *fno = cli_model_config(model);
    const tg_dataset_facts facts = tg_dataset_get_facts(set);
    const int64_t stored = facts.trajectories > 0 ? facts.trajectories : facts.samples;
    const int64_t count = stored == 1 ? wanted : stored;
    tg_shape shape = {.ndim = facts.n_dim + 2, .dim = {count, facts.in_channels}};
    memcpy(shape.dim + 2, facts.grid, (size_t)facts.n_dim * sizeof facts.grid[0]);
    if (!fits(model, set)) {
        char text[128];
        cli_die("%s: the model takes (samples, %lld channel%s, grid of %d dimension%s), "
                "and this is %s",
                path, (long long)fno->in_channels, fno->in_channels == 1 ? "" : "s", fno->n_dim,
                fno->n_dim == 1 ? "" : "s", tg_shape_text(&shape, text, sizeof text));
    }
    if (tg_dtype_is_complex(facts.dtype) && !fno->complex_data) {
        cli_die("%s: the model takes real numbers, and these are complex", path);
    }
    CLI_FREED int64_t *indices = cli_need(malloc((size_t)count * sizeof *indices));
    for (int64_t i = 0; i < count; i++) {
        indices[i] = i % stored * (facts.samples / stored);
    }
    cli_check(tg_tensor_create(ctx, TG_MEM_DATA, facts.dtype, &shape, x));
    cli_check(tg_dataset_read(set, indices, count, x->data, NULL));
}

/* An option here replaces a key of the training settings. */
static int fail_input(const tg_context *ctx, tg_status status) {
    const char *sentence = tg_context_error(ctx), *key = strstr(sentence, "; data.x_name says");
    return key ? cli_fail("%.*s; --dataset says which one to take", (int)(key - sentence), sentence)
               : cli_fail_status(ctx, status);
}

/* From the array `name` of the file; NULL: as trained, or its only one. */
static input take_input(tg_context *ctx, const cli_model *model, const char *path, const char *name,
                        int64_t wanted) {
    CLI_OWNED(tg_dataset_close) tg_dataset *set = NULL;
    tg_dataset_config config = {0};
    input in = {0};
    const tg_status status = open_input(ctx, model, path, name, &config, &set);
    cli_require(status == TG_OK ? CLI_OK : fail_input(ctx, status));
    read_input(ctx, model, path, set, wanted, &in.x);
    const tg_dataset_facts facts = tg_dataset_get_facts(set);
    if (config.coordinates > 0) {
        in.added = facts.x_ndim == 2 ? 2 : 0;
    } else if (facts.trajectories == 0) {
        in.added = facts.n_dim + 2 - facts.x_ndim;
    }
    in.channels_last = config.channels_last && config.coordinates == 0;
    return in;
}

/* (.., channels, grid..) becomes (.., grid.., channels). */
static void put_channels_last(tg_tensor *y, int n_dim) {
    tg_shape *shape = &y->shape;
    const int at = shape->ndim - n_dim - 1;
    const int64_t channels = shape->dim[at];
    const size_t bytes = tg_tensor_bytes(y), size = tg_dtype_size(y->dtype);
    int64_t points = 1;
    for (int d = at; d < shape->ndim - 1; d++) {
        shape->dim[d] = shape->dim[d + 1];
        points *= shape->dim[d];
    }
    shape->dim[shape->ndim - 1] = channels;
    CLI_FREED char *from = cli_need(malloc(bytes));
    char *to = y->data;
    memcpy(from, to, bytes);
    for (int64_t i = 0; i < tg_tensor_numel(y); i++) {
        const int64_t row = i / (channels * points) * channels + i % channels;
        memcpy(to + (size_t)i * size, from + (size_t)(row * points + i / channels % points) * size,
               size);
    }
}

/* The (samples, queries, coordinates) of --queries; one list serves all samples. */
static tg_tensor take_queries(tg_context *ctx, const cli_model *model, int64_t samples) {
    const int dims = cli_model_config(model)->n_dim;
    if (!cli_on_points(cli_model_config(model))) {
        cli_die("--queries: the model works on a grid; those of points have queries");
    }
    tg_tensor queries = take_input(ctx, model, opt.queries, NULL, samples).x;
    put_channels_last(&queries, 1);
    if (queries.shape.dim[0] != samples) {
        char text[128];
        cli_die("%s: expected queries (%lld samples, queries, %d) or (queries, %d), "
                "found %s",
                opt.queries, (long long)samples, dims, dims,
                tg_shape_text(&queries.shape, text, sizeof text));
    }
    return queries;
}

/* Steps in time need a model whose inputs are frames of its outputs: several of them, or as many in
 * data.horizon as in data.history. */
static void check_steps(const cli_model *model) {
    const tg_fno_config *fno = cli_model_config(model);
    const int64_t in = fno->in_channels, out = fno->out_channels;
    tg_dataset_config data;
    cli_check(tg_model_dataset_config(model->model, &data, sizeof data));
    if (steps() > 1 && cli_on_points(fno)) {
        cli_die("--steps: the model makes values of points; it cannot continue from those");
    }
    if (steps() > 1 && in % out != 0 && in * data.horizon != out * data.history) {
        cli_die("--steps: the model makes %lld channels of %lld; it can continue from its "
                "own output only if it takes one or several frames of it",
                (long long)out, (long long)in);
    }
}

static void make_output(tg_context *ctx, const cli_model *model, const tg_shape *shape,
                        const tg_tensor *queries, tg_tensor *y) {
    tg_shape to = *shape;
    to.dim[1] = steps() * cli_model_config(model)->out_channels;
    to.dim[2] = queries->data ? queries->shape.dim[1] : to.dim[2];
    cli_check(tg_tensor_create(ctx, TG_MEM_DATA, cli_model_dtype(model), &to, y));
}

/* All steps, as y (samples, steps, channels, grid..). */
static tg_status roll_out(const cli_model *model, const tg_tensor *x, tg_tensor *y) {
    const tg_status status = tg_model_predict_steps(model->model, x, steps(), y);
    tg_shape *shape = &y->shape;
    memmove(shape->dim + 3, shape->dim + 2, (size_t)(shape->ndim - 2) * sizeof shape->dim[0]);
    shape->dim[2] = shape->dim[1] / steps();
    shape->dim[1] = steps();
    shape->ndim++;
    return status;
}

/* Takes off the dimensions that the input did not have, if they are 1; steps in time stay. Returns
 * whether the channels are gone. */
static bool drop_added(tg_tensor *y, int added) {
    tg_shape *shape = &y->shape;
    const int channels = steps() > 1 ? 2 : 1;
    if (added == 0 || shape->dim[channels] != 1) {
        return false;
    }
    memmove(shape->dim + channels, shape->dim + channels + 1,
            (size_t)(shape->ndim - channels - 1) * sizeof shape->dim[0]);
    memmove(shape->dim, shape->dim + added - 1, /* of one grid also the samples */
            (size_t)(shape->ndim - added) * sizeof shape->dim[0]);
    shape->ndim -= added;
    return true;
}

/* The name of --y-name, or of the array of the training: "v:0-1" are components of v. */
static char *output_name(const cli_model *model) {
    const tg_settings *settings = tg_model_settings(model->model);
    const char *group = cli_setting_or(settings, "data.group", "");
    const char *name = cli_setting_or(settings, "data.y_name", "y");
    if (cli_on_points(cli_model_config(model)) && strcmp(name, "y") == 0) {
        name = "values";
    }
    char *made = opt.y_name ? cli_format("%s", opt.y_name)
                            : cli_format("%s%s%s", group, *group ? "/" : "", name);
    char *colon = opt.y_name ? NULL : strrchr(made, ':');
    if (colon && strspn(colon + 1, "0123456789-") == strlen(colon + 1)) {
        *colon = '\0';
    }
    return made;
}

static void write_output(tg_context *ctx, const cli_model *model, tg_tensor *y) {
    CLI_OWNED(tg_archive_destroy) tg_archive *archive = NULL;
    CLI_FREED char *name = output_name(model);
    cli_check(tg_archive_create(ctx, &archive));
    cli_check(tg_archive_add_view(archive, name, y));
    cli_check(tg_archive_write(ctx, opt.output, archive));
}

/* Warns of weights and outputs that are NaN or infinite; returns how many outputs are. */
static int64_t warn_of_nonfinite(tg_context *ctx, const cli_model *model, const tg_tensor *x,
                                 const tg_tensor *y) {
    int64_t bad = 0, all = 0;
    tg_tensor_stats in, out;
    cli_check(tg_fno_nonfinite(tg_model_fno(model->model), &bad, &all));
    cli_check(tg_tensor_get_stats(ctx, x, &in));
    cli_check(tg_tensor_get_stats(ctx, y, &out));
    const int64_t found = out.nan_count + out.inf_count;
    if (bad > 0) {
        cli_warn("%s: %lld of %lld weights are NaN or infinite", model->path, (long long)bad,
                 (long long)all);
    }
    if (found > 0) {
        cli_warn("%s: %lld of %lld values are NaN or infinite; of the input %lld of %lld are",
                 opt.output, (long long)found, (long long)tg_tensor_numel(y),
                 (long long)in.nan_count + in.inf_count, (long long)tg_tensor_numel(x));
    }
    return found;
}

static void print_result(const cli_model *model, const tg_tensor *y, int64_t samples,
                         int64_t nonfinite, bool json) {
    char text[128];
    if (!json) {
        cli_model_say_checkpoint(model);
        cli_say("wrote %s: %lld sample%s, %s %s", opt.output, (long long)samples,
                samples == 1 ? "" : "s", tg_dtype_name(y->dtype),
                tg_shape_text(&y->shape, text, sizeof text));
        return;
    }
    json_t *object = cli_model_json(model);
    cli_json_put(object, KV("input", opt.input), KV("output", opt.output), KV("samples", samples),
                 KV("dtype", tg_dtype_name(y->dtype)), KV("shape", cli_json_shape(&y->shape)),
                 KV("nonfinite", nonfinite));
    cli_json_print(object);
}

static void predict(tg_context *ctx, const cli_model *model, bool json) {
    check_steps(model);
    input in = take_input(ctx, model, opt.input, opt.dataset, 1);
    CLI_OWNED(tg_tensor_destroy) tg_tensor x = in.x;
    CLI_OWNED(tg_tensor_destroy) tg_tensor y = {0};
    CLI_OWNED(tg_tensor_destroy) tg_tensor queries = {0};
    if (opt.queries) {
        queries = take_queries(ctx, model, x.shape.dim[0]);
    }
    make_output(ctx, model, &x.shape, &queries, &y);
    cli_check(queries.data  ? tg_model_predict_at(model->model, &x, &queries, &y)
              : steps() > 1 ? roll_out(model, &x, &y)
                            : tg_model_predict(model->model, &x, &y));
    const int64_t nonfinite = warn_of_nonfinite(ctx, model, &x, &y);
    if (!drop_added(&y, in.added) && in.channels_last) {
        put_channels_last(&y, cli_model_config(model)->n_dim);
    }
    write_output(ctx, model, &y);
    print_result(model, &y, x.shape.dim[0], nonfinite, json);
}

/* Checks of the output before anything is predicted. */
static void check_output(tg_context *ctx, const char *model) {
    const char *const read[] = {opt.input, opt.queries, model};
    const char *end = strrchr(opt.output, '/');
    CLI_FREED char *folder = cli_format("%.*s", end ? (int)(end - opt.output) + 1 : 0, opt.output);
    tg_file_format format;
    cli_check(tg_file_format_of_path(ctx, opt.output, &format));
    if (end && !cli_is_folder(folder)) {
        cli_die("%s: there is no folder %s", opt.output, folder);
    }
    for (int i = 0; i < 3; i++) {
        cli_keep_file(read[i], opt.output);
    }
}

static int run(const cli_call *call) {
    if (!opt.input || !opt.output) {
        return cli_usage("predict", "--input FILE and --output FILE are needed");
    }
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    CLI_OWNED(cli_model_close) cli_model model = {0};
    const tg_comm_launch launch = tg_comm_get_launch();
    if (launch.ranks > 1 && cli_is_first()) {
        cli_warn("%d ranks do not share a prediction: each follows its own command line",
                 launch.ranks);
    }
    check_output(ctx, call->args.item[0]);
    cli_model_open(ctx, call->args.item[0], &model);
    cli_model_print_normalized(&model);
    predict(ctx, &model, call->common->json);
    return CLI_OK;
}

const cli_command cli_cmd_predict = {
    .name = "predict",
    .arguments = "MODEL",
    .args = {1, 1},
    .summary = "Apply a trained model to fields in a file",
    .description =
        "MODEL is a run folder, with --checkpoint for another checkpoint than the best, a\n"
        "checkpoint, a model file (tg_model_save), or with --config a file of weights by\n"
        "neuraloperator's names (docs/exchange.md). The input is (samples, channels, grid..) on\n"
        "any grid; with one channel also (samples, grid..) or a single grid; (samples, grid..,\n"
        "channels) with --order nhwc or as in training. The output has the same form. It is\n"
        "called y, or as in training, where the format has names. A model on points takes them as\n"
        "(samples, points, coordinates) or (points, coordinates), and predicts there or at\n"
        "--queries. Inputs and outputs are in the units of the data. A warning counts weights\n"
        "and values that are NaN or infinite.\n"
        "With --steps N the output is fed back as input: (samples, N, channels, grid..). A model\n"
        "of several frames takes them oldest first, and of a file of trajectories as in training\n"
        "the first ones of each.\n",
    .examples = "  tgrad predict runs/darcy --input a.npy --output u.npy\n"
                "  tgrad predict model.safetensors -i darcy_test_32.h5 --dataset x -o pred.h5\n"
                "  tgrad predict runs/ns -i w0.npy -o rollout.npy --steps 10\n",
    .options = options,
    .takes = CLI_TAKES_MODEL | CLI_TAKES_JSON | CLI_TAKES_DEVICE,
    .run = run,
};
