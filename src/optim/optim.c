/* Creating and freeing an optimizer: the memory of every parameter, planned from shapes. */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "optim/ranks.h"

/* ---- planning: an optimizer without memory, from shapes ---- */

static tg_optim_block block_of(const tg_optim_setup *setup, const tg_optim_param *param) {
    return setup->blocks ? setup->blocks[param - setup->params] : (tg_optim_block){0};
}

tg_shape tg_whole_shape(const tg_optim_setup *setup, const tg_optim_param *param) {
    const tg_optim_block block = block_of(setup, param);
    tg_shape shape = param->shape;
    if (block.whole > 0) {
        shape.dim[block.dim] = block.whole;
    }
    return shape;
}

bool tg_is_projected(const tg_optim_setup *setup, const tg_optim_param *param) {
    const tg_optim_config *config = &setup->groups[param->group];
    const tg_shape whole = tg_whole_shape(setup, param);
    return config->is_projected && whole.ndim >= 1 && tg_shape_numel(&whole) > config->min_entries;
}

bool tg_is_dense_block(const tg_optim_setup *setup, const tg_optim_param *param) {
    return block_of(setup, param).whole > 0 && !tg_is_projected(setup, param);
}

tg_moments tg_moments_plan_dense(const tg_optim_config *config, tg_dtype dtype,
                                 const tg_shape *whole, const tg_shape *shape) {
    const tg_rule *rule = tg_rule_of(config, whole);
    return tg_moments_plan(config, dtype, rule, tg_rule_values(rule, config, whole),
                           tg_rule_values(rule, config, shape));
}

static size_t bytes_of(const tg_slot *slot, int64_t values) {
    return (size_t)values * tg_dtype_size(slot->dtype);
}

static tg_status plan_slot(tg_optim *optim, const tg_optim_setup *setup, int index) {
    const tg_optim_param *param = &setup->params[index];
    const tg_optim_config *config = &optim->groups[param->group];
    const int number = setup->numbers ? setup->numbers[index] : index;
    tg_slot *slot = &optim->slots[index];
    *slot =
        (tg_slot){.name = tg_mem_strdup(optim->ctx, param->name),
                  .dtype = tg_dtype_wide(param->dtype),
                  .weight_store = tg_storage_of(param->dtype),
                  .rounding = {.seed = setup->seed + 0xD1B54A32D192ED03ull * (uint64_t)(number + 1),
                               .purpose = TG_RNG_ROUNDING},
                  .shape = param->shape,
                  .numel = tg_shape_numel(&param->shape),
                  .whole = tg_whole_shape(setup, param),
                  .block = block_of(setup, param),
                  .group = param->group,
                  .last_refresh = -1,
                  .error = (double)NAN};
    TG_CALL(slot->name ? TG_OK : TG_E_MEMORY);
    if (!tg_is_projected(setup, param)) {
        slot->count = slot->numel;
        slot->moments = tg_moments_plan_dense(config, slot->dtype, &slot->whole, &slot->shape);
        return TG_OK;
    }
    tg_projected of = {
        .dtype = slot->dtype, .shape = slot->whole, .factored = setup->takes_factored};
    if (slot->block.whole > 0) {
        of.rows = (tg_rows){slot->block.dim, slot->block.first, slot->shape.dim[slot->block.dim]};
    }
    TG_CALL(tg_projector_make(optim->ctx, &config->projector, &of, &slot->projector));
    slot->count = tg_projector_count(slot->projector);
    slot->moments =
        tg_moments_plan(config, slot->dtype, tg_rules[config->rule], slot->count, slot->count);
    return TG_OK;
}

/* Refuses a compact format that no parameter would use. */
static tg_status check_state_precision(const tg_optim *optim, const tg_optim_setup *setup) {
    tg_state_form asked = TG_STATE_FULL;
    bool is_used = false;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        const tg_state_form form = (tg_state_form)optim->groups[slot->group].state_precision;
        if (tg_state_codecs[form]->least > 0) {
            asked = form;
            is_used = is_used || slot->moments.form == form;
        }
    }
    if (asked != TG_STATE_FULL && !is_used && !setup->numbers) { /* other parameters may use it */
        return tg_fail(optim->ctx, TG_E_CONFIG,
                       "opt.state_precision: %s keeps a scale for every %d numbers, and no "
                       "parameter has the %lld values that make it worth it; take full",
                       tg_state_choices[asked].name, tg_state_codecs[asked]->block,
                       (long long)tg_state_codecs[asked]->least);
    }
    return TG_OK;
}

/* Scratch of rules of whole weights. It is not shared: a dense gradient may arrive while a network
 * still uses the shared workspace. */
static size_t rule_bytes(const tg_optim *optim) {
    size_t bytes = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        const tg_whole whole = {
            .config = &optim->groups[slot->group], .dtype = slot->dtype, .shape = slot->shape};
        const tg_rule *rule = slot->moments.rule;
        bytes = tg_max_size(bytes, rule->work ? rule->work(&whole) : 0);
    }
    return bytes;
}

/* Bytes of the dense gradient that may be formed from factors: a spectral weight has two channel
 * dims and at least one of modes. */
static size_t formed_bytes(const tg_optim *optim, const tg_slot *slot) {
    const tg_storage store = optim->forms_bf16 ? TG_STORE_BF16 : TG_STORE_FULL;
    return slot->shape.ndim >= 3
               ? (size_t)slot->numel * tg_dtype_size(tg_stored(slot->dtype, store))
               : 0;
}

/* The compressed values being updated come after a step's scratch. A refresh ends before they are
 * computed, and may use that memory. */
static size_t small_offset(const tg_workspace *workspace) {
    return tg_align(workspace->step_bytes);
}

/* A parameter's moments, if this rank has them, and its sum where gradients are accumulated. */
static void add_state(const tg_optim *optim, const tg_slot *slot, tg_optim_memory *out) {
    const bool is_block = tg_slot_is_dense_block(slot);
    const tg_moments whole = is_block
                                 ? tg_moments_plan_dense(&optim->groups[slot->group], slot->dtype,
                                                         &slot->whole, &slot->whole)
                                 : slot->moments;
    out->bytes[TG_MEM_OPTIMIZER] += slot->is_elsewhere ? 0 : tg_moments_bytes(&slot->moments);
    if (slot->is_elsewhere || is_block) { /* gathered while saving */
        out->elsewhere += tg_moments_saved_bytes(&whole);
    }
    out->bytes[TG_MEM_GRADIENTS] += optim->accumulates ? bytes_of(slot, slot->count) : 0;
    if (slot->owner != TG_ON_ALL) {
        const tg_dtype stored = tg_stored(slot->dtype, slot->weight_store);
        out->sharded++;
        out->updates += slot->projector ? bytes_of(slot, slot->count)
                                        : (size_t)slot->count * tg_dtype_size(stored);
    }
}

/* A projection's memory; and an update that refreshes it: temporaries of decompositions, next to
 * `held` bytes of dense sums. */
static void add_projector(tg_optim *optim, const tg_slot *slot, size_t held, tg_optim_memory *out) {
    const tg_projector_bytes bytes = tg_projector_get_bytes(slot->projector);
    tg_workspace_reserve(&optim->workspace, bytes.workspace, bytes.step_workspace,
                         bytes.host_workspace);
    tg_workspace_reserve(&optim->workspace, tg_sum_piece_bytes(slot), 0, 0);
    out->bytes[TG_MEM_FACTORS] += bytes.factors;
    out->bytes[TG_MEM_INDICES] += bytes.indices;
    if (held + bytes.borrowed > out->refresh[TG_MEM_GRADIENTS] + out->refresh[TG_MEM_WORKSPACE]) {
        out->refresh[TG_MEM_GRADIENTS] = held;
        out->refresh[TG_MEM_WORKSPACE] = bytes.borrowed;
    }
    out->host_refresh = tg_max_size(out->host_refresh, bytes.host_borrowed);
}

/* Adds up the memory of all parameters, and reserves the workspace. */
static void plan_memory(tg_optim *optim, tg_optim_memory *out) {
    size_t all = 0, left = 0, small = 0, dense = 0, saving = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        all += optim->slots[i].projector ? bytes_of(&optim->slots[i], optim->slots[i].numel) : 0;
    }
    for (int i = optim->slot_count - 1; i >= 0; i--) {
        const tg_slot *slot = &optim->slots[i];
        add_state(optim, slot, out);
        out->lone_sums += !slot->is_bucketed && !tg_slot_is_dense_block(slot);
        saving = tg_max_size(saving, tg_block_saving_bytes(optim, slot));
        dense = tg_max_size(dense, formed_bytes(optim, slot));
        if (slot->projector) {
            left += bytes_of(slot, slot->numel); /* sums are used from the first on */
            add_projector(optim, slot,
                          optim->parts > 1     ? all + tg_sum_whole_bytes(slot)
                          : optim->accumulates ? left
                                               : 0,
                          out);
            small = tg_max_size(small, tg_align(bytes_of(slot, slot->count)));
        }
    }
    out->elsewhere += saving;
    out->step_work = small_offset(&optim->workspace) + small;
    tg_workspace_reserve(&optim->workspace, small > 0 ? out->step_work : 0, 0, 0);
    const bool is_host = optim->be->ops->place == TG_HOST;
    const size_t host = optim->workspace.host_bytes;
    out->host = is_host ? 0 : host;
    out->shared = (tg_shared_workspace){.work_bytes = optim->workspace.bytes,
                                        .dense_bytes = optim->takes_factored ? dense : 0};
    out->bytes[TG_MEM_WORKSPACE] += (optim->shares_workspace ? 0 : optim->workspace.bytes) +
                                    (is_host ? host : 0) + rule_bytes(optim);
    out->bytes[TG_MEM_GRADIENTS] += optim->shares_workspace ? 0 : out->shared.dense_bytes;
}

static tg_status plan(tg_context *ctx, const tg_optim_setup *setup, tg_optim_memory *memory,
                      tg_optim **out) {
    tg_status status = TG_OK;
    tg_optim *optim = NULL;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, optim, 1));
    *optim = (tg_optim){.ctx = ctx,
                        .seed = setup->seed,
                        .accumulates = setup->accumulates,
                        .takes_factored = setup->takes_factored,
                        .shard_rank = setup->shard_rank,
                        .shard_ranks = setup->shard_ranks,
                        .parts = setup->parts,
                        .forms_bf16 = setup->forms_bf16,
                        .shares_workspace = setup->shares_workspace,
                        .grad_scale = 1.0,
                        .loss_scale = tg_loss_scale_begin()};
    TG_TRY(tg_backend_get(ctx, &optim->be));
    optim->workspace.be = optim->be;
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, optim->groups, setup->group_count));
    memcpy(optim->groups, setup->groups, (size_t)setup->group_count * sizeof *optim->groups);
    optim->group_count = setup->group_count;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, optim->slots, setup->param_count));
    optim->slot_count = setup->param_count;
    for (int i = 0; i < setup->param_count; i++) {
        TG_TRY(plan_slot(optim, setup, i));
    }
    TG_TRY(check_state_precision(optim, setup));
    TG_TRY(tg_shard_assign(optim));
    tg_bucket_plan(optim);
    plan_memory(optim, memory);
    tg_find_clamped_rank(optim, &memory->clamped);
    *out = optim;
    return TG_OK;
fail:
    tg_optim_destroy(&optim);
    return status;
}

/* Plans an optimizer of a caller's setup. */
static tg_status plan_setup(tg_context *ctx, const tg_optim_setup *setup, tg_optim_memory *memory,
                            tg_optim **out) {
    tg_optim_setup full;
    *memory = (tg_optim_memory){0};
    tg_status status = tg_optim_setup_read(ctx, setup, &full);
    if (status == TG_OK) {
        status = plan(ctx, &full, memory, out);
    }
    tg_optim_setup_free(ctx, &full);
    return status;
}

tg_status tg_optim_plan_memory(tg_context *ctx, const tg_optim_setup *setup, tg_optim_memory *out) {
    TG_NEED(ctx, ctx, setup, out);
    tg_optim *optim = NULL;
    const tg_status status = plan_setup(ctx, setup, out, &optim);
    tg_optim_destroy(&optim);
    return status;
}

tg_status tg_optim_plan(tg_context *ctx, const tg_optim_setup *setup,
                        size_t bytes[TG_MEM_CATEGORIES]) {
    TG_NEED(ctx, ctx, setup, bytes);
    tg_optim_memory memory;
    const tg_status status = tg_optim_plan_memory(ctx, setup, &memory);
    memcpy(bytes, memory.bytes, sizeof memory.bytes);
    bytes[TG_MEM_WORKSPACE] += memory.host;
    return status;
}

/* ---- creation: the memory of a planned optimizer ---- */

static tg_status allocate_slot(tg_optim *optim, tg_slot *slot) {
    if (slot->projector) {
        TG_CALL(tg_projector_allocate(slot->projector, slot->rounding.seed, &optim->workspace));
    }
    if (!slot->is_elsewhere) {
        TG_CALL(tg_moments_create(optim->be, &slot->moments));
    }
    if (optim->accumulates && !slot->is_bucketed) {
        const size_t bytes = bytes_of(slot, slot->count);
        TG_CALL(TG_BACKEND_ALLOC(optim->be, TG_MEM_GRADIENTS, slot->sum, bytes));
        TG_CALL(
            optim->be->ops->fill(optim->be, slot->dtype, slot->count, (tg_scalar){0}, slot->sum));
    }
    return TG_OK;
}

/* Shared by all parameters: scratch, the compressed values being updated, one dense gradient. */
static tg_status allocate_shared(tg_optim *optim) {
    const tg_shared_workspace *needs = &optim->needs;
    const size_t own = rule_bytes(optim);
    if (own > 0) {
        TG_CALL(TG_BACKEND_ALLOC(optim->be, TG_MEM_WORKSPACE, optim->rule_work, own));
    }
    if (optim->shares_workspace) {
        return needs->work_bytes > 0 ? tg_workspace_allocate_host(&optim->workspace) : TG_OK;
    }
    if (needs->work_bytes > 0) {
        TG_CALL(tg_workspace_allocate(&optim->workspace));
        optim->small = (char *)optim->workspace.memory + small_offset(&optim->workspace);
    }
    if (needs->dense_bytes > 0) {
        TG_CALL(TG_BACKEND_ALLOC(optim->be, TG_MEM_GRADIENTS, optim->dense, needs->dense_bytes));
    }
    return TG_OK;
}

tg_status tg_optim_share_workspace(tg_optim *optim, const tg_shared_workspace *workspace) {
    TG_NEED(NULL, optim);
    TG_NEED(optim->ctx, workspace);
    if (!optim->shares_workspace) {
        return tg_fail(optim->ctx, TG_E_ARGUMENT,
                       "optimizer: it has its own workspace; set shares_workspace in its setup to "
                       "make one without");
    }
    optim->shared = workspace;
    return TG_OK;
}

tg_status tg_optim_use_shared(tg_optim *optim, bool forms_dense) {
    static const tg_shared_workspace nothing = {0};
    const tg_shared_workspace *has = optim->shared ? optim->shared : &nothing,
                              *needed = &optim->needs;
    if ((forms_dense && needed->dense_bytes > 0 &&
         (!has->dense || has->dense_bytes < needed->dense_bytes)) ||
        (needed->work_bytes > 0 && (!has->work || has->work_bytes < needed->work_bytes))) {
        return tg_fail(
            optim->ctx, TG_E_ARGUMENT,
            "optimizer: it shares the workspace of a network, of which %zu and %zu bytes "
            "are needed for dense gradient and scratch, but %s: tg_step_share_workspace, "
            "then tg_fno_prepare for training",
            needed->dense_bytes, needed->work_bytes,
            optim->shared ? "the network is not prepared with them" : "has none yet");
    }
    optim->dense = needed->dense_bytes > 0 ? has->dense : NULL;
    optim->workspace.memory = needed->work_bytes > 0 ? has->work : NULL;
    optim->small = optim->workspace.memory
                       ? (char *)optim->workspace.memory + small_offset(&optim->workspace)
                       : NULL;
    return TG_OK;
}

tg_status tg_optim_create(tg_context *ctx, const tg_optim_setup *setup, tg_optim **out) {
    TG_NEED_OUT(ctx, out, ctx, setup);
    tg_status status = TG_OK;
    tg_optim *optim = NULL;
    tg_optim_memory planned;
    TG_TRY(plan_setup(ctx, setup, &planned, &optim));
    optim->needs = planned.shared;
    for (int i = 0; i < optim->slot_count; i++) {
        TG_TRY(allocate_slot(optim, &optim->slots[i]));
    }
    TG_TRY(tg_bucket_allocate(optim));
    TG_TRY(allocate_shared(optim));
    TG_TRY(tg_in_flight_create(optim));
    for (int i = 0; i < optim->group_count; i++) {
        const tg_optim_config *config = &optim->groups[i];
        if (config->is_projected && config->memory_budget > 0.0) {
            tg_log(ctx, TG_LOG_INFO, "opt.memory_budget: rank %.4g",
                   config->projector.first.rank.value[0]);
        }
    }
    if (planned.clamped.params > 0) {
        tg_log(ctx, TG_LOG_WARN, "%s", planned.clamped.note);
    }
    *out = optim;
    return TG_OK;
fail:
    tg_optim_destroy(&optim);
    return status;
}

void tg_optim_destroy(tg_optim **optim) {
    if (!optim || !*optim) {
        return;
    }
    tg_optim *o = *optim;
    tg_in_flight_destroy(o);
    for (int i = 0; i < o->slot_count; i++) {
        tg_slot *slot = &o->slots[i];
        tg_projector_destroy(&slot->projector);
        tg_sum_release_dense(o, slot);
        o->be->ops->release(o->be, slot->is_bucketed ? NULL : slot->sum);
        tg_moments_release(o->be, &slot->moments);
        tg_mem_free(o->ctx, slot->name);
    }
    if (o->shares_workspace) {
        o->dense = o->workspace.memory = NULL;
    }
    if (o->be) {
        o->be->ops->release(o->be, o->dense);
        o->be->ops->release(o->be, o->rule_work);
        o->be->ops->release(o->be, o->bucket.data);
    }
    tg_workspace_release(&o->workspace);
    tg_mem_free(o->ctx, o->slots);
    tg_mem_free(o->ctx, o->groups);
    tg_mem_free(o->ctx, o);
    *optim = NULL;
}

/* ---- counts, projection errors and times ---- */

tg_optim_stats tg_optim_get_stats(const tg_optim *optim) {
    if (!optim) {
        return (tg_optim_stats){0};
    }
    tg_optim_stats stats = optim->stats;
    stats.overflows = optim->loss_scale.overflows;
    for (int i = 0; i < optim->slot_count; i++) {
        if (optim->slots[i].projector) {
            stats.refreshes += optim->slots[i].projector->refreshes;
            stats.failures += optim->slots[i].projector->failures;
        }
    }
    return stats;
}

tg_optim_projection tg_optim_get_projection(const tg_optim *optim, int param) {
    const bool is_known = optim && param >= 0 && param < optim->slot_count;
    const tg_slot *slot = is_known ? &optim->slots[param] : NULL;
    const tg_projector *p = slot ? slot->projector : NULL;
    if (!p) {
        return (tg_optim_projection){.is_projected = false};
    }
    tg_optim_projection out = {.is_projected = true,
                               .kept = p->sparse ? p->sparse->count : 0,
                               .values = slot->count,
                               .entries = p->numel,
                               .refreshed = slot->last_refresh,
                               .error = slot->error};
    if (p->low_rank) {
        out.ranks = tg_shape_of(p->low_rank->modes.ndim, p->low_rank->modes.rank);
    }
    const tg_projector_bytes bytes = tg_projector_get_bytes(p);
    out.bytes = bytes.factors + bytes.indices + tg_moments_bytes(&slot->moments);
    return out;
}

tg_optim_times tg_optim_get_times(const tg_optim *optim) {
    return optim ? optim->times : (tg_optim_times){0};
}

void tg_optim_time_parts(tg_optim *optim, bool waits) {
    if (optim) {
        optim->times = (tg_optim_times){0};
        optim->times_parts = waits;
    }
}
