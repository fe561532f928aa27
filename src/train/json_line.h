/* A line of text under construction, in memory that was taken for all of it. */
#ifndef TG_TRAIN_JSON_LINE_H
#define TG_TRAIN_JSON_LINE_H

#include <stddef.h>

#include "tgrad/status.h"

typedef struct tg_line {
    char *text;
    size_t capacity, used;
} tg_line;

/* Appends; what does not fit is cut off. */
void tg_line_add(tg_line *line, const char *format, ...) TG_PRINTF(2, 3);
/* A number as JSON has it: null for what is not finite. */
void tg_line_real(tg_line *line, double value);

#endif
