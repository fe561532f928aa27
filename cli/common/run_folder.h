/* A run folder as the report sees it: metrics.jsonl (needed), config.yaml, samples.safetensors
 * and rollout.safetensors (used where they are there). The run may still be going on. */
#ifndef CLI_COMMON_RUN_FOLDER_H
#define CLI_COMMON_RUN_FOLDER_H

#include "tgrad/tgrad.h"

#define CLI_ROLLOUT_FILE "rollout.safetensors" /* written by tgrad eval --rollout --keep */

enum { CLI_RUN_TESTS = 16 }; /* different tests of a run, at most */

typedef enum cli_norm { CLI_NORM_L2, CLI_NORM_H1, CLI_NORMS } cli_norm;
extern const char *const cli_norm_names[CLI_NORMS]; /* "l2", "h1" */

/* The name of a test: its grid, "16" or "48x80", and a number if there are several, "16_2". */
typedef char cli_grid[TG_GRID_TEXT];

/* One line of metrics.jsonl; NaN: missing. */
typedef struct cli_epoch {
    int64_t epoch, step, skipped, overflows;
    double lr, loss, loss_scale;
    double error[CLI_NORMS][CLI_RUN_TESTS]; /* relative, by the run's list of grids */
    double step_ms, seconds;
    double saving; /* seconds of the checkpoint before the line, which are in no `seconds`; or 0 */
} cli_epoch;

typedef struct cli_run {
    char *name; /* the last part of the path, or all of it where that is ambiguous */
    const char *path;
    cli_epoch *epoch; /* (count) with ascending numbers */
    int count;
    bool is_cut;                  /* the last line of the metrics was not complete */
    cli_grid grid[CLI_RUN_TESTS]; /* ascending */
    int tests;
    double memory[TG_MEM_CATEGORIES]; /* peak bytes, of each category; NaN: not known */
    double memory_peak;               /* most bytes at one time */
    double validation[CLI_NORMS];     /* the newest; NaN: no validation data */
    struct json_t *newest; /* of each test, as in the metrics: {"16": {"l2": .., ..}}; or NULL */
    char written[32];      /* when the metrics were last written, UTC; "" if unknown */
    tg_settings *settings; /* NULL: no config.yaml */
    tg_archive *samples;   /* NULL: no samples.safetensors */
    tg_archive *rollout;   /* NULL: no rollout.safetensors */
} cli_run;

/* Reads the folder `path`. A path without a run or without a complete epoch gets a message on
 * stderr and a count of 0. CLI_FAILED after a message; *out is then to be closed as well. */
int cli_run_open(tg_context *ctx, const char *path, cli_run *out);
void cli_run_close(cli_run *run); /* accepts all zero */

/* Reads metrics.jsonl from memory into a run that is all zero but for its path; `path` is the
 * file's, for messages. */
int cli_run_parse(cli_run *run, const char *path, const char *text, size_t size);

/* Gives each run a name that no other one has, if their paths differ. */
void cli_run_name_all(cli_run *runs, int count);

/* ---- Queries. Index -1 and NaN: not known. ---- */

/* The place of a grid in the run's list. */
int cli_run_test(const cli_run *run, const char *grid);
/* The last epoch (index) that has this error, and the one where it is least. */
int cli_run_last(const cli_run *run, cli_norm norm, int test);
int cli_run_best(const cli_run *run, cli_norm norm, int test);

/* The number of output channels with an error of their own in a test, at the end of the run, and
 * the error of one of them. */
int cli_run_channels(const cli_run *run, const char *grid);
double cli_run_channel(const cli_run *run, cli_norm norm, const char *grid, int channel);

/* Of the L2 errors of the samples of a test, at the end of the run: the least, quartiles, and the
 * largest, index 0 .. TG_QUANTILES - 1. */
double cli_run_quantile(const cli_run *run, const char *grid, int index);

double cli_run_optimizer_bytes(const cli_run *run); /* moments, factors and index sets */
double cli_run_step_ms(const cli_run *run);         /* median over the epochs */
double cli_run_seconds(const cli_run *run);         /* of all epochs */
double cli_run_step_seconds(const cli_run *run);    /* of them, in training steps */
int64_t cli_run_epochs_wanted(const cli_run *run);  /* by the settings; 0: not known */

/* ---- Names of tests ---- */

bool cli_grid_is_name(const char *text);
/* Points per dimension, the geometric mean; 0 if the text names no grid. */
double cli_grid_size(const char *text);
/* Puts a grid into an ascending list of `count` that holds each once, `most` of them at the most;
 * returns the new count. */
int cli_grid_insert(cli_grid *list, int count, int most, const char *grid);

/* The value of a setting, or NULL. */
const char *cli_run_setting(const cli_run *run, const char *key);
/* The value of a key in the metadata of the test data, or NULL. */
const char *cli_run_test_data(const cli_run *run, const char *key);

#define CLI_TEST_DATA "test_data." /* before those keys in the metadata of the samples */

#endif
