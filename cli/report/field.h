/* Fields as pictures: one channel of one sample of a tensor (samples, channels, grid..).
 *
 * Of a 3-D grid the middle slice of the first dimension is taken; a complex value shows as its
 * modulus, a complex error as |prediction - truth|. */
#ifndef CLI_REPORT_FIELD_H
#define CLI_REPORT_FIELD_H

#include <stdint.h>

#include "chart.h"
#include "html.h"
#include "tgrad/tgrad.h"

typedef struct cli_field {
    int64_t height, width; /* height 1 for a 1-D grid */
    bool is_complex;
    double *value; /* (height, width, 2) pairs {re, im}; im = 0 for real data */
} cli_field;

/* Takes one channel of one sample of a host tensor with 1 to 3 grid dimensions. */
tg_status cli_field_read(tg_context *ctx, const tg_tensor *tensor, int64_t sample, int64_t channel,
                         cli_field *out);
void cli_field_free(cli_field *field); /* accepts all zero */

/* The values to show, (height, width), to be freed: of a field, or of prediction - truth. */
double *cli_field_shown(const cli_field *field);
double *cli_field_error(const cli_field *prediction, const cli_field *truth);

/* Least and largest finite value; 0 and 0 if there is none. */
void cli_field_range(const double *value, int64_t count, double *low, double *high);

/* ||prediction - truth|| / ||truth|| of one sample and channel (-1: all together) on the whole
 * grid; a truth of norm 0 divides by 1. */
tg_status cli_field_distance(tg_context *ctx, const tg_tensor *prediction, const tg_tensor *truth,
                             int64_t sample, int64_t channel, double *out);

/* Writes an <img> with the values from low to high in the colours of the map, whose middle is that
 * of low and high; large fields are averaged over blocks. `alt` is its text. CLI_FAILED after a
 * message. */
int cli_field_draw(cli_html *page, const double *value, int64_t height, int64_t width, cli_map map,
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
