/* Runs that diverge: detected at the end of an epoch; and the checkpoint from which to go on.
 *
 * A few samples that are not finite, in training or test data, are no divergence: their batches are
 * skipped, and their errors are NaN from the first evaluation on. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "train/run_datasets.h"
#include "train/trainer.h"

/* Batches of the epoch with a finite loss: all but the last one have the same size. */
static int64_t finite_batches(const tg_trainer *t) {
    const int64_t size = t->model->config.data.batch_size;
    return (t->progress.samples + size - 1) / size;
}

/* Whether most updates of the epoch were refused: their gradients overflow, so the losses, which
 * are finite, will not fall any more. */
static bool refuses_most(const tg_trainer *t) {
    const tg_optim_stats now = tg_optim_get_stats(t->optim), *start = &t->stats_start;
    return now.skipped - start->skipped > now.steps - start->steps;
}

tg_status tg_trainer_judge_epoch(tg_trainer *t, const tg_train_epoch *epoch, bool is_last) {
    tg_progress *p = &t->progress;
    int64_t broken = 0, weights = 0;
    TG_CALL(tg_optim_synchronize(t->optim));
    TG_CALL(is_last ? tg_fno_nonfinite(t->model->fno, &broken, &weights) : TG_OK);
    const bool has_error = epoch->test_count > 0 && isfinite(p->best); /* from an earlier epoch */
    p->diverged = 2 * finite_batches(t) < tg_loader_batches(t->loader)      ? TG_DIVERGED_LOSS
                  : broken > 0                                              ? TG_DIVERGED_WEIGHTS
                  : has_error && !isfinite(tg_trainer_best_error(t, epoch)) ? TG_DIVERGED_ERROR
                  : refuses_most(t)                                         ? TG_DIVERGED_UPDATES
                                                                            : TG_DIVERGED_NOT;
    return TG_OK;
}

static bool is_finite(tg_context *ctx, const tg_tensor *weight) {
    tg_tensor_stats stats;
    return tg_tensor_get_stats(ctx, weight, &stats) == TG_OK &&
           stats.nan_count + stats.inf_count == 0;
}

/* The epoch of a checkpoint that a run can resume from; -1: it is damaged or had diverged. */
static int64_t good_epoch(tg_trainer *t, const char *path) {
    tg_archive *archive = NULL;
    tg_progress progress = {0};
    bool is_good = tg_checkpoint_read(t->ctx, path, true, &archive) == TG_OK &&
                   tg_checkpoint_load_progress(t->ctx, path, archive, &progress) == TG_OK &&
                   !progress.diverged;
    for (int i = 0; is_good && i < tg_fno_param_count(t->model->fno); i++) {
        const tg_tensor *weight = tg_archive_find(archive, tg_fno_get_param(t->model->fno, i).name);
        is_good = weight && is_finite(t->ctx, weight);
    }
    tg_archive_destroy(&archive);
    return is_good ? progress.epoch : -1;
}

const char *tg_trainer_last_good(tg_trainer *t, char text[TG_GOOD_TEXT]) {
    int64_t *steps = NULL, count = 0, epoch = -1;
    char path[TG_PATH];
    tg_trainer_end_saving(t); /* one may still be in progress */
    if (tg_run_folder_steps(&t->folder, &steps, &count) != TG_OK) {
        count = 0;
    }
    for (int64_t i = 0; i <= count && epoch < 0; i++) { /* after them, the best one */
        const char *file = i < count ? tg_run_folder_checkpoint(&t->folder, steps[i], path)
                                     : tg_run_folder_file(&t->folder, TG_BEST, path);
        epoch = access(file, R_OK) == 0 ? good_epoch(t, file) : -1;
    }
    tg_mem_free(t->ctx, steps);
    if (epoch < 0) {
        snprintf(text, TG_GOOD_TEXT, "; there is no good checkpoint");
    } else {
        snprintf(text, TG_GOOD_TEXT, "; the last good checkpoint is %s, of epoch %lld", path,
                 (long long)epoch);
    }
    return text;
}

tg_status tg_trainer_check_divergence(tg_trainer *t) {
    static const char *const signs[TG_DIVERGED_COUNT] = {
        [TG_DIVERGED_LOSS] = "most batches of its last epoch had no finite loss",
        [TG_DIVERGED_WEIGHTS] = "its weights are not finite",
        [TG_DIVERGED_ERROR] = "its test error is not finite any more",
        [TG_DIVERGED_UPDATES] = "most updates of its last epoch were skipped"};
    char good[TG_GOOD_TEXT];
    return !t->progress.diverged
               ? TG_OK
               : tg_fail(t->ctx, TG_E_NUMERIC,
                         "the run has diverged: %s; a lower opt.learning_rate or opt.max_grad_norm "
                         "may help%s",
                         signs[t->progress.diverged], tg_trainer_last_good(t, good));
}

/* ---- the sample of a batch that has a NaN or Inf ----
 *
 * A cached set is searched in place; a streamed one is opened again, once per stage, since the
 * prefetching thread is reading the other one, and so is one of slabs, which is searched whole. */

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

static tg_status find(tg_trainer *t, int64_t batch, char text[TG_NONFINITE_TEXT]) {
    tg_context *ctx = &t->searcher;
    tg_run_config config = t->model->config;
    const bool is_cached = tg_dataset_get_facts(t->train).cached && !nn_is_split(&config.split);
    int64_t *indices = NULL, count = 0;
    tg_status status = TG_OK;
    const tg_run_set set = tg_run_train_set(&config);
    config.data.cache = 0;
    config.split = (nn_split){0}; /* whole samples */
    if (!is_cached && !t->searched) {
        TG_TRY(tg_run_open_set(ctx, ctx, &config, &set, &t->searched));
    }
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, indices, set.batch));
    TG_TRY(tg_loader_indices(t->loader, t->progress.epoch, batch, indices, &count));
    TG_TRY(look(ctx, is_cached ? t->train : t->searched, indices, count, text));
fail:
    TG_FREE(ctx, indices);
    return status;
}

void tg_trainer_find_nonfinite(tg_trainer *t, int64_t batch, char text[TG_NONFINITE_TEXT]) {
    text[0] = '\0';
    (void)find(t, batch, text); /* the run goes on if the sample cannot be found */
}
