/* Results: a few sentences, then the table of runs, and of errors by channel, sample and seed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/run_settings.h"
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
                     grid, CLI_NUMBER(value[0]));
        if (!isnan(h1)) {
            cli_html_add(page, " and %s in H<sup>1</sup>", CLI_NUMBER(h1));
        }
        cli_html_add(page, ".</li>");
        return;
    }
    /* Compared with the first run, or if that is the best one with the next. */
    const int other = best == 0 || isnan(value[0]) ? least(value, report->count, best) : 0;
    cli_html_add(page,
                 "<li>At resolution %s, <strong>%s</strong> ends with the lowest L<sup>2"
                 "</sup> test error, <strong>%s</strong>",
                 grid, report->run[best].name, CLI_NUMBER(value[best]));
    if (other >= 0 && value[other] > value[best]) {
        cli_html_add(page, ": %.1f\xC2\xA0%% below %s (%s)",
                     100.0 * (1.0 - value[best] / value[other]), report->run[other].name,
                     CLI_NUMBER(value[other]));
    }
    cli_html_add(page, ".</li>");
}

static void add_memory_sentence(cli_html *page, const cli_report *report, double *value) {
    for (int i = 0; i < report->count; i++) {
        value[i] = cli_run_optimizer_bytes(&report->run[i]);
    }
    const int best = least(value, report->count, -1);
    if (best < 0) {
        return;
    }
    const int other = best == 0 || isnan(value[0]) ? least(value, report->count, best) : 0;
    cli_html_add(page, "<li>The optimizer state of <strong>%s</strong> takes <strong>%s</strong>",
                 report->run[best].name, CLI_REPORT_BYTES(value[best]));
    if (report->count == 1) {
        cli_html_add(page, " of a peak of %s", CLI_REPORT_BYTES(report->run[0].memory_peak));
    } else if (other >= 0 && value[other] > value[best]) {
        cli_html_add(page, ", %.0f\xC2\xA0%% of %s (%s)", 100.0 * value[best] / value[other],
                     report->run[other].name, CLI_REPORT_BYTES(value[other]));
    }
    cli_html_add(page, ".</li>");
}

static void add_time_sentence(cli_html *page, const cli_report *report, double *value) {
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
                     CLI_REPORT_DURATION(value[0]), report->run[0].count,
                     CLI_REPORT_DURATION(cli_run_seconds(&report->run[0])));
    } else if (value[most] > value[best]) {
        cli_html_add(page, "<li>A training step takes from <strong>%s</strong> (%s)",
                     CLI_REPORT_DURATION(value[best]), report->run[best].name);
        cli_html_add(page, " to %s (%s).</li>", CLI_REPORT_DURATION(value[most]),
                     report->run[most].name);
    } else {
        cli_html_add(page, "<li>A training step takes <strong>%s</strong>.</li>",
                     CLI_REPORT_DURATION(value[best]));
    }
}

/* ---- the table ---- */

static void add_error_cell(cli_html *page, const cli_report *report, int index, cli_norm norm,
                           const char *grid, int best_run) {
    const cli_run *run = &report->run[index];
    const int test = cli_run_test(run, grid);
    const int last = cli_run_last(run, norm, test), best = cli_run_best(run, norm, test);
    if (last < 0) {
        cli_html_add(page, "<td>\xE2\x80\x93</td>");
        return;
    }
    const bool is_best = index == best_run && report->count > 1;
    cli_html_add(page, is_best ? "<td class=\"best\">%s" : "<td>%s",
                 CLI_NUMBER(run->epoch[last].error[norm][test]));
    if (best != last) {
        cli_html_add(page, "<small>best %s at %lld</small>",
                     CLI_NUMBER(run->epoch[best].error[norm][test]),
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
    cli_html_add(page, "<td>%s</td>", CLI_REPORT_BYTES(cli_run_optimizer_bytes(run)));
    cli_html_add(page, "<td>%s</td>", CLI_REPORT_BYTES(run->memory_peak));
    cli_html_add(page, "<td>%s</td>", CLI_REPORT_DURATION(1e-3 * cli_run_step_ms(run)));
    cli_html_add(page, "<td>%s</td></tr>\n", CLI_REPORT_DURATION(cli_run_seconds(run)));
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
    for (int c = 0; c < channels; c++) {
        cli_html_add(page, "<tr data-run=\"%s\" data-channel=\"%d\"><th scope=\"row\">", run->name,
                     c + 1);
        cli_report_name(page, report, index);
        cli_html_add(page, "</th><td>%d</td>", c + 1);
        for (int t = 0; t < tests; t++) {
            for (int n = 0; n < CLI_NORMS; n++) {
                const double error = cli_run_channel(run, (cli_norm)n, grid[t], c);
                cli_html_add(page, "<td>%s</td>", CLI_NUMBER(error));
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

/* ---- quantiles of the errors of test samples ---- */

static bool has_quantiles(const cli_report *report, const cli_grid *grid, int tests) {
    bool found = false;
    for (int i = 0; i < report->count * tests; i++) {
        found = found || isfinite(cli_run_quantile(&report->run[i / tests], grid[i % tests], 0));
    }
    return found;
}

static void add_samples(cli_html *page, const cli_report *report, const cli_grid *grid, int tests) {
    if (!has_quantiles(report, grid, tests)) {
        return;
    }
    cli_html_add(page, "<details open><summary>L² errors of the test samples one by one</summary>");
    cli_report_open_table(page, "Table of quantiles", "quantiles",
                          "Run|Test|Least|First quartile|Median|Third quartile|Largest");
    cli_report_begin_rows(page);
    for (int i = 0; i < report->count * tests; i++) {
        const cli_run *run = &report->run[i / tests];
        const char *test = grid[i % tests];
        if (!isfinite(cli_run_quantile(run, test, 0))) {
            continue;
        }
        cli_html_add(page, "<tr data-run=\"%s\" data-test=\"%s\"><th scope=\"row\">", run->name,
                     test);
        cli_report_name(page, report, i / tests);
        cli_html_add(page, "</th><td>%s</td>", test);
        for (int q = 0; q < TG_QUANTILES; q++) {
            cli_html_add(page, "<td>%s</td>", CLI_NUMBER(cli_run_quantile(run, test, q)));
        }
        cli_html_add(page, "</tr>\n");
    }
    cli_report_close_table(page);
    cli_html_add(page, "</details>\n");
}

/* ---- deviations over runs that differ only in their seed ---- */

/* The settings of a run but for its seed, to be freed; NULL: they are not known. */
static char *text_without_seed(const cli_report *report, const cli_run *run) {
    tg_settings *copy = NULL;
    char *text = NULL;
    if (run->settings && tg_settings_copy(report->ctx, run->settings, &copy) == TG_OK &&
        tg_settings_set(copy, "distributed.seed", "0", "report") == TG_OK) {
        text = cli_settings_text(copy);
    }
    tg_settings_destroy(&copy);
    return text;
}

static void add_mean(cli_html *page, const double *value, int count) {
    const cli_sample sample = cli_sample_of(value, count);
    if (sample.count < 2) {
        cli_html_add(page, "<td>%s</td>", CLI_NUMBER(sample.mean));
        return;
    }
    cli_html_add(page, "<td>%s ± %.2g</td>", CLI_NUMBER(sample.mean), sqrt(sample.variance));
}

/* A row about the `count` runs whose numbers are in `member`. */
static void add_group(cli_html *page, const cli_report *report, const int *member, int count,
                      const cli_grid *grid, int tests) {
    double *value = cli_need(calloc((size_t)count, sizeof *value));
    cli_html_add(page, "<tr data-seeds=\"%d\"><th scope=\"row\">", count);
    for (int i = 0; i < count; i++) {
        cli_html_add(page, i ? ", " : "");
        cli_report_name(page, report, member[i]);
    }
    cli_html_add(page, "</th>");
    for (int t = 0; t < tests * CLI_NORMS; t++) {
        for (int i = 0; i < count; i++) {
            value[i] = final_error(&report->run[member[i]], (cli_norm)(t % CLI_NORMS),
                                   grid[t / CLI_NORMS]);
        }
        add_mean(page, value, count);
    }
    cli_html_add(page, "</tr>\n");
    free(value);
}

static void add_seeds(cli_html *page, const cli_report *report, const cli_grid *grid, int tests) {
    char *text[CLI_REPORT_RUNS];
    bool is_open = false;
    for (int i = 0; i < report->count; i++) {
        text[i] = text_without_seed(report, &report->run[i]);
    }
    for (int i = 0; i < report->count; i++) {
        int member[CLI_REPORT_RUNS], count = 0;
        for (int k = i; text[i] && k < report->count; k++) {
            if (text[k] && strcmp(text[i], text[k]) == 0) {
                member[count++] = k;
            }
        }
        if (count > 1 && !is_open) {
            is_open = true;
            cli_html_add(page,
                         "<details open><summary>Runs that differ in their seed alone: mean ± "
                         "standard deviation of a run</summary>");
            cli_report_open_table(page, "Table of means over seeds", "seeds", "Runs");
            cli_report_norm_columns(page, grid, tests);
            cli_report_begin_rows(page);
        }
        if (count > 1) {
            add_group(page, report, member, count, grid, tests);
        }
        for (int k = 1; k < count; k++) { /* each run is in one group */
            free(text[member[k]]);
            text[member[k]] = NULL;
        }
    }
    cli_html_add(page, is_open ? "</tbody></table></div></details>\n" : "");
    for (int i = 0; i < report->count; i++) {
        free(text[i]);
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
    add_samples(page, report, grid, tests);
    add_seeds(page, report, grid, tests);
    cli_html_add(page, "</section>\n");
    free(value);
}
