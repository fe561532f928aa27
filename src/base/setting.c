/* Parsing of settings from text. */
#include "base/setting.h"

#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { WORD = 64 };

/* Edit distance with insertions, deletions and changes, case ignored; words longer than WORD - 1
 * are compared by their first letters. */
static int edit_distance(const char *a, const char *b) {
    int row[WORD];
    const int n = (int)strnlen(a, WORD - 1), m = (int)strnlen(b, WORD - 1);
    for (int j = 0; j <= m; j++) {
        row[j] = j;
    }
    for (int i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= m; j++) {
            const int changed =
                diagonal + (tolower((unsigned char)a[i - 1]) != tolower((unsigned char)b[j - 1]));
            const int shorter = row[j] < row[j - 1] ? row[j] : row[j - 1];
            diagonal = row[j];
            row[j] = changed < shorter + 1 ? changed : shorter + 1;
        }
    }
    return row[m];
}

const char *tg_nearest_name(const char *text, const char *const *names, int count) {
    const char *best = NULL;
    int best_distance = (int)strnlen(text, WORD) / 2 + 1;
    for (int i = 0; i < count; i++) {
        const int distance = edit_distance(text, names[i]);
        if (distance < best_distance) {
            best_distance = distance;
            best = names[i];
        }
    }
    return best;
}

/* Copies the value without outer blanks and quotes; false if it is too long. */
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
    memcpy(word, value, length);
    word[length] = '\0';
    return true;
}

/* A finite number that fills the whole word. */
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
    if (!isdigit((unsigned char)*text) && *text != '.') {
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

static bool parse_integer(const char *word, int64_t *out) {
    double value = 0.0;
    if (!parse_double(word, &value) || value != floor(value) || fabs(value) > 0x1p53) {
        return false;
    }
    *out = (int64_t)value;
    return true;
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

/* "[a, b]", "(a, b)" or a lone "a" to numbers; -1 if it is not such a list. */
static int parse_list(const char *value, double *out) {
    char word[512];
    if (!bare_word(value, word, sizeof word)) {
        return -1;
    }
    char *at = word;
    const size_t length = strlen(word);
    const bool closed = length >= 2 && ((word[0] == '[' && word[length - 1] == ']') ||
                                        (word[0] == '(' && word[length - 1] == ')'));
    if (closed) {
        word[length - 1] = '\0';
        at++;
    }
    int count = 0;
    while (at) {
        char *comma = strchr(at, ',');
        if (comma) {
            *comma = '\0';
        }
        char entry[WORD];
        if (!bare_word(at, entry, sizeof entry) || count == TG_SETTING_LIST ||
            !parse_double(entry, &out[count])) {
            return -1;
        }
        count++;
        at = comma ? comma + 1 : NULL;
    }
    return count == 1 || closed ? count : -1;
}

static bool is_in_range(const tg_setting *row, double value) {
    return row->low > row->high || (value >= row->low && value <= row->high);
}

/* One sentence for a value that does not fit its row. */
static tg_status bad_value(tg_context *ctx, const char *section, const tg_setting *row,
                           const char *value) {
    enum { MOST = 32 };
    char expected[384];
    const char *names[MOST];
    int count = 0;
    while (count < MOST && (names[count] = tg_setting_choice(row, count))) {
        count++;
    }
    const char *nearest = tg_nearest_name(value, names, count);
    return tg_fail(ctx, TG_E_CONFIG, "%s.%s: expected %s, found '%.200s'%s%s%s", section, row->key,
                   tg_setting_values(row, expected, sizeof expected), value,
                   nearest ? "; did you mean " : "", nearest ? nearest : "", nearest ? "?" : "");
}

static bool store_list(const tg_setting *row, void *field, const char *value) {
    double entries[TG_SETTING_LIST];
    const int count = parse_list(value, entries);
    for (int i = 0; i < count; i++) {
        if (!is_in_range(row, entries[i]) ||
            (row->type == TG_SETTING_LIST_INT &&
             (entries[i] != floor(entries[i]) || fabs(entries[i]) > 0x1p53))) {
            return false;
        }
    }
    if (count < 1) {
        return false;
    }
    if (row->type == TG_SETTING_LIST_INT) {
        tg_list_int *list = field;
        *list = (tg_list_int){.count = count};
        for (int i = 0; i < count; i++) {
            list->value[i] = (int64_t)entries[i];
        }
    } else {
        tg_list_double *list = field;
        *list = (tg_list_double){.count = count};
        memcpy(list->value, entries, (size_t)count * sizeof entries[0]);
    }
    return true;
}

/* Text of any length that fits the field; the word null is none. */
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
    case TG_SETTING_INT:
        if (!parse_integer(word, &integer) || integer < INT_MIN || integer > INT_MAX ||
            !is_in_range(row, (double)integer)) {
            return false;
        }
        *(int *)field = (int)integer;
        return true;
    case TG_SETTING_INT64:
        if (!parse_integer(word, &integer) || !is_in_range(row, (double)integer)) {
            return false;
        }
        *(int64_t *)field = integer;
        return true;
    case TG_SETTING_DOUBLE:
        if (!parse_double(word, &number) || !is_in_range(row, number)) {
            return false;
        }
        *(double *)field = number;
        return true;
    case TG_SETTING_BYTES:
        if (!tg_bytes_parse(word, &number) || !is_in_range(row, number)) {
            return false;
        }
        *(double *)field = number;
        return true;
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
    default:
        return false;
    }
}

/* "[0.5]", as published configurations write some numbers, is its entry. */
static const char *only_entry(char *word, size_t capacity) {
    const size_t length = strlen(word);
    char inside[WORD];
    if (length >= 2 && word[0] == '[' && word[length - 1] == ']') {
        snprintf(inside, sizeof inside, "%.*s", (int)length - 2, word + 1);
        bare_word(inside, word, capacity);
    }
    return word;
}

static bool store(const tg_setting *row, void *field, const char *value) {
    char word[WORD];
    switch (row->type) {
    case TG_SETTING_LIST_INT:
    case TG_SETTING_LIST_DOUBLE:
        return store_list(row, field, value);
    case TG_SETTING_TEXT:
        return store_text(row, field, value);
    default:
        return bare_word(value, word, sizeof word) &&
               store_scalar(row, field, only_entry(word, sizeof word));
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
    static const char *const kinds[] = {[TG_SETTING_INT] = "an integer",
                                        [TG_SETTING_INT64] = "an integer",
                                        [TG_SETTING_DOUBLE] = "a finite number",
                                        [TG_SETTING_BYTES] = "a number of bytes (500MB, 1.5GiB)",
                                        [TG_SETTING_BOOL] = "true or false",
                                        [TG_SETTING_ENUM] = "one of ",
                                        [TG_SETTING_LIST_INT] = "an integer or a list of integers",
                                        [TG_SETTING_LIST_DOUBLE] = "a number or a list of numbers",
                                        [TG_SETTING_TEXT] = "a text of at most "};
    text[0] = '\0';
    append(text, capacity, "%s", kinds[row->type]);
    if (row->type == TG_SETTING_TEXT) {
        append(text, capacity, "%d characters", (int)row->high - 1);
    } else if (row->type == TG_SETTING_ENUM) {
        for (int i = 0; tg_setting_choice(row, i); i++) {
            append(text, capacity, "%s%s", i ? ", " : "", tg_setting_choice(row, i));
        }
    } else if (row->type != TG_SETTING_BOOL && row->low <= row->high) {
        append(text, capacity, " from ");
        append_number(text, capacity, row->low);
        append(text, capacity, " to ");
        append_number(text, capacity, row->high);
    }
    return text;
}

static void append_list(char *text, size_t capacity, const tg_setting *row, const void *field) {
    const tg_list_int *ints = field;
    const tg_list_double *doubles = field;
    const bool is_int = row->type == TG_SETTING_LIST_INT;
    const int count = is_int ? ints->count : doubles->count;
    append(text, capacity, "%s", count == 1 ? "" : "[");
    for (int i = 0; i < count; i++) {
        append(text, capacity, "%s", i ? ", " : "");
        append_number(text, capacity, is_int ? (double)ints->value[i] : doubles->value[i]);
    }
    append(text, capacity, "%s", count == 1 ? "" : "]");
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
