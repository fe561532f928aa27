/* Delivers the batches of an epoch, in order, on the backend.
 *
 * On the host a batch is read on request. On a stream, a thread reads and normalizes ahead, into
 * two pinned buffers in turn, and a copy stream uploads the next batch while the previous step
 * computes. Order and contents of the batches are the loader's in both cases. */
#ifndef TG_TRAIN_PREFETCH_H
#define TG_TRAIN_PREFETCH_H

#include "train/model.h"

typedef struct tg_prefetch tg_prefetch;

/* `reader` is the context of loader and dataset, which only the prefetcher uses from now on; it
 * passes their errors on to the model's context. */
TG_NODISCARD tg_status tg_prefetch_create(tg_model *model, tg_context *reader, tg_loader *loader,
                                          const tg_dataset_facts *facts, int64_t batch_size,
                                          tg_prefetch **out);
void tg_prefetch_destroy(tg_prefetch **prefetch);
/* Its memory. */
tg_amounts tg_prefetch_bytes(const tg_backend *be, const tg_dataset_facts *facts,
                             int64_t batch_size);

/* Starts at that batch of an epoch; reading ahead ends with the epoch. */
TG_NODISCARD tg_status tg_prefetch_start(tg_prefetch *prefetch, int64_t epoch, int64_t batch);
/* Stops reading; nothing is prefetched until the next start. */
TG_NODISCARD tg_status tg_prefetch_stop(tg_prefetch *prefetch);

/* The next batch, for work queued until tg_prefetch_ahead. */
TG_NODISCARD tg_status tg_prefetch_next(tg_prefetch *prefetch, tg_tensor *x, tg_tensor *y);
/* All work on this batch is queued: the next one may be copied after it. */
TG_NODISCARD tg_status tg_prefetch_ahead(tg_prefetch *prefetch);
/* The step is queued: its pinned buffer may be refilled. */
TG_NODISCARD tg_status tg_prefetch_recycle(tg_prefetch *prefetch);

/* Seconds spent waiting for batches to be read since the start. */
double tg_prefetch_waited(const tg_prefetch *prefetch);

#endif
