/* How the runs went: curves over the epochs, and the same numbers as tables. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chart.h"
#include "common/output.h"
#include "report.h"

/* ---- stable ranks of the gradients (stable_ranks.jsonl): a chart for every mode, the mean over
 * the spectral weights that have it ---- */

typedef struct ranks {
    double *epoch, *rank[TG_MAX_NDIM]; /* (count); NaN: no weight has this mode */
    int count;
} ranks;

static double mean_of(const json_t *parameters, size_t mode) {
    double sum = 0.0;
    int count = 0;
    for (size_t i = 0; i < json_array_size(parameters); i++) {
        const json_t *list = json_object_get(json_array_get(parameters, i), "stable_rank");
        const double rank = cli_json_number(json_array_get(list, mode));
        if (isfinite(rank)) {
            sum += rank;
            count++;
        }
    }
    return count > 0 ? sum / count : (double)NAN;
}

static void take_line(const json_t *line, void *to) {
    ranks *r = to;
    const json_t *epoch = json_object_get(line, "epoch");
    if (!json_is_integer(epoch)) { /* one that a killed run has not finished */
        return;
    }
    const size_t bytes = ((size_t)r->count + 1) * sizeof(double);
    r->epoch = cli_need(realloc(r->epoch, bytes));
    r->epoch[r->count] = (double)json_integer_value(epoch);
    for (size_t d = 0; d < TG_MAX_NDIM; d++) {
        r->rank[d] = cli_need(realloc(r->rank[d], bytes));
        r->rank[d][r->count] = mean_of(json_object_get(line, "parameters"), d);
    }
    r->count++;
}

static void draw_mode(cli_html *page, const cli_report *report, const ranks *of, int mode) {
    CLI_FREED cli_series *series = cli_need(calloc((size_t)report->count, sizeof *series));
    char title[64], metric[32];
    int count = 0;
    for (int i = 0; i < report->count; i++) {
        if (of[i].count > 0) {
            series[count++] = (cli_series){
                report->run[i].name, i + 1, of[i].epoch, of[i].rank[mode], of[i].count, NULL, NULL};
        }
    }
    snprintf(title, sizeof title, "Stable rank of the gradients, mode %d", mode + 1);
    snprintf(metric, sizeof metric, "stable_rank.%d", mode + 1);
    cli_chart_draw(page, &(cli_chart){title, metric, "epoch", true, series, count});
}

static void draw_stable_ranks(cli_html *page, const cli_report *report) {
    ranks *of = cli_need(calloc((size_t)report->count, sizeof *of));
    for (int i = 0; i < report->count; i++) {
        cli_json_lines(report->run[i].path, "stable_ranks.jsonl", take_line, &of[i]);
    }
    for (int mode = 0; mode < TG_MAX_NDIM; mode++) {
        draw_mode(page, report, of, mode);
    }
    for (int i = 0; i < report->count; i++) {
        free(of[i].epoch);
        for (int d = 0; d < TG_MAX_NDIM; d++) {
            free(of[i].rank[d]);
        }
    }
    free(of);
}

/* ---- curves over the epochs ---- */

/* One number of every run over its epochs, `offset` bytes from the beginning of a cli_epoch; with
 * `grid` the error of a test, of epochs that have one. */
static void draw(cli_html *page, const cli_report *report, const char *title, const char *metric,
                 size_t offset, const char *grid) {
    size_t total = 0;
    for (int i = 0; i < report->count; i++) {
        total += (size_t)report->run[i].count;
    }
    CLI_FREED cli_series *series = cli_need(calloc((size_t)report->count, sizeof *series));
    CLI_FREED double *room = cli_need(malloc(2 * total * sizeof *room));
    double *next = room;
    for (int i = 0; i < report->count; i++) {
        const cli_run *run = &report->run[i];
        const int test = grid ? cli_run_test(run, grid) : 0;
        double *x = next, *y = next + run->count;
        int count = 0;
        for (int e = 0; test >= 0 && e < run->count; e++) {
            double value[CLI_RUN_TESTS];
            memcpy(value, (const char *)&run->epoch[e] + offset,
                   ((size_t)test + 1) * sizeof *value);
            if (!grid || !isnan(value[test])) {
                x[count] = (double)run->epoch[e].epoch;
                y[count++] = value[test];
            }
        }
        series[i] = (cli_series){run->name, i + 1, x, y, count, NULL, NULL};
        next += 2 * run->count;
    }
    cli_chart_draw(page, &(cli_chart){title, metric, "epoch", true, series, report->count});
}

/* Whether any run has such errors of a test: data at points have no H1 errors. */
static bool has_errors(const cli_report *report, cli_norm norm, const char *grid) {
    for (int i = 0; i < report->count; i++) {
        const cli_run *run = &report->run[i];
        const int test = cli_run_test(run, grid);
        for (int e = 0; test >= 0 && e < run->count; e++) {
            const double *error = run->epoch[e].error[norm];
            if (!isnan(error[test]) || isnan(run->epoch[e].error[CLI_NORM_L2][test])) {
                return true;
            }
        }
    }
    return false;
}

static void draw_errors(cli_html *page, const cli_report *report) {
    static const char *const shown[] = {"L²", "H¹"};
    cli_grid grid[CLI_REPORT_TESTS];
    const int tests = cli_report_grids(report, grid);
    for (int t = 0; t < tests; t++) {
        for (int n = 0; n < CLI_NORMS; n++) {
            char title[TG_GRID_TEXT + 48], metric[TG_GRID_TEXT + 16];
            snprintf(title, sizeof title, "Test error at resolution %.63s, relative %s", grid[t],
                     shown[n]);
            snprintf(metric, sizeof metric, "test.%.63s.%s", grid[t], cli_norm_names[n]);
            if (has_errors(report, (cli_norm)n, grid[t])) {
                draw(page, report, title, metric,
                     offsetof(cli_epoch, error) + (size_t)n * sizeof(double[CLI_RUN_TESTS]),
                     grid[t]);
            }
        }
    }
}

static void add_legend(cli_html *page, const cli_report *report) {
    if (report->count < 2) {
        return;
    }
    cli_html_add(page, "<ul class=\"legend\" aria-label=\"Runs\">");
    for (int i = 0; i < report->count; i++) {
        cli_html_add(page, "<li>");
        cli_report_name(page, report, i);
        cli_html_add(page, "</li>");
    }
    cli_html_add(page, "</ul>\n");
}

static void add_epoch_row(cli_html *page, const cli_run *run, const cli_epoch *epoch) {
    cli_html_add(page, "<tr><th scope=\"row\">%lld</th><td>%s</td><td>%s</td>",
                 (long long)epoch->epoch, CLI_NUMBER(epoch->lr), CLI_NUMBER(epoch->loss));
    for (int t = 0; t < run->tests * CLI_NORMS; t++) {
        cli_html_add(page, "<td>%s</td>", CLI_NUMBER(epoch->error[t % CLI_NORMS][t / CLI_NORMS]));
    }
    cli_html_add(page, "<td>%s</td><td>%s</td></tr>\n", CLI_NUMBER(epoch->step_ms),
                 CLI_NUMBER(epoch->seconds));
}

/* Every epoch of a run; of very long runs every n-th and the last. */
static void add_epoch_table(cli_html *page, const cli_run *run) {
    enum { MAX_ROWS = 500 };
    const int stride = (run->count + MAX_ROWS - 1) / MAX_ROWS;
    cli_html_add(page, "<details><summary>Epochs of %s as a table", run->name);
    if (stride > 1) {
        cli_html_add(page, " (one in %d)", stride);
    }
    cli_html_add(page, "</summary>");
    cli_report_open_table(page, "Table of epochs", "epochs", "Epoch|Learning rate|Training loss");
    cli_report_norm_columns(page, run->grid, run->tests);
    cli_html_add(page, "<th scope=\"col\">ms per step</th><th scope=\"col\">Seconds</th>");
    cli_report_begin_rows(page);
    for (int e = 0; e < run->count; e++) {
        if (e % stride == 0 || e == run->count - 1) {
            add_epoch_row(page, run, &run->epoch[e]);
        }
    }
    cli_report_close_table(page);
    cli_html_add(page, "</details>\n");
}

void cli_report_curves(cli_html *page, const cli_report *report) {
    cli_html_add(page, "<section id=\"curves\"><h2>Training curves</h2>\n");
    add_legend(page, report);
    cli_html_add(page, "<div class=\"charts\">\n");
    draw_errors(page, report);
    draw(page, report, "Training loss", "train.loss", offsetof(cli_epoch, loss), NULL);
    draw(page, report, "Learning rate", "lr", offsetof(cli_epoch, lr), NULL);
    draw_stable_ranks(page, report);
    cli_html_add(page,
                 "</div>\n<p class=\"note\">Vertical axes are logarithmic. Point at a chart "
                 "to read its values%s.</p>\n",
                 report->count > 1 ? "; the number at the end of a curve is that of its run" : "");
    for (int i = 0; i < report->count; i++) {
        add_epoch_table(page, &report->run[i]);
    }
    cli_html_add(page, "</section>\n");
}
