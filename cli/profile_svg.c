/* The drawings of tgrad profile as files of their own, with a legend of the parts. */
#include <string.h>

#include "profile_chart.h"
#include "svg_file.h"

enum { HEAD = 96, FOOT = 26 };

static const char rules[] =
    ".total{font-weight:600}.span{stroke:#9aa2ac;stroke-width:1.5}"
    ".held{stroke:#1d2127;stroke-width:1.5;stroke-dasharray:6 4}"
    ".peak{stroke:#b8420f;stroke-width:1.5;fill:#fff}.peak-name{fill:#b8420f;font-weight:600}"
    ".m-weights{fill:#5f6b7a}.m-optimizer{fill:#17508f}.m-data{fill:#86ab93}"
    ".m-activations{fill:#dcb361}.m-gradients{fill:#b5707f}.m-workspace{fill:#c3c8cf}";

static void add_legend(cli_html *file, int y) {
    double x = CLI_SVG_MARGIN;
    for (int p = 0; p < CLI_PARTS; p++) {
        cli_html_add(file,
                     "<rect class=\"%s\" x=\"%.0f\" y=\"%d\" width=\"12\" height=\"12\" rx=\"2\"/>"
                     "<text x=\"%.0f\" y=\"%d\">%s</text>",
                     cli_part_styles[p], x, y - 10, x + 18.0, y, cli_part_names[p]);
        x += 46.0 + 6.6 * (double)strlen(cli_part_names[p]);
    }
    cli_html_add(file, "\n");
}

/* What is shown: "ns1024, optimizer adam, batch 2". */
typedef struct caption {
    const char *name, *about, *given;
    const char *foot; /* a sentence below; NULL: none */
} caption;

static void write_svg(cli_html *file, const cli_drawing *d, const caption *c) {
    const int height = HEAD + d->height + (c->foot ? FOOT : 0);
    cli_svg_begin(file, &(cli_svg){.width = CLI_CHART_WIDTH,
                                   .height = height,
                                   .title = d->title,
                                   .summary = d->summary,
                                   .rules = rules});
    cli_html_add(file, "<text class=\"subtitle\" x=\"%d\" y=\"%d\">", CLI_SVG_MARGIN,
                 CLI_SVG_SUBTITLE);
    cli_html_short(file, c->name, 40);
    cli_html_add(file, "%s%s", c->about, *c->given ? ", " : "");
    cli_html_short(file, c->given, 150 - 40 - strlen(c->about));
    cli_html_add(file, "</text>\n");
    add_legend(file, 80);
    cli_html_add(file, "<g transform=\"translate(0 %d)\">\n", HEAD);
    cli_html_join(file, &d->body);
    cli_html_add(file, "</g>\n");
    if (c->foot) {
        cli_html_add(file, "<text class=\"foot\" x=\"%d\" y=\"%d\">%s</text>\n", CLI_SVG_MARGIN,
                     height - 16, c->foot);
    }
    cli_html_add(file, "</svg>\n");
}

void cli_profile_svg(cli_html *file, const cli_profile *p) {
    cli_drawing drawing;
    char about[120];
    const double count = (double)p->run->parameters;
    snprintf(about, sizeof about, ", optimizer %.20s, %.*f%s parameters", p->method,
             count < 1e6 ? 0 : 1, count < 1e6 ? count : count / 1e6, count < 1e6 ? "" : " million");
    cli_draw_phases(p, &drawing);
    write_svg(file, &drawing,
              &(caption){.name = p->name,
                         .about = about,
                         .given = p->given,
                         .foot = p->shares ? cli_profile_sharing : NULL});
    cli_drawing_free(&drawing);
}

void cli_sweep_svg(cli_html *file, const cli_sweep *s) {
    cli_drawing drawing;
    char about[120] = "";
    if (s->methods == 1 && s->values > 0) {
        snprintf(about, sizeof about, ", optimizer %.60s", s->point[0].method);
    }
    cli_draw_sweep(s, &drawing);
    write_svg(file, &drawing,
              &(caption){.name = s->name,
                         .about = about,
                         .given = s->given,
                         .foot = s->is_relative ? cli_sweep_saving : NULL});
    cli_drawing_free(&drawing);
}
