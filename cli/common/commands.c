/* The table of commands, the common options, help pages and dispatch. */
#include "commands.h"

#include <string.h>

#include "input_files.h"

const cli_command *const cli_commands[] = {
#define CLI_COMMAND(name) &cli_cmd_##name,
#include "commands.def"
    NULL,
};

/* One process runs one command, so the targets of the common options are fixed. */
static cli_common common = {.math = "tf32"};

static const char *const backends[] = {"ref", "cpu", "cuda", NULL};
static const char *const maths[] = {"tf32", "fp32", NULL};

static const cli_option device_options[] = {
    CLI_OPTION_TEXT("backend", 0, &common.backend, backends, "ref|cpu|cuda", "where to compute",
                    "the best one here"),
    CLI_OPTION_INT("threads", 't', &common.threads, 0, 4096, "N", "CPU threads; 0 means all cores",
                   "0"),
    CLI_OPTION_TEXT("math", 0, &common.math, maths, "tf32|fp32",
                    "precision of f32 products on a GPU", "tf32"),
    {0},
};

static const cli_option seed_options[] = {
    CLI_OPTION_INT("seed", 0, &common.seed, 0, INT64_MAX, "N", "start of all random numbers", "0"),
    {0},
};

static const cli_option json_options[] = {
    CLI_OPTION_FLAG("json", 0, &common.json, "print one JSON object and nothing else"),
    {0},
};

static const cli_option help_options[] = {
    CLI_OPTION_FLAG("help", 'h', &common.help, "show this page"),
    {0},
};

const cli_option *cli_command_options(const cli_command *command,
                                      cli_option options[CLI_MAX_OPTIONS]) {
    const cli_option *const tables[] = {
        command->options,
        command->more_options ? command->more_options() : NULL,
        command->takes & CLI_TAKES_MODEL ? cli_model_options : NULL,
        command->takes & CLI_TAKES_DEVICE ? device_options : NULL,
        command->takes & CLI_TAKES_SEED ? seed_options : NULL,
        command->takes & CLI_TAKES_JSON ? json_options : NULL,
        help_options,
    };
    int count = 0;
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) {
        for (const cli_option *row = tables[i]; row && row->name; row++) {
            if (count == CLI_MAX_OPTIONS - 1) {
                cli_die("%s: more than %d options", command->name, count);
            }
            options[count++] = *row;
        }
    }
    options[count] = (cli_option){0};
    return options;
}

const cli_command *cli_command_find(const char *name) {
    cli_suggestion suggestion = cli_suggest(name);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        if (strcmp((*command)->name, name) == 0) {
            return *command;
        }
        cli_suggest_offer(&suggestion, (*command)->name);
    }
    cli_usage(NULL, "unknown command '%.64s'%s", name, suggestion.text);
    return NULL;
}

void cli_print_overview(FILE *stream) {
    fputs("tgrad " TG_VERSION ": train Fourier neural operators with compressed gradients\n\n"
          "Usage: tgrad COMMAND [ARGUMENTS] [OPTIONS]\n"
          "       tgrad COMMAND --help\n"
          "       tgrad --version\n\n"
          "Commands:\n",
          stream);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        fprintf(stream, "  %-11s %s\n", (*command)->name, (*command)->summary);
    }
    fputs("\nSettings of a run: tgrad help keys [SECTION]\n", stream);
}

const char *cli_option_head(const cli_option *row, char text[CLI_OPTION_HEAD]) {
    char letter[] = {'-', row->letter, ',', ' ', '\0'};
    snprintf(text, CLI_OPTION_HEAD, "%s--%s%s%s", row->letter ? letter : "", row->name,
             row->value ? " " : "", row->value ? row->value : "");
    return text;
}

static void print_option(const cli_option *row, FILE *stream) {
    char head[CLI_OPTION_HEAD];
    const int indent = row->letter ? 2 : 6;
    fprintf(stream, "%*s%-*s %s", indent, "", 32 - indent, cli_option_head(row, head), row->help);
    if (row->fallback) {
        fprintf(stream, " (default: %s)", row->fallback);
    }
    fputc('\n', stream);
}

void cli_print_help(const cli_command *command, FILE *stream) {
    fprintf(stream, "Usage: tgrad %s%s%s [OPTIONS]%s\n\n%s.\n", command->name,
            *command->arguments ? " " : "", command->arguments,
            command->takes & CLI_TAKES_OVERRIDES ? " [--SECTION.KEY VALUE ..]" : "",
            command->summary);
    if (command->description) {
        fprintf(stream, "\n%s", command->description);
    }
    if (command->describe) {
        fputc('\n', stream);
        command->describe(stream);
    }
    fputs("\nOptions:\n", stream);
    cli_option options[CLI_MAX_OPTIONS];
    for (const cli_option *row = cli_command_options(command, options); row->name; row++) {
        print_option(row, stream);
    }
    fprintf(stream, "\nExamples:\n%s", command->examples);
}

/* Words in the place of a command: --help, --version, or wrong. */
static int run_option(const char *word) {
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) {
        cli_print_overview(stdout);
        return CLI_OK;
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "-V") == 0) {
        puts("tgrad " TG_VERSION);
        return CLI_OK;
    }
    cli_suggestion suggestion = cli_suggest(word);
    cli_suggest_offer(&suggestion, "--help");
    cli_suggest_offer(&suggestion, "--version");
    return suggestion.best
               ? cli_usage(NULL, "unknown option '%.64s'; did you mean %s?", word, suggestion.best)
               : cli_usage(NULL, "unknown option '%.64s'; expected a command", word);
}

static int run_command(const cli_command *command, int argc, char **argv) {
    cli_option options[CLI_MAX_OPTIONS];
    cli_call call = {.common = &common};
    char error[512];
    int code = CLI_USAGE;
    if (!cli_options_parse(cli_command_options(command, options),
                           command->takes & CLI_TAKES_OVERRIDES, argc, argv, &call.args, error,
                           sizeof error)) {
        cli_usage(command->name, "%s", error);
    } else if (common.help) {
        cli_print_help(command, stdout);
        code = CLI_OK;
    } else if (call.args.count < command->args[0]) {
        cli_usage(command->name, call.args.count == 0 ? "needs %s" : "needs %s, got only %d",
                  command->arguments, call.args.count);
    } else if (call.args.count > command->args[1]) {
        const char *extra = call.args.item[command->args[1]];
        cli_usage(command->name, "unexpected argument '%.64s'%s", extra,
                  strchr(extra, '=') ? "; a setting is written --section.key VALUE" : "");
    } else {
        code = command->run(&call);
    }
    for (const cli_option *row = options; row->name; row++) {
        if (row->kind == CLI_LIST) {
            cli_list_free(row->list);
        }
    }
    cli_args_free(&call.args);
    return code;
}

int cli_dispatch(int argc, char **argv) {
    if (argc == 0) {
        cli_print_overview(stderr);
        return CLI_USAGE;
    }
    if (argv[0][0] == '-') {
        return run_option(argv[0]);
    }
    const cli_command *command = cli_command_find(argv[0]);
    return command ? run_command(command, argc - 1, argv + 1) : CLI_USAGE;
}
