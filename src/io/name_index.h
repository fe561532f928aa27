/* An ordered table of records by name, and the checks for every name and text of a file. */
#ifndef TG_IO_NAME_INDEX_H
#define TG_IO_NAME_INDEX_H

#include "base/context.h"

typedef struct tg_names {
    tg_context *ctx;
    size_t record_bytes; /* 0: names alone */
    char **items;        /* (count) in the order of insertion */
    char *records;       /* (count) beside them */
    int64_t *slots;      /* (slot_count) open addressing: number of the item + 1, 0 = free */
    int64_t count;       /* names held */
    int64_t capacity;    /* of items and records */
    size_t slot_count;   /* 0 or a power of two > 2 * capacity */
} tg_names;

/* Adds copies of the name and its record; an empty, duplicate or non-UTF-8 name is an error that
 * calls it `kind` ("tensor", "dataset"). */
TG_NODISCARD tg_status tg_names_add(tg_names *names, const char *kind, const char *name,
                                    const void *record);

/* Number of the name, -1 if it is not there. */
int64_t tg_names_find(const tg_names *names, const char *name);

/* A name, and its record until the next one is added; NULL outside 0 .. count - 1. */
const char *tg_names_item(const tg_names *names, int64_t index);
void *tg_names_record(const tg_names *names, int64_t index);
/* The name of a record. */
const char *tg_names_item_of(const tg_names *names, const void *record);

/* The error for a name that is not there, with a list of those that are: `kind` as in add. */
tg_status tg_names_missing(const tg_names *names, const char *label, const char *kind,
                           const char *name);

void tg_names_clear(tg_names *names);

/* Whether text is well-formed UTF-8: no overlong forms, no surrogates, at most U+10FFFF. */
bool tg_utf8_is_valid(const char *text);

/* The type of a file by its first bytes (8 suffice), for errors about an unexpected type: "an npy
 * file", "a text file"; NULL if unknown. */
const char *tg_content_name(const void *bytes, size_t size);

/* Appends a name to a list for an error: "x, y, .. (9 in all)". `index` counts from 0; names that
 * do not fit are left out. */
void tg_names_append(char *text, size_t capacity, int64_t index, int64_t count, const char *name);

#define TG_QUOTE 96 /* capacity that tg_quote needs */

/* Text for an error message: cut to a line's length, with '?' for control characters and those that
 * change the writing direction. Names come from untrusted files and must not drown the message.
 * Returns `quoted`. */
const char *tg_quote(const char *text, char quoted[TG_QUOTE]);
/* The same in memory of the enclosing block. */
#define TG_QUOTED(text) tg_quote((text), (char[TG_QUOTE]){0})

#endif
