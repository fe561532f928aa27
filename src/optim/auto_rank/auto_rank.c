/* Automatic ranks: spectra are observed, ranks allocated, and the pool is laid out anew.
 *
 * Moments go with their coordinates: those of directions that are left out are forgotten, those of
 * new directions start at 0 (first moment) and at the value of the nearest direction that was there
 * (second moment), so that their first steps are not too long. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/minmax.h"
#include "optim/auto_rank/state_pool.h"

/* ---- allocation ---- */

/* Everything that is allocated at once. */
typedef struct group_ranks {
    tg_rank_allocation *ranks;   /* (members) */
    const tg_spectrum **spectra; /* (members) */
    void *scratch;
} group_ranks;

static group_ranks lay_out_scratch(const tg_rank_pool *pool) {
    group_ranks c = {.ranks = pool->scratch};
    c.spectra = (const tg_spectrum **)(c.ranks + pool->members);
    c.scratch = c.spectra + pool->members;
    return c;
}

static bool is_changed(const tg_slot *slot, const tg_rank_allocation *allocation) {
    const tg_layout now = tg_layout_of(slot);
    bool changed = false;
    for (int d = 0; d < now.ndim; d++) {
        changed = changed || now.rank[d] != allocation->rank[d];
    }
    return changed;
}

/* What a state and an allocation have in common, at an offset. */
static tg_layout common(const tg_layout *from, const tg_rank_allocation *allocation,
                        size_t offset) {
    tg_layout p = *from;
    p.offset = offset;
    for (int d = 0; d < p.ndim; d++) {
        p.rank[d] = tg_min(from->rank[d], allocation->rank[d]);
    }
    return p;
}

/* "8x18x14x9 and 120 entries" */
static const char *layout_text(const tg_layout *layout, char *text, size_t capacity) {
    char ranks[128];
    const tg_shape shape = tg_shape_of(layout->ndim, layout->rank);
    snprintf(text, capacity, layout->kept > 0 ? "%s and %lld entries" : "%s",
             tg_shape_text(&shape, ranks, sizeof ranks), (long long)layout->kept);
    return text;
}

/* The ranks before are still in use. */
static void log_allocation(tg_optim *optim, int group, const tg_slot *arriving,
                           const tg_rank_allocation *ranks) {
    const tg_optim_ranks now = tg_optim_get_ranks(optim);
    int64_t values = 0, kept = 0, entries = 0;
    size_t bytes = 0;
    double error = 0.0;
    int member = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (!tg_pool_has(slot, group)) {
            continue;
        }
        const tg_rank_allocation *allocation = &ranks[member++];
        const tg_layout before = tg_layout_of(slot);
        tg_layout after = before;
        char old[192], new[192];
        memcpy(after.rank, allocation->rank, sizeof after.rank);
        if (is_changed(slot, allocation)) {
            tg_log(optim->ctx, TG_LOG_INFO,
                   "ranks from step %lld on, %s: %s, error %.3g predicted; before %s, %.3g found",
                   (long long)arriving->step, slot->name, layout_text(&after, new, sizeof new),
                   sqrt(allocation->error), layout_text(&before, old, sizeof old), slot->error);
        }
        values += allocation->count;
        kept += before.kept;
        entries += slot->numel;
        bytes += allocation->bytes + tg_projector_get_bytes(slot->projector).indices;
        error += allocation->error;
    }
    tg_log(
        optim->ctx, TG_LOG_INFO,
        "ranks from step %lld on: %lld of %lld values (%.3g %%), %lld of them single entries, in "
        "%zu of %zu bytes; error %.3g predicted, found at the last refresh %.3g (%.3g predicted)",
        (long long)arriving->step, (long long)values, (long long)entries,
        100.0 * (double)values / (double)entries, (long long)kept, bytes,
        optim->pools[group].budget, sqrt(error / member), now.error, now.bound);
}

/* States first shrink to what stays and close up, then grow to their new sizes from the last one
 * on: the pool needs no second copy. */
static tg_status apply(tg_optim *optim, int group, const tg_rank_allocation *ranks) {
    tg_rank_pool *pool = &optim->pools[group];
    size_t packed = 0, end = 0;
    int member = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (!tg_pool_has(slot, group)) {
            continue;
        }
        const tg_layout from = tg_layout_of(slot);
        const tg_layout to = common(&from, &ranks[member], packed);
        TG_CALL(tg_state_repack(optim, pool, &from, &to));
        packed += tg_layout_region(pool, &to).bytes;
        end += ranks[member++].bytes;
    }
    for (int i = optim->slot_count - 1; i >= 0; i--) {
        tg_slot *slot = &optim->slots[i];
        if (!tg_pool_has(slot, group)) {
            continue;
        }
        const tg_rank_allocation *allocation = &ranks[--member];
        const tg_layout before = tg_layout_of(slot);
        tg_layout from = common(&before, allocation, 0), to = before;
        packed -= tg_layout_region(pool, &from).bytes;
        end -= allocation->bytes;
        from.offset = packed;
        to.offset = end;
        memcpy(to.rank, allocation->rank, sizeof to.rank);
        TG_CALL(tg_state_repack(optim, pool, &from, &to));
    }
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (!tg_pool_has(slot, group)) {
            continue;
        }
        const tg_rank_allocation *allocation = &ranks[member++];
        if (is_changed(slot, allocation)) {
            TG_CALL(tg_projector_set_ranks(slot->projector, allocation->rank));
            slot->count = allocation->count;
            slot->must_refresh = true;
        }
    }
    tg_pool_lay_out(optim, group); /* it fits: the allocation did */
    optim->moves++;
    return TG_OK;
}

tg_status tg_auto_rank_allocate(tg_optim *optim, const tg_slot *arriving) {
    const int group = arriving->group;
    tg_rank_pool *pool = &optim->pools[group];
    if (!arriving->ranked) {
        return TG_OK;
    }
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_slot *slot = &optim->slots[i];
        if (tg_pool_has(slot, group) && (!slot->ranked->is_observed || slot->is_summing)) {
            return TG_OK;
        }
    }
    const group_ranks c = lay_out_scratch(pool);
    int member = 0;
    bool changes = false;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (tg_pool_has(slot, group)) {
            const tg_layout now = tg_layout_of(slot);
            c.ranks[member] = (tg_rank_allocation){.count = slot->count,
                                                   .bytes = tg_layout_region(pool, &now).bytes,
                                                   .error = slot->bound};
            memcpy(c.ranks[member].rank, now.rank, sizeof now.rank);
            slot->ranked->spectrum.left = slot->projector->left;
            c.spectra[member++] = &slot->ranked->spectrum;
        }
    }
    const bool fits =
        tg_ranks_allocate(&pool->kind, c.spectra, member, optim->groups[group].rank_tolerance,
                          pool->bytes, c.scratch, c.ranks);
    if (fits) {
        log_allocation(optim, group, arriving, c.ranks);
    }
    member = 0;
    for (int i = 0; i < optim->slot_count; i++) {
        tg_slot *slot = &optim->slots[i];
        if (tg_pool_has(slot, group)) {
            slot->ranked->is_observed = false;
            changes = (fits && is_changed(slot, &c.ranks[member])) || changes;
            slot->bound = fits ? c.ranks[member].error : slot->bound;
            member++;
        }
    }
    return changes ? apply(optim, group, c.ranks) : TG_OK;
}

/* ---- what it knows ---- */

tg_optim_ranks tg_optim_get_ranks(const tg_optim *optim) {
    tg_optim_ranks out = {0};
    if (!optim) {
        return out;
    }
    for (int i = 0; i < optim->slot_count; i++) {
        const tg_optim_projection p = tg_optim_get_projection(optim, i);
        if (optim->slots[i].ranked) {
            out.params++;
            out.values += p.values;
            out.kept += p.kept;
            out.entries += p.entries;
            out.bytes += p.bytes;
            out.error += p.error * p.error;
            out.bound += p.bound * p.bound;
        }
    }
    for (int i = 0; i < optim->group_count; i++) {
        out.budget += optim->pools[i].budget;
    }
    out.error = sqrt(out.error / out.params);
    out.bound = sqrt(out.bound / out.params);
    return out.params > 0 ? out : (tg_optim_ranks){0};
}

/* ---- observing ---- */

bool tg_auto_rank_observes(const tg_optim *optim, const tg_slot *slot, bool refreshes) {
    if (!slot->ranked) {
        return false;
    }
    const int64_t next = slot->step + 1, last = refreshes ? slot->step : slot->last_refresh;
    return slot->last_refresh < 0 ||
           next - last >= tg_refresh_gap(&optim->groups[slot->group], next);
}

bool tg_auto_rank_is_active(const tg_optim *optim, const tg_slot *slot) {
    return slot->ranked && (slot->ranked->is_observed || tg_auto_rank_observes(optim, slot, false));
}

/* Spectra of different steps are spectra of the same loss. */
static void take_out_loss_scale(const tg_optim *optim, tg_spectrum *s) {
    const double factor = 1.0 / (optim->loss_scale.used * optim->loss_scale.used);
    s->energy *= factor;
    for (int64_t i = 0; factor != 1.0 && i < tg_spectrum_values(s); i++) {
        s->values[i] *= factor;
    }
}

tg_status tg_auto_rank_observe(tg_optim *optim, tg_slot *slot, const tg_gradient *dense) {
    tg_status status = tg_projector_measure(slot->projector, dense->dense,
                                            tg_storage_of(dense->dtype), &slot->ranked->spectrum);
    if (status == TG_E_NUMERIC) {
        tg_log(optim->ctx, TG_LOG_WARN, "%s: its spectrum is not known, its ranks stay: %s",
               slot->name, tg_context_error(optim->ctx));
        return TG_OK;
    }
    if (status == TG_OK) {
        take_out_loss_scale(optim, &slot->ranked->spectrum);
    }
    slot->ranked->is_observed = status == TG_OK;
    return status;
}
