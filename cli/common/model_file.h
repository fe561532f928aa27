/* A trained model from a checkpoint file, the folder of a run, or a file of weights with a
 * configuration. */
#ifndef CLI_COMMON_MODEL_FILE_H
#define CLI_COMMON_MODEL_FILE_H

#include "options.h"
#include "output.h"
#include "tgrad/tgrad.h"

typedef struct cli_model {
    char *path; /* the checkpoint */
    tg_model *model;
    bool is_chosen; /* out of a run folder */
} cli_model;

/* --checkpoint: which one of a run; --config and --normalize: how a file of weights alone is read.
 */
extern const cli_option cli_model_options[];

/* CLI_FAILED after a message; *out is then all zero. */
int cli_model_open(tg_context *ctx, const char *path, cli_model *out);
void cli_model_close(cli_model *model); /* accepts all zero */

/* On stderr, for weights read by --config: which sides of the data are normalized. */
void cli_model_print_normalized(const cli_model *model);

/* "checkpoint: best, epoch 8 of 15 (by h1)" on stdout, before results: of a run folder. */
void cli_model_say_checkpoint(const cli_model *model);

/* "checkpoint", its path, with "epoch", "epochs" and "best_by" of its run (null: not known). */
void cli_model_set_json(json_t *object, const cli_model *model);

/* Dimensions, channels and the numbers it works with: TG_F32 or TG_C64. */
const tg_fno_config *cli_model_config(const cli_model *model);
tg_dtype cli_model_dtype(const cli_model *model);

/* Whether a network works on points (GINO), and how many dimensions the grids of its data have: 1
 * there, where the grid is the number of points. */
bool cli_on_points(const tg_fno_config *fno);
int cli_data_dims(const tg_fno_config *fno);

#endif
