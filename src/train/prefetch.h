/* Batches of an epoch, one after the other, where the backend computes.
 *
 * On the host a batch is read when it is asked for. Where work is queued a thread reads and
 * normalizes ahead, into two pinned buffers that take turns, and a copy beside the stream brings
 * the next batch over while the step before computes. The order of the batches and their contents
 * are the loader's either way. */
#ifndef TG_TRAIN_PREFETCH_H
#define TG_TRAIN_PREFETCH_H

#include "train/model.h"

typedef struct tg_prefetch tg_prefetch;

/* `reader` is the context of loader and dataset, which are the prefetcher's alone from now on;
 * errors of theirs are handed on to the model's context. */
TG_NODISCARD tg_status tg_prefetch_create(tg_model *model, tg_context *reader, tg_loader *loader,
                                          const tg_dataset_facts *facts, int64_t batch_size,
                                          tg_prefetch **out);
void tg_prefetch_destroy(tg_prefetch **prefetch);
/* What it takes. */
tg_amounts tg_prefetch_bytes(const tg_backend *be, const tg_dataset_facts *facts,
                             int64_t batch_size);

/* Begins with that batch of an epoch; reading ahead ends with the epoch. */
TG_NODISCARD tg_status tg_prefetch_start(tg_prefetch *prefetch, int64_t epoch, int64_t batch);
/* Reads no further; nothing is prefetched until the next start. */
TG_NODISCARD tg_status tg_prefetch_stop(tg_prefetch *prefetch);

/* The next batch, for work that is queued from now on until tg_prefetch_ahead. */
TG_NODISCARD tg_status tg_prefetch_next(tg_prefetch *prefetch, tg_tensor *x, tg_tensor *y);
/* All work on this batch is queued: the next one may be copied behind it. */
TG_NODISCARD tg_status tg_prefetch_ahead(tg_prefetch *prefetch);
/* The step is queued: its pinned buffer may be filled anew. */
TG_NODISCARD tg_status tg_prefetch_recycle(tg_prefetch *prefetch);

/* Seconds that were spent on waiting for batches to be read since the start. */
double tg_prefetch_waited(const tg_prefetch *prefetch);

#endif
