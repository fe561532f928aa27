/* Stacked columns: the phases of a step, and memory against a setting. */
#include <math.h>
#include <string.h>

#include "profile.h"
#include "report/chart.h"

/* In units of the drawing, which is scaled as a whole. */
enum {
    WIDTH = 1040,
    LEFT = 70,
    RIGHT = WIDTH - 18,
    TOP = 30,
    BOTTOM = 350,
    LABEL = 12,
    SMALL = 11,
    ABOUT_LINE = 15
};

typedef struct drawing {
    cli_html body; /* elements within WIDTH x height; they carry classes and no colours */
    int height;
    char title[160], summary[256]; /* the latter in place of the picture, for screen readers */
    char about[120];               /* after the name: ", optimizer adam" */
    const char *foot;              /* a sentence below; NULL: none */
} drawing;

typedef struct scale {
    double most; /* bytes at TOP */
    double unit; /* bytes of "KiB", "MiB", .. */
    const char *unit_name;
} scale;

/* With room for `headroom` times the bytes. */
static scale scale_for(double bytes, double headroom) {
    static const char *const names[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
    scale s = {.most = bytes > 0.0 ? headroom * bytes : 1.0, .unit = 1.0};
    int name = 0;
    for (; name < 5 && bytes / s.unit >= 1024.0; name++) {
        s.unit *= 1024.0;
    }
    s.unit_name = names[name];
    return s;
}

static double to_y(const scale *s, double bytes) {
    return BOTTOM - bytes / s->most * (BOTTOM - TOP);
}

/* Upper bound of the width of ASCII text in common sans-serif fonts. */
static double text_width(const char *text, int size) {
    return 0.6 * size * (double)strlen(text);
}

/* ---- parts of both drawings ---- */

static void draw_axis(cli_html *out, const scale *s, const char *quantity) {
    double tick[CLI_MAX_TICKS];
    const int count = cli_ticks_linear(0.0, s->most / s->unit, 5, tick);
    cli_html_add(out, "<g class=\"axes\">");
    for (int i = 0; i < count; i++) {
        cli_chart_grid_line(out, LEFT, RIGHT, to_y(s, tick[i] * s->unit), tick[i]);
    }
    cli_html_add(out,
                 "<line class=\"base\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/>"
                 "<text class=\"middle\" transform=\"translate(18 %d) rotate(-90)\">%s (%s)</text>"
                 "</g>\n",
                 LEFT, RIGHT, BOTTOM, BOTTOM, (TOP + BOTTOM) / 2, quantity, s->unit_name);
}

/* A column of parts, one on the other; empty ones are left out. */
static void draw_column(cli_html *out, const scale *s, const size_t parts[CLI_PARTS], double x,
                        double width) {
    double sum = 0.0;
    for (int p = 0; p < CLI_PARTS; p++) {
        if (parts[p] == 0) {
            continue;
        }
        const double low = to_y(s, sum);
        sum += (double)parts[p];
        cli_html_add(out,
                     "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                     "data-part=\"%s\" data-bytes=\"%zu\"><title>%s: %s</title></rect>",
                     cli_parts[p].style, x, to_y(s, sum), width, low - to_y(s, sum),
                     cli_parts[p].key, parts[p], cli_parts[p].name, CLI_BYTES(parts[p]));
    }
}

/* A label under a column at x, upright or, if it would run into its neighbours, on its side. */
static void draw_label(cli_html *out, const char *text, double x, int y, bool on_side) {
    if (on_side) {
        cli_html_add(out,
                     "<text class=\"small y\" transform=\"translate(%.1f %d) rotate(-90)\">%s"
                     "</text>",
                     x + 4.0, y, text);
    } else {
        cli_html_add(out, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>", x, y + 10, text);
    }
}

/* A line under columns x0 .. x1 with a name below it. */
static void draw_span(cli_html *out, const char *name, double x0, double x1, int y) {
    cli_html_add(out,
                 "<line class=\"span\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
                 "<text class=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>",
                 x0 + 3.0, x1 - 3.0, y, y, 0.5 * (x0 + x1), y + 16, name);
}

/* ---- phases ---- */

/* "back through block 2: mixing" is labelled "mixing" in the span of "block 2". */
typedef struct phase_label {
    char group[48]; /* "": none */
    const char *own;
} phase_label;

static const char *without(const char *text, const char *beginning) {
    const size_t length = strlen(beginning);
    return strncmp(text, beginning, length) == 0 ? text + length : text;
}

static phase_label label_of(const tg_fno_phase *phase) {
    phase_label label = {.own = without(without(phase->name, "back through "), "the ")};
    const char *colon = strstr(label.own, ": ");
    if (colon) {
        snprintf(label.group, sizeof label.group, "%.*s", (int)(colon - label.own), label.own);
        label.own = colon + 2;
    }
    return label;
}

/* Names of the phases on their side, while there is room for a line of text per column; returns
 * where the spans of the groups can start, and in *end where everything ends. */
static int draw_names(cli_html *out, const cli_profile *p, double step, int *end) {
    double grouped = 0.0, longest = 0.0;
    for (int i = 0; i < p->count && step >= SMALL + 1.0; i++) {
        const phase_label label = label_of(&p->phase[i].phase);
        const double width = text_width(label.own, SMALL);
        grouped = label.group[0] ? fmax(grouped, width) : grouped;
        longest = fmax(longest, width);
        draw_label(out, label.own, LEFT + (i + 0.5) * step, BOTTOM + 8, true);
    }
    *end = BOTTOM + 8 + (int)longest;
    return BOTTOM + 12 + (int)grouped;
}

/* One span for each run of phases of the same group. */
static void draw_groups(cli_html *out, const cli_profile *p, double step, int y) {
    for (int i = 0, next = 1; i < p->count; i = next++) {
        const phase_label label = label_of(&p->phase[i].phase);
        const bool back = p->phase[i].phase.is_backward;
        while (next < p->count && p->phase[next].phase.is_backward == back &&
               strcmp(label_of(&p->phase[next].phase).group, label.group) == 0) {
            next++;
        }
        const double width = (next - i) * step;
        const char *number = strrchr(label.group, ' ');
        if (label.group[0] && text_width(label.group, LABEL) <= width) {
            draw_span(out, label.group, LEFT + i * step, LEFT + next * step, y);
        } else if (number && text_width(number + 1, LABEL) <= width) {
            draw_span(out, number + 1, LEFT + i * step, LEFT + next * step, y);
        }
    }
}

/* Returns the height of the drawing. */
static int draw_sides(cli_html *out, const cli_profile *p, double step) {
    int end = 0, turn = 0;
    const int groups = draw_names(out, p, step, &end);
    draw_groups(out, p, step, groups);
    while (turn < p->count && !p->phase[turn].phase.is_backward) {
        turn++;
    }
    const int y = end > groups + 24 ? end + 6 : groups + 30;
    draw_span(out, "forward", LEFT, LEFT + turn * step, y);
    draw_span(out, "backward and updates", LEFT + turn * step, RIGHT, y);
    return y + 28;
}

static void draw_marks(cli_html *out, const cli_profile *p, const scale *s, double step) {
    char text[128];
    const double line = to_y(s, (double)p->held_total);
    const double x = LEFT + (p->peak + 0.5) * step;
    const bool at_right = p->peak < p->count / 2; /* away from the peak */
    cli_html_add(out,
                 "\n<line class=\"held\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                 "<text class=\"%s\" x=\"%d\" y=\"%.1f\">held all the time: %s</text>",
                 LEFT, RIGHT, line, line, at_right ? "y" : "", at_right ? RIGHT - 4 : LEFT + 4,
                 line - 7.0, CLI_BYTES(p->held_total));
    const cli_profile_phase *peak = &p->phase[p->peak];
    snprintf(text, sizeof text, "most alive: %s, %s", CLI_BYTES(peak->total), peak->phase.name);
    const double half = 0.5 * text_width(text, LABEL);
    const double top = to_y(s, (double)peak->total);
    cli_html_add(out,
                 "<line class=\"peak\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%.1f\"/>"
                 "<circle class=\"peak\" cx=\"%.1f\" cy=\"%.1f\" r=\"3.5\"/>"
                 "<text class=\"peak-name middle\" x=\"%.1f\" y=\"%d\">%s</text>\n",
                 x, x, TOP - 4, top, x, top, fmin(fmax(x, LEFT + half), RIGHT - half), TOP - 10,
                 text);
}

static void draw_phases(const cli_profile *p, drawing *out) {
    const size_t peak = p->phase[p->peak].total;
    const scale s = scale_for((double)(p->held_total > peak ? p->held_total : peak), 1.12);
    const double step = (double)(RIGHT - LEFT) / p->count, gap = fmin(1.5, 0.1 * step);
    cli_html *body = &out->body;
    *out = (drawing){0};
    snprintf(out->title, sizeof out->title, "Memory in the phases of a training step");
    snprintf(out->summary, sizeof out->summary,
             "Memory in %d phases of a training step; most is alive in: %s, %s", p->count,
             p->phase[p->peak].phase.name, CLI_BYTES(peak));
    draw_axis(body, &s, "alive");
    for (int i = 0; i < p->count; i++) {
        const cli_profile_phase *at = &p->phase[i];
        cli_html_add(body,
                     "<g class=\"now\" data-phase=\"%s\" data-total=\"%zu\"><title>%s: %s"
                     "</title>",
                     at->phase.name, at->total, at->phase.name, CLI_BYTES(at->total));
        draw_column(body, &s, at->alive, LEFT + i * step + 0.5 * gap, step - gap);
        cli_html_add(body, "</g>\n");
    }
    out->height = draw_sides(body, p, step);
    draw_marks(body, p, &s, step);
}

/* ---- sweeps ---- */

/* Columns of a sweep: groups of `methods` bars, the names of both on their side where they must. */
typedef struct bars {
    double group, bar; /* widths */
    bool methods_on_side, values_on_side;
    int methods_end, values_end; /* y below the labels */
} bars;

static double longer(double so_far, const char *text) {
    return fmax(so_far, text_width(text, LABEL));
}

static bars plan_bars(const cli_sweep *s) {
    double method = 0.0, value = 0.0;
    bars b = {.group = (double)(RIGHT - LEFT) / s->values};
    b.bar = fmin(0.88 * b.group / s->methods, 96.0);
    for (int i = 0; i < s->values * s->methods; i++) {
        method = s->methods > 1 ? longer(method, s->point[i].method) : 0.0;
        value = longer(value, s->point[i].value);
    }
    b.methods_on_side = method > b.bar;
    b.values_on_side = value > b.group;
    b.methods_end = BOTTOM + 8 + (method > 0.0 ? b.methods_on_side ? (int)method : 16 : 0);
    b.values_end = b.methods_end + (b.values_on_side ? (int)value : 18);
    return b;
}

static void draw_point(cli_html *out, const cli_sweep *sweep, int value, int method, const scale *s,
                       const bars *b, double x) {
    const cli_sweep_point *at = &sweep->point[value * sweep->methods + method];
    char text[CLI_UNIT_TEXT];
    cli_html_add(out,
                 "<g class=\"now\" data-value=\"%s\" data-method=\"%s\" data-total=\"%zu\">"
                 "<title>%s, %s: %s</title>",
                 at->value, at->method, at->total, at->value, at->method, CLI_BYTES(at->total));
    draw_column(out, s, at->parts, x + 0.03 * b->bar, 0.94 * b->bar);
    const double middle = x + 0.5 * b->bar, top = to_y(s, (double)at->total);
    if (sweep->is_relative) {
        cli_bytes_text(at->total, text);
    } else {
        snprintf(text, sizeof text, "%.1f", (double)at->total / s->unit);
    }
    if (text_width(text, LABEL) <= b->bar) {
        cli_html_add(out, "<text class=\"middle total\" x=\"%.1f\" y=\"%.1f\">%s</text>", middle,
                     top - 6.0, text);
    }
    if (sweep->is_relative && method > 0) {
        cli_html_add(out, "<text class=\"middle peak-name\" x=\"%.1f\" y=\"%.1f\">%.0f %%</text>",
                     middle, top - 22.0, -cli_states_saved(sweep, value, method));
    }
    if (sweep->methods > 1) {
        draw_label(out, at->method, x + 0.5 * b->bar, BOTTOM + 8, b->methods_on_side);
    }
    cli_html_add(out, "</g>\n");
}

/* One scale for the columns of `count` values from `value` on; a relative one is in % of the first
 * method. */
static scale scale_of_values(const cli_sweep *sweep, int value, int count) {
    const cli_sweep_point *point = &sweep->point[value * sweep->methods];
    double most = 0.0;
    for (int i = 0; i < count * sweep->methods; i++) {
        most = fmax(most, (double)point[i].total);
    }
    scale s = scale_for(most, sweep->is_relative ? 1.08 : 1.0);
    if (sweep->is_relative) {
        s.unit = (double)point->total / 100.0;
        s.unit_name = "%";
    }
    return s;
}

static void draw_sweep(const cli_sweep *sweep, drawing *out) {
    const bars b = plan_bars(sweep);
    cli_html *body = &out->body;
    int last_line = b.values_end; /* of text below the columns */
    *out = (drawing){0};
    snprintf(out->title, sizeof out->title, "Memory of a training step %s %.80s",
             sweep->is_relative ? "for several" : "against", sweep->key);
    snprintf(out->summary, sizeof out->summary, "Memory of a training step for %d values of %.80s",
             sweep->values, sweep->key);
    scale s = scale_of_values(sweep, 0, sweep->is_relative ? 1 : sweep->values);
    draw_axis(body, &s, "a training step");
    for (int v = 0; v < sweep->values; v++) {
        const double middle = LEFT + (v + 0.5) * b.group;
        const cli_sweep_point *first = &sweep->point[v * sweep->methods];
        s = sweep->is_relative ? scale_of_values(sweep, v, 1) : s;
        for (int m = 0; m < sweep->methods; m++) {
            draw_point(body, sweep, v, m, &s, &b, middle + (m - 0.5 * sweep->methods) * b.bar);
        }
        draw_label(body, first->value, middle, b.methods_end, b.values_on_side);
        for (int i = 0; i < CLI_ABOUT_LINES && first->about[i][0]; i++) {
            const int y = b.values_end + 10 + ABOUT_LINE * i;
            cli_html_add(body, "<text class=\"middle small soft\" x=\"%.1f\" y=\"%d\">%s</text>",
                         middle, y, first->about[i]);
            last_line = y > last_line ? y : last_line;
        }
    }
    out->height = last_line + (sweep->is_relative ? 26 : 32);
    if (!sweep->is_relative) {
        cli_html_add(body, "<text class=\"middle soft\" x=\"%d\" y=\"%d\">%s</text>\n",
                     (LEFT + RIGHT) / 2, last_line + 20, sweep->key);
    }
}

/* ---- files, with a legend of the parts ---- */

enum { HEAD = 96, FOOT = 26, MARGIN = 22 /* left of all text */ };

static const char rules[] =
    "<style>text{fill:#1d2127}.ground{fill:#fff}.title{font-size:18px;font-weight:600}"
    ".subtitle,.soft,.foot,.axes text{fill:#59616c}.small{font-size:11px}.y{text-anchor:end}"
    ".middle{text-anchor:middle}.axes line{stroke:#e2e5e9}.axes .base{stroke:#59616c}"
    ".total{font-weight:600}.span{stroke:#9aa2ac;stroke-width:1.5}"
    ".held{stroke:#1d2127;stroke-width:1.5;stroke-dasharray:6 4}"
    ".peak{stroke:#b8420f;stroke-width:1.5;fill:#fff}.peak-name{fill:#b8420f;font-weight:600}"
    ".m-weights{fill:#5f6b7a}.m-optimizer{fill:#17508f}.m-data{fill:#86ab93}"
    ".m-activations{fill:#dcb361}.m-gradients{fill:#b5707f}.m-workspace{fill:#c3c8cf}"
    "</style>\n";

static void add_legend(cli_html *file, int y) {
    double x = MARGIN;
    for (int p = 0; p < CLI_PARTS; p++) {
        cli_html_add(file,
                     "<rect class=\"%s\" x=\"%.0f\" y=\"%d\" width=\"12\" height=\"12\" rx=\"2\"/>"
                     "<text x=\"%.0f\" y=\"%d\">%s</text>",
                     cli_parts[p].style, x, y - 10, x + 18.0, y, cli_parts[p].name);
        x += 46.0 + 6.6 * (double)strlen(cli_parts[p].name);
    }
    cli_html_add(file, "\n");
}

/* The frame of the file in the colours of the report by day: title and plain colours on a white
 * ground; no variables, scripts or fonts from elsewhere, so it looks the same everywhere. */
static void write_svg(cli_html *file, drawing *d, const char *name, const char *given) {
    const int height = HEAD + d->height + (d->foot ? FOOT : 0);
    cli_html_add(file,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                 "viewBox=\"0 0 %d %d\" role=\"img\" font-size=\"12\" font-family=\"system-ui, "
                 "-apple-system, Segoe UI, Roboto, Noto Sans, Liberation Sans, Arial, sans-serif\">"
                 "\n<title>%s</title>\n<desc>%s</desc>\n",
                 WIDTH, height, WIDTH, height, d->title, d->summary);
    cli_html_literal(file, rules);
    cli_html_add(file,
                 "<rect class=\"ground\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n"
                 "<text class=\"title\" x=\"%d\" y=\"32\">%s</text>\n"
                 "<text class=\"subtitle\" x=\"%d\" y=\"53\">",
                 WIDTH, height, MARGIN, d->title, MARGIN);
    cli_html_short(file, name, 40);
    cli_html_add(file, "%s%s", d->about, *given ? ", " : "");
    cli_html_short(file, given, 150 - 40 - strlen(d->about));
    cli_html_add(file, "</text>\n");
    add_legend(file, 80);
    cli_html_add(file, "<g transform=\"translate(0 %d)\">\n", HEAD);
    cli_html_join(file, &d->body);
    cli_html_add(file, "</g>\n");
    if (d->foot) {
        cli_html_add(file, "<text class=\"foot\" x=\"%d\" y=\"%d\">%s</text>\n", MARGIN,
                     height - 16, d->foot);
    }
    cli_html_add(file, "</svg>\n");
    cli_bytes_free(&d->body);
}

void cli_profile_svg(cli_html *file, const cli_profile *p) {
    drawing d;
    const double count = (double)p->run->parameters;
    draw_phases(p, &d);
    snprintf(d.about, sizeof d.about, ", optimizer %.20s, %.*f%s parameters", p->method,
             count < 1e6 ? 0 : 1, count < 1e6 ? count : count / 1e6, count < 1e6 ? "" : " million");
    d.foot = p->shares ? cli_profile_sharing : NULL;
    write_svg(file, &d, p->name, p->given);
}

void cli_sweep_svg(cli_html *file, const cli_sweep *s) {
    drawing d;
    draw_sweep(s, &d);
    if (s->methods == 1 && s->values > 0) {
        snprintf(d.about, sizeof d.about, ", optimizer %.60s", s->point[0].method);
    }
    d.foot = s->is_relative ? cli_sweep_saving : NULL;
    write_svg(file, &d, s->name, s->given);
}
