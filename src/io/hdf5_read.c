/* Reading HDF5: the list of numeric datasets, whole datasets, ranges of samples, and the attributes
 * of the root group.
 *
 * HDF5 runs in another process (hdf5_serve.c), which a damaged file may crash. It reports the
 * datasets and their offsets. Elements stored exactly as in memory are read from the file directly;
 * all others it reads and sends. None of its answers is trusted: a process damaged by its input may
 * send anything. */
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "io/formats.h"
#include "io/hdf5_wire.h"

enum {
    /* Data may be larger than its file when it is compressed or was never written. A ratio above
     * gzip's best (about 1030) must be false, unless the data is small. */
    MAX_RATIO = 2048,
    SMALL_DATA = 64 << 20,  /* bytes */
    PIECE_BYTES = 16 << 10, /* bytes of the file converted at once */
    TEXT_SPARE = 64 << 10,  /* bytes of names and texts beyond the file's size */
};

typedef struct dataset {
    tg_raw_array raw;  /* dtype and shape; the offset or TG_H5_NOWHERE */
    tg_status refusal; /* why it cannot be read: status */
    char *why;         /* and sentence; NULL if it can */
} dataset;

struct tg_h5 {
    tg_context *ctx;
    char *path;
    tg_source source; /* for reading without HDF5 */
    tg_h5_child child;
    tg_names datasets; /* the numeric ones; records: dataset */
};

/* ---- opening ---- */

/* Whether the reader's description of a dataset is plausible. */
static bool is_sound(const tg_h5 *file, const tg_h5_entry *entry) {
    tg_shape shape = {.ndim = (int)entry->ndim};
    if (entry->dtype < 0 || entry->dtype >= TG_DTYPES || entry->refusal < 0 ||
        entry->refusal >= TG_STATUS_COUNT || entry->ndim < 0 || entry->ndim > TG_MAX_NDIM) {
        return false;
    }
    memcpy(shape.dim, entry->dim, sizeof shape.dim);
    const int64_t numel = tg_shape_numel(&shape);
    if (numel < 0 || numel > INT64_MAX / 16) {
        return false;
    }
    const uint64_t bytes = (uint64_t)numel * tg_dtype_size((tg_dtype)entry->dtype);
    return entry->offset == TG_H5_NOWHERE ||
           (entry->offset <= file->source.size && bytes <= file->source.size - entry->offset);
}

/* A frame of kind DATASET: the entry, its name, why it is rejected. */
static tg_status add_dataset(tg_h5 *file, const tg_h5_frame *frame, void *unused) {
    (void)unused;
    tg_status status = TG_OK;
    tg_h5_entry entry = {0};
    char *bytes = NULL, *why = NULL;
    TG_TRY(tg_h5_child_take_text(&file->child, frame, file->source.size + TEXT_SPARE, &bytes));
    memcpy(&entry, bytes, frame->size < sizeof entry ? 0 : sizeof entry);
    const char *name = bytes + sizeof entry;
    if (frame->size < sizeof entry || !is_sound(file, &entry) || !*name ||
        !tg_utf8_is_valid(name) || tg_names_find(&file->datasets, name) >= 0) {
        status = tg_h5_child_refuse(&file->child);
        goto fail;
    }
    if (entry.refusal != TG_OK) {
        why = tg_mem_strdup(file->ctx, name + strlen(name) + 1);
        TG_TRY(why ? TG_OK : TG_E_MEMORY);
    }
    const dataset d = {.raw = {.dtype = (tg_dtype)entry.dtype,
                               .shape = tg_shape_of((int)entry.ndim, entry.dim),
                               .offset = entry.offset},
                       .refusal = (tg_status)entry.refusal,
                       .why = why};
    TG_TRY(tg_names_add(&file->datasets, "dataset", name, &d));
    why = NULL;
fail:
    TG_FREE(file->ctx, why);
    TG_FREE(file->ctx, bytes);
    return status;
}

/* Gives every frame of an answer, which must be of `kind`, to `take`. If that fails, the rest of
 * the answer is still in transit, and the reader is ended. */
static tg_status receive_all(tg_h5 *file, tg_h5_kind kind,
                             tg_status (*take)(tg_h5 *file, const tg_h5_frame *frame, void *user),
                             void *user) {
    tg_h5_frame frame;
    while (true) {
        TG_CALL(tg_h5_child_receive(&file->child, &frame));
        if (frame.kind == TG_H5_DONE) {
            return tg_h5_child_result(&file->child, &frame);
        }
        const tg_status status = frame.kind == (uint32_t)kind ? take(file, &frame, user)
                                                              : tg_h5_child_refuse(&file->child);
        if (status != TG_OK) {
            tg_h5_child_end(&file->child);
            return status;
        }
    }
}

tg_status tg_h5_open_from(tg_context *ctx, const char *path, const tg_h5_child *reader,
                          tg_h5 **out) {
    tg_status status = TG_OK;
    tg_source source = {.fd = -1};
    tg_h5 *file = NULL;
    *out = NULL;
    TG_TRY(tg_source_open(ctx, path, &source));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, file, 1));
    *file = (tg_h5){.ctx = ctx,
                    .source = source,
                    .child = {.fd = -1},
                    .datasets = {.ctx = ctx, .record_bytes = sizeof(dataset)}};
    source.fd = -1;
    file->path = tg_mem_strdup(ctx, path);
    TG_TRY(file->path ? TG_OK : TG_E_MEMORY);
    file->source.label = file->path;
    if (reader) {
        file->child = *reader;
        file->child.path = file->path;
    } else {
        TG_TRY(tg_h5_child_start(ctx, file->path, &file->child));
    }
    TG_TRY(receive_all(file, TG_H5_DATASET, add_dataset, NULL));
    *out = file;
    return TG_OK;
fail:
    tg_source_close(&source);
    tg_h5_close(&file);
    return status;
}

tg_status tg_h5_open(tg_context *ctx, const char *path, tg_h5 **out) {
    TG_NEED_OUT(ctx, out, ctx, path);
    return tg_h5_open_from(ctx, path, NULL, out);
}

void tg_h5_close(tg_h5 **file) {
    if (!file || !*file) {
        return;
    }
    tg_h5 *f = *file;
    tg_h5_child_end(&f->child);
    tg_source_close(&f->source);
    for (int64_t i = 0; i < f->datasets.count; i++) {
        tg_mem_free(f->ctx, ((dataset *)tg_names_record(&f->datasets, i))->why);
    }
    tg_names_clear(&f->datasets);
    tg_mem_free(f->ctx, f->path);
    TG_FREE(f->ctx, *file);
}

int64_t tg_h5_count(const tg_h5 *file) {
    return file ? file->datasets.count : 0;
}

const char *tg_h5_name(const tg_h5 *file, int64_t index) {
    return file ? tg_names_item(&file->datasets, index) : NULL;
}

/* ---- datasets ---- */

/* A readable dataset of the list. */
static tg_status find_dataset(const tg_h5 *file, const char *name, const dataset **out) {
    *out = tg_names_record(&file->datasets, tg_names_find(&file->datasets, name));
    if (!*out) {
        return tg_names_missing(&file->datasets, file->path, "numeric dataset", name);
    }
    return (*out)->why ? tg_fail(file->ctx, (*out)->refusal, "%s", (*out)->why) : TG_OK;
}

tg_status tg_h5_describe(tg_h5 *file, const char *name, tg_dtype *dtype, tg_shape *shape) {
    TG_NEED(NULL, file);
    TG_NEED(file->ctx, name, dtype, shape);
    const dataset *d = NULL;
    const tg_status status = find_dataset(file, name, &d);
    *dtype = status == TG_OK ? d->raw.dtype : TG_F32;
    *shape = status == TG_OK ? d->raw.shape : (tg_shape){0};
    return status;
}

/* Memory that is filled by frames of kind DATA. */
typedef struct target {
    char *data;
    size_t left; /* bytes */
} target;

static tg_status take_data(tg_h5 *file, const tg_h5_frame *frame, void *user) {
    target *to = user;
    if (frame->size > to->left) {
        return tg_h5_child_refuse(&file->child);
    }
    TG_CALL(tg_h5_child_take(&file->child, to->data, (size_t)frame->size));
    to->data += frame->size;
    to->left -= (size_t)frame->size;
    return TG_OK;
}

/* Elements that HDF5 reads and sends. */
static tg_status receive_elements(tg_h5 *file, const char *name, const tg_h5_range *range,
                                  void *data, size_t bytes) {
    target to = {data, bytes};
    TG_CALL(tg_h5_child_ask(&file->child, TG_H5_ASK_DATA, range, sizeof *range, name,
                            strlen(name) + 1));
    TG_CALL(receive_all(file, TG_H5_DATA, take_data, &to));
    return to.left == 0 ? TG_OK : tg_h5_child_refuse(&file->child);
}

/* HDF5 converts to float types, except from floats, where there is one right result. */
static tg_status read_elements(tg_h5 *file, const char *name, const dataset *d,
                               const tg_array_box *box, tg_dtype dtype, void *data) {
    _Alignas(16) char piece[PIECE_BYTES];
    const bool same_kind = d->raw.dtype == dtype || tg_dtype_is_float(tg_dtype_real(d->raw.dtype));
    const tg_h5_range range = {(int64_t)dtype, *box};
    const int64_t elements = tg_product(d->raw.shape.ndim, box->count);
    if (elements == 0) {
        return TG_OK;
    }
    return d->raw.offset != TG_H5_NOWHERE && same_kind
               ? tg_raw_read(&file->source, &d->raw, name, box, piece, sizeof piece, dtype, data)
               : receive_elements(file, name, &range, data,
                                  (size_t)elements * tg_dtype_size(dtype));
}

static tg_status check_range(const tg_h5 *file, const char *name, int64_t rows, int64_t first,
                             int64_t count) {
    return first >= 0 && count >= 0 && first <= rows && count <= rows - first
               ? TG_OK
               : tg_fail_file(&file->source, TG_E_ARGUMENT,
                              "dataset '%s': %" PRId64 " samples from %" PRId64
                              " on do not fit in %" PRId64,
                              TG_QUOTED(name), count, first, rows);
}

static tg_status check_dtype(const tg_h5 *file, const char *name, const dataset *d,
                             tg_dtype dtype) {
    if (dtype != TG_F32 && dtype != TG_F64 && dtype != TG_C64 && dtype != TG_C128) {
        return tg_fail_file(&file->source, TG_E_DTYPE,
                            "dataset '%s': expected f32, f64, c64 or c128 to read as, found %s",
                            TG_QUOTED(name), tg_dtype_name(dtype));
    }
    if (tg_dtype_is_complex(dtype) != tg_dtype_is_complex(d->raw.dtype)) {
        return tg_fail_file(&file->source, TG_E_DTYPE, "dataset '%s': %s cannot be read as %s",
                            TG_QUOTED(name), tg_dtype_name(d->raw.dtype), tg_dtype_name(dtype));
    }
    return TG_OK;
}

static tg_status check_justified(const tg_h5 *file, const char *name, const dataset *d) {
    const uint64_t bytes = (uint64_t)tg_shape_numel(&d->raw.shape) * tg_dtype_size(d->raw.dtype);
    if (bytes > SMALL_DATA && bytes / MAX_RATIO > file->source.size) {
        return tg_fail_file(&file->source, TG_E_FORMAT,
                            "dataset '%s': shape: %s of %s is more than a file of %" PRIu64
                            " bytes can hold",
                            TG_QUOTED(name), TG_SHAPE_TEXT(&d->raw.shape),
                            tg_dtype_name(d->raw.dtype), file->source.size);
    }
    return TG_OK;
}

tg_status tg_h5_read_box(tg_h5 *file, const char *name, const tg_array_box *box, tg_dtype dtype,
                         void *data) {
    const dataset *d = NULL;
    TG_CALL(find_dataset(file, name, &d));
    for (int i = 0; i < d->raw.shape.ndim; i++) {
        TG_CALL(check_range(file, name, d->raw.shape.dim[i], box->first[i], box->count[i]));
    }
    TG_CALL(check_dtype(file, name, d, dtype));
    TG_CALL(check_justified(file, name, d));
    return read_elements(file, name, d, box, dtype, data);
}

tg_status tg_h5_read_range(tg_h5 *file, const char *name, int64_t first, int64_t count,
                           tg_dtype dtype, void *data) {
    TG_NEED(NULL, file);
    TG_NEED(file->ctx, name);
    if (count > 0) {
        TG_NEED(file->ctx, data);
    }
    const dataset *d = NULL;
    TG_CALL(find_dataset(file, name, &d));
    tg_array_box box = tg_array_box_of(&d->raw.shape);
    TG_CALL(check_range(file, name, d->raw.shape.ndim > 0 ? box.count[0] : 1, first, count));
    if (count == 0) {
        return check_dtype(file, name, d, dtype);
    }
    box.first[0] = first;
    box.count[0] = count;
    return tg_h5_read_box(file, name, &box, dtype, data);
}

tg_status tg_h5_read(tg_h5 *file, const char *name, tg_tensor *out) {
    TG_NEED(NULL, file);
    TG_NEED(file->ctx, out);
    *out = (tg_tensor){0};
    TG_NEED(file->ctx, name);
    tg_status status = TG_OK;
    const dataset *d = NULL;
    TG_TRY(find_dataset(file, name, &d));
    TG_TRY(check_justified(file, name, d));
    const tg_array_box all = tg_array_box_of(&d->raw.shape);
    TG_TRY(tg_tensor_create(file->ctx, TG_MEM_DATA, d->raw.dtype, &d->raw.shape, out));
    TG_TRY(read_elements(file, name, d, &all, d->raw.dtype, out->data));
    TG_TRY(tg_check_bools(file->ctx, file->path, TG_QUOTED(name), out));
    return TG_OK;
fail:
    tg_tensor_destroy(out);
    return status;
}

/* ---- attributes ---- */

/* A frame of kind PAIR: key and value. */
static tg_status take_pair(tg_h5 *file, const tg_h5_frame *frame, void *archive) {
    char *key = NULL;
    tg_status status =
        tg_h5_child_take_text(&file->child, frame, file->source.size + TEXT_SPARE, &key);
    if (status == TG_OK) {
        const char *value = key + strlen(key) + (strlen(key) < frame->size);
        status = tg_archive_set_meta(archive, key, value);
    }
    TG_FREE(file->ctx, key);
    return status;
}

tg_status tg_h5_read_meta(tg_h5 *file, tg_archive *archive) {
    TG_NEED(NULL, file);
    TG_NEED(file->ctx, archive);
    TG_CALL(tg_h5_child_ask(&file->child, TG_H5_ASK_META, NULL, 0, NULL, 0));
    return receive_all(file, TG_H5_PAIR, take_pair, archive);
}
