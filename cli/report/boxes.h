/* Box plots as inline SVG of a page, a row for each run: a box spans the quartiles, its line is the
 * median, whiskers reach the least and the largest value. The axis begins at 0.
 *
 * Every row carries its numbers: data-run, data-metric, data-median and so on. (A drawing of its
 * own, over a logarithmic axis, is in boxplot.h.) */
#ifndef CLI_REPORT_BOXES_H
#define CLI_REPORT_BOXES_H

#include "common/statistics.h"
#include "html.h"

typedef struct cli_box_row {
    const char *name;  /* of the run */
    const char *label; /* before its row */
    int number;        /* 1, 2, ..: of the run, chooses the colour */
    cli_quantiles quantiles;
} cli_box_row;

typedef struct cli_boxes {
    const char *title;
    const char *metric;  /* for data-metric */
    const char *x_label; /* "relative error" */
    const cli_box_row *row;
    int count;
} cli_boxes;

/* Writes a <figure>; nothing if there is no value above 0. */
void cli_boxes_draw(cli_html *page, const cli_boxes *boxes);

#endif
