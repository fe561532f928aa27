/* Which of its paths a backend takes for a call, told to the log at level debug: nothing is put
 * together where nobody listens. */
#ifndef TG_BACKEND_PATH_H
#define TG_BACKEND_PATH_H

#include "base/context.h"

/* Every such message begins with this; its parts are separated by tabs. */
#define TG_PATH_MARK "path\t"

/* A way to run an op. */
typedef struct tg_path {
    const char *name;
    const char *kernels; /* or libraries, in the order in which they run */
} tg_path;

static inline bool tg_path_is_asked(const tg_context *ctx) {
    return ctx && ctx->config.log && ctx->config.log_level <= TG_LOG_DEBUG;
}

/* `subject`: the sizes that the choice went by. */
#define TG_PATH_SAY(ctx, op, path, ...)                                                            \
    do {                                                                                           \
        if (tg_path_is_asked(ctx)) {                                                               \
            tg_path_say((ctx), (op), (path), __VA_ARGS__);                                         \
        }                                                                                          \
    } while (0)
void tg_path_say(tg_context *ctx, const char *op, const tg_path *path, const char *subject, ...)
    TG_PRINTF(4, 5);

#endif
