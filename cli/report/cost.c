/* Cost of the runs: memory by category and time, as bars as wide as the page. */
#include <math.h>
#include <stdlib.h>

#include "report.h"

/* Part of a bar. */
typedef struct segment {
    const char *name;
    const char *style; /* CSS class */
    double value;
    char text[CLI_UNIT_TEXT]; /* the value for people */
} segment;

/* A bar of `count` segments; `full` is the value at its right end. `mark`, if it is above 0, gets a
 * line across. */
static void draw_bar(cli_html *page, const cli_report *report, int index, const char *metric,
                     const segment *part, int count, double full, double mark) {
    double sum = 0.0;
    cli_html_add(page, "<div class=\"bar-row\"><div class=\"bar-name\">");
    cli_report_name(page, report, index);
    cli_html_add(page,
                 "</div><svg class=\"bar\" role=\"img\" data-run=\"%s\" data-metric=\"%s\" "
                 "aria-label=\"%s:",
                 report->run[index].name, metric, report->run[index].name);
    for (int i = 0; i < count; i++) {
        if (part[i].value > 0.0) {
            cli_html_add(page, " %s %s.", part[i].name, part[i].text);
        }
    }
    cli_html_add(page, "\">");
    for (int i = 0; i < count; i++) {
        if (part[i].value > 0.0) {
            cli_html_add(page,
                         "<rect class=\"%s\" x=\"%.3f%%\" width=\"%.3f%%\" height=\"100%%\" "
                         "data-name=\"%s\" data-value=\"%.9g\"><title>%s: %s</title></rect>",
                         part[i].style, 100.0 * sum / full, 100.0 * part[i].value / full,
                         part[i].name, part[i].value, part[i].name, part[i].text);
            sum += part[i].value;
        }
    }
    if (mark > 0.0) {
        cli_html_add(page,
                     "<line class=\"mark\" x1=\"%.3f%%\" x2=\"%.3f%%\" y1=\"0\" "
                     "y2=\"100%%\"/>",
                     100.0 * mark / full, 100.0 * mark / full);
    }
    cli_html_add(page, "</svg>");
}

static void close_bar(cli_html *page, const char *text) {
    cli_html_add(page, "<div class=\"bar-value\">%s</div></div>\n", text);
}

/* ---- memory ---- */

static bool is_optimizer(int category) {
    return category == TG_MEM_OPTIMIZER || category == TG_MEM_FACTORS || category == TG_MEM_INDICES;
}

/* The state of the optimizer comes first: compression is meant to shrink it. */
static const tg_mem_category order[TG_MEM_CATEGORIES] = {
    TG_MEM_OPTIMIZER,   TG_MEM_FACTORS,   TG_MEM_INDICES, TG_MEM_WEIGHTS,       TG_MEM_GRADIENTS,
    TG_MEM_ACTIVATIONS, TG_MEM_WORKSPACE, TG_MEM_DATA,    TG_MEM_COMMUNICATION, TG_MEM_OTHER};

static const char *const style_of[TG_MEM_CATEGORIES] = {
    "m-weights",     "m-gradients", "m-optimizer", "m-factors",       "m-indices",
    "m-activations", "m-workspace", "m-data",      "m-communication", "m-other"};

static double positive(double value) {
    return value > 0.0 && isfinite(value) ? value : 0.0;
}

static double memory_sum(const cli_run *run, bool only_optimizer) {
    double sum = 0.0;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        sum += !only_optimizer || is_optimizer(c) ? positive(run->memory[c]) : 0.0;
    }
    return sum;
}

static void draw_memory(cli_html *page, const cli_report *report, bool only_optimizer) {
    double full = 0.0;
    for (int i = 0; i < report->count; i++) {
        full = fmax(full, memory_sum(&report->run[i], only_optimizer));
    }
    if (!(full > 0.0)) {
        return;
    }
    cli_html_add(page, "<h3>%s</h3><div class=\"bars\">\n",
                 only_optimizer ? "Optimizer state" : "Everything");
    for (int i = 0; i < report->count; i++) {
        const cli_run *run = &report->run[i];
        segment part[TG_MEM_CATEGORIES];
        int count = 0;
        for (int k = 0; k < TG_MEM_CATEGORIES; k++) {
            const tg_mem_category c = order[k];
            if (!only_optimizer || is_optimizer((int)c)) {
                part[count] = (segment){.name = tg_mem_category_name(c),
                                        .style = style_of[c],
                                        .value = positive(run->memory[c])};
                cli_report_bytes(part[count].value, part[count].text);
                count++;
            }
        }
        draw_bar(page, report, i, only_optimizer ? "memory.optimizer" : "memory", part, count, full,
                 only_optimizer ? 0.0 : run->memory_peak);
        close_bar(page,
                  CLI_REPORT_BYTES(only_optimizer ? memory_sum(run, true) : run->memory_peak));
    }
    cli_html_add(page, "</div>\n");
}

/* Whether any run has bytes of a category. */
static bool is_used(const cli_report *report, tg_mem_category category) {
    bool used = false;
    for (int i = 0; i < report->count; i++) {
        used |= positive(report->run[i].memory[category]) > 0.0;
    }
    return used;
}

static void add_memory_table(cli_html *page, const cli_report *report) {
    cli_report_open_table(page, "Table of memory", "memory", "Peak bytes of");
    cli_report_columns(page, report);
    for (int k = 0; k < TG_MEM_CATEGORIES; k++) {
        const tg_mem_category c = order[k];
        if (!is_used(report, c)) {
            continue;
        }
        cli_html_add(page, "<tr><th scope=\"row\"><span class=\"key %s\"></span>%s</th>",
                     style_of[c], tg_mem_category_name(c));
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
    double total = 0.0;
    for (int i = 0; i < report->count; i++) {
        total += memory_sum(&report->run[i], false);
    }
    if (!(total > 0.0)) {
        return;
    }
    cli_html_add(page, "<section id=\"memory\"><h2>Memory</h2>\n");
    draw_memory(page, report, true);
    draw_memory(page, report, false);
    cli_html_add(page, "<p class=\"note\">Each part is the peak of its category, so the parts of "
                       "a bar may add up to more than the peak of the total, which the line and "
                       "the number at its right show.</p>\n");
    add_memory_table(page, report);
    cli_html_add(page, "</section>\n");
}

/* ---- time ---- */

/* Bars of every run: a median step, or the whole run. */
static void draw_time(cli_html *page, const cli_report *report, bool of_step) {
    const double unit = of_step ? 1e-3 : 1.0; /* seconds */
    double full = 0.0;
    for (int i = 0; i < report->count; i++) {
        const cli_run *run = &report->run[i];
        full = fmax(full, of_step ? cli_run_step_ms(run) : cli_run_seconds(run));
    }
    if (!(full > 0.0) || !isfinite(full)) {
        return;
    }
    cli_html_add(page, "<h3>%s</h3><div class=\"bars\">\n",
                 of_step ? "A training step" : "The whole run");
    for (int i = 0; i < report->count; i++) {
        const cli_run *run = &report->run[i];
        const double all = positive(of_step ? cli_run_step_ms(run) : cli_run_seconds(run));
        const double steps = of_step ? all : positive(cli_run_step_seconds(run));
        segment part[2] = {
            {.name = of_step ? "median step" : "training steps",
             .style = "t-steps",
             .value = steps},
            {.name = "evaluation and saving", .style = "t-rest", .value = positive(all - steps)}};
        cli_report_duration(unit * part[0].value, part[0].text);
        cli_report_duration(unit * part[1].value, part[1].text);
        draw_bar(page, report, i, of_step ? "step_ms" : "seconds", part, of_step ? 1 : 2, full,
                 0.0);
        close_bar(page, CLI_REPORT_DURATION(unit * all));
    }
    cli_html_add(page, "</div>\n");
    if (!of_step) {
        cli_html_add(page, "<ul class=\"legend\"><li><span class=\"key t-steps\"></span>training "
                           "steps</li><li><span class=\"key t-rest\"></span>evaluation and saving"
                           "</li></ul>\n");
    }
}

void cli_report_time(cli_html *page, const cli_report *report) {
    double total = 0.0;
    for (int i = 0; i < report->count; i++) {
        total +=
            positive(cli_run_step_ms(&report->run[i])) + positive(cli_run_seconds(&report->run[i]));
    }
    if (!(total > 0.0)) {
        return;
    }
    cli_html_add(page, "<section id=\"time\"><h2>Time</h2>\n");
    draw_time(page, report, true);
    draw_time(page, report, false);
    cli_html_add(page, "</section>\n");
}
