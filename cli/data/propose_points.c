/* Radii and latent grid for points of a file.
 *
 * r is the mean distance from a point to its NEIGHBOURS-th nearest. The latent grid has cells of at
 * least r / WIDTH: a ball of WIDTH cells holds about as many of its places (24 in three
 * dimensions), so that points and grid resolve the same. Cells may be larger, where so fine a grid
 * would cost too much; balls around places have at least half the diagonal of a cell, so that no
 * point is lost. */
#include "propose_points.h"

#include <math.h>
#include <stdlib.h>

#include "common/text.h"

enum { NEIGHBOURS = 20, SAMPLES = 4, QUERIES = 64 };
static const double WIDTH = 1.8; /* radius of the kernel to the queries, in cells */

static const int64_t grid_sizes[] = {8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256};
static const int64_t finest[] = {256, 64, 32}; /* in one, two and three dimensions */

/* The distance from point `query` to its k-th nearest among points (d, count). */
static double kth_distance(const float *points, int d, int64_t count, int64_t query, int k) {
    double nearest[NEIGHBOURS]; /* squared, the first `found` of them in order */
    int found = 0;
    for (int64_t i = 0; i < count; i++) {
        double square = 0.0;
        for (int c = 0; c < d; c++) {
            const double apart = (double)(points[c * count + i] - points[c * count + query]);
            square += apart * apart;
        }
        if (i == query || (found == k && square >= nearest[k - 1])) {
            continue;
        }
        int at = found < k ? found++ : k - 1;
        for (; at > 0 && nearest[at - 1] > square; at--) {
            nearest[at] = nearest[at - 1];
        }
        nearest[at] = square;
    }
    return sqrt(nearest[k - 1]);
}

static double mean_distance(const float *points, int d, int64_t count) {
    const int k = count > NEIGHBOURS ? NEIGHBOURS : (int)count - 1;
    const int64_t queries = count < QUERIES ? count : QUERIES;
    double sum = 0.0;
    for (int64_t i = 0; i < queries && k > 0; i++) {
        sum += kth_distance(points, d, count, i * count / queries, k);
    }
    return k > 0 ? sum / (double)queries : 1.0; /* a point alone: the box */
}

tg_status cli_points_measure(tg_dataset *dataset, cli_points_fit *out) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    const int d = (int)facts.in_channels;
    const int64_t samples = facts.samples < SAMPLES ? facts.samples : SAMPLES;
    float *points = cli_need(malloc(facts.x_bytes));
    tg_status status = TG_OK;
    double radius = 0.0;
    for (int64_t i = 0; i < samples && status == TG_OK; i++) {
        const int64_t index = i * facts.samples / samples;
        status = tg_dataset_read(dataset, &index, 1, points, NULL);
        radius += status == TG_OK ? mean_distance(points, d, facts.grid[0]) / (double)samples : 0.0;
    }
    free(points);
    out->latent_grid = grid_sizes[0];
    for (size_t i = 1; i < sizeof grid_sizes / sizeof grid_sizes[0]; i++) {
        const bool is_wanted = (double)(grid_sizes[i] - 1) * radius <= WIDTH;
        out->latent_grid =
            is_wanted && grid_sizes[i] <= finest[d - 1] ? grid_sizes[i] : out->latent_grid;
    }
    const double cell = 1.0 / (double)(out->latent_grid - 1);
    out->in_radius = fmax(radius, 0.5 * sqrt(d) * cell);
    out->out_radius = WIDTH * cell;
    return status;
}
