/* Pages of tgrad profile: the phases of a step as stacked columns, and memory against a setting. */
#include <stdlib.h>

#include "common/text.h"
#include "profile.h"
#include "report/chart.h"
#include "report/report.h"

static const char rules[] =
    "<style>.phases rect{fill:var(--f)}.phases text{fill:var(--ink)}"
    ".phases .now:hover rect{opacity:.8}"
    ".phases .held{stroke:var(--ink);stroke-width:1.5;stroke-dasharray:6 4}"
    ".phases .peak{stroke:var(--c2);stroke-width:1.5;fill:var(--paper)}"
    ".phases .peak-name{fill:var(--c2);font-weight:600}.phases .total{font-weight:600}"
    ".phases .soft,.phases .axes text{fill:var(--soft)}.phases .span{stroke:var(--soft)}"
    ".phases .small{font-size:11px}.phases .middle{text-anchor:middle}"
    ".phases+.charts{margin-top:2rem}</style>\n";

static void open_page(cli_html *page, const char *title, const char *subtitle, const char *given) {
    cli_html_begin(page);
    cli_html_add(page, "<title>%s \xC2\xB7 tgrad profile</title>\n", title);
    cli_report_style(page);
    cli_html_literal(page, rules);
    cli_html_add(page,
                 "</head>\n<body>\n<main>\n<header><p class=\"brand\">tgrad profile</p>\n"
                 "<h1>%s</h1>\n<p class=\"lede\">%s%s%s</p></header>\n",
                 title, subtitle, *given ? "; " : "", given);
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

/* A drawing as a figure that the page's style sheet colours. */
static void add_figure(cli_html *page, const cli_drawing *d) {
    cli_html_add(page,
                 "<figure class=\"chart phases\"><figcaption>%s</figcaption><svg viewBox=\"0 0 %d "
                 "%d\" role=\"img\" aria-label=\"%s\">\n",
                 d->title, CLI_CHART_WIDTH, d->height, d->summary);
    cli_html_join(page, &d->body);
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
    cli_drawing drawing;
    snprintf(subtitle, sizeof subtitle,
             "Memory of a training step, optimizer %.60s, %lld parameters", p->method,
             (long long)p->run->parameters);
    open_page(page, p->name, subtitle, p->given);
    cli_html_add(page, "<section id=\"step\"><h2>A step</h2>\n");
    add_legend(page);
    cli_draw_phases(p, &drawing);
    add_figure(page, &drawing);
    cli_drawing_free(&drawing);
    cli_html_add(page,
                 "<p class=\"note\">Buffers share arenas that are allocated before the first step: "
                 "the allocated bytes are constant. The columns show the bytes in use. %s</p>\n",
                 p->shares ? cli_profile_sharing : "");
    if (p->phase[p->count - 1].is_refresh) {
        cli_html_add(page,
                     "<p class=\"note\">The last column takes the place of the one before in a "
                     "step that refreshes its projections, which holds up to %s.</p>\n",
                     cli_bytes_text(p->refresh_total, text));
    }
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
    open_table(page, "Table of the run", "phase");
    for (int i = 0; i < p->run->count; i++) {
        size_t parts[CLI_PARTS];
        const tg_place place = p->run->place;
        cli_parts_of(p->run->phase[i].bytes[place], parts);
        add_row(page, p->run->phase[i].name, parts, p->run->phase[i].total[place],
                i == p->run->peak_phase[place]);
    }
    cli_html_add(page, "</tbody></table></div></section>\n");
    close_page(page);
}

/* ---- sweeps ---- */

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

void cli_sweep_page(cli_html *page, const cli_sweep *s) {
    char subtitle[256];
    cli_drawing drawing;
    snprintf(subtitle, sizeof subtitle, "Memory of a training step against %.80s", s->key);
    open_page(page, s->name, subtitle, s->given);
    cli_html_add(page, "<section id=\"sweep\"><h2>Memory against %s</h2>\n", s->key);
    add_legend(page);
    cli_draw_sweep(s, &drawing);
    add_figure(page, &drawing);
    cli_drawing_free(&drawing);
    if (s->is_relative) {
        cli_html_add(page, "<p class=\"note\">%s</p>\n", cli_sweep_saving);
    }
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
