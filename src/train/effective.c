/* The settings that affect a run. Keys that its method, schedule or gap do not read are reset to
 * their defaults, so that two runs are the same exactly if their texts are. */
#include "base/context.h"
#include "train/config.h"

static bool is_low_rank(const tg_branch_config *branch) {
    return branch->type == TG_BRANCH_LOW_RANK || branch->type == TG_BRANCH_MATRIX;
}

/* Keeps the keys that a branch of this type reads. */
static void clean_branch(tg_branch_config *branch) {
    const tg_branch_config usual = tg_projector_config_default().first;
    if (is_low_rank(branch)) {
        branch->sparse_ratio = usual.sparse_ratio;
        branch->sparse_type = usual.sparse_type;
        branch->scale_by_mask_ratio = usual.scale_by_mask_ratio;
    } else {
        branch->rank = usual.rank;
    }
}

/* Keys shared by both branches are stored in the first one. */
static void clean_shared(tg_projector_config *projector) {
    const tg_branch_config usual = tg_projector_config_default().first;
    tg_branch_config *first = &projector->first;
    const bool has_second = projector->scheme != TG_SCHEME_SINGLE;
    bool has_type[TG_BRANCH_TYPES] = {false};
    has_type[first->type] = true;
    has_type[has_second ? projector->second.type : first->type] = true;
    if (!has_type[TG_BRANCH_MATRIX]) {
        first->first_dim_rollup = usual.first_dim_rollup;
        first->side = usual.side;
    }
    if (!has_type[TG_BRANCH_LOW_RANK]) {
        first->tucker_init = usual.tucker_init;
        first->n_iter_max_tucker = usual.n_iter_max_tucker;
        first->tucker_warm_restart = usual.tucker_warm_restart;
    }
    if (!has_type[TG_BRANCH_LOW_RANK] && !has_type[TG_BRANCH_MATRIX]) {
        first->svd_type = usual.svd_type;
    }
}

static void clean_projector(tg_projector_config *projector) {
    clean_branch(&projector->first);
    clean_shared(projector);
    if (projector->scheme == TG_SCHEME_SINGLE) {
        projector->second = tg_projector_config_default().first;
        projector->lambda_sparse = tg_projector_config_default().lambda_sparse;
    } else {
        clean_branch(&projector->second);
    }
}

static void clean_optimizer(tg_optim_config *opt) {
    const tg_optim_config usual = tg_optim_config_default();
    if (opt->state_precision == TG_STATES_FULL) {
        opt->state_rounding = usual.state_rounding;
    }
    const bool is_entrywise = opt->rule == TG_RULE_ADAM || opt->rule == TG_RULE_LION;
    if (opt->is_projected) {
        clean_projector(&opt->projector);
    } else if (is_entrywise) { /* the other rules read ranks and gaps themselves */
        opt->projector = usual.projector;
        opt->update_proj_gap = usual.update_proj_gap;
        opt->update_proj_gap_mode = usual.update_proj_gap_mode;
        opt->min_entries = usual.min_entries;
        opt->moments_on_refresh = usual.moments_on_refresh;
    }
    if (opt->update_proj_gap_mode == TG_GAP_FIXED) {
        opt->update_proj_gap_end = usual.update_proj_gap_end;
        opt->total_steps = usual.total_steps;
    }
}

static void clean_schedule(tg_lr_schedule_config *schedule) {
    const tg_lr_schedule_config usual = tg_lr_schedule_config_default();
    const tg_lr_schedule_type type = schedule->scheduler;
    if (type != TG_LR_STEP) {
        schedule->step_size = usual.step_size;
    }
    if (type != TG_LR_STEP && type != TG_LR_PLATEAU) {
        schedule->gamma = usual.gamma;
    }
    if (type != TG_LR_COSINE) {
        schedule->scheduler_T_max = usual.scheduler_T_max;
    }
    if (type != TG_LR_PLATEAU) {
        schedule->scheduler_patience = usual.scheduler_patience;
    }
}

tg_status tg_train_effective(tg_context *ctx, const tg_settings *settings, tg_settings **out) {
    TG_NEED_OUT(ctx, out, ctx, settings);
    tg_run_config config;
    TG_CALL(tg_run_config_read(ctx, settings, 1, false, &config));
    config.loop.naive_galore = false; /* it has already set the type of the first branch */
    clean_optimizer(&config.opt);
    clean_schedule(&config.schedule);
    return tg_run_config_write(ctx, &config, settings, out);
}
