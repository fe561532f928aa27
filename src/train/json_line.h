/* Lines of a run's text files: composed in a buffer of fixed size, and filtered by a run that
 * resumes from an earlier epoch. */
#ifndef TG_TRAIN_JSON_LINE_H
#define TG_TRAIN_JSON_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "tgrad/status.h"

typedef struct tg_line {
    char *text;
    size_t capacity, used;
} tg_line;

/* Appends; truncates text that does not fit. */
void tg_line_add(tg_line *line, const char *format, ...) TG_PRINTF(2, 3);
/* A number as JSON has it: null unless finite. */
void tg_line_real(tg_line *line, double value);

/* Whether a line is about an epoch or a step up to `last`. */
typedef bool tg_line_filter(const char *line, int64_t last);

/* Of metrics.jsonl: {"epoch":N,.. */
bool tg_line_keeps_epoch(const char *line, int64_t last);

/* Moves the lines that `keeps` accepts to the front of `text` and returns their length. Drops the
 * damage of a system crash: a last line that is cut off, and lines with NUL bytes, which stand for
 * blocks that never reached the disk; *damaged counts those. */
size_t tg_lines_keep(char *text, size_t size, tg_line_filter *keeps, int64_t last,
                     int64_t *damaged);

#endif
