/* Settings: an ordered list of "section.key" = text, read from YAML files and overridden by hand.
 *
 * A setting is text; the reader of its key interprets it (tg_fno_config_set and similar functions
 * read the same text). Nested maps become dotted keys of any depth; a list is written in
 * one line, "[8, 8]"; nothing at all is "null". Each setting remembers where it came from, so that
 * an error can name the line of a file. */
#ifndef TGRAD_SETTINGS_H
#define TGRAD_SETTINGS_H

#include "tgrad/context.h"

TG_C_BEGIN

typedef struct tg_settings tg_settings;

TG_API TG_NODISCARD tg_status tg_settings_create(tg_context *ctx, tg_settings **out);
TG_API void tg_settings_destroy(tg_settings **settings);
/* All of `from`, with their origins. */
TG_API TG_NODISCARD tg_status tg_settings_copy(tg_context *ctx, const tg_settings *from,
                                               tg_settings **out);

/* Reads a YAML 1.1 or 1.2 file: one document whose root is a map. Anchors, aliases and merge keys
 * are resolved. A key twice, a tab as indentation, a list of maps, and a file that is too large,
 * too deep or grows too much by its aliases are errors that name file:line. */
TG_API TG_NODISCARD tg_status tg_settings_read_yaml(tg_context *ctx, const char *path,
                                                    tg_settings **out);

/* Sets a key: replaces its value and origin where it stands, or appends it. `origin`
 * ("demo.yaml:7", "command line") is for errors; NULL means "set by the program". */
TG_API TG_NODISCARD tg_status tg_settings_set(tg_settings *settings, const char *key,
                                              const char *value, const char *origin);

/* The value of a key, NULL if it is not there; it stays valid until the key is set again. */
TG_API const char *tg_settings_get(const tg_settings *settings, const char *key);

/* All of them in order; NULL beyond the last. */
TG_API int64_t tg_settings_count(const tg_settings *settings);
TG_API const char *tg_settings_key(const tg_settings *settings, int64_t index);
TG_API const char *tg_settings_value(const tg_settings *settings, int64_t index);
TG_API const char *tg_settings_origin(const tg_settings *settings, int64_t index);

/* YAML with the keys of a section together under it, in the order of their first key, which reads
 * as the same keys and values. _write is atomic; _text works like snprintf: truncates at the
 * capacity, always terminates (text may be NULL if capacity is 0), and returns the whole length. */
TG_API TG_NODISCARD tg_status tg_settings_write_yaml(tg_context *ctx, const char *path,
                                                     const tg_settings *settings);
TG_API size_t tg_settings_text(const tg_settings *settings, char *text, size_t capacity);

TG_C_END
#endif
