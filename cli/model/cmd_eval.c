/* tgrad eval MODEL --data FILE: relative L2 and H1 errors of a trained model on sets of samples. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "common/run_folder.h"

static struct {
    cli_list data;       /* files */
    cli_list resolution; /* as text; empty: that of each file */
    const char *x_name, *y_name, *order;
    int64_t batch;
    int64_t rollout;   /* steps, 0: all; -1: none */
    const char *split; /* NULL: "test" of a file that the run split, "all" of others */
    bool keep;
    const char *folder; /* MODEL, the folder of a run with --keep */
} opt = {.batch = 16, .rollout = -1};

static const char *const splits[] = {"train", "test", "all", NULL};
#define DATA_OPTIONS "--x-name, --y-name and --order"

static const cli_option options[] = {
    CLI_OPTION_LIST("data", 'd', &opt.data, "FILE",
                    "HDF5, npz, safetensors, or NAME_x.npy beside NAME_y.npy (needed)", NULL),
    CLI_OPTION_LIST("resolution", 0, &opt.resolution, "N",
                    "every s-th point of the file only: 16 or 48x80", "all"),
    CLI_OPTION_TEXT("x-name", 0, &opt.x_name, NULL, "NAME", "of the inputs in the file",
                    "as trained"),
    CLI_OPTION_TEXT("y-name", 0, &opt.y_name, NULL, "NAME", "of the outputs in the file",
                    "as trained"),
    CLI_OPTION_TEXT("order", 0, &opt.order, cli_orders, "ORDER", "nhwc: channels after the grid",
                    "as trained"),
    CLI_OPTION_TEXT("split", 0, &opt.split, splits, "train|test|all",
                    "samples of a file that was trained on", "test"),
    CLI_OPTION_INT("batch", 0, &opt.batch, 1, 1 << 20, "N", "samples at a time", "16"),
    CLI_OPTION_INT("rollout", 0, &opt.rollout, 0, 1000000, "N",
                   "steps from the start of every trajectory; 0: all", "none"),
    CLI_OPTION_FLAG("keep", 0, &opt.keep, "of a rollout: for tgrad report, in the run's folder"),
    {0},
};

/* A grid to evaluate on: no sizes for that of the file, one for all dimensions, or one for each. */
typedef struct wanted_grid {
    int sizes;
    int64_t points[TG_DATA_MAX_DIMS];
} wanted_grid;

/* Samples (or trajectories) of a file on a grid, and their errors. */
typedef struct set {
    tg_context *ctx;
    const cli_model *model;
    const char *file;
    const wanted_grid *on;
    const char *part; /* "train", "test" or "all" */
    int64_t first;
    int64_t count; /* 0: all of the file */
    tg_model_split split;
    tg_test_errors errors;
    tg_rollout_errors rollout;
} set;

static void check_data(const tg_context *ctx, tg_status status) {
    cli_require(status == TG_OK ? CLI_OK : cli_fail_data(ctx, status, DATA_OPTIONS));
}

/* The parts of a file, of which an array that the model was not trained on is another file. */
static tg_status get_split(const set *s, tg_model_split *out) {
    tg_dataset_config config;
    *out = (tg_model_split){0};
    CLI_CALL(tg_model_dataset_config(s->model->model, &config, sizeof config));
    return opt.x_name && strcmp(opt.x_name, config.x_name) != 0
               ? TG_OK
               : tg_model_get_split(s->model->model, s->file, out);
}

/* Sets the part of the file that --split asks for. */
static void choose_part(set *s) {
    tg_model_split *split = &s->split;
    check_data(s->ctx, get_split(s, split));
    s->part = opt.split ? opt.split : split->tests > 0 ? "test" : "all";
    if (strcmp(s->part, "all") == 0) {
        return;
    }
    if (split->trained == 0) {
        cli_die("--split %s: the model was not trained on %s%s%s", s->part,
                opt.x_name ? opt.x_name : "", opt.x_name ? " of " : "", s->file);
    }
    const bool is_test = strcmp(s->part, "test") == 0;
    if (is_test && split->tests == 0) {
        cli_die("--split test: the model was trained on all of %s", s->file);
    }
    s->first = is_test ? split->first_test : 0;
    s->count = is_test ? split->tests : split->trained;
}

/* "samples", "trajectory" and the like. */
static const char *things_of(const set *s, int64_t count) {
    return s->split.has_trajectories ? (count == 1 ? "trajectory" : "trajectories")
                                     : (count == 1 ? "sample" : "samples");
}

/* "48 test samples of data.h5; the other 192 were trained on"; nothing of other files. */
static void print_part(const set *s) {
    const tg_model_split *split = &s->split;
    if (split->trained == 0) {
        return;
    }
    if (strcmp(s->part, "test") == 0) {
        const bool are_all = split->trained + split->tests == split->total;
        cli_say("%lld test %s of %s; %s%lld%s were trained on", (long long)s->count,
                things_of(s, s->count), s->file, are_all ? "the other " : "",
                (long long)split->trained, are_all ? "" : " others");
    } else if (strcmp(s->part, "train") == 0) {
        cli_say("%lld %s of %s that were trained on", (long long)s->count, things_of(s, s->count),
                s->file);
    } else {
        cli_say("all %lld %s of %s; %lld of them were trained on", (long long)split->total,
                things_of(s, split->total), s->file, (long long)split->trained);
    }
}

/* The samples, with y of that many steps. */
static tg_status open_data(const set *s, int64_t steps, tg_dataset **out) {
    tg_dataset_config config;
    CLI_CALL(tg_model_dataset_config(s->model->model, &config, sizeof config));
    config.x_name = opt.x_name ? opt.x_name : config.x_name;
    config.y_name = opt.y_name ? opt.y_name : config.y_name;
    config.channels_last = opt.order ? strcmp(opt.order, "nhwc") == 0 : config.channels_last;
    config.horizon *= steps;
    config.first_sample = s->first;
    config.n_samples = s->count;
    for (int d = 0; d < config.n_dim; d++) {
        config.grid[d] = s->on->points[s->on->sizes > 1 ? d : 0];
    }
    config.cache_bytes = SIZE_MAX; /* no limit for arrays that must be read whole */
    return cli_dataset_open(s->ctx, s->file, &config, out);
}

static void evaluate(set *s) {
    CLI_OWNED(tg_dataset_close) tg_dataset *dataset = NULL;
    check_data(s->ctx, open_data(s, 1, &dataset));
    check_data(s->ctx, tg_model_evaluate(s->model->model, dataset, opt.batch, &s->errors));
}

/* ---- output and files of --rollout ---- */

enum { ROWS = 20, FRAMES = 6 }; /* shown at most */

static void print_rollout(const char *file, const tg_rollout_errors *e) {
    json_t *rows = cli_json_array();
    const int64_t stride = (e->steps + ROWS - 1) / ROWS;
    cli_say("%s at %s: %lld trajector%s, %lld step%s; correlation above 0.8 for %.1f steps", file,
            e->grid, (long long)e->trajectories, e->trajectories == 1 ? "y" : "ies",
            (long long)e->steps, e->steps == 1 ? "" : "s", e->correlated_steps);
    for (int64_t j = 0; j < e->steps; j++) {
        if ((j + 1) % stride == 0 || j == 0 || j == e->steps - 1) {
            cli_json_append(rows, cli_json_new(KV("step", j + 1), KV("l2", e->l2[j]),
                                               KV("correlation", e->correlation[j])));
        }
    }
    cli_print_rows(rows, "step>:step|l2>:l2 f6!|correlation>:correlation f6!");
    json_decref(rows);
}

static json_t *first_and_last(const double *first, const double *last, int64_t count) {
    return cli_json_new(KV("first", cli_json_reals(first, count)),
                        KV("last", cli_json_reals(last, count)));
}

static json_t *json_of_rollout(const set *s) {
    const tg_rollout_errors *e = &s->rollout;
    const int64_t waves = e->wavenumbers;
    json_t *energy = cli_json_new(
        KV("truth", first_and_last(e->truth_first, e->truth_last, waves)),
        KV("prediction", first_and_last(e->prediction_first, e->prediction_last, waves)));
    return cli_json_new(KV("file", s->file), KV("grid", e->grid),
                        KV("trajectories", e->trajectories), KV("steps", e->steps),
                        KV("l2", cli_json_reals(e->l2, e->steps)),
                        KV("correlation", cli_json_reals(e->correlation, e->steps)),
                        KV("correlated_steps", e->correlated_steps), KV("energy", energy),
                        KV("split", s->part), KV("trained_on", s->split.trained));
}

/* ---- the file ---- */

static void keep_list(tg_context *ctx, tg_archive *archive, const char *name, const double *list,
                      int64_t count) {
    CLI_OWNED(tg_tensor_destroy) tg_tensor copy = {0};
    cli_check(tg_tensor_create(ctx, TG_MEM_OTHER, TG_F64, &(tg_shape){1, {count}}, &copy));
    memcpy(copy.data, list, (size_t)count * sizeof *list);
    cli_check(tg_archive_take(archive, name, &copy));
}

/* (1, steps * channels, grid..) as (frames shown, channels, grid..). */
static void keep_frames(tg_context *ctx, tg_archive *archive, const char *name,
                        const tg_tensor *all, int64_t steps, const double *shown, int64_t count) {
    tg_shape shape = all->shape;
    CLI_OWNED(tg_tensor_destroy) tg_tensor copy = {0};
    shape.dim[0] = count;
    shape.dim[1] /= steps;
    cli_check(tg_tensor_create(ctx, TG_MEM_OTHER, all->dtype, &shape, &copy));
    const size_t frame = tg_tensor_bytes(&copy) / (size_t)count;
    for (int64_t i = 0; i < count; i++) {
        memcpy((char *)copy.data + (size_t)i * frame,
               (const char *)all->data + ((size_t)shown[i] - 1) * frame, frame);
    }
    cli_check(tg_archive_take(archive, name, &copy));
}

/* Frames of the first trajectory, the first and the last step among them. */
static void add_film(const set *s, tg_dataset *dataset, tg_archive *archive) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t steps = s->rollout.steps, count = steps < FRAMES ? steps : FRAMES, zero = 0;
    tg_shape x_shape = {facts.n_dim + 2, {1, facts.in_channels}}, y_shape;
    CLI_OWNED(tg_tensor_destroy) tg_tensor x = {0};
    CLI_OWNED(tg_tensor_destroy) tg_tensor y = {0};
    CLI_OWNED(tg_tensor_destroy) tg_tensor pred = {0};
    double shown[FRAMES] = {1.0};
    memcpy(x_shape.dim + 2, facts.grid, (size_t)facts.n_dim * sizeof facts.grid[0]);
    y_shape = x_shape;
    y_shape.dim[1] = facts.out_channels;
    for (int64_t i = 1; i < count; i++) {
        shown[i] = (double)(1 + i * (steps - 1) / (count - 1));
    }
    cli_check(tg_tensor_create(s->ctx, TG_MEM_DATA, facts.dtype, &x_shape, &x));
    cli_check(tg_tensor_create(s->ctx, TG_MEM_DATA, facts.dtype, &y_shape, &y));
    cli_check(tg_tensor_create(s->ctx, TG_MEM_DATA, facts.dtype, &y_shape, &pred));
    cli_check(tg_dataset_read(dataset, &zero, 1, x.data, y.data));
    cli_check(tg_model_predict_steps(s->model->model, &x, steps, &pred));
    keep_list(s->ctx, archive, "steps", shown, count);
    keep_frames(s->ctx, archive, "y", &y, steps, shown, count);
    keep_frames(s->ctx, archive, "pred", &pred, steps, shown, count);
}

/* Writes CLI_ROLLOUT_FILE into the folder of the run: curves and spectra, and of the first
 * trajectory up to six frames, truth and prediction. */
static void keep_rollout(const set *s, tg_dataset *dataset, const char *folder) {
    const tg_rollout_errors *e = &s->rollout;
    const struct {
        const char *name;
        const double *list;
        int64_t count;
    } lists[] = {{"l2", e->l2, e->steps},
                 {"correlation", e->correlation, e->steps},
                 {"correlated_steps", &e->correlated_steps, 1},
                 {"energy_truth_first", e->truth_first, e->wavenumbers},
                 {"energy_truth_last", e->truth_last, e->wavenumbers},
                 {"energy_pred_first", e->prediction_first, e->wavenumbers},
                 {"energy_pred_last", e->prediction_last, e->wavenumbers}};
    CLI_OWNED(tg_archive_destroy) tg_archive *archive = NULL;
    CLI_FREED char *path = cli_format("%s/%s", folder, CLI_ROLLOUT_FILE);
    cli_check(tg_archive_create(s->ctx, &archive));
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        keep_list(s->ctx, archive, lists[i].name, lists[i].list, lists[i].count);
    }
    add_film(s, dataset, archive);
    cli_check(tg_archive_write(s->ctx, path, archive));
}

/* ---- evaluating ---- */

/* Steps of --rollout, or as many as the trajectories of the file have frames for. */
static int64_t count_steps(const set *s) {
    CLI_OWNED(tg_dataset_close) tg_dataset *dataset = NULL;
    tg_dataset_config config;
    if (opt.rollout > 0) {
        return opt.rollout;
    }
    cli_check(tg_model_dataset_config(s->model->model, &config, sizeof config));
    cli_check(open_data(s, 1, &dataset));
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t frames = config.n_frames > 0 ? config.n_frames : facts.times - config.first_frame;
    const int64_t steps = ((frames - 1) / config.time_stride + 1 - facts.history) / facts.horizon;
    return steps > 0 ? steps : 1; /* pairs: the rollout refuses them */
}

/* `folder`: of the run, to keep the results in; NULL: they are not kept. */
static void roll_out(set *s, const char *folder) {
    CLI_OWNED(tg_dataset_close) tg_dataset *dataset = NULL;
    cli_check(open_data(s, count_steps(s), &dataset));
    cli_check(tg_model_rollout(s->model->model, dataset, opt.batch, &s->rollout));
    if (folder) {
        keep_rollout(s, dataset, folder);
    }
}

static void parse_grids(wanted_grid *grids) {
    for (int i = 0; i < opt.resolution.count; i++) {
        const char *text = opt.resolution.item[i];
        grids[i].sizes = tg_grid_parse(text, grids[i].points);
        if (grids[i].sizes == 0) {
            cli_misuse("eval", "--resolution needs grids such as 16 or 48x80, not '%.64s'", text);
        }
    }
}

/* Every grid has the dimensions of the model. */
static void check_grids(const cli_model *model, const wanted_grid *grids) {
    const int n_dim = cli_data_dims(cli_model_config(model));
    for (int i = 0; i < opt.resolution.count; i++) {
        if (grids[i].sizes > 1 && grids[i].sizes != n_dim) {
            cli_die("--resolution %s has %d dimensions, the model has %d", opt.resolution.item[i],
                    grids[i].sizes, n_dim);
        }
    }
}

/* The sample with the largest L2 error, or with one that is no number; 0-based. */
static int64_t worst_of(const tg_test_errors *e) {
    int64_t worst = 0;
    for (int64_t i = 1; i < e->samples; i++) {
        worst = e->l2_samples[i] <= e->l2_samples[worst] || isnan(e->l2_samples[worst]) ? worst : i;
    }
    return worst;
}

/* Takes the entries of the JSON. */
static void print_table(const set *sets, int count, json_t *entries) {
    for (int i = 0; i < count; i++) {
        const tg_test_errors *e = &sets[i].errors;
        const int64_t worst = worst_of(e);
        cli_json_put(json_array_get(entries, (size_t)i), KV("median", e->l2_quantiles[2]),
                     KV("upper", e->l2_quantiles[3]), KV("worst", e->l2_samples[worst]),
                     KV("worst_sample", worst + 1));
    }
    cli_print_rows(entries, "file:file|resolution>:resolution|samples>:samples|l2>:l2 f6!|"
                            "h1>:h1 f6|median l2>:median f6!|3/4 below>:upper f6!|"
                            "worst l2>:worst f6!|sample>:worst_sample");
    json_decref(entries);
}

/* Errors of each channel; nothing for a single channel. */
static void print_channels(const set *sets, int count) {
    json_t *rows = cli_json_array();
    for (int i = 0; i < count; i++) {
        const tg_test_errors *e = &sets[i].errors;
        for (int64_t c = 0; c < e->channels; c++) {
            cli_json_append(rows, cli_json_new(KV("file", sets[i].file), KV("grid", e->grid),
                                               KV("channel", c + 1), KV("l2", e->l2_channels[c]),
                                               KV("h1", e->h1_channels[c])));
        }
    }
    if (sets[0].errors.channels > 1) {
        printf("\neach channel by itself:\n");
        cli_print_rows(rows, "file:file|resolution>:grid|channel>:channel|l2>:l2 f6!|h1>:h1 f6");
    }
    json_decref(rows);
}

/* A number of points, or the name of a grid that is not square. */
static json_t *json_of_grid(const char *grid) {
    char *end;
    const int64_t points = strtoll(grid, &end, 10);
    return *end ? cli_json_text(grid) : cli_json_integer(points);
}

/* Every file on every grid, `each` of them per file. */
static json_t *json_of_set(const set *s) {
    const tg_test_errors *e = &s->errors;
    json_t *entry = cli_json_new(KV("file", s->file), KV("resolution", json_of_grid(e->grid)),
                                 KV("samples", e->samples), KV("split", s->part),
                                 KV("trained_on", s->split.trained));
    cli_json_set_errors(entry, e);
    json_t *each = cli_json_new(KV("l2", cli_json_reals(e->l2_samples, e->samples)),
                                KV("h1", cli_json_reals(e->h1_samples, e->samples)));
    cli_json_set(entry, "per_sample", each);
    return entry;
}

/* Every file on every grid, `each` of them per file. */
static void evaluate_all(set *sets, int count, int each, bool json) {
    const cli_model *model = sets[0].model;
    const bool is_rollout = opt.rollout >= 0;
    json_t *list = cli_json_array();
    for (int i = 0; i < count; i++) {
        choose_part(&sets[i]);
        if (is_rollout) {
            roll_out(&sets[i], opt.keep ? opt.folder : NULL);
        } else {
            evaluate(&sets[i]);
        }
        cli_json_append(list, is_rollout ? json_of_rollout(&sets[i]) : json_of_set(&sets[i]));
        if (!json && i == 0 && is_rollout) {
            cli_model_say_checkpoint(model);
        }
        if (!json && is_rollout) {
            print_part(&sets[i]);
            print_rollout(sets[i].file, &sets[i].rollout);
        }
        tg_rollout_errors_destroy(&sets[i].rollout);
    }
    if (json) {
        json_t *object = cli_model_json(model);
        cli_json_set(object, is_rollout ? "rollouts" : "results", list);
        cli_json_print(object);
        return;
    }
    if (!is_rollout) {
        cli_model_say_checkpoint(model);
        for (int i = 0; i < count; i += each) {
            print_part(&sets[i]);
        }
        print_table(sets, count, json_incref(list));
        print_channels(sets, count);
    }
    json_decref(list);
}

static void check_keep(int sets) {
    if (opt.keep && (opt.rollout < 0 || sets != 1)) {
        cli_misuse("eval", "--keep is for --rollout on one file and one resolution");
    }
    if (opt.keep && !cli_is_folder(opt.folder)) {
        cli_die("--keep: %s is not the folder of a run", opt.folder);
    }
}

static int run(const cli_call *call) {
    if (!cli_is_first()) {
        cli_warn("ranks do not share an evaluation: rank 0 makes it");
        return CLI_OK;
    }
    if (opt.data.count == 0) {
        return cli_usage("eval", "--data FILE is needed");
    }
    const int each = opt.resolution.count > 0 ? opt.resolution.count : 1;
    const int count = opt.data.count * each;
    CLI_FREED wanted_grid *grids = cli_need(calloc((size_t)each, sizeof *grids));
    CLI_FREED set *sets = cli_need(calloc((size_t)count, sizeof *sets));
    opt.folder = call->args.item[0];
    parse_grids(grids);
    check_keep(count);
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    CLI_OWNED(cli_model_close) cli_model model = {0};
    cli_model_open(ctx, opt.folder, &model);
    check_grids(&model, grids);
    cli_model_print_normalized(&model);
    for (int i = 0; i < count; i++) {
        sets[i] = (set){
            .ctx = ctx, .model = &model, .file = opt.data.item[i / each], .on = &grids[i % each]};
    }
    evaluate_all(sets, count, each, call->common->json);
    for (int i = 0; i < count; i++) {
        tg_test_errors_destroy(&sets[i].errors);
    }
    return CLI_OK;
}

const cli_command cli_cmd_eval = {
    .name = "eval",
    .arguments = "MODEL",
    .args = {1, 1},
    .summary = "Measure the errors of a trained model on data",
    .description =
        "MODEL is a run folder, with --checkpoint for another checkpoint than the best, a\n"
        "checkpoint, a model file (tg_model_save), or with --config a file of weights by\n"
        "neuraloperator's names (docs/exchange.md). Prints the relative L2 and H1 errors for\n"
        "every file at every resolution: |prediction - truth| / |truth| of each sample over all\n"
        "channels, averaged over the samples; with several channels also for each channel.\n"
        "--json has the errors of every sample (per_sample) and their least, quartiles\n"
        "and largest (l2_quantiles, h1_quantiles). The grid may be finer than the one the model\n"
        "was trained on.\n"
        "If the model was trained on a part of the file, as tgrad init splits one, the remaining\n"
        "samples are evaluated, unless --split asks for others.\n"
        "--rollout applies the model to its own predictions, from the start of every\n"
        "trajectory, and prints error and correlation of every step, and how long the\n"
        "correlation stays above 0.8; --json also has the energy by wave number of the first and "
        "the last\n"
        "step. With --keep tgrad report RUN shows them, with frames of a trajectory\n"
        "(docs/rollouts.md).\n",
    .examples =
        "  tgrad eval runs/darcy --data data/darcy_test_16.h5,data/darcy_test_32.h5\n"
        "  tgrad eval model.safetensors --data darcy_421.h5 --resolution 85,211,421\n"
        "  tgrad eval runs/own --data own.h5 --split train --checkpoint last\n"
        "  tgrad eval runs/darcy --data data/darcy_test_32.h5 --json | jq '.results[0].l2'\n"
        "  tgrad eval runs/ns --data data/ns_test_64.h5 --rollout 20 --keep\n"
        "  tgrad eval runs/darcy --data own.h5 --json | jq '.results[0].per_sample.l2 | max'\n",
    .options = options,
    .takes = CLI_TAKES_MODEL | CLI_TAKES_JSON | CLI_TAKES_DEVICE,
    .run = run,
};
