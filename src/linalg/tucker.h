/* Tucker factors: G ~ core x_1 U_1 .. x_n U_n with orthonormal U_k.
 *
 * Start: leading left singular vectors of every unfolding, by Gram matrices in f64 and a Hermitian
 * eigensolver (or by random sketches, or the previous factors); a mode longer than all others
 * together uses the Gram matrix of its short side. Then HOOI sweeps: for each mode k in order, U_k
 * = leading vectors of unfold_k(G x_{j != k} U_j^H) with the newest U_j. A binary tree of modes
 * shares the products, so that a sweep takes two passes over G, not n. */
#ifndef TG_LINALG_TUCKER_H
#define TG_LINALG_TUCKER_H

#include "backend/backend.h"
#include "tgrad/linalg.h"

typedef struct tg_tucker_plan {
    tg_dtype dtype;   /* f32, f64, c64, c128 */
    tg_storage store; /* of the tensor itself */
    int ndim;
    int64_t dim[TG_MAX_NDIM];
    int64_t rank[TG_MAX_NDIM];   /* dim for a mode without a factor */
    bool is_active[TG_MAX_NDIM]; /* this mode gets a factor */
    int sweeps;
    tg_svd_type svd_type;
    tg_tucker_init init;
    size_t chunk; /* products with a larger workspace are computed in chunks; 0: 1 GiB */
} tg_tucker_plan;

/* Bytes of scratch (where the backend computes) for tg_tucker_factors. */
size_t tg_tucker_scratch(tg_backend *be, const tg_tucker_plan *plan);

/* Further scratch that its decompositions allocate while they run. */
tg_scratch_need tg_tucker_scratch_need(tg_backend *be, const tg_tucker_plan *plan);

/* Factors (dim, rank) of x (dim..); entries in `mask` (may be NULL) count as 0. warm: factor[]
 * holds the previous ones, from which the sweeps start (with 0 sweeps: decompose anew) and whose
 * column phases are kept. On failure factor[] is as before. */
TG_NODISCARD tg_status tg_tucker_factors(tg_backend *be, const tg_tucker_plan *plan, const void *x,
                                         const tg_bitmap *mask, const tg_rng *rng, bool warm,
                                         void *const factor[], void *scratch);

/* Eigenvalues of the Gram matrix of every unfolding of x, on the host: descending, dim of them per
 * mode, mode after mode. Ranks and sweeps of the plan do not matter. */
size_t tg_tucker_spectrum_scratch(const tg_tucker_plan *plan);
TG_NODISCARD tg_status tg_tucker_spectrum(tg_backend *be, const tg_tucker_plan *plan, const void *x,
                                          const tg_bitmap *mask, double *values, void *scratch);

/* tg_stable_rank of an array on the backend; NaN if an entry is not finite. And the bytes it needs
 * meanwhile: `host` only for a backend that computes elsewhere. */
TG_NODISCARD tg_status tg_stable_rank_of(tg_backend *be, tg_dtype dtype, const tg_shape *shape,
                                         const void *x, double *per_mode);
tg_scratch_need tg_stable_rank_need(tg_backend *be, tg_dtype dtype, const tg_shape *shape);

/* The order of the Gram matrix of a mode's unfolding that has all its eigenvalues other than 0. */
int64_t tg_tucker_short_side(const tg_tucker_plan *plan, int mode);

/* out (rows, columns) = ones on the diagonal, zeros elsewhere. */
TG_NODISCARD tg_status tg_fill_identity(tg_backend *be, tg_dtype dtype, int64_t rows,
                                        int64_t columns, void *out);

#endif
