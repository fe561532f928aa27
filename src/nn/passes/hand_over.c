/* Gradients of parameters leave as soon as they exist: the buffer that they stand in is the next
 * op's. A sink may change the parameter at once, so nothing behind may read it. */
#include "nn/ops.h"
#include "nn/passes/passes.h"

static bool reads(const nn_program *p, const nn_op *op, int first, int count) {
    int own = op->param;
    const int owned = op->params > 0 ? op->params : nn_op_params(p, op, &own);
    return (owned > 0 && own < first + count && first < own + owned) ||
           (op->gate >= first && op->gate < first + count);
}

static tg_status check(const nn_program *p, int from, const nn_op *sent) {
    for (int i = from; i < p->op_count; i++) {
        if (reads(p, &p->ops[i], sent->param, sent->params)) {
            return tg_fail(p->ctx, TG_E_UNSUPPORTED,
                           "the gradient of %s would leave before an op of kind %s reads the "
                           "parameter for the last time",
                           p->model->params[sent->param].name, nn_kind_of(p->ops[i].kind)->name);
        }
    }
    return TG_OK;
}

tg_status nn_pass_hand_over(nn_program *p) {
    tg_status status = TG_OK;
    nn_program old = *p;
    p->ops = NULL;
    p->op_count = p->op_capacity = 0;
    for (int i = 0; i < old.op_count && status == TG_OK; i++) {
        const nn_op *op = &old.ops[i];
        nn_op_append(p, op);
        if (i < old.backward_begin || op->params < 1 || op->kind == NN_HAND_OVER_FACTORS) {
            continue;
        }
        nn_op send = nn_op_make(NN_HAND_OVER);
        send.param = op->param;
        send.params = op->params;
        send.phase = op->phase;
        send.block = op->block;
        nn_op_append(p, &send);
        status = check(&old, i + 1, &send);
    }
    tg_mem_free(p->ctx, old.ops);
    return status == TG_OK ? p->status : status;
}
