/* Text of settings: what the list, its YAML writer and its YAML reader agree on. */
#ifndef TG_IO_SETTINGS_H
#define TG_IO_SETTINGS_H

#include "tgrad/settings.h"

#include <stdbool.h>

enum {
    TG_SETTINGS_DEPTH = 16,     /* sections in a key at most */
    TG_SETTINGS_KEY = 256,      /* bytes of a key, with its end */
    TG_SETTINGS_COUNT = 10000,  /* settings at most */
    TG_SETTINGS_VALUE = 1 << 16 /* bytes of a value, with its end */
};

/* Whether setting number `later` was set after number `earlier`, and by another source: a file, the
 * command line, a program. */
bool tg_settings_outdoes(const tg_settings *settings, int64_t later, int64_t earlier);

/* A sink for text like snprintf's: what fits is kept, everything is counted. */
typedef struct tg_text {
    char *bytes;     /* of the caller; may be NULL if capacity is 0 */
    size_t capacity; /* of bytes */
    size_t length;   /* of all that was added; the text is whole if it is below capacity */
} tg_text;

/* The text is terminated after each call if there is any room. */
void tg_text_add(tg_text *text, const char *bytes, size_t length);

/* Adds the word as it is if it is plain, or in double quotes with escapes. */
void tg_text_add_word(tg_text *text, const char *word, size_t length);

#endif
