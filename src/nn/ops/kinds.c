/* The table of kinds, and what all ops need when they run. */
#include "nn/ops.h"

const nn_kind_row *nn_kind_of(nn_kind kind) {
    static const nn_kind_row *const rows[NN_KINDS] = {
#define NN_KIND(kind, row) [NN_##kind] = &row,
#include "nn/ops.def"
    };
    return rows[kind];
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
