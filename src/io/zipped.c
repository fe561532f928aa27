/* npz and torch files: zip files that hold arrays.
 *
 *   npz    a member NAME.npy for each array, an npy file
 *   torch  PREFIX/data.pkl, a pickle with names, shapes and strides (pickle.c), and the elements
 *          of storage K in PREFIX/data/K; PREFIX/byteorder says "little" or "big"
 *
 * Uncompressed arrays in C order can be read from the file in pieces; others are read whole. */
#include "io/zip.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "io/formats.h"

enum {
    NPY_START = 1 << 16,      /* bytes of a compressed npy file that include its header */
    LARGEST_PICKLE = 4 << 20, /* bytes: tens of thousands of tensors */
    MAX_DEPTH = 32,           /* nested dicts and lists */
    MAX_VISITS = 1 << 17,     /* values visited in a pickle */
    LARGEST_NAME = 512,
    LARGEST_COPIES = 16, /* views of one storage may multiply a file's size by this */
};

static const char pickle_name[] = "/data.pkl";

static bool ends_with(const char *text, const char *ending) {
    const size_t length = strlen(text), tail = strlen(ending);
    return length > tail && strcmp(text + length - tail, ending) == 0;
}

void tg_zipped_close(tg_zipped *file) {
    if (file->ctx) {
        tg_zip_close(&file->zip);
        tg_names_clear(&file->names);
        TG_FREE(file->ctx, file->tensors);
        tg_archive_destroy(&file->meta);
    }
}

/* The index of the pickle among the members; -1 if it is not a torch file. */
static int64_t find_pickle(const tg_zip *zip) {
    for (int64_t i = 0; i < zip->names.count; i++) {
        if (ends_with(zip->names.items[i], pickle_name)) {
            return i;
        }
    }
    return -1;
}

static tg_status format_of(const tg_zip *zip, tg_file_format *out) {
    char there[400] = "";
    bool is_npz = zip->names.count > 0;
    for (int64_t i = 0; i < zip->names.count; i++) {
        is_npz = is_npz && ends_with(zip->names.items[i], ".npy");
        tg_names_append(there, sizeof there, i, zip->names.count, zip->names.items[i]);
    }
    *out = find_pickle(zip) >= 0 ? TG_FILE_TORCH : is_npz ? TG_FILE_NPZ : TG_FILE_FORMATS;
    return *out != TG_FILE_FORMATS
               ? TG_OK
               : tg_fail(zip->ctx, TG_E_FORMAT,
                         "%s: expected a zip file of numpy.savez (members NAME.npy) or torch.save "
                         "(PREFIX/data.pkl), found one with %s",
                         zip->source->label, zip->names.count ? there : "no members");
}

tg_status tg_zipped_detect(const tg_source *source, tg_file_format *out) {
    tg_zip zip;
    tg_status status = tg_zip_open(source, &zip);
    status = status == TG_OK ? format_of(&zip, out) : status;
    tg_zip_close(&zip);
    return status;
}

static tg_status add_tensor(tg_zipped *file, const char *name, const tg_zipped_tensor *tensor) {
    TG_CALL(tg_mem_grow(file->ctx, &file->tensors, sizeof *tensor, file->names.count, 1,
                        &file->capacity));
    TG_CALL(tg_names_add(&file->names, "tensor", name));
    file->tensors[file->names.count - 1] = *tensor;
    return TG_OK;
}

/* ---- npz ---- */

/* Header and position of the array in a member. */
static tg_status locate_npy(const tg_zipped *file, int64_t member, tg_zipped_tensor *out) {
    tg_status status = TG_OK;
    const tg_zip_member *m = &file->zip.members[member];
    const size_t size = m->size < NPY_START ? (size_t)m->size : NPY_START;
    tg_source source = {.fd = -1};
    char *start = NULL;
    *out = (tg_zipped_tensor){.member = member};
    if (m->is_deflated) {
        TG_TRY(TG_ALLOC(file->ctx, TG_MEM_OTHER, start, size));
        TG_TRY(tg_zip_read(&file->zip, member, start, size));
        source = tg_source_of_memory(file->ctx, file->source->label, start, size);
    } else {
        TG_TRY(tg_zip_source(&file->zip, member, &source));
    }
    TG_TRY(tg_npy_locate_in(&source, m->size, &out->raw));
    out->is_in_place = !m->is_deflated && (!out->raw.is_fortran || out->raw.shape.ndim < 2);
    out->raw.offset += m->is_deflated ? 0 : source.base - file->source->base;
fail:
    TG_FREE(file->ctx, start);
    return status;
}

/* Arrays of texts, objects and structures are skipped, as in HDF5 files; a file with nothing else
 * is rejected. */
static tg_status list_npz(tg_zipped *file) {
    tg_status left_out = TG_OK;
    for (int64_t i = 0; i < file->zip.names.count; i++) {
        tg_zipped_tensor tensor;
        char name[LARGEST_NAME];
        snprintf(name, sizeof name, "%s", file->zip.names.items[i]);
        name[strlen(name) - (ends_with(name, ".npy") ? 4 : 0)] = '\0';
        const tg_status status = locate_npy(file, i, &tensor);
        if (status == TG_E_UNSUPPORTED) {
            left_out = status;
            continue;
        }
        TG_CALL(status);
        TG_CALL(add_tensor(file, name, &tensor));
    }
    return file->names.count > 0 ? TG_OK : left_out;
}

static tg_status read_npy(const tg_zipped *file, const tg_zipped_tensor *tensor, tg_tensor *out) {
    tg_status status = TG_OK;
    const tg_zip_member *m = &file->zip.members[tensor->member];
    tg_source source = {.fd = -1};
    char *bytes = NULL;
    if (m->is_deflated) {
        TG_TRY(TG_ALLOC(file->ctx, TG_MEM_WORKSPACE, bytes, m->size));
        TG_TRY(tg_zip_read(&file->zip, tensor->member, bytes, (size_t)m->size));
        source = tg_source_of_memory(file->ctx, file->source->label, bytes, (size_t)m->size);
    } else {
        TG_TRY(tg_zip_source(&file->zip, tensor->member, &source));
    }
    TG_TRY(tg_npy_read_source(&source, out));
fail:
    TG_FREE(file->ctx, bytes);
    return status;
}

/* ---- torch ---- */

/* A walk over the values of a pickle, which may form cycles. */
typedef struct walk {
    tg_zipped *file;
    const tg_pickle *pickle;
    char prefix[LARGEST_NAME]; /* of the members, from data.pkl */
    bool is_swapped;
    int64_t visits;
    uint64_t bytes; /* of all tensors */
} walk;

/* A tensor of the pickle, in the member of its storage. */
static tg_status take_tensor(walk *w, const tg_pickle_value *value, const char *name) {
    tg_zipped *file = w->file;
    const tg_pickle_value *storage = &w->pickle->values[value->storage];
    const size_t element = tg_dtype_size(storage->dtype);
    char member[2 * LARGEST_NAME], quoted[TG_QUOTE];
    tg_source source = {.fd = -1};
    snprintf(member, sizeof member, "%s/data/%.200s", w->prefix, w->pickle->texts + storage->text);
    tg_zipped_tensor tensor = {.raw = {.dtype = storage->dtype,
                                       .shape = value->shape,
                                       .is_swapped = w->is_swapped && element > 1},
                               .member = tg_names_find(&file->zip.names, member),
                               .offset = value->offset,
                               .is_in_place = true};
    if (tensor.member < 0 ||
        (uint64_t)storage->integer > file->zip.members[tensor.member].size / element) {
        return tg_fail(file->ctx, TG_E_FORMAT, "%s: tensor '%s': its storage '%s' is %s",
                       file->source->label, tg_quote(name, quoted), member,
                       tensor.member < 0 ? "missing" : "too short");
    }
    TG_CALL(tg_zip_source(&file->zip, tensor.member, &source));
    int64_t expected = 1; /* stride of C order */
    for (int d = value->shape.ndim - 1; d >= 0; d--) {
        tensor.stride[d] = value->stride[d];
        tensor.is_in_place =
            tensor.is_in_place && (value->shape.dim[d] == 1 || value->stride[d] == expected);
        expected *= value->shape.dim[d] > 0 ? value->shape.dim[d] : 1;
    }
    tensor.raw.offset = source.base - file->source->base + (uint64_t)value->offset * element;
    w->bytes += (uint64_t)tg_shape_numel(&value->shape) * element;
    if (w->bytes / LARGEST_COPIES > file->source->size) {
        return tg_fail(file->ctx, TG_E_UNSUPPORTED,
                       "%s: its tensors are %d times as large as the file", file->source->label,
                       LARGEST_COPIES);
    }
    return add_tensor(file, name, &tensor);
}

/* "outer/inner"; false if it does not fit. */
static bool join(char name[LARGEST_NAME], const char *outer, const char *inner) {
    const int length = snprintf(name, LARGEST_NAME, "%s%s%s", outer, outer[0] ? "/" : "", inner);
    return length > 0 && length < LARGEST_NAME;
}

static tg_status visit(walk *w, int64_t number, const char *name, int depth);

/* Visits the items of a list or tuple under their index, those of a dict under their key. */
static tg_status visit_items(walk *w, const tg_pickle_value *container, const char *name,
                             int depth) {
    const tg_pickle *p = w->pickle;
    const bool is_dict = container->kind == TG_PICKLE_DICT;
    int64_t index = 0;
    for (int64_t cell = container->first; cell >= 0; cell = p->cells[cell].next, index++) {
        char key[LARGEST_NAME], inner[LARGEST_NAME];
        const tg_pickle_value *k = &p->values[p->cells[cell].value];
        if (is_dict && k->kind == TG_PICKLE_TEXT) {
            snprintf(key, sizeof key, "%s", p->texts + k->text);
        } else if (!is_dict || k->kind == TG_PICKLE_INT) {
            snprintf(key, sizeof key, "%" PRId64, is_dict ? k->integer : index);
        } else {
            return tg_fail(w->file->ctx, TG_E_UNSUPPORTED,
                           "%s: a dict whose keys are neither texts nor integers",
                           w->file->source->label);
        }
        if (!join(inner, name, key)) {
            return tg_fail(w->file->ctx, TG_E_FORMAT, "%s: a key is empty or too long",
                           w->file->source->label);
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
        return tg_fail(w->file->ctx, TG_E_FORMAT, "%s: %s", w->file->source->label,
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
static tg_status read_byte_order(const tg_zipped *file, walk *w) {
    char member[2 * LARGEST_NAME], order[8] = "";
    snprintf(member, sizeof member, "%s/byteorder", w->prefix);
    const int64_t index = tg_names_find(&file->zip.names, member);
    if (index < 0 || file->zip.members[index].size >= sizeof order) {
        return TG_OK;
    }
    const tg_status status =
        tg_zip_read(&file->zip, index, order, (size_t)file->zip.members[index].size);
    w->is_swapped = strcmp(order, "big") == 0;
    return status;
}

static tg_status list_torch(tg_zipped *file) {
    tg_status status = TG_OK;
    char *bytes = NULL;
    tg_pickle pickle = {0};
    const int64_t index = find_pickle(&file->zip);
    const tg_zip_member *m = &file->zip.members[index];
    walk w = {.file = file, .pickle = &pickle};
    const char *name = file->zip.names.items[index];
    if (m->size > LARGEST_PICKLE || strlen(name) >= LARGEST_NAME) {
        return tg_fail(file->ctx, TG_E_UNSUPPORTED,
                       "%s: expected a data.pkl of at most %d bytes, found %llu",
                       file->source->label, LARGEST_PICKLE, (unsigned long long)m->size);
    }
    snprintf(w.prefix, sizeof w.prefix, "%.*s", (int)(strlen(name) - strlen(pickle_name)), name);
    TG_TRY(read_byte_order(file, &w));
    TG_TRY(TG_ALLOC(file->ctx, TG_MEM_OTHER, bytes, m->size));
    TG_TRY(tg_zip_read(&file->zip, index, bytes, (size_t)m->size));
    TG_TRY(tg_pickle_parse(file->ctx, file->source->label, bytes, (size_t)m->size, &pickle));
    TG_TRY(visit(&w, pickle.root, "", 0));
fail:
    tg_pickle_free(&pickle);
    TG_FREE(file->ctx, bytes);
    return status;
}

static tg_status read_torch(const tg_zipped *file, const tg_zipped_tensor *tensor, tg_tensor *out) {
    tg_status status = TG_OK;
    char *storage = NULL;
    TG_TRY(tg_tensor_create(file->ctx, TG_MEM_DATA, tensor->raw.dtype, &tensor->raw.shape, out));
    if (tensor->is_in_place || tg_tensor_numel(out) == 0) {
        TG_TRY(tg_source_read(file->source, tensor->raw.offset, out->data, tg_tensor_bytes(out)));
    } else {
        int64_t last = 0;
        for (int d = 0; d < out->shape.ndim; d++) {
            last += (out->shape.dim[d] - 1) * tensor->stride[d];
        }
        const size_t bytes = (size_t)(last + 1) * tg_dtype_size(out->dtype);
        TG_TRY(TG_ALLOC(file->ctx, TG_MEM_WORKSPACE, storage, bytes));
        TG_TRY(tg_source_read(file->source, tensor->raw.offset, storage, bytes));
        tg_copy_strided(out, storage, tensor->stride);
    }
    if (tensor->raw.is_swapped) {
        tg_swap_bytes(out->dtype, out->data, tg_tensor_numel(out));
    }
    TG_TRY(tg_check_bools(file->ctx, file->source->label, "tensor", out));
fail:
    TG_FREE(file->ctx, storage);
    if (status != TG_OK) {
        tg_tensor_destroy(out);
    }
    return status;
}

/* ---- both formats ---- */

tg_status tg_zipped_open(const tg_source *source, tg_zipped *out) {
    *out = (tg_zipped){.ctx = source->ctx, .source = source, .names = {.ctx = source->ctx}};
    TG_CALL(tg_zip_open(source, &out->zip));
    TG_CALL(format_of(&out->zip, &out->format));
    TG_CALL(tg_archive_create(out->ctx, &out->meta));
    return out->format == TG_FILE_NPZ ? list_npz(out) : list_torch(out);
}

tg_status tg_zipped_find(const tg_zipped *file, const char *name, const tg_zipped_tensor **out) {
    char quoted[TG_QUOTE], there[400] = "are ";
    const int64_t index = tg_names_find(&file->names, name);
    *out = index >= 0 ? &file->tensors[index] : NULL;
    for (int64_t i = 0; i < file->names.count && index < 0; i++) {
        tg_names_append(there, sizeof there, i, file->names.count, file->names.items[i]);
    }
    return index >= 0 ? TG_OK
                      : tg_fail(file->ctx, TG_E_ARGUMENT, "%s: there is no tensor '%s'; there %s",
                                file->source->label, tg_quote(name, quoted),
                                file->names.count ? there : "is none");
}

tg_status tg_zipped_read(const tg_zipped *file, const tg_zipped_tensor *tensor, tg_tensor *out) {
    *out = (tg_tensor){0};
    return file->format == TG_FILE_NPZ ? read_npy(file, tensor, out)
                                       : read_torch(file, tensor, out);
}

tg_status tg_zipped_read_all(tg_zipped *file, tg_archive **out) {
    for (int64_t i = 0; i < file->names.count; i++) {
        tg_tensor tensor = {0};
        TG_CALL(tg_zipped_read(file, &file->tensors[i], &tensor));
        TG_CALL(tg_archive_take(file->meta, file->names.items[i], &tensor));
    }
    *out = file->meta;
    file->meta = NULL;
    return TG_OK;
}
