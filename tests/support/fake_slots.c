/* The slots of the fake device: each copies its arguments into the stream, or answers the host
 * after the stream has run empty. Host structures behind pointers (bitmaps, random streams) are
 * copied too: a caller may change them as soon as the call has returned. Here those for arrays and
 * matrices; fake_layers.c and fake_compress.c have the others. */
#include "support/fake_device.h"

/* ---- elementwise ---- */

typedef struct array_args { /* as far as a call has them */
    tg_dtype dtype, dst_dtype;
    int64_t n;
    tg_scalar value;
    const void *x, *y;
    void *out, *more;
    tg_act act;
    uint32_t *count;
} array_args;

static tg_status run_fill(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->fill(host, a->dtype, a->n, a->value, a->out);
}

static tg_status fake_fill(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar value, void *x) {
    const array_args a = {.dtype = dtype, .n = n, .value = value, .out = x};
    return fake_submit(be, run_fill, &a, sizeof a);
}

static tg_status run_convert(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->convert(host, a->n, a->dtype, a->x, a->dst_dtype, a->out);
}

static tg_status fake_convert(tg_backend *be, int64_t n, tg_dtype src_dtype, const void *src,
                              tg_dtype dst_dtype, void *dst) {
    const array_args a = {.dtype = src_dtype, .dst_dtype = dst_dtype, .n = n, .x = src, .out = dst};
    return fake_submit(be, run_convert, &a, sizeof a);
}

static tg_status run_axpy(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->axpy(host, a->dtype, a->n, a->value, a->x, a->out);
}

static tg_status fake_axpy(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha,
                           const void *x, void *y) {
    const array_args a = {.dtype = dtype, .n = n, .value = alpha, .x = x, .out = y};
    return fake_submit(be, run_axpy, &a, sizeof a);
}

static tg_status run_scale(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->scale(host, a->dtype, a->n, a->value, a->out);
}

static tg_status fake_scale(tg_backend *be, tg_dtype dtype, int64_t n, tg_scalar alpha, void *x) {
    const array_args a = {.dtype = dtype, .n = n, .value = alpha, .out = x};
    return fake_submit(be, run_scale, &a, sizeof a);
}

static tg_status run_count_nonfinite(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->count_nonfinite(host, a->dtype, a->n, a->x, a->count);
}

static tg_status fake_count_nonfinite(tg_backend *be, tg_dtype dtype, int64_t n, const void *x,
                                      uint32_t *count) {
    const array_args a = {.dtype = dtype, .n = n, .x = x, .count = count};
    return fake_submit(be, run_count_nonfinite, &a, sizeof a);
}

static tg_status run_quantize(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->quantize(host, a->n, a->x, a->out);
}

static tg_status fake_quantize(tg_backend *be, int64_t n, const float *x, void *bytes) {
    const array_args a = {.n = n, .x = x, .out = bytes};
    return fake_submit(be, run_quantize, &a, sizeof a);
}

static tg_status run_dequantize(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->dequantize(host, a->n, a->x, a->out);
}

static tg_status fake_dequantize(tg_backend *be, int64_t n, const void *bytes, float *x) {
    const array_args a = {.n = n, .x = bytes, .out = x};
    return fake_submit(be, run_dequantize, &a, sizeof a);
}

static tg_status run_planes_join(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->planes_join(host, a->dtype, a->n, a->x, a->y, a->out);
}

static tg_status fake_planes_join(tg_backend *be, tg_dtype dtype, int64_t n, const void *re,
                                  const void *im, void *pairs) {
    const array_args a = {.dtype = dtype, .n = n, .x = re, .y = im, .out = pairs};
    return fake_submit(be, run_planes_join, &a, sizeof a);
}

static tg_status run_planes_split(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->planes_split(host, a->dtype, a->n, a->x, a->out, a->more);
}

static tg_status fake_planes_split(tg_backend *be, tg_dtype dtype, int64_t n, const void *pairs,
                                   void *re, void *im) {
    const array_args a = {.dtype = dtype, .n = n, .x = pairs, .out = re, .more = im};
    return fake_submit(be, run_planes_split, &a, sizeof a);
}

static tg_status run_act_forward(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->act_forward(host, a->dtype, a->act, a->n, a->x, a->out);
}

static tg_status fake_act_forward(tg_backend *be, tg_dtype dtype, tg_act act, int64_t n,
                                  const void *x, void *y) {
    const array_args a = {.dtype = dtype, .act = act, .n = n, .x = x, .out = y};
    return fake_submit(be, run_act_forward, &a, sizeof a);
}

static tg_status run_act_backward(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->act_backward(host, a->dtype, a->act, a->n, a->x, a->y, a->out);
}

static tg_status fake_act_backward(tg_backend *be, tg_dtype dtype, tg_act act, int64_t n,
                                   const void *x, const void *dy, void *dx) {
    const array_args a = {.dtype = dtype, .act = act, .n = n, .x = x, .y = dy, .out = dx};
    return fake_submit(be, run_act_backward, &a, sizeof a);
}

/* ---- random numbers ---- */

typedef struct random_args {
    tg_dtype dtype;
    tg_rng rng;
    uint64_t first;
    double a, b;
    int64_t n;
    void *x;
} random_args;

static tg_status run_random_uniform(tg_backend *host, void *arguments) {
    const random_args *r = arguments;
    return host->ops->random_uniform(host, r->dtype, &r->rng, r->first, r->a, r->b, r->n, r->x);
}

static tg_status fake_random_uniform(tg_backend *be, tg_dtype dtype, const tg_rng *rng,
                                     uint64_t first, double low, double high, int64_t n, void *x) {
    const random_args r = {dtype, *rng, first, low, high, n, x};
    return fake_submit(be, run_random_uniform, &r, sizeof r);
}

static tg_status run_random_normal(tg_backend *host, void *arguments) {
    const random_args *r = arguments;
    return host->ops->random_normal(host, r->dtype, &r->rng, r->first, r->a, r->b, r->n, r->x);
}

static tg_status fake_random_normal(tg_backend *be, tg_dtype dtype, const tg_rng *rng,
                                    uint64_t first, double mean, double deviation, int64_t n,
                                    void *x) {
    const random_args r = {dtype, *rng, first, mean, deviation, n, x};
    return fake_submit(be, run_random_normal, &r, sizeof r);
}

/* ---- products and boxes ---- */

static tg_status run_gemm(tg_backend *host, void *op) {
    return host->ops->gemm(host, op);
}

static tg_status fake_gemm(tg_backend *be, const tg_gemm *op) {
    return fake_submit(be, run_gemm, op, sizeof *op);
}

static tg_status run_box_copy(tg_backend *host, void *op) {
    return host->ops->box_copy(host, op);
}

static tg_status fake_box_copy(tg_backend *be, const tg_box *op) {
    return fake_submit(be, run_box_copy, op, sizeof *op);
}

/* ---- Fourier transforms ---- */

typedef struct fft_args {
    tg_fft_plan *plan;
    int64_t count;
    tg_fft_weight weight;
    double scale;
    const void *in;
    void *out;
} fft_args;

static tg_status fake_fft_create(tg_backend *be, const tg_fft_desc *desc, tg_fft_plan **out) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    *out = NULL;
    return host ? fake_leave(be, host->ops->fft_create(host, desc, out)) : status;
}

static void fake_fft_destroy(tg_backend *be, tg_fft_plan **plan) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    if (host) {
        host->ops->fft_destroy(host, plan);
        status = fake_leave(be, status);
    }
}

static tg_status run_fft_forward(tg_backend *host, void *arguments) {
    const fft_args *a = arguments;
    return host->ops->fft_forward(host, a->plan, a->count, a->weight, a->scale, a->in, a->out);
}

static tg_status fake_fft_forward(tg_backend *be, tg_fft_plan *plan, int64_t count,
                                  tg_fft_weight weight, double scale, const void *in, void *to) {
    const fft_args a = {plan, count, weight, scale, in, to};
    return fake_submit(be, run_fft_forward, &a, sizeof a);
}

static tg_status run_fft_inverse(tg_backend *host, void *arguments) {
    const fft_args *a = arguments;
    return host->ops->fft_inverse(host, a->plan, a->count, a->weight, a->scale, a->in, a->out);
}

static tg_status fake_fft_inverse(tg_backend *be, tg_fft_plan *plan, int64_t count,
                                  tg_fft_weight weight, double scale, const void *in, void *to) {
    const fft_args a = {plan, count, weight, scale, in, to};
    return fake_submit(be, run_fft_inverse, &a, sizeof a);
}

/* ---- decompositions ---- */

typedef struct gram_args {
    tg_dtype dtype;
    int64_t left, dim, right;
    const void *x;
    bool is_masked;
    tg_bitmap mask;
    void *out;
} gram_args;

static tg_status run_gram(tg_backend *host, void *arguments) {
    const gram_args *a = arguments;
    return host->ops->gram(host, a->dtype, a->left, a->dim, a->right, a->x,
                           a->is_masked ? &a->mask : NULL, a->out);
}

static tg_status fake_gram(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim, int64_t right,
                           const void *x, const tg_bitmap *mask, void *out) {
    const gram_args a = {dtype, left, dim, right, x, mask != NULL, mask ? *mask : (tg_bitmap){0},
                         out};
    return fake_submit(be, run_gram, &a, sizeof a);
}

typedef struct columns_args {
    tg_dtype dtype;
    int64_t rows, columns, count;
    const void *vectors, *old;
    void *out;
} columns_args;

static tg_status run_leading_columns(tg_backend *host, void *arguments) {
    const columns_args *a = arguments;
    return host->ops->leading_columns(host, a->dtype, a->rows, a->columns, a->count, a->vectors,
                                      a->old, a->out);
}

static tg_status fake_leading_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                      int64_t count, const void *vectors, const void *old,
                                      void *out) {
    const columns_args a = {dtype, rows, columns, count, vectors, old, out};
    return fake_submit(be, run_leading_columns, &a, sizeof a);
}

/* ---- columns of matrices ---- */

typedef struct matrix_args {
    tg_dtype dtype;
    int64_t rows, columns, ld_x, ld_out;
    double factor;
    const double *above, *below;
    const void *x;
    void *out;
} matrix_args;

static tg_status run_column_squares(tg_backend *host, void *arguments) {
    const matrix_args *a = arguments;
    return host->ops->column_squares(host, a->dtype, a->rows, a->columns, a->x, a->out);
}

static tg_status fake_column_squares(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                     const void *x, double *squares) {
    const matrix_args a = {
        .dtype = dtype, .rows = rows, .columns = columns, .x = x, .out = squares};
    return fake_submit(be, run_column_squares, &a, sizeof a);
}

static tg_status run_scale_columns(tg_backend *host, void *arguments) {
    const matrix_args *a = arguments;
    return host->ops->scale_columns(host, a->dtype, a->rows, a->columns, a->factor, a->above,
                                    a->below, a->out);
}

static tg_status fake_scale_columns(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                    double factor, const double *above, const double *below,
                                    void *x) {
    const matrix_args a = {.dtype = dtype,
                           .rows = rows,
                           .columns = columns,
                           .factor = factor,
                           .above = above,
                           .below = below,
                           .out = x};
    return fake_submit(be, run_scale_columns, &a, sizeof a);
}

static tg_status run_transpose(tg_backend *host, void *arguments) {
    const matrix_args *a = arguments;
    return host->ops->transpose(host, a->dtype, a->rows, a->columns, a->x, a->ld_x, a->out,
                                a->ld_out);
}

static tg_status fake_transpose(tg_backend *be, tg_dtype dtype, int64_t rows, int64_t columns,
                                const void *x, int64_t ld_x, void *out, int64_t ld_out) {
    const matrix_args a = {.dtype = dtype,
                           .rows = rows,
                           .columns = columns,
                           .x = x,
                           .ld_x = ld_x,
                           .out = out,
                           .ld_out = ld_out};
    return fake_submit(be, run_transpose, &a, sizeof a);
}

/* ---- calls that answer the host ---- */

static tg_status fake_norms(tg_backend *be, tg_dtype dtype, int64_t n, const void *x,
                            tg_norms *out) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->norms(host, dtype, n, x, out)) : status;
}

static tg_status fake_slice_norms(tg_backend *be, tg_dtype dtype, int64_t left, int64_t dim,
                                  int64_t right, const void *x, double *out) {
    tg_status status = TG_OK;
    tg_backend *host = fake_enter(be, &status);
    return host ? fake_leave(be, host->ops->slice_norms(host, dtype, left, dim, right, x, out))
                : status;
}

/* As on a GPU, decompositions of large matrices take memory of the device for their time. */
static size_t work_bytes(tg_dtype dtype, int64_t m, int64_t n) {
    enum { HELD = 1 << 14 }; /* what a device has at hand */
    const size_t bytes = (size_t)(m * n) * tg_dtype_size(dtype);
    return bytes > HELD ? bytes : 0;
}

static tg_status take_work(tg_backend *be, size_t bytes, void **out) {
    *out = bytes > 0 ? be->ops->alloc(be, TG_MEM_WORKSPACE, bytes) : NULL;
    return *out || bytes == 0 ? TG_OK : TG_E_MEMORY;
}

static tg_scratch_need fake_scratch_need(tg_backend *be, tg_scratch_call call, tg_dtype dtype,
                                         int64_t m, int64_t n) {
    tg_backend *host = fake_host(be);
    tg_scratch_need bytes = {.host = host->ops->scratch_need(host, call, dtype, m, n).place};
    if (call != TG_SCRATCH_SELECT) {
        bytes.place = work_bytes(dtype, call == TG_SCRATCH_QR ? m : n, n);
    }
    return bytes;
}

static tg_status fake_eigh(tg_backend *be, tg_dtype dtype, int64_t n, void *a,
                           double *eigenvalues) {
    void *work = NULL;
    tg_status status = take_work(be, work_bytes(dtype, n, n), &work);
    tg_backend *host = status == TG_OK ? fake_enter(be, &status) : NULL;
    if (host) {
        status = fake_leave(be, host->ops->eigh(host, dtype, n, a, eigenvalues));
    }
    be->ops->release(be, work);
    return status;
}

static tg_status fake_qr(tg_backend *be, tg_dtype dtype, int64_t m, int64_t n, void *a, void *r) {
    void *work = NULL;
    tg_status status = take_work(be, work_bytes(dtype, m, n), &work);
    tg_backend *host = status == TG_OK ? fake_enter(be, &status) : NULL;
    if (host) {
        status = fake_leave(be, host->ops->qr(host, dtype, m, n, a, r));
    }
    be->ops->release(be, work);
    return status;
}

void fake_fill_slots(tg_backend_ops *ops) {
    fake_fill_layers(ops);
    fake_fill_compress(ops);
    ops->fill = fake_fill;
    ops->convert = fake_convert;
    ops->axpy = fake_axpy;
    ops->scale = fake_scale;
    ops->norms = fake_norms;
    ops->count_nonfinite = fake_count_nonfinite;
    ops->gemm = fake_gemm;
    ops->gram = fake_gram;
    ops->slice_norms = fake_slice_norms;
    ops->column_squares = fake_column_squares;
    ops->scale_columns = fake_scale_columns;
    ops->transpose = fake_transpose;
    ops->eigh = fake_eigh;
    ops->leading_columns = fake_leading_columns;
    ops->qr = fake_qr;
    ops->scratch_need = fake_scratch_need;
    ops->fft_create = fake_fft_create;
    ops->fft_destroy = fake_fft_destroy;
    ops->fft_forward = fake_fft_forward;
    ops->fft_inverse = fake_fft_inverse;
    ops->box_copy = fake_box_copy;
    ops->planes_join = fake_planes_join;
    ops->planes_split = fake_planes_split;
    ops->act_forward = fake_act_forward;
    ops->act_backward = fake_act_backward;
    ops->quantize = fake_quantize;
    ops->dequantize = fake_dequantize;
    ops->random_uniform = fake_random_uniform;
    ops->random_normal = fake_random_normal;
}
