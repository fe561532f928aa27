/* Which implementation a backend used for each op, read from the library's log at level debug. */
#ifndef CLI_COMMON_PATHS_H
#define CLI_COMMON_PATHS_H

#include "output.h"

typedef struct cli_path {
    char *op; /* the message; the others are parts of it */
    const char *sizes, *name, *kernels;
} cli_path;

typedef struct cli_paths {
    cli_path *path; /* (count), each once, in the order of their first calls */
    int count;
} cli_paths;

/* Contexts opened later add to `out`, until the next call; NULL: they add nowhere. */
void cli_paths_collect(cli_paths *out);
void cli_paths_print(const cli_paths *paths);
json_t *cli_paths_json(const cli_paths *paths);
void cli_paths_free(cli_paths *paths);

#endif
