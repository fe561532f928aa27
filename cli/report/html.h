/* An HTML page under construction.
 *
 * Markup can only come from a format literal: the text of a %s is always escaped. So no name,
 * setting or number of a file can open a tag, end an attribute or begin an entity. Such text goes
 * between tags or into "double quotes" of an attribute, never into a style or an address. */
#ifndef CLI_REPORT_HTML_H
#define CLI_REPORT_HTML_H

#include "common/text.h"

typedef cli_bytes cli_html;

/* Appends. Conversions: %s (escaped), %d, %lld, %zu, %f %e %g with an optional .N, and %%. */
void cli_html_add(cli_html *page, const char *format, ...) TG_PRINTF(2, 3);

/* Appends markup of the program itself, or another page's, as it is. */
void cli_html_literal(cli_html *page, const char *literal);
void cli_html_join(cli_html *page, const cli_html *part);

/* Appends text of up to `limit` characters, escaped; a longer one ends with an ellipsis. */
void cli_html_short(cli_html *page, const char *text, size_t limit);

/* Appends "data:image/png;base64,.." of a PNG file's bytes. */
void cli_html_png(cli_html *page, const unsigned char *bytes, size_t size);

/* ---- Numbers for people. ---- */

enum { CLI_NUMBER_TEXT = 32 };

/* Four significant digits, "0.03120", "1.235e-07", with a minus sign that is no hyphen; a dash for
 * values that are not finite. Returns text. */
const char *cli_number_text(double value, char text[CLI_NUMBER_TEXT]);
#define CLI_NUMBER(value) cli_number_text(value, (char[CLI_NUMBER_TEXT]){0})

#endif
