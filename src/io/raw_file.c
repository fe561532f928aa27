/* Files of raw arrays: every format but HDF5. A format lists its arrays by place and layout
 * (tg_npy_list, ..); reading them is the same for all. */
#include "io/formats.h"

#include <string.h>

#include "base/memory.h"

void tg_raw_close(tg_raw_file *file) {
    if (file->ctx) {
        tg_zip_close(&file->zip);
        tg_names_clear(&file->arrays);
        tg_archive_destroy(&file->meta);
    }
}

tg_status tg_raw_open(const tg_source *source, tg_file_format format, tg_raw_file *out) {
    *out = (tg_raw_file){.ctx = source->ctx,
                         .source = source,
                         .format = format,
                         .arrays = {.ctx = source->ctx, .record_bytes = sizeof(tg_raw_array)},
                         .zip = {.members = {.ctx = source->ctx}}};
    TG_CALL(tg_archive_create(out->ctx, &out->meta));
    switch (format) {
    case TG_FILE_NPY:
        return tg_npy_list(out);
    case TG_FILE_NPZ:
    case TG_FILE_TORCH:
        TG_CALL(tg_zip_open(source, &out->zip));
        TG_CALL(tg_zip_format(&out->zip, &out->format));
        return out->format == TG_FILE_NPZ ? tg_npz_list(out) : tg_torch_list(out);
    default:
        return tg_safetensors_list(out);
    }
}

tg_status tg_raw_find(const tg_raw_file *file, const char *name, const tg_raw_array **out) {
    *out = tg_names_record(&file->arrays,
                           file->format == TG_FILE_NPY ? 0 : tg_names_find(&file->arrays, name));
    return *out ? TG_OK : tg_names_missing(&file->arrays, file->source->label, "tensor", name);
}

tg_status tg_check_bools(tg_context *ctx, const char *label, const char *name,
                         const tg_tensor *tensor) {
    const unsigned char *bytes = tensor->data;
    const int64_t numel = tensor->dtype == TG_BOOL ? tg_tensor_numel(tensor) : 0;
    for (int64_t i = 0; i < numel; i++) {
        if (bytes[i] > 1) {
            return tg_fail(ctx, TG_E_FORMAT,
                           "%s: %s: element %lld: expected a bool of 0 or 1, found %d", label, name,
                           (long long)i, bytes[i]);
        }
    }
    return TG_OK;
}

/* Swaps the bytes of every number; a complex element has two. */
static void swap_bytes(tg_dtype dtype, void *data, int64_t count) {
    const size_t word = tg_dtype_size(tg_dtype_real(dtype));
    const size_t words = (size_t)count * (tg_dtype_size(dtype) / word);
    unsigned char *bytes = data;
    for (size_t i = 0; i < words; i++, bytes += word) {
        for (size_t low = 0, high = word - 1; low < high; low++, high--) {
            const unsigned char kept = bytes[low];
            bytes[low] = bytes[high];
            bytes[high] = kept;
        }
    }
}

void tg_copy_strided(const tg_tensor *out, const void *in, const int64_t *stride) {
    const size_t element = tg_dtype_size(out->dtype);
    const tg_shape *shape = &out->shape;
    int64_t index[TG_MAX_NDIM] = {0}, at = 0;
    for (int64_t i = 0; i < tg_tensor_numel(out); i++) {
        memcpy((char *)out->data + (size_t)i * element, (const char *)in + (size_t)at * element,
               element);
        int d = shape->ndim - 1;
        for (; d >= 0 && ++index[d] == shape->dim[d]; d--) {
            at -= (shape->dim[d] - 1) * stride[d];
            index[d] = 0;
        }
        at += d >= 0 ? stride[d] : 0;
    }
}

/* Reads the elements of a scattered array with all between them. */
static tg_status gather(const tg_source *source, const tg_raw_array *raw, const tg_tensor *out) {
    tg_status status = TG_OK;
    char *all = NULL;
    int64_t last = 0;
    for (int d = 0; d < raw->shape.ndim; d++) {
        last += (raw->shape.dim[d] - 1) * raw->stride[d];
    }
    const size_t bytes = (size_t)(last + 1) * tg_dtype_size(raw->dtype);
    TG_TRY(TG_ALLOC(source->ctx, TG_MEM_WORKSPACE, all, bytes));
    TG_TRY(tg_source_read(source, raw->offset, all, bytes));
    tg_copy_strided(out, all, raw->stride);
fail:
    TG_FREE(source->ctx, all);
    return status;
}

tg_status tg_raw_read_whole(const tg_raw_file *file, const tg_raw_array *raw, tg_tensor *out) {
    tg_status status = TG_OK;
    tg_context *ctx = file->ctx;
    tg_source source = *file->source;
    char *content = NULL;
    TG_TRY(tg_tensor_create(ctx, TG_MEM_DATA, raw->dtype, &raw->shape, out));
    if (raw->is_packed) {
        const size_t size = (size_t)tg_zip_member_at(&file->zip, raw->member)->size;
        TG_TRY(TG_ALLOC(ctx, TG_MEM_WORKSPACE, content, size));
        TG_TRY(tg_zip_read(&file->zip, raw->member, content, size));
        source = tg_source_of_memory(ctx, source.label, content, size);
    }
    TG_TRY(raw->is_scattered
               ? gather(&source, raw, out)
               : tg_source_read(&source, raw->offset, out->data, tg_tensor_bytes(out)));
    if (raw->is_swapped) {
        swap_bytes(out->dtype, out->data, tg_tensor_numel(out));
    }
    TG_TRY(tg_check_bools(ctx, source.label, TG_QUOTED(tg_names_item_of(&file->arrays, raw)), out));
fail:
    TG_FREE(ctx, content);
    if (status != TG_OK) {
        tg_tensor_destroy(out);
    }
    return status;
}

tg_status tg_raw_read_all(const tg_source *source, tg_file_format format, tg_archive **out) {
    tg_status status = TG_OK;
    tg_raw_file file = {0};
    *out = NULL;
    TG_TRY(tg_raw_open(source, format, &file));
    for (int64_t i = 0; i < file.arrays.count; i++) {
        tg_tensor tensor = {0};
        TG_TRY(tg_raw_read_whole(&file, tg_names_record(&file.arrays, i), &tensor));
        TG_TRY(tg_archive_take(file.meta, file.arrays.items[i], &tensor));
    }
    *out = file.meta;
    file.meta = NULL;
fail:
    tg_raw_close(&file);
    return status;
}

tg_array_box tg_array_box_of(const tg_shape *shape) {
    tg_array_box box = {0};
    memcpy(box.count, shape->dim, (size_t)shape->ndim * sizeof shape->dim[0]);
    return box;
}

/* Consecutive elements [first, first + count). */
static tg_status read_run(const tg_source *source, const tg_raw_array *raw, const char *label,
                          int64_t first, int64_t count, void *piece, size_t piece_bytes,
                          tg_dtype dtype, void *data) {
    const size_t from = tg_dtype_size(raw->dtype), to = tg_dtype_size(dtype);
    const int64_t limit = (int64_t)(piece_bytes / from);
    uint64_t offset = raw->offset + (uint64_t)first * from;
    if (raw->dtype == dtype && !raw->is_swapped) {
        return tg_source_read(source, offset, data, (size_t)count * to);
    }
    for (int64_t done = 0, step = 0; done < count; done += step) {
        step = count - done < limit ? count - done : limit;
        const tg_shape shape = {1, {step}};
        tg_tensor src = {0}, dst = {0};
        TG_CALL(tg_source_read(source, offset, piece, (size_t)step * from));
        if (raw->is_swapped) {
            swap_bytes(raw->dtype, piece, step);
        }
        TG_CALL(tg_tensor_wrap(source->ctx, raw->dtype, &shape, piece, &src));
        TG_CALL(tg_tensor_wrap(source->ctx, dtype, &shape, (char *)data + (size_t)done * to, &dst));
        TG_CALL(tg_check_bools(source->ctx, source->label, TG_QUOTED(label), &src));
        TG_CALL(tg_tensor_convert(source->ctx, &src, &dst));
        offset += (uint64_t)step * from;
    }
    return TG_OK;
}

tg_status tg_raw_read(const tg_source *source, const tg_raw_array *raw, const char *label,
                      const tg_array_box *box, void *piece, size_t piece_bytes, tg_dtype dtype,
                      void *data) {
    const tg_shape *shape = &raw->shape;
    int64_t run = 1, runs = 1;
    int outer = shape->ndim; /* dimensions before those of a run */
    while (outer > 0 && (outer == shape->ndim || box->count[outer] == shape->dim[outer])) {
        run *= box->count[--outer];
    }
    for (int d = 0; d < outer; d++) {
        runs *= box->count[d];
    }
    for (int64_t i = 0; run > 0 && i < runs; i++) {
        int64_t first = 0, stride = 1, left = i;
        for (int d = shape->ndim - 1; d >= 0; d--) {
            first += (box->first[d] + (d < outer ? left % box->count[d] : 0)) * stride;
            left /= d < outer ? box->count[d] : 1;
            stride *= shape->dim[d];
        }
        TG_CALL(read_run(source, raw, label, first, run, piece, piece_bytes, dtype,
                         (char *)data + (size_t)(i * run) * tg_dtype_size(dtype)));
    }
    return TG_OK;
}
