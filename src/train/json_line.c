/* See json_line.h. */
#include "train/json_line.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

void tg_line_add(tg_line *line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    const int wrote = vsnprintf(line->text + line->used, line->capacity - line->used, format, args);
    va_end(args);
    line->used += wrote > 0 ? (size_t)wrote : 0;
    line->used = line->used < line->capacity ? line->used : line->capacity - 1;
}

void tg_line_real(tg_line *line, double value) {
    if (isfinite(value)) {
        tg_line_add(line, "%.9g", value);
    } else {
        tg_line_add(line, "null");
    }
}
