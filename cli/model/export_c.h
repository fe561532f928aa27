/* The model file of predict/tgrad_predict.h, and the sources that read it. */
#ifndef CLI_MODEL_EXPORT_C_H
#define CLI_MODEL_EXPORT_C_H

#include "common/text.h"
#include "tgrad/tgrad.h"

/* Appends the model file: header and weights in f32. CLI_FAILED after a message, also for a network
 * that tgrad_predict does not know. */
int cli_export_c(tg_context *ctx, tg_model *model, const char *path, cli_bytes *out);

/* The sources as the build found them. */
typedef struct cli_source_text {
    const char *name;
    const unsigned char *text;
    size_t size;
} cli_source_text;

extern const cli_source_text cli_predict_sources[]; /* up to name NULL */

#endif
