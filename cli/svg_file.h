/* A drawing as a file of its own: title, plain colours on a white ground, which reads the same
 * wherever the file is shown. No variables, scripts or fonts from elsewhere. */
#ifndef CLI_SVG_FILE_H
#define CLI_SVG_FILE_H

#include "report_html.h"

enum {
    CLI_SVG_MARGIN = 22,
    CLI_SVG_SUBTITLE = 53
}; /* left of all text; a second line's baseline */

typedef struct cli_svg {
    int width, height;
    const char *title, *summary; /* the latter in place of the picture, for screen readers */
    const char *rules;           /* CSS of the drawing, beside those of text and axes */
} cli_svg;

/* Writes all up to the title; the drawing follows, then "</svg>\n". */
void cli_svg_begin(cli_html *file, const cli_svg *svg);

#endif
