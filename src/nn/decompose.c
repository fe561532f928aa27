/* Products of factors, and decompositions of dense weights. */
#include "nn/model.h"

#include <string.h>

#include "backend/backend.h"
#include "linalg/tucker.h"
#include "tensor/element.h"

enum { SWEEPS = 2 }; /* of HOOI; more improve little */

static tg_status multiply(tg_backend *be, tg_dtype dtype, tg_op op_a, tg_op op_b, int64_t m,
                          int64_t n, int64_t k, const void *a, const void *b, void *c) {
    const tg_gemm gemm = tg_whole_product(dtype, op_a, op_b, m, n, k, a, b, c);
    return be->ops->gemm(be, &gemm);
}

static tg_shape dense_shape(const nn_model *model, const nn_conv *conv) {
    tg_shape shape = {2 + model->config.n_dim, {conv->in, conv->out}};
    memcpy(shape.dim + 2, conv->modes, sizeof conv->modes);
    return shape;
}

/* ---- W from its factors ---- */

/* Two arrays that hold the products of a chain in turn; the last product goes to `out`. */
typedef struct chain {
    tg_tensor buffer[2];
    const void *made; /* the latest product */
    int next;
} chain;

static tg_status chain_step(const nn_model *model, tg_dtype dtype, chain *c, int64_t numbers,
                            void *last, void **to) {
    const tg_shape shape = {1, {numbers}};
    tg_tensor *buffer = &c->buffer[c->next++ % 2];
    *to = last;
    if (last) {
        return TG_OK;
    }
    tg_tensor_destroy(buffer);
    const tg_status status = tg_tensor_create(model->ctx, TG_MEM_WORKSPACE, dtype, &shape, buffer);
    *to = buffer->data;
    return status;
}

/* The first mode of (r, rest) times its factor (d, r) becomes the last one, (rest, d): in the end
 * the modes are in order again. */
static tg_status compose_tucker(const nn_model *model, tg_backend *be, const tg_tensor *factor,
                                const tg_tensor *dense, chain *c) {
    const int ndim = dense->shape.ndim;
    int64_t rest = tg_tensor_numel(&factor[0]);
    tg_status status = TG_OK;
    c->made = factor[0].data;
    for (int k = 0; k < ndim && status == TG_OK; k++) {
        const int64_t dim = factor[1 + k].shape.dim[0], rank = factor[1 + k].shape.dim[1];
        void *to;
        rest /= rank;
        status =
            chain_step(model, dense->dtype, c, rest * dim, k == ndim - 1 ? dense->data : NULL, &to);
        if (status == TG_OK) {
            status = multiply(be, dense->dtype, TG_OP_T, TG_OP_T, rest, dim, rank, c->made,
                              factor[1 + k].data, to);
        }
        c->made = to;
        rest *= dim;
    }
    return status;
}

/* (rows, r) times (r, d r') are the rows (rows d, r') of the next product. */
static tg_status compose_tt(const nn_model *model, tg_backend *be, const tg_tensor *factor,
                            const tg_tensor *dense, chain *c) {
    const int ndim = dense->shape.ndim;
    int64_t rows = factor[0].shape.dim[1];
    c->made = factor[0].data;
    for (int k = 1; k < ndim; k++) {
        const int64_t *dim = factor[k].shape.dim, columns = dim[1] * dim[2];
        void *to;
        TG_CALL(chain_step(model, dense->dtype, c, rows * columns,
                           k == ndim - 1 ? dense->data : NULL, &to));
        TG_CALL(multiply(be, dense->dtype, TG_OP_N, TG_OP_N, rows, columns, dim[0], c->made,
                         factor[k].data, to));
        c->made = to;
        rows *= dim[1];
    }
    return TG_OK;
}

/* The products of the columns of two matrices (m, R) and (n, R), row by row: (m n, R). Weights (R)
 * count as a matrix of one row. */
static tg_status khatri_rao(const nn_model *model, const tg_tensor *a, const tg_tensor *b,
                            tg_tensor *out) {
    const int64_t rank = b->shape.dim[1], m = tg_tensor_numel(a) / rank, n = b->shape.dim[0];
    const tg_shape shape = {2, {m * n, rank}};
    TG_CALL(tg_tensor_create(model->ctx, TG_MEM_WORKSPACE, b->dtype, &shape, out));
    for (int64_t row = 0; row < m * n; row++) {
        for (int64_t r = 0; r < rank; r++) {
            const tg_scalar x = tg_load(a->dtype, a->data, row / n * rank + r);
            const tg_scalar y = tg_load(b->dtype, b->data, row % n * rank + r);
            tg_store(out->dtype, out->data, row * rank + r,
                     (tg_scalar){x.re * y.re - x.im * y.im, x.re * y.im + x.im * y.re});
        }
    }
    return TG_OK;
}

/* W as a matrix (Cin Cout, modes): channels with their weights times modes. */
static tg_status compose_cp(const nn_model *model, tg_backend *be, const tg_tensor *factor,
                            const tg_tensor *dense, chain *c) {
    tg_tensor channels = {0}, modes = {0}, longer = {0};
    tg_status status = TG_OK;
    (void)c;
    TG_TRY(khatri_rao(model, &factor[0], &factor[1], &longer));
    TG_TRY(khatri_rao(model, &longer, &factor[2], &channels));
    const tg_tensor *product = &factor[3];
    for (int k = 4; k <= dense->shape.ndim; k++) {
        tg_tensor_destroy(&longer);
        longer = modes;
        modes = (tg_tensor){0};
        TG_TRY(khatri_rao(model, k == 4 ? &factor[3] : &longer, &factor[k], &modes));
        product = &modes;
    }
    TG_TRY(multiply(be, dense->dtype, TG_OP_N, TG_OP_T, channels.shape.dim[0],
                    product->shape.dim[0], channels.shape.dim[1], channels.data, product->data,
                    dense->data));
fail:
    tg_tensor_destroy(&channels);
    tg_tensor_destroy(&modes);
    tg_tensor_destroy(&longer);
    return status;
}

tg_status nn_compose(const nn_model *model, tg_backend *be, const nn_conv *conv,
                     const tg_tensor *factor, tg_tensor *dense) {
    const tg_factorization form = model->config.factorization;
    const tg_shape shape = dense_shape(model, conv);
    chain c = {.made = NULL};
    tg_status status = TG_OK;
    *dense = (tg_tensor){0};
    TG_TRY(tg_tensor_create(model->ctx, TG_MEM_WORKSPACE, factor[0].dtype, &shape, dense));
    if (form == TG_FACTORIZATION_DENSE) {
        memcpy(dense->data, factor[0].data, tg_tensor_bytes(dense));
    } else {
        TG_TRY((form == TG_FACTORIZATION_TUCKER ? compose_tucker
                : form == TG_FACTORIZATION_TT   ? compose_tt
                                                : compose_cp)(model, be, factor, dense, &c));
    }
fail:
    tg_tensor_destroy(&c.buffer[0]);
    tg_tensor_destroy(&c.buffer[1]);
    return status;
}

/* ---- factors of W ---- */

static tg_status decompose_tucker(const nn_model *model, const nn_conv *conv,
                                  const tg_tensor *dense, tg_tensor *factor) {
    tg_tucker_result result;
    TG_CALL(tg_tucker(model->ctx, dense, conv->factors.shape[0].dim, SWEEPS, TG_SVD_TRUNCATED, 0,
                      &result));
    factor[0] = result.core;
    memcpy(factor + 1, result.factor, (size_t)dense->shape.ndim * sizeof *factor);
    return TG_OK;
}

/* The leading left singular vectors of a matrix (rows, columns) in `vectors` (rows, rank). */
static tg_status leading(const nn_model *model, tg_backend *be, tg_dtype dtype, int64_t rows,
                         int64_t columns, int64_t rank, const void *matrix, void *vectors) {
    const tg_tucker_plan plan = {.dtype = dtype,
                                 .ndim = 2,
                                 .dim = {rows, columns},
                                 .rank = {rank, columns},
                                 .is_active = {true, false}};
    const tg_rng rng = {.purpose = TG_RNG_RANGE};
    void *const factors[TG_MAX_NDIM] = {vectors};
    char *scratch = NULL;
    tg_status status = TG_OK;
    TG_TRY(TG_ALLOC(model->ctx, TG_MEM_WORKSPACE, scratch, (int64_t)tg_tucker_scratch(be, &plan)));
    TG_TRY(tg_tucker_factors(be, &plan, matrix, NULL, &rng, false, factors, scratch));
fail:
    TG_FREE(model->ctx, scratch);
    return status;
}

/* One step: of the remainder `left` (r d, columns), the vectors U of the factor (r, d, r') and the
 * next remainder U^H left (r', columns). Vectors beyond the rank of `left` stay 0. */
static tg_status split(const nn_model *model, tg_backend *be, const tg_tensor *left,
                       tg_tensor *factor, tg_tensor *next) {
    const int64_t *dim = factor->shape.dim, rows = dim[0] * dim[1];
    const int64_t columns = tg_tensor_numel(left) / rows, shorter = rows < columns ? rows : columns;
    const int64_t rank = dim[2] < shorter ? dim[2] : shorter;
    const tg_shape shape = {2, {rows, rank}}, rest = {2, {dim[2], columns}};
    const size_t size = tg_dtype_size(left->dtype);
    tg_tensor vectors = {0};
    tg_status status = TG_OK;
    TG_TRY(tg_tensor_create(model->ctx, TG_MEM_WORKSPACE, left->dtype, &shape, &vectors));
    TG_TRY(tg_tensor_create(model->ctx, TG_MEM_WORKSPACE, left->dtype, &rest, next));
    TG_TRY(leading(model, be, left->dtype, rows, columns, rank, left->data, vectors.data));
    memset(factor->data, 0, tg_tensor_bytes(factor));
    memset(next->data, 0, tg_tensor_bytes(next));
    for (int64_t row = 0; row < rows; row++) {
        memcpy((char *)factor->data + size * (size_t)(row * dim[2]),
               (char *)vectors.data + size * (size_t)(row * rank), size * (size_t)rank);
    }
    TG_TRY(multiply(be, left->dtype, TG_OP_H, TG_OP_N, rank, columns, rows, vectors.data,
                    left->data, next->data));
fail:
    tg_tensor_destroy(&vectors);
    return status;
}

static tg_status decompose_tt(const nn_model *model, tg_backend *be, const nn_conv *conv,
                              const tg_tensor *dense, tg_tensor *factor) {
    const int last = dense->shape.ndim - 1;
    tg_tensor left = {0}, next = {0};
    tg_status status = TG_OK;
    for (int k = 0; k <= last; k++) {
        TG_TRY(tg_tensor_create(model->ctx, TG_MEM_WORKSPACE, dense->dtype, &conv->factors.shape[k],
                                &factor[k]));
    }
    for (int k = 0; k < last; k++) {
        TG_TRY(split(model, be, k == 0 ? dense : &left, &factor[k], &next));
        tg_tensor_destroy(&left);
        left = next;
        next = (tg_tensor){0};
    }
    memcpy(factor[last].data, left.data, tg_tensor_bytes(&left));
fail:
    tg_tensor_destroy(&left);
    tg_tensor_destroy(&next);
    return status;
}

tg_status nn_decompose(const nn_model *model, tg_backend *be, const nn_conv *conv,
                       const tg_tensor *dense, tg_tensor *factor) {
    switch (model->config.factorization) {
    case TG_FACTORIZATION_TUCKER:
        return decompose_tucker(model, conv, dense, factor);
    case TG_FACTORIZATION_TT:
        return decompose_tt(model, be, conv, dense, factor);
    case TG_FACTORIZATION_CP:
        return tg_fail(model->ctx, TG_E_CONFIG,
                       "fno.factorization: cp has no decomposition, only fits that iterations "
                       "search for: take tucker or tt");
    case TG_FACTORIZATION_DENSE:
        break;
    }
    TG_CALL(
        tg_tensor_create(model->ctx, TG_MEM_WORKSPACE, dense->dtype, &dense->shape, &factor[0]));
    memcpy(factor[0].data, dense->data, tg_tensor_bytes(dense));
    return TG_OK;
}
