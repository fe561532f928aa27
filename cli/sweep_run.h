/* The trials of a sweep, several at a time, each a process of its own. */
#ifndef CLI_SWEEP_RUN_H
#define CLI_SWEEP_RUN_H

#include "sweep_result.h"

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

/* Runs `tgrad generate`, with what it says; does nothing where the file generates nothing. 128 +
 * signal if it was stopped. */
int cli_sweep_generate(const cli_sweep_job *job, const char *data);

/* No more jobs than trials of the smallest plan have memory for; at least one. */
void cli_sweep_limit_jobs(cli_sweep_job *job);

/* Whether this process runs a trial. */
bool cli_sweep_owns(const cli_sweep_job *job, int trial);

#endif
