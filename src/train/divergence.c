/* Runs that diverge: detected at the end of an epoch; and the checkpoint from which to go on.
 *
 * A few samples that are not finite, in training or test data, are no divergence: their batches are
 * skipped, and their errors are NaN from the first evaluation on. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/memory.h"
#include "tensor/element.h"
#include "train/trainer.h"

/* Whether a weight of the network has a NaN or Inf. */
static tg_status look_at_weights(const tg_trainer *t, bool *is_broken) {
    tg_backend *be = t->model->be;
    *is_broken = false;
    for (int i = 0; i < tg_fno_param_count(t->model->fno) && !*is_broken; i++) {
        const tg_tensor weight = tg_fno_get_param(t->model->fno, i).weight;
        tg_norms norms;
        TG_CALL(be->ops->norms(be, weight.dtype, tg_tensor_numel(&weight), weight.data, &norms));
        *is_broken = norms.nonfinite > 0;
    }
    return TG_OK;
}

/* Batches of the epoch with a finite loss: all but the last one have the same size. */
static int64_t finite_batches(const tg_trainer *t) {
    const int64_t size = t->model->config.data.batch_size;
    return (t->progress.samples + size - 1) / size;
}

tg_status tg_trainer_judge_epoch(tg_trainer *t, const tg_train_epoch *epoch, bool is_last) {
    tg_progress *p = &t->progress;
    bool is_broken = false;
    TG_CALL(is_last ? look_at_weights(t, &is_broken) : TG_OK);
    const bool has_error = epoch->test_count > 0 && isfinite(p->best); /* from an earlier epoch */
    p->diverged = 2 * finite_batches(t) < tg_loader_batches(t->loader)      ? TG_DIVERGED_LOSS
                  : is_broken                                               ? TG_DIVERGED_WEIGHTS
                  : has_error && !isfinite(tg_trainer_best_error(t, epoch)) ? TG_DIVERGED_ERROR
                                                                            : TG_DIVERGED_NOT;
    return TG_OK;
}

static bool is_finite(const tg_tensor *weight) {
    bool is_finite = true;
    for (int64_t i = 0; is_finite && i < tg_tensor_numel(weight); i++) {
        const tg_scalar value = tg_load(weight->dtype, weight->data, i);
        is_finite = isfinite(value.re) && isfinite(value.im);
    }
    return is_finite;
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
        is_good = weight && is_finite(weight);
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
        const tg_status status = i < count ? tg_run_folder_checkpoint(&t->folder, steps[i], path)
                                           : tg_run_folder_file(&t->folder, TG_BEST, path);
        epoch = status == TG_OK && access(path, R_OK) == 0 ? good_epoch(t, path) : -1;
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
        [TG_DIVERGED_ERROR] = "its test error is not finite any more"};
    char good[TG_GOOD_TEXT];
    return !t->progress.diverged
               ? TG_OK
               : tg_fail(t->ctx, TG_E_NUMERIC,
                         "the run has diverged: %s; a lower opt.learning_rate or opt.max_grad_norm "
                         "may help%s",
                         signs[t->progress.diverged], tg_trainer_last_good(t, good));
}
