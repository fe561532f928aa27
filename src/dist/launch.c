/* How this process was started, from the variables that launchers set. */
#include <stdlib.h>
#include <string.h>

#include "dist/comm.h"

/* Rows in order of precedence: srun may start torchrun, mpirun and mpiexec, whose ranks inherit its
 * variables. Variables of torchrun are also set by hand, which has the lowest precedence; `mark` is
 * one that only torchrun sets. SLURM_STEP_NUM_TASKS, unlike SLURM_NTASKS, belongs to a step and is
 * not set for a batch script, which runs once. */
static const struct {
    const char *launcher, *rank, *ranks, *local_rank, *local_ranks, *mark;
} launchers[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID"},
    {"mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE", NULL},
    {"mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", NULL},
    {"srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE",
     NULL},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", NULL},
};

/* A count from the environment, or -1; Slurm writes 4(x2) for two machines with 4 each. */
static int read_count(const char *name) {
    const char *text = getenv(name);
    char *end = NULL;
    const long value = text ? strtol(text, &end, 10) : -1;
    return text && end != text && (*end == '\0' || *end == '(') && value >= 0 && value < 1 << 24
               ? (int)value
               : -1;
}

tg_comm_launch tg_comm_get_launch(void) {
    for (size_t i = 0; i < sizeof launchers / sizeof launchers[0]; i++) {
        const int rank = read_count(launchers[i].rank), ranks = read_count(launchers[i].ranks);
        const bool is_marked = !launchers[i].mark || getenv(launchers[i].mark);
        if (is_marked && rank >= 0 && rank < ranks) {
            return (tg_comm_launch){.launcher = launchers[i].launcher,
                                    .rank = rank,
                                    .ranks = ranks,
                                    .local_rank = read_count(launchers[i].local_rank),
                                    .local_ranks = read_count(launchers[i].local_ranks)};
        }
    }
    return (tg_comm_launch){.launcher = "none", .ranks = 1, .local_ranks = 1};
}

tg_status tg_comm_create_world(tg_context *ctx, const tg_comm_config *config, tg_comm **out) {
    TG_NEED_OUT(ctx, out, ctx);
    const tg_comm_launch launch = tg_comm_get_launch();
    if (launch.ranks == 1) {
        return tg_comm_create_self(ctx, out);
    }
    if (strcmp(launch.launcher, "torchrun") == 0) {
        return tg_fail(ctx, TG_E_UNSUPPORTED,
                       "%d processes by torchrun, which does not connect them over MPI: start them "
                       "with mpirun, mpiexec or srun --mpi=pmix",
                       launch.ranks);
    }
    return tg_comm_create_mpi_world(ctx, config, &launch, out);
}
