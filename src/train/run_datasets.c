/* Finds and opens the data files of a run. */
#include "train/run_datasets.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/context.h"
#include "data/dataset.h"
#include "train/model.h"

static int64_t entry(const tg_list_int *list, int index, int64_t fallback) {
    return list->count == 0 ? fallback : list->value[list->count == 1 ? 0 : index];
}

tg_run_set tg_run_train_set(const tg_run_config *config) {
    const tg_source_config *data = &config->data;
    int64_t grid[TG_DATA_MAX_DIMS];
    const bool is_thinned = tg_run_grid(&data->file_resolution, tg_run_data_dims(config), grid);
    return (tg_run_set){.part = "train",
                        .key = "data.train_resolution",
                        .file_grid = is_thinned ? data->file_resolution : data->train_resolution,
                        .grid = data->train_resolution,
                        .n_samples = data->n_train,
                        .n_validation = data->n_validation,
                        .file = data->train_file,
                        .batch = tg_run_local_batch(config),
                        .steps = config->loop.rollout_steps};
}

tg_run_set tg_run_test_set(const tg_run_config *config, int index) {
    const tg_source_config *data = &config->data;
    const int files = data->test_files.count, grids = data->test_resolutions.count;
    if (index == tg_run_tests(data)) {
        tg_run_set validation = tg_run_train_set(config);
        validation.is_validation = true;
        validation.batch = tg_run_at_once(config, data->batch_size);
        validation.steps = 1;
        return validation;
    }
    tg_run_set set = {
        .part = "test",
        .key = "data.test_resolutions",
        .n_samples = entry(&data->n_tests, index, 0),
        .first_sample = data->test_skip,
        .batch = tg_run_at_once(config, entry(&data->test_batch_sizes, index, data->batch_size)),
        .steps = 1};
    if (files > 0) {
        set.file = data->test_files.text[files == 1 ? 0 : index];
    }
    if (grids > 0) {
        set.grid = set.file_grid = data->test_resolutions.grid[grids == 1 ? 0 : index];
    }
    return set;
}

bool tg_run_grid(const tg_list_int *from, int n_dim, int64_t grid[TG_DATA_MAX_DIMS]) {
    bool is_known = from->count > 0;
    for (int d = 0; d < TG_DATA_MAX_DIMS; d++) {
        grid[d] = from->count > 0 && d < n_dim ? from->value[from->count == 1 ? 0 : d] : 0;
        is_known = is_known && (d >= n_dim || grid[d] > 0);
    }
    return is_known;
}

void tg_run_take_grid(tg_run_config *config, const tg_dataset_facts *facts) {
    tg_list_int *list = &config->data.train_resolution;
    int64_t grid[TG_DATA_MAX_DIMS];
    if (tg_run_grid(list, facts->n_dim, grid)) {
        return;
    }
    bool is_square = true;
    for (int d = 0; d < facts->n_dim; d++) {
        list->value[d] = facts->grid[d];
        is_square = is_square && facts->grid[d] == facts->grid[0];
    }
    list->count = is_square ? 1 : facts->n_dim;
}

/* The grid of a set's file from the settings; fails if it has too few or too many sizes. */
static tg_status read_grid(tg_context *ctx, const tg_run_config *config, const tg_run_set *set,
                           tg_dataset_config *out) {
    const int n_dim = tg_run_data_dims(config), counts[] = {set->grid.count, set->file_grid.count};
    for (int i = 0; i < 2; i++) {
        if (counts[i] > 1 && counts[i] != n_dim) {
            return tg_fail(
                ctx, TG_E_CONFIG, "%s: a grid of %d dimensions, but %s %d",
                i == 0 || strcmp(set->part, "test") == 0 ? set->key : "data.file_resolution",
                counts[i], tg_run_on_points(config) ? "points are counted by" : "fno.n_modes has",
                n_dim);
        }
    }
    tg_run_grid(&set->grid, n_dim, out->grid);
    return TG_OK;
}

tg_status tg_run_read_files(tg_context *ctx, const tg_run_config *config, tg_dataset_config *out) {
    const tg_source_config *data = &config->data;
    *out = tg_dataset_config_default();
    out->n_dim = tg_run_data_dims(config);
    out->coordinates = tg_run_on_points(config) ? config->fno.n_dim : 0;
    out->x_name = data->x_name[0] ? data->x_name : out->x_name;
    out->y_name = data->y_name[0] ? data->y_name : out->y_name;
    out->complex_data = config->fno.complex_data;
    out->dtype = config->fno.dtype;
    out->cache_bytes = (size_t)data->cache;
    out->layout = data->layout;
    out->group = data->group;
    out->fields = data->fields;
    out->channels_last = data->order == 1;
    out->history = data->history;
    out->horizon = data->horizon;
    out->time_stride = data->time_stride;
    out->first_frame = data->first_frame;
    out->n_frames = data->n_frames;
    return tg_time_parse(ctx, "data.y_time", data->y_time, &out->y_time);
}

tg_status tg_run_find_set(tg_context *ctx, const tg_run_config *config, const tg_run_set *set,
                          char *path, size_t capacity, tg_dataset_config *out) {
    const tg_source_config *data = &config->data;
    const char *file = set->file;
    char name[TG_GRID_TEXT];
    int64_t grid[TG_DATA_MAX_DIMS];
    TG_CALL(tg_run_read_files(ctx, config, out));
    out->n_samples = set->n_samples;
    out->n_validation = set->n_validation;
    out->is_validation = set->is_validation;
    out->first_sample = set->first_sample;
    out->horizon *= set->steps;
    out->part = config->split.part;
    out->parts = config->split.parts;
    TG_CALL(read_grid(ctx, config, set, out));
    if (file && file[0]) {
        snprintf(path, capacity, "%s%s%s", file[0] == '/' ? "" : data->root,
                 file[0] == '/' || !data->root[0] ? "" : "/", file);
        return TG_OK;
    }
    const bool is_named = tg_run_grid(&set->file_grid, out->n_dim, grid);
    const tg_status status =
        tg_data_find(ctx, data->root[0] ? data->root : ".", data->set, set->part,
                     is_named ? tg_grid_text(out->n_dim, grid, name) : NULL, path, capacity);
    return status == TG_E_CONFIG /* ambiguous: several could be meant */
               ? tg_fail(ctx, status, "%s: %s", set->key, tg_context_error(ctx))
               : status;
}

tg_status tg_run_check_set(tg_context *ctx, const tg_run_config *config, int64_t steps,
                           const char *path, const tg_dataset_facts *facts) {
    if (steps > 1 && facts->trajectories == 0) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.rollout_steps: %lld steps need trajectories, but %s holds pairs "
                       "(data.layout)",
                       (long long)steps, path);
    }
    const tg_fno_config *fno = &config->fno;
    const struct {
        const char *side, *key;
        int64_t found, set;
    } rows[] = {{"x", "in_channels", facts->in_channels, fno->in_channels},
                {"y", "out_channels", facts->out_channels / steps, fno->out_channels}};
    for (int i = 0; i < 2; i++) {
        if (rows[i].found != rows[i].set) {
            char grid[TG_GRID_TEXT];
            const bool is_last =
                config->data.order == 0 && facts->grid[facts->n_dim - 1] == rows[i].set;
            return tg_fail(ctx, TG_E_CONFIG,
                           "fno.%s: %lld, but %s of %s has %lld channel%s on a grid of %s; %s",
                           rows[i].key, (long long)rows[i].set, rows[i].side, path,
                           (long long)rows[i].found, rows[i].found == 1 ? "" : "s",
                           tg_grid_text(facts->n_dim, facts->grid, grid),
                           is_last ? "if the channels come last, set data.order: nhwc"
                                   : "fno.n_modes says how many dimensions the grid has");
        }
    }
    if (tg_dtype_real(facts->dtype) != fno->dtype) {
        return tg_fail(ctx, TG_E_DTYPE, "fno.dtype: %s, but %s was opened to hand out %s",
                       tg_dtype_name(fno->dtype), path, tg_dtype_name(facts->dtype));
    }
    return tg_dtype_is_complex(facts->dtype) && !fno->complex_data
               ? tg_fail(
                     ctx, TG_E_CONFIG,
                     "fno.complex_data: expected true, as %s holds complex numbers, found false",
                     path)
               : TG_OK;
}

void tg_run_warn_of_overlap(tg_context *ctx, const tg_run_config *config,
                            const tg_dataset_facts *trained) {
    const tg_source_config *data = &config->data;
    const int64_t count = trained->trajectories > 0 ? trained->trajectories : trained->samples;
    for (int i = 0; i < data->test_files.count && data->test_skip < count; i++) {
        if (strcmp(data->test_files.text[i], data->train_file) == 0) {
            tg_log(ctx, TG_LOG_WARN,
                   "data.test_files: %s is the training file, too, and its errors are those of "
                   "samples that are trained on; data.n_train and data.test_skip of the same "
                   "number keep the samples after it for tests",
                   data->train_file);
            return;
        }
    }
}

tg_status tg_run_name_steps(tg_context *ctx, const tg_run_set *set, tg_status status) {
    return status != TG_E_CONFIG || set->steps == 1
               ? status
               : tg_fail(ctx, status, "opt.rollout_steps: %lld times data.horizon: %s",
                         (long long)set->steps, tg_context_error(ctx));
}

tg_status tg_run_open_set(tg_context *ctx, tg_context *reader, const tg_run_config *config,
                          const tg_run_set *set, tg_dataset **out) {
    tg_dataset_config how;
    char path[2048];
    tg_status status = TG_OK;
    *out = NULL;
    TG_TRY(tg_run_find_set(ctx, config, set, path, sizeof path, &how));
    status = tg_context_adopt(ctx, reader, tg_dataset_open(reader, path, NULL, &how, out));
    TG_TRY(tg_run_name_steps(ctx, set, status));
    if (reader != ctx) {
        tg_dataset_warn(ctx, *out, path);
    }
    const tg_dataset_facts facts = tg_dataset_get_facts(*out);
    TG_TRY(tg_run_check_set(ctx, config, set->steps, path, &facts));
    return TG_OK;
fail:
    tg_dataset_close(out);
    return status;
}

/* ---- settings taken from the training file ---- */

/* Whether the settings leave the training grid to the file. */
static bool leaves_grid(const tg_run_config *config) {
    int64_t grid[TG_DATA_MAX_DIMS];
    return !tg_run_grid(&config->data.train_resolution, tg_run_data_dims(config), grid);
}

/* Sets the first stage's grid; later stages, which would inherit it, name their own files. */
static tg_status set_grid(tg_settings *settings, const tg_dataset_facts *facts, const char *path) {
    char text[TG_GRID_TEXT];
    TG_CALL(tg_settings_set(settings, "data.train_resolution",
                            tg_grid_text(facts->n_dim, facts->grid, text), path));
    for (int stage = tg_run_stages(settings); stage > 1; stage--) {
        char key[48];
        snprintf(key, sizeof key, "stage%d.data.train_resolution", stage);
        if (!tg_settings_get(settings, key)) {
            TG_CALL(tg_settings_set(settings, key, "0", path));
        }
    }
    return TG_OK;
}

tg_status tg_train_complete(tg_context *ctx, const tg_settings *settings, tg_settings **out) {
    TG_NEED_OUT(ctx, out, ctx, settings);
    static const char *const keys[] = {"fno.in_channels", "fno.out_channels"};
    tg_run_config config;
    tg_dataset_config how;
    tg_dataset_facts facts;
    tg_dataset_bytes bytes;
    char path[2048], text[32];
    tg_status status = TG_OK;
    TG_TRY(tg_run_config_read(ctx, settings, 1, false, &config));
    TG_TRY(tg_settings_copy(ctx, settings, out));
    const tg_run_set set = tg_run_train_set(&config);
    const bool has_channels =
        tg_settings_get(settings, keys[0]) && tg_settings_get(settings, keys[1]);
    if ((has_channels && !leaves_grid(&config)) ||
        tg_run_find_set(ctx, &config, &set, path, sizeof path, &how) != TG_OK ||
        tg_dataset_plan(ctx, path, &how, &facts, &bytes) != TG_OK) {
        return TG_OK; /* an error is reported when the file is opened */
    }
    for (int i = 0; i < 2; i++) {
        const int64_t steps = i == 1 && facts.trajectories > 0 ? set.steps : 1;
        const int64_t channels = (i == 0 ? facts.in_channels : facts.out_channels) / steps;
        snprintf(text, sizeof text, "%lld", (long long)channels);
        TG_TRY(tg_settings_get(settings, keys[i]) ? TG_OK
                                                  : tg_settings_set(*out, keys[i], text, path));
    }
    TG_TRY(leaves_grid(&config) ? set_grid(*out, &facts, path) : TG_OK);
    return TG_OK;
fail:
    tg_settings_destroy(out);
    return status;
}

/* ---- the samples of a file that a training used, and those it held out ---- */

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
