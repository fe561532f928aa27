/* Shapes, tensors and dtypes. */
#include "tgrad/tensor.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "tensor/element.h"

tg_shape tg_shape_of(int ndim, const int64_t *dims) {
    const bool is_possible = ndim >= 0 && ndim <= TG_MAX_NDIM && (dims || ndim == 0);
    tg_shape shape = {.ndim = is_possible ? ndim : -1};
    for (int d = 0; d < shape.ndim; d++) {
        shape.dim[d] = dims[d];
    }
    return shape;
}

bool tg_shape_equal(const tg_shape *a, const tg_shape *b) {
    if (!a || !b || a->ndim != b->ndim) {
        return false;
    }
    for (int d = 0; d < a->ndim; d++) {
        if (a->dim[d] != b->dim[d]) {
            return false;
        }
    }
    return true;
}

int64_t tg_shape_numel(const tg_shape *shape) {
    if (!shape || shape->ndim < 0 || shape->ndim > TG_MAX_NDIM) {
        return -1;
    }
    int64_t numel = 1;
    bool empty = false;
    for (int d = 0; d < shape->ndim; d++) {
        if (shape->dim[d] < 0) {
            return -1;
        }
        if (shape->dim[d] == 0) {
            empty = true;
        } else if (__builtin_mul_overflow(numel, shape->dim[d], &numel)) {
            return -1;
        }
    }
    return empty ? 0 : numel;
}

const char *tg_shape_text(const tg_shape *shape, char *text, size_t capacity) {
    if (!text || capacity == 0) {
        return text ? text : "";
    }
    snprintf(text, capacity, "%s", shape && shape->ndim == 0 ? "scalar" : "");
    size_t used = 0;
    if (shape && shape->ndim > TG_MAX_NDIM) {
        snprintf(text, capacity, "of %d dimensions", shape->ndim);
        return text;
    }
    for (int d = 0; shape && d < shape->ndim && used < capacity; d++) {
        int wrote = snprintf(text + used, capacity - used, "%s%lld", d ? "x" : "",
                             (long long)shape->dim[d]);
        used += wrote > 0 ? (size_t)wrote : 0;
    }
    return text;
}

/* Elements of a shape, or an error if its bytes exceed any memory. */
static tg_status checked_numel(tg_context *ctx, tg_dtype dtype, const tg_shape *shape,
                               int64_t *numel) {
    char text[128];
    if (tg_dtype_size(dtype) == 0) {
        return tg_fail(ctx, TG_E_DTYPE, "tensor: dtype number %d does not exist", (int)dtype);
    }
    *numel = tg_shape_numel(shape);
    if (*numel < 0 || *numel > INT64_MAX / (int64_t)tg_dtype_size(dtype)) {
        return tg_fail(ctx, TG_E_SHAPE, "tensor: shape %s of %s is invalid or too large",
                       tg_shape_text(shape, text, sizeof text), tg_dtype_name(dtype));
    }
    return TG_OK;
}

tg_status tg_tensor_create(tg_context *ctx, tg_mem_category category, tg_dtype dtype,
                           const tg_shape *shape, tg_tensor *out) {
    TG_NEED(ctx, out);
    *out = (tg_tensor){0};
    TG_NEED(ctx, ctx, shape);
    int64_t numel = 0;
    TG_CALL(checked_numel(ctx, dtype, shape, &numel));
    if (!tg_mem_category_is_known(category)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "tensor: memory category number %d does not exist",
                       (int)category);
    }
    void *data = tg_mem_alloc(ctx, category, (size_t)numel, tg_dtype_size(dtype));
    if (!data) {
        return TG_E_MEMORY;
    }
    *out = (tg_tensor){.dtype = dtype, .shape = *shape, .data = data, .owner = ctx};
    return TG_OK;
}

void tg_tensor_destroy(tg_tensor *tensor) {
    if (!tensor) {
        return;
    }
    tg_context *owner = tensor->owner;
    if (owner && tensor->place == TG_HOST) {
        tg_mem_free(owner, tensor->data);
    } else if (owner) {
        owner->backend_release(owner->backend, tensor->data);
    }
    *tensor = (tg_tensor){0};
}

tg_status tg_tensor_wrap_at(tg_context *ctx, tg_place place, tg_dtype dtype, const tg_shape *shape,
                            void *data, tg_tensor *out) {
    TG_NEED(ctx, out);
    *out = (tg_tensor){0};
    TG_NEED(ctx, shape);
    if (place != TG_HOST && place != TG_DEVICE) {
        return tg_fail(ctx, TG_E_ARGUMENT, "tensor: place number %d does not exist", (int)place);
    }
    int64_t numel = 0;
    TG_CALL(checked_numel(ctx, dtype, shape, &numel));
    if (!data && numel > 0) {
        return tg_fail(ctx, TG_E_ARGUMENT, "tensor: %lld elements to wrap, but data is NULL",
                       (long long)numel);
    }
    *out = (tg_tensor){.dtype = dtype, .shape = *shape, .data = data, .place = place};
    return TG_OK;
}

tg_status tg_tensor_wrap(tg_context *ctx, tg_dtype dtype, const tg_shape *shape, void *data,
                         tg_tensor *out) {
    return tg_tensor_wrap_at(ctx, TG_HOST, dtype, shape, data, out);
}

tg_status tg_tensor_slice(tg_context *ctx, const tg_tensor *tensor, int64_t first, int64_t count,
                          tg_tensor *out) {
    TG_NEED(ctx, out);
    *out = (tg_tensor){0};
    TG_NEED(ctx, tensor);
    if (tensor->shape.ndim < 1 || first < 0 || count < 0 || first > tensor->shape.dim[0] ||
        count > tensor->shape.dim[0] - first) {
        char text[128];
        return tg_fail(ctx, TG_E_SHAPE, "tensor: slice of %lld from %lld does not fit in %s",
                       (long long)count, (long long)first,
                       tg_shape_text(&tensor->shape, text, sizeof text));
    }
    tg_shape row = tensor->shape;
    row.dim[0] = 1;
    size_t row_bytes = (size_t)tg_shape_numel(&row) * tg_dtype_size(tensor->dtype);
    tg_tensor view = *tensor;
    view.owner = NULL;
    view.shape.dim[0] = count;
    view.data = tensor->data ? (char *)tensor->data + (size_t)first * row_bytes : NULL;
    *out = view;
    return TG_OK;
}

int64_t tg_tensor_numel(const tg_tensor *tensor) {
    return tensor ? tg_shape_numel(&tensor->shape) : -1;
}

size_t tg_tensor_bytes(const tg_tensor *tensor) {
    return tensor ? (size_t)tg_tensor_numel(tensor) * tg_dtype_size(tensor->dtype) : 0;
}

static tg_status require_host(tg_context *ctx, const tg_tensor *tensor) {
    if (tensor->place != TG_HOST) {
        return tg_fail(ctx, TG_E_ARGUMENT, "tensor: not in host memory");
    }
    if (!tensor->data && tg_tensor_numel(tensor) > 0) {
        return tg_fail(ctx, TG_E_ARGUMENT, "tensor: it has elements, but its data is NULL");
    }
    return TG_OK;
}

tg_status tg_tensor_get_stats(tg_context *ctx, const tg_tensor *tensor, tg_tensor_stats *out) {
    TG_NEED(ctx, tensor, out);
    const double none = (double)NAN;
    *out = (tg_tensor_stats){.min = none, .max = none, .mean = none};
    TG_CALL(require_host(ctx, tensor));
    const bool is_complex = tg_dtype_is_complex(tensor->dtype);
    const int64_t numel = tg_tensor_numel(tensor);
    int64_t finite = 0;
    double sum = 0.0;
    for (int64_t i = 0; i < numel; i++) {
        tg_scalar v = tg_load(tensor->dtype, tensor->data, i);
        if (isnan(v.re) || isnan(v.im)) {
            out->nan_count++;
            continue;
        }
        if (isinf(v.re) || isinf(v.im)) {
            out->inf_count++;
            continue;
        }
        double value = is_complex ? hypot(v.re, v.im) : v.re;
        out->min = finite == 0 || value < out->min ? value : out->min;
        out->max = finite == 0 || value > out->max ? value : out->max;
        sum += value;
        finite++;
    }
    if (finite > 0) {
        out->mean = sum / (double)finite;
    }
    return TG_OK;
}

tg_status tg_tensor_convert(tg_context *ctx, const tg_tensor *src, tg_tensor *dst) {
    TG_NEED(ctx, src, dst);
    TG_CALL(require_host(ctx, src));
    TG_CALL(require_host(ctx, dst));
    const int64_t numel = tg_tensor_numel(src);
    if (numel != tg_tensor_numel(dst)) {
        return tg_fail(ctx, TG_E_SHAPE, "tensor: cannot convert %lld elements into %lld",
                       (long long)numel, (long long)tg_tensor_numel(dst));
    }
    if (src->dtype == dst->dtype) {
        if (numel > 0) {
            memmove(dst->data, src->data, tg_tensor_bytes(src));
        }
        return TG_OK;
    }
    const bool drops_im = tg_dtype_is_complex(src->dtype) && !tg_dtype_is_complex(dst->dtype);
    for (int64_t i = 0; i < numel; i++) {
        tg_scalar v = tg_load(src->dtype, src->data, i);
        if (drops_im && v.im != 0.0) {
            return tg_fail(ctx, TG_E_DTYPE,
                           "tensor: %s to %s would lose the imaginary part %g of element %lld",
                           tg_dtype_name(src->dtype), tg_dtype_name(dst->dtype), v.im,
                           (long long)i);
        }
        tg_store(dst->dtype, dst->data, i, v);
    }
    return TG_OK;
}

/* The table of dtypes. */

typedef struct dtype_row {
    const char *name;
    size_t size;
    bool is_float;
    tg_dtype real;         /* of the real or imaginary part */
    tg_dtype complex_pair; /* its complex type, or itself */
    tg_dtype wide;         /* 16-bit formats: the type to compute in; others: itself */
} dtype_row;

static const dtype_row rows[TG_DTYPES] = {
    [TG_F32] = {"f32", 4, true, TG_F32, TG_C64, TG_F32},
    [TG_F64] = {"f64", 8, true, TG_F64, TG_C128, TG_F64},
    [TG_BF16] = {"bf16", 2, true, TG_BF16, TG_CBF16, TG_F32},
    [TG_F16] = {"f16", 2, true, TG_F16, TG_CF16, TG_F32},
    [TG_C64] = {"c64", 8, true, TG_F32, TG_C64, TG_C64},
    [TG_C128] = {"c128", 16, true, TG_F64, TG_C128, TG_C128},
    [TG_CBF16] = {"cbf16", 4, true, TG_BF16, TG_CBF16, TG_C64},
    [TG_CF16] = {"cf16", 4, true, TG_F16, TG_CF16, TG_C64},
    [TG_BOOL] = {"bool", 1, false, TG_BOOL, TG_BOOL, TG_BOOL},
    [TG_U8] = {"u8", 1, false, TG_U8, TG_U8, TG_U8},
    [TG_I8] = {"i8", 1, false, TG_I8, TG_I8, TG_I8},
    [TG_U16] = {"u16", 2, false, TG_U16, TG_U16, TG_U16},
    [TG_I16] = {"i16", 2, false, TG_I16, TG_I16, TG_I16},
    [TG_U32] = {"u32", 4, false, TG_U32, TG_U32, TG_U32},
    [TG_I32] = {"i32", 4, false, TG_I32, TG_I32, TG_I32},
    [TG_U64] = {"u64", 8, false, TG_U64, TG_U64, TG_U64},
    [TG_I64] = {"i64", 8, false, TG_I64, TG_I64, TG_I64},
};

static bool is_known(tg_dtype dtype) {
    return (int)dtype >= 0 && dtype < TG_DTYPES;
}

size_t tg_dtype_size(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].size : 0;
}

const char *tg_dtype_name(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].name : "unknown";
}

bool tg_dtype_is_complex(tg_dtype dtype) {
    return is_known(dtype) && rows[dtype].real != dtype;
}

bool tg_dtype_is_float(tg_dtype dtype) {
    return is_known(dtype) && rows[dtype].is_float;
}

tg_dtype tg_dtype_real(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].real : dtype;
}

tg_dtype tg_dtype_complex(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].complex_pair : dtype;
}

tg_dtype tg_dtype_wide(tg_dtype dtype) {
    return is_known(dtype) ? rows[dtype].wide : dtype;
}
