/* Compressing a gradient: one pass that forms it chunk by chunk, gathers its kept entries and
 * projects the rest; see compress.cuh for the products and form_gradient.cu for the chunks. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/linalg/blas.cuh"

extern "C" {
#include "backend/path.h"
}

/* ---- streamed: formed and contracted by one kernel, in large chunks, on Hopper GPUs ---- */

static tg_status project_streamed(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool rows = cuda_sm90_contract_rows_fits(be, plan);
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    TG_TRY(cuda_plan_factors(be, plan, 1, op->workspace));
    for (int64_t begin = 0; begin < plan->dim0; begin += plan->large_chunk) {
        const int64_t count = shorter(plan->large_chunk, plan->dim0 - begin);
        char *now = cuda_plan_large_state(plan, op->workspace, 1, begin);
        chain.apart = begin > 0 && plan->steps > 2; /* mode 1 before it reads another state */
        TG_TRY(cuda_sm90_form(be, op, &chain, begin, count, now));
        chain.chained = true;
        chain.apart = false;
        for (int q = 1; q < plan->steps; q++) {
            char *next = cuda_plan_large_state(plan, op->workspace, q + 1, begin);
            TG_TRY(q == 1 && rows
                       ? cuda_sm90_contract_rows(be, &chain, count, now, next)
                       : cuda_plan_step(be, &chain, op->workspace, q, true, count, now, next));
            now = next;
        }
    }
    TG_TRY(cuda_plan_middle_to_core(be, &chain, op->workspace,
                                    cuda_plan_at(plan, op->workspace, plan->middle), op->scale,
                                    op->beta, op->core));
fail:
    return status;
}

/* ---- resident: planes of the last two modes in shared memory, on Hopper GPUs ---- */

static bool has_planes(const tg_backend *be, const tg_compress *, const cuda_plan *plan) {
    return cuda_sm90_contract_fits(be, &plan->planes);
}

/* Whether kept entries are taken out of planes where these are contracted, if any are. */
static bool takes_out_late(const tg_compress *op) {
    const bool masked = op->masked && op->bitmap, gathers = op->values && op->bitmap;
    return masked == gathers &&
           (!gathers || (op->beta == 0.0 && (uintptr_t)op->values % sizeof(float2) == 0));
}

/* A dense gradient is contracted where it lies. */
static bool lies_in_planes(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    return op->source.dense && op->source.store == TG_STORE_FULL && plan->gathers &&
           plan->steps <= 3 && (uintptr_t)op->source.dense % 16 == 0 && takes_out_late(op) &&
           has_planes(be, op, plan);
}

/* As many indices of mode 0 at a time as the room of both buffers is enough for. */
static tg_status project_in_place(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const int64_t entry_size = (int64_t)tg_dtype_size(op->modes.dtype);
    const int64_t room = (plan->middle - plan->buffer[0]) / plan->state[2];
    const int64_t most = plan->steps == 2 ? plan->dim0 : shorter(room, plan->dim0);
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    TG_TRY(cuda_plan_factors(be, plan, 2, op->workspace));
    for (int64_t begin = 0; begin < plan->dim0; begin += most) {
        const int64_t count = shorter(most, plan->dim0 - begin);
        const char *in =
            static_cast<const char *>(op->source.dense) + begin * plan->unit * entry_size;
        char *end = cuda_plan_state(plan, op->workspace, plan->steps, begin);
        char *now = plan->steps == 2 ? end : cuda_plan_at(plan, op->workspace, plan->buffer[0]);
        TG_TRY(cuda_sm90_contract(be, op, &chain, begin, count, op->values && op->bitmap, false, in,
                                  now));
        chain.chained = true;
        if (plan->steps == 3) {
            TG_TRY(cuda_plan_step(be, &chain, op->workspace, 2, true, count, now, end));
        }
    }
    TG_TRY(cuda_plan_middle_to_core(be, &chain, op->workspace,
                                    cuda_plan_at(plan, op->workspace, plan->middle), op->scale,
                                    op->beta, op->core));
fail:
    return status;
}

static bool forms_mode_one(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    return cuda_sm90_mode_one_chunk(be, op, plan) > 0;
}

/* Mode 1 first, where the gradient is formed, then the planes of what that gives. */
static tg_status project_mode_one(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const int64_t chunk = cuda_sm90_mode_one_chunk(be, op, plan);
    char *planes = cuda_plan_at(plan, op->workspace, plan->buffer[0]);
    tg_compress formed = *op; /* nothing is masked or counted any more */
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    formed.guard = NULL;
    chain.chained = true;
    TG_TRY(cuda_plan_factors(be, plan, 2, op->workspace));
    TG_TRY(cuda_sm90_mode_one_runs(be, op, &chain));
    for (int64_t begin = 0; begin < plan->dim0; begin += chunk) {
        const int64_t count = shorter(chunk, plan->dim0 - begin);
        TG_TRY(cuda_sm90_form_mode_one(be, op, &chain, begin, count, planes));
        TG_TRY(cuda_sm90_contract(be, &formed, &chain, begin, count, false, true, planes,
                                  cuda_plan_state(plan, op->workspace, plan->steps, begin)));
    }
    TG_TRY(cuda_plan_middle_to_core(be, &chain, op->workspace,
                                    cuda_plan_at(plan, op->workspace, plan->middle), op->scale,
                                    op->beta, op->core));
fail:
    return status;
}

/* Whether what is not finite is counted where the planes of a gradient are formed. */
static bool counts_planes(const tg_backend *, const tg_compress *op, const cuda_plan *plan) {
    return !op->source.dense && op->masked && op->bitmap && takes_out_late(op) &&
           plan->dim0 % plan->planes_chunk == 0 &&
           cuda_form_array_fits(&op->source, &op->modes, plan->planes_chunk);
}

/* Planes are formed in memory, with rows that follow each other. */
static tg_status project_planes(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool gathers = op->values && op->bitmap, late = takes_out_late(op);
    const int64_t chunk = plan->planes_chunk;
    tg_compress whole = *op, formed = *op; /* nothing is masked yet; nothing is counted any more */
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    whole.bitmap = late ? NULL : op->bitmap;
    formed.guard = NULL;
    chain.view.ld = 2 * chain.view.cols;
    chain.chained = true;
    TG_TRY(cuda_plan_factors(be, plan, 2, op->workspace));
    for (int64_t begin = 0; begin < plan->dim0; begin += chunk) {
        const int64_t count = shorter(chunk, plan->dim0 - begin);
        char *now = cuda_plan_planes_state(plan, op->workspace, 0, begin);
        char *next = cuda_plan_planes_state(plan, op->workspace, 2, begin);
        chain.apart = begin > 0 && plan->steps == 3; /* mode 1 reads another state */
        TG_TRY(cuda_form_chunk(be, &whole, &chain, begin, count, gathers && !late, now));
        chain.apart = false;
        TG_TRY(cuda_sm90_contract(be, &formed, &chain, begin, count, gathers && late, false, now,
                                  next));
        now = next;
        for (int q = 2; q < plan->steps; q++) {
            next = cuda_plan_planes_state(plan, op->workspace, q + 1, begin);
            TG_TRY(cuda_plan_step(be, &chain, op->workspace, q, true, count, now, next));
            now = next;
        }
        if (!plan->gathers) {
            TG_TRY(cuda_plan_chunk_to_core(be, plan, now, begin, count, op->scale, op->beta,
                                           op->core));
        }
    }
    if (plan->gathers) {
        TG_TRY(cuda_plan_middle_to_core(be, &chain, op->workspace,
                                        cuda_plan_at(plan, op->workspace, plan->middle), op->scale,
                                        op->beta, op->core));
    }
fail:
    return status;
}

/* ---- general: chunk by chunk, one mode after the other ---- */

/* Whether G itself lies in memory as a chunk of all of it would, aligned for 16-byte loads. */
static bool lies_ready(const tg_compress *op, const cuda_plan *plan) {
    const cuda_view &view = plan->view;
    return op->source.dense && op->source.store == TG_STORE_FULL && !(op->masked && op->bitmap) &&
           view.ld == plan->parts * view.cols && (view.part == 1 || plan->parts == 1) &&
           (uintptr_t)op->source.dense % 16 == 0;
}

static tg_status project_general(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool ready = lies_ready(op, plan), gathers = op->values && op->bitmap;
    const int64_t entry_size = (int64_t)tg_dtype_size(op->modes.dtype);
    tg_status status = TG_OK;
    TG_TRY(cuda_plan_factors(be, plan, 0, op->workspace));
    if (ready && gathers) {
        TG_TRY(cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL));
    }
    for (int64_t begin = 0; begin < plan->dim0; begin += plan->chunk) {
        const int64_t count = shorter(plan->chunk, plan->dim0 - begin);
        char *now = cuda_plan_state(plan, op->workspace, 0, begin);
        if (ready) {
            now = static_cast<char *>(const_cast<void *>(op->source.dense)) +
                  begin * plan->unit * entry_size;
        } else {
            TG_TRY(cuda_form_chunk(be, op, plan, begin, count, gathers, now));
        }
        for (int q = 0; q < plan->steps; q++) {
            char *next = cuda_plan_state(plan, op->workspace, q + 1, begin);
            TG_TRY(cuda_plan_step(be, plan, op->workspace, q, true, count, now, next));
            now = next;
        }
        if (!plan->gathers) {
            TG_TRY(cuda_plan_chunk_to_core(be, plan, now, begin, count, op->scale, op->beta,
                                           op->core));
        }
    }
    if (plan->gathers) {
        const void *middle = ready && plan->steps == 0
                                 ? op->source.dense
                                 : cuda_plan_at(plan, op->workspace, plan->middle);
        TG_TRY(cuda_plan_middle_to_core(be, plan, op->workspace, middle, op->scale, op->beta,
                                        op->core));
    }
fail:
    return status;
}

/* ---- channels first: modes 0 and 1 are contracted before the gradient is formed ---- */

/* Without a mask the two channels of a factored gradient can be contracted first,
 *   (G x_0 U0^H x_1 U1^H)[i,o,k] = sum_b conj(x'[b,i,k]) dy'[b,o,k], x' = U0^T x, dy' = U1^H dy,
 * which leaves less than half of the gradient to form in a usual case, and two modes less to
 * contract. `small` becomes the call on x' and dy'; false if it has no room in the workspace, whose
 * size does not know of the batch. */
static bool shrinks(const tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                    tg_compress *small) {
    const tg_multimode *modes = &op->modes;
    if (op->source.dense || op->source.store != TG_STORE_FULL || (op->masked && op->bitmap) ||
        !(modes->factor[0] || modes->factor[1])) {
        return false;
    }
    const int64_t entry_size = (int64_t)tg_dtype_size(modes->dtype);
    const int64_t frequencies = plan->unit / modes->dim[1];
    const void **source[2] = {&small->source.x, &small->source.dy};
    char *end = static_cast<char *>(op->workspace);
    *small = *op;
    small->bitmap = NULL;
    small->values = NULL;
    for (int d = 0; d < 2; d++) {
        if (modes->factor[d]) {
            *source[d] = end;
            end += (op->source.batch * modes->rank[d] * frequencies * entry_size + 255) / 256 * 256;
            small->modes.dim[d] = modes->rank[d];
            small->modes.factor[d] = NULL;
        }
    }
    small->workspace = end;
    const int64_t needed =
        (end - static_cast<char *>(op->workspace)) +
        cuda_plan_of(be, &small->modes).size * (int64_t)tg_dtype_size(plan->real);
    return needed <= plan->size * (int64_t)tg_dtype_size(plan->real);
}

/* to (batch, rank, frequencies) = op(U) from (batch, dim, frequencies), of mode d. */
static tg_status contract_channels(tg_backend *be, const tg_compress *op, int d, tg_op how,
                                   int64_t frequencies, const void *from, const void *to) {
    const tg_multimode *modes = &op->modes;
    tg_gemm gemm = tg_gemm();
    gemm.dtype = modes->dtype;
    gemm.op_a = how;
    gemm.m = modes->rank[d];
    gemm.n = frequencies;
    gemm.k = modes->dim[d];
    gemm.alpha.re = 1.0;
    gemm.a = modes->factor[d];
    gemm.lda = modes->rank[d];
    gemm.b = from;
    gemm.ldb = frequencies;
    gemm.stride_b = gemm.k * frequencies;
    gemm.c = const_cast<void *>(to);
    gemm.ldc = frequencies;
    gemm.stride_c = gemm.m * frequencies;
    gemm.batch = op->source.batch;
    return modes->factor[d] ? cuda_gemm(be, &gemm) : TG_OK;
}

static bool has_fewer_channels(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    tg_compress small;
    return shrinks(be, op, plan, &small);
}

static tg_status project(tg_backend *be, const tg_compress *op, const cuda_plan *plan);

static tg_status project_channels(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const int64_t frequencies = plan->unit / op->modes.dim[1];
    tg_compress small;
    (void)shrinks(be, op, plan, &small);
    const cuda_plan small_plan = cuda_plan_of(be, &small.modes);
    tg_status status = TG_OK;
    if (op->values && op->bitmap) {
        TG_TRY(cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL));
    }
    TG_TRY(contract_channels(be, op, 0, TG_OP_T, frequencies, op->source.x, small.source.x));
    TG_TRY(contract_channels(be, op, 1, TG_OP_H, frequencies, op->source.dy, small.source.dy));
    TG_TRY(project(be, &small, &small_plan));
fail:
    return status;
}

/* ---- the paths ---- */

static bool has_no_core(const tg_backend *, const tg_compress *op, const cuda_plan *) {
    return !op->core;
}

static tg_status gather(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool gathers = op->values && op->bitmap;
    return gathers ? cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL) : TG_OK;
}

static bool always(const tg_backend *, const tg_compress *, const cuda_plan *) {
    return true;
}

/* A way to compress a gradient: the first one whose condition holds is taken. */
struct project_path {
    tg_path path;
    bool (*fits)(const tg_backend *be, const tg_compress *op, const cuda_plan *plan);
    /* whether it counts what is not finite; NULL: a pass of its own does so before it */
    bool (*counts)(const tg_backend *be, const tg_compress *op, const cuda_plan *plan);
    tg_status (*run)(tg_backend *be, const tg_compress *op, const cuda_plan *plan);
};

static const project_path paths[] = {
    {{"values alone", "form_factored"}, has_no_core, NULL, gather},
    {{"resident, in place", "contract_planes, multiply_columns"},
     lies_in_planes,
     always,
     project_in_place},
    {{"one mode", "multiply_columns, or cuBLAS"}, cuda_dense_mode_fits, NULL, cuda_dense_mode},
    {{"channels first", "cuBLAS, and another path"}, has_fewer_channels, NULL, project_channels},
    {{"streamed", "form_and_contract, contract_rows, multiply_columns"},
     cuda_sm90_form_fits,
     NULL,
     project_streamed},
    {{"resident, mode 1 first", "form_mode_one, contract_planes, multiply_columns"},
     forms_mode_one,
     always,
     project_mode_one},
    {{"resident", "form_array or form_factored, contract_planes, multiply_columns"},
     has_planes,
     counts_planes,
     project_planes},
    {{"general", "form_factored, cuBLAS or multiply_columns, weave"},
     always,
     NULL,
     project_general},
};

static const project_path *path_of(const tg_backend *be, const tg_compress *op,
                                   const cuda_plan *plan) {
    const project_path *path = paths;
    while (!path->fits(be, op, plan)) {
        path++;
    }
    return path;
}

static tg_status project(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const project_path *path = path_of(be, op, plan);
    tg_compress counted = *op;
    tg_path_report_modes(be, "project", path->path, &op->modes);
    if (!path->counts || !path->counts(be, op, plan)) {
        TG_CALL(tg_compress_count(be, op));
        counted.guard = NULL;
    }
    return path->run(be, &counted, plan);
}

/* ---- slots ---- */

static tg_status cuda_compress(tg_backend *be, const tg_compress *op) {
    TG_CALL(cuda_check_modes(be, "compress", op->modes.dtype, op->source.store));
    const cuda_plan plan = cuda_plan_of(be, &op->modes);
    return plan.dim0 * plan.unit == 0 ? TG_OK : project(be, op, &plan);
}

size_t cuda_compress_workspace(tg_backend *be, const tg_multimode *modes) {
    const cuda_plan plan = cuda_plan_of(be, modes);
    return (size_t)plan.size * tg_dtype_size(plan.real);
}

void cuda_fill_compress(tg_backend_ops *ops) {
    ops->compress = cuda_compress;
    ops->expand = cuda_expand;
    ops->sample = cuda_sample;
    ops->grad_dense = cuda_grad_dense;
}
