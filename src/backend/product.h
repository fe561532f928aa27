/* Products of contiguous matrices. */
#ifndef TG_BACKEND_PRODUCT_H
#define TG_BACKEND_PRODUCT_H

#include "backend/backend.h"

/* c (m, n) = op_a(a) op_b(b) with k terms; the caller may adjust the other fields. */
static inline tg_gemm tg_whole_product(tg_dtype dtype, tg_op op_a, tg_op op_b, int64_t m, int64_t n,
                                       int64_t k, const void *a, const void *b, void *c) {
    const bool turned_a = op_a == TG_OP_T || op_a == TG_OP_H;
    const bool turned_b = op_b == TG_OP_T || op_b == TG_OP_H;
    return (tg_gemm){.dtype = dtype,
                     .op_a = op_a,
                     .op_b = op_b,
                     .m = m,
                     .n = n,
                     .k = k,
                     .alpha = {1.0, 0.0},
                     .a = a,
                     .lda = turned_a ? m : k,
                     .b = b,
                     .ldb = turned_b ? k : n,
                     .c = c,
                     .ldc = n,
                     .batch = 1};
}

#endif
