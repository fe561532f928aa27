/* One table of text, written twice: as Markdown and as HTML; and plots. */
#include "sweep.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "report/chart.h"
#include "report/report.h"

/* ---- the table, as text ---- */

static const char dash[] = "\xE2\x80\x93";
static const char *const norm_titles[CLI_NORMS] = {"L2", "H1"};

/* Appends a cell, text and whether it is the best of its column, to a row, whose keys are the
 * titles of the table. */
static void TG_PRINTF(4, 5)
    add(json_t *row, const char *title, bool is_best, const char *format, ...) {
    char text[96];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cli_json_set(row, title, cli_json_new(KV("text", text), KV("best", json_boolean(is_best))));
}

/* "0.09570 ± 0.0018" */
static void add_mean(json_t *row, const char *title, bool is_best, const cli_sample *s) {
    const double error = cli_standard_error(s);
    if (!isfinite(s->mean)) {
        add(row, title, is_best, "%s", dash);
    } else if (isfinite(error)) {
        add(row, title, is_best, "%.4g \xC2\xB1 %.2g", s->mean, error);
    } else {
        add(row, title, is_best, "%.4g", s->mean);
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

static json_t *row_of(const cli_sweep_table *t, int r) {
    const cli_table_row *row = &t->row[r];
    json_t *out = cli_json_object();
    char title[96];
    add(out, "method", false, "%s", row->label);
    for (size_t a = 0; a < json_array_size(t->axes); a++) {
        const char *key = json_string_value(json_array_get(t->axes, a));
        const char *value = json_string_value(json_array_get(row->values, a));
        add(out, key ? key : dash, false, "%s", value ? value : dash);
    }
    if (t->has_rates && isfinite(row->rate)) {
        add(out, "learning rate", false, "%.3g%s", row->rate,
            is_at_end(t, row->rate) ? "\u2020" : "");
    } else if (t->has_rates) {
        add(out, "learning rate", false, "%s", dash);
    }
    if (t->has_losses) {
        add_mean(out, "training loss", false, &row->loss);
    }
    for (int g = 0; g < t->tests; g++) {
        for (int n = 0; n < CLI_NORMS; n++) {
            const bool is_best = t->rows > 1 && cli_sweep_best(t, (cli_norm)n, g) == r;
            snprintf(title, sizeof title, "%s at %s", norm_titles[n], t->grid[g]);
            if (t->has_errors[n][g]) {
                add_mean(out, title, is_best, &row->error[n][g]);
            }
        }
    }
    if (t->has_p && isfinite(row->p)) {
        add(out, "p", false, row->p < 1e-3 ? "%.0e" : "%.3f", row->p);
    } else if (t->has_p) {
        add(out, "p", false, "%s", dash);
    }
    for (size_t i = 0; i < json_array_size(t->published); i++) {
        const char *name = json_string_value(json_array_get(t->published, i));
        const char *value = json_string_value(json_object_get(row->published, name));
        snprintf(title, sizeof title, "published%s%s", name[0] ? " " : "", name);
        add(out, title, false, "%s", value ? value : dash);
    }
    if (t->has_lost) {
        add_mean(out, "projection error", false, &row->lost);
    }
    add(out, "optimizer state", false, "%s", CLI_REPORT_BYTES(row->state));
    add(out, "peak memory", false, "%s", CLI_REPORT_BYTES(row->peak));
    if (t->has_losses) {
        const bool is_known = isfinite(row->step_ms.mean);
        add(out, "ms per step", false, is_known ? "%.4g" : "\xE2\x80\x93", row->step_ms.mean);
        add(out, "runs", false, row->failed ? "%d, %d failed" : "%d", row->finished, row->failed);
    }
    return out;
}

/* To be released. */
static json_t *rows_of(const cli_sweep_table *t) {
    json_t *rows = cli_json_array();
    for (int r = 0; r < t->rows; r++) {
        cli_json_append(rows, row_of(t, r));
    }
    return rows;
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
                 norm_titles[t->metric_norm], t->grid[t->metric_test],
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
    CLI_OWNED(cli_result_free) json_t *rows = rows_of(t);
    char notes[NOTES];
    const char *title;
    json_t *cell;
    cli_html_literal(out, "# ");
    add_plain(out, t->title);
    cli_html_literal(out, "\n\n    tgrad sweep ");
    add_plain(out, t->file);
    if (scale_of(t)) {
        cli_html_literal(out, " --scale ");
        add_plain(out, scale_of(t));
    }
    cli_html_literal(out, "\n\n|");
    json_object_foreach(json_array_get(rows, 0), title, cell) {
        cli_html_literal(out, " ");
        add_plain(out, title);
        cli_html_literal(out, " |");
    }
    cli_html_literal(out, "\n|");
    for (size_t c = 0; c < json_object_size(json_array_get(rows, 0)); c++) {
        cli_html_literal(out, c <= json_array_size(t->axes) ? "---|" : "---:|");
    }
    for (int r = 0; r < t->rows; r++) {
        cli_html_literal(out, "\n|");
        json_object_foreach(json_array_get(rows, (size_t)r), title, cell) {
            const bool is_best = json_is_true(json_object_get(cell, "best"));
            cli_html_literal(out, is_best ? " **" : " ");
            add_plain(out, json_string_value(json_object_get(cell, "text")));
            cli_html_literal(out, is_best ? "** |" : " |");
        }
    }
    notes_text(t, notes);
    cli_html_literal(out, notes[0] ? "\n\n" : "");
    add_plain(out, notes);
    cli_html_literal(out, "\n");
}

/* ---- HTML ---- */

static void add_table(cli_html *page, const cli_sweep_table *t) {
    CLI_OWNED(cli_result_free) json_t *rows = rows_of(t);
    char notes[NOTES];
    const char *title;
    json_t *cell;
    cli_html_add(page, "<section id=\"results\"><h2>Results</h2>\n");
    cli_report_open_table(page, "Table of results", "results", "");
    json_object_foreach(json_array_get(rows, 0), title, cell) {
        cli_html_add(page, "<th scope=\"col\">%s</th>", title);
    }
    cli_report_begin_rows(page);
    for (int r = 0; r < t->rows; r++) {
        json_t *row = json_array_get(rows, (size_t)r);
        cli_html_add(page,
                     "<tr><th scope=\"row\"><span class=\"badge c%d\">%d</span>"
                     "<span class=\"run\">%s</span></th>",
                     cli_run_colour(r + 1), r + 1, t->row[r].label);
        json_object_del(row, "method"); /* it is the heading of the row */
        json_object_foreach(row, title, cell) {
            const bool is_best = json_is_true(json_object_get(cell, "best"));
            cli_html_add(page, is_best ? "<td class=\"best\">%s</td>" : "<td>%s</td>",
                         json_string_value(json_object_get(cell, "text")));
        }
        cli_html_add(page, "</tr>\n");
    }
    notes_text(t, notes);
    cli_report_close_table(page);
    cli_html_add(page, "<p class=\"note\">%s</p></section>\n", notes);
}

/* The error of each row over the bytes of its optimizer state, or of all it holds. */
static void add_scatter(cli_html *page, const cli_sweep_table *t, bool of_state) {
    CLI_FREED cli_series *series = cli_need(calloc((size_t)t->rows + 1, sizeof *series));
    CLI_FREED double *number = cli_need(calloc(4 * (size_t)t->rows + 1, sizeof *number));
    char title[128];
    int count = 0;
    for (int r = 0; r < t->rows; r++) {
        const cli_table_row *row = &t->row[r];
        const cli_sample *error = &row->error[t->metric_norm][t->metric_test];
        const double bytes = of_state ? row->state : row->peak;
        const double bar = error->count > 1 ? cli_standard_error(error) : 0.0;
        double *at = number + (size_t)4 * (size_t)count;
        if (isfinite(bytes) && isfinite(error->mean)) {
            at[0] = bytes / 0x1p20;
            at[1] = error->mean;
            at[2] = error->mean - bar;
            at[3] = error->mean + bar;
            series[count++] = (cli_series){row->name, r + 1, &at[0], &at[1], 1, &at[2], &at[3]};
        }
    }
    snprintf(title, sizeof title, "Test error at %s against %s", t->grid[t->metric_test],
             of_state ? "optimizer state" : "peak memory");
    cli_chart_draw(page, &(cli_chart){title, of_state ? "error.state" : "error.peak",
                                      of_state ? "optimizer state, MiB" : "peak memory, MiB", false,
                                      series, count});
}

/* The curve of a row: at every epoch that all of its runs have tested, their mean and its standard
 * error; *room, which holds its numbers, is to be freed. */
static cli_series make_curve(const cli_sweep_table *t, int row, const cli_run *run, int runs,
                             double **room) {
    CLI_FREED double *value = cli_need(calloc((size_t)runs + 1, sizeof *value));
    const int length = runs > 0 ? run[0].count : 0;
    double *x = cli_need(calloc(4 * (size_t)length + 1, sizeof *x));
    double *y = x + length, *low = y + length, *high = low + length;
    *room = x;
    int count = 0;
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
            const double bar = found > 1 ? cli_standard_error(&s) : 0.0;
            x[count] = (double)run[0].epoch[e].epoch;
            y[count] = s.mean;
            low[count] = s.mean - bar;
            high[count++] = s.mean + bar;
        }
    }
    return (cli_series){t->row[row].name, row + 1, x, y, count, low, high};
}

/* Folders of a row's finished runs, as far as they are there (large ones may be gone); to be freed.
 */
static cli_list run_folders(const char *folder, const cli_sweep_table *t,
                            const cli_table_row *row) {
    cli_list paths = {0};
    for (size_t i = 0; i < json_array_size(t->results); i++) {
        const json_t *result = json_array_get(t->results, i);
        const char *cell = json_string_value(json_object_get(result, "cell"));
        const char *name = json_string_value(json_object_get(result, "name"));
        if (name && strcmp(cell, row->name) == 0 && cli_result_is_finished(result) &&
            !json_is_true(json_object_get(result, "search"))) {
            CLI_FREED char *run = cli_format("%s/runs/%s", folder, name);
            if (access(run, F_OK) == 0) {
                cli_list_add(&paths, run, strlen(run));
            }
        }
    }
    return paths;
}

/* Of the runs that can be read; CLI_FAILED if there are others. */
static int read_curve(tg_context *ctx, const char *folder, const cli_sweep_table *t, int row,
                      cli_series *out, double **room) {
    CLI_OWNED(cli_list_free) cli_list paths = run_folders(folder, t, &t->row[row]);
    CLI_FREED cli_run *run = cli_need(calloc((size_t)paths.count + 1, sizeof *run));
    int count = 0;
    for (int r = 0; r < paths.count; r++) {
        if (cli_run_open(ctx, paths.item[r], &run[count]) == CLI_OK) {
            count++;
        } else {
            cli_run_close(&run[count]);
        }
    }
    *out = make_curve(t, row, run, count, room);
    for (int r = 0; r < count; r++) {
        cli_run_close(&run[r]);
    }
    return count == paths.count ? CLI_OK : CLI_FAILED;
}

/* Projection errors of all weights at all refreshes of a row's runs. */
static void add_boxes(const char *folder, const cli_sweep_table *t, cli_html *page) {
    CLI_FREED cli_box_row *row = cli_need(calloc((size_t)t->rows + 1, sizeof *row));
    cli_list labels = {0};
    int count = 0;
    for (int r = 0; r < t->rows; r++) {
        CLI_OWNED(cli_list_free) cli_list paths = run_folders(folder, t, &t->row[r]);
        CLI_FREED double *value = NULL;
        int values = 0;
        for (int i = 0; i < paths.count; i++) {
            cli_projection_errors(paths.item[i], &value, &values);
        }
        if (values > 0) {
            const char *first = json_string_value(json_array_get(t->row[r].values, 0));
            CLI_FREED char *label =
                cli_format("%s%s%s", t->row[r].label, first ? " " : "", first ? first : "");
            cli_list_add(&labels, label, strlen(label));
            row[count] = (cli_box_row){t->row[r].name, labels.item[count], r + 1,
                                       cli_quantiles_of_values(value, values)};
            count++;
        }
    }
    cli_boxes_draw(page, &(cli_boxes){"Error of projections at refreshes", "projection.error",
                                      "|G \xE2\x88\x92 P(G)| / |G|", row, count});
    cli_list_free(&labels);
}

static int add_curves(tg_context *ctx, const char *folder, const cli_sweep_table *t,
                      cli_html *page) {
    CLI_FREED cli_series *series = cli_need(calloc((size_t)t->rows + 1, sizeof *series));
    CLI_FREED double **room = cli_need(calloc((size_t)t->rows + 1, sizeof *room));
    char title[128], metric[TG_GRID_TEXT + 16];
    static const char *const shown[CLI_NORMS] = {"L²", "H¹"};
    int code = CLI_OK;
    for (int r = 0; r < t->rows; r++) {
        const int read = read_curve(ctx, folder, t, r, &series[r], &room[r]);
        code = read == CLI_OK ? code : read;
    }
    snprintf(title, sizeof title, "Test error at %s, relative %s", t->grid[t->metric_test],
             shown[t->metric_norm]);
    snprintf(metric, sizeof metric, "test.%.63s.%s", t->grid[t->metric_test],
             cli_norm_names[t->metric_norm]);
    cli_chart_draw(page, &(cli_chart){title, metric, "epoch", true, series, t->rows});
    for (int r = 0; r < t->rows; r++) {
        free(room[r]);
    }
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
    cli_report_begin(page, "tgrad report", heading ? heading : t->title);
    cli_html_add(page, "<p class=\"lede\">%d rows, %zu runs of %s%s%s.</p></header>\n", t->rows,
                 json_array_size(t->results), t->file, scale_of(t) ? ", scale " : "",
                 scale_of(t) ? scale_of(t) : "");
    add_table(page, t);
    if (t->metric_test >= 0) {
        code = add_plots(ctx, folder, t, page);
    }
    cli_report_end(page);
    return code;
}

int cli_sweep_report(tg_context *ctx, const char *folder, const char *heading, const char *path,
                     size_t *bytes) {
    CLI_OWNED(cli_sweep_table_free) cli_sweep_table table;
    CLI_OWNED(cli_bytes_free) cli_html page = {0};
    int code = CLI_OK;
    cli_sweep_table_read(folder, &table);
    if (cli_ends_with(path, ".md")) {
        cli_sweep_markdown(&page, &table);
    } else {
        code = write_page(ctx, folder, &table, heading, &page);
    }
    cli_require(cli_write_file(path, page.data, page.size));
    *bytes = page.size;
    return code;
}
