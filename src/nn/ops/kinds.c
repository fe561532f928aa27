/* The table of kinds, and functions that all ops need at run time. */
#include "nn/ops.h"

const nn_kind_row *nn_kind_of(nn_kind kind) {
    static const nn_kind_row *const rows[NN_KINDS] = {
#define NN_KIND(kind, row) [NN_##kind] = &row,
#include "nn/ops.def"
    };
    return rows[kind];
}

int nn_back_by_op(nn_program *program, const nn_op *op, nn_request ask) {
    if (ask.input == NN_SUM) {
        return ask.dy;
    }
    nn_op back = *op;
    back.kind = nn_kind_of(op->kind)->backward;
    back.in[NN_DY] = ask.dy;
    back.in[NN_SUM] = ask.sum;
    back.out[0] = ask.wanted ? nn_value_like(program, op->in[NN_X]) : -1;
    nn_op_makes_gradients(&back, op);
    return nn_op_add(program, back);
}

int nn_back_of_dy(nn_program *program, const nn_op *op, nn_request ask) {
    nn_op back = nn_op_make(nn_kind_of(op->kind)->backward);
    back.in[NN_X] = ask.dy;
    back.out[0] = nn_value_like(program, op->in[NN_X]);
    return nn_op_add(program, back);
}

int64_t nn_numbers(const tg_fno *fno, int value) {
    const nn_value *v = &fno->run.program.values[value];
    return v->planes * fno->run.batch * v->channels * v->points;
}

void *nn_plane(const tg_fno *fno, int value, int q) {
    if (value < 0) {
        return NULL;
    }
    const nn_value *v = &fno->run.program.values[value];
    return nn_element(v->dtype, nn_data(fno, value), q * fno->run.batch * v->channels * v->points);
}
