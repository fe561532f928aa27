#include "linalg/tucker.h"

#include "backend/backend.h"
#include "base/memory.h"

tg_unfolding tg_unfolding_of(int ndim, const int64_t *size, int mode) {
    tg_unfolding u = {1, size[mode], 1};
    for (int d = 0; d < ndim; d++) {
        *(d < mode ? &u.left : &u.right) *= d == mode ? 1 : size[d];
    }
    return u;
}

/* The arrays of gathering. */
typedef struct pieces {
    void *matrix;   /* (dim, left, right) */
    void *dense;    /* (left, dim, right) in full precision, masked */
    void *identity; /* (right, right) */
} pieces;

static bool is_gathered(tg_unfolding u) {
    return tg_unfolding_gathered(u).left == u.left;
}

static pieces lay_out(tg_dtype dtype, tg_unfolding u, tg_scratch *scratch) {
    const size_t size = tg_dtype_size(dtype);
    const size_t whole = (size_t)(u.dim * tg_unfolding_columns(u)) * size;
    pieces p = {0};
    if (!is_gathered(u)) {
        p.matrix = tg_scratch_take(scratch, whole);
        p.dense = tg_scratch_take(scratch, whole);
        p.identity = tg_scratch_take(scratch, (size_t)(u.right * u.right) * size);
    }
    return p;
}

size_t tg_unfolding_scratch(tg_dtype dtype, tg_unfolding u) {
    tg_scratch scratch = {0};
    lay_out(dtype, u, &scratch);
    return scratch.used;
}

tg_status tg_fill_identity(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                           void *out) {
    TG_CALL(be->ops->fill(be, dtype, rows * columns, (tg_scalar){0}, out));
    for (int64_t i = 0; i < rows && i < columns; i++) {
        char *one = (char *)out + (size_t)(i * columns + i) * tg_dtype_size(dtype);
        TG_CALL(be->ops->fill(be, dtype, 1, (tg_scalar){1.0, 0.0}, one));
    }
    return TG_OK;
}

tg_status tg_unfolding_gather(tg_backend *be, tg_dtype dtype, tg_unfolding *u, const void **x,
                              tg_storage *store, const tg_bitmap **mask, void *scratch) {
    const tg_backend_ops *ops = be->ops;
    const int64_t columns = tg_unfolding_columns(*u), numel = u->dim * columns;
    if (is_gathered(*u)) {
        return TG_OK;
    }
    const pieces p = lay_out(dtype, *u, &(tg_scratch){.block = scratch});
    if (*store != TG_STORE_FULL || *mask) {
        TG_CALL(ops->convert(be, numel, tg_stored(dtype, *store), *x, dtype, p.dense));
        TG_CALL(*mask ? ops->bitmap_clear(be, dtype, *mask, p.dense, p.dense) : TG_OK);
        *x = p.dense;
    }
    TG_CALL(tg_fill_identity(be, dtype, u->right, u->right, p.identity));
    tg_gemm gather = tg_whole_product(dtype, TG_OP_N, TG_OP_N, u->dim, u->right, u->right, *x,
                                      p.identity, p.matrix);
    gather.stride_a = u->dim * u->right;
    gather.ldc = columns;
    gather.stride_c = u->right;
    gather.batch = u->left;
    TG_CALL(ops->gemm(be, &gather));
    *u = tg_unfolding_gathered(*u);
    *x = p.matrix;
    *store = TG_STORE_FULL;
    *mask = NULL;
    return TG_OK;
}

tg_status tg_unfolding_gram(tg_backend *be, tg_dtype dtype, tg_unfolding u, const void *x,
                            const tg_bitmap *mask, void *gram) {
    if (!tg_unfolding_is_tall(u)) {
        return be->ops->gram(be, dtype, u.left, u.dim, u.right, x, mask, gram);
    }
    return u.left == 1 ? be->ops->gram(be, dtype, u.dim, u.right, 1, x, mask, gram)
                       : be->ops->gram(be, dtype, 1, u.left, u.dim, x, mask, gram);
}
