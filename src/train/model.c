/* Creates and loads models, fits normalizers, predicts. */
#include "train/model.h"

#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "data/dataset.h"
#include "nn/network.h"
#include "train/checkpoint.h"
#include "train/run_datasets.h"
#include "train/run_folder.h"

/* Everything but the network. */
static tg_status make(tg_context *ctx, const tg_settings *settings, const tg_run_config *config,
                      tg_model **out) {
    *out = NULL;
    tg_status status = TG_OK;
    tg_model *model = NULL;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, model, 1));
    model->ctx = ctx;
    model->config = *config;
    TG_TRY(tg_backend_get(ctx, &model->be));
    TG_TRY(tg_settings_copy(ctx, settings, &model->settings));
    *out = model;
    return TG_OK;
fail:
    tg_model_destroy(&model);
    return status;
}

tg_status tg_model_create(tg_context *ctx, const tg_settings *settings, const tg_run_config *config,
                          tg_model **out) {
    tg_status status = make(ctx, settings, config, out);
    if (status == TG_OK) {
        status = nn_create(ctx, &config->fno, &config->split, (uint64_t)config->distributed.seed,
                           &(*out)->fno);
    }
    if (status != TG_OK) {
        tg_model_destroy(out);
    }
    return status;
}

void tg_model_destroy(tg_model **model) {
    if (!model || !*model) {
        return;
    }
    tg_model *m = *model;
    if (!m->borrows_fno) {
        tg_fno_destroy(&m->fno);
    }
    tg_normalizer_destroy(&m->encoder[TG_DATA_X]);
    tg_normalizer_destroy(&m->encoder[TG_DATA_Y]);
    tg_settings_destroy(&m->settings);
    tg_mem_free(m->ctx, m->points);
    tg_mem_free(m->ctx, m);
    *model = NULL;
}

tg_status tg_model_describe(const tg_model *model, tg_settings *settings) {
    static const char *const keys[2] = {"data.encode_input", "data.encode_output"};
    tg_status status = tg_run_config_put_network(tg_fno_get_config(model->fno), settings);
    for (int side = 0; status == TG_OK && side < 2; side++) {
        status =
            tg_settings_set(settings, keys[side], model->encoder[side] ? "true" : "false", NULL);
    }
    return status;
}

/* A model begins with the settings of its network; those of the normalizers follow with them. */
tg_status tg_model_wrap(tg_context *ctx, tg_fno *fno, const tg_normalizer *x,
                        const tg_normalizer *y, tg_model **out) {
    TG_NEED_OUT(ctx, out, ctx, fno);
    const tg_normalizer *given[2] = {x, y};
    tg_settings *settings = NULL;
    tg_run_config config;
    tg_status status = TG_OK;
    if (!tg_fno_get_param(fno, 0).weight.data) {
        return tg_fail(ctx, TG_E_ARGUMENT, "model: the network is an outline without weights");
    }
    TG_TRY(tg_settings_create(ctx, &settings));
    TG_TRY(tg_run_config_put_network(tg_fno_get_config(fno), settings));
    TG_TRY(tg_run_config_read_network(ctx, settings, 1, &config));
    TG_TRY(make(ctx, settings, &config, out));
    (*out)->fno = fno;
    (*out)->borrows_fno = true;
    for (int side = 0; side < 2; side++) {
        if (given[side]) {
            TG_TRY(tg_normalizer_copy(ctx, given[side], &(*out)->encoder[side]));
        }
    }
    TG_TRY(tg_model_check_normalizers(*out, "model"));
    TG_TRY(tg_model_describe(*out, (*out)->settings));
fail:
    tg_settings_destroy(&settings);
    if (status != TG_OK) {
        tg_model_destroy(out);
    }
    return status;
}

const tg_settings *tg_model_settings(const tg_model *model) {
    return model ? model->settings : NULL;
}

tg_fno *tg_model_fno(tg_model *model) {
    return model ? model->fno : NULL;
}

tg_status tg_model_dataset_config(const tg_model *model, tg_dataset_config *out, size_t size) {
    tg_dataset_config config;
    TG_NEED(model ? model->ctx : NULL, model, out);
    TG_CALL(tg_run_read_files(model->ctx, &model->config, &config));
    config.is_pairs = model->is_on_pairs;
    tg_sized_init(out, size, &config, sizeof config);
    return TG_OK;
}

/* Inputs or outputs that the settings normalize need a normalizer. */
static tg_status check_complete(const tg_model *model, const char *path) {
    const tg_source_config *data = &model->config.data;
    const bool lacks_x = data->encode_input && !model->encoder[TG_DATA_X];
    const bool lacks_y = data->encode_output && !model->encoder[TG_DATA_Y];
    return lacks_x || lacks_y
               ? tg_fail(model->ctx, TG_E_FORMAT,
                         "%s: data.encode_%s is true, but encoder.%s.mean and encoder.%s.std are "
                         "missing",
                         path, lacks_x ? "input" : "output", lacks_x ? "x" : "y",
                         lacks_x ? "x" : "y")
               : TG_OK;
}

tg_status tg_model_load(tg_context *ctx, const char *path, tg_model **out) {
    TG_NEED_OUT(ctx, out, ctx, path);
    tg_status status = TG_OK;
    tg_archive *archive = NULL;
    tg_settings *settings = NULL;
    tg_run_config config;
    char file[4096];
    TG_TRY(tg_run_checkpoint(ctx, path, NULL, file, sizeof file));
    TG_TRY(tg_checkpoint_read(ctx, file, false, &archive));
    TG_TRY(tg_checkpoint_settings(ctx, file, archive, &settings));
    TG_TRY(tg_run_config_read_network(ctx, settings, tg_checkpoint_stage(archive), &config));
    TG_TRY(tg_model_create(ctx, settings, &config, out));
    TG_TRY(tg_checkpoint_load_model(*out, archive));
    TG_TRY(tg_model_check_normalizers(*out, file));
    TG_TRY(check_complete(*out, file));
    TG_TRY(tg_model_keep_origin(*out, file, archive));
fail:
    tg_settings_destroy(&settings);
    tg_archive_destroy(&archive);
    if (status != TG_OK) {
        tg_model_destroy(out);
    }
    return status;
}

/* ---- normalizers ---- */

const tg_normalizer *tg_model_normalizer(const tg_model *model, tg_data_side side) {
    return model && (side == TG_DATA_X || side == TG_DATA_Y) ? model->encoder[side] : NULL;
}

/* A network sees (v - mean) / (std + 1e-7). */
static void set_units(const tg_normalizer *normalizer, int64_t channel, double *mean,
                      double *scale) {
    if (normalizer) {
        tg_normalizer_get(normalizer, channel, mean, NULL, scale);
        *scale += 1e-7;
    }
}

tg_loss_config tg_model_loss(const tg_model *model) {
    tg_loss_config loss = model->config.loss;
    set_units(model->encoder[TG_DATA_X], model->config.fno.in_channels - 1, &loss.x_mean,
              &loss.x_scale);
    set_units(model->encoder[TG_DATA_Y], 0, &loss.y_mean, &loss.y_scale);
    return loss;
}

tg_status tg_model_check_normalizers(const tg_model *model, const char *label) {
    static const char *const names[2] = {"x", "y"}, *const keys[2] = {"in", "out"};
    const tg_fno_config *fno = tg_fno_get_config(model->fno);
    const int64_t wanted[2] = {fno->in_channels, fno->out_channels};
    for (int side = 0; side < 2; side++) {
        const tg_normalizer *n = model->encoder[side];
        if (n && tg_normalizer_channels(n) != wanted[side]) {
            return tg_fail(model->ctx, TG_E_SHAPE,
                           "%s: the normalizer of %s has %lld channels, but fno.%s_channels is "
                           "%lld",
                           label, names[side], (long long)tg_normalizer_channels(n), keys[side],
                           (long long)wanted[side]);
        }
        if (n && tg_normalizer_is_complex(n) != fno->complex_data) {
            return tg_fail(model->ctx, TG_E_DTYPE,
                           "%s: the normalizer of %s is one of %s numbers, but fno.complex_data "
                           "is %s",
                           label, names[side], fno->complex_data ? "real" : "complex",
                           fno->complex_data ? "true" : "false");
        }
    }
    return TG_OK;
}

tg_status tg_model_open_training(tg_model *model, tg_dataset **out) {
    const tg_run_config *config = &model->config;
    tg_run_set set = tg_run_train_set(config);
    *out = NULL;
    TG_CALL(tg_source_config_check(model->ctx, &config->data));
    set.steps = 1; /* as for predictions */
    return tg_run_open_set(model->ctx, model->ctx, config, &set, out);
}

tg_status tg_model_fit(tg_model *model, tg_dataset *dataset, const tg_normalizer_team *team) {
    const bool wanted[2] = {model->config.data.encode_input, model->config.data.encode_output};
    const tg_fno_config *fno = tg_fno_get_config(model->fno);
    const int64_t channels[2] = {fno->in_channels, fno->out_channels};
    for (int side = 0; side < 2; side++) {
        if (wanted[side] && !model->encoder[side]) {
            TG_CALL(tg_normalizer_fit_channels(model->ctx, dataset, (tg_data_side)side,
                                               channels[side], team, &model->encoder[side]));
        }
    }
    return TG_OK;
}

tg_status tg_model_fit_normalizers(tg_model *model) {
    TG_NEED(NULL, model);
    tg_dataset *dataset = NULL;
    tg_status status = TG_OK;
    TG_TRY(tg_model_open_training(model, &dataset));
    tg_normalizer_destroy(&model->encoder[TG_DATA_X]);
    tg_normalizer_destroy(&model->encoder[TG_DATA_Y]);
    TG_TRY(tg_model_fit(model, dataset, NULL));
fail:
    tg_dataset_close(&dataset);
    return status;
}

/* ---- batches ---- */

tg_tensor tg_batch_view(const tg_tensor *tensor, int64_t count) {
    tg_tensor view = *tensor;
    view.owner = NULL;
    view.shape.dim[0] = count;
    return view;
}

/* A tensor on the backend, and its counterpart on the host. */
static tg_status make_pair(const tg_batch *batch, const tg_shape *shape, tg_tensor *at,
                           tg_tensor *host) {
    tg_context *ctx = batch->model->ctx;
    TG_CALL(tg_backend_tensor(ctx, TG_MEM_DATA, batch->dtype, shape, at));
    if (at->place != TG_HOST) {
        return tg_tensor_create(ctx, TG_MEM_DATA, batch->dtype, shape, host);
    }
    *host = *at;
    host->owner = NULL;
    return TG_OK;
}

tg_shape tg_batch_shape(const tg_dataset_facts *facts, int64_t size, int64_t channels) {
    tg_shape shape = {.ndim = facts->n_dim + 2, .dim = {size, channels}};
    for (int d = 0; d < facts->n_dim; d++) {
        shape.dim[d + 2] = d == 0 ? facts->rows : facts->grid[d];
    }
    return shape;
}

tg_status tg_batch_create(tg_model *model, const tg_dataset_facts *facts, int64_t size,
                          tg_batch *out) {
    tg_status status = TG_OK;
    const tg_shape x_shape = tg_batch_shape(facts, size, facts->in_channels);
    const tg_shape y_shape = tg_batch_shape(facts, size, facts->out_channels);
    *out = (tg_batch){.model = model, .dtype = facts->dtype};
    TG_TRY(make_pair(out, &x_shape, &out->x, &out->host_x));
    TG_TRY(make_pair(out, &y_shape, &out->y, &out->host_y));
    TG_TRY(make_pair(out, &y_shape, &out->pred, &out->host_pred));
    return TG_OK;
fail:
    tg_batch_destroy(out);
    return status;
}

void tg_batch_add_bytes(const tg_backend *be, const tg_dataset_facts *facts, int64_t size,
                        tg_amounts *out) {
    const size_t bytes = (size_t)size * (facts->x_bytes + 2 * facts->y_bytes);
    out->at[be->ops->place][TG_MEM_DATA] += bytes;
    out->at[TG_HOST][TG_MEM_DATA] += be->ops->place == TG_HOST ? 0 : bytes;
}

void tg_batch_destroy(tg_batch *batch) {
    tg_tensor *const tensors[] = {&batch->host_x, &batch->host_y, &batch->host_pred,
                                  &batch->x,      &batch->y,      &batch->pred};
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        tg_tensor_destroy(tensors[i]);
    }
    *batch = (tg_batch){0};
}

tg_status tg_pinned_create(tg_backend *be, const tg_tensor *x, const tg_tensor *y, tg_pinned *out) {
    out->x = be->ops->stream->pinned_alloc(be, TG_MEM_DATA, tg_tensor_bytes(x));
    out->y = be->ops->stream->pinned_alloc(be, TG_MEM_DATA, tg_tensor_bytes(y));
    return out->x && out->y ? be->ops->stream->event_create(be, &out->sent) : TG_E_MEMORY;
}

void tg_pinned_destroy(tg_backend *be, tg_pinned *pinned) {
    be->ops->stream->event_destroy(be, &pinned->sent);
    be->ops->stream->pinned_release(be, pinned->x);
    be->ops->stream->pinned_release(be, pinned->y);
}

tg_status tg_batch_send(tg_batch *batch, int64_t count) {
    tg_model *model = batch->model;
    tg_tensor x = tg_batch_view(&batch->host_x, count);
    const tg_tensor y = tg_batch_view(&batch->host_y, count);
    if (model->encoder[TG_DATA_X]) {
        TG_CALL(tg_normalizer_apply(model->encoder[TG_DATA_X], &x));
    }
    if (batch->x.place != TG_HOST) {
        const tg_tensor to_x = tg_batch_view(&batch->x, count);
        const tg_tensor to_y = tg_batch_view(&batch->y, count);
        TG_CALL(tg_backend_copy(model->ctx, &x, &to_x));
        TG_CALL(tg_backend_copy(model->ctx, &y, &to_y));
    }
    return TG_OK;
}

/* ---- prediction ---- */

/* The network's output for the batch sent, in the units of the data: in pred and host_pred. */
static tg_status predict(tg_batch *batch, int64_t count) {
    tg_model *model = batch->model;
    const tg_tensor x = tg_batch_view(&batch->x, count);
    tg_tensor pred = tg_batch_view(&batch->pred, count);
    tg_tensor host = tg_batch_view(&batch->host_pred, count);
    const bool is_apart = pred.place != TG_HOST;
    TG_CALL(tg_model_place_points(model, &x, NULL));
    TG_CALL(tg_fno_forward(model->fno, &x, &pred));
    if (is_apart) {
        TG_CALL(tg_backend_copy(model->ctx, &pred, &host));
    }
    if (model->encoder[TG_DATA_Y]) {
        TG_CALL(tg_normalizer_invert(model->encoder[TG_DATA_Y], &host));
        if (is_apart) {
            TG_CALL(tg_backend_copy(model->ctx, &host, &pred));
        }
    }
    return TG_OK;
}

static tg_status check_input(tg_model *model, const tg_tensor *x, const tg_tensor *y) {
    const tg_fno_config *config = tg_fno_get_config(model->fno);
    const tg_dtype dtype = config->complex_data ? tg_dtype_complex(config->dtype) : config->dtype;
    const int n_dim = tg_run_data_dims(&model->config);
    char found[128];
    bool fits = x->dtype == dtype && x->place == TG_HOST && x->shape.ndim == n_dim + 2 &&
                x->shape.dim[0] >= 1 && x->shape.dim[1] == config->in_channels;
    if (!fits) {
        return tg_fail(model->ctx, TG_E_SHAPE,
                       "input: expected %s of (samples, %lld channels, %d dimensions), found %s %s",
                       tg_dtype_name(dtype), (long long)config->in_channels, n_dim,
                       tg_dtype_name(x->dtype), tg_shape_text(&x->shape, found, sizeof found));
    }
    fits = y->dtype == dtype && y->place == TG_HOST && y->shape.ndim == x->shape.ndim &&
           y->shape.dim[0] == x->shape.dim[0] && y->shape.dim[1] == config->out_channels;
    for (int d = 2; fits && d < x->shape.ndim; d++) {
        fits = y->shape.dim[d] == x->shape.dim[d];
    }
    return fits ? TG_OK
                : tg_fail(model->ctx, TG_E_SHAPE,
                          "output: %s %s does not fit the input and %lld output channels",
                          tg_dtype_name(y->dtype), tg_shape_text(&y->shape, found, sizeof found),
                          (long long)config->out_channels);
}

tg_status tg_model_predict_slab(tg_model *model, const tg_dataset_facts *facts, const tg_tensor *x,
                                tg_tensor *y) {
    tg_batch batch = {0};
    tg_status status = TG_OK;
    const int64_t samples = x->shape.dim[0];
    const int64_t most = tg_run_at_once(&model->config, samples < 16 ? samples : 16);
    TG_TRY(tg_batch_create(model, facts, most, &batch));
    TG_TRY(tg_model_prepare(model, most, facts->grid, false));
    for (int64_t first = 0; first < samples; first += most) {
        const int64_t count = samples - first < most ? samples - first : most;
        tg_tensor from, to;
        TG_TRY(tg_tensor_slice(model->ctx, x, first, count, &from));
        TG_TRY(tg_tensor_slice(model->ctx, y, first, count, &to));
        memcpy(batch.host_x.data, from.data, tg_tensor_bytes(&from));
        memset(batch.host_y.data, 0, tg_tensor_bytes(&to));
        TG_TRY(tg_batch_send(&batch, count));
        TG_TRY(predict(&batch, count));
        memcpy(to.data, batch.host_pred.data, tg_tensor_bytes(&to));
    }
fail:
    tg_batch_destroy(&batch);
    return status;
}

tg_status tg_model_predict(tg_model *model, const tg_tensor *x, tg_tensor *y) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, x, y);
    TG_CALL(check_input(model, x, y));
    tg_dataset_facts facts = {.in_channels = x->shape.dim[1],
                              .out_channels = y->shape.dim[1],
                              .n_dim = x->shape.ndim - 2,
                              .rows = x->shape.dim[2],
                              .dtype = x->dtype};
    for (int d = 0; d < facts.n_dim; d++) {
        facts.grid[d] = x->shape.dim[d + 2];
    }
    return tg_model_predict_slab(model, &facts, x, y);
}
