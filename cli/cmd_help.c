/* tgrad help [COMMAND]: the overview or the page of one command. */
#include "commands.h"

static int run(const cli_call *call) {
    if (call->args.count == 0) {
        cli_print_overview(stdout);
        return CLI_OK;
    }
    const cli_command *command = cli_command_find(call->args.item[0]);
    if (!command) {
        return CLI_USAGE;
    }
    cli_print_help(command, stdout);
    return CLI_OK;
}

const cli_command cli_cmd_help = {
    .name = "help",
    .arguments = "[COMMAND]",
    .max_args = 1,
    .summary = "Show the list of commands, or the page of one",
    .examples = "  tgrad help\n"
                "  tgrad help inspect\n",
    .run = run,
};
