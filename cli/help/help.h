/* A part of the help that another command shows. */
#ifndef CLI_HELP_HELP_H
#define CLI_HELP_HELP_H

#include <stdio.h>

/* The keys that most runs set, with their defaults: a part of `tgrad train --help`. */
void cli_keys_describe(FILE *stream);

#endif
