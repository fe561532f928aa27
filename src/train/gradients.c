/* Gradients of a trained model, for studying them: forward, loss and backward of one batch of the
 * training data, as in training, without a step of the optimizer. */
#include "nn/network.h"
#include "train/model.h"

/* The receiver, which keeps them. */
typedef struct keeper {
    tg_model *model;
    tg_archive *archive;
} keeper;

static tg_status keep(void *user, const tg_gradient *gradient) {
    const keeper *k = user;
    const tg_fno_param param = tg_fno_get_param(k->model->fno, gradient->param);
    tg_tensor dense = {0};
    tg_status status = TG_OK;
    if (!param.spectral) {
        return TG_OK;
    }
    TG_TRY(tg_tensor_create(k->model->ctx, TG_MEM_DATA, tg_dtype_wide(gradient->dtype),
                            &param.shape, &dense));
    TG_TRY(tg_gradient_read(k->model->ctx, gradient, &dense));
    TG_TRY(tg_archive_take(k->archive, param.name, &dense));
fail:
    tg_tensor_destroy(&dense);
    return status;
}

/* The first batch of the first epoch, both sides normalized, on the backend. */
static tg_status read_batch(tg_model *model, tg_dataset *dataset, tg_batch *batch, int64_t *count) {
    const tg_run_config *config = &model->config;
    const int64_t size = tg_run_local_batch(config);
    const tg_loader_config how = {.size = sizeof(tg_loader_config),
                                  .batch_size = size,
                                  .seed = (uint64_t)config->distributed.seed,
                                  .shuffle = config->data.shuffle};
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    tg_loader *loader = NULL;
    tg_status status = TG_OK;
    TG_TRY(tg_loader_create(model->ctx, dataset, &how, &loader));
    TG_TRY(tg_batch_create(model, &facts, size, batch));
    TG_TRY(tg_loader_batch(loader, 0, 0, batch->host_x.data, batch->host_y.data, count));
    if (model->encoder[TG_DATA_Y]) {
        tg_tensor y = tg_batch_view(&batch->host_y, *count);
        TG_TRY(tg_normalizer_apply(model->encoder[TG_DATA_Y], &y));
    }
    TG_TRY(tg_batch_send(batch, *count));
fail:
    tg_loader_destroy(&loader);
    return status;
}

tg_status tg_model_first_batch(tg_model *model, tg_dataset *dataset, double scale,
                               const tg_grad_sink *sink) {
    tg_fno *fno = model->fno;
    tg_batch batch = {0};
    int64_t count = 0;
    tg_status status = TG_OK;
    const uint64_t step = tg_fno_step(fno);
    const tg_dataset_facts facts = tg_dataset_get_facts(dataset);
    TG_TRY(read_batch(model, dataset, &batch, &count));
    TG_TRY(tg_model_prepare(model, count, facts.grid, true));
    const tg_tensor x = tg_batch_view(&batch.x, count), y = tg_batch_view(&batch.y, count);
    const tg_loss_config config = tg_model_loss(model);
    TG_TRY(tg_model_place_points(model, &x, NULL));
    TG_TRY(nn_forward_loss(fno, &x, &y, &config, scale, model->be->cell));
    TG_TRY(tg_fno_backward(fno, NULL, sink));
fail:
    tg_fno_set_step(fno, step); /* restores the dropout sequence */
    tg_batch_destroy(&batch);
    return status;
}

tg_status tg_model_gradients(tg_model *model, tg_archive *out) {
    TG_NEED(NULL, model);
    TG_NEED(model->ctx, out);
    tg_dataset *dataset = NULL;
    keeper k = {model, out};
    const tg_grad_sink sink = {.receive = keep, .user = &k};
    tg_status status = TG_OK;
    TG_TRY(tg_model_open_training(model, &dataset));
    TG_TRY(tg_model_first_batch(model, dataset, 1.0, &sink));
fail:
    tg_dataset_close(&dataset);
    return status;
}
