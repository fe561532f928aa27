/* Writing safetensors files (layout: safetensors.c).
 *
 * The header lists the tensors in archive order; their data is stored by decreasing element size,
 * so that every tensor is aligned to its element size. */
#include <jansson.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/name_index.h"

enum { LARGEST_ELEMENT = 8 }; /* bytes of the largest type of the format */

/* One tensor of the archive. */
typedef struct entry {
    const char *name;         /* owned by the archive */
    const tg_tensor *tensor;  /* likewise */
    const tg_st_type *stored; /* its type in the file */
    bool is_pairs;            /* stored as pairs of the real type */
    uint64_t begin, end;      /* byte range in the data */
} entry;

typedef struct writer {
    tg_context *ctx;
    const char *path;
    const tg_archive *archive;
    entry *entries; /* (count) in archive order */
    int64_t count;
} writer;

static const tg_st_type *find_type(tg_dtype dtype) {
    for (int i = 0; i < TG_ST_TYPES; i++) {
        if (tg_st_types[i].dtype == dtype) {
            return &tg_st_types[i];
        }
    }
    return NULL;
}

static tg_status fill_entries(writer *w) {
    char quoted[TG_QUOTE];
    for (int64_t i = 0; i < w->count; i++) {
        entry *e = &w->entries[i];
        e->name = tg_archive_name(w->archive, i);
        e->tensor = tg_archive_tensor(w->archive, i);
        e->stored = find_type(e->tensor->dtype);
        if (!e->stored) {
            e->stored = find_type(tg_dtype_real(e->tensor->dtype));
            e->is_pairs = true;
        }
        if (strcmp(e->name, TG_ST_METADATA) == 0 || (e->is_pairs && strchr(e->name, '\n'))) {
            return tg_fail(w->ctx, TG_E_ARGUMENT,
                           "%s: tensor '%s': a safetensors file cannot have this name", w->path,
                           tg_quote(e->name, quoted));
        }
    }
    uint64_t at = 0;
    for (size_t size = LARGEST_ELEMENT; size > 0; size /= 2) {
        for (int64_t i = 0; i < w->count; i++) {
            entry *e = &w->entries[i];
            if (tg_dtype_size(e->stored->dtype) == size) {
                e->begin = at;
                at += tg_tensor_bytes(e->tensor);
                e->end = at;
            }
        }
    }
    return TG_OK;
}

/* Returns NULL if out of memory, like all JSON functions below. */
static json_t *entry_to_json(const entry *e) {
    const tg_shape *shape = &e->tensor->shape;
    json_t *sizes = json_array();
    int failed = 0;
    for (int d = 0; d < shape->ndim; d++) {
        failed |= json_array_append_new(sizes, json_integer(shape->dim[d]));
    }
    if (e->is_pairs) {
        failed |= json_array_append_new(sizes, json_integer(2));
    }
    if (failed) {
        json_decref(sizes);
        return NULL;
    }
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", e->stored->name, "shape", sizes,
                     "data_offsets", (json_int_t)e->begin, (json_int_t)e->end);
}

/* The names of the tensors stored as pairs, one per line; *out is NULL if there are none. */
static tg_status join_complex(const writer *w, char **out) {
    size_t length = 0;
    *out = NULL;
    for (int64_t i = 0; i < w->count; i++) {
        length += w->entries[i].is_pairs ? strlen(w->entries[i].name) + 1 : 0;
    }
    if (length == 0) {
        return TG_OK;
    }
    char *text = tg_mem_alloc(w->ctx, TG_MEM_OTHER, length, 1);
    if (!text) {
        return TG_E_MEMORY;
    }
    size_t used = 0;
    for (int64_t i = 0; i < w->count; i++) {
        if (w->entries[i].is_pairs) {
            const size_t bytes = strlen(w->entries[i].name);
            memcpy(text + used, w->entries[i].name, bytes);
            text[used + bytes] = '\n';
            used += bytes + 1;
        }
    }
    text[length - 1] = '\0';
    *out = text;
    return TG_OK;
}

/* Returns 0, or -1 if out of memory. */
static int metadata_to_json(const writer *w, const char *complex_names, json_t *root) {
    const int64_t count = tg_archive_meta_count(w->archive);
    if (count == 0 && !complex_names) {
        return 0;
    }
    json_t *metadata = json_object();
    int failed = json_object_set_new(root, TG_ST_METADATA, metadata);
    for (int64_t i = 0; i < count && !failed; i++) {
        failed = json_object_set_new(metadata, tg_archive_meta_key(w->archive, i),
                                     json_string(tg_archive_meta_value(w->archive, i)));
    }
    if (complex_names && !failed) {
        failed = json_object_set_new(metadata, TG_ST_COMPLEX, json_string(complex_names));
    }
    return failed;
}

/* The header as text, padded with spaces to a multiple of 8 bytes. */
static tg_status format_header(const writer *w, char **out, size_t *out_length) {
    tg_status status = TG_OK;
    json_t *root = NULL;
    char *complex_names = NULL, *text = NULL;
    *out = NULL;
    TG_TRY(join_complex(w, &complex_names));
    root = json_object();
    int failed = metadata_to_json(w, complex_names, root);
    for (int64_t i = 0; i < w->count && !failed; i++) {
        failed = json_object_set_new(root, w->entries[i].name, entry_to_json(&w->entries[i]));
    }
    const size_t length = failed ? 0 : json_dumpb(root, NULL, 0, JSON_COMPACT);
    if (length == 0) {
        status = tg_fail(w->ctx, TG_E_MEMORY, "%s: out of memory for the header", w->path);
        goto fail;
    }
    const size_t padded = (length + 7) / 8 * 8;
    if (padded > TG_ST_LARGEST_HEADER) {
        status = tg_fail(w->ctx, TG_E_UNSUPPORTED,
                         "%s: safetensors header: at most %d bytes are allowed, it needs %zu",
                         w->path, TG_ST_LARGEST_HEADER, padded);
        goto fail;
    }
    TG_TRY(TG_ALLOC(w->ctx, TG_MEM_OTHER, text, padded));
    memset(text, ' ', padded);
    json_dumpb(root, text, length, JSON_COMPACT);
    *out = text;
    *out_length = padded;
fail:
    TG_FREE(w->ctx, complex_names);
    json_decref(root);
    return status;
}

static tg_status write_data(const writer *w, tg_atomic_file *file) {
    for (size_t size = LARGEST_ELEMENT; size > 0; size /= 2) {
        for (int64_t i = 0; i < w->count; i++) {
            const entry *e = &w->entries[i];
            if (tg_dtype_size(e->stored->dtype) != size) {
                continue;
            }
            TG_CALL(tg_atomic_write(file, e->tensor->data, tg_tensor_bytes(e->tensor)));
        }
    }
    return TG_OK;
}

tg_status tg_safetensors_write(tg_context *ctx, const char *path, const tg_archive *archive) {
    TG_NEED(ctx, ctx, path, archive);
    tg_status status = TG_OK;
    tg_atomic_file file = {.fd = -1};
    writer w = {.ctx = ctx, .path = path, .archive = archive, .count = tg_archive_count(archive)};
    char *header = NULL;
    size_t length = 0;
    unsigned char prefix[TG_ST_LENGTH_BYTES];
    if (tg_archive_meta(archive, TG_ST_COMPLEX)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%s: metadata '%s' is reserved for the format itself",
                       w.path, TG_ST_COMPLEX);
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, w.entries, w.count));
    TG_TRY(fill_entries(&w));
    TG_TRY(format_header(&w, &header, &length));
    for (int i = 0; i < TG_ST_LENGTH_BYTES; i++) {
        prefix[i] = (unsigned char)((uint64_t)length >> (8 * i));
    }
    TG_TRY(tg_atomic_open(ctx, path, &file));
    TG_TRY(tg_atomic_write(&file, prefix, sizeof prefix));
    TG_TRY(tg_atomic_write(&file, header, length));
    TG_TRY(write_data(&w, &file));
    TG_TRY(tg_atomic_commit(&file));
fail:
    tg_atomic_abort(&file);
    TG_FREE(ctx, w.entries);
    TG_FREE(ctx, header);
    return status;
}
