/* The canvas. Coverage of a pixel is taken from its distance to the shape's edge, so that slanted
 * lines and letters are smooth; a letter's strokes are united before they are blended. */
#include "picture.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "text.h"

enum { MAX_SIDE = 16384 };

cli_picture cli_picture_create(int width, int height) {
    width = width < 1 ? 1 : width > MAX_SIDE ? MAX_SIDE : width;
    height = height < 1 ? 1 : height > MAX_SIDE ? MAX_SIDE : height;
    const size_t bytes = 3 * (size_t)width * (size_t)height;
    cli_picture picture = {.width = width, .height = height, .rgb = cli_need(malloc(bytes))};
    memset(picture.rgb, 0xFF, bytes);
    return picture;
}

void cli_picture_free(cli_picture *picture) {
    free(picture->rgb);
    *picture = (cli_picture){0};
}

static double clamp(double value, double low, double high) {
    return value < low ? low : value > high ? high : value;
}

/* The pixels that [low, high] touches within a side of `size`: *first up to, not with, *end. */
static void pixel_range(double low, double high, int size, int *first, int *end) {
    *first = (int)clamp(floor(low), 0.0, size);
    *end = (int)clamp(ceil(high), 0.0, size);
}

static void blend(cli_picture *picture, int x, int y, double coverage, uint32_t colour) {
    unsigned char *pixel = picture->rgb + 3 * ((size_t)y * (size_t)picture->width + (size_t)x);
    for (int channel = 0; channel < 3; channel++) {
        const double ink = (colour >> (16 - 8 * channel)) & 0xFF;
        pixel[channel] = (unsigned char)lround(pixel[channel] + coverage * (ink - pixel[channel]));
    }
}

/* Length of pixel [at, at + 1) inside [low, high]. */
static double overlap(int at, double low, double high) {
    return clamp(fmin(at + 1.0, high) - fmax(at, low), 0.0, 1.0);
}

void cli_picture_box(cli_picture *picture, double left, double top, double right, double bottom,
                     uint32_t colour) {
    int x0, x1, y0, y1;
    pixel_range(left, right, picture->width, &x0, &x1);
    pixel_range(top, bottom, picture->height, &y0, &y1);
    for (int y = y0; y < y1; y++) {
        for (int x = x0; x < x1; x++) {
            blend(picture, x, y, overlap(x, left, right) * overlap(y, top, bottom), colour);
        }
    }
}

typedef struct point {
    double x, y;
} point;

/* Pieces of lines that are drawn together. */
typedef struct pieces {
    point from[128], to[128];
    int count;
} pieces;

static void add_piece(pieces *p, point from, point to) {
    if (p->count < (int)(sizeof p->from / sizeof p->from[0])) {
        p->from[p->count] = from;
        p->to[p->count++] = to;
    }
}

static double distance_to_piece(point at, point from, point to) {
    const double dx = to.x - from.x, dy = to.y - from.y, length = dx * dx + dy * dy;
    const double along = (at.x - from.x) * dx + (at.y - from.y) * dy;
    const double t = length > 0.0 ? clamp(along / length, 0.0, 1.0) : 0.0;
    return hypot(at.x - from.x - t * dx, at.y - from.y - t * dy);
}

static void draw_pieces(cli_picture *picture, const pieces *p, double thickness, uint32_t colour) {
    const double reach = thickness / 2.0 + 0.5; /* to the outermost pixel with any ink */
    const double far = (double)INFINITY;
    double left = far, top = far, right = -far, bottom = -far;
    for (int i = 0; i < p->count; i++) {
        left = fmin(left, fmin(p->from[i].x, p->to[i].x) - reach);
        right = fmax(right, fmax(p->from[i].x, p->to[i].x) + reach);
        top = fmin(top, fmin(p->from[i].y, p->to[i].y) - reach);
        bottom = fmax(bottom, fmax(p->from[i].y, p->to[i].y) + reach);
    }
    int x0, x1, y0, y1;
    pixel_range(left, right, picture->width, &x0, &x1);
    pixel_range(top, bottom, picture->height, &y0, &y1);
    for (int y = y0; y < y1; y++) {
        for (int x = x0; x < x1; x++) {
            double distance = reach;
            for (int i = 0; i < p->count; i++) {
                const point centre = {x + 0.5, y + 0.5};
                distance = fmin(distance, distance_to_piece(centre, p->from[i], p->to[i]));
            }
            blend(picture, x, y, clamp(reach - distance, 0.0, 1.0), colour);
        }
    }
}

void cli_picture_line(cli_picture *picture, double x0, double y0, double x1, double y1,
                      double thickness, uint32_t colour) {
    pieces line = {.count = 0};
    add_piece(&line, (point){x0, y0}, (point){x1, y1});
    draw_pieces(picture, &line, thickness, colour);
}

/* ---- text ---- */

/* A line of text stands on its baseline; all lengths of the font are in units of size / 22. */
enum { FONT_LINE = 22, FONT_BASELINE = 4, FONT_GAP = 3, CURVE_PIECES = 6, MAX_POINTS = 16 };

static int digit36(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'z' ? c - 'a' + 10 : 0;
}

static point middle(point a, point b) {
    return (point){(a.x + b.x) / 2.0, (a.y + b.y) / 2.0};
}

/* The quadratic Bezier arc from a to c, pulled towards b. */
static void add_arc(pieces *p, point a, point b, point c) {
    point before = a;
    for (int i = 1; i <= CURVE_PIECES; i++) {
        const double t = (double)i / CURVE_PIECES, s = 1.0 - t;
        const point now = {s * s * a.x + 2.0 * s * t * b.x + t * t * c.x,
                           s * s * a.y + 2.0 * s * t * b.y + t * t * c.y};
        add_piece(p, before, now);
        before = now;
    }
}

static void add_stroke(pieces *p, const point *points, int count, bool is_curve) {
    if (!is_curve) {
        for (int i = 1; i < count; i++) {
            add_piece(p, points[i - 1], points[i]);
        }
        return;
    }
    point start = points[0];
    for (int i = 1; i < count - 1; i++) {
        const point end = i == count - 2 ? points[i + 1] : middle(points[i], points[i + 1]);
        add_arc(p, start, points[i], end);
        start = end;
    }
}

/* Draws one character with its lower left corner at (x, y). */
static void draw_glyph(cli_picture *picture, const char *glyph, double x, double y, double unit,
                       uint32_t colour) {
    pieces p = {.count = 0};
    for (const char *stroke = glyph + 1; *stroke == ' ';) {
        stroke++;
        const bool is_curve = *stroke == '~';
        stroke += is_curve;
        point points[MAX_POINTS];
        int count = 0;
        for (; *stroke && *stroke != ' ' && count < MAX_POINTS; stroke += 2) {
            points[count++] = (point){x + unit * digit36(stroke[0]),
                                      y - unit * (digit36(stroke[1]) - FONT_BASELINE)};
        }
        add_stroke(&p, points, count, is_curve);
    }
    draw_pieces(picture, &p, 1.9 * unit, colour);
}

/* The glyph at *text, which moves on by one character. */
static const char *next_glyph(const char **text) {
    const int length = cli_utf8_length(*text);
    const char character = length > 1 ? '?' : **text;
    *text += length > 1 ? length : 1;
    return cli_font_glyph(character);
}

double cli_picture_text_width(const char *text, double size) {
    double units = 0.0;
    while (*text) {
        units += digit36(next_glyph(&text)[0]) + (*text ? FONT_GAP : 0);
    }
    return units * size / FONT_LINE;
}

void cli_picture_text(cli_picture *picture, double x, double y, double size, cli_align align,
                      uint32_t colour, const char *text) {
    const double unit = size / FONT_LINE, width = cli_picture_text_width(text, size);
    x -= align == CLI_ALIGN_LEFT ? 0.0 : align == CLI_ALIGN_CENTRE ? width / 2.0 : width;
    while (*text) {
        const char *glyph = next_glyph(&text);
        draw_glyph(picture, glyph, x, y, unit, colour);
        x += unit * (digit36(glyph[0]) + FONT_GAP);
    }
}
