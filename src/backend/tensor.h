/* Tensors and gradients of callers: checks of their place, dtype and shape before any use. */
#ifndef TG_BACKEND_TENSOR_H
#define TG_BACKEND_TENSOR_H

#include "backend/backend.h"
#include "tgrad/gradient.h"

/* The requirements of a call. */
typedef struct tg_wanted {
    const char *what, *of; /* for errors: "weight" and the parameter's name, or NULL */
    tg_dtype dtype;
    tg_shape shape;
    bool or_host; /* the host is allowed for any backend */
} tg_wanted;

TG_NODISCARD tg_status tg_tensor_check(const tg_backend *be, const tg_tensor *tensor,
                                       const tg_wanted *wanted);

/* The same for a gradient, dense or factored; a 16-bit format may represent the dtype. */
TG_NODISCARD tg_status tg_gradient_check(const tg_backend *be, const tg_gradient *gradient,
                                         const tg_wanted *wanted);

/* The map of a shape without factors; the source form of a gradient. */
tg_multimode tg_plain_modes(tg_dtype dtype, const tg_shape *shape);
tg_grad_source tg_gradient_source(const tg_gradient *gradient);

/* A checked gradient as a dense one of tg_dtype_wide, in the caller's memory. */
TG_NODISCARD tg_status tg_gradient_form(tg_backend *be, const tg_gradient *gradient, void *dense);

/* A view of an array in the backend's memory. */
static inline tg_tensor tg_backend_view(const tg_backend *be, tg_dtype dtype, const tg_shape *shape,
                                        const void *data) {
    return (tg_tensor){
        .dtype = dtype, .shape = *shape, .data = (void *)(uintptr_t)data, .place = be->ops->place};
}

/* Pinned host memory, filled with consecutive copies of arrays, aligned or not. */
typedef struct tg_staging {
    char *memory;
    size_t bytes, used;
} tg_staging;

/* A host copy of an array in the backend's memory: a view of the staging buffer while that has
 * space, otherwise (or with NULL) an owning tensor. Copies into the buffer are only queued. */
TG_NODISCARD tg_status tg_backend_download(tg_backend *be, const tg_tensor *from,
                                           tg_staging *staging, tg_tensor *out);

#endif
