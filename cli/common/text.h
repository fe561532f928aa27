/* Text for people: sizes and durations with units, strings of unknown origin made safe for a
 * terminal; and their memory. */
#ifndef CLI_COMMON_TEXT_H
#define CLI_COMMON_TEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "tgrad/status.h"

enum { CLI_UNIT_TEXT = 32 }; /* of the next two */

/* "512 B", "1.5 KiB", "38.2 GiB"; returns text, which CLI_BYTES has in the enclosing block. */
const char *cli_bytes_text(uint64_t bytes, char text[CLI_UNIT_TEXT]);
#define CLI_BYTES(bytes) cli_bytes_text(bytes, (char[CLI_UNIT_TEXT]){0})

/* "850 ns", "1.25 ms", "12.3 s", "2 min 05 s", "3 h 04 min", "2 d 07 h"; in the same two ways. */
const char *cli_duration_text(double seconds, char text[CLI_UNIT_TEXT]);
#define CLI_DURATION(seconds) cli_duration_text(seconds, (char[CLI_UNIT_TEXT]){0})

/* Bytes of the UTF-8 character at `text` (1..4), or 0 if it is not valid UTF-8. */
int cli_utf8_length(const char *text);

/* Code point of the character at `text` if it is invisible but affects others: control characters,
 * and those that change the direction of writing or end a line; else 0. */
unsigned cli_hidden_character(const char *text);

/* A copy of `text` that is one line of valid UTF-8 and leaves the terminal alone: hidden characters
 * and invalid bytes become \n, \t, \xNN or \uNNNN. With limit > 0, text of more characters is
 * cut there and its size in bytes is named. To be freed. */
char *cli_clean_text(const char *text, size_t limit);

/* printf into new memory, to be freed. */
char *cli_format(const char *format, ...) TG_PRINTF(1, 2);

/* Whether `text` is longer than `ending` and ends with it. */
bool cli_ends_with(const char *text, const char *ending);

/* Seconds of a clock that only goes forward. */
double cli_seconds(void);

/* ---- Memory: the program ends with an error when there is none left. ---- */

/* A variable that is released when its scope ends, by a function that takes its address:
 *
 *     CLI_OWNED(tg_settings_destroy) tg_settings *settings = NULL;
 *     CLI_FREED char *path = cli_format(..); */
#define CLI_OWNED(release) __attribute__((cleanup(release)))
#define CLI_FREED          CLI_OWNED(cli_free)
void cli_free(void *pointer); /* to any pointer to memory of malloc */
void cli_file_close(FILE **file);

void *cli_need(void *memory); /* `memory`, which is not NULL */
/* Grows an array by one item of `size` bytes, doubling its capacity when full. */
void *cli_grow(void *array, size_t count, size_t *capacity, size_t size);

/* Bytes that are added up. */
typedef struct cli_bytes {
    char *data; /* (size) and a zero, once anything was added */
    size_t size, capacity;
} cli_bytes;

void cli_bytes_add(cli_bytes *bytes, const void *data, size_t size);
void cli_bytes_free(cli_bytes *bytes);

/* ---- lists of words ---- */

typedef struct cli_list {
    char **item; /* (count) */
    int count;
} cli_list;

void cli_list_add(cli_list *list, const char *text, size_t length);
void cli_list_free(cli_list *list);

/* The entries of a setting "[a, [b, c]]", or of one value. */
cli_list cli_list_of(const char *text);

/* Whether a value is the word null. */
bool cli_word_is_null(const char *value);

/* A word as a shell takes it, quoted if it must be, and several of them; to be freed. */
char *cli_shell_word(const char *word);
char *cli_shell_words(const char *const *words, int count);

#endif
