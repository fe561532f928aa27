/* Memory of a training step by part and by phase: planned, and measured in a few steps.
 *
 * Buffers share arenas that are allocated before the first step, so the allocated bytes are
 * constant. The bytes in use (alive) change from phase to phase. Both are reported. */
#ifndef CLI_BENCH_PROFILE_H
#define CLI_BENCH_PROFILE_H

#include "common/problem.h"
#include "report/html.h"

/* The parts of the paper's breakdown. */
typedef enum cli_part {
    CLI_PARAMETERS,
    CLI_STATES, /* moments, factors, index sets */
    CLI_INPUTS, /* batches and, on the host, cached data */
    CLI_ACTIVATIONS,
    CLI_GRADIENTS,
    CLI_WORKSPACE,
    CLI_PARTS
} cli_part;

typedef struct cli_part_info {
    const char *name, *key, *style; /* "optimizer states", in JSON, class of the chart */
} cli_part_info;

extern const cli_part_info cli_parts[CLI_PARTS];

/* Bytes by category to bytes by part. */
void cli_parts_of(const size_t bytes[TG_MEM_CATEGORIES], size_t parts[CLI_PARTS]);

typedef struct cli_profile_phase {
    tg_fno_phase phase;
    bool is_refresh; /* only in a step that refreshes */
    size_t alive[CLI_PARTS];
    size_t total;
} cli_profile_phase;

typedef struct cli_profile {
    const char *name, *method;
    const char *given;    /* settings of the command line, "batch 2, fno.n_layers 3"; may be "" */
    tg_train_memory *run; /* the whole run */
    size_t held[CLI_PARTS], held_total;
    cli_profile_phase *phase; /* (count) of a step; the last one of a projected optimizer is what
                                 takes the place of the one before in a step that refreshes */
    int count, peak;          /* the phase with most alive */
    size_t refresh_total;     /* a step that refreshes holds this at its highest */
    bool shares;              /* the optimizer works in memory of the network */

    int64_t steps; /* that were run; 0: none */
    double step_ms;
    size_t counted[CLI_PARTS]; /* by the ledger during the steps, at its highest */
    size_t counted_peak;
    bool as_planned;
} cli_profile;

/* Why gradients and workspace of the last phases may exceed their allocation: a sentence. */
extern const char cli_profile_sharing[];

/* From the settings alone; to be freed. */
cli_profile cli_profile_plan(tg_context *ctx, const char *name, const tg_settings *settings);
void cli_profile_free(cli_profile *profile);

/* Runs steps on random data and counts. */
void cli_profile_run(tg_context *ctx, const tg_settings *settings, int64_t steps, uint64_t seed,
                     cli_profile *profile);

/* ---- sweeps ---- */

enum { CLI_ABOUT_LINES = 4, CLI_ABOUT_TEXT = 96 };

typedef struct cli_sweep_point {
    char value[64];
    char about[CLI_ABOUT_LINES][CLI_ABOUT_TEXT]; /* sizes shown below the value; "": none */
    const char *method;
    int64_t parameters;
    size_t parts[CLI_PARTS], total; /* of a training step */
} cli_sweep_point;

/* Several values of one setting or, in a figure, several presets or storage formats. */
typedef struct cli_sweep {
    const char *name, *key;
    const char *figure; /* its name; NULL: none */
    bool is_relative;   /* each value in % of its first method, with the savings of the others */
    const char *given;  /* as above */
    int values, methods;
    cli_sweep_point *point; /* (values, methods) */
} cli_sweep;

/* The meaning of the numbers above the columns of a relative sweep: a sentence. */
extern const char cli_sweep_saving[];

/* Savings in optimizer states over the first method, in %. */
double cli_states_saved(const cli_sweep *sweep, int value, int method);

/* ---- charts as SVG files ----
 *
 * Every column carries its numbers in full: data-total, and data-part with data-bytes of each part.
 */

void cli_profile_svg(cli_html *file, const cli_profile *profile);
void cli_sweep_svg(cli_html *file, const cli_sweep *sweep);

#endif
