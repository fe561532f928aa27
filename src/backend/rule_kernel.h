/* The update rule of one value, for the host and CUDA: its moments m and v, and the direction u
 * from its gradient g. A value is `parts` reals: both parts of a complex number that share their
 * modulus and v, or one real. */
#ifndef TG_BACKEND_RULE_KERNEL_H
#define TG_BACKEND_RULE_KERNEL_H

#include <math.h>

#include "backend/backend.h"

#ifdef __CUDACC__
#define TG_RULE_FN static __host__ __device__ inline
#else
#define TG_RULE_FN static inline
#endif

/* hypot costs more than the rest of a step, and is needed only if squares overflow or underflow. */
TG_RULE_FN double tg_rule_modulus(int parts, const double *u) {
    if (parts == 1) {
        return fabs(u[0]);
    }
    const double square = u[0] * u[0] + u[1] * u[1];
    return square > 1e-280 && square < 1e280 ? sqrt(square) : hypot(u[0], u[1]);
}

/* The factor of column j in scale_columns. */
TG_RULE_FN double tg_column_factor(double factor, const double *above, const double *below,
                                   int64_t j) {
    return below[j] > 0.0 ? factor * sqrt((above ? above[j] : 1.0) / below[j]) : 0.0;
}

TG_RULE_FN bool tg_rule_has_m(tg_rule_kernel kernel) {
    return kernel != TG_KERNEL_GRADIENT;
}

TG_RULE_FN void tg_rule_move(tg_rule_kernel kernel, const tg_adam *op, int parts, const double *g,
                             double *m, double *v, double *u) {
    const double beta1 = op->beta1, beta2 = op->beta2;
    if (kernel == TG_KERNEL_ADAM) {
        const double square = g[0] * g[0] + (parts == 2 ? g[1] * g[1] : 0.0);
        *v = beta2 * *v + (1.0 - beta2) * square;
    }
    for (int p = 0; p < parts; p++) {
        u[p] = g[p];
        if (kernel == TG_KERNEL_ADAM) {
            m[p] = beta1 * m[p] + (1.0 - beta1) * g[p];
            u[p] = m[p] / (sqrt(*v) + op->eps);
        } else if (kernel == TG_KERNEL_LION) {
            u[p] = beta1 * m[p] + (1.0 - beta1) * g[p];
            m[p] = beta2 * m[p] + (1.0 - beta2) * g[p];
        } else if (kernel == TG_KERNEL_NESTEROV) {
            m[p] = beta1 * m[p] + (1.0 - beta1) * g[p];
            u[p] = beta1 * m[p] + (1.0 - beta1) * g[p];
        }
    }
    if (kernel == TG_KERNEL_LION) {
        const double modulus = tg_rule_modulus(parts, u);
        for (int p = 0; p < parts; p++) {
            u[p] = modulus > 0.0 ? u[p] / modulus : 0.0;
        }
    }
}

#endif
