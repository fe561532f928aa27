#include "train/json_line.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

bool tg_line_keeps_epoch(const char *line, int64_t last) {
    int64_t epoch = 0;
    return sscanf(line, "{\"epoch\":%" SCNd64, &epoch) == 1 && epoch <= last;
}

size_t tg_lines_keep(char *text, size_t size, tg_line_filter *keeps, int64_t last,
                     int64_t *damaged) {
    size_t kept = 0;
    *damaged = 0;
    for (size_t begin = 0; begin < size;) {
        char *end = memchr(text + begin, '\n', size - begin);
        if (!end) {
            break;
        }
        const size_t length = (size_t)(end - text) - begin;
        *end = '\0';
        const bool is_whole = strlen(text + begin) == length;
        const bool is_kept = is_whole && keeps(text + begin, last);
        *end = '\n';
        *damaged += !is_whole;
        if (is_kept) {
            memmove(text + kept, text + begin, length + 1);
            kept += length + 1;
        }
        begin += length + 1;
    }
    return kept;
}
