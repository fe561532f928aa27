/* Internals of the ref backend: complex double arithmetic and the families of slots. */
#ifndef TG_BACKEND_REF_REF_H
#define TG_BACKEND_REF_REF_H

#include <math.h>

#include "backend/backend.h"
#include "backend/check.h"

/* Each family adds its slots to the table. */
void ref_fill_elementwise(tg_backend_ops *ops);
void ref_fill_quantize(tg_backend_ops *ops);
void ref_fill_dense(tg_backend_ops *ops);
void ref_fill_decompose(tg_backend_ops *ops);
void ref_fill_fft(tg_backend_ops *ops);
void ref_fill_index(tg_backend_ops *ops);
void ref_fill_compress(tg_backend_ops *ops);
void ref_fill_nn(tg_backend_ops *ops);
void ref_fill_flow(tg_backend_ops *ops);

/* Bytes of the workspaces. */
size_t ref_compress_workspace(const tg_multimode *modes);
size_t ref_skip_workspace(const tg_skip *op);
size_t ref_mlp_workspace(const tg_mlp *op);
size_t ref_gno_workspace(const tg_gno *op);

enum { REF_SELECT_BYTES = 16 }; /* per entry during a selection */

/* Added by ref_fill_compress. */
tg_status ref_update(tg_backend *be, int count, const tg_adam *calls);

static inline tg_scalar ref_add(tg_scalar a, tg_scalar b) {
    return (tg_scalar){a.re + b.re, a.im + b.im};
}

static inline tg_scalar ref_mul(tg_scalar a, tg_scalar b) {
    return (tg_scalar){a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}

static inline tg_scalar ref_conj(tg_scalar a) {
    return (tg_scalar){a.re, -a.im};
}

static inline double ref_abs2(tg_scalar a) {
    return a.re * a.re + a.im * a.im;
}

/* A caller's factor; im is dropped for real dtypes. */
static inline tg_scalar ref_factor(tg_dtype dtype, tg_scalar a) {
    return (tg_scalar){a.re, tg_dtype_is_complex(dtype) ? a.im : 0.0};
}

/* ---- neural operators: real numbers in and out, and activations ---- */

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
