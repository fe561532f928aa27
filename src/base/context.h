/* Inside of a context, and the way every layer above raises errors and writes to the log. */
#ifndef TG_BASE_CONTEXT_H
#define TG_BASE_CONTEXT_H

#include <stdbool.h>

#include "tgrad/context.h"

struct tg_backend;
struct tg_ledger;

struct tg_context {
    tg_context_config config;
    int threads;
    struct tg_ledger *ledger;
    struct tg_backend *backend;                                       /* set by the backend layer */
    void (*backend_close)(struct tg_backend *backend);                /* how to end it, likewise, */
    void (*backend_release)(struct tg_backend *backend, void *block); /* and to free its memory */
    char error[1024];
    char error_place[256];
};

/* A context for a thread beside the owner's: it counts memory in the same ledger and has errors of
 * its own, but no backend and no log. It needs no end, and may not outlive the owner. */
tg_context tg_context_branch(const tg_context *ctx);
/* Hands the failure of a branch on to the owner; returns `status`. */
TG_NODISCARD tg_status tg_context_adopt(tg_context *ctx, const tg_context *branch,
                                        tg_status status);

/* Stores the sentence with its place and returns `status`, so that callers write
 * `return tg_fail(ctx, TG_E_SHAPE, "..", ..)`. ctx may be NULL. */
#define tg_fail(ctx, status, ...) tg_fail_at((ctx), (status), __FILE__, __LINE__, __VA_ARGS__)
tg_status tg_fail_at(tg_context *ctx, tg_status status, const char *file, int line,
                     const char *format, ...) TG_PRINTF(5, 6);

void tg_log(tg_context *ctx, tg_log_level level, const char *format, ...) TG_PRINTF(3, 4);

/* At the entry of a public function: returns TG_E_ARGUMENT, with a sentence that names the first of
 * the pointers that is NULL, or goes on. ctx may be NULL. */
#define TG_NEED(ctx, ...)                                                                          \
    do {                                                                                           \
        const void *const needed_[] = {__VA_ARGS__};                                               \
        if (tg_find_null(needed_, sizeof needed_ / sizeof needed_[0]) >= 0) {                      \
            return tg_fail_null(ctx, needed_, #__VA_ARGS__, __func__, __FILE__, __LINE__);         \
        }                                                                                          \
    } while (0)
/* The same in a function that makes something: *out is NULL whatever is missing or fails later. */
#define TG_NEED_OUT(ctx, out, ...)                                                                 \
    do {                                                                                           \
        TG_NEED(ctx, out);                                                                         \
        *(out) = NULL;                                                                             \
        TG_NEED(ctx, __VA_ARGS__);                                                                 \
    } while (0)
/* Index of the first NULL, or -1. */
int tg_find_null(const void *const *pointers, size_t count);
tg_status tg_fail_null(tg_context *ctx, const void *const *pointers, const char *names,
                       const char *function, const char *file, int line);

/* In a function with `tg_status status` and a label `fail:`. */
#define TG_TRY(call)                                                                               \
    do {                                                                                           \
        status = (call);                                                                           \
        if (status != TG_OK) {                                                                     \
            goto fail;                                                                             \
        }                                                                                          \
    } while (0)

/* The same in a function that has nothing to release: what fails is returned. */
#define TG_CALL(call)                                                                              \
    do {                                                                                           \
        const tg_status status_ = (call);                                                          \
        if (status_ != TG_OK) {                                                                    \
            return status_;                                                                        \
        }                                                                                          \
    } while (0)

#endif
