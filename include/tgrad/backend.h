/* Backends: who does the arithmetic. ref (plain loops, the oracle), cpu (OpenBLAS, LAPACK, FFTW,
 * AVX2), cuda (when built with it). */
#ifndef TGRAD_BACKEND_H
#define TGRAD_BACKEND_H

#include <stdbool.h>

#include "tgrad/context.h"

#ifdef __cplusplus
extern "C" {
#endif

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
    const char *summary; /* one line: what it uses */
    bool available;      /* it can be selected here and now */
    char reason[160];    /* when not available: why */
    char device[160];    /* the CPU or GPU it would run on */
    char libraries[320]; /* "OpenBLAS 0.3.21, FFTW 3.3.10, .." */
    char overrides[640]; /* operations it does itself rather than as ref does, "gemm fft .." */
} tg_backend_info;

/* Number of backends in this build, and the facts of the i-th (0-based). */
TG_API int tg_backend_count(void);
TG_API TG_NODISCARD tg_status tg_backend_describe(tg_context *ctx, int index, tg_backend_info *out);

#ifdef __cplusplus
}
#endif
#endif
