/* The growing text: escaping, a small printf, base64. */
#include "html.h"

#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tgrad/tgrad.h"

void cli_html_literal(cli_html *page, const char *literal) {
    cli_bytes_add(page, literal, strlen(literal));
}

void cli_html_join(cli_html *page, const cli_html *part) {
    if (part->size > 0) {
        cli_bytes_add(page, part->data, part->size);
    }
}

/* Characters that mean something in HTML, and bytes that no page may hold: hidden characters and
 * invalid UTF-8 become the replacement character. Returns the bytes read. */
static size_t append_escaped(cli_html *page, const char *text) {
    const unsigned char byte = (unsigned char)text[0];
    const int length = cli_utf8_length(text);
    const char *shown = byte == '&'    ? "&amp;"
                        : byte == '<'  ? "&lt;"
                        : byte == '>'  ? "&gt;"
                        : byte == '"'  ? "&quot;"
                        : byte == '\'' ? "&#39;"
                                       : NULL;
    if (!shown && (length == 0 || (cli_hidden_character(text) && byte != '\t' && byte != '\n'))) {
        shown = "\xEF\xBF\xBD";
    }
    cli_bytes_add(page, shown ? shown : text, shown ? strlen(shown) : (size_t)length);
    return length > 0 ? (size_t)length : 1;
}

void cli_html_short(cli_html *page, const char *text, size_t limit) {
    size_t characters = 0;
    for (const char *c = text; *c; characters++) {
        const int length = cli_utf8_length(c);
        c += length > 0 ? length : 1;
    }
    const size_t shown = characters > limit ? limit - 1 : characters;
    for (size_t i = 0; i < shown; i++) {
        text += append_escaped(page, text);
    }
    cli_bytes_add(page, "\xE2\x80\xA6", characters > limit ? 3 : 0);
}

/* One conversion, from the character after its '%'; returns the rest of the format. */
static const char *convert(cli_html *page, const char *format, va_list *args) {
    char number[400]; /* room for the longest double in %f */
    int precision = -1, longs = 0;
    if (*format == '.') {
        precision = (int)strtol(format + 1, (char **)(uintptr_t)&format, 10);
    }
    for (; *format == 'l' || *format == 'z'; format++) {
        longs += *format == 'l' ? 1 : 2;
    }
    precision = precision < 0 ? 6 : precision < 17 ? precision : 17;
    switch (*format) {
    case 's':
        for (const char *text = va_arg(*args, const char *); *text;) {
            text += append_escaped(page, text);
        }
        return format + 1;
    case 'd':
        snprintf(number, sizeof number, "%lld",
                 longs ? va_arg(*args, long long) : (long long)va_arg(*args, int));
        break;
    case 'u':
        snprintf(number, sizeof number, "%zu", va_arg(*args, size_t));
        break;
    case 'f':
        snprintf(number, sizeof number, "%.*f", precision, va_arg(*args, double));
        break;
    case 'e':
        snprintf(number, sizeof number, "%.*e", precision, va_arg(*args, double));
        break;
    case 'g':
        snprintf(number, sizeof number, "%.*g", precision, va_arg(*args, double));
        break;
    case '%':
        snprintf(number, sizeof number, "%%");
        break;
    default:
        abort(); /* the list in the header is complete */
    }
    cli_bytes_add(page, number, strlen(number));
    return format + 1;
}

void cli_html_add(cli_html *page, const char *format, ...) {
    va_list args;
    va_start(args, format);
    while (*format) {
        const size_t literal = strcspn(format, "%");
        cli_bytes_add(page, format, literal);
        format += literal;
        if (*format == '%') {
            format = convert(page, format + 1, &args);
        }
    }
    va_end(args);
}

void cli_html_png(cli_html *page, const unsigned char *bytes, size_t size) {
    static const char digit[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    static const char scheme[] = "data:image/png;base64,";
    cli_bytes_add(page, scheme, sizeof scheme - 1);
    for (size_t i = 0; i < size; i += 3) {
        const size_t left = size - i;
        const uint32_t word = (uint32_t)bytes[i] << 16 |
                              (left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0) |
                              (left > 2 ? (uint32_t)bytes[i + 2] : 0);
        const char four[4] = {digit[word >> 18], digit[word >> 12 & 63],
                              left > 1 ? digit[word >> 6 & 63] : '=',
                              left > 2 ? digit[word & 63] : '='};
        cli_bytes_add(page, four, sizeof four);
    }
}

const char *cli_number_text(double value, char text[CLI_NUMBER_TEXT]) {
    const double size = fabs(value);
    const char *sign = value < 0.0 ? "\xE2\x88\x92" : "";
    if (!isfinite(value)) {
        snprintf(text, CLI_NUMBER_TEXT, "\xE2\x80\x93");
    } else if (size != 0.0 && (size < 0.99995e-3 || size >= 99995.0)) {
        snprintf(text, CLI_NUMBER_TEXT, "%s%.3e", sign, size);
    } else {
        /* 0.99996 shows as 1.000, so the digits before the point are those of the rounded value. */
        const int before = size == 0.0 ? 0 : (int)floor(log10(size * (1.0 + 5e-5)));
        snprintf(text, CLI_NUMBER_TEXT, "%s%.*f", sign, before > 3 ? 0 : 3 - before, size);
    }
    return text;
}
