/* Graph kernels (GNO): integral transforms from points y_j with values f_j to queries x_i.
 *
 *     out_i = red over j in A(i) of kappa(e(y_j), e(x_i), ..) ..,   A(i) = {j : |x_i - y_j| <= r}
 *
 * kappa is an MLP with GELU between its layers, e embeds coordinates. Neighbours are found with
 * cell lists; messages are computed in tiles and never stored, backward recomputes them. */
#ifndef TGRAD_GNO_H
#define TGRAD_GNO_H

#include "tgrad/tensor.h"

TG_C_BEGIN

#define TG_GNO_MAX_HIDDEN 7 /* hidden layers of a kernel */

/* The term of a neighbour; without values all are LINEAR_KERNELONLY. */
typedef enum tg_gno_transform {
    TG_GNO_LINEAR,               /* kappa(e(y), e(x)) f, channel by channel */
    TG_GNO_LINEAR_KERNELONLY,    /* kappa(e(y), e(x)) */
    TG_GNO_NONLINEAR,            /* kappa(e(y), e(x), f) f */
    TG_GNO_NONLINEAR_KERNELONLY, /* kappa(e(y), e(x), f) */
} tg_gno_transform;

typedef enum tg_gno_reduction { TG_GNO_MEAN, TG_GNO_SUM } tg_gno_reduction;

/* Weights by t = |x - y|^2 / r^2; contributions are then summed, whatever the reduction. */
typedef enum tg_gno_weighting {
    TG_GNO_WEIGHT_NONE,
    TG_GNO_WEIGHT_HALF_COS, /* (cos(pi t) + 1) / 2 */
    TG_GNO_WEIGHT_BUMP,     /* e exp(-1 / (1 - t^2 + 1e-7)) */
    TG_GNO_WEIGHT_QUADR,    /* 1 - 2 t^2 for t < 1/2, then 2 (1 - t)^2 */
    TG_GNO_WEIGHT_QUARTIC,  /* t^4 - 2 t^2 + 1 */
    TG_GNO_WEIGHT_OCTIC,    /* 1 - 6 t^4 + 8 t^6 - 3 t^8 */
} tg_gno_weighting;

/* sin and cos of w_k p for each coordinate p and k = 0 .. L - 1. */
typedef enum tg_gno_embedding {
    TG_GNO_EMBED_NONE,        /* p itself */
    TG_GNO_EMBED_TRANSFORMER, /* w_k = max_positions^(-2 k / L) */
    TG_GNO_EMBED_NERF,        /* w_k = 2^k pi */
} tg_gno_embedding;

/* Settings; the names are neuraloperator's. */
typedef struct tg_gno_config {
    size_t size;         /* of the struct, see status.h */
    int coord_dim;       /* of points and queries, 1 .. 3 */
    int64_t in_channels; /* of f */
    int64_t out_channels;
    double radius; /* r, of closed balls */
    tg_gno_transform transform_type;
    tg_gno_reduction reduction; /* a query without neighbours gets 0 */
    tg_gno_weighting weighting_function;
    double weight_function_scale;
    tg_gno_embedding pos_embedding_type;
    int64_t pos_embedding_channels; /* L */
    double pos_embedding_max_positions;
    int n_channel_mlp_layers; /* hidden layers of the kernel, and their widths */
    int64_t channel_mlp_layers[TG_GNO_MAX_HIDDEN];
} tg_gno_config;

/* Two dimensions, 1 -> 1 channel, radius 0.033, linear, mean, L 32, one hidden layer of 64. */
TG_API void tg_gno_config_init(tg_gno_config *config, size_t size);
static inline tg_gno_config tg_gno_config_default(void) {
    tg_gno_config config;
    tg_gno_config_init(&config, sizeof config);
    return config;
}

/* Sets one key from text, as tg_fno_config_set does. */
TG_API TG_NODISCARD tg_status tg_gno_config_set(tg_context *ctx, tg_gno_config *config,
                                                const char *key, const char *text);
TG_API TG_NODISCARD tg_status tg_gno_config_check(tg_context *ctx, const tg_gno_config *config);

/* Number of parameters of the kernel, with or without values f: layer by layer the weight (out, in)
 * and the bias (out). -1: the settings are no kernel. */
TG_API int64_t tg_gno_parameters(const tg_gno_config *config, bool has_values);

/* out (b, out_channels, m) from points y (n, coord_dim), queries x (m, coord_dim) and values f
 * (b, in_channels, n; NULL: none, b = 1). All of one dtype, f32 or f64, where the backend computes;
 * y and x may be on the host. */
TG_API TG_NODISCARD tg_status tg_gno_forward(tg_context *ctx, const tg_gno_config *config,
                                             const tg_tensor *weights, const tg_tensor *y,
                                             const tg_tensor *x, const tg_tensor *f,
                                             tg_tensor *out);

/* From dL/dout: dweights and, unless NULL, df are overwritten. */
TG_API TG_NODISCARD tg_status tg_gno_backward(tg_context *ctx, const tg_gno_config *config,
                                              const tg_tensor *weights, const tg_tensor *y,
                                              const tg_tensor *x, const tg_tensor *f,
                                              const tg_tensor *dout, tg_tensor *dweights,
                                              tg_tensor *df);

/* The neighbours of every query among the points: those of query i are index[row_splits[i]] ..
 * index[row_splits[i + 1] - 1], in a fixed order. Makes both tensors, i64, where y is: on the
 * host, or where the backend computes. */
TG_API TG_NODISCARD tg_status tg_neighbours_find(tg_context *ctx, double radius, const tg_tensor *y,
                                                 const tg_tensor *x, tg_tensor *row_splits,
                                                 tg_tensor *index);

TG_C_END
#endif
