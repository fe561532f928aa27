/* An array of samples in a file or in memory.
 *
 * HDF5 files are read by samples. In npy and safetensors files, and most npz and torch files, an
 * array is one run of bytes; it is read in pieces, which are swapped to the host's byte order and
 * converted; an array in memory is read like such a file. */
#include "io/array.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "io/formats.h"

enum { PIECE_BYTES = 1 << 16 }; /* bytes, a multiple of every element's size */

struct tg_array {
    tg_context *ctx;
    char *path, *name, *label;
    tg_h5 *h5;         /* NULL: not HDF5 */
    tg_source source;  /* otherwise: the file, `whole`, or the caller's memory */
    tg_raw_array raw;  /* dtype and shape for every format; the rest applies to `source` */
    tg_tensor whole;   /* an array that was unpacked or reordered to C order */
    tg_names numbered; /* names of the arrays, if each sample is one */
    char *piece;       /* (PIECE_BYTES) bytes of the file in transit */
};

void tg_array_close(tg_array **array) {
    if (!array || !*array) {
        return;
    }
    tg_array *a = *array;
    tg_h5_close(&a->h5);
    tg_source_close(&a->source);
    tg_tensor_destroy(&a->whole);
    tg_names_clear(&a->numbered);
    TG_FREE(a->ctx, a->path);
    TG_FREE(a->ctx, a->name);
    TG_FREE(a->ctx, a->label);
    TG_FREE(a->ctx, a->piece);
    tg_mem_free(a->ctx, a);
    *array = NULL;
}

/* Replaces the file by the array's content, which `read` puts into a->whole. */
static void use_whole(tg_array *a) {
    tg_source_close(&a->source);
    a->source = tg_source_of_memory(a->ctx, a->path, a->whole.data, tg_tensor_bytes(&a->whole));
    a->raw = (tg_raw_array){.dtype = a->whole.dtype, .shape = a->whole.shape};
}

static tg_status check_whole(const tg_array *a, const char *kind, size_t whole_bytes) {
    const int64_t numel = tg_shape_numel(&a->raw.shape);
    const size_t element = tg_dtype_size(a->raw.dtype);
    return numel >= 0 && (uint64_t)numel <= whole_bytes / element
               ? TG_OK
               : tg_fail(a->ctx, TG_E_UNSUPPORTED,
                         "%s: %s must be read whole, but its %lld elements of %s are more than the "
                         "%zu bytes of the cache; store it in C order, not compressed, or enlarge "
                         "the cache",
                         a->label, kind, (long long)numel, tg_dtype_name(a->raw.dtype),
                         whole_bytes);
}

/* An array of any format but HDF5. */
static tg_status open_raw(tg_array *a, tg_file_format format, size_t whole_bytes) {
    tg_status status = TG_OK;
    tg_raw_file file = {0};
    const tg_raw_array *raw = NULL;
    TG_TRY(tg_source_open(a->ctx, a->path, &a->source));
    TG_TRY(TG_ALLOC(a->ctx, TG_MEM_DATA, a->piece, PIECE_BYTES));
    TG_TRY(tg_raw_open(&a->source, format, &file));
    TG_TRY(tg_raw_find(&file, a->name, &raw));
    a->raw = *raw;
    if (raw->is_scattered || raw->is_packed) {
        TG_TRY(check_whole(a,
                           format == TG_FILE_NPY ? "an array in Fortran order"
                                                 : "an array that is compressed or not in C order",
                           whole_bytes));
        TG_TRY(tg_raw_read_whole(&file, raw, &a->whole));
        use_whole(a);
    }
fail:
    tg_raw_close(&file);
    return status;
}

/* MATLAB's dimensions (N, .., T) are stored as (T, .., N): the stored dimension for dimension `d`
 * of the returned array. */
static int stored_dimension(const tg_array_form *form, int ndim, int d) {
    const int matlab = !form->is_time_last || d == 0 ? d : d == 1 ? ndim - 1 : d - 1;
    return ndim - 1 - matlab;
}

/* The whole dataset with its dimensions reversed. */
static tg_status take_reversed(tg_array *a, const tg_array_form *form, size_t whole_bytes) {
    tg_status status = TG_OK;
    tg_tensor stored = {0};
    int64_t step[TG_MAX_NDIM];
    const tg_shape from = a->raw.shape;
    tg_shape to = {.ndim = from.ndim};
    TG_TRY(check_whole(a, "an array of MATLAB", whole_bytes));
    TG_TRY(tg_h5_read(a->h5, a->name, &stored));
    for (int d = 0; d < to.ndim; d++) {
        const int source = stored_dimension(form, to.ndim, d);
        to.dim[d] = from.dim[source];
        step[d] = 1;
        for (int inner = source + 1; inner < from.ndim; inner++) {
            step[d] *= from.dim[inner];
        }
    }
    TG_TRY(tg_tensor_create(a->ctx, TG_MEM_DATA, stored.dtype, &to, &a->whole));
    tg_copy_strided(&a->whole, stored.data, step);
    tg_h5_close(&a->h5);
    use_whole(a);
    TG_TRY(TG_ALLOC(a->ctx, TG_MEM_DATA, a->piece, PIECE_BYTES));
fail:
    tg_tensor_destroy(&stored);
    return status;
}

/* Finds the arrays GROUP/name of all groups, which must have the same shape and dtype. */
static tg_status find_numbered(tg_array *a) {
    for (int64_t i = 0; i < tg_h5_count(a->h5); i++) {
        const char *name = tg_h5_name(a->h5, i), *slash = strchr(name, '/');
        tg_dtype dtype;
        tg_shape shape;
        if (!slash || strcmp(slash + 1, a->name) != 0) {
            continue;
        }
        TG_CALL(tg_h5_describe(a->h5, name, &dtype, &shape));
        if (a->numbered.count == 0) {
            a->raw.dtype = dtype;
            a->raw.shape = shape;
        }
        if (dtype != a->raw.dtype || !tg_shape_equal(&shape, &a->raw.shape) ||
            shape.ndim >= TG_MAX_NDIM) {
            return tg_fail(a->ctx, TG_E_SHAPE,
                           "%s: %s: expected %s of %s as in the groups before it, found %s of %s: "
                           "samples on several grids need a file each",
                           a->path, TG_QUOTED(name), tg_dtype_name(a->raw.dtype),
                           TG_SHAPE_TEXT(&a->raw.shape), tg_dtype_name(dtype),
                           TG_SHAPE_TEXT(&shape));
        }
        TG_CALL(tg_names_add(&a->numbered, "dataset", name, NULL));
    }
    if (a->numbered.count == 0) {
        return tg_fail(a->ctx, TG_E_ARGUMENT, "%s: there is no group with an array '%s'", a->path,
                       TG_QUOTED(a->name));
    }
    memmove(a->raw.shape.dim + 1, a->raw.shape.dim,
            (size_t)a->raw.shape.ndim * sizeof a->raw.shape.dim[0]);
    a->raw.shape.dim[0] = a->numbered.count;
    a->raw.shape.ndim++;
    return TG_OK;
}

static tg_status open_hdf5(tg_array *a, const tg_array_form *form, size_t whole_bytes) {
    TG_CALL(tg_h5_open(a->ctx, a->path, &a->h5));
    if (form && form->is_numbered) {
        return find_numbered(a);
    }
    TG_CALL(tg_h5_describe(a->h5, a->name, &a->raw.dtype, &a->raw.shape));
    if (form && form->is_reversed) {
        TG_CALL(take_reversed(a, form, whole_bytes));
    }
    return TG_OK;
}

static tg_status check_samples(const tg_array *a) {
    return a->raw.shape.ndim >= 1
               ? TG_OK
               : tg_fail(a->ctx, TG_E_SHAPE, "%s: expected an array of samples, found a scalar",
                         a->label);
}

static tg_status create(tg_context *ctx, const char *path, const char *name, const char *shown,
                        tg_array **out) {
    TG_CALL(TG_NEW(ctx, TG_MEM_OTHER, *out, 1));
    **out = (tg_array){.ctx = ctx,
                       .source = {.fd = -1},
                       .numbered = {.ctx = ctx},
                       .path = tg_mem_strdup(ctx, path),
                       .name = tg_mem_strdup(ctx, name),
                       .label = tg_mem_printf(ctx, "%s%s%s", path, *shown ? ": " : "", shown)};
    return (*out)->path && (*out)->name && (*out)->label ? TG_OK : TG_E_MEMORY;
}

tg_status tg_array_open(tg_context *ctx, const char *path, const char *name,
                        const tg_array_form *form, size_t whole_bytes, tg_array **out) {
    tg_status status = TG_OK;
    tg_file_format format = TG_FILE_FORMATS;
    *out = NULL;
    TG_TRY(tg_file_detect(ctx, path, &format));
    TG_TRY(create(ctx, path, name, format == TG_FILE_NPY ? "npy data" : TG_QUOTED(name), out));
    TG_TRY(format == TG_FILE_HDF5 ? open_hdf5(*out, form, whole_bytes)
                                  : open_raw(*out, format, whole_bytes));
    TG_TRY(check_samples(*out));
    return TG_OK;
fail:
    tg_array_close(out);
    return status;
}

tg_status tg_array_wrap(tg_context *ctx, const tg_tensor *tensor, const char *label,
                        tg_array **out) {
    tg_status status = TG_OK;
    *out = NULL;
    if (tensor->place != TG_HOST || !tensor->data || tg_tensor_numel(tensor) < 1) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%s: expected values on the host, found %s %s%s", label,
                       tg_dtype_name(tensor->dtype), TG_SHAPE_TEXT(&tensor->shape),
                       tensor->place == TG_HOST ? " without data" : " on the device");
    }
    TG_TRY(create(ctx, label, label, "", out));
    tg_array *a = *out;
    TG_TRY(TG_ALLOC(ctx, TG_MEM_DATA, a->piece, PIECE_BYTES));
    a->source = tg_source_of_memory(ctx, a->label, tensor->data, tg_tensor_bytes(tensor));
    a->raw = (tg_raw_array){.dtype = tensor->dtype, .shape = tensor->shape};
    TG_TRY(check_samples(a));
    return TG_OK;
fail:
    tg_array_close(out);
    return status;
}

size_t tg_array_bytes(const tg_array *array) {
    return (array->piece ? PIECE_BYTES : 0) +
           (array->whole.data ? tg_tensor_bytes(&array->whole) : 0);
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

/* Widens real numbers of `size` bytes in the upper half of `data` to complex ones in all of it;
 * each is read before it can be overwritten. */
static void widen(char *data, int64_t count, size_t size) {
    const char *real = data + (size_t)count * size;
    for (int64_t i = 0; i < count; i++, data += 2 * size, real += size) {
        memmove(data, real, size);
        memset(data + size, 0, size);
    }
}

static tg_status read_box(tg_array *a, const tg_array_box *box, tg_dtype dtype, void *data) {
    if (!a->h5) {
        return tg_raw_read(&a->source, &a->raw, a->name, box, a->piece, PIECE_BYTES, dtype, data);
    }
    if (a->numbered.count == 0) {
        return tg_h5_read_box(a->h5, a->name, box, dtype, data);
    }
    tg_array_box inner = {0}; /* of one sample, an array of its own */
    const size_t rest = (size_t)(a->raw.shape.ndim - 1) * sizeof inner.first[0];
    memcpy(inner.first, box->first + 1, rest);
    memcpy(inner.count, box->count + 1, rest);
    return tg_h5_read_box(a->h5, a->numbered.items[box->first[0]], &inner, dtype, data);
}

/* Rows from `row` on that are one box, up to `most`: one sample if times count as rows too, or each
 * sample is an array. Returns their number. */
static int64_t select_rows(const tg_array *a, int lead, int64_t row, int64_t most,
                           tg_array_box *box) {
    if (lead == 0) {
        return 1;
    }
    const int64_t times = lead == 2 ? a->raw.shape.dim[1] : 1, time = row % times;
    const int64_t step = lead == 1 && a->numbered.count == 0 ? most : tg_min(most, times - time);
    box->first[0] = row / times;
    box->count[0] = lead == 1 ? step : 1;
    if (lead == 2) {
        box->first[1] = time;
        box->count[1] = step;
    }
    return step;
}

/* Values of the dtype, or of its real one from an HDF5 file with real ones. */
static tg_status read_rows(tg_array *a, int lead, int64_t first, int64_t count, tg_array_box *box,
                           int64_t elements, tg_dtype dtype, char *data) {
    for (int64_t done = 0, step = 0; done < count; done += step) {
        char *place = data + (size_t)(done * elements) * tg_dtype_size(dtype);
        step = select_rows(a, lead, first + done, count - done, box);
        TG_CALL(read_box(a, box, dtype, place));
    }
    return TG_OK;
}

tg_status tg_array_read(tg_array *a, int lead, int64_t first, int64_t count,
                        const tg_array_slab *slab, tg_dtype dtype, void *data) {
    const tg_shape *shape = &a->raw.shape;
    const int64_t rows = tg_product(lead, shape->dim);
    tg_array_box box = tg_array_box_of(shape);
    if (first < 0 || count < 0 || first > rows || count > rows - first) {
        return tg_fail(a->ctx, TG_E_ARGUMENT, "%s: %lld samples from %lld on do not fit in %lld",
                       a->label, (long long)count, (long long)first, (long long)rows);
    }
    if (slab) {
        box.first[slab->dim] = slab->first;
        box.count[slab->dim] = slab->count;
    }
    const int64_t elements = tg_product(shape->ndim - lead, box.count + lead);
    if (!a->h5 || !tg_dtype_is_complex(dtype) || tg_dtype_is_complex(a->raw.dtype)) {
        return read_rows(a, lead, first, count, &box, elements, dtype, data);
    }
    const tg_dtype real = tg_dtype_real(dtype);
    const int64_t total = count * elements;
    const size_t size = tg_dtype_size(real);
    TG_CALL(read_rows(a, lead, first, count, &box, elements, real,
                      (char *)data + (size_t)total * size));
    widen(data, total, size);
    return TG_OK;
}
