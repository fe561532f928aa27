/* One training step: forward and loss, then backward with the update. On a stream the result of an
 * ordinary step is late: it is read when the forward pass of the next one is queued.
 *
 *   tg_step_forward k      queues forward and loss; the loss scale of step k
 *   tg_step_synchronize    waits for the late result of step k - 1; counts its updates
 *   tg_step_backward k     queues backward and updates, then the late result of step k; or, if
 *                          something has to be known before (backward_now), reads the loss first */
#include "tgrad/step.h"

#include <math.h>

#include "base/context.h"
#include "optim/ranks.h"
#include "train/step.h"

struct tg_step {
    tg_context *ctx;
    tg_backend *be;
    tg_step_config config;
    bool may_be_late;    /* nothing has to be known before backward */
    tg_tensor x, target; /* of the current forward: clipping runs it again */
    int64_t samples;     /* of all ranks, in the current forward */
    double scale;        /* of its loss */
    double *loss;        /* (steps of a rollout) on the backend */
    tg_late_result late; /* the loss of a step in flight, if there is a stream */
    tg_capture capture;
    tg_exchange *exchange; /* with other ranks; NULL: none */
    tg_rollout *rollout;   /* NULL: one step of the network */
    bool has_forward;      /* it awaits its backward */
    bool fits_capture;     /* the current forward */
    tg_step_result result; /* of the last backward */
};

/* Ranks that have other samples; NULL: none. */
static tg_comm *others(const tg_step *s) {
    tg_comm *comm = s->config.domain ? s->config.replicas : s->config.comm;
    return s->exchange && !tg_comm_is_alone(comm) ? comm : NULL;
}

/* Whether the backward pass only accumulates gradients. */
static bool sums(const tg_step *s) {
    return s->config.accumulates || s->exchange ||
           (s->rollout && s->config.rollout_gradients == TG_ROLLOUT_ALL);
}

tg_status tg_step_share_workspace(tg_fno *fno, tg_optim *optim) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, optim);
    if (optim->ctx != fno->ctx) {
        return tg_fail(fno->ctx, TG_E_ARGUMENT,
                       "workspace: network and optimizer are of two contexts, it takes one");
    }
    return tg_optim_share_workspace(optim, nn_share(fno, &optim->needs));
}

/* ---- life ---- */

void tg_step_destroy(tg_step **step) {
    if (!step || !*step) {
        return;
    }
    tg_step *s = *step;
    tg_capture_destroy(&s->capture);
    tg_exchange_destroy(&s->exchange);
    tg_rollout_destroy(&s->rollout);
    if (s->be && s->be->ops->stream) {
        (void)s->be->ops->synchronize(s->be); /* a loss copied to memory about to be freed */
        tg_late_destroy(s->be, &s->late);
    }
    if (s->be) {
        s->be->ops->release(s->be, s->loss);
    }
    TG_FREE(s->ctx, *step);
}

static tg_status open_exchange(tg_step *s) {
    const tg_step_config *config = &s->config;
    const tg_optim *optim = config->optim;
    if (tg_comm_is_alone(config->comm) &&
        !(optim && (optim->shard_ranks > 1 || optim->parts > 1))) {
        return TG_OK;
    }
    const bool overlaps =
        config->overlaps && !config->accumulates && config->rollout_steps < 2; /* the only pass */
    return tg_exchange_create(s->ctx, config, overlaps, &s->exchange);
}

tg_status tg_step_create(tg_context *ctx, const tg_step_config *config, tg_step **out) {
    TG_NEED_OUT(ctx, out, ctx, config);
    tg_status status = TG_OK;
    tg_step *s = NULL;
    tg_step_config full = {.size = sizeof full, .loss = tg_loss_config_default()};
    TG_TRY(TG_SIZED_READ(ctx, tg_step_config, optim, config, &full));
    config = &full;
    TG_NEED(ctx, config->fno);
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, s, 1));
    s->ctx = ctx;
    s->config = *config;
    if (config->optim && config->optim->shares_workspace && !config->optim->shared) {
        TG_TRY(tg_step_share_workspace(config->fno, config->optim));
    }
    TG_TRY(open_exchange(s));
    TG_TRY(tg_backend_get(ctx, &s->be));
    const bool rolls_out = config->rollout_steps > 1;
    TG_TRY(rolls_out ? tg_rollout_create(ctx, config, &s->rollout) : TG_OK);
    TG_TRY(nn_loss_fits(s->be, &config->loss, tg_fno_get_config(config->fno)));
    TG_TRY(TG_BACKEND_ALLOC(s->be, TG_MEM_OTHER, s->loss,
                            (size_t)(rolls_out ? config->rollout_steps : 1) * sizeof *s->loss));
    if (s->be->ops->stream) {
        TG_TRY(tg_late_create(s->be, s->loss, sizeof *s->loss, &s->late));
        /* the dropout masks depend on the number of steps made */
        const bool streams =
            s->exchange && !config->accumulates && tg_exchange_can_stream(s->exchange);
        s->may_be_late = (streams || !sums(s)) && !rolls_out && !(config->max_grad_norm > 0.0) &&
                         tg_fno_get_config(config->fno)->channel_mlp_dropout == 0.0;
    }
    s->capture = (tg_capture){.be = s->be,
                              .fno = config->fno,
                              .optim = config->optim,
                              .graphs = s->may_be_late ? config->graphs : TG_GRAPHS_OFF};
    *out = s;
    return TG_OK;
fail:
    tg_step_destroy(&s);
    return status;
}

/* ---- the passes ---- */

static tg_status drop(void *user, const tg_gradient *gradient) {
    (void)user;
    (void)gradient;
    return TG_OK;
}

static tg_grad_sink sink_of(const tg_step *s) {
    tg_optim *optim = s->config.optim;
    return !optim        ? (tg_grad_sink){.receive = drop}
           : s->exchange ? tg_exchange_sink(s->exchange)
           : sums(s)     ? tg_optim_accumulate_sink(optim)
                         : tg_optim_sink(optim);
}

static tg_status run_forward(void *user) {
    const tg_step *s = user;
    return s->rollout ? tg_rollout_forward(s->rollout, &s->x, &s->target, s->scale, s->loss)
                      : nn_forward_loss(s->config.fno, &s->x, &s->target, &s->config.loss, s->scale,
                                        s->loss);
}

static tg_status run_backward(void *user) {
    const tg_step *s = user;
    const tg_grad_sink sink = sink_of(s);
    return s->rollout ? tg_rollout_backward(s->rollout, &sink)
                      : tg_fno_backward(s->config.fno, NULL, &sink);
}

/* Includes the whole update, without waiting. */
static tg_status run_whole_backward(void *user) {
    const tg_step *s = user;
    const tg_tensor loss = tg_backend_view(s->be, TG_F64, &(tg_shape){1, {1}}, s->loss);
    const tg_status status = run_backward(user);
    return status == TG_OK && s->exchange ? tg_exchange_stream(s->exchange, &loss) : status;
}

/* For a batch without samples on this rank. */
static tg_status add_nothing(const tg_step *s) {
    for (int i = 0; i < s->config.optim->slot_count; i++) {
        TG_CALL(tg_sum_add_nothing(s->config.optim, i));
    }
    return TG_OK;
}

/* A backward for the norm alone, then the forward pass again. */
static tg_status clip(tg_step *s) {
    const tg_grad_sink norms = tg_optim_norm_sink(s->config.optim);
    const uint64_t step = tg_fno_step(s->config.fno);
    double norm = 0.0;
    tg_optim_clip_begin(s->config.optim);
    TG_CALL(tg_fno_backward(s->config.fno, NULL, &norms));
    TG_CALL(tg_optim_clip(s->config.optim, s->config.max_grad_norm, &norm));
    tg_fno_set_step(s->config.fno, step); /* repeats the dropout masks */
    return run_forward(s);
}

tg_status tg_step_set_rollout_steps(tg_step *s, int64_t steps) {
    TG_NEED(NULL, s);
    if (!s->rollout) {
        return steps == 1 ? TG_OK
                          : tg_fail(s->ctx, TG_E_ARGUMENT, "step: it was not made for rollouts");
    }
    return tg_rollout_set_steps(s->rollout, steps);
}

tg_status tg_step_forward(tg_step *s, const tg_tensor *x, const tg_tensor *target) {
    TG_NEED(NULL, s);
    TG_NEED(s->ctx, x, target);
    const nn_captured_pass pass = {run_forward, s};
    s->x = *x;
    s->target = *target;
    s->scale = s->config.optim
                   ? tg_loss_scale_of_step(&s->config.optim->loss_scale, s->late.is_pending)
                   : 1.0;
    if (s->exchange && x->shape.dim[0] == 0) { /* only other ranks have samples */
        tg_fno_set_step(s->config.fno, tg_fno_step(s->config.fno) + 1);
        s->has_forward = true;
        return TG_OK;
    }
    const tg_status status =
        tg_capture_forward(&s->capture, x, target, s->scale, &pass, &s->fits_capture);
    s->has_forward = status == TG_OK;
    return status;
}

/* The loss of the batch over all ranks. */
static tg_status learn_loss(tg_step *s, bool is_empty) {
    double sum = 0.0;
    const int64_t losses = is_empty ? 0 : s->rollout ? tg_rollout_losses(s->rollout) : 1;
    for (int64_t i = 0; i < losses; i++) {
        double loss = 0.0;
        TG_CALL(s->be->ops->download(s->be, &loss, s->loss + i, sizeof loss));
        sum += loss / (double)losses;
    }
    TG_CALL(others(s) ? tg_comm_all_reduce_f64(others(s), TG_COMM_SUM, 1, &sum) : TG_OK);
    s->result = (tg_step_result){.samples = s->samples, .loss = sum};
    return TG_OK;
}

/* Reads the loss first. */
static tg_status backward_now(tg_step *s) {
    const bool is_empty = s->exchange && s->x.shape.dim[0] == 0;
    TG_CALL(learn_loss(s, is_empty));
    if (!isfinite(s->result.loss)) {
        if (s->config.optim && !s->config.accumulates) {
            tg_optim_step_ended(s->config.optim, true);
        }
        return TG_OK;
    }
    if (s->config.optim && s->config.max_grad_norm > 0.0 && !sums(s)) {
        TG_CALL(clip(s));
    }
    TG_CALL(is_empty ? add_nothing(s) : run_backward(s));
    if (s->config.optim && !s->config.accumulates) {
        TG_CALL(sums(s) ? tg_step_apply(s) : tg_optim_end_update(s->config.optim));
    }
    return TG_OK;
}

tg_status tg_step_apply(tg_step *s) {
    TG_NEED(NULL, s);
    TG_NEED(s->ctx, s->config.optim);
    tg_optim *optim = s->config.optim;
    TG_CALL(s->exchange ? tg_exchange_sums(s->exchange, s->config.max_grad_norm > 0.0) : TG_OK);
    if (s->config.max_grad_norm > 0.0) {
        double norm = 0.0;
        TG_CALL(tg_optim_clip_accumulated(optim, s->config.max_grad_norm, &norm));
    }
    for (int i = 0; i < tg_fno_param_count(s->config.fno); i++) {
        const tg_fno_param param = tg_fno_get_param(s->config.fno, i);
        TG_CALL(s->exchange ? tg_exchange_apply(s->exchange, i, &param.weight)
                            : tg_optim_apply(optim, i, &param.weight));
    }
    return tg_optim_end_update(optim);
}

/* Guards decide about the updates: they see the NaN of a loss that is not finite. */
static tg_status backward_later(tg_step *s) {
    if (s->config.optim) {
        TG_CALL(tg_optim_plan_round(s->config.optim));
    }
    TG_CALL(s->exchange ? tg_exchange_begin_stream(s->exchange) : TG_OK);
    const tg_status ran = tg_capture_backward(
        &s->capture, &(nn_captured_pass){run_whole_backward, s}, s->fits_capture);
    TG_CALL(s->exchange ? tg_exchange_end_stream(s->exchange, ran) : ran);
    if (s->config.optim) {
        TG_CALL(tg_optim_send_round(s->config.optim));
    }
    return tg_late_send(s->be, &s->late);
}

/* Adds up the samples of all ranks. All ranks capture the same passes: none of a batch of which
 * some rank has less than its part. *is_empty: a rank has none, and makes no pass. */
static tg_status compare_batches(tg_step *s, bool *is_empty) {
    const int64_t own = s->x.shape.dim[0];
    const int ranks = tg_comm_ranks(others(s));
    const bool is_whole = own == s->config.fno->run.program.whole && !s->capture.has_failed;
    double votes[2] = {(double)own, own == 0 ? ranks + 1 : is_whole ? 0 : 1};
    const tg_status status = tg_comm_all_reduce_f64(others(s), TG_COMM_SUM, 2, votes);
    s->samples = (int64_t)votes[0];
    s->fits_capture = s->fits_capture && votes[1] == 0.0;
    *is_empty = votes[1] > ranks;
    return status;
}

tg_status tg_step_backward(tg_step *s) {
    TG_NEED(NULL, s);
    tg_optim *optim = s->config.optim;
    if (s->late.is_pending) {
        return tg_fail(s->ctx, TG_E_ARGUMENT,
                       "step: the one before is in flight: tg_step_synchronize first");
    }
    if (!s->has_forward) {
        return tg_fail(s->ctx, TG_E_ARGUMENT, "step: backward needs a tg_step_forward before it");
    }
    s->has_forward = false;
    s->result.samples = 0;
    if (optim) {
        TG_CALL(tg_optim_synchronize(optim));
        optim->loss_scale.used = s->scale;
    }
    bool is_empty = false;
    s->samples = s->x.shape.dim[0];
    TG_CALL(others(s) ? compare_batches(s, &is_empty) : TG_OK);
    const bool late = s->may_be_late && !is_empty && (!optim || tg_optim_is_ordinary(optim));
    if (late) {
        TG_CALL(backward_later(s));
        s->result.samples = s->samples;
    } else {
        TG_CALL(backward_now(s));
    }
    return TG_OK;
}

/* ---- the result ---- */

bool tg_step_is_late(const tg_step *s) {
    return s && s->late.is_pending;
}

static tg_status synchronize_late(tg_step *s) {
    tg_fno *fno = s->config.fno;
    TG_CALL(tg_late_wait(s->be, &s->late));
    s->result.loss = *(const double *)s->late.values;
    if (isfinite(s->result.loss)) {
        TG_CALL(s->config.optim ? tg_optim_synchronize(s->config.optim) : TG_OK);
    } else {
        tg_fno_set_step(fno, tg_fno_step(fno) - 1); /* it did not count */
        TG_CALL(s->config.optim ? tg_optim_forget_round(s->config.optim) : TG_OK);
    }
    if (s->config.optim) {
        tg_optim_step_ended(s->config.optim, !isfinite(s->result.loss));
    }
    return TG_OK;
}

tg_status tg_step_synchronize(tg_step *s, tg_step_result *out) {
    TG_NEED(NULL, s);
    TG_NEED(s->ctx, out);
    const tg_status status = s->late.is_pending ? synchronize_late(s) : TG_OK;
    *out = status == TG_OK ? s->result : (tg_step_result){0};
    s->result = (tg_step_result){0};
    return status;
}
