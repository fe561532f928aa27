/* tgrad train CONFIG.yaml --run DIR: trains, with a line per epoch and, on a terminal, a progress
 * bar. SIGINT and SIGTERM finish the step under way, save and end with 128 + signal, so that a job
 * script can resume it; a second signal ends at once. Of the processes of mpirun or srun, which
 * train together, the first one prints, and a signal to one stops all. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/run_settings.h"
#include "common/screen_line.h"

static const char *run_folder;
static const char *resume;
static int64_t given_seed = -1; /* none */
static bool is_forced;
static const char *init;
static bool is_quiet;
static bool is_verbose;

static const cli_option options[] = {
    CLI_OPTION_TEXT("run", 0, &run_folder, NULL, "DIR",
                    "folder for metrics, checkpoints and settings (needed)", NULL),
    CLI_OPTION_TEXT("resume", 0, &resume, NULL, "auto|FILE",
                    "continue from the newest good checkpoint of DIR, or FILE", NULL),
    CLI_OPTION_FLAG("force", 0, &is_forced,
                    "start over in a DIR that holds a run; removes its files"),
    CLI_OPTION_INT("seed", 0, &given_seed, 0, INT64_MAX, "N", "start of all random numbers",
                   "distributed.seed"),
    CLI_OPTION_TEXT("init", 0, &init, NULL, "FILE",
                    "start from the weights in FILE (neuraloperator, checkpoint)", NULL),
    CLI_OPTION_FLAG("quiet", 'q', &is_quiet, "print nothing but warnings and errors"),
    CLI_OPTION_FLAG("verbose", 'v', &is_verbose, "print every setting before the run"),
    {0},
};

typedef struct screen {
    bool has_bar;
    cli_loss_unit loss; /* of the training loss as it is shown */
    tg_train_epoch last;
    tg_train_time time; /* of all epochs */
} screen;

static void show_step(void *user, const tg_train_progress *p) {
    const screen *s = user;
    if (!s->has_bar || !cli_line_is_due()) {
        return;
    }
    enum { EPOCH, BAR, BATCH, LOSS, TIME, MEMORY, LEFT, PARTS };
    cli_part parts[PARTS] = {[BAR] = {.is_bar = true, .rank = 4},
                             [BATCH].rank = 1,
                             [LOSS].rank = 2,
                             [LEFT].rank = 3,
                             [TIME].rank = 5,
                             [MEMORY].rank = 6};
    snprintf(parts[EPOCH].text, CLI_PART_TEXT, "epoch %lld/%lld", (long long)p->epoch,
             (long long)p->epochs);
    snprintf(parts[BATCH].text, CLI_PART_TEXT, "%lld/%lld", (long long)p->batch,
             (long long)p->batches);
    snprintf(parts[LOSS].text, CLI_PART_TEXT, "%.24s %.4g", s->loss.name, p->loss * s->loss.share);
    snprintf(parts[TIME].text, CLI_PART_TEXT, "%.0f ms/step", p->step_ms);
    snprintf(parts[MEMORY].text, CLI_PART_TEXT, "%s", CLI_BYTES(p->memory));
    snprintf(parts[LEFT].text, CLI_PART_TEXT, "%s left",
             isfinite(p->seconds_left) ? CLI_DURATION(p->seconds_left) : "?");
    cli_show_line(parts, PARTS, p->batches > 0 ? (double)p->batch / (double)p->batches : 1.0);
}

/* The line of an epoch on stdout, wrapped if it would be too long. */
typedef struct epoch_line {
    int room; /* columns */
    int used;
} epoch_line;

static void add(epoch_line *l, const char *separator, const char *format, ...) TG_PRINTF(3, 4);

static void add(epoch_line *l, const char *separator, const char *format, ...) {
    char text[128];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (l->used > 0 && l->used + (int)(strlen(separator) + strlen(text)) > l->room) {
        putchar('\n');
        l->used = 0;
        separator = "      | ";
    }
    l->used += printf("%s%s", separator, text);
}

static const char *number_text(double value, char text[CLI_UNIT_TEXT]) {
    snprintf(text, CLI_UNIT_TEXT, fabs(value) < 1000.0 ? "%.5f" : "%.3e", value);
    return text;
}

static void add_time(tg_train_time *sum, const tg_train_time *epoch) {
    sum->prepare += epoch->prepare;
    sum->steps += epoch->steps;
    sum->data += epoch->data;
    sum->evaluation += epoch->evaluation;
    sum->checkpoint += epoch->checkpoint;
}

static void show_epoch(void *user, const tg_train_epoch *e) {
    enum { LONGEST = 100 };
    screen *s = user;
    char first[CLI_UNIT_TEXT], second[CLI_UNIT_TEXT];
    s->last = *e;
    add_time(&s->time, &e->time);
    if (is_quiet) {
        return;
    }
    cli_wipe_line();
    const int columns = cli_columns(STDOUT_FILENO, LONGEST);
    epoch_line l = {.room = columns < LONGEST ? columns : LONGEST};
    add(&l, "", "epoch %*lld/%lld", e->epochs >= 100 ? 3 : 2, (long long)e->epoch,
        (long long)e->epochs);
    add(&l, "  ", "lr %.2e", e->learning_rate);
    add(&l, "  ", "train: %s %s", s->loss.name, number_text(e->train_loss * s->loss.share, first));
    for (int i = 0; i < e->test_count; i++) {
        const bool has_h1 = !isnan(e->test[i].h1) || isnan(e->test[i].l2); /* not at points */
        add(&l, "  | ", "%s: l2 %s%s%s", e->test[i].grid, number_text(e->test[i].l2, first),
            has_h1 ? " h1 " : "", has_h1 ? number_text(e->test[i].h1, second) : "");
    }
    add(&l, "  | ", "%5.1f ms/step  peak %s", e->step_ms, CLI_BYTES(e->memory.peak_total));
    putchar('\n');
    fflush(stdout);
}

static bool should_stop(void *user) {
    (void)user;
    return cli_signal != 0;
}

/* The file of settings, to be freed: the one that is named, or that of the run. */
static char *settings_file(const cli_call *call) {
    if (call->args.count > 0 && cli_is_folder(call->args.item[0])) {
        cli_die("%s: it is a folder; the settings of a run are its config.yaml",
                call->args.item[0]);
    }
    if (call->args.count > 0) {
        return cli_need(strdup(call->args.item[0]));
    }
    char *path = cli_format("%s/config.yaml", run_folder);
    if (access(path, F_OK) != 0) {
        cli_die("%s: there is no run to resume (no config.yaml); name CONFIG.yaml to begin one",
                run_folder);
    }
    return path;
}

static tg_status read_settings(tg_context *ctx, const cli_call *call, const char *path,
                               tg_settings **out) {
    CLI_CALL(tg_settings_read_yaml(ctx, path, out));
    CLI_CALL(cli_settings_override(*out, &call->args));
    if (init) {
        CLI_CALL(tg_settings_set(*out, "opt.init", init, "--init"));
    }
    return given_seed < 0
               ? TG_OK
               : cli_settings_set_integer(*out, "distributed.seed", given_seed, "command line");
}

static void print_settings(const tg_context *ctx, const tg_trainer *trainer,
                           const tg_settings *settings) {
    CLI_FREED char *text = is_verbose ? cli_settings_text(settings) : cli_format("%s", "");
    for (char *line = text, *end = strchr(text, '\n'); end; end = strchr(line, '\n')) {
        *end = '\0';
        cli_say("%s", line);
        line = end + 1;
    }
    const int changed = cli_settings_changed(settings);
    cli_say("settings: %s/config.yaml, %d differ%s from the defaults", run_folder, changed,
            changed == 1 ? "s" : "");
    cli_say("%lld parameters; backend %s", (long long)tg_trainer_parameters(trainer),
            CLI_BACKEND(ctx));
}

static void print_start(const tg_trainer *trainer, bool resumed) {
    const tg_train_end at = tg_trainer_end(trainer);
    if (resumed && at.epoch >= at.epochs) {
        cli_say("resumed after step %lld; all %lld epochs are done, from %s", (long long)at.step,
                (long long)at.epochs, at.checkpoint);
    } else if (resumed) {
        cli_say("resumed after step %lld, in epoch %lld of %lld, from %s", (long long)at.step,
                (long long)at.epoch + 1, (long long)at.epochs, at.checkpoint);
    } else {
        cli_say("no checkpoint yet: starting from the beginning");
    }
}

static void print_memory(const tg_train_epoch *last) {
    printf("peak memory %s:", CLI_BYTES(last->memory.peak_total));
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        if (last->memory.peak[c] > 0) {
            printf(" %s %s", tg_mem_category_name((tg_mem_category)c),
                   CLI_BYTES(last->memory.peak[c]));
        }
    }
    printf("\n");
}

static void print_time(const tg_train_time *t) {
    printf("time: steps %.1f s (waiting for data %.1f s), evaluation %.1f s, checkpoints %.1f s, "
           "preparation %.1f s\n",
           t->steps, t->data, t->evaluation, t->checkpoint, t->prepare);
}

/* Errors of each channel: the sum over channels hides those of small ones. */
static void print_channels(const tg_train_epoch *last) {
    enum { MOST = 8 };
    const tg_test_errors *e = &last->test[0];
    if (last->test_count == 0 || e->channels < 2) {
        return;
    }
    printf("l2 of each channel, %s:", e->grid);
    for (int64_t c = 0; c < e->channels && c < MOST; c++) {
        char text[CLI_UNIT_TEXT];
        printf(" %s", number_text(e->l2_channels[c], text));
    }
    printf("%s\n", e->channels > MOST ? " .." : "");
}

static void print_json(const tg_context *ctx, const tg_comm *comm, const tg_train_end *end,
                       const tg_train_epoch *last) {
    json_t *object = cli_json_object(), *test = cli_json_object();
    const tg_comm_info info = tg_comm_get_info(comm);
    for (int i = 0; i < last->test_count; i++) {
        json_t *errors = cli_json_object();
        cli_json_set_errors(errors, &last->test[i]);
        const bool validates = strcmp(last->test[i].grid, "validation") == 0;
        cli_json_set(validates ? object : test, last->test[i].grid, errors);
    }
    cli_json_set_backend(object, ctx);
    cli_json_put(object, KV("finished", json_boolean(end->is_finished)),
                 KV("diverged", json_boolean(end->has_diverged)), KV("epoch", end->epoch),
                 KV("step", end->step), KV("train_loss", last->train_loss),
                 KV("skipped", end->skipped), KV("test", test));
    if (info.stats.calls > 0) {
        cli_json_put(object, KV("processes", cli_json_new(KV("count", tg_comm_ranks(comm)),
                                                          KV("transport", info.transport),
                                                          KV("reduced", info.stats.reduced),
                                                          KV("copied", info.stats.copied),
                                                          KV("seconds", info.stats.seconds))));
    }
    cli_json_put(object, KV("checkpoint", end->checkpoint));
    cli_json_print(object);
}

static void print_communication(const tg_comm *comm, int64_t steps) {
    const tg_comm_info info = tg_comm_get_info(comm);
    const int64_t bytes = (info.stats.reduced + info.stats.copied) / (steps > 0 ? steps : 1);
    if (info.stats.calls > 0) {
        cli_say("%d rank%s over %s: %s per step, %.1f s including waiting", tg_comm_ranks(comm),
                tg_comm_ranks(comm) > 1 ? "s" : "", info.transport, CLI_BYTES((uint64_t)bytes),
                info.stats.seconds);
    }
}

/* The signal that stopped the run, whichever rank got it: all of them end with its code. */
static tg_status share_signal(tg_comm *comm) {
    double number = cli_signal;
    const tg_tensor value = {.dtype = TG_F64, .shape = {1, {1}}, .data = &number};
    const tg_status status = tg_comm_all_reduce(comm, TG_COMM_MAX, &value);
    cli_signal = (int)number;
    return status;
}

/* ", 3 batches and 18 updates skipped", or "". */
static const char *skipped_text(const tg_train_end *end, char text[128]) {
    const long long batches = end->skipped - end->refused, updates = end->refused;
    text[0] = '\0';
    if (batches > 0 && updates > 0) {
        snprintf(text, 128, ", %lld batches and %lld updates of parameters skipped", batches,
                 updates);
    } else if (end->skipped > 0) {
        snprintf(text, 128, ", %lld %s skipped", batches + updates,
                 batches > 0 ? "batches" : "updates of parameters");
    }
    return text;
}

static void print_end(const tg_comm *comm, const screen *s, const tg_train_end *end,
                      int64_t steps) {
    char skipped[128];
    if (!end->is_finished) {
        cli_say("stopped by signal %d after step %lld of epoch %lld; saved %s", (int)cli_signal,
                (long long)end->step, (long long)end->epoch + 1, end->checkpoint);
        cli_say("resume with: tgrad train --run %s --resume auto", run_folder);
        return;
    }
    if (s->last.epoch > 0) { /* resumed with an epoch left */
        print_channels(&s->last);
        print_memory(&s->last);
        print_time(&s->time);
    }
    print_communication(comm, steps);
    if (s->last.epoch < s->last.epochs) {
        cli_say("early stopping: %lld of %lld epochs, the error stopped falling",
                (long long)s->last.epoch, (long long)s->last.epochs);
    }
    cli_say("%s: %lld epochs, %lld steps%s; %s", end->has_diverged ? "diverged" : "finished",
            (long long)end->epoch, (long long)end->step, skipped_text(end, skipped),
            end->checkpoint);
}

/* *code: the exit code, where the status does not decide it. A run that has diverged is shown like
 * any other, and then its error. */
static tg_status train(const tg_context *ctx, tg_comm *comm, tg_trainer *trainer,
                       const tg_settings *settings, bool json, int *code) {
    screen s = {.has_bar = cli_is_first() && !is_quiet && isatty(STDERR_FILENO),
                .loss = cli_loss_unit_of(settings),
                .last.train_loss = (double)NAN};
    const tg_train_watch watch = {
        .user = &s, .on_step = show_step, .on_epoch = show_epoch, .should_stop = should_stop};
    const int64_t before = tg_trainer_end(trainer).step;
    tg_train_end end;
    tg_status status = tg_trainer_run(trainer, &watch, &end);
    cli_wipe_line();
    if (status == TG_OK && !end.is_finished) {
        status = share_signal(comm);
        *code = 128 + (int)cli_signal;
    }
    if (status != TG_OK && !end.has_diverged) {
        return status;
    }
    if (json) {
        print_json(ctx, comm, &end, &s.last);
    } else if (!is_quiet) {
        print_end(comm, &s, &end, end.step - before);
    }
    return status;
}

/* A run that was resumed at its end stays as it is. */
static void print_finished(const tg_context *ctx, const tg_comm *comm, const tg_trainer *trainer,
                           bool json) {
    const tg_train_end end = tg_trainer_end(trainer);
    if (json) {
        const tg_train_epoch none = {.train_loss = (double)NAN};
        print_json(ctx, comm, &end, &none);
    } else if (!is_quiet && end.epoch < end.epochs) {
        cli_say(
            "nothing to do: opt.early_stopping ended %s after %lld of %lld epochs; a larger one, "
            "or 0, continues from there",
            run_folder, (long long)end.epoch, (long long)end.epochs);
    } else if (!is_quiet) {
        cli_say("nothing to do: %s is finished (%lld epochs, %lld steps); a larger opt.n_epochs "
                "continues from there",
                run_folder, (long long)end.epoch, (long long)end.step);
    }
}

/* Decides how the run begins; nothing has changed on the disk when it returns. */
static tg_status begin(tg_trainer *trainer, bool *resumed) {
    *resumed = false;
    if (resume) {
        return tg_trainer_resume(trainer, strcmp(resume, "auto") == 0 ? NULL : resume, resumed);
    }
    return is_forced ? tg_trainer_replace(trainer) : tg_trainer_start(trainer);
}

static tg_status run_trainer(const tg_context *ctx, tg_comm *comm, tg_trainer *trainer, bool json,
                             int *code) {
    bool resumed = false;
    CLI_OWNED(tg_settings_destroy) tg_settings *settings = NULL;
    CLI_CALL(begin(trainer, &resumed));
    if (resumed && tg_trainer_is_finished(trainer)) {
        print_finished(ctx, comm, trainer, json);
        return TG_OK;
    }
    CLI_CALL(tg_trainer_settings(trainer, &settings));
    if (!is_quiet) {
        print_settings(ctx, trainer, settings);
        if (resume) {
            print_start(trainer, resumed);
        }
        fflush(stdout);
    }
    cli_catch_signals(true);
    const tg_status status = train(ctx, comm, trainer, settings, json, code);
    cli_catch_signals(false);
    return status;
}

/* A failure that all ranks share is reported once; a rank that fails by itself ends the others.
 */
static int fail_all(const tg_context *ctx, tg_comm *comm, tg_status status) {
    const bool is_met = comm || status != TG_E_IO; /* otherwise each reports its reason */
    const bool is_shared = !comm || tg_comm_ranks(comm) == 1 || tg_comm_get_info(comm).has_agreed;
    if (cli_is_first() || !is_shared || !is_met) {
        cli_fail_status(ctx, status);
    }
    if (!is_shared) {
        fflush(NULL);
        tg_comm_abort(comm);
    }
    return CLI_FAILED;
}

static int run(const cli_call *call) {
    if (!run_folder) {
        return cli_usage("train", "--run DIR is needed");
    }
    if (call->args.count == 0 && !resume) {
        return cli_usage("train",
                         "CONFIG.yaml is needed, or --resume auto to continue in --run DIR");
    }
    if (resume && (init || is_forced)) {
        return cli_usage("train", "--resume continues a run, %s: choose one",
                         init ? "--init begins one" : "--force removes it");
    }
    const bool json = call->common->json && cli_is_first();
    if (is_quiet) {
        cli_drop_notes();
    }
    is_quiet = is_quiet || json || !cli_is_first();
    CLI_FREED char *path = settings_file(call);
    CLI_OWNED(tg_context_destroy) tg_context *ctx = cli_open_context(call->common, true);
    CLI_OWNED(tg_comm_destroy) tg_comm *comm = NULL;
    CLI_OWNED(tg_settings_destroy) tg_settings *settings = NULL;
    CLI_OWNED(tg_trainer_destroy) tg_trainer *trainer = NULL;
    tg_comm_config how = tg_comm_config_default();
    const tg_status read = read_settings(ctx, call, path, &settings);
    const char *timeout = tg_settings_get(settings, "distributed.timeout"); /* checked later */
    const double seconds = timeout ? strtod(timeout, NULL) : 0.0;
    how.timeout = seconds > 0.0 ? seconds : how.timeout;
    tg_status status = tg_comm_create_world(ctx, &how, &comm);
    status = status == TG_OK ? tg_comm_agree(comm, read) : status;
    if (status == TG_OK) {
        status = tg_trainer_create(ctx, comm, settings, run_folder, &trainer);
    }
    int code = CLI_OK;
    status = status == TG_OK ? run_trainer(ctx, comm, trainer, json, &code) : status;
    if (code > CLI_OK) { /* a launcher may end all ranks when the first one ends so */
        fflush(stdout);
        status = tg_comm_barrier(comm);
    }
    return status == TG_OK ? code : fail_all(ctx, comm, status);
}

const cli_command cli_cmd_train = {
    .name = "train",
    .arguments = "[CONFIG.yaml]",
    .args = {0, 1},
    .summary = "Train an operator",
    .description =
        "Settings come from the file and, over it, from --section.key options. DIR gets\n"
        "config.yaml (every setting), metrics.jsonl, metrics.csv, events/ for TensorBoard,\n"
        "checkpoints/ and samples.safetensors. Interrupted by SIGINT or SIGTERM it finishes the\n"
        "step, saves and exits with 128 + signal; --resume auto continues bit for bit, with the\n"
        "settings of DIR/config.yaml unless CONFIG.yaml is named. Otherwise a DIR that holds a\n"
        "run, or in which a process trains, is refused and left unchanged. Processes of mpirun,\n"
        "mpiexec or srun share every batch; rank 0 prints and writes.\n\n"
        "Exit codes: 0 the run is finished; 1 it failed or diverged, and stderr names the last\n"
        "good checkpoint; 2 wrong usage; 130 or 143 it was stopped by SIGINT or SIGTERM and\n"
        "saved: the same command with --resume auto continues.\n",
    .examples = "  tgrad train configs/darcy16.yaml --run runs/darcy --data.root data\n"
                "  tgrad train configs/darcy16.yaml --run runs/adam --opt.name adam --seed 3\n"
                "  tgrad train configs/darcy16.yaml --run runs/tuned --init weights.safetensors\n"
                "  tgrad train configs/darcy16.yaml --run runs/darcy --resume auto\n"
                "  tgrad train --run runs/darcy --resume auto --opt.n_epochs 200\n"
                "  mpirun -n 4 tgrad train configs/darcy16.yaml --run runs/darcy4\n",
    .options = options,
    .describe = cli_keys_describe,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE | CLI_TAKES_OVERRIDES,
    .run = run,
};
