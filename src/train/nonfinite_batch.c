/* Finds the sample of a batch that has a NaN or Inf. A cached set is searched in place; a streamed
 * one is opened again, since the prefetching thread is reading the other one. */
#include "base/memory.h"
#include "data/dataset.h"
#include "train/run_datasets.h"
#include "train/trainer.h"

/* The first of `count` samples with one; `text` is unchanged if all are finite. */
static tg_status look(tg_context *ctx, tg_dataset *dataset, const int64_t *indices, int64_t count,
                      char text[TG_NONFINITE_TEXT]) {
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    char *x = NULL, *y = NULL;
    tg_status status = TG_OK;
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, x, facts.x_bytes));
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, y, facts.y_bytes));
    for (int64_t i = 0; i < count; i++) {
        TG_TRY(tg_dataset_read(dataset, &indices[i], 1, x, y));
        if (tg_dataset_find_nonfinite(dataset, TG_DATA_X, indices[i], x, text) ||
            tg_dataset_find_nonfinite(dataset, TG_DATA_Y, indices[i], y, text)) {
            break;
        }
    }
fail:
    TG_FREE(ctx, x);
    TG_FREE(ctx, y);
    return status;
}

/* Best effort: the run goes on if the sample cannot be found. */
void tg_trainer_find_nonfinite(const tg_trainer *t, int64_t batch, char text[TG_NONFINITE_TEXT]) {
    tg_context quiet = tg_context_branch(t->ctx);
    tg_run_config *config = NULL;
    tg_dataset *again = NULL;
    int64_t *indices = NULL, count = 0;
    const bool is_cached = tg_dataset_get_facts(t->train).cached;
    tg_status status = TG_OK;
    text[0] = '\0';
    TG_TRY(TG_NEW(&quiet, TG_MEM_OTHER, config, 1));
    *config = t->model->config;
    config->data.cache = 0;
    const tg_run_set set = tg_run_train_set(config);
    TG_TRY(is_cached ? TG_OK : tg_run_open_set(&quiet, &quiet, config, &set, &again));
    TG_TRY(TG_ALLOC(&quiet, TG_MEM_OTHER, indices, set.batch));
    TG_TRY(tg_loader_indices(t->loader, t->progress.epoch, batch, indices, &count));
    TG_TRY(look(&quiet, is_cached ? t->train : again, indices, count, text));
fail:
    (void)status;
    TG_FREE(&quiet, indices);
    tg_dataset_close(&again);
    tg_mem_free(&quiet, config);
}
