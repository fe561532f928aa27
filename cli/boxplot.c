/* Layout and drawing of a box plot: title and legend on top, boxes over a logarithmic axis, three
 * lines of text beneath each box. */
#include "boxplot.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum {
    MARGIN = 40,      /* around everything */
    HEAD = 175,       /* titles and legend, above the axis */
    AXIS = 130,       /* numbers, left of it */
    COLUMN = 280,     /* one box and its text */
    MIN_COLUMNS = 4,  /* the title needs some room */
    PLOT = 620,       /* height of the axis */
    FOOT = 120,       /* text beneath it */
    HALF_BOX = 56,    /* half of a box's width */
    HALF_WHISKER = 28 /* half of the line at a whisker's end */
};

static const double title_size = 44, text_size = 32, small_size = 27, raised_size = 24;

static const uint32_t ink = 0x202428, faint_ink = 0x5A6068, grid = 0xD5D9DE, fine_grid = 0xEDEFF2;

/* Colours that stay apart for colour-blind eyes and in grey (after Okabe and Ito); the first is for
 * what the others are compared with. */
static const uint32_t colours[] = {0x8A9199, 0x0072B2, 0xD55E00, 0x009E73, 0xCC79A7,
                                   0x56B4E9, 0xE69F00, 0x7A5195, 0x4C6A2E};

/* The axis: values [low, high] on pixels [bottom, top], by their logarithm. */
typedef struct scale {
    double low, high; /* log10 of the ends */
    double top, bottom;
    double left, right;
} scale;

static double height_of(const scale *axis, double value) {
    if (!(value > 0.0)) {
        return axis->bottom;
    }
    const double share = (log10(value) - axis->low) / (axis->high - axis->low);
    return axis->bottom - fmax(share, 0.0) * (axis->bottom - axis->top);
}

static bool is_below(const scale *axis, double value) {
    return !(value > 0.0) || log10(value) < axis->low;
}

bool cli_boxplot_is_drawable(const cli_boxplot *plot) {
    for (int i = 0; i < plot->count; i++) {
        if (plot->box[i].max > 0.0) {
            return true;
        }
    }
    return false;
}

/* The lowest quantile above 0 from the median upwards. */
static double lowest_positive(const cli_box *box) {
    const double values[] = {box->median, box->q3, box->p99, box->p999, box->max};
    double lowest = box->max;
    for (int v = 4; v >= 0; v--) {
        lowest = values[v] > 0.0 ? values[v] : lowest;
    }
    return lowest;
}

/* Ends of the axis: everything, with a little air, except what is far below every median: whiskers
 * down to rounding errors would leave no room for the boxes. */
static void set_range(const cli_boxplot *plot, scale *axis) {
    double least = (double)INFINITY, most = 0.0, floor_value = (double)INFINITY;
    for (int i = 0; i < plot->count; i++) {
        const cli_box *b = &plot->box[i];
        if (b->max > 0.0) {
            least = fmin(least, b->p01);
            most = fmax(most, b->max);
            floor_value = fmin(floor_value, lowest_positive(b) / 100.0);
        }
    }
    axis->high = log10(most);
    axis->low = fmax(log10(fmax(least, floor_value)), axis->high - 10.0);
    const double air = fmax(0.05 * (axis->high - axis->low), 0.05);
    axis->low -= air;
    axis->high += air;
}

/* "10" with a raised exponent, or "2 x 10" with one; right-aligned to x, centred on y. */
static void draw_power(cli_picture *picture, double x, double y, int factor, int exponent) {
    char raised[16], base[16] = "10";
    snprintf(raised, sizeof raised, "%d", exponent);
    if (factor != 1) {
        snprintf(base, sizeof base, "%d x 10", factor);
    }
    const double baseline = y + 0.27 * small_size;
    const double width = cli_picture_text_width(raised, raised_size);
    cli_picture_text(picture, x, baseline - 0.5 * small_size, raised_size, CLI_ALIGN_RIGHT, ink,
                     raised);
    cli_picture_text(picture, x - width - 4.0, baseline, small_size, CLI_ALIGN_RIGHT, ink, base);
}

/* Grid lines at 1 .. 9 of each decade; numbers at the decades, and at 2 and 5 if those are few. */
static void draw_axis(cli_picture *picture, const scale *axis) {
    const int first = (int)floor(axis->low), last = (int)ceil(axis->high);
    const double decades = axis->high - axis->low;
    const int every = decades > 8.0 ? 2 : 1;
    for (int exponent = first; exponent <= last; exponent++) {
        for (int factor = 1; factor <= 9; factor++) {
            const double at = exponent + log10(factor);
            if (at < axis->low || at > axis->high || (factor > 1 && decades > 8.0)) {
                continue;
            }
            const double y = height_of(axis, pow(10.0, at));
            cli_picture_line(picture, axis->left, y, axis->right, y, factor == 1 ? 2.0 : 1.5,
                             factor == 1 ? grid : fine_grid);
            const bool is_decade = factor == 1 && exponent % every == 0;
            if (is_decade || (decades < 2.0 && (factor == 2 || factor == 5))) {
                draw_power(picture, axis->left - 16.0, y, factor, exponent);
            }
        }
    }
    cli_picture_line(picture, axis->left, axis->top, axis->left, axis->bottom, 3.0, ink);
    cli_picture_line(picture, axis->left, axis->bottom, axis->right, axis->bottom, 3.0, ink);
}

static void draw_ring(cli_picture *picture, double x, double y, uint32_t colour) {
    cli_picture_line(picture, x, y, x, y, 15.0, colour);
    cli_picture_line(picture, x, y, x, y, 8.0, 0xFFFFFF);
}

static void draw_cross(cli_picture *picture, double x, double y, uint32_t colour) {
    cli_picture_line(picture, x - 7.0, y - 7.0, x + 7.0, y + 7.0, 3.5, colour);
    cli_picture_line(picture, x - 7.0, y + 7.0, x + 7.0, y - 7.0, 3.5, colour);
}

/* A third of the colour, the rest white. */
static uint32_t lighten(uint32_t colour) {
    uint32_t light = 0;
    for (int shift = 0; shift <= 16; shift += 8) {
        const uint32_t part = (colour >> shift) & 0xFF;
        light |= (255 - (255 - part) / 3) << shift;
    }
    return light;
}

/* The stem of a whisker and its end: a line across, or an arrow if it goes on below the axis. */
static void draw_whisker(cli_picture *picture, double x, double from, double to, bool is_open,
                         uint32_t colour) {
    cli_picture_line(picture, x, from, x, to, 3.0, colour);
    if (is_open) {
        cli_picture_line(picture, x - 10.0, to - 14.0, x, to - 3.0, 3.0, colour);
        cli_picture_line(picture, x + 10.0, to - 14.0, x, to - 3.0, 3.0, colour);
    } else {
        cli_picture_line(picture, x - HALF_WHISKER, to, x + HALF_WHISKER, to, 3.0, colour);
    }
}

static void draw_box(cli_picture *picture, const scale *axis, const cli_box *box, double x,
                     uint32_t colour) {
    if (!(box->max > 0.0)) {
        cli_picture_text(picture, x, (axis->top + axis->bottom) / 2.0, text_size, CLI_ALIGN_CENTRE,
                         colour, "all 0");
        return;
    }
    const double upper = height_of(axis, box->q3), lower = height_of(axis, box->q1);
    const double median = height_of(axis, box->median);
    cli_picture_box(picture, x - HALF_BOX, upper, x + HALF_BOX, lower, colour);
    cli_picture_box(picture, x - HALF_BOX + 3.0, upper + 3.0, x + HALF_BOX - 3.0, lower - 3.0,
                    lighten(colour));
    cli_picture_line(picture, x - HALF_BOX + 3.0, median, x + HALF_BOX - 3.0, median, 5.0, colour);
    draw_whisker(picture, x, lower, height_of(axis, box->p01), is_below(axis, box->p01), colour);
    draw_whisker(picture, x, upper, height_of(axis, box->p99), false, colour);
    draw_ring(picture, x, height_of(axis, box->p999), colour);
    draw_cross(picture, x, height_of(axis, box->max), colour);
}

/* Number of label lines of the box that has most, so that the notes stand in one line. */
static int label_lines(const cli_boxplot *plot) {
    int lines = 1;
    for (int i = 0; i < plot->count; i++) {
        lines = plot->box[i].label[1] ? 2 : lines;
    }
    return lines;
}

static void draw_labels(cli_picture *picture, const scale *axis, const cli_box *box, double x,
                        int lines) {
    const double first = axis->bottom + 1.4 * text_size, step = 1.1 * text_size;
    for (int line = 0; line < 2 && box->label[line]; line++) {
        cli_picture_text(picture, x, first + line * step, text_size, CLI_ALIGN_CENTRE, ink,
                         box->label[line]);
    }
    cli_picture_text(picture, x, first + lines * step, small_size, CLI_ALIGN_CENTRE, faint_ink,
                     box->note);
}

/* Writes a line from the left, shortened at its end if it has to be. */
static void draw_line_of_text(cli_picture *picture, double y, double size, uint32_t colour,
                              const char *text) {
    char line[512];
    snprintf(line, sizeof line, "%s", text);
    for (size_t length = strlen(line);
         cli_picture_text_width(line, size) > picture->width - 2.0 * MARGIN && length > 4;
         length--) {
        snprintf(line + length - 3, 4, "..");
    }
    cli_picture_text(picture, MARGIN, y, size, CLI_ALIGN_LEFT, colour, line);
}

/* Title, what the plot is of, and what the marks mean. */
static void draw_head(cli_picture *picture, const cli_boxplot *plot, const scale *axis) {
    draw_line_of_text(picture, MARGIN + 32.0, title_size, ink, plot->title);
    draw_line_of_text(picture, MARGIN + 82.0, text_size, faint_ink, plot->subtitle);
    const double y = MARGIN + 146.0;
    cli_picture_text(picture, MARGIN, y, text_size, CLI_ALIGN_LEFT, ink, plot->axis);
    double x = axis->right;
    static const char *const legend[] = {"largest", "99.9 %",
                                         "box: quartiles, whiskers: 1 to 99 %"};
    for (int i = 0; i < 3; i++) {
        cli_picture_text(picture, x, y, small_size, CLI_ALIGN_RIGHT, faint_ink, legend[i]);
        x -= cli_picture_text_width(legend[i], small_size) + 18.0;
        if (i == 0) {
            draw_cross(picture, x, y - 8.0, faint_ink);
        } else if (i == 1) {
            draw_ring(picture, x, y - 8.0, faint_ink);
        }
        x -= 36.0;
    }
}

cli_picture cli_boxplot_draw(const cli_boxplot *plot) {
    const int columns = plot->count > MIN_COLUMNS ? plot->count : MIN_COLUMNS;
    cli_picture picture = cli_picture_create(2 * MARGIN + AXIS + columns * COLUMN,
                                             MARGIN + HEAD + PLOT + FOOT + MARGIN);
    scale axis = {.top = MARGIN + HEAD,
                  .bottom = MARGIN + HEAD + PLOT,
                  .left = MARGIN + AXIS,
                  .right = picture.width - MARGIN};
    set_range(plot, &axis);
    draw_axis(&picture, &axis);
    draw_head(&picture, plot, &axis);
    const int palette = (int)(sizeof colours / sizeof colours[0]);
    const double step = (axis.right - axis.left) / plot->count;
    for (int i = 0; i < plot->count; i++) {
        const double x = axis.left + (i + 0.5) * step;
        draw_box(&picture, &axis, &plot->box[i], x, colours[i % palette]);
        draw_labels(&picture, &axis, &plot->box[i], x, label_lines(plot));
    }
    return picture;
}
