/* Gradients of parameters are handed over as soon as they are complete, since their buffer is the
 * next op's. A sink may change the parameter at once, so no later op may read it. Gradients that
 * are kept are handed over when backward has ended, before those that come as factors. */
#include "nn/ops.h"
#include "nn/program.h"

static bool reads(const nn_op *op, int first, int count) {
    const int own = op->params > 0 ? op->param : op->reads;
    const int owned = op->params > 0 ? op->params : op->read_count;
    return (owned > 0 && own < first + count && first < own + owned) ||
           (op->gate >= first && op->gate < first + count);
}

static tg_status check(const nn_program *p, int from, const nn_op *sent) {
    for (int i = from; i < p->op_count; i++) {
        if (reads(&p->ops[i], sent->param, sent->params)) {
            return tg_fail(p->ctx, TG_E_UNSUPPORTED,
                           "the gradient of %s would leave before an op of kind %s reads the "
                           "parameter for the last time",
                           p->model->params[sent->param].name, nn_kind_of(p->ops[i].kind)->name);
        }
    }
    return TG_OK;
}

/* Adds a hand-over after op number i, if it completes gradients. */
static tg_status send(nn_program *p, const nn_program *old, int i) {
    const nn_op *op = &old->ops[i];
    if (i < old->backward_begin || op->params < 1 || op->kind == NN_HAND_OVER_FACTORS) {
        return TG_OK;
    }
    nn_op leave = nn_op_make(NN_HAND_OVER);
    leave.param = op->param;
    leave.params = op->params;
    const bool waits = p->keeps_gradients && op->phase != old->spectral_phase;
    leave.phase = waits ? nn_phase_named(p, "small parameters", true) : op->phase;
    leave.block = op->block;
    nn_op_append(p, &leave);
    return p->keeps_gradients ? TG_OK : check(old, i + 1, &leave);
}

tg_status nn_pass_hand_over(nn_program *p) {
    tg_status status = TG_OK;
    nn_program old = *p;
    const int factors = nn_sharing_begins(&old);
    p->ops = NULL;
    p->op_capacity = p->op_count = 0;
    for (int i = 0; i < factors && status == TG_OK; i++) {
        nn_op_append(p, &old.ops[i]);
        status = p->keeps_gradients ? TG_OK : send(p, &old, i);
    }
    p->backward_end = p->op_count;
    for (int i = 0; i < factors && p->keeps_gradients && status == TG_OK; i++) {
        status = send(p, &old, i);
    }
    for (int i = factors; i < old.op_count && status == TG_OK; i++) {
        nn_op_append(p, &old.ops[i]);
        status = send(p, &old, i);
    }
    tg_mem_free(p->ctx, old.ops);
    return status == TG_OK ? p->status : status;
}
