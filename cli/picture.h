/* Pictures: a canvas with smooth lines, boxes and text, written as PNG.
 *
 * Coordinates are pixels, (0, 0) the upper left corner; fractions are welcome, edges are blended.
 * Colours are 0xRRGGBB. What lies outside of the canvas is cut off. */
#ifndef CLI_PICTURE_H
#define CLI_PICTURE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct cli_picture {
    int width, height;
    unsigned char *rgb; /* (height, width, 3) */
} cli_picture;

/* A white canvas; sizes from 1 to 16384. */
cli_picture cli_picture_create(int width, int height);
void cli_picture_free(cli_picture *picture);

void cli_picture_box(cli_picture *picture, double left, double top, double right, double bottom,
                     uint32_t colour);
/* A line with round ends; a disc if both ends are one point. */
void cli_picture_line(cli_picture *picture, double x0, double y0, double x1, double y1,
                      double thickness, uint32_t colour);

/* ---- Text: a stroke font of printable ASCII; anything else shows as '?'. `size` is the distance
 * of two lines that do not touch; capitals are 0.55 of it. ---- */

typedef enum cli_align { CLI_ALIGN_LEFT, CLI_ALIGN_CENTRE, CLI_ALIGN_RIGHT } cli_align;

/* Writes one line with its baseline at y, aligned to x. */
void cli_picture_text(cli_picture *picture, double x, double y, double size, cli_align align,
                      uint32_t colour, const char *text);
double cli_picture_text_width(const char *text, double size);

/* The bytes of a PNG file, to be freed, with a palette if 256 colours are enough. CLI_OK, or
 * CLI_FAILED after a message, which `label` begins. */
int cli_picture_encode_png(const cli_picture *picture, const char *label, unsigned char **bytes,
                           size_t *size);
/* Writes the file; CLI_OK, or CLI_FAILED after a message. */
int cli_picture_write_png(const cli_picture *picture, const char *path);

/* ---- The font (picture_font.c). ---- */

/* How a printable ASCII character is drawn: a width, then strokes with a space between. A stroke
 * is a polyline through its points, or with '~' in front a smooth curve that starts and ends at the
 * outer points and is pulled towards the inner ones (a quadratic B-spline). A point is two digits
 * of base 36, x to the right and y upwards: the baseline is y = 4, small letters end at 12 = c,
 * capitals at 16 = g. */
const char *cli_font_glyph(char character);

#endif
