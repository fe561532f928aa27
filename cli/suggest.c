/* Edit distance (optimal string alignment): D[i][j] is the least number of edits that turn the
 * first i letters of a into the first j letters of b; a swap of two neighbours counts once. Three
 * rows of D are kept. */
#include "suggest.h"

#include <string.h>

enum { MAX_WORD = 63 };

static int min2(int a, int b) {
    return a < b ? a : b;
}

int cli_edit_distance(const char *a, const char *b, int limit) {
    const int m = (int)strnlen(a, MAX_WORD + 1), n = (int)strnlen(b, MAX_WORD + 1);
    if (m > MAX_WORD || n > MAX_WORD) {
        return limit + 1;
    }
    int rows[3][MAX_WORD + 1];
    int *before = rows[0], *previous = rows[1], *current = rows[2];
    for (int j = 0; j <= n; j++) {
        previous[j] = j;
    }
    for (int i = 1; i <= m; i++) {
        current[0] = i;
        for (int j = 1; j <= n; j++) {
            int cost = a[i - 1] != b[j - 1];
            current[j] = min2(previous[j - 1] + cost, min2(previous[j], current[j - 1]) + 1);
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
                current[j] = min2(current[j], before[j - 2] + 1);
            }
        }
        int *recycled = before;
        before = previous;
        previous = current;
        current = recycled;
    }
    return min2(previous[n], limit + 1);
}

cli_suggestion cli_suggest(const char *word) {
    /* Near: one edit for up to three letters, and one more for every three letters after. */
    int length = (int)strnlen(word, MAX_WORD + 1);
    return (cli_suggestion){.word = word, .distance = length ? (length + 2) / 3 + 1 : 0};
}

void cli_suggest_offer(cli_suggestion *suggestion, const char *name) {
    size_t length = strlen(suggestion->word);
    int distance = cli_edit_distance(suggestion->word, name, suggestion->distance);
    if (length >= 2 && strncmp(suggestion->word, name, length) == 0) {
        distance = min2(distance, 1); /* the beginning of a name is as good as one slip */
    }
    if (distance < suggestion->distance) {
        suggestion->distance = distance;
        suggestion->best = name;
    }
}
