/* Results: from run folders to lines of JSON, and from these to rows of a table. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include "sweep.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

json_t *cli_result_read(const char *folder, const char *trial) {
    CLI_FREED char *path = cli_format("%s/results/%s.json", folder, trial);
    json_t *result = json_load_file(path, 0, NULL);
    if (!json_is_object(result)) {
        json_decref(result);
        return NULL;
    }
    return result;
}

void cli_result_free(json_t **result) {
    json_decref(*result);
}

bool cli_result_is_finished(const json_t *result) {
    const char *status = json_string_value(json_object_get(result, "status"));
    return status && strcmp(status, "finished") == 0;
}

/* The value of an axis; null where the cell is not varied along it. */
static json_t *value_of(const cli_cell *cell, int axis) {
    return cell->value[axis] ? cli_json_text(cell->value[axis]) : json_null();
}

/* The fields that identify a result. */
static json_t *begin(const cli_experiment *e, const cli_trial *trial, const char *rate) {
    const cli_cell *cell = &e->cell[trial->cell];
    json_t *settings = cli_json_object();
    for (int a = 0; a < e->axes; a++) {
        cli_json_set(settings, e->axis[a], value_of(cell, a));
    }
    rate = trial->rate ? trial->rate : rate;
    return cli_json_new(KV("name", trial->name), KV("cell", cell->name),
                        KV("variant", cell->variant), KV("settings", settings),
                        KV("seed", trial->seed),
                        KV("rate", rate ? cli_json_real(strtod(rate, NULL)) : json_null()),
                        KV("search", json_boolean(trial->rate != NULL)));
}

static json_t *errors_of(const cli_run *run) {
    json_t *tests = cli_json_object();
    for (int t = 0; t < run->tests; t++) {
        json_t *errors = cli_json_object();
        for (int n = 0; n < CLI_NORMS; n++) {
            const int last = cli_run_last(run, (cli_norm)n, t);
            cli_json_set(errors, cli_norm_names[n],
                         cli_json_real(last < 0 ? (double)NAN : run->epoch[last].error[n][t]));
        }
        cli_json_set(tests, run->grid[t], errors);
    }
    return tests;
}

static json_t *memory_of(const cli_run *run) {
    json_t *memory =
        cli_json_new(KV("peak", run->memory_peak), KV("state", cli_run_optimizer_bytes(run)));
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        if (isfinite(run->memory[c])) {
            cli_json_set(memory, tg_mem_category_name((tg_mem_category)c),
                         cli_json_real(run->memory[c]));
        }
    }
    return memory;
}

typedef struct error_list {
    double *value; /* (count) */
    int count;
    bool of_weights; /* of every weight at a refresh, not their mean */
} error_list;

static void take_errors(const json_t *refresh, void *to) {
    error_list *list = to;
    const json_t *weights = json_object_get(refresh, "parameters");
    for (size_t i = 0; i < (list->of_weights ? json_array_size(weights) : 1); i++) {
        const json_t *of = list->of_weights ? json_array_get(weights, i) : refresh;
        const json_t *error = json_object_get(of, "error");
        if (json_is_number(error)) {
            list->value =
                cli_need(realloc(list->value, ((size_t)list->count + 1) * sizeof(double)));
            list->value[list->count++] = json_number_value(error);
        }
    }
}

void cli_projection_errors(const char *run, double **values, int *count) {
    error_list list = {*values, *count, true};
    cli_json_lines(run, "projections.jsonl", take_errors, &list);
    *values = list.value;
    *count = list.count;
}

/* |G - P(G)| / |G| of a run, mean over its refreshes; NaN: nothing was projected. */
static double projection_error(const char *run) {
    error_list list = {0};
    cli_json_lines(run, "projections.jsonl", take_errors, &list);
    CLI_FREED double *values = list.value;
    return cli_sample_of(values, list.count).mean;
}

json_t *cli_result_make(tg_context *ctx, const char *folder, const cli_experiment *e,
                        const cli_trial *trial, const char *rate, const char *reason) {
    json_t *result = begin(e, trial, rate);
    CLI_OWNED(cli_run_close) cli_run run = {0};
    CLI_FREED char *path = cli_format("%s/runs/%s", folder, trial->name);
    cli_json_put(result, KV("status", reason ? "failed" : "finished"));
    if (reason) {
        cli_json_put(result, KV("reason", reason));
    } else if (cli_run_open(ctx, path, &run) == CLI_OK && run.count > 0) {
        const cli_epoch *last = &run.epoch[run.count - 1];
        cli_json_put(result, KV("epochs", last->epoch), KV("steps", last->step),
                     KV("train_loss", last->loss), KV("test", errors_of(&run)));
        if (isfinite(run.validation[CLI_NORM_L2])) {
            cli_json_put(result,
                         KV("validation", cli_json_new(KV("l2", run.validation[CLI_NORM_L2]),
                                                       KV("h1", run.validation[CLI_NORM_H1]))));
        }
        cli_json_put(result, KV("memory", memory_of(&run)),
                     KV("projection_error", projection_error(path)),
                     KV("step_ms", cli_run_step_ms(&run)), KV("seconds", cli_run_seconds(&run)));
    }
    cli_json_put(result, KV("folder", path));
    return result;
}

json_t *cli_result_planned(const cli_experiment *e, const cli_trial *trial) {
    const cli_cell *cell = &e->cell[trial->cell];
    json_t *result = begin(e, trial, NULL);
    json_t *memory = cli_json_new(KV("peak", cell->peak[cell->place]), KV("state", cell->state));
    cli_json_put(result, KV("status", "finished"), KV("memory", memory));
    return result;
}

int cli_result_write(const char *folder, const char *trial, const json_t *result) {
    CLI_FREED char *path = cli_format("%s/results/%s.json", folder, trial);
    CLI_FREED char *text = cli_need(json_dumps(result, JSON_COMPACT | JSON_PRESERVE_ORDER));
    return cli_write_file(path, text, strlen(text));
}

const char *cli_result_best_rate(const char *folder, const cli_experiment *e, int cell) {
    const char *best = NULL;
    double least = HUGE_VAL;
    for (int i = 0; i < e->trials; i++) {
        if (e->trial[i].cell != cell || !e->trial[i].rate) {
            continue;
        }
        CLI_OWNED(cli_result_free) json_t *result = cli_result_read(folder, e->trial[i].name);
        const double value =
            cli_json_number(json_object_get(json_object_get(result, "validation"), e->search_norm));
        if (value < least) {
            least = value;
            best = e->trial[i].rate;
        }
    }
    return best;
}

/* How the tables are to be made, for `tgrad report DIR`. */
static json_t *describe(const cli_experiment *e) {
    json_t *axes = cli_json_array(), *cells = cli_json_array();
    json_t *rates = cli_json_array();
    for (int r = 0; r < e->rates.count; r++) {
        cli_json_append(rates, cli_json_real(strtod(e->rates.item[r], NULL)));
    }
    for (int a = 0; a < e->axes; a++) {
        cli_json_append(axes, cli_json_text(e->axis[a]));
    }
    for (int c = 0; c < e->cells; c++) {
        const cli_cell *cell = &e->cell[c];
        json_t *values = cli_json_array();
        for (int a = 0; a < e->axes; a++) {
            cli_json_append(values, value_of(cell, a));
        }
        json_t *entry = cli_json_new(KV("name", cell->name), KV("variant", cell->variant),
                                     KV("values", values));
        if (json_object_size(cell->published) > 0) {
            cli_json_set(entry, "published", json_incref(cell->published));
        }
        cli_json_append(cells, entry);
    }
    return cli_json_new(KV("title", e->title), KV("file", e->file), KV("scale", e->scale),
                        KV("rates", rates), KV("baseline", e->baseline), KV("metric", e->metric),
                        KV("axes", axes), KV("cells", cells));
}

int cli_results_gather(const char *folder, const cli_experiment *e) {
    CLI_FREED char *path = cli_format("%s/results.jsonl", folder);
    CLI_OWNED(cli_bytes_free) cli_bytes lines = {0};
    for (int i = 0; i < e->trials; i++) {
        CLI_OWNED(cli_result_free) json_t *result = cli_result_read(folder, e->trial[i].name);
        if (result) {
            CLI_FREED char *text = cli_need(json_dumps(result, JSON_COMPACT | JSON_PRESERVE_ORDER));
            cli_bytes_add(&lines, text, strlen(text));
            cli_bytes_add(&lines, "\n", 1);
        }
    }
    int code = cli_write_file(path, lines.size > 0 ? lines.data : "", lines.size);
    if (code == CLI_OK) {
        CLI_OWNED(cli_result_free) json_t *sweep = describe(e);
        CLI_FREED char *text = cli_need(json_dumps(sweep, JSON_INDENT(2) | JSON_PRESERVE_ORDER));
        CLI_FREED char *file = cli_format("%s/sweep.json", folder);
        code = cli_write_file(file, text, strlen(text));
    }
    return code;
}

/* ---- the table ---- */

bool cli_is_sweep(const char *folder) {
    CLI_FREED char *path = cli_format("%s/sweep.json", folder);
    return access(path, F_OK) == 0;
}

static const char *text_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* The lines of results.jsonl as an array. */
static json_t *read_results(const char *folder) {
    CLI_FREED char *path = cli_format("%s/results.jsonl", folder);
    CLI_FREED char *line = NULL;
    size_t room = 0;
    CLI_OWNED(cli_file_close) FILE *file = fopen(path, "r");
    json_t *out = cli_json_array();
    if (!file) {
        cli_die("%s: %s", path, strerror(errno));
    }
    for (int number = 1; getline(&line, &room, file) > 0; number++) {
        json_t *result = json_loads(line, 0, NULL);
        if (!json_is_object(result) || !text_at(result, "cell")) {
            cli_die("%s:%d: no result of a run", path, number);
        }
        cli_json_append(out, result);
    }
    return out;
}

/* ---- rows ---- */

/* Whether a result counts towards a row's means. */
static bool is_of(const json_t *result, const cli_table_row *row) {
    return strcmp(text_at(result, "cell"), row->name) == 0 &&
           !json_is_true(json_object_get(result, "search"));
}

/* The number at key, group.key, or group.part.key of each finished run of a row. */
static cli_sample sample_of(const cli_sweep_table *t, const cli_table_row *row, const char *group,
                            const char *part, const char *key) {
    const size_t count = json_array_size(t->results);
    double *value = cli_need(malloc((count + 1) * sizeof *value));
    int used = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *result = json_array_get(t->results, i);
        if (is_of(result, row) && cli_result_is_finished(result)) {
            result = group ? json_object_get(result, group) : result;
            result = part ? json_object_get(result, part) : result;
            value[used++] = cli_json_number(json_object_get(result, key));
        }
    }
    const cli_sample sample = cli_sample_of(value, used);
    free(value);
    return sample;
}

static void fill_row(cli_sweep_table *t, cli_table_row *row) {
    for (size_t i = 0; i < json_array_size(t->results); i++) {
        const json_t *result = json_array_get(t->results, i);
        if (is_of(result, row)) {
            row->finished += cli_result_is_finished(result);
            row->failed += !cli_result_is_finished(result);
        }
    }
    row->loss = sample_of(t, row, NULL, NULL, "train_loss");
    row->step_ms = sample_of(t, row, NULL, NULL, "step_ms");
    row->lost = sample_of(t, row, NULL, NULL, "projection_error");
    row->rate = sample_of(t, row, NULL, NULL, "rate").mean;
    row->state = sample_of(t, row, "memory", NULL, "state").mean;
    row->peak = sample_of(t, row, "memory", NULL, "peak").mean;
    for (int g = 0; g < t->tests; g++) {
        for (int n = 0; n < CLI_NORMS; n++) {
            row->error[n][g] = sample_of(t, row, "test", t->grid[g], cli_norm_names[n]);
            t->has_errors[n][g] |= n == CLI_NORM_L2 || isfinite(row->error[n][g].mean);
        }
    }
    t->has_rates |= isfinite(row->rate);
    t->has_lost |= isfinite(row->lost.mean);
    t->has_losses |= isfinite(row->loss.mean);
}

/* Grids of any result, coarse ones first. */
static void find_grids(cli_sweep_table *t) {
    for (size_t i = 0; i < json_array_size(t->results); i++) {
        json_t *tests = json_object_get(json_array_get(t->results, i), "test"), *errors;
        const char *grid;
        json_object_foreach(tests, grid, errors) {
            if (cli_grid_is_name(grid)) {
                t->tests = cli_grid_insert(t->grid, t->tests, CLI_RUN_TESTS, grid);
            }
        }
    }
}

static void choose_metric(cli_sweep_table *t, const char *folder) {
    const char *metric = text_at(t->sweep, "metric"), *dot = metric ? strrchr(metric, '.') : NULL;
    t->metric_test = t->tests > 0 ? 0 : -1;
    t->metric_norm = dot && strcmp(dot, ".h1") == 0 ? CLI_NORM_H1 : CLI_NORM_L2;
    if (!dot || t->tests == 0) {
        return;
    }
    for (int g = 0; g < t->tests; g++) {
        if (strlen(t->grid[g]) == (size_t)(dot - metric) &&
            strncmp(t->grid[g], metric, (size_t)(dot - metric)) == 0) {
            t->metric_test = g;
            return;
        }
    }
    cli_warn("%s: metric %s: no run was tested on that grid; using %s%s", folder, metric,
             t->grid[0], dot);
}

static bool is_alone(const cli_sweep_table *t, int row) {
    int count = 0;
    for (int i = 0; i < t->rows; i++) {
        count += strcmp(t->row[i].label, t->row[row].label) == 0;
    }
    return count == 1;
}

/* The row that a row is compared with: the baseline variant with the same values, its only row, or
 * the baseline run. */
static int find_baseline(const cli_sweep_table *t, int row) {
    const char *baseline = text_at(t->sweep, "baseline");
    for (int i = 0; baseline && i < t->rows; i++) {
        const cli_table_row *other = &t->row[i];
        const bool is_variant = strcmp(other->label, baseline) == 0 &&
                                (json_equal(other->values, t->row[row].values) || is_alone(t, i));
        if (is_variant || strcmp(other->name, baseline) == 0) {
            return i == row ? -1 : i;
        }
    }
    return -1;
}

/* {column: value}; folders of earlier versions have the only value as it is. */
static json_t *published_of(json_t *cell) {
    const char *only = text_at(cell, "published");
    if (only) {
        json_t *columns = cli_json_object();
        cli_json_set(columns, "", cli_json_text(only));
        cli_json_set(cell, "published", columns);
    }
    return json_object_get(cell, "published");
}

/* Columns in the order in which the rows have them. */
static void add_published_columns(json_t *columns, json_t *published) {
    const char *name;
    json_t *value;
    json_object_foreach(published, name, value) {
        bool is_known = false;
        for (size_t i = 0; i < json_array_size(columns); i++) {
            is_known = is_known || strcmp(json_string_value(json_array_get(columns, i)), name) == 0;
        }
        if (!is_known) {
            cli_json_append(columns, cli_json_text(name));
        }
    }
}

void cli_sweep_table_read(const char *folder, cli_sweep_table *out) {
    CLI_FREED char *path = cli_format("%s/sweep.json", folder);
    json_error_t error;
    *out = (cli_sweep_table){
        .sweep = json_load_file(path, 0, &error), .published = cli_json_array(), .metric_test = -1};
    const json_t *cells = json_object_get(out->sweep, "cells");
    out->axes = json_object_get(out->sweep, "axes");
    out->title = text_at(out->sweep, "title");
    out->file = text_at(out->sweep, "file");
    if (!json_is_array(cells) || !json_is_array(out->axes) || !out->title || !out->file) {
        cli_die("%s: not what tgrad sweep writes%s%s", path, out->sweep ? "" : ": ",
                out->sweep ? "" : error.text);
    }
    out->results = read_results(folder);
    find_grids(out);
    out->row = cli_need(calloc(json_array_size(cells) + 1, sizeof *out->row));
    for (size_t c = 0; c < json_array_size(cells); c++) {
        json_t *cell = json_array_get(cells, c);
        cli_table_row *row = &out->row[out->rows++];
        const char *variant = text_at(cell, "variant");
        row->name = text_at(cell, "name");
        row->label = variant && variant[0] ? variant : row->name;
        row->values = json_object_get(cell, "values");
        row->published = published_of(cell);
        add_published_columns(out->published, row->published);
        row->p = (double)NAN;
        if (!row->name || json_array_size(row->values) != json_array_size(out->axes)) {
            cli_die("%s/sweep.json: cell %zu is not what tgrad sweep writes", folder, c);
        }
        fill_row(out, row);
    }
    choose_metric(out, folder);
    for (int r = 0; r < out->rows && out->metric_test >= 0; r++) {
        const int norm = out->metric_norm, test = out->metric_test;
        const int baseline = find_baseline(out, r);
        if (baseline >= 0) {
            cli_table_row *row = &out->row[r];
            row->p = cli_welch_p(&row->error[norm][test], &out->row[baseline].error[norm][test]);
            out->has_p |= isfinite(row->p);
        }
    }
}

void cli_sweep_table_free(cli_sweep_table *t) {
    json_decref(t->sweep);
    json_decref(t->results);
    json_decref(t->published);
    free(t->row);
    *t = (cli_sweep_table){0};
}

int cli_sweep_best(const cli_sweep_table *t, cli_norm norm, int test) {
    int best = -1;
    for (int r = 0; r < t->rows; r++) {
        const double mean = t->row[r].error[norm][test].mean;
        if (isfinite(mean) && (best < 0 || mean < t->row[best].error[norm][test].mean)) {
            best = r;
        }
    }
    return best;
}
