/* Matrix products and Gram matrices: three nested loops, the sums in double. */
#include "backend/ref/ref.h"
#include "backend/rule_kernel.h"

/* Element (row, column) of op(X), X row-major with leading dimension ld. */
static tg_scalar op_load(tg_dtype dtype, tg_op op, const void *x, int64_t offset, int64_t ld,
                         int64_t row, int64_t column) {
    const bool swap = op == TG_OP_T || op == TG_OP_H;
    const tg_scalar v = tg_load(dtype, x, offset + (swap ? column * ld + row : row * ld + column));
    return op == TG_OP_H || op == TG_OP_CONJ ? ref_conj(v) : v;
}

/* Entry (i, j) of product number b. */
static tg_scalar entry_of(const tg_gemm *g, int64_t b, int64_t i, int64_t j) {
    tg_scalar sum = {0};
    for (int64_t p = 0; p < g->k; p++) {
        sum =
            ref_add(sum, ref_mul(op_load(g->dtype, g->op_a, g->a, b * g->stride_a, g->lda, i, p),
                                 op_load(g->dtype, g->op_b, g->b, b * g->stride_b, g->ldb, p, j)));
    }
    return sum;
}

tg_status ref_gemm(tg_backend *be, const tg_gemm *g) {
    TG_CALL(tg_check_gemm(be->ctx, g));
    const tg_scalar alpha = ref_factor(g->dtype, g->alpha);
    const tg_scalar beta = ref_factor(g->dtype, g->beta);
    const bool reads_c = beta.re != 0.0 || beta.im != 0.0;
    const int64_t matrices = g->batch > 1 && g->stride_c == 0 ? 1 : g->batch;
    for (int64_t b = 0; b < matrices; b++) {
        const int64_t end = matrices == 1 ? g->batch : b + 1;
        for (int64_t i = 0; i < g->m; i++) {
            for (int64_t j = 0; j < g->n; j++) {
                tg_scalar sum = {0};
                for (int64_t q = b; q < end; q++) {
                    sum = ref_add(sum, entry_of(g, q, i, j));
                }
                tg_scalar value = ref_mul(alpha, sum);
                const int64_t at = b * g->stride_c + i * g->ldc + j;
                if (reads_c) {
                    value = ref_add(value, ref_mul(beta, tg_load(g->dtype, g->c, at)));
                }
                tg_store(g->dtype, g->c, at, value);
            }
        }
    }
    return TG_OK;
}

/* Element i, or 0 if masked. */
static tg_scalar masked_load(tg_dtype dtype, const void *x, const tg_bitmap *mask, int64_t i) {
    const bool hidden = mask && tg_bitmap_has(mask, i);
    return hidden ? (tg_scalar){0} : tg_load(dtype, x, i);
}

tg_status ref_gram(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                   const void *x, const tg_bitmap *mask, void *out) {
    TG_CALL(tg_check_float(be->ctx, "gram", dtype));
    const tg_dtype wide = tg_dtype_is_complex(dtype) ? TG_C128 : TG_F64;
    for (int64_t i = 0; i < dim; i++) {
        for (int64_t j = 0; j <= i; j++) {
            tg_scalar sum = {0};
            for (int64_t l = 0; l < left; l++) {
                for (int64_t r = 0; r < right; r++) {
                    const tg_scalar xi = masked_load(dtype, x, mask, (l * dim + i) * right + r);
                    const tg_scalar xj = masked_load(dtype, x, mask, (l * dim + j) * right + r);
                    sum = ref_add(sum, ref_mul(xi, ref_conj(xj)));
                }
            }
            tg_store(wide, out, j * dim + i, ref_conj(sum));
            tg_store(wide, out, i * dim + j, sum);
        }
    }
    return TG_OK;
}

/* Sums of squares of `dim` slices of x (left, dim, right). */
static void add_squares(tg_dtype dtype, int64_t left, int64_t dim, int64_t right, const void *x,
                        double *out) {
    for (int64_t i = 0; i < dim; i++) {
        out[i] = 0.0;
        for (int64_t l = 0; l < left; l++) {
            for (int64_t r = 0; r < right; r++) {
                out[i] += ref_abs2(tg_load(dtype, x, (l * dim + i) * right + r));
            }
        }
    }
}

tg_status ref_slice_norms(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                          const void *x, double *out) {
    TG_CALL(tg_check_float(be->ctx, "slice_norms", dtype));
    add_squares(dtype, left, dim, right, x, out);
    return TG_OK;
}

tg_status ref_column_squares(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                             const void *x, double *squares) {
    TG_CALL(tg_check_float(be->ctx, "column_squares", dtype));
    add_squares(dtype, rows, columns, 1, x, squares);
    return TG_OK;
}

tg_status ref_scale_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                            double factor, const double *above, const double *below, void *x) {
    TG_CALL(tg_check_float(be->ctx, "scale_columns", dtype));
    for (int64_t i = 0; i < rows * columns; i++) {
        const double by = tg_column_factor(factor, above, below, i % columns);
        const tg_scalar value = tg_load(dtype, x, i);
        tg_store(dtype, x, i, (tg_scalar){by * value.re, by * value.im});
    }
    return TG_OK;
}

tg_status ref_transpose(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                        const void *x, int64_t ld_x, void *out, int64_t ld_out) {
    TG_CALL(tg_check_float(be->ctx, "transpose", dtype));
    for (int64_t i = 0; i < rows; i++) {
        for (int64_t j = 0; j < columns; j++) {
            tg_store(dtype, out, j * ld_out + i, tg_load(dtype, x, i * ld_x + j));
        }
    }
    return TG_OK;
}
