/* Layout and drawing: labels on the left, a linear axis beneath the last row. */
#include "boxes.h"

#include <math.h>

#include "chart.h"

enum {
    WIDTH = 520, /* the drawing in its own units; the page scales it */
    LEFT = 172,  /* of the axis, labels before it */
    RIGHT = WIDTH - 26,
    TOP = 6,
    ROW = 24,   /* height of one */
    HALF = 7,   /* half of a box's height */
    LABEL = 21, /* characters */
    FOOT = 40   /* numbers of the axis and its name */
};

static double to_x(double most, double value) {
    return LEFT + value / most * (RIGHT - LEFT);
}

static void draw_axis(cli_html *page, const cli_boxes *boxes, double most, int bottom) {
    double tick[CLI_MAX_TICKS];
    const int count = cli_ticks_linear(0.0, most, 5, tick);
    cli_html_add(page, "<g class=\"axes\">");
    for (int i = 0; i < count; i++) {
        const double x = to_x(most, tick[i]);
        cli_html_add(page,
                     "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text x=\"%.1f\" "
                     "y=\"%d\" class=\"x\">%.6g</text>",
                     x, x, TOP, bottom, x, bottom + 18, tick[i]);
    }
    cli_html_add(page,
                 "<line class=\"base\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>"
                 "<text x=\"%d\" y=\"%d\" class=\"y name\">%s</text></g>",
                 LEFT, RIGHT, bottom, bottom, RIGHT, bottom + FOOT - 4, boxes->x_label);
}

/* One row around the height y. */
static void draw_row(cli_html *page, const cli_boxes *boxes, const cli_box_row *row, double most,
                     double y) {
    const cli_quantiles *q = &row->quantiles;
    const double low = to_x(most, q->min), high = to_x(most, q->max);
    const double q1 = to_x(most, q->q1), q3 = to_x(most, q->q3);
    cli_html_add(page, "<g class=\"quartiles c%d\" data-run=\"%s\" data-metric=\"%s\"",
                 cli_run_colour(row->number), row->name, boxes->metric);
    cli_html_add(page,
                 " data-min=\"%.9g\" data-q1=\"%.9g\" data-median=\"%.9g\" data-q3=\"%.9g\" "
                 "data-max=\"%.9g\"><title>%s: median %.4g, quartiles %.4g and %.4g, from %.4g to "
                 "%.4g</title>",
                 q->min, q->q1, q->median, q->q3, q->max, row->name, q->median, q->q1, q->q3,
                 q->min, q->max);
    cli_html_add(page, "<text class=\"end\" x=\"0\" y=\"%.1f\">%d</text><text x=\"22\" y=\"%.1f\">",
                 y + 4.0, row->number, y + 4.0);
    cli_html_short(page, row->label, LABEL);
    cli_html_add(page,
                 "</text><path d=\"M%.1f %.1fH%.1fM%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8\"/>"
                 "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>",
                 low, y, q1, q3, y, high, low, y - 4.0, high, y - 4.0, q1, y - HALF, q3 - q1,
                 2 * HALF);
    cli_html_add(page, "<path class=\"median\" d=\"M%.1f %.1fv%d\"/></g>", to_x(most, q->median),
                 y - HALF, 2 * HALF);
}

void cli_boxes_draw(cli_html *page, const cli_boxes *boxes) {
    double most = 0.0;
    for (int i = 0; i < boxes->count; i++) {
        most = fmax(most, boxes->row[i].quantiles.max);
    }
    if (!(most > 0.0)) {
        return;
    }
    const int bottom = TOP + boxes->count * ROW;
    cli_html_add(page, "<figure class=\"chart\"><figcaption>%s</figcaption>", boxes->title);
    cli_html_add(page, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s, box plot.", WIDTH,
                 bottom + FOOT, boxes->title);
    for (int i = 0; i < boxes->count; i++) {
        cli_html_add(page, " %s: median %.4g.", boxes->row[i].name, boxes->row[i].quantiles.median);
    }
    cli_html_add(page, "\">");
    draw_axis(page, boxes, most, bottom);
    for (int i = 0; i < boxes->count; i++) {
        draw_row(page, boxes, &boxes->row[i], most, TOP + (i + 0.5) * ROW);
    }
    cli_html_add(page, "</svg></figure>\n");
}
