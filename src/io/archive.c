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

struct tg_archive {
    tg_context *ctx;
    tg_names tensors; /* records: tg_tensor */
    tg_names meta;    /* records: char *, the value of a key */
};

tg_status tg_archive_create(tg_context *ctx, tg_archive **out) {
    TG_NEED_OUT(ctx, out, ctx);
    TG_CALL(TG_NEW(ctx, TG_MEM_OTHER, *out, 1));
    **out = (tg_archive){.ctx = ctx,
                         .tensors = {.ctx = ctx, .record_bytes = sizeof(tg_tensor)},
                         .meta = {.ctx = ctx, .record_bytes = sizeof(char *)}};
    return TG_OK;
}

void tg_archive_destroy(tg_archive **archive) {
    if (!archive || !*archive) {
        return;
    }
    tg_archive *a = *archive;
    for (int64_t i = 0; i < a->tensors.count; i++) {
        tg_tensor_destroy(tg_names_record(&a->tensors, i));
    }
    for (int64_t i = 0; i < a->meta.count; i++) {
        tg_mem_free(a->ctx, *(char **)tg_names_record(&a->meta, i));
    }
    tg_names_clear(&a->tensors);
    tg_names_clear(&a->meta);
    TG_FREE(a->ctx, *archive);
}

int64_t tg_archive_count(const tg_archive *archive) {
    return archive ? archive->tensors.count : 0;
}

const char *tg_archive_name(const tg_archive *archive, int64_t index) {
    return archive ? tg_names_item(&archive->tensors, index) : NULL;
}

const tg_tensor *tg_archive_tensor(const tg_archive *archive, int64_t index) {
    return archive ? tg_names_record(&archive->tensors, index) : NULL;
}

const tg_tensor *tg_archive_find(const tg_archive *archive, const char *name) {
    return archive && name ? tg_archive_tensor(archive, tg_names_find(&archive->tensors, name))
                           : NULL;
}

static tg_status check_tensor(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    const int64_t numel = tg_shape_numel(&tensor->shape);
    const size_t size = tg_dtype_size(tensor->dtype);
    if (size == 0) {
        return tg_fail(archive->ctx, TG_E_DTYPE, "tensor '%s': dtype number %d does not exist",
                       TG_QUOTED(name), (int)tensor->dtype);
    }
    if (numel < 0 || numel > INT64_MAX / (int64_t)size) {
        return tg_fail(archive->ctx, TG_E_SHAPE, "tensor '%s': shape %s is invalid or too large",
                       TG_QUOTED(name), TG_SHAPE_TEXT(&tensor->shape));
    }
    if (tensor->place != TG_HOST || (numel > 0 && !tensor->data)) {
        return tg_fail(archive->ctx, TG_E_ARGUMENT, "tensor '%s': not in host memory",
                       TG_QUOTED(name));
    }
    return TG_OK;
}

/* Adds the value itself, with its ownership. */
static tg_status insert(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    TG_CALL(check_tensor(archive, name, tensor));
    return tg_names_add(&archive->tensors, "tensor", name, tensor);
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
    if (!tg_utf8_is_valid(value)) {
        return tg_fail(archive->ctx, TG_E_ARGUMENT, "metadata '%s': the value is not UTF-8 text",
                       TG_QUOTED(key));
    }
    char *copy = tg_mem_strdup(archive->ctx, value);
    if (!copy) {
        return TG_E_MEMORY;
    }
    char **old = tg_names_record(&archive->meta, tg_names_find(&archive->meta, key));
    if (old) {
        tg_mem_free(archive->ctx, *old);
        *old = copy;
        return TG_OK;
    }
    const tg_status status = tg_names_add(&archive->meta, "metadata", key, &copy);
    if (status != TG_OK) {
        tg_mem_free(archive->ctx, copy);
    }
    return status;
}

const char *tg_archive_meta(const tg_archive *archive, const char *key) {
    return archive && key ? tg_archive_meta_value(archive, tg_names_find(&archive->meta, key))
                          : NULL;
}

int64_t tg_archive_meta_count(const tg_archive *archive) {
    return archive ? archive->meta.count : 0;
}

const char *tg_archive_meta_key(const tg_archive *archive, int64_t index) {
    return archive ? tg_names_item(&archive->meta, index) : NULL;
}

const char *tg_archive_meta_value(const tg_archive *archive, int64_t index) {
    char *const *value = archive ? tg_names_record(&archive->meta, index) : NULL;
    return value ? *value : NULL;
}

/* ---- any of the formats: detected by content when reading, chosen by the extension when writing
 * ---- */

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
        tg_zip zip;
        status = tg_zip_open(&source, &zip);
        status = status == TG_OK ? tg_zip_format(&zip, out) : status;
        tg_zip_close(&zip);
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

static tg_status read_raw(tg_context *ctx, const char *path, tg_file_format format,
                          tg_archive **out) {
    tg_source source = {.fd = -1};
    TG_CALL(tg_source_open(ctx, path, &source));
    const tg_status status = tg_raw_read_all(&source, format, out);
    tg_source_close(&source);
    return status;
}

tg_status tg_archive_read(tg_context *ctx, const char *path, tg_archive **out) {
    TG_NEED_OUT(ctx, out, ctx, path);
    tg_file_format format = TG_FILE_FORMATS;
    TG_CALL(tg_file_detect(ctx, path, &format));
    return format == TG_FILE_HDF5 ? read_hdf5(ctx, path, out) : read_raw(ctx, path, format, out);
}

tg_status tg_safetensors_read(tg_context *ctx, const char *path, tg_archive **out) {
    TG_NEED_OUT(ctx, out, ctx, path);
    return read_raw(ctx, path, TG_FILE_SAFETENSORS, out);
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
