/* A problem made ready for training steps: network, optimizer and one batch of random data; random
 * gradients; and which implementations a backend used for its ops. */
#ifndef CLI_COMMON_WORKBENCH_H
#define CLI_COMMON_WORKBENCH_H

#include "problem.h"

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

/* Takes training steps; `seconds` of each, NULL: not wanted. The ledger's peaks are of the steps.
 */
TG_NODISCARD tg_status cli_workbench_run(const cli_workbench *bench, tg_graphs graphs,
                                         int64_t steps, double *seconds);

/* ---- gradients to measure with: random, the same on every machine, and shaped like real ones.
 *
 *     G[i1, .., in] = sum over r = 1 .. 8 of 1/r a1r[i1] .. anr[in]  +  0.1 noise[i1, .., in]
 *
 * with standard normal a and noise (complex: of unit variance): a decaying spectrum, heavy tails
 * and a floor of noise. Number i of a stream is splitmix64 of (seed, i), two of them make normals
 * by Box and Muller, so nothing depends on an order. */

/* The description in reports. */
#define CLI_RANDOM_GRADIENT_NAME                                                                   \
    "8 separable terms of weight 1/r + 0.1 noise, normal by splitmix64 and Box-Muller"

/* Fills a host tensor of f32 or c64 with at least one dimension. Equal seeds give equal a, and
 * equal noise if `draw` is equal too. */
void cli_random_gradient(const tg_tensor *out, uint64_t seed, uint64_t draw);

/* ---- paths: which implementation a backend used for each op, read from the
 * library's log at level debug ---- */

typedef json_t *cli_paths; /* op, sizes, path and kernels, each once, by first call; NULL: none */

/* Contexts opened later add to `out`, until the next call; NULL: they add nowhere. */
void cli_paths_collect(cli_paths *out);
void cli_paths_print(const cli_paths *paths);
json_t *cli_paths_json(const cli_paths *paths);
void cli_paths_free(cli_paths *paths);

#endif
