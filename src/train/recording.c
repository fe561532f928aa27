/* Recording, and running again. */
#include "train/recording.h"

enum { WARM_UP = 1 }; /* steps before the first recording */

/* Elements of an activation below which the host takes longer to ask for a layer than a GPU to
 * compute it. */
static const int64_t launch_bound = (int64_t)64 << 20;

static bool is_wanted(const tg_recording *r) {
    const nn_program *program = &r->fno->run.program;
    const int64_t elements = r->fno->model.planes * program->batch *
                             r->fno->model.config.hidden_channels * program->geometry.padded_pixels;
    return !r->has_failed &&
           (r->graphs == TG_GRAPHS_ON || (r->graphs == TG_GRAPHS_AUTO && elements < launch_bound));
}

static void forget(tg_recording *r) {
    if (r->be && r->be->ops->queue) {
        r->be->ops->queue->graph_destroy(r->be, &r->forward);
        r->be->ops->queue->graph_destroy(r->be, &r->backward);
    }
    r->seen = 0;
}

void tg_recording_destroy(tg_recording *r) {
    forget(r);
}

/* Records a half; *out stays NULL, and a note is left, if the backend cannot. */
static tg_status record(tg_recording *r, const tg_half *half, tg_graph **out) {
    const tg_queue_ops *queue = r->be->ops->queue;
    tg_status status = queue->graph_begin(r->be);
    if (status == TG_OK) {
        const tg_status ran = half->run(half->user);
        status = queue->graph_end(r->be, out);
        status = ran != TG_OK ? ran : status;
    }
    if (status == TG_OK || status == TG_E_MEMORY) {
        return status;
    }
    queue->graph_destroy(r->be, out);
    r->has_failed = true;
    tg_log(r->be->ctx, TG_LOG_WARN, "a step cannot be recorded and is run part by part: %s",
           tg_context_error(r->be->ctx));
    return TG_OK;
}

tg_status tg_recording_forward(tg_recording *r, const tg_tensor *x, const tg_tensor *target,
                               double scale, const tg_half *half, bool *fits) {
    tg_status status = TG_OK;
    const int64_t batch = x->shape.dim[0];
    *fits = is_wanted(r) && batch == r->fno->run.program.batch && x->place == r->be->ops->place &&
            target->place == r->be->ops->place;
    if (!*fits) {
        return half->run(half->user);
    }
    const int64_t moves = r->optim ? r->optim->moves : 0;
    if (r->x != x->data || r->target != target->data || r->preparation != r->fno->preparations ||
        r->moves != moves) {
        forget(r);
        r->x = x->data;
        r->target = target->data;
        r->preparation = r->fno->preparations;
        r->moves = moves;
    }
    if (r->scale != scale) { /* it is in the loss alone: the backward half stays */
        r->be->ops->queue->graph_destroy(r->be, &r->forward);
        r->scale = scale;
    }
    if (!r->forward && r->seen >= WARM_UP) {
        TG_TRY(record(r, half, &r->forward));
    }
    if (!r->forward) {
        return half->run(half->user);
    }
    TG_TRY(r->be->ops->queue->graph_launch(r->be, r->forward));
    nn_forward_replayed(r->fno, batch);
fail:
    return status;
}

static tg_status record_backward(tg_recording *r, const tg_half *half) {
    const uint64_t step = r->fno->step;
    const tg_status status = record(r, half, &r->backward);
    if (status == TG_OK) { /* recorded or not, nothing has been run */
        nn_backward_undone(r->fno, step);
        if (r->optim && !r->backward) {
            tg_optim_restart_round(r->optim);
        }
    }
    return status;
}

tg_status tg_recording_backward(tg_recording *r, const tg_half *half, bool fits) {
    tg_status status = TG_OK;
    const bool is_known = r->backward != NULL;
    if (fits && !r->backward && r->seen >= WARM_UP) {
        TG_TRY(record_backward(r, half));
    }
    if (!fits || !r->backward) {
        r->seen += fits ? 1 : 0;
        return half->run(half->user);
    }
    TG_TRY(r->be->ops->queue->graph_launch(r->be, r->backward));
    nn_backward_replayed(r->fno);
    if (r->optim && is_known) {
        tg_optim_repeat_round(r->optim);
    }
fail:
    return status;
}
