/* Automatic ranks: one pool of memory for the state of all parameters of a group; spectra are
 * measured, ranks chosen, and the pool is laid out anew.
 *
 * The update before each scheduled refresh (and the very first) also takes the spectrum of every
 * gradient. When all of a group are there, the next update chooses ranks for all of them at once
 * and every parameter whose ranks changed refreshes its projection. Moments go with their
 * coordinates: those of directions that are left out are forgotten, those of new directions start
 * at 0 (first moment) and at the value of the nearest direction that was there (second moment), so
 * that their first steps are not too long. */
#include <math.h>
#include <string.h>

#include "optim/optim.h"

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static size_t larger(size_t a, size_t b) {
    return a > b ? a : b;
}

/* ---- planning ---- */

static tg_status outline(tg_context *ctx, const tg_optim_setup *setup, const tg_optim_param *param,
                         int64_t most, tg_projector *out) {
    return tg_projector_outline(ctx, &setup->groups[param->group].projector,
                                tg_dtype_wide(param->dtype), &param->shape, setup->takes_factored,
                                most, out);
}

static size_t value_bytes(const tg_state_kind *kind) {
    return tg_dtype_size(kind->dtype) + tg_moment_bytes(kind->config, kind->dtype, 1);
}

/* What members need in any case, and what they could use. */
typedef struct demand {
    size_t least, whole; /* bytes: rank 1 everywhere, full ranks */
    size_t indices;
    int64_t entries;
    int64_t largest; /* values of one member */
    size_t factor;   /* bytes of the largest one */
    int64_t points;
} demand;

static demand demand_of(const tg_state_kind *kind, const tg_projector *p) {
    const tg_spectrum sizes = tg_projector_spectrum_sizes(p);
    const int64_t fewest = sizes.kept[0], most = sizes.kept[sizes.shares - 1];
    const tg_rank_choice whole = tg_ranks_equal(kind, &sizes, fewest, SIZE_MAX);
    demand d = {.least = tg_ranks_equal(kind, &sizes, fewest, 0).bytes,
                .whole = whole.bytes,
                .indices = tg_projector_get_bytes(p).indices,
                .entries = p->numel,
                .largest = whole.count - fewest + most,
                .points = tg_rank_points(&sizes)};
    for (int k = 0; k < sizes.ndim; k++) {
        d.factor =
            larger(d.factor, (size_t)(sizes.dim[k] * sizes.max_rank[k]) * tg_dtype_size(p->dtype));
    }
    return d;
}

/* Of all members of a group; counts them. */
static tg_status add_demands(tg_context *ctx, const tg_optim_setup *setup, int group, int64_t most,
                             tg_pool *pool, demand *sum) {
    tg_status status = TG_OK;
    *sum = (demand){0};
    pool->members = 0;
    for (int i = 0; i < setup->param_count; i++) {
        const tg_optim_param *param = &setup->params[i];
        tg_projector p;
        if (param->group != group || !tg_is_projected(setup, param)) {
            continue;
        }
        TG_TRY(outline(ctx, setup, param, most, &p));
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
        if (setup->groups[group].state_precision != TG_STATES_FULL) {
            return tg_fail(ctx, TG_E_CONFIG,
                           "opt.state_precision: moments move with automatic ranks, and are then "
                           "kept in full; take full, or set opt.rank");
        }
        pool->kind.dtype = dtype;
        pool->members++;
        const demand d = demand_of(&pool->kind, &p);
        sum->least += d.least;
        sum->whole += d.whole;
        sum->indices += d.indices;
        sum->entries += d.entries;
        sum->points += d.points;
        sum->largest = d.largest > sum->largest ? d.largest : sum->largest;
        sum->factor = larger(sum->factor, d.factor);
    }
fail:
    return status;
}

/* Scratch of a choice: the spectra's addresses, the choices, and what choosing itself needs. */
static size_t choosing_bytes(const tg_pool *pool, int64_t points) {
    return (size_t)pool->members * (sizeof(tg_rank_choice) + sizeof(tg_spectrum *)) +
           tg_ranks_scratch(pool->members, points);
}

/* Values that fit into so many bytes. */
static int64_t values_in(const tg_state_kind *kind, double bytes) {
    const double values = floor(bytes / (double)value_bytes(kind));
    return values < 1.0 ? 1 : values < 0x1p53 ? (int64_t)values : (int64_t)0x1p53;
}

tg_status tg_pool_plan(tg_context *ctx, const tg_optim_setup *setup, int group, tg_pool *out) {
    const tg_optim_config *config = &setup->groups[group];
    demand sum;
    *out = (tg_pool){.kind = {.config = config}};
    tg_status status = add_demands(ctx, setup, group, 0, out, &sum);
    if (status != TG_OK || out->members == 0) {
        return status;
    }
    const double dense = (double)sum.entries * (double)value_bytes(&out->kind);
    const double budget =
        config->memory_budget <= 1.0 ? config->memory_budget * dense : config->memory_budget;
    if (budget > 0.0) {
        out->most = values_in(&out->kind, budget);
        TG_TRY(add_demands(ctx, setup, group, out->most, out, &sum));
    }
    const double left = budget - (double)sum.indices;
    if (budget > 0.0 && left < (double)sum.least) {
        return tg_fail(
            ctx, TG_E_CONFIG,
            "opt.memory_budget: %.0f bytes are too few: the state of %d parameters takes "
            "at least %zu, at rank 1",
            budget, out->members, sum.least + sum.indices);
    }
    out->bytes = budget > 0.0 && left < (double)sum.whole ? (size_t)left : sum.whole;
    out->bytes -= out->bytes % TG_REGION_ALIGNMENT;
    out->values = values_in(&out->kind, (double)out->bytes);
    const int64_t one = smaller(sum.largest, out->values);
    const size_t widest =
        larger(tg_dtype_size(out->kind.dtype), tg_moment_bytes(config, out->kind.dtype, 1));
    out->moving_bytes = larger((size_t)one * widest, sum.factor);
    out->choosing_bytes = choosing_bytes(out, sum.points);
fail:
    return status;
}

tg_status tg_pool_most(tg_context *ctx, const tg_optim_setup *setup, const tg_pool *pool,
                       const tg_optim_param *param, int64_t *most) {
    tg_projector p;
    *most = 0;
    if (pool->members == 0) {
        return TG_OK;
    }
    tg_status status = outline(ctx, setup, param, pool->most, &p);
    if (status == TG_OK && tg_projector_is_auto(&p)) {
        *most = smaller(demand_of(&pool->kind, &p).largest, pool->values);
    }
    return status;
}

/* ---- memory ---- */

tg_status tg_pool_allocate(tg_optim *optim, int group) {
    tg_pool *pool = &optim->pools[group];
    const tg_backend_ops *ops = optim->be->ops;
    tg_status status = TG_OK;
    pool->kind.config = &optim->groups[group];
    if (pool->members == 0) {
        return TG_OK;
    }
    pool->memory = ops->alloc(optim->be, TG_MEM_OPTIMIZER, pool->bytes);
    TG_TRY(pool->memory ? TG_OK : TG_E_MEMORY);
    TG_TRY(ops->fill(optim->be, TG_F32, (int64_t)(pool->bytes / sizeof(float)), (tg_scalar){0},
                     pool->memory));
    if (optim->accumulates) {
        pool->sum = ops->alloc(optim->be, TG_MEM_GRADIENTS,
                               (size_t)pool->values * tg_dtype_size(pool->kind.dtype));
        TG_TRY(pool->sum ? TG_OK : TG_E_MEMORY);
    }
    pool->choosing = tg_mem_alloc(optim->ctx, TG_MEM_WORKSPACE, pool->choosing_bytes, 1);
    pool->moving = tg_mem_alloc(optim->ctx, TG_MEM_WORKSPACE, pool->moving_bytes, 1);
    TG_TRY(pool->choosing && pool->moving ? TG_OK : TG_E_MEMORY);
fail:
    return status;
}

void tg_pool_release(tg_optim *optim, tg_pool *pool) {
    optim->be->ops->release(optim->be, pool->memory);
    optim->be->ops->release(optim->be, pool->sum);
    tg_mem_free(optim->ctx, pool->choosing);
    tg_mem_free(optim->ctx, pool->moving);
}

static bool is_member(const tg_slot *slot, int group) {
    return slot->ranked && slot->group == group;
}

/* Where the values of a parameter lie, and how: the sparse set and the core, in the order of the
 * branches. */
typedef struct place {
    size_t offset; /* of its region in the pool */
    bool is_sparse_first;
    int64_t kept;
    int ndim;
    int64_t dim[TG_MAX_NDIM], rank[TG_MAX_NDIM];
} place;

static place place_of(const tg_slot *slot) {
    const tg_projector *projector = slot->projector;
    place p = {.offset = slot->ranked->offset,
               .is_sparse_first = projector->sparse == &projector->branch[0],
               .kept = projector->sparse ? projector->sparse->count : 0,
               .ndim = slot->shape.ndim};
    memcpy(p.dim, slot->shape.dim, sizeof p.dim);
    memcpy(p.rank, projector->low_rank->modes.rank, sizeof p.rank);
    return p;
}

static int64_t core_count(const place *p) {
    int64_t count = 1;
    for (int d = 0; d < p->ndim; d++) {
        count *= p->rank[d];
    }
    return count;
}

static int64_t count_of(const place *p) {
    return core_count(p) + p->kept;
}

static tg_region region_of(const tg_pool *pool, const place *p) {
    return tg_region_of(&pool->kind, p->ndim, p->dim, p->rank, count_of(p));
}

bool tg_pool_lay_out(tg_optim *optim, int group) {
    const tg_pool *pool = &optim->pools[group];
    size_t offset = 0;
    int64_t values = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (!is_member(slot, group)) {
            continue;
        }
        const place at = place_of(slot);
        const tg_region region = region_of(pool, &at);
        char *begin = (char *)pool->memory + offset;
        void *factor[TG_MAX_NDIM] = {NULL};
        for (int d = 0; d < at.ndim; d++) {
            factor[d] = begin + region.factor[d];
        }
        tg_projector_lend(slot->projector, factor);
        slot->ranked->offset = offset;
        slot->moments = tg_moments_plan(pool->kind.config, slot->dtype, slot->count);
        slot->moments.m = begin + region.m;
        slot->moments.v = begin + region.v;
        slot->sum =
            pool->sum ? (char *)pool->sum + (size_t)values * tg_dtype_size(slot->dtype) : NULL;
        offset += region.bytes;
        values += slot->count;
    }
    return offset <= pool->bytes && values <= pool->values;
}

/* Equal ranks in so many bytes; a sparse set whose size is chosen starts with that of the settings
 * and at most a quarter of them. */
static tg_rank_choice first_choice(const tg_state_kind *kind, const tg_spectrum *sizes,
                                   size_t bytes) {
    int set = sizes->shares > 1 ? sizes->shares - 2 : 0;
    while (set > 0 && 4 * (size_t)sizes->kept[set] * value_bytes(kind) > bytes) {
        set--;
    }
    return tg_ranks_equal(kind, sizes, sizes->kept[set], bytes);
}

static size_t least_of(const tg_pool *pool, const tg_slot *slot) {
    const tg_spectrum *sizes = &slot->ranked->spectrum;
    return tg_ranks_equal(&pool->kind, sizes, sizes->kept[0], 0).bytes;
}

/* What is left of the pool beside the least that each member needs is shared by size. */
static tg_status start_group(tg_optim *optim, int group) {
    const tg_pool *pool = &optim->pools[group];
    tg_status status = TG_OK;
    int64_t entries = 0;
    size_t left = pool->bytes;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        entries += is_member(slot, group) ? slot->numel : 0;
        left -= is_member(slot, group) ? least_of(pool, slot) : 0;
    }
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (!is_member(slot, group)) {
            continue;
        }
        const double share = (double)slot->numel / (double)entries;
        const size_t bytes = least_of(pool, slot) + (size_t)((double)left * share);
        const tg_rank_choice choice = first_choice(&pool->kind, &slot->ranked->spectrum, bytes);
        TG_TRY(tg_projector_set_ranks(slot->projector, choice.rank, choice.kept));
        slot->count = choice.count;
        slot->ranked->bound = 1.0;
    }
    tg_pool_lay_out(optim, group);
fail:
    return status;
}

tg_status tg_ranks_start(tg_optim *optim) {
    tg_status status = TG_OK;
    for (int group = 0; status == TG_OK && group < optim->group_count; group++) {
        status = start_group(optim, group);
    }
    return status;
}

/* ---- moving ---- */

/* What new coordinates get. */
typedef enum filling { ZERO, NEAREST, REPEATED } filling;

/* A box of elements, row-major, from the sizes `from` at element `source` of `data` to the sizes
 * `to` at element `target` of the same memory. Smaller boxes move towards the front, from the first
 * element on; larger ones towards the back, from the last element on: nothing is written before it
 * was read. */
static void reshape(char *data, size_t size, int ndim, const int64_t *from, int64_t source,
                    const int64_t *to, int64_t target, filling fills) {
    int64_t count = 1, index[TG_MAX_NDIM];
    bool grows = target > source;
    for (int d = 0; d < ndim; d++) {
        count *= to[d];
        grows = grows || to[d] > from[d];
    }
    for (int64_t n = 0; n < count; n++) {
        const int64_t i = grows ? count - 1 - n : n;
        int64_t rest = i, at = 0, stride = 1;
        bool is_new = false;
        for (int d = ndim - 1; d >= 0; d--) {
            index[d] = rest % to[d];
            rest /= to[d];
            is_new = is_new || index[d] >= from[d];
            index[d] = fills == REPEATED ? index[d] % from[d] : smaller(index[d], from[d] - 1);
            at += index[d] * stride;
            stride *= from[d];
        }
        char *out = data + (size_t)(target + i) * size;
        if (is_new && fills == ZERO) {
            memset(out, 0, size);
        } else {
            memmove(out, data + (size_t)(source + at) * size, size);
        }
    }
}

/* Both parts of a parameter's values. Growing starts with the part behind. */
static void reshape_parts(char *data, size_t size, const place *from, const place *to,
                          bool is_second_moment) {
    const bool grows = count_of(to) > count_of(from);
    for (int n = 0; n < 2; n++) {
        const bool behind = (n == 0) == grows;
        if (behind == from->is_sparse_first) { /* the core */
            reshape(data, size, from->ndim, from->rank, behind ? from->kept : 0, to->rank,
                    behind ? to->kept : 0, is_second_moment ? NEAREST : ZERO);
        } else if (from->kept > 0) {
            reshape(data, size, 1, &from->kept, behind ? core_count(from) : 0, &to->kept,
                    behind ? core_count(to) : 0, is_second_moment ? REPEATED : ZERO);
        }
    }
}

static bool is_same(const place *a, const place *b) {
    bool same = a->offset == b->offset && a->kept == b->kept;
    for (int d = 0; d < a->ndim; d++) {
        same = same && a->rank[d] == b->rank[d];
    }
    return same;
}

/* The arrays of a region, in its order. */
enum { FIRST_MOMENT, SECOND_MOMENT, FACTORS };

/* One array of a parameter's state, by way of the host. */
static tg_status move_array(tg_optim *optim, const tg_pool *pool, int array, const place *from,
                            const place *to) {
    const tg_backend_ops *ops = optim->be->ops;
    const tg_region source = region_of(pool, from), target = region_of(pool, to);
    const size_t size = array == SECOND_MOMENT
                            ? tg_moment_bytes(pool->kind.config, pool->kind.dtype, 1)
                            : tg_dtype_size(pool->kind.dtype);
    const int mode = array - FACTORS;
    size_t reads = source.m, writes = target.m;
    int64_t old_count = count_of(from), new_count = count_of(to);
    tg_status status = TG_OK;
    if (array == SECOND_MOMENT) {
        reads = source.v;
        writes = target.v;
    } else if (array >= FACTORS) {
        reads = source.factor[mode];
        writes = target.factor[mode];
        old_count = from->dim[mode] * from->rank[mode];
        new_count = to->dim[mode] * to->rank[mode];
    }
    TG_TRY(ops->download(optim->be, pool->moving, (char *)pool->memory + from->offset + reads,
                         (size_t)old_count * size));
    if (array >= FACTORS) { /* columns that stay; new ones are 0 until the refresh */
        const int64_t old_size[2] = {from->dim[mode], from->rank[mode]};
        const int64_t new_size[2] = {to->dim[mode], to->rank[mode]};
        reshape(pool->moving, size, 2, old_size, 0, new_size, 0, ZERO);
    } else {
        reshape_parts(pool->moving, size, from, to, array == SECOND_MOMENT);
    }
    TG_TRY(ops->upload(optim->be, (char *)pool->memory + to->offset + writes, pool->moving,
                       (size_t)new_count * size));
fail:
    return status;
}

/* All of them, those in front first if they move to the front. */
static tg_status move_state(tg_optim *optim, const tg_pool *pool, const place *from,
                            const place *to) {
    const int arrays = FACTORS + from->ndim;
    const bool grows = to->offset > from->offset || count_of(to) > count_of(from);
    tg_status status = TG_OK;
    for (int i = 0; i < arrays && status == TG_OK && !is_same(from, to); i++) {
        status = move_array(optim, pool, grows ? arrays - 1 - i : i, from, to);
    }
    return status;
}

/* ---- choosing ---- */

/* Everything that is chosen at once. */
typedef struct choosing {
    tg_rank_choice *choices;     /* (members) */
    const tg_spectrum **spectra; /* (members) */
    void *scratch;
} choosing;

static choosing lay_out_choosing(const tg_pool *pool) {
    choosing c = {.choices = pool->choosing};
    c.spectra = (const tg_spectrum **)(c.choices + pool->members);
    c.scratch = c.spectra + pool->members;
    return c;
}

static bool is_changed(const tg_slot *slot, const tg_rank_choice *choice) {
    const place now = place_of(slot);
    bool changed = now.kept != choice->kept;
    for (int d = 0; d < now.ndim; d++) {
        changed = changed || now.rank[d] != choice->rank[d];
    }
    return changed;
}

/* What a state and a choice have in common, at an offset. */
static place common(const place *from, const tg_rank_choice *choice, size_t offset) {
    place p = *from;
    p.offset = offset;
    p.kept = smaller(from->kept, choice->kept);
    for (int d = 0; d < p.ndim; d++) {
        p.rank[d] = smaller(from->rank[d], choice->rank[d]);
    }
    return p;
}

static void log_choice(tg_optim *optim, int group, const tg_slot *arriving) {
    int64_t values = 0, entries = 0;
    double worst = 0.0;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (is_member(slot, group)) {
            values += slot->count;
            entries += slot->numel;
            worst = slot->ranked->bound > worst ? slot->ranked->bound : worst;
        }
    }
    tg_log(optim->ctx, TG_LOG_INFO,
           "ranks from step %lld on: %lld of %lld values (%.3g %%) in %d parameters, which lose at "
           "most %.3g of the gradients measured before",
           (long long)arriving->step, (long long)values, (long long)entries,
           100.0 * (double)values / (double)entries, optim->pools[group].members, sqrt(worst));
}

/* States first shrink to what stays and close up, then grow to their new sizes from the last one
 * on: the pool needs no second copy. */
static tg_status apply(tg_optim *optim, int group, const tg_rank_choice *choices) {
    tg_pool *pool = &optim->pools[group];
    tg_status status = TG_OK;
    size_t packed = 0, end = 0;
    int member = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (!is_member(slot, group)) {
            continue;
        }
        const place from = place_of(slot);
        const place to = common(&from, &choices[member], packed);
        TG_TRY(move_state(optim, pool, &from, &to));
        packed += region_of(pool, &to).bytes;
        end += choices[member++].bytes;
    }
    for (int i = optim->slot_count - 1; i >= 0; i--) {
        tg_slot *slot = &optim->slots[i];
        if (!is_member(slot, group)) {
            continue;
        }
        const tg_rank_choice *choice = &choices[--member];
        const place before = place_of(slot);
        place from = common(&before, choice, 0), to = before;
        packed -= region_of(pool, &from).bytes;
        end -= choice->bytes;
        from.offset = packed;
        to.offset = end;
        to.kept = choice->kept;
        memcpy(to.rank, choice->rank, sizeof to.rank);
        TG_TRY(move_state(optim, pool, &from, &to));
    }
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (!is_member(slot, group)) {
            continue;
        }
        const tg_rank_choice *choice = &choices[member++];
        if (is_changed(slot, choice)) {
            TG_TRY(tg_projector_set_ranks(slot->projector, choice->rank, choice->kept));
            slot->count = choice->count;
            slot->ranked->is_due = true;
        }
    }
    tg_pool_lay_out(optim, group); /* it fits: the choice did */
    optim->moves++;
fail:
    return status;
}

tg_status tg_ranks_choose_if_ready(tg_optim *optim, const tg_slot *arriving) {
    const int group = arriving->group;
    tg_pool *pool = &optim->pools[group];
    if (!arriving->ranked) {
        return TG_OK;
    }
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (is_member(slot, group) && (!slot->ranked->is_measured || slot->is_summing)) {
            return TG_OK;
        }
    }
    const choosing c = lay_out_choosing(pool);
    int member = 0;
    bool changes = false;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (is_member(slot, group)) {
            const place now = place_of(slot);
            c.choices[member] = (tg_rank_choice){.kept = now.kept,
                                                 .count = slot->count,
                                                 .bytes = region_of(pool, &now).bytes,
                                                 .error = slot->ranked->bound};
            memcpy(c.choices[member].rank, now.rank, sizeof now.rank);
            c.spectra[member++] = &slot->ranked->spectrum;
        }
    }
    const bool fits =
        tg_ranks_choose(&pool->kind, c.spectra, member, optim->groups[group].rank_tolerance,
                        pool->bytes, c.scratch, c.choices);
    member = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (is_member(slot, group)) {
            slot->ranked->is_measured = false;
            changes = (fits && is_changed(slot, &c.choices[member])) || changes;
            slot->ranked->bound = fits ? c.choices[member].error : slot->ranked->bound;
            member++;
        }
    }
    if (!changes) {
        return TG_OK;
    }
    const tg_status status = apply(optim, group, c.choices);
    if (status == TG_OK) {
        log_choice(optim, group, arriving);
    }
    return status;
}

/* ---- measuring ---- */

bool tg_ranks_wants_spectrum(const tg_optim *optim, const tg_slot *slot, bool refreshes) {
    if (!slot->ranked) {
        return false;
    }
    const int64_t next = slot->step + 1, last = refreshes ? slot->step : slot->last_refresh;
    return slot->last_refresh < 0 ||
           next - last >= tg_refresh_gap(&optim->groups[slot->group], next);
}

bool tg_ranks_is_at_work(const tg_optim *optim, const tg_slot *slot) {
    return slot->ranked &&
           (slot->ranked->is_measured || tg_ranks_wants_spectrum(optim, slot, false));
}

tg_status tg_ranks_measure(tg_optim *optim, tg_slot *slot, const tg_gradient *dense) {
    tg_status status = tg_projector_measure(slot->projector, dense->dense,
                                            tg_storage_of(dense->dtype), &slot->ranked->spectrum);
    if (status == TG_E_NUMERIC) {
        tg_log(optim->ctx, TG_LOG_WARN, "%s: its spectrum is not known, its ranks stay: %s",
               slot->name, tg_context_error(optim->ctx));
        return TG_OK;
    }
    slot->ranked->is_measured = status == TG_OK;
    return status;
}
