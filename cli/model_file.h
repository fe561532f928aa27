/* A trained model from what a user names: a checkpoint file, the folder of a run, or a file of
 * weights beside a configuration. */
#ifndef CLI_MODEL_FILE_H
#define CLI_MODEL_FILE_H

#include "options.h"
#include "tgrad/tgrad.h"

typedef struct cli_model {
    char *path; /* the checkpoint */
    tg_model *model;
} cli_model;

/* --config and --normalize: how a file of weights alone is read. */
extern const cli_option cli_model_options[];

/* Of a folder the best checkpoint is taken, or if there is none the most recent. CLI_FAILED after a
 * message; *out is then all zero. */
int cli_model_open(tg_context *ctx, const char *path, cli_model *out);
void cli_model_close(cli_model *model); /* accepts all zero */

/* On stderr, for weights read by --config: which sides of the data are normalized. */
void cli_model_tell(const cli_model *model);

/* Dimensions, channels and the numbers it works with: TG_F32 or TG_C64. */
const tg_fno_config *cli_model_config(const cli_model *model);
tg_dtype cli_model_dtype(const cli_model *model);

/* Whether a network works on points (GINO), and how many dimensions the grids of its data have: 1
 * there, where the grid is the number of points. */
bool cli_on_points(const tg_fno_config *fno);
int cli_data_dims(const tg_fno_config *fno);

#endif
