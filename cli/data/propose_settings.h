/* Settings that train on a file of fields, as `tgrad init` writes, `tgrad inspect` shows them. */
#ifndef CLI_DATA_PROPOSE_SETTINGS_H
#define CLI_DATA_PROPOSE_SETTINGS_H

#include "common/text.h"
#include "tgrad/tgrad.h"

typedef struct cli_proposal {
    tg_dataset_facts facts;
    int coordinates; /* of points; 0: fields on a grid */
    cli_list arrays; /* names of those that samples come from */
    tg_settings *settings;
    char *method_note; /* why this opt.name; NULL: the memory of the machine is not known */
} cli_proposal;

/* Settings that `config` leaves open come from the file; an error says what was found and which key
 * to set. Arrays called "points" and "values" are data at points, others if `at_points`. To be
 * freed in either case. */
tg_status cli_propose(tg_context *ctx, const char *path, const tg_dataset_config *config,
                      bool at_points, cli_proposal *out);
#define CLI_PLACE_TEXT (TG_GRID_TEXT + 16)
/* "on a grid of 24x40", "at 500 points"; returns text. */
const char *cli_proposal_place(const cli_proposal *proposal, char text[CLI_PLACE_TEXT]);
/* The settings as YAML, with a comment where one helps. To be freed. */
char *cli_proposal_text(const cli_proposal *proposal);

/* Whether samples come from the array `name` of a file of this format. */
bool cli_proposal_uses(const cli_proposal *proposal, tg_file_format format, const char *name);

/* How many values of the arrays that samples come from are NaN or Inf. */
tg_status cli_proposal_nonfinite(tg_context *ctx, const char *path, const cli_proposal *proposal,
                                 int64_t *count);

/* The command for a file without x and y: of one array, of two, or of a pair such as x_train and
 * y_train; NULL: it is no such file. To be freed. */
char *cli_propose_command(tg_context *ctx, const char *path);
void cli_proposal_free(cli_proposal *proposal);

#endif
