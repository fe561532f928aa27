/* Values at points of a body as a picture of the side that is seen. */
#ifndef CLI_REPORT_POINTS_H
#define CLI_REPORT_POINTS_H

#include <stdint.h>

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
