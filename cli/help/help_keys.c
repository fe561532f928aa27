/* tgrad help keys: the settings of a configuration. */
#include "help_keys.h"

#include <string.h>

#include "common/output.h"
#include "common/suggest.h"

static const struct {
    const char *name, *title;
} sections[] = {
    {"fno", "the network"},
    {"opt", "optimizer, schedule and loop"},
    {"data", "files and batches"},
    {"distributed", "random numbers, and ranks that train together"},
};

enum { SECTIONS = sizeof sections / sizeof sections[0] };

static bool find_key(const char *key, tg_key_info *info) {
    for (int i = 0; tg_key_describe(i, info); i++) {
        const size_t length = strlen(info->section);
        if (strncmp(key, info->section, length) == 0 && key[length] == '.' &&
            strcmp(key + length + 1, info->name) == 0) {
            return true;
        }
    }
    return false;
}

enum { DEFAULT_TEXT = 160 };

static const char *default_of(const tg_key_info *info, char text[DEFAULT_TEXT]) {
    snprintf(text, DEFAULT_TEXT, *info->fallback ? "(default: %s)" : "(needed)%s", info->fallback);
    return text;
}

void cli_keys_describe(FILE *stream) {
    static const char *const used[] = {"data.root",
                                       "data.set",
                                       "data.train_resolution",
                                       "data.test_resolutions",
                                       "data.batch_size",
                                       "fno.n_modes",
                                       "fno.hidden_channels",
                                       "fno.n_layers",
                                       "opt.name",
                                       "opt.n_epochs",
                                       "opt.learning_rate",
                                       "opt.weight_decay",
                                       "opt.training_loss",
                                       "opt.scheduler",
                                       "opt.rank",
                                       "opt.update_proj_gap",
                                       "opt.state_precision"};
    fputs("Most used settings, in the file or as --section.key VALUE (all: tgrad help keys):\n",
          stream);
    for (size_t i = 0; i < sizeof used / sizeof used[0]; i++) {
        tg_key_info info;
        char text[DEFAULT_TEXT];
        if (find_key(used[i], &info)) {
            fprintf(stream, "  %-24s %s %s\n", used[i], info.help, default_of(&info, text));
        }
    }
}

/* The number of a section; SECTIONS for NULL, which means all; -1 after a message. */
static int find_section(const char *name) {
    if (!name) {
        return SECTIONS;
    }
    const size_t length = strcspn(name, ".");
    cli_suggestion suggestion = cli_suggest(name);
    for (int i = 0; i < SECTIONS; i++) {
        if (strlen(sections[i].name) == length && strncmp(sections[i].name, name, length) == 0) {
            return i;
        }
        cli_suggest_offer(&suggestion, sections[i].name);
    }
    cli_usage("help",
              "'%.64s' is no section of the settings; there are fno, opt, data and "
              "distributed%s",
              name, suggestion.text);
    return -1;
}

static bool is_in(const tg_key_info *info, int section) {
    return section == SECTIONS || strcmp(info->section, sections[section].name) == 0;
}

int cli_keys_print(const char *section) {
    const int wanted = find_section(section);
    tg_key_info info;
    char text[DEFAULT_TEXT];
    for (int s = 0; wanted >= 0 && s < SECTIONS; s++) {
        if (wanted != SECTIONS && wanted != s) {
            continue;
        }
        printf("%s%s: %s\n", s > 0 && wanted == SECTIONS ? "\n" : "", sections[s].name,
               sections[s].title);
        for (int i = 0; tg_key_describe(i, &info); i++) {
            if (is_in(&info, s)) {
                printf("  %s.%s %s\n      %s\n      %s\n", info.section, info.name,
                       default_of(&info, text), info.help, info.values);
            }
        }
    }
    return wanted >= 0 ? CLI_OK : CLI_USAGE;
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

int cli_keys_print_json(const char *section) {
    const int wanted = find_section(section);
    if (wanted < 0) {
        return CLI_USAGE;
    }
    json_t *object = cli_json_object(), *keys = cli_json_array();
    tg_key_info info;
    for (int i = 0; tg_key_describe(i, &info); i++) {
        if (is_in(&info, wanted)) {
            cli_json_append(keys, describe(i, &info));
        }
    }
    cli_json_set(object, "keys", keys);
    cli_json_print(object);
    return CLI_OK;
}
