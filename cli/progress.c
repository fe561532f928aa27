/* Progress bars and lines. */
#include "progress.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "text.h"

enum { BAR = 30 };           /* characters */
#define REDRAW_INTERVAL 0.1  /* seconds, on a terminal */
#define LINE_INTERVAL   30.0 /* seconds, elsewhere: at most so long without a line */
#define CLEAR_LINE      "\r\033[K"

void cli_progress_begin(cli_progress *progress) {
    progress->terminal = isatty(STDERR_FILENO) == 1;
    progress->shown = -1.0;
    progress->tenth = -1;
}

/* "12.3 s left", or nothing as long as there is no telling. */
static const char *left_text(int64_t done, int64_t total, int64_t found, double seconds, char *text,
                             size_t capacity) {
    char duration[CLI_UNIT_TEXT];
    text[0] = '\0';
    if (done > found && done < total) {
        const double rate = seconds / (double)(done - found);
        snprintf(text, capacity, ", %s left",
                 cli_duration_text(rate * (double)(total - done), duration));
    }
    return text;
}

void cli_progress_show(cli_progress *progress, int64_t done, int64_t total, int64_t found,
                       double seconds) {
    const int64_t tenth = total > 0 ? 10 * done / total : 10;
    const double interval = progress->terminal ? REDRAW_INTERVAL : LINE_INTERVAL;
    const bool due = progress->shown < 0.0 || seconds - progress->shown >= interval ||
                     done == total || (!progress->terminal && tenth != progress->tenth);
    if (progress->quiet || !due) {
        return;
    }
    char left[64], bar[BAR + 1];
    const int filled = total > 0 ? (int)(BAR * done / total) : BAR;
    memset(bar, '.', BAR);
    memset(bar, '#', (size_t)filled);
    bar[BAR] = '\0';
    left_text(done, total, found, seconds, left, sizeof left);
    if (progress->terminal) {
        fprintf(stderr, CLEAR_LINE "%s [%s] %lld/%lld %s%s", progress->title, bar, (long long)done,
                (long long)total, progress->unit, left);
        fflush(stderr);
    } else {
        fprintf(stderr, "%s: %lld of %lld %s%s\n", progress->title, (long long)done,
                (long long)total, progress->unit, left);
    }
    progress->shown = seconds;
    progress->tenth = tenth;
}

void cli_progress_end(cli_progress *progress) {
    if (progress->terminal && !progress->quiet && progress->shown >= 0.0) {
        fputs(CLEAR_LINE, stderr);
        fflush(stderr);
    }
}
