/* Settings of `tgrad init` for a file of points: radii of graph kernels and a latent grid. */
#ifndef CLI_DATA_PROPOSE_POINTS_H
#define CLI_DATA_PROPOSE_POINTS_H

#include "tgrad/tgrad.h"

typedef struct cli_points_fit {
    int64_t latent_grid;          /* in every dimension */
    double in_radius, out_radius; /* of the kernels to the grid and to the queries */
} cli_points_fit;

/* By the distances of neighbours in a few samples. */
tg_status cli_points_measure(tg_dataset *dataset, cli_points_fit *out);

#endif
