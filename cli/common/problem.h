/* A training step to plan or to measure: network, optimizer, batch and grid, from a preset with
 * overrides or from the settings of a run. */
#ifndef CLI_COMMON_PROBLEM_H
#define CLI_COMMON_PROBLEM_H

#include "output.h"

typedef struct cli_problem {
    const char *name; /* of the preset or the file */
    tg_fno_config fno;
    const char *method;    /* --opt, "adam" if none was named */
    tg_optim_config optim; /* of the spectral weights; all others have dense Adam at its rates */
    int64_t batch;
    int64_t data[TG_FNO_MAX_DIMS];     /* grid of the data; on points their number */
    int64_t latent[TG_FNO_MAX_DIMS];   /* grid of a network on points */
    int64_t grid[TG_FNO_MAX_DIMS + 2]; /* of both, as tg_fno_prepare takes it */
    char loss[64];                     /* text for tg_loss_config_parse */
} cli_problem;

/* The step of a preset with an optimizer that refreshes every 4 steps, often enough to be seen, and
 * the overrides of `args` (--fno.key, --opt.key, --data.batch_size, ..). */
cli_problem cli_problem_of_preset(tg_context *ctx, const char *name, const char *method,
                                  const cli_args *args);

/* The step of a run with these settings, which it refers to. */
cli_problem cli_problem_from(tg_context *ctx, const char *name, const tg_settings *settings);

/* A preset as the settings of a run. */
TG_NODISCARD tg_status cli_preset_settings(const char *name, tg_settings *out);

/* Names of the presets, ended by NULL: choices of an option. */
extern const char *const cli_presets[];

/* The configuration of an optimizer for this problem. */
typedef struct cli_setup {
    tg_optim_config groups[2]; /* of spectral weights, of all others */
    tg_optim_param *params;
    tg_optim_setup setup; /* points at the two above */
} cli_setup;

/* A gap schedule without a length is at its beginning: there is no run to take it from. */
void cli_begin_schedule(tg_optim_config *optim);

/* Parameters are those of `fno` (an outline will do), whose names it keeps; *out must stay where it
 * is. To be freed. */
TG_NODISCARD tg_status cli_setup_make(tg_context *ctx, const cli_problem *problem,
                                      const tg_fno *fno, uint64_t seed, cli_setup *out);
void cli_setup_free(cli_setup *setup);

/* The phases of its step with their arithmetic and traffic; to be freed. */
tg_status cli_problem_phases(tg_context *ctx, const cli_problem *problem, tg_fno_phase **out,
                             int *count);

/* The memory of optimizer and network. */
tg_status cli_problem_needs(tg_context *ctx, const cli_problem *problem, bool accumulates,
                            tg_optim_memory *optim, tg_fno_memory *step);

/* Bytes of a step that refreshes by category, on host and device together, everything held at once:
 * network, optimizer, one batch of data, and the context's memory so far. */
typedef struct cli_memory_plan {
    int64_t parameters; /* real numbers */
    size_t bytes[TG_MEM_CATEGORIES];
    size_t peak;      /* their sum */
    size_t inference; /* of a forward pass alone, weights included */
} cli_memory_plan;

tg_status cli_problem_plan(tg_context *ctx, const cli_problem *problem, cli_memory_plan *out);

#endif
