/* tgrad generate EQUATION: training and test data from a partial differential equation.
 *
 * The options for the parameters of the equations are made from the library's own list, one row of
 * the help page for each parameter of each equation. Of equations that share a name the first row
 * has the value that is given. */
#include <stdlib.h>
#include <string.h>

#include "common/input_files.h"
#include "common/screen_line.h"

static struct {
    int64_t n_train, n_test, resolution, frames;
    cli_list test_resolutions;
    const char *folder;
    bool force;
} opt = {.n_train = -1, .n_test = -1, .folder = "data"};

static const cli_option options[] = {
    CLI_OPTION_INT("n-train", 0, &opt.n_train, 0, 1000000000, "N",
                   "training samples; 0 means no training file", "see above"),
    CLI_OPTION_INT("n-test", 0, &opt.n_test, 0, 1000000000, "N",
                   "test samples; 0 means no test file", "see above"),
    CLI_OPTION_INT("resolution", 'r', &opt.resolution, 1, 32768, "N", "points per dimension",
                   "see above"),
    CLI_OPTION_LIST("test-resolution", 0, &opt.test_resolutions, "N,..",
                    "the same test samples on these grids", "--resolution"),
    CLI_OPTION_INT("frames", 0, &opt.frames, 2, 1000000, "N",
                   "burgers, ns: store N frames up to --time", "a pair"),
    CLI_OPTION_TEXT("output", 'o', &opt.folder, NULL, "DIR",
                    "folder of the files, created if missing", "data"),
    CLI_OPTION_FLAG("force", 0, &opt.force, "replace files that were made with other arguments"),
    {0},
};

/* ---- options of the equations ---- */

static const char **given; /* by row of the table: the value given by the user, or NULL */

static cli_option parameter_option(const tg_pde_info *pde, const tg_pde_param_info *param,
                                   const char **value) {
    char *name = cli_need(strdup(param->name));
    for (char *at = strchr(name, '_'); at; at = strchr(at, '_')) {
        *at = '-';
    }
    return (cli_option){.name = name,
                        .kind = CLI_STRING,
                        .text = value,
                        .value = param->value[0] == '[' ? "X,X" : "X",
                        .help = cli_format("%s: %s", pde->name, param->help),
                        .fallback = cli_need(strdup(param->value))};
}

/* Never freed: the table lives as long as the program. */
static const cli_option *parameter_options(void) {
    static cli_option *table;
    if (table) {
        return table;
    }
    size_t rows = 0, row = 0;
    tg_pde_info pde;
    for (int i = 0; tg_pde_describe(i, &pde); i++) {
        rows += (size_t)pde.params;
    }
    table = cli_need(calloc(rows + 1, sizeof *table));
    given = cli_need(calloc(rows + 1, sizeof *given));
    for (int i = 0; tg_pde_describe(i, &pde); i++) {
        tg_pde_param_info param;
        for (int p = 0; tg_pde_describe_param(i, p, &param); p++) {
            table[row] = parameter_option(&pde, &param, &given[row]);
            row++;
        }
    }
    return table;
}

static void describe_equations(FILE *stream) {
    tg_pde_info pde;
    for (int i = 0; tg_pde_describe(i, &pde); i++) {
        fprintf(stream,
                "  %-11s  %s\n  %-11s  (%lld training and %lld test samples, resolution %lld)\n",
                pde.name, pde.summary, "", (long long)pde.n_train, (long long)pde.n_test,
                (long long)pde.resolution);
    }
}

/* The values given, to be freed. */
static tg_pde_value *given_values(int *count) {
    size_t row = 0;
    tg_pde_info pde;
    tg_pde_param_info param;
    tg_pde_value *values = NULL;
    *count = 0;
    for (int i = 0; tg_pde_describe(i, &pde); i++) {
        for (int p = 0; tg_pde_describe_param(i, p, &param); p++, row++) {
            if (given[row]) {
                values = cli_need(realloc(values, ((size_t)*count + 1) * sizeof *values));
                values[(*count)++] = (tg_pde_value){.name = param.name, .value = given[row]};
            }
        }
    }
    return values;
}

/* ---- the run ---- */

typedef struct watch {
    cli_progress bar;
    tg_generator_progress last;
} watch;

static bool on_progress(void *user, const tg_generator_progress *progress) {
    watch *w = user;
    w->last = *progress;
    w->bar.unit = progress->unit;
    cli_progress_show(&w->bar, progress->done, progress->total, progress->found, progress->seconds);
    return !cli_signal;
}

static void print_text(const tg_generator *generator, double seconds) {
    static const char *const units[][2] = {{"sample", "samples"}, {"trajectory", "trajectories"}};
    const char *const *unit = units[opt.frames > 0];
    int64_t made = 0;
    tg_generator_file file;
    for (int i = 0; tg_generator_get_file(generator, i, &file); i++) {
        cli_say("%s %s: %lld %s, %s", file.found == file.samples ? "kept" : "wrote", file.path,
                (long long)file.samples, unit[file.samples != 1],
                CLI_BYTES(cli_file_bytes(file.path)));
        made += file.samples - file.found;
    }
    if (made > 0) {
        printf("%s\n", CLI_DURATION(seconds));
    }
}

static void print_json(const tg_generator *generator, const char *equation, double seconds) {
    json_t *files = cli_json_array();
    tg_generator_file file;
    for (int i = 0; tg_generator_get_file(generator, i, &file); i++) {
        cli_json_append(files, cli_json_new(KV("file", file.path), KV("samples", file.samples),
                                            KV("made", file.samples - file.found),
                                            KV("bytes", cli_file_bytes(file.path))));
    }
    cli_json_print(
        cli_json_new(KV("equation", equation), KV("seconds", seconds), KV("files", files)));
}

static int generate(tg_context *ctx, const tg_generator_config *config, bool json) {
    tg_generator *generator = NULL;
    watch w = {.bar = {.title = config->equation, .quiet = json || !cli_is_first()}};
    bool complete = false;
    int code = CLI_OK;
    tg_status status = tg_generator_create(ctx, config, &generator);
    if (status == TG_E_CONFIG && cli_is_first()) {
        return cli_usage("generate", "%s", tg_context_error(ctx));
    }
    if (status == TG_OK) {
        cli_catch_signals(true);
        cli_progress_begin(&w.bar);
        status = tg_generator_run(generator, on_progress, &w, &complete);
        cli_progress_end(&w.bar);
        cli_catch_signals(false);
    }
    const bool is_reported =
        !cli_is_first() && tg_comm_get_info(config->comm).has_agreed; /* by rank 0 */
    if (status != TG_OK) {
        code = is_reported ? CLI_FAILED : cli_fail_status(ctx, status);
    } else if (!cli_is_first()) {
        code = complete ? CLI_OK : CLI_FAILED;
    } else if (!complete) {
        code = cli_fail("stopped with %lld of %lld %s made; the same command resumes from there",
                        (long long)w.last.done, (long long)w.last.total, w.last.unit);
    } else if (json) {
        print_json(generator, config->equation, w.last.seconds);
    } else {
        print_text(generator, w.last.seconds);
    }
    tg_generator_destroy(&generator);
    return code;
}

static void read_test_resolutions(tg_generator_config *config) {
    if (opt.test_resolutions.count > TG_MAX_TEST_RESOLUTIONS) {
        cli_misuse("generate", "--test-resolution takes up to %d numbers", TG_MAX_TEST_RESOLUTIONS);
    }
    for (int i = 0; i < opt.test_resolutions.count; i++) {
        const char *item = opt.test_resolutions.item[i];
        char *end = NULL;
        const long long number = strtoll(item, &end, 10);
        if (end == item || *end || number < 1) {
            cli_misuse("generate", "--test-resolution needs positive integers, not '%.64s'", item);
        }
        config->test_resolution[config->test_resolution_count++] = number;
    }
}

/* The backend to compute on, by default the CPU. */
static tg_context *open_context(const cli_common *common, const char *equation) {
    tg_pde_info pde;
    for (int i = 0; tg_pde_describe(i, &pde); i++) {
        if (pde.on_device && common->backend && strcmp(pde.name, equation) == 0) {
            return cli_open_context(common, true);
        }
    }
    return cli_open_host_context("generate", common);
}

static int run(const cli_call *call) {
    tg_generator_config config = tg_generator_config_default();
    config.equation = call->args.item[0];
    config.folder = opt.folder;
    config.n_train = opt.n_train;
    config.n_test = opt.n_test;
    config.resolution = opt.resolution;
    config.seed = (uint64_t)call->common->seed;
    config.overwrite = opt.force;
    config.frames = opt.frames;
    read_test_resolutions(&config);
    CLI_OWNED(tg_context_destroy) tg_context *ctx = open_context(call->common, config.equation);
    CLI_FREED tg_pde_value *values = given_values(&config.value_count);
    config.values = values;
    const tg_status status = tg_comm_create_world(ctx, NULL, &config.comm);
    const int code =
        status == TG_OK ? generate(ctx, &config, call->common->json) : cli_fail_status(ctx, status);
    tg_comm_destroy(&config.comm);
    return code;
}

const cli_command cli_cmd_generate = {
    .name = "generate",
    .arguments = "EQUATION",
    .args = {1, 1},
    .summary = "Make training and test data from a partial differential equation",
    .description =
        "Writes DIR/EQUATION_train_N.h5 and DIR/EQUATION_test_N.h5 with datasets x and y\n"
        "(points and values for potential) and all parameters as attributes. A sample depends\n"
        "only on the seed, its number and the parameters. When interrupted, the samples made so\n"
        "far are kept, and the same command resumes from there and writes the same bytes; with a\n"
        "larger number of samples it extends finished files, except those of kolmogorov. Pairs\n"
        "of kolmogorov are cut from --trajectories N flows: --split later takes the test pairs\n"
        "from later times than the training pairs, --split shuffled draws them from all pairs, so\n"
        "most have a neighbour in time in the training set. Processes of mpirun or srun share the\n"
        "samples of the other equations.\n"
        "Computes on the CPU, in double precision; --backend cuda generates ns and kolmogorov on\n"
        "a GPU, many samples of ns at a time.\n"
        "With --frames a file has one dataset, tensor (trajectories, frames, space..), which\n"
        "training reads as windows (data.history, data.horizon) without further settings.\n"
        "A range is given as LOW,HIGH. The equations and their defaults:\n",
    .examples = "  tgrad generate darcy --n-train 1000 --n-test 100 -r 16 --test-resolution 16,31\n"
                "  tgrad generate burgers --viscosity 0.001 --grid 2048 -o data\n"
                "  tgrad generate ns --frames 21 --time 10 -r 64 --n-train 100 --n-test 20\n"
                "  tgrad generate em --energy 100,1000\n"
                "  tgrad generate darcy --resolution 421 --seed 1 --threads 8\n"
                "  mpirun -n 4 tgrad generate darcy --resolution 421\n"
                "  tgrad generate ns --backend cuda\n"
                "  tgrad generate kolmogorov --split shuffled --test-resolution 256,1024\n",
    .describe = describe_equations,
    .options = options,
    .more_options = parameter_options,
    .takes = CLI_TAKES_DEVICE | CLI_TAKES_SEED | CLI_TAKES_JSON,
    .run = run,
};
