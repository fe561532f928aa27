/* A spectral weight from its factors, and factors for a spectral weight (factors.h). Tensors are
 * c64 or c128 on the host, where the backend must compute. */
#ifndef TG_NN_DECOMPOSE_H
#define TG_NN_DECOMPOSE_H

#include "nn/model.h"

/* W (Cin, Cout, M1 .. Md) = the product of its factors, given in the model's order; creates
 * `dense`. */
TG_NODISCARD tg_status nn_compose(const nn_model *model, tg_backend *be, const nn_conv *conv,
                                  const tg_tensor *factor, tg_tensor *dense);

/* Factors of the convolution's shapes for W: Tucker by HOSVD and sweeps of HOOI, TT by an SVD per
 * mode. Creates those in `factor`, also if it fails. */
TG_NODISCARD tg_status nn_decompose(const nn_model *model, tg_backend *be, const nn_conv *conv,
                                    const tg_tensor *dense, tg_tensor *factor);

#endif
