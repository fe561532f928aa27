/* Config structs of other versions' sizes. */
#include "base/sized.h"

#include <string.h>

void tg_sized_init(void *config, size_t size, const void *defaults, size_t known) {
    if (!config || size < sizeof size) {
        return;
    }
    memset(config, 0, size);
    memcpy(config, defaults, size < known ? size : known);
    memcpy(config, &size, sizeof size);
}

tg_status tg_sized_read(tg_context *ctx, const char *type, const void *config, size_t least,
                        size_t known, void *out) {
    size_t size = 0;
    memcpy(&size, config, sizeof size);
    if (size == 0) {
        return tg_fail(ctx, TG_E_ARGUMENT, "%s: its size is 0; set it to sizeof(%s)", type, type);
    }
    if (size < least) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: its size is %zu, but fields without a default reach to %zu; set it to "
                       "sizeof(%s)",
                       type, size, least, type);
    }
    if (size > known) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: its size is %zu, but this library knows %zu bytes of it; the program "
                       "was compiled with newer headers, or the size is not set",
                       type, size, known);
    }
    memcpy(out, config, size);
    memcpy(out, &known, sizeof known);
    return TG_OK;
}

tg_status tg_sized_write(tg_context *ctx, const char *type, const char *key, const void *before,
                         const void *after, size_t known, void *config) {
    size_t size = 0;
    memcpy(&size, config, sizeof size);
    if (memcmp((const char *)before + size, (const char *)after + size, known - size) != 0) {
        return tg_fail(ctx, TG_E_ARGUMENT,
                       "%s: %s is not among its %zu bytes; compile the program with the headers of "
                       "this library",
                       type, key, size);
    }
    memcpy(config, after, size);
    memcpy(config, &size, sizeof size);
    return TG_OK;
}
