/* Captures passes, and replays them. */
#include "train/graph_capture.h"

enum { WARM_UP = 1 }; /* steps before the first capture */

/* Elements of an activation below which the host takes longer to ask for a layer than a GPU to
 * compute it. */
static const int64_t launch_bound = (int64_t)64 << 20;

static bool is_wanted(const tg_capture *r) {
    const nn_program *program = &r->fno->run.program;
    const int64_t elements = r->fno->model.planes * program->batch *
                             r->fno->model.config.hidden_channels * program->geometry.padded_pixels;
    return !r->has_failed &&
           (r->graphs == TG_GRAPHS_ON || (r->graphs == TG_GRAPHS_AUTO && elements < launch_bound));
}

static void forget(tg_capture *r) {
    if (r->be && r->be->ops->stream) {
        r->be->ops->stream->graph_destroy(r->be, &r->forward);
        r->be->ops->stream->graph_destroy(r->be, &r->backward);
    }
    r->seen = 0;
}

void tg_capture_destroy(tg_capture *r) {
    forget(r);
}

/* Captures a pass; *out stays NULL, and a note is left, if the backend cannot. */
static tg_status capture(tg_capture *r, const tg_captured_pass *pass, tg_graph **out) {
    const tg_stream_ops *stream = r->be->ops->stream;
    tg_status status = stream->graph_begin(r->be);
    if (status == TG_OK) {
        const tg_status ran = pass->run(pass->user);
        status = stream->graph_end(r->be, out);
        status = ran != TG_OK ? ran : status;
    }
    if (status == TG_OK || status == TG_E_MEMORY) {
        return status;
    }
    stream->graph_destroy(r->be, out);
    r->has_failed = true;
    tg_log(r->be->ctx, TG_LOG_WARN,
           "a step cannot be captured as a graph and is run part by part: %s",
           tg_context_error(r->be->ctx));
    return TG_OK;
}

tg_status tg_capture_forward(tg_capture *r, const tg_tensor *x, const tg_tensor *target,
                             double scale, const tg_captured_pass *pass, bool *fits) {
    tg_status status = TG_OK;
    const int64_t batch = x->shape.dim[0];
    *fits = is_wanted(r) && batch == r->fno->run.program.batch && x->place == r->be->ops->place &&
            target->place == r->be->ops->place;
    if (!*fits) {
        return pass->run(pass->user);
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
    if (r->scale != scale) { /* it is in the loss alone: the backward graph stays */
        r->be->ops->stream->graph_destroy(r->be, &r->forward);
        r->scale = scale;
    }
    if (!r->forward && r->seen >= WARM_UP) {
        TG_TRY(capture(r, pass, &r->forward));
    }
    if (!r->forward) {
        return pass->run(pass->user);
    }
    TG_TRY(r->be->ops->stream->graph_launch(r->be, r->forward));
    nn_forward_replayed(r->fno, batch);
fail:
    return status;
}

static tg_status capture_backward(tg_capture *r, const tg_captured_pass *pass) {
    const uint64_t step = r->fno->step;
    const tg_status status = capture(r, pass, &r->backward);
    if (status == TG_OK) { /* captured or not, nothing has been run */
        nn_backward_undone(r->fno, step);
        if (r->optim && !r->backward) {
            tg_optim_restart_round(r->optim);
        }
    }
    return status;
}

tg_status tg_capture_backward(tg_capture *r, const tg_captured_pass *pass, bool fits) {
    tg_status status = TG_OK;
    const bool is_known = r->backward != NULL;
    if (fits && !r->backward && r->seen >= WARM_UP) {
        TG_TRY(capture_backward(r, pass));
    }
    if (!fits || !r->backward) {
        r->seen += fits ? 1 : 0;
        return pass->run(pass->user);
    }
    TG_TRY(r->be->ops->stream->graph_launch(r->be, r->backward));
    nn_backward_replayed(r->fno);
    if (r->optim && is_known) {
        tg_optim_repeat_round(r->optim);
    }
fail:
    return status;
}
