/* Box plots on a logarithmic axis, as a file of SVG.
 *
 * A box spans the quartiles, its line is the median, the whiskers reach from 1 % to 99 %, a ring
 * marks 99.9 % and a cross the largest value. A whisker that goes on to 0, or far below all
 * medians, ends in an arrow at the foot of the axis. Every box carries its numbers, data-q1 and so
 * on. */
#ifndef CLI_BENCH_BOXPLOT_H
#define CLI_BENCH_BOXPLOT_H

#include <stdbool.h>

#include "common/statistics.h"
#include "report/html.h"

typedef struct cli_box {
    const char *label[2]; /* two lines beneath the box; the second may be NULL */
    char note[64];        /* a third one */
    const cli_quantiles *quantiles;
} cli_box;

typedef struct cli_boxplot {
    const char *title, *subtitle;
    const char *axis; /* the plotted quantity */
    const cli_box *box;
    int count;
} cli_boxplot;

/* Writes the file; false, and nothing, if no value is above 0. */
bool cli_boxplot_draw(cli_html *file, const cli_boxplot *plot);

#endif
