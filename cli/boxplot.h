/* Box plots on a logarithmic axis.
 *
 * A box spans the quartiles, its line is the median, the whiskers reach from 1 % to 99 %, a ring
 * marks 99.9 % and a cross the largest value. A whisker that goes on to 0, or far below all
 * medians, ends in an arrow at the foot of the axis. */
#ifndef CLI_BOXPLOT_H
#define CLI_BOXPLOT_H

#include "picture.h"

typedef struct cli_box {
    const char *label[2]; /* two lines beneath the box; the second may be NULL */
    char note[64];        /* a third one */
    double p01, q1, median, q3, p99, p999, max; /* >= 0, ascending */
} cli_box;

typedef struct cli_boxplot {
    const char *title, *subtitle;
    const char *axis; /* what is plotted */
    const cli_box *box;
    int count;
} cli_boxplot;

/* True if there is anything above 0 to draw. */
bool cli_boxplot_is_drawable(const cli_boxplot *plot);
cli_picture cli_boxplot_draw(const cli_boxplot *plot);

#endif
