/* The ranks of a solver train one operator together: each on its own simulations, all with the same
 * weights, without writing to disk.
 *
 *     mpicc -std=c17 insitu_mpi.c $(pkg-config --cflags --libs tgrad) -lm -o insitu_mpi
 *     mpirun -n 4 ./insitu_mpi
 *
 * Every rank advances RUNS simulations of the viscous Burgers equation on the unit circle,
 * u_t + u u_x = NU u_xx, by central differences. The fields at the start and end of every time
 * interval are RUNS samples of the operator u(t) -> u(t + interval), this rank's share of a batch.
 * The compressed gradients of all shares are summed over the ranks, so that a step is that of the
 * whole batch, and only a fraction of the gradients' bytes is sent. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <mpi.h>
#include <tgrad/tgrad.h>

enum { N = 64, RUNS = 4, INTERVALS = 120, TIME_STEPS = 40 };
static const double NU = 0.03, DT = 0.001, PI = 3.14159265358979323846;

/* ---- the solver ---- */

static void start(double *u) {
    memset(u, 0, N * sizeof *u);
    for (int wave = 1; wave <= 3; wave++) {
        const double size = (double)rand() / RAND_MAX, phase = 2.0 * PI * rand() / RAND_MAX;
        for (int i = 0; i < N; i++) {
            u[i] += size * sin(2.0 * PI * wave * i / N + phase);
        }
    }
}

static void advance(double *u) {
    double next[N];
    for (int i = 0; i < N; i++) {
        const double left = u[(i + N - 1) % N], right = u[(i + 1) % N];
        const double slope = 0.5 * N * (right - left);
        const double curvature = (double)N * N * (left - 2.0 * u[i] + right);
        next[i] = u[i] + DT * (NU * curvature - u[i] * slope);
    }
    memcpy(u, next, sizeof next);
}

/* Advances every simulation by one interval and stores start and end. Sometimes restarts waves. */
static void simulate(int interval, double u[RUNS][N], float *before, float *after) {
    for (int run = 0; run < RUNS; run++) {
        if ((interval + run) % 6 == 0) {
            start(u[run]);
        }
        for (int i = 0; i < N; i++) {
            before[run * N + i] = (float)u[run][i];
        }
        for (int step = 0; step < TIME_STEPS; step++) {
            advance(u[run]);
        }
        for (int i = 0; i < N; i++) {
            after[run * N + i] = (float)u[run][i];
        }
    }
}

/* ---- the learner ---- */

static void need(tg_context *ctx, tg_status status) {
    if (status != TG_OK) {
        fprintf(stderr, "%s\n", tg_context_error(ctx));
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* The same seed on every rank: the same weights. */
static tg_fno *make_network(tg_context *ctx) {
    const int64_t grid[] = {N};
    tg_fno_config config = tg_fno_config_default();
    tg_fno *fno = NULL;
    need(ctx, tg_fno_config_set(ctx, &config, "n_modes", "[24]"));
    need(ctx, tg_fno_config_set(ctx, &config, "hidden_channels", "16"));
    need(ctx, tg_fno_config_set(ctx, &config, "n_layers", "2"));
    need(ctx, tg_fno_create(ctx, &config, 1, &fno));
    need(ctx, tg_fno_prepare(fno, RUNS, grid, true));
    return fno;
}

/* An optimizer that accumulates: sums over the ranks are applied afterwards. */
static tg_optim *make_optimizer(tg_context *ctx, tg_fno *fno) {
    tg_optim_config config = tg_optim_config_default();
    tg_optim_param params[64];
    tg_optim *optim = NULL;
    need(ctx, tg_optim_config_set(ctx, &config, "name", "tensorgrad"));
    need(ctx, tg_optim_config_set(ctx, &config, "update_proj_gap", "40"));
    config.learning_rate = 4e-3;
    for (int i = 0; i < tg_fno_param_count(fno); i++) {
        const tg_fno_param p = tg_fno_get_param(fno, i);
        params[i] = (tg_optim_param){.name = p.name, .dtype = p.dtype, .shape = p.shape};
    }
    const tg_optim_setup setup = {.size = sizeof setup,
                                  .groups = &config,
                                  .group_count = 1,
                                  .params = params,
                                  .param_count = tg_fno_param_count(fno),
                                  .takes_factored = true,
                                  .accumulates = true};
    need(ctx, tg_optim_create(ctx, &setup, &optim));
    for (int i = 0; i < setup.param_count; i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        need(ctx, tg_optim_bind(optim, i, &param.weight));
    }
    return optim;
}

int main(int argc, char **argv) {
    static double u[RUNS][N];
    static float before[RUNS * N], after[RUNS * N];
    const MPI_Comm mine = MPI_COMM_WORLD; /* or any other communicator of the program */
    const tg_shape shape = {3, {RUNS, 1, N}};
    tg_context_config one_core = tg_context_config_default(); /* one rank per core */
    tg_context *ctx = NULL;
    tg_comm *comm = NULL;
    tg_step *step = NULL;
    tg_tensor x, y;
    MPI_Init(&argc, &argv);
    one_core.threads = 1;
    need(NULL, tg_context_create(&one_core, &ctx));
    need(ctx, tg_backend_select(ctx, "cpu"));
    need(ctx, tg_comm_create_mpi(ctx, &mine, NULL, &comm));
    tg_fno *fno = make_network(ctx);
    tg_optim *optim = make_optimizer(ctx, fno);
    const tg_step_config config = {.size = sizeof config,
                                   .fno = fno,
                                   .optim = optim,
                                   .loss = tg_loss_config_default(),
                                   .comm = comm};
    need(ctx, tg_step_create(ctx, &config, &step));
    need(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, before, &x));
    need(ctx, tg_tensor_wrap(ctx, TG_F32, &shape, after, &y));
    srand((unsigned)tg_comm_rank(comm) + 1); /* different waves per rank */
    for (int interval = 0; interval < INTERVALS; interval++) {
        tg_step_result result;
        simulate(interval, u, before, after);
        need(ctx, tg_step_forward(step, &x, &y));
        need(ctx, tg_step_backward(step));
        need(ctx, tg_step_synchronize(step, &result));
        if (tg_comm_rank(comm) == 0 && (interval + 1) % 40 == 0) {
            printf("interval %3d: loss %.4f per sample of %lld\n", interval + 1,
                   result.loss / (double)result.samples, (long long)result.samples);
        }
    }
    const tg_comm_stats stats = tg_comm_get_info(comm).stats;
    if (tg_comm_rank(comm) == 0) {
        printf("%d ranks over %s, %lld bytes per step\n", tg_comm_ranks(comm),
               tg_comm_get_info(comm).transport, (long long)(stats.reduced / INTERVALS));
    }
    tg_step_destroy(&step);
    tg_optim_destroy(&optim);
    tg_fno_destroy(&fno);
    tg_comm_destroy(&comm);
    tg_context_destroy(&ctx);
    MPI_Finalize();
    return 0;
}
