/* Predictions on a few test samples, kept for the report: x_G, y_G and pred_G per grid G. */
#include <stdio.h>
#include <string.h>

#include "nn/network.h"
#include "train/run_datasets.h"
#include "train/trainer.h"

/* Takes a field (samples, channels, grid..) into the archive. Of ranks that share the samples, each
 * of which has a slab, the first one makes it whole; the other ranks' is freed. */
static tg_status keep_field(const tg_trainer *t, const char *name, const char *grid,
                            const tg_dataset_facts *facts, tg_tensor *field, tg_archive *archive) {
    char full[TG_GRID_TEXT + 8];
    if (nn_is_split(&t->split)) {
        tg_tensor whole;
        TG_CALL(nn_gather(t->model->be, &t->split, field, facts->grid[0], &whole));
        tg_tensor_destroy(field);
        *field = whole;
    }
    snprintf(full, sizeof full, "%s_%s", name, grid);
    return tg_trainer_writes(t) ? tg_archive_take(archive, full, field) : TG_OK;
}

/* Adds x, y and the prediction of the first samples of a test set. */
static tg_status add_samples(tg_trainer *t, int index, tg_archive *archive) {
    const tg_dataset_facts facts = tg_dataset_get_facts(t->tests[index].dataset);
    const int64_t count = facts.samples < TG_SAMPLES_SHOWN ? facts.samples : TG_SAMPLES_SHOWN;
    const char *grid = t->tests[index].name;
    static const int64_t indices[TG_SAMPLES_SHOWN] = {0, 1, 2, 3};
    const tg_shape x_shape = tg_batch_shape(&facts, count, facts.in_channels);
    const tg_shape y_shape = tg_batch_shape(&facts, count, facts.out_channels);
    const tg_shape *const shapes[] = {&x_shape, &y_shape, &y_shape};
    static const char *const names[] = {"x", "y", "pred"};
    enum { FIELDS = 3 };
    tg_tensor fields[FIELDS] = {{0}};
    tg_status status = TG_OK;
    for (int i = 0; i < FIELDS && status == TG_OK; i++) {
        status = tg_tensor_create(t->ctx, TG_MEM_DATA, facts.dtype, shapes[i], &fields[i]);
    }
    if (status == TG_OK) {
        status = tg_dataset_read(t->tests[index].dataset, indices, count, fields[0].data,
                                 fields[1].data);
    }
    TG_TRY(nn_agree(&t->split, status));
    TG_TRY(tg_model_predict_slab(t->model, &facts, &fields[0], &fields[2]));
    for (int i = 0; i < FIELDS; i++) {
        TG_TRY(keep_field(t, names[i], grid, &facts, &fields[i], archive));
    }
fail:
    for (int i = 0; i < FIELDS; i++) {
        tg_tensor_destroy(&fields[i]);
    }
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
    tg_run_folder_file(&t->folder, "samples.safetensors", path);
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
    tg_run_folder_file(&t->folder, "samples.safetensors", path);
    if (tg_safetensors_read(t->ctx, path, &archive) != TG_OK) {
        return false;
    }
    const char *found = tg_archive_meta(archive, "tgrad.step");
    const bool holds = found && strcmp(found, step_text(t, step)) == 0;
    tg_archive_destroy(&archive);
    return holds;
}
