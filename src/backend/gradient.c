/* Dense form of a gradient that was handed over in factors. */
#include "tgrad/gradient.h"

#include <string.h>

#include "backend/backend.h"

tg_status tg_gradient_dense(tg_context *ctx, const tg_gradient *gradient, void *out) {
    tg_backend *be = NULL;
    tg_status status = tg_backend_get(ctx, &be);
    if (status != TG_OK) {
        return status;
    }
    if (gradient->dense) {
        const size_t bytes =
            (size_t)tg_shape_numel(&gradient->shape) * tg_dtype_size(gradient->dtype);
        return be->ops->copy(be, out, gradient->dense, bytes);
    }
    tg_multimode modes = {.dtype = gradient->dtype, .ndim = gradient->shape.ndim};
    memcpy(modes.dim, gradient->shape.dim, sizeof modes.dim);
    memcpy(modes.rank, gradient->shape.dim, sizeof modes.rank);
    const tg_grad_source source = {.x = gradient->x, .dy = gradient->dy, .batch = gradient->batch};
    return be->ops->grad_dense(be, &modes, &source, 1.0, out);
}
