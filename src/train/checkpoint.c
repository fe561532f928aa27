/* Checkpoints and model files: contents and checksum. run_folder.c manages the files. */
#include "train/checkpoint.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/dataset.h"
#include "io/settings.h"
#include "nn/network.h"
#include "optim/optim.h"

#define FORMAT     "1"
#define CHECKPOINT "tgrad.checkpoint" /* format of a checkpoint .. */
#define MODEL      "tgrad.model"      /* .. or of a model file */
#define IMPORTED   "tgrad.imported"   /* the initial weights came from another program */
#define PAIRS      "tgrad.pairs"      /* trained on pairs, not on windows of trajectories */

enum { INTEGERS = 12, REALS = 5 };

static const char *const encoders[2] = {"encoder.x.", "encoder.y."}; /* by tg_data_side */

/* ---- checksum: 64 bits over names, dtypes, shapes, bytes and metadata ---- */

static uint64_t mix(uint64_t hash, uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ull;
    return hash ^ (hash >> 29);
}

static uint64_t mix_bytes(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *at = bytes;
    hash = mix(hash, size);
    for (; size >= 8; size -= 8, at += 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        hash = mix(hash, word);
    }
    uint64_t tail = 0;
    memcpy(&tail, at, size);
    return mix(hash, tail);
}

static uint64_t mix_text(uint64_t hash, const char *text) {
    return mix_bytes(hash, text, strlen(text));
}

/* The sum of the hashes of tensors and metadata: independent of their order in the file. */
static void checksum(const tg_archive *archive, char text[17]) {
    uint64_t sum = 0;
    for (int64_t i = 0; i < tg_archive_count(archive); i++) {
        const tg_tensor *tensor = tg_archive_tensor(archive, i);
        uint64_t hash = mix_text(1, tg_archive_name(archive, i));
        hash = mix_text(hash, tg_dtype_name(tensor->dtype));
        hash = mix_bytes(hash, tensor->shape.dim, (size_t)tensor->shape.ndim * sizeof(int64_t));
        sum += mix_bytes(hash, tensor->data, tg_tensor_bytes(tensor));
    }
    for (int64_t i = 0; i < tg_archive_meta_count(archive); i++) {
        const char *key = tg_archive_meta_key(archive, i);
        if (strcmp(key, "tgrad.checksum") != 0) {
            sum += mix_text(mix_text(2, key), tg_archive_meta_value(archive, i));
        }
    }
    snprintf(text, 17, "%016" PRIx64, sum);
}

/* ---- progress in two arrays ---- */

#define AT(field) offsetof(tg_progress, field)

/* Valid ranges: far from any overflow, however long a run trains. */
static const struct {
    const char *name;
    size_t offset; /* of an int64_t */
    int64_t low, high;
} integer_rows[INTEGERS] = {
    {"stage", AT(stage), 1, 9},
    {"epochs of the stage", AT(stage_epoch), 0, TG_STATE_MAX_COUNT},
    {"epochs", AT(epoch), 0, TG_STATE_MAX_COUNT},
    {"batches", AT(batch), 0, TG_STATE_MAX_COUNT},
    {"steps", AT(step), 0, TG_STATE_MAX_COUNT},
    {"samples", AT(samples), 0, TG_STATE_MAX_COUNT},
    {"skipped batches", AT(skipped), 0, TG_STATE_MAX_COUNT},
    {"skipped batches in a row", AT(skipped_row), 0, TG_STATE_MAX_COUNT},
    {"passes of the network", AT(fno_step), 0, TG_STATE_MAX_COUNT},
    {"epochs of the schedule", AT(schedule.epoch), 0, TG_STATE_MAX_COUNT},
    {"epochs without progress", AT(schedule.waited), 0, TG_STATE_MAX_COUNT},
    {"threads", AT(threads), 0, 1 << 20},
};

static const struct {
    const char *name;
    size_t offset; /* of a double */
    double low, high;
} real_rows[REALS] = {
    {"sum of the losses", AT(loss_sum), -DBL_MAX, DBL_MAX},
    {"lowest test error", AT(best), 0.0, HUGE_VAL},
    {"factor of the schedule", AT(schedule.factor), 0.0, 1.0},
    {"best loss of the schedule", AT(schedule.best), -DBL_MAX, HUGE_VAL},
    {"ranks", AT(ranks), 0.0, 0x1p24},
};

/* Counters that are usually 0, and then omitted. */
#define WAITED   "train.waited"
#define DIVERGED "train.diverged"

static tg_status add_counter(tg_context *ctx, const char *name, int64_t value,
                             tg_archive *archive) {
    return value == 0 ? TG_OK : tg_state_save_numbers(ctx, archive, name, TG_I64, 1, &value);
}

static tg_status add_progress(tg_context *ctx, const tg_progress *progress, tg_archive *archive) {
    int64_t integers[INTEGERS];
    double reals[REALS];
    for (int i = 0; i < INTEGERS; i++) {
        memcpy(&integers[i], (const char *)progress + integer_rows[i].offset, sizeof *integers);
    }
    for (int i = 0; i < REALS; i++) {
        memcpy(&reals[i], (const char *)progress + real_rows[i].offset, sizeof *reals);
    }
    TG_CALL(tg_state_save_numbers(ctx, archive, "train.integers", TG_I64, INTEGERS, integers));
    TG_CALL(tg_state_save_numbers(ctx, archive, "train.reals", TG_F64, REALS, reals));
    TG_CALL(add_counter(ctx, WAITED, progress->waited, archive));
    return add_counter(ctx, DIVERGED, progress->diverged, archive);
}

/* ---- the modes in use of a run whose modes grow, and the losses that decide about it ---- */

#define GROWTH "train.incremental"
enum { GROWTH_REALS = TG_FNO_MAX_DIMS + 2 };

static tg_status add_growth(const tg_model *model, const tg_progress *progress,
                            tg_archive *archive) {
    const tg_fno_config *config = tg_fno_get_config(model->fno);
    double values[GROWTH_REALS] = {0.0};
    if (config->n_incremental == 0) {
        return TG_OK;
    }
    for (int d = 0; d < config->n_dim; d++) {
        values[d] = (double)config->incremental_n_modes[d];
    }
    memcpy(values + TG_FNO_MAX_DIMS, progress->losses, sizeof progress->losses);
    return tg_state_save_numbers(model->ctx, archive, GROWTH, TG_F64, GROWTH_REALS, values);
}

/* ---- writing ---- */

/* Weights as views if they are on the host, else as copies. */
static tg_status add_weights(const tg_model *model, tg_staging *staging, tg_archive *archive) {
    for (int i = 0; i < tg_fno_param_count(model->fno); i++) {
        const tg_fno_param p = tg_fno_get_param(model->fno, i);
        const tg_tensor *whole = p.whole > 0 ? tg_archive_find(model->gathered, p.name) : &p.weight;
        tg_tensor copy;
        if (whole->place == TG_HOST) {
            TG_CALL(tg_archive_add_view(archive, p.name, whole));
        } else {
            TG_CALL(tg_backend_download(model->be, whole, staging, &copy));
            TG_CALL(tg_archive_take(archive, p.name, &copy));
        }
    }
    return TG_OK;
}

static tg_status add_normalizers(const tg_model *model, tg_archive *archive) {
    for (int side = 0; side < 2; side++) {
        if (model->encoder[side]) {
            TG_CALL(tg_normalizer_save(model->encoder[side], archive, encoders[side]));
        }
    }
    return TG_OK;
}

static tg_status add_settings(tg_context *ctx, const tg_settings *settings, tg_archive *archive) {
    char *text = NULL;
    tg_status status = TG_OK;
    const size_t length = tg_settings_text(settings, NULL, 0);
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, text, length + 1));
    tg_settings_text(settings, text, length + 1);
    TG_TRY(tg_archive_set_meta(archive, "tgrad.config", text));
fail:
    tg_mem_free(ctx, text);
    return status;
}

tg_status tg_checkpoint_seal(tg_archive *archive) {
    char sum[17];
    checksum(archive, sum);
    return tg_archive_set_meta(archive, "tgrad.checksum", sum);
}

/* Settings, and the origin of weights and training data. */
static tg_status add_origin(const tg_model *model, const tg_settings *settings,
                            tg_archive *archive) {
    TG_CALL(add_settings(model->ctx, settings, archive));
    TG_CALL(model->is_on_pairs ? tg_archive_set_meta(archive, PAIRS, "true") : TG_OK);
    return model->is_imported ? tg_archive_set_meta(archive, IMPORTED, "true") : TG_OK;
}

tg_status tg_checkpoint_write(tg_context *ctx, const char *path, tg_archive *archive) {
    TG_CALL(tg_checkpoint_seal(archive));
    return tg_safetensors_write(ctx, path, archive);
}

size_t tg_checkpoint_bytes(const size_t held[TG_MEM_CATEGORIES]) {
    return held[TG_MEM_WEIGHTS] + held[TG_MEM_OPTIMIZER] + held[TG_MEM_FACTORS] +
           held[TG_MEM_INDICES];
}

size_t tg_checkpoint_copies(const tg_backend *be, const size_t held[TG_MEM_CATEGORIES]) {
    return be->ops->place == TG_HOST ? 0 : tg_checkpoint_bytes(held);
}

/* Settings are stored resolved, so that the checkpoints of a run do not depend on the form of its
 * settings file. */
tg_status tg_checkpoint_collect(const tg_model *model, tg_optim *optim, const tg_progress *progress,
                                tg_staging *staging, tg_archive *archive) {
    tg_status status = TG_OK;
    tg_settings *resolved = NULL;
    TG_TRY(add_weights(model, staging, archive));
    TG_TRY(tg_optim_save_views(optim, staging, archive));
    TG_TRY(add_normalizers(model, archive));
    TG_TRY(add_progress(model->ctx, progress, archive));
    TG_TRY(add_growth(model, progress, archive));
    TG_TRY(tg_archive_set_meta(archive, CHECKPOINT, FORMAT));
    TG_TRY(tg_run_config_resolve(model->ctx, model->settings, &resolved));
    TG_TRY(add_origin(model, resolved, archive));
    TG_TRY(staging ? model->be->ops->synchronize(model->be) : TG_OK);
fail:
    tg_settings_destroy(&resolved);
    return status;
}

/* All settings of the network are stored, so that later defaults do not matter; the others as the
 * model has them. */
tg_status tg_model_save(const tg_model *model, const char *path) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, path);
    tg_status status = TG_OK;
    tg_archive *archive = NULL;
    tg_settings *settings = NULL;
    TG_TRY(tg_settings_copy(model->ctx, model->settings, &settings));
    TG_TRY(tg_model_describe(model, settings));
    TG_TRY(tg_archive_create(model->ctx, &archive));
    TG_TRY(add_weights(model, NULL, archive));
    TG_TRY(add_normalizers(model, archive));
    TG_TRY(tg_archive_set_meta(archive, MODEL, FORMAT));
    TG_TRY(add_origin(model, settings, archive));
    TG_TRY(tg_checkpoint_write(model->ctx, path, archive));
fail:
    tg_settings_destroy(&settings);
    tg_archive_destroy(&archive);
    return status;
}

/* ---- reading ---- */

static const tg_tensor *find_array(const tg_archive *archive, const char *name, tg_dtype dtype,
                                   int64_t count) {
    const tg_tensor *tensor = tg_archive_find(archive, name);
    return tensor && tensor->dtype == dtype && tg_tensor_numel(tensor) == count ? tensor : NULL;
}

bool tg_checkpoint_is_model(const tg_archive *archive) {
    return !tg_archive_meta(archive, CHECKPOINT);
}

bool tg_checkpoint_is_sealed(const tg_archive *archive) {
    return tg_archive_meta(archive, CHECKPOINT) || tg_archive_meta(archive, MODEL);
}

static tg_status check_contents(tg_context *ctx, const char *path, const tg_archive *archive) {
    char found[17];
    const char *stored = tg_archive_meta(archive, "tgrad.checksum");
    const bool has_counters = find_array(archive, "train.integers", TG_I64, INTEGERS) &&
                              find_array(archive, "train.reals", TG_F64, REALS);
    checksum(archive, found);
    if (!stored || strcmp(stored, found) != 0) {
        return tg_fail(ctx, TG_E_FORMAT, "%s: damaged: the checksum is %s, the content gives %s",
                       path, stored ? stored : "missing", found);
    }
    if ((tg_archive_meta(archive, CHECKPOINT) && !has_counters) ||
        !tg_archive_meta(archive, "tgrad.config")) {
        return tg_fail(ctx, TG_E_FORMAT, "%s: its training counters or settings are missing", path);
    }
    return TG_OK;
}

tg_status tg_checkpoint_check(tg_context *ctx, const char *path, bool is_run,
                              const tg_archive *archive) {
    const bool is_model = tg_checkpoint_is_model(archive);
    const char *format = tg_archive_meta(archive, is_model ? MODEL : CHECKPOINT);
    if (!format) {
        return tg_fail(ctx, TG_E_FORMAT,
                       "%s: neither a checkpoint nor a model file (tgrad.checkpoint is missing); "
                       "weights alone "
                       "are read by train --init, and by eval and predict with --config",
                       path);
    }
    if (strcmp(format, FORMAT) != 0) {
        return tg_fail(ctx, TG_E_FORMAT, "%s: a %s of format %s; this program reads %s", path,
                       is_model ? "model" : "checkpoint", format, FORMAT);
    }
    if (is_model && is_run) {
        return tg_fail(ctx, TG_E_FORMAT,
                       "%s: a model without the state of a training run; train --init begins with "
                       "its weights",
                       path);
    }
    return check_contents(ctx, path, archive);
}

tg_status tg_checkpoint_read(tg_context *ctx, const char *path, bool is_run, tg_archive **out) {
    tg_status status = tg_safetensors_read(ctx, path, out);
    status = status == TG_OK ? tg_checkpoint_check(ctx, path, is_run, *out) : status;
    if (status != TG_OK) {
        tg_archive_destroy(out);
    }
    return status;
}

tg_status tg_checkpoint_settings(tg_context *ctx, const char *path, const tg_archive *archive,
                                 tg_settings **out) {
    const char *text = tg_archive_meta(archive, "tgrad.config");
    return tg_settings_parse_yaml(ctx, path, text, strlen(text), out);
}

int tg_checkpoint_stage(const tg_archive *archive) {
    const tg_tensor *integers = find_array(archive, "train.integers", TG_I64, INTEGERS);
    const int64_t stage = integers ? ((const int64_t *)integers->data)[0] : 1;
    return stage >= 1 && stage <= 9 ? (int)stage : 1;
}

bool tg_checkpoint_is_imported(const tg_archive *archive) {
    return !tg_checkpoint_is_sealed(archive) || tg_archive_meta(archive, IMPORTED);
}

tg_status tg_checkpoint_load_normalizers(tg_model *model, const tg_archive *archive) {
    static const char *const means[2] = {"encoder.x.mean", "encoder.y.mean"};
    for (int side = 0; side < 2; side++) {
        tg_normalizer_destroy(&model->encoder[side]);
        if (tg_archive_find(archive, means[side])) {
            TG_CALL(tg_normalizer_load(model->ctx, archive, encoders[side], &model->encoder[side]));
        }
    }
    return TG_OK;
}

static tg_status load_modes(tg_model *model, const tg_archive *archive) {
    const tg_tensor *values = find_array(archive, GROWTH, TG_F64, GROWTH_REALS);
    int64_t modes[TG_FNO_MAX_DIMS];
    for (int d = 0; values && d < TG_FNO_MAX_DIMS; d++) {
        const double value = ((const double *)values->data)[d];
        modes[d] = value >= 1.0 && value <= 0x1p30 ? (int64_t)value : 0;
    }
    return values ? tg_fno_set_modes(model->fno, modes) : TG_OK;
}

tg_status tg_checkpoint_load_model(tg_model *model, const tg_archive *archive) {
    TG_CALL(tg_fno_load(model->fno, archive, ""));
    TG_CALL(load_modes(model, archive));
    model->is_imported = tg_checkpoint_is_imported(archive);
    model->is_on_pairs = model->is_on_pairs || tg_archive_meta(archive, PAIRS);
    return tg_checkpoint_load_normalizers(model, archive);
}

static int64_t counter_of(const tg_archive *archive, const char *name) {
    const tg_tensor *counter = find_array(archive, name, TG_I64, 1);
    return counter ? *(const int64_t *)counter->data : 0;
}

tg_status tg_checkpoint_load_progress(tg_context *ctx, const char *path, const tg_archive *archive,
                                      tg_progress *out) {
    const int64_t *counts = tg_archive_find(archive, "train.integers")->data;
    const double *reals = tg_archive_find(archive, "train.reals")->data;
    *out = (tg_progress){0};
    for (int i = 0; i < INTEGERS; i++) {
        memcpy((char *)out + integer_rows[i].offset, &counts[i], sizeof *counts);
        if (counts[i] < integer_rows[i].low || counts[i] > integer_rows[i].high) {
            return tg_fail(ctx, TG_E_FORMAT, "%s: %s: %lld, expected %lld to %lld", path,
                           integer_rows[i].name, (long long)counts[i],
                           (long long)integer_rows[i].low, (long long)integer_rows[i].high);
        }
    }
    for (int i = 0; i < REALS; i++) {
        memcpy((char *)out + real_rows[i].offset, &reals[i], sizeof *reals);
        if (!(reals[i] >= real_rows[i].low && reals[i] <= real_rows[i].high)) {
            return tg_fail(ctx, TG_E_FORMAT, "%s: %s: %g, expected %g to %g", path,
                           real_rows[i].name, reals[i], real_rows[i].low, real_rows[i].high);
        }
    }
    out->waited = counter_of(archive, WAITED);
    const int64_t diverged = counter_of(archive, DIVERGED);
    out->diverged = diverged > 0 && diverged < TG_DIVERGED_COUNT ? (tg_divergence)diverged : 0;
    const tg_tensor *growth = find_array(archive, GROWTH, TG_F64, GROWTH_REALS);
    out->losses[0] = out->losses[1] = (double)NAN;
    if (growth) {
        memcpy(out->losses, (const double *)growth->data + TG_FNO_MAX_DIMS, sizeof out->losses);
    }
    return TG_OK;
}
