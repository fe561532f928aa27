/* Creating and freeing an optimizer: the memory of every parameter, planned from shapes. */
#include "optim/optim.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "base/minmax.h"
#include "optim/blocks.h"
#include "optim/ranks.h"

/* ---- planning ---- */

/* Sizes of one parameter's state; the projector is planned, not created. */
typedef struct slot_plan {
    bool is_projected;
    int64_t count;
    tg_projector_bytes projector;
} slot_plan;

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

tg_projected tg_projected_of(const tg_optim_setup *setup, const tg_optim_param *param) {
    const tg_optim_block block = block_of(setup, param);
    tg_projected of = {.dtype = tg_dtype_wide(param->dtype),
                       .shape = tg_whole_shape(setup, param),
                       .factored = setup->takes_factored};
    if (block.whole > 0) {
        of.rows = (tg_rows){block.dim, block.first, param->shape.dim[block.dim]};
    }
    return of;
}

bool tg_is_projected(const tg_optim_setup *setup, const tg_optim_param *param) {
    const tg_optim_config *config = &setup->groups[param->group];
    const tg_shape whole = tg_whole_shape(setup, param);
    return config->is_projected && whole.ndim >= 1 && tg_shape_numel(&whole) > config->min_entries;
}

bool tg_is_dense_block(const tg_optim_setup *setup, const tg_optim_param *param) {
    return block_of(setup, param).whole > 0 && !tg_is_projected(setup, param);
}

static tg_status plan_slot(tg_context *ctx, const tg_optim_setup *setup, int index,
                           slot_plan *plan) {
    const tg_optim_param *param = &setup->params[index];
    tg_projector outline;
    *plan = (slot_plan){.count = tg_shape_numel(&param->shape)};
    if (!tg_is_projected(setup, param)) {
        return TG_OK;
    }
    plan->is_projected = true;
    const tg_projected of = tg_projected_of(setup, param);
    TG_CALL(tg_projector_outline(ctx, &setup->groups[param->group].projector, &of, &outline));
    plan->count = tg_projector_count(&outline);
    plan->projector = tg_projector_get_bytes(&outline);
    return TG_OK;
}

tg_status tg_slot_plan_values(tg_context *ctx, const tg_optim_setup *setup, int index,
                              int64_t *count) {
    slot_plan plan = {0};
    const tg_status status = plan_slot(ctx, setup, index, &plan);
    *count = plan.count;
    return status;
}

tg_moments tg_moments_plan_dense(const tg_optim_setup *setup, const tg_optim_param *param,
                                 const tg_shape *shape) {
    const tg_optim_config *config = &setup->groups[param->group];
    const tg_shape whole = tg_whole_shape(setup, param);
    const tg_rule *rule = tg_rule_of(config, &whole);
    return tg_moments_plan(config, tg_dtype_wide(param->dtype), rule,
                           tg_rule_values(rule, config, &whole),
                           tg_rule_values(rule, config, shape));
}

tg_moments tg_moments_plan_param(const tg_optim_setup *setup, const tg_optim_param *param,
                                 int64_t count) {
    const tg_optim_config *config = &setup->groups[param->group];
    return tg_is_projected(setup, param) ? tg_moments_plan(config, tg_dtype_wide(param->dtype),
                                                           tg_rules[config->rule], count, count)
                                         : tg_moments_plan_dense(setup, param, &param->shape);
}

/* ---- ranks by memory ---- */

/* Bytes of moments, factors and index sets of a group's projected parameters, and of their moments
 * if they were dense: of whole tensors, so that all ranks choose alike. */
static tg_status group_bytes(tg_context *ctx, const tg_optim_setup *setup, int group, size_t *bytes,
                             size_t *dense) {
    *bytes = *dense = 0;
    for (int i = 0; i < setup->param_count; i++) {
        const tg_optim_param *param = &setup->params[i];
        tg_projector outline;
        if (param->group != group || !tg_is_projected(setup, param)) {
            continue;
        }
        tg_projected of = tg_projected_of(setup, param);
        of.rows = (tg_rows){0};
        TG_CALL(tg_projector_outline(ctx, &setup->groups[group].projector, &of, &outline));
        const tg_projector_bytes projector = tg_projector_get_bytes(&outline);
        const tg_moments moments =
            tg_moments_plan_param(setup, param, tg_projector_count(&outline));
        const tg_moments whole = tg_moments_plan_dense(setup, param, &of.shape);
        *bytes += tg_moments_bytes(&moments) + projector.factors + projector.indices;
        *dense += tg_moments_bytes(&whole);
    }
    return TG_OK;
}

static void set_share(tg_optim_config *config, double share) {
    config->projector.first.rank = config->projector.second.rank =
        (tg_rank){.count = 1, .value = {share}};
}

tg_status tg_optim_fit_ranks(tg_context *ctx, const tg_optim_setup *setup, int group,
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

/* A format that no parameter would use is refused. */
static tg_status check_bytes(tg_context *ctx, const tg_optim_setup *setup) {
    tg_state_form asked = TG_STATE_FULL;
    bool used = false;
    for (int i = 0; i < setup->param_count; i++) {
        const tg_optim_param *param = &setup->params[i];
        const tg_optim_config *config = &setup->groups[param->group];
        int64_t count = 0;
        const int64_t least = tg_state_codecs[config->state_precision]->least;
        if (least == 0) {
            continue;
        }
        TG_CALL(tg_slot_plan_values(ctx, setup, i, &count));
        asked = (tg_state_form)config->state_precision;
        const tg_moments moments = tg_moments_plan_param(setup, param, count);
        used = used || moments.form == asked;
    }
    if (asked != TG_STATE_FULL && !used && !setup->numbers) { /* other parameters may use it */
        return tg_fail(ctx, TG_E_CONFIG,
                       "opt.state_precision: %s keeps a scale for every %d numbers, and no "
                       "parameter has the %lld values that make it worth it; take full",
                       tg_state_choices[asked].name, tg_state_codecs[asked]->block,
                       (long long)tg_state_codecs[asked]->least);
    }
    return TG_OK;
}

/* A spectral weight has two channel dims and at least one of modes. */
static bool can_be_factored(const tg_shape *shape) {
    return shape->ndim >= 3;
}

/* Scratch of rules of whole weights. It is not shared: a dense gradient may arrive while a network
 * still uses the shared workspace. */
static size_t rule_bytes(const tg_optim_setup *setup) {
    size_t bytes = 0;
    for (int i = 0; i < setup->param_count; i++) {
        const tg_optim_param *param = &setup->params[i];
        const tg_whole whole = {.config = &setup->groups[param->group],
                                .dtype = tg_dtype_wide(param->dtype),
                                .shape = param->shape};
        const tg_shape tensor = tg_whole_shape(setup, param);
        const tg_rule *rule = tg_rule_of(whole.config, &tensor);
        bytes = tg_max_size(bytes, rule->work ? rule->work(&whole) : 0);
    }
    return bytes;
}

/* Bytes of one entry of the dense gradient that is formed from factors. */
static size_t formed_size(const tg_optim_setup *setup, tg_dtype dtype) {
    const tg_storage store = setup->forms_bf16 ? TG_STORE_BF16 : TG_STORE_FULL;
    return tg_dtype_size(tg_stored(dtype, store));
}

/* A parameter's moments, if this rank has them, and its sum where gradients are accumulated. */
static void add_state(tg_optim_memory *out, const tg_optim_setup *setup,
                      const tg_optim_param *param, int owner, const slot_plan *plan) {
    const tg_dtype dtype = tg_dtype_wide(param->dtype);
    const tg_moments moments = tg_moments_plan_param(setup, param, plan->count);
    const size_t values = (size_t)plan->count * tg_dtype_size(dtype);
    const tg_shape tensor = tg_whole_shape(setup, param);
    const tg_moments whole =
        tg_is_dense_block(setup, param) ? tg_moments_plan_dense(setup, param, &tensor) : moments;
    const bool is_here = tg_rank_has(setup, param, owner);
    out->bytes[TG_MEM_OPTIMIZER] += is_here ? tg_moments_bytes(&moments) : 0;
    if (!is_here || tg_is_dense_block(setup, param)) { /* gathered while saving */
        out->elsewhere += tg_moments_saved_bytes(&whole);
    }
    out->bytes[TG_MEM_GRADIENTS] += setup->accumulates ? values : 0;
    if (owner != TG_ON_ALL) {
        out->sharded++;
        out->updates +=
            plan->is_projected ? values : (size_t)plan->count * tg_dtype_size(param->dtype);
    }
}

/* The compressed values being updated come after a step's scratch. A refresh ends before they are
 * computed, and may use that memory. */
static size_t small_offset(const tg_workspace *workspace) {
    return tg_align(workspace->step_bytes);
}

/* Dense sums at the refresh of a parameter: those not used yet, `left`, or with blocks those of all
 * projected parameters and the whole tensor. */
static size_t held_in_refresh(const tg_optim_setup *setup, int index, size_t left) {
    if (setup->parts == 1) {
        return setup->accumulates ? left : 0;
    }
    size_t bytes = tg_gathered_bytes(setup, &setup->params[index]);
    for (int i = 0; i < setup->param_count; i++) {
        const tg_optim_param *param = &setup->params[i];
        bytes += tg_is_projected(setup, param) ? (size_t)tg_shape_numel(&param->shape) *
                                                     tg_dtype_size(tg_dtype_wide(param->dtype))
                                               : 0;
    }
    return bytes;
}

/* An update that refreshes: temporaries of decompositions, next to dense sums. */
static void add_refresh(tg_optim_memory *out, size_t held, const tg_projector_bytes *projector) {
    size_t *refresh = out->refresh;
    if (held + projector->borrowed > refresh[TG_MEM_GRADIENTS] + refresh[TG_MEM_WORKSPACE]) {
        refresh[TG_MEM_GRADIENTS] = held;
        refresh[TG_MEM_WORKSPACE] = projector->borrowed;
    }
    out->host_refresh = tg_max_size(out->host_refresh, projector->host_borrowed);
}

/* State of every parameter; shared memory in `scratch` and *dense. */
static tg_status plan_params(tg_context *ctx, const tg_optim_setup *setup, tg_optim_memory *out,
                             tg_workspace *scratch, size_t *dense) {
    tg_status status = TG_OK;
    size_t sums = 0, small = 0, saving = 0;
    int *owner = NULL;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, owner, setup->param_count));
    TG_TRY(tg_shard_assign(ctx, setup, owner));
    for (int i = setup->param_count - 1; i >= 0; i--) { /* sums are used from the first on */
        const tg_optim_param *param = &setup->params[i];
        const tg_dtype dtype = tg_dtype_wide(param->dtype);
        const size_t entries = (size_t)tg_shape_numel(&param->shape);
        slot_plan plan;
        TG_TRY(plan_slot(ctx, setup, i, &plan));
        add_state(out, setup, param, owner[i], &plan);
        saving = tg_max_size(saving, tg_block_saving_bytes(setup, param));
        out->bytes[TG_MEM_FACTORS] += plan.projector.factors;
        out->bytes[TG_MEM_INDICES] += plan.projector.indices;
        if (plan.is_projected) {
            small = tg_max_size(small, tg_align((size_t)plan.count * tg_dtype_size(dtype)));
            tg_workspace_reserve(scratch, plan.projector.workspace, plan.projector.step_workspace,
                                 plan.projector.host_workspace);
            tg_workspace_reserve(scratch, tg_piece_bytes(setup, param), 0, 0);
            sums += entries * tg_dtype_size(dtype);
            add_refresh(out, held_in_refresh(setup, i, sums), &plan.projector);
        }
        if (can_be_factored(&param->shape)) {
            *dense = tg_max_size(*dense, entries * formed_size(setup, dtype));
        }
    }
    out->elsewhere += saving;
    out->step_work = small_offset(scratch) + small;
    tg_workspace_reserve(scratch, small > 0 ? out->step_work : 0, 0, 0);
fail:
    tg_mem_free(ctx, owner);
    return status;
}

static tg_status plan_memory(tg_context *ctx, const tg_optim_setup *setup, tg_optim_memory *out) {
    tg_backend *be = NULL;
    tg_workspace scratch = {0};
    size_t dense = 0;
    TG_CALL(tg_backend_get(ctx, &be));
    TG_CALL(check_bytes(ctx, setup));
    const bool is_host = be->ops->place == TG_HOST;
    TG_CALL(plan_params(ctx, setup, out, &scratch, &dense));
    TG_CALL(tg_find_clamped_rank(ctx, setup, &out->clamped));
    const size_t host = scratch.host_bytes;
    out->host = is_host ? 0 : host;
    out->shared = (tg_shared_workspace){.work_bytes = scratch.bytes,
                                        .dense_bytes = setup->takes_factored ? dense : 0};
    out->bytes[TG_MEM_WORKSPACE] +=
        (setup->shares_workspace ? 0 : scratch.bytes) + (is_host ? host : 0) + rule_bytes(setup);
    out->bytes[TG_MEM_GRADIENTS] += setup->shares_workspace ? 0 : out->shared.dense_bytes;
    return TG_OK;
}

tg_status tg_optim_plan_memory(tg_context *ctx, const tg_optim_setup *setup, tg_optim_memory *out) {
    TG_NEED(ctx, ctx, setup, out);
    *out = (tg_optim_memory){0};
    tg_optim_setup full;
    tg_status status = tg_optim_setup_read(ctx, setup, &full);
    if (status == TG_OK) {
        status = plan_memory(ctx, &full, out);
    }
    tg_optim_setup_free(ctx, &full);
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

/* ---- creation ---- */

/* Sums of gradients, initially 0. */
static tg_status make_sums(tg_backend *be, size_t bytes, void **out) {
    *out = be->ops->alloc(be, TG_MEM_GRADIENTS, bytes);
    return *out ? be->ops->fill(be, TG_F32, (int64_t)(bytes / sizeof(float)), (tg_scalar){0}, *out)
                : TG_E_MEMORY;
}

static tg_status make_slot(tg_optim *optim, const tg_optim_setup *setup, int index, int owner) {
    const tg_optim_param *param = &setup->params[index];
    const tg_optim_config *config = &optim->groups[param->group];
    tg_slot *slot = &optim->slots[index];
    slot_plan plan;
    const int number = setup->numbers ? setup->numbers[index] : index;
    const uint64_t seed = setup->seed + 0xD1B54A32D192ED03ull * (uint64_t)(number + 1);
    slot->dtype = tg_dtype_wide(param->dtype);
    slot->weight_store = tg_storage_of(param->dtype);
    slot->rounding = (tg_rng){.seed = seed, .purpose = TG_RNG_ROUNDING};
    slot->shape = param->shape;
    slot->numel = tg_shape_numel(&param->shape);
    slot->block = block_of(setup, param);
    slot->group = param->group;
    slot->owner = owner;
    slot->is_elsewhere = !tg_rank_has(setup, param, owner);
    slot->last_refresh = -1;
    slot->name = tg_mem_strdup(optim->ctx, param->name);
    TG_CALL(slot->name ? TG_OK : TG_E_MEMORY);
    TG_CALL(plan_slot(optim->ctx, setup, index, &plan));
    slot->count = plan.count;
    slot->error = (double)NAN;
    if (plan.is_projected) {
        const tg_projected of = tg_projected_of(setup, param);
        TG_CALL(tg_projector_create_in(optim->ctx, &config->projector, &of, seed, &optim->workspace,
                                       &slot->projector));
    }
    slot->moments = tg_moments_plan_param(setup, param, plan.count);
    if (!slot->is_elsewhere) {
        TG_CALL(tg_moments_create(optim->be, &slot->moments));
    }
    if (setup->accumulates && !tg_bucket_takes(setup, param)) {
        const size_t values = (size_t)slot->count * tg_dtype_size(slot->dtype);
        TG_CALL(make_sums(optim->be, values, &slot->sum));
    }
    return TG_OK;
}

/* Shared by all parameters: scratch, the compressed values being updated, one dense gradient. */
static tg_status make_shared(tg_optim *optim, const tg_optim_setup *setup,
                             const tg_shared_workspace *planned) {
    tg_backend *be = optim->be;
    const size_t own = rule_bytes(setup);
    optim->needs = *planned;
    optim->workspace.bytes = planned->work_bytes;
    if (own > 0) {
        TG_CALL(TG_BACKEND_ALLOC(be, TG_MEM_WORKSPACE, optim->rule_work, own));
    }
    if (setup->shares_workspace) {
        return planned->work_bytes > 0 ? tg_workspace_allocate_host(&optim->workspace) : TG_OK;
    }
    if (planned->work_bytes > 0) {
        TG_CALL(tg_workspace_allocate(&optim->workspace));
        optim->small = (char *)optim->workspace.memory + small_offset(&optim->workspace);
    }
    if (planned->dense_bytes > 0) {
        TG_CALL(TG_BACKEND_ALLOC(be, TG_MEM_GRADIENTS, optim->dense, planned->dense_bytes));
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

static tg_status create(tg_context *ctx, const tg_optim_setup *setup, tg_optim **out) {
    tg_status status = TG_OK;
    tg_optim *optim = NULL;
    int *owner = NULL;
    tg_optim_memory planned = {0};
    TG_TRY(plan_memory(ctx, setup, &planned));
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, optim, 1));
    optim->ctx = ctx;
    optim->seed = setup->seed;
    optim->accumulates = setup->accumulates;
    optim->shard_rank = setup->shard_rank;
    optim->shard_ranks = setup->shard_ranks;
    optim->parts = setup->parts;
    optim->forms_bf16 = setup->forms_bf16;
    optim->shares_workspace = setup->shares_workspace;
    optim->grad_scale = 1.0;
    optim->loss_scale = tg_loss_scale_begin();
    TG_TRY(tg_backend_get(ctx, &optim->be));
    optim->workspace.be = optim->be;
    optim->group_count = setup->group_count;
    TG_TRY(TG_ALLOC(ctx, TG_MEM_OTHER, optim->groups, setup->group_count));
    memcpy(optim->groups, setup->groups, (size_t)setup->group_count * sizeof *optim->groups);
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, optim->slots, setup->param_count));
    optim->slot_count = setup->param_count;
    TG_TRY(TG_NEW(ctx, TG_MEM_OTHER, owner, setup->param_count));
    TG_TRY(tg_shard_assign(ctx, setup, owner));
    for (int i = 0; i < setup->param_count; i++) {
        TG_TRY(make_slot(optim, setup, i, owner[i]));
    }
    TG_TRY(tg_bucket_create(optim, setup));
    TG_TRY(make_shared(optim, setup, &planned.shared));
    TG_TRY(tg_in_flight_create(optim));
    for (int i = 0; i < setup->group_count; i++) {
        const tg_optim_config *config = &setup->groups[i];
        if (config->is_projected && config->memory_budget > 0.0) {
            tg_log(ctx, TG_LOG_INFO, "opt.memory_budget: rank %.4g",
                   config->projector.first.rank.value[0]);
        }
    }
    if (planned.clamped.params > 0) {
        tg_log(ctx, TG_LOG_WARN, "%s", planned.clamped.note);
    }
    tg_mem_free(ctx, owner);
    *out = optim;
    return TG_OK;
fail:
    tg_mem_free(ctx, owner);
    tg_optim_destroy(&optim);
    return status;
}

tg_status tg_optim_create(tg_context *ctx, const tg_optim_setup *setup, tg_optim **out) {
    TG_NEED_OUT(ctx, out, ctx, setup);
    tg_optim_setup full;
    tg_status status = tg_optim_setup_read(ctx, setup, &full);
    if (status == TG_OK) {
        status = create(ctx, &full, out);
    }
    tg_optim_setup_free(ctx, &full);
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
        o->be->ops->release(o->be, slot->dense_sum);
        o->be->ops->release(o->be, slot->whole_sum);
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
    for (int b = 0; b < p->branches; b++) {
        out.bytes += tg_branch_factor_bytes(&p->branch[b]) + tg_branch_index_bytes(&p->branch[b]);
    }
    out.bytes += tg_moments_bytes(&slot->moments);
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
