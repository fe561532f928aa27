/* npz and torch files: zip files that hold arrays.
 *
 *   npz    a member NAME.npy for each array, an npy file
 *   torch  PREFIX/data.pkl, a pickle with names, shapes and strides (pickle.c), and the elements
 *          of storage K in PREFIX/data/K; PREFIX/byteorder says "little" or "big"
 *
 * Uncompressed arrays in C order can be read from the file in pieces; others are read whole. */
#include "io/formats.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"

enum {
    NPY_START = 1 << 16,        /* bytes of a compressed npy file that include its header */
    MAX_PICKLE_BYTES = 4 << 20, /* bytes: tens of thousands of tensors */
    MAX_DEPTH = 32,             /* nested dicts and lists */
    MAX_VISITS = 1 << 17,       /* values visited in a pickle */
    MAX_NAME = 512,
    MAX_COPIES = 16, /* views of one storage may multiply a file's size by this */
};

static const char pickle_name[] = "/data.pkl";

static bool ends_with(const char *text, const char *ending) {
    const size_t length = strlen(text), tail = strlen(ending);
    return length > tail && strcmp(text + length - tail, ending) == 0;
}

/* The index of the pickle among the members; -1 if it is not a torch file. */
static int64_t find_pickle(const tg_zip *zip) {
    for (int64_t i = 0; i < zip->members.count; i++) {
        if (ends_with(zip->members.items[i], pickle_name)) {
            return i;
        }
    }
    return -1;
}

tg_status tg_zip_format(const tg_zip *zip, tg_file_format *out) {
    char there[400] = "";
    bool is_npz = zip->members.count > 0;
    for (int64_t i = 0; i < zip->members.count; i++) {
        is_npz = is_npz && ends_with(zip->members.items[i], ".npy");
        tg_names_append(there, sizeof there, i, zip->members.count, zip->members.items[i]);
    }
    *out = find_pickle(zip) >= 0 ? TG_FILE_TORCH : is_npz ? TG_FILE_NPZ : TG_FILE_FORMATS;
    return *out != TG_FILE_FORMATS
               ? TG_OK
               : tg_fail_file(zip->source, TG_E_FORMAT,
                              "expected a zip file of numpy.savez (members NAME.npy) or torch.save "
                              "(PREFIX/data.pkl), found one with %s",
                              zip->members.count ? there : "no members");
}

/* ---- npz ---- */

/* Header and position of the array in a member. */
static tg_status locate_npy(const tg_raw_file *file, int64_t member, tg_raw_array *out) {
    tg_status status = TG_OK;
    const tg_zip_member *m = tg_zip_member_at(&file->zip, member);
    const size_t size = m->size < NPY_START ? (size_t)m->size : NPY_START;
    tg_source source = {.fd = -1};
    char *start = NULL;
    if (m->is_deflated) {
        TG_TRY(TG_ALLOC(file->ctx, TG_MEM_OTHER, start, size));
        TG_TRY(tg_zip_read(&file->zip, member, start, size));
        source = tg_source_of_memory(file->ctx, file->source->label, start, size);
    } else {
        TG_TRY(tg_zip_source(&file->zip, member, &source));
    }
    TG_TRY(tg_npy_locate(&source, m->size, out));
    out->is_packed = m->is_deflated;
    out->member = member;
    out->offset += m->is_deflated ? 0 : source.base - file->source->base;
fail:
    TG_FREE(file->ctx, start);
    return status;
}

/* Arrays of texts, objects and structures are skipped, as in HDF5 files; a file with nothing else
 * is rejected. */
tg_status tg_npz_list(tg_raw_file *file) {
    tg_status left_out = TG_OK;
    for (int64_t i = 0; i < file->zip.members.count; i++) {
        tg_raw_array array;
        char name[MAX_NAME];
        snprintf(name, sizeof name, "%s", file->zip.members.items[i]);
        name[strlen(name) - (ends_with(name, ".npy") ? 4 : 0)] = '\0';
        const tg_status status = locate_npy(file, i, &array);
        if (status == TG_E_UNSUPPORTED) {
            left_out = status;
            continue;
        }
        TG_CALL(status);
        TG_CALL(tg_names_add(&file->arrays, "tensor", name, &array));
    }
    return file->arrays.count > 0 ? TG_OK : left_out;
}

/* ---- torch ---- */

/* A walk over the values of a pickle, which may form cycles. */
typedef struct walk {
    tg_raw_file *file;
    const tg_pickle *pickle;
    char prefix[MAX_NAME]; /* of the members, from data.pkl */
    bool is_swapped;
    int64_t visits;
    uint64_t bytes; /* of all tensors */
} walk;

/* A tensor of the pickle, in the member of its storage. */
static tg_status take_tensor(walk *w, const tg_pickle_value *value, const char *name) {
    tg_raw_file *file = w->file;
    const tg_pickle_value *storage = &w->pickle->values[value->storage];
    const size_t element = tg_dtype_size(storage->dtype);
    const int64_t numel = tg_shape_numel(&value->shape);
    char member[2 * MAX_NAME];
    tg_source source = {.fd = -1};
    snprintf(member, sizeof member, "%s/data/%.200s", w->prefix, w->pickle->texts + storage->text);
    const int64_t index = tg_names_find(&file->zip.members, member);
    if (index < 0 ||
        (uint64_t)storage->integer > tg_zip_member_at(&file->zip, index)->size / element) {
        return tg_fail_file(file->source, TG_E_FORMAT, "tensor '%s': its storage '%s' is %s",
                            TG_QUOTED(name), member, index < 0 ? "missing" : "too short");
    }
    TG_CALL(tg_zip_source(&file->zip, index, &source));
    tg_raw_array array = {.dtype = storage->dtype,
                          .shape = value->shape,
                          .offset =
                              source.base - file->source->base + (uint64_t)value->offset * element,
                          .is_swapped = w->is_swapped && element > 1};
    int64_t expected = 1; /* stride of C order */
    for (int d = value->shape.ndim - 1; d >= 0 && numel > 0; d--) {
        array.stride[d] = value->stride[d];
        array.is_scattered |= value->shape.dim[d] > 1 && value->stride[d] != expected;
        expected *= value->shape.dim[d];
    }
    w->bytes += (uint64_t)numel * element;
    if (w->bytes / MAX_COPIES > file->source->size) {
        return tg_fail_file(file->source, TG_E_UNSUPPORTED,
                            "its tensors are %d times as large as the file", MAX_COPIES);
    }
    return tg_names_add(&file->arrays, "tensor", name, &array);
}

/* "outer/inner"; false if it does not fit. */
static bool join(char name[MAX_NAME], const char *outer, const char *inner) {
    const int length = snprintf(name, MAX_NAME, "%s%s%s", outer, outer[0] ? "/" : "", inner);
    return length > 0 && length < MAX_NAME;
}

static tg_status visit(walk *w, int64_t number, const char *name, int depth);

/* Visits the items of a list or tuple under their index, those of a dict under their key. */
static tg_status visit_items(walk *w, const tg_pickle_value *container, const char *name,
                             int depth) {
    const tg_pickle *p = w->pickle;
    const bool is_dict = container->kind == TG_PICKLE_DICT;
    int64_t index = 0;
    for (int64_t cell = container->first; cell >= 0; cell = p->cells[cell].next, index++) {
        char key[MAX_NAME], inner[MAX_NAME];
        const tg_pickle_value *k = &p->values[p->cells[cell].value];
        if (is_dict && k->kind == TG_PICKLE_TEXT) {
            snprintf(key, sizeof key, "%s", p->texts + k->text);
        } else if (!is_dict || k->kind == TG_PICKLE_INT) {
            snprintf(key, sizeof key, "%" PRId64, is_dict ? k->integer : index);
        } else {
            return tg_fail_file(w->file->source, TG_E_UNSUPPORTED,
                                "a dict whose keys are neither texts nor integers");
        }
        if (!join(inner, name, key)) {
            return tg_fail_file(w->file->source, TG_E_FORMAT, "a key is empty or too long");
        }
        cell = is_dict ? p->cells[cell].next : cell;
        TG_CALL(visit(w, p->cells[cell].value, inner, depth + 1));
    }
    return TG_OK;
}

static tg_status visit(walk *w, int64_t number, const char *name, int depth) {
    const tg_pickle_value *value = &w->pickle->values[number];
    tg_archive *meta = w->file->meta;
    const char *key = name[0] ? name : "data";
    char text[64];
    if (depth > MAX_DEPTH || w->visits++ > MAX_VISITS) {
        return tg_fail_file(w->file->source, TG_E_FORMAT, "%s",
                            depth > MAX_DEPTH ? "lists and dicts are nested deeper than 32"
                                              : "it holds too many values");
    }
    switch (value->kind) {
    case TG_PICKLE_TENSOR:
        return take_tensor(w, value, key);
    case TG_PICKLE_TUPLE:
    case TG_PICKLE_LIST:
    case TG_PICKLE_DICT:
        return visit_items(w, value, name, depth);
    case TG_PICKLE_TEXT:
        return tg_archive_set_meta(meta, key, w->pickle->texts + value->text);
    case TG_PICKLE_BOOL:
        return tg_archive_set_meta(meta, key, value->integer ? "true" : "false");
    case TG_PICKLE_INT:
        snprintf(text, sizeof text, "%" PRId64, value->integer);
        return tg_archive_set_meta(meta, key, text);
    case TG_PICKLE_REAL:
        snprintf(text, sizeof text, "%.17g", value->real);
        return tg_archive_set_meta(meta, key, text);
    default: /* None, and types only mentioned */
        return TG_OK;
    }
}

/* Whether the numbers are big-endian; files from before 2022 do not say and are little-endian. */
static tg_status read_byte_order(const tg_raw_file *file, walk *w) {
    char member[2 * MAX_NAME], order[8] = "";
    snprintf(member, sizeof member, "%s/byteorder", w->prefix);
    const int64_t index = tg_names_find(&file->zip.members, member);
    const tg_zip_member *m = tg_zip_member_at(&file->zip, index);
    if (!m || m->size >= sizeof order) {
        return TG_OK;
    }
    const tg_status status = tg_zip_read(&file->zip, index, order, (size_t)m->size);
    w->is_swapped = strcmp(order, "big") == 0;
    return status;
}

tg_status tg_torch_list(tg_raw_file *file) {
    tg_status status = TG_OK;
    char *bytes = NULL;
    tg_pickle pickle = {0};
    const int64_t index = find_pickle(&file->zip);
    const tg_zip_member *m = tg_zip_member_at(&file->zip, index);
    walk w = {.file = file, .pickle = &pickle};
    const char *name = tg_names_item(&file->zip.members, index);
    if (m->size > MAX_PICKLE_BYTES || strlen(name) >= MAX_NAME) {
        return tg_fail_file(file->source, TG_E_UNSUPPORTED,
                            "expected a data.pkl of at most %d bytes, found %llu", MAX_PICKLE_BYTES,
                            (unsigned long long)m->size);
    }
    snprintf(w.prefix, sizeof w.prefix, "%.*s", (int)(strlen(name) - strlen(pickle_name)), name);
    TG_TRY(read_byte_order(file, &w));
    TG_TRY(TG_ALLOC(file->ctx, TG_MEM_OTHER, bytes, m->size));
    TG_TRY(tg_zip_read(&file->zip, index, bytes, (size_t)m->size));
    TG_TRY(tg_pickle_parse(file->source, bytes, (size_t)m->size, &pickle));
    TG_TRY(visit(&w, pickle.root, "", 0));
fail:
    tg_pickle_free(&pickle);
    TG_FREE(file->ctx, bytes);
    return status;
}
