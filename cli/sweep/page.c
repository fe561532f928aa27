/* One list of columns, written twice: as Markdown and as HTML. */
#include "sweep.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/output.h"
#include "common/text.h"
#include "report/chart.h"
#include "report/report.h"

/* ---- columns ---- */

typedef enum column_kind {
    COLUMN_LABEL,
    COLUMN_AXIS,
    COLUMN_RATE,
    COLUMN_LOSS,
    COLUMN_ERROR,
    COLUMN_P,
    COLUMN_PUBLISHED,
    COLUMN_LOST,
    COLUMN_STATE,
    COLUMN_PEAK,
    COLUMN_STEP,
    COLUMN_RUNS
} column_kind;

enum { COLUMN_TEXT = 96, PUBLISHED = 8, COLUMNS = 2 * CLI_RUN_TESTS + 32 + PUBLISHED };

typedef struct column {
    column_kind kind;
    int index; /* of the axis or the test */
    cli_norm norm;
    char title[COLUMN_TEXT];
} column;

static void add_column(column *list, int *count, column_kind kind, int index, cli_norm norm,
                       const char *title) {
    column *c = &list[(*count)++];
    *c = (column){.kind = kind, .index = index, .norm = norm};
    snprintf(c->title, sizeof c->title, "%s", title);
}

static bool has_losses(const cli_sweep_table *t) {
    for (int r = 0; r < t->rows; r++) {
        if (isfinite(t->row[r].loss.mean)) {
            return true;
        }
    }
    return false;
}

/* At points there are no H1 errors. */
static bool has_errors(const cli_sweep_table *t, int test, cli_norm norm) {
    bool is_there = norm == CLI_NORM_L2;
    for (int r = 0; r < t->rows; r++) {
        is_there = is_there || isfinite(t->row[r].error[norm][test].mean);
    }
    return is_there;
}

static int list_columns(const cli_sweep_table *t, column list[COLUMNS]) {
    static const char *const names[CLI_NORMS] = {"L2", "H1"};
    int count = 0;
    char title[COLUMN_TEXT];
    add_column(list, &count, COLUMN_LABEL, 0, CLI_NORM_L2, "method");
    for (int a = 0; a < (int)json_array_size(t->axes); a++) {
        const char *key = json_string_value(json_array_get(t->axes, (size_t)a));
        add_column(list, &count, COLUMN_AXIS, a, CLI_NORM_L2, key ? key : "");
    }
    if (t->has_rates) {
        add_column(list, &count, COLUMN_RATE, 0, CLI_NORM_L2, "learning rate");
    }
    if (has_losses(t)) {
        add_column(list, &count, COLUMN_LOSS, 0, CLI_NORM_L2, "training loss");
    }
    for (int g = 0; g < t->tests; g++) {
        for (int n = 0; n < CLI_NORMS; n++) {
            if (has_errors(t, g, (cli_norm)n)) {
                snprintf(title, sizeof title, "%s at %s", names[n], t->grid[g]);
                add_column(list, &count, COLUMN_ERROR, g, (cli_norm)n, title);
            }
        }
    }
    if (t->has_p) {
        add_column(list, &count, COLUMN_P, 0, CLI_NORM_L2, "p");
    }
    for (int i = 0; i < (int)json_array_size(t->published) && i < PUBLISHED; i++) {
        const char *name = json_string_value(json_array_get(t->published, (size_t)i));
        snprintf(title, sizeof title, "published%s%s", name[0] ? " " : "", name);
        add_column(list, &count, COLUMN_PUBLISHED, i, CLI_NORM_L2, title);
    }
    if (t->has_lost) {
        add_column(list, &count, COLUMN_LOST, 0, CLI_NORM_L2, "projection error");
    }
    add_column(list, &count, COLUMN_STATE, 0, CLI_NORM_L2, "optimizer state");
    add_column(list, &count, COLUMN_PEAK, 0, CLI_NORM_L2, "peak memory");
    if (has_losses(t)) {
        add_column(list, &count, COLUMN_STEP, 0, CLI_NORM_L2, "ms per step");
        add_column(list, &count, COLUMN_RUNS, 0, CLI_NORM_L2, "runs");
    }
    return count;
}

static const char dash[] = "\xE2\x80\x93";

/* "0.09570 ± 0.0018" */
static void mean_text(const cli_sample *s, char text[COLUMN_TEXT]) {
    const double error = cli_standard_error(s);
    if (!isfinite(s->mean)) {
        snprintf(text, COLUMN_TEXT, "%s", dash);
    } else if (isfinite(error)) {
        snprintf(text, COLUMN_TEXT, "%.4g \xC2\xB1 %.2g", s->mean, error);
    } else {
        snprintf(text, COLUMN_TEXT, "%.4g", s->mean);
    }
}

/* Whether a rate is the least or the largest of the search: the best one may be beyond it. */
static bool is_at_end(const cli_sweep_table *t, double rate) {
    const json_t *rates = json_object_get(t->sweep, "rates");
    bool has_less = false, has_more = false;
    for (size_t i = 0; i < json_array_size(rates); i++) {
        const double other = json_number_value(json_array_get(rates, i));
        has_less = has_less || other < rate;
        has_more = has_more || other > rate;
    }
    return isfinite(rate) && has_less != has_more;
}

static void cell_text(const cli_sweep_table *t, const cli_table_row *row, const column *c,
                      char text[COLUMN_TEXT]) {
    const char *value = NULL;
    snprintf(text, COLUMN_TEXT, "%s", dash);
    switch (c->kind) {
    case COLUMN_LABEL:
        snprintf(text, COLUMN_TEXT, "%s", row->label);
        break;
    case COLUMN_AXIS:
        value = json_string_value(json_array_get(row->values, (size_t)c->index));
        snprintf(text, COLUMN_TEXT, "%s", value ? value : dash);
        break;
    case COLUMN_RATE:
        if (isfinite(row->rate)) {
            snprintf(text, COLUMN_TEXT, is_at_end(t, row->rate) ? "%.3g\u2020" : "%.3g", row->rate);
        }
        break;
    case COLUMN_LOSS:
        mean_text(&row->loss, text);
        break;
    case COLUMN_ERROR:
        mean_text(&row->error[c->norm][c->index], text);
        break;
    case COLUMN_P:
        if (isfinite(row->p)) {
            snprintf(text, COLUMN_TEXT, row->p < 1e-3 ? "%.0e" : "%.3f", row->p);
        }
        break;
    case COLUMN_PUBLISHED:
        value = json_string_value(json_array_get(t->published, (size_t)c->index));
        value = json_string_value(json_object_get(row->published, value));
        snprintf(text, COLUMN_TEXT, "%s", value ? value : dash);
        break;
    case COLUMN_LOST:
        mean_text(&row->lost, text);
        break;
    case COLUMN_STATE:
        snprintf(text, COLUMN_TEXT, "%s", CLI_REPORT_BYTES(row->state));
        break;
    case COLUMN_PEAK:
        snprintf(text, COLUMN_TEXT, "%s", CLI_REPORT_BYTES(row->peak));
        break;
    case COLUMN_STEP:
        if (isfinite(row->step_ms.mean)) {
            snprintf(text, COLUMN_TEXT, "%.4g", row->step_ms.mean);
        }
        break;
    case COLUMN_RUNS:
        snprintf(text, COLUMN_TEXT, row->failed ? "%d, %d failed" : "%d", row->finished,
                 row->failed);
        break;
    }
}

static bool is_best(const cli_sweep_table *t, int row, const column *c) {
    return t->rows > 1 && c->kind == COLUMN_ERROR && cli_sweep_best(t, c->norm, c->index) == row;
}

enum { NOTES = 1024 };

static void TG_PRINTF(2, 3) add_note(char text[NOTES], const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, NOTES - used, format, args);
    va_end(args);
}

/* NULL: full scale. */
static const char *scale_of(const cli_sweep_table *t) {
    return json_string_value(json_object_get(t->sweep, "scale"));
}

/* The notes on the numbers, the same in both formats. */
static void notes_text(const cli_sweep_table *t, char text[NOTES]) {
    const char *baseline = json_string_value(json_object_get(t->sweep, "baseline"));
    const char *scale = scale_of(t);
    static const char *const names[CLI_NORMS] = {"L2", "H1"};
    bool has_ends = false;
    text[0] = '\0';
    for (int r = 0; r < t->rows; r++) {
        has_ends = has_ends || is_at_end(t, t->row[r].rate);
    }
    if (t->tests > 0) {
        add_note(text, "Relative test errors at the end of each run, mean \xC2\xB1 standard error "
                       "over its seeds; the lowest mean is bold. ");
    }
    if (t->has_rates) {
        add_note(text,
                 "Learning rates were chosen on validation samples taken from the training "
                 "data%s. ",
                 has_ends ? "; \u2020 the least or the largest that was tried, the best one may be "
                            "beyond it"
                          : "");
    }
    if (t->has_p) {
        add_note(text, "p: Welch's t-test of %s at %s against %s, two-sided. ",
                 names[t->metric_norm], t->grid[t->metric_test],
                 baseline ? baseline : "the baseline");
    }
    if (json_array_size(t->published) > 0 && scale) {
        add_note(text, "Published values are of the paper's sizes, all others of scale %s. ",
                 scale);
    }
    text[strlen(text) - (text[0] != '\0')] = '\0'; /* the last space */
}

/* ---- Markdown ---- */

/* As it is, but for characters that would end a cell. cli_html escapes what %s brings in, so bytes
 * go in one by one where that is not wanted. */
static void add_plain(cli_html *out, const char *text) {
    for (; *text; text++) {
        const char byte[2] = {*text, '\0'};
        cli_html_literal(out, *text == '|' ? "\\|" : *text == '\n' ? " " : byte);
    }
}

void cli_sweep_markdown(cli_html *out, const cli_sweep_table *t) {
    column list[COLUMNS];
    const int count = list_columns(t, list);
    char text[COLUMN_TEXT], notes[NOTES];
    cli_html_literal(out, "# ");
    add_plain(out, t->title);
    cli_html_literal(out, "\n\n    tgrad sweep ");
    add_plain(out, t->file);
    if (scale_of(t)) {
        cli_html_literal(out, " --scale ");
        add_plain(out, scale_of(t));
    }
    cli_html_literal(out, "\n\n|");
    for (int c = 0; c < count; c++) {
        cli_html_literal(out, " ");
        add_plain(out, list[c].title);
        cli_html_literal(out, " |");
    }
    cli_html_literal(out, "\n|");
    for (int c = 0; c < count; c++) {
        cli_html_literal(out, list[c].kind <= COLUMN_AXIS ? "---|" : "---:|");
    }
    for (int r = 0; r < t->rows; r++) {
        cli_html_literal(out, "\n|");
        for (int c = 0; c < count; c++) {
            const char *mark = is_best(t, r, &list[c]) ? "**" : "";
            cell_text(t, &t->row[r], &list[c], text);
            cli_html_literal(out, " ");
            cli_html_literal(out, mark);
            add_plain(out, text);
            cli_html_literal(out, mark);
            cli_html_literal(out, " |");
        }
    }
    notes_text(t, notes);
    cli_html_literal(out, notes[0] ? "\n\n" : "");
    add_plain(out, notes);
    cli_html_literal(out, "\n");
}

/* ---- HTML ---- */

static void add_badge(cli_html *page, int row) {
    cli_html_add(page, "<span class=\"badge c%d\">%d</span>", cli_run_colour(row + 1), row + 1);
}

static void add_table(cli_html *page, const cli_sweep_table *t) {
    column list[COLUMNS];
    const int count = list_columns(t, list);
    char text[COLUMN_TEXT], notes[NOTES];
    cli_html_add(page, "<section id=\"results\"><h2>Results</h2>\n");
    cli_report_open_table(page, "Table of results", "results", "");
    for (int c = 0; c < count; c++) {
        cli_html_add(page, "<th scope=\"col\">%s</th>", list[c].title);
    }
    cli_report_begin_rows(page);
    for (int r = 0; r < t->rows; r++) {
        cli_html_add(page, "<tr><th scope=\"row\">");
        add_badge(page, r);
        cli_html_add(page, "<span class=\"run\">%s</span></th>", t->row[r].label);
        for (int c = 1; c < count; c++) {
            cell_text(t, &t->row[r], &list[c], text);
            if (is_best(t, r, &list[c])) {
                cli_html_add(page, "<td class=\"best\">%s</td>", text);
            } else {
                cli_html_add(page, "<td>%s</td>", text);
            }
        }
        cli_html_add(page, "</tr>\n");
    }
    notes_text(t, notes);
    cli_report_close_table(page);
    cli_html_add(page, "<p class=\"note\">%s</p></section>\n", notes);
}

/* The error of each row over the bytes of its optimizer state, or of all it holds. */
static void add_scatter(cli_html *page, const cli_sweep_table *t, bool of_state) {
    cli_series *series = cli_need(calloc((size_t)t->rows + 1, sizeof *series));
    double *number = cli_need(calloc(4 * (size_t)t->rows + 1, sizeof *number));
    char title[128];
    int count = 0;
    for (int r = 0; r < t->rows; r++) {
        const cli_table_row *row = &t->row[r];
        const cli_sample *error = &row->error[t->metric_norm][t->metric_test];
        const double bytes = of_state ? row->state : row->peak;
        const double standard_error = cli_standard_error(error);
        double *at = number + (size_t)4 * (size_t)count;
        if (isfinite(bytes) && isfinite(error->mean)) {
            at[0] = bytes / 0x1p20;
            at[1] = error->mean;
            at[2] = error->mean - (isfinite(standard_error) ? standard_error : 0.0);
            at[3] = error->mean + (isfinite(standard_error) ? standard_error : 0.0);
            series[count++] = (cli_series){.name = row->name,
                                           .number = r + 1,
                                           .x = &at[0],
                                           .y = &at[1],
                                           .low = &at[2],
                                           .high = &at[3],
                                           .count = 1};
        }
    }
    snprintf(title, sizeof title, "Test error at %s against %s", t->grid[t->metric_test],
             of_state ? "optimizer state" : "peak memory");
    const cli_chart chart = {.title = title,
                             .metric = of_state ? "error.state" : "error.peak",
                             .x_label = of_state ? "optimizer state, MiB" : "peak memory, MiB",
                             .series = series,
                             .count = count};
    cli_chart_draw(page, &chart);
    free(series);
    free(number);
}

/* Curves of one row: at every epoch that all of its runs have tested, their mean and its standard
 * error. */
typedef struct curve {
    double *x, *y, *low, *high; /* (count) */
    int count;
} curve;

static void make_curve(const cli_sweep_table *t, const cli_run *run, int runs, curve *out) {
    double *value = cli_need(calloc((size_t)runs + 1, sizeof *value));
    const int length = runs > 0 ? run[0].count : 0;
    double *room = cli_need(calloc(4 * (size_t)length + 1, sizeof *room));
    *out = (curve){room, room + length, room + 2 * length, room + 3 * length, 0};
    for (int e = 0; e < length; e++) {
        int found = 0;
        for (int r = 0; r < runs; r++) {
            const int test = cli_run_test(&run[r], t->grid[t->metric_test]);
            if (test >= 0 && e < run[r].count && run[r].epoch[e].epoch == run[0].epoch[e].epoch &&
                isfinite(run[r].epoch[e].error[t->metric_norm][test])) {
                value[found++] = run[r].epoch[e].error[t->metric_norm][test];
            }
        }
        if (found == runs) {
            const cli_sample s = cli_sample_of(value, found);
            const double standard_error = found > 1 ? cli_standard_error(&s) : 0.0;
            out->x[out->count] = (double)run[0].epoch[e].epoch;
            out->y[out->count] = s.mean;
            out->low[out->count] = s.mean - standard_error;
            out->high[out->count++] = s.mean + standard_error;
        }
    }
    free(value);
}

/* Folders of a row's finished runs, as far as they are there (large ones may be gone); to be freed,
 * each and all. */
static char **run_folders(const char *folder, const cli_sweep_table *t, const cli_table_row *row,
                          int *count) {
    const size_t most = json_array_size(t->results);
    char **path = cli_need(calloc(most + 1, sizeof *path));
    *count = 0;
    for (size_t i = 0; i < most; i++) {
        const json_t *result = json_array_get(t->results, i);
        const char *cell = json_string_value(json_object_get(result, "cell"));
        const char *name = json_string_value(json_object_get(result, "name"));
        if (name && strcmp(cell, row->name) == 0 && cli_result_is_finished(result) &&
            !json_is_true(json_object_get(result, "search"))) {
            char *run = cli_format("%s/runs/%s", folder, name);
            if (access(run, F_OK) == 0) {
                path[(*count)++] = run;
            } else {
                free(run);
            }
        }
    }
    return path;
}

static void free_folders(char **path, int count) {
    for (int r = 0; r < count; r++) {
        free(path[r]);
    }
    free(path);
}

/* Of the runs that can be read; CLI_FAILED if there are others. */
static int read_curve(tg_context *ctx, const char *folder, const cli_sweep_table *t,
                      const cli_table_row *row, curve *out) {
    int runs = 0, count = 0;
    char **path = run_folders(folder, t, row, &runs);
    cli_run *run = cli_need(calloc((size_t)runs + 1, sizeof *run));
    for (int r = 0; r < runs; r++) {
        if (cli_run_open(ctx, path[r], &run[count]) == CLI_OK) {
            count++;
        } else {
            cli_run_close(&run[count]);
        }
    }
    make_curve(t, run, count, out);
    for (int r = 0; r < count; r++) {
        cli_run_close(&run[r]);
    }
    free(run);
    free_folders(path, runs);
    return count == runs ? CLI_OK : CLI_FAILED;
}

/* Projection errors of all weights at all refreshes of a row's runs. */
static void add_boxes(const char *folder, const cli_sweep_table *t, cli_html *page) {
    cli_box_row *row = cli_need(calloc((size_t)t->rows + 1, sizeof *row));
    char(*label)[COLUMN_TEXT] = cli_need(calloc((size_t)t->rows + 1, sizeof *label));
    int count = 0;
    for (int r = 0; r < t->rows; r++) {
        int runs = 0, values = 0;
        double *value = NULL;
        char **path = run_folders(folder, t, &t->row[r], &runs);
        for (int i = 0; i < runs; i++) {
            cli_projection_errors(path[i], &value, &values);
        }
        if (values > 0) {
            const char *first = json_string_value(json_array_get(t->row[r].values, 0));
            snprintf(label[count], sizeof label[count], first ? "%s %s" : "%s", t->row[r].label,
                     first);
            row[count] = (cli_box_row){.name = t->row[r].name,
                                       .label = label[count],
                                       .number = r + 1,
                                       .quantiles = cli_quantiles_of_values(value, values)};
            count++;
        }
        free(value);
        free_folders(path, runs);
    }
    cli_boxes_draw(page, &(cli_boxes){.title = "Error of projections at refreshes",
                                      .metric = "projection.error",
                                      .x_label = "|G \xE2\x88\x92 P(G)| / |G|",
                                      .row = row,
                                      .count = count});
    free(row);
    free(label);
}

static int add_curves(tg_context *ctx, const char *folder, const cli_sweep_table *t,
                      cli_html *page) {
    cli_series *series = cli_need(calloc((size_t)t->rows + 1, sizeof *series));
    curve *curves = cli_need(calloc((size_t)t->rows + 1, sizeof *curves));
    char title[128], metric[TG_GRID_TEXT + 16];
    static const char *const shown[CLI_NORMS] = {"L²", "H¹"};
    int code = CLI_OK;
    for (int r = 0; r < t->rows; r++) {
        const int read = read_curve(ctx, folder, t, &t->row[r], &curves[r]);
        code = read == CLI_OK ? code : read;
        series[r] = (cli_series){.name = t->row[r].name,
                                 .number = r + 1,
                                 .x = curves[r].x,
                                 .y = curves[r].y,
                                 .low = curves[r].low,
                                 .high = curves[r].high,
                                 .count = curves[r].count};
    }
    snprintf(title, sizeof title, "Test error at %s, relative %s", t->grid[t->metric_test],
             shown[t->metric_norm]);
    snprintf(metric, sizeof metric, "test.%.63s.%s", t->grid[t->metric_test],
             cli_norm_names[t->metric_norm]);
    const cli_chart chart = {.title = title,
                             .metric = metric,
                             .x_label = "epoch",
                             .is_log = true,
                             .series = series,
                             .count = t->rows};
    cli_chart_draw(page, &chart);
    for (int r = 0; r < t->rows; r++) {
        free(curves[r].x);
    }
    free(curves);
    free(series);
    return code;
}

static int add_plots(tg_context *ctx, const char *folder, const cli_sweep_table *t,
                     cli_html *page) {
    cli_html_add(page, "<section id=\"curves\"><h2>Plots</h2>\n<div class=\"charts\">\n");
    add_scatter(page, t, true);
    add_scatter(page, t, false);
    const int code = add_curves(ctx, folder, t, page);
    add_boxes(folder, t, page);
    cli_html_add(page, "</div>\n<p class=\"note\">Bands and bars are one standard error on either "
                       "side of the mean; boxes span the quartiles, whiskers all values. The "
                       "number at a curve, a point or a box is that of its row in the "
                       "table.</p></section>\n");
    return code;
}

/* A self-contained page: table, error against memory, and curves over the epochs of the runs below
 * `folder`, with bands of a standard error. `heading` NULL: the sweep's. */
static int write_page(tg_context *ctx, const char *folder, const cli_sweep_table *t,
                      const char *heading, cli_html *page) {
    int code = CLI_OK;
    heading = heading ? heading : t->title;
    cli_html_begin(page);
    cli_html_add(page, "<title>%s \xC2\xB7 tgrad report</title>\n", heading);
    cli_report_style(page);
    cli_html_add(page,
                 "</head>\n<body>\n<main>\n<header><p class=\"brand\">tgrad report</p>\n"
                 "<h1>%s</h1>\n<p class=\"lede\">%d rows, %zu runs of %s%s%s.</p></header>\n",
                 heading, t->rows, json_array_size(t->results), t->file,
                 scale_of(t) ? ", scale " : "", scale_of(t) ? scale_of(t) : "");
    add_table(page, t);
    if (t->metric_test >= 0) {
        code = add_plots(ctx, folder, t, page);
    }
    cli_html_add(page, "</main>\n</body>\n</html>\n");
    return code;
}

int cli_sweep_report(tg_context *ctx, const char *folder, const char *heading, const char *path,
                     size_t *bytes) {
    cli_sweep_table table;
    cli_html page = {0};
    int code = cli_sweep_table_read(folder, &table), drawn = CLI_OK;
    *bytes = 0;
    if (code == CLI_OK && cli_ends_with(path, ".md")) {
        cli_sweep_markdown(&page, &table);
    } else if (code == CLI_OK) {
        drawn = write_page(ctx, folder, &table, heading, &page);
    }
    if (code == CLI_OK) {
        code = cli_write_file(path, page.text, page.used);
        *bytes = code == CLI_OK ? page.used : 0;
    }
    cli_html_free(&page);
    cli_sweep_table_free(&table);
    return code == CLI_OK ? drawn : code;
}
