/* tgrad completion bash: a completion script made from the option tables.
 *
 * The script completes commands, the options of the command on the line, and the words an option
 * accepts; everything else falls back to file names. */
#include <string.h>

#include "commands.h"
#include "output.h"

/* Calls `print` for each option of a command. */
static void each_option(const cli_command *command,
                        void (*print)(const cli_command *command, const cli_option *row)) {
    const cli_option *tables[CLI_MAX_TABLES];
    cli_command_tables(command, tables);
    for (const cli_option **table = tables; *table; table++) {
        for (const cli_option *row = *table; row->name; row++) {
            print(command, row);
        }
    }
}

static void print_name(const cli_command *command, const cli_option *row) {
    (void)command;
    printf(" --%s", row->name);
}

/* A case of "<command> <option before the cursor>": its choices, or the file names and free values
 * that the shell's default offers. */
static void print_value(const cli_command *command, const cli_option *row) {
    if (row->kind == CLI_FLAG) {
        return;
    }
    printf("    '%s --%s')\n", command->name, row->name);
    if (row->choices) {
        fputs("        COMPREPLY=($(compgen -W '", stdout);
        for (const char *const *choice = row->choices; *choice; choice++) {
            printf("%s%s", choice == row->choices ? "" : " ", *choice);
        }
        fputs("' -- \"$current\"))\n", stdout);
    }
    fputs("        return ;;\n", stdout);
}

static void print_command_names(void) {
    for (const cli_command *const *command = cli_commands; *command; command++) {
        printf("%s%s", command == cli_commands ? "" : " ", (*command)->name);
    }
}

static int run(const cli_call *call) {
    if (strcmp(call->args.item[0], "bash") != 0) {
        return cli_usage("completion", "'%.64s' is not a shell it knows; bash is the only one",
                         call->args.item[0]);
    }
    fputs("# bash completion for tgrad. Load it with: source <(tgrad completion bash)\n"
          "_tgrad() {\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local command=${COMP_WORDS[1]} options commands='",
          stdout);
    print_command_names();
    fputs("'\n"
          "    COMPREPLY=()\n"
          "    # The shell hands over --name=value as three words.\n"
          "    if [ \"$current\" = '=' ]; then\n"
          "        current=\n"
          "    elif [ \"$before\" = '=' ]; then\n"
          "        before=${COMP_WORDS[COMP_CWORD-2]}\n"
          "    fi\n"
          "    if [ \"$COMP_CWORD\" -eq 1 ]; then\n"
          "        COMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$current\"))\n"
          "        return\n"
          "    fi\n"
          "    case \"$command $before\" in\n",
          stdout);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        each_option(*command, print_value);
    }
    fputs("    esac\n"
          "    case $command in\n",
          stdout);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        printf("    %s) options='", (*command)->name);
        each_option(*command, print_name);
        fputs("' ;;\n", stdout);
    }
    fputs("    esac\n"
          "    case $current in\n"
          "    -*) COMPREPLY=($(compgen -W \"$options\" -- \"$current\")) ;;\n"
          "    *) [ \"$command\" != help ] || COMPREPLY=($(compgen -W \"$commands\" -- "
          "\"$current\")) ;;\n"
          "    esac\n"
          "}\n"
          "complete -o default -F _tgrad tgrad\n",
          stdout);
    return CLI_OK;
}

const cli_command cli_cmd_completion = {
    .name = "completion",
    .arguments = "bash",
    .min_args = 1,
    .max_args = 1,
    .summary = "Print a script that lets the shell complete tgrad commands and options",
    .examples = "  source <(tgrad completion bash)\n"
                "  tgrad completion bash > ~/.local/share/bash-completion/completions/tgrad\n",
    .run = run,
};
