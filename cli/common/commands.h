/* Subcommands: their description, the table of all, and dispatch of `tgrad NAME ..`.
 *
 * A command is one file cmd_<name>.c in a folder of cli/, and one row of commands.def. Parsing,
 * --help, the completion script and the exit code come from here. */
#ifndef CLI_COMMON_COMMANDS_H
#define CLI_COMMON_COMMANDS_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "options.h"

/* Exit codes of the program. Commands that save when a signal stops them exit with 128 + signal. */
enum {
    CLI_OK = 0,
    CLI_FAILED = 1,     /* bad input, a failed check, an error of the system */
    CLI_USAGE = 2,      /* wrong options or arguments */
    CLI_TIMED_OUT = 124 /* --max-time: the same command resumes; the code of timeout(1) */
};

/* Common options a command takes besides its own and --help (bits of cli_command.takes). */
enum {
    CLI_TAKES_JSON = 1,      /* --json */
    CLI_TAKES_DEVICE = 2,    /* --backend, --threads, --math */
    CLI_TAKES_SEED = 4,      /* --seed */
    CLI_TAKES_OVERRIDES = 8, /* --section.key value */
    CLI_TAKES_MODEL = 16,    /* --config, --normalize (input_files.h) */
};

/* Values of the common options. */
typedef struct cli_common {
    bool help;
    bool json;           /* one JSON object on stdout and nothing else there */
    const char *backend; /* NULL: the best one */
    int64_t threads;     /* 0: all cores */
    const char *math;    /* "tf32" or "fp32" */
    int64_t seed;
} cli_common;

/* One call of a command. */
typedef struct cli_call {
    const cli_common *common;
    cli_args args; /* as many positional arguments as the command accepts */
} cli_call;

typedef struct cli_command {
    const char *name;
    const char *arguments;     /* positional ones, for the synopsis: "IN OUT" */
    int args[2];               /* how many of them, at least and at most */
    const char *summary;       /* one line */
    const char *description;   /* paragraphs; NULL: the summary says all */
    const char *examples;      /* lines, each after two spaces */
    const cli_option *options; /* its own; NULL: none */
    /* The same two, generated from tables of the library; NULL: none. */
    void (*describe)(FILE *stream);
    const cli_option *(*more_options)(void);
    unsigned takes; /* CLI_TAKES_.. */
    int (*run)(const cli_call *call);
} cli_command;

/* One object in each cmd_<name>.c. */
#define CLI_COMMAND(name) extern const cli_command cli_cmd_##name;
#include "commands.def"

/* The commands, in order, ended by NULL. */
extern const cli_command *const cli_commands[];

enum { CLI_MAX_OPTIONS = 128 };

/* All options of a command, its own first; returns options. */
const cli_option *cli_command_options(const cli_command *command,
                                      cli_option options[CLI_MAX_OPTIONS]);

/* The command of that name; NULL after a message on stderr, with the nearest name, if none is. */
const cli_command *cli_command_find(const char *name);

enum { CLI_OPTION_HEAD = 64 };
/* "-t, --threads N"; returns text. */
const char *cli_option_head(const cli_option *row, char text[CLI_OPTION_HEAD]);

void cli_print_overview(FILE *stream);
void cli_print_help(const cli_command *command, FILE *stream);

/* Runs argv[0..argc), the words after the program's name; returns the exit code. */
int cli_dispatch(int argc, char **argv);

#endif
