/* Shared by the neural-operator slots of ref: real numbers in and out, and activations. */
#ifndef TG_BACKEND_REF_REF_NN_H
#define TG_BACKEND_REF_REF_NN_H

#include <math.h>

#include "backend/ref/ref.h"

#define REF_SQRT_HALF 0.70710678118654752440

static inline double ref_get(tg_dtype dtype, const void *x, int64_t i) {
    return tg_load(dtype, x, i).re;
}

static inline void ref_put(tg_dtype dtype, void *x, int64_t i, double value) {
    tg_store(dtype, x, i, (tg_scalar){value, 0.0});
}

double ref_act(tg_act act, double x);
double ref_act_slope(tg_act act, double x); /* its derivative */

void ref_fill_nn_layers(tg_backend_ops *ops);
void ref_fill_nn_spectral(tg_backend_ops *ops);
void ref_fill_nn_loss(tg_backend_ops *ops);
void ref_fill_nn_gno(tg_backend_ops *ops);

#endif
