/* The pages about a sweep: a table in Markdown, and one in HTML with plots. */
#ifndef CLI_SWEEP_PAGE_H
#define CLI_SWEEP_PAGE_H

#include "report/html.h"
#include "table.h"

/* The table with its title and notes; nothing is escaped beyond what Markdown needs. */
void cli_sweep_markdown(cli_html *out, const cli_sweep_table *table);

/* Writes `path`, in Markdown if it ends in .md; *bytes is its size, 0 if it was not written.
 * CLI_FAILED after a message, also where only the curves of runs are left out. */
int cli_sweep_report(tg_context *ctx, const char *folder, const char *heading, const char *path,
                     size_t *bytes);

#endif
