#include "backend/path.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/context.h"

static bool is_logged(const tg_backend *be) {
    return be->ctx && be->ctx->config.log && be->ctx->config.log_level <= TG_LOG_DEBUG;
}

void tg_path_report(const tg_backend *be, const char *op, tg_path path, const char *sizes, ...) {
    char text[160];
    va_list args;
    if (!is_logged(be)) {
        return;
    }
    va_start(args, sizes);
    vsnprintf(text, sizeof text, sizes, args);
    va_end(args);
    tg_log(be->ctx, TG_LOG_DEBUG, TG_PATH_MARK "%s\t%s\t%s\t%s", op, text, path.name, path.kernels);
}

void tg_path_report_modes(const tg_backend *be, const char *op, tg_path path,
                          const tg_multimode *modes) {
    char dims[64], ranks[64];
    if (is_logged(be)) {
        const tg_shape from = tg_shape_of(modes->ndim, modes->dim);
        const tg_shape to = tg_shape_of(modes->ndim, modes->rank);
        tg_path_report(be, op, path, "%s to %s", tg_shape_text(&from, dims, sizeof dims),
                       tg_shape_text(&to, ranks, sizeof ranks));
    }
}

void tg_path_report_mlp(const tg_backend *be, const tg_mlp *op, bool backward, tg_path path) {
    tg_path_report(be, backward ? "mlp backward" : "mlp", path, "%lld to %lld to %lld",
                   (long long)op->in, (long long)op->hidden, (long long)op->out);
}

void tg_path_report_skip(const tg_backend *be, const tg_skip *op, bool backward, tg_path path) {
    tg_path_report(be, backward ? "skip backward" : "skip", path, "%lld to %lld", (long long)op->in,
                   (long long)op->out);
}
