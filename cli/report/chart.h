/* Curves as inline SVG: several series over one axis, with ticks, grid, a read-out that appears
 * under the pointer without any script, and a sentence in place of the picture for screen readers.
 *
 * Every curve carries its numbers: data-run, data-metric, data-x and data-y, in full. */
#ifndef CLI_REPORT_CHART_H
#define CLI_REPORT_CHART_H

#include <stdbool.h>
#include <stdint.h>

#include "common/statistics.h"
#include "html.h"

typedef struct cli_series {
    const char *name;
    int number;      /* 1, 2, ..: of the run, chooses the colour; 0: the neutral one (truth) */
    const double *x; /* (count) ascending */
    const double *y; /* (count) values that are not finite leave a gap */
    int count;
    const double *low, *high; /* (count) of a band around y; NULL: none */
} cli_series;

typedef struct cli_chart {
    const char *title;
    const char *metric;  /* "test.16.l2": for data-metric */
    const char *x_label; /* "epoch" */
    bool is_log;         /* y; values of 0 and below leave a gap */
    const cli_series *series;
    int count;
} cli_chart;

/* Writes a <figure>; nothing if there is no value to draw. */
void cli_chart_draw(cli_html *page, const cli_chart *chart);

/* The CSS class of a run's colour: runs 1 .. 8 have their own, later ones the same dashed. */
enum { CLI_RUN_COLOURS = 8 };
int cli_run_colour(int number);

/* ---- Axes, of other charts too. ---- */

/* A line across at a value of the vertical axis, and the value before it. */
void cli_chart_grid_line(cli_html *page, int left, int right, double y, double value);

enum { CLI_MAX_TICKS = 12 };

/* Round numbers within [low, high], ascending; returns their count. The logarithmic one takes
 * 0 < low < high. */
int cli_ticks_linear(double low, double high, int wanted, double tick[CLI_MAX_TICKS]);
int cli_ticks_log(double low, double high, double tick[CLI_MAX_TICKS]);

/* ---- box plots as inline SVG, a row for each run: a box spans the quartiles, its line is the
 * median, whiskers reach the least and the largest value; the axis begins at 0 ----
 *
 * Every row carries its numbers: data-run, data-metric, data-median and so on. */

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

/* ---- colour maps, made in OKLab, where equal steps look equal ----
 *
 * Field: lightness grows on a straight line from a dark violet over blue and green to a light
 * yellow, so that it reads also in grey and with any colour vision. Error: blue for values too low,
 * white for 0, red for values too high, the same lightness at the same distance from 0. */

typedef enum cli_map { CLI_MAP_FIELD, CLI_MAP_ERROR } cli_map;

/* The levels from the lowest value to the highest, and after them a colour for NaN. */
enum { CLI_MAP_LEVELS = 255, CLI_MAP_NAN = CLI_MAP_LEVELS, CLI_MAP_COLOURS };

/* The colours, 0xRRGGBB; the middle level of the error map is no error. */
void cli_map_table(cli_map map, uint32_t colour[CLI_MAP_COLOURS]);

/* The level of t in 0 .. 1; beyond it is clipped, NaN gives CLI_MAP_NAN. */
unsigned char cli_map_level(double t);

#endif
