/* HDF5 file driver over an atomic file.
 *
 * Why not HDF5's own driver: when the system rejects a write (a full disk), HDF5 can no longer
 * close the file, keeps it half open for the rest of the process and crashes at exit. This driver
 * never reports a failure to HDF5: it keeps the first one in the sink and drops all later writes.
 * HDF5 closes cleanly, and the caller checks the sink and discards the file. */
#include "io/hdf5_driver.h"

#include <string.h>

#include "base/memory.h"

typedef struct driver_file {
    H5FD_t base; /* first: HDF5 sees only this */
    tg_h5_sink *sink;
    haddr_t end; /* of the addresses that HDF5 has allocated */
} driver_file;

static H5FD_t *driver_open(const char *name, unsigned flags, hid_t access, haddr_t largest) {
    (void)name, (void)flags, (void)largest;
    tg_h5_sink *const *sink = H5Pget_driver_info(access);
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
    tg_h5_sink *sink = ((driver_file *)file)->sink;
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
    tg_h5_sink *sink = ((driver_file *)file)->sink;
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
    .fapl_size = sizeof(tg_h5_sink *),
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

hid_t tg_h5_sink_open(tg_h5_sink *sink, tg_atomic_file *file) {
    *sink = (tg_h5_sink){.file = file, .driver = H5FDregister(&driver_class)};
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    if (H5Pset_driver(access, sink->driver, &sink) < 0 || keep_metadata(access) < 0) {
        H5Pclose(access);
        return H5I_INVALID_HID;
    }
    return access;
}

void tg_h5_sink_close(tg_h5_sink *sink) {
    H5FDunregister(sink->driver);
}
