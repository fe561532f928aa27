/* Progress on stderr: a bar that is redrawn in place on a terminal, a plain line now and then
 * elsewhere. */
#ifndef CLI_PROGRESS_H
#define CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

typedef struct cli_progress {
    const char *title; /* what is being done */
    const char *unit;  /* what is counted: "samples" */
    bool quiet;        /* show nothing */
    bool terminal;     /* set by cli_progress_begin */
    double shown;      /* seconds at which something was shown last; < 0: never */
    int64_t tenth;     /* of the whole that was shown last */
} cli_progress;

void cli_progress_begin(cli_progress *progress);

/* `seconds` have passed for the part of `done` beyond `found`, which was there before. */
void cli_progress_show(cli_progress *progress, int64_t done, int64_t total, int64_t found,
                       double seconds);

/* Leaves the terminal at the beginning of an empty line. */
void cli_progress_end(const cli_progress *progress);

#endif
