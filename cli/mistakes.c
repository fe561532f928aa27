/* The list of what is wrong. */
#include "mistakes.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

void cli_mistake(cli_mistakes *list, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (size_t i = 0; i < list->count; i++) {
        if (strcmp(list->item[i], text) == 0) {
            return;
        }
    }
    list->item = cli_grow(list->item, list->count, &list->capacity, sizeof *list->item);
    list->item[list->count++] = cli_need(strdup(text));
}

void cli_mistakes_free(cli_mistakes *list) {
    for (size_t i = 0; i < list->count; i++) {
        free(list->item[i]);
    }
    free(list->item);
    *list = (cli_mistakes){0};
}
