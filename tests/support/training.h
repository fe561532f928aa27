/* Small runs for tests: one dimension, milliseconds long, watched and stopped at will. Failures end
 * the test through cmocka. */
#ifndef TEST_SUPPORT_TRAINING_H
#define TEST_SUPPORT_TRAINING_H

#include "support/cmocka.h"
#include "tgrad/tgrad.h"

enum { RUN_EPOCHS = 32 };

/* Writes SET_PART_POINTS.safetensors into the test folder: smooth random fields x, and for y a
 * shifted, stretched copy of each. `broken` names samples whose y has a NaN, ending with -1; NULL:
 * none. Samples of one seed begin alike, however many there are. */
void run_write_set(tg_context *ctx, const char *set, const char *part, int64_t points,
                   int64_t samples, uint64_t seed, const int64_t *broken);

/* Settings of a network of some hundred weights on 16 points, over them `more`: key, value, ..,
 * NULL.
 */
tg_settings *run_settings(tg_context *ctx, const char *set, const char *const *more);

typedef struct run_record {
    int64_t stop_after; /* batches of this process after which to stop; 0: never */
    int64_t batches;    /* trained in this process */
    int epochs;
    tg_train_epoch epoch[RUN_EPOCHS]; /* as reported */
    tg_train_end end;
} run_record;

/* Trains into the folder `name` of the test folder, resuming what is there if `resumes`. Appends
 * what the trainer reports to *record. */
tg_status run_train(tg_context *ctx, const char *set, const char *name, const char *const *more,
                    bool resumes, run_record *record);

/* A file of a run folder, "checkpoints/best.safetensors"; valid until 8 more calls of test_path. */
const char *run_file(const char *name, const char *file);

/* Removes the run folders. */
void run_folders_remove(void);

#endif
