/* Tensors in the memory of a context's backend, for callers who see no table. */
#include <string.h>

#include "backend/backend.h"

tg_status tg_backend_tensor(tg_context *ctx, tg_mem_category category, tg_dtype dtype,
                            const tg_shape *shape, tg_tensor *out) {
    TG_NEED(ctx, out);
    *out = (tg_tensor){0};
    TG_NEED(ctx, ctx, shape);
    tg_backend *be = NULL;
    tg_status status = tg_backend_get(ctx, &be);
    if (status != TG_OK) {
        return status;
    }
    if (be->ops->place == TG_HOST) {
        return tg_tensor_create(ctx, category, dtype, shape, out);
    }
    const int64_t numel = tg_shape_numel(shape);
    const size_t size = tg_dtype_size(dtype);
    if (size == 0 || numel < 0 || numel > INT64_MAX / (int64_t)size) {
        char text[128];
        return tg_fail(ctx, TG_E_SHAPE, "tensor: shape %s of dtype number %d is not possible",
                       tg_shape_text(shape, text, sizeof text), (int)dtype);
    }
    if (!tg_mem_category_is_known(category)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "tensor: memory category number %d does not exist",
                       (int)category);
    }
    void *data = be->ops->alloc(be, category, (size_t)numel * size);
    if (!data) {
        return TG_E_MEMORY;
    }
    *out = (tg_tensor){
        .dtype = dtype, .shape = *shape, .data = data, .place = be->ops->place, .owner = ctx};
    return TG_OK;
}

tg_status tg_backend_copy(tg_context *ctx, const tg_tensor *from, const tg_tensor *to) {
    TG_NEED(ctx, ctx, from, to);
    tg_backend *be = NULL;
    tg_status status = tg_backend_get(ctx, &be);
    if (status != TG_OK) {
        return status;
    }
    if (from->dtype != to->dtype || tg_tensor_numel(from) != tg_tensor_numel(to)) {
        char a[128], b[128];
        return tg_fail(ctx, TG_E_SHAPE, "copy: from %s %s to %s %s", tg_dtype_name(from->dtype),
                       tg_shape_text(&from->shape, a, sizeof a), tg_dtype_name(to->dtype),
                       tg_shape_text(&to->shape, b, sizeof b));
    }
    const size_t bytes = tg_tensor_bytes(from);
    if (from->place == TG_HOST && to->place == TG_HOST) {
        memmove(to->data, from->data, bytes);
        return TG_OK;
    }
    return from->place == TG_HOST ? be->ops->upload(be, to->data, from->data, bytes)
           : to->place == TG_HOST ? be->ops->download(be, to->data, from->data, bytes)
                                  : be->ops->copy(be, to->data, from->data, bytes);
}

tg_place tg_backend_place(const tg_context *ctx) {
    return ctx && ctx->backend ? ctx->backend->ops->place : TG_HOST;
}

tg_status tg_backend_synchronize(tg_context *ctx) {
    TG_NEED(ctx, ctx);
    tg_backend *be = NULL;
    const tg_status status = tg_backend_get(ctx, &be);
    return status == TG_OK ? be->ops->synchronize(be) : status;
}

tg_status tg_backend_memory(tg_context *ctx, size_t *used, size_t *total) {
    TG_NEED(ctx, ctx, used, total);
    tg_backend *be = NULL;
    size_t left = 0;
    *used = *total = 0;
    tg_status status = tg_backend_get(ctx, &be);
    if (status == TG_OK && be->ops->memory_left) {
        status = be->ops->memory_left(be, &left, total);
        *used = *total - left;
    }
    return status;
}
