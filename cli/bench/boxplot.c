/* Layout and drawing of a box plot: title and legend on top, boxes over a logarithmic axis, three
 * lines of text beneath each box. */
#include "boxplot.h"

#include <math.h>

#include "report/chart.h"

enum {
    LEFT = 80,       /* of the axis, numbers before it */
    COLUMN = 140,    /* one box and its text */
    MIN_COLUMNS = 5, /* title and legend need some room */
    TOP = 100,       /* title and legend above it */
    BOTTOM = 410,
    HEIGHT = 490,
    LINE = 16,        /* from one line of text to the next */
    HALF_BOX = 28,    /* half of a box's width */
    HALF_WHISKER = 14 /* half of the line at a whisker's end */
};

/* Run colours of the report; the first, neutral one is the reference of the others. */
static const char rules[] =
    ".box path{fill:none;stroke-width:1.5}.box rect{fill-opacity:.25;stroke-width:1.5}"
    ".box circle{fill:#fff;stroke-width:1.5}.box .median{stroke-width:2.5}"
    ".c0{fill:#59616c;stroke:#59616c}.c1{fill:#1f5fa8;stroke:#1f5fa8}"
    ".c2{fill:#b8420f;stroke:#b8420f}.c3{fill:#0b7268;stroke:#0b7268}"
    ".c4{fill:#87398c;stroke:#87398c}.c5{fill:#7d6000;stroke:#7d6000}"
    ".c6{fill:#b02a5b;stroke:#b02a5b}.c7{fill:#4c6a1e;stroke:#4c6a1e}"
    ".c8{fill:#515b68;stroke:#515b68}";

typedef struct scale {
    double low, high; /* log10 of the values at BOTTOM and TOP */
} scale;

static double to_y(const scale *s, double value) {
    const double share = value > 0.0 ? (log10(value) - s->low) / (s->high - s->low) : 0.0;
    return BOTTOM - fmax(share, 0.0) * (BOTTOM - TOP);
}

/* The lowest quantile above 0 from the median upwards. */
static double lowest_positive(const cli_quantiles *s) {
    const double values[] = {s->median, s->q3, s->p99, s->p999};
    double lowest = s->max;
    for (int v = 3; v >= 0; v--) {
        lowest = values[v] > 0.0 ? values[v] : lowest;
    }
    return lowest;
}

/* Ends of the axis, with a margin. Values far below every median are cut: whiskers down to rounding
 * errors would leave no room for the boxes. */
static bool find_scale(const cli_boxplot *plot, scale *out) {
    double least = (double)INFINITY, most = 0.0, floor_value = (double)INFINITY;
    for (int i = 0; i < plot->count; i++) {
        const cli_quantiles *s = plot->box[i].quantiles;
        if (s->max > 0.0) {
            least = fmin(least, s->p01);
            most = fmax(most, s->max);
            floor_value = fmin(floor_value, lowest_positive(s) / 100.0);
        }
    }
    if (!(most > 0.0)) {
        return false;
    }
    out->high = log10(most);
    out->low = fmax(log10(fmax(least, floor_value)), out->high - 10.0);
    const double air = fmax(0.05 * (out->high - out->low), 0.05);
    out->low -= air;
    out->high += air;
    return true;
}

static void draw_axis(cli_html *file, const scale *s, int right) {
    double tick[CLI_MAX_TICKS];
    const int count = cli_ticks_log(pow(10.0, s->low), pow(10.0, s->high), tick);
    cli_html_add(file, "<g class=\"axes\">");
    for (int i = 0; i < count; i++) {
        cli_chart_grid_line(file, LEFT, right, to_y(s, tick[i]), tick[i]);
    }
    cli_html_add(file,
                 "<line class=\"base\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>"
                 "<line class=\"base\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/></g>\n",
                 LEFT, LEFT, TOP, BOTTOM, LEFT, right, BOTTOM, BOTTOM);
}

/* The stem of a whisker and its end: a line across, or an arrow if it goes on below the axis. */
static void draw_whisker(cli_html *file, double x, double from, double to, bool is_open) {
    cli_html_add(file, "M%.1f %.1fV%.1f", x, from, to);
    if (is_open) {
        cli_html_add(file, "m-5 -7l5 6l5 -6");
    } else {
        cli_html_add(file, "m-%d 0h%d", HALF_WHISKER, 2 * HALF_WHISKER);
    }
}

static void draw_marks(cli_html *file, const scale *axis, const cli_quantiles *s, double x) {
    const double upper = to_y(axis, s->q3), lower = to_y(axis, s->q1);
    const bool is_open = !(s->p01 > 0.0) || log10(s->p01) < axis->low;
    cli_html_add(file,
                 "<rect x=\"%.1f\" y=\"%.1f\" width=\"%d\" height=\"%.1f\"/>"
                 "<path class=\"median\" d=\"M%.1f %.1fh%d\"/><path d=\"",
                 x - HALF_BOX, upper, 2 * HALF_BOX, lower - upper, x - HALF_BOX,
                 to_y(axis, s->median), 2 * HALF_BOX);
    draw_whisker(file, x, lower, to_y(axis, s->p01), is_open);
    draw_whisker(file, x, upper, to_y(axis, s->p99), false);
    cli_html_add(file, "M%.1f %.1fl7 7m-7 0l7 -7\"/><circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\"/>",
                 x - 3.5, to_y(axis, s->max) - 3.5, x, to_y(axis, s->p999));
}

/* A box at x and its text; of `lines` of labels, so that the notes stand in one line. */
static void draw_box(cli_html *file, const scale *axis, const cli_box *box, double x, int colour,
                     int lines) {
    cli_quantile quantile[CLI_QUANTILES];
    cli_quantile_list(box->quantiles, quantile);
    cli_html_add(file, "<g class=\"box c%d\"", colour);
    for (int q = 0; q < CLI_QUANTILES; q++) {
        cli_html_add(file, " data-%s=\"%.9g\"", quantile[q].key, quantile[q].value);
    }
    cli_html_add(file, ">");
    if (box->quantiles->max > 0.0) {
        draw_marks(file, axis, box->quantiles, x);
    }
    cli_html_add(file, "</g>");
    if (!(box->quantiles->max > 0.0)) {
        cli_html_add(file, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">all 0</text>", x,
                     (TOP + BOTTOM) / 2);
    }
    for (int line = 0; line < 2 && box->label[line]; line++) {
        cli_html_add(file, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>", x,
                     BOTTOM + 22 + line * LINE, box->label[line]);
    }
    cli_html_add(file, "<text class=\"small soft middle\" x=\"%.1f\" y=\"%d\">%s</text>\n", x,
                 BOTTOM + 22 + lines * LINE, box->note);
}

bool cli_boxplot_draw(cli_html *file, const cli_boxplot *plot) {
    const int columns = plot->count > MIN_COLUMNS ? plot->count : MIN_COLUMNS;
    const int right = LEFT + columns * COLUMN;
    const double step = (double)(right - LEFT) / plot->count;
    scale axis;
    if (!find_scale(plot, &axis)) {
        return false;
    }
    cli_svg_begin(file, &(cli_svg){.width = right + CLI_SVG_MARGIN,
                                   .height = HEIGHT,
                                   .title = plot->title,
                                   .summary = plot->subtitle,
                                   .rules = rules});
    cli_html_add(file, "<text class=\"subtitle\" x=\"%d\" y=\"%d\">", CLI_SVG_MARGIN,
                 CLI_SVG_SUBTITLE);
    cli_html_short(file, plot->subtitle, 110);
    cli_html_add(file,
                 "</text>\n<text x=\"%d\" y=\"82\">%s</text>\n"
                 "<text class=\"soft y\" x=\"%d\" y=\"82\">box: quartiles; whiskers: 1 to 99 %%; "
                 "\u25CB 99.9 %%; \u00D7 largest</text>\n",
                 CLI_SVG_MARGIN, plot->axis, right);
    draw_axis(file, &axis, right);
    int lines = 1;
    for (int i = 0; i < plot->count; i++) {
        lines = plot->box[i].label[1] ? 2 : lines;
    }
    for (int i = 0; i < plot->count; i++) {
        draw_box(file, &axis, &plot->box[i], LEFT + (i + 0.5) * step, cli_run_colour(i), lines);
    }
    cli_html_add(file, "</svg>\n");
    return true;
}
