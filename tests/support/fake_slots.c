/* The slots of the fake device: each copies its arguments into the stream, or answers the host
 * after the stream has run empty. Host structures that arguments point to (bitmaps, random streams)
 * are copied too, since a caller may change them as soon as the call has returned. This file has
 * the slots for arrays and matrices; fake_layers.c and fake_compress.c have the others. */
#include "support/fake_device.h"

/* ---- elementwise ---- */

typedef struct array_args { /* as far as a call has them */
    tg_dtype dtype, dst_dtype;
    int64_t n;
    tg_scalar value;
    const void *x;
    void *out;
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

static tg_status run_count_nonfinite(tg_backend *host, void *arguments) {
    const array_args *a = arguments;
    return host->ops->count_nonfinite(host, a->dtype, a->n, a->x, a->count);
}

static tg_status fake_count_nonfinite(tg_backend *be, tg_dtype dtype, int64_t n, const void *x,
                                      uint32_t *count) {
    const array_args a = {.dtype = dtype, .n = n, .x = x, .count = count};
    return fake_submit(be, run_count_nonfinite, &a, sizeof a);
}

/* ---- Fourier transforms ---- */

typedef struct fft_args {
    tg_fft_plan *plan;
    tg_fft_direction direction;
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

static tg_status run_fft(tg_backend *host, void *arguments) {
    const fft_args *a = arguments;
    return host->ops->fft(host, a->plan, a->direction, a->count, a->weight, a->scale, a->in,
                          a->out);
}

static tg_status fake_fft(tg_backend *be, tg_fft_plan *plan, tg_fft_direction direction,
                          int64_t count, tg_fft_weight weight, double scale, const void *in,
                          void *to) {
    const fft_args a = {plan, direction, count, weight, scale, in, to};
    return fake_submit(be, run_fft, &a, sizeof a);
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

/* ---- slots of one operand ---- */

#define TG_SLOT(name, type)                                                                        \
    static tg_status run_##name(tg_backend *host, void *op) {                                      \
        return host->ops->name(host, op);                                                          \
    }                                                                                              \
    static tg_status fake_##name(tg_backend *be, const type *op) {                                 \
        return fake_submit(be, run_##name, op, sizeof *op);                                        \
    }
#include "backend/slots.def"
#undef TG_SLOT

void fake_fill_slots(tg_backend_ops *ops) {
#define TG_SLOT(name, type) ops->name = fake_##name;
#include "backend/slots.def"
#undef TG_SLOT
    fake_fill_layers(ops);
    fake_fill_compress(ops);
    ops->fill = fake_fill;
    ops->convert = fake_convert;
    ops->axpy = fake_axpy;
    ops->norms = fake_norms;
    ops->count_nonfinite = fake_count_nonfinite;
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
    ops->fft = fake_fft;
}
