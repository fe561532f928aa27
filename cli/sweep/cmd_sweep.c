/* tgrad sweep FILE.yaml --out DIR: many training runs from one file, several at a time, and the
 * resulting table. All checks come before the first run. */
#define _XOPEN_SOURCE 700 /* realpath */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/run_settings.h"
#include "sweep.h"

static struct {
    const char *out, *scale, *rank, *max_time;
    int64_t jobs;
    cli_list gpus;
    bool is_dry;
} opt;

static const cli_option options[] = {
    CLI_OPTION_TEXT("out", 'o', &opt.out, NULL, "DIR", "folder of the sweep (needed)", NULL),
    CLI_OPTION_TEXT("scale", 0, &opt.scale, NULL, "NAME",
                    "smoke, small, .. of the file; paper: full scale", "paper"),
    CLI_OPTION_INT("jobs", 'j', &opt.jobs, 1, 4096, "N", "runs at a time",
                   "one per core, or per GPU"),
    CLI_OPTION_LIST("gpus", 0, &opt.gpus, "I,..", "GPUs that the runs are dealt out to", "0"),
    CLI_OPTION_TEXT("rank", 0, &opt.rank, NULL, "I/N",
                    "run part I of N (from 0 on), for job arrays", "0/1"),
    CLI_OPTION_TEXT("max-time", 0, &opt.max_time, NULL, "T", "save and stop after 90s, 30min, 2h",
                    NULL),
    CLI_OPTION_FLAG("dry-run", 0, &opt.is_dry, "print runs, memory and time without running"),
    {0},
};

/* ---- options ---- */

static void read_rank(cli_sweep_job *job) {
    long long rank = 0, ranks = 1;
    char end = '\0';
    if (opt.rank && (sscanf(opt.rank, "%lld/%lld%c", &rank, &ranks, &end) != 2 || rank < 0 ||
                     ranks < 1 || rank >= ranks)) {
        cli_misuse("sweep", "--rank needs I/N with 0 <= I < N, not '%.64s'", opt.rank);
    }
    job->rank = rank;
    job->ranks = ranks;
}

static double read_deadline(void) {
    static const struct {
        const char *unit;
        double seconds;
    } units[] = {{"", 1.0}, {"s", 1.0}, {"min", 60.0}, {"m", 60.0}, {"h", 3600.0}, {"d", 86400.0}};
    char *end = NULL;
    const double number = opt.max_time ? strtod(opt.max_time, &end) : 0.0;
    for (size_t i = 0; opt.max_time && i < sizeof units / sizeof units[0]; i++) {
        if (end != opt.max_time && strcmp(end, units[i].unit) == 0 && number > 0.0 &&
            isfinite(number)) {
            return cli_seconds() + number * units[i].seconds;
        }
    }
    cli_require(opt.max_time
                    ? cli_usage("sweep", "--max-time needs a time as 90s, 30min or 2h, not '%.64s'",
                                opt.max_time)
                    : CLI_OK);
    return 0.0;
}

static int *read_gpus(void) {
    int *gpus = cli_need(calloc((size_t)opt.gpus.count + 1, sizeof *gpus));
    for (int i = 0; i < opt.gpus.count; i++) {
        char *end = NULL;
        const long gpu = strtol(opt.gpus.item[i], &end, 10);
        if (*end || gpu < 0 || gpu > 1023) {
            cli_misuse("sweep", "--gpus needs numbers of GPUs, not '%.64s'", opt.gpus.item[i]);
        }
        gpus[i] = (int)gpu;
    }
    return gpus;
}

/* ---- checks ---- */

void cli_mistake(cli_list *mistakes, const char *format, ...) {
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (int i = 0; i < mistakes->count; i++) {
        if (strcmp(mistakes->item[i], text) == 0) {
            return;
        }
    }
    cli_list_add(mistakes, text, strlen(text));
}

static void check_fits(const cli_cell *cell, const size_t left[TG_PLACES], cli_list *mistakes) {
    static const char *const names[TG_PLACES] = {[TG_HOST] = "host", [TG_DEVICE] = "GPU"};
    for (int p = 0; p < TG_PLACES; p++) {
        if (left[p] > 0 && cell->peak[p] > left[p]) {
            cli_mistake(mistakes,
                        "%s: does not fit: it needs %s of the %s's memory, of which %s are left "
                        "(tgrad plan --fit proposes changes)",
                        cell->name, CLI_BYTES(cell->peak[p]), names[p], CLI_BYTES(left[p]));
        }
    }
}

/* A key that no table knows is tried alone, so that all of them are named and not only the first.
 * Other errors do not count there: `model: gino` is right, but needs other settings. */
static void check_keys(tg_context *ctx, const cli_cell *cell, tg_train_memory *memory,
                       cli_list *mistakes) {
    for (int64_t i = 0; i < tg_settings_count(cell->settings); i++) {
        const char *key = tg_settings_key(cell->settings, i);
        tg_key_info info;
        CLI_OWNED(tg_settings_destroy) tg_settings *alone = NULL;
        if (strncmp(key, "stage", 5) == 0 || cli_key_find(key, &info)) {
            continue;
        }
        cli_check(tg_settings_create(ctx, &alone));
        cli_check(tg_settings_set(alone, "fno.n_modes", "4", NULL));
        cli_check(tg_settings_set(alone, "data.set", "none", NULL));
        cli_check(tg_settings_set(alone, key, tg_settings_value(cell->settings, i),
                                  tg_settings_origin(cell->settings, i)));
        if (tg_train_plan(ctx, alone, 1, memory) == TG_E_CONFIG &&
            strstr(tg_context_error(ctx), key)) {
            cli_mistake(mistakes, "%s", tg_context_error(ctx));
        }
    }
}

/* The settings that a cell acts on, as text; NULL where they are wrong. */
static char *effect_of(tg_context *ctx, const tg_settings *settings) {
    CLI_OWNED(tg_settings_destroy) tg_settings *effective = NULL;
    return tg_train_effective(ctx, settings, &effective) == TG_OK ? cli_settings_text(effective)
                                                                  : NULL;
}

/* Two rows that differ in keys which nothing reads would be one row twice. */
static void check_repeats(const cli_experiment *e, char *const *effect, cli_list *mistakes) {
    for (int c = 0; c < e->cells; c++) {
        for (int before = 0; effect[c] && before < c; before++) {
            if (effect[before] && strcmp(effect[c], effect[before]) == 0) {
                cli_mistake(mistakes,
                            "rows %s and %s are the same run: they differ in nothing "
                            "that it reads",
                            e->cell[before].name, e->cell[c].name);
                break;
            }
        }
    }
}

/* Plans every cell; wrong settings and too little memory are mistakes. */
static void check_cells(tg_context *ctx, cli_experiment *e, const cli_sweep_job *job,
                        cli_list *mistakes) {
    CLI_FREED tg_train_memory *memory = cli_need(calloc(1, sizeof *memory));
    CLI_FREED char **effect = cli_need(calloc((size_t)e->cells + 1, sizeof *effect));
    for (int c = 0; c < e->cells; c++) {
        cli_cell *cell = &e->cell[c];
        CLI_OWNED(tg_settings_destroy) tg_settings *whole = NULL;
        check_keys(ctx, cell, memory, mistakes);
        if (tg_train_complete(ctx, cell->settings, &whole) != TG_OK ||
            tg_train_plan(ctx, whole, 1, memory) != TG_OK) {
            cli_mistake(mistakes, "%s", tg_context_error(ctx));
            continue;
        }
        const size_t *peak = memory->peak[memory->place];
        effect[c] = effect_of(ctx, whole);
        cell->place = memory->place;
        memcpy(cell->peak, memory->peak_total, sizeof cell->peak);
        cell->state = peak[TG_MEM_OPTIMIZER] + peak[TG_MEM_FACTORS] + peak[TG_MEM_INDICES];
        cli_sweep_predict(ctx, e, memory, job->threads, cell);
        if (!e->is_planned) {
            check_fits(cell, job->left, mistakes);
        }
    }
    check_repeats(e, effect, mistakes);
    for (int c = 0; c < e->cells; c++) {
        free(effect[c]);
    }
}

/* Rates that were not there when a cell's trials ran: the best one might be another now. */
static void check_search(const cli_experiment *e, const char *folder, cli_list *mistakes) {
    for (int i = 0; i < e->trials; i++) {
        const cli_trial *searched = &e->trial[i];
        CLI_OWNED(cli_result_free) json_t *known = cli_result_read(folder, searched->name);
        for (int j = 0; searched->rate && !known && j < e->trials; j++) {
            const cli_trial *trial = &e->trial[j];
            CLI_OWNED(cli_result_free)
            json_t *result = trial->cell == searched->cell && !trial->rate
                                 ? cli_result_read(folder, trial->name)
                                 : NULL;
            if (cli_result_is_finished(result)) {
                cli_mistake(mistakes,
                            "%s: %s holds this run, at the best of rates without %s; take another "
                            "--out, or remove the folder",
                            trial->name, folder, searched->rate);
                break;
            }
        }
    }
}

/* Trials that the folder holds with other settings. */
static void check_folder(tg_context *ctx, const cli_experiment *e, const char *folder,
                         cli_list *mistakes) {
    for (int i = 0; i < e->trials; i++) {
        const cli_trial *trial = &e->trial[i];
        CLI_FREED char *path = cli_format("%s/configs/%s.yaml", folder, trial->name);
        const char *rate = trial->rate ? NULL : cli_result_best_rate(folder, e, trial->cell);
        CLI_OWNED(tg_settings_destroy) tg_settings *now = NULL;
        CLI_OWNED(tg_settings_destroy) tg_settings *then = NULL;
        if (access(path, F_OK) != 0 || tg_settings_read_yaml(ctx, path, &then) != TG_OK ||
            cli_trial_settings(ctx, e, trial, rate, &now) != TG_OK) {
            continue;
        }
        for (int64_t k = 0; k < tg_settings_count(now); k++) {
            const char *key = tg_settings_key(now, k), *old = tg_settings_get(then, key);
            if (!old || strcmp(old, tg_settings_value(now, k)) != 0) {
                cli_mistake(mistakes,
                            "%s: %s holds this run with %s %s, now it is %s; take another "
                            "--out, or remove the folder",
                            trial->name, folder, key, old ? old : "not set",
                            tg_settings_value(now, k));
                break;
            }
        }
    }
}

/* Ends the program with the list of mistakes, if there are any. */
static void refuse(const char *file, const cli_list *mistakes) {
    if (mistakes->count == 0) {
        return;
    }
    cli_fail("%s: %d mistake%s, nothing was run:", file, mistakes->count,
             mistakes->count == 1 ? "" : "s");
    for (int i = 0; i < mistakes->count; i++) {
        CLI_FREED char *clean = cli_clean_text(mistakes->item[i], 0);
        fprintf(stderr, "  %s\n", clean);
    }
    cli_exit(CLI_FAILED);
}

/* ---- running ---- */

/* Makes DIR and its parts, and returns its lock, which keeps a second sweep of the same part out
 * and ends with this process. */
static int open_folder(const char *folder, const cli_sweep_job *job) {
    static const char *const parts[] = {"", "configs", "logs", "results", "runs"};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        CLI_FREED char *path = cli_format("%s/%s", folder, parts[i]);
        for (char *slash = strchr(path + 1, '/'); i == 0 && slash; slash = strchr(slash + 1, '/')) {
            *slash = '\0';
            (void)mkdir(path, 0777); /* the last one reports a failure */
            *slash = '/';
        }
        if (mkdir(path, 0777) != 0 && errno != EEXIST) {
            cli_die("cannot create the folder %s: %s", path, strerror(errno));
        }
    }
    CLI_FREED char *lock =
        cli_format("%s/.lock-%lld-%lld", folder, (long long)job->rank, (long long)job->ranks);
    const int file = open(lock, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0) {
        cli_die("%s: %s", lock, strerror(errno));
    }
    if (flock(file, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
        cli_die("%s: another process runs this sweep", folder);
    }
    return file;
}

/* DIR/table.md and DIR/report.html; the former also on stdout. */
static void write_tables(tg_context *ctx, const char *folder, bool is_quiet) {
    static const char *const names[] = {"table.md", "report.html"};
    CLI_OWNED(cli_sweep_table_free) cli_sweep_table table = {0};
    CLI_OWNED(cli_bytes_free) cli_html text = {0};
    for (int i = 0; i < 2; i++) {
        CLI_FREED char *path = cli_format("%s/%s", folder, names[i]);
        size_t bytes = 0;
        (void)cli_sweep_report(ctx, folder, NULL, path, &bytes); /* curves may be left out */
    }
    if (!is_quiet) {
        cli_sweep_table_read(folder, &table);
        cli_sweep_markdown(&text, &table);
        printf("\n%s\n", text.data);
    }
}

static void run_planned(const cli_experiment *e, const char *folder, cli_sweep_end *end) {
    for (; end->finished < e->trials; end->finished++) {
        const cli_trial *trial = &e->trial[end->finished];
        CLI_OWNED(cli_result_free) json_t *result = cli_result_planned(e, trial);
        cli_require(cli_result_write(folder, trial->name, result));
    }
}

static void print_end(const cli_sweep_job *job, const cli_sweep_end *end, bool json) {
    const cli_experiment *e = job->experiment;
    if (json) {
        cli_json_print(cli_json_new(KV("folder", job->folder), KV("runs", e->trials),
                                    KV("finished", end->finished), KV("kept", end->kept),
                                    KV("failed", end->failed),
                                    KV("stopped", json_boolean(end->signal || end->is_timed_out)),
                                    KV("seconds", end->seconds)));
        return;
    }
    cli_say("%d of %d runs finished (%d of them before), %d failed, in %s; %s/results.jsonl",
            end->finished, e->trials, end->kept, end->failed, CLI_DURATION(end->seconds),
            job->folder);
    if (end->signal) {
        cli_say("stopped by signal %d, runs are saved; the same command resumes", end->signal);
    } else if (end->is_timed_out) {
        cli_say("stopped by --max-time, runs are saved; the same command resumes");
    } else if (end->finished > 0) {
        cli_say("table.md and report.html beside it hold the tables and plots");
    }
}

/* Failed trials once more at the end, where they are seen. */
static void print_failures(const cli_sweep_job *job) {
    for (int i = 0; i < job->experiment->trials; i++) {
        const cli_trial *trial = &job->experiment->trial[i];
        CLI_OWNED(cli_result_free)
        json_t *result = trial->rate ? NULL : cli_result_read(job->folder, trial->name);
        const char *reason = json_string_value(json_object_get(result, "reason"));
        CLI_FREED char *log = cli_format("%s/logs/%s.log", job->folder, trial->name);
        const bool has_begun = access(log, R_OK) == 0;
        if (reason) {
            cli_fail("%s: %s%s%s%s", trial->name, reason, has_begun ? " (" : "",
                     has_begun ? log : "", has_begun ? ")" : "");
        }
    }
}

static int run_sweep(tg_context *ctx, cli_experiment *e, const cli_sweep_job *job, const char *data,
                     bool json) {
    cli_sweep_end end = {0};
    const int lock = open_folder(job->folder, job);
    int code = CLI_OK;
    if (e->is_planned) {
        run_planned(e, job->folder, &end);
    } else {
        code = cli_sweep_generate(job, data);
        if (code == CLI_OK && e->generate.count > 0) { /* again, with the memory of the data */
            cli_list mistakes = {0};
            check_cells(ctx, e, job, &mistakes);
            refuse(e->file, &mistakes);
        }
        code = code == CLI_OK ? cli_sweep_run(ctx, job, &end) : code;
    }
    const int gathered = cli_results_gather(job->folder, e);
    code = code == CLI_OK ? gathered : code;
    if (code == CLI_OK && end.finished > 0) {
        write_tables(ctx, job->folder, json);
    }
    if (code == CLI_OK) {
        print_end(job, &end, json);
        fflush(stdout);
        if (end.failed > 0) {
            print_failures(job);
            code = CLI_FAILED;
        }
        if (end.waiting > 0 && (end.signal || end.is_timed_out)) {
            code = end.signal ? 128 + end.signal : CLI_TIMED_OUT;
        }
    }
    close(lock);
    return code;
}

/* The folder's path from the root, whether it is there or not; to be freed. */
static char *whole_path(const char *folder) {
    char *known = realpath(folder, NULL);
    if (known || folder[0] == '/') {
        return known ? known : cli_need(strdup(folder));
    }
    char here[4096];
    return cli_format("%s/%s", getcwd(here, sizeof here) ? here : ".", folder);
}

/* The jobs at a time and their threads, from the options, cores and GPUs. */
static void share_machine(tg_context *ctx, const cli_experiment *e, const cli_common *common,
                          cli_sweep_job *job) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    const int64_t cores = online > 0 ? online : 1, runs = e->trials > 0 ? e->trials : 1;
    const bool has_gpu = tg_backend_place(ctx) == TG_DEVICE;
    const int64_t natural = has_gpu ? (job->gpus > 0 ? job->gpus : 1) : cores;
    job->jobs = opt.jobs > 0 ? opt.jobs : natural;
    job->jobs = job->jobs < runs ? job->jobs : runs;
    job->threads = common->threads > 0 ? common->threads : cores / job->jobs;
    job->threads = job->threads > 0 ? job->threads : 1;
    for (int p = 0; p < TG_PLACES; p++) {
        if (!tg_train_memory_left(ctx, (tg_place)p, &job->left[p])) {
            job->left[p] = 0;
        }
    }
}

static int sweep(tg_context *ctx, const cli_call *call, cli_sweep_job *job) {
    CLI_OWNED(cli_experiment_free) cli_experiment e = {0};
    cli_list mistakes = {0};
    CLI_FREED char *folder = whole_path(opt.out);
    CLI_FREED char *data = cli_format("%s/data", folder);
    const cli_sweep_source source = {
        .path = call->args.item[0], .scale = opt.scale, .data = data, .args = &call->args};
    cli_experiment_read(ctx, &source, &e, &mistakes);
    job->experiment = &e;
    job->folder = folder;
    share_machine(ctx, &e, call->common, job);
    check_cells(ctx, &e, job, &mistakes);
    cli_sweep_limit_jobs(job);
    check_folder(ctx, &e, folder, &mistakes);
    check_search(&e, folder, &mistakes);
    refuse(source.path, &mistakes);
    if (opt.is_dry) {
        cli_sweep_print_plan(&e, job, call->common->json);
        return CLI_OK;
    }
    return run_sweep(ctx, &e, job, data, call->common->json);
}

static int run(const cli_call *call) {
    cli_sweep_job job = {.common = call->common, .is_quiet = call->common->json};
    if (!opt.out) {
        return cli_usage("sweep", "--out DIR is needed");
    }
    read_rank(&job);
    job.deadline = read_deadline();
    CLI_FREED int *gpus = read_gpus();
    job.gpu = gpus;
    job.gpus = opt.gpus.count;
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    return sweep(ctx, call, &job);
}

const cli_command cli_cmd_sweep = {
    .name = "sweep",
    .arguments = "FILE.yaml",
    .args = {1, 1},
    .summary = "Run an experiment: many training runs from one file",
    .description =
        "FILE.yaml names a configuration, axes (every combination), lists (entries in step),\n"
        "variants, seeds, learning rates to search and data to generate; docs/experiments.md\n"
        "describes them. Each run is a process of this program; cores (or GPUs) and memory limit\n"
        "how many run at a time. All mistakes in the settings are listed before the first run.\n"
        "The same command resumes a stopped sweep: finished runs stay, others continue bit for\n"
        "bit. A failed run does not stop the others. SIGINT and SIGTERM save all runs and stop.\n"
        "Exit codes: 0 all runs are finished; 1 some failed; 130, 143 or 124 stopped by SIGINT,\n"
        "SIGTERM or --max-time: the same command resumes.\n"
        "DIR gets runs/NAME, results.jsonl, table.md and report.html; 'tgrad report DIR' writes\n"
        "the page anew.\n",
    .examples = "  tgrad sweep experiments/darcy16_methods.yaml --out runs/darcy16 --dry-run\n"
                "  tgrad sweep experiments/darcy16_methods.yaml --out runs/darcy16 --scale small\n"
                "  tgrad sweep mine.yaml --out runs/mine --jobs 4 --threads 2 --max-time 11h\n"
                "  tgrad sweep mine.yaml --out runs/mine --rank $SLURM_ARRAY_TASK_ID/8\n",
    .options = options,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE | CLI_TAKES_OVERRIDES,
    .run = run,
};
