/* Edit distance (optimal string alignment): D[i][j] is the least number of edits that turn the
 * first i letters of a into the first j letters of b; swapping two neighbours counts once. Three
 * rows of D are kept. */
#include <ctype.h>
#include <limits.h>
#include <string.h>

#include "base/minmax.h"
#include "tgrad/status.h"

enum { MAX_WORD = 63 };

/* Copies a word in lower case; returns its length, or MAX_WORD + 1 if it is NULL or longer. */
static int take_word(const char *text, char word[MAX_WORD]) {
    const int length = text ? (int)strnlen(text, MAX_WORD + 1) : MAX_WORD + 1;
    for (int i = 0; i < length && length <= MAX_WORD; i++) {
        word[i] = (char)tolower((unsigned char)text[i]);
    }
    return length;
}

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
