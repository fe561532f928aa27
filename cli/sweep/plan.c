/* Cost of a sweep: memory from the plans of its cells, time from arithmetic and traffic of their
 * networks. */
#include "sweep.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/problem.h"
#include "common/run_settings.h"

/* Seconds of a step from the network's arithmetic and traffic, at rates of a common core or card:
 * good to a factor of two or so. NaN where the settings leave the grid open. */
static double predict_step(tg_context *ctx, const cli_cell *cell, const tg_settings *settings,
                           int64_t parameters, int64_t threads) {
    const cli_problem problem = cli_problem_from(ctx, cell->name, settings);
    CLI_FREED tg_fno_phase *phase = NULL;
    int count = 0;
    const double scale = cell->place == TG_HOST ? (double)threads : 1.0;
    const double flops = cell->place == TG_HOST ? 25e9 : 100e12;
    const double bytes = cell->place == TG_HOST ? 4e9 : 2e12;
    double seconds = 24.0 * (double)parameters / (bytes * scale); /* weights, moments, gradient */
    if (problem.grid[0] == 0 || cli_problem_phases(ctx, &problem, &phase, &count) != TG_OK) {
        return (double)NAN;
    }
    for (int i = 0; i < count; i++) {
        seconds += fmax(phase[i].flops / flops, phase[i].traffic / bytes) / scale;
    }
    return seconds;
}

/* Training samples that the file of the sweep has made; 0: not known. */
static int64_t samples_made(const cli_experiment *e) {
    int64_t count = 0;
    for (int i = 0; i < e->generate.count; i++) {
        if (strncmp(e->generate.item[i], "--n-train=", 10) == 0) {
            count = strtoll(e->generate.item[i] + 10, NULL, 10);
        }
    }
    return count;
}

static double number_of(const tg_settings *settings, const char *key, const char *otherwise) {
    return strtod(cli_setting_or(settings, key, otherwise), NULL);
}

/* Applies stage `number` over the settings of those before; false: there is no such stage. */
static bool begin_stage(int number, const tg_settings *all, tg_settings *settings) {
    char prefix[16];
    bool is_there = false;
    const size_t length = (size_t)snprintf(prefix, sizeof prefix, "stage%d.", number);
    for (int64_t i = 0; i < tg_settings_count(all); i++) {
        const char *key = tg_settings_key(all, i);
        if (strncmp(key, prefix, length) == 0) {
            is_there =
                tg_settings_set(settings, key + length, tg_settings_value(all, i), NULL) == TG_OK;
        }
    }
    return is_there;
}

void cli_sweep_predict(tg_context *ctx, const cli_experiment *e, const tg_train_memory *plan,
                       int64_t threads, cli_cell *cell) {
    const int64_t samples = plan->samples > 0 ? plan->samples : samples_made(e);
    tg_settings *stage = NULL;
    if (samples == 0 || tg_settings_copy(ctx, cell->settings, &stage) != TG_OK) {
        return; /* as it was: not known */
    }
    cell->later_seconds = 0.0;
    for (int number = 1; number == 1 || begin_stage(number, cell->settings, stage); number++) {
        const double batch = fmax(1.0, number_of(stage, "data.batch_size", "16"));
        const double epoch = ceil((double)samples / batch) *
                             predict_step(ctx, cell, stage, plan->parameters, threads);
        if (number == 1) {
            cell->epoch_seconds = epoch;
        } else {
            cell->later_seconds += epoch * number_of(stage, "opt.n_epochs", "100");
        }
    }
    tg_settings_destroy(&stage);
}

/* Seconds of a trial; NaN: not known. */
static double predict_trial(const cli_experiment *e, const cli_trial *trial) {
    const cli_cell *cell = &e->cell[trial->cell];
    const double epochs = trial->rate && e->search_epochs > 0
                              ? (double)e->search_epochs
                              : number_of(cell->settings, "opt.n_epochs", "100");
    return epochs * cell->epoch_seconds + cell->later_seconds;
}

/* Trials that share a GPU share its arithmetic: several at a time take as long as one by one. */
static double total_time(const cli_experiment *e, const cli_sweep_job *job) {
    double seconds[TG_PLACES] = {0.0};
    const int64_t gpus = job->gpus > 1 ? job->gpus : 1;
    for (int i = 0; i < e->trials; i++) {
        const tg_place place = e->cell[e->trial[i].cell].place;
        seconds[place] += cli_sweep_owns(job, i) ? predict_trial(e, &e->trial[i]) : 0.0;
    }
    return seconds[TG_HOST] / (double)job->jobs +
           seconds[TG_DEVICE] / (double)(job->jobs < gpus ? job->jobs : gpus);
}

static json_t *json_of_trials(const cli_experiment *e) {
    json_t *list = cli_json_array();
    for (int i = 0; i < e->trials; i++) {
        const cli_trial *trial = &e->trial[i];
        const cli_cell *cell = &e->cell[trial->cell];
        cli_json_append(list, cli_json_new(KV("name", trial->name), KV("seed", trial->seed),
                                           KV("search", json_boolean(trial->rate != NULL)),
                                           KV("memory", cell->peak[cell->place]),
                                           KV("state", cell->state),
                                           KV("seconds", predict_trial(e, trial))));
    }
    return list;
}

void cli_sweep_print_plan(const cli_experiment *e, const cli_sweep_job *job, bool json) {
    const double seconds = total_time(e, job);
    CLI_FREED char *words =
        cli_shell_words((const char *const *)e->generate.item, e->generate.count);
    json_t *runs = json_of_trials(e);
    if (json) {
        cli_json_print(
            cli_json_new(KV("title", e->title),
                         KV("generate", e->generate.count > 0 ? cli_json_text(words) : json_null()),
                         KV("jobs", job->jobs), KV("threads", job->threads), KV("seconds", seconds),
                         KV("runs", runs)));
        return;
    }
    cli_print_rows(runs, "run:name|memory>:memory B|optimizer state>:state B|"
                         "time, roughly>:seconds t");
    json_decref(runs);
    if (e->generate.count > 0) {
        cli_say("data: tgrad generate %s", words);
    }
    cli_say("%d runs, %lld at a time with %lld thread%s each: about %s", e->trials,
            (long long)job->jobs, (long long)job->threads, job->threads == 1 ? "" : "s",
            isfinite(seconds) ? CLI_DURATION(seconds) : "? (the data are not there)");
}
