/* Lists in the text of a setting. */
#ifndef CLI_SWEEP_WORDS_H
#define CLI_SWEEP_WORDS_H

#include <stdbool.h>
#include <stddef.h>

/* The entries of "[a, [b, c]]", or of one value; returns their count. Freed by cli_words_free. */
int cli_words_split(const char *text, char ***out);
void cli_words_append(char ***list, int *count, const char *text, size_t length);
void cli_words_free(char **list, int count);

/* Whether a value is the word null. */
bool cli_word_is_null(const char *value);

#endif
