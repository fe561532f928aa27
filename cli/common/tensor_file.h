/* A file of tensors, whatever its format, as the commands see it: npy and safetensors are read at
 * once, HDF5 is read dataset by dataset, so that a file larger than the memory can be inspected. */
#ifndef CLI_COMMON_TENSOR_FILE_H
#define CLI_COMMON_TENSOR_FILE_H

#include <jansson.h>

#include "tgrad/tgrad.h"

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

/* The tensor called `name`. If none is, CLI_FAILED after a message with the nearest, or all. */
int cli_source_find(const cli_source *source, const char *name, int64_t *index);

/* Writes the first names, "x, y, .. (9 in all)"; returns text. */
const char *cli_source_names(const cli_source *source, char *text, size_t capacity);

/* A dataset of a file without reading samples, unless its arrays must be read whole and fit in the
 * cache of the config. */
tg_status cli_dataset_open(tg_context *ctx, const char *path, const tg_dataset_config *config,
                           tg_dataset **out);

/* [64, 64, 33] */
json_t *cli_json_shape(const tg_shape *shape);

/* Bytes of a file on disk, 0 if that is not known. */
uint64_t cli_file_bytes(const char *path);

#endif
