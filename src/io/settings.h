/* Text of settings, as shared by the list, its YAML writer and its YAML reader. */
#ifndef TG_IO_SETTINGS_H
#define TG_IO_SETTINGS_H

#include "tgrad/settings.h"

#include <stdbool.h>

enum {
    TG_SETTINGS_DEPTH = 16,     /* maximum sections in a key */
    TG_SETTINGS_KEY = 256,      /* bytes of a key, terminated */
    TG_SETTINGS_COUNT = 10000,  /* maximum number of settings */
    TG_SETTINGS_VALUE = 1 << 16 /* bytes of a value, terminated */
};

/* As tg_settings_read_yaml, from memory; `label`, or "memory", stands for the path in errors and
 * origins. */
TG_NODISCARD tg_status tg_settings_parse_yaml(tg_context *ctx, const char *label, const void *bytes,
                                              size_t size, tg_settings **out);

/* The number of a key; -1 if it is not set. */
int64_t tg_settings_find(const tg_settings *settings, const char *key);

/* Whether setting `later` was set after setting `earlier` and by another source (a file, the
 * command line, a program). */
bool tg_settings_outdoes(const tg_settings *settings, int64_t later, int64_t earlier);

/* A text sink like snprintf's: it keeps as much as fits and counts everything. */
typedef struct tg_text {
    char *bytes;     /* owned by the caller; may be NULL if capacity is 0 */
    size_t capacity; /* of bytes */
    size_t length;   /* of all text added; the text is complete if this is below capacity */
} tg_text;

/* The text is terminated after each call if there is any room. */
void tg_text_add(tg_text *text, const char *bytes, size_t length);

/* Appends the word, plain if possible, otherwise double-quoted with escapes. */
void tg_text_add_word(tg_text *text, const char *word, size_t length);

#endif
