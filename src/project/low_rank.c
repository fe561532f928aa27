/* The low-rank branches: Tucker, a core (rank..) with one factor (dim, rank) per mode; and GaLore's
 * matrix projection, a Tucker decomposition of two modes whose singular vectors need no sweeps. */
#include "base/minmax.h"
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

static tg_projector_bytes low_rank_scratch(const tg_branch *branch) {
    const tg_tucker_plan plan = plan_of(branch);
    const tg_scratch_need borrowed = tg_tucker_scratch_need(branch->be, &plan);
    return (tg_projector_bytes){.workspace = tg_tucker_scratch(branch->be, &plan),
                                .borrowed = borrowed.place,
                                .host_borrowed = borrowed.host};
}

static tg_status low_rank_refresh(tg_branch *branch, const tg_refresh *call) {
    tg_tucker_plan plan = plan_of(branch);
    plan.store = call->store;
    const bool warm = branch->is_ready &&
                      (branch->kind == &tg_branch_matrix || branch->config.tucker_warm_restart);
    return tg_tucker_factors(branch->be, &plan, call->x, call->mask, &branch->rng, warm,
                             branch->factor, call->scratch);
}

const tg_branch_kind tg_branch_tucker = {.keys = "rank svd_type tucker_init n_iter_max_tucker "
                                                 "tucker_warm_restart",
                                         .plan = tucker_plan,
                                         .scratch = low_rank_scratch,
                                         .refresh = low_rank_refresh};

/* ---- GaLore's matrix ----
 *
 * The first `first_dim_rollup` dims become the rows of an (m, n) matrix.
 *
 * Left: A = leading left singular vectors, core = A^H G, back A core. Right: the core is G V with
 * the leading right singular vectors V. As a two-mode tensor these are the leading vectors of the
 * unfolding along rows or columns; the other mode has no factor. The transposes are conjugate,
 * without which back(project(G)) would be no projection. */

/* Vectors for a side of length m when the other is n: a share of the entries, or a number. */
static int64_t side_rank(double rank, int64_t m, int64_t n) {
    const double entries = rank * (double)m * (double)n;
    return rank < 1.0 ? (int64_t)entries / n : (int64_t)rank;
}

static tg_status matrix_plan(tg_context *ctx, tg_branch *branch) {
    const tg_branch_config *config = &branch->config;
    const int rollup = config->first_dim_rollup;
    const tg_shape *shape = &branch->shape;
    char text[128];
    if (rollup < 1 || rollup >= (shape->ndim > 1 ? shape->ndim : 2)) {
        return tg_fail(
            ctx, TG_E_CONFIG, "opt.first_dim_rollup: %d is not in 1 .. %d (weight is %s)", rollup,
            shape->ndim > 1 ? shape->ndim - 1 : 1, tg_shape_text(shape, text, sizeof text));
    }
    int64_t checked[TG_MAX_NDIM];
    TG_CALL(tg_rank_resolve(ctx, branch->key, &config->rank, shape, checked, branch->asked));
    const double rank = config->rank.value[0];
    if (config->rank.count != 1 || (config->side == TG_SIDE_FULL && rank < 1.0)) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "%srank: the matrix projection takes one number (an integer for "
                       "galore_2d_proj_type full), found %d entries, the first %g",
                       branch->key, config->rank.count, rank);
    }
    tg_multimode *modes = &branch->modes;
    *modes = (tg_multimode){.dtype = branch->dtype, .ndim = 2, .dim = {1, 1}};
    for (int d = 0; d < shape->ndim; d++) {
        modes->dim[d < rollup ? 0 : 1] *= shape->dim[d];
    }
    const bool right_is_std = modes->dim[0] >= modes->dim[1];
    const bool left = config->side == TG_SIDE_LEFT || config->side == TG_SIDE_FULL ||
                      (config->side == TG_SIDE_STD && !right_is_std) ||
                      (config->side == TG_SIDE_REVERSE_STD && right_is_std);
    const bool right = config->side == TG_SIDE_FULL || !left;
    const bool used[2] = {left, right};
    for (int d = 0; d < 2; d++) {
        const int64_t most = tg_min(modes->dim[0], modes->dim[1]);
        branch->asked[d] = side_rank(rank, modes->dim[d], modes->dim[1 - d]);
        modes->rank[d] = used[d] ? tg_max(tg_min(branch->asked[d], most), 1) : modes->dim[d];
        modes->factor[d] = used[d] ? branch : NULL; /* a token until memory is allocated */
    }
    branch->count = modes->rank[0] * modes->rank[1];
    return TG_OK;
}

const tg_branch_kind tg_branch_matrix = {.keys = "rank first_dim_rollup galore_2d_proj_type",
                                         .plan = matrix_plan,
                                         .scratch = low_rank_scratch,
                                         .refresh = low_rank_refresh};
