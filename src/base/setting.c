/* Parsing of settings from text. */
#include "base/setting.h"

#include <ctype.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/minmax.h"

enum { WORD = 64 };

/* ---- names ---- */

enum { MAX_WORD = 63 };

/* Copies a word in lower case; returns its length, or MAX_WORD + 1 if it is NULL or longer. */
static int take_word(const char *text, char word[MAX_WORD]) {
    const int length = text ? (int)strnlen(text, MAX_WORD + 1) : MAX_WORD + 1;
    for (int i = 0; i < length && length <= MAX_WORD; i++) {
        word[i] = (char)tolower((unsigned char)text[i]);
    }
    return length;
}

/* Optimal string alignment: D[i][j] is the least number of edits that turn the first i letters of a
 * into the first j letters of b; swapping two neighbours counts once. Three rows of D are kept. */
int tg_edit_distance(const char *first, const char *second) {
    char a[MAX_WORD], b[MAX_WORD];
    const int m = take_word(first, a), n = take_word(second, b);
    if (m > MAX_WORD || n > MAX_WORD) {
        return INT_MAX;
    }
    int64_t rows[3][MAX_WORD + 1];
    int64_t *before = rows[0], *previous = rows[1], *current = rows[2];
    for (int j = 0; j <= n; j++) {
        previous[j] = j;
    }
    for (int i = 1; i <= m; i++) {
        current[0] = i;
        for (int j = 1; j <= n; j++) {
            const int cost = a[i - 1] != b[j - 1];
            current[j] = tg_min(previous[j - 1] + cost, tg_min(previous[j], current[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                current[j] = tg_min(current[j], before[j - 2] + 1);
            }
        }
        int64_t *recycled = before;
        before = previous;
        previous = current;
        current = recycled;
    }
    return (int)previous[n];
}

const char *tg_nearest_name(const char *text, const char *const *names, int count) {
    const char *best = NULL;
    int best_distance = (int)strnlen(text, WORD) / 2 + 1;
    for (int i = 0; i < count; i++) {
        const int distance = tg_edit_distance(text, names[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best;
}

/* Copies the value without surrounding blanks and quotes; false if it is too long. */
static bool bare_word(const char *value, char *word, size_t capacity) {
    while (isspace((unsigned char)*value)) {
        value++;
    }
    size_t length = strlen(value);
    while (length > 0 && isspace((unsigned char)value[length - 1])) {
        length--;
    }
    if (length >= 2 && (value[0] == '"' || value[0] == '\'') && value[length - 1] == value[0]) {
        value++;
        length -= 2;
    }
    if (length >= capacity) {
        return false;
    }
    memmove(word, value, length);
    word[length] = '\0';
    return true;
}

/* A finite number and nothing else. */
static bool parse_double(const char *word, double *out) {
    char *end = NULL;
    if (*word == '\0' || isspace((unsigned char)*word)) {
        return false;
    }
    *out = strtod(word, &end);
    return *end == '\0' && isfinite(*out);
}

bool tg_bytes_parse(const char *text, double *out) {
    static const char letters[] = "kmgt";
    char *end = NULL;
    if (!text || !out || (!isdigit((unsigned char)*text) && *text != '.')) {
        return false;
    }
    *out = strtod(text, &end);
    while (*end == ' ') {
        end++;
    }
    const char *letter = *end ? strchr(letters, tolower((unsigned char)*end)) : NULL;
    if (letter) {
        end++;
        const bool binary = tolower((unsigned char)*end) == 'i';
        end += binary;
        *out *= pow(binary ? 1024.0 : 1000.0, (double)(letter - letters + 1));
    }
    end += tolower((unsigned char)*end) == 'b';
    return *end == '\0' && isfinite(*out);
}

/* Up to 2^53, beyond which doubles skip integers. */
static bool parse_integer(const char *word, int64_t *out) {
    char *end = NULL;
    double value = 0.0;
    if (!parse_double(word, &value) || value != floor(value) || fabs(value) > 0x1p53) {
        return false;
    }
    *out = (int64_t)value;
    const long long exact = strtoll(word, &end, 10);
    return *end != '\0' || exact == *out;
}

static bool parse_bool(const char *word, bool *out) {
    static const char *const yes[] = {"true", "yes", "on", "1"};
    static const char *const no[] = {"false", "no", "off", "0"};
    for (int i = 0; i < 4; i++) {
        if (strcasecmp(word, yes[i]) == 0 || strcasecmp(word, no[i]) == 0) {
            *out = strcasecmp(word, yes[i]) == 0;
            return true;
        }
    }
    return false;
}

bool tg_setting_means(const char *value, const char *word) {
    static const char *const nothing[] = {"null", "none", "~", ""};
    char found[WORD];
    double number, same;
    bool truth, wanted;
    if (!bare_word(value, found, sizeof found)) {
        return false;
    }
    for (int i = 0; i < 4 && strcmp(word, "null") == 0; i++) {
        if (strcasecmp(found, nothing[i]) == 0) {
            return true;
        }
    }
    if (parse_double(found, &number) && parse_double(word, &same)) {
        return number == same;
    }
    if (parse_bool(found, &truth) && parse_bool(word, &wanted)) {
        return truth == wanted;
    }
    return strcasecmp(found, word) == 0;
}

/* ---- lists ---- */

/* The entries of a list, without blanks and quotes around them. */
typedef struct entries {
    bool is_null, is_blank; /* the word null; nothing at all */
    int count;
    char *at[TG_SETTING_LIST];
    char word[TG_SETTING_LIST * 520]; /* where they are */
} entries;

/* Cuts off the next entry: up to a separator outside brackets and quotes. *rest is NULL after the
 * last one. */
static char *cut_entry(char **rest, char separator) {
    char *const entry = *rest;
    int depth = 0;
    char quote = '\0', *at = entry;
    for (; *at && (quote || depth > 0 || *at != separator); at++) {
        if (quote || *at == '"' || *at == '\'') {
            quote = quote == *at ? '\0' : quote ? quote : *at;
        } else {
            depth += (*at == '[' || *at == '(') - (*at == ']' || *at == ')');
        }
    }
    *rest = *at ? at + 1 : NULL;
    *at = '\0';
    return entry;
}

/* Splits "[a, b]", "(a, b)", "a, b" or a single "a"; of numbers also "axb". "[]" and null have no
 * entries. False if there are too many. */
static bool split(const char *value, bool are_numbers, entries *out) {
    *out = (entries){.count = 0};
    if (!bare_word(value, out->word, sizeof out->word)) {
        return false;
    }
    char *rest = out->word;
    const size_t length = strlen(rest);
    const bool is_closed = length >= 2 && ((rest[0] == '[' && rest[length - 1] == ']') ||
                                           (rest[0] == '(' && rest[length - 1] == ')'));
    if (is_closed) {
        rest[length - 1] = '\0';
        rest++;
    }
    out->is_null = strcmp(out->word, "null") == 0;
    out->is_blank = length == 0;
    rest = out->is_null || rest[strspn(rest, " ")] == '\0' ? NULL : rest;
    const bool at_x = rest && are_numbers && !strchr(rest, ',') && strchr(rest, 'x');
    while (rest) {
        char *entry = cut_entry(&rest, at_x ? 'x' : ',');
        if (out->count == TG_SETTING_LIST || !bare_word(entry, entry, strlen(entry) + 1)) {
            return false;
        }
        out->at[out->count++] = entry;
    }
    return true;
}

static bool is_in_range(const tg_setting *row, double value) {
    return row->low > row->high || (value >= row->low && value <= row->high);
}

/* The error for a value that does not fit its row. */
static tg_status bad_value(tg_context *ctx, const char *section, const tg_setting *row,
                           const char *value) {
    enum { MAX_CHOICES = 32 };
    char expected[384];
    const char *names[MAX_CHOICES];
    int count = 0;
    while (count < MAX_CHOICES && (names[count] = tg_setting_choice(row, count))) {
        count++;
    }
    const char *nearest = tg_nearest_name(value, names, count);
    return tg_fail(ctx, TG_E_CONFIG, "%s.%s: expected %s, found '%.200s'%s%s%s", section, row->key,
                   tg_setting_values(row, expected, sizeof expected), value,
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static bool may_be_empty(const tg_setting *row) {
    return row->type >= TG_SETTING_GRID;
}

/* A list of numbers that the row allows, or -1. */
static int read_numbers(const tg_setting *row, const char *value, double *out) {
    const bool is_real = row->type == TG_SETTING_LIST_DOUBLE || row->type == TG_SETTING_LIST_ROWS;
    entries list;
    if (!split(value, true, &list) || list.is_blank) {
        return -1;
    }
    for (int i = 0; i < list.count; i++) {
        if (!parse_double(list.at[i], &out[i]) || !is_in_range(row, out[i]) ||
            (!is_real && (out[i] != floor(out[i]) || fabs(out[i]) > 0x1p53))) {
            return -1;
        }
    }
    return list.count > 0 || may_be_empty(row) ? list.count : -1;
}

static bool store_integers(const tg_setting *row, tg_list_int *list, const char *value) {
    double numbers[TG_SETTING_LIST];
    const int count = read_numbers(row, value, numbers);
    if (count < 0) {
        return false;
    }
    *list = (tg_list_int){.count = count};
    for (int i = 0; i < count; i++) {
        list->value[i] = (int64_t)numbers[i];
    }
    return true;
}

static bool store_doubles(const tg_setting *row, tg_list_double *list, const char *value) {
    tg_list_double read = {.count = 0};
    read.count = read_numbers(row, value, read.value);
    *list = read.count < 0 ? *list : read;
    return read.count >= 0;
}

static bool store_grids(const tg_setting *row, tg_list_grid *field, const char *value) {
    tg_list_grid list = {.count = 0};
    entries read;
    if (!split(value, false, &read)) {
        return false;
    }
    for (; list.count < read.count; list.count++) {
        tg_list_int *grid = &list.grid[list.count];
        if (!store_integers(row, grid, read.at[list.count]) || grid->count == 0) {
            return false;
        }
    }
    *field = list;
    return true;
}

static bool store_texts(tg_list_text *field, const char *value) {
    tg_list_text list = {.count = 0};
    entries read;
    if (!split(value, false, &read)) {
        return false;
    }
    for (; list.count < read.count; list.count++) {
        const char *text = read.at[list.count];
        if (!*text || strlen(text) >= sizeof list.text[0]) {
            return false;
        }
        memcpy(list.text[list.count], text, strlen(text));
    }
    *field = list;
    return true;
}

/* Rows of the same number of entries; null is none of them. */
static bool store_rows(const tg_setting *row, tg_list_rows *field, const char *value) {
    tg_list_rows list = {.count = 0};
    entries read;
    if (!split(value, false, &read) || read.is_blank) {
        return false;
    }
    for (int i = 0; i < read.count; i++) {
        double numbers[TG_SETTING_LIST];
        const int width = read_numbers(row, read.at[i], numbers);
        list.width = i == 0 ? width : list.width;
        if (width < 1 || width != list.width) {
            return false;
        }
        memcpy(list.value + list.count, numbers, (size_t)width * sizeof *numbers);
        list.count += width;
    }
    list.count = read.is_null ? -1 : list.count;
    *field = list;
    return true;
}

/* Text that fits the field; the word null is the empty text. */
static bool store_text(const tg_setting *row, char *field, const char *value) {
    const size_t capacity = (size_t)row->high;
    char word[4096];
    if (!bare_word(value, word, sizeof word) || strlen(word) >= capacity) {
        return false;
    }
    snprintf(field, capacity, "%s", strcmp(word, "null") == 0 ? "" : word);
    return true;
}

static bool store_scalar(const tg_setting *row, void *field, const char *word) {
    int64_t integer = 0;
    double number = 0.0;
    switch (row->type) {
    case TG_SETTING_BOOL:
        return parse_bool(word, field);
    case TG_SETTING_ENUM:
        for (const tg_choice *c = row->choices; c->name; c++) {
            if (strcasecmp(word, c->name) == 0) {
                *(int *)field = c->value;
                return true;
            }
        }
        return false;
    case TG_SETTING_INT:
    case TG_SETTING_INT64: {
        const bool is_short = row->type == TG_SETTING_INT;
        if (!parse_integer(word, &integer) || !is_in_range(row, (double)integer) ||
            (is_short && (integer < INT_MIN || integer > INT_MAX))) {
            return false;
        }
        if (is_short) {
            *(int *)field = (int)integer;
        } else {
            *(int64_t *)field = integer;
        }
        return true;
    }
    default:
        if (!(row->type == TG_SETTING_BYTES ? tg_bytes_parse : parse_double)(word, &number) ||
            !is_in_range(row, number)) {
            return false;
        }
        *(double *)field = number;
        return true;
    }
}

static bool store(const tg_setting *row, void *field, const char *value) {
    entries list;
    switch (row->type) {
    case TG_SETTING_GRID:
    case TG_SETTING_LIST_INT:
    case TG_SETTING_LIST_SIZE:
        return store_integers(row, field, value);
    case TG_SETTING_LIST_DOUBLE:
        return store_doubles(row, field, value);
    case TG_SETTING_LIST_GRID:
        return store_grids(row, field, value);
    case TG_SETTING_LIST_TEXT:
        return store_texts(field, value);
    case TG_SETTING_LIST_ROWS:
        return store_rows(row, field, value);
    case TG_SETTING_TEXT:
        return store_text(row, field, value);
    default: /* "[0.5]", as published configurations write some numbers, means 0.5 */
        return split(value, false, &list) && (list.count == 1 || list.is_null) &&
               store_scalar(row, field, list.is_null ? "null" : list.at[0]);
    }
}

const tg_setting *tg_setting_find(const tg_setting *table, int rows, const char *key) {
    for (int i = 0; i < rows; i++) {
        if (strcmp(table[i].key, key) == 0) {
            return &table[i];
        }
    }
    return NULL;
}

/* Appends to a text that may be full already. */
static void append(char *text, size_t capacity, const char *format, ...) TG_PRINTF(3, 4);

static void append(char *text, size_t capacity, const char *format, ...) {
    const size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, capacity - used, format, args);
    va_end(args);
}

/* The shortest decimal that reads back to the same double. */
static void append_number(char *text, size_t capacity, double value) {
    char number[40];
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(number, sizeof number, "%.*g", digits, value);
        if (strtod(number, NULL) == value) {
            break;
        }
    }
    append(text, capacity, "%s", number);
}

const char *tg_setting_choice(const tg_setting *row, int index) {
    int proper = 0;
    for (const tg_choice *c = row->choices; c && c->name; c++) {
        const tg_choice *first = row->choices;
        while (first->value != c->value) {
            first++;
        }
        if (first == c && proper++ == index) {
            return c->name;
        }
    }
    return NULL;
}

const char *tg_setting_values(const tg_setting *row, char *text, size_t capacity) {
    static const char *const kinds[] = {
        [TG_SETTING_INT] = "an integer",
        [TG_SETTING_INT64] = "an integer",
        [TG_SETTING_DOUBLE] = "a finite number",
        [TG_SETTING_BYTES] = "a number of bytes (500MB, 1.5GiB)",
        [TG_SETTING_BOOL] = "true or false",
        [TG_SETTING_ENUM] = "one of ",
        [TG_SETTING_LIST_INT] = "an integer or a list of integers",
        [TG_SETTING_LIST_DOUBLE] = "a number or a list of numbers",
        [TG_SETTING_TEXT] = "a text of at most ",
        [TG_SETTING_GRID] = "a grid (16, 48x80 or [48, 80])",
        [TG_SETTING_LIST_SIZE] = "an integer or a list of integers",
        [TG_SETTING_LIST_GRID] = "a grid or a list of grids (16 or [16, 48x80])",
        [TG_SETTING_LIST_TEXT] = "a text or a list of texts",
        [TG_SETTING_LIST_ROWS] = "a list of lists of numbers ([[1, 1], [0.5, 0.5]])"};
    text[0] = '\0';
    append(text, capacity, "%s", kinds[row->type]);
    if (row->type == TG_SETTING_TEXT) {
        append(text, capacity, "%d characters", (int)row->high - 1);
    } else if (row->type == TG_SETTING_ENUM) {
        for (int i = 0; tg_setting_choice(row, i); i++) {
            append(text, capacity, "%s%s", i ? ", " : "", tg_setting_choice(row, i));
        }
    } else if (row->type != TG_SETTING_BOOL && row->type != TG_SETTING_LIST_TEXT &&
               row->low <= row->high) {
        append(text, capacity, " from ");
        append_number(text, capacity, row->low);
        append(text, capacity, " to ");
        append_number(text, capacity, row->high);
    }
    return text;
}

/* "48x80"; an empty grid is 0. */
static void append_grid(char *text, size_t capacity, const tg_list_int *grid) {
    for (int i = 0; i < grid->count; i++) {
        append(text, capacity, "%s%lld", i ? "x" : "", (long long)grid->value[i]);
    }
    append(text, capacity, "%s", grid->count == 0 ? "0" : "");
}

/* A text as a list entry, quoted if it would not read back otherwise. */
static void append_word(char *text, size_t capacity, const char *word) {
    const char *quote = !word[strcspn(word, ",[]()'\" ")] ? "" : strchr(word, '"') ? "'" : "\"";
    append(text, capacity, "%s%s%s", quote, word, quote);
}

static void append_list(char *text, size_t capacity, const tg_setting *row, const void *field) {
    const int count = *(const int *)field; /* first in every kind of list */
    const bool is_plain = count == 1 && row->type != TG_SETTING_LIST_TEXT;
    append(text, capacity, "%s", is_plain ? "" : "[");
    for (int i = 0; i < count; i++) {
        append(text, capacity, "%s", i ? ", " : "");
        if (row->type == TG_SETTING_LIST_GRID) {
            append_grid(text, capacity, &((const tg_list_grid *)field)->grid[i]);
        } else if (row->type == TG_SETTING_LIST_TEXT) {
            append_word(text, capacity, ((const tg_list_text *)field)->text[i]);
        } else {
            append_number(text, capacity,
                          row->type == TG_SETTING_LIST_DOUBLE
                              ? ((const tg_list_double *)field)->value[i]
                              : (double)((const tg_list_int *)field)->value[i]);
        }
    }
    append(text, capacity, "%s", is_plain ? "" : "]");
}

static void append_rows(char *text, size_t capacity, const tg_list_rows *list) {
    if (list->count < 1) {
        append(text, capacity, "%s", list->count < 0 ? "null" : "[]");
        return;
    }
    for (int i = 0; i < list->count; i++) {
        const bool begins = i % list->width == 0, is_deep = list->width > 1;
        append(text, capacity, "%s%s%s", i == 0 ? "[" : "",
               i > 0 && begins ? is_deep ? "], " : ", " : "", begins ? is_deep ? "[" : "" : ", ");
        append_number(text, capacity, list->value[i]);
    }
    append(text, capacity, "%s", list->width > 1 ? "]]" : "]");
}

const char *tg_setting_get(const tg_setting *row, const void *config, char *text, size_t capacity) {
    const void *field = (const char *)config + row->offset;
    text[0] = '\0';
    switch (row->type) {
    case TG_SETTING_INT:
        append(text, capacity, "%d", *(const int *)field);
        break;
    case TG_SETTING_INT64:
        append(text, capacity, "%lld", (long long)*(const int64_t *)field);
        break;
    case TG_SETTING_DOUBLE:
    case TG_SETTING_BYTES:
        append_number(text, capacity, *(const double *)field);
        break;
    case TG_SETTING_BOOL:
        append(text, capacity, "%s", *(const bool *)field ? "true" : "false");
        break;
    case TG_SETTING_TEXT:
        append(text, capacity, "%s", *(const char *)field ? (const char *)field : "null");
        break;
    case TG_SETTING_ENUM: {
        const tg_choice *c = row->choices;
        while (c->name && c->value != *(const int *)field) {
            c++;
        }
        append(text, capacity, "%s", c->name ? c->name : "?"); /* no name reads back from "?" */
        break;
    }
    case TG_SETTING_GRID:
        append_grid(text, capacity, field);
        break;
    case TG_SETTING_LIST_ROWS:
        append_rows(text, capacity, field);
        break;
    default:
        append_list(text, capacity, row, field);
    }
    return text;
}

tg_status tg_setting_set(tg_context *ctx, const char *section, const tg_setting *table, int rows,
                         void *config, const char *key, const char *value) {
    const char *nearest = NULL;
    const tg_setting *found = tg_setting_find(table, rows, key);
    if (found) {
        return store(found, (char *)config + found->offset, value)
                   ? TG_OK
                   : bad_value(ctx, section, found, value);
    }
    for (int i = 0; i < rows; i++) {
        const char *const pair[2] = {table[i].key, nearest};
        nearest = tg_nearest_name(key, pair, nearest ? 2 : 1);
    }
    if (nearest) {
        return tg_fail(ctx, TG_E_CONFIG, "%s.%.100s: unknown key; did you mean %s.%s?", section,
                       key, section, nearest);
    }
    return tg_fail(ctx, TG_E_CONFIG, "%s.%.100s: unknown key", section, key);
}
