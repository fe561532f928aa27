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
    char *path = cli_format("%s/sweep.json", folder);
    const bool is_there = access(path, F_OK) == 0;
    free(path);
    return is_there;
}

static const char *text_at(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

/* ---- files ---- */

/* The lines of results.jsonl as an array. */
static int read_results(const char *folder, json_t **out) {
    char *path = cli_format("%s/results.jsonl", folder), *line = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "r");
    int code = CLI_OK, number = 0;
    *out = cli_json_array();
    if (!file) {
        code = cli_fail("%s: %s", path, strerror(errno));
    }
    while (file && code == CLI_OK && getline(&line, &room, file) > 0) {
        json_t *result = json_loads(line, 0, NULL);
        number++;
        if (!json_is_object(result) || !text_at(result, "cell")) {
            code = cli_fail("%s:%d: no result of a run", path, number);
            json_decref(result);
        } else {
            cli_json_append(*out, result);
        }
    }
    if (file) {
        fclose(file);
    }
    free(line);
    free(path);
    return code;
}

/* ---- rows ---- */

/* Whether a result counts towards a row's means. */
static bool is_of(const json_t *result, const cli_table_row *row) {
    return strcmp(text_at(result, "cell"), row->name) == 0 &&
           !json_is_true(json_object_get(result, "search"));
}

typedef double getter(const json_t *result, const void *which);

static cli_sample sample_of(const cli_sweep_table *t, const cli_table_row *row, getter *get,
                            const void *which) {
    const size_t count = json_array_size(t->results);
    double *value = cli_need(malloc((count + 1) * sizeof *value));
    int used = 0;
    for (size_t i = 0; i < count; i++) {
        const json_t *result = json_array_get(t->results, i);
        if (is_of(result, row) && cli_result_is_finished(result)) {
            value[used++] = get(result, which);
        }
    }
    const cli_sample sample = cli_sample_of(value, used);
    free(value);
    return sample;
}

static double plain_number(const json_t *result, const void *which) {
    return cli_json_number(json_object_get(result, which));
}

static double memory_number(const json_t *result, const void *which) {
    return cli_json_number(json_object_get(json_object_get(result, "memory"), which));
}

typedef struct place {
    const char *grid;
    cli_norm norm;
} place;

static double error_number(const json_t *result, const void *which) {
    const place *at = which;
    const json_t *test = json_object_get(json_object_get(result, "test"), at->grid);
    return cli_json_number(json_object_get(test, cli_norm_names[at->norm]));
}

static void fill_row(cli_sweep_table *t, cli_table_row *row) {
    for (size_t i = 0; i < json_array_size(t->results); i++) {
        const json_t *result = json_array_get(t->results, i);
        if (is_of(result, row)) {
            row->finished += cli_result_is_finished(result);
            row->failed += !cli_result_is_finished(result);
        }
    }
    row->loss = sample_of(t, row, plain_number, "train_loss");
    row->step_ms = sample_of(t, row, plain_number, "step_ms");
    row->seconds = sample_of(t, row, plain_number, "seconds");
    row->lost = sample_of(t, row, plain_number, "projection_error");
    row->rate = sample_of(t, row, plain_number, "rate").mean;
    row->state = sample_of(t, row, memory_number, "state").mean;
    row->peak = sample_of(t, row, memory_number, "peak").mean;
    for (int g = 0; g < t->tests; g++) {
        for (int n = 0; n < CLI_NORMS; n++) {
            const place at = {t->grid[g], (cli_norm)n};
            row->error[n][g] = sample_of(t, row, error_number, &at);
        }
    }
    t->has_rates = t->has_rates || isfinite(row->rate);
    t->has_lost = t->has_lost || isfinite(row->lost.mean);
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
    char *path = cli_format("%s/sweep.json", folder);
    json_error_t error;
    *out = (cli_sweep_table){
        .sweep = json_load_file(path, 0, &error), .published = cli_json_array(), .metric_test = -1};
    const json_t *cells = json_object_get(out->sweep, "cells");
    out->axes = json_object_get(out->sweep, "axes");
    out->title = text_at(out->sweep, "title");
    out->file = text_at(out->sweep, "file");
    int code = CLI_OK;
    if (!json_is_array(cells) || !json_is_array(out->axes) || !out->title || !out->file) {
        code = cli_fail("%s: not what tgrad sweep writes%s%s", path, out->sweep ? "" : ": ",
                        out->sweep ? "" : error.text);
    }
    free(path);
    code = code == CLI_OK ? read_results(folder, &out->results) : code;
    if (code != CLI_OK) {
        return code;
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
    for (int r = 0; r < out->rows; r++) {
        cli_table_row *row = &out->row[r];
        row->baseline = find_baseline(out, r);
        if (row->baseline >= 0 && out->metric_test >= 0) {
            row->p =
                cli_welch_p(&row->error[out->metric_norm][out->metric_test],
                            &out->row[row->baseline].error[out->metric_norm][out->metric_test]);
            out->has_p = out->has_p || isfinite(row->p);
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
