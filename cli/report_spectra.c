/* The energy of test samples by wave number: what a network loses of small scales shows here. */
#include <stdio.h>
#include <stdlib.h>

#include "output.h"
#include "report.h"
#include "report_chart.h"
#include "text.h"

enum { MOST_NUMBERS = 1 << 22 }; /* of all fields of a test together: more take too long */

static bool is_like(const tg_tensor *a, const tg_tensor *b) {
    return a && b && tg_shape_equal(&a->shape, &b->shape);
}

/* The curve of one tensor, from wave number 1 on: the mean has no scale. */
static cli_series curve_of(const char *name, int number, const double *waves, const double *energy,
                           int64_t count) {
    return (cli_series){
        .name = name, .number = number, .x = waves + 1, .y = energy + 1, .count = (int)count - 1};
}

int cli_report_spectra(cli_html *page, const cli_report *report, const char *grid,
                       const tg_tensor *const *truth, const tg_tensor *const *prediction) {
    int first = 0, curves = 1;
    while (first < report->count && !truth[first]) {
        first++;
    }
    if (first == report->count) {
        return CLI_OK;
    }
    const tg_shape *shape = &truth[first]->shape;
    const int64_t count = tg_energy_wavenumbers(shape->ndim - 2, shape->dim + 2);
    if (count < 3 || tg_shape_numel(shape) * (1 + report->count) > MOST_NUMBERS) {
        return CLI_OK;
    }
    double *waves = cli_need(calloc((size_t)(count * (2 + report->count)), sizeof *waves));
    cli_series *series = cli_need(calloc((size_t)report->count + 1, sizeof *series));
    double *energy = waves + count;
    for (int64_t k = 0; k < count; k++) {
        waves[k] = (double)k;
    }
    tg_status status = tg_energy_spectrum(report->ctx, truth[first], count, energy);
    series[0] = curve_of("truth", 0, waves, energy, count);
    for (int i = first; status == TG_OK && i < report->count; i++) {
        if (is_like(prediction[i], truth[first])) {
            energy += count;
            status = tg_energy_spectrum(report->ctx, prediction[i], count, energy);
            series[curves++] = curve_of(report->run[i].name, i + 1, waves, energy, count);
        }
    }
    char title[TG_GRID_TEXT + 64], metric[TG_GRID_TEXT + 16];
    snprintf(title, sizeof title, "Energy spectrum of the test samples at %.63s", grid);
    snprintf(metric, sizeof metric, "spectrum.%.63s", grid);
    const cli_chart chart = {.title = title,
                             .metric = metric,
                             .x_label = "wave number",
                             .is_log = true,
                             .series = series,
                             .count = curves};
    if (status == TG_OK) {
        cli_chart_draw(page, &chart);
    }
    free(series);
    free(waves);
    return cli_code(report->ctx, status);
}
