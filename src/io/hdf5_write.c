/* Writing HDF5: one dataset per tensor, one text attribute of the root group per pair of metadata.
 *
 * HDF5 writes through our driver into the temporary file of an atomic write; sync and rename are
 * ours too. No times are stored, so that the same archive gives the same bytes. */
#include <string.h>

#include "base/context.h"
#include "base/memory.h"
#include "io/formats.h"
#include "io/hdf5_types.h"

enum {
    CHUNK_BYTES = 1 << 20,    /* per compressed chunk */
    MAX_FIXED_TEXT = 32 << 10 /* bytes of text in an object header */
};

/* ---- the file driver ----
 *
 * Why not HDF5's own driver: when the system rejects a write (a full disk), HDF5 can no longer
 * close the file, keeps it half open for the rest of the process and crashes at exit. This driver
 * never reports a failure to HDF5: it keeps the first one in the sink and drops all later writes.
 * HDF5 closes cleanly, and the caller checks the sink and discards the file. */

/* An atomic file that HDF5 writes to. */
typedef struct h5_sink {
    tg_atomic_file *file;
    tg_status status; /* the first failure of the system, its sentence in the context */
    hid_t driver;
} h5_sink;

typedef struct driver_file {
    H5FD_t base; /* first: HDF5 sees only this */
    h5_sink *sink;
    haddr_t end; /* of the addresses that HDF5 has allocated */
} driver_file;

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t access, haddr_t largest) {
    (void)name, (void)flags, (void)largest;
    h5_sink *const *sink = H5Pget_driver_info(access);
    if (!sink) {
        return NULL;
    }
    driver_file *f = tg_mem_calloc((*sink)->file->ctx, TG_MEM_OTHER, 1, sizeof *f);
    if (!f) {
        (*sink)->status = TG_E_MEMORY;
        return NULL;
    }
    f->sink = *sink;
    return &f->base;
}

static herr_t driver_close(H5FD_t *file) {
    driver_file *f = (driver_file *)file;
    tg_mem_free(f->sink->file->ctx, f);
    return 0;
}

/* Lets HDF5 gather small pieces before it writes, as with its own driver. */
static herr_t driver_query(const H5FD_t *file, unsigned long *flags) {
    (void)file;
    *flags = H5FD_FEAT_AGGREGATE_METADATA | H5FD_FEAT_ACCUMULATE_METADATA | H5FD_FEAT_DATA_SIEVE |
             H5FD_FEAT_AGGREGATE_SMALLDATA;
    return 0;
}

static haddr_t driver_get_eoa(const H5FD_t *file, H5FD_mem_t type) {
    (void)type;
    return ((const driver_file *)file)->end;
}

static herr_t driver_set_eoa(H5FD_t *file, H5FD_mem_t type, haddr_t end) {
    (void)type;
    ((driver_file *)file)->end = end;
    return 0;
}

static haddr_t driver_get_eof(const H5FD_t *file, H5FD_mem_t type) {
    (void)type;
    return ((const driver_file *)file)->sink->file->size;
}

/* Bytes past the end of the file read as zeros. */
static herr_t driver_read(H5FD_t *file, H5FD_mem_t type, hid_t transfer, haddr_t at, size_t count,
                          void *buffer) {
    (void)type, (void)transfer;
    h5_sink *sink = ((driver_file *)file)->sink;
    const tg_source source = {.ctx = sink->file->ctx,
                              .label = sink->file->path,
                              .fd = sink->file->fd,
                              .size = sink->file->size};
    const uint64_t left = at < source.size ? source.size - at : 0;
    const size_t there = left < count ? (size_t)left : count;
    memset((char *)buffer + there, 0, count - there);
    if (sink->status == TG_OK) {
        sink->status = tg_source_read(&source, at, buffer, there);
    }
    return 0;
}

static herr_t driver_write(H5FD_t *file, H5FD_mem_t type, hid_t transfer, haddr_t at, size_t count,
                           const void *buffer) {
    (void)type, (void)transfer;
    h5_sink *sink = ((driver_file *)file)->sink;
    if (sink->status == TG_OK) {
        sink->status = tg_atomic_write_at(sink->file, at, buffer, count);
    }
    return 0;
}

/* The file must extend to the last address, even if nothing was written there. */
static herr_t driver_truncate(H5FD_t *file, hid_t transfer, hbool_t closing) {
    (void)transfer, (void)closing;
    const driver_file *f = (const driver_file *)file;
    if (f->sink->status == TG_OK && f->sink->file->size != f->end) {
        f->sink->status = tg_atomic_resize(f->sink->file, f->end);
    }
    return 0;
}

static const H5FD_class_t driver_class = {
#ifdef H5FD_CLASS_VERSION /* HDF5 1.14 and later */
    .version = H5FD_CLASS_VERSION,
    .value = (H5FD_class_value_t)619, /* any above those reserved for the library */
#endif
    .name = "tgrad",
    .maxaddr = (haddr_t)INT64_MAX,
    .fc_degree = H5F_CLOSE_WEAK,
    .fapl_size = sizeof(h5_sink *),
    .open = driver_open,
    .close = driver_close,
    .query = driver_query,
    .get_eoa = driver_get_eoa,
    .set_eoa = driver_set_eoa,
    .get_eof = driver_get_eof,
    .read = driver_read,
    .write = driver_write,
    .truncate = driver_truncate,
    .fl_map = H5FD_FLMAP_DICHOTOMY,
};

/* Metadata stays in HDF5's memory until it is written at the end, so that writes dropped after a
 * failure are never read back. */
static herr_t keep_metadata(hid_t access) {
    H5AC_cache_config_t config = {.version = H5AC__CURR_CACHE_CONFIG_VERSION};
    if (H5Pget_mdc_config(access, &config) < 0) {
        return -1;
    }
    config.evictions_enabled = 0;
    config.incr_mode = H5C_incr__off;
    config.flash_incr_mode = H5C_flash_incr__off;
    config.decr_mode = H5C_decr__off;
    return H5Pset_mdc_config(access, &config);
}

static hid_t open_sink(h5_sink *sink, tg_atomic_file *file) {
    *sink = (h5_sink){.file = file, .driver = H5FDregister(&driver_class)};
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (H5Pset_driver(access, sink->driver, &sink) < 0 || keep_metadata(access) < 0) {
        H5Pclose(access);
        return H5I_INVALID_HID;
    }
    return access;
}

static void close_sink(h5_sink *sink) {
    H5FDunregister(sink->driver);
}

/* ---- the content ---- */

typedef struct writer {
    tg_context *ctx;
    const char *path; /* of the target, for errors */
    h5_sink sink;
    hid_t file;
    hid_t links; /* properties: create intermediate groups, names are UTF-8 */
    int gzip;
    tg_h5_space *spaces; /* (space_count) */
    int space_count;
} writer;

/* An underlying system failure is the better explanation. */
static tg_status hdf5_failed(const writer *w, const char *kind, const char *name) {
    char text[TG_H5_REASON];
    return w->sink.status != TG_OK ? w->sink.status
                                   : tg_fail(w->ctx, TG_E_IO, "%s: cannot write %s '%s': %s",
                                             w->path, kind, TG_QUOTED(name), tg_h5_reason(text));
}

/* "a/b": every part non-empty and not "." (HDF5 drops it, so the name would read back
 * differently). */
static bool is_path(const char *name) {
    while (true) {
        const size_t length = strcspn(name, "/");
        if (length == 0 || (length == 1 && name[0] == '.')) {
            return false;
        }
        if (name[length] == '\0') {
            return true;
        }
        name += length + 1;
    }
}

/* Halves the outermost size above 1 until a chunk is small. */
static void choose_chunk(const tg_tensor *tensor, hsize_t chunk[TG_MAX_NDIM]) {
    size_t bytes = tg_tensor_bytes(tensor);
    int d = 0;
    for (int i = 0; i < tensor->shape.ndim; i++) {
        chunk[i] = (hsize_t)tensor->shape.dim[i];
    }
    while (bytes > CHUNK_BYTES && d < tensor->shape.ndim) {
        if (chunk[d] == 1) {
            d++;
            continue;
        }
        const hsize_t half = (chunk[d] + 1) / 2;
        bytes = bytes / (size_t)chunk[d] * (size_t)half;
        chunk[d] = half;
    }
}

static hid_t dataset_properties(const writer *w, const tg_tensor *tensor) {
    hsize_t chunk[TG_MAX_NDIM] = {0};
    hid_t plist = H5Pcreate(H5P_DATASET_CREATE);
    herr_t failed = H5Pset_obj_track_times(plist, 0);
    if (w->gzip > 0 && tensor->shape.ndim > 0 && tg_tensor_numel(tensor) > 0) {
        choose_chunk(tensor, chunk);
        failed |= H5Pset_chunk(plist, tensor->shape.ndim, chunk);
        failed |= H5Pset_shuffle(plist);
        failed |= H5Pset_deflate(plist, (unsigned)w->gzip);
    }
    if (!tensor->data && tg_tensor_numel(tensor) > 0) { /* a space: allocated at once, not filled */
        failed |= H5Pset_alloc_time(plist, H5D_ALLOC_TIME_EARLY);
        failed |= H5Pset_fill_time(plist, H5D_FILL_TIME_NEVER);
    }
    if (failed < 0) {
        H5Pclose(plist);
        return H5I_INVALID_HID;
    }
    return plist;
}

/* Without data only the space is allocated; *offset (may be NULL) receives its place. */
static tg_status write_tensor(const writer *w, const char *name, const tg_tensor *tensor,
                              uint64_t *offset) {
    tg_status status = TG_OK;
    hsize_t dims[TG_MAX_NDIM] = {0};
    if (!is_path(name)) {
        return tg_fail(w->ctx, TG_E_ARGUMENT,
                       "%s: tensor '%s': an HDF5 file cannot have this name (an empty part or '.' "
                       "between '/')",
                       w->path, TG_QUOTED(name));
    }
    for (int d = 0; d < tensor->shape.ndim; d++) {
        dims[d] = (hsize_t)tensor->shape.dim[d];
    }
    hid_t type = tg_h5_type_of(tensor->dtype);
    hid_t space = tensor->shape.ndim == 0 ? H5Screate(H5S_SCALAR)
                                          : H5Screate_simple(tensor->shape.ndim, dims, NULL);
    hid_t plist = dataset_properties(w, tensor);
    hid_t id = H5Dcreate2(w->file, name, type, space, w->links, plist, H5P_DEFAULT);
    if (id < 0 || (tg_tensor_numel(tensor) > 0 && tensor->data &&
                   H5Dwrite(id, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, tensor->data) < 0)) {
        status = hdf5_failed(w, "tensor", name);
    }
    if (offset && status == TG_OK) {
        const haddr_t at = H5Dget_offset(id);
        *offset = at;
        status = at == HADDR_UNDEF ? hdf5_failed(w, "tensor", name) : TG_OK;
    }
    if ((H5Dclose(id) < 0 || w->sink.status != TG_OK) && status == TG_OK) {
        status = hdf5_failed(w, "tensor", name);
    }
    H5Pclose(plist);
    H5Sclose(space);
    H5Tclose(type);
    return status;
}

/* Text of fixed length in the object header; longer text (64 KiB) has variable length and goes to
 * the global heap. */
static tg_status write_text(const writer *w, const char *key, const char *value) {
    const size_t size = strlen(value) + 1;
    const bool fixed = size <= MAX_FIXED_TEXT;
    hid_t type = H5Tcopy(H5T_C_S1);
    herr_t failed =
        H5Tset_size(type, fixed ? size : H5T_VARIABLE) | H5Tset_cset(type, H5T_CSET_UTF8);
    hid_t space = H5Screate(H5S_SCALAR);
    hid_t plist = H5Pcreate(H5P_ATTRIBUTE_CREATE);
    failed |= H5Pset_char_encoding(plist, H5T_CSET_UTF8);
    hid_t id =
        failed < 0 ? H5I_INVALID_HID : H5Acreate2(w->file, key, type, space, plist, H5P_DEFAULT);
    failed = id < 0 ? -1 : H5Awrite(id, type, fixed ? (const void *)value : &value);
    tg_status status = failed < 0 ? hdf5_failed(w, "metadata", key) : TG_OK;
    H5Aclose(id);
    H5Pclose(plist);
    H5Sclose(space);
    H5Tclose(type);
    return status;
}

static tg_status write_content(writer *w, const tg_archive *archive) {
    tg_status status = TG_OK;
    w->links = H5Pcreate(H5P_LINK_CREATE);
    if (H5Pset_create_intermediate_group(w->links, 1) < 0 ||
        H5Pset_char_encoding(w->links, H5T_CSET_UTF8) < 0) {
        status = hdf5_failed(w, "file", w->path);
        goto fail;
    }
    for (int64_t i = 0; i < tg_archive_count(archive); i++) {
        TG_TRY(write_tensor(w, tg_archive_name(archive, i), tg_archive_tensor(archive, i), NULL));
    }
    for (int i = 0; i < w->space_count; i++) {
        tg_h5_space *space = &w->spaces[i];
        const tg_tensor empty = {.dtype = space->dtype, .shape = space->shape};
        TG_TRY(write_tensor(w, space->name, &empty, &space->offset));
    }
    for (int64_t i = 0; i < tg_archive_meta_count(archive); i++) {
        TG_TRY(write_text(w, tg_archive_meta_key(archive, i), tg_archive_meta_value(archive, i)));
    }
    if (H5Fflush(w->file, H5F_SCOPE_GLOBAL) < 0) {
        status = hdf5_failed(w, "file", w->path);
    }
fail:
    H5Pclose(w->links);
    return status;
}

static tg_status write_file(writer *w, tg_atomic_file *target, const tg_archive *archive) {
    tg_status status = TG_OK;
    hid_t access = open_sink(&w->sink, target);
    w->file = H5Fcreate(w->path, H5F_ACC_TRUNC, H5P_DEFAULT, access);
    status = w->file < 0 ? hdf5_failed(w, "file", w->path) : write_content(w, archive);
    if (w->file >= 0 && H5Fclose(w->file) < 0 && status == TG_OK) {
        status = hdf5_failed(w, "file", w->path);
    }
    H5Pclose(access);
    close_sink(&w->sink);
    return status == TG_OK ? w->sink.status : status;
}

static tg_status write_whole(writer *w, const tg_archive *archive) {
    tg_status status = TG_OK;
    tg_atomic_file file = {.fd = -1};
    TG_TRY(tg_atomic_open(w->ctx, w->path, &file));
    tg_h5_guard guard;
    tg_h5_enter(&guard);
    status = write_file(w, &file, archive);
    tg_h5_leave(&guard);
    TG_TRY(status);
    TG_TRY(tg_atomic_commit(&file));
    return TG_OK;
fail:
    tg_atomic_abort(&file);
    return status;
}

tg_status tg_h5_write(tg_context *ctx, const char *path, const tg_archive *archive,
                      const tg_h5_write_config *config) {
    TG_NEED(ctx, ctx, path, archive);
    tg_h5_write_config full = {.size = sizeof full};
    TG_CALL(config ? TG_SIZED_READ(ctx, tg_h5_write_config, gzip, config, &full) : TG_OK);
    writer w = {.ctx = ctx, .path = path, .gzip = full.gzip};
    if (w.gzip < 0 || w.gzip > 9) {
        return tg_fail(ctx, TG_E_ARGUMENT, "gzip: expected a level of 0 to 9, found %d", w.gzip);
    }
    return write_whole(&w, archive);
}

tg_status tg_h5_write_spaces(tg_context *ctx, const char *path, const tg_archive *archive,
                             tg_h5_space *spaces, int count) {
    writer w = {.ctx = ctx, .path = path, .spaces = spaces, .space_count = count};
    return write_whole(&w, archive);
}
