/* An ordered set of names with look-up by hash, and the checks every name and text of a file needs.
 * Serves the archive (tensor names, metadata keys) and the list of datasets of an HDF5 file. */
#ifndef TG_IO_NAME_INDEX_H
#define TG_IO_NAME_INDEX_H

#include "base/context.h"

typedef struct tg_names {
    tg_context *ctx;
    char **items;      /* (count) in the order of insertion */
    int64_t *slots;    /* (slot_count) open addressing: number of the item + 1, 0 = free */
    int64_t count;     /* names held */
    int64_t capacity;  /* of items */
    size_t slot_count; /* 0 or a power of two > 2 * capacity */
} tg_names;

/* Adds a copy of the name; an empty one, one that is not UTF-8 or one that is already there is an
 * error, in which `what` ("tensor", "dataset") says what the name is for. */
tg_status tg_names_add(tg_names *names, const char *what, const char *name);

/* Number of the name, -1 if it is not there. */
int64_t tg_names_find(const tg_names *names, const char *name);

void tg_names_clear(tg_names *names);

/* True for well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. */
bool tg_utf8_is_valid(const char *text);

/* What a file that begins with these bytes (8 will do) is, for errors about one that should be
 * another: "an npy file", "a text file"; NULL: nobody knows. */
const char *tg_content_name(const void *bytes, size_t size);

/* Appends one of the names that a file has to a list of them for an error: "x, y, .. (9 in all)".
 * `index` counts from 0; names that find no room are left out. */
void tg_names_append(char *text, size_t capacity, int64_t index, int64_t count, const char *name);

#define TG_QUOTE 96 /* capacity that tg_quote needs */

/* The text for use in an error sentence: cut to a line's length, control characters and those that
 * turn the direction of writing as '?'. Names come from hostile files and must not drown the
 * sentence. Returns `quoted`. */
const char *tg_quote(const char *text, char quoted[TG_QUOTE]);

#endif
