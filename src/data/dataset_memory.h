/* Datasets for the trainer: host memory (category data) before it is allocated, and warnings. */
#ifndef TG_DATA_DATASET_MEMORY_H
#define TG_DATA_DATASET_MEMORY_H

#include "tgrad/data.h"

typedef struct tg_dataset_bytes {
    size_t opening; /* peak while the set is opened */
    size_t held;    /* afterwards */
    size_t request; /* streamed: additionally per sample of the largest read */
} tg_dataset_bytes;

/* Opens the files for their shapes; reads no sample. */
TG_NODISCARD tg_status tg_dataset_plan(tg_context *ctx, const char *path,
                                       const tg_dataset_config *config, tg_dataset_facts *facts,
                                       tg_dataset_bytes *bytes);

/* Warns if the dimensions of the grid are sub-sampled differently, which changes its proportions
 * and is rarely intended. tg_dataset_open logs it to its context. */
void tg_dataset_warn(tg_context *ctx, const tg_dataset *dataset, const char *path);

/* Samples read at once while fitting a normalizer, and the memory for them. */
int64_t tg_normalizer_block(const tg_dataset_facts *facts, tg_data_side side);
size_t tg_normalizer_fit_bytes(const tg_dataset_facts *facts, tg_data_side side);

#endif
