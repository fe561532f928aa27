/* The nearest name by edit distance. */
#include "suggest.h"

#include <stdio.h>
#include <string.h>

#include "tgrad/status.h"

enum { MAX_WORD = 64 }; /* longer ones are near to nothing */

cli_suggestion cli_suggest(const char *word) {
    /* Near: one edit for up to three letters, and one more for every three letters after. */
    int length = (int)strnlen(word, MAX_WORD);
    return (cli_suggestion){.word = word, .distance = length ? (length + 2) / 3 + 1 : 0};
}

void cli_suggest_offer(cli_suggestion *suggestion, const char *name) {
    size_t length = strlen(suggestion->word);
    int distance = tg_edit_distance(suggestion->word, name);
    if (distance > 1 && length >= 2 && strncmp(suggestion->word, name, length) == 0) {
        distance = 1; /* the beginning of a name is as good as one slip */
    }
    if (distance < suggestion->distance) {
        suggestion->distance = distance;
        suggestion->best = name;
        snprintf(suggestion->text, sizeof suggestion->text, "; did you mean %.64s?", name);
    }
}
