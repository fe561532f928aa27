/* Tensors and gradients that callers hand in: where they lie and what they hold is checked before
 * anything reads them. */
#ifndef TG_BACKEND_TENSOR_H
#define TG_BACKEND_TENSOR_H

#include "backend/backend.h"
#include "tgrad/gradient.h"

/* What a call takes. */
typedef struct tg_wanted {
    const char *what, *of; /* for the sentence: "weight" and the parameter's name, or NULL */
    tg_dtype dtype;
    tg_shape shape;
    bool or_host; /* it may lie on the host, wherever the backend computes */
} tg_wanted;

TG_NODISCARD tg_status tg_tensor_check(const tg_backend *be, const tg_tensor *tensor,
                                       const tg_wanted *wanted);

/* The same of a gradient, dense or factored; a 16-bit format may stand for the dtype. */
TG_NODISCARD tg_status tg_gradient_check(const tg_backend *be, const tg_gradient *gradient,
                                         const tg_wanted *wanted);

/* A gradient that was checked as a dense one of tg_dtype_wide, in memory of the caller's. */
TG_NODISCARD tg_status tg_gradient_form(tg_backend *be, const tg_gradient *gradient, void *dense);

/* A view of an array where the backend computes. */
static inline tg_tensor tg_backend_view(const tg_backend *be, tg_dtype dtype, const tg_shape *shape,
                                        const void *data) {
    return (tg_tensor){
        .dtype = dtype, .shape = *shape, .data = (void *)(uintptr_t)data, .place = be->ops->place};
}

/* Pinned memory of the host that arrays are copied into one behind the other, aligned or not. */
typedef struct tg_staging {
    char *memory;
    size_t bytes, used;
} tg_staging;

/* A copy on the host of an array where the backend computes: a view of the staging buffer while
 * that has room, otherwise (or with NULL) a tensor of its own. Copies into the buffer are only
 * queued. */
TG_NODISCARD tg_status tg_backend_download(tg_backend *be, const tg_tensor *from,
                                           tg_staging *staging, tg_tensor *out);

#endif
