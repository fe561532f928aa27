/* Pictures of test samples: input, truth, and of every run prediction and error.
 *
 * Runs that were tested on the same sample are shown side by side; truth and predictions share one
 * scale, that of the truth, and the errors of one sample share another. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chart.h"
#include "common/output.h"
#include "report.h"

enum { MAX_CHANNELS = 3 }; /* shown of the output */

/* The tensors of one test of a run, (samples, channels, grid..); all NULL: it has none. */
typedef struct triple {
    const tg_tensor *x, *y, *pred;
} triple;

/* ---- finding the tensors ---- */

/* Whether a run has fields on a grid in this test, not values at points. */
static bool is_field(const cli_report *report, int run, const triple *all) {
    const char *kind = cli_run_setting(&report->run[run], "fno.architecture");
    const tg_tensor *y = all[run].y;
    return y && !(kind && strcmp(kind, "gino") == 0 && y->shape.ndim == 3);
}

/* The grids G of tensors y_G in any of the runs, ascending; returns how many. */
static int find_grids(const cli_run *run, int runs, cli_grid grid[CLI_REPORT_TESTS]) {
    int count = 0;
    for (int i = 0; i < runs; i++) {
        const tg_archive *samples = run[i].samples;
        for (int64_t k = 0; samples && k < tg_archive_count(samples); k++) {
            const char *name = tg_archive_name(samples, k);
            if (strncmp(name, "y_", 2) == 0 && cli_grid_is_name(name + 2)) {
                count = cli_grid_insert(grid, count, CLI_REPORT_TESTS, name + 2);
            }
        }
    }
    return count;
}

static bool fits(const triple *t) {
    const tg_shape *x = &t->x->shape, *y = &t->y->shape;
    bool good = tg_dtype_is_float(t->x->dtype) && tg_dtype_is_float(t->y->dtype) &&
                tg_dtype_is_float(t->pred->dtype) && x->ndim == y->ndim && x->ndim >= 3 &&
                x->ndim <= 5 && tg_shape_equal(y, &t->pred->shape) && tg_shape_numel(x) > 0 &&
                tg_shape_numel(y) > 0 && x->dim[0] == y->dim[0];
    for (int d = 2; good && d < x->ndim; d++) {
        good = x->dim[d] == y->dim[d];
    }
    return good;
}

static int find_triple(const cli_run *run, const char *grid, triple *out) {
    static const char *const names[] = {"x", "y", "pred"};
    const tg_tensor *found[3] = {0};
    int count = 0;
    for (int i = 0; run->samples && i < 3; i++) {
        char name[TG_GRID_TEXT + 8];
        snprintf(name, sizeof name, "%s_%.63s", names[i], grid);
        found[i] = tg_archive_find(run->samples, name);
        count += found[i] != NULL;
    }
    *out = (triple){found[0], found[1], found[2]};
    return count == 0 || (count == 3 && fits(out))
               ? CLI_OK
               : cli_fail("%s/samples.safetensors: x_%s, y_%s and pred_%s are not (samples, "
                          "channels, grid..) of the same samples and grid of 1 to 3 dimensions",
                          run->path, grid, grid, grid);
}

int cli_report_check_samples(const cli_run *run) {
    cli_grid grid[CLI_REPORT_TESTS];
    triple found;
    int code = CLI_OK;
    const int count = find_grids(run, 1, grid);
    for (int r = 0; r < count && code == CLI_OK; r++) {
        code = find_triple(run, grid[r], &found);
    }
    return code;
}

static bool same_sample(const tg_tensor *a, const tg_tensor *b, int64_t sample) {
    const size_t bytes = tg_tensor_bytes(a) / (size_t)a->shape.dim[0];
    tg_shape shapes[2] = {a->shape, b->shape};
    shapes[0].dim[0] = shapes[1].dim[0];
    return a->dtype == b->dtype && tg_shape_equal(&shapes[0], &shapes[1]) &&
           memcmp((const char *)a->data + bytes * (size_t)sample,
                  (const char *)b->data + bytes * (size_t)sample, bytes) == 0;
}

/* ---- one channel of one sample ---- */

typedef struct view {
    int run;               /* index */
    double *shown, *error; /* of one channel */
    double distance;       /* relative L2 of the channel */
    double whole;          /* and of all channels together */
} view;

typedef struct card {
    const cli_report *report;
    const char *grid;
    int64_t sample, channel;
    cli_field input, truth;
    double *input_shown, *truth_shown;
    view *view; /* (count) the runs that share the sample */
    int count;
} card;

static void free_card(card *c) {
    for (int i = 0; i < c->count; i++) {
        free(c->view[i].shown);
        free(c->view[i].error);
    }
    cli_field_free(&c->input);
    cli_field_free(&c->truth);
    free(c->input_shown);
    free(c->truth_shown);
}

static void read_card(card *c, const triple *all) {
    tg_context *ctx = c->report->ctx;
    const triple *first = &all[c->view[0].run];
    const int64_t inputs = first->x->shape.dim[1];
    const int64_t channel = c->channel < inputs ? c->channel : inputs - 1;
    c->input = cli_field_read(ctx, first->x, c->sample, channel);
    c->truth = cli_field_read(ctx, first->y, c->sample, c->channel);
    c->input_shown = cli_field_shown(&c->input);
    c->truth_shown = cli_field_shown(&c->truth);
    for (int i = 0; i < c->count; i++) {
        view *v = &c->view[i];
        const triple *own = &all[v->run];
        CLI_OWNED(cli_field_free)
        cli_field prediction = cli_field_read(ctx, own->pred, c->sample, c->channel);
        v->distance = cli_field_distance(ctx, own->pred, own->y, c->sample, c->channel);
        v->whole = cli_field_distance(ctx, own->pred, own->y, c->sample, -1);
        v->shown = cli_field_shown(&prediction);
        v->error = cli_field_error(&prediction, &c->truth);
    }
}

/* ---- points: pictures of the side that is seen ---- */

static cli_points read_points(const card *c, const tg_tensor *x) {
    cli_points out = {.dims = (int)x->shape.dim[1], .count = x->shape.dim[2]};
    out.coordinate = cli_need(calloc((size_t)(out.dims * out.count) + 1, sizeof *out.coordinate));
    for (int d = 0; d < out.dims; d++) {
        CLI_OWNED(cli_field_free) cli_field field = cli_field_read(c->report->ctx, x, c->sample, d);
        for (int64_t i = 0; i < out.count; i++) {
            out.coordinate[d * out.count + i] = field.value[2 * i];
        }
    }
    return out;
}

static void replace(double **values, double *by) {
    free(*values);
    *values = by;
}

/* Puts pictures in the place of the values at points; the input is how near a point is. */
static void take_pictures(card *c, const triple *all) {
    const cli_points points = read_points(c, all[c->view[0].run].x);
    const double *depth = points.coordinate + (points.dims > 1 ? points.count : 0);
    replace(&c->input_shown, cli_points_picture(&points, depth));
    replace(&c->truth_shown, cli_points_picture(&points, c->truth_shown));
    for (int i = 0; i < c->count; i++) {
        replace(&c->view[i].shown, cli_points_picture(&points, c->view[i].shown));
        replace(&c->view[i].error, cli_points_picture(&points, c->view[i].error));
    }
    c->truth.height = c->truth.width = CLI_POINTS_PICTURE;
    free(points.coordinate);
}

/* ---- two or three dimensions: tiles ---- */

/* Content of a tile: values, colours and their range, and a word after the title. */
typedef struct tile {
    const char *title;
    const double *value; /* (height, width) of the truth */
    cli_map map;
    double low, high;
    const char *note; /* "" for none */
} tile;

/* An end of a tile's scale; a value negligible in its span shows as 0: 0.0002 .. 0.9406. */
static double end_of(double value, const tile *t) {
    const double span = t->high - t->low;
    return span >= 1e-3 && span < 1e5 && fabs(value) < 1e-3 * span ? 0.0 : value;
}

/* A picture with its colour bar. `name` is that of the run, "" for none. */
static void draw_tile(cli_html *page, const card *c, const char *name, const tile *t) {
    char alt[256];
    double least, most;
    cli_field_range(t->value, c->truth.height * c->truth.width, &least, &most);
    snprintf(alt, sizeof alt, "%s%s%.100s: from %s to %s%s%s", t->title, name[0] ? " of " : "",
             name, CLI_NUMBER(least), CLI_NUMBER(most), t->note[0] ? ", " : "", t->note);
    cli_html_add(page, "<figure class=\"tile\"><figcaption>%s <span>%s</span></figcaption>",
                 t->title, t->note);
    const double from =
        t->map == CLI_MAP_ERROR ? -t->high : t->low; /* the middle of the map is error 0 */
    cli_field_draw(page, t->value, c->truth.height, c->truth.width, t->map, from, t->high, alt);
    const bool is_signed = t->map == CLI_MAP_ERROR && t->low < 0.0;
    cli_html_add(page, "<div class=\"scale %s\"></div><p class=\"ends\"><span>%s</span>",
                 t->map == CLI_MAP_FIELD ? "field"
                 : is_signed             ? "error"
                                         : "half",
                 CLI_NUMBER(end_of(t->low, t)));
    if (is_signed) {
        cli_html_add(page, "<span>0</span>");
    }
    cli_html_add(page, "<span>%s</span></p></figure>\n", CLI_NUMBER(end_of(t->high, t)));
}

static void draw_run(cli_html *page, const card *c, const view *v, double low, double high,
                     double worst) {
    const char *name = c->report->run[v->run].name;
    char note[64];
    snprintf(note, sizeof note, "L² %s", CLI_NUMBER(v->distance));
    const tile prediction = {"Prediction", v->shown, CLI_MAP_FIELD, low, high, ""};
    const tile error = {"Error", v->error, CLI_MAP_ERROR, c->truth.is_complex ? 0.0 : -worst,
                        worst,   note};
    cli_html_add(page, "<div class=\"pair\"><h5>");
    cli_report_name(page, c->report, v->run);
    cli_html_add(page, "</h5>");
    draw_tile(page, c, name, &prediction);
    draw_tile(page, c, name, &error);
    cli_html_add(page, "</div>\n");
}

static void draw_tiles(cli_html *page, const card *c) {
    const int64_t size = c->truth.height * c->truth.width;
    double low, high, least, most, worst = 0.0;
    const bool is_one = c->report->count == 1;
    cli_html_add(page,
                 "<div class=\"tiles%s\" style=\"max-width:%drem\"><div class=\"pair\">"
                 "<h5>Data</h5>\n",
                 is_one ? " four" : "", is_one ? 56 : 14 * (c->count + 1));
    cli_field_range(c->input_shown, size, &low, &high);
    draw_tile(page, c, "", &(tile){"Input", c->input_shown, CLI_MAP_FIELD, low, high, ""});
    cli_field_range(c->truth_shown, size, &low, &high);
    draw_tile(page, c, "", &(tile){"Truth", c->truth_shown, CLI_MAP_FIELD, low, high, ""});
    cli_html_add(page, "</div>\n");
    for (int i = 0; i < c->count; i++) {
        cli_field_range(c->view[i].error, size, &least, &most);
        worst = fmax(worst, fmax(fabs(least), fabs(most)));
    }
    for (int i = 0; i < c->count; i++) {
        draw_run(page, c, &c->view[i], low, high, worst);
    }
    cli_html_add(page, "</div>\n");
}

/* ---- one dimension: curves ---- */

/* " adam 0.0123; tensorgrad 0.0119.", of the channel or of all; and the end of the paragraph. */
static void add_errors(cli_html *page, const card *c, bool of_all) {
    for (int i = 0; i < c->count; i++) {
        const view *v = &c->view[i];
        cli_html_add(page, "%s %s %s", i ? ";" : "", c->report->run[v->run].name,
                     CLI_NUMBER(of_all ? v->whole : v->distance));
    }
    cli_html_add(page, ".</p>\n");
}

/* A chart of `count` series; metric "sample.16.0.truth". */
static void draw_lines(cli_html *page, const card *c, const char *title, const char *what,
                       const cli_series *series, int count) {
    char metric[TG_GRID_TEXT + 48];
    snprintf(metric, sizeof metric, "sample.%.63s.%" PRId64 ".%s", c->grid, c->sample, what);
    const cli_chart chart = {
        .title = title, .metric = metric, .x_label = "x", .series = series, .count = count};
    cli_chart_draw(page, &chart);
}

static void draw_line_charts(cli_html *page, const card *c) {
    const int points = (int)c->truth.width;
    CLI_FREED double *x = cli_need(malloc((size_t)points * sizeof *x));
    CLI_FREED cli_series *series = cli_need(calloc((size_t)c->count + 1, sizeof *series));
    for (int i = 0; i < points; i++) {
        x[i] = (double)i / points;
    }
    cli_html_add(page, "<div class=\"charts three\">\n");
    series[0] = (cli_series){"input", 0, x, c->input_shown, points, NULL, NULL};
    draw_lines(page, c, "Input", "input", series, 1);
    series[0] = (cli_series){"truth", 0, x, c->truth_shown, points, NULL, NULL};
    for (int i = 0; i < c->count; i++) {
        const view *v = &c->view[i];
        series[i + 1] =
            (cli_series){c->report->run[v->run].name, v->run + 1, x, v->shown, points, NULL, NULL};
    }
    draw_lines(page, c, "Truth and prediction", "output", series, c->count + 1);
    for (int i = 0; i < c->count; i++) {
        series[i + 1].y = c->view[i].error;
    }
    draw_lines(page, c, "Error", "error", series + 1, c->count);
    cli_html_add(page, "</div>\n<p class=\"note\">The broad line is the truth. Relative L² error:");
    add_errors(page, c, false);
}

/* ---- cards ---- */

static void add_heading(cli_html *page, const card *c, const triple *t) {
    const tg_shape *shape = &t->y->shape;
    cli_html_add(page, "<h4>Test sample %lld", (long long)c->sample + 1);
    if (shape->dim[1] > 1) {
        cli_html_add(page, ", channel %lld of %lld", (long long)c->channel + 1,
                     (long long)shape->dim[1]);
    }
    if (shape->ndim == 5) {
        cli_html_add(page, ", slice %lld of %lld", (long long)shape->dim[2] / 2 + 1,
                     (long long)shape->dim[2]);
    }
    cli_html_add(page, "%s</h4>\n", tg_dtype_is_complex(t->y->dtype) ? ", modulus" : "");
}

/* The errors of a sample with several channels, all together: once, before the first of them. */
static void add_whole_errors(cli_html *page, const card *c, const triple *t) {
    if (c->channel == 0 && t->y->shape.dim[1] > 1) {
        cli_html_add(page, "<p class=\"note\">Relative L² error of all %lld channels together:",
                     (long long)t->y->shape.dim[1]);
        add_errors(page, c, true);
    }
}

static void draw_card(cli_html *page, card *c, const triple *all) {
    const triple *first = &all[c->view[0].run];
    const bool is_grid = is_field(c->report, c->view[0].run, all);
    read_card(c, all);
    if (!is_grid) {
        take_pictures(c, all);
    }
    add_heading(page, c, first);
    add_whole_errors(page, c, first);
    if (is_grid && first->y->shape.ndim == 3) {
        draw_line_charts(page, c);
    } else {
        draw_tiles(page, c);
    }
    free_card(c);
}

/* The cards of one sample: one for each set of runs that share it, and channel. */
static void draw_sample(cli_html *page, const cli_report *report, const char *grid,
                        const triple *all, int64_t sample) {
    bool is_drawn[CLI_REPORT_RUNS] = {false};
    for (int i = 0; i < report->count; i++) {
        if (!all[i].y || is_drawn[i] || sample >= all[i].y->shape.dim[0]) {
            continue;
        }
        int group[CLI_REPORT_RUNS], count = 0;
        for (int k = i; k < report->count; k++) {
            if (all[k].y && !is_drawn[k] && sample < all[k].y->shape.dim[0] &&
                same_sample(all[i].x, all[k].x, sample) &&
                same_sample(all[i].y, all[k].y, sample)) {
                group[count++] = k;
                is_drawn[k] = true;
            }
        }
        for (int64_t c = 0; c < all[i].y->shape.dim[1] && c < MAX_CHANNELS; c++) {
            view views[CLI_REPORT_RUNS];
            card one = {.report = report,
                        .grid = grid,
                        .sample = sample,
                        .channel = c,
                        .view = views,
                        .count = count};
            for (int k = 0; k < count; k++) {
                views[k] = (view){.run = group[k]};
            }
            draw_card(page, &one, all);
        }
    }
}

/* ---- spectra ---- */

enum { MAX_NUMBERS = 1 << 22 }; /* of all fields of a test together: more take too long */

/* Energy by wave number of the fields of a test: shows the loss of small scales. */
static void draw_energy(cli_html *page, const cli_report *report, const char *grid,
                        const triple *all) {
    int first = 0, curves = 0;
    while (first < report->count && !is_field(report, first, all)) {
        first++;
    }
    if (first == report->count) {
        return;
    }
    const tg_shape *shape = &all[first].y->shape;
    const int64_t count = tg_energy_wavenumbers(shape->ndim - 2, shape->dim + 2);
    if (count < 3 || tg_shape_numel(shape) * (1 + report->count) > MAX_NUMBERS) {
        return;
    }
    CLI_FREED double *waves =
        cli_need(calloc((size_t)(count * (2 + report->count)), sizeof *waves));
    CLI_FREED cli_series *series = cli_need(calloc((size_t)report->count + 1, sizeof *series));
    for (int64_t k = 0; k < count; k++) {
        waves[k] = (double)k;
    }
    for (int i = first - 1; i < report->count; i++) {
        const bool is_truth = i < first;
        const tg_tensor *of = is_truth ? all[first].y : all[i].pred;
        if (!is_truth && (!is_field(report, i, all) || !tg_shape_equal(&of->shape, shape))) {
            continue;
        }
        double *energy = waves + (curves + 1) * count;
        cli_check(tg_energy_spectrum(report->ctx, of, count, energy));
        const char *name = is_truth ? "truth" : report->run[i].name;
        const int number = is_truth ? 0 : i + 1, points = (int)count - 1;
        /* wave 0, the mean, has no scale */
        series[curves++] = (cli_series){name, number, waves + 1, energy + 1, points, NULL, NULL};
    }
    char title[TG_GRID_TEXT + 64], metric[TG_GRID_TEXT + 16];
    snprintf(title, sizeof title, "Energy spectrum of the test samples at %.63s", grid);
    snprintf(metric, sizeof metric, "spectrum.%.63s", grid);
    cli_chart_draw(page, &(cli_chart){title, metric, "wave number", true, series, curves});
}

/* Whether a test was on the grid of the training. */
static bool is_trained_grid(const char *trained, const char *test) {
    int64_t points[TG_DATA_MAX_DIMS];
    cli_grid name = "";
    tg_grid_text(tg_grid_parse(trained, points), points, name);
    return strlen(name) == strcspn(test, "_") && strncmp(name, test, strlen(name)) == 0;
}

static void add_grid_heading(cli_html *page, const cli_report *report, const char *grid) {
    const char *trained = cli_run_setting(&report->run[0], "data.train_resolution");
    const double at = trained ? cli_grid_size(trained) : 0.0, here = cli_grid_size(grid);
    cli_html_add(page, "<h3>Resolution %s%s</h3>\n", grid,
                 at == 0.0                        ? ""
                 : is_trained_grid(trained, grid) ? ", as trained"
                 : at < here                      ? ", finer than trained"
                 : at > here                      ? ", coarser than trained"
                                                  : "");
}

void cli_report_samples(cli_html *page, const cli_report *report) {
    cli_grid grid[CLI_REPORT_TESTS];
    triple all[CLI_REPORT_RUNS];
    const int count = find_grids(report->run, report->count, grid);
    if (count == 0 || report->samples == 0) {
        return;
    }
    cli_html_add(page,
                 "<section id=\"samples\"><h2>Test samples</h2>\n<p class=\"note\">Truth and "
                 "predictions of a sample share the scale of the truth; values beyond it "
                 "have the colour of its end. Errors (prediction − truth) share another. L² "
                 "is the relative error of the sample, or of its channel that is shown.</p>\n");
    for (int r = 0; r < count; r++) {
        int64_t most = 0;
        for (int i = 0; i < report->count; i++) {
            (void)find_triple(&report->run[i], grid[r], &all[i]);
            most = all[i].y && all[i].y->shape.dim[0] > most ? all[i].y->shape.dim[0] : most;
        }
        add_grid_heading(page, report, grid[r]);
        for (int64_t s = 0; s < most && s < report->samples; s++) {
            draw_sample(page, report, grid[r], all, s);
        }
        draw_energy(page, report, grid[r], all);
    }
    cli_html_add(page, "</section>\n");
}
