/* Settings by name: one table row per key of a config struct, so that YAML files, JSON metadata and
 * command-line overrides share one parser and its errors.
 *
 * Values are text of a scalar or a list in YAML or JSON: 0.25, true, null, low_rank, "low_rank",
 * [43, 43, 43, 23]. The brackets of a list of numbers are optional: 16, 16 or 16x16. */
#ifndef TG_BASE_SETTING_H
#define TG_BASE_SETTING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/context.h"

enum { TG_SETTING_LIST = 8 }; /* maximum number of entries */

typedef struct tg_list_double {
    int count;
    double value[TG_SETTING_LIST];
} tg_list_double;

typedef struct tg_list_int {
    int count;
    int64_t value[TG_SETTING_LIST];
} tg_list_int;

typedef struct tg_list_grid {
    int count;
    tg_list_int grid[TG_SETTING_LIST]; /* points: one number for all dimensions, or one for each */
} tg_list_grid;

typedef struct tg_list_rows {
    int count; /* of numbers; -1: null */
    int width; /* of a row */
    double value[TG_SETTING_LIST * TG_SETTING_LIST];
} tg_list_rows;

typedef struct tg_list_text {
    int count;
    char text[TG_SETTING_LIST][512];
} tg_list_text;

typedef enum tg_setting_type {
    TG_SETTING_INT,         /* int */
    TG_SETTING_INT64,       /* int64_t */
    TG_SETTING_DOUBLE,      /* double */
    TG_SETTING_BYTES,       /* double: a number, or one with a unit: 500MB, 1.5 GiB */
    TG_SETTING_BOOL,        /* bool */
    TG_SETTING_ENUM,        /* an enum (int), by name */
    TG_SETTING_LIST_INT,    /* tg_list_int; a scalar is a list of one */
    TG_SETTING_LIST_DOUBLE, /* tg_list_double; a scalar is a list of one */
    TG_SETTING_TEXT,        /* char[high], terminated; null is the empty text */
    /* Lists that may be empty: [] and null. */
    TG_SETTING_GRID,      /* tg_list_int, written as 48x80, or 0 if it is empty */
    TG_SETTING_LIST_SIZE, /* tg_list_int */
    TG_SETTING_LIST_GRID, /* tg_list_grid: 16, [16, 48x80], [[48, 80], [24, 40]] */
    TG_SETTING_LIST_TEXT, /* tg_list_text */
    TG_SETTING_LIST_ROWS  /* tg_list_rows: [[1, 1], [0.5, 0.5]]; a flat list has rows of one */
} tg_setting_type;

typedef struct tg_choice {
    const char *name; /* several rows may map to one value: the first is the proper name */
    int value;
} tg_choice;

typedef struct tg_setting {
    const char *key;
    tg_setting_type type;
    size_t offset;            /* of the field in the config struct */
    const tg_choice *choices; /* TG_SETTING_ENUM: ends with a NULL name */
    double low, high; /* numbers: allowed range, both included; low > high: any finite one */
    const char *help; /* one line */
} tg_setting;

/* Rows for fields named like their keys. */
#define TG_SETTING_ROW(type_, owner, field, low, high, help)                                       \
    { #field, TG_SETTING_##type_, offsetof(owner, field), NULL, low, high, help }
#define TG_SETTING_CHOICE(owner, field, choices, help)                                             \
    { #field, TG_SETTING_ENUM, offsetof(owner, field), choices, 0, 0, help }

/* Sets one key of `config`. Errors begin with `section` ("opt", "fno"): an unknown key names the
 * nearest known one, a bad value reports what was expected and found. */
TG_NODISCARD tg_status tg_setting_set(tg_context *ctx, const char *section, const tg_setting *table,
                                      int rows, void *config, const char *key, const char *value);

/* The row of a key, or NULL. */
const tg_setting *tg_setting_find(const tg_setting *table, int rows, const char *key);

/* A field's value as text that tg_setting_set reads back to the same value; returns text. */
const char *tg_setting_get(const tg_setting *row, const void *config, char *text, size_t capacity);

/* Whether a value means `word`: the same word in any case, the same number, the same truth value
 * (true, yes, on, 1), or for "null" any name of nothing. */
bool tg_setting_means(const char *value, const char *word);

/* The values that a key accepts, in words ("an integer from 1 to 100", "one of full, half");
 * returns text. */
const char *tg_setting_values(const tg_setting *row, char *text, size_t capacity);

/* The proper names of an enum's values, in order; NULL past the last and for other types. */
const char *tg_setting_choice(const tg_setting *row, int index);

/* The name nearest to `text` by edit distance, or NULL if none is near. */
const char *tg_nearest_name(const char *text, const char *const *names, int count);

#endif
