/* The context: threads, the last error, the log and the memory ledger of one user of the library.
 *
 * Thread-safety: different contexts may be used from different threads at the same time; one
 * context is used by one thread at a time. The library makes its own threads inside a call. */
#ifndef TGRAD_CONTEXT_H
#define TGRAD_CONTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tgrad/status.h"

TG_C_BEGIN

typedef struct tg_context tg_context;

typedef enum tg_log_level { TG_LOG_DEBUG, TG_LOG_INFO, TG_LOG_WARN, TG_LOG_ERROR } tg_log_level;

/* Receives one message without a line end. Called from the thread that called the library. */
typedef void (*tg_log_fn)(void *user, tg_log_level level, const char *message);

/* How a GPU multiplies matrices of f32: products rounded to TF32 (10 bits of fraction, sums in f32,
 * several times faster), or all in f32. Has no effect on the other backends. */
typedef enum tg_math { TG_MATH_TF32, TG_MATH_FP32 } tg_math;

/* Place of memory: on the host, or on the device that the context's backend computes on. */
typedef enum tg_place { TG_HOST, TG_DEVICE, TG_PLACES } tg_place;

/* Memory from the caller, such as the caching allocator of a framework that shares the GPU, counted
 * by the ledger like any other. Any thread of the library may allocate and free host memory. Does
 * not serve pinned memory, nor the libraries (CUDA, OpenBLAS, FFTW, HDF5). */
typedef struct tg_allocator {
    /* At least `bytes` (> 0) at `place`, aligned to 64 bytes on the host and 256 on a device; NULL:
     * exhausted. A device's block is used in the order of `stream`, the context's. */
    void *(*alloc)(void *user, size_t bytes, tg_place place, void *stream);
    /* Nothing that uses the block is under way any more. */
    void (*release)(void *user, void *block, size_t bytes, tg_place place, void *stream);
    void *user;
    bool serves_host; /* memory of the host, too */
} tg_allocator;

typedef struct tg_context_config {
    size_t size;            /* of the struct, see status.h */
    int threads;            /* CPU threads; 0 = all cores the process may use */
    tg_math math;           /* TG_MATH_TF32 by default */
    tg_log_fn log;          /* NULL: silent (the library itself never prints) */
    void *log_user;         /* handed to `log` as it is */
    tg_log_level log_level; /* messages below this level are dropped */
    /* Of a backend that computes on a device; where it does not, a device or a stream is an error
     * as soon as the backend is chosen. */
    int device;   /* its number among those the process sees; -1: that of `stream`, or the first. It
                     must be the calling thread's current device, as choosing the backend sets it */
    void *stream; /* a cudaStream_t of the caller, which must outlive the context; all work is
                     queued on it. The default stream is cudaStreamLegacy (which cannot be captured
                     as a graph). NULL: the context makes one */
    tg_allocator allocator; /* alloc NULL: memory from the system and the device's driver */
} tg_context_config;

TG_API void tg_context_config_init(tg_context_config *config, size_t size);
static inline tg_context_config tg_context_config_default(void) {
    tg_context_config config;
    tg_context_config_init(&config, sizeof config);
    return config;
}

/* `config` NULL: the default. After a failure *out is NULL; tg_context_error(NULL) explains it. */
TG_API TG_NODISCARD tg_status tg_context_create(const tg_context_config *config, tg_context **out);

/* Ends a context and sets *ctx to NULL; accepts NULL. Destroy everything made with it first; a
 * warning in the log names anything left. */
TG_API void tg_context_destroy(tg_context **ctx);

/* The sentence of the last failure, "" if none; valid until the next failing call on this context.
 * NULL: of the last call of this thread that failed without a context. */
TG_API const char *tg_context_error(const tg_context *ctx);

TG_API int tg_context_threads(const tg_context *ctx);

/* ---- Memory ledger: every allocation names a category. ---- */

typedef enum tg_mem_category {
    TG_MEM_WEIGHTS,
    TG_MEM_GRADIENTS,
    TG_MEM_OPTIMIZER, /* moments */
    TG_MEM_FACTORS,   /* Tucker and GaLore bases */
    TG_MEM_INDICES,   /* bitmaps and slice lists of the sparse parts */
    TG_MEM_ACTIVATIONS,
    TG_MEM_WORKSPACE,
    TG_MEM_DATA,
    TG_MEM_COMMUNICATION,
    TG_MEM_OTHER, /* handles, names, file headers: small */
    TG_MEM_CATEGORIES
} tg_mem_category;

typedef struct tg_mem_usage {
    size_t current[TG_MEM_CATEGORIES]; /* bytes held now */
    size_t peak[TG_MEM_CATEGORIES];    /* most ever held, each category for itself */
    size_t current_total;
    size_t peak_total;                 /* most ever held at one moment, all categories together */
    size_t at_peak[TG_MEM_CATEGORIES]; /* bytes of each at that moment */
    size_t blocks;                     /* allocations alive */
} tg_mem_usage;

/* Lower-case name of a category, as in reports: "weights", "gradients", .. */
TG_API const char *tg_mem_category_name(tg_mem_category category);

/* Bytes of "4096", "500MB" (powers of 1000) or "1.5 GiB" (powers of 1024), in any case; or false.
 */
TG_API bool tg_bytes_parse(const char *text, double *out);

TG_API tg_mem_usage tg_context_memory(const tg_context *ctx, tg_place place);

/* Resets the peaks to the current bytes. */
TG_API void tg_context_memory_reset_peak(tg_context *ctx);

TG_C_END
#endif
