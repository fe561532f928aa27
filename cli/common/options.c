/* The option parser. Sentences for wrong usage name the option as the user wrote it. */
#include "options.h"

#include <ctype.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tgrad/keys.h"
#include "tgrad/status.h"

static const cli_option *find_name(const cli_option *row, const char *name, size_t length) {
    while (row->name && (strlen(row->name) != length || memcmp(row->name, name, length) != 0)) {
        row++;
    }
    return row->name ? row : NULL;
}

/* ---- suggestions ---- */

enum { MAX_WORD = 64 }; /* longer ones are near to nothing */

cli_suggestion cli_suggest(const char *word) {
    /* Near: one edit for up to three letters, and one more for every three letters after. */
    int length = (int)strnlen(word, MAX_WORD);
    return (cli_suggestion){.word = word, .distance = length ? (length + 2) / 3 + 1 : 0};
}

void cli_suggest_offer(cli_suggestion *suggestion, const char *name) {
    size_t length = strlen(suggestion->word);
    int distance = tg_edit_distance(suggestion->word, name);
    if (distance > 1 && length >= 2 && strncmp(suggestion->word, name, length) == 0) {
        distance = 1; /* the beginning of a name is as good as one slip */
    }
    if (distance < suggestion->distance) {
        suggestion->distance = distance;
        suggestion->best = name;
        snprintf(suggestion->text, sizeof suggestion->text, "; did you mean %.64s?", name);
    }
}

/* ---- unknown options: first a table of habits, then the names of settings without their section,
 * then the nearest name of either kind ---- */

/* A name with a dot is a setting; of several rows for a word the first that the command has. */
static const struct {
    const char *name, *words;
} habits[] = {{"opt.n_epochs", "epochs num_epochs max_epochs"},
              {"opt.learning_rate", "lr"},
              {"opt.weight_decay", "wd"},
              {"opt.name", "optimizer optim method"},
              {"opt.training_loss", "loss"},
              {"opt.max_grad_norm", "grad_clip clip"},
              {"opt.update_proj_gap", "gap"},
              {"fno.fno_block_precision", "precision amp"},
              {"fno.activation_precision", "bf16"},
              {"fno.activation_checkpoint", "checkpointing"},
              {"fno.n_modes", "modes"},
              {"fno.hidden_channels", "width channels"},
              {"fno.n_layers", "layers depth"},
              {"data.batch_size", "batch bs"},
              {"batch", "batch_size"},
              {"data.root", "data data_dir data_path"},
              {"data.set", "dataset"},
              {"data.train_resolution", "resolution"},
              {"backend", "device gpu cuda cpu"},
              {"threads", "workers num_workers jobs"},
              {"run", "output output_dir out save_dir log_dir dir name"},
              {"output", "png svg out dir"},
              {"resume", "checkpoint continue restart"},
              {"quiet", "silent"},
              {"force", "overwrite"},
              {"n-train", "samples n"},
              {"resolution", "size"},
              {"seed", "random_seed"}};

static bool has_word(const char *list, const char *word) {
    const size_t length = strlen(word);
    for (const char *at = list; length > 0 && (at = strstr(at, word)); at++) {
        if ((at == list || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) {
            return true;
        }
    }
    return false;
}

static const char *of_habit(const cli_option *options, bool overrides, const char *word) {
    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++) {
        const char *name = habits[i].name;
        const bool is_there =
            strchr(name, '.') ? overrides : find_name(options, name, strlen(name)) != NULL;
        if (is_there && has_word(habits[i].words, word)) {
            return name;
        }
    }
    return NULL;
}

/* The nearest name: an option, or the key of a setting, which is then named with its section. */
static const char *nearest(const cli_option *options, bool overrides, const char *written,
                           const char *word, const char **section) {
    cli_suggestion option = cli_suggest(written), key = cli_suggest(word);
    tg_key_info info;
    *section = "";
    for (const cli_option *row = options; row->name; row++) {
        cli_suggest_offer(&option, row->name);
    }
    for (int i = 0; overrides && tg_key_describe(i, &info); i++) {
        const char *before = key.best;
        cli_suggest_offer(&key, info.name);
        if (key.best != before) {
            *section = info.section;
        }
    }
    if (option.best && (!key.best || option.distance <= key.distance)) {
        *section = "";
        return option.best;
    }
    return key.best;
}

/* The option or setting that `word`, an unknown option without dashes, most likely means: "--run",
 * "--opt.n_epochs" (only with `overrides`). NULL if none is near; else returns text. */
static const char *hint_of(const cli_option *options, bool overrides, const char *word, char *text,
                           size_t capacity) {
    char key[64]; /* as settings and the table write it */
    word = strrchr(word, '.') ? strrchr(word, '.') + 1 : word;
    snprintf(key, sizeof key, "%s", word);
    for (char *c = key; *c; c++) {
        *c = (char)(*c == '-' ? '_' : *c);
    }
    const char *section = "", *name = of_habit(options, overrides, key);
    if (!name) {
        name = nearest(options, overrides, word, key, &section);
    }
    if (name) {
        snprintf(text, capacity, "--%s%s%s", section, *section ? "." : "", name);
    }
    return name ? text : NULL;
}

/* ---- the parser ---- */

typedef struct parser {
    const cli_option *options;
    bool overrides;
    int argc, next; /* argv[next] is read next */
    char *const *argv;
    cli_args *out;
    char *error; /* (capacity) */
    size_t capacity;
} parser;

static bool refuse(parser *p, const char *format, ...) TG_PRINTF(2, 3);

static bool refuse(parser *p, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(p->error, p->capacity, format, args);
    va_end(args);
    return false;
}

static const cli_option *find_letter(const cli_option *row, char letter) {
    while (row->name && row->letter != letter) {
        row++;
    }
    return row->name ? row : NULL;
}

static bool refuse_unknown(parser *p, const char *written, const char *name, size_t length) {
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)(length < sizeof word ? length : sizeof word), name);
    char hint[96];
    if (hint_of(p->options, p->overrides, word, hint, sizeof hint)) {
        return refuse(p, "unknown option '%.64s'; did you mean %s?", written, hint);
    }
    return refuse(p, "unknown option '%.64s'", written);
}

static bool store_integer(parser *p, const cli_option *row, const char *value) {
    char *end = NULL;
    errno = 0;
    long long number = strtoll(value, &end, 10);
    if (end == value || *end || isspace((unsigned char)value[0])) {
        return refuse(p, "--%s needs an integer, not '%.64s'", row->name, value);
    }
    bool ranged = row->min != 0 || row->max != 0;
    int64_t min = ranged ? row->min : INT64_MIN, max = ranged ? row->max : INT64_MAX;
    if (errno == ERANGE || number < min || number > max) {
        return refuse(p, "--%s must be from %lld to %lld, not %.64s", row->name, (long long)min,
                      (long long)max, value);
    }
    *row->integer = number;
    return true;
}

static bool store_text(parser *p, const cli_option *row, const char *value) {
    cli_suggestion suggestion = cli_suggest(value);
    char known[256] = "";
    for (const char *const *choice = row->choices; choice && *choice; choice++) {
        if (strcmp(*choice, value) == 0) {
            *row->text = *choice;
            return true;
        }
        cli_suggest_offer(&suggestion, *choice);
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", *choice);
    }
    if (!row->choices) {
        *row->text = value;
        return true;
    }
    const char *meant = suggestion.best;
    for (const char *const *choice = row->choices; *choice; choice++) { /* names elsewhere */
        const bool is_gpu = strcmp(*choice, "cuda") == 0;
        meant = is_gpu && has_word("gpu cuda:0 nvidia device", value) ? *choice : meant;
    }
    return meant ? refuse(p, "--%s: '%.64s' is not one of %s; did you mean %s?", row->name, value,
                          known, meant)
                 : refuse(p, "--%s: '%.64s' is not one of %s", row->name, value, known);
}

/* "a,b" or "[a, b]". */
static bool store_list(parser *p, const cli_option *row, const char *value) {
    const size_t all = strlen(value);
    const bool is_closed = all >= 2 && value[0] == '[' && value[all - 1] == ']';
    const char *const end = value + all - is_closed;
    for (const char *part = value + is_closed;; part++) {
        part += strspn(part, " ");
        size_t length = strcspn(part, ",");
        length = length < (size_t)(end - part) ? length : (size_t)(end - part);
        if (length == 0) {
            return refuse(p, "--%s: '%.64s' has an empty item", row->name, value);
        }
        cli_list_add(row->list, part, length);
        part += length;
        if (part == end) {
            return true;
        }
    }
}

static bool store(parser *p, const cli_option *row, const char *value) {
    switch (row->kind) {
    case CLI_INT:
        return store_integer(p, row, value);
    case CLI_STRING:
        return store_text(p, row, value);
    case CLI_LIST:
        return store_list(p, row, value);
    case CLI_FLAG:
        break;
    }
    return refuse(p, "option --%s takes no value", row->name);
}

/* The value of an option written without '=' is the next argument; NULL after a refusal. */
static const char *next_value(parser *p, const char *written) {
    if (p->next >= p->argc) {
        refuse(p, "option %.64s needs a value", written);
        return NULL;
    }
    const char *value = p->argv[p->next];
    if (strncmp(value, "--", 2) == 0) {
        refuse(p, "option %.64s needs a value, but %.64s follows", written, value);
        return NULL;
    }
    p->next++;
    return value;
}

/* section.key: two or more words of letters, digits and '_', with dots between. */
static bool is_override_key(const char *key, size_t length) {
    bool dotted = false;
    for (size_t i = 0; i < length; i++) {
        if (key[i] == '.') {
            if (i == 0 || i + 1 == length || key[i - 1] == '.') {
                return false;
            }
            dotted = true;
        } else if (!isalnum((unsigned char)key[i]) && key[i] != '_') {
            return false;
        }
    }
    return dotted;
}

static bool take_override(parser *p, const char *key, size_t length, const char *value) {
    cli_args *out = p->out;
    out->override[out->override_count++] =
        (cli_override){.key = cli_need(strndup(key, length)), .value = value};
    return true;
}

static bool take_long(parser *p, const char *argument) {
    const char *name = argument + 2;
    const size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    const cli_option *row = find_name(p->options, name, length);
    const bool override = !row && p->overrides && is_override_key(name, length);
    if (!row && !override) {
        return refuse_unknown(p, argument, name, length);
    }
    if (row && row->kind == CLI_FLAG) {
        *row->flag = true;
        return !value || refuse(p, "option --%s takes no value, but has '%.64s'", row->name, value);
    }
    value = value ? value : next_value(p, argument);
    if (!value) {
        return false;
    }
    return row ? store(p, row, value) : take_override(p, name, length, value);
}

/* -a, -abc (flags), -n5, -n 5 */
static bool take_short(parser *p, const char *argument) {
    for (const char *letter = argument + 1; *letter; letter++) {
        const cli_option *row = find_letter(p->options, *letter);
        if (!row) {
            return refuse_unknown(p, argument, argument + 1, strlen(argument + 1));
        }
        if (row->kind == CLI_FLAG) {
            *row->flag = true;
            continue;
        }
        const char written[] = {'-', *letter, '\0'};
        const char *value = letter[1] ? letter + 1 : next_value(p, written);
        return value && store(p, row, value);
    }
    return true;
}

bool cli_options_parse(const cli_option *options, bool overrides, int argc, char *const *argv,
                       cli_args *out, char *error, size_t capacity) {
    parser p = {options, overrides, argc, 0, argv, out, error, capacity};
    error[0] = '\0';
    *out = (cli_args){.item = cli_need(calloc((size_t)argc + 1, sizeof *out->item)),
                      .override = cli_need(calloc((size_t)argc + 1, sizeof *out->override))};
    bool has_options = true; /* until "--" */
    while (p.next < argc) {
        const char *argument = argv[p.next++];
        bool ok = true;
        if (!has_options || argument[0] != '-' || argument[1] == '\0') {
            out->item[out->count++] = argument;
        } else if (strcmp(argument, "--") == 0) {
            has_options = false;
        } else {
            ok = argument[1] == '-' ? take_long(&p, argument) : take_short(&p, argument);
        }
        if (!ok) {
            return false;
        }
    }
    return true;
}

void cli_args_free(cli_args *args) {
    for (int i = 0; i < args->override_count; i++) {
        free(args->override[i].key);
    }
    free(args->override);
    free(args->item);
    *args = (cli_args){0};
}
