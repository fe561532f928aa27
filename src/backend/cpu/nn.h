/* Internals of the cpu backend's neural operators: serial f32 kernels, compiled for any CPU and for
 * AVX2 from one source like those of cpu.h, and the slots that use them. f64 goes to ref. */
#ifndef TG_BACKEND_CPU_NN_H
#define TG_BACKEND_CPU_NN_H

#include "backend/cpu/cpu.h"

typedef struct cpu_nn_kernels {
    const char *name;
    /* y = gelu(x + bias); y may be x. |error| <= 1e-6 like all of GELU here. */
    void (*gelu)(int64_t n, float bias, const float *x, float *y);
    /* y = gelu(x + bias), slope = gelu'(x + bias); y or slope may be x. */
    void (*gelu_slope)(int64_t n, float bias, const float *x, float *y, float *slope);
    /* y = act(x), dx = dy act'(x); y may be x, dx may be x or dy. */
    void (*act)(tg_act act, int64_t n, const float *x, float *y);
    void (*act_back)(tg_act act, int64_t n, const float *x, const float *dy, float *dx);
    /* y = beta y + alpha x + bias; beta 0 does not read y. */
    void (*affine)(int64_t n, float beta, float alpha, const float *x, float bias, float *y);
    void (*multiply)(int64_t n, const float *x, float *y); /* y *= x */
    double (*sum)(int64_t n, const float *x);
    double (*dot)(int64_t n, const float *x, const float *y);
} cpu_nn_kernels;

extern const cpu_nn_kernels cpu_nn_kernels_plain;
extern const cpu_nn_kernels cpu_nn_kernels_avx2; /* name NULL if the build has no AVX2 */

/* The kernels chosen by the backend. */
static inline const cpu_nn_kernels *cpu_nn_of(tg_backend *be) {
    return cpu_state_of(be)->kernels == &cpu_kernels_avx2 ? &cpu_nn_kernels_avx2
                                                          : &cpu_nn_kernels_plain;
}

/* Bytes of the workspaces of calls that the cpu backend tunes. */
size_t cpu_skip_workspace(tg_backend *be, const tg_skip *op);
size_t cpu_mlp_workspace(tg_backend *be, const tg_mlp *op);
size_t cpu_gno_workspace(tg_backend *be, const tg_gno *op);

/* The families add their slots to the table. */
void cpu_fill_nn_skip(tg_backend_ops *ops);
void cpu_fill_nn_mlp(tg_backend_ops *ops);
void cpu_fill_nn_norm(tg_backend_ops *ops);
void cpu_fill_nn_spectral(tg_backend_ops *ops);
void cpu_fill_nn_loss(tg_backend_ops *ops);
void cpu_fill_nn_gno(tg_backend_ops *ops);

#endif
