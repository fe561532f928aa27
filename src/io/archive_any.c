/* Any of the formats: detected by content when reading, chosen by the extension when writing; also
 * checks that the formats share. */
#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/context.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/name_index.h"
#include "io/zipped.h"

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

tg_status tg_raw_read(const tg_source *source, const tg_raw_array *raw, int64_t first,
                      int64_t count, void *piece, size_t piece_bytes, tg_dtype dtype, void *data) {
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
