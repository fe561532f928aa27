/* The training loop: batches, epochs and stages, reports and checkpoints. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/system.h"
#include "train/config.h"
#include "train/step.h"
#include "train/trainer.h"

/* Prepares for training steps; called before each epoch, since evaluation uses other sizes. */
static tg_status prepare_training(tg_trainer *t) {
    const tg_dataset_facts facts = tg_dataset_get_facts(t->train);
    const tg_run_config *config = &t->model->config;
    if (!t->step) {
        const tg_step_config step = {.size = sizeof(tg_step_config),
                                     .fno = t->model->fno,
                                     .optim = t->optim,
                                     .loss = tg_model_loss(t->model),
                                     .accumulates = config->loop.accumulation_steps > 1,
                                     .max_grad_norm = config->loop.max_grad_norm,
                                     .graphs = config->loop.graphs,
                                     .comm = t->comm,
                                     .domain = t->split.comm,
                                     .replicas = t->replicas,
                                     .overlaps = config->distributed.overlap,
                                     .rollout_steps = config->loop.rollout_steps,
                                     .rollout_gradients = config->loop.rollout_gradients,
                                     .x_normalizer = t->model->encoder[TG_DATA_X],
                                     .y_normalizer = t->model->encoder[TG_DATA_Y]};
        TG_CALL(tg_optim_set_loss_scale(t->optim, &config->loss_scale));
        TG_CALL(tg_step_create(t->ctx, &step, &t->step));
    }
    TG_CALL(
        tg_step_set_rollout_steps(t->step, tg_run_rollout_steps(config, t->progress.stage_epoch)));
    return tg_model_prepare(t->model, tg_run_local_batch(config), facts.grid, true);
}

/* ---- one update ---- */

static tg_status refuse_loss(tg_trainer *t, double loss) {
    tg_progress *p = &t->progress;
    char good[TG_GOOD_TEXT], place[TG_NONFINITE_TEXT];
    p->skipped++;
    p->skipped_row++;
    tg_trainer_find_nonfinite(t, p->batch - 1, place);
    tg_log(t->ctx, TG_LOG_WARN, "epoch %lld, batch %lld: the loss is %g; the batch is skipped%s%s",
           (long long)p->epoch + 1, (long long)p->batch, isnan(loss) ? (double)NAN : loss,
           place[0] ? ": " : "", place);
    if (p->skipped_row >= t->model->config.loop.nonfinite_limit) {
        return tg_fail(t->ctx, TG_E_NUMERIC,
                       "the loss was not finite %lld times in a row (opt.nonfinite_limit), last at "
                       "epoch %lld, batch %lld; a lower opt.learning_rate or opt.max_grad_norm may "
                       "help%s",
                       (long long)p->skipped_row, (long long)p->epoch + 1, (long long)p->batch,
                       tg_trainer_last_good(t, good));
    }
    return TG_OK;
}

/* Waits for the last batch that began backward, number p->batch counted from 1; counts it, and ends
 * the update if it completes one. */
static tg_status finish_batch(tg_trainer *t) {
    tg_progress *p = &t->progress;
    const int64_t micro = t->model->config.loop.accumulation_steps;
    tg_step_result result;
    TG_CALL(tg_step_synchronize(t->step, &result));
    if (result.samples == 0) {
        return TG_OK;
    }
    if (isfinite(result.loss)) {
        p->skipped_row = 0;
        p->loss_sum += result.loss;
        p->samples += result.samples;
        t->summed++;
    } else {
        TG_CALL(refuse_loss(t, result.loss));
    }
    p->fno_step = (int64_t)tg_fno_step(t->model->fno);
    if (t->summed > 0 && (p->batch % micro == 0 || p->batch == tg_loader_batches(t->loader))) {
        TG_CALL(micro > 1 ? tg_step_apply(t->step) : TG_OK);
        t->summed = 0;
        p->step++;
        TG_CALL(tg_trainer_log_projections(t));
    }
    return TG_OK;
}

static tg_status set_rates(tg_trainer *t) {
    const double rate = tg_lr_schedule_rate(&t->progress.schedule, t->progress.step);
    for (int group = 0; group < 2; group++) {
        TG_CALL(tg_optim_set_learning_rate(t->optim, group, rate));
    }
    return TG_OK;
}

/* False with clipping and rollouts, which run the forward pass again. */
static bool is_read_once(const tg_trainer *t) {
    const tg_loop_config *loop = &t->model->config.loop;
    return !(loop->max_grad_norm > 0.0) && loop->rollout_steps == 1;
}

/* The part of a batch that needs no other rank; of a sample over several, once all have read it. */
static tg_status begin_batch(tg_trainer *t) {
    tg_tensor x, y;
    const tg_status status = tg_prefetch_next(t->prefetch, &x, &y);
    TG_CALL(t->split.comm ? tg_trainer_agree(t, status) : status);
    TG_CALL(tg_model_place_points(t->model, &x, NULL));
    TG_CALL(tg_step_forward(t->step, &x, &y));
    return is_read_once(t) ? tg_prefetch_ahead(t->prefetch) : TG_OK;
}

/* One batch: an update or, with accumulation, a part of one. */
static tg_status train_batch(tg_trainer *t) {
    tg_progress *p = &t->progress;
    const tg_status status = begin_batch(t);
    /* the other ranks of a split may be in forward */
    TG_CALL(t->split.comm ? status : tg_trainer_agree(t, status));
    TG_CALL(finish_batch(t)); /* the previous batch */
    TG_CALL(set_rates(t));
    p->batch++;
    TG_CALL(tg_step_backward(t->step));
    TG_CALL(tg_prefetch_recycle(t->prefetch));
    if (!tg_step_is_late(t->step)) {
        TG_CALL(finish_batch(t));
    }
    return TG_OK;
}

/* ---- epochs ---- */

static void report_step(tg_trainer *t, const tg_train_watch *watch, int64_t epochs) {
    if (!watch || !watch->on_step) {
        return;
    }
    const tg_progress *p = &t->progress;
    const int64_t batches = tg_loader_batches(t->loader);
    const double left = (double)(epochs - p->epoch) * (double)batches - (double)p->batch;
    const tg_train_progress progress = {
        .epoch = p->epoch + 1,
        .epochs = epochs,
        .batch = p->batch,
        .batches = batches,
        .step = p->step,
        .loss = p->samples ? p->loss_sum / (double)p->samples : (double)NAN,
        .learning_rate = tg_lr_schedule_rate(&p->schedule, p->step),
        .step_ms = t->timed_steps ? 1e3 * t->step_seconds / (double)t->timed_steps : (double)NAN,
        .seconds_left = t->run_steps ? left * t->run_seconds / (double)t->run_steps : (double)NAN,
        .memory = tg_context_memory(t->ctx, t->model->be->ops->place).current_total};
    watch->on_step(watch->user, &progress);
}

static tg_status evaluate(tg_trainer *t) {
    const double start = tg_seconds();
    tg_status status = TG_OK;
    for (int i = 0; status == TG_OK && i < t->test_count; i++) {
        tg_test_errors_destroy(&t->errors[i]);
        status = tg_model_evaluate_shared(t->model, t->comm, t->tests[i].dataset, t->tests[i].batch,
                                          &t->errors[i]);
        status = t->split.comm ? tg_comm_agree(t->comm, status) : status;
    }
    t->is_evaluated = status == TG_OK;
    t->time.evaluation += tg_seconds() - start;
    return status;
}

/* The epoch for reports; always includes the names of the test sets. */
static tg_train_epoch describe_epoch(const tg_trainer *t, int64_t epochs) {
    const tg_progress *p = &t->progress;
    const tg_optim_stats stats = tg_optim_get_stats(t->optim);
    tg_train_epoch epoch = {
        .epoch = p->epoch + 1,
        .epochs = epochs,
        .step = p->step,
        .learning_rate = tg_lr_schedule_rate(&p->schedule, p->step > 0 ? p->step - 1 : 0),
        .train_loss = p->samples ? p->loss_sum / (double)p->samples : (double)NAN,
        .step_ms = t->timed_steps ? 1e3 * t->step_seconds / (double)t->timed_steps : (double)NAN,
        .tests = t->test_count,
        .test_count = t->is_evaluated ? t->test_count : 0,
        .skipped = p->skipped + stats.skipped,
        .overflows = stats.overflows,
        .loss_scale = tg_optim_loss_scale(t->optim),
        .memory = tg_context_memory(t->ctx, t->model->be->ops->place),
        .seconds = tg_seconds() - t->epoch_start,
        .time = t->time};
    epoch.time.steps = t->step_seconds;
    epoch.time.data = tg_prefetch_waited(t->prefetch);
    for (int i = 0; i < t->test_count; i++) {
        if (t->is_evaluated) {
            epoch.test[i] = t->errors[i];
            epoch.test[i].values = (tg_tensor){0}; /* owned by the trainer */
        }
        memcpy(epoch.test[i].grid, t->tests[i].name, sizeof t->tests[i].name);
    }
    return epoch;
}

/* Whether the stage ends before its last epoch. */
static bool stops_early(const tg_trainer *t) {
    const int64_t patience = t->model->config.loop.early_stopping;
    return patience > 0 && t->progress.waited >= patience;
}

/* Whether the current epoch is the run's last one. */
static bool is_last_epoch(const tg_trainer *t) {
    const bool is_end = t->progress.stage_epoch + 1 >= t->model->config.loop.n_epochs;
    return t->progress.stage == t->stages && (is_end || stops_early(t));
}

/* Metrics, schedule, checkpoints. */
static tg_status record_epoch(tg_trainer *t, const tg_train_watch *watch, int64_t epochs) {
    tg_progress *p = &t->progress;
    const tg_train_epoch epoch = describe_epoch(t, epochs);
    const double error = tg_trainer_best_error(t, &epoch);
    const bool is_best = error < p->best;
    if (t->model->config.loop.early_stopping > 0 && epoch.test_count > 0) {
        p->waited = is_best ? 0 : p->waited + 1;
    }
    TG_CALL(tg_trainer_judge_epoch(t, &epoch, is_last_epoch(t)));
    t->best_before = p->best;
    p->best = is_best ? error : p->best;
    t->is_evaluated = false;
    t->time = (tg_train_time){0};
    tg_lr_schedule_epoch(&p->schedule, epoch.train_loss);
    p->losses[1] = p->losses[0];
    p->losses[0] = epoch.train_loss;
    p->epoch++;
    p->stage_epoch++;
    p->batch = 0;
    p->samples = 0;
    p->loss_sum = 0.0;
    TG_CALL(tg_trainer_writes(t) ? tg_run_folder_log(&t->folder, &epoch) : TG_OK);
    const double start = tg_seconds();
    TG_CALL(tg_trainer_check_saved(t));
    const bool is_newest = tg_phase_saves(&t->model->config.loop, p->stage_epoch) || stops_early(t);
    if (is_best || is_newest) {
        TG_CALL(tg_trainer_save(t, is_best, is_newest));
    }
    t->time.checkpoint += tg_seconds() - start;
    if (watch && watch->on_epoch) {
        watch->on_epoch(watch->user, &epoch);
    }
    return TG_OK;
}

static void count_time(tg_trainer *t, double seconds, int64_t steps) {
    t->step_seconds += seconds;
    t->run_seconds += seconds;
    t->timed_steps += steps;
    t->run_steps += steps;
}

/* All ranks stop if any is asked to. */
static tg_status ask_to_stop(const tg_trainer *t, const tg_train_watch *watch, bool *stopped) {
    double wanted = watch && watch->should_stop && watch->should_stop(watch->user);
    const tg_status status =
        t->comm ? tg_comm_all_reduce_f64(t->comm, TG_COMM_MAX, 1, &wanted) : TG_OK;
    *stopped = wanted > 0.0;
    return status;
}

/* Continues the current epoch to its end; sets *stopped if the watcher asked to stop. Nothing is in
 * flight when it returns. */
static tg_status train_epoch(tg_trainer *t, const tg_train_watch *watch, int64_t epochs,
                             bool *stopped) {
    const int64_t micro = t->model->config.loop.accumulation_steps;
    const int64_t batches = tg_loader_batches(t->loader);
    t->epoch_start = tg_seconds();
    t->stats_start = tg_optim_get_stats(t->optim);
    t->step_seconds = 0.0;
    t->timed_steps = 0;
    TG_CALL(tg_trainer_agree(t, tg_trainer_grow_modes(t)));
    TG_CALL(tg_trainer_agree(t, prepare_training(t)));
    TG_CALL(tg_prefetch_start(t->prefetch, t->progress.epoch, t->progress.batch));
    t->time.prepare += tg_seconds() - t->epoch_start;
    while (t->progress.batch < batches && !*stopped) {
        const double start = tg_seconds();
        TG_CALL(train_batch(t));
        count_time(t, tg_seconds() - start, 1);
        report_step(t, watch, epochs);
        /* Sums under way are not saved: stop between updates. */
        if (t->progress.batch % micro == 0 || t->progress.batch == batches) {
            TG_CALL(ask_to_stop(t, watch, stopped));
        }
    }
    const double start = tg_seconds();
    TG_CALL(finish_batch(t));
    TG_CALL(tg_prefetch_stop(t->prefetch));
    count_time(t, tg_seconds() - start, 0);
    return TG_OK;
}

static tg_run_position position_of(const tg_trainer *t) {
    return (tg_run_position){.loop = &t->model->config.loop,
                             .epoch = t->progress.stage_epoch,
                             .is_last_stage = t->progress.stage == t->stages,
                             .is_stopped = stops_early(t)};
}

static bool is_at_end(const tg_trainer *t) {
    const tg_run_position at = t ? position_of(t) : (tg_run_position){0};
    return t && tg_phase_first(&at) == TG_PHASE_SAMPLES;
}

bool tg_trainer_is_finished(const tg_trainer *t) {
    return is_at_end(t) && !t->progress.diverged && tg_trainer_has_samples(t);
}

tg_train_end tg_trainer_end(const tg_trainer *t) {
    if (!t) {
        return (tg_train_end){0};
    }
    const int64_t refused = tg_optim_get_stats(t->optim).skipped;
    tg_train_end end = {.is_finished = is_at_end(t),
                        .has_diverged = is_at_end(t) && t->progress.diverged,
                        .epoch = t->progress.epoch,
                        .step = t->progress.step,
                        .skipped = t->progress.skipped + refused,
                        .refused = refused,
                        .epochs = tg_run_epochs(t->ctx, t->model->settings)};
    snprintf(end.checkpoint, sizeof end.checkpoint, "%s", t->last_checkpoint);
    return end;
}

/* Fails if no update was ever made: the weights are still the initial ones. */
static tg_status check_updates(tg_trainer *t) {
    const tg_optim_stats stats = tg_optim_get_stats(t->optim);
    if (stats.steps > 0) {
        return TG_OK;
    }
    return tg_fail(
        t->ctx, TG_E_NUMERIC,
        "every update was skipped: %lld losses and %lld gradients were not finite or too "
        "large. The weights are those of the beginning; look for very large or very "
        "small values in the data (tgrad inspect), or normalize it (data.encode_input, "
        "data.encode_output)",
        (long long)t->progress.skipped, (long long)(stats.skipped + stats.overflows));
}

static tg_status open_next_stage(tg_trainer *t) {
    t->progress.stage++;
    t->progress.stage_epoch = 0;
    t->progress.waited = 0;
    return tg_trainer_open_stage(t);
}

/* Warnings about single batches may be far above the end of the log. In a run that has not diverged
 * such batches usually contain samples that are not finite. */
static void report_skipped(const tg_trainer *t) {
    const tg_progress *p = &t->progress;
    if (p->skipped > 0 && !p->diverged) {
        tg_log(t->ctx, TG_LOG_WARN,
               "%lld batch%s of this run had no finite loss and %s skipped; tgrad inspect shows "
               "whether the data are finite",
               (long long)p->skipped, p->skipped == 1 ? "" : "es",
               p->skipped == 1 ? "was" : "were");
    }
}

/* Written after the last checkpoint, since they mark a run as finished. */
static tg_status write_samples(tg_trainer *t) {
    TG_CALL(check_updates(t));
    TG_CALL(tg_trainer_finish_save(t));
    report_skipped(t);
    return tg_trainer_is_in_first_group(t) ? tg_trainer_write_samples(t) : TG_OK;
}

/* A run resumed after its last step was killed while it ended: its last checkpoint may exist only
 * as the best one, or `recent` may not point to it yet. */
static tg_status complete_checkpoint(tg_trainer *t) {
    char newest[TG_PATH];
    tg_run_folder_checkpoint(&t->folder, t->progress.step, newest);
    if (strcmp(t->last_checkpoint, newest) != 0) {
        return tg_trainer_save(t, false, true);
    }
    const int64_t keep = t->model->config.loop.keep_checkpoints;
    return tg_trainer_writes(t) ? tg_run_folder_keep(&t->folder, t->progress.step, keep) : TG_OK;
}

tg_status tg_trainer_run(tg_trainer *t, const tg_train_watch *watch, tg_train_end *end) {
    TG_NEED(NULL, t);
    TG_NEED(t->ctx, end);
    tg_status status = TG_OK;
    bool stopped = false;
    *end = (tg_train_end){0};
    const int64_t epochs = tg_run_epochs(t->ctx, t->model->settings);
    TG_TRY(tg_trainer_agree(t, tg_trainer_enter(t, is_at_end(t) ? 0 : epochs - t->progress.epoch)));
    tg_run_position at = position_of(t);
    TG_TRY(tg_trainer_agree(t, is_at_end(t) ? complete_checkpoint(t) : TG_OK));
    if (t->progress.epoch == 0 && t->progress.batch == 0) {
        TG_TRY(tg_trainer_agree(t, tg_trainer_log_stable_ranks(t, 0)));
    }
    for (tg_phase phase = tg_phase_first(&at); phase != TG_PHASE_END && !stopped;
         phase = tg_phase_after(phase, &at)) {
        switch (phase) {
        case TG_PHASE_OPEN:
            TG_TRY(tg_trainer_agree(t, open_next_stage(t)));
            break;
        case TG_PHASE_TRAIN:
            TG_TRY(train_epoch(t, watch, epochs, &stopped));
            break;
        case TG_PHASE_EVALUATE:
            TG_TRY(evaluate(t));
            TG_TRY(tg_trainer_agree(t, tg_trainer_log_stable_ranks(t, t->progress.epoch + 1)));
            break;
        case TG_PHASE_RECORD:
            TG_TRY(tg_trainer_agree(t, record_epoch(t, watch, epochs)));
            break;
        default:
            TG_TRY(tg_trainer_agree(t, write_samples(t)));
        }
        at = position_of(t);
    }
    TG_TRY(stopped ? tg_trainer_agree(t, tg_trainer_save(t, false, true)) : TG_OK);
    TG_TRY(tg_trainer_agree(t, tg_trainer_finish_save(t)));
    *end = tg_trainer_end(t);
    TG_TRY(stopped ? TG_OK : tg_trainer_agree(t, tg_trainer_check_divergence(t)));
fail:
    tg_trainer_end_saving(t);
    return tg_run_explain(t->ctx, &t->model->config, t->planned, status);
}
