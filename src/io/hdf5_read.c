/* Reading HDF5: the list of numeric datasets, whole datasets, ranges of samples, and the attributes
 * of the root group.
 *
 * Only hard links inside the file are followed, and datasets whose data lies in other files
 * (external or virtual storage) are refused: a file cannot make us read another one. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/hdf5_types.h"
#include "io/names.h"

enum {
    DEEPEST_GROUP = 64, /* HDF5 walks groups by recursion: a bound for its stack */
    /* Data may be larger than its file when it is compressed or was never written. More than the
     * best ratio of gzip (about 1030) is a lie of the file, unless it is a small one. */
    LARGEST_RATIO = 2048,
    SMALL_DATA = 64 << 20, /* bytes */
};

struct tg_h5 {
    tg_context *ctx;
    char *path;
    uint64_t size; /* bytes of the file */
    hid_t id;
    tg_names names; /* of the numeric datasets */
};

/* ---- opening ---- */

typedef struct visitor {
    tg_h5 *file;
    tg_status status; /* why the walk ended early, when it was not HDF5 */
} visitor;

static herr_t visit(hid_t root, const char *name, const H5O_info_t *info, void *user) {
    visitor *v = user;
    char quoted[TG_QUOTE];
    int depth = 0;
    for (const char *c = name; *c; c++) {
        depth += *c == '/';
    }
    if (depth >= DEEPEST_GROUP || !tg_utf8_is_valid(name)) {
        v->status = tg_fail(
            v->file->ctx, TG_E_FORMAT, "%s: object '%s': %s", v->file->path, tg_quote(name, quoted),
            depth >= DEEPEST_GROUP ? "groups are nested deeper than 64" : "the name is not UTF-8");
        return -1;
    }
    if (info->type != H5O_TYPE_DATASET) {
        return 0;
    }
    hid_t dataset = H5Dopen2(root, name, H5P_DEFAULT);
    hid_t type = H5Dget_type(dataset);
    tg_dtype dtype = TG_F32;
    if (type >= 0 && tg_h5_dtype_of(type, &dtype)) {
        v->status = tg_names_add(&v->file->names, "dataset", name);
    } else if (type >= 0) {
        tg_log(v->file->ctx, TG_LOG_DEBUG, "%s: dataset '%s' has no type of ours and is left out",
               v->file->path, tg_quote(name, quoted));
    }
    const bool failed = type < 0 || v->status != TG_OK;
    H5Tclose(type);
    H5Dclose(dataset);
    return failed ? -1 : 0;
}

static tg_status open_and_list(tg_h5 *file) {
    char text[TG_H5_REASON];
    visitor v = {.file = file};
    /* No file lock: it fails on some network drives, and a reader needs none. */
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, 0, 1);
    file->id = H5Fopen(file->path, H5F_ACC_RDONLY, access);
    H5Pclose(access);
    if (file->id < 0) {
        return tg_fail(file->ctx, TG_E_FORMAT, "%s: not a valid HDF5 file: %s", file->path,
                       tg_h5_reason(text));
    }
    if (H5Ovisit(file->id, H5_INDEX_NAME, H5_ITER_INC, visit, &v) < 0) {
        return v.status != TG_OK
                   ? v.status
                   : tg_fail(file->ctx, TG_E_FORMAT, "%s: cannot list the datasets: %s", file->path,
                             tg_h5_reason(text));
    }
    return TG_OK;
}

tg_status tg_h5_open(tg_context *ctx, const char *path, tg_h5 **out) {
    tg_status status = TG_OK;
    tg_source source = {.fd = -1};
    tg_h5 *file = NULL;
    *out = NULL;
    /* Opened by ourselves first: the system's own reason beats what HDF5 makes of it. */
    TG_TRY(tg_source_open(ctx, path, &source));
    const uint64_t size = source.size;
    tg_source_close(&source);
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, file, 1));
    *file = (tg_h5){.ctx = ctx, .size = size, .id = H5I_INVALID_HID, .names = {.ctx = ctx}};
    file->path = tg_mem_strdup(ctx, path);
    TG_TRY(file->path ? TG_OK : TG_E_MEMORY);
    tg_h5_guard guard;
    tg_h5_enter(&guard);
    status = open_and_list(file);
    tg_h5_leave(&guard);
    TG_TRY(status);
    *out = file;
    return TG_OK;
fail:
    tg_h5_close(&file);
    return status;
}

void tg_h5_close(tg_h5 **file) {
    if (!file || !*file) {
        return;
    }
    tg_h5 *f = *file;
    if (f->id >= 0) {
        tg_h5_guard guard;
        tg_h5_enter(&guard);
        H5Fclose(f->id);
        tg_h5_leave(&guard);
    }
    tg_names_clear(&f->names);
    TG_FREE(f->ctx, f->path);
    tg_mem_free(f->ctx, f);
    *file = NULL;
}

int64_t tg_h5_count(const tg_h5 *file) {
    return file->names.count;
}

const char *tg_h5_name(const tg_h5 *file, int64_t index) {
    return index >= 0 && index < file->names.count ? file->names.items[index] : NULL;
}

/* ---- datasets ---- */

typedef struct dataset {
    hid_t id, type, space, plist;
    tg_dtype dtype; /* the nearest of ours */
    tg_shape shape;
} dataset;

static const dataset no_dataset = {H5I_INVALID_HID, H5I_INVALID_HID, H5I_INVALID_HID,
                                   H5I_INVALID_HID, TG_F32,          {0}};

static void close_dataset(dataset *d) {
    H5Pclose(d->plist);
    H5Sclose(d->space);
    H5Tclose(d->type);
    H5Dclose(d->id);
    *d = no_dataset;
}

/* `kind` is "dataset" or "attribute". */
static tg_status hdf5_failed(const tg_h5 *file, const char *kind, const char *name,
                             const char *what) {
    char quoted[TG_QUOTE], text[TG_H5_REASON];
    return tg_fail(file->ctx, TG_E_FORMAT, "%s: %s '%s': %s: %s", file->path, kind,
                   tg_quote(name, quoted), what, tg_h5_reason(text));
}

/* Sizes of the dataspace; one without any data counts as 0 elements. */
static tg_status get_shape(const tg_h5 *file, const char *name, dataset *d) {
    char quoted[TG_QUOTE], text[256];
    hsize_t dims[H5S_MAX_RANK] = {0};
    const H5S_class_t kind = H5Sget_simple_extent_type(d->space);
    const int ndim = H5Sget_simple_extent_ndims(d->space);
    if (kind == H5S_NULL) {
        d->shape = (tg_shape){.ndim = 1};
        return TG_OK;
    }
    if (ndim < 0 || H5Sget_simple_extent_dims(d->space, dims, NULL) < 0) {
        return hdf5_failed(file, "dataset", name, "cannot get the shape");
    }
    if (ndim > TG_MAX_NDIM) {
        return tg_fail(file->ctx, TG_E_UNSUPPORTED,
                       "%s: dataset '%s': shape: expected at most %d dimensions, found %d",
                       file->path, tg_quote(name, quoted), TG_MAX_NDIM, ndim);
    }
    d->shape.ndim = ndim;
    bool fits = true;
    for (int i = 0; i < ndim; i++) {
        fits = fits && dims[i] <= INT64_MAX;
        d->shape.dim[i] = (int64_t)dims[i];
    }
    const int64_t numel = tg_shape_numel(&d->shape);
    if (!fits || numel < 0 || numel > INT64_MAX / 16) {
        return tg_fail(file->ctx, TG_E_FORMAT, "%s: dataset '%s': shape: %s overflows", file->path,
                       tg_quote(name, quoted), tg_shape_text(&d->shape, text, sizeof text));
    }
    return TG_OK;
}

/* Opens a dataset of the list. */
static tg_status open_dataset(const tg_h5 *file, const char *name, dataset *d) {
    char quoted[TG_QUOTE];
    *d = no_dataset;
    if (!name || tg_names_find(&file->names, name) < 0) {
        return tg_fail(file->ctx, TG_E_ARGUMENT,
                       "%s: there is no numeric dataset '%s' (there are %" PRId64 ")", file->path,
                       tg_quote(name ? name : "", quoted), file->names.count);
    }
    d->id = H5Dopen2(file->id, name, H5P_DEFAULT);
    d->type = H5Dget_type(d->id);
    d->space = H5Dget_space(d->id);
    d->plist = H5Dget_create_plist(d->id);
    tg_status status = TG_OK;
    if (d->type < 0 || d->space < 0 || d->plist < 0 || !tg_h5_dtype_of(d->type, &d->dtype)) {
        status = hdf5_failed(file, "dataset", name, "cannot open");
    } else if (H5Pget_external_count(d->plist) != 0 || H5Pget_layout(d->plist) == H5D_VIRTUAL) {
        status = tg_fail(file->ctx, TG_E_UNSUPPORTED,
                         "%s: dataset '%s': data that lies in other files is not supported",
                         file->path, tg_quote(name, quoted));
    } else {
        status = get_shape(file, name, d);
    }
    if (status != TG_OK) {
        close_dataset(d);
    }
    return status;
}

tg_status tg_h5_describe(tg_h5 *file, const char *name, tg_dtype *dtype, tg_shape *shape) {
    dataset d = no_dataset;
    tg_h5_guard guard;
    tg_h5_enter(&guard);
    tg_status status = open_dataset(file, name, &d);
    *dtype = d.dtype;
    *shape = d.shape;
    close_dataset(&d);
    tg_h5_leave(&guard);
    return status;
}

/* Reads samples [first, first + count), or everything of a scalar, converted by HDF5. */
static tg_status read_samples(const tg_h5 *file, const char *name, const dataset *d, int64_t first,
                              int64_t count, tg_dtype dtype, void *data) {
    tg_status status = TG_OK;
    hsize_t start[TG_MAX_NDIM] = {0}, size[TG_MAX_NDIM] = {0};
    hid_t type = H5I_INVALID_HID, memory = H5I_INVALID_HID;
    for (int i = 0; i < d->shape.ndim; i++) {
        size[i] = (hsize_t)d->shape.dim[i];
    }
    type = tg_h5_type_of(dtype);
    if (d->shape.ndim == 0) {
        memory = H5Screate(H5S_SCALAR);
    } else {
        start[0] = (hsize_t)first;
        size[0] = (hsize_t)count;
        memory = H5Screate_simple(d->shape.ndim, size, NULL);
        if (H5Sselect_hyperslab(d->space, H5S_SELECT_SET, start, NULL, size, NULL) < 0) {
            status = hdf5_failed(file, "dataset", name, "cannot select the samples");
            goto fail;
        }
    }
    if (H5Dread(d->id, type, memory, d->space, H5P_DEFAULT, data) < 0) {
        status = hdf5_failed(file, "dataset", name, "cannot read");
        goto fail;
    }
fail:
    H5Sclose(memory);
    H5Tclose(type);
    return status;
}

static tg_status check_range(const tg_h5 *file, const char *name, const dataset *d, int64_t first,
                             int64_t count, tg_dtype dtype) {
    char quoted[TG_QUOTE];
    const int64_t samples = d->shape.ndim > 0 ? d->shape.dim[0] : 1;
    if (first < 0 || count < 0 || first > samples || count > samples - first) {
        return tg_fail(file->ctx, TG_E_ARGUMENT,
                       "%s: dataset '%s': %" PRId64 " samples from %" PRId64
                       " on do not fit in %" PRId64,
                       file->path, tg_quote(name, quoted), count, first, samples);
    }
    if (dtype != TG_F32 && dtype != TG_F64 && dtype != TG_C64 && dtype != TG_C128) {
        return tg_fail(file->ctx, TG_E_DTYPE,
                       "%s: dataset '%s': expected f32, f64, c64 or c128 to read as, found %s",
                       file->path, tg_quote(name, quoted), tg_dtype_name(dtype));
    }
    if (tg_dtype_is_complex(dtype) != tg_dtype_is_complex(d->dtype)) {
        return tg_fail(file->ctx, TG_E_DTYPE, "%s: dataset '%s': %s cannot be read as %s",
                       file->path, tg_quote(name, quoted), tg_dtype_name(d->dtype),
                       tg_dtype_name(dtype));
    }
    return TG_OK;
}

static tg_status check_justified(const tg_h5 *file, const char *name, const dataset *d) {
    char quoted[TG_QUOTE], text[128];
    const uint64_t bytes = (uint64_t)tg_shape_numel(&d->shape) * tg_dtype_size(d->dtype);
    if (bytes > SMALL_DATA && bytes / LARGEST_RATIO > file->size) {
        return tg_fail(
            file->ctx, TG_E_FORMAT,
            "%s: dataset '%s': shape: %s of %s is more than a file of %" PRIu64 " bytes can hold",
            file->path, tg_quote(name, quoted), tg_shape_text(&d->shape, text, sizeof text),
            tg_dtype_name(d->dtype), file->size);
    }
    return TG_OK;
}

tg_status tg_h5_read_range(tg_h5 *file, const char *name, int64_t first, int64_t count,
                           tg_dtype dtype, void *data) {
    tg_status status = TG_OK;
    dataset d = no_dataset;
    tg_h5_guard guard;
    tg_h5_enter(&guard);
    TG_TRY(open_dataset(file, name, &d));
    TG_TRY(check_range(file, name, &d, first, count, dtype));
    TG_TRY(check_justified(file, name, &d));
    if (count > 0 && tg_shape_numel(&d.shape) > 0) {
        TG_TRY(read_samples(file, name, &d, first, count, dtype, data));
    }
fail:
    close_dataset(&d);
    tg_h5_leave(&guard);
    return status;
}

tg_status tg_h5_read(tg_h5 *file, const char *name, tg_tensor *out) {
    tg_status status = TG_OK;
    dataset d = no_dataset;
    tg_tensor tensor = {0};
    char quoted[TG_QUOTE];
    tg_h5_guard guard;
    *out = (tg_tensor){0};
    tg_h5_enter(&guard);
    TG_TRY(open_dataset(file, name, &d));
    TG_TRY(check_justified(file, name, &d));
    TG_TRY(tg_tensor_create(file->ctx, TG_MEM_DATA, d.dtype, &d.shape, &tensor));
    if (tg_tensor_numel(&tensor) > 0) {
        const int64_t samples = d.shape.ndim > 0 ? d.shape.dim[0] : 1;
        TG_TRY(read_samples(file, name, &d, 0, samples, d.dtype, tensor.data));
    }
    TG_TRY(tg_check_bools(file->ctx, file->path, tg_quote(name, quoted), &tensor));
    *out = tensor;
    tensor = (tg_tensor){0};
fail:
    tg_tensor_destroy(&tensor);
    close_dataset(&d);
    tg_h5_leave(&guard);
    return status;
}

/* ---- attributes ---- */

typedef struct attribute_reader {
    tg_h5 *file;
    tg_archive *archive;
    tg_status status;
} attribute_reader;

/* Metadata is UTF-8; text in another encoding is left out, with a word to the log. */
static tg_status keep_text(attribute_reader *r, const char *name, const char *value) {
    char quoted[TG_QUOTE];
    if (!*name || !tg_utf8_is_valid(name) || !tg_utf8_is_valid(value)) {
        tg_log(r->file->ctx, TG_LOG_WARN, "%s: attribute '%s' is not UTF-8 and is left out",
               r->file->path, tg_quote(name, quoted));
        return TG_OK;
    }
    return tg_archive_set_meta(r->archive, name, value);
}

static tg_status read_text(attribute_reader *r, const char *name, hid_t attribute, hid_t type) {
    tg_status status = TG_OK;
    char *text = NULL;
    if (H5Tis_variable_str(type) > 0) {
        char *variable = NULL;
        if (H5Aread(attribute, type, &variable) < 0) {
            return hdf5_failed(r->file, "attribute", name, "cannot read");
        }
        status = keep_text(r, name, variable ? variable : "");
        H5free_memory(variable);
        return status;
    }
    size_t size = H5Tget_size(type);
    if (size > r->file->size) {
        char quoted[TG_QUOTE];
        return tg_fail(r->file->ctx, TG_E_FORMAT,
                       "%s: attribute '%s': %zu bytes are more than the file has", r->file->path,
                       tg_quote(name, quoted), size);
    }
    TG_TRY(TG_NEW(r->file->ctx, TG_MEM_OTHER, text, size + 1));
    if (H5Aread(attribute, type, text) < 0) {
        status = hdf5_failed(r->file, "attribute", name, "cannot read");
        goto fail;
    }
    while (H5Tget_strpad(type) == H5T_STR_SPACEPAD && size > 0 && text[size - 1] == ' ') {
        text[--size] = '\0';
    }
    status = keep_text(r, name, text);
fail:
    TG_FREE(r->file->ctx, text);
    return status;
}

static tg_status read_number(attribute_reader *r, const char *name, hid_t attribute, hid_t type) {
    char text[64] = "";
    tg_dtype dtype = TG_F64;
    int64_t whole = 0;
    uint64_t natural = 0;
    double real = 0.0;
    herr_t failed = 0;
    if (!tg_h5_dtype_of(type, &dtype) || tg_dtype_is_complex(dtype)) {
        return TG_OK;
    }
    if (tg_dtype_is_float(dtype)) {
        failed = H5Aread(attribute, H5T_NATIVE_DOUBLE, &real);
        snprintf(text, sizeof text, "%.17g", real);
    } else if (dtype == TG_U64) {
        failed = H5Aread(attribute, H5T_NATIVE_UINT64, &natural);
        snprintf(text, sizeof text, "%" PRIu64, natural);
    } else {
        failed = H5Aread(attribute, H5T_NATIVE_INT64, &whole);
        snprintf(text, sizeof text, "%" PRId64, whole);
    }
    return failed < 0 ? hdf5_failed(r->file, "attribute", name, "cannot read")
                      : keep_text(r, name, text);
}

/* Single texts and numbers; arrays and other types are not metadata. */
static herr_t visit_attribute(hid_t root, const char *name, const H5A_info_t *info, void *user) {
    (void)info;
    attribute_reader *r = user;
    hid_t attribute = H5Aopen(root, name, H5P_DEFAULT);
    hid_t type = H5Aget_type(attribute);
    hid_t space = H5Aget_space(attribute);
    if (type < 0 || space < 0) {
        r->status = hdf5_failed(r->file, "attribute", name, "cannot open");
    } else if (H5Sget_simple_extent_npoints(space) == 1) {
        r->status = H5Tget_class(type) == H5T_STRING ? read_text(r, name, attribute, type)
                                                     : read_number(r, name, attribute, type);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(attribute);
    return r->status == TG_OK ? 0 : -1;
}

tg_status tg_h5_read_meta(tg_h5 *file, tg_archive *archive) {
    char text[TG_H5_REASON];
    attribute_reader r = {.file = file, .archive = archive};
    hsize_t at = 0;
    tg_h5_guard guard;
    tg_h5_enter(&guard);
    if (H5Aiterate2(file->id, H5_INDEX_NAME, H5_ITER_INC, &at, visit_attribute, &r) < 0 &&
        r.status == TG_OK) {
        r.status = tg_fail(file->ctx, TG_E_FORMAT, "%s: cannot list the attributes: %s", file->path,
                           tg_h5_reason(text));
    }
    tg_h5_leave(&guard);
    return r.status;
}
