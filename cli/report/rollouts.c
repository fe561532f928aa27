/* Rollouts of runs with a file of `tgrad eval RUN --rollout N --keep`: error and correlation by
 * step, energy by wave number, and a film strip of a trajectory. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "chart.h"
#include "common/output.h"
#include "report.h"

/* A list of the file; NULL, and a count of 0, if it has none of that name. */
static const double *find_list(const cli_run *run, const char *name, int *count) {
    const tg_tensor *found = run->rollout ? tg_archive_find(run->rollout, name) : NULL;
    const bool fits =
        found && found->dtype == TG_F64 && found->shape.ndim == 1 && found->shape.dim[0] < 1 << 24;
    *count = fits ? (int)found->shape.dim[0] : 0;
    return fits ? found->data : NULL;
}

/* ---- curves ---- */

/* `name` of every run: by step, or with `truth`, the name of the first run's, by wave number, which
 * begins with 0: the mean, which has no scale and is left out. */
static void draw(cli_html *page, const cli_report *report, const char *name, const char *truth,
                 const char *title, const char *metric) {
    const int skipped = truth ? 1 : 0;
    CLI_FREED cli_series *series = cli_need(calloc((size_t)report->count + 1, sizeof *series));
    int longest = 0, drawn = 0;
    for (int i = -1; i < report->count; i++) {
        const int run = i < 0 ? 0 : i;
        int count = 0;
        const double *y =
            i < 0 && !truth ? NULL : find_list(&report->run[run], i < 0 ? truth : name, &count);
        if (y && count > skipped) {
            const char *label = i < 0 ? "truth" : report->run[run].name;
            series[drawn++] =
                (cli_series){label, i + 1, NULL, y + skipped, count - skipped, NULL, NULL};
            longest = count > longest ? count : longest;
        }
    }
    CLI_FREED double *x = cli_need(malloc(((size_t)longest + 1) * sizeof *x));
    for (int i = 0; i < longest; i++) {
        x[i] = (double)(i + 1);
    }
    for (int i = 0; i < drawn; i++) {
        series[i].x = x;
    }
    cli_chart_draw(page, &(cli_chart){title, metric, truth ? "wave number" : "step",
                                      strcmp(name, "correlation") != 0, series, drawn});
}

static void draw_charts(cli_html *page, const cli_report *report) {
    cli_html_add(page, "<div class=\"charts\">\n");
    draw(page, report, "l2", NULL, "Relative L² error", "rollout.l2");
    draw(page, report, "correlation", NULL, "Correlation with the truth", "rollout.correlation");
    draw(page, report, "energy_pred_first", "energy_truth_first", "Energy of the first step",
         "rollout.energy.first");
    draw(page, report, "energy_pred_last", "energy_truth_last", "Energy of the last step",
         "rollout.energy.last");
    cli_html_add(page, "</div>\n");
}

/* How long each run stays near the truth. */
static void add_times(cli_html *page, const cli_report *report) {
    cli_html_add(page, "<p class=\"note\">Correlation above 0.8:");
    for (int i = 0, listed = 0; i < report->count; i++) {
        int count, steps;
        const double *correlated = find_list(&report->run[i], "correlated_steps", &count);
        find_list(&report->run[i], "l2", &steps);
        if (correlated) {
            cli_html_add(page, "%s %s for %.1f of %d steps", listed++ ? ";" : "",
                         report->run[i].name, correlated[0], steps);
        }
    }
    cli_html_add(page, ". Means over the test trajectories; the broad line is the truth.</p>\n");
}

/* ---- the film strip ---- */

typedef struct film {
    const tg_tensor *y, *pred; /* (frames, channels, grid..) */
    const double *steps;       /* (frames) */
    int frames;
    int64_t height, width; /* of a frame */
    double *rows[3];       /* (frames, height, width): truth, prediction, error */
} film;

static void read_film(tg_context *ctx, film *f) {
    for (int i = 0; i < f->frames; i++) {
        CLI_OWNED(cli_field_free) cli_field truth = cli_field_read(ctx, f->y, i, 0);
        CLI_OWNED(cli_field_free) cli_field made = cli_field_read(ctx, f->pred, i, 0);
        double *const shown[3] = {cli_field_shown(&truth), cli_field_shown(&made),
                                  cli_field_error(&made, &truth)};
        const size_t size = (size_t)(truth.height * truth.width);
        f->height = truth.height;
        f->width = truth.width;
        for (int row = 0; row < 3; row++) {
            if (!f->rows[row]) {
                f->rows[row] = cli_need(calloc(size * (size_t)f->frames, sizeof *f->rows[row]));
            }
            memcpy(f->rows[row] + (size_t)i * size, shown[row], size * sizeof(double));
            free(shown[row]);
        }
    }
}

/* One row: a picture per frame, or of lines one picture, in which time goes down. */
static void draw_row(cli_html *page, const film *f, const char *run, int row, double low,
                     double high) {
    static const char *const names[3] = {"Truth", "Prediction", "Error"};
    const bool is_line = f->height == 1;
    const int pictures = is_line ? 1 : f->frames;
    const int64_t height = is_line ? f->frames : f->height;
    cli_html_add(page, "<h5>%s</h5><div class=\"film\" style=\"--frames:%d\">\n", names[row],
                 pictures);
    for (int i = 0; i < pictures; i++) {
        char alt[256], caption[64] = "time goes down";
        if (!is_line) {
            snprintf(caption, sizeof caption, "step %d", (int)f->steps[i]);
        }
        snprintf(alt, sizeof alt, "%s of %.100s, %s", names[row], run, caption);
        cli_html_add(page, "<figure class=\"tile\">");
        cli_field_draw(page, f->rows[row] + i * height * f->width, height, f->width,
                       row == 2 ? CLI_MAP_ERROR : CLI_MAP_FIELD, low, high, alt);
        cli_html_add(page, "<figcaption>%s</figcaption></figure>\n", caption);
    }
    cli_html_add(page, "</div>\n");
}

static void draw_film(cli_html *page, const char *run, const film *f) {
    const int64_t size = f->frames * f->height * f->width;
    double low, high, least, most;
    cli_field_range(f->rows[0], size, &low, &high);
    cli_field_range(f->rows[2], size, &least, &most);
    const double worst = fmax(fabs(least), fabs(most));
    draw_row(page, f, run, 0, low, high);
    draw_row(page, f, run, 1, low, high);
    draw_row(page, f, run, 2, -worst, worst);
    cli_html_add(
        page,
        "<p class=\"note\">The first test trajectory%s. Colours go from %s to %s, those of "
        "the error from %s to %s.</p>\n",
        f->y->shape.dim[1] > 1 ? ", its first channel" : "", CLI_NUMBER(low), CLI_NUMBER(high),
        CLI_NUMBER(-worst), CLI_NUMBER(worst));
}

static film find_film(const cli_run *run) {
    film f = {.y = tg_archive_find(run->rollout, "y"),
              .pred = tg_archive_find(run->rollout, "pred")};
    f.steps = find_list(run, "steps", &f.frames);
    return f;
}

int cli_report_check_rollout(const cli_run *run) {
    const film f = run->rollout ? find_film(run) : (film){0};
    if (!f.y && !f.pred) {
        return CLI_OK;
    }
    if (!f.y || !f.pred || !tg_dtype_is_float(f.y->dtype) || !tg_dtype_is_float(f.pred->dtype) ||
        !tg_shape_equal(&f.y->shape, &f.pred->shape) || f.y->shape.ndim < 3 ||
        f.y->shape.ndim > 5 || f.frames < 1 || f.frames != f.y->shape.dim[0] ||
        tg_shape_numel(&f.y->shape) < 1) {
        return cli_fail("%s/%s: steps, y and pred are not those of the same frames", run->path,
                        CLI_ROLLOUT_FILE);
    }
    return CLI_OK;
}

/* The frames of a run, which may have none. */
static void add_film(cli_html *page, const cli_report *report, int index) {
    const cli_run *run = &report->run[index];
    film f = find_film(run);
    if (!f.y) {
        return;
    }
    cli_html_add(page, "<h4>");
    cli_report_name(page, report, index);
    cli_html_add(page, "</h4>\n");
    read_film(report->ctx, &f);
    draw_film(page, run->name, &f);
    for (int row = 0; row < 3; row++) {
        free(f.rows[row]);
    }
}

void cli_report_rollouts(cli_html *page, const cli_report *report) {
    int count = 0;
    for (int i = 0; i < report->count; i++) {
        count += report->run[i].rollout != NULL;
    }
    if (count == 0) {
        return;
    }
    cli_html_add(page, "<section id=\"rollouts\"><h2>Rollouts</h2>\n");
    draw_charts(page, report);
    add_times(page, report);
    for (int i = 0; i < report->count; i++) {
        if (report->run[i].rollout) {
            add_film(page, report, i);
        }
    }
    cli_html_add(page, "</section>\n");
}
