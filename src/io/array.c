/* An array of samples in a file or in memory.
 *
 * HDF5 files are read by samples. In npy and safetensors files, and most npz and torch files, an
 * array is one run of bytes; it is read in pieces that are turned to the host's byte order and
 * converted on the way; one in memory is read like such a file. */
#include "io/array.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/name_index.h"
#include "io/zipped.h"

enum { PIECE = 1 << 16 }; /* bytes, a multiple of every element's size */

struct tg_array {
    tg_context *ctx;
    char *path, *name, *label;
    tg_h5 *h5;        /* set: the file is HDF5 */
    tg_source source; /* otherwise: of the file, of `whole`, or of the caller's memory */
    tg_raw_array raw; /* dtype and shape for every format; the rest for `source` */
    tg_tensor whole;  /* an array that had to be unpacked or turned to C order */
    char *piece;      /* (PIECE) bytes of the file on their way */
};

void tg_array_close(tg_array **array) {
    if (!array || !*array) {
        return;
    }
    tg_array *a = *array;
    tg_h5_close(&a->h5);
    tg_source_close(&a->source);
    tg_tensor_destroy(&a->whole);
    TG_FREE(a->ctx, a->path);
    TG_FREE(a->ctx, a->name);
    TG_FREE(a->ctx, a->label);
    TG_FREE(a->ctx, a->piece);
    tg_mem_free(a->ctx, a);
    *array = NULL;
}

/* Replaces the file by the content of the array, which `read` has put into a->whole. */
static void use_whole(tg_array *a) {
    tg_source_close(&a->source);
    a->source = tg_source_of_memory(a->ctx, a->path, a->whole.data, tg_tensor_bytes(&a->whole));
    a->raw = (tg_raw_array){.dtype = a->whole.dtype, .shape = a->whole.shape};
}

static tg_status check_whole(const tg_array *a, const char *what, size_t whole_bytes) {
    const int64_t numel = tg_shape_numel(&a->raw.shape);
    const size_t element = tg_dtype_size(a->raw.dtype);
    return numel >= 0 && (uint64_t)numel <= whole_bytes / element
               ? TG_OK
               : tg_fail(a->ctx, TG_E_UNSUPPORTED,
                         "%s: %s must be read whole, but its %lld elements of %s are more than the "
                         "%zu bytes of the cache; store it in C order, not compressed, or enlarge "
                         "the cache",
                         a->label, what, (long long)numel, tg_dtype_name(a->raw.dtype),
                         whole_bytes);
}

static tg_status open_zipped(tg_array *a, size_t whole_bytes) {
    tg_status status = TG_OK;
    tg_zipped file = {0};
    const tg_zipped_tensor *tensor = NULL;
    TG_TRY(tg_zipped_open(&a->source, &file));
    TG_TRY(tg_zipped_find(&file, a->name, &tensor));
    a->raw = tensor->raw;
    if (!tensor->is_in_place) {
        TG_TRY(check_whole(a, "an array that is compressed or not in C order", whole_bytes));
        TG_TRY(tg_zipped_read(&file, tensor, &a->whole));
        use_whole(a);
    }
fail:
    tg_zipped_close(&file);
    return status;
}

static tg_status open_npy(tg_array *a, size_t whole_bytes) {
    tg_status status = TG_OK;
    TG_TRY(tg_npy_locate(&a->source, &a->raw));
    if (a->raw.is_fortran && a->raw.shape.ndim > 1) {
        TG_TRY(check_whole(a, "an array in Fortran order", whole_bytes));
        TG_TRY(tg_npy_read(a->ctx, a->path, &a->whole));
        use_whole(a);
    }
fail:
    return status;
}

static tg_status open_format(tg_array *a, tg_file_format format, size_t whole_bytes) {
    tg_status status = TG_OK;
    if (format == TG_FILE_HDF5) {
        TG_TRY(tg_h5_open(a->ctx, a->path, &a->h5));
        return tg_h5_describe(a->h5, a->name, &a->raw.dtype, &a->raw.shape);
    }
    TG_TRY(tg_source_open(a->ctx, a->path, &a->source));
    TG_TRY(TG_ALLOC(a->ctx, TG_MEM_DATA, a->piece, PIECE));
    switch (format) {
    case TG_FILE_NPY:
        return open_npy(a, whole_bytes);
    case TG_FILE_NPZ:
    case TG_FILE_TORCH:
        return open_zipped(a, whole_bytes);
    default:
        return tg_safetensors_locate(&a->source, a->name, &a->raw);
    }
fail:
    return status;
}

static tg_status check_samples(const tg_array *a) {
    return a->raw.shape.ndim >= 1
               ? TG_OK
               : tg_fail(a->ctx, TG_E_SHAPE, "%s: expected an array of samples, found a scalar",
                         a->label);
}

tg_status tg_array_open(tg_context *ctx, const char *path, const char *name, size_t whole_bytes,
                        tg_array **out) {
    tg_status status = TG_OK;
    tg_array *a = NULL;
    tg_file_format format = TG_FILE_FORMATS;
    char quoted[TG_QUOTE];
    *out = NULL;
    TG_TRY(tg_file_detect(ctx, path, &format));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, a, 1));
    a->ctx = ctx;
    a->source.fd = -1;
    a->path = tg_mem_strdup(ctx, path);
    a->name = tg_mem_strdup(ctx, name);
    const size_t capacity = strlen(path) + TG_QUOTE + 8;
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, a->label, capacity));
    TG_TRY(a->path && a->name ? TG_OK : TG_E_MEMORY);
    snprintf(a->label, capacity, "%s: %s", path,
             format == TG_FILE_NPY ? "npy data" : tg_quote(name, quoted));
    TG_TRY(open_format(a, format, whole_bytes));
    a->raw.name = a->name;
    TG_TRY(check_samples(a));
    *out = a;
    return TG_OK;
fail:
    tg_array_close(&a);
    return status;
}

tg_status tg_array_wrap(tg_context *ctx, const tg_tensor *tensor, const char *label,
                        tg_array **out) {
    tg_status status = TG_OK;
    tg_array *a = NULL;
    *out = NULL;
    if (tensor->place != TG_HOST || !tensor->data || tg_tensor_numel(tensor) < 1) {
        char text[128];
        return tg_fail(ctx, TG_E_ARGUMENT, "%s: expected values on the host, found %s %s%s", label,
                       tg_dtype_name(tensor->dtype),
                       tg_shape_text(&tensor->shape, text, sizeof text),
                       tensor->place == TG_HOST ? " without data" : " on the device");
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, a, 1));
    a->ctx = ctx;
    a->source.fd = -1;
    a->label = tg_mem_strdup(ctx, label);
    TG_TRY(a->label ? TG_OK : TG_E_MEMORY);
    TG_TRY(TG_ALLOC(ctx, TG_MEM_DATA, a->piece, PIECE));
    a->source = tg_source_of_memory(ctx, a->label, tensor->data, tg_tensor_bytes(tensor));
    a->raw = (tg_raw_array){.dtype = tensor->dtype, .shape = tensor->shape, .name = a->label};
    TG_TRY(check_samples(a));
    *out = a;
    return TG_OK;
fail:
    tg_array_close(&a);
    return status;
}

size_t tg_array_bytes(const tg_array *array) {
    return (array->piece ? PIECE : 0) + (array->whole.data ? tg_tensor_bytes(&array->whole) : 0);
}

tg_dtype tg_array_dtype(const tg_array *array) {
    return array->raw.dtype;
}

const tg_shape *tg_array_shape(const tg_array *array) {
    return &array->raw.shape;
}

const char *tg_array_label(const tg_array *array) {
    return array->label;
}

/* Real numbers in the upper half of `data` to complex ones in all of it; each is read before it
 * can be written over. */
static void widen(float *data, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        const float value = data[count + i];
        data[2 * i] = value;
        data[2 * i + 1] = 0.0f;
    }
}

tg_status tg_array_read(tg_array *a, int64_t first, int64_t count, tg_dtype dtype, void *data) {
    const tg_shape *shape = &a->raw.shape;
    if (first < 0 || count < 0 || first > shape->dim[0] || count > shape->dim[0] - first) {
        return tg_fail(a->ctx, TG_E_ARGUMENT, "%s: %lld samples from %lld on do not fit in %lld",
                       a->label, (long long)count, (long long)first, (long long)shape->dim[0]);
    }
    int64_t elements = 1; /* of a sample */
    for (int d = 1; d < shape->ndim; d++) {
        elements *= shape->dim[d];
    }
    if (!a->h5) {
        return tg_raw_read(&a->source, &a->raw, first * elements, count * elements, a->piece, PIECE,
                           dtype, data);
    }
    if (!tg_dtype_is_complex(dtype) || tg_dtype_is_complex(a->raw.dtype)) {
        return tg_h5_read_range(a->h5, a->name, first, count, dtype, data);
    }
    const int64_t total = count * elements;
    tg_status status =
        tg_h5_read_range(a->h5, a->name, first, count, TG_F32, (float *)data + total);
    if (status == TG_OK) {
        widen(data, total);
    }
    return status;
}
