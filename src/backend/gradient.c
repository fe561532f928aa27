/* Host copies of gradients, dense even if handed over in factors. */
#include "tgrad/gradient.h"

#include <string.h>

#include "backend/tensor.h"

tg_status tg_gradient_form(tg_backend *be, const tg_gradient *gradient, void *dense) {
    const tg_dtype dtype = tg_dtype_wide(gradient->dtype);
    tg_multimode modes = {.dtype = dtype, .ndim = gradient->shape.ndim};
    memcpy(modes.dim, gradient->shape.dim, sizeof modes.dim);
    memcpy(modes.rank, gradient->shape.dim, sizeof modes.rank);
    const tg_grad_source source = {.x = gradient->x,
                                   .dy = gradient->dy,
                                   .batch = gradient->batch,
                                   .store = tg_storage_of(gradient->dtype)};
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
