/* Backends: who does the arithmetic. ref (plain loops, the oracle), cpu (OpenBLAS, LAPACK, FFTW,
 * AVX2), cuda (when built with it). */
#ifndef TGRAD_BACKEND_H
#define TGRAD_BACKEND_H

#include <stdbool.h>

#include "tgrad/tensor.h"

TG_C_BEGIN

/* Chooses the backend of a context: "ref", "cpu", "cuda", or NULL for the best one present (cuda
 * with a device, else cpu). A context keeps the backend it has: choosing another one afterwards is
 * an error. Without this call the best one is chosen at first need. */
TG_API TG_NODISCARD tg_status tg_backend_select(tg_context *ctx, const char *name);

/* Name of the chosen backend; "" if none is chosen yet. */
TG_API const char *tg_backend_name(const tg_context *ctx);

/* How it multiplies matrices of f32, "tf32" or "fp32", where tg_context_config.math decides that
 * (on a GPU); "" elsewhere. */
TG_API const char *tg_backend_math(const tg_context *ctx);

typedef struct tg_backend_info {
    const char *name;
    const char *summary; /* one line: its libraries or hardware */
    bool available;      /* it can be selected here and now */
    char reason[160];    /* when not available: why */
    char device[160];    /* the CPU or GPU it would run on */
    char libraries[320]; /* "OpenBLAS 0.3.21, FFTW 3.3.10, .." */
    char overrides[640]; /* operations it does itself rather than as ref does, "gemm fft .." */
} tg_backend_info;

/* Number of backends in this build, and the facts of the i-th (0-based). */
TG_API int tg_backend_count(void);
TG_API TG_NODISCARD tg_status tg_backend_describe(tg_context *ctx, int index, tg_backend_info *out);

/* Where it computes; the host if none is chosen yet. */
TG_API tg_place tg_backend_place(const tg_context *ctx);

/* ---- Tensors where the chosen backend computes, for optimizers and projectors. ---- */

/* As tg_tensor_create, but in the backend's memory: of the host, or of the GPU for cuda. */
TG_API TG_NODISCARD tg_status tg_backend_tensor(tg_context *ctx, tg_mem_category category,
                                                tg_dtype dtype, const tg_shape *shape,
                                                tg_tensor *out);

/* Copies all elements between two tensors of the same dtype and number of elements, each on the
 * host or in the backend's memory. A copy from or to the host is complete on return. */
TG_API TG_NODISCARD tg_status tg_backend_copy(tg_context *ctx, const tg_tensor *from,
                                              const tg_tensor *to);

/* Waits until the backend has done all queued work: a GPU works asynchronously. */
TG_API TG_NODISCARD tg_status tg_backend_synchronize(tg_context *ctx);

/* Bytes of the device's memory in use and there at all, by its driver: also what other processes
 * and the driver itself hold. 0 and 0 where the backend computes on the host. */
TG_API TG_NODISCARD tg_status tg_backend_memory(tg_context *ctx, size_t *used, size_t *total);

TG_C_END
#endif
