/* The redrawn line of a terminal. */
#define _DEFAULT_SOURCE
#include "screen_line.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "text.h"

enum { BAR_LEAST = 8, BAR_MOST = 30, GAP = 2, LEAST_COLUMNS = 2 };
#define REDRAW_INTERVAL 0.1 /* seconds */
#define CLEAR_LINE      "\r\033[K"

static bool is_shown;
static double shown_at = -HUGE_VAL; /* seconds on the clock */

int cli_columns(int fd, int otherwise) {
    struct winsize size;
    return ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : otherwise;
}

static int width_of(const cli_part *part) {
    return part->is_bar ? BAR_LEAST + 2 : (int)strlen(part->text);
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
    enum { MOST_PARTS = 8 };
    bool is_in[MOST_PARTS];
    count = count < MOST_PARTS ? count : MOST_PARTS;
    columns = columns < LEAST_COLUMNS ? LEAST_COLUMNS : columns;
    const int left = choose(parts, count, columns - 1, is_in);
    const int more = left < 0 ? 0 : left;
    const int cells = BAR_LEAST + (more < BAR_MOST - BAR_LEAST ? more : BAR_MOST - BAR_LEAST);
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
