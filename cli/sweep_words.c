/* From the text of a list to its entries. */
#include "sweep_words.h"

#include <stdlib.h>
#include <string.h>

#include "text.h"

void cli_words_append(char ***list, int *count, const char *text, size_t length) {
    *list = cli_need(realloc(*list, ((size_t)*count + 1) * sizeof **list));
    (*list)[(*count)++] = cli_need(strndup(text, length));
}

int cli_words_split(const char *text, char ***out) {
    const size_t length = strlen(text);
    int count = 0;
    *out = NULL;
    if (length < 2 || text[0] != '[' || text[length - 1] != ']') {
        cli_words_append(out, &count, text, length);
        return count;
    }
    const char *start = text + 1;
    int depth = 0;
    for (const char *at = start; at < text + length; at++) {
        depth += (*at == '[') - (*at == ']');
        if ((*at == ',' && depth == 0) || depth < 0) {
            start += strspn(start, " ");
            if (at > start || *at == ',') {
                cli_words_append(out, &count, start, (size_t)(at - start));
            }
            start = at + 1;
        }
    }
    return count;
}

void cli_words_free(char **list, int count) {
    for (int i = 0; i < count; i++) {
        free(list[i]);
    }
    free(list);
}

bool cli_word_is_null(const char *value) {
    return strcmp(value, "null") == 0;
}
