/* Stable ranks of the gradients over the epochs (stable_ranks.jsonl), one chart for every mode: the
 * mean over the spectral weights that have it. */
#define _POSIX_C_SOURCE 200809L /* getline */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "output.h"
#include "report.h"
#include "report_chart.h"
#include "text.h"

typedef struct ranks {
    double *epoch, *rank[TG_MAX_NDIM]; /* (count); NaN: no weight has this mode */
    int count;
} ranks;

static double mean_of(const json_t *parameters, size_t mode) {
    double sum = 0.0;
    int count = 0;
    for (size_t i = 0; i < json_array_size(parameters); i++) {
        const json_t *list = json_object_get(json_array_get(parameters, i), "stable_rank");
        const double rank = cli_json_number(json_array_get(list, mode));
        if (isfinite(rank)) {
            sum += rank;
            count++;
        }
    }
    return count > 0 ? sum / count : (double)NAN;
}

static void take_line(ranks *r, const json_t *line) {
    const json_t *epoch = json_object_get(line, "epoch");
    if (!json_is_integer(epoch)) { /* one that a killed run has not finished */
        return;
    }
    const size_t bytes = ((size_t)r->count + 1) * sizeof(double);
    r->epoch = cli_need(realloc(r->epoch, bytes));
    r->epoch[r->count] = (double)json_integer_value(epoch);
    for (size_t d = 0; d < TG_MAX_NDIM; d++) {
        r->rank[d] = cli_need(realloc(r->rank[d], bytes));
        r->rank[d][r->count] = mean_of(json_object_get(line, "parameters"), d);
    }
    r->count++;
}

/* Of a run; none without the file. */
static ranks read_ranks(const cli_run *run) {
    char *path = cli_format("%s/stable_ranks.jsonl", run->path), *line = NULL;
    FILE *file = fopen(path, "r");
    size_t room = 0;
    ranks r = {0};
    while (file && getline(&line, &room, file) > 0) {
        json_t *object = json_loads(line, 0, NULL);
        take_line(&r, object);
        json_decref(object);
    }
    if (file) {
        fclose(file);
    }
    free(line);
    free(path);
    return r;
}

static void draw_mode(cli_html *page, const cli_report *report, const ranks *of, int mode) {
    cli_series *series = cli_need(calloc((size_t)report->count, sizeof *series));
    char title[64], metric[32];
    int count = 0;
    for (int i = 0; i < report->count; i++) {
        if (of[i].count > 0) {
            series[count++] = (cli_series){.name = report->run[i].name,
                                           .number = i + 1,
                                           .x = of[i].epoch,
                                           .y = of[i].rank[mode],
                                           .count = of[i].count};
        }
    }
    snprintf(title, sizeof title, "Stable rank of the gradients, mode %d", mode + 1);
    snprintf(metric, sizeof metric, "stable_rank.%d", mode + 1);
    const cli_chart chart = {.title = title,
                             .metric = metric,
                             .x_label = "epoch",
                             .is_log = true,
                             .series = series,
                             .count = count};
    cli_chart_draw(page, &chart);
    free(series);
}

void cli_report_stable_ranks(cli_html *page, const cli_report *report) {
    ranks *of = cli_need(calloc((size_t)report->count, sizeof *of));
    for (int i = 0; i < report->count; i++) {
        of[i] = read_ranks(&report->run[i]);
    }
    for (int mode = 0; mode < TG_MAX_NDIM; mode++) {
        draw_mode(page, report, of, mode);
    }
    for (int i = 0; i < report->count; i++) {
        free(of[i].epoch);
        for (int d = 0; d < TG_MAX_NDIM; d++) {
            free(of[i].rank[d]);
        }
    }
    free(of);
}
