/* Progress bars and lines. */
#include "progress.h"

#include <stdio.h>
#include <unistd.h>

#include "screen_line.h"
#include "text.h"

/* Seconds without a line, at most, where there is no terminal. */
#define LINE_INTERVAL 30.0

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
        snprintf(text, capacity, "%s left",
                 cli_duration_text(rate * (double)(total - done), duration));
    }
    return text;
}

static void show_bar(const cli_progress *progress, int64_t done, int64_t total, const char *left) {
    cli_part parts[] = {{.rank = 0}, {.is_bar = true, .rank = 3}, {.rank = 1}, {.rank = 2}};
    snprintf(parts[0].text, CLI_PART_TEXT, "%s", progress->title);
    snprintf(parts[2].text, CLI_PART_TEXT, "%lld/%lld %s", (long long)done, (long long)total,
             progress->unit);
    snprintf(parts[3].text, CLI_PART_TEXT, "%s", left);
    cli_show_line(parts, *left ? 4 : 3, total > 0 ? (double)done / (double)total : 1.0);
}

void cli_progress_show(cli_progress *progress, int64_t done, int64_t total, int64_t found,
                       double seconds) {
    const int64_t tenth = total > 0 ? 10 * done / total : 10;
    const bool due = done == total || progress->shown < 0.0 ||
                     (progress->terminal
                          ? cli_line_is_due()
                          : seconds - progress->shown >= LINE_INTERVAL || tenth != progress->tenth);
    if (progress->quiet || !due) {
        return;
    }
    char left[CLI_PART_TEXT];
    left_text(done, total, found, seconds, left, sizeof left);
    if (progress->terminal) {
        show_bar(progress, done, total, left);
    } else {
        fprintf(stderr, "%s: %lld of %lld %s%s%s\n", progress->title, (long long)done,
                (long long)total, progress->unit, *left ? ", " : "", left);
    }
    progress->shown = seconds;
    progress->tenth = tenth;
}

void cli_progress_end(const cli_progress *progress) {
    if (progress->terminal) {
        cli_wipe_line();
    }
}
