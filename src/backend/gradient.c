/* Gradients on the host, dense, also if they were handed over in factors. */
#include "tgrad/gradient.h"

#include <string.h>

#include "backend/backend.h"

/* Forms the product of the factors, or widens 16-bit numbers, where the backend computes, then
 * brings it over. */
static tg_status read_formed(tg_backend *be, const tg_gradient *gradient, tg_dtype dtype,
                             size_t bytes, void *host) {
    tg_status status = TG_OK;
    tg_multimode modes = {.dtype = dtype, .ndim = gradient->shape.ndim};
    memcpy(modes.dim, gradient->shape.dim, sizeof modes.dim);
    memcpy(modes.rank, gradient->shape.dim, sizeof modes.rank);
    const tg_grad_source source = {.x = gradient->x,
                                   .dy = gradient->dy,
                                   .batch = gradient->batch,
                                   .store = tg_storage_of(gradient->dtype)};
    void *dense = be->ops->alloc(be, TG_MEM_GRADIENTS, bytes);
    TG_TRY(dense ? TG_OK : TG_E_MEMORY);
    TG_TRY(gradient->dense ? be->ops->convert(be, tg_shape_numel(&gradient->shape), gradient->dtype,
                                              gradient->dense, dtype, dense)
                           : be->ops->grad_dense(be, &modes, &source, 1.0, dense));
    TG_TRY(be->ops->download(be, host, dense, bytes));
fail:
    be->ops->release(be, dense);
    return status;
}

tg_status tg_gradient_read(tg_context *ctx, const tg_gradient *gradient, void *host) {
    TG_NEED(ctx, ctx, gradient, host);
    tg_backend *be = NULL;
    const tg_status status = tg_backend_get(ctx, &be);
    if (status != TG_OK) {
        return status;
    }
    if (!gradient->dense && (!gradient->x || !gradient->dy || gradient->shape.ndim < 3)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "gradient: neither dense nor factored");
    }
    const tg_dtype dtype = tg_dtype_wide(gradient->dtype);
    const size_t bytes = (size_t)tg_shape_numel(&gradient->shape) * tg_dtype_size(dtype);
    return gradient->dense && gradient->dtype == dtype
               ? be->ops->download(be, host, gradient->dense, bytes)
               : read_formed(be, gradient, dtype, bytes, host);
}
