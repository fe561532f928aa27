/* The lists of a program, and the order of its passes. */
#include "nn/program.h"

#include <stdio.h>
#include <string.h>

#include "backend/quantize.h"
#include "base/minmax.h"
#include "nn/ops.h"

bool nn_failed(nn_program *program, tg_status status) {
    if (program->status == TG_OK) {
        program->status = status;
    }
    return program->status != TG_OK;
}

/* ---- values ---- */

int nn_value_add(nn_program *program, nn_value value) {
    if (nn_failed(program, NN_GROW(program, values, value))) {
        return 0; /* any valid number: after a failure it is not read */
    }
    value.home = program->value_count;
    program->values[program->value_count] = value;
    return program->value_count++;
}

int nn_value_like(nn_program *program, int value) {
    nn_value copy = program->values[value];
    copy.is_boundary = copy.is_transient = copy.is_whole = false;
    copy.before_act = -1;
    return nn_value_add(program, copy);
}

void nn_value_set_grid(nn_program *program, int value, nn_grid grid) {
    nn_value *v = &program->values[value];
    const nn_model *model = program->model;
    v->grid = grid;
    v->points = nn_slab_of(model, &program->domain, grid, model->split.part).count *
                tg_product(model->config.n_dim - 1, grid.size + 1);
}

int nn_boundary(nn_program *program, int value) {
    program->values[value].is_boundary = true;
    return value;
}

static int64_t elements(const nn_program *program, const nn_value *value) {
    const int64_t batch = value->is_single ? 1 : value->is_whole ? program->whole : program->batch;
    return value->planes * batch * value->channels * value->points;
}

size_t nn_value_bytes(const nn_program *program, int value) {
    const nn_value *v = &program->values[value];
    return v->role == NN_SCRATCH ? (size_t)v->points
           : v->dtype == TG_U8   ? tg_quantized_bytes(elements(program, v))
                                 : (size_t)elements(program, v) * tg_dtype_size(v->dtype);
}

/* ---- phases ---- */

int nn_phase_named(nn_program *program, const char *name, bool is_backward) {
    for (int i = program->phase_count - 1; i >= 0; i--) {
        if (strcmp(program->phases[i].name, name) == 0) {
            return i;
        }
    }
    if (nn_failed(program, NN_GROW(program, phases, phase))) {
        return 0;
    }
    nn_phase *phase = &program->phases[program->phase_count];
    *phase = (nn_phase){.is_backward = is_backward};
    snprintf(phase->name, sizeof phase->name, "%s", name);
    return program->phase_count++;
}

void nn_scope(nn_program *program, int block, const char *scope) {
    program->block = block;
    program->scope = scope;
}

void nn_phase_begin(nn_program *program, const char *forward, const char *backward) {
    const char *scope = program->scope;
    char name[sizeof program->phases->name];
    snprintf(name, sizeof name, "%s%s%s", scope ? scope : "", scope ? ": " : "", forward);
    program->phase = nn_phase_named(program, name, false);
    snprintf(name, sizeof name, "back through %s%s%s", scope ? scope : "the", scope ? ": " : " ",
             backward);
    program->back = nn_phase_named(program, name, true);
}

/* ---- ops ---- */

nn_op nn_op_make(nn_kind kind) {
    return (nn_op){.kind = kind,
                   .in = {-1, -1, -1, -1, -1},
                   .out = {-1, -1, -1},
                   .scratch = {-1, -1},
                   .reads = -1,
                   .param = -1,
                   .bias = -1,
                   .gate = -1};
}

nn_op nn_op_on(nn_program *program, nn_kind kind, int x) {
    nn_op op = nn_op_make(kind);
    op.in[NN_X] = x;
    op.out[0] = nn_value_like(program, x);
    return op;
}

void nn_op_append(nn_program *program, const nn_op *op) {
    if (!nn_failed(program, NN_GROW(program, ops, op))) {
        program->ops[program->op_count++] = *op;
    }
}

int nn_op_add(nn_program *program, nn_op op) {
    op.phase = program->phase;
    op.back = program->back;
    op.block = program->block;
    nn_op_append(program, &op);
    return op.out[0];
}

int nn_activated_output(const nn_program *program, const nn_op *op) {
    for (int k = 1; k < NN_OUTPUTS; k++) {
        if (op->out[k] >= 0 && op->out[k - 1] >= 0 &&
            program->values[op->out[k]].before_act == op->out[k - 1]) {
            return k;
        }
    }
    return -1;
}

int nn_sharing_begins(const nn_program *program) {
    int time = program->op_count;
    while (time > program->backward_begin &&
           program->ops[time - 1].phase == program->spectral_phase) {
        time--;
    }
    return time;
}

void nn_leave_out_gone(nn_program *p) {
    const int ends[] = {p->forward_end, p->backward_begin, p->backward_end};
    int count = 0;
    for (int i = 0; i < p->op_count; i++) {
        if (p->ops[i].kind == NN_GONE) {
            p->forward_end -= i < ends[0];
            p->backward_begin -= i < ends[1];
            p->backward_end -= i < ends[2];
        } else {
            p->ops[count++] = p->ops[i];
        }
    }
    p->op_count = count;
}

/* ---- links ---- */

tg_status nn_links_make(const nn_program *program, nn_links *out) {
    *out = (nn_links){0};
    TG_CALL(TG_NEW(program->ctx, TG_MEM_OTHER, out->maker, program->value_count));
    TG_CALL(TG_NEW(program->ctx, TG_MEM_OTHER, out->readers, program->value_count));
    for (int i = program->op_count - 1; i >= 0; i--) {
        const nn_op *op = &program->ops[i];
        for (int k = 0; k < NN_OUTPUTS; k++) {
            if (op->out[k] >= 0) {
                out->maker[op->out[k]] = i;
            }
        }
        for (int k = 0; k < NN_INPUTS; k++) {
            if (op->in[k] >= 0) {
                out->readers[op->in[k]]++;
            }
        }
    }
    return TG_OK;
}

void nn_links_free(const nn_program *program, nn_links *links) {
    TG_FREE(program->ctx, links->maker);
    TG_FREE(program->ctx, links->readers);
}

bool nn_is_read(const nn_program *program, int first, int end, int value) {
    for (int i = first; i < end; i++) {
        for (int k = 0; k < NN_INPUTS; k++) {
            if (program->ops[i].in[k] == value) {
                return true;
            }
        }
    }
    return false;
}

nn_op *nn_reader_of(const nn_program *program, int value, nn_kind kind, int input) {
    for (int i = 0; i < program->op_count; i++) {
        if (program->ops[i].kind == kind && program->ops[i].in[input] == value) {
            return &program->ops[i];
        }
    }
    return NULL;
}

/* ---- the whole program ---- */

/* Every kind in use needs a slot of the backend. */
static tg_status check_slots(const nn_program *program, const tg_backend *be) {
    for (int i = 0; i < program->op_count; i++) {
        const nn_kind_row *row = nn_kind_of(program->ops[i].kind);
        void (*slot)(void) = NULL;
        memcpy(&slot, (const char *)be->ops + row->slot, sizeof slot);
        if (row->slot > 0 && !slot) {
            return tg_fail(program->ctx, TG_E_UNSUPPORTED,
                           "the network has a layer of kind %s, which the backend %s cannot "
                           "compute; take another one (--backend cpu, tg_context_config.backend)",
                           row->name, be->ops->name);
        }
    }
    return TG_OK;
}

/* Dense gradients of up to this many bytes are handed over together where that saves launches. */
enum { KEPT_BYTES = 1 << 20 };

tg_status nn_program_create(const nn_model *model, tg_backend *be, int64_t batch,
                            const int64_t *grid, bool training, const tg_shared_workspace *shared,
                            nn_program *p) {
    tg_status status = TG_OK;
    const int64_t micro = training ? model->config.micro_batch : 0;
    const int64_t in_flight = micro > 0 && micro < batch ? micro : batch;
    const bool at_once = be->ops->stream && model->dense_bytes <= KEPT_BYTES;
    *p = (nn_program){
        .ctx = model->ctx,
        .model = model,
        .training = training,
        .whole = batch,
        .batch = in_flight,
        .images = be->ops->stream ? in_flight : 1,
        .target = -1,
        .dout = -1,
        .spectral_phase = -1,
        .keeps_gradients = training && (in_flight < batch || at_once),
        .activations = {.ctx = model->ctx},
        .workspace = {.ctx = model->ctx},
        .shared = {.dense_bytes = shared->dense_bytes, .work_bytes = shared->work_bytes}};
    TG_TRY(nn_domain_make(model, batch, grid, &p->domain));
    TG_TRY(NN_GROW(p, values, value)); /* number 0 exists and is zero, whatever fails later */
    TG_TRY(NN_GROW(p, transforms, transform));
    TG_TRY(NN_GROW(p, resamplings, resampling));
    p->values[0] = (nn_value){0};
    p->transforms[0] = (nn_transform){0};
    p->resamplings[0] = (nn_resampling){0};
    model->architecture->build(model, p);
    p->forward_end = p->backward_begin = p->op_count;
    if (training && p->status == TG_OK) {
        nn_add_loss(p);
        p->backward_begin = p->op_count;
        TG_TRY(nn_pass_differentiate(p));
    }
    TG_TRY(p->status);
    TG_TRY(nn_pass_fuse(p));
    TG_TRY(nn_pass_checkpoint(p));
    TG_TRY(nn_pass_hand_over(p));
    nn_pass_choose_formats(p);
    TG_TRY(nn_pass_fuse_blocks(p, be));
    TG_TRY(nn_pass_save_small(p, be));
    TG_TRY(check_slots(p, be));
    TG_TRY(nn_pass_place(p, be));
    return TG_OK;
fail:
    nn_program_free(p);
    return status;
}

void nn_program_bind(nn_program *program, void *activations, void *workspace) {
    nn_arena_bind(&program->activations, activations);
    nn_arena_bind(&program->workspace, workspace);
    for (int i = 0; i < program->value_count; i++) {
        program->values[i].data = program->values[program->values[i].home].data;
    }
}

void nn_program_free(nn_program *program) {
    if (program->ctx) {
        nn_arena_free(&program->activations);
        nn_arena_free(&program->workspace);
        tg_mem_free(program->ctx, program->values);
        tg_mem_free(program->ctx, program->ops);
        tg_mem_free(program->ctx, program->transforms);
        tg_mem_free(program->ctx, program->resamplings);
        tg_mem_free(program->ctx, program->phases);
    }
    *program = (nn_program){0};
}

/* ---- kinds ---- */

const nn_kind_row *nn_kind_of(nn_kind kind) {
    static const nn_kind_row *const rows[NN_KINDS] = {
#define NN_KIND(kind, row) [NN_##kind] = &row,
#include "nn/ops.def"
    };
    return rows[kind];
}
