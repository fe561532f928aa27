/* The memory of a pool: planned from shapes, laid out one parameter behind the other. */
#include "optim/auto_rank/state_pool.h"

#include <math.h>
#include <string.h>

#include "base/minmax.h"

/* ---- planning ---- */

static tg_status outline(tg_context *ctx, const tg_optim_setup *setup, const tg_optim_param *param,
                         int64_t most, tg_projector *out) {
    return tg_projector_outline(ctx, &setup->groups[param->group].projector,
                                tg_dtype_wide(param->dtype), &param->shape, setup->takes_factored,
                                most, out);
}

/* What members need in any case, and what they could use. */
typedef struct demand {
    size_t least, whole; /* bytes: rank 1 everywhere, full ranks */
    size_t indices;
    size_t dense;     /* bytes of the moments of all entries */
    double per_value; /* bytes of a value's moments, where they are fewest */
    int64_t largest;  /* values of one member */
    size_t factor;    /* bytes of the largest one */
    int64_t candidates;
} demand;

static size_t dense_bytes(const tg_state_kind *kind, int64_t entries) {
    const tg_moments moments = tg_moments_plan(kind->config, kind->dtype, entries);
    return tg_moments_bytes(&moments);
}

static demand demand_of(const tg_state_kind *kind, const tg_projector *p) {
    const tg_spectrum sizes = tg_projector_spectrum_sizes(p);
    const tg_rank_allocation whole = tg_ranks_equal(kind, &sizes, SIZE_MAX);
    demand d = {.least = tg_ranks_equal(kind, &sizes, 0).bytes,
                .whole = whole.bytes,
                .indices = tg_projector_get_bytes(p).indices,
                .dense = dense_bytes(kind, p->numel),
                .per_value = tg_moments_per_value(kind->config, kind->dtype, p->numel),
                .largest = whole.count,
                .candidates = tg_rank_candidates(&sizes)};
    for (int k = 0; k < sizes.ndim; k++) {
        d.factor = tg_max_size(d.factor, (size_t)(sizes.dim[k] * sizes.max_rank[k]) *
                                             tg_dtype_size(p->dtype));
    }
    return d;
}

/* Of all members of a group; counts them. */
static tg_status add_demands(tg_context *ctx, const tg_optim_setup *setup, int group, int64_t most,
                             tg_rank_pool *pool, demand *sum) {
    *sum = (demand){0};
    pool->members = 0;
    for (int i = 0; i < setup->param_count; i++) {
        const tg_optim_param *param = &setup->params[i];
        tg_projector p;
        if (param->group != group || !tg_is_projected(setup, param)) {
            continue;
        }
        TG_CALL(outline(ctx, setup, param, most, &p));
        if (!tg_projector_is_auto(&p)) {
            continue;
        }
        const tg_dtype dtype = tg_dtype_wide(param->dtype);
        if (pool->members > 0 && pool->kind.dtype != dtype) {
            return tg_fail(ctx, TG_E_UNSUPPORTED,
                           "opt.rank: auto needs parameters of one dtype in a group; %s is %s, "
                           "others are %s",
                           param->name, tg_dtype_name(dtype), tg_dtype_name(pool->kind.dtype));
        }
        pool->kind.dtype = dtype;
        pool->members++;
        const demand d = demand_of(&pool->kind, &p);
        sum->least += d.least;
        sum->whole += d.whole;
        sum->indices += d.indices;
        sum->dense += d.dense;
        sum->per_value =
            pool->members == 1 || d.per_value < sum->per_value ? d.per_value : sum->per_value;
        sum->candidates += d.candidates;
        sum->largest = d.largest > sum->largest ? d.largest : sum->largest;
        sum->factor = tg_max_size(sum->factor, d.factor);
    }
    return TG_OK;
}

/* Scratch of a allocation: the spectra's addresses, the ranks, and what allocating itself needs. */
static size_t scratch_bytes(const tg_rank_pool *pool, int64_t candidates) {
    return (size_t)pool->members * (sizeof(tg_rank_allocation) + sizeof(tg_spectrum *)) +
           tg_ranks_scratch(pool->members, candidates);
}

/* Values that fit into so many bytes at most. */
static int64_t values_in(const demand *sum, double bytes) {
    const double values = floor(bytes / sum->per_value);
    return values < 1.0 ? 1 : values < 0x1p53 ? (int64_t)values : (int64_t)0x1p53;
}

tg_status tg_auto_rank_plan(tg_context *ctx, const tg_optim_setup *setup, int group,
                            tg_rank_pool *out) {
    const tg_optim_config *config = &setup->groups[group];
    demand sum;
    *out = (tg_rank_pool){.kind = {.config = config}};
    TG_CALL(add_demands(ctx, setup, group, 0, out, &sum));
    if (out->members == 0) {
        return TG_OK;
    }
    const double budget = config->memory_budget <= 1.0 ? config->memory_budget * (double)sum.dense
                                                       : config->memory_budget;
    if (budget > 0.0) {
        out->most = values_in(&sum, budget);
        TG_CALL(add_demands(ctx, setup, group, out->most, out, &sum));
    }
    const double left = budget - (double)sum.indices;
    if (budget > 0.0 && left < (double)sum.least) {
        return tg_fail(
            ctx, TG_E_CONFIG,
            "opt.memory_budget: %.0f bytes are too few: the state of %d parameters takes "
            "at least %zu, at rank 1 and with the sparse entries asked for",
            budget, out->members, sum.least + sum.indices);
    }
    out->bytes = budget > 0.0 && left < (double)sum.whole ? (size_t)left : sum.whole;
    out->bytes -= out->bytes % TG_REGION_ALIGNMENT;
    out->budget = budget > 0.0 ? (size_t)budget : out->bytes + sum.indices;
    out->values = values_in(&sum, (double)out->bytes);
    const int64_t one = tg_min(sum.largest, out->values);
    out->staging_bytes = tg_max_size(tg_repack_bytes(&out->kind, one), sum.factor);
    out->scratch_bytes = scratch_bytes(out, sum.candidates);
    return TG_OK;
}

tg_status tg_auto_rank_most(tg_context *ctx, const tg_optim_setup *setup, const tg_rank_pool *pool,
                            const tg_optim_param *param, int64_t *most) {
    tg_projector p;
    *most = 0;
    if (pool->members == 0) {
        return TG_OK;
    }
    TG_CALL(outline(ctx, setup, param, pool->most, &p));
    if (tg_projector_is_auto(&p)) {
        *most = tg_min(demand_of(&pool->kind, &p).largest, pool->values);
    }
    return TG_OK;
}

/* ---- memory ---- */

static tg_status take_memory(tg_optim *optim, int group) {
    tg_rank_pool *pool = &optim->pools[group];
    const tg_backend_ops *ops = optim->be->ops;
    pool->memory = ops->alloc(optim->be, TG_MEM_OPTIMIZER, pool->bytes);
    TG_CALL(pool->memory ? TG_OK : TG_E_MEMORY);
    TG_CALL(ops->fill(optim->be, TG_F32, (int64_t)(pool->bytes / sizeof(float)), (tg_scalar){0},
                      pool->memory));
    if (optim->accumulates) {
        pool->sum = ops->alloc(optim->be, TG_MEM_GRADIENTS,
                               (size_t)pool->values * tg_dtype_size(pool->kind.dtype));
        TG_CALL(pool->sum ? TG_OK : TG_E_MEMORY);
    }
    pool->scratch = tg_mem_alloc(optim->ctx, TG_MEM_WORKSPACE, pool->scratch_bytes, 1);
    pool->staging = tg_mem_alloc(optim->ctx, TG_MEM_WORKSPACE, pool->staging_bytes, 1);
    return pool->scratch && pool->staging ? TG_OK : TG_E_MEMORY;
}

static tg_status make_ranked(tg_optim *optim, tg_slot *slot) {
    TG_CALL(TG_NEW(optim->ctx, TG_MEM_OTHER, slot->ranked, 1));
    tg_spectrum *spectrum = &slot->ranked->spectrum;
    *spectrum = tg_projector_spectrum_sizes(slot->projector);
    TG_CALL(TG_NEW(optim->ctx, TG_MEM_OTHER, spectrum->values, tg_spectrum_values(spectrum)));
    slot->bound = 1.0;
    return TG_OK;
}

void tg_auto_rank_destroy(tg_optim *optim) {
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (slot->ranked) { /* its state lies in the pool */
            tg_mem_free(optim->ctx, slot->ranked->spectrum.values);
            TG_FREE(optim->ctx, slot->ranked);
            slot->sum = NULL;
            slot->moments = (tg_moments){0};
        }
    }
    for (int i = 0; optim->pools && i < optim->group_count; i++) {
        tg_rank_pool *pool = &optim->pools[i];
        optim->be->ops->release(optim->be, pool->memory);
        optim->be->ops->release(optim->be, pool->sum);
        tg_mem_free(optim->ctx, pool->scratch);
        tg_mem_free(optim->ctx, pool->staging);
    }
    TG_FREE(optim->ctx, optim->pools);
}

tg_layout tg_layout_of(const tg_slot *slot) {
    const tg_projector *projector = slot->projector;
    tg_layout p = {.offset = slot->ranked->offset,
                   .is_sparse_first = projector->sparse == &projector->branch[0],
                   .kept = projector->sparse ? projector->sparse->count : 0,
                   .ndim = slot->shape.ndim};
    memcpy(p.dim, slot->shape.dim, sizeof p.dim);
    memcpy(p.rank, projector->low_rank->modes.rank, sizeof p.rank);
    return p;
}

int64_t tg_layout_core(const tg_layout *layout) {
    return tg_product(layout->ndim, layout->rank);
}

int64_t tg_layout_count(const tg_layout *layout) {
    return tg_layout_core(layout) + layout->kept;
}

tg_region tg_layout_region(const tg_rank_pool *pool, const tg_layout *layout) {
    return tg_region_of(&pool->kind, layout->ndim, layout->dim, layout->rank,
                        tg_layout_count(layout));
}

bool tg_pool_lay_out(tg_optim *optim, int group) {
    const tg_rank_pool *pool = &optim->pools[group];
    size_t offset = 0;
    int64_t values = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (!tg_pool_has(slot, group)) {
            continue;
        }
        const tg_layout at = tg_layout_of(slot);
        const tg_region region = tg_layout_region(pool, &at);
        char *begin = (char *)pool->memory + offset;
        void *factor[TG_MAX_NDIM] = {NULL};
        for (int d = 0; d < at.ndim; d++) {
            factor[d] = begin + region.factor[d];
        }
        tg_projector_set_factors(slot->projector, factor);
        slot->ranked->offset = offset;
        slot->moments = tg_slot_plan_moments(optim, slot);
        for (int s = 0; s < slot->moments.rule->states; s++) {
            const bool has_scales = tg_moments_codec(&slot->moments)->block > 0;
            slot->moments.at[s].memory = begin + region.moment[s];
            slot->moments.at[s].scale = has_scales ? (float *)(begin + region.scale[s]) : NULL;
        }
        slot->sum =
            pool->sum ? (char *)pool->sum + (size_t)values * tg_dtype_size(slot->dtype) : NULL;
        offset += region.bytes;
        values += slot->count;
    }
    return offset <= pool->bytes && values <= pool->values;
}

static size_t least_of(const tg_rank_pool *pool, const tg_slot *slot) {
    const tg_spectrum *sizes = &slot->ranked->spectrum;
    return tg_ranks_equal(&pool->kind, sizes, 0).bytes;
}

/* What is left of the pool beside the least that each member needs is shared by size. */
static tg_status start_group(tg_optim *optim, int group) {
    const tg_rank_pool *pool = &optim->pools[group];
    int64_t entries = 0;
    size_t left = pool->bytes;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        entries += tg_pool_has(slot, group) ? slot->numel : 0;
        left -= tg_pool_has(slot, group) ? least_of(pool, slot) : 0;
    }
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (!tg_pool_has(slot, group)) {
            continue;
        }
        const double share = (double)slot->numel / (double)entries;
        const size_t bytes = least_of(pool, slot) + (size_t)((double)left * share);
        const tg_rank_allocation allocation =
            tg_ranks_equal(&pool->kind, &slot->ranked->spectrum, bytes);
        TG_CALL(tg_projector_set_ranks(slot->projector, allocation.rank));
        slot->count = allocation.count;
    }
    tg_pool_lay_out(optim, group);
    return TG_OK;
}

tg_status tg_auto_rank_create(tg_optim *optim) {
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (slot->projector && tg_projector_is_auto(slot->projector)) {
            TG_CALL(make_ranked(optim, slot));
        }
    }
    for (int group = 0; group < optim->group_count; group++) {
        if (optim->pools[group].members > 0) {
            TG_CALL(take_memory(optim, group));
            TG_CALL(start_group(optim, group));
        }
    }
    return TG_OK;
}
