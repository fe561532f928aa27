/* A sweep as its file describes it: one configuration, variations and seeds; and the resulting list
 * of runs.
 *
 * A cell is one variant with one value of every axis: a row of the resulting table. It has a trial,
 * which is one training run, for each seed and, where learning rates are searched, one for each
 * rate before them. */
#ifndef CLI_SWEEP_SWEEP_H
#define CLI_SWEEP_SWEEP_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "common/output.h"
#include "common/run_folder.h"
#include "common/statistics.h"
#include "report/html.h"

/* Adds a sentence on a mistake in the file, each once. */
void cli_mistake(cli_list *mistakes, const char *format, ...) TG_PRINTF(2, 3);

enum { CLI_SWEEP_KEYS = 16, CLI_SWEEP_TRIALS = 4096 }; /* axes, and trials, at most */

typedef struct cli_cell {
    char *name;                  /* of its trials' folders, without the seed */
    char *variant;               /* "" if the file names none */
    char *value[CLI_SWEEP_KEYS]; /* of each axis; NULL: the variant is not varied along it */
    json_t *published;           /* the paper's values by column; "": the only one */
    tg_settings *settings;       /* of its trials, but for seed and searched rate */
    size_t peak[TG_PLACES];      /* bytes by its plan */
    size_t state;                /* of them moments, factors and index sets */
    tg_place place;              /* where it computes */
    double epoch_seconds;        /* predicted, of an epoch of the first stage; NaN: not known */
    double later_seconds;        /* of all later stages */
} cli_cell;

typedef struct cli_trial {
    char *name;
    int cell;
    int64_t seed;
    const char *rate; /* that is tried; NULL: a trial of the result, at the cell's own rate */
} cli_trial;

typedef struct cli_experiment {
    char *file;                 /* as it was named */
    char *title;                /* of the tables; the file's name if it has none */
    const char *scale;          /* as it was named; NULL: full scale */
    char *baseline;             /* variant, or cell, that others are compared with; NULL: none */
    char *metric;               /* "16.l2"; NULL: L2 of the first test */
    bool is_planned;            /* run: plan. Nothing is trained, the table shows memory */
    char *axis[CLI_SWEEP_KEYS]; /* keys, those of the grid first, then those of the list */
    int axes;
    cli_cell *cell; /* (cells) */
    int cells;
    cli_trial *trial; /* (trials) in the order in which they begin */
    int trials;
    cli_list rates;                      /* of the search */
    int64_t n_validation, search_epochs; /* of the search; 0: as in the other trials */
    const char *search_norm;             /* "l2" or "h1": errors in it choose a rate */
    cli_list generate; /* words after `tgrad generate`; data.root is their folder */
} cli_experiment;

typedef struct cli_sweep_source {
    const char *path, *scale; /* scale NULL: full scale */
    const char *data;         /* folder for generated data */
    const cli_args *args;     /* settings of the command line, which take precedence */
} cli_sweep_source;

/* Reads the file and makes the list, to be freed; mistakes go to `mistakes`. */
void cli_experiment_read(tg_context *ctx, const cli_sweep_source *source, cli_experiment *out,
                         cli_list *mistakes);
void cli_experiment_free(cli_experiment *experiment);

/* Settings of a trial; `rate` is the cell's chosen one, NULL unless there was a search. */
TG_NODISCARD tg_status cli_trial_settings(tg_context *ctx, const cli_experiment *experiment,
                                          const cli_trial *trial, const char *rate,
                                          tg_settings **out);

/* ---- results.c: of trials, and the table of all ---- */

/* The result of a trial: one JSON object, in DIR/results/NAME.json when the trial ends
 * and as a line of DIR/results.jsonl when the sweep does.
 *
 *     {"name": .., "cell": .., "variant": .., "settings": {axis: value}, "seed": .., "rate": ..,
 *      "search": .., "status": "finished"|"failed", "epochs": .., "steps": .., "train_loss": ..,
 *      "test": {"16": {"l2": .., "h1": ..}}, "validation": {..}, "memory": {"peak": .., ..},
 *      "projection_error": .., "step_ms": .., "seconds": .., "folder": ..} */

/* The stored result; NULL if there is none, or it is no JSON object. To be released. */
json_t *cli_result_read(const char *folder, const char *trial);
void cli_result_free(json_t **result);             /* for CLI_OWNED */
bool cli_result_is_finished(const json_t *result); /* NULL: false */

/* Of the trial's run folder, after its end; `reason` is why it failed, NULL if it did not. To be
 * released. */
json_t *cli_result_make(tg_context *ctx, const char *folder, const cli_experiment *experiment,
                        const cli_trial *trial, const char *rate, const char *reason);
/* Of its plan alone (run: plan). */
json_t *cli_result_planned(const cli_experiment *experiment, const cli_trial *trial);
int cli_result_write(const char *folder, const char *trial, const json_t *result);

/* |G - P(G)| / |G| of every projected weight at every refresh of a run, appended to the `count`
 * values. */
void cli_projection_errors(const char *run, double **values, int *count);

/* The rate with which a cell did best on validation data, of the trials that have ended; NULL if
 * none has a finite error. */
const char *cli_result_best_rate(const char *folder, const cli_experiment *experiment, int cell);

/* DIR/results.jsonl and DIR/sweep.json, of all results that are there. */
int cli_results_gather(const char *folder, const cli_experiment *experiment);

/* ---- run.c ---- */

/* The trials of a sweep, several at a time, each in a separate process. */

/* Bytes of a GPU that a process takes beside its plan: CUDA's context and libraries. */
#define CLI_GPU_PROCESS ((size_t)768 << 20)

typedef struct cli_sweep_job {
    const cli_experiment *experiment;
    const char *folder;
    const cli_common *common; /* backend, threads, math of the trials */
    int64_t jobs;             /* trials at a time */
    int64_t threads;          /* of each */
    const int *gpu;           /* (gpus) dealt out to them; none on the host */
    int gpus;
    int64_t rank, ranks;    /* this process runs every ranks-th cell, or trial */
    size_t left[TG_PLACES]; /* bytes for all at once, on the host and on each GPU; 0: not known */
    double deadline;        /* of cli_seconds(), then the sweep stops; 0: none */
    bool is_quiet;
} cli_sweep_job;

typedef struct cli_sweep_end {
    int finished, kept; /* trials; kept: of them finished before */
    int failed;
    int waiting;       /* of this process, for another call: it was stopped */
    int signal;        /* that stopped it; 0: none */
    bool is_timed_out; /* by the deadline */
    double seconds;
} cli_sweep_end;

/* CLI_FAILED, after a message, only for what ends the whole sweep. */
int cli_sweep_run(tg_context *ctx, const cli_sweep_job *job, cli_sweep_end *end);

/* Runs `tgrad generate` with the words of the file, if it has some. 128 + signal if it was
 * stopped. */
int cli_sweep_generate(const cli_sweep_job *job, const char *data);

/* No more jobs than trials of the smallest plan have memory for; at least one. */
void cli_sweep_limit_jobs(cli_sweep_job *job);

/* Whether this process runs a trial. */
bool cli_sweep_owns(const cli_sweep_job *job, int trial);

/* ---- plan.c ---- */

/* The predicted cost of a sweep. */

/* Sets the seconds of a cell with this plan; they stay NaN where samples or grid are not known. */
void cli_sweep_predict(tg_context *ctx, const cli_experiment *e, const tg_train_memory *plan,
                       int64_t threads, cli_cell *cell);

/* The list of runs with memory and seconds, on stdout, for --dry-run. */
void cli_sweep_print_plan(const cli_experiment *e, const cli_sweep_job *job, bool json);

/* ---- child.c ---- */

/* Runs of a sweep as processes of this program: begun, asked to stop, waited for. */

/* From here on SIGINT, SIGTERM and the ends of children are waited for, not handled. */
void cli_children_begin(void);
void cli_children_end(void);

/* Starts this program with words[] ("tgrad", the command, .., NULL): stdout goes to the file
 * `out`, stderr to the end of the file `log`. device: the GPU it computes on, -1 for any. The
 * child stops as by SIGTERM if this process dies. -1 after a message. */
pid_t cli_child_start(const char *const *words, const char *out, const char *log, int device);

/* Waits up to `seconds` for a signal to this process (returned), or for the end of a child (0). */
int cli_children_wait(double seconds);

/* A child that has ended, and how: its exit code, or 128 + signal. 0 if none has. */
pid_t cli_child_reap(int *code);

/* The results of a sweep as a table, a row for each cell, means over its seeds. */

typedef struct cli_table_row {
    const char *name;     /* of the cell */
    const char *label;    /* its variant; the cell's name if it has none */
    json_t *values;       /* of the axes */
    json_t *published;    /* {column: value}; NULL: nothing */
    int finished, failed; /* trials */
    cli_sample error[CLI_NORMS][CLI_RUN_TESTS];
    cli_sample loss, step_ms;
    cli_sample lost;    /* |G - P(G)| / |G| of its projections */
    double state, peak; /* bytes; NaN: not known */
    double rate;        /* that the search chose; NaN: none */
    double p;           /* of the metric against the baseline; NaN: none */
} cli_table_row;

typedef struct cli_sweep_table {
    json_t *sweep, *results; /* sweep.json, and the lines of results.jsonl */
    const char *title, *file;
    json_t *axes;       /* keys */
    cli_table_row *row; /* (rows) */
    int rows;
    cli_grid grid[CLI_RUN_TESTS]; /* that any was tested on */
    int tests;
    int metric_test; /* column that tables and plots are about; -1: nothing was tested */
    cli_norm metric_norm;
    json_t *published;                           /* names of its columns; "": the only one */
    bool has_rates, has_p, has_lost, has_losses; /* in any row */
    bool has_errors[CLI_NORMS][CLI_RUN_TESTS];   /* at points there is no H1 */
} cli_sweep_table;

/* Whether a folder is a sweep's. */
bool cli_is_sweep(const char *folder);

/* Reads and computes; to be freed. */
void cli_sweep_table_read(const char *folder, cli_sweep_table *out);
void cli_sweep_table_free(cli_sweep_table *table);

/* The row with the least mean of an error; -1: none has one. */
int cli_sweep_best(const cli_sweep_table *table, cli_norm norm, int test);

/* ---- page.c: a table in Markdown, and a page in HTML with plots ---- */

/* The table with its title and notes; nothing is escaped beyond what Markdown needs. */
void cli_sweep_markdown(cli_html *out, const cli_sweep_table *table);

/* Writes `path`, in Markdown if it ends in .md; *bytes is its size. CLI_FAILED after a message
 * where the curves of runs are left out. */
int cli_sweep_report(tg_context *ctx, const char *folder, const char *heading, const char *path,
                     size_t *bytes);

#endif
