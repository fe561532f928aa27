/* What a sweep will take, before anything is run. */
#ifndef CLI_SWEEP_PLAN_H
#define CLI_SWEEP_PLAN_H

#include "sweep_run.h"

/* Sets the seconds of a cell with this plan; they stay NaN where samples or grid are not known. */
void cli_sweep_predict(tg_context *ctx, const cli_experiment *e, const tg_train_memory *plan,
                       int64_t threads, cli_cell *cell);

/* The list of runs with memory and seconds, on stdout: what --dry-run prints. */
void cli_sweep_tell_plan(const cli_experiment *e, const cli_sweep_job *job, bool json);

#endif
