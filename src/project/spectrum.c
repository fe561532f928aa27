/* What ranks are allocated by, and how allocated ranks reach the branches.
 *
 * The sparse set keeps the share of the settings. In front of the core: the spectrum is that of
 * what the largest entries leave. Behind it or beside it: that of G, and what the set leaves of the
 * residual of the last refresh. */
#include "base/scratch.h"
#include "project/projector.h"

bool tg_projector_is_auto(const tg_projector *p) {
    return p->low_rank && p->low_rank->is_auto;
}

/* The set takes of what the core leaves, or beside it: what sets gain is read off the residual. */
static bool is_sparse_behind(const tg_projector *p) {
    return p->sparse && !tg_projector_masks(p);
}

/* What the largest entries leave at most. */
static double most_left(const tg_projector *p, int64_t kept) {
    return 1.0 - (double)kept / (double)p->numel;
}

tg_spectrum tg_projector_spectrum_sizes(const tg_projector *p) {
    tg_spectrum s = {.ndim = p->shape.ndim,
                     .kept = p->sparse ? p->sparse->count : 0,
                     .is_behind = is_sparse_behind(p)};
    for (int d = 0; d < s.ndim; d++) {
        s.dim[d] = p->shape.dim[d];
        s.max_rank[d] = p->low_rank->max_rank[d];
    }
    return s;
}

static tg_tucker_plan plan_of(const tg_projector *p) {
    tg_tucker_plan plan = {.dtype = p->dtype, .ndim = p->shape.ndim};
    for (int d = 0; d < plan.ndim; d++) {
        plan.dim[d] = p->shape.dim[d];
    }
    return plan;
}

/* A bitmap for the set of this gradient stands in front of all other scratch. */
static tg_bitmap lay_out(const tg_projector *p, tg_scratch *scratch) {
    tg_bitmap bitmap = {.n = p->numel};
    if (p->sparse) {
        bitmap.words =
            tg_scratch_take(scratch, (size_t)tg_bitmap_words(p->numel) * sizeof(uint64_t));
        bitmap.ranks =
            tg_scratch_take(scratch, (size_t)tg_bitmap_ranks(p->numel) * sizeof(uint32_t));
    }
    return bitmap;
}

/* Behind it: the residual and a core. */
typedef struct behind {
    tg_bitmap trial;
    void *residual, *core;
} behind;

static behind lay_out_behind(const tg_projector *p, tg_scratch *scratch) {
    const size_t size = tg_dtype_size(p->dtype);
    behind b = {.trial = lay_out(p, scratch)};
    b.residual = tg_scratch_take(scratch, (size_t)p->numel * size);
    b.core = tg_scratch_take(scratch, (size_t)p->low_rank->count * size);
    return b;
}

size_t tg_projector_spectrum_scratch(const tg_projector *p) {
    const tg_tucker_plan plan = plan_of(p);
    tg_scratch spectrum = {0}, residual = {0};
    lay_out(p, &spectrum);
    spectrum.used += tg_tucker_spectrum_scratch(&plan);
    if (is_sparse_behind(p)) {
        lay_out_behind(p, &residual);
        residual.used += p->be->ops->compress_workspace(p->be, &p->modes, false);
    }
    return spectrum.used > residual.used ? spectrum.used : residual.used;
}

tg_status tg_projector_measure_left(tg_projector *p, const void *grad, tg_storage store) {
    const tg_backend_ops *ops = p->be->ops;
    const tg_dtype dtype = tg_stored(p->dtype, store);
    const tg_spectrum sizes = tg_projector_spectrum_sizes(p);
    tg_scratch scratch = {.block = p->workspace->memory};
    tg_norms all, core_leaves, both_leave;
    if (!is_sparse_behind(p)) {
        return TG_OK;
    }
    behind b = lay_out_behind(p, &scratch);
    TG_CALL(ops->norms(p->be, dtype, p->numel, grad, &all));
    TG_CALL(tg_projector_form_residual(p, grad, store, b.residual, b.core,
                                       scratch.block + scratch.used));
    TG_CALL(ops->norms(p->be, p->dtype, p->numel, b.residual, &core_leaves));
    const bool is_rounding = !(core_leaves.sum_squares > 1e-10 * all.sum_squares);
    if (p->config.scheme == TG_SCHEME_COMPOSITE) {
        TG_CALL(ops->select_topk(p->be, p->dtype, b.residual, sizes.kept, &b.trial));
    } else {
        TG_CALL(ops->select_topk(p->be, dtype, grad, sizes.kept, &b.trial));
    }
    TG_CALL(ops->bitmap_clear(p->be, p->dtype, &b.trial, b.residual, b.residual));
    TG_CALL(ops->norms(p->be, p->dtype, p->numel, b.residual, &both_leave));
    p->left.part =
        is_rounding ? most_left(p, sizes.kept) : both_leave.sum_squares / core_leaves.sum_squares;
    p->rest = all.sum_squares > 0.0 ? both_leave.sum_squares / all.sum_squares : 0.0;
    for (int d = 0; d < sizes.ndim; d++) {
        p->left.rank[d] = (double)p->low_rank->modes.rank[d];
    }
    return TG_OK;
}

tg_status tg_projector_measure(tg_projector *p, const void *grad, tg_storage store,
                               tg_spectrum *out) {
    const tg_dtype dtype = tg_stored(p->dtype, store);
    tg_tucker_plan plan = plan_of(p);
    plan.store = store;
    tg_scratch scratch = {.block = p->workspace->memory};
    tg_bitmap trial = lay_out(p, &scratch);
    tg_norms norms;
    TG_CALL(p->be->ops->norms(p->be, dtype, p->numel, grad, &norms));
    out->energy = norms.sum_squares;
    const bool masks = tg_projector_masks(p);
    if (masks) {
        TG_CALL(p->be->ops->select_topk(p->be, dtype, grad, out->kept, &trial));
    }
    return tg_tucker_spectrum(p->be, &plan, grad, masks ? &trial : NULL, out->values,
                              scratch.block + scratch.used);
}

tg_status tg_projector_set_ranks(tg_projector *p, const int64_t *rank) {
    tg_branch *low_rank = p->low_rank;
    low_rank->restarts = true;
    low_rank->count = 1;
    for (int d = 0; d < low_rank->modes.ndim; d++) {
        low_rank->modes.rank[d] = rank[d];
        low_rank->count *= rank[d];
    }
    p->modes = low_rank->modes;
    const tg_projector_bytes bytes = tg_projector_get_bytes(p);
    if (bytes.workspace > p->workspace->bytes || bytes.step_workspace > p->workspace->step_bytes ||
        bytes.host_workspace > p->workspace->host_bytes) {
        return tg_fail(p->ctx, TG_E_UNSUPPORTED, "projector: no workspace for the ranks chosen");
    }
    return TG_OK;
}

void tg_projector_set_factors(tg_projector *p, void *const factor[]) {
    tg_branch *low_rank = p->low_rank;
    for (int d = 0; d < low_rank->modes.ndim; d++) {
        low_rank->factor[d] = factor[d];
        low_rank->modes.factor[d] = factor[d];
    }
    p->modes = low_rank->modes;
}
