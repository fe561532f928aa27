/* What a sweep will take, before anything is run. */
#ifndef CLI_SWEEP_PLAN_H
#define CLI_SWEEP_PLAN_H

#include "sweep_run.h"

/* Sets the seconds of a cell, which is planned; they stay NaN where settings leave samples or grid
 * open. */
void cli_sweep_predict(tg_context *ctx, const cli_experiment *e, cli_cell *cell, int64_t parameters,
                       int64_t threads);

/* The list of runs with memory and seconds, on stdout: what --dry-run prints. */
void cli_sweep_tell_plan(const cli_experiment *e, const cli_sweep_job *job, bool json);

#endif
