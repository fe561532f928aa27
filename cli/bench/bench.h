/* tgrad bench: options and entry points of its benchmarks.
 *
 * A benchmark is one file bench_<kind>.c and one row of the table in cmd_bench.c, which also has
 * the table of options. */
#ifndef CLI_BENCH_BENCH_H
#define CLI_BENCH_BENCH_H

#include "common/output.h"

typedef struct bench_options {
    cli_list shape;        /* of the weight */
    const char *dtype;     /* of the weight */
    cli_list methods;      /* optimizers, by opt.name */
    int64_t steps;         /* measured ones */
    const char *preset;    /* network and data */
    int64_t batch;         /* samples; 0: the preset's */
    const char *graphs;    /* auto, on or off */
    bool paths;            /* also which implementations the backend used */
    const char *transport; /* of values on a GPU: auto, mpi or nccl */
} bench_options;

enum { BENCH_MAX_METHODS = 16 };

/* Runs and prints; returns the exit code. */
int bench_optim(const cli_call *call, const bench_options *options);
int bench_step(const cli_call *call, const bench_options *options);
int bench_comm(const cli_call *call, const bench_options *options);

#endif
