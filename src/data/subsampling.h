/* Checks of sub-sampling for callers that open sets without a log. */
#ifndef TG_DATA_SUBSAMPLING_H
#define TG_DATA_SUBSAMPLING_H

#include "tgrad/data.h"

/* A warning if the dimensions of the grid are sub-sampled differently, which changes its
 * proportions and is rarely intended. tg_dataset_open logs it to its context. */
void tg_dataset_warn(tg_context *ctx, const tg_dataset *dataset, const char *path);

#endif
