/* The drawings of tgrad profile: SVG that a page takes in and that a file of its own consists of.
 *
 * Elements carry classes and no colours: a style sheet around them gives those. Every column
 * carries its numbers in full: data-total, and data-part with data-bytes of each part. */
#ifndef CLI_PROFILE_CHART_H
#define CLI_PROFILE_CHART_H

#include "profile.h"

enum { CLI_CHART_WIDTH = 1040 };

typedef struct cli_drawing {
    cli_html body; /* elements within CLI_CHART_WIDTH x height */
    int height;
    char title[160], summary[256]; /* the latter in place of the picture, for screen readers */
} cli_drawing;

/* To be freed. */
void cli_draw_phases(const cli_profile *profile, cli_drawing *out);
void cli_draw_sweep(const cli_sweep *sweep, cli_drawing *out);
void cli_drawing_free(cli_drawing *drawing);

#endif
