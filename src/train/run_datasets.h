/* The data of a run, by its settings: a trainer opens them, a plan only reads their sizes. */
#ifndef TG_TRAIN_RUN_DATASETS_H
#define TG_TRAIN_RUN_DATASETS_H

#include "train/config.h"

/* One set of a run. */
typedef struct tg_run_set {
    const char *part;      /* "train" or "test" */
    const char *key;       /* data.train_resolution or data.test_resolutions */
    tg_list_int file_grid; /* of the file; as in tg_source_config */
    tg_list_int grid;      /* as used */
    int64_t n_samples;     /* 0: all */
    int64_t n_validation;  /* held out at their end .. */
    bool is_validation;    /* .. to be this set */
    int64_t first_sample;  /* earlier ones are skipped */
    const char *file;      /* replaces the conventional name; NULL or "": none */
    int64_t batch;
    int64_t steps; /* of a rollout: y has the frames of this many predictions */
} tg_run_set;

tg_run_set tg_run_train_set(const tg_run_config *config);
/* The validation set comes after the test sets. */
tg_run_set tg_run_test_set(const tg_run_config *config, int index);

/* How any file of the run is read, on its own grid: names, layout, windows. Strings point into
 * `config`. */
TG_NODISCARD tg_status tg_run_read_files(tg_context *ctx, const tg_run_config *config,
                                         tg_dataset_config *out);

/* Path and settings of a set's file. */
TG_NODISCARD tg_status tg_run_find_set(tg_context *ctx, const tg_run_config *config,
                                       const tg_run_set *set, char *path, size_t capacity,
                                       tg_dataset_config *out);

/* Checks that channels and dtype match the network, for y of `steps` steps. */
TG_NODISCARD tg_status tg_run_check_set(tg_context *ctx, const tg_run_config *config, int64_t steps,
                                        const char *path, const tg_dataset_facts *facts);

/* Warns of test samples that are also trained on; `trained`: of the training set. */
void tg_run_warn_of_overlap(tg_context *ctx, const tg_run_config *config,
                            const tg_dataset_facts *trained);

/* Adds to an error about opening a set that its windows have the length of the rollouts. */
TG_NODISCARD tg_status tg_run_name_steps(tg_context *ctx, const tg_run_set *set, tg_status status);

/* Finds, opens and checks a set, read with the context `reader`: ctx or a branch of it. */
TG_NODISCARD tg_status tg_run_open_set(tg_context *ctx, tg_context *reader,
                                       const tg_run_config *config, const tg_run_set *set,
                                       tg_dataset **out);

/* A grid of the settings for n_dim dimensions; false, and all 0, if they set none. */
bool tg_run_grid(const tg_list_int *from, int n_dim, int64_t grid[TG_DATA_MAX_DIMS]);

/* Sets data.train_resolution of a stage whose settings leave it to the file. */
void tg_run_take_grid(tg_run_config *config, const tg_dataset_facts *facts);

#endif
