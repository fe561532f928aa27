/* The redrawn line of a terminal. */
#define _DEFAULT_SOURCE
#include "screen_line.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "text.h"

enum { MIN_BAR = 8, MAX_BAR = 30, GAP = 2, MIN_COLUMNS = 2 };
#define REDRAW_INTERVAL 0.1 /* seconds */
#define CLEAR_LINE      "\r\033[K"

static bool is_shown;
static double shown_at = -HUGE_VAL; /* seconds on the clock */

int cli_columns(int fd, int otherwise) {
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

static int width_of(const cli_part *part) {
    return part->is_bar ? MIN_BAR + 2 : (int)strlen(part->text);
}

/* Which parts there is room for, the lowest ranks first; returns the columns that are left. */
static int choose(const cli_part *parts, int count, int room, bool *is_in) {
    int highest = 0;
    for (int i = 0; i < count; i++) {
        highest = parts[i].rank > highest ? parts[i].rank : highest;
        is_in[i] = false;
    }
    bool is_first = true;
    for (int rank = 0; rank <= highest; rank++) {
        for (int i = 0; i < count; i++) {
            const int width = width_of(&parts[i]) + (is_first ? 0 : GAP);
            if (parts[i].rank == rank && (rank == 0 || width <= room)) {
                is_in[i] = true;
                is_first = false;
                room -= width;
            }
        }
    }
    return room;
}

static size_t draw_bar(char *at, double share, int cells) {
    const int filled = (int)(fmin(fmax(share, 0.0), 1.0) * cells);
    at[0] = '[';
    memset(at + 1, '#', (size_t)filled);
    memset(at + 1 + filled, '.', (size_t)(cells - filled));
    at[cells + 1] = ']';
    return (size_t)cells + 2;
}

const char *cli_fit_line(const cli_part *parts, int count, double share, int columns,
                         char text[CLI_SCREEN_LINE]) {
    enum { MAX_PARTS = 8 };
    bool is_in[MAX_PARTS];
    count = count < MAX_PARTS ? count : MAX_PARTS;
    columns = columns < MIN_COLUMNS ? MIN_COLUMNS : columns;
    const int left = choose(parts, count, columns - 1, is_in);
    const int more = left < 0 ? 0 : left;
    const int cells = MIN_BAR + (more < MAX_BAR - MIN_BAR ? more : MAX_BAR - MIN_BAR);
    size_t used = 0;
    for (int i = 0; i < count; i++) {
        if (!is_in[i]) {
            continue;
        }
        used += used > 0 ? (size_t)snprintf(text + used, GAP + 1, "%*s", GAP, "") : 0;
        if (parts[i].is_bar) {
            used += draw_bar(text + used, share, cells);
        } else {
            memcpy(text + used, parts[i].text, strlen(parts[i].text));
            used += strlen(parts[i].text);
        }
    }
    text[used < (size_t)columns - 1 ? used : (size_t)columns - 1] = '\0';
    return text;
}

bool cli_line_is_due(void) {
    return cli_seconds() - shown_at >= REDRAW_INTERVAL;
}

void cli_show_line(const cli_part *parts, int count, double share) {
    char text[CLI_SCREEN_LINE];
    fprintf(stderr, CLEAR_LINE "%s",
            cli_fit_line(parts, count, share, cli_columns(STDERR_FILENO, 80), text));
    fflush(stderr);
    is_shown = true;
    shown_at = cli_seconds();
}

void cli_wipe_line(void) {
    if (is_shown) {
        fputs(CLEAR_LINE, stderr);
        fflush(stderr);
        is_shown = false;
    }
}

/* ---- progress of a command ---- */

/* Longest time between lines without a terminal, in seconds. */
#define LINE_INTERVAL 30.0

void cli_progress_begin(cli_progress *progress) {
    progress->terminal = isatty(STDERR_FILENO) == 1;
    progress->shown = -1.0;
    progress->tenth = -1;
}

/* "12.3 s left", or nothing while that is not known. */
static const char *left_text(int64_t done, int64_t total, int64_t found, double seconds, char *text,
                             size_t capacity) {
    text[0] = '\0';
    if (done > found && done < total) {
        const double rate = seconds / (double)(done - found);
        snprintf(text, capacity, "%s left", CLI_DURATION(rate * (double)(total - done)));
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
