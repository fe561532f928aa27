/* tgrad plan: will it fit? Parameters and bytes of a training step, without running one. */
#include "problem.h"
#include "text.h"

static const char *preset;
static const char *method;
static int64_t batch;

static const cli_option options[] = {
    {.name = "preset",
     .kind = CLI_STRING,
     .text = &preset,
     .value = "NAME",
     .help = "ns128, ns1024, darcy421, burgers or em instead of a file",
     .choices = cli_presets},
    {.name = "opt",
     .kind = CLI_STRING,
     .text = &method,
     .value = "NAME",
     .help = "adam, lowrank, tensorgrad, ..",
     .fallback = "the file's, or adam"},
    {.name = "batch",
     .kind = CLI_INT,
     .integer = &batch,
     .value = "N",
     .help = "samples of a step",
     .fallback = "as set",
     .min = 1,
     .max = 1 << 30},
    {0},
};

static void print_text(const cli_problem *problem, const cli_memory_plan *plan) {
    char text[CLI_UNIT_TEXT], modes[64], points[64];
    const tg_shape grid = tg_shape_of(problem->fno.n_dim, problem->grid);
    printf("%s: %lld parameters; modes %s, batch %lld on %s, optimizer %s\n\n", problem->name,
           (long long)plan->parameters, tg_fno_config_get(&problem->fno, 0, modes, sizeof modes),
           (long long)problem->batch, tg_shape_text(&grid, points, sizeof points), problem->method);
    static const cli_column columns[] = {{"memory of a step", false}, {"bytes", true}, {"", true}};
    cli_table table = {.column = columns, .columns = 3};
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        if (plan->bytes[c] > 0) {
            cli_table_cell(&table, "%s", tg_mem_category_name((tg_mem_category)c));
            cli_table_cell(&table, "%zu", plan->bytes[c]);
            cli_table_cell(&table, "%s", cli_bytes_text(plan->bytes[c], text));
        }
    }
    cli_table_cell(&table, "peak");
    cli_table_cell(&table, "%zu", plan->peak);
    cli_table_cell(&table, "%s", cli_bytes_text(plan->peak, text));
    cli_table_print(&table, "", stdout);
    cli_table_free(&table);
    printf("\ninference alone: %s\n", cli_bytes_text(plan->inference, text));
}

static void print_json(const cli_problem *problem, const cli_memory_plan *plan) {
    json_t *object = cli_json_object(), *memory = cli_json_object(), *grid = cli_json_array();
    cli_json_set(memory, "peak", cli_json_integer((int64_t)plan->peak));
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        cli_json_set(memory, tg_mem_category_name((tg_mem_category)c),
                     cli_json_integer((int64_t)plan->bytes[c]));
    }
    for (int d = 0; d < problem->fno.n_dim; d++) {
        cli_json_append(grid, cli_json_integer(problem->grid[d]));
    }
    cli_json_set(object, "name", cli_json_text(problem->name));
    cli_json_set(object, "optimizer", cli_json_text(problem->method));
    cli_json_set(object, "batch", cli_json_integer(problem->batch));
    cli_json_set(object, "grid", grid);
    cli_json_set(object, "parameters", cli_json_integer(plan->parameters));
    cli_json_set(object, "memory", memory);
    cli_json_set(object, "inference", cli_json_integer((int64_t)plan->inference));
    cli_json_print(object);
}

static int run(const cli_call *call) {
    tg_context *ctx = NULL;
    cli_problem problem;
    cli_memory_plan plan;
    const cli_problem_source source = {.command = "plan",
                                       .preset = preset,
                                       .config = call->args.count > 0 ? call->args.item[0] : NULL,
                                       .method = method,
                                       .batch = batch,
                                       .args = &call->args};
    int code = cli_open_context(call->common, true, &ctx);
    if (code == CLI_OK) {
        code = cli_problem_read(ctx, &source, &problem);
    }
    if (code == CLI_OK) {
        const tg_status status = cli_problem_plan(ctx, &problem, &plan);
        code = status == TG_OK ? CLI_OK : cli_fail_status(ctx, status);
    }
    if (code == CLI_OK && call->common->json) {
        print_json(&problem, &plan);
    } else if (code == CLI_OK) {
        print_text(&problem, &plan);
    }
    tg_context_destroy(&ctx);
    return code;
}

const cli_command cli_cmd_plan = {
    .name = "plan",
    .arguments = "[CONFIG]",
    .min_args = 0,
    .max_args = 1,
    .summary = "Tell the memory of a training step before there is one",
    .description =
        "Parameters, bytes by category and the peak, from the shapes alone; the memory ledger of\n"
        "a run counts the same. Of a configuration file the sections fno and opt, data.batch_size\n"
        "and data.train_resolution matter; --section.key value overrides any of them.\n",
    .examples = "  tgrad plan --preset ns128 --opt tensorgrad\n"
                "  tgrad plan darcy.yaml --batch 4 --fno.hidden_channels 64\n"
                "  tgrad plan --preset ns1024 --opt adam --json\n",
    .options = options,
    .takes = CLI_TAKES_JSON | CLI_TAKES_DEVICE | CLI_TAKES_OVERRIDES,
    .run = run,
};
