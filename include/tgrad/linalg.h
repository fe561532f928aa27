/* Decompositions of a tensor as such: Tucker and stable ranks. */
#ifndef TGRAD_LINALG_H
#define TGRAD_LINALG_H

#include "tgrad/tensor.h"

TG_C_BEGIN

typedef enum tg_svd_type {
    TG_SVD_TRUNCATED, /* cold start from Gram matrices of every unfolding */
    TG_SVD_RANDOMIZED /* cold start from random sketches; pays for ranks below a quarter */
} tg_svd_type;

typedef enum tg_tucker_init {
    TG_INIT_HOSVD,   /* every mode from the whole tensor */
    TG_INIT_ST_HOSVD /* sequentially truncated: each mode from the tensor truncated so far */
} tg_tucker_init;

typedef struct tg_tucker_result {
    tg_tensor core;                /* (rank..) */
    tg_tensor factor[TG_MAX_NDIM]; /* (dim, rank) each, orthonormal columns */
    double relative_error;         /* |x - core x_n U_n| / |x| */
} tg_tucker_result;

/* x (host) to core and factors by HOSVD and n sweeps; ranks one per mode, 1 .. dim. */
TG_API TG_NODISCARD tg_status tg_tucker(tg_context *ctx, const tg_tensor *x, const int64_t *ranks,
                                        int sweeps, tg_svd_type svd_type, uint64_t seed,
                                        tg_tucker_result *out);
TG_API void tg_tucker_result_destroy(tg_tucker_result *result);

/* |x|_F^2 / sigma_1^2 of each unfolding (ndim values), and their maximum, the multilinear stable
 * rank. Zero tensors have stable rank 0. */
TG_API TG_NODISCARD tg_status tg_stable_rank(tg_context *ctx, const tg_tensor *x, double *per_mode,
                                             double *multilinear);

TG_C_END
#endif
