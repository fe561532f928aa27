/* Results, from run folders to lines of JSON. */
#include "sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/run_folder.h"
#include "common/statistics.h"
#include "common/text.h"

json_t *cli_result_read(const char *folder, const char *trial) {
    CLI_FREED char *path = cli_format("%s/results/%s.json", folder, trial);
    json_t *result = json_load_file(path, 0, NULL);
    if (!json_is_object(result)) {
        json_decref(result);
        return NULL;
    }
    return result;
}

void cli_result_free(json_t **result) {
    json_decref(*result);
}

bool cli_result_is_finished(const json_t *result) {
    const char *status = json_string_value(json_object_get(result, "status"));
    return status && strcmp(status, "finished") == 0;
}

/* The value of an axis; null where the cell is not varied along it. */
static json_t *value_of(const cli_cell *cell, int axis) {
    return cell->value[axis] ? cli_json_text(cell->value[axis]) : json_null();
}

/* The fields that identify a result. */
static json_t *begin(const cli_experiment *e, const cli_trial *trial, const char *rate) {
    const cli_cell *cell = &e->cell[trial->cell];
    json_t *settings = cli_json_object();
    for (int a = 0; a < e->axes; a++) {
        cli_json_set(settings, e->axis[a], value_of(cell, a));
    }
    rate = trial->rate ? trial->rate : rate;
    return cli_json_new(KV("name", trial->name), KV("cell", cell->name),
                        KV("variant", cell->variant), KV("settings", settings),
                        KV("seed", trial->seed),
                        KV("rate", rate ? cli_json_real(strtod(rate, NULL)) : json_null()),
                        KV("search", json_boolean(trial->rate != NULL)));
}

static json_t *errors_of(const cli_run *run) {
    json_t *tests = cli_json_object();
    for (int t = 0; t < run->tests; t++) {
        json_t *errors = cli_json_object();
        for (int n = 0; n < CLI_NORMS; n++) {
            const int last = cli_run_last(run, (cli_norm)n, t);
            cli_json_set(errors, cli_norm_names[n],
                         cli_json_real(last < 0 ? (double)NAN : run->epoch[last].error[n][t]));
        }
        cli_json_set(tests, run->grid[t], errors);
    }
    return tests;
}

static json_t *memory_of(const cli_run *run) {
    json_t *memory =
        cli_json_new(KV("peak", run->memory_peak), KV("state", cli_run_optimizer_bytes(run)));
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        if (isfinite(run->memory[c])) {
            cli_json_set(memory, tg_mem_category_name((tg_mem_category)c),
                         cli_json_real(run->memory[c]));
        }
    }
    return memory;
}

typedef struct error_list {
    double *value; /* (count) */
    int count;
} error_list;

static void take_error(const json_t *of, void *to) {
    error_list *list = to;
    const json_t *error = json_object_get(of, "error");
    if (json_is_number(error)) {
        list->value = cli_need(realloc(list->value, ((size_t)list->count + 1) * sizeof(double)));
        list->value[list->count++] = json_number_value(error);
    }
}

static void take_each(const json_t *refresh, void *to) {
    const json_t *parameters = json_object_get(refresh, "parameters");
    for (size_t i = 0; i < json_array_size(parameters); i++) {
        take_error(json_array_get(parameters, i), to);
    }
}

void cli_projection_errors(const char *run, double **values, int *count) {
    error_list list = {*values, *count};
    cli_json_lines(run, "projections.jsonl", take_each, &list);
    *values = list.value;
    *count = list.count;
}

/* |G - P(G)| / |G| of a run, mean over its refreshes; NaN: nothing was projected. */
static double projection_error(const char *run) {
    error_list list = {0};
    cli_json_lines(run, "projections.jsonl", take_error, &list);
    CLI_FREED double *values = list.value;
    return cli_sample_of(values, list.count).mean;
}

json_t *cli_result_make(tg_context *ctx, const char *folder, const cli_experiment *e,
                        const cli_trial *trial, const char *rate, const char *reason) {
    json_t *result = begin(e, trial, rate);
    CLI_OWNED(cli_run_close) cli_run run = {0};
    CLI_FREED char *path = cli_format("%s/runs/%s", folder, trial->name);
    cli_json_put(result, KV("status", reason ? "failed" : "finished"));
    if (reason) {
        cli_json_put(result, KV("reason", reason));
    } else if (cli_run_open(ctx, path, &run) == CLI_OK && run.count > 0) {
        const cli_epoch *last = &run.epoch[run.count - 1];
        cli_json_put(result, KV("epochs", last->epoch), KV("steps", last->step),
                     KV("train_loss", last->loss), KV("test", errors_of(&run)));
        if (isfinite(run.validation[CLI_NORM_L2])) {
            cli_json_put(result,
                         KV("validation", cli_json_new(KV("l2", run.validation[CLI_NORM_L2]),
                                                       KV("h1", run.validation[CLI_NORM_H1]))));
        }
        cli_json_put(result, KV("memory", memory_of(&run)),
                     KV("projection_error", projection_error(path)),
                     KV("step_ms", cli_run_step_ms(&run)), KV("seconds", cli_run_seconds(&run)));
    }
    cli_json_put(result, KV("folder", path));
    return result;
}

json_t *cli_result_planned(const cli_experiment *e, const cli_trial *trial) {
    const cli_cell *cell = &e->cell[trial->cell];
    json_t *result = begin(e, trial, NULL);
    json_t *memory = cli_json_new(KV("peak", cell->peak[cell->place]), KV("state", cell->state));
    cli_json_put(result, KV("status", "finished"), KV("memory", memory));
    return result;
}

int cli_result_write(const char *folder, const char *trial, const json_t *result) {
    CLI_FREED char *path = cli_format("%s/results/%s.json", folder, trial);
    CLI_FREED char *text = cli_need(json_dumps(result, JSON_COMPACT | JSON_PRESERVE_ORDER));
    return cli_write_file(path, text, strlen(text));
}

const char *cli_result_best_rate(const char *folder, const cli_experiment *e, int cell) {
    const char *best = NULL;
    double least = HUGE_VAL;
    for (int i = 0; i < e->trials; i++) {
        if (e->trial[i].cell != cell || !e->trial[i].rate) {
            continue;
        }
        CLI_OWNED(cli_result_free) json_t *result = cli_result_read(folder, e->trial[i].name);
        const double value =
            cli_json_number(json_object_get(json_object_get(result, "validation"), e->search_norm));
        if (value < least) {
            least = value;
            best = e->trial[i].rate;
        }
    }
    return best;
}

/* How the tables are to be made, for `tgrad report DIR`. */
static json_t *describe(const cli_experiment *e) {
    json_t *axes = cli_json_array(), *cells = cli_json_array();
    json_t *rates = cli_json_array();
    for (int r = 0; r < e->rates.count; r++) {
        cli_json_append(rates, cli_json_real(strtod(e->rates.item[r], NULL)));
    }
    for (int a = 0; a < e->axes; a++) {
        cli_json_append(axes, cli_json_text(e->axis[a]));
    }
    for (int c = 0; c < e->cells; c++) {
        const cli_cell *cell = &e->cell[c];
        json_t *values = cli_json_array();
        for (int a = 0; a < e->axes; a++) {
            cli_json_append(values, value_of(cell, a));
        }
        json_t *entry = cli_json_new(KV("name", cell->name), KV("variant", cell->variant),
                                     KV("values", values));
        if (json_object_size(cell->published) > 0) {
            cli_json_set(entry, "published", json_incref(cell->published));
        }
        cli_json_append(cells, entry);
    }
    return cli_json_new(KV("title", e->title), KV("file", e->file), KV("scale", e->scale),
                        KV("rates", rates), KV("baseline", e->baseline), KV("metric", e->metric),
                        KV("axes", axes), KV("cells", cells));
}

int cli_results_gather(const char *folder, const cli_experiment *e) {
    CLI_FREED char *path = cli_format("%s/results.jsonl", folder);
    cli_bytes lines = {0};
    for (int i = 0; i < e->trials; i++) {
        CLI_OWNED(cli_result_free) json_t *result = cli_result_read(folder, e->trial[i].name);
        if (result) {
            CLI_FREED char *text = cli_need(json_dumps(result, JSON_COMPACT | JSON_PRESERVE_ORDER));
            cli_bytes_add(&lines, text, strlen(text));
            cli_bytes_add(&lines, "\n", 1);
        }
    }
    int code = cli_write_file(path, lines.data ? lines.data : (const void *)"", lines.size);
    free(lines.data);
    if (code == CLI_OK) {
        CLI_OWNED(cli_result_free) json_t *sweep = describe(e);
        CLI_FREED char *text = cli_need(json_dumps(sweep, JSON_INDENT(2) | JSON_PRESERVE_ORDER));
        CLI_FREED char *file = cli_format("%s/sweep.json", folder);
        code = cli_write_file(file, text, strlen(text));
    }
    return code;
}
