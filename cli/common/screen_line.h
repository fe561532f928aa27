/* One line at the bottom of the terminal that is redrawn in place, on stderr. It never wraps: parts
 * that do not fit into the width at that moment are left out. */
#ifndef CLI_COMMON_SCREEN_LINE_H
#define CLI_COMMON_SCREEN_LINE_H

#include <stdbool.h>
#include <stdint.h>

enum { CLI_PART_TEXT = 48, CLI_SCREEN_LINE = 512 };

/* A part of the line: text, or a bar that takes the room that is left. */
typedef struct cli_part {
    char text[CLI_PART_TEXT];
    bool is_bar;
    int rank; /* parts of the highest rank give way first; one of rank 0 stays */
} cli_part;

/* Columns of the terminal of `fd`; `otherwise` if it is no terminal or they are not known. */
int cli_columns(int fd, int otherwise);

/* The line for that many columns, of which the last stays empty: parts in their order, two blanks
 * apart, and `share` (0 .. 1) of the bar filled. Returns text. */
const char *cli_fit_line(const cli_part *parts, int count, double share, int columns,
                         char text[CLI_SCREEN_LINE]);

/* Draws it in the place of the one before, and takes it away. */
void cli_show_line(const cli_part *parts, int count, double share);
void cli_wipe_line(void); /* before anything else is written to the terminal */

/* Whether it is time to draw again: ten times a second is enough for the eye. */
bool cli_line_is_due(void);

/* ---- progress: a bar redrawn in place on a terminal, a plain line now and then elsewhere ---- */

typedef struct cli_progress {
    const char *title; /* of the task */
    const char *unit;  /* of the counts: "samples" */
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
