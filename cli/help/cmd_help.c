/* tgrad help [COMMAND | KEY | keys [SECTION] | man]: the overview, the page of one command, one
 * setting or all, or the man page. */
#include <stdlib.h>
#include <string.h>

#include "common/run_settings.h"

/* ---- settings ---- */

static const struct {
    const char *name, *title;
} sections[] = {
    {"fno", "the network"},
    {"opt", "optimizer, schedule and loop"},
    {"data", "files and batches"},
    {"distributed", "random numbers, and ranks that train together"},
};

enum { SECTIONS = sizeof sections / sizeof sections[0] };

/* Whether a setting belongs to `filter`: a section "opt", a setting "opt.name", or NULL for all. */
static bool is_in(const tg_key_info *info, const char *filter) {
    const size_t length = strlen(info->section);
    return !filter || (strncmp(filter, info->section, length) == 0 &&
                       (!filter[length] ||
                        (filter[length] == '.' && strcmp(filter + length + 1, info->name) == 0)));
}

/* Ends the program if no setting belongs to `filter`. */
static void check_filter(const char *filter) {
    cli_suggestion suggestion = cli_suggest(filter);
    const bool is_key = strchr(filter, '.');
    tg_key_info info;
    for (int i = 0; tg_key_describe(i, &info); i++) {
        char name[128];
        if (is_in(&info, filter)) {
            return;
        }
        snprintf(name, sizeof name, is_key ? "%s.%s" : "%s", info.section, info.name);
        cli_suggest_offer(&suggestion, name);
    }
    if (is_key) {
        cli_misuse("help", "there is no setting '%.64s'%s", filter, suggestion.text);
    }
    cli_misuse("help",
               "'%.64s' is not a section of the settings; they are fno, opt, data and "
               "distributed%s",
               filter, suggestion.text);
}

static void print_keys(const char *filter) {
    tg_key_info info;
    char text[CLI_DEFAULT_TEXT];
    for (int s = 0; s < SECTIONS; s++) {
        const size_t length = strlen(sections[s].name);
        if (filter && strncmp(filter, sections[s].name, length) != 0) {
            continue;
        }
        printf("%s%s: %s\n", s > 0 && !filter ? "\n" : "", sections[s].name, sections[s].title);
        for (int i = 0; tg_key_describe(i, &info); i++) {
            if (strcmp(info.section, sections[s].name) == 0 && is_in(&info, filter)) {
                printf("  %s.%s %s\n      %s\n      %s\n", info.section, info.name,
                       cli_key_default(&info, text), info.help, info.values);
            }
        }
    }
}

static json_t *describe(int index, const tg_key_info *info) {
    json_t *key = cli_json_object();
    char name[128];
    snprintf(name, sizeof name, "%s.%s", info->section, info->name);
    cli_json_put(key, KV("key", name), KV("type", info->type),
                 KV("default", *info->fallback ? cli_json_text(info->fallback) : json_null()),
                 KV("help", info->help));
    if (info->has_range) {
        cli_json_put(key, KV("low", info->low), KV("high", info->high));
    }
    if (tg_key_choice(index, 0)) {
        json_t *choices = cli_json_array();
        for (int i = 0; tg_key_choice(index, i); i++) {
            cli_json_append(choices, cli_json_text(tg_key_choice(index, i)));
        }
        cli_json_set(key, "choices", choices);
    }
    return key;
}

static void print_keys_json(const char *filter) {
    json_t *keys = cli_json_array();
    tg_key_info info;
    for (int i = 0; tg_key_describe(i, &info); i++) {
        if (is_in(&info, filter)) {
            cli_json_append(keys, describe(i, &info));
        }
    }
    cli_json_print(cli_json_new(KV("keys", keys)));
}

/* ---- the man page, tgrad(1), in the language of man(7) ----
 *
 * Lines of a description flow; those that begin with a space, and examples, are kept. */

/* Text with the characters of troff escaped; a hyphen stays one that can be pasted. */
static void print_escaped(const char *text, size_t length) {
    static const struct {
        char character;
        const char *escape;
    } escapes[] = {{'\\', "\\e"},  {'-', "\\-"},   {'\'', "\\(aq"},
                   {'`', "\\(ga"}, {'~', "\\(ti"}, {'^', "\\(ha"}};
    if (length > 0 && *text == '.') {
        fputs("\\&", stdout); /* no request */
    }
    for (size_t i = 0; i < length; i++) {
        size_t e = 0;
        while (e < sizeof escapes / sizeof escapes[0] && escapes[e].character != text[i]) {
            e++;
        }
        if (e < sizeof escapes / sizeof escapes[0]) {
            fputs(escapes[e].escape, stdout);
        } else {
            putchar(text[i]);
        }
    }
}

static void print_word(const char *text) {
    print_escaped(text, strlen(text));
}

static void print_text(const char *text) {
    bool is_literal = false;
    while (*text) {
        const size_t length = strcspn(text, "\n");
        const bool is_indented = *text == ' ';
        if (is_indented != is_literal) {
            puts(is_indented ? ".PP\n.nf" : ".fi");
        }
        is_literal = is_indented;
        if (length == 0) {
            puts(".PP");
        } else {
            print_escaped(text, length);
            putchar('\n');
        }
        text += length + (text[length] == '\n');
    }
    if (is_literal) {
        puts(".fi");
    }
}

static void print_option(const cli_option *row) {
    char head[CLI_OPTION_HEAD];
    fputs(".TP\n.B ", stdout);
    print_word(cli_option_head(row, head));
    putchar('\n');
    print_word(row->help);
    if (row->fallback) {
        fputs(" (default: ", stdout);
        print_word(row->fallback);
        putchar(')');
    }
    putchar('\n');
}

/* The text that the command prints itself. */
static void print_description(const cli_command *command) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = cli_need(open_memstream(&text, &size));
    command->describe(stream);
    (void)fclose(stream);
    print_text(cli_need(text));
    free(text);
}

static void print_command(const cli_command *command) {
    printf(".SS %s ", command->name);
    print_word(command->arguments);
    putchar('\n');
    print_word(command->summary);
    puts(".");
    if (command->description) {
        puts(".PP");
        print_text(command->description);
    }
    if (command->describe) {
        puts(".PP");
        print_description(command);
    }
    cli_option options[CLI_MAX_OPTIONS];
    for (const cli_option *row = cli_command_options(command, options); row->name; row++) {
        print_option(row);
    }
    if (command->takes & CLI_TAKES_OVERRIDES) {
        print_option(&(cli_option){.name = "SECTION.KEY",
                                   .value = "VALUE",
                                   .help = "a setting of the run, see help keys"});
    }
    puts(".PP\nExamples:");
    print_text(command->examples);
}

static void print_man_page(void) {
    fputs(
        ".TH TGRAD 1 \"\" \"tgrad " TG_VERSION "\"\n"
        ".SH NAME\n"
        "tgrad \\- train Fourier neural operators with compressed gradients\n"
        ".SH SYNOPSIS\n"
        ".B tgrad\n.I COMMAND\n[ARGUMENTS] [OPTIONS]\n.br\n"
        ".B tgrad\n.I COMMAND\n.B \\-\\-help\n.br\n"
        ".B tgrad \\-\\-version\n"
        ".SH DESCRIPTION\n"
        "Options may come before, between and after the arguments;\n"
        ".B \\-\\-\n"
        "ends them. A value follows as the next word or after an equals sign. Lists are split at\n"
        "commas and grow when the option is repeated.\n"
        ".SH COMMANDS\n",
        stdout);
    for (const cli_command *const *command = cli_commands; *command; command++) {
        print_command(*command);
    }
    fputs(".SH EXIT STATUS\n"
          ".TP\n.B 0\nSuccess.\n"
          ".TP\n.B 1\nBad input, a failed check, or an error of the system: a sentence on standard "
          "error says\nwhich.\n"
          ".TP\n.B 2\nWrong options or arguments.\n"
          ".TP\n.B 124\nA sweep was stopped by \\-\\-max\\-time; the same command resumes.\n"
          ".TP\n.B 130, 143\nTraining or a sweep was stopped by SIGINT or SIGTERM and has saved; "
          "train \\-\\-resume auto,\nor the same sweep, resumes.\n",
          stdout);
}

static int run(const cli_call *call) {
    const cli_args *args = &call->args;
    const bool has_keys = args->count > 0 && strcmp(args->item[0], "keys") == 0;
    if (has_keys || (args->count == 1 && strchr(args->item[0], '.'))) {
        const char *filter = has_keys && args->count == 1 ? NULL : args->item[args->count - 1];
        if (filter) {
            check_filter(filter);
        }
        (call->common->json ? print_keys_json : print_keys)(filter);
        return CLI_OK;
    }
    if (call->common->json) {
        return cli_usage("help", "--json is for help keys");
    }
    if (args->count > 1) {
        return cli_usage("help", "unexpected argument '%.64s'", args->item[1]);
    }
    if (args->count > 0 && strcmp(args->item[0], "man") == 0) {
        print_man_page();
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
    .arguments = "[COMMAND | KEY | keys [SECTION] | man]",
    .args = {0, 2},
    .summary = "Show the list of commands, the page of one, or the settings of a run",
    .description =
        "keys lists every setting with its default, its effect and its valid values,\n"
        "or those of one section: fno, opt, data or distributed. KEY is one of them. man prints\n"
        "all pages as one, tgrad(1), for man or groff.\n",
    .examples = "  tgrad help\n"
                "  tgrad help inspect\n"
                "  tgrad help keys opt\n"
                "  tgrad help opt.training_loss\n"
                "  tgrad help man | man -l -\n"
                "  tgrad help keys --json | jq '.keys[] | select(.type == \"choice\")'\n",
    .takes = CLI_TAKES_JSON,
    .run = run,
};
