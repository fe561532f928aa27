/* Config structs begin with their size (see status.h), by which the library reads those of programs
 * compiled with other versions of the headers. */
#ifndef TG_BASE_SIZED_H
#define TG_BASE_SIZED_H

#include "base/context.h"

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
