/* See picks.h. */
#define _GNU_SOURCE
#include "support/picks.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The lines of the file, each between two line ends; NULL: no picks. */
static const char *picks(void) {
    static char text[1 << 20];
    const char *path = getenv("TEST_PICKS");
    FILE *file = path && text[0] == '\0' ? fopen(path, "r") : NULL;
    if (file) {
        text[0] = '\n';
        text[1 + fread(text + 1, 1, sizeof text - 2, file)] = '\0';
        fclose(file);
    }
    return path ? text : NULL;
}

bool t_runs_test(const char *test) {
    char line[256];
    snprintf(line, sizeof line, "\n%s:%s:", program_invocation_short_name, test);
    return !picks() || strstr(picks(), line);
}

bool t_runs_part(const char *test, int number) {
    char line[256];
    const int length =
        snprintf(line, sizeof line, "\n%s:%s:%d\n", program_invocation_short_name, test, number);
    if (picks() && !strstr(picks(), line)) {
        return false;
    }
    line[length - 1] = '\0';
    return setenv("TEST_PART", line + 1, 1) == 0;
}
