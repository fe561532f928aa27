/* A sweep as its file describes it: one configuration, what is varied, seeds; and the list of runs
 * that come of it.
 *
 * A cell is one variant with one value of every axis: a row of the resulting table. It has a trial,
 * which is one training run, for each seed and, where learning rates are searched, one for each
 * rate before them. */
#ifndef CLI_SWEEP_FILE_H
#define CLI_SWEEP_FILE_H

#include "mistakes.h"
#include "output.h"

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
    double later_seconds;        /* of all stages behind it */
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
    const char *scale;          /* as it was named; NULL: the file as it stands */
    char *baseline;             /* variant, or cell, that others are compared with; NULL: none */
    char *metric;               /* "16.l2"; NULL: L2 of the first test */
    bool is_planned;            /* run: plan. Nothing is trained, the table tells memory */
    char *axis[CLI_SWEEP_KEYS]; /* keys, those of the grid first, then those of the list */
    int axes;
    cli_cell *cell; /* (cells) */
    int cells;
    cli_trial *trial; /* (trials) in the order in which they begin */
    int trials;
    char **rate; /* (rates) of the search */
    int rates;
    int64_t n_validation, search_epochs; /* of the search; 0: as in the other trials */
    const char *search_norm;             /* "l2" or "h1": errors in it choose a rate */
    char **generate; /* (generates) words after `tgrad generate`; data.root is their folder */
    int generates;
} cli_experiment;

typedef struct cli_sweep_source {
    const char *path, *scale; /* scale NULL: the file as it stands */
    const char *data;         /* folder for what the file generates */
    const cli_args *args;     /* settings of the command line, which win */
} cli_sweep_source;

/* Reads the file and makes the list. What is wrong goes to `mistakes`; CLI_FAILED after a message
 * if the file cannot be read at all. To be freed either way. */
int cli_experiment_read(tg_context *ctx, const cli_sweep_source *source, cli_experiment *out,
                        cli_mistakes *mistakes);
void cli_experiment_free(cli_experiment *experiment);

/* Settings of a trial; `rate` is the cell's chosen one, NULL unless there was a search. */
TG_NODISCARD tg_status cli_trial_settings(tg_context *ctx, const cli_experiment *experiment,
                                          const cli_trial *trial, const char *rate,
                                          tg_settings **out);

#endif
