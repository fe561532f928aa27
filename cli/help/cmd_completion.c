/* tgrad completion bash|zsh|fish: completion scripts made from the tables of options and settings.
 *
 * They complete commands, the options of the command on the line with the words an option accepts,
 * and, where a command takes settings, --section.key with its words; everything else falls back to
 * file names. */
#include <string.h>

#include "common/commands.h"
#include "common/options.h"
#include "common/output.h"

/* A word on the command line: an option of a command, or a setting. */
typedef struct word {
    const char *name; /* without dashes */
    const char *help;
    const char *value; /* what follows; NULL: nothing does */
    char choices[256]; /* of the value, with blanks between; "": any */
} word;

typedef void (*visit)(const cli_command *command, const word *w);

static void add_choice(word *w, const char *choice) {
    const size_t used = strlen(w->choices);
    snprintf(w->choices + used, sizeof w->choices - used, "%s%s", used ? " " : "", choice);
}

static void each_option(const cli_command *command, visit print) {
    const cli_option *tables[CLI_MAX_TABLES];
    cli_command_tables(command, tables);
    for (const cli_option **table = tables; *table; table++) {
        for (const cli_option *row = *table; row->name; row++) {
            word w = {.name = row->name, .help = row->help};
            w.value = row->kind == CLI_FLAG ? NULL : row->value;
            for (const char *const *choice = row->choices; choice && *choice; choice++) {
                add_choice(&w, *choice);
            }
            print(command, &w);
        }
    }
}

/* The settings, for a command that takes them. */
static void each_key(visit print) {
    tg_key_info info;
    for (int i = 0; tg_key_describe(i, &info); i++) {
        char name[128];
        snprintf(name, sizeof name, "%s.%s", info.section, info.name);
        word w = {.name = name, .help = info.help, .value = "VALUE"};
        for (int c = 0; tg_key_choice(i, c); c++) {
            add_choice(&w, tg_key_choice(i, c));
        }
        if (strcmp(info.type, "boolean") == 0) {
            add_choice(&w, "true");
            add_choice(&w, "false");
        }
        print(NULL, &w);
    }
}

static void print_command_names(void) {
    for (const cli_command *const *command = cli_commands; *command; command++) {
        printf("%s%s", command == cli_commands ? "" : " ", (*command)->name);
    }
}

/* Names of the commands that take settings, with `between` between them. */
static void print_commands_with_keys(const char *between) {
    const char *before = "";
    for (const cli_command *const *command = cli_commands; *command; command++) {
        if ((*command)->takes & CLI_TAKES_OVERRIDES) {
            printf("%s%s", before, (*command)->name);
            before = between;
        }
    }
}

/* ---- bash ---- */

static void bash_name(const cli_command *command, const word *w) {
    (void)command;
    printf(" --%s", w->name);
}

/* A case of "<command> <option before the cursor>": its choices, or the file names and free values
 * that the shell's default offers. A setting means the same to every command. */
static void bash_value(const cli_command *command, const word *w) {
    if (!w->value) {
        return;
    }
    printf(command ? "    '%s --%s')\n" : "    *%s' --%s')\n", command ? command->name : "",
           w->name);
    if (*w->choices) {
        printf("        COMPREPLY=($(compgen -W '%s' -- \"$current\"))\n", w->choices);
    }
    fputs("        return ;;\n", stdout);
}

static void print_bash(void) {
    fputs("# bash completion for tgrad. Load it with: source <(tgrad completion bash)\n"
          "_tgrad() {\n"
          "    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]}\n"
          "    local command=${COMP_WORDS[1]} options keys sections commands='",
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
        each_option(*command, bash_value);
    }
    each_key(bash_value);
    fputs("    'help keys')\n"
          "        COMPREPLY=($(compgen -W 'fno opt data distributed' -- \"$current\"))\n"
          "        return ;;\n"
          "    esac\n"
          "    case $command in\n",
          stdout);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        printf("    %s) options='", (*command)->name);
        each_option(*command, bash_name);
        fputs("' ;;\n", stdout);
    }
    fputs("    esac\n    case $command in\n    ", stdout);
    print_commands_with_keys(" | ");
    fputs(")\n        sections='--fno. --opt. --data. --distributed.'\n        keys='", stdout);
    each_key(bash_name);
    fputs("' ;;\n"
          "    esac\n"
          "    case $current in\n"
          "    --*.*) COMPREPLY=($(compgen -W \"$keys\" -- \"$current\")) ;;\n"
          "    -*)\n"
          "        COMPREPLY=($(compgen -W \"$options $sections\" -- \"$current\"))\n"
          "        case ${COMPREPLY[*]} in *.) compopt -o nospace 2>/dev/null ;; esac ;;\n"
          "    *) [ \"$command\" != help ] || COMPREPLY=($(compgen -W \"$commands keys man\" -- "
          "\"$current\")) ;;\n"
          "    esac\n"
          "}\n"
          "complete -o default -F _tgrad tgrad\n",
          stdout);
}

/* ---- zsh ---- */

/* Text inside of single quotes, where _arguments reads [ ] and : itself. */
static void print_zsh_text(const char *text) {
    for (; *text; text++) {
        if (*text == '\'') {
            fputs("'\\''", stdout);
        } else {
            printf(strchr("[]:\\", *text) ? "\\%c" : "%c", *text);
        }
    }
}

static void zsh_spec(const cli_command *command, const word *w) {
    (void)command;
    printf("        '%s--%s%s[", w->value ? "*" : "", w->name, w->value ? "=" : "");
    print_zsh_text(w->help);
    fputc(']', stdout);
    if (w->value) {
        fputc(':', stdout);
        print_zsh_text(w->value);
        printf(*w->choices ? ":(%s)" : ":_files%s", w->choices);
    }
    fputs("'\n", stdout);
}

static void print_zsh(void) {
    fputs("#compdef tgrad\n"
          "# zsh completion for tgrad. Put it as _tgrad into a folder of $fpath, or load it with:\n"
          "#     source <(tgrad completion zsh)\n"
          "_tgrad() {\n"
          "    local -a commands keys options\n"
          "    commands=(\n",
          stdout);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        printf("        '%s:", (*command)->name);
        print_zsh_text((*command)->summary);
        fputs("'\n", stdout);
    }
    fputs("    )\n"
          "    if (( CURRENT == 2 )); then\n"
          "        _describe command commands\n"
          "        return\n"
          "    fi\n"
          "    keys=(\n",
          stdout);
    each_key(zsh_spec);
    fputs("    )\n    case ${words[2]} in\n", stdout);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        printf("    %s) options=(\n", (*command)->name);
        each_option(*command, zsh_spec);
        fputs("    ) ;;\n", stdout);
    }
    fputs("    esac\n    case ${words[2]} in\n    ", stdout);
    print_commands_with_keys(" | ");
    fputs(") options+=(\"${keys[@]}\") ;;\n"
          "    help) options+=('1:command:(",
          stdout);
    print_command_names();
    fputs(" keys man)') ;;\n"
          "    completion) options+=('1:shell:(bash zsh fish)') ;;\n"
          "    esac\n"
          "    (( ${options[(I)1:*]} )) || options+=('*:file:_files')\n"
          "    shift words\n"
          "    (( CURRENT-- ))\n"
          "    _arguments -S \"${options[@]}\"\n"
          "}\n"
          "if [ \"$funcstack[1]\" = _tgrad ]; then\n"
          "    _tgrad \"$@\"\n"
          "else\n"
          "    compdef _tgrad tgrad\n"
          "fi\n",
          stdout);
}

/* ---- fish ---- */

/* Text inside of single quotes. */
static void print_fish_text(const char *text) {
    for (; *text; text++) {
        printf(strchr("'\\", *text) ? "\\%c" : "%c", *text);
    }
}

static void fish_rest(const word *w) {
    printf(" -l %s", w->name);
    if (w->value) {
        fputs(*w->choices ? " -x" : " -r", stdout);
    }
    if (*w->choices) {
        printf(" -a '%s'", w->choices);
    }
    fputs(" -d '", stdout);
    print_fish_text(w->help);
    fputs("'\n", stdout);
}

static void fish_option(const cli_command *command, const word *w) {
    printf("complete -c tgrad -n '__fish_seen_subcommand_from %s'", command->name);
    fish_rest(w);
}

static void fish_key(const cli_command *command, const word *w) {
    (void)command;
    fputs("complete -c tgrad -n '__fish_seen_subcommand_from ", stdout);
    print_commands_with_keys(" ");
    fputc('\'', stdout);
    fish_rest(w);
}

static void print_fish(void) {
    fputs("# fish completion for tgrad. Load it with: tgrad completion fish | source\n"
          "complete -c tgrad -n __fish_use_subcommand -f -l help -d 'Show the commands'\n"
          "complete -c tgrad -n __fish_use_subcommand -f -l version -d 'Show the version'\n",
          stdout);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        printf("complete -c tgrad -n __fish_use_subcommand -f -a %s -d '", (*command)->name);
        print_fish_text((*command)->summary);
        fputs("'\n", stdout);
    }
    for (const cli_command *const *command = cli_commands; *command; command++) {
        each_option(*command, fish_option);
    }
    each_key(fish_key);
    fputs("complete -c tgrad -n '__fish_seen_subcommand_from help' -f -a '", stdout);
    print_command_names();
    fputs(" keys man'\n"
          "complete -c tgrad -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n",
          stdout);
}

/* ---- the command ---- */

static const struct {
    const char *name;
    void (*print)(void);
} shells[] = {{"bash", print_bash}, {"zsh", print_zsh}, {"fish", print_fish}};

static int run(const cli_call *call) {
    const char *name = call->args.item[0];
    cli_suggestion suggestion = cli_suggest(name);
    for (size_t i = 0; i < sizeof shells / sizeof shells[0]; i++) {
        if (strcmp(name, shells[i].name) == 0) {
            shells[i].print();
            return CLI_OK;
        }
        cli_suggest_offer(&suggestion, shells[i].name);
    }
    return cli_usage("completion", "'%.64s' is not bash, zsh or fish%s", name, suggestion.text);
}

const cli_command cli_cmd_completion = {
    .name = "completion",
    .arguments = "bash|zsh|fish",
    .min_args = 1,
    .max_args = 1,
    .summary = "Print a script that lets the shell complete commands, options and settings",
    .examples = "  source <(tgrad completion bash)\n"
                "  tgrad completion zsh > ~/.zsh/completions/_tgrad\n"
                "  tgrad completion fish > ~/.config/fish/completions/tgrad.fish\n",
    .run = run,
};
