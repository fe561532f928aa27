/* Compressing a gradient: one pass that forms it chunk by chunk, gathers its kept entries and
 * projects the rest; see compress.cuh for the products and form_gradient.cu for the chunks. */
#include "backend/cuda/compress/compress.cuh"
#include "backend/cuda/linalg/blas.cuh"

extern "C" {
#include "backend/path.h"
}

/* ---- chunk by chunk ---- */

/* Whether G itself lies in memory as a chunk of all of it would, aligned for 16-byte loads. */
static bool lies_ready(const tg_compress *op, const cuda_plan *plan) {
    const cuda_view &view = plan->view;
    return op->source.dense && op->source.store == TG_STORE_FULL && !(op->masked && op->bitmap) &&
           view.ld == plan->parts * view.cols && (view.part == 1 || plan->parts == 1) &&
           (uintptr_t)op->source.dense % 16 == 0;
}

/* Large chunks, which are formed and contracted by one kernel. */
static tg_status project_large(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool rows = cuda_sm90_contract_rows_fits(be, plan);
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    chain.step[0].factor.own = CUDA_OWN_DIRECT;
    TG_TRY(cuda_plan_factors(be, &chain, true, op->workspace));
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

/* Whether what is kept is taken out of planes where they are contracted, if anything is. */
static bool suits_planes(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool masked = op->masked && op->bitmap, gathers = op->values && op->bitmap;
    return masked == gathers &&
           (!gathers || (op->beta == 0.0 && (uintptr_t)op->values % sizeof(float2) == 0)) &&
           cuda_sm90_contract_fits(be, &plan->planes);
}

/* Whether planes are contracted where a dense gradient lies. */
static bool lies_in_planes(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    return op->source.dense && op->source.store == TG_STORE_FULL && plan->gathers &&
           plan->steps <= 3 && (uintptr_t)op->source.dense % 16 == 0 && suits_planes(be, op, plan);
}

/* Whether the kernel that forms a gradient counts what is not finite in its factors. */
static bool counts_in_forming(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    if (!op->core || op->source.dense || !op->masked || !op->bitmap ||
        cuda_sm90_form_fits(be, op, plan)) {
        return false;
    }
    return cuda_sm90_mode_one_chunk(be, op, plan) > 0 ||
           (suits_planes(be, op, plan) && plan->dim0 % plan->chunk == 0 &&
            cuda_form_array_fits(&op->source, &op->modes, plan->chunk));
}

/* As many indices of mode 0 at a time as the room of both buffers is enough for. */
static tg_status project_planes(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const int64_t entry_size = (int64_t)tg_dtype_size(op->modes.dtype);
    const int64_t room = (plan->middle - plan->buffer[0]) / plan->state[2];
    const int64_t most = plan->steps == 2 ? plan->dim0 : shorter(room, plan->dim0);
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    TG_TRY(cuda_plan_factors(be, plan, true, op->workspace));
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

/* Mode 1 first, where the gradient is formed, then the planes of what that gives. */
static tg_status project_mode_one(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                                  int64_t chunk) {
    char *planes = cuda_plan_at(plan, op->workspace, plan->buffer[0]);
    tg_compress formed = *op; /* nothing is masked or counted any more */
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    formed.guard = NULL;
    chain.chained = true;
    TG_TRY(cuda_plan_factors(be, plan, true, op->workspace));
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

/* A gradient formed in chunks, step by step. */
static tg_path chunked_path(const tg_backend *be, const cuda_plan *plan) {
    return cuda_sm90_contract_fits(be, &plan->planes) ? tg_path{"resident", "form, contract_planes"}
           : plan->planes.tiles > 0                   ? tg_path{"planes", "form, contract"}
                                    : tg_path{"general", "form, a product for each mode"};
}

static tg_status project(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    if (cuda_sm90_form_fits(be, op, plan)) {
        tg_path_report_modes(be, "project", {"streamed", "form_and_contract, contract_rows"},
                             &op->modes);
        return project_large(be, op, plan);
    }
    const int64_t mode_one = cuda_sm90_mode_one_chunk(be, op, plan);
    if (mode_one > 0) {
        tg_path_report_modes(be, "project",
                             {"resident, mode 1 first", "form_mode_one, contract_planes"},
                             &op->modes);
        return project_mode_one(be, op, plan, mode_one);
    }
    tg_path_report_modes(be, "project", chunked_path(be, plan), &op->modes);
    const bool ready = lies_ready(op, plan), gathers = op->values && op->bitmap;
    const bool tight = cuda_sm90_contract_fits(be, &plan->planes); /* rows follow each other */
    const bool late = !ready && suits_planes(be, op, plan);
    tg_compress whole = *op, formed = *op; /* nothing is masked yet; nothing is counted any more */
    whole.bitmap = late ? NULL : op->bitmap;
    formed.guard = NULL;
    const int64_t chunk = plan->chunk;
    const int64_t entry_size = (int64_t)tg_dtype_size(op->modes.dtype);
    cuda_plan chain = *plan;
    tg_status status = TG_OK;
    if (tight) {
        chain.view.ld = 2 * chain.view.cols;
        chain.chained = true;
    }
    TG_TRY(cuda_plan_factors(be, plan, true, op->workspace));
    TG_TRY(cuda_planes_factors(be, plan, true, op->workspace));
    if (ready && gathers) {
        TG_TRY(cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL));
    }
    for (int64_t begin = 0; begin < plan->dim0; begin += chunk) {
        const int64_t count = shorter(chunk, plan->dim0 - begin);
        char *now = cuda_plan_state(plan, op->workspace, 0, begin);
        if (ready) {
            now = static_cast<char *>(const_cast<void *>(op->source.dense)) +
                  begin * plan->unit * entry_size;
        } else {
            chain.apart = tight && begin > 0 && plan->steps > 2; /* mode 1 reads another state */
            TG_TRY(cuda_form_chunk(be, &whole, &chain, begin, count, gathers && !late, now));
            chain.apart = false;
        }
        int q = 0;
        if (plan->planes.tiles > 0) {
            q = 2;
            char *next = cuda_plan_state(plan, op->workspace, q, begin);
            TG_TRY(tight ? cuda_sm90_contract(be, &formed, &chain, begin, count, gathers && late,
                                              false, now, next)
                         : cuda_planes_contract(be, plan, op->workspace, count, now, next));
            now = next;
        }
        for (; q < plan->steps; q++) {
            char *next = cuda_plan_state(plan, op->workspace, q + 1, begin);
            TG_TRY(cuda_plan_step(be, &chain, op->workspace, q, true, count, now, next));
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
        TG_TRY(cuda_plan_middle_to_core(be, &chain, op->workspace, middle, op->scale, op->beta,
                                        op->core));
    }
fail:
    return status;
}

/* ---- modes 0 and 1 before the gradient ---- */

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

static tg_status project_small(tg_backend *be, const tg_compress *op, const cuda_plan *plan,
                               const tg_compress *small) {
    const int64_t frequencies = plan->unit / op->modes.dim[1];
    const cuda_plan small_plan = cuda_plan_of(be, &small->modes);
    tg_status status = TG_OK;
    tg_path_report_modes(be, "project", {"channels first", "cuBLAS, then the smaller call"},
                         &op->modes);
    if (op->values && op->bitmap) {
        TG_TRY(cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL));
    }
    TG_TRY(contract_channels(be, op, 0, TG_OP_T, frequencies, op->source.x, small->source.x));
    TG_TRY(contract_channels(be, op, 1, TG_OP_H, frequencies, op->source.dy, small->source.dy));
    TG_TRY(project(be, small, &small_plan));
fail:
    return status;
}

/* ---- slots ---- */

/* By passes that count nothing. */
static tg_status compress_counted(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    if (!op->core) {
        const bool gathers = op->values && op->bitmap;
        tg_path_report_modes(be, "project", {"values alone", "form"}, &op->modes);
        return gathers ? cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL) : TG_OK;
    }
    if (cuda_dense_mode_fits(be, op, plan)) {
        tg_path_report_modes(be, "project", {"one mode", "one product"}, &op->modes);
        return cuda_dense_mode(be, op, plan);
    }
    tg_compress small;
    return shrinks(be, op, plan, &small) ? project_small(be, op, plan, &small)
                                         : project(be, op, plan);
}

static tg_status compress_by(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    if (op->core && lies_in_planes(be, op, plan)) {
        tg_path_report_modes(be, "project", {"resident, in place", "contract_planes"}, &op->modes);
        return project_planes(be, op, plan);
    }
    if (counts_in_forming(be, op, plan)) {
        return project(be, op, plan);
    }
    tg_compress counted = *op;
    counted.guard = NULL;
    TG_CALL(tg_compress_count(be, op));
    return compress_counted(be, &counted, plan);
}

static tg_status cuda_compress(tg_backend *be, const tg_compress *op) {
    TG_CALL(cuda_check_modes(be, "compress", op->modes.dtype, op->source.store));
    const cuda_plan plan = cuda_plan_of(be, &op->modes);
    return plan.dim0 * plan.unit == 0 ? TG_OK : compress_by(be, op, &plan);
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
