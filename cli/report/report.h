/* The report: one HTML page about one run or several, made of sections. Each section writes its
 * part of the page, or nothing if the runs have no data for it. */
#ifndef CLI_REPORT_REPORT_H
#define CLI_REPORT_REPORT_H

#include "common/run_folder.h"
#include "common/text.h"
#include "html.h"

enum { CLI_REPORT_RUNS = 64 }; /* on one page, at most */

typedef struct cli_report {
    tg_context *ctx;
    const cli_run *run;  /* (count) */
    int count;           /* 1 .. CLI_REPORT_RUNS */
    const char *title;   /* NULL: made from the runs */
    const char *command; /* that makes this page */
    int64_t samples;     /* shown of each test, at most */
} cli_report;

/* Whether the page can draw the arrays of a run. CLI_FAILED after a message. */
int cli_report_check_samples(const cli_run *run);
int cli_report_check_rollout(const cli_run *run);

/* The whole page, of runs that were checked. CLI_FAILED after a message. */
int cli_report_write(cli_html *page, const cli_report *report);

/* ---- Sections, in the order of the page. ---- */

void cli_report_style(cli_html *page); /* the style sheet */
void cli_report_results(cli_html *page, const cli_report *report);
/* .. of which a part: errors over samples and over seeds. */
void cli_report_quantiles(cli_html *page, const cli_report *report, const cli_grid *grid,
                          int tests);
void cli_report_curves(cli_html *page, const cli_report *report);
void cli_report_memory(cli_html *page, const cli_report *report);
void cli_report_time(cli_html *page, const cli_report *report);
int cli_report_samples(cli_html *page, const cli_report *report);  /* CLI_FAILED after a message */
int cli_report_rollouts(cli_html *page, const cli_report *report); /* likewise */
void cli_report_settings(cli_html *page, const cli_report *report);
void cli_report_making(cli_html *page, const cli_report *report);

/* ---- Shared by several sections. ---- */

enum { CLI_REPORT_TESTS = 64 }; /* tests on one page, at most */

/* The grids that any run was tested on, ascending; returns how many. */
int cli_report_grids(const cli_report *report, cli_grid grid[CLI_REPORT_TESTS]);

/* The run's number in its colour, and its name. */
void cli_report_badge(cli_html *page, const cli_report *report, int index);
void cli_report_name(cli_html *page, const cli_report *report, int index);
/* The last columns of a table, one for every run; the rows follow. */
void cli_report_columns(cli_html *page, const cli_report *report);

/* "1.5 MiB", or a dash for NaN and negative values; returns text. */
const char *cli_report_bytes(double bytes, char text[CLI_UNIT_TEXT]);
/* "1.25 ms", or a dash. */
const char *cli_report_duration(double seconds, char text[CLI_UNIT_TEXT]);

/* A table with these columns, "Run|Test|Least", in an element that scrolls sideways if it is wider
 * than the screen; more columns and cli_report_begin_rows follow, at last cli_report_close_table.
 */
void cli_report_open_table(cli_html *page, const char *label, const char *kind,
                           const char *columns);
void cli_report_norm_columns(cli_html *page, const cli_grid *grid, int tests);
void cli_report_begin_rows(cli_html *page);
void cli_report_close_table(cli_html *page);

#endif
