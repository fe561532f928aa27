/* All that is wrong with a file, told at once instead of one mistake after the other. */
#ifndef CLI_MISTAKES_H
#define CLI_MISTAKES_H

#include <stddef.h>

#include "tgrad/status.h"

/* Sentences about what is wrong, each once. */
typedef struct cli_mistakes {
    char **item;
    size_t count, capacity;
} cli_mistakes;

void cli_mistake(cli_mistakes *list, const char *format, ...) TG_PRINTF(2, 3);
void cli_mistakes_free(cli_mistakes *list);

#endif
