/* The process that reads an HDF5 file, see hdf5_wire.h: the list of numeric datasets, ranges of
 * elements, the attributes of the root group.
 *
 * It runs under limits: more than TIME_LIMIT seconds of CPU time for one step (a dataset of the
 * list, an attribute, a piece of data) end it by SIGPROF, and allocations beyond MEMORY_LIMIT fail.
 * Only hard links inside the file are followed, datasets with data in other files (external or
 * virtual storage) are rejected, and plug-ins are not loaded: a file cannot make us read another
 * one or run code. */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "io/file.h"
#include "io/hdf5_types.h"
#include "io/hdf5_wire.h"
#include "io/name_index.h"

enum {
    TIME_LIMIT = 10,         /* CPU seconds for one step */
    MEMORY_LIMIT_MIB = 2048, /* beyond the memory in use at the start */
    CHUNK_CACHE = 64 << 20,  /* bytes of decompressed chunks of the dataset read last */
    CHUNK_SLOTS = 12421,     /* a prime; HDF5 needs many more slots than chunks */
    PIECE_BYTES = 4 << 20,   /* bytes of data sent at once */
    MAX_GROUP_DEPTH = 64,    /* HDF5 walks groups recursively: bounds its stack */
};

typedef struct dataset {
    hid_t id, type, space, plist;
    tg_dtype dtype; /* the nearest tg_dtype */
    tg_shape shape;
} dataset;

static const dataset no_dataset = {H5I_INVALID_HID, H5I_INVALID_HID, H5I_INVALID_HID,
                                   H5I_INVALID_HID, TG_F32,          {0}};

typedef struct server {
    tg_context *ctx; /* of this process; logs to the other end */
    int fd;
    tg_source source; /* the file, closed again */
    hid_t file;
    dataset last;    /* the one read last, still open: its chunks are cached */
    char *last_name; /* NULL: none */
    char *piece;     /* (PIECE_BYTES) */
} server;

/* ---- the other end ---- */

bool tg_h5_send(int fd, const void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t sent = send(fd, (const char *)data + done, size - done, MSG_NOSIGNAL);
        if (sent < 0 && errno != EINTR) {
            return false;
        }
        done += sent > 0 ? (size_t)sent : 0;
    }
    return true;
}

static bool receive_bytes(int fd, void *data, size_t size) {
    for (size_t done = 0; done < size;) {
        const ssize_t got = recv(fd, (char *)data + done, size - done, 0);
        if (got == 0 || (got < 0 && errno != EINTR)) {
            return false;
        }
        done += got > 0 ? (size_t)got : 0;
    }
    return true;
}

/* A frame of up to three parts; the last two are zero-terminated texts, or NULL. */
static bool send_frame(const server *s, tg_h5_kind kind, int status, const void *data, size_t size,
                       const char *text, const char *more) {
    const size_t sizes[3] = {size, text ? strlen(text) + 1 : 0, more ? strlen(more) + 1 : 0};
    const tg_h5_frame frame = {kind, status, sizes[0] + sizes[1] + sizes[2]};
    return tg_h5_send(s->fd, &frame, sizeof frame) && tg_h5_send(s->fd, data, sizes[0]) &&
           tg_h5_send(s->fd, text, sizes[1]) && tg_h5_send(s->fd, more, sizes[2]);
}

static void log_to_other_end(void *user, tg_log_level level, const char *message) {
    send_frame(user, TG_H5_LOG, (int)level, NULL, 0, message, NULL);
}

/* ---- limits ---- */

/* Starts the time limit of a step. SIGPROF's default action ends the process. */
static void start_clock(void) {
    const struct itimerval limit = {.it_value = {.tv_sec = TIME_LIMIT}};
    setitimer(ITIMER_PROF, &limit, NULL);
}

/* Bytes of address space in use: a fork of a large process starts with much. */
static uint64_t address_space(void) {
    FILE *file = fopen("/proc/self/statm", "r");
    uint64_t pages = 0;
    const int found = file ? fscanf(file, "%" SCNu64, &pages) : 0;
    if (file) {
        fclose(file);
    }
    return found == 1 ? pages * (uint64_t)sysconf(_SC_PAGESIZE) : UINT64_C(1) << 40;
}

static void set_limits(void) {
    static const int ignored[] = {SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2};
    static const int deadly[] = {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGPROF};
    struct rlimit memory;
    const struct rlimit no_core = {0, 0};
    /* Signals to the whole group are for the parent, which may want to go on reading. */
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        signal(ignored[i], SIG_IGN);
    }
    /* A process that HDF5 has corrupted must not run inherited signal handlers. */
    for (size_t i = 0; i < sizeof deadly / sizeof deadly[0]; i++) {
        signal(deadly[i], SIG_DFL);
    }
    setrlimit(RLIMIT_CORE, &no_core);
    if (getrlimit(RLIMIT_AS, &memory) == 0) {
        const uint64_t limit = address_space() + ((uint64_t)MEMORY_LIMIT_MIB << 20);
        memory.rlim_cur = memory.rlim_cur < limit ? memory.rlim_cur : (rlim_t)limit;
        setrlimit(RLIMIT_AS, &memory);
    }
    /* The environment must not bring code into this process either. */
    unsetenv("HDF5_PLUGIN_PATH");
    unsetenv("HDF5_PLUGIN_PRELOAD");
    unsetenv("HDF5_VOL_CONNECTOR");
    unsetenv("HDF5_DRIVER");
}

/* ---- datasets ---- */

static void close_dataset(dataset *d) {
    H5Pclose(d->plist);
    H5Sclose(d->space);
    H5Tclose(d->type);
    H5Dclose(d->id);
    *d = no_dataset;
}

/* `kind` is "dataset" or "attribute". */
static tg_status hdf5_failed(const server *s, const char *kind, const char *name,
                             const char *failed) {
    char text[TG_H5_REASON];
    return tg_fail_file(&s->source, TG_E_FORMAT, "%s '%s': %s: %s", kind, TG_QUOTED(name), failed,
                        tg_h5_reason(text));
}

/* Sizes of the dataspace; a null dataspace counts as 0 elements. */
static tg_status get_shape(const server *s, const char *name, dataset *d) {
    char text[256];
    hsize_t dims[H5S_MAX_RANK] = {0};
    const H5S_class_t kind = H5Sget_simple_extent_type(d->space);
    const int ndim = H5Sget_simple_extent_ndims(d->space);
    if (kind == H5S_NULL) {
        d->shape = (tg_shape){.ndim = 1};
        return TG_OK;
    }
    if (ndim < 0 || H5Sget_simple_extent_dims(d->space, dims, NULL) < 0) {
        return hdf5_failed(s, "dataset", name, "cannot get the shape");
    }
    if (ndim > TG_MAX_NDIM) {
        return tg_fail_file(&s->source, TG_E_UNSUPPORTED,
                            "dataset '%s': shape: expected at most %d dimensions, found %d",
                            TG_QUOTED(name), TG_MAX_NDIM, ndim);
    }
    d->shape.ndim = ndim;
    bool fits = true;
    for (int i = 0; i < ndim; i++) {
        fits = fits && dims[i] <= INT64_MAX;
        d->shape.dim[i] = (int64_t)dims[i];
    }
    const int64_t numel = tg_shape_numel(&d->shape);
    if (!fits || numel < 0 || numel > INT64_MAX / 16) {
        return tg_fail_file(&s->source, TG_E_FORMAT, "dataset '%s': shape: %s overflows",
                            TG_QUOTED(name), tg_shape_text(&d->shape, text, sizeof text));
    }
    return TG_OK;
}

static tg_status check_filters(const server *s, const char *name, const dataset *d) {
    for (int i = 0; i < H5Pget_nfilters(d->plist); i++) {
        size_t values = 0;
        const H5Z_filter_t filter =
            H5Pget_filter2(d->plist, (unsigned)i, NULL, &values, NULL, 0, NULL, NULL);
        if (filter < 0 || H5Zfilter_avail(filter) <= 0) {
            return tg_fail_file(&s->source, TG_E_UNSUPPORTED,
                                "dataset '%s': compressed by filter %d, which is no part of HDF5, "
                                "and plug-ins are not loaded; store it with gzip",
                                TG_QUOTED(name), (int)filter);
        }
    }
    return TG_OK;
}

static tg_status check_dataset(const server *s, const char *name, dataset *d) {
    if (d->type < 0 || d->space < 0 || d->plist < 0 || !tg_h5_dtype_of(d->type, &d->dtype)) {
        return hdf5_failed(s, "dataset", name, "cannot open");
    }
    if (H5Pget_external_count(d->plist) != 0 || H5Pget_layout(d->plist) == H5D_VIRTUAL) {
        return tg_fail_file(&s->source, TG_E_UNSUPPORTED,
                            "dataset '%s': data in other files is not supported", TG_QUOTED(name));
    }
    TG_CALL(get_shape(s, name, d));
    return check_filters(s, name, d);
}

static tg_status open_dataset(const server *s, const char *name, dataset *d) {
    hid_t access = H5Pcreate(H5P_DATASET_ACCESS);
    H5Pset_chunk_cache(access, CHUNK_SLOTS, CHUNK_CACHE, H5D_CHUNK_CACHE_W0_DEFAULT);
    *d = no_dataset;
    d->id = H5Dopen2(s->file, name, access);
    H5Pclose(access);
    d->type = H5Dget_type(d->id);
    d->space = H5Dget_space(d->id);
    d->plist = H5Dget_create_plist(d->id);
    const tg_status status = check_dataset(s, name, d);
    if (status != TG_OK) {
        close_dataset(d);
    }
    return status;
}

/* The offset of the elements if they are contiguous and stored exactly as in memory. */
static uint64_t offset_of(const server *s, const dataset *d) {
    hid_t ours = tg_h5_type_of(d->dtype);
    const bool same = ours >= 0 && H5Tequal(d->type, ours) > 0;
    const bool plain =
        same && H5Pget_layout(d->plist) == H5D_CONTIGUOUS && H5Pget_nfilters(d->plist) == 0;
    const haddr_t at = plain ? H5Dget_offset(d->id) : HADDR_UNDEF;
    const uint64_t bytes = (uint64_t)tg_shape_numel(&d->shape) * tg_dtype_size(d->dtype);
    H5Tclose(ours);
    return at != HADDR_UNDEF && at <= s->source.size && bytes <= s->source.size - at
               ? at
               : TG_H5_NOWHERE;
}

/* ---- the list ---- */

/* Sends the entry of dataset `name`, readable or not. */
static bool send_dataset(const server *s, const char *name, tg_dtype dtype) {
    dataset d = no_dataset;
    tg_h5_entry entry = {.dtype = (int32_t)dtype, .offset = TG_H5_NOWHERE};
    entry.refusal = (int32_t)open_dataset(s, name, &d);
    if (entry.refusal == TG_OK) {
        entry.ndim = d.shape.ndim;
        memcpy(entry.dim, d.shape.dim, sizeof entry.dim);
        entry.offset = offset_of(s, &d);
    }
    close_dataset(&d);
    return send_frame(s, TG_H5_DATASET, TG_OK, &entry, sizeof entry, name,
                      entry.refusal == TG_OK ? "" : tg_context_error(s->ctx));
}

typedef struct visitor {
    server *server;
    tg_status status; /* why the walk ended early, unless HDF5 failed */
} visitor;

static herr_t visit(hid_t root, const char *name, const H5O_info_t *info, void *user) {
    visitor *v = user;
    const server *s = v->server;
    int depth = 0;
    start_clock();
    for (const char *c = name; *c; c++) {
        depth += *c == '/';
    }
    if (depth >= MAX_GROUP_DEPTH || !tg_utf8_is_valid(name)) {
        v->status = tg_fail_file(&s->source, TG_E_FORMAT, "object '%s': %s", TG_QUOTED(name),
                                 depth >= MAX_GROUP_DEPTH ? "groups are nested deeper than 64"
                                                          : "the name is not UTF-8");
        return -1;
    }
    if (info->type != H5O_TYPE_DATASET) {
        return 0;
    }
    hid_t id = H5Dopen2(root, name, H5P_DEFAULT);
    hid_t type = H5Dget_type(id);
    const bool opened = type >= 0;
    tg_dtype dtype = TG_F32;
    const bool numeric = opened && tg_h5_dtype_of(type, &dtype);
    H5Tclose(type);
    H5Dclose(id);
    if (opened && !numeric) {
        tg_log(s->ctx, TG_LOG_DEBUG, "%s: dataset '%s' has no numeric type and is left out",
               s->source.label, TG_QUOTED(name));
    }
    return opened && (!numeric || send_dataset(s, name, dtype)) ? 0 : -1;
}

static tg_status open_and_list(server *s) {
    char text[TG_H5_REASON];
    visitor v = {.server = s};
    /* No file lock: it fails on some network drives, and readers need none. */
    hid_t access = H5Pcreate(H5P_FILE_ACCESS);
    H5Pset_file_locking(access, 0, 1);
    s->file = H5Fopen(s->source.label, H5F_ACC_RDONLY, access);
    tg_h5_reason(text); /* now: the next call forgets it */
    H5Pclose(access);
    if (s->file < 0) {
        return tg_fail_file(&s->source, TG_E_FORMAT, "not a valid HDF5 file: %s", text);
    }
    if (H5Ovisit(s->file, H5_INDEX_NAME, H5_ITER_INC, visit, &v) < 0) {
        return v.status != TG_OK ? v.status
                                 : tg_fail_file(&s->source, TG_E_FORMAT,
                                                "cannot list the datasets: %s", tg_h5_reason(text));
    }
    return TG_OK;
}

/* ---- data ---- */

/* A part of the wanted elements. */
typedef struct box {
    hsize_t at[TG_MAX_NDIM], size[TG_MAX_NDIM];
} box;

static tg_status send_box(const server *s, const char *name, const dataset *d, tg_dtype dtype,
                          const box *b) {
    const int ndim = d->shape.ndim;
    size_t bytes = tg_dtype_size(dtype);
    for (int i = 0; i < ndim; i++) {
        bytes *= (size_t)b->size[i];
    }
    start_clock();
    hid_t type = tg_h5_type_to_read(dtype, d->type);
    hid_t memory = ndim > 0 ? H5Screate_simple(ndim, b->size, NULL) : H5Screate(H5S_SCALAR);
    const bool done = (ndim == 0 || H5Sselect_hyperslab(d->space, H5S_SELECT_SET, b->at, NULL,
                                                        b->size, NULL) >= 0) &&
                      H5Dread(d->id, type, memory, d->space, H5P_DEFAULT, s->piece) >= 0;
    const tg_status status = done ? TG_OK : hdf5_failed(s, "dataset", name, "cannot read");
    H5Sclose(memory);
    H5Tclose(type);
    return status != TG_OK || send_frame(s, TG_H5_DATA, TG_OK, s->piece, bytes, NULL, NULL)
               ? status
               : TG_E_IO;
}

/* Cuts the elements, at least one, into consecutive boxes of at most PIECE_BYTES bytes: inner
 * dimensions whole, one dimension in steps, outer dimensions one index at a time. */
static tg_status send_elements(const server *s, const char *name, const dataset *d,
                               const tg_h5_range *range) {
    const tg_dtype dtype = (tg_dtype)range->dtype;
    const int ndim = d->shape.ndim;
    hsize_t begin[TG_MAX_NDIM] = {0}, end[TG_MAX_NDIM] = {0}, step[TG_MAX_NDIM] = {0};
    size_t room = PIECE_BYTES / tg_dtype_size(dtype); /* elements that still fit */
    for (int i = ndim - 1; i >= 0; i--) {
        const hsize_t extent = (hsize_t)range->box.count[i];
        begin[i] = (hsize_t)range->box.first[i];
        end[i] = begin[i] + extent;
        step[i] = extent <= room ? extent : room > 0 ? (hsize_t)room : 1;
        room = step[i] == extent ? room / (size_t)extent : 0;
    }
    box b;
    memcpy(b.at, begin, sizeof begin);
    while (true) {
        for (int i = 0; i < ndim; i++) {
            b.size[i] = end[i] - b.at[i] < step[i] ? end[i] - b.at[i] : step[i];
        }
        TG_CALL(send_box(s, name, d, dtype, &b));
        int i = ndim - 1;
        for (; i >= 0 && (b.at[i] += step[i]) >= end[i]; i--) {
            b.at[i] = begin[i];
        }
        if (i < 0) {
            return TG_OK;
        }
    }
}

static tg_status answer_data(server *s, const tg_h5_range *range, const char *name) {
    if (!s->last_name || strcmp(s->last_name, name) != 0) {
        close_dataset(&s->last);
        TG_FREE(s->ctx, s->last_name);
        TG_CALL(open_dataset(s, name, &s->last));
        s->last_name = tg_mem_strdup(s->ctx, name);
        TG_CALL(s->last_name ? TG_OK : TG_E_MEMORY);
    }
    if (!s->piece) {
        TG_CALL(TG_ALLOC(s->ctx, TG_MEM_OTHER, s->piece, PIECE_BYTES));
    }
    return send_elements(s, name, &s->last, range);
}

/* ---- attributes ---- */

/* Metadata is UTF-8; text in another encoding is left out with a warning. */
static tg_status send_text(const server *s, const char *name, const char *value) {
    if (!*name || !tg_utf8_is_valid(name) || !tg_utf8_is_valid(value)) {
        tg_log(s->ctx, TG_LOG_WARN, "%s: attribute '%s' is not UTF-8 and is left out",
               s->source.label, TG_QUOTED(name));
        return TG_OK;
    }
    return send_frame(s, TG_H5_PAIR, TG_OK, NULL, 0, name, value) ? TG_OK : TG_E_IO;
}

static tg_status read_text(const server *s, const char *name, hid_t attribute, hid_t type) {
    tg_status status = TG_OK;
    char *text = NULL;
    if (H5Tis_variable_str(type) > 0) {
        char *variable = NULL;
        if (H5Aread(attribute, type, &variable) < 0) {
            return hdf5_failed(s, "attribute", name, "cannot read");
        }
        status = send_text(s, name, variable ? variable : "");
        H5free_memory(variable);
        return status;
    }
    size_t size = H5Tget_size(type);
    if (size > s->source.size) {
        return tg_fail_file(&s->source, TG_E_FORMAT,
                            "attribute '%s': %zu bytes are more than the file has", TG_QUOTED(name),
                            size);
    }
    TG_TRY(TG_NEW(s->ctx, TG_MEM_OTHER, text, size + 1));
    if (H5Aread(attribute, type, text) < 0) {
        status = hdf5_failed(s, "attribute", name, "cannot read");
        goto fail;
    }
    while (H5Tget_strpad(type) == H5T_STR_SPACEPAD && size > 0 && text[size - 1] == ' ') {
        text[--size] = '\0';
    }
    status = send_text(s, name, text);
fail:
    TG_FREE(s->ctx, text);
    return status;
}

static tg_status read_number(const server *s, const char *name, hid_t attribute, hid_t type) {
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
    return failed < 0 ? hdf5_failed(s, "attribute", name, "cannot read") : send_text(s, name, text);
}

/* Single texts and numbers; arrays and other types are not metadata. */
static herr_t visit_attribute(hid_t root, const char *name, const H5A_info_t *info, void *user) {
    (void)info;
    visitor *v = user;
    start_clock();
    hid_t attribute = H5Aopen(root, name, H5P_DEFAULT);
    hid_t type = H5Aget_type(attribute);
    hid_t space = H5Aget_space(attribute);
    if (type < 0 || space < 0) {
        v->status = hdf5_failed(v->server, "attribute", name, "cannot open");
    } else if (H5Sget_simple_extent_npoints(space) == 1) {
        v->status = H5Tget_class(type) == H5T_STRING
                        ? read_text(v->server, name, attribute, type)
                        : read_number(v->server, name, attribute, type);
    }
    H5Sclose(space);
    H5Tclose(type);
    H5Aclose(attribute);
    return v->status == TG_OK ? 0 : -1;
}

static tg_status answer_meta(server *s) {
    char text[TG_H5_REASON];
    visitor v = {.server = s};
    hsize_t at = 0;
    if (H5Aiterate2(s->file, H5_INDEX_NAME, H5_ITER_INC, &at, visit_attribute, &v) < 0 &&
        v.status == TG_OK) {
        v.status = tg_fail_file(&s->source, TG_E_FORMAT, "cannot list the attributes: %s",
                                tg_h5_reason(text));
    }
    return v.status;
}

/* ---- the process ---- */

static bool send_done(const server *s, tg_status status) {
    return send_frame(s, TG_H5_DONE, (int)status, NULL, 0,
                      status == TG_OK ? NULL : tg_context_error(s->ctx), NULL);
}

/* Serves one request; false when there are no more. Requests are trusted. */
static bool answer(server *s) {
    tg_h5_frame frame;
    char *request = NULL;
    tg_h5_range range;
    if (!receive_bytes(s->fd, &frame, sizeof frame)) {
        return false;
    }
    start_clock();
    if (frame.kind == TG_H5_ASK_META) {
        return send_done(s, answer_meta(s));
    }
    if (frame.kind != TG_H5_ASK_DATA || frame.size <= sizeof range ||
        TG_NEW(s->ctx, TG_MEM_OTHER, request, frame.size + 1) != TG_OK) {
        return false;
    }
    bool goes_on = receive_bytes(s->fd, request, (size_t)frame.size);
    if (goes_on) {
        memcpy(&range, request, sizeof range);
        goes_on = send_done(s, answer_data(s, &range, request + sizeof range));
    }
    TG_FREE(s->ctx, request);
    return goes_on;
}

int tg_h5_serve(int fd, const char *path) {
    server s = {.fd = fd, .file = H5I_INVALID_HID, .last = no_dataset};
    tg_context_config config = tg_context_config_default();
    config.threads = 1;
    config.log = log_to_other_end;
    config.log_user = &s;
    set_limits();
    start_clock();
    H5PLset_loading_state(0);
    H5Eset_auto2(H5E_DEFAULT, NULL, NULL);
    if (!send_frame(&s, TG_H5_HELLO, TG_H5_PROTOCOL, NULL, 0, NULL, NULL) ||
        tg_context_create(&config, &s.ctx) != TG_OK) {
        return 1;
    }
    tg_status status = tg_source_open(s.ctx, path, &s.source);
    tg_source_close(&s.source);
    if (status == TG_OK) {
        status = open_and_list(&s);
    }
    bool goes_on = send_done(&s, status) && status == TG_OK;
    while (goes_on) {
        goes_on = answer(&s);
    }
    return 0; /* the process ends: HDF5 need not close a damaged file */
}
