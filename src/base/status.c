/* Names of the status codes. */
#include "tgrad/status.h"

const char *tg_status_name(tg_status status) {
    static const char *const names[TG_STATUS_COUNT] = {
        [TG_OK] = "ok",
        [TG_E_ARGUMENT] = "bad argument",
        [TG_E_SHAPE] = "bad shape",
        [TG_E_DTYPE] = "bad dtype",
        [TG_E_MEMORY] = "out of memory",
        [TG_E_IO] = "input/output error",
        [TG_E_FORMAT] = "bad file content",
        [TG_E_CONFIG] = "bad setting",
        [TG_E_NUMERIC] = "numerical failure",
        [TG_E_UNSUPPORTED] = "not supported",
        [TG_E_BACKEND] = "backend failure",
    };
    if ((int)status < 0 || status >= TG_STATUS_COUNT) {
        return "unknown status";
    }
    return names[status];
}
