/* Tensors: dtype + shape + memory, contiguous and row-major.
 *
 * A tg_tensor is a plain value. One from tg_tensor_create owns its memory (`owner` is set); views
 * and wrapped arrays point at memory that must outlive them. */
#ifndef TGRAD_TENSOR_H
#define TGRAD_TENSOR_H

#include <stdbool.h>

#include "tgrad/context.h"

TG_C_BEGIN

#define TG_MAX_NDIM 8

/* Complex types are pairs {re, im} of their real type. Integer types and bool are for files and
 * index sets: stored, converted and inspected, not computed with. */
typedef enum tg_dtype {
    TG_F32,
    TG_F64,
    TG_BF16,
    TG_F16,
    TG_C64,   /* pair of f32 */
    TG_C128,  /* pair of f64 */
    TG_CBF16, /* pair of bf16 */
    TG_CF16,  /* pair of f16 */
    TG_BOOL,
    TG_U8,
    TG_I8,
    TG_U16,
    TG_I16,
    TG_U32,
    TG_I32,
    TG_U64,
    TG_I64,
    TG_DTYPES
} tg_dtype;

TG_API size_t tg_dtype_size(tg_dtype dtype);      /* bytes of one element */
TG_API const char *tg_dtype_name(tg_dtype dtype); /* "f32", "c64", .. */
TG_API bool tg_dtype_is_complex(tg_dtype dtype);
TG_API bool tg_dtype_is_float(tg_dtype dtype);    /* real or complex floating point */
TG_API tg_dtype tg_dtype_real(tg_dtype dtype);    /* c64 -> f32, f32 -> f32, .. */
TG_API tg_dtype tg_dtype_complex(tg_dtype dtype); /* f32 -> c64, c64 -> c64, .. */
TG_API tg_dtype tg_dtype_wide(tg_dtype dtype);    /* 16-bit -> f32 or c64, as they are read */

typedef struct tg_shape {
    int ndim;                 /* 0 (a scalar) .. TG_MAX_NDIM */
    int64_t dim[TG_MAX_NDIM]; /* sizes, outermost first; 0 is allowed */
} tg_shape;

/* Shape from a list of sizes; ndim beyond TG_MAX_NDIM gives an invalid shape (ndim = -1). */
TG_API tg_shape tg_shape_of(int ndim, const int64_t *dims);
TG_API bool tg_shape_equal(const tg_shape *a, const tg_shape *b);

/* Number of elements; -1 if a size is negative, ndim is out of range or the product overflows. */
TG_API int64_t tg_shape_numel(const tg_shape *shape);

/* Writes "64x64x33" ("scalar" for ndim 0) into text, always terminated; returns text. */
TG_API const char *tg_shape_text(const tg_shape *shape, char *text, size_t capacity);

typedef struct tg_tensor {
    tg_dtype dtype;
    tg_shape shape;
    void *data;        /* first element; NULL when empty */
    tg_place place;    /* where data lives */
    tg_context *owner; /* set: this value owns data; NULL: a view */
} tg_tensor;

/* Allocates on the host, 64-byte aligned, not initialised. On failure *out is all zero. */
TG_API TG_NODISCARD tg_status tg_tensor_create(tg_context *ctx, tg_mem_category category,
                                               tg_dtype dtype, const tg_shape *shape,
                                               tg_tensor *out);

/* Frees the memory that the tensor owns (none for a view) and zeroes it; accepts NULL. */
TG_API void tg_tensor_destroy(tg_tensor *tensor);

/* Wraps memory of the caller, on the host or on the device that the context's backend computes on:
 * no copy, no ownership. Calls that take tensors refuse one that says it is elsewhere. */
TG_API TG_NODISCARD tg_status tg_tensor_wrap_at(tg_context *ctx, tg_place place, tg_dtype dtype,
                                                const tg_shape *shape, void *data, tg_tensor *out);

/* The same on the host. */
TG_API TG_NODISCARD tg_status tg_tensor_wrap(tg_context *ctx, tg_dtype dtype, const tg_shape *shape,
                                             void *data, tg_tensor *out);

/* View of the sub-range [first, first + count) of the outermost dimension. */
TG_API TG_NODISCARD tg_status tg_tensor_slice(tg_context *ctx, const tg_tensor *tensor,
                                              int64_t first, int64_t count, tg_tensor *out);

TG_API int64_t tg_tensor_numel(const tg_tensor *tensor);
TG_API size_t tg_tensor_bytes(const tg_tensor *tensor);

/* Statistics of a host tensor of any dtype, over finite elements; a complex element counts once by
 * its modulus. Min, max and mean are NaN when no element is finite. */
typedef struct tg_tensor_stats {
    double min, max, mean;
    int64_t nan_count, inf_count;
} tg_tensor_stats;

TG_API TG_NODISCARD tg_status tg_tensor_get_stats(tg_context *ctx, const tg_tensor *tensor,
                                                  tg_tensor_stats *out);

/* Converts between any two dtypes on the host, to the nearest representable value (16-bit formats
 * round to even; integers saturate, NaN becomes 0). Real to complex sets im = 0; complex to real is
 * refused unless every imaginary part is 0. dst must have the same number of elements. */
TG_API TG_NODISCARD tg_status tg_tensor_convert(tg_context *ctx, const tg_tensor *src,
                                                tg_tensor *dst);

TG_C_END
#endif
