/* Projects a gradient: one pass forms it chunk by chunk, gathers its kept entries and projects the
 * rest. See compress.cuh for the products and form_gradient.cu for the chunks. */
#include "backend/cuda/compress/compress.cuh"

static tg_status middle_to_core(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    return cuda_plan_middle_to_core(be, plan, op->workspace,
                                    cuda_plan_at(plan, op->workspace, plan->middle), op->scale,
                                    op->beta, op->core);
}

/* ---- chunk by chunk ---- */

/* Whether G is stored like a chunk of all of it, aligned for 16-byte loads. */
static bool has_chunk_layout(const tg_compress *op, const cuda_plan *plan) {
    const cuda_view &view = plan->view;
    return op->source.dense && op->source.store == TG_STORE_FULL && !(op->masked && op->bitmap) &&
           view.ld == plan->parts * view.cols && (view.part == 1 || plan->parts == 1) &&
           (uintptr_t)op->source.dense % 16 == 0;
}

/* Large chunks, formed and contracted by one kernel. */
static tg_status project_streamed(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool rows = cuda_sm90_contract_rows_fits(be, plan);
    cuda_plan chain = *plan;
    chain.step[0].factor.own = CUDA_OWN_DIRECT;
    TG_CALL(cuda_plan_factors(be, &chain, true, op->workspace));
    for (int64_t begin = 0; begin < plan->dim0; begin += plan->large_chunk) {
        const int64_t count = tg_min(plan->large_chunk, plan->dim0 - begin);
        char *now = cuda_plan_large_state(plan, op->workspace, 1, begin);
        chain.apart =
            begin > 0 && plan->steps > 2; /* mode 1 of the previous chunk reads another state */
        TG_CALL(cuda_sm90_form(be, op, &chain, begin, count, now));
        chain.chained = true;
        chain.apart = false;
        for (int q = 1; q < plan->steps; q++) {
            char *next = cuda_plan_large_state(plan, op->workspace, q + 1, begin);
            TG_CALL(q == 1 && rows
                        ? cuda_sm90_contract_rows(be, &chain, count, now, next)
                        : cuda_plan_step(be, &chain, op->workspace, q, true, count, now, next));
            now = next;
        }
    }
    return middle_to_core(be, op, &chain);
}

/* Whether the planes kernel gathers the kept entries, if there are any. */
static bool suits_planes(const tg_compress *op, const cuda_plan *plan) {
    const bool masked = op->masked && op->bitmap, gathers = op->values && op->bitmap;
    return masked == gathers &&
           (!gathers || (op->beta == 0.0 && (uintptr_t)op->values % sizeof(float2) == 0)) &&
           plan->contracts == PLANES_HOPPER;
}

/* The planes of a dense gradient are contracted in place: as many as fit into both buffers. */
static int64_t fits_in_place(const tg_backend *, const tg_compress *op, const cuda_plan *plan) {
    if (!op->source.dense || op->source.store != TG_STORE_FULL || !plan->gathers ||
        plan->steps > 3 || (uintptr_t)op->source.dense % 16 != 0 || !suits_planes(op, plan)) {
        return 0;
    }
    const int64_t room = (plan->middle - plan->buffer[0]) / plan->state[2];
    return plan->steps == 2 ? plan->dim0 : tg_min(room, plan->dim0);
}

static tg_status project_in_place(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const int64_t entry_size = (int64_t)tg_dtype_size(op->modes.dtype);
    const int64_t most = plan->project_at_once;
    cuda_plan chain = *plan;
    TG_CALL(cuda_plan_factors(be, plan, true, op->workspace));
    for (int64_t begin = 0; begin < plan->dim0; begin += most) {
        const int64_t count = tg_min(most, plan->dim0 - begin);
        const char *in =
            static_cast<const char *>(op->source.dense) + begin * plan->unit * entry_size;
        char *end = cuda_plan_state(plan, op->workspace, plan->steps, begin);
        char *now = plan->steps == 2 ? end : cuda_plan_at(plan, op->workspace, plan->buffer[0]);
        TG_CALL(cuda_sm90_contract(be, op, &chain, begin, count, op->values && op->bitmap, false,
                                   in, now));
        chain.chained = true;
        if (plan->steps == 3) {
            TG_CALL(cuda_plan_step(be, &chain, op->workspace, 2, true, count, now, end));
        }
    }
    return middle_to_core(be, op, &chain);
}

/* Contracts mode 1 while forming the gradient, then the planes of the result. */
static tg_status project_mode_one(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const int64_t chunk = plan->project_at_once;
    char *planes = cuda_plan_at(plan, op->workspace, plan->buffer[0]);
    tg_compress formed = *op; /* nothing is left to mask or count */
    cuda_plan chain = *plan;
    formed.guard = NULL;
    chain.chained = true;
    TG_CALL(cuda_plan_factors(be, plan, true, op->workspace));
    TG_CALL(cuda_sm90_mode_one_runs(be, op, &chain));
    for (int64_t begin = 0; begin < plan->dim0; begin += chunk) {
        const int64_t count = tg_min(chunk, plan->dim0 - begin);
        TG_CALL(cuda_sm90_form_mode_one(be, op, &chain, begin, count, planes));
        TG_CALL(cuda_sm90_contract(be, &formed, &chain, begin, count, false, true, planes,
                                   cuda_plan_state(plan, op->workspace, plan->steps, begin)));
    }
    return middle_to_core(be, op, &chain);
}

/* Chunk by chunk, both last modes by the given kernel, the others one by one. */
template <cuda_planes_kernel KERNEL>
static int64_t fits_chunks(const tg_backend *, const tg_compress *, const cuda_plan *plan) {
    return plan->contracts == KERNEL ? plan->chunk : 0;
}

/* Whether the kernel that forms a chunk also counts the non-finite entries of the factors. */
static bool counts_in_forming(const tg_backend *, const tg_compress *op, const cuda_plan *plan) {
    return !op->source.dense && op->masked && op->bitmap && suits_planes(op, plan) &&
           plan->dim0 % plan->chunk == 0 &&
           cuda_form_array_fits(&op->source, &op->modes, plan->chunk);
}

static tg_status project_chunks(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool ready = has_chunk_layout(op, plan), gathers = op->values && op->bitmap;
    const bool tight = plan->contracts == PLANES_HOPPER; /* rows without padding */
    const bool late = !ready && suits_planes(op, plan);
    tg_compress whole = *op, formed = *op; /* `whole`: not masked yet; `formed`: already counted */
    whole.bitmap = late ? NULL : op->bitmap;
    formed.guard = NULL;
    const int64_t chunk = plan->chunk;
    const int64_t entry_size = (int64_t)tg_dtype_size(op->modes.dtype);
    cuda_plan chain = *plan;
    if (tight) {
        chain.view.ld = 2 * chain.view.cols;
        chain.chained = true;
    }
    TG_CALL(cuda_plan_factors(be, plan, true, op->workspace));
    TG_CALL(cuda_planes_factors(be, plan, true, op->workspace));
    if (ready && gathers) {
        TG_CALL(cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL));
    }
    for (int64_t begin = 0; begin < plan->dim0; begin += chunk) {
        const int64_t count = tg_min(chunk, plan->dim0 - begin);
        char *now = cuda_plan_state(plan, op->workspace, 0, begin);
        if (ready) {
            now = static_cast<char *>(const_cast<void *>(op->source.dense)) +
                  begin * plan->unit * entry_size;
        } else {
            chain.apart = tight && begin > 0 && plan->steps > 2; /* mode 1 reads another state */
            TG_CALL(cuda_form_chunk(be, &whole, &chain, begin, count, gathers && !late, now));
            chain.apart = false;
        }
        int q = 0;
        if (plan->planes.tiles > 0) {
            q = 2;
            char *next = cuda_plan_state(plan, op->workspace, q, begin);
            TG_CALL(tight ? cuda_sm90_contract(be, &formed, &chain, begin, count, gathers && late,
                                               false, now, next)
                          : cuda_planes_contract(be, plan, op->workspace, count, now, next));
            now = next;
        }
        for (; q < plan->steps; q++) {
            char *next = cuda_plan_state(plan, op->workspace, q + 1, begin);
            TG_CALL(cuda_plan_step(be, &chain, op->workspace, q, true, count, now, next));
            now = next;
        }
        if (!plan->gathers) {
            TG_CALL(cuda_plan_chunk_to_core(be, plan, now, begin, count, op->scale, op->beta,
                                            op->core));
        }
    }
    if (plan->gathers) {
        const void *middle = ready && plan->steps == 0
                                 ? op->source.dense
                                 : cuda_plan_at(plan, op->workspace, plan->middle);
        TG_CALL(cuda_plan_middle_to_core(be, &chain, op->workspace, middle, op->scale, op->beta,
                                         op->core));
    }
    return TG_OK;
}

/* ---- modes 0 and 1 before the gradient ---- */

/* Without a mask the two channel modes of a factored gradient can be contracted first,
 *   (G x_0 U0^H x_1 U1^H)[i,o,k] = sum_b conj(x'[b,i,k]) dy'[b,o,k], x' = U0^T x, dy' = U1^H dy,
 * which usually leaves less than half of the gradient to form, and two modes fewer to contract.
 * `small` becomes the call on x' and dy'. Returns false if they do not fit into the workspace,
 * whose size does not depend on the batch. */
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
        cuda_plan_sizes(be, &small->modes).size * (int64_t)tg_dtype_size(plan->real);
    return needed <= plan->size * (int64_t)tg_dtype_size(plan->real);
}

/* to (batch, rank, frequencies) = op(U) from (batch, dim, frequencies), of mode d. */
static tg_status contract_channels(tg_backend *be, const tg_compress *op, int d, tg_op how,
                                   int64_t frequencies, const void *from, const void *to) {
    const tg_multimode *modes = &op->modes;
    tg_gemm gemm = gemm_of(modes->dtype, modes->rank[d], frequencies, modes->dim[d], 1.0, how,
                           modes->factor[d], modes->rank[d], TG_OP_N, from, frequencies, 0.0,
                           const_cast<void *>(to), frequencies);
    gemm.stride_b = gemm.k * frequencies;
    gemm.stride_c = gemm.m * frequencies;
    gemm.batch = op->source.batch;
    return modes->factor[d] ? cuda_gemm(be, &gemm) : TG_OK;
}

static int64_t fits_small(const tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    tg_compress small;
    return shrinks(be, op, plan, &small) ? plan->dim0 : 0;
}

static tg_status project_small(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const int64_t frequencies = plan->unit / op->modes.dim[1];
    tg_compress small;
    (void)shrinks(be, op, plan, &small);
    if (op->values && op->bitmap) {
        TG_CALL(cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL));
    }
    TG_CALL(contract_channels(be, op, 0, TG_OP_T, frequencies, op->source.x, small.source.x));
    TG_CALL(contract_channels(be, op, 1, TG_OP_H, frequencies, op->source.dy, small.source.dy));
    return cuda_compress(be, &small);
}

/* ---- the paths ---- */

static int64_t fits_values(const tg_backend *, const tg_compress *op, const cuda_plan *plan) {
    return op->core ? 0 : plan->dim0;
}

static tg_status gather_values(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    const bool gathers = op->values && op->bitmap;
    return gathers ? cuda_form_chunk(be, op, plan, 0, plan->dim0, true, NULL) : TG_OK;
}

static bool always_counts(const tg_backend *, const tg_compress *, const cuda_plan *) {
    return true;
}

const cuda_path<tg_compress> cuda_project_paths[] = {
    {{"values alone", "form"}, fits_values, gather_values},
    {{"resident, in place", "contract_planes"}, fits_in_place, project_in_place, always_counts},
    {{"one mode", "one product"}, cuda_dense_mode_fits, cuda_dense_mode},
    {{"channels first", "cuBLAS, then the smaller call"}, fits_small, project_small},
    {{"streamed", "form_and_contract, contract_rows"}, cuda_sm90_form_fits, project_streamed},
    {{"resident, mode 1 first", "form_mode_one, contract_planes"},
     cuda_sm90_mode_one_fits,
     project_mode_one,
     always_counts},
    {{"resident", "form, contract_planes"},
     fits_chunks<PLANES_HOPPER>,
     project_chunks,
     counts_in_forming},
    {{"planes, factors in shared memory", "form, contract_resident"},
     fits_chunks<PLANES_SHARED>,
     project_chunks},
    {{"planes", "form, contract"}, fits_chunks<PLANES_WARPS>, project_chunks},
    {{"general", "form, a product for each mode"}, fits_chunks<PLANES_NONE>, project_chunks},
};

/* ---- slots ---- */

static tg_status project(tg_backend *be, const tg_compress *op, const cuda_plan *plan) {
    tg_compress counted = *op;
    if (!plan->project) {
        return TG_OK;
    }
    if (!plan->counts) {
        TG_CALL(tg_compress_count(be, op));
        counted.guard = NULL;
    }
    tg_path_report_modes(be, "project", plan->project->path, &op->modes);
    return plan->project->run(be, &counted, plan);
}

tg_status cuda_compress(tg_backend *be, const tg_compress *op) {
    TG_CALL(cuda_check_modes(be, "compress", op->modes.dtype, op->source.store));
    const cuda_plan plan = cuda_plan_of(be, &op->modes, op, NULL, NULL);
    return project(be, op, &plan);
}

tg_status cuda_step_compressed(tg_backend *be, const tg_compress *op, const tg_adam *adam,
                               const tg_expand *back) {
    TG_CALL(cuda_check_modes(be, "compress", op->modes.dtype, op->source.store));
    TG_CALL(tg_check_adam(be->ctx, adam));
    TG_CALL(cuda_check_modes(be, "expand", back->modes.dtype, back->out_store));
    cuda_plan plan = cuda_plan_of(be, &op->modes, op, adam, back);
    if (plan.moves_core) {
        plan.adam = adam;
        TG_CALL(project(be, op, &plan));
    } else {
        TG_CALL(cuda_compress(be, op));
        TG_CALL(be->ops->update(be, 1, adam));
    }
    return cuda_expand_by(be, back, &plan);
}

size_t cuda_compress_workspace(tg_backend *be, const tg_multimode *modes) {
    const cuda_plan plan = cuda_plan_sizes(be, modes);
    return (size_t)plan.size * tg_dtype_size(plan.real);
}
