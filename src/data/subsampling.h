/* What sub-sampling does to a grid, for those who open sets where nothing can be logged. */
#ifndef TG_DATA_SUBSAMPLING_H
#define TG_DATA_SUBSAMPLING_H

#include "tgrad/data.h"

/* A warning if the dimensions of the grid are thinned out differently: that changes its proportions
 * and is seldom what was meant. tg_dataset_open says it to its own context. */
void tg_dataset_warn(tg_context *ctx, const tg_dataset *dataset, const char *path);

#endif
