/* The unfolding of one mode of a tensor: a matrix of dim rows stored as
 * (left, dim, right).
 *
 * It has no more singular values than its short side. A tall one, of a mode that is longer than all
 * others together, is decomposed by the Gram matrix of its columns, which never takes more room
 * than the tensor. Gram matrices want the columns of a matrix as one mode: those of a mode in the
 * middle are gathered first. */
#ifndef TG_LINALG_UNFOLDING_H
#define TG_LINALG_UNFOLDING_H

#include "backend/backend.h"

typedef struct tg_unfolding {
    int64_t left, dim, right;
} tg_unfolding;

tg_unfolding tg_unfolding_of(int ndim, const int64_t *size, int mode);

static inline int64_t tg_unfolding_columns(tg_unfolding u) {
    return u.left * u.right;
}

static inline bool tg_unfolding_is_tall(tg_unfolding u) {
    return u.dim > tg_unfolding_columns(u);
}

/* The order of the Gram matrix that has all its eigenvalues other than 0. */
static inline int64_t tg_unfolding_short_side(tg_unfolding u) {
    return tg_unfolding_is_tall(u) ? tg_unfolding_columns(u) : u.dim;
}

/* What tg_unfolding_gather makes of it. */
static inline tg_unfolding tg_unfolding_gathered(tg_unfolding u) {
    const bool is_scattered = tg_unfolding_is_tall(u) && u.left > 1 && u.right > 1;
    return is_scattered ? (tg_unfolding){1, u.dim, tg_unfolding_columns(u)} : u;
}

/* Bytes of scratch for tg_unfolding_gather; 0 if there is nothing to gather. */
size_t tg_unfolding_scratch(tg_dtype dtype, tg_unfolding u);

/* A tall unfolding of a mode in the middle becomes the matrix (1, dim, columns) in the scratch: *u,
 * *x, *store and *mask (which may be NULL) then describe that; all others stay as they are. */
TG_NODISCARD tg_status tg_unfolding_gather(tg_backend *be, tg_dtype dtype, tg_unfolding *u,
                                           const void **x, tg_storage *store,
                                           const tg_bitmap **mask, void *scratch);

/* out (rows, columns) = ones on the diagonal, zeros beside it. */
TG_NODISCARD tg_status tg_fill_identity(tg_backend *be, tg_dtype dtype, int64_t rows,
                                        int64_t columns, void *out);

/* gram (short side, short side) in f64 or c128 of an unfolding that is gathered; entries of mask
 * (may be NULL) count as 0. x is of the dtype as stored. */
TG_NODISCARD tg_status tg_unfolding_gram(tg_backend *be, tg_dtype dtype, tg_unfolding u,
                                         const void *x, const tg_bitmap *mask, void *gram);

#endif
