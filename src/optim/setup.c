/* Checks a caller's setup of an optimizer and converts it to this library's. */

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/context.h"
#include "base/memory.h"
#include "optim/optim.h"

/* Rules of whole weights see single modes, or columns. */
static tg_status check_block(tg_context *ctx, const tg_optim_setup *setup, int index) {
    const tg_optim_param *param = &setup->params[index];
    const tg_optim_block *block = &setup->blocks[index];
    if (block->whole == 0) {
        return TG_OK;
    }
    const bool has_dim = block->dim >= 0 && block->dim < param->shape.ndim;
    const int64_t rows = has_dim ? param->shape.dim[block->dim] : 0;
    const bool fits =
        has_dim && block->whole >= rows && block->first >= 0 && block->first <= block->whole - rows;
    tg_shape whole = param->shape;
    whole.dim[fits ? block->dim : 0] = fits ? block->whole : 0;
    const int64_t numel = tg_shape_numel(&whole), most = INT64_MAX / 16; /* bytes of an entry */
    if (!fits || numel < 0 || numel > most || setup->parts < 2 || !setup->accumulates) {
        return tg_fail(
            ctx, TG_E_ARGUMENT,
            "optimizer: %s is the block of rows %lld .. %lld of %lld of dimension %d, of "
            "%d parts%s",
            param->name, (long long)block->first, (long long)(block->first + rows - 1),
            (long long)block->whole, block->dim, setup->parts,
            setup->accumulates ? "" : ", and must accumulate");
    }
    if (block->dim < 2 && tg_is_dense_block(setup, param) &&
        tg_rule_of(&setup->groups[param->group], &whole)->step_whole) {
        return tg_fail(ctx, TG_E_UNSUPPORTED,
                       "opt.rule: it needs all rows and columns of %s, which is split in "
                       "dimension %d",
                       param->name, block->dim);
    }
    return TG_OK;
}

static tg_status check_param(tg_context *ctx, const tg_optim_setup *setup, int index) {
    const tg_optim_param *param = &setup->params[index];
    const tg_dtype d = tg_dtype_wide(param->dtype);
    char text[128];
    if (!param->name || param->name[0] == '\0') {
        return tg_fail(ctx, TG_E_ARGUMENT, "optimizer: parameter %d has no name", index);
    }
    if (param->group < 0 || param->group >= setup->group_count) {
        return tg_fail(ctx, TG_E_ARGUMENT, "optimizer: %s is in group %d, there are %d",
                       param->name, param->group, setup->group_count);
    }
    if (d != TG_F32 && d != TG_F64 && d != TG_C64 && d != TG_C128) {
        return tg_fail(ctx, TG_E_DTYPE, "optimizer: %s is %s, expected f32, f64, c64 or c128",
                       param->name, tg_dtype_name(d));
    }
    if (d != TG_F32 && d != TG_C64 &&
        setup->groups[param->group].state_precision != TG_STATES_FULL) {
        return tg_fail(
            ctx, TG_E_CONFIG,
            "opt.state_precision: %s is %s, whose moments are kept as they are; take full",
            param->name, tg_dtype_name(d));
    }
    if (tg_shape_numel(&param->shape) < 1) {
        return tg_fail(
            ctx, TG_E_SHAPE,
            "optimizer: %s has the shape %s, expected one of up to %d dimensions with at "
            "least one entry",
            param->name, tg_shape_text(&param->shape, text, sizeof text), TG_MAX_NDIM);
    }
    TG_CALL(setup->blocks ? check_block(ctx, setup, index) : TG_OK);
    for (int other = 0; other < index; other++) {
        if (strcmp(setup->params[other].name, param->name) == 0) {
            return tg_fail(ctx, TG_E_ARGUMENT, "optimizer: two parameters are named %s",
                           param->name);
        }
    }
    return TG_OK;
}

static tg_status check(tg_context *ctx, const tg_optim_setup *setup) {
    if (setup->param_count < 0 || (setup->param_count > 0 && !setup->params)) {
        return tg_fail(ctx, TG_E_ARGUMENT, "optimizer: %d parameters", setup->param_count);
    }
    for (int i = 0; i < setup->group_count; i++) {
        TG_CALL(tg_optim_config_check(ctx, &setup->groups[i]));
    }
    for (int i = 0; i < setup->param_count; i++) {
        TG_CALL(check_param(ctx, setup, i));
    }
    if (setup->accumulates && setup->forms_bf16) {
        return tg_fail(ctx, TG_E_ARGUMENT, "optimizer: gradients formed in bf16 have no sums");
    }
    if (setup->shard_ranks > 1 &&
        (!setup->accumulates || setup->shard_rank < 0 || setup->shard_rank >= setup->shard_ranks)) {
        return tg_fail(
            ctx, TG_E_ARGUMENT, "optimizer: rank %d of %d, whose state is spread over them%s",
            setup->shard_rank, setup->shard_ranks, setup->accumulates ? "" : ", must accumulate");
    }
    if (setup->shard_ranks > 1 && setup->shard_ranks % setup->parts != 0) {
        return tg_fail(ctx, TG_E_ARGUMENT, "optimizer: %d ranks are no multiple of %d parts",
                       setup->shard_ranks, setup->parts);
    }
    return TG_OK;
}

/* ---- ranks by memory ---- */

/* Bytes of moments, factors and index sets of a group's projected parameters, and of their moments
 * if they were dense: of whole tensors, so that all ranks choose alike. */
static tg_status group_bytes(tg_context *ctx, const tg_optim_setup *setup, int group, size_t *bytes,
                             size_t *dense) {
    *bytes = *dense = 0;
    for (int i = 0; i < setup->param_count; i++) {
        const tg_optim_param *param = &setup->params[i];
        const tg_optim_config *config = &setup->groups[group];
        const tg_projected of = {.dtype = tg_dtype_wide(param->dtype),
                                 .shape = tg_whole_shape(setup, param)};
        tg_projector outline;
        if (param->group != group || !tg_is_projected(setup, param)) {
            continue;
        }
        TG_CALL(tg_projector_outline(ctx, &config->projector, &of, &outline));
        const tg_projector_bytes projector = tg_projector_get_bytes(&outline);
        const int64_t count = tg_projector_count(&outline);
        const tg_moments moments =
            tg_moments_plan(config, of.dtype, tg_rules[config->rule], count, count);
        const tg_moments whole = tg_moments_plan_dense(config, of.dtype, &of.shape, &of.shape);
        *bytes += tg_moments_bytes(&moments) + projector.factors + projector.indices;
        *dense += tg_moments_bytes(&whole);
    }
    return TG_OK;
}

static void set_share(tg_optim_config *config, double share) {
    config->projector.first.rank = config->projector.second.rank =
        (tg_rank){.count = 1, .value = {share}};
}

/* Sets the rank of a group to the largest share that opt.memory_budget allows. */
static tg_status fit_ranks(tg_context *ctx, const tg_optim_setup *setup, int group,
                           tg_optim_config *config) {
    double low = 0x1p-60, high = 1.0 - 0x1p-30; /* rank 1 and full rank */
    size_t bytes = 0, dense = 0;
    set_share(config, low);
    TG_CALL(group_bytes(ctx, setup, group, &bytes, &dense));
    const double budget = config->memory_budget <= 1.0 ? config->memory_budget * (double)dense
                                                       : config->memory_budget;
    if ((double)bytes > budget) {
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.memory_budget: %.0f bytes are too few: at rank 1 and with the sparse "
                       "entries asked for, the state takes %zu",
                       budget, bytes);
    }
    double share = high;
    while (high > low * (1.0 + 1e-9)) {
        set_share(config, share);
        TG_CALL(group_bytes(ctx, setup, group, &bytes, &dense));
        if ((double)bytes <= budget) {
            low = share;
        } else {
            high = share;
        }
        share = sqrt(low * high);
    }
    set_share(config, low);
    return TG_OK;
}

/* ---- reading ---- */

/* The caller's groups may be of another size, which is their stride. */
tg_status tg_optim_setup_read(tg_context *ctx, const tg_optim_setup *given, tg_optim_setup *out) {
    tg_optim_config *groups = NULL;
    *out = (tg_optim_setup){.size = sizeof *out};
    TG_CALL(TG_SIZED_READ(ctx, tg_optim_setup, seed, given, out));
    out->parts = out->parts > 1 ? out->parts : 1;
    if (out->group_count < 1 || !out->groups) {
        out->groups = NULL; /* nothing to free */
        return tg_fail(ctx, TG_E_ARGUMENT, "optimizer: %d groups", out->group_count);
    }
    const char *group = (const char *)out->groups;
    const size_t stride = out->groups->size;
    out->groups = NULL;
    TG_CALL(TG_ALLOC(ctx, TG_MEM_OTHER, groups, out->group_count));
    out->groups = groups;
    for (int i = 0; i < out->group_count; i++) {
        const tg_optim_config *config =
            (const tg_optim_config *)(const void *)(group + (size_t)i * stride);
        TG_CALL(tg_optim_config_read(ctx, config, &groups[i]));
    }
    TG_CALL(check(ctx, out));
    for (int i = 0; i < out->group_count; i++) {
        const bool is_limited = groups[i].is_projected && groups[i].memory_budget > 0.0;
        TG_CALL(is_limited ? fit_ranks(ctx, out, i, &groups[i]) : TG_OK);
    }
    return TG_OK;
}

void tg_optim_setup_free(tg_context *ctx, tg_optim_setup *setup) {
    tg_mem_free(ctx, (void *)(uintptr_t)setup->groups);
}

/* ---- ranks set above the largest that a shape allows ---- */

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

void tg_find_clamped_rank(const tg_optim *optim, tg_clamped_rank *out) {
    *out = (tg_clamped_rank){0};
    for (int i = optim->slot_count - 1; i >= 0; i--) { /* backwards: the first one remains */
        const tg_slot *slot = &optim->slots[i];
        const tg_branch *branch = slot->projector ? slot->projector->low_rank : NULL;
        const bool is_limited = optim->groups[slot->group].memory_budget > 0.0;
        const bool keeps_all =
            branch && branch->config.type != TG_BRANCH_MATRIX && branch->config.rank.value[0] < 1.0;
        const int mode = branch && !is_limited && !keeps_all ? tg_branch_clamped_mode(branch) : -1;
        if (mode >= 0) {
            out->params++;
            out->asked = branch->asked[mode];
            out->taken = branch->modes.rank[mode];
            out->share = (double)slot->count / (double)slot->projector->numel;
            snprintf(out->name, sizeof out->name, "%s", slot->name);
            describe(branch, mode, out);
        }
    }
}
