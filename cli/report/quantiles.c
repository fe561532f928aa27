/* Quantiles of the errors of test samples, and deviations over runs that differ only in their
 * seed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/run_settings.h"
#include "common/statistics.h"
#include "report.h"

/* ---- over samples ---- */

static bool has_quantiles(const cli_report *report, const cli_grid *grid, int tests) {
    bool found = false;
    for (int i = 0; i < report->count * tests; i++) {
        found = found || isfinite(cli_run_quantile(&report->run[i / tests], grid[i % tests], 0));
    }
    return found;
}

static void add_samples(cli_html *page, const cli_report *report, const cli_grid *grid, int tests) {
    char text[CLI_NUMBER_TEXT];
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
            cli_html_add(page, "<td>%s</td>",
                         cli_number_text(cli_run_quantile(run, test, q), text));
        }
        cli_html_add(page, "</tr>\n");
    }
    cli_report_close_table(page);
    cli_html_add(page, "</details>\n");
}

/* ---- over seeds ---- */

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
    char mean[CLI_NUMBER_TEXT];
    if (sample.count < 2) {
        cli_html_add(page, "<td>%s</td>", cli_number_text(sample.mean, mean));
        return;
    }
    cli_html_add(page, "<td>%s ± %.2g</td>", cli_number_text(sample.mean, mean),
                 sqrt(sample.variance));
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
            const cli_run *run = &report->run[member[i]];
            const cli_norm norm = (cli_norm)(t % CLI_NORMS);
            const int test = cli_run_test(run, grid[t / CLI_NORMS]);
            const int last = cli_run_last(run, norm, test);
            value[i] = last < 0 ? (double)NAN : run->epoch[last].error[norm][test];
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

void cli_report_quantiles(cli_html *page, const cli_report *report, const cli_grid *grid,
                          int tests) {
    add_samples(page, report, grid, tests);
    add_seeds(page, report, grid, tests);
}
