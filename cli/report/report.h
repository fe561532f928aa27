/* The report: one HTML page about one run or several, made of sections. Each section writes its
 * part of the page, or nothing if the runs have no data for it. */
#ifndef CLI_REPORT_REPORT_H
#define CLI_REPORT_REPORT_H

#include "chart.h"
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

/* Whether the page can draw the arrays of a run; CLI_FAILED after a message. Sections are of runs
 * that were checked. */
int cli_report_check_samples(const cli_run *run);
int cli_report_check_rollout(const cli_run *run);

/* The whole page. */
void cli_report_write(cli_html *page, const cli_report *report);

/* ---- Sections, in the order of the page. ---- */

void cli_report_results(cli_html *page, const cli_report *report);
void cli_report_curves(cli_html *page, const cli_report *report);
void cli_report_memory(cli_html *page, const cli_report *report);
void cli_report_time(cli_html *page, const cli_report *report);
void cli_report_samples(cli_html *page, const cli_report *report);
void cli_report_rollouts(cli_html *page, const cli_report *report);
void cli_report_settings(cli_html *page, const cli_report *report);
void cli_report_making(cli_html *page, const cli_report *report);

/* ---- Shared by several sections, and by other pages. ---- */

/* Opens a page up to its heading, within the header; and closes it. */
void cli_report_begin(cli_html *page, const char *brand, const char *title);
void cli_report_end(cli_html *page);

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
#define CLI_REPORT_BYTES(bytes) cli_report_bytes(bytes, (char[CLI_UNIT_TEXT]){0})
/* "1.25 ms", or a dash. */
const char *cli_report_duration(double seconds, char text[CLI_UNIT_TEXT]);
#define CLI_REPORT_DURATION(seconds) cli_report_duration(seconds, (char[CLI_UNIT_TEXT]){0})

/* A table with these columns, "Run|Test|Least", in an element that scrolls sideways if it is wider
 * than the screen; more columns and cli_report_begin_rows follow, at last cli_report_close_table.
 */
void cli_report_open_table(cli_html *page, const char *label, const char *kind,
                           const char *columns);
void cli_report_norm_columns(cli_html *page, const cli_grid *grid, int tests);
void cli_report_begin_rows(cli_html *page);
void cli_report_close_table(cli_html *page);

/* ---- Fields as pictures (field.c): one channel of one sample of a tensor (samples, channels,
 * grid..).
 *
 * Of a 3-D grid the middle slice of the first dimension is taken; a complex value shows as its
 * modulus, a complex error as |prediction - truth|. */

typedef struct cli_field {
    int64_t height, width; /* height 1 for a 1-D grid */
    bool is_complex;
    double *value; /* (height, width, 2) pairs {re, im}; im = 0 for real data */
} cli_field;

/* Takes one channel of one sample of a host tensor with 1 to 3 grid dimensions. */
cli_field cli_field_read(tg_context *ctx, const tg_tensor *tensor, int64_t sample, int64_t channel);
void cli_field_free(cli_field *field); /* accepts all zero */

/* The values to show, (height, width), to be freed: of a field, or of prediction - truth. */
double *cli_field_shown(const cli_field *field);
double *cli_field_error(const cli_field *prediction, const cli_field *truth);

/* Least and largest finite value; 0 and 0 if there is none. */
void cli_field_range(const double *value, int64_t count, double *low, double *high);

/* ||prediction - truth|| / ||truth|| of one sample and channel (-1: all together) on the whole
 * grid; a truth of norm 0 divides by 1. */
double cli_field_distance(tg_context *ctx, const tg_tensor *prediction, const tg_tensor *truth,
                          int64_t sample, int64_t channel);

/* Writes an <img> with the values from low to high in the colours of the map, whose middle is that
 * of low and high; large fields are averaged over blocks. `alt` is its text. */
void cli_field_draw(cli_html *page, const double *value, int64_t height, int64_t width, cli_map map,
                    double low, double high, const char *alt);

/* ---- values at points of a body, as a picture of its visible side ---- */

enum { CLI_POINTS_PICTURE = 120 }; /* pixels of a side */

typedef struct cli_points {
    int dims;
    int64_t count;
    double *coordinate; /* (dims, count) in the unit box */
} cli_points;

/* (side, side), to be freed: the first coordinate to the right, the last one upwards, seen along
 * the second; each pixel has the value of the nearest point in front, NaN where there is none. */
double *cli_points_picture(const cli_points *points, const double *value);

#endif
