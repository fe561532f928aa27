/* The nearest name by edit distance. */
#include "suggest.h"

#include <stdio.h>
#include <string.h>

#include "tgrad/keys.h"
#include "tgrad/status.h"

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
    const char *word, *name;
} habits[] = {
    {"epochs", "opt.n_epochs"},
    {"num_epochs", "opt.n_epochs"},
    {"max_epochs", "opt.n_epochs"},
    {"lr", "opt.learning_rate"},
    {"wd", "opt.weight_decay"},
    {"optimizer", "opt.name"},
    {"optim", "opt.name"},
    {"method", "opt.name"},
    {"loss", "opt.training_loss"},
    {"grad_clip", "opt.max_grad_norm"},
    {"clip", "opt.max_grad_norm"},
    {"gap", "opt.update_proj_gap"},
    {"precision", "fno.fno_block_precision"},
    {"amp", "fno.fno_block_precision"},
    {"bf16", "fno.activation_precision"},
    {"checkpointing", "fno.activation_checkpoint"},
    {"modes", "fno.n_modes"},
    {"width", "fno.hidden_channels"},
    {"channels", "fno.hidden_channels"},
    {"layers", "fno.n_layers"},
    {"depth", "fno.n_layers"},
    {"batch", "data.batch_size"},
    {"bs", "data.batch_size"},
    {"batch_size", "batch"},
    {"data", "data.root"},
    {"data_dir", "data.root"},
    {"data_path", "data.root"},
    {"dataset", "data.set"},
    {"resolution", "data.train_resolution"},
    {"device", "backend"},
    {"gpu", "backend"},
    {"cuda", "backend"},
    {"cpu", "backend"},
    {"workers", "threads"},
    {"num_workers", "threads"},
    {"jobs", "threads"},
    {"output", "run"},
    {"png", "output"},
    {"svg", "output"},
    {"output_dir", "run"},
    {"out", "run"},
    {"out", "output"},
    {"save_dir", "run"},
    {"log_dir", "run"},
    {"dir", "run"},
    {"dir", "output"},
    {"name", "run"},
    {"checkpoint", "resume"},
    {"continue", "resume"},
    {"restart", "resume"},
    {"silent", "quiet"},
    {"overwrite", "force"},
    {"samples", "n-train"},
    {"n", "n-train"},
    {"size", "resolution"},
    {"random_seed", "seed"},
};

static bool is_option(const cli_option *const *tables, const char *name) {
    for (const cli_option *const *table = tables; *table; table++) {
        for (const cli_option *row = *table; row->name; row++) {
            if (strcmp(row->name, name) == 0) {
                return true;
            }
        }
    }
    return false;
}

static const char *of_habit(const cli_option *const *tables, bool overrides, const char *word) {
    for (size_t i = 0; i < sizeof habits / sizeof habits[0]; i++) {
        const char *name = habits[i].name;
        if (strcmp(habits[i].word, word) == 0 &&
            (strchr(name, '.') ? overrides : is_option(tables, name))) {
            return name;
        }
    }
    return NULL;
}

/* The nearest name: an option, or the key of a setting, which is then named with its section. */
static const char *nearest(const cli_option *const *tables, bool overrides, const char *written,
                           const char *word, const char **section) {
    cli_suggestion option = cli_suggest(written), key = cli_suggest(word);
    tg_key_info info;
    *section = "";
    for (const cli_option *const *table = tables; *table; table++) {
        for (const cli_option *row = *table; row->name; row++) {
            cli_suggest_offer(&option, row->name);
        }
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

const char *cli_hint(const cli_option *const *tables, bool overrides, const char *word, char *text,
                     size_t capacity) {
    char key[64]; /* as settings and the table write it */
    word = strrchr(word, '.') ? strrchr(word, '.') + 1 : word;
    snprintf(key, sizeof key, "%s", word);
    for (char *c = key; *c; c++) {
        *c = (char)(*c == '-' ? '_' : *c);
    }
    const char *section = "", *name = of_habit(tables, overrides, key);
    if (!name) {
        name = nearest(tables, overrides, word, key, &section);
    }
    if (name) {
        snprintf(text, capacity, "--%s%s%s", section, *section ? "." : "", name);
    }
    return name ? text : NULL;
}

const char *cli_hint_choice(const char *const *choices, const char *value) {
    static const char *const gpus[] = {"gpu", "cuda:0", "nvidia", "device"};
    for (const char *const *choice = choices; *choice; choice++) {
        for (size_t i = 0; strcmp(*choice, "cuda") == 0 && i < sizeof gpus / sizeof gpus[0]; i++) {
            if (strcmp(value, gpus[i]) == 0) {
                return *choice;
            }
        }
    }
    return NULL;
}
