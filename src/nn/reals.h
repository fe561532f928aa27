/* Single numbers of a field of real numbers on the host, f32 or f64, in double. */
#ifndef TG_NN_REALS_H
#define TG_NN_REALS_H

#include "tgrad/tensor.h"

static inline double nn_get_real(tg_dtype dtype, const void *data, int64_t i) {
    return dtype == TG_F32 ? (double)((const float *)data)[i] : ((const double *)data)[i];
}

static inline void nn_set_real(tg_dtype dtype, void *data, int64_t i, double value) {
    if (dtype == TG_F32) {
        ((float *)data)[i] = (float)value;
    } else {
        ((double *)data)[i] = value;
    }
}

#endif
