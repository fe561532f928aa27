/* tgrad completion bash|zsh|fish: completion scripts, completion.SHELL with the tables of options
 * and settings in the places of the marks @{..}.
 *
 * They complete commands, the options of the command on the line with the words an option accepts,
 * and, where a command takes settings, --section.key with its words; everything else falls back to
 * file names. */
#include <string.h>

#include "common/output.h"
#include "completion.inc" /* the scripts */

/* A word on the command line: an option of a command, or a setting. */
typedef struct word {
    const char *name; /* without dashes */
    const char *help;
    const char *value; /* the value that follows; NULL: none */
    char choices[256]; /* of the value, with blanks between; "": any */
} word;

typedef void (*visit)(const cli_command *command, const word *w);

static void add_choice(word *w, const char *choice) {
    const size_t used = strlen(w->choices);
    snprintf(w->choices + used, sizeof w->choices - used, "%s%s", used ? " " : "", choice);
}

static void each_option(const cli_command *command, visit print) {
    cli_option options[CLI_MAX_OPTIONS];
    for (const cli_option *row = cli_command_options(command, options); row->name; row++) {
        word w = {.name = row->name, .help = row->help};
        w.value = row->kind == CLI_FLAG ? NULL : row->value;
        for (const char *const *choice = row->choices; choice && *choice; choice++) {
            add_choice(&w, *choice);
        }
        print(command, &w);
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

/* Names of all commands, or of those that take settings. */
static void print_names(const char *separator, bool with_settings) {
    const char *before = "";
    for (const cli_command *const *command = cli_commands; *command; command++) {
        if (!with_settings || (*command)->takes & CLI_TAKES_OVERRIDES) {
            printf("%s%s", before, (*command)->name);
            before = separator;
        }
    }
}

static void print_commands(void) {
    print_names(" ", false);
}

static void print_commands_with_settings(void) {
    print_names(" | ", true); /* alternatives of a pattern */
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
    print_names(" ", true);
    fputc('\'', stdout);
    fish_rest(w);
}

/* ---- the marks ---- */

/* Text once, or for every command: its name between two texts, its summary, its options, and a text
 * after it; then all settings. */
static const struct {
    const char *name;
    void (*print)(void);
    const char *before, *between, *after;
    void (*summary)(const char *text);
    visit option, key;
} marks[] = {
    {.name = "commands", .print = print_commands},
    {.name = "with settings", .print = print_commands_with_settings},
    {.name = "bash values", .option = bash_value, .key = bash_value},
    {"bash options", NULL, "    ", ") options='", "' ;;\n", NULL, bash_name, NULL},
    {.name = "bash settings", .key = bash_name},
    {"zsh commands", NULL, "        '", ":", "'\n", print_zsh_text, NULL, NULL},
    {.name = "zsh settings", .key = zsh_spec},
    {"zsh options", NULL, "    ", ") options=(\n", "    ) ;;\n", NULL, zsh_spec, NULL},
    {"fish commands", NULL, "complete -c tgrad -n __fish_use_subcommand -f -a ", " -d '", "'\n",
     print_fish_text, NULL, NULL},
    {.name = "fish options", .option = fish_option, .key = fish_key},
};

static void print_mark(size_t i) {
    if (marks[i].print) {
        marks[i].print();
        return;
    }
    for (const cli_command *const *command = cli_commands; *command; command++) {
        if (marks[i].before) {
            printf("%s%s%s", marks[i].before, (*command)->name, marks[i].between);
        }
        if (marks[i].summary) {
            marks[i].summary((*command)->summary);
        }
        if (marks[i].option) {
            each_option(*command, marks[i].option);
        }
        fputs(marks[i].after ? marks[i].after : "", stdout);
    }
    if (marks[i].key) {
        each_key(marks[i].key);
    }
}

static void expand(const char *script) {
    for (const char *mark; (mark = strstr(script, "@{")); script = strchr(mark, '}') + 1) {
        fwrite(script, 1, (size_t)(mark - script), stdout);
        for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
            const size_t length = strlen(marks[i].name);
            if (strncmp(mark + 2, marks[i].name, length) == 0 && mark[length + 2] == '}') {
                print_mark(i);
            }
        }
    }
    fputs(script, stdout);
}

static int run(const cli_call *call) {
    const char *name = call->args.item[0];
    cli_suggestion suggestion = cli_suggest(name);
    for (size_t i = 0; i < sizeof completion / sizeof completion[0]; i++) {
        const char *shell = strchr(completion[i].name, '.') + 1;
        if (strcmp(name, shell) == 0) {
            expand(completion[i].text);
            return CLI_OK;
        }
        cli_suggest_offer(&suggestion, shell);
    }
    return cli_usage("completion", "'%.64s' is not bash, zsh or fish%s", name, suggestion.text);
}

const cli_command cli_cmd_completion = {
    .name = "completion",
    .arguments = "bash|zsh|fish",
    .args = {1, 1},
    .summary = "Print a script that lets the shell complete commands, options and settings",
    .examples = "  source <(tgrad completion bash)\n"
                "  tgrad completion zsh > ~/.zsh/completions/_tgrad\n"
                "  tgrad completion fish > ~/.config/fish/completions/tgrad.fish\n",
    .run = run,
};
