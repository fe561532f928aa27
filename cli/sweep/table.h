/* The results of a sweep as a table: a row for each cell, means over its seeds. */
#ifndef CLI_SWEEP_TABLE_H
#define CLI_SWEEP_TABLE_H

#include <jansson.h>

#include "common/run_folder.h"
#include "common/statistics.h"
#include "report/html.h"

typedef struct cli_table_row {
    const char *name;     /* of the cell */
    const char *label;    /* its variant; the cell's name if it has none */
    json_t *values;       /* of the axes */
    json_t *published;    /* {column: value}; NULL: nothing */
    int finished, failed; /* trials */
    cli_sample error[CLI_NORMS][CLI_RUN_TESTS];
    cli_sample loss, step_ms, seconds;
    cli_sample lost;    /* |G - P(G)| / |G| of its projections */
    double state, peak; /* bytes; NaN: not known */
    double rate;        /* that the search chose; NaN: none */
    int baseline;       /* row to compare with; -1: none, or this is one */
    double p;           /* of the metric against it; NaN: none */
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
    json_t *published; /* names of its columns; "": the only one */
    bool has_rates, has_p, has_lost;
} cli_sweep_table;

/* Whether a folder is a sweep's. */
bool cli_is_sweep(const char *folder);

/* Reads and computes. CLI_FAILED after a message; to be freed either way. */
int cli_sweep_table_read(const char *folder, cli_sweep_table *out);
void cli_sweep_table_free(cli_sweep_table *table);

/* The row with the least mean of an error; -1: none has one. */
int cli_sweep_best(const cli_sweep_table *table, cli_norm norm, int test);

/* ---- page.c: a table in Markdown, and a page in HTML with plots ---- */

/* The table with its title and notes; nothing is escaped beyond what Markdown needs. */
void cli_sweep_markdown(cli_html *out, const cli_sweep_table *table);

/* Writes `path`, in Markdown if it ends in .md; *bytes is its size, 0 if it was not written.
 * CLI_FAILED after a message, also where only the curves of runs are left out. */
int cli_sweep_report(tg_context *ctx, const char *folder, const char *heading, const char *path,
                     size_t *bytes);

#endif
