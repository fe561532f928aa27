/* The memory of a network's steps: planned (tg_fno_plan) and allocated (tg_fno_prepare) from the
 * same program. */
#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "nn/ops.h"
#include "tensor/element.h"

static size_t workspace_held(const tg_context *ctx, tg_place place) {
    return tg_context_memory(ctx, place).current[TG_MEM_WORKSPACE];
}

static void destroy_transforms(tg_backend *be, const nn_program *program, tg_fft_plan ***fft) {
    for (int i = 0; *fft && i < program->transform_count; i++) {
        be->ops->fft_destroy(be, &(*fft)[i]);
    }
    if (*fft) {
        TG_FREE(program->ctx, *fft);
    }
}

static tg_status create_transforms(tg_backend *be, const nn_program *program, tg_fft_plan ***fft) {
    const size_t count = (size_t)program->transform_count;
    *fft = tg_mem_calloc(program->ctx, TG_MEM_OTHER, count, sizeof(tg_fft_plan *));
    if (!*fft) {
        return TG_E_MEMORY;
    }
    for (size_t i = 0; i < count; i++) {
        TG_CALL(be->ops->fft_create(be, &program->transforms[i].desc, &(*fft)[i]));
    }
    return TG_OK;
}

/* ---- matrices ---- */

tg_status nn_upload_entries(tg_backend *be, tg_dtype dtype, int64_t count,
                            tg_scalar (*entry)(const void *of, int64_t at), const void *of,
                            void *to) {
    enum { PIECE = 512 };
    double piece[2 * PIECE];
    const size_t size = tg_dtype_size(dtype);
    for (int64_t first = 0; first < count; first += PIECE) {
        const int64_t n = tg_min(count - first, PIECE);
        for (int64_t i = 0; i < n; i++) {
            tg_store(dtype, piece, i, entry(of, first + i));
        }
        TG_CALL(be->ops->upload(be, nn_element(dtype, to, first), piece, (size_t)n * size));
    }
    return TG_OK;
}

static size_t resampling_bytes(const nn_program *p, const nn_resampling *r) {
    return tg_align((size_t)(r->from * r->to) * tg_dtype_size(p->model->config.dtype));
}

static size_t split_bytes(const nn_program *p, const nn_transform *t) {
    const tg_dtype dtype = tg_dtype_complex(p->model->config.dtype);
    return tg_align((size_t)nn_split_entries(t) * tg_dtype_size(dtype));
}

static size_t matrix_bytes(const nn_program *p) {
    size_t bytes = 0;
    for (int i = 0; i < p->resampling_count; i++) {
        bytes += resampling_bytes(p, &p->resamplings[i]);
    }
    for (int i = 0; i < p->transform_count && nn_is_split(&p->model->split); i++) {
        bytes += split_bytes(p, &p->transforms[i]);
    }
    return bytes;
}

static tg_status fill_matrices(tg_backend *be, nn_program *p, char *memory) {
    const tg_dtype dtype = p->model->config.dtype;
    for (int i = 0; i < p->resampling_count; i++) {
        nn_resampling *r = &p->resamplings[i];
        r->matrix = memory;
        memory += resampling_bytes(p, r);
        TG_CALL(nn_upload_entries(be, dtype, r->from * r->to, nn_resampling_entry, r, r->matrix));
    }
    for (int i = 0; i < p->transform_count && nn_is_split(&p->model->split); i++) {
        nn_transform *t = &p->transforms[i];
        t->matrix = memory;
        memory += split_bytes(p, t);
        TG_CALL(nn_upload_entries(be, tg_dtype_complex(dtype), nn_split_entries(t), nn_split_entry,
                                  t, t->matrix));
    }
    return TG_OK;
}

/* ---- plans ---- */

tg_status nn_plan(tg_context *ctx, const tg_fno_config *config, const nn_split *split,
                  int64_t batch, const int64_t *grid, bool training,
                  const tg_shared_workspace *shared, tg_fno_memory *out, nn_traffic *sent) {
    tg_status status = TG_OK;
    tg_backend *be = NULL;
    nn_model model = {0};
    nn_program program = {0};
    tg_fft_plan **fft = NULL;
    *out = (tg_fno_memory){0};
    TG_TRY(tg_backend_get(ctx, &be));
    TG_TRY(nn_model_create(ctx, config, split, &model));
    TG_TRY(nn_program_create(&model, be, batch, grid, training,
                             shared ? shared : &(tg_shared_workspace){0}, &program));
    /* the size of a transform's own workspace is known once it exists */
    const tg_place place = be->ops->place;
    const size_t before = workspace_held(ctx, place), host = workspace_held(ctx, TG_HOST);
    TG_TRY(create_transforms(be, &program, &fft));
    out->parameters = model.parameters;
    if (sent) {
        *sent = nn_split_sent(&program);
    }
    out->bytes[TG_MEM_WEIGHTS] = model.weight_bytes;
    out->bytes[TG_MEM_ACTIVATIONS] = program.activations.bytes;
    out->host = place == TG_HOST ? 0 : workspace_held(ctx, TG_HOST) - host;
    out->transforms = workspace_held(ctx, place) - before + out->host;
    out->bytes[TG_MEM_WORKSPACE] = program.workspace.bytes + out->transforms +
                                   matrix_bytes(&program) +
                                   nn_places_bytes(&model, be, &program.domain);
    out->bytes[TG_MEM_GRADIENTS] = program.gradient_bytes;
    for (int c = 0; c < TG_MEM_CATEGORIES; c++) {
        out->total += out->bytes[c];
    }
fail:
    destroy_transforms(be, &program, &fft);
    nn_program_free(&program);
    nn_model_destroy(&model);
    return status;
}

tg_status tg_fno_plan(tg_context *ctx, const tg_fno_config *config, int64_t batch,
                      const int64_t *grid, bool training, const tg_shared_workspace *shared,
                      tg_fno_memory *out) {
    TG_NEED(ctx, ctx, config, grid, out);
    return nn_plan(ctx, config, NULL, batch, grid, training, shared, out, NULL);
}

/* ---- phases ---- */

static size_t alive(const nn_arena *arena, int time) {
    size_t bytes = 0;
    for (int i = 0; i < arena->buffer_count; i++) {
        const nn_buffer *b = &arena->buffers[i];
        bytes += b->born <= time && time <= b->dies ? b->bytes : 0;
    }
    return bytes;
}

/* Adds op number `time` to its phase: the bytes alive then, and its arithmetic. */
static void add_op(const nn_program *program, int time, tg_fno_phase *out) {
    const nn_op *op = &program->ops[time];
    const nn_kind_row *row = nn_kind_of(op->kind);
    const size_t activations = alive(&program->activations, time);
    const size_t workspace = alive(&program->workspace, time);
    out->sends_factors = out->sends_factors || op->kind == NN_HAND_OVER_FACTORS;
    out->sends = out->sends || op->kind == NN_HAND_OVER || out->sends_factors;
    out->flops += row->flops ? row->flops(program, op) : 0.0;
    if (op->kind == NN_HAND_OVER) {
        out->traffic += (double)nn_gradient_span(program->model, op->param, op->params);
    }
    for (int k = 0; k < NN_INPUTS + NN_OUTPUTS; k++) {
        const int value = k < NN_INPUTS ? op->in[k] : op->out[k - NN_INPUTS];
        out->traffic += value >= 0 ? (double)nn_value_bytes(program, value) : 0.0;
    }
    out->activations = tg_max_size(out->activations, activations);
    out->workspace = tg_max_size(out->workspace, workspace);
}

tg_status tg_fno_phases(tg_context *ctx, const tg_fno_config *config, int64_t batch,
                        const int64_t *grid, tg_fno_phase *out, int capacity, int *count) {
    TG_NEED(ctx, ctx, config, grid, count);
    capacity = out ? capacity : 0;
    tg_status status = TG_OK;
    tg_backend *be = NULL;
    nn_model model = {0};
    nn_program program = {0};
    *count = 0;
    TG_TRY(tg_backend_get(ctx, &be));
    TG_TRY(nn_model_create(ctx, config, NULL, &model));
    TG_TRY(nn_program_create(&model, be, batch, grid, true, &(tg_shared_workspace){0}, &program));
    for (int time = 0; time < program.op_count; time++) {
        const nn_phase *phase = &program.phases[program.ops[time].phase];
        const bool is_new = time == 0 || program.ops[time].phase != program.ops[time - 1].phase;
        *count += is_new ? 1 : 0;
        if (*count > capacity) {
            continue;
        }
        if (is_new) {
            out[*count - 1] = (tg_fno_phase){.is_backward = phase->is_backward};
            snprintf(out[*count - 1].name, sizeof out->name, "%s", phase->name);
        }
        add_op(&program, time, &out[*count - 1]);
    }
fail:
    nn_program_free(&program);
    nn_model_destroy(&model);
    return status;
}

/* ---- memory ---- */

void nn_run_free(tg_fno *fno) {
    nn_run *run = &fno->run;
    const tg_backend_ops *ops = fno->be->ops;
    destroy_transforms(fno->be, &run->program, &run->fft);
    nn_loss_work_free(fno->be, &run->loss_work);
    ops->release(fno->be, run->activations);
    ops->release(fno->be, run->workspace);
    ops->release(fno->be, run->gradients);
    ops->release(fno->be, run->matrices);
    ops->release(fno->be, run->places);
    nn_program_free(&run->program);
    *run = (nn_run){0};
}

static tg_status take(tg_backend *be, tg_mem_category category, size_t bytes, void **out) {
    *out = be->ops->alloc(be, category, bytes);
    return *out ? TG_OK : TG_E_MEMORY;
}

static bool fits(const tg_fno *fno, int64_t batch, const nn_domain *domain, bool training) {
    const nn_program *program = &fno->run.program;
    const bool same = fno->run.ready && program->training == training && program->whole >= batch &&
                      memcmp(&program->domain, domain, sizeof *domain) == 0;
    return same && (!training || (program->shared.dense_bytes >= fno->shared.dense_bytes &&
                                  program->shared.work_bytes >= fno->shared.work_bytes));
}

const tg_shared_workspace *nn_share(tg_fno *fno, const tg_shared_workspace *shared) {
    fno->shared =
        (tg_shared_workspace){.dense_bytes = shared->dense_bytes, .work_bytes = shared->work_bytes};
    return &fno->run.program.shared;
}

tg_status nn_run_make(tg_fno *fno, int64_t batch, const int64_t *grid, bool training) {
    nn_run *run = &fno->run;
    nn_program *program = &run->program;
    TG_CALL(nn_program_create(&fno->model, fno->be, batch, grid, training, &fno->shared, program));
    TG_CALL(create_transforms(fno->be, program, &run->fft));
    const size_t matrices = matrix_bytes(program);
    if (matrices > 0) {
        TG_CALL(take(fno->be, TG_MEM_WORKSPACE, matrices, &run->matrices));
        TG_CALL(fill_matrices(fno->be, program, run->matrices));
    }
    run->loss_work.samples = program->batch;
    return training ? take(fno->be, TG_MEM_GRADIENTS, program->gradient_bytes, &run->gradients)
                    : TG_OK;
}

tg_status tg_fno_prepare(tg_fno *fno, int64_t batch, const int64_t *grid, bool training) {
    TG_NEED(NULL, fno);
    TG_NEED(fno->ctx, grid);
    tg_status status = TG_OK;
    nn_run *run = &fno->run;
    nn_program *program = &run->program;
    nn_domain domain;
    status = nn_check_weights(fno);
    if (status == TG_OK) {
        status = nn_domain_make(&fno->model, batch, grid, &domain);
    }
    if (status != TG_OK || fits(fno, batch, &domain, training)) {
        return status;
    }
    nn_run_free(fno);
    fno->preparations++;
    TG_TRY(nn_run_make(fno, batch, grid, training));
    TG_TRY(take(fno->be, TG_MEM_ACTIVATIONS, program->activations.bytes, &run->activations));
    TG_TRY(take(fno->be, TG_MEM_WORKSPACE, program->workspace.bytes, &run->workspace));
    const size_t places = nn_places_bytes(&fno->model, fno->be, &domain);
    if (places > 0) {
        TG_TRY(take(fno->be, TG_MEM_WORKSPACE, places, &run->places));
        TG_TRY(nn_places_lay_out(fno, run->places));
    }
    nn_program_bind(program, run->activations, run->workspace);
    run->ready = true;
fail:
    if (status != TG_OK) {
        nn_run_free(fno);
    }
    return status;
}
