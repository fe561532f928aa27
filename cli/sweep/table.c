/* From lines of results to rows. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include "sweep.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/output.h"
#include "common/text.h"

bool cli_is_sweep(const char *folder) {
    CLI_FREED char *path = cli_format("%s/sweep.json", folder);
    return access(path, F_OK) == 0;
}

static const char *text_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* ---- files ---- */

/* The lines of results.jsonl as an array. */
static int read_results(const char *folder, json_t **out) {
    CLI_FREED char *path = cli_format("%s/results.jsonl", folder);
    CLI_FREED char *line = NULL;
    size_t room = 0;
    CLI_OWNED(cli_file_close) FILE *file = fopen(path, "r");
    *out = cli_json_array();
    if (!file) {
        return cli_fail("%s: %s", path, strerror(errno));
    }
    for (int number = 1; getline(&line, &room, file) > 0; number++) {
        json_t *result = json_loads(line, 0, NULL);
        if (!json_is_object(result) || !text_at(result, "cell")) {
            json_decref(result);
            return cli_fail("%s:%d: no result of a run", path, number);
        }
        cli_json_append(*out, result);
    }
    return CLI_OK;
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
    cli_warn("%s: metric %s: no run was tested on that grid, %s%s is taken", folder, metric,
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

int cli_sweep_table_read(const char *folder, cli_sweep_table *out) {
    CLI_FREED char *path = cli_format("%s/sweep.json", folder);
    json_error_t error;
    *out = (cli_sweep_table){
        .sweep = json_load_file(path, 0, &error), .published = cli_json_array(), .metric_test = -1};
    const json_t *cells = json_object_get(out->sweep, "cells");
    out->axes = json_object_get(out->sweep, "axes");
    out->title = text_at(out->sweep, "title");
    out->file = text_at(out->sweep, "file");
    if (!json_is_array(cells) || !json_is_array(out->axes) || !out->title || !out->file) {
        return cli_fail("%s: not what tgrad sweep writes%s%s", path, out->sweep ? "" : ": ",
                        out->sweep ? "" : error.text);
    }
    if (read_results(folder, &out->results) != CLI_OK) {
        return CLI_FAILED;
    }
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
            return cli_fail("%s/sweep.json: cell %zu is not what tgrad sweep writes", folder, c);
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
    return CLI_OK;
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
