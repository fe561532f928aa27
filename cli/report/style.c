/* The style sheet: system fonts, one column of text, charts and tiles in grids that fold on a
 * narrow screen, colours for light and dark. No rule names anything outside of the page. */
#include "chart.h"
#include "report.h"

/* Run colours c1 .. c8 differ in hue and are dark (light) enough for text on the page. Memory: the
 * three parts of the optimizer's state are blues, the rest is muted. */
static const char light[] =
    ":root{--paper:#fff;--ink:#1d2127;--soft:#59616c;--line:#e2e5e9;--faint:#f6f7f8;"
    "--link:#1a5ba3;--warn:#9a4a00;--on-badge:#fff;"
    "--c0:#1d2127;--c1:#1f5fa8;--c2:#b8420f;--c3:#0b7268;--c4:#87398c;--c5:#7d6000;--c6:#b02a5b;"
    "--c7:#4c6a1e;--c8:#515b68;"
    "--optimizer:#17508f;--factors:#5a9ad6;--indices:#a5cbef;--weights:#5f6b7a;"
    "--gradients:#b5707f;--activations:#dcb361;--workspace:#c3c8cf;--data:#86ab93;"
    "--communication:#9a8bbd;--other:#dfe2e6;--steps:#5f7f9f;--rest:#cfd6de}\n";

static const char dark[] =
    "@media (prefers-color-scheme:dark){:root{--paper:#14171b;--ink:#e4e7eb;--soft:#a2abb7;"
    "--line:#2d333b;--faint:#1b1f24;--link:#86b8f2;--warn:#f0a868;--on-badge:#14171b;"
    "--c0:#e4e7eb;--c1:#7fb5f2;--c2:#f79a6b;--c3:#52c8b9;--c4:#d79de2;--c5:#dfb94f;--c6:#f48fb3;"
    "--c7:#aacb70;--c8:#b0bac8;"
    "--optimizer:#5ba3ee;--factors:#3a78b8;--indices:#2c5580;--weights:#8b97a6;"
    "--gradients:#b5707f;--activations:#b08a3e;--workspace:#4d5661;--data:#5f8a6e;"
    "--communication:#8677ad;--other:#3a424b;--steps:#7fa3c7;--rest:#3d4650}}\n";

static const char text_rules[] =
    "*{box-sizing:border-box}html{-webkit-text-size-adjust:100%}"
    "body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.6 system-ui,-apple-system,"
    "'Segoe UI',Roboto,'Helvetica Neue','Noto Sans','Liberation Sans',Arial,sans-serif}"
    "main{max-width:70rem;margin:0 auto;padding:3.5rem 1.5rem 5rem}"
    "header{margin-bottom:2rem}"
    ".brand{margin:0 0 .5rem;color:var(--soft);font-size:.8125rem;letter-spacing:.08em;"
    "text-transform:uppercase}"
    "h1,h2{font-family:ui-serif,'Iowan Old Style',Charter,Palatino,'Palatino Linotype',Georgia,"
    "'Liberation Serif',serif;font-weight:600;line-height:1.2;overflow-wrap:anywhere}"
    "h1{font-size:clamp(1.75rem,5vw,2.5rem);margin:0}"
    "h2{font-size:1.625rem;margin:0 0 1.25rem}"
    "h3{font-size:1.0625rem;font-weight:600;margin:2.25rem 0 .75rem}"
    "h4{font-size:.9375rem;font-weight:600;color:var(--soft);margin:1.75rem 0 .75rem}"
    ".lede{font-size:1.125rem;color:var(--soft);margin:.75rem 0 0;max-width:44rem}"
    "section{margin-top:3.5rem;padding-top:2.5rem;border-top:1px solid var(--line)}"
    "p{max-width:44rem}.note{color:var(--soft);font-size:.875rem;max-width:48rem}"
    ".warn{color:var(--warn)}"
    "a{color:var(--link);text-underline-offset:.15em}"
    "a:focus-visible,summary:focus-visible,.wide:focus-visible{outline:2px solid var(--link);"
    "outline-offset:2px}"
    "nav{display:flex;flex-wrap:wrap;gap:.25rem 1.5rem;font-size:.9375rem}"
    "nav a{padding:.25rem 0;text-decoration:none}nav a:hover{text-decoration:underline}"
    ".short{max-width:48rem;padding-left:1.2rem;margin:0 0 2rem}.short li{margin:.4rem 0}"
    "code,pre{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,'Liberation Mono',monospace;"
    "font-size:.8125rem}"
    "pre{background:var(--faint);border:1px solid var(--line);border-radius:6px;padding:1rem;"
    "overflow-x:auto;line-height:1.7}"
    "sup{line-height:0;font-size:.7em}\n";

static const char table_rules[] =
    ".wide{overflow-x:auto;margin:0 0 1rem}"
    "table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums}"
    "th,td{padding:.5rem .7rem;text-align:right;vertical-align:top;white-space:nowrap;"
    "border-bottom:1px solid var(--line)}"
    "thead th{font-weight:600;color:var(--soft);vertical-align:bottom;line-height:1.3}"
    "th[scope=row]{text-align:left;font-weight:500;position:sticky;left:0;"
    "background:var(--paper)}"
    "tr>:first-child{text-align:left;padding-left:0}"
    "thead tr+tr>:first-child{text-align:right;padding-left:.7rem}"
    "th[scope=colgroup]{text-align:center;border-bottom:1px solid var(--line)}"
    "td small{display:block;color:var(--soft);font-size:.7rem}"
    ".results{width:100%}.best{font-weight:700}.best small{font-weight:400}"
    ".sum>*{border-bottom:0;font-weight:600!important}"
    ".settings th,.settings td{white-space:normal;overflow-wrap:anywhere;min-width:7rem;"
    "text-align:left}"
    "details{margin:.5rem 0}summary{cursor:pointer;color:var(--link);padding:.25rem 0;"
    "font-size:.9375rem;overflow-wrap:anywhere}"
    "details .wide{margin-top:.75rem;max-height:28rem;overflow-y:auto}"
    ".badge{display:inline-block;min-width:1.2rem;padding:0 .3rem;margin-right:.4rem;"
    "border-radius:.6rem;background:var(--c);color:var(--on-badge);font-size:.75rem;"
    "font-weight:600;line-height:1.2rem;text-align:center;vertical-align:top;margin-top:.15rem}"
    ".run{overflow-wrap:anywhere}"
    "th .run{display:inline-block;max-width:16rem;white-space:normal;overflow-wrap:break-word;"
    "vertical-align:top}"
    "thead .badge,thead .run{vertical-align:baseline;margin-top:0}"
    ".files{padding:0;list-style:none;font-size:.875rem;color:var(--soft)}"
    ".files li{margin:.35rem 0;overflow-wrap:anywhere}"
    ".legend{display:flex;flex-wrap:wrap;gap:.4rem 1.5rem;padding:0;margin:0 0 1.5rem;"
    "list-style:none;font-size:.9375rem}"
    ".key{display:inline-block;width:.8rem;height:.8rem;border-radius:2px;margin-right:.6em;"
    "background:var(--f)}\n";

static const char chart_rules[] =
    ".charts{display:grid;gap:2rem 2.5rem;"
    "grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr))}"
    ".charts.three{grid-template-columns:repeat(auto-fit,minmax(min(100%,18rem),1fr))}"
    "@media (min-width:60rem){.three svg{font-size:17px!important}}"
    "figure{margin:0;min-width:0}"
    "figcaption{font-size:.9375rem;font-weight:600;margin-bottom:.5rem}"
    ".chart svg{display:block;width:100%;height:auto;overflow:visible;"
    "font:12px system-ui,-apple-system,'Segoe UI',Roboto,'Liberation Sans',sans-serif;"
    "font-variant-numeric:tabular-nums}"
    ".axes line{stroke:var(--line)}.axes .base{stroke:var(--soft)}.axes text{fill:var(--soft)}"
    "text.y{text-anchor:end}text.x{text-anchor:middle}"
    ".band{fill:var(--c);stroke:var(--c);fill-opacity:.15;stroke-opacity:.3}"
    ".curve{fill:none;stroke:var(--c);stroke-width:1.75;stroke-linejoin:round;"
    "stroke-linecap:round}"
    ".curve.c0{stroke-width:3.5;opacity:.35}.dashed{stroke-dasharray:5 4}"
    ".curve.point{stroke-width:8}"
    ".end{fill:var(--c);font-weight:600}"
    ".quartiles rect{fill:var(--c);fill-opacity:.2;stroke:var(--c);stroke-width:1.5}"
    ".quartiles path{fill:none;stroke:var(--c);stroke-width:1.5}.quartiles .median{stroke-width:3}"
    ".quartiles text:not(.end){fill:var(--ink)}"
    ".strip>rect{fill:transparent}.read{visibility:hidden;pointer-events:none}"
    ".strip:hover .read{visibility:visible}"
    ".read line{stroke:var(--soft);stroke-dasharray:2 2}"
    ".read circle{fill:var(--c);stroke:var(--paper);stroke-width:1.5}"
    ".box rect{fill:var(--paper);stroke:var(--line);opacity:.96}"
    ".box text{fill:var(--ink)}.box text[class^=c]{fill:var(--c);font-weight:600}"
    ".box{transform-box:fill-box;transform-origin:0 0}.flip{transform-origin:100% 0}"
    ".bars{display:grid;gap:.6rem}"
    ".bar-row{display:grid;grid-template-columns:11rem 1fr 6.5rem;gap:1rem;align-items:center;"
    "font-size:.875rem}"
    ".bar-value{font-variant-numeric:tabular-nums}"
    ".bar{width:100%;height:1.5rem;display:block;overflow:visible}"
    ".bar rect{fill:var(--f);stroke:var(--paper);stroke-width:1}"
    ".mark{stroke:var(--ink);stroke-width:2}"
    ".bars+.legend{margin-top:1rem}\n";

static const char tile_rules[] =
    ".tiles{display:grid;gap:1.5rem 1.25rem;"
    "grid-template-columns:repeat(auto-fit,minmax(9.5rem,1fr))}"
    ".tiles.four{grid-template-columns:repeat(4,1fr)}.four .pair{display:contents}"
    ".pair{display:grid;gap:1rem;align-content:start;min-width:0}"
    ".pair "
    "h5{margin:0;font-size:.875rem;font-weight:600;line-height:1.5rem;white-space:nowrap;overflow:"
    "hidden;"
    "text-overflow:ellipsis}.four h5{display:none}"
    ".tile img{display:block;width:100%;height:auto;image-rendering:pixelated;border-radius:3px}"
    ".tile figcaption{display:flex;flex-wrap:wrap;justify-content:space-between;gap:0 .5rem;"
    "font-size:.8125rem;font-weight:400;color:var(--soft);margin-bottom:.3rem}"
    ".film{display:grid;grid-template-columns:repeat(var(--frames),minmax(0,1fr));gap:.35rem}"
    ".film .tile{margin:0;min-width:0}"
    ".scale{height:.5rem;margin-top:.5rem;border-radius:2px;-webkit-print-color-adjust:exact;"
    "print-color-adjust:exact}"
    ".ends{display:flex;justify-content:space-between;gap:.25rem;margin:.15rem 0 0;"
    "font-size:.75rem;color:var(--soft);font-variant-numeric:tabular-nums}\n";

/* Drawings shrink with the screen: their text must not. */
static const char narrow_rules[] =
    "@media (max-width:40rem){main{padding:2rem 1rem 3rem}"
    "section{margin-top:2.5rem;padding-top:1.75rem}.chart svg{font-size:16px}"
    ".box{transform:scale(1.25)}.box text{font-size:12px}"
    ".bar-row{grid-template-columns:1fr auto;gap:.2rem .75rem}"
    ".bar-row .bar{grid-row:2;grid-column:1/3}"
    ".tiles,.tiles.four{grid-template-columns:1fr 1fr}.film{grid-template-columns:1fr 1fr 1fr}"
    "th,td{padding:.45rem .6rem}}\n"
    "@media print{main{padding:0}nav,.strip{display:none}section{break-inside:avoid-page}}\n";

/* A colour bar out of every n-th colour of a map, from `first` on. */
static void add_gradient(cli_html *page, const char *name, cli_map map, int first) {
    enum { STOPS = 16 };
    uint32_t colour[CLI_MAP_COLOURS];
    cli_map_table(map, colour);
    cli_html_add(page, ".%s{background:linear-gradient(90deg", name);
    for (int i = 0; i <= STOPS; i++) {
        const uint32_t c = colour[first + (CLI_MAP_LEVELS - 1 - first) * i / STOPS];
        cli_html_add(page, ",rgb(%d,%d,%d)", (int)(c >> 16), (int)(c >> 8 & 255), (int)(c & 255));
    }
    cli_html_add(page, ")}\n");
}

void cli_report_style(cli_html *page) {
    static const char *const fills[] = {"optimizer",     "factors",     "indices",   "weights",
                                        "gradients",     "activations", "workspace", "data",
                                        "communication", "other"};
    cli_html_add(page, "<style>\n");
    cli_html_literal(page, light);
    cli_html_literal(page, dark);
    cli_html_literal(page, text_rules);
    cli_html_literal(page, table_rules);
    cli_html_literal(page, chart_rules);
    cli_html_literal(page, tile_rules);
    for (int i = 0; i <= 8; i++) {
        cli_html_add(page, ".c%d{--c:var(--c%d)}", i, i);
    }
    for (size_t i = 0; i < sizeof fills / sizeof fills[0]; i++) {
        cli_html_add(page, ".m-%s{--f:var(--%s)}", fills[i], fills[i]);
    }
    cli_html_add(page, ".t-steps{--f:var(--steps)}.t-rest{--f:var(--rest)}\n");
    add_gradient(page, "field", CLI_MAP_FIELD, 0);
    add_gradient(page, "error", CLI_MAP_ERROR, 0);
    add_gradient(page, "half", CLI_MAP_ERROR, CLI_MAP_LEVELS / 2);
    cli_html_literal(page, narrow_rules);
    cli_html_add(page, "</style>\n");
}
