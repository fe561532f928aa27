/* Storage formats by the role of a value. Arithmetic is in the network's dtype in any case. */
#include "nn/passes/passes.h"

void nn_pass_choose_formats(nn_program *program) {
    const nn_model *model = program->model;
    const tg_dtype dtype = model->config.dtype;
    const tg_dtype formats[] = {
        [NN_DATA] = dtype,
        [NN_ACTIVATION] = tg_stored(dtype, model->stores.activation),
        [NN_SPECTRUM] = tg_stored(tg_dtype_complex(dtype), model->stores.spectrum),
        [NN_INNER_ARRAY] = tg_dtype_complex(dtype),
        [NN_STATISTIC] = TG_F64,
        [NN_SAVED] = dtype, /* none yet: the pass that makes them sets the format */
        [NN_SCRATCH] = dtype,
    };
    for (int i = 0; i < program->value_count; i++) {
        program->values[i].dtype = formats[program->values[i].role];
    }
}
