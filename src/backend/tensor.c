/* Tensors in the backend's memory; checks of callers' tensors and gradients. */
#include "backend/tensor.h"

#include <stdio.h>
#include <string.h>

#include "tgrad/gradient.h"

/* ---- checks ---- */

/* "weight of fc1" */
enum { SUBJECT = 160 };
static const char *subject(const tg_wanted *wanted, char text[SUBJECT]) {
    snprintf(text, SUBJECT, "%s%s%s", wanted->what, wanted->of ? " of " : "",
             wanted->of ? wanted->of : "");
    return text;
}

static tg_status check_place(const tg_backend *be, tg_place place, const tg_wanted *wanted) {
    char text[SUBJECT];
    if (place == be->ops->place || (place == TG_HOST && wanted->or_host)) {
        return TG_OK;
    }
    return place == TG_HOST ? tg_fail(be->ctx, TG_E_ARGUMENT,
                                      "%s: it is on the host, but backend %s computes on a device "
                                      "(tg_backend_tensor and tg_backend_copy bring it there)",
                                      subject(wanted, text), be->ops->name)
                            : tg_fail(be->ctx, TG_E_ARGUMENT,
                                      "%s: it is on a device, but backend %s computes on the host",
                                      subject(wanted, text), be->ops->name);
}

static tg_status check_kind(const tg_backend *be, tg_dtype dtype, const tg_shape *shape,
                            const tg_wanted *wanted) {
    char text[SUBJECT], needed[128], found[128];
    if (dtype != wanted->dtype) {
        return tg_fail(be->ctx, TG_E_DTYPE, "%s: %s is needed, not %s", subject(wanted, text),
                       tg_dtype_name(wanted->dtype), tg_dtype_name(dtype));
    }
    if (!tg_shape_equal(shape, &wanted->shape)) {
        return tg_fail(be->ctx, TG_E_SHAPE, "%s: the shape is %s; %s is needed",
                       subject(wanted, text), tg_shape_text(shape, found, sizeof found),
                       tg_shape_text(&wanted->shape, needed, sizeof needed));
    }
    return TG_OK;
}

tg_status tg_tensor_check(const tg_backend *be, const tg_tensor *tensor, const tg_wanted *wanted) {
    char text[SUBJECT];
    TG_CALL(check_place(be, tensor->place, wanted));
    TG_CALL(check_kind(be, tensor->dtype, &tensor->shape, wanted));
    if (!tensor->data && tg_tensor_numel(tensor) > 0) {
        return tg_fail(be->ctx, TG_E_ARGUMENT, "%s: its data is NULL", subject(wanted, text));
    }
    return TG_OK;
}

tg_status tg_gradient_check(const tg_backend *be, const tg_gradient *gradient,
                            const tg_wanted *wanted) {
    char text[SUBJECT];
    TG_CALL(check_place(be, gradient->place, wanted));
    TG_CALL(check_kind(be, tg_dtype_wide(gradient->dtype), &gradient->shape, wanted));
    const bool is_factored = gradient->x && gradient->dy && gradient->batch >= 0;
    if (!gradient->dense && !is_factored) {
        return tg_fail(be->ctx, TG_E_ARGUMENT, "%s: neither dense nor factored",
                       subject(wanted, text));
    }
    if (!gradient->dense && gradient->shape.ndim < 3) {
        return tg_fail(be->ctx, TG_E_ARGUMENT,
                       "%s: factored, but only weights with two dims of channels and one or more "
                       "of modes are",
                       subject(wanted, text));
    }
    return TG_OK;
}

/* ---- tensors ---- */

tg_status tg_backend_tensor(tg_context *ctx, tg_mem_category category, tg_dtype dtype,
                            const tg_shape *shape, tg_tensor *out) {
    TG_NEED(ctx, out);
    *out = (tg_tensor){0};
    TG_NEED(ctx, ctx, shape);
    tg_backend *be = NULL;
    TG_CALL(tg_backend_get(ctx, &be));
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
    TG_CALL(tg_backend_get(ctx, &be));
    if (from->dtype != to->dtype || tg_tensor_numel(from) != tg_tensor_numel(to)) {
        char a[128], b[128];
        return tg_fail(ctx, TG_E_SHAPE, "copy: from %s %s to %s %s", tg_dtype_name(from->dtype),
                       tg_shape_text(&from->shape, a, sizeof a), tg_dtype_name(to->dtype),
                       tg_shape_text(&to->shape, b, sizeof b));
    }
    const tg_wanted wanted[2] = {{"copy from", NULL, from->dtype, from->shape, true},
                                 {"copy to", NULL, to->dtype, to->shape, true}};
    TG_CALL(tg_tensor_check(be, from, &wanted[0]));
    TG_CALL(tg_tensor_check(be, to, &wanted[1]));
    const size_t bytes = tg_tensor_bytes(from);
    if (bytes == 0) {
        return TG_OK;
    }
    if (from->place == TG_HOST && to->place == TG_HOST) {
        memmove(to->data, from->data, bytes);
        return TG_OK;
    }
    return from->place == TG_HOST ? be->ops->upload(be, to->data, from->data, bytes)
           : to->place == TG_HOST ? be->ops->download(be, to->data, from->data, bytes)
                                  : be->ops->copy(be, to->data, from->data, bytes);
}

tg_status tg_backend_download(tg_backend *be, const tg_tensor *from, tg_staging *staging,
                              tg_tensor *out) {
    const size_t bytes = tg_tensor_bytes(from);
    if (staging && bytes <= staging->bytes - staging->used) {
        *out = *from;
        out->owner = NULL;
        out->place = TG_HOST;
        out->data = staging->memory + staging->used;
        staging->used += bytes;
        return be->ops->copy(be, out->data, from->data, bytes);
    }
    tg_status status = tg_tensor_create(be->ctx, TG_MEM_DATA, from->dtype, &from->shape, out);
    if (status == TG_OK) {
        status = be->ops->download(be, out->data, from->data, bytes);
    }
    if (status != TG_OK) {
        tg_tensor_destroy(out);
    }
    return status;
}

tg_place tg_backend_place(const tg_context *ctx) {
    return ctx && ctx->backend ? ctx->backend->ops->place : TG_HOST;
}

tg_status tg_backend_synchronize(tg_context *ctx) {
    TG_NEED(ctx, ctx);
    tg_backend *be = NULL;
    TG_CALL(tg_backend_get(ctx, &be));
    return be->ops->synchronize(be);
}

tg_status tg_backend_memory(tg_context *ctx, size_t *used, size_t *total) {
    TG_NEED(ctx, ctx, used, total);
    tg_backend *be = NULL;
    tg_device_facts facts;
    *used = *total = 0;
    TG_CALL(tg_backend_get(ctx, &be));
    if (be->ops->device_facts) {
        TG_CALL(be->ops->device_facts(be, &facts));
        *total = facts.memory_total;
        *used = facts.memory_total - facts.memory_left;
    }
    return TG_OK;
}

/* Host copies of gradients, dense even if handed over in factors. */

tg_multimode tg_plain_modes(tg_dtype dtype, const tg_shape *shape) {
    tg_multimode modes = {.dtype = dtype, .ndim = shape->ndim};
    memcpy(modes.dim, shape->dim, sizeof modes.dim);
    memcpy(modes.rank, shape->dim, sizeof modes.rank);
    return modes;
}

tg_grad_source tg_gradient_source(const tg_gradient *gradient) {
    return (tg_grad_source){.dense = gradient->dense,
                            .x = gradient->x,
                            .dy = gradient->dy,
                            .batch = gradient->batch,
                            .store = tg_storage_of(gradient->dtype)};
}

tg_status tg_gradient_form(tg_backend *be, const tg_gradient *gradient, void *dense) {
    const tg_dtype dtype = tg_dtype_wide(gradient->dtype);
    const tg_multimode modes = tg_plain_modes(dtype, &gradient->shape);
    const tg_grad_source source = tg_gradient_source(gradient);
    return gradient->dense ? be->ops->convert(be, tg_shape_numel(&gradient->shape), gradient->dtype,
                                              gradient->dense, dtype, dense)
                           : be->ops->grad_dense(be, &modes, &source, 1.0, dense);
}

/* Formed on the backend, then copied. */
static tg_status read_formed(tg_backend *be, const tg_gradient *gradient, size_t bytes,
                             void *host) {
    tg_status status = TG_OK;
    void *dense = be->ops->alloc(be, TG_MEM_GRADIENTS, bytes);
    TG_TRY(dense ? TG_OK : TG_E_MEMORY);
    TG_TRY(tg_gradient_form(be, gradient, dense));
    TG_TRY(be->ops->download(be, host, dense, bytes));
fail:
    be->ops->release(be, dense);
    return status;
}

tg_status tg_gradient_read(tg_context *ctx, const tg_gradient *gradient, const tg_tensor *out) {
    TG_NEED(ctx, ctx, gradient, out);
    tg_backend *be = NULL;
    const tg_dtype dtype = tg_dtype_wide(gradient->dtype);
    const tg_wanted wanted = {"gradient", NULL, dtype, gradient->shape, false};
    TG_CALL(tg_backend_get(ctx, &be));
    TG_CALL(tg_gradient_check(be, gradient, &wanted));
    if (out->place != TG_HOST || out->dtype != dtype || !out->data ||
        !tg_shape_equal(&out->shape, &gradient->shape)) {
        char needed[128], found[128];
        return tg_fail(ctx, TG_E_SHAPE, "gradient: read into %s %s%s; %s %s on the host is needed",
                       tg_dtype_name(out->dtype), tg_shape_text(&out->shape, found, sizeof found),
                       out->place == TG_HOST ? "" : " on a device", tg_dtype_name(dtype),
                       tg_shape_text(&gradient->shape, needed, sizeof needed));
    }
    const size_t bytes = tg_tensor_bytes(out);
    return gradient->dense && gradient->dtype == dtype
               ? be->ops->download(be, out->data, gradient->dense, bytes)
               : read_formed(be, gradient, bytes, out->data);
}
