/* Archive: named tensors and text metadata, both in the order of insertion.
 *
 * Tensors are values in an array parallel to their names; destroying the archive leaves the memory
 * of views alone. */
#include <string.h>

#include "base/memory.h"
#include "io/formats.h"
#include "io/name_index.h"

struct tg_archive {
    tg_context *ctx;
    tg_names names;         /* of the tensors */
    tg_tensor *tensors;     /* (capacity), the first names.count are in use */
    int64_t capacity;       /* of tensors */
    tg_names keys;          /* of the metadata */
    char **values;          /* (value_capacity), the first keys.count are in use */
    int64_t value_capacity; /* of values */
};

tg_status tg_archive_create(tg_context *ctx, tg_archive **out) {
    TG_NEED_OUT(ctx, out, ctx);
    tg_archive *archive = NULL;
    TG_CALL(TG_NEW(ctx, TG_MEM_OTHER, archive, 1));
    archive->ctx = ctx;
    archive->names.ctx = ctx;
    archive->keys.ctx = ctx;
    *out = archive;
    return TG_OK;
}

void tg_archive_destroy(tg_archive **archive) {
    if (!archive || !*archive) {
        return;
    }
    tg_archive *a = *archive;
    for (int64_t i = 0; i < a->names.count; i++) {
        tg_tensor_destroy(&a->tensors[i]);
    }
    for (int64_t i = 0; i < a->keys.count; i++) {
        TG_FREE(a->ctx, a->values[i]);
    }
    tg_names_clear(&a->names);
    tg_names_clear(&a->keys);
    TG_FREE(a->ctx, a->tensors);
    TG_FREE(a->ctx, a->values);
    tg_mem_free(a->ctx, a);
    *archive = NULL;
}

int64_t tg_archive_count(const tg_archive *archive) {
    return archive ? archive->names.count : 0;
}

const char *tg_archive_name(const tg_archive *archive, int64_t index) {
    return index >= 0 && index < tg_archive_count(archive) ? archive->names.items[index] : NULL;
}

const tg_tensor *tg_archive_tensor(const tg_archive *archive, int64_t index) {
    return index >= 0 && index < tg_archive_count(archive) ? &archive->tensors[index] : NULL;
}

const tg_tensor *tg_archive_find(const tg_archive *archive, const char *name) {
    return archive && name ? tg_archive_tensor(archive, tg_names_find(&archive->names, name))
                           : NULL;
}

static tg_status check_tensor(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    char quoted[TG_QUOTE], shape[128];
    const int64_t numel = tg_shape_numel(&tensor->shape);
    const size_t size = tg_dtype_size(tensor->dtype);
    if (size == 0) {
        return tg_fail(archive->ctx, TG_E_DTYPE, "tensor '%s': dtype number %d does not exist",
                       tg_quote(name ? name : "", quoted), (int)tensor->dtype);
    }
    if (numel < 0 || numel > INT64_MAX / (int64_t)size) {
        return tg_fail(archive->ctx, TG_E_SHAPE, "tensor '%s': shape %s is invalid or too large",
                       tg_quote(name ? name : "", quoted),
                       tg_shape_text(&tensor->shape, shape, sizeof shape));
    }
    if (tensor->place != TG_HOST || (numel > 0 && !tensor->data)) {
        return tg_fail(archive->ctx, TG_E_ARGUMENT, "tensor '%s': not in host memory",
                       tg_quote(name ? name : "", quoted));
    }
    return TG_OK;
}

/* Adds the value itself, with its ownership. */
static tg_status insert(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    TG_CALL(check_tensor(archive, name, tensor));
    TG_CALL(tg_mem_grow(archive->ctx, &archive->tensors, sizeof *tensor, archive->names.count, 1,
                        &archive->capacity));
    TG_CALL(tg_names_add(&archive->names, "tensor", name));
    archive->tensors[archive->names.count - 1] = *tensor;
    return TG_OK;
}

tg_status tg_archive_add(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    TG_NEED(NULL, archive);
    TG_NEED(archive->ctx, name, tensor);
    tg_tensor copy = {0};
    TG_CALL(check_tensor(archive, name, tensor));
    TG_CALL(tg_tensor_create(archive->ctx, TG_MEM_DATA, tensor->dtype, &tensor->shape, &copy));
    if (tensor->data) {
        memcpy(copy.data, tensor->data, tg_tensor_bytes(tensor));
    }
    return tg_archive_take(archive, name, &copy);
}

tg_status tg_archive_take(tg_archive *archive, const char *name, tg_tensor *tensor) {
    TG_NEED(NULL, archive);
    TG_NEED(archive->ctx, name, tensor);
    tg_tensor moved = *tensor;
    *tensor = (tg_tensor){0};
    tg_status status = insert(archive, name, &moved);
    if (status != TG_OK) {
        tg_tensor_destroy(&moved);
    }
    return status;
}

tg_status tg_archive_add_view(tg_archive *archive, const char *name, const tg_tensor *tensor) {
    TG_NEED(NULL, archive);
    TG_NEED(archive->ctx, name, tensor);
    tg_tensor view = *tensor;
    view.owner = NULL;
    return insert(archive, name, &view);
}

tg_status tg_archive_set_meta(tg_archive *archive, const char *key, const char *value) {
    TG_NEED(NULL, archive);
    TG_NEED(archive->ctx, key, value);
    tg_status status = TG_OK;
    char quoted[TG_QUOTE];
    if (!tg_utf8_is_valid(value)) {
        return tg_fail(archive->ctx, TG_E_ARGUMENT, "metadata '%s': the value is not UTF-8 text",
                       tg_quote(key, quoted));
    }
    char *copy = tg_mem_strdup(archive->ctx, value);
    if (!copy) {
        return TG_E_MEMORY;
    }
    const int64_t found = tg_names_find(&archive->keys, key);
    if (found >= 0) {
        TG_FREE(archive->ctx, archive->values[found]);
        archive->values[found] = copy;
        return TG_OK;
    }
    TG_TRY(tg_mem_grow(archive->ctx, &archive->values, sizeof copy, archive->keys.count, 1,
                       &archive->value_capacity));
    TG_TRY(tg_names_add(&archive->keys, "metadata", key));
    archive->values[archive->keys.count - 1] = copy;
    return TG_OK;
fail:
    TG_FREE(archive->ctx, copy);
    return status;
}

const char *tg_archive_meta(const tg_archive *archive, const char *key) {
    return archive && key ? tg_archive_meta_value(archive, tg_names_find(&archive->keys, key))
                          : NULL;
}

int64_t tg_archive_meta_count(const tg_archive *archive) {
    return archive ? archive->keys.count : 0;
}

const char *tg_archive_meta_key(const tg_archive *archive, int64_t index) {
    return index >= 0 && index < tg_archive_meta_count(archive) ? archive->keys.items[index] : NULL;
}

const char *tg_archive_meta_value(const tg_archive *archive, int64_t index) {
    return index >= 0 && index < tg_archive_meta_count(archive) ? archive->values[index] : NULL;
}
