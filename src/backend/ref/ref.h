/* Internals of the ref backend: complex double arithmetic and the families of slots. */
#ifndef TG_BACKEND_REF_REF_H
#define TG_BACKEND_REF_REF_H

#include <math.h>

#include "backend/backend.h"
#include "backend/check.h"

/* The slots, functions ref_<slot> of the table's types. */
/* clang-format off */
#define REF_SLOTS(SLOT) \
    SLOT(fill) SLOT(convert) SLOT(axpy) SLOT(norms) SLOT(count_nonfinite) SLOT(random) \
    SLOT(quantize) SLOT(gemm) SLOT(gram) SLOT(slice_norms) SLOT(column_squares) \
    SLOT(scale_columns) SLOT(transpose) SLOT(scratch_need) SLOT(eigh) SLOT(qr) \
    SLOT(leading_columns) SLOT(fft_create) SLOT(fft_destroy) SLOT(fft) SLOT(select) \
    SLOT(bitmap_clear) SLOT(compress) SLOT(expand) SLOT(sample) SLOT(grad_dense) SLOT(update) \
    SLOT(box_copy) SLOT(grid_embed) SLOT(planes) SLOT(activate) SLOT(add_skip) SLOT(mlp) \
    SLOT(spectral_contract) SLOT(norm) SLOT(loss) SLOT(sobolev_squares) SLOT(residual) \
    SLOT(neighbours_build) SLOT(neighbours_list) SLOT(gno) SLOT(flow)
/* clang-format on */
#define REF_SLOT(name) __typeof__(*((tg_backend_ops *)0)->name) ref_##name;
REF_SLOTS(REF_SLOT)
#undef REF_SLOT

/* Bytes of the workspaces. */
size_t ref_compress_workspace(const tg_multimode *modes);
size_t ref_skip_workspace(const tg_skip *op);
size_t ref_mlp_workspace(const tg_mlp *op);
size_t ref_gno_workspace(const tg_gno *op);

enum { REF_SELECT_BYTES = 16 }; /* per entry during a selection */

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

/* gradient[i] += sums[i]; gradient may be NULL. */
static inline void ref_add_sums(tg_dtype dtype, int64_t n, const double *sums, void *gradient) {
    for (int64_t i = 0; gradient && i < n; i++) {
        ref_put(dtype, gradient, i, ref_get(dtype, gradient, i) + sums[i]);
    }
}

double ref_act(tg_act act, double x);
double ref_act_slope(tg_act act, double x); /* its derivative */

#endif
