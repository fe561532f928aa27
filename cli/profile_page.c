/* Pages of tgrad profile: the phases of a step as stacked columns, and memory against a setting. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "profile.h"
#include "report.h"
#include "report_chart.h"
#include "text.h"

/* A drawing in its own units; the page scales it. */
enum { WIDTH = 1040, HEIGHT = 380, LEFT = 84, RIGHT = WIDTH - 16, TOP = 26, BOTTOM = HEIGHT - 44 };

static const char rules[] = "<style>.phases rect{fill:var(--f)}.phases text{fill:var(--ink)}"
                            ".phases .now:hover rect{opacity:.8}"
                            ".phases .held{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:6 4}"
                            ".phases .peak{stroke:var(--c2);stroke-width:1.5}"
                            ".phases .peak-name{fill:var(--c2);font-weight:600}"
                            ".phases .side{fill:var(--soft)}.phases text.middle{text-anchor:middle}"
                            ".phases+.charts{margin-top:2rem}</style>\n";

static void open_page(cli_html *page, const char *title, const char *subtitle) {
    cli_html_add(page,
                 "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                 "style-src 'unsafe-inline'; img-src data:\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                 "<meta name=\"color-scheme\" content=\"light dark\">\n"
                 "<meta name=\"generator\" content=\"tgrad %s\">\n<title>%s \xC2\xB7 tgrad "
                 "profile</title>\n",
                 tg_build().version, title);
    cli_report_style(page);
    cli_html_literal(page, rules);
    cli_html_add(page,
                 "</head>\n<body>\n<main>\n<header><p class=\"brand\">tgrad profile</p>\n"
                 "<h1>%s</h1>\n<p class=\"lede\">%s</p></header>\n",
                 title, subtitle);
}

static void close_page(cli_html *page) {
    cli_html_add(page, "</main>\n</body>\n</html>\n");
}

static void add_legend(cli_html *page) {
    cli_html_add(page, "<ul class=\"legend\">");
    for (int p = 0; p < CLI_PARTS; p++) {
        cli_html_add(page, "<li><span class=\"key %s\"></span>%s</li>", cli_part_styles[p],
                     cli_part_names[p]);
    }
    cli_html_add(page, "</ul>\n");
}

/* ---- scales ---- */

static double to_y(double bytes, double most) {
    return BOTTOM - bytes / most * (BOTTOM - TOP);
}

/* Ticks at round numbers of the unit that suits the height. */
static void draw_axis(cli_html *page, double most) {
    double tick[CLI_MAX_TICKS], unit = 1.0;
    char text[CLI_UNIT_TEXT];
    while (most / unit >= 1024.0) {
        unit *= 1024.0;
    }
    const int count = cli_ticks_linear(0.0, most / unit, 5, tick);
    cli_html_add(page, "<g class=\"axes\">");
    for (int i = 0; i < count; i++) {
        const double y = to_y(tick[i] * unit, most);
        cli_html_add(page,
                     "<line x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" "
                     "y=\"%.1f\" class=\"y\">%s</text>",
                     LEFT, RIGHT, y, y, LEFT - 8, y + 4,
                     cli_bytes_text((uint64_t)(tick[i] * unit + 0.5), text));
    }
    cli_html_add(page, "<line class=\"base\" x1=\"%d\" x2=\"%d\" y1=\"%d\" y2=\"%d\"/></g>", LEFT,
                 RIGHT, BOTTOM, BOTTOM);
}

/* A column of parts, one on the other; empty ones are left out. */
static void draw_column(cli_html *page, const size_t parts[CLI_PARTS], double x, double width,
                        double most) {
    double sum = 0.0;
    char text[CLI_UNIT_TEXT];
    for (int p = 0; p < CLI_PARTS; p++) {
        if (parts[p] == 0) {
            continue;
        }
        const double low = to_y(sum, most);
        sum += (double)parts[p];
        cli_html_add(page,
                     "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\" "
                     "data-part=\"%s\" data-bytes=\"%zu\"><title>%s: %s</title></rect>",
                     cli_part_styles[p], x, to_y(sum, most), width, low - to_y(sum, most),
                     cli_part_keys[p], parts[p], cli_part_names[p], cli_bytes_text(parts[p], text));
    }
}

/* ---- phases ---- */

static void draw_marks(cli_html *page, const cli_profile *p, double step, double most) {
    char held[CLI_UNIT_TEXT], alive[CLI_UNIT_TEXT];
    const double line = to_y((double)p->held_total, most);
    const double x = LEFT + ((double)p->peak + 0.5) * step;
    int turn = 0;
    while (turn < p->count && !p->phase[turn].phase.is_backward) {
        turn++;
    }
    const double middle = LEFT + turn * step;
    cli_html_add(page,
                 "<line class=\"held\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/>"
                 "<text x=\"%d\" y=\"%.1f\">held all the time: %s</text>",
                 LEFT, RIGHT, line, line, LEFT + 4, line - 6.0,
                 cli_bytes_text(p->held_total, held));
    cli_html_add(page,
                 "<line class=\"peak\" x1=\"%.1f\" x2=\"%.1f\" y1=\"%d\" y2=\"%d\"/>"
                 "<text x=\"%.1f\" y=\"%d\" class=\"peak-name middle\">most alive: %s</text>",
                 x, x, TOP, BOTTOM, fmin(fmax(x, LEFT + 80.0), RIGHT - 80.0), TOP - 8,
                 cli_bytes_text(p->phase[p->peak].total, alive));
    cli_html_add(page,
                 "<text x=\"%.1f\" y=\"%d\" class=\"side middle\">forward</text>"
                 "<text x=\"%.1f\" y=\"%d\" class=\"side middle\">backward and updates</text>",
                 0.5 * (LEFT + middle), BOTTOM + 20, 0.5 * (middle + RIGHT), BOTTOM + 20);
}

static void draw_phases(cli_html *page, const cli_profile *p) {
    const double most =
        1.12 *
        (double)(p->held_total > p->phase[p->peak].total ? p->held_total : p->phase[p->peak].total);
    const double step = (double)(RIGHT - LEFT) / p->count;
    char text[CLI_UNIT_TEXT];
    cli_html_add(page,
                 "<figure class=\"chart phases\"><figcaption>Alive in the phases of a step"
                 "</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Memory in %d "
                 "phases of a training step; the most is alive in: %s, %s\">",
                 WIDTH, HEIGHT, p->count, p->phase[p->peak].phase.name,
                 cli_bytes_text(p->phase[p->peak].total, text));
    draw_axis(page, most);
    for (int i = 0; i < p->count; i++) {
        cli_html_add(page,
                     "<g class=\"now\" data-phase=\"%s\" data-total=\"%zu\"><title>%s: %s"
                     "</title>",
                     p->phase[i].phase.name, p->phase[i].total, p->phase[i].phase.name,
                     cli_bytes_text(p->phase[i].total, text));
        draw_column(page, p->phase[i].alive, LEFT + i * step, step, most);
        cli_html_add(page, "</g>");
    }
    draw_marks(page, p, step, most);
    cli_html_add(page, "</svg></figure>\n");
}

static void add_row(cli_html *page, const char *name, const size_t parts[CLI_PARTS], size_t total,
                    bool is_peak) {
    char text[CLI_UNIT_TEXT];
    cli_html_add(page, "<tr><th scope=\"row\">%s%s</th>", name, is_peak ? " (peak)" : "");
    for (int p = 0; p < CLI_PARTS; p++) {
        cli_html_add(page, "<td>%s</td>", cli_bytes_text(parts[p], text));
    }
    cli_html_add(page, "<td>%s</td></tr>\n", cli_bytes_text(total, text));
}

static void open_table(cli_html *page, const char *label, const char *first) {
    cli_report_open_wide(page, label);
    cli_html_add(page, "<table><thead><tr><th scope=\"col\">%s</th>", first);
    for (int p = 0; p < CLI_PARTS; p++) {
        cli_html_add(page, "<th scope=\"col\">%s</th>", cli_part_names[p]);
    }
    cli_html_add(page, "<th scope=\"col\">all</th></tr></thead><tbody>\n");
}

void cli_profile_page(cli_html *page, const cli_profile *p) {
    char subtitle[256], text[CLI_UNIT_TEXT];
    snprintf(subtitle, sizeof subtitle,
             "Memory of a training step, optimizer %.60s, %lld parameters", p->method,
             (long long)p->run->parameters);
    open_page(page, p->name, subtitle);
    cli_html_add(page, "<section id=\"step\"><h2>A step</h2>\n");
    add_legend(page);
    draw_phases(page, p);
    cli_html_add(page,
                 "<p class=\"note\">Buffers lie in arenas that are taken whole before the first "
                 "step: what is held does not change within one. The columns show how much of it "
                 "holds something that is still needed. A step that refreshes its projections "
                 "holds up to %s.</p>\n",
                 cli_bytes_text(p->refresh_total, text));
    if (p->steps > 0) {
        cli_html_add(page,
                     "<p>%lld steps were run, %.2f ms each (median); the memory ledger counted %s "
                     "at its highest, %s the plan.</p>\n",
                     (long long)p->steps, p->step_ms, cli_bytes_text(p->counted_peak, text),
                     p->as_planned ? "as in" : "other than");
    }
    open_table(page, "Table of the phases", "phase");
    for (int i = 0; i < p->count; i++) {
        add_row(page, p->phase[i].phase.name, p->phase[i].alive, p->phase[i].total, i == p->peak);
    }
    add_row(page, "held all the time", p->held, p->held_total, false);
    cli_html_add(page, "</tbody></table></div></section>\n"
                       "<section id=\"run\"><h2>The whole run</h2>\n");
    open_table(page, "Table of the run", "moment");
    for (int i = 0; i < p->run->count; i++) {
        size_t parts[CLI_PARTS];
        const tg_place place = p->run->place;
        cli_parts_of(p->run->moment[i].bytes[place], parts);
        add_row(page, p->run->moment[i].name, parts, p->run->moment[i].total[place],
                i == p->run->peak_moment[place]);
    }
    cli_html_add(page, "</tbody></table></div></section>\n");
    close_page(page);
}

/* ---- sweeps ---- */

static void draw_bars(cli_html *page, const cli_sweep *s) {
    double most = 0.0;
    char text[CLI_UNIT_TEXT];
    for (int i = 0; i < s->values * s->methods; i++) {
        most = fmax(most, 1.12 * (double)s->point[i].total);
    }
    const double group = (double)(RIGHT - LEFT) / s->values, bar = 0.8 * group / s->methods;
    cli_html_add(page,
                 "<figure class=\"chart phases\"><figcaption>A training step against %s"
                 "</figcaption><svg viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"Memory of a "
                 "training step for %d values of %s\">",
                 s->key, WIDTH, HEIGHT, s->values, s->key);
    draw_axis(page, most);
    for (int v = 0; v < s->values; v++) {
        for (int m = 0; m < s->methods; m++) {
            const cli_sweep_point *at = &s->point[v * s->methods + m];
            const double x = LEFT + v * group + 0.1 * group + m * bar;
            cli_html_add(page,
                         "<g class=\"now\" data-value=\"%s\" data-method=\"%s\" data-total=\"%zu\">"
                         "<title>%s, %s: %s</title>",
                         at->value, at->method, at->total, at->value, at->method,
                         cli_bytes_text(at->total, text));
            draw_column(page, at->parts, x, 0.94 * bar, most);
            cli_html_add(page, "<text class=\"middle side\" x=\"%.1f\" y=\"%d\">%s</text></g>",
                         x + 0.47 * bar, BOTTOM + 16, s->methods > 1 ? at->method : "");
        }
        cli_html_add(page, "<text class=\"middle\" x=\"%.1f\" y=\"%d\">%s</text>",
                     LEFT + (v + 0.5) * group, BOTTOM + (s->methods > 1 ? 34 : 18),
                     s->point[v * s->methods].value);
    }
    cli_html_add(page, "</svg></figure>\n");
}

/* The values of a sweep as numbers; false if they are none, or do not ascend. */
static bool numbers_of(const cli_sweep *s, double *x) {
    bool ascends = s->values > 1;
    for (int v = 0; v < s->values; v++) {
        char *end = NULL;
        const char *text = s->point[v * s->methods].value;
        text += *text == '[';
        x[v] = strtod(text, &end);
        ascends = ascends && end != text && (v == 0 || x[v] > x[v - 1]);
    }
    return ascends;
}

/* Everything, or one part, as curves. */
static void draw_curves(cli_html *page, const cli_sweep *s, const double *x, const char *title,
                        int part) {
    double *y = cli_need(calloc((size_t)(s->values * s->methods) + 1, sizeof *y));
    cli_series *series = cli_need(calloc((size_t)s->methods + 1, sizeof *series));
    for (int m = 0; m < s->methods; m++) {
        for (int v = 0; v < s->values; v++) {
            const cli_sweep_point *at = &s->point[v * s->methods + m];
            y[m * s->values + v] = (double)(part < 0 ? at->total : at->parts[part]) / 0x1p30;
        }
        series[m] = (cli_series){.name = s->point[m].method,
                                 .number = m + 1,
                                 .x = x,
                                 .y = y + m * s->values,
                                 .count = s->values};
    }
    const cli_chart chart = {.title = title,
                             .metric = part < 0 ? "total" : cli_part_keys[part],
                             .x_label = s->key,
                             .is_log = true,
                             .series = series,
                             .count = s->methods};
    cli_chart_draw(page, &chart);
    free(y);
    free(series);
}

static void add_curves(cli_html *page, const cli_sweep *s) {
    double *x = cli_need(calloc((size_t)s->values + 1, sizeof *x));
    if (numbers_of(s, x)) {
        cli_html_add(page, "<div class=\"charts\">");
        draw_curves(page, s, x, "GiB of a training step", -1);
        draw_curves(page, s, x, "GiB of optimizer states", CLI_STATES);
        cli_html_add(page, "</div>\n<ul class=\"legend\">");
        for (int m = 0; m < s->methods; m++) {
            cli_html_add(page, "<li><span class=\"badge c%d\">%d</span>%s</li>",
                         cli_run_colour(m + 1), m + 1, s->point[m].method);
        }
        cli_html_add(page, "</ul>\n");
    }
    free(x);
}

void cli_sweep_page(cli_html *page, const char *name, const cli_sweep *s) {
    char subtitle[256];
    snprintf(subtitle, sizeof subtitle, "Memory of a training step against %.80s", s->key);
    open_page(page, name, subtitle);
    cli_html_add(page, "<section id=\"sweep\"><h2>Memory against %s</h2>\n", s->key);
    add_legend(page);
    draw_bars(page, s);
    add_curves(page, s);
    open_table(page, "Table of the sweep", s->key);
    for (int i = 0; i < s->values * s->methods; i++) {
        char row[128];
        snprintf(row, sizeof row, "%s, %.40s", s->point[i].value, s->point[i].method);
        add_row(page, row, s->point[i].parts, s->point[i].total, false);
    }
    cli_html_add(page, "</tbody></table></div></section>\n");
    close_page(page);
}
