/* Splats: a point covers the pixels around it, and each pixel keeps the one that is in front and
 * near. Distances are much smaller than a body is deep, so that nothing of its back is seen. */
#include "report_points.h"

#include <math.h>
#include <stdlib.h>

#include "text.h"

/* The point's places in the picture: right, down, and how far behind it lies. */
static void look(const cli_points *points, int64_t i, double at[3]) {
    const double *x = points->coordinate;
    const int64_t n = points->count;
    const double other[2] = {points->dims > 1 ? x[n + i] : 0.5,
                             points->dims > 2 ? x[2 * n + i] : 0.0};
    at[0] = x[i];
    at[1] = 1.0 - (points->dims > 2 ? other[1] : other[0]);
    at[2] = points->dims > 2 ? other[0] : 0.0;
}

double *cli_points_picture(const cli_points *points, const double *value) {
    enum { SIZE = CLI_POINTS_PICTURE };
    double *picture = cli_need(malloc((size_t)SIZE * SIZE * sizeof *picture));
    double *score = cli_need(malloc((size_t)SIZE * SIZE * sizeof *score));
    const int reach = (int)ceil(fmin(0.9 * SIZE / sqrt((double)points->count + 1.0), 0.1 * SIZE));
    for (int p = 0; p < SIZE * SIZE; p++) {
        picture[p] = (double)NAN;
        score[p] = INFINITY;
    }
    for (int64_t i = 0; i < points->count; i++) {
        double at[3];
        look(points, i, at);
        if (!(at[0] >= 0.0 && at[0] <= 1.0 && at[1] >= 0.0 && at[1] <= 1.0)) {
            continue; /* of a file that was changed */
        }
        const int row = (int)(at[1] * SIZE), column = (int)(at[0] * SIZE);
        for (int y = row - reach; y <= row + reach; y++) {
            for (int x = column - reach; x <= column + reach; x++) {
                const double from = hypot(x + 0.5 - at[0] * SIZE, y + 0.5 - at[1] * SIZE);
                const double rank = at[2] + from / SIZE;
                if (x >= 0 && x < SIZE && y >= 0 && y < SIZE && from <= reach &&
                    rank < score[y * SIZE + x]) {
                    score[y * SIZE + x] = rank;
                    picture[y * SIZE + x] = value[i];
                }
            }
        }
    }
    free(score);
    return picture;
}
