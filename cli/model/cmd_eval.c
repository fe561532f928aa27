/* tgrad eval MODEL --data FILE: relative L2 and H1 errors of a trained model on sets of samples. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "common/output.h"
#include "common/run_folder.h"
#include "common/text.h"

static struct {
    cli_list data;       /* files */
    cli_list resolution; /* as text; empty: that of each file */
    const char *x_name, *y_name, *order;
    int64_t batch;
    int64_t rollout;   /* steps, 0: all; -1: none */
    const char *split; /* NULL: "test" of a file that the run split, "all" of others */
    bool keep;
} opt = {.batch = 16, .rollout = -1};

static const char *const splits[] = {"train", "test", "all", NULL};
static const char *const orders[] = {"nchw", "nhwc", NULL};

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
    CLI_OPTION_TEXT("order", 0, &opt.order, orders, "ORDER", "nhwc: channels after the grid",
                    "as trained"),
    CLI_OPTION_TEXT("split", 0, &opt.split, splits, "train|test|all",
                    "samples of a file that was trained on", "test"),
    CLI_OPTION_INT("batch", 0, &opt.batch, 1, 1 << 20, "N", "samples at a time", "16"),
    CLI_OPTION_INT("rollout", 0, &opt.rollout, 0, 1000000, "N",
                   "steps from the start of every trajectory; 0: all", "none"),
    CLI_OPTION_FLAG("keep", 0, &opt.keep, "of a rollout: for tgrad report, in the run's folder"),
    {0},
};

/* Which samples of a file are evaluated, or trajectories. */
typedef struct part {
    const char *name; /* "train", "test" or "all" */
    int64_t first;
    int64_t count; /* 0: all of the file */
    tg_model_split split;
} part;

typedef struct result {
    const char *file;
    part part;
    tg_test_errors errors;
} result;

/* A grid to evaluate on: no sizes for that of the file, one for all dimensions, or one for each. */
typedef struct wanted_grid {
    int sizes;
    int64_t points[TG_DATA_MAX_DIMS];
} wanted_grid;

/* The parts of a file, of which an array that the model was not trained on is another file. */
static tg_status get_split(const cli_model *model, const char *file, tg_model_split *out) {
    tg_dataset_config config;
    *out = (tg_model_split){0};
    CLI_CALL(tg_model_dataset_config(model->model, &config, sizeof config));
    return opt.x_name && strcmp(opt.x_name, config.x_name) != 0
               ? TG_OK
               : tg_model_get_split(model->model, file, out);
}

/* The part of a file that --split asks for. CLI_FAILED after a message. */
static int choose_part(tg_context *ctx, const cli_model *model, const char *file, part *out) {
    tg_model_split split;
    const tg_status status = get_split(model, file, &split);
    if (status != TG_OK) {
        return cli_fail_data(ctx, status, DATA_OPTIONS);
    }
    *out = (part){.name = opt.split ? opt.split : split.tests > 0 ? "test" : "all", .split = split};
    if (strcmp(out->name, "all") == 0) {
        return CLI_OK;
    }
    if (split.trained == 0) {
        return cli_fail("--split %s: the model was not trained on %s%s%s", out->name,
                        opt.x_name ? opt.x_name : "", opt.x_name ? " of " : "", file);
    }
    const bool is_test = strcmp(out->name, "test") == 0;
    if (is_test && split.tests == 0) {
        return cli_fail("--split test: the model was trained on all of %s", file);
    }
    out->first = is_test ? split.first_test : 0;
    out->count = is_test ? split.tests : split.trained;
    return CLI_OK;
}

/* "samples", "trajectory" and the like. */
static const char *things_of(const part *p, int64_t count) {
    return p->split.has_trajectories ? (count == 1 ? "trajectory" : "trajectories")
                                     : (count == 1 ? "sample" : "samples");
}

/* "48 test samples of data.h5; the other 192 were trained on"; nothing of other files. */
static void print_part(const char *file, const part *p) {
    const tg_model_split *s = &p->split;
    if (s->trained == 0) {
        return;
    }
    if (strcmp(p->name, "test") == 0) {
        const bool are_all = s->trained + s->tests == s->total;
        cli_say("%lld test %s of %s; %s%lld%s were trained on", (long long)p->count,
                things_of(p, p->count), file, are_all ? "the other " : "", (long long)s->trained,
                are_all ? "" : " others");
    } else if (strcmp(p->name, "train") == 0) {
        cli_say("%lld %s of %s that were trained on", (long long)p->count, things_of(p, p->count),
                file);
    } else {
        cli_say("all %lld %s of %s; %lld of them were trained on", (long long)s->total,
                things_of(p, s->total), file, (long long)s->trained);
    }
}

/* A part of one file on one grid, with y of that many steps. */
static tg_status open_data(tg_context *ctx, const cli_model *model, const char *file,
                           const part *which, const wanted_grid *on, int64_t steps,
                           tg_dataset **out) {
    tg_dataset_config config;
    CLI_CALL(tg_model_dataset_config(model->model, &config, sizeof config));
    config.x_name = opt.x_name ? opt.x_name : config.x_name;
    config.y_name = opt.y_name ? opt.y_name : config.y_name;
    config.channels_last = opt.order ? strcmp(opt.order, "nhwc") == 0 : config.channels_last;
    config.horizon *= steps;
    config.first_sample = which->first;
    config.n_samples = which->count;
    for (int d = 0; d < config.n_dim; d++) {
        config.grid[d] = on->points[on->sizes > 1 ? d : 0];
    }
    const tg_status status = tg_dataset_open(ctx, file, NULL, &config, out);
    if (status != TG_E_UNSUPPORTED) {
        return status;
    }
    config.cache_bytes = SIZE_MAX; /* no limit for arrays that must be read whole */
    return tg_dataset_open(ctx, file, NULL, &config, out);
}

static tg_status evaluate(tg_context *ctx, const cli_model *model, const wanted_grid *on,
                          result *out) {
    tg_dataset *dataset = NULL;
    tg_status status = open_data(ctx, model, out->file, &out->part, on, 1, &dataset);
    status = status == TG_OK ? tg_model_evaluate(model->model, dataset, opt.batch, &out->errors)
                             : status;
    tg_dataset_close(&dataset);
    return status;
}

/* ---- output and files of --rollout ---- */

enum { ROWS = 20, FRAMES = 6 }; /* shown at most */

static void print_rollout(const char *file, const tg_rollout_errors *e) {
    cli_table table = cli_table_of("step>|l2>|correlation>");
    const int64_t stride = (e->steps + ROWS - 1) / ROWS;
    cli_say("%s at %s: %lld trajector%s, %lld step%s; correlation above 0.8 for %.1f steps", file,
            e->grid, (long long)e->trajectories, e->trajectories == 1 ? "y" : "ies",
            (long long)e->steps, e->steps == 1 ? "" : "s", e->correlated_steps);
    for (int64_t j = 0; j < e->steps; j++) {
        if ((j + 1) % stride == 0 || j == 0 || j == e->steps - 1) {
            cli_table_cell(&table, "%lld", (long long)j + 1);
            cli_table_cell(&table, "%.6f", e->l2[j]);
            cli_table_cell(&table, "%.6f", e->correlation[j]);
        }
    }
    cli_table_print(&table, stdout);
}

static json_t *first_and_last(const double *first, const double *last, int64_t count) {
    return cli_json_new(KV("first", cli_json_reals(first, count)),
                        KV("last", cli_json_reals(last, count)));
}

static json_t *json_of_rollout(const char *file, const tg_rollout_errors *e) {
    json_t *entry =
        cli_json_new(KV("file", file), KV("grid", e->grid), KV("trajectories", e->trajectories),
                     KV("steps", e->steps), KV("l2", cli_json_reals(e->l2, e->steps)),
                     KV("correlation", cli_json_reals(e->correlation, e->steps)),
                     KV("correlated_steps", e->correlated_steps));
    json_t *energy = cli_json_new(
        KV("truth", first_and_last(e->truth_first, e->truth_last, e->wavenumbers)),
        KV("prediction", first_and_last(e->prediction_first, e->prediction_last, e->wavenumbers)));
    cli_json_set(entry, "energy", energy);
    return entry;
}

/* ---- the file ---- */

/* A copy of the list as a tensor of the archive. */
static tg_status keep_list(tg_context *ctx, tg_archive *archive, const char *name,
                           const double *list, int64_t count) {
    const tg_shape shape = {1, {count}};
    tg_tensor copy = {0};
    tg_status status = tg_tensor_create(ctx, TG_MEM_OTHER, TG_F64, &shape, &copy);
    if (status == TG_OK) {
        memcpy(copy.data, list, (size_t)count * sizeof *list);
        status = tg_archive_take(archive, name, &copy);
    }
    tg_tensor_destroy(&copy);
    return status;
}

/* (1, steps * channels, grid..) as (frames shown, channels, grid..). */
static tg_status keep_frames(tg_context *ctx, tg_archive *archive, const char *name,
                             const tg_tensor *all, int64_t steps, const double *shown,
                             int64_t count) {
    tg_shape shape = all->shape;
    tg_tensor copy = {0};
    shape.dim[0] = count;
    shape.dim[1] /= steps;
    tg_status status = tg_tensor_create(ctx, TG_MEM_OTHER, all->dtype, &shape, &copy);
    if (status == TG_OK) {
        const size_t frame = tg_tensor_bytes(&copy) / (size_t)count;
        for (int64_t i = 0; i < count; i++) {
            memcpy((char *)copy.data + (size_t)i * frame,
                   (const char *)all->data + ((size_t)shown[i] - 1) * frame, frame);
        }
        status = tg_archive_take(archive, name, &copy);
    }
    tg_tensor_destroy(&copy);
    return status;
}

/* Frames of the first trajectory, the first and the last step among them. */
static tg_status add_film(tg_context *ctx, const cli_model *model, tg_dataset *dataset,
                          int64_t steps, tg_archive *archive) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int64_t count = steps < FRAMES ? steps : FRAMES, zero = 0;
    tg_shape x_shape = {facts.n_dim + 2, {1, facts.in_channels}}, y_shape;
    tg_tensor x = {0}, y = {0}, pred = {0};
    double shown[FRAMES] = {1.0};
    memcpy(x_shape.dim + 2, facts.grid, (size_t)facts.n_dim * sizeof facts.grid[0]);
    y_shape = x_shape;
    y_shape.dim[1] = facts.out_channels;
    for (int64_t i = 1; i < count; i++) {
        shown[i] = (double)(1 + i * (steps - 1) / (count - 1));
    }
    tg_status status = tg_tensor_create(ctx, TG_MEM_DATA, facts.dtype, &x_shape, &x);
    status = status ? status : tg_tensor_create(ctx, TG_MEM_DATA, facts.dtype, &y_shape, &y);
    status = status ? status : tg_tensor_create(ctx, TG_MEM_DATA, facts.dtype, &y_shape, &pred);
    status = status ? status : tg_dataset_read(dataset, &zero, 1, x.data, y.data);
    status = status ? status : tg_model_predict_steps(model->model, &x, steps, &pred);
    status = status ? status : keep_list(ctx, archive, "steps", shown, count);
    status = status ? status : keep_frames(ctx, archive, "y", &y, steps, shown, count);
    status = status ? status : keep_frames(ctx, archive, "pred", &pred, steps, shown, count);
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_tensor_destroy(&pred);
    return status;
}

/* Writes CLI_ROLLOUT_FILE into `folder`: curves and spectra, and of the first trajectory up to six
 * frames, truth and prediction. */
static tg_status keep_rollout(tg_context *ctx, const cli_model *model, tg_dataset *dataset,
                              const tg_rollout_errors *e, const char *folder) {
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
    tg_archive *archive = NULL;
    char path[2048];
    snprintf(path, sizeof path, "%.1900s/%s", folder, CLI_ROLLOUT_FILE);
    tg_status status = tg_archive_create(ctx, &archive);
    for (size_t i = 0; i < sizeof lists / sizeof lists[0] && status == TG_OK; i++) {
        status = keep_list(ctx, archive, lists[i].name, lists[i].list, lists[i].count);
    }
    status = status ? status : add_film(ctx, model, dataset, e->steps, archive);
    status = status ? status : tg_archive_write(ctx, path, archive);
    tg_archive_destroy(&archive);
    return status;
}

/* ---- evaluating ---- */

/* Steps of --rollout, or as many as the trajectories of a file have frames for. */
static tg_status count_steps(tg_context *ctx, const cli_model *model, const char *file,
                             const part *which, const wanted_grid *on, int64_t *steps) {
    tg_dataset *dataset = NULL;
    *steps = opt.rollout;
    if (opt.rollout > 0) {
        return TG_OK;
    }
    tg_dataset_config config;
    CLI_CALL(tg_model_dataset_config(model->model, &config, sizeof config));
    const tg_status status = open_data(ctx, model, file, which, on, 1, &dataset);
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    if (status == TG_OK) {
        const int64_t frames =
            config.n_frames > 0 ? config.n_frames : facts.times - config.first_frame;
        *steps = ((frames - 1) / config.time_stride + 1 - facts.history) / facts.horizon;
        *steps = *steps > 0 ? *steps : 1; /* pairs: the rollout refuses them */
    }
    tg_dataset_close(&dataset);
    return status;
}

/* `folder`: of the run, to keep the results in; NULL: they are not kept. */
static tg_status roll_out(tg_context *ctx, const cli_model *model, const char *file,
                          const part *which, const wanted_grid *on, const char *folder,
                          tg_rollout_errors *out) {
    tg_dataset *dataset = NULL;
    int64_t steps = 1;
    tg_status status = TG_OK;
    CLI_TRY(count_steps(ctx, model, file, which, on, &steps));
    CLI_TRY(open_data(ctx, model, file, which, on, steps, &dataset));
    CLI_TRY(tg_model_rollout(model->model, dataset, opt.batch, out));
    if (folder) {
        CLI_TRY(keep_rollout(ctx, model, dataset, out, folder));
    }
fail:
    tg_dataset_close(&dataset);
    return status;
}

/* The grids of --resolution. */
static int parse_grids(wanted_grid *grids) {
    for (int i = 0; i < opt.resolution.count; i++) {
        const char *text = opt.resolution.item[i];
        grids[i].sizes = tg_grid_parse(text, grids[i].points);
        if (grids[i].sizes == 0) {
            return cli_usage("eval", "--resolution needs grids such as 16 or 48x80, not '%.64s'",
                             text);
        }
    }
    return CLI_OK;
}

/* Whether every grid has the dimensions of the model. */
static int check_grids(const cli_model *model, const wanted_grid *grids) {
    const int n_dim = cli_data_dims(cli_model_config(model));
    for (int i = 0; i < opt.resolution.count; i++) {
        if (grids[i].sizes > 1 && grids[i].sizes != n_dim) {
            return cli_fail("--resolution %s has %d dimensions, the model has %d",
                            opt.resolution.item[i], grids[i].sizes, n_dim);
        }
    }
    return CLI_OK;
}

/* The sample with the largest L2 error, or with one that is no number; 0-based. */
static int64_t worst_of(const tg_test_errors *e) {
    int64_t worst = 0;
    for (int64_t i = 1; i < e->samples; i++) {
        worst = e->l2_samples[i] <= e->l2_samples[worst] || isnan(e->l2_samples[worst]) ? worst : i;
    }
    return worst;
}

/* Points have no differences and so no H1 error. */
static void add_h1(cli_table *table, double l2, double h1) {
    if (isnan(h1) && !isnan(l2)) {
        cli_table_cell(table, "-");
    } else {
        cli_table_cell(table, "%.6f", h1);
    }
}

static void print_table(const result *results, int count) {
    cli_table table =
        cli_table_of("file|resolution>|samples>|l2>|h1>|median l2>|3/4 below>|worst l2>|sample>");
    for (int i = 0; i < count; i++) {
        const tg_test_errors *e = &results[i].errors;
        const int64_t worst = worst_of(e);
        cli_table_cell(&table, "%s", results[i].file);
        cli_table_cell(&table, "%s", e->grid);
        cli_table_cell(&table, "%lld", (long long)e->samples);
        cli_table_cell(&table, "%.6f", e->l2);
        add_h1(&table, e->l2, e->h1);
        cli_table_cell(&table, "%.6f", e->l2_quantiles[2]);
        cli_table_cell(&table, "%.6f", e->l2_quantiles[3]);
        cli_table_cell(&table, "%.6f", e->l2_samples[worst]);
        cli_table_cell(&table, "%lld", (long long)worst + 1);
    }
    cli_table_print(&table, stdout);
}

/* Errors of each channel; nothing for a single channel. */
static void print_channels(const result *results, int count) {
    cli_table table = cli_table_of("file|resolution>|channel>|l2>|h1>");
    for (int i = 0; i < count && results[0].errors.channels > 1; i++) {
        const tg_test_errors *e = &results[i].errors;
        for (int64_t c = 0; c < e->channels; c++) {
            cli_table_cell(&table, "%s", results[i].file);
            cli_table_cell(&table, "%s", e->grid);
            cli_table_cell(&table, "%lld", (long long)c + 1);
            cli_table_cell(&table, "%.6f", e->l2_channels[c]);
            add_h1(&table, e->l2_channels[c], e->h1_channels[c]);
        }
    }
    if (table.cells > (size_t)table.columns) {
        printf("\neach channel by itself:\n");
        cli_table_print(&table, stdout);
    }
    cli_table_free(&table);
}

/* A number of points, or the name of a grid that is not square. */
static json_t *json_of_grid(const char *grid) {
    char *end;
    const int64_t points = strtoll(grid, &end, 10);
    return *end ? cli_json_text(grid) : cli_json_integer(points);
}

/* "split" with the number of samples (or trajectories) of the file that were trained on, 0 of other
 * files. */
static void set_part(json_t *entry, const part *p) {
    cli_json_put(entry, KV("split", p->name), KV("trained_on", p->split.trained));
}

static void print_json(const cli_model *model, const result *results, int count) {
    json_t *object = cli_json_object(), *list = cli_json_array();
    for (int i = 0; i < count; i++) {
        const tg_test_errors *e = &results[i].errors;
        json_t *entry =
            cli_json_new(KV("file", results[i].file), KV("resolution", json_of_grid(e->grid)),
                         KV("samples", e->samples));
        set_part(entry, &results[i].part);
        cli_json_set_errors(entry, e);
        json_t *each = cli_json_new(KV("l2", cli_json_reals(e->l2_samples, e->samples)),
                                    KV("h1", cli_json_reals(e->h1_samples, e->samples)));
        cli_json_set(entry, "per_sample", each);
        cli_json_append(list, entry);
    }
    cli_model_set_json(object, model);
    cli_json_set(object, "results", list);
    cli_json_print(object);
}

/* Every file on every grid, `each` of them per file. */
static int evaluate_all(tg_context *ctx, const cli_model *model, const wanted_grid *grids, int each,
                        bool json) {
    const int count = opt.data.count * each;
    result *results = cli_need(calloc((size_t)count + 1, sizeof *results));
    int code = CLI_OK;
    for (int i = 0; code == CLI_OK && i < count; i++) {
        results[i].file = opt.data.item[i / each];
        code = choose_part(ctx, model, results[i].file, &results[i].part);
        if (code == CLI_OK) {
            const tg_status status = evaluate(ctx, model, &grids[i % each], &results[i]);
            code = status == TG_OK ? CLI_OK : cli_fail_data(ctx, status, DATA_OPTIONS);
        }
    }
    if (code == CLI_OK && json) {
        print_json(model, results, count);
    } else if (code == CLI_OK) {
        cli_model_say_checkpoint(model);
        for (int i = 0; i < count; i += each) {
            print_part(results[i].file, &results[i].part);
        }
        print_table(results, count);
        print_channels(results, count);
    }
    for (int i = 0; i < count; i++) {
        tg_test_errors_destroy(&results[i].errors);
    }
    free(results);
    return code;
}

/* The same, of rollouts. */
static int roll_out_all(tg_context *ctx, const cli_model *model, const wanted_grid *grids, int each,
                        const char *folder, bool json) {
    json_t *list = cli_json_array();
    int code = CLI_OK;
    for (int i = 0; code == CLI_OK && i < opt.data.count * each; i++) {
        const char *file = opt.data.item[i / each];
        part which;
        tg_rollout_errors errors = {0};
        code = choose_part(ctx, model, file, &which);
        code = code == CLI_OK ? cli_code(ctx, roll_out(ctx, model, file, &which, &grids[i % each],
                                                       folder, &errors))
                              : code;
        if (code == CLI_OK && json) {
            json_t *entry = json_of_rollout(file, &errors);
            set_part(entry, &which);
            cli_json_append(list, entry);
        } else if (code == CLI_OK) {
            if (i == 0) {
                cli_model_say_checkpoint(model);
            }
            print_part(file, &which);
            print_rollout(file, &errors);
        }
        tg_rollout_errors_destroy(&errors);
    }
    json_t *object = cli_json_object();
    cli_model_set_json(object, model);
    cli_json_set(object, "rollouts", list);
    if (code == CLI_OK && json) {
        cli_json_print(object);
    } else {
        json_decref(object);
    }
    return code;
}

/* Checks the requirements of --keep. */
static int check_keep(const char *model, int sets) {
    if (!opt.keep) {
        return CLI_OK;
    }
    if (opt.rollout < 0 || sets != 1) {
        return cli_usage("eval", "--keep is for --rollout on one file and one resolution");
    }
    return cli_is_folder(model) ? CLI_OK : cli_fail("--keep: %s is not the folder of a run", model);
}

static int run(const cli_call *call) {
    if (!cli_is_first()) {
        cli_warn("ranks do not share an evaluation: rank 0 makes it");
        return CLI_OK;
    }
    const char *folder = opt.keep ? call->args.item[0] : NULL;
    const int each = opt.resolution.count > 0 ? opt.resolution.count : 1;
    wanted_grid *grids = cli_need(calloc((size_t)each, sizeof *grids));
    tg_context *ctx = NULL;
    cli_model model = {0};
    int code = opt.data.count > 0 ? CLI_OK : cli_usage("eval", "--data FILE is needed");
    code = code == CLI_OK ? parse_grids(grids) : code;
    code = code == CLI_OK ? check_keep(call->args.item[0], opt.data.count * each) : code;
    code = code == CLI_OK ? cli_open_context(call->common, true, &ctx) : code;
    code = code == CLI_OK ? cli_model_open(ctx, call->args.item[0], &model) : code;
    code = code == CLI_OK ? check_grids(&model, grids) : code;
    if (code == CLI_OK) {
        cli_model_print_normalized(&model);
        code = opt.rollout < 0 ? evaluate_all(ctx, &model, grids, each, call->common->json)
                               : roll_out_all(ctx, &model, grids, each, folder, call->common->json);
    }
    cli_model_close(&model);
    tg_context_destroy(&ctx);
    free(grids);
    cli_list_free(&opt.data);
    cli_list_free(&opt.resolution);
    return code;
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
