/* Internals of a context: how every layer above reports errors and writes to the log. */
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
    struct tg_backend *backend;                        /* set by the backend layer */
    void (*backend_close)(struct tg_backend *backend); /* closes it, also set there; */
    void (*backend_release)(struct tg_backend *backend, void *block); /* frees its memory */
    char error[1024];
};

/* A context for another thread than the owner's: it shares the ledger and has its own errors, but
 * no backend and no log. It needs no closing and must not outlive the owner. */
tg_context tg_context_branch(const tg_context *ctx);
/* Passes an error from a branch to its owner; returns `status`. */
TG_NODISCARD tg_status tg_context_adopt(tg_context *ctx, const tg_context *branch,
                                        tg_status status);

/* Stores the sentence and returns `status`, so that callers can write
 * `return tg_fail(ctx, TG_E_SHAPE, "..", ..)`; the log gets the source place, too. ctx may be NULL.
 */
#define tg_fail(ctx, status, ...) tg_fail_at((ctx), (status), __FILE__, __LINE__, __VA_ARGS__)
tg_status tg_fail_at(tg_context *ctx, tg_status status, const char *file, int line,
                     const char *format, ...) TG_PRINTF(5, 6);

void tg_log(tg_context *ctx, tg_log_level level, const char *format, ...) TG_PRINTF(3, 4);

/* At the entry of a public function: returns TG_E_ARGUMENT and names the first NULL pointer. ctx
 * may be NULL. */
#define TG_NEED(ctx, ...)                                                                          \
    do {                                                                                           \
        const void *const needed_[] = {__VA_ARGS__};                                               \
        if (tg_find_null(needed_, sizeof needed_ / sizeof needed_[0]) >= 0) {                      \
            return tg_fail_null(ctx, needed_, #__VA_ARGS__, __func__, __FILE__, __LINE__);         \
        }                                                                                          \
    } while (0)
/* The same in a function that creates an object: *out is NULL on any failure. */
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

/* The same in a function that has nothing to release. */
#define TG_CALL(call)                                                                              \
    do {                                                                                           \
        const tg_status status_ = (call);                                                          \
        if (status_ != TG_OK) {                                                                    \
            return status_;                                                                        \
        }                                                                                          \
    } while (0)

/* Config structs begin with their size (see status.h), by which the library reads those of programs
 * compiled with other versions of the headers. */

/* Writes the first `size` bytes of the defaults, then zeros, and sets the size field; nothing if
 * that does not fit. */
void tg_sized_init(void *config, size_t size, const void *defaults, size_t known);

/* Overwrites the defaults in *out with the fields that `config` of type `type` has. The fields
 * before `first` have no default and must be present. */
#define TG_SIZED_READ(ctx, type, first, config, out)                                               \
    tg_sized_read((ctx), #type, (config), offsetof(type, first), sizeof(type), (out))
TG_NODISCARD tg_status tg_sized_read(tg_context *ctx, const char *type, const void *config,
                                     size_t least, size_t known, void *out);

/* Copies a setting that changed `before` to `after` into the caller's struct; an error if that
 * struct lacks the field. */
#define TG_SIZED_WRITE(ctx, type, key, before, after, config)                                      \
    tg_sized_write((ctx), #type, (key), (before), (after), sizeof(type), (config))
TG_NODISCARD tg_status tg_sized_write(tg_context *ctx, const char *type, const char *key,
                                      const void *before, const void *after, size_t known,
                                      void *config);

#endif
