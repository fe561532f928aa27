/* Finds the samples of a file that the training of a model used, and those its run held out. */
#include <string.h>
#include <sys/stat.h>

#include "data/dataset.h"
#include "train/model.h"
#include "train/run_datasets.h"

static bool is_same_file(const char *a, const char *b) {
    struct stat one, other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* Whether a set of the run is in that file. */
static bool is_in(tg_context *ctx, const tg_run_config *config, const tg_run_set *set,
                  const char *file) {
    char path[2048];
    tg_dataset_config how;
    return tg_run_find_set(ctx, config, set, path, sizeof path, &how) == TG_OK &&
           is_same_file(path, file);
}

/* Samples of a whole file, or trajectories. */
static tg_status count_samples(tg_context *ctx, const tg_run_config *config, const char *file,
                               tg_model_split *out) {
    tg_dataset_config how;
    tg_dataset_facts facts;
    tg_dataset_bytes bytes;
    TG_CALL(tg_run_read_files(ctx, config, &how));
    how.cache_bytes = SIZE_MAX; /* also counts files that must be read whole */
    TG_CALL(tg_dataset_plan(ctx, file, &how, &facts, &bytes));
    out->has_trajectories = facts.trajectories > 0;
    out->total = out->has_trajectories ? facts.trajectories : facts.samples;
    return TG_OK;
}

/* The run's test set in that file, after the training samples; otherwise the whole file. */
static void find_tests(tg_context *ctx, const tg_run_config *config, const char *file,
                       tg_model_split *out) {
    out->first_test = out->trained;
    out->tests = out->total - out->trained;
    for (int i = 0; i < tg_run_tests(&config->data); i++) {
        const tg_run_set set = tg_run_test_set(config, i);
        const int64_t left = out->total - set.first_sample;
        if (set.first_sample >= out->trained && left > 0 && is_in(ctx, config, &set, file)) {
            out->first_test = set.first_sample;
            out->tests = set.n_samples > 0 && set.n_samples < left ? set.n_samples : left;
            return;
        }
    }
}

tg_status tg_model_get_split(const tg_model *model, const char *file, tg_model_split *out) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, file, out);
    tg_context *ctx = model->ctx;
    *out = (tg_model_split){0};
    for (int stage = 1; stage <= tg_run_stages(model->settings); stage++) {
        tg_run_config config;
        TG_CALL(tg_run_config_read_network(ctx, model->settings, stage, &config));
        const tg_run_set set = tg_run_train_set(&config);
        if (is_in(ctx, &config, &set, file)) {
            TG_CALL(out->total > 0 ? TG_OK : count_samples(ctx, &config, file, out));
            const bool is_part = set.n_samples > 0 && set.n_samples < out->total;
            const int64_t used = is_part ? set.n_samples : out->total;
            out->trained = used > out->trained ? used : out->trained;
        }
    }
    if (out->trained > 0 && out->trained < out->total) {
        find_tests(ctx, &model->config, file, out);
    }
    return TG_OK;
}
