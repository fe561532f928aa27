/* What people write who know other programs, and what it is called here. */
#ifndef CLI_HINTS_H
#define CLI_HINTS_H

#include <stdbool.h>
#include <stddef.h>

#include "options.h"

/* The option or setting that `word`, an unknown option without dashes, most likely means: "--run",
 * "--opt.n_epochs" (only with `overrides`). NULL if none is near; else returns text. */
const char *cli_hint(const cli_option *const *tables, bool overrides, const char *word, char *text,
                     size_t capacity);

/* The word of `choices` that `value` means in other programs ("gpu": cuda), or NULL. */
const char *cli_hint_choice(const char *const *choices, const char *value);

#endif
