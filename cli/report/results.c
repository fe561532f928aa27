/* Results: a few sentences, then the table of runs. */
#include <math.h>
#include <stdlib.h>

#include "report.h"

static double final_error(const cli_run *run, cli_norm norm, const char *grid) {
    const int test = cli_run_test(run, grid), last = cli_run_last(run, norm, test);
    return last < 0 ? (double)NAN : run->epoch[last].error[norm][test];
}

/* The run with the least value, other than `but`; -1 if none has one. */
static int least(const double *value, int count, int but) {
    int best = -1;
    for (int i = 0; i < count; i++) {
        if (i != but && !isnan(value[i]) && (best < 0 || value[i] < value[best])) {
            best = i;
        }
    }
    return best;
}

/* ---- in short ---- */

static void add_error_sentence(cli_html *page, const cli_report *report, const char *grid,
                               double *value) {
    char a[CLI_NUMBER_TEXT], b[CLI_NUMBER_TEXT];
    for (int i = 0; i < report->count; i++) {
        value[i] = final_error(&report->run[i], CLI_NORM_L2, grid);
    }
    const int best = least(value, report->count, -1);
    if (best < 0) {
        return;
    }
    if (report->count == 1) {
        const double h1 = final_error(&report->run[0], CLI_NORM_H1, grid);
        cli_html_add(page,
                     "<li>At resolution %s the test error ends at <strong>%s</strong> in L<sup>2"
                     "</sup>",
                     grid, cli_number_text(value[0], a));
        if (!isnan(h1)) {
            cli_html_add(page, " and %s in H<sup>1</sup>", cli_number_text(h1, b));
        }
        cli_html_add(page, ".</li>");
        return;
    }
    /* Compared with the first run, or if that is the best one with the next. */
    const int other = best == 0 || isnan(value[0]) ? least(value, report->count, best) : 0;
    cli_html_add(page,
                 "<li>At resolution %s, <strong>%s</strong> ends with the lowest L<sup>2"
                 "</sup> test error, <strong>%s</strong>",
                 grid, report->run[best].name, cli_number_text(value[best], a));
    if (other >= 0 && value[other] > value[best]) {
        cli_html_add(page, ": %.1f\xC2\xA0%% below %s (%s)",
                     100.0 * (1.0 - value[best] / value[other]), report->run[other].name,
                     cli_number_text(value[other], b));
    }
    cli_html_add(page, ".</li>");
}

static void add_memory_sentence(cli_html *page, const cli_report *report, double *value) {
    char a[CLI_UNIT_TEXT], b[CLI_UNIT_TEXT];
    for (int i = 0; i < report->count; i++) {
        value[i] = cli_run_optimizer_bytes(&report->run[i]);
    }
    const int best = least(value, report->count, -1);
    if (best < 0) {
        return;
    }
    const int other = best == 0 || isnan(value[0]) ? least(value, report->count, best) : 0;
    cli_html_add(page, "<li>The optimizer state of <strong>%s</strong> takes <strong>%s</strong>",
                 report->run[best].name, cli_report_bytes(value[best], a));
    if (report->count == 1) {
        cli_html_add(page, " of a peak of %s", cli_report_bytes(report->run[0].memory_peak, b));
    } else if (other >= 0 && value[other] > value[best]) {
        cli_html_add(page, ", %.0f\xC2\xA0%% of %s (%s)", 100.0 * value[best] / value[other],
                     report->run[other].name, cli_report_bytes(value[other], b));
    }
    cli_html_add(page, ".</li>");
}

static void add_time_sentence(cli_html *page, const cli_report *report, double *value) {
    char a[CLI_UNIT_TEXT], b[CLI_UNIT_TEXT];
    for (int i = 0; i < report->count; i++) {
        value[i] = 1e-3 * cli_run_step_ms(&report->run[i]);
    }
    const int best = least(value, report->count, -1);
    int most = best;
    for (int i = 0; i < report->count; i++) {
        most = value[i] > value[most < 0 ? 0 : most] ? i : most;
    }
    if (best < 0) {
        return;
    }
    if (report->count == 1) {
        cli_html_add(page, "<li>A training step takes <strong>%s</strong>; %d epochs took %s.</li>",
                     cli_report_duration(value[0], a), report->run[0].count,
                     cli_report_duration(cli_run_seconds(&report->run[0]), b));
    } else if (value[most] > value[best]) {
        cli_html_add(page, "<li>A training step takes from <strong>%s</strong> (%s)",
                     cli_report_duration(value[best], a), report->run[best].name);
        cli_html_add(page, " to %s (%s).</li>", cli_report_duration(value[most], b),
                     report->run[most].name);
    } else {
        cli_html_add(page, "<li>A training step takes <strong>%s</strong>.</li>",
                     cli_report_duration(value[best], a));
    }
}

/* ---- the table ---- */

static void add_error_cell(cli_html *page, const cli_report *report, int index, cli_norm norm,
                           const char *grid, int best_run) {
    const cli_run *run = &report->run[index];
    const int test = cli_run_test(run, grid);
    const int last = cli_run_last(run, norm, test), best = cli_run_best(run, norm, test);
    char text[CLI_NUMBER_TEXT];
    if (last < 0) {
        cli_html_add(page, "<td>\xE2\x80\x93</td>");
        return;
    }
    const bool is_best = index == best_run && report->count > 1;
    cli_html_add(page, is_best ? "<td class=\"best\">%s" : "<td>%s",
                 cli_number_text(run->epoch[last].error[norm][test], text));
    if (best != last) {
        cli_html_add(page, "<small>best %s at %lld</small>",
                     cli_number_text(run->epoch[best].error[norm][test], text),
                     (long long)run->epoch[best].epoch);
    } else {
        cli_html_add(page, "<small>its best</small>");
    }
    cli_html_add(page, "</td>");
}

static void add_head(cli_html *page, const cli_grid *grid, int tests) {
    cli_html_add(page, "<th rowspan=\"2\" scope=\"col\">Run</th>"
                       "<th rowspan=\"2\" scope=\"col\">Epochs</th>");
    for (int t = 0; t < tests; t++) {
        cli_html_add(page, "<th colspan=\"2\" scope=\"colgroup\">Test error at %s</th>", grid[t]);
    }
    cli_html_add(page, "<th rowspan=\"2\" scope=\"col\">Optimizer<br>memory</th>"
                       "<th rowspan=\"2\" scope=\"col\">Peak<br>memory</th>"
                       "<th rowspan=\"2\" scope=\"col\">Step</th>"
                       "<th rowspan=\"2\" scope=\"col\">Total<br>time</th></tr><tr>");
    for (int t = 0; t < tests; t++) {
        cli_html_add(page, "<th scope=\"col\">L<sup>2</sup></th><th scope=\"col\">H<sup>1</sup>"
                           "</th>");
    }
    cli_report_begin_rows(page);
}

static void add_row(cli_html *page, const cli_report *report, int index, const cli_grid *grid,
                    const int (*best)[CLI_NORMS], int tests) {
    const cli_run *run = &report->run[index];
    const int64_t wanted = cli_run_epochs_wanted(run), done = run->epoch[run->count - 1].epoch;
    char text[CLI_UNIT_TEXT];
    cli_html_add(page, "<tr data-run=\"%s\"><th scope=\"row\">", run->name);
    cli_report_name(page, report, index);
    cli_html_add(page, "</th><td>%lld", (long long)done);
    if (wanted > done) {
        cli_html_add(page, "<small>of %lld</small>", (long long)wanted);
    }
    cli_html_add(page, "</td>");
    for (int t = 0; t < tests; t++) {
        for (int n = 0; n < CLI_NORMS; n++) {
            add_error_cell(page, report, index, (cli_norm)n, grid[t], best[t][n]);
        }
    }
    cli_html_add(page, "<td>%s</td>", cli_report_bytes(cli_run_optimizer_bytes(run), text));
    cli_html_add(page, "<td>%s</td>", cli_report_bytes(run->memory_peak, text));
    cli_html_add(page, "<td>%s</td>", cli_report_duration(1e-3 * cli_run_step_ms(run), text));
    cli_html_add(page, "<td>%s</td></tr>\n", cli_report_duration(cli_run_seconds(run), text));
}

/* ---- each channel by itself ---- */

/* The largest number of channels with separate errors in a test of the run. */
static int most_channels(const cli_run *run) {
    int most = 0;
    for (int t = 0; t < run->tests; t++) {
        const int count = cli_run_channels(run, run->grid[t]);
        most = count > most ? count : most;
    }
    return most;
}

static void add_channel_rows(cli_html *page, const cli_report *report, int index,
                             const cli_grid *grid, int tests) {
    const cli_run *run = &report->run[index];
    const int channels = most_channels(run);
    char text[CLI_NUMBER_TEXT];
    for (int c = 0; c < channels; c++) {
        cli_html_add(page, "<tr data-run=\"%s\" data-channel=\"%d\"><th scope=\"row\">", run->name,
                     c + 1);
        cli_report_name(page, report, index);
        cli_html_add(page, "</th><td>%d</td>", c + 1);
        for (int t = 0; t < tests; t++) {
            for (int n = 0; n < CLI_NORMS; n++) {
                const double error = cli_run_channel(run, (cli_norm)n, grid[t], c);
                cli_html_add(page, "<td>%s</td>", cli_number_text(error, text));
            }
        }
        cli_html_add(page, "</tr>\n");
    }
}

/* Nothing if every run has a single channel. */
static void add_channels(cli_html *page, const cli_report *report, const cli_grid *grid,
                         int tests) {
    enum { SHOWN = 16 }; /* more rows are folded up */
    int rows = 0;
    for (int i = 0; i < report->count; i++) {
        rows += most_channels(&report->run[i]);
    }
    if (rows == 0) {
        return;
    }
    cli_html_add(page, "<details%s><summary>Test errors of each channel by itself</summary>",
                 rows <= SHOWN ? " open" : "");
    cli_report_open_table(page, "Table of errors by channel", "channels", "Run|Channel");
    cli_report_norm_columns(page, grid, tests);
    cli_report_begin_rows(page);
    for (int i = 0; i < report->count; i++) {
        add_channel_rows(page, report, i, grid, tests);
    }
    cli_report_close_table(page);
    cli_html_add(page, "</details>\n");
}

static void add_notes(cli_html *page, const cli_report *report) {
    cli_html_add(page,
                 "<p class=\"note\">Errors are relative, ‖prediction − truth‖ ∕ ‖truth‖ of a "
                 "sample with all its channels, averaged over the test samples; H<sup>1</sup> "
                 "counts first derivatives too. Optimizer memory is moments, factors and index "
                 "sets. Step is the "
                 "median over epochs%s.</p>",
                 report->count > 1 ? "; the lowest final error of a column is bold" : "");
    for (int i = 0; i < report->count; i++) {
        const cli_run *run = &report->run[i];
        const cli_epoch *last = &run->epoch[run->count - 1];
        if (last->skipped > 0) {
            cli_html_add(page,
                         "<p class=\"note warn\">%s skipped %lld updates whose values were "
                         "not finite.</p>",
                         run->name, (long long)last->skipped);
        }
        if (last->overflows > 0) {
            cli_html_add(page,
                         "<p class=\"note\">%s lost a part of %lld updates of %lld to overflow in "
                         "f16; its loss scale ended at %g.</p>",
                         run->name, (long long)last->overflows, (long long)last->step,
                         last->loss_scale);
        }
        if (cli_run_epochs_wanted(run) > last->epoch) {
            cli_html_add(page,
                         "<p class=\"note warn\">%s is not finished: %lld of %lld epochs, "
                         "last written %s.</p>",
                         run->name, (long long)last->epoch, (long long)cli_run_epochs_wanted(run),
                         run->written);
        }
    }
}

void cli_report_results(cli_html *page, const cli_report *report) {
    cli_grid grid[CLI_REPORT_TESTS];
    int best[CLI_REPORT_TESTS][CLI_NORMS];
    const int tests = cli_report_grids(report, grid);
    double *value = cli_need(calloc((size_t)report->count, sizeof *value));
    cli_html_add(page, "<section id=\"results\"><h2>Results</h2>\n<ul class=\"short\">");
    for (int t = 0; t < tests; t++) {
        add_error_sentence(page, report, grid[t], value);
    }
    add_memory_sentence(page, report, value);
    add_time_sentence(page, report, value);
    cli_html_add(page, "</ul>\n");
    for (int t = 0; t < tests; t++) {
        for (int n = 0; n < CLI_NORMS; n++) {
            for (int i = 0; i < report->count; i++) {
                value[i] = final_error(&report->run[i], (cli_norm)n, grid[t]);
            }
            best[t][n] = least(value, report->count, -1);
        }
    }
    cli_report_open_table(page, "Table of results", "results", "");
    add_head(page, grid, tests);
    for (int i = 0; i < report->count; i++) {
        add_row(page, report, i, grid, (const int(*)[CLI_NORMS])best, tests);
    }
    cli_report_close_table(page);
    add_notes(page, report);
    add_channels(page, report, grid, tests);
    cli_report_quantiles(page, report, grid, tests);
    cli_html_add(page, "</section>\n");
    free(value);
}
