/* tgrad verify: functions common to all kinds of golden files.
 *
 * A kind recomputes a file's numbers, adds what it computed to an archive under the same names, and
 * adds one check per compared quantity; cmd_verify.c prints, writes and judges. A file that is not
 * what its kind needs ends the program with a message. */
#ifndef CLI_MODEL_VERIFY_H
#define CLI_MODEL_VERIFY_H

#include <jansson.h>

#include "common/output.h"

#define VERIFY_LIMIT 1e-4 /* of relative errors |a - b| / |b| */

typedef struct verify_run {
    tg_context *ctx;
    const char *path;
    tg_archive *golden, *computed;
    json_t *checks; /* name, error, limit, ok */
    double worst;   /* error; NaN if there is one */
    bool is_good;   /* all pass */
} verify_run;

/* Adds a check; it passes if error <= limit, so NaN fails. */
void verify_add(verify_run *run, double error, double limit, const char *format, ...)
    TG_PRINTF(4, 5);

/* |a - b| / |b - origin| over the elements of f32, f64, c64 or c128 tensors; origin NULL: 0. 0 if a
 * and b are equal, NaN if dtypes or sizes differ or anything is not finite. */
double verify_relative_error(const tg_tensor *a, const tg_tensor *b, const tg_tensor *origin);

/* Checks `tensor` against the golden one of that name, if there is one, and moves it to the
 * computed ones. */
void verify_compare(verify_run *run, const char *name, tg_tensor *tensor);

const tg_tensor *verify_tensor(const verify_run *run, const char *name); /* golden */

/* Metadata key as JSON, to be released. */
json_t *verify_metadata(const verify_run *run, const char *key);
/* A JSON scalar or list as the text that the settings take; to be freed. */
char *verify_value_text(const json_t *value);

/* Sets every key of metadata `config`. */
typedef tg_status (*verify_set)(tg_context *ctx, void *config, const char *key, const char *text);
void verify_read_config(const verify_run *run, verify_set set, void *config);

/* Files of points have channels last. The golden tensor of that name as (samples, channels,
 * points), to be destroyed; and such a tensor compared with one. */
tg_tensor verify_channels_first(verify_run *run, const char *name);
void verify_channels_last(verify_run *run, const char *name, const tg_tensor *tensor);

/* The kinds. */
void verify_fno(verify_run *run);
void verify_gino(verify_run *run);
void verify_gno(verify_run *run);
void verify_optim(verify_run *run);
void verify_tucker(verify_run *run);

#endif
