/* safetensors: named tensors after a JSON header. The layout of a file is
 *
 *   header length (8 bytes, little-endian), header, data to the end of the file;
 *   header: {"name": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}, ..,
 *            "__metadata__": {"key": "text", ..}}, offsets counted from the start of the data.
 *
 * The whole header is checked before any tensor is allocated: the tensors must fill the data
 * exactly, without gaps or overlap, so that memory is bounded by the file's size. Each tensor is
 * then read straight into its memory. Complex types that the format lacks are stored as pairs, see
 * tgrad/io.h. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/formats.h"
#include "io/name_index.h"

enum { STORED_NDIM = TG_MAX_NDIM + 1 }; /* pairs add a dimension */

const tg_st_type tg_st_types[TG_ST_TYPES] = {
    {"F32", TG_F32},   {"F64", TG_F64}, {"BF16", TG_BF16}, {"F16", TG_F16}, {"C64", TG_C64},
    {"BOOL", TG_BOOL}, {"U8", TG_U8},   {"I8", TG_I8},     {"U16", TG_U16}, {"I16", TG_I16},
    {"U32", TG_U32},   {"I32", TG_I32}, {"U64", TG_U64},   {"I64", TG_I64},
};

/* One tensor of the header. */
typedef struct entry {
    const char *name;    /* owned by the JSON tree */
    tg_dtype dtype;      /* as in memory */
    tg_shape shape;      /* as in memory */
    uint64_t begin, end; /* byte range in the data */
    int64_t index;       /* position in the header */
} entry;

/* ---- reading: the header ---- */

typedef struct reader {
    const tg_source *source;
    uint64_t data_offset; /* file offset of the data */
    json_t *root;         /* the header */
    json_t *pairs;        /* set: names of tensors stored as pairs */
    entry *entries;       /* (count) in the order of the header */
    int64_t count;
} reader;

/* "path: tensor 'name': field: expected .., found .." */
static tg_status bad_field(const reader *r, const char *name, const char *field,
                           const char *expected, const json_t *found) {
    char quoted[TG_QUOTE], text[TG_QUOTE], shown[TG_QUOTE] = "nothing";
    if (found) {
        size_t length = json_dumpb(found, text, sizeof text - 1,
                                   JSON_COMPACT | JSON_ENCODE_ANY | JSON_ENSURE_ASCII);
        text[length < sizeof text ? length : sizeof text - 1] = '\0';
        if (length == 0 || length >= sizeof text) {
            memcpy(text, "something longer", sizeof "something longer");
        }
        tg_quote(text, shown);
    }
    return tg_fail(r->source->ctx, TG_E_FORMAT, "%s: tensor '%s': %s: expected %s, found %s",
                   r->source->label, tg_quote(name, quoted), field, expected, shown);
}

static tg_status parse_json(reader *r, const char *text, size_t length) {
    json_error_t error;
    tg_context *ctx = r->source->ctx;
    char quoted[TG_QUOTE];
    r->root = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
    if (!r->root && json_error_code(&error) == json_error_out_of_memory) {
        return tg_fail(ctx, TG_E_MEMORY, "%s: out of memory for the safetensors header",
                       r->source->label);
    }
    if (!r->root) {
        return tg_fail(ctx, TG_E_FORMAT, "%s: safetensors header: not valid JSON: %s at byte %d",
                       r->source->label, tg_quote(error.text, quoted), error.position);
    }
    if (!json_is_object(r->root)) {
        return tg_fail(ctx, TG_E_FORMAT, "%s: safetensors header: expected an object",
                       r->source->label);
    }
    return TG_OK;
}

static tg_status read_header(reader *r) {
    tg_status status = TG_OK;
    const tg_source *source = r->source;
    unsigned char raw[TG_ST_LENGTH_BYTES];
    char *text = NULL;
    const char *found = NULL;
    if (source->size < TG_ST_LENGTH_BYTES) {
        return tg_fail(source->ctx, TG_E_FORMAT,
                       "%s: a safetensors file has 8 bytes or more, this one has %llu",
                       source->label, (unsigned long long)source->size);
    }
    TG_TRY(tg_source_read(source, 0, raw, TG_ST_LENGTH_BYTES));
    uint64_t length = 0;
    for (int i = TG_ST_LENGTH_BYTES - 1; i >= 0; i--) {
        length = length << 8 | raw[i];
    }
    const uint64_t left = source->size - TG_ST_LENGTH_BYTES;
    const uint64_t limit = left < TG_ST_LARGEST_HEADER ? left : TG_ST_LARGEST_HEADER;
    if (length > limit && (found = tg_content_name(raw, sizeof raw))) {
        return tg_fail(source->ctx, TG_E_FORMAT, "%s: expected a safetensors file, found %s",
                       source->label, found);
    }
    if (length > limit) {
        return tg_fail(source->ctx, TG_E_FORMAT,
                       "%s: safetensors header length: expected at most %llu bytes, found %llu",
                       source->label, (unsigned long long)limit, (unsigned long long)length);
    }
    TG_TRY(TG_ALLOC(source->ctx, TG_MEM_OTHER, text, length + 1));
    TG_TRY(tg_source_read(source, TG_ST_LENGTH_BYTES, text, (size_t)length));
    TG_TRY(parse_json(r, text, (size_t)length));
    r->data_offset = TG_ST_LENGTH_BYTES + length;
fail:
    TG_FREE(source->ctx, text);
    return status;
}

static tg_status check_metadata(const reader *r, json_t *metadata) {
    char quoted[TG_QUOTE];
    if (!json_is_object(metadata)) {
        return tg_fail(r->source->ctx, TG_E_FORMAT, "%s: %s: expected an object of texts",
                       r->source->label, TG_ST_METADATA);
    }
    void *iter = json_object_iter(metadata);
    for (; iter; iter = json_object_iter_next(metadata, iter)) {
        if (!*json_object_iter_key(iter) || !json_is_string(json_object_iter_value(iter))) {
            return tg_fail(r->source->ctx, TG_E_FORMAT,
                           "%s: %s: '%s': expected a key with a text, found something else",
                           r->source->label, TG_ST_METADATA,
                           tg_quote(json_object_iter_key(iter), quoted));
        }
    }
    return TG_OK;
}

/* The set of names listed in the metadata under tgrad.complex, one per line. */
static tg_status list_pairs(reader *r, const char *list) {
    tg_status status = TG_OK;
    tg_context *ctx = r->source->ctx;
    char *copy = NULL;
    r->pairs = json_object();
    copy = tg_mem_strdup(ctx, list);
    if (!r->pairs || !copy) {
        status =
            tg_fail(ctx, TG_E_MEMORY, "%s: out of memory for %s", r->source->label, TG_ST_COMPLEX);
        goto fail;
    }
    for (char *name = copy; name;) {
        char *end = strchr(name, '\n');
        if (end) {
            *end = '\0';
        }
        if (!json_is_object(json_object_get(r->root, name)) || strcmp(name, TG_ST_METADATA) == 0) {
            char quoted[TG_QUOTE];
            status =
                tg_fail(ctx, TG_E_FORMAT, "%s: %s: %s: expected names of tensors, found '%s'",
                        r->source->label, TG_ST_METADATA, TG_ST_COMPLEX, tg_quote(name, quoted));
            goto fail;
        }
        if (json_object_set_new(r->pairs, name, json_true()) != 0) {
            status = tg_fail(ctx, TG_E_MEMORY, "%s: out of memory for %s", r->source->label,
                             TG_ST_COMPLEX);
            goto fail;
        }
        name = end ? end + 1 : NULL;
    }
fail:
    TG_FREE(ctx, copy);
    return status;
}

static tg_status parse_dtype(const reader *r, entry *e, const json_t *value) {
    char quoted[TG_QUOTE], found[TG_QUOTE];
    if (!json_is_string(value)) {
        return bad_field(r, e->name, "dtype", "a text", value);
    }
    for (int i = 0; i < TG_ST_TYPES; i++) {
        if (strcmp(json_string_value(value), tg_st_types[i].name) == 0) {
            e->dtype = tg_st_types[i].dtype;
            return TG_OK;
        }
    }
    return tg_fail(r->source->ctx, TG_E_UNSUPPORTED,
                   "%s: tensor '%s': dtype: '%s' is not supported", r->source->label,
                   tg_quote(e->name, quoted), tg_quote(json_string_value(value), found));
}

/* Shape; for a tensor stored as pairs, converts (.., 2) real to (..) complex. */
static tg_status parse_shape(const reader *r, entry *e, const json_t *value) {
    const bool is_pairs = r->pairs && json_object_get(r->pairs, e->name);
    int64_t dims[STORED_NDIM] = {0};
    const size_t ndim = json_array_size(value);
    const size_t limit = is_pairs ? STORED_NDIM : TG_MAX_NDIM;
    if (!json_is_array(value)) {
        return bad_field(r, e->name, "shape", "a list of sizes", value);
    }
    if (ndim > limit) {
        return bad_field(r, e->name, "shape", "at most 8 dimensions", value);
    }
    for (size_t d = 0; d < ndim; d++) {
        const json_t *size = json_array_get(value, d);
        if (!json_is_integer(size) || json_integer_value(size) < 0) {
            return bad_field(r, e->name, "shape", "sizes that are integers of 0 or more", size);
        }
        dims[d] = json_integer_value(size);
    }
    if (!is_pairs) {
        e->shape = tg_shape_of((int)ndim, dims);
        return TG_OK;
    }
    if (tg_dtype_complex(e->dtype) == e->dtype || ndim == 0 || dims[ndim - 1] != 2) {
        return bad_field(r, e->name, "shape",
                         "floating-point pairs (last size 2), as tgrad.complex names it", value);
    }
    e->dtype = tg_dtype_complex(e->dtype);
    e->shape = tg_shape_of((int)ndim - 1, dims);
    return TG_OK;
}

static tg_status parse_offsets(const reader *r, entry *e, const json_t *value) {
    char quoted[TG_QUOTE], shape[128];
    const json_t *begin = json_array_get(value, 0), *end = json_array_get(value, 1);
    const uint64_t data_size = r->source->size - r->data_offset;
    if (!json_is_array(value) || json_array_size(value) != 2 || !json_is_integer(begin) ||
        !json_is_integer(end)) {
        return bad_field(r, e->name, "data_offsets", "two integers", value);
    }
    if (json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin) ||
        (uint64_t)json_integer_value(end) > data_size) {
        char expected[96];
        snprintf(expected, sizeof expected, "0 <= begin <= end <= %llu (the bytes of data)",
                 (unsigned long long)data_size);
        return bad_field(r, e->name, "data_offsets", expected, value);
    }
    e->begin = (uint64_t)json_integer_value(begin);
    e->end = (uint64_t)json_integer_value(end);
    const int64_t numel = tg_shape_numel(&e->shape);
    const int64_t element = (int64_t)tg_dtype_size(e->dtype);
    if (numel < 0 || numel > INT64_MAX / element ||
        (uint64_t)(numel * element) != e->end - e->begin) {
        return tg_fail(r->source->ctx, TG_E_FORMAT,
                       "%s: tensor '%s': data_offsets: expected the bytes of %s of %s, found %llu",
                       r->source->label, tg_quote(e->name, quoted),
                       tg_shape_text(&e->shape, shape, sizeof shape), tg_dtype_name(e->dtype),
                       (unsigned long long)(e->end - e->begin));
    }
    return TG_OK;
}

static tg_status parse_entry(const reader *r, entry *e, const json_t *value) {
    if (!json_is_object(value) || json_object_size(value) != 3) {
        return bad_field(r, e->name, "entry", "an object of dtype, shape and data_offsets", value);
    }
    TG_CALL(parse_dtype(r, e, json_object_get(value, "dtype")));
    TG_CALL(parse_shape(r, e, json_object_get(value, "shape")));
    return parse_offsets(r, e, json_object_get(value, "data_offsets"));
}

static tg_status parse_entries(reader *r) {
    TG_CALL(TG_NEW(r->source->ctx, TG_MEM_OTHER, r->entries, json_object_size(r->root)));
    void *iter = json_object_iter(r->root);
    for (; iter; iter = json_object_iter_next(r->root, iter)) {
        if (strcmp(json_object_iter_key(iter), TG_ST_METADATA) == 0) {
            continue;
        }
        entry *e = &r->entries[r->count];
        *e = (entry){.name = json_object_iter_key(iter), .index = r->count};
        if (!*e->name) {
            return bad_field(r, e->name, "name", "one character or more", NULL);
        }
        TG_CALL(parse_entry(r, e, json_object_iter_value(iter)));
        r->count++;
    }
    return TG_OK;
}

/* ---- reading: the data ---- */

static int by_offset(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) {
        return x->begin < y->begin ? -1 : 1;
    }
    return x->end < y->end ? -1 : x->end > y->end;
}

static int by_index(const void *a, const void *b) {
    const entry *x = a, *y = b;
    return x->index < y->index ? -1 : x->index > y->index;
}

/* The tensors must cover the data exactly. */
static tg_status check_cover(reader *r) {
    char quoted[TG_QUOTE];
    const uint64_t data_size = r->source->size - r->data_offset;
    uint64_t at = 0;
    qsort(r->entries, (size_t)r->count, sizeof *r->entries, by_offset);
    for (int64_t i = 0; i < r->count; i++) {
        if (r->entries[i].begin != at) {
            return tg_fail(r->source->ctx, TG_E_FORMAT,
                           "%s: tensor '%s': data_offsets: expected to begin at %llu, found %llu "
                           "(%s)",
                           r->source->label, tg_quote(r->entries[i].name, quoted),
                           (unsigned long long)at, (unsigned long long)r->entries[i].begin,
                           r->entries[i].begin < at ? "tensors overlap" : "a hole in the data");
        }
        at = r->entries[i].end;
    }
    if (at != data_size) {
        return tg_fail(r->source->ctx, TG_E_FORMAT,
                       "%s: safetensors data: expected %llu bytes, found %llu", r->source->label,
                       (unsigned long long)at, (unsigned long long)data_size);
    }
    qsort(r->entries, (size_t)r->count, sizeof *r->entries, by_index);
    return TG_OK;
}

static tg_status read_tensor(const reader *r, const entry *e, tg_archive *archive) {
    tg_status status = TG_OK;
    tg_context *ctx = r->source->ctx;
    tg_tensor tensor = {0};
    char quoted[TG_QUOTE];
    TG_TRY(tg_tensor_create(ctx, TG_MEM_DATA, e->dtype, &e->shape, &tensor));
    TG_TRY(tg_source_read(r->source, r->data_offset + e->begin, tensor.data,
                          (size_t)(e->end - e->begin)));
    TG_TRY(tg_check_bools(ctx, r->source->label, tg_quote(e->name, quoted), &tensor));
    TG_TRY(tg_archive_take(archive, e->name, &tensor));
    return TG_OK;
fail:
    tg_tensor_destroy(&tensor);
    return status;
}

/* Removes tgrad.complex from the metadata: its tensors are complex now. */
static tg_status take_metadata(json_t *metadata, tg_archive *archive) {
    void *iter = json_object_iter(metadata);
    for (; iter; iter = json_object_iter_next(metadata, iter)) {
        if (strcmp(json_object_iter_key(iter), TG_ST_COMPLEX) != 0) {
            TG_CALL(tg_archive_set_meta(archive, json_object_iter_key(iter),
                                        json_string_value(json_object_iter_value(iter))));
        }
    }
    return TG_OK;
}

static void close_reader(reader *r) {
    TG_FREE(r->source->ctx, r->entries);
    json_decref(r->pairs);
    json_decref(r->root);
}

/* Reads everything but the data. Call close_reader afterwards, even on failure. */
static tg_status open_reader(reader *r) {
    TG_CALL(read_header(r));
    json_t *metadata = json_object_get(r->root, TG_ST_METADATA);
    if (metadata) {
        TG_CALL(check_metadata(r, metadata));
        const char *list = json_string_value(json_object_get(metadata, TG_ST_COMPLEX));
        TG_CALL(list ? list_pairs(r, list) : TG_OK);
    }
    TG_CALL(parse_entries(r));
    return check_cover(r);
}

static tg_status read_safetensors(const tg_source *source, tg_archive **out) {
    tg_status status = TG_OK;
    reader r = {.source = source};
    tg_archive *archive = NULL;
    *out = NULL;
    TG_TRY(open_reader(&r));
    TG_TRY(tg_archive_create(source->ctx, &archive));
    for (int64_t i = 0; i < r.count; i++) {
        TG_TRY(read_tensor(&r, &r.entries[i], archive));
    }
    TG_TRY(take_metadata(json_object_get(r.root, TG_ST_METADATA), archive));
    *out = archive;
    archive = NULL;
fail:
    tg_archive_destroy(&archive);
    close_reader(&r);
    return status;
}

tg_status tg_safetensors_locate(const tg_source *source, const char *name, tg_raw_array *out) {
    char quoted[TG_QUOTE], there[400] = "are ";
    reader r = {.source = source};
    tg_status status = open_reader(&r);
    const entry *found = NULL;
    for (int64_t i = 0; status == TG_OK && i < r.count; i++) {
        found = strcmp(r.entries[i].name, name) == 0 ? &r.entries[i] : found;
        tg_names_append(there, sizeof there, i, r.count, r.entries[i].name);
    }
    if (found) {
        *out = (tg_raw_array){
            .dtype = found->dtype, .shape = found->shape, .offset = r.data_offset + found->begin};
    } else if (status == TG_OK) {
        status = tg_fail(source->ctx, TG_E_ARGUMENT, "%s: there is no tensor '%s'; there %s",
                         source->label, tg_quote(name, quoted), r.count == 0 ? "is none" : there);
    }
    close_reader(&r);
    return status;
}

tg_status tg_safetensors_read(tg_context *ctx, const char *path, tg_archive **out) {
    TG_NEED_OUT(ctx, out, ctx, path);
    tg_source source = {.fd = -1};
    TG_CALL(tg_source_open(ctx, path, &source));
    const tg_status status = read_safetensors(&source, out);
    tg_source_close(&source);
    return status;
}

tg_status tg_safetensors_parse(tg_context *ctx, const char *label, const void *bytes, size_t size,
                               tg_archive **out) {
    *out = NULL;
    tg_source source = tg_source_of_memory(ctx, label, bytes, size);
    return read_safetensors(&source, out);
}
