/* What data take of the host's memory (category data), told before it is taken. */
#ifndef TG_DATA_DATASET_MEMORY_H
#define TG_DATA_DATASET_MEMORY_H

#include "tgrad/data.h"

typedef struct tg_dataset_bytes {
    size_t opening; /* at most while the set is opened */
    size_t held;    /* from then on */
    size_t request; /* streamed: and for every sample of the largest read so far */
} tg_dataset_bytes;

/* Opens the files to see their shapes, and reads no sample. */
TG_NODISCARD tg_status tg_dataset_plan(tg_context *ctx, const char *path,
                                       const tg_dataset_config *config, tg_dataset_facts *facts,
                                       tg_dataset_bytes *bytes);

/* Samples that are looked at together while a normalizer is fitted, and what that takes. */
int64_t tg_normalizer_block(const tg_dataset_facts *facts, tg_data_side side);
size_t tg_normalizer_fit_bytes(const tg_dataset_facts *facts, tg_data_side side);

#endif
