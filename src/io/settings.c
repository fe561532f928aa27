/* Settings: the ordered list, and its text as YAML.
 *
 * YAML is written without a library: a section is its key and a colon, indented by two spaces per
 * level; a value is plain if that is certainly safe and double-quoted otherwise. The reader
 * (config.c) must restore every value exactly. */
#include "io/settings.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/memory.h"
#include "io/file.h"
#include "io/name_index.h"

typedef struct setting {
    char *value;
    char *origin;
    int64_t turn; /* position in the order of setting */
} setting;

struct tg_settings {
    tg_context *ctx;
    tg_names keys; /* records: setting */
    int64_t turns; /* number of sets so far */
};

/* NULL outside 0 .. count - 1. */
static setting *item_at(const tg_settings *settings, int64_t index) {
    return settings ? tg_names_record(&settings->keys, index) : NULL;
}

void tg_text_add(tg_text *text, const char *bytes, size_t length) {
    if (text->length < text->capacity) {
        const size_t room = text->capacity - 1 - text->length;
        const size_t kept = length < room ? length : room;
        if (kept > 0) {
            memcpy(text->bytes + text->length, bytes, kept);
        }
        text->bytes[text->length + kept] = '\0';
    }
    text->length += length;
}

/* ---- words ---- */

static bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Whether YAML reads the word as the same text without quotes, also inside a list: letters, digits
 * and _ . / + -, not beginning with a mark that a reader could take for something else; "Null" and
 * "NULL" would come back as "null". */
static bool is_plain(const char *word, size_t length) {
    if (length == 0) {
        return false;
    }
    const char second = length > 1 ? word[1] : '\0';
    const bool starts_well = is_letter_or_digit(word[0]) || word[0] == '_' || word[0] == '/' ||
                             (word[0] && strchr(".+-", word[0]) && second &&
                              (is_letter_or_digit(second) || second == '/' || second == '.'));
    for (size_t i = 0; i < length; i++) {
        if (!is_letter_or_digit(word[i]) && (!word[i] || !strchr("_./+-", word[i]))) {
            return false;
        }
    }
    const bool is_null = length == 4 && strncasecmp(word, "null", 4) == 0;
    const bool is_end = length >= 3 && strncmp(word, "...", 3) == 0;
    return starts_well && !is_end && (!is_null || memcmp(word, "null", 4) == 0);
}

/* The code point at `at` of valid UTF-8, and its length. */
static unsigned code_point(const unsigned char *at, size_t *bytes) {
    *bytes = at[0] < 0x80 ? 1 : at[0] < 0xe0 ? 2 : at[0] < 0xf0 ? 3 : 4;
    unsigned code = *bytes == 1 ? at[0] : at[0] & (0x7fu >> *bytes);
    for (size_t i = 1; i < *bytes; i++) {
        code = code << 6 | (at[i] & 0x3fu);
    }
    return code;
}

/* Characters that YAML forbids or takes for a line break. */
static bool must_escape(unsigned code) {
    return code < 0x20 || (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 ||
           code == 0xfeff || code == 0xfffe || code == 0xffff;
}

void tg_text_add_word(tg_text *text, const char *word, size_t length) {
    if (is_plain(word, length)) {
        tg_text_add(text, word, length);
        return;
    }
    tg_text_add(text, "\"", 1);
    for (size_t i = 0, bytes = 1; i < length; i += bytes) {
        const unsigned code = code_point((const unsigned char *)word + i, &bytes);
        char escaped[16];
        if (code == '"' || code == '\\') {
            snprintf(escaped, sizeof escaped, "\\%c", (char)code);
        } else if (code == '\n') {
            snprintf(escaped, sizeof escaped, "\\n");
        } else if (must_escape(code)) {
            snprintf(escaped, sizeof escaped, "\\u%04x", code);
        } else {
            tg_text_add(text, word + i, bytes);
            continue;
        }
        tg_text_add(text, escaped, strlen(escaped));
    }
    tg_text_add(text, "\"", 1);
}

static const char *skip_blanks(const char *at) {
    return at + strspn(at, " \t");
}

/* Copies a list of plain words and nested lists, from its '[' to its ']', with ", " between the
 * entries; returns the text after it, or NULL if it is not such a list. */
static const char *copy_list(tg_text *out, const char *at, int depth) {
    tg_text_add(out, "[", 1);
    at = skip_blanks(at + 1);
    bool first = true;
    while (*at != ']') {
        if (!first && *at != ',') {
            return NULL;
        }
        at = first ? at : skip_blanks(at + 1);
        tg_text_add(out, ", ", first ? 0 : 2);
        if (*at == '[') {
            at = depth < TG_SETTINGS_DEPTH ? copy_list(out, at, depth + 1) : NULL;
        } else {
            const size_t length = strcspn(at, " \t,[]");
            const bool is_word = is_plain(at, length);
            tg_text_add(out, at, is_word ? length : 0);
            at = is_word ? at + length : NULL;
        }
        if (!at) {
            return NULL;
        }
        at = skip_blanks(at);
        first = false;
    }
    tg_text_add(out, "]", 1);
    return at + 1;
}

/* copy_list of a whole value; false if it is not such a list. */
static bool copy_value(tg_text *out, const char *value) {
    const char *start = skip_blanks(value);
    const char *end = *start == '[' ? copy_list(out, start, 0) : NULL;
    return end && *skip_blanks(end) == '\0';
}

/* Normalizes a list; copies any other value. */
static char *proper_value(tg_context *ctx, const char *value) {
    tg_text list = {0};
    if (!copy_value(&list, value)) {
        return tg_mem_strdup(ctx, value);
    }
    list = (tg_text){.capacity = list.length + 1};
    list.bytes = tg_mem_alloc(ctx, TG_MEM_OTHER, list.capacity, 1);
    if (list.bytes) {
        copy_value(&list, value);
    }
    return list.bytes;
}

/* ---- the list ---- */

tg_status tg_settings_create(tg_context *ctx, tg_settings **out) {
    TG_NEED_OUT(ctx, out, ctx);
    TG_CALL(TG_NEW(ctx, TG_MEM_OTHER, *out, 1));
    **out = (tg_settings){.ctx = ctx, .keys = {.ctx = ctx, .record_bytes = sizeof(setting)}};
    return TG_OK;
}

tg_status tg_settings_copy(tg_context *ctx, const tg_settings *from, tg_settings **out) {
    TG_NEED_OUT(ctx, out, ctx, from);
    tg_status status = TG_OK;
    TG_TRY(tg_settings_create(ctx, out));
    for (int64_t i = 0; i < tg_settings_count(from); i++) {
        TG_TRY(tg_settings_set(*out, tg_settings_key(from, i), tg_settings_value(from, i),
                               tg_settings_origin(from, i)));
        item_at(*out, i)->turn = item_at(from, i)->turn;
    }
    (*out)->turns = from->turns;
    return TG_OK;
fail:
    tg_settings_destroy(out);
    return status;
}

/* The file part of "file.yaml:12". */
static size_t source_length(const char *origin) {
    const char *colon = strchr(origin, ':');
    return colon ? (size_t)(colon - origin) : strlen(origin);
}

bool tg_settings_outdoes(const tg_settings *settings, int64_t later, int64_t earlier) {
    const setting *a = item_at(settings, later), *b = item_at(settings, earlier);
    const size_t length = source_length(a->origin);
    const bool same_source =
        length == source_length(b->origin) && strncmp(a->origin, b->origin, length) == 0;
    return a->turn > b->turn && !same_source;
}

void tg_settings_destroy(tg_settings **settings) {
    if (!settings || !*settings) {
        return;
    }
    tg_settings *s = *settings;
    for (int64_t i = 0; i < s->keys.count; i++) {
        tg_mem_free(s->ctx, item_at(s, i)->value);
        tg_mem_free(s->ctx, item_at(s, i)->origin);
    }
    tg_names_clear(&s->keys);
    TG_FREE(s->ctx, *settings);
}

/* A key is one or more words joined by dots: "opt.rank". */
static tg_status check_key(tg_context *ctx, const char *key, const char *origin) {
    const char *wrong = NULL;
    int depth = 1;
    const size_t length = key ? strlen(key) : 0;
    for (size_t i = 0; i < length && !wrong; i++) {
        depth += key[i] == '.';
        if (key[i] == '.' && (i == 0 || key[i - 1] == '.' || key[i + 1] == '\0')) {
            wrong = "has an empty part";
        } else if ((unsigned char)key[i] < 0x20 || key[i] == 0x7f) {
            wrong = "holds a control character";
        }
    }
    wrong = length == 0                 ? "is empty"
            : length >= TG_SETTINGS_KEY ? "is longer than 255 bytes"
            : depth > TG_SETTINGS_DEPTH ? "has more than 16 parts"
            : !tg_utf8_is_valid(key)    ? "is not UTF-8"
                                        : wrong;
    return wrong ? tg_fail(ctx, TG_E_CONFIG, "%s: the key '%s' %s", origin,
                           TG_QUOTED(key ? key : ""), wrong)
                 : TG_OK;
}

static tg_status check_value(tg_context *ctx, const char *key, const char *value,
                             const char *origin) {
    const char *wrong = !value                               ? "has no value"
                        : strlen(value) >= TG_SETTINGS_VALUE ? "has a value of 64 KiB or more"
                        : !tg_utf8_is_valid(value)           ? "has a value that is not UTF-8"
                                                             : NULL;
    return wrong ? tg_fail(ctx, TG_E_CONFIG, "%s: the key '%s' %s", origin, TG_QUOTED(key), wrong)
                 : TG_OK;
}

tg_status tg_settings_set(tg_settings *settings, const char *key, const char *value,
                          const char *origin) {
    TG_NEED(NULL, settings);
    TG_NEED(settings->ctx, key, value);
    tg_status status = TG_OK;
    tg_context *ctx = settings->ctx;
    setting item = {.turn = ++settings->turns};
    origin = origin ? origin : "set by the program";
    TG_TRY(check_key(ctx, key, origin));
    TG_TRY(check_value(ctx, key, value, origin));
    item.value = proper_value(ctx, value);
    item.origin = tg_mem_strdup(ctx, origin);
    TG_TRY(item.value && item.origin ? TG_OK : TG_E_MEMORY);
    setting *found = item_at(settings, tg_names_find(&settings->keys, key));
    if (found) {
        TG_FREE(ctx, found->value);
        TG_FREE(ctx, found->origin);
        *found = item;
        return TG_OK;
    }
    TG_TRY(settings->keys.count < TG_SETTINGS_COUNT
               ? tg_names_add(&settings->keys, "setting", key, &item)
               : tg_fail(ctx, TG_E_CONFIG, "there are more than %d settings", TG_SETTINGS_COUNT));
    return TG_OK;
fail:
    TG_FREE(ctx, item.value);
    TG_FREE(ctx, item.origin);
    return status;
}

int64_t tg_settings_count(const tg_settings *settings) {
    return settings ? settings->keys.count : 0;
}

int64_t tg_settings_find(const tg_settings *settings, const char *key) {
    return settings && key ? tg_names_find(&settings->keys, key) : -1;
}

const char *tg_settings_get(const tg_settings *settings, const char *key) {
    return tg_settings_value(settings, tg_settings_find(settings, key));
}

const char *tg_settings_key(const tg_settings *settings, int64_t index) {
    return settings ? tg_names_item(&settings->keys, index) : NULL;
}

const char *tg_settings_value(const tg_settings *settings, int64_t index) {
    const setting *item = item_at(settings, index);
    return item ? item->value : NULL;
}

const char *tg_settings_origin(const tg_settings *settings, int64_t index) {
    const setting *item = item_at(settings, index);
    return item ? item->origin : NULL;
}

/* ---- writing ---- */

static void write_line(tg_text *out, int depth, const char *key, size_t key_length,
                       const char *value) {
    for (int i = 0; i < depth; i++) {
        tg_text_add(out, "  ", 2);
    }
    tg_text_add_word(out, key, key_length);
    tg_text_add(out, ":", 1);
    if (value) {
        tg_text ignored = {0};
        const bool is_list = copy_value(&ignored, value); /* which needs no quotes */
        tg_text_add(out, " ", 1);
        (is_list ? tg_text_add : tg_text_add_word)(out, value, strlen(value));
    }
    tg_text_add(out, "\n", 1);
}

/* Whether one of the settings [0, end) has a key that begins with the first `length` bytes of
 * `key`. */
static bool has_prefix(const tg_settings *settings, int64_t end, const char *key, size_t length) {
    for (int64_t i = 0; i < end; i++) {
        if (strncmp(settings->keys.items[i], key, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Whether the first `length` bytes of `key` are themselves a key. */
static bool is_leaf(const tg_settings *settings, const char *key, size_t length) {
    char leaf[TG_SETTINGS_KEY];
    memcpy(leaf, key, length);
    leaf[length] = '\0';
    return tg_names_find(&settings->keys, leaf) >= 0;
}

/* Writes all settings from `first` on whose keys begin with the first `prefix` bytes of its key. A
 * section is written at its first setting. A section that also has a value cannot be a map: its
 * settings are written with dotted names. */
static void write_section(const tg_settings *settings, tg_text *out, int64_t first, size_t prefix,
                          int depth) {
    const char *start = settings->keys.items[first];
    for (int64_t i = first; i < settings->keys.count; i++) {
        const char *key = settings->keys.items[i];
        if (strncmp(key, start, prefix) != 0) {
            continue;
        }
        size_t end = prefix + strcspn(key + prefix, ".");
        while (key[end] == '.' && is_leaf(settings, key, end)) {
            end += 1 + strcspn(key + end + 1, ".");
        }
        if (key[end] == '\0') {
            write_line(out, depth, key + prefix, end - prefix, item_at(settings, i)->value);
        } else if (!has_prefix(settings, i, key, end + 1)) {
            write_line(out, depth, key + prefix, end - prefix, NULL);
            write_section(settings, out, i, end + 1, depth + 1);
        }
    }
}

size_t tg_settings_text(const tg_settings *settings, char *text, size_t capacity) {
    tg_text out = {.capacity = text ? capacity : 0};
    out.bytes = text;
    if (tg_settings_count(settings) > 0) {
        write_section(settings, &out, 0, 0, 0);
    } else {
        tg_text_add(&out, "{}\n", 3);
    }
    return out.length;
}

tg_status tg_settings_write_yaml(tg_context *ctx, const char *path, const tg_settings *settings) {
    TG_NEED(ctx, ctx, path, settings);
    char *text = NULL;
    const size_t length = tg_settings_text(settings, NULL, 0);
    TG_CALL(TG_ALLOC(ctx, TG_MEM_OTHER, text, length + 1));
    tg_settings_text(settings, text, length + 1);
    const tg_status status = tg_atomic_write_file(ctx, path, &(tg_piece){text, length}, 1);
    TG_FREE(ctx, text);
    return status;
}
