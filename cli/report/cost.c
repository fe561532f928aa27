/* Cost of the runs: memory by category and time, as bars as wide as the page. */
#include <math.h>
#include <stdlib.h>

#include "report.h"

static double positive(double value) {
    return value > 0.0 && isfinite(value) ? value : 0.0;
}

/* ---- bars ---- */

/* A bar for each run, of `count` segments one after the other. */
typedef struct bars {
    const char *title, *metric;
    double unit; /* seconds of a value; 0: values are bytes */
    int count;
    const char *name[TG_MEM_CATEGORIES], *style[TG_MEM_CATEGORIES]; /* CSS class */
    double value[CLI_REPORT_RUNS][TG_MEM_CATEGORIES];
    double total[CLI_REPORT_RUNS]; /* at the end of the bar */
    bool has_mark;                 /* the total is also a line across */
} bars;

static const char *text_of(const bars *b, double value, char text[CLI_UNIT_TEXT]) {
    return b->unit > 0.0 ? cli_report_duration(b->unit * value, text)
                         : cli_report_bytes(value, text);
}

static double sum_of(const bars *b, int run) {
    double sum = 0.0;
    for (int i = 0; i < b->count; i++) {
        sum += b->value[run][i];
    }
    return sum;
}

static void draw_bar(cli_html *page, const cli_report *report, const bars *b, int run,
                     double full) {
    const double *value = b->value[run];
    char text[CLI_UNIT_TEXT];
    double sum = 0.0;
    cli_html_add(page, "<div class=\"bar-row\"><div class=\"bar-name\">");
    cli_report_name(page, report, run);
    cli_html_add(page,
                 "</div><svg class=\"bar\" role=\"img\" data-run=\"%s\" data-metric=\"%s\" "
                 "aria-label=\"%s:",
                 report->run[run].name, b->metric, report->run[run].name);
    for (int i = 0; i < b->count; i++) {
        if (value[i] > 0.0) {
            cli_html_add(page, " %s %s.", b->name[i], text_of(b, value[i], text));
        }
    }
    cli_html_add(page, "\">");
    for (int i = 0; i < b->count; i++) {
        if (value[i] > 0.0) {
            cli_html_add(page,
                         "<rect class=\"%s\" x=\"%.3f%%\" width=\"%.3f%%\" height=\"100%%\" "
                         "data-name=\"%s\" data-value=\"%.9g\"><title>%s: %s</title></rect>",
                         b->style[i], 100.0 * sum / full, 100.0 * value[i] / full, b->name[i],
                         value[i], b->name[i], text_of(b, value[i], text));
        }
        sum += value[i];
    }
    if (b->has_mark && b->total[run] > 0.0) {
        const double at = 100.0 * b->total[run] / full;
        cli_html_add(page,
                     "<line class=\"mark\" x1=\"%.3f%%\" x2=\"%.3f%%\" y1=\"0\" y2=\"100%%\"/>", at,
                     at);
    }
    cli_html_add(page, "</svg><div class=\"bar-value\">%s</div></div>\n",
                 text_of(b, b->total[run], text));
}

/* False if there is nothing to draw. */
static bool draw_bars(cli_html *page, const cli_report *report, const bars *b) {
    double full = 0.0;
    for (int run = 0; run < report->count; run++) {
        full = fmax(full, sum_of(b, run));
    }
    if (!(full > 0.0)) {
        return false;
    }
    cli_html_add(page, "<h3>%s</h3><div class=\"bars\">\n", b->title);
    for (int run = 0; run < report->count; run++) {
        draw_bar(page, report, b, run, full);
    }
    cli_html_add(page, "</div>\n");
    return true;
}

/* ---- memory ---- */

/* The state of the optimizer comes first: compression is meant to shrink it. */
enum { OPTIMIZER_CATEGORIES = 3 };
static const struct {
    tg_mem_category category;
    const char *style;
} order[TG_MEM_CATEGORIES] = {{TG_MEM_OPTIMIZER, "m-optimizer"},
                              {TG_MEM_FACTORS, "m-factors"},
                              {TG_MEM_INDICES, "m-indices"},
                              {TG_MEM_WEIGHTS, "m-weights"},
                              {TG_MEM_GRADIENTS, "m-gradients"},
                              {TG_MEM_ACTIVATIONS, "m-activations"},
                              {TG_MEM_WORKSPACE, "m-workspace"},
                              {TG_MEM_DATA, "m-data"},
                              {TG_MEM_COMMUNICATION, "m-communication"},
                              {TG_MEM_OTHER, "m-other"}};

static bool draw_memory(cli_html *page, const cli_report *report, bool only_optimizer) {
    bars b = {.title = only_optimizer ? "Optimizer state" : "Everything",
              .metric = only_optimizer ? "memory.optimizer" : "memory",
              .count = only_optimizer ? OPTIMIZER_CATEGORIES : TG_MEM_CATEGORIES,
              .has_mark = !only_optimizer};
    for (int i = 0; i < b.count; i++) {
        b.name[i] = tg_mem_category_name(order[i].category);
        b.style[i] = order[i].style;
        for (int run = 0; run < report->count; run++) {
            b.value[run][i] = positive(report->run[run].memory[order[i].category]);
        }
    }
    for (int run = 0; run < report->count; run++) {
        b.total[run] = only_optimizer ? sum_of(&b, run) : report->run[run].memory_peak;
    }
    return draw_bars(page, report, &b);
}

static void add_memory_table(cli_html *page, const cli_report *report) {
    cli_report_open_table(page, "Table of memory", "memory", "Peak bytes of");
    cli_report_columns(page, report);
    for (int k = 0; k < TG_MEM_CATEGORIES; k++) {
        const tg_mem_category c = order[k].category;
        bool is_used = false;
        for (int i = 0; i < report->count; i++) {
            is_used |= positive(report->run[i].memory[c]) > 0.0;
        }
        if (!is_used) {
            continue;
        }
        cli_html_add(page, "<tr><th scope=\"row\"><span class=\"key %s\"></span>%s</th>",
                     order[k].style, tg_mem_category_name(c));
        for (int i = 0; i < report->count; i++) {
            cli_html_add(page, "<td>%s</td>", CLI_REPORT_BYTES(report->run[i].memory[c]));
        }
        cli_html_add(page, "</tr>\n");
    }
    cli_html_add(page, "<tr class=\"sum\"><th scope=\"row\">all at one time</th>");
    for (int i = 0; i < report->count; i++) {
        cli_html_add(page, "<td>%s</td>", CLI_REPORT_BYTES(report->run[i].memory_peak));
    }
    cli_html_add(page, "</tr>");
    cli_report_close_table(page);
}

void cli_report_memory(cli_html *page, const cli_report *report) {
    CLI_OWNED(cli_bytes_free) cli_html drawn = {0};
    const bool has_state = draw_memory(&drawn, report, true);
    if (!draw_memory(&drawn, report, false) && !has_state) {
        return;
    }
    cli_html_add(page, "<section id=\"memory\"><h2>Memory</h2>\n");
    cli_html_join(page, &drawn);
    cli_html_add(page, "<p class=\"note\">Each part is the peak of its category, so the parts of "
                       "a bar may add up to more than the peak of the total, which the line and "
                       "the number at its right show.</p>\n");
    add_memory_table(page, report);
    cli_html_add(page, "</section>\n");
}

/* ---- time ---- */

void cli_report_time(cli_html *page, const cli_report *report) {
    bars step = {.title = "A training step",
                 .metric = "step_ms",
                 .unit = 1e-3,
                 .count = 1,
                 .name = {"median step"},
                 .style = {"t-steps"}};
    bars whole = {.title = "The whole run",
                  .metric = "seconds",
                  .unit = 1.0,
                  .count = 2,
                  .name = {"training steps", "evaluation and saving"},
                  .style = {"t-steps", "t-rest"}};
    for (int i = 0; i < report->count; i++) {
        const cli_run *run = &report->run[i];
        step.value[i][0] = step.total[i] = positive(cli_run_step_ms(run));
        whole.total[i] = positive(cli_run_seconds(run));
        whole.value[i][0] = positive(cli_run_step_seconds(run));
        whole.value[i][1] = positive(whole.total[i] - whole.value[i][0]);
    }
    CLI_OWNED(cli_bytes_free) cli_html drawn = {0};
    const bool has_step = draw_bars(&drawn, report, &step);
    const bool has_whole = draw_bars(&drawn, report, &whole);
    if (!has_step && !has_whole) {
        return;
    }
    cli_html_add(page, "<section id=\"time\"><h2>Time</h2>\n");
    cli_html_join(page, &drawn);
    if (has_whole) {
        cli_html_add(page, "<ul class=\"legend\"><li><span class=\"key t-steps\"></span>training "
                           "steps</li><li><span class=\"key t-rest\"></span>evaluation and saving"
                           "</li></ul>\n");
    }
    cli_html_add(page, "</section>\n");
}
