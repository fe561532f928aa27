/* JSON rows as a table with aligned columns. */
#include <stdlib.h>
#include <string.h>

#include "output.h"

/* A number as "f6", "g3", "%1", "B" or "t" says. */
static char *number_text(double number, const char *format) {
    const int digits = (int)strtol(format + 1, NULL, 10);
    if (!isfinite(number) && !strchr(format, '!')) {
        return cli_format("-");
    }
    switch (*format) {
    case 'f':
        return cli_format("%.*f", digits, number);
    case 'g':
        return cli_format("%.*g", digits, number);
    case '%':
        return cli_format("%.*f %%", digits, 100.0 * number);
    case 'B':
        return cli_format("%s", CLI_BYTES((uint64_t)number));
    default:
        return cli_format("%s", CLI_DURATION(number));
    }
}

/* The cell of a row in the column "member format". */
static char *cell_text(const json_t *row, const char *column) {
    char path[128], *rest = NULL;
    const char *space = strchr(column, ' '), *format = space ? space + 1 : "";
    snprintf(path, sizeof path, "%.*s", (int)strcspn(column, " "), column);
    for (char *key = strtok_r(path, ".", &rest); key; key = strtok_r(NULL, ".", &rest)) {
        row = json_object_get(row, key);
    }
    if (*format == '?') {
        const char *no = strchr(format, '/') + 1;
        return cli_format("%.*s", json_is_true(row) ? (int)(no - format) - 2 : 64,
                          json_is_true(row) ? format + 1 : no);
    }
    if (*format) {
        return number_text(cli_json_number(row), format);
    }
    if (json_is_integer(row)) {
        return cli_format("%lld", (long long)json_integer_value(row));
    }
    return cli_clean_text(json_is_string(row) ? json_string_value(row) : "-", 0);
}

/* Columns that a cell takes on the terminal: one for each character. */
static int shown_width(const char *text) {
    int width = 0;
    for (; *text; text++) {
        width += ((unsigned char)*text & 0xC0) != 0x80;
    }
    return width;
}

void cli_print_rows(const json_t *rows, const char *columns) {
    enum { COLUMNS = 24 };
    CLI_FREED char *copy = cli_need(strdup(columns));
    CLI_FREED char **cell =
        cli_need(calloc(COLUMNS * (json_array_size(rows) + 1), sizeof *cell)); /* titles first */
    const char *member[COLUMNS];
    bool is_right[COLUMNS];
    int width[COLUMNS] = {0};
    char *rest = NULL;
    size_t count = 0;
    for (char *title = strtok_r(copy, "|", &rest); title; title = strtok_r(NULL, "|", &rest)) {
        char *colon = strchr(title, ':');
        member[count] = colon + 1;
        is_right[count] = colon > title && colon[-1] == '>';
        colon[is_right[count] ? -1 : 0] = '\0';
        cell[count++] = cli_clean_text(title, 0);
    }
    const size_t cells = count * (json_array_size(rows) + 1);
    for (size_t i = 0; i < cells; i++) {
        const size_t c = i % count;
        if (i >= count) {
            cell[i] = cell_text(json_array_get(rows, i / count - 1), member[c]);
        }
        const int shown = shown_width(cell[i]);
        width[c] = shown > width[c] ? shown : width[c];
    }
    for (size_t i = 0; i < cells; i++) { /* columns two spaces apart */
        const size_t c = i % count;
        const bool is_last = c + 1 == count;
        const int space = width[c] - shown_width(cell[i]);
        printf("%*s%s%*s%s", is_right[c] ? space : 0, "", cell[i],
               is_right[c] || is_last ? 0 : space, "", is_last ? "\n" : "  ");
        free(cell[i]);
    }
}
