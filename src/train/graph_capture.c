/* Captures the passes of a step, and replays them. */
#include "train/step.h"

enum { WARM_UP = 1 }; /* steps before the first capture */

static bool is_wanted(const tg_capture *c) {
    return !c->has_failed && nn_can_capture(c->fno) &&
           (c->graphs == TG_GRAPHS_ON ||
            (c->graphs == TG_GRAPHS_AUTO && nn_is_launch_bound(c->fno)));
}

static void forget(tg_capture *c) {
    if (c->be && c->be->ops->stream) {
        c->be->ops->stream->graph_destroy(c->be, &c->forward);
        c->be->ops->stream->graph_destroy(c->be, &c->backward);
    }
    c->seen = 0;
}

void tg_capture_destroy(tg_capture *c) {
    forget(c);
}

static tg_status capture(tg_capture *c, const nn_captured_pass *pass, tg_graph **out) {
    const tg_status status = nn_capture(c->be, pass, out);
    c->has_failed = status == TG_OK && !*out;
    return status;
}

tg_status tg_capture_forward(tg_capture *c, const tg_tensor *x, const tg_tensor *target,
                             double scale, const nn_captured_pass *pass, bool *fits) {
    const int64_t batch = x->shape.dim[0];
    *fits = is_wanted(c) && batch == c->fno->run.program.whole && x->place == c->be->ops->place &&
            target->place == c->be->ops->place;
    if (!*fits) {
        return pass->run(pass->user);
    }
    if (c->x != x->data || c->target != target->data || c->preparation != c->fno->preparations) {
        forget(c);
        c->x = x->data;
        c->target = target->data;
        c->preparation = c->fno->preparations;
    }
    if (c->scale != scale) { /* only the loss depends on it: the backward graph stays */
        c->be->ops->stream->graph_destroy(c->be, &c->forward);
        c->scale = scale;
    }
    if (!c->forward && c->seen >= WARM_UP) {
        TG_CALL(capture(c, pass, &c->forward));
    }
    if (!c->forward) {
        return pass->run(pass->user);
    }
    TG_CALL(c->be->ops->stream->graph_launch(c->be, c->forward));
    nn_forward_replayed(c->fno, batch);
    return TG_OK;
}

static tg_status capture_backward(tg_capture *c, const nn_captured_pass *pass) {
    const uint64_t step = c->fno->step;
    const tg_status status = capture(c, pass, &c->backward);
    if (status == TG_OK) { /* captured or not, nothing has run */
        nn_backward_undone(c->fno, step);
        if (c->optim && !c->backward) {
            tg_optim_restart_round(c->optim);
        }
    }
    return status;
}

tg_status tg_capture_backward(tg_capture *c, const nn_captured_pass *pass, bool fits) {
    const bool is_known = c->backward != NULL;
    if (fits && !c->backward && c->seen >= WARM_UP) {
        TG_CALL(capture_backward(c, pass));
    }
    if (!fits || !c->backward) {
        c->seen += fits ? 1 : 0;
        return pass->run(pass->user);
    }
    TG_CALL(c->be->ops->stream->graph_launch(c->be, c->backward));
    nn_backward_replayed(c->fno);
    if (c->optim && is_known) {
        tg_optim_repeat_round(c->optim);
    }
    return TG_OK;
}
