/* The activation between layers, fno.non_linearity. Fusion leaves few of these ops: most readers
 * apply it as they load, and the op before may store its GELU as a second output. */
#include "nn/ops.h"

static tg_status run(tg_fno *fno, const nn_op *op) {
    const int x = op->in[NN_X];
    const tg_activation call = {
        fno->run.program.values[x].dtype, fno->model.act, nn_numbers(fno, x), nn_data(fno, x), NULL,
        nn_data(fno, op->out[0])};
    return fno->be->ops->activate(fno->be, &call);
}

static tg_status run_back(tg_fno *fno, const nn_op *op) {
    const int x = op->in[NN_X];
    const tg_activation call = {fno->run.program.values[x].dtype,
                                fno->model.act,
                                nn_numbers(fno, x),
                                nn_data(fno, x),
                                nn_data(fno, op->in[NN_DY]),
                                nn_data(fno, op->out[0])};
    return fno->be->ops->activate(fno->be, &call);
}

const nn_kind_row nn_kind_activate = {.name = "activation",
                                      .slot = NN_SLOT(activate),
                                      .run = run,
                                      .back = nn_back_by_op,
                                      .backward = NN_ACTIVATE_BACK,
                                      .overwrites = NN_OVER(NN_X) + NN_OVER(NN_DY)};
const nn_kind_row nn_kind_activate_back = {.name = "backward of an activation",
                                           .slot = NN_SLOT(activate),
                                           .run = run_back,
                                           .overwrites = NN_OVER(NN_X) + NN_OVER(NN_DY)};

int nn_add_activation(nn_program *p, int x) {
    nn_op op = nn_op_on(p, NN_ACTIVATE, x);
    p->values[op.out[0]].before_act = x;
    return nn_op_add(p, op);
}
