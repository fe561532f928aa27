/* tgrad help [COMMAND | keys [SECTION] | man]: the overview, the page of one command, the settings,
 * or the man page. */
#include <string.h>

#include "help_keys.h"
#include "man_page.h"
#include "output.h"

static int run(const cli_call *call) {
    const cli_args *args = &call->args;
    if (args->count > 0 && strcmp(args->item[0], "keys") == 0) {
        const char *section = args->count > 1 ? args->item[1] : NULL;
        return call->common->json ? cli_keys_print_json(section) : cli_keys_print(section);
    }
    if (call->common->json) {
        return cli_usage("help", "--json is for help keys");
    }
    if (args->count > 1) {
        return cli_usage("help", "argument '%.64s' is one too many", args->item[1]);
    }
    if (args->count > 0 && strcmp(args->item[0], "man") == 0) {
        cli_print_man_page();
        return CLI_OK;
    }
    if (args->count == 0) {
        cli_print_overview(stdout);
        return CLI_OK;
    }
    const cli_command *command = cli_command_find(args->item[0]);
    if (!command) {
        return CLI_USAGE;
    }
    cli_print_help(command, stdout);
    return CLI_OK;
}

const cli_command cli_cmd_help = {
    .name = "help",
    .arguments = "[COMMAND | keys [SECTION] | man]",
    .max_args = 2,
    .summary = "Show the list of commands, the page of one, or the settings of a run",
    .description =
        "keys lists every setting with its default, what it does and what it accepts,\n"
        "or those of one section: fno, opt, data or distributed. man prints all pages as\n"
        "one, tgrad(1), for man or groff.\n",
    .examples = "  tgrad help\n"
                "  tgrad help inspect\n"
                "  tgrad help keys opt\n"
                "  tgrad help man | man -l -\n"
                "  tgrad help keys --json | jq '.keys[] | select(.type == \"choice\")'\n",
    .takes = CLI_TAKES_JSON,
    .run = run,
};
