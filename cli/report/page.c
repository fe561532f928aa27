/* The page around the sections: head, title, contents, end. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chart.h"
#include "common/commands.h"
#include "report.h"
#include "style.inc" /* style.css */

/* ---- the style sheet ---- */

/* A colour bar of every n-th colour of a map, from `first` on. */
static void add_gradient(cli_html *page, const char *name, cli_map map, int first) {
    enum { STOPS = 16 };
    uint32_t colour[CLI_MAP_COLOURS];
    cli_map_table(map, colour);
    cli_html_add(page, ".%s { background: linear-gradient(90deg", name);
    for (int i = 0; i <= STOPS; i++) {
        const uint32_t c = colour[first + (CLI_MAP_LEVELS - 1 - first) * i / STOPS];
        cli_html_add(page, ",rgb(%d,%d,%d)", (int)(c >> 16), (int)(c >> 8 & 255), (int)(c & 255));
    }
    cli_html_add(page, "); }\n");
}

/* ---- shared by several sections ---- */

int cli_report_grids(const cli_report *report, cli_grid grid[CLI_REPORT_TESTS]) {
    int count = 0;
    for (int i = 0; i < report->count; i++) {
        for (int t = 0; t < report->run[i].tests; t++) {
            count = cli_grid_insert(grid, count, CLI_REPORT_TESTS, report->run[i].grid[t]);
        }
    }
    return count;
}

void cli_report_badge(cli_html *page, const cli_report *report, int index) {
    if (report->count > 1) {
        cli_html_add(page, "<span class=\"badge c%d\">%d</span>", cli_run_colour(index + 1),
                     index + 1);
    }
}

void cli_report_name(cli_html *page, const cli_report *report, int index) {
    cli_report_badge(page, report, index);
    cli_html_add(page, "<span class=\"run\">%s</span>", report->run[index].name);
}

void cli_report_columns(cli_html *page, const cli_report *report) {
    for (int i = 0; i < report->count; i++) {
        cli_html_add(page, "<th scope=\"col\">");
        cli_report_name(page, report, i);
        cli_html_add(page, "</th>");
    }
    cli_report_begin_rows(page);
}

const char *cli_report_bytes(double bytes, char text[CLI_UNIT_TEXT]) {
    if (!(bytes >= 0.0 && bytes < 0x1p63)) {
        return strcpy(text, "\xE2\x80\x93");
    }
    return cli_bytes_text((uint64_t)bytes, text);
}

const char *cli_report_duration(double seconds, char text[CLI_UNIT_TEXT]) {
    return isfinite(seconds) ? cli_duration_text(seconds, text) : strcpy(text, "\xE2\x80\x93");
}

void cli_report_open_table(cli_html *page, const char *label, const char *kind,
                           const char *columns) {
    cli_html_add(page,
                 "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"%s\">"
                 "<table class=\"%s\"><thead><tr>",
                 label, kind);
    while (*columns) {
        char title[64];
        const size_t length = strcspn(columns, "|");
        snprintf(title, sizeof title, "%.*s", (int)length, columns);
        cli_html_add(page, "<th scope=\"col\">%s</th>", title);
        columns += length + (columns[length] == '|');
    }
}

void cli_report_norm_columns(cli_html *page, const cli_grid *grid, int tests) {
    for (int t = 0; t < tests; t++) {
        cli_html_add(page, "<th scope=\"col\">L² at %s</th><th scope=\"col\">H¹ at %s</th>",
                     grid[t], grid[t]);
    }
}

void cli_report_begin_rows(cli_html *page) {
    cli_html_add(page, "</tr></thead><tbody>\n");
}

void cli_report_close_table(cli_html *page) {
    cli_html_add(page, "</tbody></table></div>\n");
}

/* ---- the page ---- */

/* The title of the page, to be freed: --title, or the names of the runs, as far as they are short.
 */
static char *title_of(const cli_report *report) {
    size_t length = 0;
    for (int i = 0; i < report->count; i++) {
        length += strlen(report->run[i].name);
    }
    if (report->title || report->count == 1) {
        return cli_format("%s", report->title ? report->title : report->run[0].name);
    }
    if (report->count > 4 || length > 60) {
        return cli_format("%d runs", report->count);
    }
    char *title = cli_format("%s", report->run[0].name);
    for (int i = 1; i < report->count; i++) {
        CLI_FREED char *before = title;
        title = cli_format("%s%s%s", before, i == report->count - 1 ? " and " : ", ",
                           report->run[i].name);
    }
    return title;
}

/* A setting, or a key of the test data, that all runs share; NULL: they differ, or it is not known.
 */
static const char *shared(const cli_report *report, const char *key,
                          const char *(*get)(const cli_run *run, const char *key)) {
    const char *value = get(&report->run[0], key);
    for (int i = 1; i < report->count; i++) {
        const char *other = get(&report->run[i], key);
        value = value && other && strcmp(value, other) == 0 ? value : NULL;
    }
    return value;
}

/* "A run on darcy, trained at resolution 16, tested at 16 and 32.", as far as it is known. */
static void add_subtitle(cli_html *page, const cli_report *report) {
    const char *set = shared(report, "data.set", cli_run_setting);
    const char *trained = shared(report, "data.train_resolution", cli_run_setting);
    const char *split = shared(report, "kolmogorov.split", cli_run_test_data);
    cli_grid grid[CLI_REPORT_TESTS];
    const int tests = cli_report_grids(report, grid);
    cli_html_add(page, "<p class=\"lede\">%s", report->count > 1 ? "Runs" : "A run");
    if (set && strcmp(set, "null") != 0) {
        cli_html_add(page, " on <em>%s</em>", set);
    }
    if (trained) {
        cli_html_add(page, ", trained at resolution %s", trained);
    }
    for (int t = 0; t < tests; t++) {
        cli_html_add(page, "%s%s",
                     t == 0           ? ", tested at "
                     : t == tests - 1 ? " and "
                                      : ", ",
                     grid[t]);
    }
    if (split) {
        cli_html_add(page, ", on test pairs that are %s",
                     strcmp(split, "later") == 0 ? "later in time" : split);
    }
    cli_html_add(page, ".</p>\n");
}

/* Links to the sections that the body has. */
static void add_contents(cli_html *page, const char *body) {
    static const struct {
        const char *id, *name;
    } sections[] = {{"results", "Results"},   {"curves", "Curves"},
                    {"samples", "Samples"},   {"rollouts", "Rollouts"},
                    {"memory", "Memory"},     {"time", "Time"},
                    {"settings", "Settings"}, {"making", "How this was made"}};
    cli_html_add(page, "<nav aria-label=\"Contents\">");
    for (size_t i = 0; i < sizeof sections / sizeof sections[0]; i++) {
        char mark[64];
        snprintf(mark, sizeof mark, "<section id=\"%s\">", sections[i].id);
        if (strstr(body, mark)) {
            cli_html_add(page, "<a href=\"#%s\">%s</a>", sections[i].id, sections[i].name);
        }
    }
    cli_html_add(page, "</nav>\n");
}

void cli_report_begin(cli_html *page, const char *brand, const char *title) {
    cli_html_add(page,
                 "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                 "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                 "style-src 'unsafe-inline'; img-src data:\">\n"
                 "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                 "<meta name=\"color-scheme\" content=\"light dark\">\n"
                 "<meta name=\"generator\" content=\"tgrad %s\">\n"
                 "<title>%s \xC2\xB7 %s</title>\n<style>\n",
                 TG_VERSION, title, brand);
    cli_html_literal(page, style[0].text);
    add_gradient(page, "field", CLI_MAP_FIELD, 0);
    add_gradient(page, "error", CLI_MAP_ERROR, 0);
    add_gradient(page, "half", CLI_MAP_ERROR, CLI_MAP_LEVELS / 2);
    cli_html_add(page,
                 "</style>\n</head>\n<body>\n<main>\n<header><p class=\"brand\">%s</p>\n"
                 "<h1>%s</h1>\n",
                 brand, title);
}

void cli_report_end(cli_html *page) {
    cli_html_add(page, "</main>\n</body>\n</html>\n");
}

void cli_report_write(cli_html *page, const cli_report *report) {
    CLI_OWNED(cli_bytes_free) cli_html body = {0};
    CLI_FREED char *title = title_of(report);
    cli_report_results(&body, report);
    cli_report_curves(&body, report);
    cli_report_samples(&body, report);
    cli_report_rollouts(&body, report);
    cli_report_memory(&body, report);
    cli_report_time(&body, report);
    cli_report_settings(&body, report);
    cli_report_making(&body, report);
    cli_report_begin(page, "tgrad report", title);
    add_subtitle(page, report);
    cli_html_add(page, "</header>\n");
    add_contents(page, body.data);
    cli_html_join(page, &body);
    cli_report_end(page);
}
