#include "backend/path.h"

#include <stdarg.h>
#include <stdio.h>

void tg_path_say(tg_context *ctx, const char *op, const tg_path *path, const char *subject, ...) {
    char sizes[160];
    va_list args;
    va_start(args, subject);
    vsnprintf(sizes, sizeof sizes, subject, args);
    va_end(args);
    tg_log(ctx, TG_LOG_DEBUG, TG_PATH_MARK "%s\t%s\t%s\t%s", op, sizes, path->name, path->kernels);
}
