/* Gradients of a trained model, for studying them: forward, loss and backward of one batch of the
 * training data, as in training, without a step of the optimizer. */
#include "base/memory.h"
#include "base/minmax.h"
#include "linalg/tucker.h"
#include "nn/network.h"
#include "train/trainer.h"

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

/* ---- stable ranks ----
 *
 * stable_ranks.jsonl: how close to low rank the gradients are during training. Each line, written
 * at the start and at every evaluation, has for each mode k of each spectral weight
 *
 *     sr_k = |G|_F^2 / sigma_1(G_(k))^2
 *
 * of the gradient G of the training loss on the first batch of the first epoch. It is always the
 * same batch, so that lines differ only by the weights. The run itself does not change. */

typedef struct measurement {
    tg_trainer *t;
    double (*rank)[TG_MAX_NDIM]; /* (parameters) */
} measurement;

static tg_status measure(void *user, const tg_gradient *gradient) {
    const measurement *m = user;
    const tg_fno_param param = tg_fno_get_param(m->t->model->fno, gradient->param);
    const tg_dtype dtype = tg_dtype_wide(gradient->dtype);
    tg_backend *be = m->t->model->be;
    void *dense = NULL;
    tg_status status = TG_OK;
    if (!param.spectral) {
        return TG_OK;
    }
    TG_TRY(TG_BACKEND_ALLOC(be, TG_MEM_GRADIENTS, dense,
                            (size_t)tg_shape_numel(&param.shape) * tg_dtype_size(dtype)));
    TG_TRY(tg_gradient_form(be, gradient, dense));
    TG_TRY(tg_stable_rank_of(be, dtype, &param.shape, dense, m->rank[gradient->param]));
fail:
    be->ops->release(be, dense);
    return status;
}

tg_status tg_trainer_log_stable_ranks(tg_trainer *t, int64_t epoch) {
    measurement m = {.t = t};
    const tg_grad_sink sink = {.receive = measure, .user = &m};
    tg_status status = TG_OK;
    if (!t->model->config.loop.track_stable_rank || !tg_trainer_writes(t)) {
        return TG_OK;
    }
    TG_TRY(TG_NEW(t->ctx, TG_MEM_OTHER, m.rank, tg_fno_param_count(t->model->fno)));
    TG_TRY(tg_context_adopt(
        t->ctx, &t->reader,
        tg_model_first_batch(t->model, t->train, tg_optim_loss_scale(t->optim), &sink)));
    TG_TRY(tg_trainer_write_ranks(t, epoch, (const double(*)[TG_MAX_NDIM])m.rank));
fail:
    tg_mem_free(t->ctx, m.rank);
    return status;
}

tg_status tg_stable_ranks_add_bytes(tg_backend *be, const tg_run_config *config,
                                    const tg_dataset_facts *facts, int64_t batch, tg_amounts *out) {
    const tg_place place = be->ops->place;
    tg_fno *outline = NULL;
    size_t dense = 0;
    tg_scratch_need most = {0};
    TG_CALL(tg_fno_outline(be->ctx, &config->fno, &outline));
    for (int i = 0; i < tg_fno_param_count(outline); i++) {
        const tg_fno_param param = tg_fno_get_param(outline, i);
        const tg_dtype dtype = tg_dtype_wide(param.dtype);
        if (param.spectral) {
            dense = tg_max_size(dense, (size_t)tg_shape_numel(&param.shape) * tg_dtype_size(dtype));
            tg_scratch_raise(&most, tg_stable_rank_need(be, dtype, &param.shape));
        }
    }
    tg_fno_destroy(&outline);
    tg_batch_add_bytes(be, facts, batch, out);
    out->at[place][TG_MEM_GRADIENTS] += dense;
    out->at[place][TG_MEM_WORKSPACE] += most.place;
    out->at[TG_HOST][TG_MEM_WORKSPACE] += most.host;
    return TG_OK;
}
