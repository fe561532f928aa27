/* Declarative command-line options.
 *
 * A command describes its options in a table; one parser fills the targets, the help page and the
 * shell completion print from the same rows. Accepted forms:
 *
 *     --name value   --name=value   -n value   -nvalue   -ab (flags)   --flag   -- (ends options)
 *
 * A value that starts with "--" must be written --name=--value: it is more often a forgotten value.
 * Lists are split at commas and grow when the option is repeated; other options keep the last
 * value. The targets keep their initial value, the default, when the option is not given. */
#ifndef CLI_COMMON_OPTIONS_H
#define CLI_COMMON_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "text.h"

typedef enum cli_kind { CLI_FLAG, CLI_INT, CLI_STRING, CLI_LIST } cli_kind;

typedef struct cli_option {
    const char *name; /* long name without dashes; NULL ends a table */
    char letter;      /* short name; 0: none */
    cli_kind kind;
    union { /* the target, by kind */
        bool *flag;
        int64_t *integer;
        const char **text; /* will point into argv */
        cli_list *list;
    };
    const char *value;          /* what help calls the value: "N", "FILE" */
    const char *help;           /* one line */
    const char *fallback;       /* the default as text, for help; NULL: none */
    const char *const *choices; /* the words a CLI_STRING accepts, ended by NULL; NULL: any */
    int64_t min, max;           /* accepted range of a CLI_INT; 0, 0: any */
} cli_option;

/* Rows of a table, by kind. letter 0: no short name; fallback and choices may be NULL. */
#define CLI_OPTION_FLAG(name_, letter_, target, help_)                                             \
    { .name = (name_), .letter = (letter_), .kind = CLI_FLAG, .flag = (target), .help = (help_) }
#define CLI_OPTION_INT(name, letter, target, min_, max_, value, help, fallback)                    \
    {                                                                                              \
        .integer = (target), .min = (min_), .max = (max_),                                         \
        CLI_OPTION_VALUE(name, letter, CLI_INT, value, help, fallback)                             \
    }
#define CLI_OPTION_TEXT(name, letter, target, choices_, value, help, fallback)                     \
    {                                                                                              \
        .text = (target), .choices = (choices_),                                                   \
        CLI_OPTION_VALUE(name, letter, CLI_STRING, value, help, fallback)                          \
    }
#define CLI_OPTION_LIST(name, letter, target, value, help, fallback)                               \
    { .list = (target), CLI_OPTION_VALUE(name, letter, CLI_LIST, value, help, fallback) }
#define CLI_OPTION_VALUE(name_, letter_, kind_, value_, help_, fallback_)                          \
    .name = (name_), .letter = (letter_), .kind = (kind_), .value = (value_), .help = (help_),     \
    .fallback = (fallback_)

/* --section.key value: settings a command hands on to the configuration. */
typedef struct cli_override {
    char *key; /* "section.key" */
    const char *value;
} cli_override;

typedef struct cli_args {
    const char **item; /* (count) positional arguments, in order */
    int count;
    cli_override *override; /* (override_count) in order */
    int override_count;
} cli_args;

/* Parses argv[0..argc) by the rows of `options`. Without `overrides`, --section.key is an unknown
 * option. On wrong usage returns false with a sentence in `error`. Either way *out is to be freed,
 * and so is each list. */
bool cli_options_parse(const cli_option *options, bool overrides, int argc, char *const *argv,
                       cli_args *out, char *error, size_t capacity);
void cli_args_free(cli_args *args);

/* ---- "did you mean ..?": the nearest of several names by edit distance ----
 *
 *     cli_suggestion s = cli_suggest(word);
 *     for (..) cli_suggest_offer(&s, name);
 *     cli_usage(.., "'%s' is no name%s", word, s.text); */

typedef struct cli_suggestion {
    const char *word; /* as the user wrote it */
    const char *best; /* nearest name offered so far; NULL if none is near */
    int distance;     /* of `best`, or the largest distance that still counts as near, plus one */
    char text[96];    /* "; did you mean BEST?"; empty if none is near */
} cli_suggestion;

cli_suggestion cli_suggest(const char *word);
void cli_suggest_offer(cli_suggestion *suggestion, const char *name);

#endif
