/* Formulas of graph kernels, for hosts and devices alike. */
#ifndef TG_BACKEND_GNO_MATH_H
#define TG_BACKEND_GNO_MATH_H

#include <math.h>

#include "tgrad/gno.h"

#ifdef __CUDACC__
#define TG_GNO_FN static __host__ __device__ inline
#else
#define TG_GNO_FN static inline
#endif

#define TG_GNO_PI 3.14159265358979323846

/* w_k of an embedding. */
TG_GNO_FN double tg_gno_frequency(const tg_gno_config *config, int64_t k) {
    return config->pos_embedding_type == TG_GNO_EMBED_NERF
               ? ldexp(TG_GNO_PI, (int)k)
               : pow(config->pos_embedding_max_positions,
                     -2.0 * (double)k / (double)config->pos_embedding_channels);
}

/* w of a neighbour at this squared distance: 1 without a weighting function. */
TG_GNO_FN double tg_gno_weight_at(const tg_gno_config *config, double distance2) {
    const double r2 = config->radius * config->radius;
    const double t = r2 > 0.0 ? distance2 / r2 : 0.0, s = config->weight_function_scale;
    const double t2 = t * t, t4 = t2 * t2;
    switch (config->weighting_function) {
    case TG_GNO_WEIGHT_HALF_COS:
        return s * 0.5 * (cos(TG_GNO_PI * t) + 1.0);
    case TG_GNO_WEIGHT_BUMP:
        return s * exp(1.0 - 1.0 / (1.0 - t2 + 1e-7));
    case TG_GNO_WEIGHT_QUADR:
        return t < 0.5 ? s * (1.0 - 2.0 * t2) : s * 2.0 * (1.0 - t) * (1.0 - t);
    case TG_GNO_WEIGHT_QUARTIC:
        return s * (t4 - 2.0 * t2 + 1.0);
    case TG_GNO_WEIGHT_OCTIC:
        return s * (1.0 - 6.0 * t4 + 8.0 * t4 * t2 - 3.0 * t4 * t4);
    case TG_GNO_WEIGHT_NONE:
        break;
    }
    return 1.0;
}

#endif
