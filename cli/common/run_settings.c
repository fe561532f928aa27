/* Files, presets, overrides. */
#include "run_settings.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "problem.h"

char *cli_settings_text(const tg_settings *settings) {
    const size_t size = tg_settings_text(settings, NULL, 0);
    char *text = cli_need(malloc(size + 1));
    tg_settings_text(settings, text, size + 1);
    return text;
}

tg_status cli_settings_set_integer(tg_settings *settings, const char *key, int64_t value,
                                   const char *origin) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    return tg_settings_set(settings, key, text, origin);
}

tg_status cli_settings_override(tg_settings *settings, const cli_args *args) {
    for (int i = 0; i < args->override_count; i++) {
        CLI_CALL(tg_settings_set(settings, args->override[i].key, args->override[i].value,
                                 "command line"));
    }
    return TG_OK;
}

const char *cli_setting_or(const tg_settings *settings, const char *key, const char *fallback) {
    const char *value = tg_settings_get(settings, key);
    return value && strcmp(value, "null") != 0 ? value : fallback;
}

/* Whether two texts of a value mean the same: 5e-3 and 0.005, for one. */
static bool is_same_value(const char *a, const char *b) {
    char *a_end, *b_end;
    const double x = strtod(a, &a_end), y = strtod(b, &b_end);
    const bool are_numbers = a_end != a && b_end != b && *a_end == '\0' && *b_end == '\0';
    return strcmp(a, b) == 0 || (are_numbers && x == y);
}

bool cli_key_find(const char *key, tg_key_info *info) {
    for (int i = 0; tg_key_describe(i, info); i++) {
        const size_t length = strlen(info->section);
        if (strncmp(key, info->section, length) == 0 && key[length] == '.' &&
            strcmp(key + length + 1, info->name) == 0) {
            return true;
        }
    }
    return false;
}

const char *cli_key_default(const tg_key_info *info, char text[CLI_DEFAULT_TEXT]) {
    snprintf(text, CLI_DEFAULT_TEXT, *info->fallback ? "(default: %s)" : "(needed)%s",
             info->fallback);
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
        char text[CLI_DEFAULT_TEXT];
        if (cli_key_find(used[i], &info)) {
            fprintf(stream, "  %-24s %s %s\n", used[i], info.help, cli_key_default(&info, text));
        }
    }
}

int cli_settings_changed(const tg_settings *settings) {
    int changed = 0;
    for (int64_t i = 0; i < tg_settings_count(settings); i++) {
        tg_key_info info;
        const bool is_known = cli_key_find(tg_settings_key(settings, i), &info);
        changed += !is_same_value(tg_settings_value(settings, i), is_known ? info.fallback : "");
    }
    return changed;
}

cli_loss_unit cli_loss_unit_of(const tg_settings *settings) {
    const char *loss = cli_setting_or(settings, "opt.training_loss", "loss");
    const char *weights = cli_setting_or(settings, "opt.loss_weights", "1");
    const int64_t channels = strtoll(cli_setting_or(settings, "fno.out_channels", "1"), NULL, 10);
    const bool is_sum = strchr(loss, '+') != NULL;
    cli_loss_unit unit = {.name = "loss", .share = 1.0};
    if (strcmp(cli_setting_or(settings, "opt.physics", "none"), "none") != 0) {
        return unit;
    }
    double sum = 0.0, weight = 0.0;
    int count = 0;
    for (char *end; *weights; weights = end > weights ? end : weights + 1) {
        weight = strtod(weights, &end);
        count += end > weights;
        sum += end > weights ? weight : 0.0;
    }
    sum = count == 1 ? weight * (double)channels : sum;
    if (sum > 0.0) {
        snprintf(unit.name, sizeof unit.name, is_sum ? "(%s)" : "%s", loss);
        unit.share = 1.0 / sum;
    }
    return unit;
}

tg_settings *cli_run_settings_read(tg_context *ctx, const cli_run_source *source, bool *has_data) {
    if (!source->preset == !source->config) {
        cli_misuse(source->command, source->preset ? "a configuration file or --preset, not both"
                                                   : "a configuration file or --preset is needed");
    }
    CLI_OWNED(tg_settings_destroy) tg_settings *given = NULL;
    tg_settings *out = NULL;
    if (source->preset) {
        cli_check(tg_settings_create(ctx, &given));
        cli_check(cli_preset_settings(source->preset, given));
    } else {
        cli_check(tg_settings_read_yaml(ctx, source->config, &given));
    }
    if (source->method) {
        cli_check(tg_settings_set(given, "opt.name", source->method, "--opt"));
    }
    if (source->batch > 0) {
        cli_check(cli_settings_set_integer(given, "data.batch_size", source->batch, "--batch"));
    }
    cli_check(cli_settings_override(given, source->args));
    *has_data =
        cli_setting_or(given, "data.set", NULL) || cli_setting_or(given, "data.train_file", NULL);
    if (!*has_data) {
        cli_check(tg_settings_set(given, "data.set", "none", NULL));
    }
    cli_check(tg_train_complete(ctx, given, &out));
    return out;
}
