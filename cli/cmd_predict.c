/* tgrad predict MODEL --input X --output Y: what a trained model makes of fields in a file.
 *
 * The model works on (samples, channels, grid..). An input (samples, grid..) or (grid..) has the
 * missing dimensions of size 1 put in, and those are taken off the output again. */
#include <stdlib.h>
#include <string.h>

#include "model_file.h"
#include "output.h"
#include "run_settings.h"
#include "tensor_file.h"
#include "text.h"

static struct {
    const char *input, *output;
    const char *dataset; /* NULL: the name the model was trained with, or the only one */
    const char *y_name;  /* of the output; NULL: as trained */
    const char *queries; /* file of the places to predict at; NULL: the points */
    int64_t steps;       /* in time */
} opt;

static const cli_option options[] = {
    CLI_OPTION_TEXT("input", 'i', &opt.input, NULL, "FILE",
                    "fields to start from: npy, npz, safetensors, HDF5 or pt (needed)", NULL),
    CLI_OPTION_TEXT("output", 'o', &opt.output, NULL, "FILE",
                    "where to: its ending names the format (needed)", NULL),
    CLI_OPTION_TEXT("dataset", 0, &opt.dataset, NULL, "NAME", "tensor of the file to take",
                    "as trained, or the only one"),
    CLI_OPTION_TEXT("x-name", 0, &opt.dataset, NULL, "NAME", "the same, as eval calls it", NULL),
    CLI_OPTION_TEXT("y-name", 0, &opt.y_name, NULL, "NAME", "name of the output in the file",
                    "as trained"),
    CLI_OPTION_TEXT("queries", 0, &opt.queries, NULL, "FILE",
                    "places to predict at, each sample's or all's", "the points"),
    CLI_OPTION_INT("steps", 0, &opt.steps, 1, 1000000, "N",
                   "so many steps in time, each from the one before", "1"),
    {0},
};

static int64_t steps(void) {
    return opt.steps > 0 ? opt.steps : 1;
}

/* An array of a file, and which of its channels. */
typedef struct array {
    char *name;           /* to be freed */
    int64_t first, count; /* count 0: all */
} array;

/* "v:2" and "v:0-1", as data.x_name has them, are channels of v. */
static void take_channels(array *a) {
    char *colon = strrchr(a->name, ':');
    long long first = 0, last = 0;
    int one = 0, two = 0;
    if (!colon || sscanf(colon, ":%9lld%n-%9lld%n", &first, &one, &last, &two) < 1) {
        return;
    }
    last = two > 0 ? last : first;
    if (colon[two > 0 ? two : one] == '\0' && first >= 0 && last >= first) {
        *colon = '\0';
        a->first = first;
        a->count = last - first + 1;
    }
}

/* That of a side of the data: as given, or as in training, in its group. */
static array array_of(const cli_model *model, const char *given, const char *key, const char *usual,
                      const char *of_points) {
    const tg_settings *settings = tg_model_settings(model->model);
    const char *name = given ? given : cli_setting_or(settings, key, usual);
    const char *group = given ? "" : cli_setting_or(settings, "data.group", "");
    const bool on_points = cli_on_points(cli_model_config(model));
    array a = {.name = cli_format("%s%s%s", group, *group ? "/" : "",
                                  on_points && strcmp(name, usual) == 0 ? of_points : name)};
    take_channels(&a);
    return a;
}

static array input_array(const cli_model *model) {
    return array_of(model, opt.dataset, "data.x_name", "x", "points");
}

static array output_array(const cli_model *model) {
    return array_of(model, NULL, "data.y_name", "y", "values");
}

/* The tensor to take: that of --dataset, the only one, or the one called as in training. *channels:
 * those that its name tells, of all others the count is 0. */
static int choose(const cli_source *source, const cli_model *model, int64_t *index,
                  array *channels) {
    array wanted = input_array(model);
    int code = CLI_OK;
    *index = 0;
    if (opt.dataset || cli_source_count(source) != 1) {
        code = cli_source_find(source, wanted.name, index);
    } else if (strcmp(cli_source_name(source, 0), wanted.name) != 0) {
        wanted.count = 0;
    }
    free(wanted.name);
    *channels = (array){.first = wanted.first, .count = wanted.count};
    return code;
}

/* How many channels are taken of those that are stored. */
static int64_t taken_of(const array *channels, int64_t stored) {
    const bool fits = channels->count > 0 && channels->first + channels->count <= stored;
    return fits ? channels->count : stored;
}

/* Points (samples, points, coordinates), or those of one sample, as the model has them: coordinates
 * are channels. */
static int fit_points(const tg_fno_config *fno, const tg_shape *found, tg_shape *shape,
                      int *added) {
    char text[128];
    const bool is_list = found->ndim == 2 || found->ndim == 3;
    const int64_t *last = is_list ? &found->dim[found->ndim - 1] : NULL;
    *added = found->ndim == 2 ? 2 : 0;
    if (steps() > 1) {
        return cli_fail("--steps: the model makes values of points; it cannot go on from those");
    }
    if (!is_list || tg_shape_numel(found) < 1 || *last != fno->n_dim) {
        return cli_fail("%s: the model takes points, (samples, points, %d) or (points, %d), and "
                        "this is %s",
                        opt.input, fno->n_dim, fno->n_dim, tg_shape_text(found, text, sizeof text));
    }
    *shape = (tg_shape){.ndim = 3, .dim = {*added ? 1 : found->dim[0], *last, last[-1]}};
    return CLI_OK;
}

/* (rows, columns) of every sample become (columns, rows). */
static void turn(tg_tensor *tensor, int64_t rows, int64_t columns) {
    const size_t bytes = tg_tensor_bytes(tensor), size = tg_dtype_size(tensor->dtype);
    char *from = cli_need(malloc(bytes)), *to = tensor->data;
    memcpy(from, to, bytes);
    for (int64_t i = 0; i < tg_tensor_numel(tensor); i++) {
        const int64_t sample = i / (rows * columns), c = i / rows % columns, r = i % rows;
        memcpy(to + (size_t)i * size, from + (size_t)((sample * rows + r) * columns + c) * size,
               size);
    }
    free(from);
}

/* Whether the channels of the input stand behind its grid, as in the data of the training
 * (data.order). Then `found` gets them in front of it, as the model has them. */
static bool take_last_channels(const cli_model *model, const array *channels, tg_shape *found) {
    const tg_fno_config *fno = cli_model_config(model);
    const char *order = cli_setting_or(tg_model_settings(model->model), "data.order", "nchw");
    const int last = found->ndim - 1;
    if (cli_on_points(fno) || strcmp(order, "nhwc") != 0 || found->ndim != fno->n_dim + 2 ||
        taken_of(channels, found->dim[last]) != fno->in_channels) {
        return false;
    }
    const int64_t stored = found->dim[last];
    memmove(found->dim + 2, found->dim + 1, (size_t)(last - 1) * sizeof found->dim[0]);
    found->dim[1] = stored;
    return true;
}

/* The output likewise: (.., channels, grid..) becomes (.., grid.., channels). */
static void put_channels_last(tg_tensor *y, int n_dim) {
    tg_shape *shape = &y->shape;
    const int at = shape->ndim - n_dim - 1;
    const int64_t channels = shape->dim[at];
    int64_t points = 1;
    for (int d = at; d < shape->ndim - 1; d++) {
        shape->dim[d] = shape->dim[d + 1];
        points *= shape->dim[d];
    }
    shape->dim[shape->ndim - 1] = channels;
    turn(y, channels, points);
}

/* (samples, queries, coordinates) of the file of --queries; (queries, coordinates) serve all. */
static tg_status fill_queries(const cli_source *source, int64_t index, const tg_shape *found,
                              tg_tensor *out) {
    tg_tensor raw = {0}, first = *out;
    const size_t bytes = tg_tensor_bytes(out) / (size_t)out->shape.dim[0];
    first.shape.dim[0] = found->ndim == 2 ? 1 : out->shape.dim[0];
    tg_status status = cli_source_read(source, index, &raw);
    status = status == TG_OK ? tg_tensor_convert(source->ctx, &raw, &first) : status;
    for (int64_t i = first.shape.dim[0]; i < out->shape.dim[0] && status == TG_OK; i++) {
        memcpy((char *)out->data + (size_t)i * bytes, out->data, bytes);
    }
    tg_tensor_destroy(&raw);
    return status;
}

static int read_queries(const cli_source *source, const cli_model *model, int64_t samples,
                        tg_tensor *out) {
    const int dims = cli_model_config(model)->n_dim;
    int64_t index;
    tg_dtype dtype;
    tg_shape found = {0};
    char text[128];
    array channels;
    if (choose(source, model, &index, &channels) != CLI_OK) {
        return CLI_FAILED;
    }
    tg_status status = cli_source_describe(source, index, &dtype, &found);
    const int last = found.ndim - 1;
    if (status == TG_OK && ((found.ndim != 2 && found.ndim != 3) || found.dim[last] != dims ||
                            (found.ndim == 3 && found.dim[0] != samples))) {
        return cli_fail("%s: expected queries (%lld samples, queries, %d) or (queries, %d), found "
                        "%s",
                        opt.queries, (long long)samples, dims, dims,
                        tg_shape_text(&found, text, sizeof text));
    }
    if (status == TG_OK) {
        const tg_shape shape = {.ndim = 3, .dim = {samples, found.dim[last - 1], dims}};
        status = tg_tensor_create(source->ctx, TG_MEM_DATA, TG_F32, &shape, out);
    }
    status = status == TG_OK ? fill_queries(source, index, &found, out) : status;
    return cli_code(source->ctx, status);
}

/* The queries to predict at, if there are others than the points. */
static int open_queries(tg_context *ctx, const cli_model *model, int64_t samples, tg_tensor *out) {
    cli_source source = {0};
    if (!opt.queries) {
        return CLI_OK;
    }
    if (!cli_on_points(cli_model_config(model))) {
        return cli_fail("--queries: the model works on a grid; those of points have queries");
    }
    const tg_status status = cli_source_open(ctx, opt.queries, &source);
    const int code =
        status == TG_OK ? read_queries(&source, model, samples, out) : cli_fail_status(ctx, status);
    cli_source_close(&source);
    return code;
}

/* The shape as the model on a grid wants it; `added` is the number of dimensions that were missing.
 * False: it does not fit. */
static bool fits_grid(const tg_fno_config *fno, const array *channels, const tg_shape *found,
                      tg_shape *shape, int *added) {
    *added = fno->n_dim + 2 - found->ndim;
    *shape = (tg_shape){.ndim = fno->n_dim + 2, .dim = {1, 1}};
    if (*added < 0 || *added > 2 || tg_shape_numel(found) == 0) {
        return false;
    }
    shape->dim[0] = *added == 2 ? 1 : found->dim[0];
    shape->dim[1] = *added > 0 ? 1 : taken_of(channels, found->dim[1]);
    for (int d = 0; d < fno->n_dim; d++) {
        shape->dim[d + 2] = found->dim[d + 2 - *added];
    }
    return shape->dim[1] == fno->in_channels;
}

static int fit_shape(const cli_model *model, const array *channels, const tg_shape *found,
                     tg_shape *shape, int *added) {
    const tg_fno_config *fno = cli_model_config(model);
    char text[128];
    if (cli_on_points(fno)) {
        return fit_points(fno, found, shape, added);
    }
    if (fits_grid(fno, channels, found, shape, added)) {
        return CLI_OK;
    }
    return cli_fail("%s: the model takes (samples, %lld channel%s, grid of %d dimension%s)%s, and "
                    "this is %s",
                    opt.input, (long long)fno->in_channels, fno->in_channels == 1 ? "" : "s",
                    fno->n_dim, fno->n_dim == 1 ? "" : "s",
                    fno->in_channels == 1 ? ", (samples, grid) or one grid" : "",
                    tg_shape_text(found, text, sizeof text));
}

/* A number of the model's settings, at least 1. */
static int64_t count_of(const cli_model *model, const char *key) {
    const long long value =
        strtoll(cli_setting_or(tg_model_settings(model->model), key, "1"), NULL, 10);
    return value > 1 ? value : 1;
}

/* Steps in time need a model that takes frames of what it makes: several of its outputs, or as many
 * of data.horizon in one as there are of data.history. */
static int check_steps(const cli_model *model) {
    const tg_fno_config *fno = cli_model_config(model);
    const int64_t in = fno->in_channels, out = fno->out_channels;
    const int64_t history = count_of(model, "data.history"),
                  horizon = count_of(model, "data.horizon");
    const bool has_frames = in % out == 0 || in * horizon == out * history;
    return cli_on_points(fno) || steps() == 1 || has_frames
               ? CLI_OK
               : cli_fail("--steps: the model makes %lld channels of %lld; it can go on from its "
                          "own output only if it takes one or several frames of it",
                          (long long)out, (long long)in);
}

/* `count` channels of x from `first` on, instead of all. */
static tg_status cut_channels(tg_context *ctx, int64_t first, int64_t count, tg_tensor *x) {
    tg_tensor all = *x;
    tg_shape shape = x->shape;
    const size_t stored = tg_tensor_bytes(x) / (size_t)shape.dim[0];
    const size_t channel = stored / (size_t)shape.dim[1], bytes = channel * (size_t)count;
    *x = (tg_tensor){0};
    shape.dim[1] = count;
    const tg_status status = tg_tensor_create(ctx, TG_MEM_DATA, all.dtype, &shape, x);
    for (int64_t i = 0; status == TG_OK && i < shape.dim[0]; i++) {
        memcpy((char *)x->data + (size_t)i * bytes,
               (char *)all.data + (size_t)i * stored + (size_t)first * channel, bytes);
    }
    tg_tensor_destroy(&all);
    return status;
}

/* What is predicted from. */
typedef struct input {
    tg_tensor x;        /* (samples, channels, grid..), or coordinates at points */
    int added;          /* dimensions that the file does not have */
    bool channels_last; /* there */
} input;

/* Reads the input in the model's dtype: `stored` channels, of which those of `shape` stay. */
static tg_status read_tensor(const cli_source *source, int64_t index, const cli_model *model,
                             const tg_shape *shape, int64_t stored, const array *channels,
                             input *in) {
    tg_shape whole = *shape;
    tg_tensor raw = {0};
    whole.dim[1] = stored;
    tg_status status = TG_OK;
    CLI_TRY(cli_source_read(source, index, &raw));
    CLI_TRY(tg_tensor_create(source->ctx, TG_MEM_DATA, cli_model_dtype(model), &whole, &in->x));
    CLI_TRY(tg_tensor_convert(source->ctx, &raw, &in->x));
    if (in->channels_last || cli_on_points(cli_model_config(model))) {
        turn(&in->x, tg_shape_numel(&whole) / (whole.dim[0] * whole.dim[1]), whole.dim[1]);
    }
    if (shape->dim[1] < stored) {
        CLI_TRY(cut_channels(source->ctx, channels->first, shape->dim[1], &in->x));
    }
fail:
    tg_tensor_destroy(&raw);
    return status;
}

/* A tensor of the file, as the model takes it. */
static int take_tensor(const cli_source *source, const cli_model *model, input *in) {
    tg_dtype dtype;
    tg_shape found, shape;
    int64_t index;
    array channels;
    if (choose(source, model, &index, &channels) != CLI_OK) {
        return CLI_FAILED;
    }
    tg_status status = cli_source_describe(source, index, &dtype, &found);
    if (status != TG_OK) {
        return cli_fail_status(source->ctx, status);
    }
    in->channels_last = take_last_channels(model, &channels, &found);
    if (fit_shape(model, &channels, &found, &shape, &in->added) != CLI_OK) {
        return CLI_FAILED;
    }
    const bool has_channels = in->added == 0 && !cli_on_points(cli_model_config(model));
    const int64_t stored = has_channels ? found.dim[1] : shape.dim[1];
    return cli_code(source->ctx, read_tensor(source, index, model, &shape, stored, &channels, in));
}

/* Whether the file has no tensor as the model takes it, but one is meant by its name in training or
 * by being the only one. */
static bool lacks_tensor(const cli_source *source, const cli_model *model) {
    array wanted = input_array(model);
    bool fits = false;
    for (int64_t i = 0; i < cli_source_count(source) && !fits; i++) {
        tg_dtype dtype;
        tg_shape found, shape;
        int added;
        const bool is_meant =
            cli_source_count(source) == 1 || strcmp(cli_source_name(source, i), wanted.name) == 0;
        if (is_meant && cli_source_describe(source, i, &dtype, &found) == TG_OK) {
            take_last_channels(model, &wanted, &found);
            fits = fits_grid(cli_model_config(model), &wanted, &found, &shape, &added);
        }
    }
    free(wanted.name);
    return !fits;
}

/* The first frames of every trajectory, where the file is one as in training. in->x stays empty
 * where it is not. */
static tg_status take_frames(tg_context *ctx, const cli_model *model, input *in) {
    const char *order = cli_setting_or(tg_model_settings(model->model), "data.order", "nchw");
    tg_dataset_config config = {.size = sizeof config};
    tg_dataset *frames = NULL;
    tg_tensor x = {0};
    int64_t *first = NULL;
    tg_status status = TG_OK;
    CLI_TRY(tg_model_dataset_config(model->model, &config, sizeof config));
    config.horizon = 1;
    if (tg_dataset_open(ctx, opt.input, NULL, &config, &frames) != TG_OK) {
        goto fail;
    }
    const tg_dataset_facts facts = tg_dataset_get_facts(frames);
    const int64_t count = facts.trajectories;
    if (count > 0 && facts.in_channels == cli_model_config(model)->in_channels) {
        tg_shape shape = {.ndim = facts.n_dim + 2, .dim = {count, facts.in_channels}};
        memcpy(shape.dim + 2, facts.grid, (size_t)facts.n_dim * sizeof facts.grid[0]);
        first = cli_need(malloc((size_t)count * sizeof *first));
        for (int64_t i = 0; i < count; i++) {
            first[i] = i * (facts.samples / count);
        }
        CLI_TRY(tg_tensor_create(ctx, TG_MEM_DATA, facts.dtype, &shape, &x));
        CLI_TRY(tg_dataset_read(frames, first, count, x.data, NULL));
        CLI_TRY(tg_tensor_create(ctx, TG_MEM_DATA, cli_model_dtype(model), &shape, &in->x));
        CLI_TRY(tg_tensor_convert(ctx, &x, &in->x));
        in->channels_last = strcmp(order, "nhwc") == 0;
    }
fail:
    free(first);
    tg_tensor_destroy(&x);
    tg_dataset_close(&frames);
    return status;
}

static int take_input(tg_context *ctx, const cli_model *model, const cli_source *source,
                      input *in) {
    const bool on_points = cli_on_points(cli_model_config(model));
    if (!on_points && !opt.dataset && lacks_tensor(source, model)) {
        const tg_status status = take_frames(ctx, model, in);
        if (status != TG_OK || in->x.data) {
            return cli_code(ctx, status);
        }
    }
    return take_tensor(source, model, in);
}

/* Memory for what is made of an input of this shape. */
static tg_status make_output(tg_context *ctx, const cli_model *model, const tg_shape *shape,
                             const tg_tensor *queries, tg_tensor *y) {
    tg_shape to = *shape;
    to.dim[1] = steps() * cli_model_config(model)->out_channels;
    to.dim[2] = queries->data ? queries->shape.dim[1] : to.dim[2];
    return tg_tensor_create(ctx, TG_MEM_DATA, cli_model_dtype(model), &to, y);
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

/* Takes off the dimensions that the input did not have, if they are 1; steps in time stay. */
static void drop_added(tg_tensor *y, int added) {
    tg_shape *shape = &y->shape;
    const int channels = steps() > 1 ? 2 : 1;
    if (added == 0 || shape->dim[channels] != 1) {
        return;
    }
    memmove(shape->dim + channels, shape->dim + channels + 1,
            (size_t)(shape->ndim - channels - 1) * sizeof shape->dim[0]);
    memmove(shape->dim, shape->dim + added - 1, /* of one grid also the samples */
            (size_t)(shape->ndim - added) * sizeof shape->dim[0]);
    shape->ndim -= added;
}

static tg_status write_output(tg_context *ctx, const cli_model *model, tg_tensor *y) {
    tg_archive *archive = NULL;
    array as_trained = output_array(model);
    tg_status status = TG_OK;
    CLI_TRY(tg_archive_create(ctx, &archive));
    CLI_TRY(tg_archive_add_view(archive, opt.y_name ? opt.y_name : as_trained.name, y));
    CLI_TRY(tg_archive_write(ctx, opt.output, archive));
fail:
    free(as_trained.name);
    tg_archive_destroy(&archive);
    return status;
}

/* Tells of weights and outputs that are no numbers; *found counts those of the output. */
static tg_status warn_of_nonfinite(tg_context *ctx, const cli_model *model, const tg_tensor *x,
                                   const tg_tensor *y, int64_t *found) {
    int64_t bad = 0, all = 0;
    tg_tensor_stats in, out;
    CLI_CALL(tg_fno_nonfinite(tg_model_fno(model->model), &bad, &all));
    CLI_CALL(tg_tensor_get_stats(ctx, x, &in));
    CLI_CALL(tg_tensor_get_stats(ctx, y, &out));
    const int64_t given = in.nan_count + in.inf_count;
    *found = out.nan_count + out.inf_count;
    if (bad > 0) {
        cli_warn("%s: %lld of %lld weights are NaN or infinite", model->path, (long long)bad,
                 (long long)all);
    }
    if (*found > 0) {
        cli_warn("%s: %lld of %lld values are NaN or infinite; of the input %lld of %lld are",
                 opt.output, (long long)*found, (long long)tg_tensor_numel(y), (long long)given,
                 (long long)tg_tensor_numel(x));
    }
    return TG_OK;
}

static void print_result(const cli_model *model, const tg_tensor *y, int64_t samples,
                         int64_t nonfinite, bool json) {
    char text[128];
    if (!json) {
        cli_say("wrote %s: %lld sample%s, %s %s", opt.output, (long long)samples,
                samples == 1 ? "" : "s", tg_dtype_name(y->dtype),
                tg_shape_text(&y->shape, text, sizeof text));
        return;
    }
    json_t *object = cli_json_object();
    cli_json_set(object, "checkpoint", cli_json_text(model->path));
    cli_json_set(object, "input", cli_json_text(opt.input));
    cli_json_set(object, "output", cli_json_text(opt.output));
    cli_json_set(object, "samples", cli_json_integer(samples));
    cli_json_set(object, "dtype", cli_json_text(tg_dtype_name(y->dtype)));
    cli_json_set(object, "shape", cli_json_shape(&y->shape));
    cli_json_set(object, "nonfinite", cli_json_integer(nonfinite));
    cli_json_print(object);
}

static int predict(tg_context *ctx, const cli_model *model, const cli_source *source, bool json) {
    input in = {0};
    tg_tensor y = {0}, queries = {0};
    int64_t nonfinite = 0;
    tg_status status = TG_OK;
    int code = take_input(ctx, model, source, &in);
    code = code == CLI_OK ? check_steps(model) : code;
    code = code == CLI_OK ? open_queries(ctx, model, in.x.shape.dim[0], &queries) : code;
    if (code != CLI_OK) {
        goto fail;
    }
    CLI_TRY(make_output(ctx, model, &in.x.shape, &queries, &y));
    CLI_TRY(queries.data  ? tg_model_predict_at(model->model, &in.x, &queries, &y)
            : steps() > 1 ? roll_out(model, &in.x, &y)
                          : tg_model_predict(model->model, &in.x, &y));
    CLI_TRY(warn_of_nonfinite(ctx, model, &in.x, &y, &nonfinite));
    drop_added(&y, in.added);
    if (in.channels_last) {
        put_channels_last(&y, cli_model_config(model)->n_dim);
    }
    CLI_TRY(write_output(ctx, model, &y));
    print_result(model, &y, in.x.shape.dim[0], nonfinite, json);
fail:
    tg_tensor_destroy(&in.x);
    tg_tensor_destroy(&y);
    tg_tensor_destroy(&queries);
    return code != CLI_OK ? code : cli_code(ctx, status);
}

static int run(const cli_call *call) {
    if (!opt.input || !opt.output) {
        return cli_usage("predict", "--input FILE and --output FILE are needed");
    }
    tg_context *ctx = NULL;
    cli_model model = {0};
    cli_source source = {0};
    tg_file_format format;
    int code = cli_open_context(call->common, true, &ctx);
    if (code != CLI_OK) {
        return code;
    }
    tg_status status = tg_file_format_of_path(ctx, opt.output, &format);
    status = status == TG_OK ? cli_source_open(ctx, opt.input, &source) : status;
    if (status != TG_OK) {
        code = cli_fail_status(ctx, status);
    } else {
        code = cli_model_open(ctx, call->args.item[0], &model);
    }
    if (code == CLI_OK) {
        cli_model_tell(&model);
        code = predict(ctx, &model, &source, call->common->json);
    }
    cli_source_close(&source);
    cli_model_close(&model);
    tg_context_destroy(&ctx);
    return code;
}

const cli_command cli_cmd_predict = {
    .name = "predict",
    .arguments = "MODEL",
    .min_args = 1,
    .max_args = 1,
    .summary = "Apply a trained model to fields in a file",
    .description =
        "MODEL is a checkpoint, a model file (tg_model_save), a run folder whose best checkpoint\n"
        "is meant, or with --config a file of weights by neuraloperator's names\n"
        "(docs/exchange.md). The input is (samples, channels, grid..) on any grid; with one\n"
        "channel also (samples, grid..) or a single grid, and (samples, grid.., channels) where\n"
        "the data of the training were such. The output has the same form. It is called y, or\n"
        "as in training, where the format has names. A model on points takes them as (samples,\n"
        "points, coordinates) or (points, coordinates), and predicts there or at --queries.\n"
        "Values are in the units of the data on both sides. A warning counts weights and values\n"
        "that are NaN or infinite.\n"
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
