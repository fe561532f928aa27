/* Sizes, durations, safe strings, tables. Nothing here depends on the locale. */
#include "text.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

const char *cli_bytes_text(uint64_t bytes, char text[CLI_UNIT_TEXT]) {
    static const char *const units[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double value = (double)bytes;
    int unit = 0;
    /* 1023.95 and more would print as 1024.0 of the smaller unit. */
    while (value >= (unit ? 1023.95 : 1024.0) && unit < 6) {
        value /= 1024.0;
        unit++;
    }
    snprintf(text, CLI_UNIT_TEXT, unit ? "%.1f %s" : "%.0f %s", value, units[unit]);
    return text;
}

const char *cli_duration_text(double seconds, char text[CLI_UNIT_TEXT]) {
    if (!isfinite(seconds) || seconds < 0.0 || seconds > 1e12) {
        snprintf(text, CLI_UNIT_TEXT, "%g s", seconds);
    } else if (seconds < 59.95) {
        static const char *const units[] = {"s", "ms", "us", "ns"};
        int unit = 0;
        /* Three digits are shown, so 0.9995 of a unit is one of it already. */
        while (seconds < 0.9995 && unit < 3) {
            seconds *= 1000.0;
            unit++;
        }
        snprintf(text, CLI_UNIT_TEXT, "%.3g %s", seconds, units[unit]);
    } else {
        static const struct {
            const char *name;
            long long size; /* in units of the next row */
        } units[] = {{"d", 24}, {"h", 60}, {"min", 60}, {"s", 1}};
        long long whole[4] = {0, 0, 0, llround(seconds)};
        for (int i = 2; i >= 0; i--) {
            whole[i] = whole[i + 1] / units[i].size;
            whole[i + 1] %= units[i].size;
        }
        int first = whole[0] ? 0 : whole[1] ? 1 : 2;
        snprintf(text, CLI_UNIT_TEXT, "%lld %s %02lld %s", whole[first], units[first].name,
                 whole[first + 1], units[first + 1].name);
    }
    return text;
}

int cli_utf8_length(const char *text) {
    const unsigned char *s = (const unsigned char *)text;
    int length = s[0] < 0x80 ? 1 : s[0] < 0xC2 ? 0 : s[0] < 0xE0 ? 2 : s[0] < 0xF0 ? 3 : 4;
    if (s[0] > 0xF4) {
        return 0;
    }
    for (int i = 1; i < length; i++) {
        if ((s[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    /* Longer than needed (E0, F0), surrogates (ED), beyond U+10FFFF (F4). */
    if ((s[0] == 0xE0 && s[1] < 0xA0) || (s[0] == 0xF0 && s[1] < 0x90) ||
        (s[0] == 0xED && s[1] > 0x9F) || (s[0] == 0xF4 && s[1] > 0x8F)) {
        return 0;
    }
    return length;
}

unsigned cli_hidden_character(const char *text) {
    const unsigned char *c = (const unsigned char *)text;
    const int length = cli_utf8_length(text);
    const unsigned code = length == 1   ? c[0]
                          : length == 2 ? (c[0] & 0x1Fu) << 6 | (c[1] & 0x3Fu)
                          : length == 3 ? (c[0] & 0xFu) << 12 | (c[1] & 0x3Fu) << 6 | (c[2] & 0x3Fu)
                                        : 'x';
    const bool control = code < 0x20 || (code >= 0x7F && code < 0xA0);
    const bool direction = code == 0x61C || code == 0x200E || code == 0x200F ||
                           (code >= 0x202A && code <= 0x202E) || (code >= 0x2066 && code <= 0x2069);
    return control || direction || code == 0x2028 || code == 0x2029 ? code : 0;
}

/* Writes the character at `from` as it may be shown; returns the bytes read, adds those written. */
static size_t clean_character(const char *from, char *to, size_t *used) {
    const unsigned char byte = (unsigned char)from[0];
    const int length = cli_utf8_length(from);
    const unsigned hidden = cli_hidden_character(from);
    if (length > 0 && !hidden) {
        memcpy(to + *used, from, (size_t)length);
        *used += (size_t)length;
        return (size_t)length;
    }
    char shown[8];
    const int size = byte == '\n'   ? snprintf(shown, sizeof shown, "\\n")
                     : byte == '\t' ? snprintf(shown, sizeof shown, "\\t")
                     : length == 3  ? snprintf(shown, sizeof shown, "\\u%04x", hidden)
                                    : snprintf(shown, sizeof shown, "\\x%02x", byte);
    memcpy(to + *used, shown, (size_t)size);
    *used += (size_t)size;
    return length == 3 ? 3 : 1;
}

char *cli_clean_text(const char *text, size_t limit) {
    const size_t size = strlen(text);
    const size_t worst = limit && limit < size ? limit : size; /* characters to write */
    char *clean = cli_need(malloc(6 * worst + 64));
    size_t used = 0, read = 0, characters = 0;
    while (read < size && (limit == 0 || characters < limit)) {
        read += clean_character(text + read, clean, &used);
        characters++;
    }
    clean[used] = '\0';
    if (read < size) {
        snprintf(clean + used, 64, "... (%zu bytes)", size);
    }
    return clean;
}

bool cli_ends_with(const char *text, const char *ending) {
    const size_t length = strlen(text), tail = strlen(ending);
    return length > tail && strcmp(text + length - tail, ending) == 0;
}

double cli_seconds(void) {
    struct timespec now = {0};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

char *cli_format(const char *format, ...) {
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const int length = vsnprintf(NULL, 0, format, args);
    char *text = cli_need(length < 0 ? NULL : malloc((size_t)length + 1));
    vsnprintf(text, (size_t)length + 1, format, again);
    va_end(again);
    va_end(args);
    return text;
}

void *cli_need(void *memory) {
    if (!memory) {
        fputs("tgrad: out of memory\n", stderr);
        exit(1);
    }
    return memory;
}

void cli_free(void *pointer) {
    void *memory;
    memcpy(&memory, pointer, sizeof memory);
    free(memory);
}

void cli_file_close(FILE **file) {
    if (*file) {
        (void)fclose(*file);
    }
}

void *cli_grow(void *array, size_t count, size_t *capacity, size_t size) {
    if (count < *capacity) {
        return array;
    }
    size_t grown = *capacity ? 2 * *capacity : 8;
    *capacity = grown;
    return cli_need(grown > SIZE_MAX / size ? NULL : realloc(array, grown * size));
}

void cli_bytes_add(cli_bytes *bytes, const void *data, size_t size) {
    if (bytes->capacity - bytes->size <= size) {
        bytes->capacity = 2 * bytes->capacity + size + 64;
        bytes->data = cli_need(realloc(bytes->data, bytes->capacity));
    }
    memcpy(bytes->data + bytes->size, data, size);
    bytes->size += size;
    bytes->data[bytes->size] = '\0';
}

void cli_bytes_free(cli_bytes *bytes) {
    free(bytes->data);
    *bytes = (cli_bytes){0};
}

/* ---- lists of words ---- */

void cli_list_add(cli_list *list, const char *text, size_t length) {
    list->item = cli_need(realloc(list->item, ((size_t)list->count + 1) * sizeof *list->item));
    list->item[list->count++] = cli_need(strndup(text, length));
}

void cli_list_free(cli_list *list) {
    for (int i = 0; i < list->count; i++) {
        free(list->item[i]);
    }
    free(list->item);
    *list = (cli_list){0};
}

cli_list cli_list_of(const char *text) {
    const size_t length = strlen(text);
    cli_list list = {0};
    if (length < 2 || text[0] != '[' || text[length - 1] != ']') {
        cli_list_add(&list, text, length);
        return list;
    }
    const char *start = text + 1;
    int depth = 0;
    for (const char *at = start; at < text + length; at++) {
        depth += (*at == '[') - (*at == ']');
        if ((*at == ',' && depth == 0) || depth < 0) {
            start += strspn(start, " ");
            if (at > start || *at == ',') {
                cli_list_add(&list, start, (size_t)(at - start));
            }
            start = at + 1;
        }
    }
    return list;
}

bool cli_word_is_null(const char *value) {
    return strcmp(value, "null") == 0;
}

/* ---- words for a shell ---- */

char *cli_shell_word(const char *word) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
                                "_-./=:,+@%";
    const size_t length = strlen(word);
    if (length > 0 && strspn(word, plain) == length) {
        return cli_need(strdup(word));
    }
    cli_bytes quoted = {0};
    cli_bytes_add(&quoted, "'", 1);
    for (const char *c = word; *c; c++) {
        cli_bytes_add(&quoted, *c == '\'' ? "'\\''" : c, *c == '\'' ? 4 : 1);
    }
    cli_bytes_add(&quoted, "'", 1);
    return quoted.data;
}

char *cli_shell_words(const char *const *words, int count) {
    cli_bytes line = {0};
    for (int i = 0; i < count; i++) {
        CLI_FREED char *word = cli_shell_word(words[i]);
        cli_bytes_add(&line, i > 0 ? " " : "", i > 0);
        cli_bytes_add(&line, word, strlen(word));
    }
    cli_bytes_add(&line, "", 0); /* of no words */
    return line.data;
}
