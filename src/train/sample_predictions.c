/* Predictions on a few test samples, kept for the report: x_G, y_G and pred_G per grid G. */
#include <stdio.h>
#include <string.h>

#include "train/run_datasets.h"
#include "train/trainer.h"

static tg_status keep_samples(const char *name, const char *grid, tg_tensor *from,
                              tg_archive *archive) {
    char full[TG_GRID_TEXT + 8];
    snprintf(full, sizeof full, "%s_%s", name, grid);
    return tg_archive_take(archive, full, from);
}

/* Adds x, y and the prediction of the first samples of a test set. */
static tg_status add_samples(tg_trainer *t, int index, tg_archive *archive) {
    const tg_dataset_facts facts = tg_dataset_get_facts(t->tests[index].dataset);
    const int64_t count = facts.samples < TG_SAMPLES_SHOWN ? facts.samples : TG_SAMPLES_SHOWN;
    const char *grid = t->tests[index].name;
    static const int64_t indices[TG_SAMPLES_SHOWN] = {0, 1, 2, 3};
    const tg_shape x_shape = tg_batch_shape(&facts, count, facts.in_channels);
    const tg_shape y_shape = tg_batch_shape(&facts, count, facts.out_channels);
    tg_tensor x = {0}, y = {0}, pred = {0};
    tg_status status = TG_OK;
    TG_TRY(tg_tensor_create(t->ctx, TG_MEM_DATA, facts.dtype, &x_shape, &x));
    TG_TRY(tg_tensor_create(t->ctx, TG_MEM_DATA, facts.dtype, &y_shape, &y));
    TG_TRY(tg_tensor_create(t->ctx, TG_MEM_DATA, facts.dtype, &y_shape, &pred));
    TG_TRY(tg_dataset_read(t->tests[index].dataset, indices, count, x.data, y.data));
    TG_TRY(tg_model_predict(t->model, &x, &pred));
    TG_TRY(keep_samples("x", grid, &x, archive));
    TG_TRY(keep_samples("y", grid, &y, archive));
    TG_TRY(keep_samples("pred", grid, &pred, archive));
fail:
    tg_tensor_destroy(&x);
    tg_tensor_destroy(&y);
    tg_tensor_destroy(&pred);
    return status;
}

/* The metadata of a file, if made by `tgrad generate`. */
static tg_status read_origin(tg_context *ctx, const char *path, tg_archive **out) {
    tg_status status = TG_OK;
    tg_h5 *file = NULL;
    tg_file_format format;
    TG_TRY(tg_file_detect(ctx, path, &format));
    if (format == TG_FILE_HDF5) {
        TG_TRY(tg_h5_open(ctx, path, &file));
        TG_TRY(tg_archive_create(ctx, out));
        TG_TRY(tg_h5_read_meta(file, *out));
    }
fail:
    tg_h5_close(&file);
    if (status != TG_OK || !tg_archive_meta(*out, "equation")) {
        tg_archive_destroy(out);
    }
    return status == TG_E_FORMAT ? TG_OK : status; /* unreadable attributes count as absent */
}

tg_status tg_trainer_read_origin(tg_trainer *t) {
    const tg_run_config *config = &t->model->config;
    tg_dataset_config reading;
    char path[TG_PATH];
    if (tg_run_tests(&config->data) == 0) {
        return TG_OK;
    }
    const tg_run_set set = tg_run_test_set(config, 0);
    TG_CALL(tg_run_find_set(t->ctx, config, &set, path, sizeof path, &reading));
    return read_origin(t->ctx, path, &t->origin);
}

static tg_status add_origin(const tg_trainer *t, tg_archive *archive) {
    char key[128];
    for (int64_t i = 0; i < tg_archive_meta_count(t->origin); i++) {
        snprintf(key, sizeof key, "test_data.%s", tg_archive_meta_key(t->origin, i));
        TG_CALL(tg_archive_set_meta(archive, key, tg_archive_meta_value(t->origin, i)));
    }
    return TG_OK;
}

/* The step of these predictions. */
static const char *step_text(const tg_trainer *t, char text[32]) {
    snprintf(text, 32, "%lld", (long long)t->progress.step);
    return text;
}

tg_status tg_trainer_write_samples(tg_trainer *t) {
    tg_archive *archive = NULL;
    tg_status status = TG_OK;
    char path[TG_PATH], step[32];
    TG_TRY(tg_run_folder_file(&t->folder, "samples.safetensors", path));
    TG_TRY(tg_archive_create(t->ctx, &archive));
    TG_TRY(tg_archive_set_meta(archive, "tgrad.step", step_text(t, step)));
    for (int i = 0; i < tg_run_tests(&t->model->config.data); i++) {
        TG_TRY(add_samples(t, i, archive));
    }
    TG_TRY(add_origin(t, archive));
    TG_TRY(tg_trainer_writes(t) ? tg_safetensors_write(t->ctx, path, archive) : TG_OK);
fail:
    tg_archive_destroy(&archive);
    return status;
}

bool tg_trainer_has_samples(const tg_trainer *t) {
    char path[TG_PATH], step[32];
    tg_archive *archive = NULL;
    if (tg_run_folder_file(&t->folder, "samples.safetensors", path) != TG_OK ||
        tg_safetensors_read(t->ctx, path, &archive) != TG_OK) {
        return false;
    }
    const char *found = tg_archive_meta(archive, "tgrad.step");
    const bool holds = found && strcmp(found, step_text(t, step)) == 0;
    tg_archive_destroy(&archive);
    return holds;
}
