/* tgrad verify: functions common to all kinds of golden files.
 *
 * A kind recomputes a file's numbers, adds what it computed to an archive under the same names, and
 * adds one check per compared quantity; cmd_verify.c prints, writes and judges. */
#ifndef CLI_MODEL_VERIFY_H
#define CLI_MODEL_VERIFY_H

#include <jansson.h>

#include "common/output.h"

typedef struct verify_check {
    char name[160];
    double error; /* NaN fails */
    double limit;
} verify_check;

typedef struct verify_run {
    tg_context *ctx;
    const char *path;
    const tg_archive *golden;
    tg_archive *computed;
    verify_check *checks; /* (count) */
    int count;
    size_t capacity;
} verify_run;

/* Adds a check; it passes if error <= limit. */
void verify_add(verify_run *run, double error, double limit, const char *format, ...)
    TG_PRINTF(4, 5);

/* |a - b| / |b - origin| over the elements of f32, f64, c64 or c128 tensors; origin NULL: 0. 0 if a
 * and b are equal, NaN if dtypes or sizes differ or anything is not finite. */
double verify_relative_error(const tg_tensor *a, const tg_tensor *b, const tg_tensor *origin);

/* The golden tensor of that name; NULL after a message. */
const tg_tensor *verify_tensor(const verify_run *run, const char *name);

/* Metadata key as JSON (to be freed with json_decref); NULL after a message. */
json_t *verify_metadata(const verify_run *run, const char *key);

/* A JSON scalar or list as the text that the settings take; to be freed by the caller. */
char *verify_value_text(const json_t *value);

/* Sets every key of metadata `config`; CLI_FAILED after a message. */
typedef tg_status (*verify_set)(tg_context *ctx, void *config, const char *key, const char *text);
int verify_read_config(const verify_run *run, verify_set set, void *config);

/* Files of points have channels last. The golden tensor of that name as (samples, channels,
 * points), to be destroyed; and such a tensor compared with one, and given to what was computed.
 * Failures without a sentence of the context come after a message. */
TG_NODISCARD tg_status verify_channels_first(verify_run *run, const char *name, tg_tensor *out);
TG_NODISCARD tg_status verify_channels_last(verify_run *run, const char *name,
                                            const tg_tensor *tensor);
/* The code of a status, after the sentence of the context if it has one. */
int verify_code(const verify_run *run, tg_status status);

/* Where gradients of a network go: compared with `grad.<loss>.<parameter>`. */
typedef struct verify_sink {
    verify_run *run;
    const tg_fno *fno;
    const char *loss;
} verify_sink;
tg_status verify_receive(void *user, const tg_gradient *gradient);
/* Compares a loss with the tensor of that name. */
TG_NODISCARD tg_status verify_loss(verify_run *run, const char *name, double value);

/* The kinds: recompute, add tensors and checks; CLI_OK unless something could not be done. */
int verify_fno(verify_run *run);
int verify_gino(verify_run *run);
int verify_gno(verify_run *run);
int verify_optim(verify_run *run);
int verify_tucker(verify_run *run);

#endif
