/* What automatic ranks are chosen from, and how chosen ranks reach the branches.
 *
 * With a sparse set of the largest entries in front, its size is chosen too: the spectrum is that
 * of what the set leaves, for sizes around the one of the settings. Any other sparse branch keeps
 * its size. */
#include <math.h>

#include "linalg/scratch.h"
#include "project/projector.h"

bool tg_projector_is_auto(const tg_projector *p) {
    return p->low_rank && p->low_rank->is_auto;
}

static bool is_sparse_first(const tg_projector *p) {
    return p->config.scheme == TG_SCHEME_COMPOSITE && p->sparse == &p->branch[0];
}

/* The number of sparse entries is chosen as well. */
static bool chooses_kept(const tg_projector *p) {
    return is_sparse_first(p) && p->sparse->kind == &tg_branch_unstructured &&
           p->sparse->config.sparse_type == TG_SPARSE_TOPK;
}

tg_spectrum tg_projector_spectrum_sizes(const tg_projector *p) {
    static const double multiples[TG_MAX_SHARES] = {0.0, 0.25, 0.5, 1.0, 2.0};
    tg_spectrum s = {.ndim = p->shape.ndim, .shares = 1};
    for (int d = 0; d < s.ndim; d++) {
        s.dim[d] = p->shape.dim[d];
        s.max_rank[d] = p->low_rank->max_rank[d];
    }
    if (!chooses_kept(p)) {
        s.kept[0] = p->sparse ? p->sparse->count : 0;
        return s;
    }
    s.shares = 0;
    for (int i = 0; i < TG_MAX_SHARES; i++) {
        const double entries =
            ceil(multiples[i] * p->sparse->config.sparse_ratio * (double)p->numel);
        const double most = p->most > 0 && p->most < p->numel ? (double)p->most : (double)p->numel;
        const int64_t kept = entries < 1.0 ? 1 : entries < most ? (int64_t)entries : (int64_t)most;
        if (kept <= UINT32_MAX && (s.shares == 0 || kept > s.kept[s.shares - 1])) {
            s.kept[s.shares++] = kept;
        }
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

/* A bitmap for trying sizes of the sparse set stands in front of the decomposition's scratch. */
static tg_bitmap lay_out(const tg_projector *p, tg_scratch *scratch) {
    tg_bitmap bitmap = {.n = p->numel};
    if (chooses_kept(p)) {
        bitmap.words =
            tg_scratch_take(scratch, (size_t)tg_bitmap_words(p->numel) * sizeof(uint64_t));
        bitmap.ranks =
            tg_scratch_take(scratch, (size_t)tg_bitmap_ranks(p->numel) * sizeof(uint32_t));
    }
    return bitmap;
}

size_t tg_projector_spectrum_scratch(const tg_projector *p) {
    const tg_tucker_plan plan = plan_of(p);
    tg_scratch scratch = {0};
    lay_out(p, &scratch);
    return scratch.used + tg_tucker_spectrum_scratch(&plan);
}

tg_status tg_projector_measure(tg_projector *p, const void *grad, tg_storage store,
                               tg_spectrum *out) {
    const tg_dtype dtype = tg_stored(p->dtype, store);
    tg_tucker_plan plan = plan_of(p);
    plan.store = store;
    tg_scratch scratch = {.block = p->workspace->memory};
    tg_bitmap trial = lay_out(p, &scratch);
    tg_norms norms;
    tg_status status = TG_OK;
    TG_TRY(p->be->ops->norms(p->be, dtype, p->numel, grad, &norms));
    out->energy = norms.sum_squares;
    for (int share = 0; share < out->shares; share++) {
        const tg_bitmap *mask = is_sparse_first(p) ? &p->sparse->bitmap : NULL;
        if (chooses_kept(p)) {
            TG_TRY(p->be->ops->select_topk(p->be, dtype, grad, out->kept[share], &trial));
            mask = &trial;
        }
        TG_TRY(tg_tucker_spectrum(p->be, &plan, grad, mask, tg_spectrum_mode(out, share, 0),
                                  scratch.block + scratch.used));
    }
fail:
    return status;
}

tg_status tg_projector_set_ranks(tg_projector *p, const int64_t *rank, int64_t kept) {
    tg_branch *low_rank = p->low_rank;
    low_rank->restarts = true;
    low_rank->count = 1;
    for (int d = 0; d < low_rank->modes.ndim; d++) {
        low_rank->modes.rank[d] = rank[d];
        low_rank->count *= rank[d];
    }
    p->modes = low_rank->modes;
    if (p->sparse && p->sparse->count != kept) {
        p->sparse->count = kept;
        p->sparse->is_ready = false;
    }
    const tg_projector_bytes bytes = tg_projector_get_bytes(p);
    if (bytes.workspace > p->workspace->bytes || bytes.step_workspace > p->workspace->step_bytes ||
        bytes.host_workspace > p->workspace->host_bytes) {
        return tg_fail(p->ctx, TG_E_UNSUPPORTED, "projector: no workspace for the ranks chosen");
    }
    return TG_OK;
}

void tg_projector_lend(tg_projector *p, void *const factor[]) {
    tg_branch *low_rank = p->low_rank;
    for (int d = 0; d < low_rank->modes.ndim; d++) {
        low_rank->factor[d] = factor[d];
        low_rank->modes.factor[d] = factor[d];
    }
    p->modes = low_rank->modes;
}
