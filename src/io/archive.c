/* Archive: named tensors and text metadata, both in the order of insertion; from and to files of
 * any format.
 *
 * Tensors are values in an array parallel to their names; destroying the archive leaves the memory
 * of views alone. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "io/formats.h"
#include "io/name_index.h"
#include "io/zip.h"

struct tg_archive {
    tg_context *ctx;
    tg_names names;         /* of the tensors */
    tg_tensor *tensors;     /* (capacity), the first names.count are in use */
    int64_t capacity;       /* of tensors */
    tg_names keys;          /* of the metadata */
    char **values;          /* (value_capacity), the first keys.count are in use */
    int64_t value_capacity; /* of values */
};

tg_status tg_archive_create(tg_context *ctx, tg_archive **out) {
    TG_NEED_OUT(ctx, out, ctx);
    tg_archive *archive = NULL;
    TG_CALL(TG_NEW(ctx, TG_MEM_OTHER, archive, 1));
    archive->ctx = ctx;
    archive->names.ctx = ctx;
    archive->keys.ctx = ctx;
    *out = archive;
    return TG_OK;
}

void tg_archive_destroy(tg_archive **archive) {
    if (!archive || !*archive) {
        return;
    }
    tg_archive *a = *archive;
    for (int64_t i = 0; i < a->names.count; i++) {
        tg_tensor_destroy(&a->tensors[i]);
    }
    for (int64_t i = 0; i < a->keys.count; i++) {
        TG_FREE(a->ctx, a->values[i]);
    }
    tg_names_clear(&a->names);
    tg_names_clear(&a->keys);
    TG_FREE(a->ctx, a->tensors);
    TG_FREE(a->ctx, a->values);
    tg_mem_free(a->ctx, a);
    *archive = NULL;
}

int64_t tg_archive_count(const tg_archive *archive) {
    return archive ? archive->names.count : 0;
}

const char *tg_archive_name(const tg_archive *archive, int64_t index) {
    return index >= 0 && index < tg_archive_count(archive) ? archive->names.items[index] : NULL;
}

const tg_tensor *tg_archive_tensor(const tg_archive *archive, int64_t index) {
    return index >= 0 && index < tg_archive_count(archive) ? &archive->tensors[index] : NULL;
}

const tg_tensor *tg_archive_find(const tg_archive *archive, const char *name) {
    return archive && name ? tg_archive_tensor(archive, tg_names_find(&archive->names, name))
                           : NULL;
}

static tg_status check_tensor(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    char quoted[TG_QUOTE], shape[128];
    const int64_t numel = tg_shape_numel(&tensor->shape);
    const size_t size = tg_dtype_size(tensor->dtype);
    if (size == 0) {
        return tg_fail(archive->ctx, TG_E_DTYPE, "tensor '%s': dtype number %d does not exist",
                       tg_quote(name ? name : "", quoted), (int)tensor->dtype);
    }
    if (numel < 0 || numel > INT64_MAX / (int64_t)size) {
        return tg_fail(archive->ctx, TG_E_SHAPE, "tensor '%s': shape %s is invalid or too large",
                       tg_quote(name ? name : "", quoted),
                       tg_shape_text(&tensor->shape, shape, sizeof shape));
    }
    if (tensor->place != TG_HOST || (numel > 0 && !tensor->data)) {
        return tg_fail(archive->ctx, TG_E_ARGUMENT, "tensor '%s': not in host memory",
                       tg_quote(name ? name : "", quoted));
    }
    return TG_OK;
}

/* Adds the value itself, with its ownership. */
static tg_status insert(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    TG_CALL(check_tensor(archive, name, tensor));
    TG_CALL(tg_mem_grow(archive->ctx, &archive->tensors, sizeof *tensor, archive->names.count, 1,
                        &archive->capacity));
    TG_CALL(tg_names_add(&archive->names, "tensor", name));
    archive->tensors[archive->names.count - 1] = *tensor;
    return TG_OK;
}

tg_status tg_archive_add(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    tg_tensor copy = {0};
    TG_CALL(check_tensor(archive, name, tensor));
    TG_CALL(tg_tensor_create(archive->ctx, TG_MEM_DATA, tensor->dtype, &tensor->shape, &copy));
    if (tensor->data) {
        memcpy(copy.data, tensor->data, tg_tensor_bytes(tensor));
    }
    return tg_archive_take(archive, name, &copy);
}

tg_status tg_archive_take(tg_archive *archive, const char *name, tg_tensor *tensor) {
    TG_NEED(NULL, archive);
    TG_NEED(archive->ctx, name, tensor);
    tg_tensor moved = *tensor;
    *tensor = (tg_tensor){0};
    tg_status status = insert(archive, name, &moved);
    if (status != TG_OK) {
        tg_tensor_destroy(&moved);
    }
    return status;
}

tg_status tg_archive_add_view(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    TG_NEED(NULL, archive);
    TG_NEED(archive->ctx, name, tensor);
    tg_tensor view = *tensor;
    view.owner = NULL;
    return insert(archive, name, &view);
}

tg_status tg_archive_set_meta(tg_archive *archive, const char *key, const char *value) {
    TG_NEED(NULL, archive);
    TG_NEED(archive->ctx, key, value);
    tg_status status = TG_OK;
    char quoted[TG_QUOTE];
    if (!tg_utf8_is_valid(value)) {
        return tg_fail(archive->ctx, TG_E_ARGUMENT, "metadata '%s': the value is not UTF-8 text",
                       tg_quote(key, quoted));
    }
    char *copy = tg_mem_strdup(archive->ctx, value);
    if (!copy) {
        return TG_E_MEMORY;
    }
    const int64_t found = tg_names_find(&archive->keys, key);
    if (found >= 0) {
        TG_FREE(archive->ctx, archive->values[found]);
        archive->values[found] = copy;
        return TG_OK;
    }
    TG_TRY(tg_mem_grow(archive->ctx, &archive->values, sizeof copy, archive->keys.count, 1,
                       &archive->value_capacity));
    TG_TRY(tg_names_add(&archive->keys, "metadata", key));
    archive->values[archive->keys.count - 1] = copy;
    return TG_OK;
fail:
    TG_FREE(archive->ctx, copy);
    return status;
}

const char *tg_archive_meta(const tg_archive *archive, const char *key) {
    return archive && key ? tg_archive_meta_value(archive, tg_names_find(&archive->keys, key))
                          : NULL;
}

int64_t tg_archive_meta_count(const tg_archive *archive) {
    return archive ? archive->keys.count : 0;
}

const char *tg_archive_meta_key(const tg_archive *archive, int64_t index) {
    return index >= 0 && index < tg_archive_meta_count(archive) ? archive->keys.items[index] : NULL;
}

const char *tg_archive_meta_value(const tg_archive *archive, int64_t index) {
    return index >= 0 && index < tg_archive_meta_count(archive) ? archive->values[index] : NULL;
}

/* ---- any of the formats: detected by content when reading, chosen by the extension when writing;
 * and checks that the formats share ---- */

tg_status tg_check_bools(tg_context *ctx, const char *label, const char *what,
                         const tg_tensor *tensor) {
    if (tensor->dtype != TG_BOOL) {
        return TG_OK;
    }
    const unsigned char *bytes = tensor->data;
    const int64_t numel = tg_tensor_numel(tensor);
    for (int64_t i = 0; i < numel; i++) {
        if (bytes[i] > 1) {
            return tg_fail(ctx, TG_E_FORMAT,
                           "%s: %s: element %lld: expected a bool of 0 or 1, found %d", label, what,
                           (long long)i, bytes[i]);
        }
    }
    return TG_OK;
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

tg_array_box tg_array_box_of(const tg_shape *shape) {
    tg_array_box box = {0};
    memcpy(box.count, shape->dim, (size_t)shape->ndim * sizeof shape->dim[0]);
    return box;
}

/* Consecutive elements [first, first + count). */
static tg_status read_run(const tg_source *source, const tg_raw_array *raw, int64_t first,
                          int64_t count, void *piece, size_t piece_bytes, tg_dtype dtype,
                          void *data) {
    const size_t from = tg_dtype_size(raw->dtype), to = tg_dtype_size(dtype);
    const int64_t most = (int64_t)(piece_bytes / from);
    uint64_t offset = raw->offset + (uint64_t)first * from;
    if (raw->dtype == dtype && !raw->is_swapped) {
        return tg_source_read(source, offset, data, (size_t)count * to);
    }
    for (int64_t done = 0, step = 0; done < count; done += step) {
        step = count - done < most ? count - done : most;
        const tg_shape shape = {1, {step}};
        tg_tensor src = {0}, dst = {0};
        TG_CALL(tg_source_read(source, offset, piece, (size_t)step * from));
        if (raw->is_swapped) {
            tg_swap_bytes(raw->dtype, piece, step);
        }
        TG_CALL(tg_tensor_wrap(source->ctx, raw->dtype, &shape, piece, &src));
        TG_CALL(tg_tensor_wrap(source->ctx, dtype, &shape, (char *)data + (size_t)done * to, &dst));
        TG_CALL(tg_check_bools(source->ctx, source->label, raw->name ? raw->name : "data", &src));
        TG_CALL(tg_tensor_convert(source->ctx, &src, &dst));
        offset += (uint64_t)step * from;
    }
    return TG_OK;
}

tg_status tg_raw_read(const tg_source *source, const tg_raw_array *raw, const tg_array_box *box,
                      void *piece, size_t piece_bytes, tg_dtype dtype, void *data) {
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
        TG_CALL(read_run(source, raw, first, run, piece, piece_bytes, dtype,
                         (char *)data + (size_t)(i * run) * tg_dtype_size(dtype)));
    }
    return TG_OK;
}

const char *tg_file_format_name(tg_file_format format) {
    static const char *const names[] = {"npy", "safetensors", "HDF5", "npz", "torch"};
    return (unsigned)format < TG_FILE_FORMATS ? names[format] : "unknown";
}

/* HDF5 allows a user block in front: the signature is at 0, 512, 1024, 2048, .. */
static tg_status has_hdf5_signature(const tg_source *source, bool *found) {
    static const unsigned char signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
    unsigned char start[8];
    *found = false;
    for (uint64_t at = 0; !*found && at + sizeof start <= source->size; at = at ? 2 * at : 512) {
        TG_CALL(tg_source_read(source, at, start, sizeof start));
        *found = memcmp(start, signature, sizeof start) == 0;
    }
    return TG_OK;
}

tg_status tg_file_detect(tg_context *ctx, const char *path, tg_file_format *out) {
    TG_NEED(ctx, ctx, path, out);
    tg_status status = TG_OK;
    tg_source source = {.fd = -1};
    unsigned char start[9] = {0};
    bool is_hdf5 = false;
    *out = TG_FILE_FORMATS;
    TG_TRY(tg_source_open(ctx, path, &source));
    const size_t shown = source.size < sizeof start ? (size_t)source.size : sizeof start;
    TG_TRY(tg_source_read(&source, 0, start, shown));
    TG_TRY(has_hdf5_signature(&source, &is_hdf5));
    if (memcmp(start, "\x93NUMPY", 6) == 0) {
        *out = TG_FILE_NPY;
    } else if (is_hdf5) {
        *out = TG_FILE_HDF5;
    } else if (tg_zip_starts(start, shown)) {
        status = tg_zipped_detect(&source, out);
    } else if (start[8] == '{') { /* 8 bytes of length, then a JSON object */
        *out = TG_FILE_SAFETENSORS;
    } else {
        const char *found = tg_content_name(start, shown);
        status =
            found
                ? tg_fail(ctx, TG_E_FORMAT,
                          "%s: expected an npy, npz, safetensors, HDF5 or torch file, found %s",
                          path, found)
                : tg_fail(
                      ctx, TG_E_FORMAT,
                      "%s: expected an npy, npz, safetensors, HDF5 or torch file, found %llu bytes "
                      "of something else",
                      path, (unsigned long long)source.size);
    }
fail:
    tg_source_close(&source);
    return status;
}

static tg_status read_npy(tg_context *ctx, const char *path, tg_archive **out) {
    tg_status status = TG_OK;
    tg_archive *archive = NULL;
    tg_tensor tensor = {0};
    TG_TRY(tg_archive_create(ctx, &archive));
    TG_TRY(tg_npy_read(ctx, path, &tensor));
    TG_TRY(tg_archive_take(archive, "data", &tensor));
    *out = archive;
    return TG_OK;
fail:
    tg_archive_destroy(&archive);
    return status;
}

static tg_status read_hdf5(tg_context *ctx, const char *path, tg_archive **out) {
    tg_status status = TG_OK;
    tg_h5 *file = NULL;
    tg_archive *archive = NULL;
    TG_TRY(tg_h5_open(ctx, path, &file));
    TG_TRY(tg_archive_create(ctx, &archive));
    for (int64_t i = 0; i < tg_h5_count(file); i++) {
        tg_tensor tensor = {0};
        TG_TRY(tg_h5_read(file, tg_h5_name(file, i), &tensor));
        TG_TRY(tg_archive_take(archive, tg_h5_name(file, i), &tensor));
    }
    TG_TRY(tg_h5_read_meta(file, archive));
    tg_h5_close(&file);
    *out = archive;
    return TG_OK;
fail:
    tg_archive_destroy(&archive);
    tg_h5_close(&file);
    return status;
}

static tg_status read_zipped(tg_context *ctx, const char *path, tg_archive **out) {
    tg_status status = TG_OK;
    tg_source source = {.fd = -1};
    tg_zipped file = {0};
    TG_TRY(tg_source_open(ctx, path, &source));
    TG_TRY(tg_zipped_open(&source, &file));
    TG_TRY(tg_zipped_read_all(&file, out));
fail:
    tg_zipped_close(&file);
    tg_source_close(&source);
    return status;
}

tg_status tg_archive_read(tg_context *ctx, const char *path, tg_archive **out) {
    TG_NEED_OUT(ctx, out, ctx, path);
    tg_file_format format = TG_FILE_FORMATS;
    TG_CALL(tg_file_detect(ctx, path, &format));
    switch (format) {
    case TG_FILE_NPY:
        return read_npy(ctx, path, out);
    case TG_FILE_HDF5:
        return read_hdf5(ctx, path, out);
    case TG_FILE_NPZ:
    case TG_FILE_TORCH:
        return read_zipped(ctx, path, out);
    default:
        return tg_safetensors_read(ctx, path, out);
    }
}

static bool ends_with(const char *path, const char *ending) {
    const size_t length = strlen(path), tail = strlen(ending);
    return length > tail && strcasecmp(path + length - tail, ending) == 0;
}

tg_status tg_file_format_of_path(tg_context *ctx, const char *path, tg_file_format *out) {
    TG_NEED(ctx, path, out);
    static const struct {
        const char *ending;
        tg_file_format format;
    } endings[] = {{".npy", TG_FILE_NPY},
                   {".safetensors", TG_FILE_SAFETENSORS},
                   {".h5", TG_FILE_HDF5},
                   {".hdf5", TG_FILE_HDF5}};
    *out = TG_FILE_FORMATS;
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        if (ends_with(path, endings[i].ending)) {
            *out = endings[i].format;
            return TG_OK;
        }
    }
    return tg_fail(ctx, TG_E_ARGUMENT,
                   "%s: expected a path that ends in .npy, .safetensors, .h5 or .hdf5", path);
}

tg_status tg_archive_write(tg_context *ctx, const char *path, const tg_archive *archive) {
    TG_NEED(ctx, ctx, path, archive);
    tg_file_format format = TG_FILE_FORMATS;
    TG_CALL(tg_file_format_of_path(ctx, path, &format));
    switch (format) {
    case TG_FILE_SAFETENSORS:
        return tg_safetensors_write(ctx, path, archive);
    case TG_FILE_HDF5:
        return tg_h5_write(ctx, path, archive, NULL);
    default:
        break;
    }
    if (tg_archive_count(archive) != 1) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: an npy file holds one tensor, there are %lld; choose one, or "
                       "write .safetensors or .h5",
                       path, (long long)tg_archive_count(archive));
    }
    return tg_npy_write(ctx, path, tg_archive_tensor(archive, 0));
}

const char *tg_io_libraries(char *text, size_t capacity) {
    char hdf5[32];
    if (!text) {
        return "";
    }
    snprintf(text, capacity, "HDF5 %s, jansson %s, libfyaml %s", tg_h5_version(hdf5, sizeof hdf5),
             jansson_version_str(), tg_yaml_version());
    return text;
}
