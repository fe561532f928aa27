/* Pages about the settings of a run, made from the library's tables. */
#ifndef CLI_HELP_HELP_KEYS_H
#define CLI_HELP_HELP_KEYS_H

#include <stdio.h>

/* The keys that most runs set, with their defaults: a part of `tgrad train --help`. */
void cli_keys_describe(FILE *stream);

/* Every key, or those of one section ("opt", "opt." or NULL: all); returns the exit code. */
int cli_keys_print(const char *section);
int cli_keys_print_json(const char *section);

#endif
