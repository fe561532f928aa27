/* How the gradients of parameters leave: a module's parameters stand side by side in the list, and
 * their gradients stand in the same order in one small buffer until the sink has seen them. */
#include "nn/layers.h"

int nn_mlp_params(const nn_model *model) {
    return 4 * model->planes;
}

int nn_skip_params(const nn_model *model, const nn_skip *skip) {
    return skip->kind == TG_MIX_IDENTITY ? 0 : model->planes;
}

static size_t end_of(const nn_model *model, int param) {
    return param + 1 < model->param_count ? model->params[param + 1].offset : model->weight_bytes;
}

static size_t span(const nn_model *model, int first, int count) {
    return count > 0 ? end_of(model, first + count - 1) - model->params[first].offset : 0;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

size_t nn_gradient_bytes(const nn_model *model) {
    const int mlp = nn_mlp_params(model);
    size_t bytes = larger(span(model, model->lifting.param[0][0], mlp),
                          span(model, model->projection.param[0][0], mlp));
    for (int64_t l = 0; l < model->config.n_layers; l++) {
        const nn_block *block = &model->blocks[l];
        const int skip = nn_skip_params(model, &block->fno_skip);
        const int second = nn_skip_params(model, &block->mlp_skip);
        bytes = larger(bytes, span(model, block->bias, 1 + skip));
        bytes = larger(bytes, span(model, block->mlp.param[0][0], mlp));
        bytes = larger(bytes, second ? span(model, block->mlp_skip.param[0], second) : 0);
        bytes =
            larger(bytes, block->norm[0].weight < 0 ? 0 : span(model, block->norm[0].weight, 2));
    }
    return bytes;
}

tg_status nn_gradient_begin(tg_fno *fno, int first, int count) {
    fno->run.gradient_first = first;
    const int64_t reals = (int64_t)(span(&fno->model, first, count) / tg_dtype_size(nn_dtype(fno)));
    return fno->be->ops->fill(fno->be, nn_dtype(fno), reals, (tg_scalar){0}, fno->run.gradients);
}

void *nn_gradient(const tg_fno *fno, int param) {
    const nn_param *params = fno->model.params;
    return param < 0 ? NULL
                     : (char *)fno->run.gradients + params[param].offset -
                           params[fno->run.gradient_first].offset;
}

tg_status nn_gradient_send(tg_fno *fno, const tg_grad_sink *sink, int first, int count) {
    enum { TOGETHER = 16 }; /* more than a module has parameters */
    tg_gradient gradients[TOGETHER];
    tg_status status = TG_OK;
    for (int sent = 0; sent < count && status == TG_OK; sent += TOGETHER) {
        const int now = count - sent < TOGETHER ? count - sent : TOGETHER;
        for (int i = 0; i < now; i++) {
            const int number = first + sent + i;
            const nn_param *param = &fno->model.params[number];
            gradients[i] = (tg_gradient){.param = number,
                                         .dtype = param->dtype,
                                         .shape = param->shape,
                                         .dense = nn_gradient(fno, number)};
        }
        if (sink->receive_all) {
            status = sink->receive_all(sink->user, now, gradients);
            continue;
        }
        for (int i = 0; i < now && status == TG_OK; i++) {
            status = sink->receive(sink->user, &gradients[i]);
        }
    }
    return status;
}

tg_status nn_gradient_send_factors(tg_fno *fno, const tg_grad_sink *sink, int number, const void *x,
                                   const void *dy) {
    const nn_param *param = &fno->model.params[number];
    const tg_gradient gradient = {.param = number,
                                  .dtype = nn_spectrum_dtype(&fno->model),
                                  .shape = param->shape,
                                  .x = x,
                                  .dy = dy,
                                  .batch = fno->run.batch};
    return sink->receive(sink->user, &gradient);
}
