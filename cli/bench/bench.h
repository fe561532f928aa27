/* tgrad bench: options and entry points of its benchmarks.
 *
 * A benchmark is one file bench_<kind>.c and one row of the table in cmd_bench.c, which also has
 * the table of options. */
#ifndef CLI_BENCH_BENCH_H
#define CLI_BENCH_BENCH_H

#include "common/output.h"
#include "common/problem.h"

typedef struct bench_options {
    cli_list shape;        /* of the weight */
    const char *dtype;     /* of the weight */
    cli_list methods;      /* optimizers, by opt.name */
    int64_t steps;         /* measured ones */
    const char *preset;    /* network and data */
    int64_t batch;         /* samples; 0: the preset's */
    const char *graphs;    /* auto, on or off */
    const char *transport; /* of values on a GPU: auto, mpi or nccl */
} bench_options;

/* Runs and prints; returns the exit code. */
int bench_optim(const cli_call *call, const bench_options *options);
int bench_step(const cli_call *call, const bench_options *options);
int bench_comm(const cli_call *call, const bench_options *options);

/* ---- a problem made ready for training steps: network, optimizer and one batch of random data
 * ---- */

typedef struct cli_workbench {
    tg_context *ctx;
    tg_fno *fno;
    tg_optim *optim; /* weights bound; works in the network's memory */
    tg_tensor x, y;  /* where the backend computes */
    tg_loss_config loss;
} cli_workbench;

/* To be closed, also after a failure. */
TG_NODISCARD tg_status cli_workbench_open(tg_context *ctx, const cli_problem *problem,
                                          uint64_t seed, cli_workbench *out);
void cli_workbench_close(cli_workbench *bench);

#endif
