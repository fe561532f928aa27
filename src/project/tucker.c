/* Tucker low-rank branch: core (rank..), one factor (dim, rank) per mode; and the code shared with
 * the matrix branch (matrix.c), whose singular vectors need no sweeps. */
#include "project/branch.h"

static tg_tucker_plan plan_of(const tg_branch *branch) {
    tg_tucker_plan plan = {
        .dtype = branch->dtype, .ndim = branch->modes.ndim, .chunk = branch->config.chunk_bytes};
    if (branch->kind == &tg_branch_tucker) {
        plan.sweeps = branch->config.n_iter_max_tucker;
        plan.svd_type = branch->config.svd_type;
        plan.init = branch->config.tucker_init;
    }
    for (int d = 0; d < plan.ndim; d++) {
        plan.dim[d] = branch->modes.dim[d];
        plan.rank[d] = branch->modes.rank[d];
        plan.is_active[d] = branch->modes.factor[d] != NULL;
    }
    return plan;
}

static tg_status tucker_plan(tg_context *ctx, tg_branch *branch) {
    TG_CALL(tg_rank_resolve(ctx, branch->key, &branch->config.rank, &branch->shape,
                            branch->modes.rank, branch->asked));
    branch->modes.dtype = branch->dtype;
    branch->modes.ndim = branch->shape.ndim;
    branch->count = 1;
    for (int d = 0; d < branch->shape.ndim; d++) {
        branch->modes.dim[d] = branch->shape.dim[d];
        branch->modes.factor[d] = branch; /* a token until memory is allocated */
        branch->count *= branch->modes.rank[d];
    }
    return TG_OK;
}

void tg_low_rank_scratch(const tg_branch *branch, size_t *bytes, size_t *host_bytes) {
    const tg_tucker_plan plan = plan_of(branch);
    *bytes = tg_tucker_scratch(branch->be, &plan);
    *host_bytes = 0;
}

tg_status tg_low_rank_refresh(tg_branch *branch, const void *x, tg_storage store,
                              const tg_bitmap *mask, void *scratch, void *host_scratch) {
    (void)host_scratch;
    tg_tucker_plan plan = plan_of(branch);
    plan.store = store;
    const bool warm = branch->is_ready &&
                      (branch->kind == &tg_branch_matrix || branch->config.tucker_warm_restart);
    return tg_tucker_factors(branch->be, &plan, x, mask, &branch->rng, warm, branch->factor,
                             scratch);
}

tg_scratch_need tg_low_rank_scratch_need(const tg_branch *branch) {
    const tg_tucker_plan plan = plan_of(branch);
    return tg_tucker_scratch_need(branch->be, &plan);
}

const tg_branch_kind tg_branch_tucker = {.plan = tucker_plan,
                                         .scratch = tg_low_rank_scratch,
                                         .scratch_need = tg_low_rank_scratch_need,
                                         .refresh = tg_low_rank_refresh};
