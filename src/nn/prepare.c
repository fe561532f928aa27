/* What a network takes for its steps, told before (tg_fno_plan) and taken (tg_fno_prepare). */
#include "nn/layers.h"

/* Images that are transformed in one call. */
static int64_t images_at_once(const tg_backend *be, int64_t batch) {
    return be->ops->queue ? batch : 1;
}

static size_t workspace_held(const tg_context *ctx, tg_place place) {
    return tg_context_memory(ctx, place).current[TG_MEM_WORKSPACE];
}

static tg_status plan(tg_context *ctx, const tg_fno_config *config, int64_t batch,
                      const int64_t *grid, const tg_loan *loan, bool training, tg_fno_memory *out) {
    tg_status status = TG_OK;
    tg_backend *be = NULL;
    nn_model model = {0};
    nn_run run = {.training = training, .max_batch = batch, .loan = *loan};
    nn_plan activations = {.ctx = ctx}, workspace = {.ctx = ctx};
    tg_fft_plan *fft = NULL;
    *out = (tg_fno_memory){0};
    TG_TRY(tg_backend_get(ctx, &be));
    TG_TRY(nn_model_create(ctx, config, &model));
    TG_TRY(nn_geometry_make(&model, batch, grid, &run.geometry));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, run.blocks, config->n_layers));
    run.images = images_at_once(be, batch);
    TG_TRY(nn_lay_out(&model, be, &run, &activations, &workspace));
    /* what a transform takes for itself is known when there is one */
    const tg_place place = be->ops->place;
    const size_t before = workspace_held(ctx, place), host = workspace_held(ctx, TG_HOST);
    const tg_fft_desc desc = nn_geometry_fft(&model, &run.geometry, run.images);
    TG_TRY(be->ops->fft_create(be, &desc, &fft));
    out->parameters = model.parameters;
    out->bytes[TG_MEM_WEIGHTS] = model.weight_bytes;
    out->bytes[TG_MEM_ACTIVATIONS] = activations.bytes;
    out->host = place == TG_HOST ? 0 : workspace_held(ctx, TG_HOST) - host;
    out->transforms = workspace_held(ctx, place) - before + out->host;
    out->bytes[TG_MEM_WORKSPACE] = workspace.bytes + out->transforms;
    out->bytes[TG_MEM_GRADIENTS] = training ? nn_gradient_bytes(&model) : 0;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        out->total += out->bytes[c];
    }
fail:
    if (be) {
        be->ops->fft_destroy(be, &fft);
    }
    nn_plan_free(&activations);
    nn_plan_free(&workspace);
    tg_mem_free(ctx, run.blocks);
    nn_model_destroy(&model);
    return status;
}

tg_status tg_fno_plan(tg_context *ctx, const tg_fno_config *config, int64_t batch,
                      const int64_t *grid, bool training, tg_fno_memory *out) {
    TG_NEED(ctx, ctx, config, grid, out);
    return plan(ctx, config, batch, grid, &(tg_loan){0}, training, out);
}

tg_status tg_fno_plan_lending(tg_context *ctx, const tg_fno_config *config, int64_t batch,
                              const int64_t *grid, const tg_loan *loan, tg_fno_memory *out) {
    TG_NEED(ctx, ctx, config, grid, loan, out);
    return plan(ctx, config, batch, grid, loan, true, out);
}

static size_t alive(const nn_plan *plan, int phase) {
    size_t bytes = 0;
    for (int i = 0; i < plan->count; i++) {
        const nn_buffer *b = &plan->buffers[i];
        bytes += b->born <= phase && phase <= b->dies ? b->bytes : 0;
    }
    return bytes;
}

tg_status tg_fno_phases(tg_context *ctx, const tg_fno_config *config, int64_t batch,
                        const int64_t *grid, tg_fno_phase *out, int capacity, int *count) {
    TG_NEED(ctx, ctx, config, grid, count);
    capacity = out ? capacity : 0;
    tg_status status = TG_OK;
    tg_backend *be = NULL;
    nn_model model = {0};
    nn_run run = {.training = true, .max_batch = batch};
    nn_plan activations = {.ctx = ctx}, workspace = {.ctx = ctx};
    *count = 0;
    TG_TRY(tg_backend_get(ctx, &be));
    TG_TRY(nn_model_create(ctx, config, &model));
    TG_TRY(nn_geometry_make(&model, batch, grid, &run.geometry));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, run.blocks, config->n_layers));
    run.images = images_at_once(be, batch);
    TG_TRY(nn_lay_out(&model, be, &run, &activations, &workspace));
    *count = nn_phase_count(&model);
    for (int phase = 0; phase < *count && phase < capacity; phase++) {
        nn_phase_describe(&model, phase, &out[phase]);
        out[phase].activations = alive(&activations, phase);
        out[phase].workspace = alive(&workspace, phase);
    }
fail:
    nn_plan_free(&activations);
    nn_plan_free(&workspace);
    tg_mem_free(ctx, run.blocks);
    nn_model_destroy(&model);
    return status;
}

void nn_run_free(tg_fno *fno) {
    nn_run *run = &fno->run;
    const tg_backend_ops *ops = fno->be->ops;
    ops->fft_destroy(fno->be, &run->fft);
    ops->release(fno->be, run->activations);
    ops->release(fno->be, run->workspace);
    ops->release(fno->be, run->gradients);
    tg_mem_free(fno->ctx, run->blocks);
    *run = (nn_run){0};
}

static tg_status take(tg_backend *be, tg_mem_category category, size_t bytes, void **out) {
    *out = be->ops->alloc(be, category, bytes);
    return *out ? TG_OK : TG_E_MEMORY;
}

static bool fits(const tg_fno *fno, int64_t batch, const int64_t *grid, bool training) {
    const nn_run *run = &fno->run;
    bool same = run->ready && run->training == training && run->max_batch >= batch;
    for (int d = 0; d < fno->model.config.n_dim; d++) {
        same = same && run->geometry.grid[d] == grid[d];
    }
    return same && (!training || (run->loan.dense_bytes >= fno->loan.dense_bytes &&
                                  run->loan.work_bytes >= fno->loan.work_bytes));
}

void tg_fno_reserve(tg_fno *fno, const tg_loan *loan) {
    if (fno && loan) {
        fno->loan = (tg_loan){.dense_bytes = loan->dense_bytes, .work_bytes = loan->work_bytes};
    }
}

tg_loan tg_fno_lent(const tg_fno *fno) {
    return fno && fno->run.ready && fno->run.training ? fno->run.loan : (tg_loan){0};
}

tg_status tg_fno_prepare(tg_fno *fno, int64_t batch, const int64_t *grid, bool training) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, grid);
    tg_status status = TG_OK;
    nn_run *run = &fno->run;
    nn_plan activations = {.ctx = fno->ctx}, workspace = {.ctx = fno->ctx};
    nn_geometry geometry = {0};
    status = nn_check_weights(fno);
    if (status == TG_OK) {
        status = nn_geometry_make(&fno->model, batch, grid, &geometry);
    }
    if (status != TG_OK || fits(fno, batch, grid, training)) {
        return status;
    }
    nn_run_free(fno);
    fno->preparations++;
    run->training = training;
    run->loan = fno->loan;
    run->max_batch = batch;
    run->images = images_at_once(fno->be, batch);
    run->geometry = geometry;
    const tg_fft_desc desc = nn_geometry_fft(&fno->model, &geometry, run->images);
    TG_TRY(fno->be->ops->fft_create(fno->be, &desc, &run->fft));
    TG_TRY(TG_NEW(fno->ctx, TG_MEM_OTHER, run->blocks, fno->model.config.n_layers));
    TG_TRY(nn_lay_out(&fno->model, fno->be, run, &activations, &workspace));
    TG_TRY(take(fno->be, TG_MEM_ACTIVATIONS, activations.bytes, &run->activations));
    TG_TRY(take(fno->be, TG_MEM_WORKSPACE, workspace.bytes, &run->workspace));
    if (training) {
        TG_TRY(take(fno->be, TG_MEM_GRADIENTS, nn_gradient_bytes(&fno->model), &run->gradients));
    }
    nn_plan_bind(&activations, run->activations);
    nn_plan_bind(&workspace, run->workspace);
    nn_run_alias(&fno->model, run);
    run->ready = true;
fail:
    nn_plan_free(&activations);
    nn_plan_free(&workspace);
    if (status != TG_OK) {
        nn_run_free(fno);
    }
    return status;
}
