/* Which of its paths a backend took for each op: heard from the library's log at level debug. */
#ifndef CLI_PATHS_H
#define CLI_PATHS_H

#include "output.h"

typedef struct cli_path {
    char *op; /* the message, whose parts the others are */
    const char *sizes, *name, *kernels;
} cli_path;

typedef struct cli_paths {
    cli_path *path; /* (count), each once, in the order of their first calls */
    int count;
} cli_paths;

/* Contexts that are opened from here on add to `out` until this is called with another one, or
 * NULL. */
void cli_paths_hear(cli_paths *out);
void cli_paths_print(const cli_paths *paths, const char *backend);
json_t *cli_paths_json(const cli_paths *paths);
void cli_paths_free(cli_paths *paths);

#endif
