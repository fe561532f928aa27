/* Finds clamped ranks, and reports the share of entries that is left. A share of a Tucker core is
 * never clamped: where a mode has fewer directions than the share of its size, all are kept. */
#include "optim/clamped_rank.h"

#include <stdio.h>

#include "optim/optim.h"

/* The setting that keeps the share asked for. */
static void advise(const tg_branch *branch, char *text, size_t capacity) {
    const bool is_matrix = branch->config.type == TG_BRANCH_MATRIX;
    char limits[128];
    int64_t most[TG_MAX_NDIM];
    if (is_matrix && branch->config.rank.value[0] < 1.0) {
        snprintf(text, capacity, "set opt.galore_2d_proj_type to std, which keeps the share");
        return;
    }
    tg_rank_limits(&branch->shape, most);
    const tg_shape list = tg_shape_of(branch->shape.ndim, most);
    snprintf(text, capacity, "set %srank to %s%s", branch->key,
             is_matrix ? "less, or to a fraction below 1" : "a fraction below 1, or a list within ",
             is_matrix ? "" : tg_shape_text(&list, limits, sizeof limits));
}

static void describe(const tg_branch *branch, int mode, tg_clamped_rank *out) {
    char shape[128], side[64], advice[192], more[32] = "";
    if (branch->config.type == TG_BRANCH_MATRIX) {
        snprintf(side, sizeof side, "as a %lldx%lld matrix", (long long)branch->modes.dim[0],
                 (long long)branch->modes.dim[1]);
    } else {
        snprintf(side, sizeof side, "in mode %d", mode + 1);
    }
    if (out->params > 1) {
        snprintf(more, sizeof more, " (%d more likewise)", out->params - 1);
    }
    advise(branch, advice, sizeof advice);
    snprintf(out->note, sizeof out->note,
             "%srank: %lld was asked for, but %s (%s) has rank %lld at most %s%s; %.3g %% of its "
             "entries are kept as values; %s",
             branch->key, (long long)out->asked, out->name,
             tg_shape_text(&branch->shape, shape, sizeof shape), (long long)out->taken, side, more,
             100.0 * out->share, advice);
}

tg_status tg_find_clamped_rank(tg_context *ctx, const tg_optim_setup *setup, tg_clamped_rank *out) {
    *out = (tg_clamped_rank){0};
    for (int i = setup->param_count - 1; i >= 0; i--) { /* backwards: the first one remains */
        const tg_optim_param *param = &setup->params[i];
        tg_projector outline;
        if (!tg_is_projected(setup, param) || setup->groups[param->group].memory_budget > 0.0) {
            continue;
        }
        TG_CALL(tg_projector_outline(ctx, &setup->groups[param->group].projector,
                                     tg_dtype_wide(param->dtype), &param->shape,
                                     setup->takes_factored, &outline));
        const tg_branch *branch = outline.low_rank;
        const bool keeps_all =
            branch && branch->config.type != TG_BRANCH_MATRIX && branch->config.rank.value[0] < 1.0;
        const int mode = branch && !keeps_all ? tg_branch_clamped_mode(branch) : -1;
        if (mode >= 0) {
            out->params++;
            out->asked = branch->asked[mode];
            out->taken = branch->modes.rank[mode];
            out->share = (double)tg_projector_count(&outline) / (double)outline.numel;
            snprintf(out->name, sizeof out->name, "%s", param->name);
            describe(branch, mode, out);
        }
    }
    return TG_OK;
}
