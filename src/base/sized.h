/* Config structs begin with their size (see status.h): how the library reads them, whatever version
 * of the headers the program was compiled with. */
#ifndef TG_BASE_SIZED_H
#define TG_BASE_SIZED_H

#include "base/context.h"

/* The first `size` bytes of the defaults, then zeros; size itself in front. Nothing without room
 * for that. */
void tg_sized_init(void *config, size_t size, const void *defaults, size_t known);

/* *out, which holds the defaults, gets what `config` has of a `type`. The fields in front of
 * `first` have no default, and must be there. */
#define TG_SIZED_READ(ctx, type, first, config, out)                                               \
    tg_sized_read((ctx), #type, (config), offsetof(type, first), sizeof(type), (out))
TG_NODISCARD tg_status tg_sized_read(tg_context *ctx, const char *type, const void *config,
                                     size_t least, size_t known, void *out);

/* The way back after a setting by its key changed `before` to `after`: an error if that is a field
 * that the caller's struct has not. */
#define TG_SIZED_WRITE(ctx, type, key, before, after, config)                                      \
    tg_sized_write((ctx), #type, (key), (before), (after), sizeof(type), (config))
TG_NODISCARD tg_status tg_sized_write(tg_context *ctx, const char *type, const char *key,
                                      const void *before, const void *after, size_t known,
                                      void *config);

#endif
