/* Files that commands read: tensors in any format, and trained models. */
#ifndef CLI_COMMON_INPUT_FILES_H
#define CLI_COMMON_INPUT_FILES_H

#include <jansson.h>

#include "options.h"
#include "output.h"
#include "tgrad/tgrad.h"

/* ---- tensors: npy and safetensors are read at once, HDF5 dataset by dataset, so that a file
 * larger than the memory can be inspected ---- */

typedef struct cli_source {
    tg_context *ctx;
    const char *path;
    tg_file_format format;
    tg_archive *archive; /* tensors and metadata; of HDF5 the metadata alone, once they are read */
    tg_h5 *h5;           /* HDF5 only: the tensors */
} cli_source;

tg_status cli_source_open(tg_context *ctx, const char *path, cli_source *out);
void cli_source_close(cli_source *source); /* accepts all zero */

/* Completes the metadata of `archive`: those of an HDF5 file are read only when they are needed. */
tg_status cli_source_read_meta(cli_source *source);

int64_t cli_source_count(const cli_source *source);
const char *cli_source_name(const cli_source *source, int64_t index);
tg_status cli_source_describe(const cli_source *source, int64_t index, tg_dtype *dtype,
                              tg_shape *shape);
/* Statistics; a large HDF5 dataset is read chunk by chunk. */
tg_status cli_source_stats(const cli_source *source, int64_t index, tg_tensor_stats *out);
/* The whole tensor in its own dtype: new memory, or a view that lives as long as the source. */
tg_status cli_source_read(const cli_source *source, int64_t index, tg_tensor *out);

/* The tensor called `name`. If none is, the program ends with a message of the nearest, or all. */
int64_t cli_source_find(const cli_source *source, const char *name);

/* Writes the first names, "x, y, .. (9 in all)"; returns text. */
const char *cli_source_names(const cli_source *source, char *text, size_t capacity);

/* A dataset of a file without reading samples, unless its arrays must be read whole and fit in the
 * cache of the config. */
tg_status cli_dataset_open(tg_context *ctx, const char *path, const tg_dataset_config *config,
                           tg_dataset **out);

extern const char *const cli_orders[]; /* "nchw", "nhwc": choices of an option */

/* [64, 64, 33] */
json_t *cli_json_shape(const tg_shape *shape);

/* Bytes of a file on disk, 0 if that is not known. */
uint64_t cli_file_bytes(const char *path);

/* ---- a trained model from a checkpoint file, the folder of a run, or a file of weights with a
 * configuration ---- */

typedef struct cli_model {
    char *path; /* the checkpoint */
    tg_model *model;
    bool is_chosen; /* out of a run folder */
} cli_model;

/* --checkpoint: which one of a run; --config and --normalize: how a file of weights alone is read.
 */
extern const cli_option cli_model_options[];

void cli_model_open(tg_context *ctx, const char *path, cli_model *out);
void cli_model_close(cli_model *model); /* accepts all zero */

/* On stderr, for weights read by --config: which sides of the data are normalized. */
void cli_model_print_normalized(const cli_model *model);

/* "checkpoint: best, epoch 8 of 15 (by h1)" on stdout, before results: of a run folder. */
void cli_model_say_checkpoint(const cli_model *model);

/* An object with "checkpoint", its path, "epoch", "epochs" and "best_by" of its run (null: not
 * known). */
json_t *cli_model_json(const cli_model *model);

/* Dimensions, channels and the numbers it works with: TG_F32 or TG_C64. */
const tg_fno_config *cli_model_config(const cli_model *model);
tg_dtype cli_model_dtype(const cli_model *model);

/* Whether a network works on points (GINO), and how many dimensions the grids of its data have: 1
 * there, where the grid is the number of points. */
bool cli_on_points(const tg_fno_config *fno);
int cli_data_dims(const tg_fno_config *fno);

#endif
