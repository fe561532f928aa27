/* A spectral weight from its factors, and factors for a spectral weight (factors.h). Tensors are on
 * the host, which is where the backend must compute, and of c64 or c128. */
#ifndef TG_NN_DECOMPOSE_H
#define TG_NN_DECOMPOSE_H

#include "nn/model.h"

/* W (Cin, Cout, M1 .. Md) = the product of its factors, which are those of the model in their
 * order; `dense` is made. */
TG_NODISCARD tg_status nn_compose(const nn_model *model, tg_backend *be, const tg_tensor *factor,
                                  tg_tensor *dense);

/* The factors of the model's shapes for W: Tucker by HOSVD and sweeps of HOOI, TT by an SVD for
 * each mode. They are made, in `factor`, also those of a failure. */
TG_NODISCARD tg_status nn_decompose(const nn_model *model, tg_backend *be, const tg_tensor *dense,
                                    tg_tensor *factor);

#endif
