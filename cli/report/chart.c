/* Curves: scales, ticks, paths, and one invisible strip per x that shows its read-out on hover. */
#include "chart.h"

#include <math.h>
#include <stdlib.h>

#include "common/text.h"

/* The drawing in its own units; the page scales it. */
enum {
    WIDTH = 520,
    HEIGHT = 300,
    LEFT = 58,
    RIGHT = WIDTH - 26,
    TOP = 10,
    BOTTOM = HEIGHT - 40,
    LABEL_GAP = 13,   /* between two numbers at the ends of curves */
    LABEL_WIDTH = 20, /* of such a number */
    MAX_STRIPS = 120  /* read-outs of a chart */
};

typedef struct scale {
    double x0, x1; /* data at LEFT and RIGHT */
    double y0, y1; /* data (or its log10) at BOTTOM and TOP */
    bool is_log;
} scale;

int cli_run_colour(int number) {
    return number > 0 ? (number - 1) % CLI_RUN_COLOURS + 1 : 0;
}

/* ---- ticks ---- */

int cli_ticks_linear(double low, double high, int wanted, double tick[CLI_MAX_TICKS]) {
    const double rough = (high - low) / wanted;
    if (!(rough > 0.0) || !isfinite(rough)) {
        return 0;
    }
    const double power = pow(10.0, floor(log10(rough)));
    const double step = power * (rough <= power       ? 1
                                 : rough <= 2 * power ? 2
                                 : rough <= 5 * power ? 5
                                                      : 10);
    if (!(step > 1e-12 * fmax(fabs(low), fabs(high)))) {
        return 0; /* below the precision of the numbers */
    }
    const double first = ceil(low / step - 1e-9);
    int count = 0;
    while (count < CLI_MAX_TICKS && (first + count) * step <= high + 1e-9 * step) {
        tick[count] = (first + count) * step + 0.0; /* no -0 */
        count++;
    }
    return count;
}

int cli_ticks_log(double low, double high, double tick[CLI_MAX_TICKS]) {
    static const double few[] = {1}, some[] = {1, 3}, many[] = {1, 2, 5};
    const double decades = log10(high / low);
    if (decades < 0.75) {
        return cli_ticks_linear(low, high, 5, tick);
    }
    const double *digit = decades < 1.7 ? many : decades < 3.0 ? some : few;
    const int digits = decades < 1.7 ? 3 : decades < 3.0 ? 2 : 1;
    const int stride = decades > 8.0 ? (int)ceil(decades / 8.0) : 1; /* whole decades left out */
    int count = 0;
    for (int e = (int)floor(log10(low)); e <= (int)ceil(log10(high)); e++) {
        for (int d = 0; d < digits; d++) {
            const double value = digit[d] * pow(10.0, e);
            if (value >= low && value <= high && e % stride == 0 && count < CLI_MAX_TICKS) {
                tick[count++] = value;
            }
        }
    }
    return count;
}

/* ---- scales ---- */

static bool can_show(const cli_chart *chart, double y) {
    return isfinite(y) && (!chart->is_log || y > 0.0);
}

static bool find_scale(const cli_chart *chart, scale *out) {
    *out = (scale){.x0 = INFINITY, .x1 = -INFINITY, .y0 = INFINITY, .y1 = -INFINITY};
    out->is_log = chart->is_log;
    for (int s = 0; s < chart->count; s++) {
        const cli_series *series = &chart->series[s];
        const double *const values[] = {series->y, series->low, series->high};
        for (int i = 0; i < 3 * series->count; i++) {
            const double *value = values[i % 3];
            if (value && can_show(chart, value[i / 3])) {
                const double y = chart->is_log ? log10(value[i / 3]) : value[i / 3];
                out->x0 = fmin(out->x0, series->x[i / 3]);
                out->x1 = fmax(out->x1, series->x[i / 3]);
                out->y0 = fmin(out->y0, y);
                out->y1 = fmax(out->y1, y);
            }
        }
    }
    if (!(out->x0 <= out->x1)) {
        return false;
    }
    bool has_curves = false;
    for (int s = 0; s < chart->count; s++) {
        has_curves = has_curves || chart->series[s].count > 1;
    }
    const double width = out->x1 - out->x0;
    const double x_air = !(width > 0.0) ? 0.5 : has_curves ? 0.0 : 0.04 * width;
    out->x0 -= x_air;
    out->x1 += x_air;
    /* A margin above and below, and a width for constant values. */
    const double size = fmax(fabs(out->y0), fabs(out->y1));
    const double least = chart->is_log ? 0.05 : size > 0.0 ? 1e-3 * size : 1.0;
    const double air = fmax(0.05 * (out->y1 - out->y0), least);
    out->y0 -= air;
    out->y1 += air;
    return true;
}

static double to_x(const scale *s, double x) {
    return LEFT + (x - s->x0) / (s->x1 - s->x0) * (RIGHT - LEFT);
}

static double to_y(const scale *s, double y) {
    const double value = s->is_log ? log10(y) : y;
    return BOTTOM - (value - s->y0) / (s->y1 - s->y0) * (BOTTOM - TOP);
}

/* ---- parts ---- */

void cli_chart_grid_line(cli_html *page, int left, int right, double y, double value) {
    cli_html_add(page,
                 "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" "
                 "y=\"%.1f\" class=\"y\">%.6g</text>",
                 left, right, y, y, left - 8, y + 4.0, value);
}

static void draw_axes(cli_html *page, const cli_chart *chart, const scale *s) {
    double tick[CLI_MAX_TICKS];
    int count = s->is_log ? cli_ticks_log(pow(10.0, s->y0), pow(10.0, s->y1), tick)
                          : cli_ticks_linear(s->y0, s->y1, 5, tick);
    cli_html_add(page, "<g class=\"axes\">");
    for (int i = 0; i < count; i++) {
        cli_chart_grid_line(page, LEFT, RIGHT, to_y(s, tick[i]), tick[i]);
    }
    count = cli_ticks_linear(s->x0, s->x1, 6, tick);
    for (int i = 0; i < count; i++) {
        cli_html_add(page, "<text x=\"%.1f\" y=\"%d\" class=\"x\">%.6g</text>", to_x(s, tick[i]),
                     BOTTOM + 18, tick[i]);
    }
    cli_html_add(page,
                 "<line class=\"base\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>"
                 "<text x=\"%d\" y=\"%d\" class=\"y name\">%s</text></g>",
                 LEFT, RIGHT, BOTTOM, BOTTOM, RIGHT, HEIGHT - 4, chart->x_label);
}

static void add_numbers(cli_html *page, const char *attribute, const double *value, int count) {
    cli_html_add(page, " data-%s=\"", attribute);
    for (int i = 0; i < count; i++) {
        if (isfinite(value[i])) {
            cli_html_add(page, "%s%.9g", i ? "," : "", value[i]);
        } else {
            cli_html_add(page, "%snull", i ? "," : "");
        }
    }
    cli_html_add(page, "\"");
}

/* From low to high, forth and back; a single point has a bar. Where an end cannot be shown, as on a
 * logarithmic axis below 0, it is the curve itself. */
static void draw_band(cli_html *page, const cli_chart *chart, const scale *s,
                      const cli_series *series) {
    bool has_begun = false;
    if (!series->low || !series->high) {
        return;
    }
    cli_html_add(page, "<path class=\"band c%d\" d=\"", cli_run_colour(series->number));
    for (int i = 0; i < 2 * series->count; i++) {
        const int at = i < series->count ? i : 2 * series->count - 1 - i;
        const double end = i < series->count ? series->low[at] : series->high[at];
        if (can_show(chart, series->y[at])) {
            cli_html_add(page, "%s%.1f %.1f", has_begun ? "L" : "M", to_x(s, series->x[at]),
                         to_y(s, can_show(chart, end) ? end : series->y[at]));
            has_begun = true;
        }
    }
    cli_html_add(page, "%s\"/>", has_begun ? "z" : "");
}

static void draw_curve(cli_html *page, const cli_chart *chart, const scale *s,
                       const cli_series *series) {
    const char *kind = series->count == 1                 ? " point"
                       : series->number > CLI_RUN_COLOURS ? " dashed"
                                                          : "";
    cli_html_add(page, "<path class=\"curve c%d%s\" data-run=\"%s\" data-metric=\"%s\"",
                 cli_run_colour(series->number), kind, series->name, chart->metric);
    add_numbers(page, "x", series->x, series->count);
    add_numbers(page, "y", series->y, series->count);
    cli_html_add(page, " d=\"");
    for (int i = 0, drawn = 0; i < series->count; i++) {
        if (!can_show(chart, series->y[i])) {
            drawn = 0;
            continue;
        }
        cli_html_add(page, "%s%.1f %.1f", drawn ? "L" : "M", to_x(s, series->x[i]),
                     to_y(s, series->y[i]));
        const bool is_alone =
            !drawn && (i + 1 == series->count || !can_show(chart, series->y[i + 1]));
        cli_html_add(page, "%s", is_alone ? "h0" : ""); /* a dot by its round ends */
        drawn = 1;
    }
    cli_html_add(page, "\"><title>%s</title></path>", series->name);
}

/* Index of the last value of a series that can be shown; -1 if none can. */
static int last_shown(const cli_chart *chart, const cli_series *series) {
    int last = series->count - 1;
    while (last >= 0 && !can_show(chart, series->y[last])) {
        last--;
    }
    return last;
}

typedef struct end_label {
    double x, y;
    int number;
} end_label;

static int upwards(const void *a, const void *b) {
    const double x = ((const end_label *)a)->y, y = ((const end_label *)b)->y;
    return x < y ? -1 : x > y;
}

/* The numbers of the runs where their curves end, moved apart where these meet. */
static void draw_end_labels(cli_html *page, const cli_chart *chart, const scale *s) {
    end_label *label = cli_need(calloc((size_t)chart->count, sizeof *label));
    int count = 0;
    for (int i = 0; i < chart->count; i++) {
        const cli_series *series = &chart->series[i];
        const int last = last_shown(chart, series);
        if (last >= 0 && series->number > 0) {
            label[count++] =
                (end_label){to_x(s, series->x[last]), to_y(s, series->y[last]), series->number};
        }
    }
    qsort(label, (size_t)count, sizeof *label, upwards);
    for (int i = 1; i < count; i++) {
        for (int j = 0; j < i; j++) {
            const bool meet = fabs(label[i].x - label[j].x) < LABEL_WIDTH;
            label[i].y = meet ? fmax(label[i].y, label[j].y + LABEL_GAP) : label[i].y;
        }
    }
    for (int i = count - 1; i >= 0; i--) {
        label[i].y = fmin(label[i].y, BOTTOM);
        for (int j = i + 1; j < count; j++) {
            const bool meet = fabs(label[i].x - label[j].x) < LABEL_WIDTH;
            label[i].y = meet ? fmin(label[i].y, label[j].y - LABEL_GAP) : label[i].y;
        }
    }
    for (int i = 0; count > 1 && i < count; i++) {
        cli_html_add(page, "<text class=\"end c%d\" x=\"%.1f\" y=\"%.1f\">%d</text>",
                     cli_run_colour(label[i].number), label[i].x + 6, label[i].y + 4,
                     label[i].number);
    }
    free(label);
}

/* ---- read-outs ---- */

/* Every x of any series once, thinned to MAX_STRIPS with the last one kept; to be freed. */
static double *strip_places(const cli_chart *chart, int *count) {
    size_t all = 0, kept = 0;
    for (int s = 0; s < chart->count; s++) {
        all += (size_t)chart->series[s].count;
    }
    double *x = cli_need(malloc((all + 1) * sizeof *x));
    for (int s = 0; s < chart->count; s++) {
        for (int i = 0; i < chart->series[s].count; i++) {
            x[kept++] = chart->series[s].x[i];
        }
    }
    qsort(x, kept, sizeof *x, cli_ascending);
    size_t unique = 0;
    for (size_t i = 0; i < kept; i++) {
        if (unique == 0 || x[i] > x[unique - 1]) {
            x[unique++] = x[i];
        }
    }
    const size_t stride = (unique + MAX_STRIPS - 1) / MAX_STRIPS;
    kept = 0;
    for (size_t i = 0; i < unique; i += stride) {
        x[kept++] = x[i];
    }
    if (kept > 0 && unique > 0) {
        x[kept - 1] = fmax(x[kept - 1], x[unique - 1]);
    }
    *count = (int)kept;
    return x;
}

/* The value of a series at x, NaN if it has none there. */
static double value_at(const cli_series *series, double x) {
    for (int i = 0; i < series->count; i++) {
        if (series->x[i] == x) {
            return series->y[i];
        }
    }
    return (double)NAN;
}

/* The read-out at x: a line, a dot on every curve, a box with the values. */
static void draw_readout(cli_html *page, const cli_chart *chart, const scale *s, double x) {
    enum { LINE = 16, BOX = 176, NAME = 16 };
    const double at = to_x(s, x);
    const bool is_left = at > 0.5 * (LEFT + RIGHT); /* of the line, where there is room */
    const double box = is_left ? at - BOX - 8 : at + 8;
    int lines = 1;
    cli_html_add(page, "<g class=\"read\"><line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>", at,
                 at, TOP, BOTTOM);
    for (int i = 0; i < chart->count; i++) {
        const double y = value_at(&chart->series[i], x);
        if (can_show(chart, y)) {
            cli_html_add(page, "<circle class=\"c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>",
                         cli_run_colour(chart->series[i].number), at, to_y(s, y));
            lines++;
        }
    }
    cli_html_add(page,
                 "<g class=\"box%s\"><rect x=\"%.1f\" y=\"%d\" width=\"%d\" height=\"%d\" "
                 "rx=\"4\"/><text x=\"%.1f\" y=\"%d\">%s %.6g</text>",
                 is_left ? " flip" : "", box, TOP, BOX, LINE * lines + 8, box + 10, TOP + 16,
                 chart->x_label, x);
    for (int i = 0, line = 1; i < chart->count; i++) {
        const cli_series *series = &chart->series[i];
        const double y = value_at(series, x);
        if (can_show(chart, y)) {
            cli_html_add(page, "<text class=\"c%d\" x=\"%.1f\" y=\"%d\">",
                         cli_run_colour(series->number), box + 10, TOP + 16 + LINE * line);
            cli_html_short(page, series->name, NAME);
            cli_html_add(page, "</text><text class=\"y\" x=\"%.1f\" y=\"%d\">%s</text>",
                         box + BOX - 10, TOP + 16 + LINE * line, CLI_NUMBER(y));
            line++;
        }
    }
    cli_html_add(page, "</g></g>");
}

static void draw_strips(cli_html *page, const cli_chart *chart, const scale *s) {
    int count = 0;
    double *x = strip_places(chart, &count);
    for (int i = 0; i < count; i++) {
        const double left = i > 0 ? 0.5 * (to_x(s, x[i - 1]) + to_x(s, x[i])) : LEFT - 8;
        const double right = i + 1 < count ? 0.5 * (to_x(s, x[i]) + to_x(s, x[i + 1])) : RIGHT + 8;
        cli_html_add(page,
                     "<g class=\"strip\"><rect x=\"%.1f\" y=\"%d\" width=\"%.1f\" "
                     "height=\"%d\"/>",
                     left, TOP, right - left, BOTTOM - TOP);
        draw_readout(page, chart, s, x[i]);
        cli_html_add(page, "</g>");
    }
    free(x);
}

static void add_label(cli_html *page, const cli_chart *chart) {
    cli_html_add(page, "%s by %s%s.", chart->title, chart->x_label,
                 chart->is_log ? ", logarithmic" : "");
    for (int i = 0; i < chart->count; i++) {
        const cli_series *series = &chart->series[i];
        const int end = last_shown(chart, series);
        int begin = 0;
        while (begin < end && !can_show(chart, series->y[begin])) {
            begin++;
        }
        if (end >= 0) {
            cli_html_add(page, " %s: from %s at %.6g to %s at %.6g.", series->name,
                         CLI_NUMBER(series->y[begin]), series->x[begin], CLI_NUMBER(series->y[end]),
                         series->x[end]);
        }
    }
}

void cli_chart_draw(cli_html *page, const cli_chart *chart) {
    scale s;
    if (!find_scale(chart, &s)) {
        return;
    }
    cli_html_add(page, "<figure class=\"chart\"><figcaption>%s</figcaption>", chart->title);
    cli_html_add(page, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"", WIDTH, HEIGHT);
    add_label(page, chart);
    cli_html_add(page, "\">");
    draw_axes(page, chart, &s);
    for (int i = 0; i < chart->count; i++) {
        draw_band(page, chart, &s, &chart->series[i]);
    }
    for (int i = 0; i < chart->count; i++) {
        draw_curve(page, chart, &s, &chart->series[i]);
    }
    draw_end_labels(page, chart, &s);
    draw_strips(page, chart, &s);
    cli_html_add(page, "</svg></figure>\n");
}

/* ---- box plots: labels on the left, a linear axis beneath the last row ---- */

enum {
    BOX_LEFT = 172, /* of the axis, labels before it */
    ROW = 24,       /* height of one */
    HALF = 7,       /* half of a box's height */
    LABEL = 21,     /* characters */
    FOOT = 40       /* numbers of the axis and its name */
};

static double box_x(double most, double value) {
    return BOX_LEFT + value / most * (RIGHT - BOX_LEFT);
}

static void draw_box_axis(cli_html *page, const cli_boxes *boxes, double most, int bottom) {
    double tick[CLI_MAX_TICKS];
    const int count = cli_ticks_linear(0.0, most, 5, tick);
    cli_html_add(page, "<g class=\"axes\">");
    for (int i = 0; i < count; i++) {
        const double x = box_x(most, tick[i]);
        cli_html_add(page,
                     "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/><text x=\"%.1f\" "
                     "y=\"%d\" class=\"x\">%.6g</text>",
                     x, x, TOP, bottom, x, bottom + 18, tick[i]);
    }
    cli_html_add(page,
                 "<line class=\"base\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>"
                 "<text x=\"%d\" y=\"%d\" class=\"y name\">%s</text></g>",
                 BOX_LEFT, RIGHT, bottom, bottom, RIGHT, bottom + FOOT - 4, boxes->x_label);
}

static void draw_box_row(cli_html *page, const cli_boxes *boxes, const cli_box_row *row,
                         double most, double y) {
    const double *q = row->quantiles.at;
    const double low = box_x(most, q[CLI_MIN]), high = box_x(most, q[CLI_MAX]);
    const double q1 = box_x(most, q[CLI_Q1]), q3 = box_x(most, q[CLI_Q3]);
    cli_html_add(page, "<g class=\"quartiles c%d\" data-run=\"%s\" data-metric=\"%s\"",
                 cli_run_colour(row->number), row->name, boxes->metric);
    cli_html_add(page,
                 " data-min=\"%.9g\" data-q1=\"%.9g\" data-median=\"%.9g\" data-q3=\"%.9g\" "
                 "data-max=\"%.9g\"><title>%s: median %.4g, quartiles %.4g and %.4g, from %.4g to "
                 "%.4g</title>",
                 q[CLI_MIN], q[CLI_Q1], q[CLI_MEDIAN], q[CLI_Q3], q[CLI_MAX], row->name,
                 q[CLI_MEDIAN], q[CLI_Q1], q[CLI_Q3], q[CLI_MIN], q[CLI_MAX]);
    cli_html_add(page, "<text class=\"end\" x=\"0\" y=\"%.1f\">%d</text><text x=\"22\" y=\"%.1f\">",
                 y + 4.0, row->number, y + 4.0);
    cli_html_short(page, row->label, LABEL);
    cli_html_add(page,
                 "</text><path d=\"M%.1f %.1fH%.1fM%.1f %.1fH%.1fM%.1f %.1fv8M%.1f %.1fv8\"/>"
                 "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\"/>",
                 low, y, q1, q3, y, high, low, y - 4.0, high, y - 4.0, q1, y - HALF, q3 - q1,
                 2 * HALF);
    cli_html_add(page, "<path class=\"median\" d=\"M%.1f %.1fv%d\"/></g>",
                 box_x(most, q[CLI_MEDIAN]), y - HALF, 2 * HALF);
}

void cli_boxes_draw(cli_html *page, const cli_boxes *boxes) {
    double most = 0.0;
    for (int i = 0; i < boxes->count; i++) {
        most = fmax(most, boxes->row[i].quantiles.at[CLI_MAX]);
    }
    if (!(most > 0.0)) {
        return;
    }
    const int bottom = TOP + boxes->count * ROW;
    cli_html_add(page, "<figure class=\"chart\"><figcaption>%s</figcaption>", boxes->title);
    cli_html_add(page, "<svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"%s, box plot.", WIDTH,
                 bottom + FOOT, boxes->title);
    for (int i = 0; i < boxes->count; i++) {
        cli_html_add(page, " %s: median %.4g.", boxes->row[i].name,
                     boxes->row[i].quantiles.at[CLI_MEDIAN]);
    }
    cli_html_add(page, "\">");
    draw_box_axis(page, boxes, most, bottom);
    for (int i = 0; i < boxes->count; i++) {
        draw_box_row(page, boxes, &boxes->row[i], most, TOP + (i + 0.5) * ROW);
    }
    cli_html_add(page, "</svg></figure>\n");
}

/* ---- colour maps: from lightness, chroma and hue over OKLab to linear sRGB and bytes ---- */

/* Linear sRGB of a lightness 0 .. 1, a chroma and a hue in degrees. */
static void linear_rgb(double lightness, double chroma, double hue, double rgb[3]) {
    const double degree = 0.017453292519943295;
    const double a = chroma * cos(degree * hue), b = chroma * sin(degree * hue);
    const double l = pow(lightness + 0.3963377774 * a + 0.2158037573 * b, 3.0);
    const double m = pow(lightness - 0.1055613458 * a - 0.0638541728 * b, 3.0);
    const double s = pow(lightness - 0.0894841775 * a - 1.2914855480 * b, 3.0);
    rgb[0] = 4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s;
    rgb[1] = -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s;
    rgb[2] = -0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s;
}

static uint32_t byte_of(double linear) {
    const double clipped = fmin(fmax(linear, 0.0), 1.0);
    const double encoded =
        clipped <= 0.0031308 ? 12.92 * clipped : 1.055 * pow(clipped, 1.0 / 2.4) - 0.055;
    return (uint32_t)lround(255.0 * encoded);
}

static uint32_t colour_of(double lightness, double chroma, double hue) {
    double rgb[3];
    linear_rgb(lightness, chroma, hue, rgb);
    return byte_of(rgb[0]) << 16 | byte_of(rgb[1]) << 8 | byte_of(rgb[2]);
}

void cli_map_table(cli_map map, uint32_t colour[CLI_MAP_COLOURS]) {
    for (int i = 0; i < CLI_MAP_LEVELS; i++) {
        const double t = (double)i / (CLI_MAP_LEVELS - 1), off = t - 0.45, error = 2.0 * t - 1.0;
        /* The chroma of a field is a parabola within the gamut of screens along this path: least in
         * the greenish blue, more towards both ends. */
        const double chroma = 0.096 + (off < 0.0 ? 0.14 : 0.28) * off * off;
        colour[i] = map == CLI_MAP_FIELD ? colour_of(0.24 + 0.70 * t, chroma, 305.0 - 200.0 * t)
                                         : colour_of(0.975 - 0.53 * fabs(error), 0.15 * fabs(error),
                                                     error < 0.0 ? 256.0 : 30.0);
    }
    colour[CLI_MAP_NAN] = 0x8c8c8c;
}

unsigned char cli_map_level(double t) {
    return isnan(t) ? CLI_MAP_NAN
                    : (unsigned char)lround(fmin(fmax(t, 0.0), 1.0) * (CLI_MAP_LEVELS - 1));
}
