/* Schedules the trials and reports on them. A trial starts when there are a free job and memory for
 * its plan and, at the learning rate of a cell, when the search for that has ended. */
#define _POSIX_C_SOURCE 200809L
#include "sweep.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/run_settings.h"
#include "common/screen_line.h"

typedef enum trial_state { WAITING, RUNNING, FINISHED, FAILED, ELSEWHERE } trial_state;

typedef struct trial_book {
    trial_state state;
    bool is_kept; /* finished before this sweep began */
    pid_t pid;
    int place;      /* of the jobs */
    int64_t epochs; /* wanted */
    const char *rate;
} trial_book;

typedef struct sweep {
    tg_context *ctx;
    const cli_sweep_job *job;
    const cli_experiment *e;
    trial_book *book; /* (trials) */
    bool *is_taken;   /* (jobs) */
    int running;
    size_t used[TG_PLACES]; /* by the plans of those that run; of a GPU: see fits() */
    double start;
    bool is_stopping;
    bool has_line; /* on a terminal */
    cli_sweep_end *end;
} sweep;

bool cli_sweep_owns(const cli_sweep_job *job, int trial) {
    /* a search and what depends on it stay together */
    const cli_experiment *e = job->experiment;
    const int64_t number = e->rates.count > 0 ? e->trial[trial].cell : trial;
    return number % job->ranks == job->rank;
}

/* ---- places ---- */

static int gpu_of(const sweep *s, int place) {
    return s->job->gpus > 0 ? s->job->gpu[place % s->job->gpus] : -1;
}

static size_t device_bytes(const cli_cell *cell) {
    return cell->place == TG_DEVICE ? cell->peak[TG_DEVICE] + CLI_GPU_PROCESS : 0;
}

/* Whether a trial fits beside those that run; the first one always may try. */
static bool fits(const sweep *s, const cli_cell *cell, int place) {
    size_t device = device_bytes(cell);
    for (int i = 0; i < s->e->trials; i++) {
        if (s->book[i].state == RUNNING && gpu_of(s, s->book[i].place) == gpu_of(s, place)) {
            device += device_bytes(&s->e->cell[s->e->trial[i].cell]);
        }
    }
    const size_t *left = s->job->left;
    return s->running == 0 ||
           ((left[TG_HOST] == 0 || s->used[TG_HOST] + cell->peak[TG_HOST] <= left[TG_HOST]) &&
            (left[TG_DEVICE] == 0 || device <= left[TG_DEVICE]));
}

void cli_sweep_limit_jobs(cli_sweep_job *job) {
    const cli_experiment *e = job->experiment;
    size_t least[TG_PLACES] = {SIZE_MAX, SIZE_MAX};
    for (int c = 0; c < e->cells; c++) {
        const size_t bytes[TG_PLACES] = {
            [TG_HOST] = e->cell[c].peak[TG_HOST], [TG_DEVICE] = device_bytes(&e->cell[c])};
        for (int p = 0; p < TG_PLACES; p++) {
            least[p] = bytes[p] < least[p] ? bytes[p] : least[p];
        }
    }
    for (int p = 0; p < TG_PLACES; p++) {
        const int64_t places = p == TG_DEVICE && job->gpus > 1 ? job->gpus : 1;
        if (job->left[p] > 0 && least[p] > 0) {
            const int64_t most = places * (int64_t)(job->left[p] / least[p]);
            job->jobs = job->jobs < most ? job->jobs : most;
        }
    }
    job->jobs = job->jobs > 1 ? job->jobs : 1;
}

static int free_place(const sweep *s) {
    for (int p = 0; p < s->job->jobs; p++) {
        if (!s->is_taken[p]) {
            return p;
        }
    }
    return -1;
}

/* ---- beginning ---- */

/* Whether all trials that search a rate for this cell have ended. */
static bool is_searched(const sweep *s, int cell) {
    for (int i = 0; i < s->e->trials; i++) {
        const cli_trial *t = &s->e->trial[i];
        if (t->cell == cell && t->rate &&
            (s->book[i].state == WAITING || s->book[i].state == RUNNING)) {
            return false;
        }
    }
    return true;
}

static void record_failure(sweep *s, int index, const char *reason) {
    const cli_trial *trial = &s->e->trial[index];
    CLI_OWNED(cli_result_free)
    json_t *result =
        cli_result_make(s->ctx, s->job->folder, s->e, trial, s->book[index].rate, reason);
    (void)cli_result_write(s->job->folder, trial->name, result);
    s->book[index].state = FAILED;
    cli_wipe_line();
    if (!s->job->is_quiet) {
        cli_say("%s failed: %s", trial->name, reason);
        fflush(stdout);
    }
}

tg_status cli_trial_settings(tg_context *ctx, const cli_experiment *e, const cli_trial *trial,
                             const char *rate, tg_settings **out) {
    CLI_CALL(tg_settings_copy(ctx, e->cell[trial->cell].settings, out));
    CLI_CALL(cli_settings_set_integer(*out, "distributed.seed", trial->seed, "seeds"));
    rate = trial->rate ? trial->rate : rate;
    if (rate) {
        CLI_CALL(tg_settings_set(*out, "opt.learning_rate", rate, "lr.values"));
    }
    if (!trial->rate) {
        return TG_OK;
    }
    /* test data choose nothing */
    CLI_CALL(
        cli_settings_set_integer(*out, "data.n_validation", e->n_validation, "lr.n_validation"));
    CLI_CALL(tg_settings_set(*out, "data.test_resolutions", "[]", "lr"));
    CLI_CALL(tg_settings_set(*out, "data.test_files", "[]", "lr"));
    if (e->search_epochs == 0) {
        return TG_OK;
    }
    CLI_CALL(cli_settings_set_integer(*out, "opt.n_epochs", e->search_epochs, "lr.epochs"));
    return cli_settings_set_integer(*out, "opt.scheduler_T_max", e->search_epochs, "lr.epochs");
}

/* Writes configs/NAME.yaml; false after the failure was recorded. */
static bool write_settings(sweep *s, int index, const char *path) {
    const cli_trial *trial = &s->e->trial[index];
    CLI_OWNED(tg_settings_destroy) tg_settings *settings = NULL;
    tg_status status = cli_trial_settings(s->ctx, s->e, trial, s->book[index].rate, &settings);
    if (status == TG_OK) {
        s->book[index].epochs = strtoll(cli_setting_or(settings, "opt.n_epochs", "0"), NULL, 10);
        status = tg_settings_write_yaml(s->ctx, path, settings);
    }
    if (status != TG_OK) {
        record_failure(s, index, tg_context_error(s->ctx));
    }
    return status == TG_OK;
}

static bool start_child(sweep *s, int index, int place, const char *config) {
    const cli_sweep_job *job = s->job;
    const cli_trial *trial = &s->e->trial[index];
    char threads[24];
    CLI_FREED char *run = cli_format("%s/runs/%s", job->folder, trial->name);
    CLI_FREED char *out = cli_format("%s/logs/%s.json", job->folder, trial->name);
    CLI_FREED char *log = cli_format("%s/logs/%s.log", job->folder, trial->name);
    const char *backend = job->common->backend;
    snprintf(threads, sizeof threads, "%lld", (long long)job->threads);
    const char *const words[] = {"tgrad",
                                 "train",
                                 config,
                                 "--run",
                                 run,
                                 "--resume",
                                 "auto",
                                 "--json",
                                 "--threads",
                                 threads,
                                 "--math",
                                 job->common->math,
                                 backend ? "--backend" : NULL,
                                 backend,
                                 NULL};
    const pid_t pid = cli_child_start(words, out, log, gpu_of(s, place));
    if (pid <= 0) {
        return false;
    }
    s->book[index].pid = pid;
    s->book[index].place = place;
    s->book[index].state = RUNNING;
    s->is_taken[place] = true;
    s->used[TG_HOST] += s->e->cell[trial->cell].peak[TG_HOST];
    s->running++;
    return true;
}

/* Why a search found no rate: the message of its first failed run. To be freed. */
static char *search_failure(const sweep *s, int cell) {
    static const char said[] = "no learning rate of the search gave a finite error";
    for (int i = 0; i < s->e->trials; i++) {
        const cli_trial *trial = &s->e->trial[i];
        CLI_OWNED(cli_result_free)
        json_t *result = trial->cell == cell && trial->rate
                             ? cli_result_read(s->job->folder, trial->name)
                             : NULL;
        const char *reason = json_string_value(json_object_get(result, "reason"));
        if (reason) {
            return cli_format("%s: %s: %s", said, trial->name, reason);
        }
    }
    return cli_format("%s", said);
}

/* Begins trial `index` if there is room for it; CLI_FAILED if its process cannot be started. */
static int begin_trial(sweep *s, int index) {
    const cli_trial *trial = &s->e->trial[index];
    const int place = free_place(s);
    if (place < 0 || !fits(s, &s->e->cell[trial->cell], place)) {
        return CLI_OK;
    }
    if (!trial->rate && s->e->rates.count > 0) {
        s->book[index].rate = cli_result_best_rate(s->job->folder, s->e, trial->cell);
        if (!s->book[index].rate) {
            CLI_FREED char *reason = search_failure(s, trial->cell);
            record_failure(s, index, reason);
            return CLI_OK;
        }
    }
    CLI_FREED char *config = cli_format("%s/configs/%s.yaml", s->job->folder, trial->name);
    return !write_settings(s, index, config) || start_child(s, index, place, config) ? CLI_OK
                                                                                     : CLI_FAILED;
}

static int begin_trials(sweep *s) {
    int code = CLI_OK;
    for (int i = 0; i < s->e->trials && code == CLI_OK && !s->is_stopping; i++) {
        if (s->book[i].state == WAITING &&
            (s->e->trial[i].rate || is_searched(s, s->e->trial[i].cell))) {
            code = begin_trial(s, i);
        }
    }
    return code;
}

/* ---- ending ---- */

/* The last line that a child wrote to its log, without the program's name and but for the hint that
 * follows wrong usage; to be freed. */
static char *last_words(const char *folder, const char *trial, int code) {
    CLI_FREED char *path = cli_format("%s/logs/%s.log", folder, trial);
    CLI_OWNED(cli_file_close) FILE *file = fopen(path, "r");
    char line[1024], last[1024] = "";
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (line[0] && line[0] != ' ' && strncmp(line, "Try '", 5) != 0) {
            snprintf(last, sizeof last, "%s", strncmp(line, "tgrad: ", 7) == 0 ? line + 7 : line);
        }
    }
    return code > 128 ? cli_format("ended by signal %d, see %s", code - 128, path)
           : last[0]  ? cli_format("%s", last)
                      : cli_format("exit code %d, see %s", code, path);
}

/* Whether a child was stopped and has saved: it says on stdout that it has not finished. */
static bool has_saved(const char *folder, const char *trial) {
    CLI_FREED char *path = cli_format("%s/logs/%s.json", folder, trial);
    CLI_OWNED(cli_result_free) json_t *said = json_load_file(path, 0, NULL);
    return json_is_false(json_object_get(said, "finished"));
}

/* "  16: l2 0.09570 h1 0.18850" appended to `line`; at points there is no H1. */
static void append_errors(const char *where, const json_t *errors, char *line, size_t capacity) {
    size_t used = strlen(line);
    snprintf(line + used, capacity - used, "  %s:", where);
    for (int n = 0; n < 2; n++) {
        const json_t *error = json_object_get(errors, cli_norm_names[n]);
        used = strlen(line);
        if (json_is_number(error)) {
            snprintf(line + used, capacity - used, " %s %.5f", cli_norm_names[n],
                     json_number_value(error));
        }
    }
}

static void print_trial(const sweep *s, const cli_trial *trial, const json_t *result) {
    char line[256] = "";
    const char *grid;
    json_t *errors;
    json_object_foreach(json_object_get(result, trial->rate ? "none" : "test"), grid, errors) {
        append_errors(grid, errors, line, sizeof line);
    }
    const json_t *validation = json_object_get(result, "validation");
    if (validation) {
        append_errors("validation", validation, line, sizeof line);
    }
    if (!s->job->is_quiet) {
        cli_say("%s%s  %s", trial->name, line,
                CLI_DURATION(json_number_value(json_object_get(result, "seconds"))));
        fflush(stdout);
    }
}

static int end_trial(sweep *s, int index, int code) {
    trial_book *book = &s->book[index];
    const cli_trial *trial = &s->e->trial[index];
    s->running--;
    s->is_taken[book->place] = false;
    s->used[TG_HOST] -= s->e->cell[trial->cell].peak[TG_HOST];
    cli_wipe_line();
    const bool is_stopped = code == 128 + SIGTERM || code == 128 + SIGINT;
    if (is_stopped && (s->is_stopping || has_saved(s->job->folder, trial->name))) {
        book->state = WAITING; /* it was asked to stop: before its first step, or it has saved */
        return CLI_OK;
    }
    if (code != 0) {
        CLI_FREED char *reason = last_words(s->job->folder, trial->name, code);
        record_failure(s, index, reason);
        return CLI_OK;
    }
    CLI_OWNED(cli_result_free)
    json_t *result = cli_result_make(s->ctx, s->job->folder, s->e, trial, book->rate, NULL);
    book->state = FINISHED;
    print_trial(s, trial, result);
    return cli_result_write(s->job->folder, trial->name, result);
}

static int end_trials(sweep *s) {
    int code = CLI_OK, exit_code = 0;
    for (pid_t pid; code == CLI_OK && (pid = cli_child_reap(&exit_code)) > 0;) {
        for (int i = 0; i < s->e->trials; i++) {
            if (s->book[i].state == RUNNING && s->book[i].pid == pid) {
                code = end_trial(s, i, exit_code);
                break;
            }
        }
    }
    return code;
}

static void stop_all(sweep *s, int signal) {
    s->is_stopping = true;
    for (int i = 0; i < s->e->trials; i++) {
        if (s->book[i].state == RUNNING) {
            kill(s->book[i].pid, signal);
        }
    }
}

/* ---- progress ---- */

/* The epoch of the last line of a trial's metrics. */
static int64_t epoch_of(const sweep *s, int index) {
    enum { TAIL = 8192 };
    static char tail[TAIL + 1];
    CLI_FREED char *path =
        cli_format("%s/runs/%s/metrics.jsonl", s->job->folder, s->e->trial[index].name);
    CLI_OWNED(cli_file_close) FILE *file = fopen(path, "r");
    int64_t epoch = 0;
    if (file && (fseek(file, -TAIL, SEEK_END) == 0 || fseek(file, 0, SEEK_SET) == 0)) {
        tail[fread(tail, 1, TAIL, file)] = '\0';
        for (const char *at = tail; (at = strstr(at, "{\"epoch\":")); at++) {
            epoch = strtoll(at + 9, NULL, 10);
        }
    }
    return epoch;
}

static void show_progress(const sweep *s) {
    enum { COUNT, BAR, NOW, BAD, LEFT, PARTS };
    cli_part parts[PARTS] = {
        [BAR] = {.is_bar = true, .rank = 3}, [NOW].rank = 2, [BAD].rank = 1, [LEFT].rank = 1};
    double done = 0.0, new = 0.0;
    int ended = 0, failed = 0, all = 0;
    for (int i = 0; i < s->e->trials; i++) {
        const trial_book *b = &s->book[i];
        double part = b->state == FINISHED || b->state == FAILED;
        all += b->state != ELSEWHERE;
        ended += b->state == FINISHED || b->state == FAILED;
        failed += b->state == FAILED;
        if (b->state == RUNNING && b->epochs > 0) {
            part = (double)epoch_of(s, i) / (double)b->epochs;
        }
        done += part;
        new += b->is_kept ? 0.0 : part;
    }
    const double left =
        new > 0.0 ? (cli_seconds() - s->start) / new *((double)all - done) : (double)NAN;
    snprintf(parts[COUNT].text, CLI_PART_TEXT, "%d/%d runs", ended, all);
    snprintf(parts[NOW].text, CLI_PART_TEXT, "%d running", s->running);
    snprintf(parts[BAD].text, CLI_PART_TEXT, "%d failed", failed);
    snprintf(parts[LEFT].text, CLI_PART_TEXT, "%s left", isfinite(left) ? CLI_DURATION(left) : "?");
    cli_show_line(parts, PARTS, all > 0 ? done / (double)all : 1.0);
}

/* ---- the whole ---- */

static void find_finished(sweep *s) {
    for (int i = 0; i < s->e->trials; i++) {
        CLI_OWNED(cli_result_free)
        json_t *result = cli_result_read(s->job->folder, s->e->trial[i].name);
        if (cli_result_is_finished(result)) {
            s->book[i].state = FINISHED;
            s->book[i].is_kept = true;
        } else if (!cli_sweep_owns(s->job, i)) {
            s->book[i].state = ELSEWHERE;
        }
    }
}

static bool is_any_waiting(const sweep *s) {
    for (int i = 0; i < s->e->trials; i++) {
        if (s->book[i].state == WAITING) {
            return true;
        }
    }
    return false;
}

static int run_all(sweep *s) {
    enum { REDRAW = 1 };
    const double deadline = s->job->deadline;
    s->is_stopping = s->end->is_timed_out = deadline > 0.0 && cli_seconds() >= deadline;
    int code = begin_trials(s);
    while (s->running > 0 || (code == CLI_OK && !s->is_stopping && is_any_waiting(s))) {
        double wait = s->has_line ? REDRAW : 60.0;
        if (deadline > 0.0 && !s->is_stopping) {
            const double left = deadline - cli_seconds();
            wait = left < wait ? fmax(left, 0.0) : wait;
        }
        const int signal = s->running > 0 ? cli_children_wait(wait) : 0;
        if (signal) {
            s->end->signal = signal;
            stop_all(s, signal);
        } else if (deadline > 0.0 && !s->is_stopping && cli_seconds() >= deadline) {
            s->end->is_timed_out = true;
            stop_all(s, SIGTERM);
        } else if (code != CLI_OK && !s->is_stopping) {
            stop_all(s, SIGTERM);
        }
        const int ended = end_trials(s);
        code = code == CLI_OK ? ended : code;
        code = code == CLI_OK ? begin_trials(s) : code;
        if (s->has_line && s->running > 0) {
            show_progress(s);
        }
    }
    cli_wipe_line();
    return code;
}

int cli_sweep_run(tg_context *ctx, const cli_sweep_job *job, cli_sweep_end *end) {
    const cli_experiment *e = job->experiment;
    sweep s = {.ctx = ctx,
               .job = job,
               .e = e,
               .book = cli_need(calloc((size_t)e->trials + 1, sizeof(trial_book))),
               .is_taken = cli_need(calloc((size_t)job->jobs, sizeof(bool))),
               .start = cli_seconds(),
               .has_line = !job->is_quiet && isatty(STDERR_FILENO),
               .end = end};
    *end = (cli_sweep_end){0};
    find_finished(&s);
    cli_children_begin();
    const int code = run_all(&s);
    cli_children_end();
    for (int i = 0; i < e->trials; i++) {
        end->finished += s.book[i].state == FINISHED;
        end->kept += s.book[i].is_kept;
        end->waiting += s.book[i].state == WAITING;
        /* in a search, a rate that fails is a result */
        end->failed += s.book[i].state == FAILED && !e->trial[i].rate;
    }
    end->seconds = cli_seconds() - s.start;
    free(s.book);
    free(s.is_taken);
    return code;
}

int cli_sweep_generate(const cli_sweep_job *job, const char *data) {
    const cli_list *given = &job->experiment->generate;
    if (given->count == 0) {
        return CLI_OK;
    }
    CLI_FREED const char **words = cli_need(calloc((size_t)given->count + 6, sizeof *words));
    int count = 0, code = 0, signal = 0;
    words[count++] = "tgrad";
    words[count++] = "generate";
    for (int i = 0; i < given->count; i++) {
        words[count++] = given->item[i];
    }
    words[count++] = "--output";
    words[count++] = data;
    const bool has_kernels =
        strcmp(given->item[0], "ns") == 0 || strcmp(given->item[0], "kolmogorov") == 0;
    if (has_kernels && job->common->backend && strcmp(job->common->backend, "cuda") == 0) {
        words[count++] = "--backend=cuda";
    }
    CLI_FREED char *out = cli_format("%s/logs/generate.out", job->folder);
    CLI_FREED char *log = cli_format("%s/logs/generate.log", job->folder);
    cli_children_begin();
    const pid_t pid = cli_child_start(words, out, log, -1);
    while (pid > 0) {
        const int got = cli_children_wait(60.0);
        signal = got ? got : signal;
        if (got) {
            kill(pid, got);
        }
        if (cli_child_reap(&code) == pid) {
            break;
        }
    }
    cli_children_end();
    if (pid <= 0) {
        return CLI_FAILED;
    }
    if (signal) {
        cli_fail("stopped by signal %d while data were generated; the same command resumes",
                 signal);
        return 128 + signal;
    }
    if (code != 0) {
        CLI_FREED char *reason = last_words(job->folder, "generate", code);
        return cli_fail("%s: generate: %s", job->experiment->file, reason);
    }
    return CLI_OK;
}
