/* A problem made ready for training steps: network, optimizer and one batch of random data. */
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

#endif
