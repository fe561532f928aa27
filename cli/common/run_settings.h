/* The settings of a run to be planned or profiled: of a file or a preset, with overrides. */
#ifndef CLI_COMMON_RUN_SETTINGS_H
#define CLI_COMMON_RUN_SETTINGS_H

#include "output.h"

/* Where they come from; exactly one of preset and config is set. */
typedef struct cli_run_source {
    const char *command;  /* for errors */
    const char *preset;   /* name */
    const char *config;   /* path of a YAML file */
    const char *method;   /* opt.name over the file's; NULL: none */
    int64_t batch;        /* data.batch_size over the file's; 0: none */
    const cli_args *args; /* its overrides */
} cli_run_source;

/* All settings of the run. Without data.set or data.train_file it has no data: *has_data is false.
 */
tg_settings *cli_run_settings_read(tg_context *ctx, const cli_run_source *source, bool *has_data);

/* All settings as YAML, to be freed. */
char *cli_settings_text(const tg_settings *settings);

/* Sets a whole number, and the settings of the command line. */
tg_status cli_settings_set_integer(tg_settings *settings, const char *key, int64_t value,
                                   const char *origin);
tg_status cli_settings_override(tg_settings *settings, const cli_args *args);

/* A setting, or `fallback`. */
const char *cli_setting_or(const tg_settings *settings, const char *key, const char *fallback);

/* The description of the setting "section.name"; false: there is no such setting. */
bool cli_key_find(const char *key, tg_key_info *info);

enum { CLI_DEFAULT_TEXT = 160 };
/* "(default: 16)" or "(needed)"; returns text. */
const char *cli_key_default(const tg_key_info *info, char text[CLI_DEFAULT_TEXT]);

/* Prints the keys that most runs set, with their defaults: a part of `tgrad train --help`. */
void cli_keys_describe(FILE *stream);

/* How many of a run's settings differ from their defaults. */
int cli_settings_changed(const tg_settings *settings);

/* A training loss is a sum over channels, test errors are not. `share` times the loss of a run with
 * these settings is the mean over its channels, which `name` calls by the norm: "h1". Where there
 * is no such mean (opt.physics), the share is 1 and the name "loss". */
typedef struct cli_loss_unit {
    char name[80];
    double share;
} cli_loss_unit;

cli_loss_unit cli_loss_unit_of(const tg_settings *settings);

#endif
