/* How the gradients of parameters are handed over: those of one op, or all of them, are stored in
 * the order of the parameters in one small buffer until the sink has received them; those of
 * spectral weights go as factors. */
#include "nn/ops.h"

enum { BATCH_SIZE = 64 };

size_t nn_gradient_span(const nn_model *model, int first, int count) {
    if (count < 1) {
        return 0;
    }
    const int next = first + count;
    const size_t end =
        next < model->param_count ? model->params[next].dense_offset : model->dense_bytes;
    return end - model->params[first].dense_offset;
}

tg_status nn_gradient_begin(tg_fno *fno, int first, int count, bool cleared) {
    const tg_dtype dtype = fno->model.config.dtype;
    const size_t bytes = nn_gradient_span(&fno->model, first, count);
    fno->run.gradient_first = first;
    if (!cleared) {
        return TG_OK;
    }
    return fno->be->ops->fill(fno->be, dtype, (int64_t)(bytes / tg_dtype_size(dtype)),
                              (tg_scalar){0}, fno->run.gradients);
}

void *nn_gradient(const tg_fno *fno, int param) {
    const nn_param *params = fno->model.params;
    return param < 0 ? NULL
                     : (char *)fno->run.gradients + params[param].dense_offset -
                           params[fno->run.gradient_first].dense_offset;
}

static tg_status send(const tg_grad_sink *sink, int count, const tg_gradient *gradients) {
    if (sink->receive_all) {
        return sink->receive_all(sink->user, count, gradients);
    }
    for (int i = 0; i < count; i++) {
        TG_CALL(sink->receive(sink->user, &gradients[i]));
    }
    return TG_OK;
}

/* Together with those of the ops that follow, which then have nothing to do. */
static tg_status run(tg_fno *fno, const nn_op *op) {
    const nn_program *program = &fno->run.program;
    tg_gradient gradients[BATCH_SIZE];
    int count = 0;
    if (op > program->ops && op[-1].kind == NN_HAND_OVER) {
        return TG_OK;
    }
    for (; op < program->ops + program->op_count && op->kind == NN_HAND_OVER; op++) {
        for (int i = op->param; i < op->param + op->params; i++) {
            const nn_param *param = &fno->model.params[i];
            gradients[count++] = (tg_gradient){.param = i,
                                               .dtype = param->dtype,
                                               .shape = param->shape,
                                               .dense = nn_gradient(fno, i),
                                               .place = fno->be->ops->place};
            if (count == BATCH_SIZE) {
                TG_CALL(send(fno->run.call.sink, count, gradients));
                count = 0;
            }
        }
    }
    return count > 0 ? send(fno->run.call.sink, count, gradients) : TG_OK;
}

static tg_status run_factors(tg_fno *fno, const nn_op *op) {
    const tg_grad_sink *sink = fno->run.call.sink;
    const tg_gradient gradient = {.param = op->param,
                                  .dtype = fno->run.program.values[op->in[NN_X]].dtype,
                                  .shape = fno->model.params[op->param].shape,
                                  .x = nn_data(fno, op->in[NN_X]),
                                  .dy = nn_data(fno, op->in[NN_DY]),
                                  .batch = fno->run.batch,
                                  .place = fno->be->ops->place};
    return sink->receive(sink->user, &gradient);
}

const nn_kind_row nn_kind_hand_over = {.name = "hand-over", .run = run};
const nn_kind_row nn_kind_hand_over_factors = {.name = "hand-over of factors", .run = run_factors};
