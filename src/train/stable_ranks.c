/* stable_ranks.jsonl: how close to low rank the gradients are during training. Each line, written
 * at the start and at every evaluation, has for each mode k of each spectral weight
 *
 *     sr_k = |G|_F^2 / sigma_1(G_(k))^2
 *
 * of the gradient G of the training loss on the first batch of the first epoch. It is always the
 * same batch, so that lines differ only by the weights. The run itself does not change. */
#include <inttypes.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "linalg/tucker.h"
#include "optim/loss_scale.h"
#include "train/json_line.h"
#include "train/trainer.h"

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
    dense = be->ops->alloc(be, TG_MEM_GRADIENTS,
                           (size_t)tg_shape_numel(&param.shape) * tg_dtype_size(dtype));
    TG_TRY(dense ? TG_OK : TG_E_MEMORY);
    TG_TRY(tg_gradient_form(be, gradient, dense));
    TG_TRY(tg_stable_rank_of(be, dtype, &param.shape, dense, m->rank[gradient->param]));
fail:
    be->ops->release(be, dense);
    return status;
}

static tg_status write_line(tg_trainer *t, int64_t epoch, double (*rank)[TG_MAX_NDIM]) {
    enum { NUMBERS = 32 * TG_MAX_NDIM };
    const tg_fno *fno = t->model->fno;
    const int count = tg_fno_param_count(fno);
    tg_status status = TG_OK;
    tg_line l = {.capacity = 128};
    for (int i = 0; i < count; i++) {
        l.capacity += strlen(tg_fno_get_param(fno, i).name) + NUMBERS;
    }
    TG_TRY(TG_ALLOC(t->ctx, TG_MEM_OTHER, l.text, l.capacity));
    tg_line_add(&l, "{\"epoch\":%" PRId64 ",\"step\":%" PRId64 ",\"parameters\":[", epoch,
                t->progress.step);
    for (int i = 0, shown = 0; i < count; i++) {
        const tg_fno_param param = tg_fno_get_param(fno, i);
        for (int d = 0; param.spectral && d < param.shape.ndim; d++) {
            if (d == 0) {
                tg_line_add(&l, "%s{\"name\":\"%s\",\"stable_rank\":[", shown++ ? "," : "",
                            param.name);
            }
            tg_line_add(&l, "%s", d > 0 ? "," : "");
            tg_line_real(&l, rank[i][d]);
            tg_line_add(&l, "%s", d + 1 == param.shape.ndim ? "]}" : "");
        }
    }
    tg_line_add(&l, "]}\n");
    TG_TRY(tg_run_folder_append(&t->folder, "stable_ranks.jsonl", l.text, l.used));
fail:
    tg_mem_free(t->ctx, l.text);
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
    TG_TRY(write_line(t, epoch, m.rank));
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
