/* tgrad bench KIND: measures a part of the library on this machine. */
#include <string.h>

#include "bench.h"
#include "common/problem.h"

static bench_options opt = {.dtype = "c64", .steps = 12, .graphs = "auto", .transport = "auto"};

static const char *const dtypes[] = {"f32", "c64", NULL};
static const char *const graphs[] = {"auto", "on", "off", NULL};
static const char *const transports[] = {"auto", "mpi", "nccl", NULL};

static const cli_option options[] = {
    CLI_OPTION_LIST("shape", 0, &opt.shape, "N,N,..", "of the weight", "64,64,64,33"),
    CLI_OPTION_TEXT("dtype", 0, &opt.dtype, dtypes, "f32|c64", "of the weight", "c64"),
    CLI_OPTION_LIST("opt", 0, &opt.methods, "LIST", "methods (tgrad help keys opt.name)",
                    "all; step: adam"),
    CLI_OPTION_INT("steps", 0, &opt.steps, 1, 100000, "N", "measured steps, after a warm-up step",
                   "12"),
    CLI_OPTION_TEXT("preset", 0, &opt.preset, cli_presets, "NAME",
                    "step of a preset, as tgrad plan --help lists them", "ns128"),
    CLI_OPTION_INT("batch", 0, &opt.batch, 1, 1 << 30, "N", "samples of a step", "the preset's"),
    CLI_OPTION_TEXT("graphs", 0, &opt.graphs, graphs, "auto|on|off",
                    "run steps as captured graphs, on a GPU", "auto"),
    CLI_OPTION_FLAG("paths", 0, &opt.paths,
                    "of step: also path and kernels of each op on this backend"),
    CLI_OPTION_TEXT("transport", 0, &opt.transport, transports, "auto|mpi|nccl",
                    "of comm: transport between GPUs", "auto"),
    {0},
};

static const struct {
    const char *name;
    int (*run)(const cli_call *call, const bench_options *options);
} kinds[] = {
    {"optim", bench_optim},
    {"step", bench_step},
    {"comm", bench_comm},
};

enum { KINDS = sizeof kinds / sizeof kinds[0] };

static int run(const cli_call *call) {
    const char *kind = call->args.item[0];
    cli_suggestion suggestion = cli_suggest(kind);
    if (opt.methods.count > BENCH_MAX_METHODS) {
        return cli_usage("bench", "--opt: %d optimizers, at most %d", opt.methods.count,
                         BENCH_MAX_METHODS);
    }
    for (int i = 0; i < KINDS; i++) {
        cli_suggest_offer(&suggestion, kinds[i].name);
        if (strcmp(kinds[i].name, kind) == 0) {
            return kinds[i].run(call, &opt);
        }
    }
    return cli_usage("bench", "'%.64s' is not optim, step or comm%s", kind, suggestion.text);
}

const cli_command cli_cmd_bench = {
    .name = "bench",
    .arguments = "optim|step|comm",
    .args = {1, 1},
    .summary = "Measure optimizers, training steps and the exchange of ranks on this machine",
    .description =
        "optim: each optimizer in turn on one weight with random gradients; dense Adam is always\n"
        "included. Medians of the parts of a step, of a step without a refresh, of a first (cold)\n"
        "refresh and of one that starts from the previous factors (warm); bytes of state by part,\n"
        "counted by the memory ledger and planned. --opt.key settings apply to every optimizer;\n"
        "--opt.update_proj_gap, 4 by default here, sets the steps between refreshes.\n"
        "step: whole training steps of a network on random data. Medians of forward and backward\n"
        "together, of the optimizer, and of its refreshes, also every 4 steps; bytes by category,\n"
        "counted and planned.\n"
        "comm: the ranks of a launcher exchange messages of 4 bytes to 16 MiB. Medians of each\n"
        "operation, the latency, and the link speed to give to tgrad plan --link. On GPUs, device\n"
        "memory is sent over NCCL or through the host; with NCCL a single process measures the\n"
        "cost of the calls.\n",
    .examples = "  tgrad bench optim --shape 64,64,64,33 --opt tensorgrad\n"
                "  tgrad bench optim --shape 64,64,90 --opt lowrank,galore --opt.rank 0.1\n"
                "  tgrad bench step --preset ns128 --opt adam,tensorgrad\n"
                "  tgrad bench step --preset ns1024 --opt tensorgrad --paths\n"
                "  tgrad bench step --preset em --batch 8 --fno.hidden_channels 64 --json\n"
                "  mpirun -n 2 tgrad bench comm --steps 20\n"
                "  tgrad bench comm --backend cuda --transport nccl\n",
    .options = options,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE | CLI_TAKES_SEED | CLI_TAKES_OVERRIDES,
    .run = run,
};
