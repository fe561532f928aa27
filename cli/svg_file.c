/* The frame of an SVG file, in the colours of the report's style sheet by day. */
#include "svg_file.h"

static const char rules[] =
    "<style>text{fill:#1d2127}.ground{fill:#fff}.title{font-size:18px;font-weight:600}"
    ".subtitle,.soft,.foot,.axes text{fill:#59616c}.small{font-size:11px}.y{text-anchor:end}"
    ".middle{text-anchor:middle}.axes line{stroke:#e2e5e9}.axes .base{stroke:#59616c}";

void cli_svg_begin(cli_html *file, const cli_svg *svg) {
    cli_html_add(file,
                 "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" "
                 "viewBox=\"0 0 %d %d\" role=\"img\" font-size=\"12\" font-family=\"system-ui, "
                 "-apple-system, Segoe UI, Roboto, Noto Sans, Liberation Sans, Arial, sans-serif\">"
                 "\n<title>%s</title>\n<desc>%s</desc>\n",
                 svg->width, svg->height, svg->width, svg->height, svg->title, svg->summary);
    cli_html_literal(file, rules);
    cli_html_literal(file, svg->rules);
    cli_html_add(file,
                 "</style>\n<rect class=\"ground\" width=\"%d\" height=\"%d\" rx=\"8\"/>\n"
                 "<text class=\"title\" x=\"%d\" y=\"32\">%s</text>\n",
                 svg->width, svg->height, CLI_SVG_MARGIN, svg->title);
}
