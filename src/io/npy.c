/* npy: one array. The layout of a file is
 *
 *   "\x93NUMPY", major, minor (1 byte each), header length (2 bytes in version 1, else 4), header,
 *   data in C or Fortran order to the end of the file;
 *
 * the header is a Python dict of three entries: {'descr': '<f4', 'fortran_order': False,
 * 'shape': (3, 4), } padded with spaces. The parser below accepts that dict and nothing else of
 * Python. Reading swaps the other byte order and converts Fortran order to C order; files are
 * written as version 1, C order, little-endian. */
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/formats.h"

static const unsigned char magic[6] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

enum {
    MAX_HEADER_BYTES = 1 << 20, /* bytes; real ones have some hundred */
    MAX_WORD = 64,              /* characters of a string in the header */
};

typedef struct npy_type {
    const char *code; /* kind and bytes, as in descr after the byte order */
    tg_dtype dtype;
} npy_type;

static const npy_type types[] = {
    {"f4", TG_F32},  {"f8", TG_F64}, {"f2", TG_F16}, {"c8", TG_C64}, {"c16", TG_C128},
    {"b1", TG_BOOL}, {"i1", TG_I8},  {"i2", TG_I16}, {"i4", TG_I32}, {"i8", TG_I64},
    {"u1", TG_U8},   {"u2", TG_U16}, {"u4", TG_U32}, {"u8", TG_U64},
};

enum { TYPES = sizeof types / sizeof types[0] };

typedef struct npy_header {
    bool has_descr, has_order, has_shape, is_fortran;
    tg_raw_array array;
} npy_header;

/* ---- parsing the header ---- */

typedef struct parser {
    const tg_source *source;
    const char *at, *end; /* the rest of the header */
} parser;

static void skip_space(parser *p) {
    while (p->at < p->end && (*p->at == ' ' || *p->at == '\t' || *p->at == '\n')) {
        p->at++;
    }
}

/* Consumes the character if it comes next. */
static bool take(parser *p, char c) {
    skip_space(p);
    if (p->at < p->end && *p->at == c) {
        p->at++;
        return true;
    }
    return false;
}

static tg_status unexpected(parser *p, const char *field, const char *expected) {
    char rest[TG_QUOTE];
    skip_space(p);
    const size_t left = (size_t)(p->end - p->at);
    const size_t shown = left < 24 ? left : 24;
    memcpy(rest, p->at, shown);
    rest[shown] = '\0';
    return tg_fail_file(p->source, TG_E_FORMAT, "npy header: %s: expected %s, found '%s'", field,
                        expected, TG_QUOTED(rest));
}

/* A Python string without escapes. */
static tg_status parse_string(parser *p, const char *field, char word[MAX_WORD]) {
    skip_space(p);
    const char quote = p->at < p->end ? *p->at : '\0';
    if (quote != '\'' && quote != '"') {
        return unexpected(p, field, "a string");
    }
    const char *first = p->at + 1;
    const char *last = memchr(first, quote, (size_t)(p->end - first));
    if (!last || last - first >= MAX_WORD || memchr(first, '\\', (size_t)(last - first)) ||
        memchr(first, '\0', (size_t)(last - first))) {
        return unexpected(p, field, "a short string");
    }
    memcpy(word, first, (size_t)(last - first));
    word[last - first] = '\0';
    p->at = last + 1;
    return TG_OK;
}

static tg_status parse_descr(parser *p, npy_header *header) {
    char word[MAX_WORD];
    skip_space(p);
    if (p->at < p->end && *p->at == '[') {
        return tg_fail_file(p->source, TG_E_UNSUPPORTED,
                            "npy header: descr: structured dtypes are not supported");
    }
    TG_CALL(parse_string(p, "descr", word));
    const bool has_order = word[0] != '\0' && strchr("<>|=", word[0]) != NULL;
    const char *code = word + (has_order ? 1 : 0);
    for (int i = 0; i < TYPES; i++) {
        if (strcmp(code, types[i].code) != 0) {
            continue;
        }
        header->array.dtype = types[i].dtype;
        header->array.is_swapped = word[0] == '>';
        if (word[0] == '|' && tg_dtype_size(header->array.dtype) > 1) {
            return tg_fail_file(p->source, TG_E_FORMAT,
                                "npy header: descr: expected a byte order ('<' or '>'), found '%s'",
                                word);
        }
        return TG_OK;
    }
    if (code[0] == 'O') {
        return tg_fail_file(p->source, TG_E_UNSUPPORTED,
                            "npy header: descr: arrays of Python objects are not supported");
    }
    return tg_fail_file(p->source, TG_E_UNSUPPORTED,
                        "npy header: descr: expected a bool, integer, float or complex type of "
                        "1 to 16 bytes, found '%s'",
                        TG_QUOTED(word));
}

static tg_status parse_order(parser *p, npy_header *header) {
    skip_space(p);
    const size_t left = (size_t)(p->end - p->at);
    if (left >= 4 && memcmp(p->at, "True", 4) == 0) {
        header->is_fortran = true;
        p->at += 4;
    } else if (left >= 5 && memcmp(p->at, "False", 5) == 0) {
        header->is_fortran = false;
        p->at += 5;
    } else {
        return unexpected(p, "fortran_order", "True or False");
    }
    return TG_OK;
}

static tg_status parse_size(parser *p, int64_t *size) {
    skip_space(p);
    const char *first = p->at;
    *size = 0;
    while (p->at < p->end && *p->at >= '0' && *p->at <= '9') {
        if (__builtin_mul_overflow(*size, 10, size) ||
            __builtin_add_overflow(*size, *p->at - '0', size)) {
            p->at = first;
            return unexpected(p, "shape", "sizes below 2^63");
        }
        p->at++;
    }
    if (p->at == first) {
        return unexpected(p, "shape", "a size of 0 or more");
    }
    if (p->at < p->end && *p->at == 'L') { /* long integers of Python 2 */
        p->at++;
    }
    return TG_OK;
}

static tg_status parse_shape(parser *p, npy_header *header) {
    tg_shape *shape = &header->array.shape;
    *shape = (tg_shape){0};
    if (!take(p, '(')) {
        return unexpected(p, "shape", "a tuple");
    }
    bool has_comma = true;
    while (!take(p, ')')) {
        if (!has_comma) {
            return unexpected(p, "shape", "',' or ')'");
        }
        if (shape->ndim == TG_MAX_NDIM) {
            return tg_fail_file(p->source, TG_E_UNSUPPORTED,
                                "npy header: shape: expected at most %d dimensions, found more",
                                TG_MAX_NDIM);
        }
        TG_CALL(parse_size(p, &shape->dim[shape->ndim]));
        shape->ndim++;
        has_comma = take(p, ',');
    }
    if (shape->ndim == 1 && !has_comma) { /* "(3)" is a number in Python, not a tuple */
        return tg_fail_file(p->source, TG_E_FORMAT,
                            "npy header: shape: expected a tuple, found (%lld)",
                            (long long)shape->dim[0]);
    }
    return TG_OK;
}

/* One "key: value" of the dict. */
static tg_status parse_entry(parser *p, npy_header *header) {
    char key[MAX_WORD];
    TG_CALL(parse_string(p, "key", key));
    const struct {
        const char *key;
        bool *seen;
        tg_status (*parse)(parser *p, npy_header *header);
    } fields[] = {{"descr", &header->has_descr, parse_descr},
                  {"fortran_order", &header->has_order, parse_order},
                  {"shape", &header->has_shape, parse_shape}};
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        if (strcmp(key, fields[i].key) != 0) {
            continue;
        }
        if (*fields[i].seen) {
            return tg_fail_file(p->source, TG_E_FORMAT, "npy header: %s appears twice", key);
        }
        *fields[i].seen = true;
        return take(p, ':') ? fields[i].parse(p, header) : unexpected(p, key, "':'");
    }
    return tg_fail_file(p->source, TG_E_FORMAT,
                        "npy header: expected the keys descr, fortran_order and shape, found '%s'",
                        TG_QUOTED(key));
}

static tg_status parse_header(parser *p, npy_header *header) {
    *header = (npy_header){0};
    if (!take(p, '{')) {
        return unexpected(p, "dict", "'{'");
    }
    bool has_comma = true;
    while (!take(p, '}')) {
        if (!has_comma) {
            return unexpected(p, "dict", "',' or '}'");
        }
        TG_CALL(parse_entry(p, header));
        has_comma = take(p, ',');
    }
    skip_space(p);
    if (p->at != p->end) {
        return unexpected(p, "dict", "nothing after '}'");
    }
    const char *missing = !header->has_descr   ? "descr"
                          : !header->has_order ? "fortran_order"
                          : !header->has_shape ? "shape"
                                               : NULL;
    return missing ? tg_fail_file(p->source, TG_E_FORMAT, "npy header: %s is missing", missing)
                   : TG_OK;
}

/* ---- reading ---- */

static tg_status read_header(const tg_source *source, tg_raw_array *array) {
    tg_status status = TG_OK;
    tg_context *ctx = source->ctx;
    unsigned char start[12];
    char *text = NULL;
    if (source->size < 10) {
        return tg_fail_file(source, TG_E_FORMAT,
                            "an npy file has 10 bytes or more, this one has %llu",
                            (unsigned long long)source->size);
    }
    TG_TRY(tg_source_read(source, 0, start, 10));
    if (memcmp(start, magic, sizeof magic) != 0) {
        return tg_fail_file(source, TG_E_FORMAT,
                            "not an npy file: it does not begin with \\x93NUMPY");
    }
    if (start[6] < 1 || start[6] > 3 || start[7] != 0) {
        return tg_fail_file(source, TG_E_UNSUPPORTED,
                            "npy version: expected 1.0, 2.0 or 3.0, found %d.%d", start[6],
                            start[7]);
    }
    const size_t prefix = start[6] == 1 ? 10 : 12;
    TG_TRY(tg_source_read(source, 0, start, prefix));
    const uint32_t length = (uint32_t)tg_get_number(start + 8, (int)prefix - 8);
    const uint64_t limit = source->size - prefix;
    if (length > limit || length > MAX_HEADER_BYTES) {
        return tg_fail_file(
            source, TG_E_FORMAT, "npy header length: expected at most %llu bytes, found %u",
            (unsigned long long)(limit < MAX_HEADER_BYTES ? limit : MAX_HEADER_BYTES),
            (unsigned)length);
    }
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, text, (size_t)length + 1));
    TG_TRY(tg_source_read(source, prefix, text, length));
    parser p = {.source = source, .at = text, .end = text + length};
    npy_header header = {0};
    TG_TRY(parse_header(&p, &header));
    *array = header.array;
    array->offset = prefix + length;
    array->is_scattered = header.is_fortran;
fail:
    TG_FREE(ctx, text);
    return status;
}

static tg_status check_size(const tg_source *source, uint64_t size, const tg_raw_array *array) {
    char text[128];
    const int64_t numel = tg_shape_numel(&array->shape);
    const int64_t element = (int64_t)tg_dtype_size(array->dtype);
    const uint64_t found = size - array->offset;
    tg_shape_text(&array->shape, text, sizeof text);
    if (numel < 0 || numel > INT64_MAX / element) {
        return tg_fail_file(source, TG_E_FORMAT, "npy header: shape: %s of %s overflows", text,
                            tg_dtype_name(array->dtype));
    }
    if ((uint64_t)(numel * element) != found) {
        return tg_fail_file(source, TG_E_FORMAT,
                            "npy data: expected %lld bytes for %s of %s, found %llu",
                            (long long)(numel * element), text, tg_dtype_name(array->dtype),
                            (unsigned long long)found);
    }
    return TG_OK;
}

tg_status tg_npy_locate(const tg_source *start, uint64_t size, tg_raw_array *out) {
    const tg_shape *shape = &out->shape;
    TG_CALL(read_header(start, out));
    TG_CALL(check_size(start, size, out));
    out->is_scattered = out->is_scattered && shape->ndim > 1 && tg_shape_numel(shape) > 0;
    out->stride[0] = 1;
    for (int d = 1; d < shape->ndim && out->is_scattered; d++) { /* the first dimension fastest */
        out->stride[d] = out->stride[d - 1] * shape->dim[d - 1];
    }
    return TG_OK;
}

tg_status tg_npy_list(tg_raw_file *file) {
    tg_raw_array array;
    TG_CALL(tg_npy_locate(file->source, file->source->size, &array));
    return tg_names_add(&file->arrays, "tensor", "data", &array);
}

tg_status tg_npy_read(tg_context *ctx, const char *path, tg_tensor *out) {
    TG_NEED(ctx, out);
    *out = (tg_tensor){0};
    TG_NEED(ctx, ctx, path);
    tg_status status = TG_OK;
    tg_source source = {.fd = -1};
    tg_raw_file file = {0};
    TG_TRY(tg_source_open(ctx, path, &source));
    TG_TRY(tg_raw_open(&source, TG_FILE_NPY, &file));
    TG_TRY(tg_raw_read_whole(&file, tg_names_record(&file.arrays, 0), out));
fail:
    tg_raw_close(&file);
    tg_source_close(&source);
    return status;
}

/* ---- writing ---- */

/* Everything before the data: a multiple of 64 bytes. Returns its length. */
static size_t format_header(const tg_tensor *tensor, const char *code, char text[512]) {
    char shape[256] = "";
    size_t used = 0;
    for (int d = 0; d < tensor->shape.ndim; d++) {
        used += (size_t)snprintf(shape + used, sizeof shape - used, "%s%lld", d ? ", " : "",
                                 (long long)tensor->shape.dim[d]);
    }
    memcpy(text, magic, sizeof magic);
    int length =
        snprintf(text + 10, 500, "{'descr': '%c%s', 'fortran_order': False, 'shape': (%s%s), }",
                 tg_dtype_size(tensor->dtype) == 1 ? '|' : '<', code, shape,
                 tensor->shape.ndim == 1 ? "," : "");
    const size_t total = ((size_t)length + 11 + 63) / 64 * 64;
    memset(text + 10 + length, ' ', total - 11 - (size_t)length);
    text[total - 1] = '\n';
    text[6] = 1;
    text[7] = 0;
    text[8] = (char)((total - 10) & 0xff);
    text[9] = (char)((total - 10) >> 8);
    return total;
}

tg_status tg_npy_write(tg_context *ctx, const char *path, const tg_tensor *tensor) {
    TG_NEED(ctx, ctx, path, tensor);
    char text[512];
    const char *code = NULL;
    for (int i = 0; i < TYPES; i++) {
        code = types[i].dtype == tensor->dtype ? types[i].code : code;
    }
    if (!code) {
        return tg_fail(ctx, TG_E_DTYPE,
                       "%s: npy has no dtype %s; convert it first or write safetensors", path,
                       tg_dtype_name(tensor->dtype));
    }
    const int64_t numel = tg_tensor_numel(tensor);
    if (tensor->place != TG_HOST || numel < 0 || (numel > 0 && !tensor->data)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%s: the tensor is not in host memory", path);
    }
    const tg_piece pieces[] = {{text, format_header(tensor, code, text)},
                               {tensor->data, tg_tensor_bytes(tensor)}};
    return tg_atomic_write_file(ctx, path, pieces, 2);
}
