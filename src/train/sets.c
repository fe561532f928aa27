/* From settings to files. */
#include "train/sets.h"

#include <stdio.h>

#include "base/context.h"

static int64_t entry(const tg_list_int *list, int index, int64_t fallback) {
    return list->count == 0 ? fallback : list->value[list->count == 1 ? 0 : index];
}

tg_run_set tg_run_train_set(const tg_run_config *config) {
    const tg_source_config *data = &config->data;
    return (tg_run_set){.part = "train",
                        .file_resolution =
                            data->file_resolution ? data->file_resolution : data->train_resolution,
                        .resolution = data->train_resolution,
                        .n_samples = data->n_train,
                        .file = data->train_file,
                        .batch = data->batch_size};
}

tg_run_set tg_run_test_set(const tg_run_config *config, int index) {
    const tg_source_config *data = &config->data;
    const int64_t resolution = data->test_resolutions.value[index];
    return (tg_run_set){.part = "test",
                        .file_resolution = resolution,
                        .resolution = resolution,
                        .n_samples = entry(&data->n_tests, index, 0),
                        .batch = entry(&data->test_batch_sizes, index, data->batch_size)};
}

tg_status tg_run_find_set(tg_context *ctx, const tg_run_config *config, const tg_run_set *set,
                          char *path, size_t capacity, tg_dataset_config *out) {
    const tg_source_config *data = &config->data;
    const char *file = set->file;
    *out = tg_dataset_config_default();
    out->n_dim = config->fno.n_dim;
    out->resolution = set->resolution;
    out->n_samples = set->n_samples;
    out->complex_data = config->fno.complex_data;
    out->cache_bytes = (size_t)data->cache;
    tg_status status = tg_time_parse(ctx, "data.y_time", data->y_time, &out->y_time);
    if (status != TG_OK) {
        return status;
    }
    if (file && file[0]) {
        snprintf(path, capacity, "%s%s%s", file[0] == '/' ? "" : data->root,
                 file[0] == '/' || !data->root[0] ? "" : "/", file);
        return TG_OK;
    }
    return tg_data_find(ctx, data->root[0] ? data->root : ".", data->set, set->part,
                        set->file_resolution, path, capacity);
}

tg_status tg_run_check_set(tg_context *ctx, const tg_run_config *config, const char *path,
                           const tg_dataset_facts *facts) {
    const tg_fno_config *fno = &config->fno;
    if (facts->in_channels != fno->in_channels || facts->out_channels != fno->out_channels) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "fno.in_channels, fno.out_channels: %lld and %lld, but %s has %lld and %lld",
                       (long long)fno->in_channels, (long long)fno->out_channels, path,
                       (long long)facts->in_channels, (long long)facts->out_channels);
    }
    return TG_OK;
}
