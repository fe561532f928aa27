/* safetensors: named tensors after a JSON header. The layout of a file is
 *
 *   header length (8 bytes, little-endian), header, data to the end of the file;
 *   header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..,
 *            "__metadata__": {"key": "text", ..}}, offsets counted from the start of the data.
 *
 * The whole header is checked before any tensor is allocated: the tensors must fill the data
 * exactly, without gaps or overlap, so that memory is bounded by the file's size. The header
 * written lists the tensors in archive order; their data is stored by decreasing element size, so
 * that every tensor is aligned to its element size. Complex types that the format lacks are stored
 * as pairs, see tgrad/io.h. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/formats.h"

#define METADATA "__metadata__"  /* header key that is not a tensor */
#define COMPLEX  "tgrad.complex" /* key of the metadata: names of tensors stored as pairs */

enum {
    STORED_NDIM = TG_MAX_NDIM + 1, /* pairs add a dimension */
    LENGTH_BYTES = 8,              /* the header's length, before it */
    MAX_HEADER_BYTES = 100000000,  /* bytes, the limit of the format */
    MAX_ELEMENT_BYTES = 8,         /* bytes of the largest type of the format */
};

typedef struct stored_type {
    const char *name;
    tg_dtype dtype;
} stored_type;

static const stored_type types[] = {
    {"F32", TG_F32},   {"F64", TG_F64}, {"BF16", TG_BF16}, {"F16", TG_F16}, {"C64", TG_C64},
    {"BOOL", TG_BOOL}, {"U8", TG_U8},   {"I8", TG_I8},     {"U16", TG_U16}, {"I16", TG_I16},
    {"U32", TG_U32},   {"I32", TG_I32}, {"U64", TG_U64},   {"I64", TG_I64},
};

enum { TYPES = sizeof types / sizeof types[0] };

/* ---- reading the header ---- */

typedef struct reader {
    tg_raw_file *file;
    const tg_source *source;
    uint64_t data_offset; /* file offset of the data */
    json_t *root;         /* the header */
    tg_names pairs;       /* tensors stored as pairs */
} reader;

/* "path: tensor 'name': field: expected .., found .." */
static tg_status bad_field(const reader *r, const char *name, const char *field,
                           const char *expected, const json_t *found) {
    char text[TG_QUOTE] = "nothing";
    const size_t length = found ? json_dumpb(found, text, sizeof text - 1,
                                             JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII)
                                : strlen(text);
    const bool fits = length > 0 && length < sizeof text;
    text[fits ? length : 0] = '\0';
    return tg_fail_file(r->source, TG_E_FORMAT, "tensor '%s': %s: expected %s, found %s",
                        TG_QUOTED(name), field, expected,
                        fits ? TG_QUOTED(text) : "something longer");
}

static tg_status parse_json(reader *r, const char *text, size_t length) {
    json_error_t error;
    r->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!r->root && json_error_code(&error) == json_error_out_of_memory) {
        return tg_fail_file(r->source, TG_E_MEMORY, "out of memory for the safetensors header");
    }
    if (!r->root) {
        return tg_fail_file(r->source, TG_E_FORMAT,
                            "safetensors header: not valid JSON: %s at byte %d",
                            TG_QUOTED(error.text), error.position);
    }
    return json_is_object(r->root)
               ? TG_OK
               : tg_fail_file(r->source, TG_E_FORMAT, "safetensors header: expected an object");
}

static tg_status read_header(reader *r) {
    tg_status status = TG_OK;
    const tg_source *source = r->source;
    unsigned char raw[LENGTH_BYTES];
    char *text = NULL;
    const char *found = NULL;
    if (source->size < LENGTH_BYTES) {
        return tg_fail_file(source, TG_E_FORMAT,
                            "a safetensors file has 8 bytes or more, this one has %llu",
                            (unsigned long long)source->size);
    }
    TG_TRY(tg_source_read(source, 0, raw, LENGTH_BYTES));
    const uint64_t length = tg_get_number(raw, LENGTH_BYTES);
    const uint64_t left = source->size - LENGTH_BYTES;
    const uint64_t limit = left < MAX_HEADER_BYTES ? left : MAX_HEADER_BYTES;
    if (length > limit && (found = tg_content_name(raw, sizeof raw))) {
        return tg_fail_file(source, TG_E_FORMAT, "expected a safetensors file, found %s", found);
    }
    if (length > limit) {
        return tg_fail_file(source, TG_E_FORMAT,
                            "safetensors header length: expected at most %llu bytes, found %llu",
                            (unsigned long long)limit, (unsigned long long)length);
    }
    TG_TRY(TG_ALLOC(source->ctx, TG_MEM_OTHER, text, length + 1));
    TG_TRY(tg_source_read(source, LENGTH_BYTES, text, (size_t)length));
    TG_TRY(parse_json(r, text, (size_t)length));
    r->data_offset = LENGTH_BYTES + length;
fail:
    TG_FREE(source->ctx, text);
    return status;
}

/* Notes the tensors that tgrad.complex names, one per line. */
static tg_status list_pairs(reader *r, const char *list) {
    for (size_t length = 0; list; list = list[length] ? list + length + 1 : NULL) {
        length = strcspn(list, "\n");
        char *name = tg_mem_printf(r->source->ctx, "%.*s", (int)length, list);
        if (!name) {
            return TG_E_MEMORY;
        }
        const bool is_tensor =
            json_is_object(json_object_get(r->root, name)) && strcmp(name, METADATA) != 0;
        const tg_status status =
            !is_tensor                           ? tg_fail_file(r->source, TG_E_FORMAT,
                                                                "%s: %s: expected names of tensors, found '%s'", METADATA,
                                                                COMPLEX, TG_QUOTED(name))
            : tg_names_find(&r->pairs, name) < 0 ? tg_names_add(&r->pairs, "tensor", name, NULL)
                                                 : TG_OK;
        tg_mem_free(r->source->ctx, name);
        TG_CALL(status);
    }
    return TG_OK;
}

/* Takes the metadata over, except for tgrad.complex: its tensors are complex now. */
static tg_status read_metadata(reader *r, json_t *metadata) {
    if (metadata && !json_is_object(metadata)) {
        return tg_fail_file(r->source, TG_E_FORMAT, "%s: expected an object of texts", METADATA);
    }
    void *iter = json_object_iter(metadata);
    for (; iter; iter = json_object_iter_next(metadata, iter)) {
        const char *key = json_object_iter_key(iter);
        const char *value = json_string_value(json_object_iter_value(iter));
        if (!*key || !value) {
            return tg_fail_file(r->source, TG_E_FORMAT,
                                "%s: '%s': expected a key with a text, found something else",
                                METADATA, TG_QUOTED(key));
        }
        TG_CALL(strcmp(key, COMPLEX) == 0 ? list_pairs(r, value)
                                          : tg_archive_set_meta(r->file->meta, key, value));
    }
    return TG_OK;
}

static tg_status parse_dtype(const reader *r, const char *name, const json_t *value,
                             tg_raw_array *out) {
    if (!json_is_string(value)) {
        return bad_field(r, name, "dtype", "a text", value);
    }
    for (int i = 0; i < TYPES; i++) {
        if (strcmp(json_string_value(value), types[i].name) == 0) {
            out->dtype = types[i].dtype;
            return TG_OK;
        }
    }
    return tg_fail_file(r->source, TG_E_UNSUPPORTED, "tensor '%s': dtype: '%s' is not supported",
                        TG_QUOTED(name), TG_QUOTED(json_string_value(value)));
}

/* Shape; for a tensor stored as pairs, converts (.., 2) real to (..) complex. */
static tg_status parse_shape(const reader *r, const char *name, const json_t *value,
                             tg_raw_array *out) {
    const bool is_pairs = tg_names_find(&r->pairs, name) >= 0;
    int64_t dims[STORED_NDIM] = {0};
    const size_t ndim = json_array_size(value);
    if (!json_is_array(value)) {
        return bad_field(r, name, "shape", "a list of sizes", value);
    }
    if (ndim > (is_pairs ? STORED_NDIM : TG_MAX_NDIM)) {
        return bad_field(r, name, "shape", "at most 8 dimensions", value);
    }
    for (size_t d = 0; d < ndim; d++) {
        const json_t *size = json_array_get(value, d);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return bad_field(r, name, "shape", "sizes that are integers of 0 or more", size);
        }
        dims[d] = json_integer_value(size);
    }
    if (is_pairs &&
        (tg_dtype_complex(out->dtype) == out->dtype || ndim == 0 || dims[ndim - 1] != 2)) {
        return bad_field(r, name, "shape",
                         "floating-point pairs (last size 2), as tgrad.complex names it", value);
    }
    out->dtype = is_pairs ? tg_dtype_complex(out->dtype) : out->dtype;
    out->shape = tg_shape_of((int)ndim - is_pairs, dims);
    return TG_OK;
}

static uint64_t bytes_of(const tg_raw_array *array) {
    return (uint64_t)tg_shape_numel(&array->shape) * tg_dtype_size(array->dtype);
}

static tg_status parse_offsets(const reader *r, const char *name, const json_t *value,
                               tg_raw_array *out) {
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    const int64_t first = json_integer_value(begin), last = json_integer_value(end);
    const uint64_t data_size = r->source->size - r->data_offset;
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end)) {
        return bad_field(r, name, "data_offsets", "two integers", value);
    }
    if (first < 0 || last < first || (uint64_t)last > data_size) {
        char expected[96];
        snprintf(expected, sizeof expected, "0 <= begin <= end <= %llu (the bytes of data)",
                 (unsigned long long)data_size);
        return bad_field(r, name, "data_offsets", expected, value);
    }
    const int64_t numel = tg_shape_numel(&out->shape);
    if (numel < 0 || numel > INT64_MAX / (int64_t)tg_dtype_size(out->dtype) ||
        bytes_of(out) != (uint64_t)(last - first)) {
        return tg_fail_file(r->source, TG_E_FORMAT,
                            "tensor '%s': data_offsets: expected the bytes of %s of %s, found %lld",
                            TG_QUOTED(name), TG_SHAPE_TEXT(&out->shape), tg_dtype_name(out->dtype),
                            (long long)(last - first));
    }
    out->offset = r->data_offset + (uint64_t)first;
    return TG_OK;
}

static tg_status parse_entry(const reader *r, const char *name, const json_t *value) {
    tg_raw_array array = {0};
    if (!*name) {
        return bad_field(r, name, "name", "one character or more", NULL);
    }
    if (!json_is_object(value) || json_object_size(value) != 3) {
        return bad_field(r, name, "entry", "an object of dtype, shape and data_offsets", value);
    }
    TG_CALL(parse_dtype(r, name, json_object_get(value, "dtype"), &array));
    TG_CALL(parse_shape(r, name, json_object_get(value, "shape"), &array));
    TG_CALL(parse_offsets(r, name, json_object_get(value, "data_offsets"), &array));
    return tg_names_add(&r->file->arrays, "tensor", name, &array);
}

/* Where a tensor is in the file. */
typedef struct place {
    uint64_t begin, end;
    const char *name;
} place;

/* Of tensors that begin together, empty ones first. */
static int by_place(const void *a, const void *b) {
    const place *x = a, *y = b;
    const uint64_t p = x->begin != y->begin ? x->begin : x->end;
    const uint64_t q = x->begin != y->begin ? y->begin : y->end;
    return (p > q) - (p < q);
}

/* The tensors must cover the data exactly. */
static tg_status check_cover(const reader *r) {
    tg_status status = TG_OK;
    const tg_names *arrays = &r->file->arrays;
    place *sorted = NULL;
    uint64_t at = r->data_offset;
    TG_TRY(TG_ALLOC(r->source->ctx, TG_MEM_OTHER, sorted, arrays->count));
    for (int64_t i = 0; i < arrays->count; i++) {
        const tg_raw_array *array = tg_names_record(arrays, i);
        sorted[i] = (place){array->offset, array->offset + bytes_of(array), arrays->items[i]};
    }
    qsort(sorted, (size_t)arrays->count, sizeof *sorted, by_place);
    for (int64_t i = 0; i < arrays->count; at = sorted[i++].end) {
        const uint64_t offset = sorted[i].begin;
        TG_TRY(
            offset == at
                ? TG_OK
                : tg_fail_file(r->source, TG_E_FORMAT,
                               "tensor '%s': data_offsets: expected to begin at %llu, found %llu "
                               "(%s)",
                               TG_QUOTED(sorted[i].name), (unsigned long long)(at - r->data_offset),
                               (unsigned long long)(offset - r->data_offset),
                               offset < at ? "tensors overlap" : "a hole in the data"));
    }
    if (at != r->source->size) {
        status = tg_fail_file(r->source, TG_E_FORMAT,
                              "safetensors data: expected %llu bytes, found %llu",
                              (unsigned long long)(at - r->data_offset),
                              (unsigned long long)(r->source->size - r->data_offset));
    }
fail:
    TG_FREE(r->source->ctx, sorted);
    return status;
}

tg_status tg_safetensors_list(tg_raw_file *file) {
    tg_status status = TG_OK;
    reader r = {.file = file, .source = file->source, .pairs = {.ctx = file->ctx}};
    TG_TRY(read_header(&r));
    TG_TRY(read_metadata(&r, json_object_get(r.root, METADATA)));
    void *iter = json_object_iter(r.root);
    for (; iter; iter = json_object_iter_next(r.root, iter)) {
        const char *name = json_object_iter_key(iter);
        TG_TRY(strcmp(name, METADATA) == 0 ? TG_OK
                                           : parse_entry(&r, name, json_object_iter_value(iter)));
    }
    TG_TRY(check_cover(&r));
fail:
    tg_names_clear(&r.pairs);
    json_decref(r.root);
    return status;
}

/* ---- writing ---- */

/* One tensor of the archive. */
typedef struct entry {
    const char *name;          /* owned by the archive */
    const tg_tensor *tensor;   /* owned by the archive, too */
    const stored_type *stored; /* its type in the file */
    bool is_pairs;             /* stored as pairs of the real type */
    uint64_t begin, end;       /* byte range in the data */
} entry;

typedef struct writer {
    tg_context *ctx;
    const char *path;
    const tg_archive *archive;
    entry *entries; /* (count) in archive order */
    int64_t count;
} writer;

static const stored_type *find_type(tg_dtype dtype) {
    for (int i = 0; i < TYPES; i++) {
        if (types[i].dtype == dtype) {
            return &types[i];
        }
    }
    return NULL;
}

static tg_status fill_entries(writer *w) {
    for (int64_t i = 0; i < w->count; i++) {
        entry *e = &w->entries[i];
        e->name = tg_archive_name(w->archive, i);
        e->tensor = tg_archive_tensor(w->archive, i);
        e->stored = find_type(e->tensor->dtype);
        if (!e->stored) {
            e->stored = find_type(tg_dtype_real(e->tensor->dtype));
            e->is_pairs = true;
        }
        if (strcmp(e->name, METADATA) == 0 || (e->is_pairs && strchr(e->name, '\n'))) {
            return tg_fail(w->ctx, TG_E_ARGUMENT,
                           "%s: tensor '%s': a safetensors file cannot have this name", w->path,
                           TG_QUOTED(e->name));
        }
    }
    uint64_t at = 0;
    for (size_t size = MAX_ELEMENT_BYTES; size > 0; size /= 2) {
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
    int failed = json_object_set_new(root, METADATA, metadata);
    for (int64_t i = 0; i < count && !failed; i++) {
        failed = json_object_set_new(metadata, tg_archive_meta_key(w->archive, i),
                                     json_string(tg_archive_meta_value(w->archive, i)));
    }
    if (complex_names && !failed) {
        failed = json_object_set_new(metadata, COMPLEX, json_string(complex_names));
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
    if (padded > MAX_HEADER_BYTES) {
        status = tg_fail(w->ctx, TG_E_UNSUPPORTED,
                         "%s: safetensors header: at most %d bytes are allowed, it needs %zu",
                         w->path, MAX_HEADER_BYTES, padded);
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
    for (size_t size = MAX_ELEMENT_BYTES; size > 0; size /= 2) {
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
    unsigned char prefix[LENGTH_BYTES];
    if (tg_archive_meta(archive, COMPLEX)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%s: metadata '%s' is reserved for the format itself",
                       w.path, COMPLEX);
    }
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, w.entries, w.count));
    TG_TRY(fill_entries(&w));
    TG_TRY(format_header(&w, &header, &length));
    tg_put_number(prefix, length, LENGTH_BYTES);
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
