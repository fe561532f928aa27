/* Internals of Adam on the cpu backend: the part of one thread, for reals or for pairs by modulus.
 */
#ifndef TG_BACKEND_CPU_ADAM_H
#define TG_BACKEND_CPU_ADAM_H

#include <stdint.h>

/* The constants of a step, as tg_adam has them; c = 1 - beta. */
typedef struct cpu_adam_step {
    float scale, beta1, c1, beta2, c2, eps;
    float alpha, beta; /* of the weight */
} cpu_adam_step;

/* The arrays of a part; direction and weight may be NULL. */
typedef struct cpu_adam_arrays {
    const float *grad;
    float *m, *v, *direction, *weight;
} cpu_adam_arrays;

/* n reals; or n pairs {re, im}, with n reals in v. */
typedef struct cpu_adam_kernels {
    void (*reals)(const cpu_adam_step *step, int64_t n, cpu_adam_arrays arrays);
    void (*pairs)(const cpu_adam_step *step, int64_t n, cpu_adam_arrays arrays);
} cpu_adam_kernels;

extern const cpu_adam_kernels cpu_adam_plain;
extern const cpu_adam_kernels cpu_adam_avx2; /* empty where the build has no AVX2 */

#endif
